// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Alias GIDs: a port asks its subnet administrator for a further GUID, and uses the GID.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::{Gid, Guid, Lid};
use ibarr_proto::paths::{Partial, PortFacts};
use ibarr_user::control::messages::Request;
use ibarr_user::sys::umad::Opened;
use ibarr_user::transport::alias;

use super::{A_PORT, B_PORT, R_PORT, connection, gid};
use crate::rig::verbs::{End, pingpong};
use crate::rig::{self, Ibarr, Place, eventually};

const A_GUID: u64 = 0x0011_2233_4455_0001;
const R_GUID: u64 = 0x0011_2233_4455_0002;

/// A's alias has a path to the other subnet, and packets of a connection between aliases have them.
pub(super) fn works(here: &Ibarr) -> Result<()> {
    let aliases = [add(A_PORT, A_GUID)?, add(R_PORT, R_GUID)?];
    let (dgid, sgid) = (gid(B_PORT)?, Some(aliases[0]));
    let path = Partial { dgid, sgid, port: None, pkey: None, fresh: false };
    let answer = eventually(|| here.ask(&Request::Path { path }))?;
    let sgid = format!("\"sgid\":\"{}\"", aliases[0]);
    ensure!(answer.to_string().contains(&sgid), "no {sgid}: {answer}");

    let end = |device| End { place: Place::Here, device, port: "1" };
    let ends = [end("ibtun2"), end("ibtun0")];
    let options = ["-c", "-e", "-s", "5000", "-n", "50", "-g", "1"];
    let seen = connection(|| pingpong("ibv_rc_pingpong", ends, "127.0.0.1", &options))?;
    for alias in aliases {
        let sent = seen.iter().filter(|one| one.sgid == alias).count();
        ensure!(sent > 50, "{sent} packets of {alias}");
    }
    Ok(())
}

/// Gives a port another GUID, as the second of its table, and waits until the kernel has the GID.
pub(super) fn add(port: &str, guid: u64) -> Result<Gid> {
    let (lid, sm_lid) = (Some(lid(port, "lid")?), Some(lid(port, "sm_lid")?));
    let facts = PortFacts { lid, sm_lid, ..PortFacts::default() };
    let opened = Opened::open(Path::new(&umad(port)?))?;
    alias::ask(opened, &facts, Guid::new(guid), Duration::from_secs(2))?;
    eventually(|| {
        let has: Gid = rig::port_attribute(Place::Here, port, "gids/1")?.parse()?;
        ensure!(has.guid().get() == guid, "{port} has {has}");
        Ok(has)
    })
}

/// A LID in the attribute `name` of a port.
pub(crate) fn lid(port: &str, name: &str) -> Result<Lid> {
    let text = rig::port_attribute(Place::Here, port, name)?;
    let lid = u16::from_str_radix(text.trim_start_matches("0x"), 16)?;
    Lid::new(lid).with_context(|| format!("{port} has no {name}"))
}

/// The umad device of a port.
pub(crate) fn umad(port: &str) -> Result<String> {
    let (device, number) = port.split_once("/ports/").context("a port")?;
    for entry in fs::read_dir("/sys/class/infiniband_mad")? {
        let path = entry?.path();
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        let name = path.file_name().and_then(|name| name.to_str()).context("a name")?;
        let is_umad = name.starts_with("umad");
        if is_umad && read("ibdev").trim() == device && read("port").trim() == number {
            return Ok(format!("/dev/infiniband/{name}"));
        }
    }
    anyhow::bail!("{port} has no umad device")
}
