// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Paths from stock OpenSM, through a umad device of FUSE, for the daemon and for a bare client of
//! the same device.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ibarr_common::ib::{Gid, Lid};

use super::super::local_service::Server;
use super::super::process;
use super::super::rounds::Round;
use super::sa::Bare;
use super::wait_for_port;
use super::{Effort, LOOK_EVERY, OUTSTANDING_SA, Place, READY_WITHIN, flush, port, uncached};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Node, Plan, Store, TemporaryLab};
use crate::stock::{Running, Stock};
use crate::umad::{Abilities, Directory, OnFabric, Port};

/// Rounds of the daemon, and of the bare client.
pub(super) type Measured = (Vec<Round>, Vec<Round>);

/// The tools that `cargo xtask bench` has unpacked. `None` if it has not.
pub(super) fn find() -> Result<Option<Stock>> {
    let Some(root) = env::var_os("IBARR_OPENSM_ROOT") else { return Ok(None) };
    let ibfab = env::current_exe().context("cannot find this program")?.with_file_name("ibfab");
    Ok(Some(Stock::new(root.into(), ibfab)?))
}

pub(super) fn measure(
    stock: &Stock,
    store: &Store,
    ibarr: &Path,
    effort: &Effort,
    interrupt: &Interrupt,
) -> Result<Measured> {
    let name: LabName = format!("bench-{}", std::process::id()).parse()?;
    let lab = Lab::up(store, Plan::new(name, 1, false)?, ibarr, interrupt)?;
    let mut lab = TemporaryLab::new(lab);
    let node = lab.plan().nodes.first().context("a lab has nodes")?.clone();
    let directory = lab.files(&node).infiniband();
    let subnet = Subnet::up(stock, &directory, interrupt)?;
    let daemon = Server::daemon(&mut lab, node.name, interrupt)?;
    process::pin(&[daemon.pid()])?;
    wait_for_port(&lab, &node, interrupt)?;

    let place = place(&lab, &node)?;
    let mut bare = Bare::open(&directory.dev().join("infiniband/umad0"), place)?;
    let mut measured = Measured::default();
    for turn in 0..=effort.rounds {
        interrupt.check()?;
        let ours = uncached(&daemon, place, effort.round)?;
        let theirs = bare.round(OUTSTANDING_SA, effort.round)?;
        flush(&lab, &node)?;
        if turn > 0 {
            measured.0.push(ours);
            measured.1.push(theirs);
        }
    }
    drop((bare, daemon, subnet));
    lab.down()?;
    Ok(measured)
}

/// Hosts at one switch, the last of them the daemon's.
const HOSTS: u32 = 201;

/// A fabric that OpenSM has brought up, and a port on it.
struct Subnet {
    _port: Port,
    _manager: Running,
    _fabric: Running,
    _files: Files,
}

/// A directory that is removed in any case.
struct Files(PathBuf);

impl Subnet {
    fn up(stock: &Stock, directory: &Directory, interrupt: &Interrupt) -> Result<Self> {
        let files = Files(env::temp_dir().join(format!("ibarr-bench-{}", std::process::id())));
        fs::create_dir(&files.0).with_context(|| files.0.display().to_string())?;
        // Other fabrics in this network namespace have other names.
        let name = format!("bench{}", std::process::id());
        let fabric = Running::start(&mut stock.fabric(&name, &files.0, &topology()?)?)?;
        until("ibfab listens", interrupt, || files.0.join("control").exists())?;
        let manager = Running::start(&mut stock.manager(&name, "H1", &files.0, "")?)?;
        let log = || fs::read_to_string(files.0.join("opensm.log")).unwrap_or_default();
        until("OpenSM says SUBNET UP", interrupt, || log().contains("SUBNET UP"))?;
        let wire = OnFabric::connect(&name, &format!("H{HOSTS}"))?;
        let port = Port::new(directory, port(), 0, Abilities::default(), None, wire)?;
        Ok(Self { _port: port, _manager: manager, _fabric: fabric, _files: files })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // The system removes temporary files some day.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn topology() -> Result<String> {
    let mut text = format!("Switch {HOSTS} \"S1\"\n");
    for host in 1..=HOSTS {
        writeln!(text, "[{host}] \"H{host}\"[1]")?;
    }
    for host in 1..=HOSTS {
        write!(text, "\nCa 1 \"H{host}\"\n")?;
    }
    Ok(text)
}

/// The daemon's port, as the daemon shows it.
fn place(lab: &Lab, node: &Node) -> Result<Place> {
    let ports = lab.ask(node, &["ports"])?;
    let port = &ports["ports"][0];
    let sa = port["sm-lid"].as_u64().and_then(|lid| u16::try_from(lid).ok()).and_then(Lid::new);
    let sgid = port["gids"][0].as_str().and_then(|gid| gid.parse().ok());
    Ok(Place {
        sgid: sgid.context("the port has no GID")?,
        sa: sa.context("the port knows no subnet manager")?,
        destination: |number| {
            let others = HOSTS - 1;
            (host(1 + number % others), Some((number / others).to_be_bytes()[3]))
        },
        destinations: (HOSTS - 1) * 256,
    })
}

/// The GID of a host, as `ibfab` numbers hosts.
fn host(number: u32) -> Gid {
    let guid = 0x10_0000 + 2 * u128::from(number - 1) + 1;
    Gid::new((0xfe80_u128 << 112 | guid).to_be_bytes()).expect("a port's")
}

fn until(what: &str, interrupt: &Interrupt, is_so: impl Fn() -> bool) -> Result<()> {
    for _ in 0..READY_WITHIN.as_millis() / LOOK_EVERY.as_millis() {
        if is_so() {
            return Ok(());
        }
        interrupt.sleep(LOOK_EVERY)?;
    }
    bail!("timed out before {what}")
}
