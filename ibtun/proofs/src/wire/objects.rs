// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What debugfs lists of an HCA, what a trace has of address handles and shared receive queues, and what dynamic debug
//! says of packets that go no further.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use nix::time::{ClockId, clock_gettime};

use super::{End, OTHER, OURS, start_pingpong, trace};
use crate::kernel_log;
use crate::report::Report;
use crate::rig::{self, Place, spawn};

const DEBUGFS: &str = "/sys/kernel/debug";

/// Programs with options, and the objects that each makes.
const PROGRAMS: [(&str, &[&str], &str); 2] = [
    ("ibv_ud_pingpong", &[], "context cq lid lkey pd qp"),
    ("ibv_srq_pingpong", &["-q", "4"], "context cq lkey pd qp qp qp qp srq"),
];

/// An object as it is listed: `qp=17 created=12.345678 handle=2 pid=99`.
#[derive(Debug)]
struct Object {
    kind: String,
    number: u64,
    created: f64,
    handle: Option<u64>,
    process: Option<u32>,
}

pub(super) fn prove(report: &mut Report) {
    let mounted = rig::run(Place::Here, &["busybox", "mount", "-t", "debugfs", "debugfs", DEBUGFS]);
    report.claim("debugfs is there", mounted);
    report.claim("debugfs lists a program's objects with time and handle", listed());
    report.claim("debugfs lists the kernel's own objects, without a handle", listed_of_kernel());
    report.claim("a trace has address handles and shared receive queues", traced());
    report.claim("dynamic debug tells why a packet goes no further", told());
}

fn list(end: End<'_>) -> Result<Vec<Object>> {
    let file = format!("{DEBUGFS}/ibtun/{}/objects", end.0);
    let text = fs::read_to_string(&file).context(file)?;
    text.lines().map(|line| Object::read(line).with_context(|| line.to_owned())).collect()
}

impl Object {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ').map(|word| word.split_once('='));
        let (kind, number) = words.next()??;
        let rest: BTreeMap<_, _> = words.collect::<Option<_>>()?;
        Some(Self {
            kind: kind.to_owned(),
            number: number.parse().ok()?,
            created: rest.get("created")?.parse().ok()?,
            handle: rest.get("handle").and_then(|value| value.parse().ok()),
            process: rest.get("pid").and_then(|value| value.parse().ok()),
        })
    }
}

/// Seconds of the clock by which objects and packets are listed.
fn now() -> Result<f64> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).context("CLOCK_BOOTTIME")?;
    Ok(std::time::Duration::from(now).as_secs_f64())
}

fn listed() -> Result<()> {
    for (program, options, expected) in PROGRAMS {
        let before = now()?;
        let options = [options, &["-s", "100", "-n", "1000000"]].concat();
        let (mut server, words) = start_pingpong(program, OTHER, OURS, &options)?;
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let mut client = spawn(&format!("{program}-objects"), Place::Here, &words)?;
        let process = Some(client.id());
        let own = || -> Result<Vec<_>> {
            let mut all = list(OURS)?;
            all.retain(|object| object.process == process);
            Ok(all)
        };
        let all = rig::eventually(|| {
            let all = own()?;
            let mut kinds: Vec<_> = all.iter().map(|object| &object.kind[..]).collect();
            kinds.sort_unstable();
            ensure!(kinds.join(" ") == expected, "{program}: {kinds:?}, not {expected}");
            Ok(all)
        })?;
        let after = now()?;
        let is_recent = |object: &Object| (before..=after).contains(&object.created);
        ensure!(all.iter().all(is_recent), "made between {before} and {after}: {all:?}");
        let handles: Vec<_> = all.iter().filter_map(|object| object.handle).collect();
        ensure!(handles.len() + 1 == all.len(), "each but the context has a handle: {all:?}");
        let is_known = |object: &Object| object.kind != "qp" || object.number > 1;
        ensure!(all.iter().all(is_known), "{all:?}");
        client.kill()?;
        server.kill()?;
        let left = own()?;
        ensure!(left.is_empty(), "{program} has ended: {left:?}");
    }
    Ok(())
}

/// The two queue pairs of management of each port, and what IPoIB has.
fn listed_of_kernel() -> Result<()> {
    let all = list(OURS)?;
    for (kind, number) in [("qp", 0), ("qp", 1)] {
        let is_it = |object: &&Object| object.kind == kind && object.number == number;
        ensure!(all.iter().any(|object| is_it(&object)), "no {kind} {number}: {all:?}");
    }
    ensure!(all.iter().any(|object| object.kind == "lid"), "no address handle: {all:?}");
    ensure!(all.iter().all(|object| object.handle.is_none()), "a handle: {all:?}");
    Ok(())
}

fn traced() -> Result<()> {
    for (program, options, calls) in [
        ("ibv_ud_pingpong", &[][..], ["create_ah", "destroy_ah"]),
        ("ibv_srq_pingpong", &["-q", "4"], ["create_srq", "destroy_srq"]),
    ] {
        let options = [options, &["-e", "-s", "100", "-n", "5"]].concat();
        trace::has_calls(program, &options, &calls)?;
    }
    Ok(())
}

/// A queue pair is gone, and its peer sends to it.
fn told() -> Result<()> {
    let control = format!("{DEBUGFS}/dynamic_debug/control");
    fs::write(&control, "module ibtun +p").context(control.clone())?;
    let options = ["-s", "100", "-n", "1000000"];
    let (mut server, words) = start_pingpong("ibv_rc_pingpong", OTHER, OURS, &options)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut client = spawn("ibv_rc_pingpong-debug", Place::Here, &words)?;
    super::resources::connected(OURS)?;
    let before = OTHER.count("rx_drop_qp")?;
    server.kill()?;
    rig::eventually(|| {
        ensure!(OTHER.count("rx_drop_qp")? > before, "no packet came late");
        let expected = format!("{}: port {}: rx_drop_qp", OTHER.0, OTHER.1);
        let lines = kernel_log::lines()?;
        ensure!(lines.iter().any(|line| line.ends_with(&expected)), "nothing in the kernel log");
        Ok(())
    })?;
    client.kill()?;
    fs::write(&control, "module ibtun -p").context(control)
}
