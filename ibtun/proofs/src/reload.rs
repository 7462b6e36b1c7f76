// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `cargo xtask vm reload`: HCAs end under load. In each round `ibfab` makes two, programs send over them, `ibfab` and
//! the programs are killed in an order that the seed gives, and the module is unloaded and loaded again. The
//! kernel must not lose memory by that.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, delete_module};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng as _};

use crate::init;
use crate::report::Report;
use crate::rig::{self, Place, Process, spawn};
use crate::wire::{self, End, OTHER, OURS};

/// Two hosts and the cable between them.
const TOPOLOGY: (&str, &str) = ("/run/two.topo", "Ca 1 \"A\"\n[1] \"B\"[1]\n\nCa 1 \"B\"\n");

/// Programs that send to each other until they are killed. Some sleep until there is a completion, the others poll.
const LOADS: [(&str, &[&str]); 5] = [
    ("ibv_rc_pingpong", &["-s", "300", "-n", "100000000"]),
    ("ibv_rc_pingpong", &["-e", "-s", "100000", "-n", "100000000"]),
    ("ibv_srq_pingpong", &["-e", "-s", "5000", "-q", "4", "-n", "100000000"]),
    ("ibv_uc_pingpong", &["-s", "3000", "-n", "100000000"]),
    ("ibv_ud_pingpong", &["-s", "1000", "-n", "100000000"]),
];

/// Both HCAs have sent so much when the end begins.
const UNDER_LOAD: u64 = 50;

/// The kernel has made what it makes once.
const WARM: u32 = 20;

/// Keeps the lists of free pages short that each processor has for itself, 20 MB of them, and that count as used.
const LISTS: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";

/// What may grow by other causes, in KiB. A thousand rounds that lose a page each would take as much.
const GROWTH: u64 = 4096;

pub(crate) fn run(rounds: u32, seed: u64) -> ExitCode {
    let mut report = Report::default();
    Report::note(format_args!("seed {seed}"));
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let set_up = fs::write(TOPOLOGY.0, TOPOLOGY.1).context(TOPOLOGY.0);
    let set_up = set_up.and_then(|()| rig::ip(Place::Here, "link set lo up"));
    let set_up = set_up.and_then(|_| rig::write(Place::Here, LISTS, "1000000"));
    report.claim("the guest is ready", set_up);
    let warm = (0..WARM).try_for_each(|number| round(number, &mut random));
    report.claim(&format!("{WARM} rounds end, with no HCA left"), warm);
    let before = report.claim("the kernel says what memory it has", Memory::now());
    let rest = (WARM..WARM + rounds).try_for_each(|number| round(number, &mut random));
    report.claim(&format!("{rounds} more rounds end, with no HCA left"), rest);
    let after = report.claim("and what it has now", Memory::now());
    if let (Some(before), Some(after)) = (before, after) {
        report.claim("the kernel has lost no memory", same(before, after));
    }
    report.end()
}

fn round(number: u32, random: &mut ChaCha8Rng) -> Result<()> {
    turn(random).with_context(|| format!("round {number}"))?;
    if number.is_multiple_of(50) {
        Report::note(format_args!("round {number}: {:?} KiB", Memory::now()?));
    }
    Ok(())
}

fn turn(random: &mut ChaCha8Rng) -> Result<()> {
    let devices = ["--device", "A,B"];
    let fabric =
        spawn("ibfab", Place::Here, &[&["ibfab", "run", TOPOLOGY.0], &devices[..]].concat())?;
    for (lid, end) in [("1", OURS), ("2", OTHER)] {
        is_state(end, "2: INIT")?;
        // The device of the MADs may come later.
        rig::eventually(|| set_port(end, &["lid", lid, "smlid", "1", "arm"]))?;
    }
    for end in [OURS, OTHER] {
        set_port(end, &["active"])?;
        is_state(end, "4: ACTIVE")?;
    }
    let mut programs = Vec::new();
    for _ in 0..=below(random, 2) {
        let (program, options) = LOADS[below(random, LOADS.len())];
        let (server, client) = wire::start_pingpong(program, OTHER, OURS, options)?;
        let client: Vec<_> = client.iter().map(String::as_str).collect();
        programs.push(server);
        programs.push(spawn(program, Place::Here, &client)?);
    }
    rig::eventually(|| {
        for end in [OURS, OTHER] {
            let sent = end.count("tx_packets")?;
            ensure!(sent >= UNDER_LOAD, "{end:?} has sent {sent} packets");
        }
        Ok(())
    })?;
    ensure!(unload() == Err(Errno::EWOULDBLOCK), "the module was unloaded under its HCAs");
    // So many programs end before the fabric.
    for _ in 0..below(random, programs.len() + 1) {
        end(programs.swap_remove(below(random, programs.len())), random)?;
    }
    end(fabric, random)?;
    // The HCAs go when the last program does; the module is in use until then.
    while unload().is_err() && !programs.is_empty() {
        end(programs.swap_remove(below(random, programs.len())), random)?;
    }
    rig::eventually(|| match unload() {
        // It was unloaded above.
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => bail!("the module cannot be unloaded: {errno}"),
    })?;
    init::load_again("ibtun")
}

fn below(random: &mut ChaCha8Rng, number: usize) -> usize {
    random.next_u32() as usize % number
}

fn is_state(End(device, port): End<'_>, wanted: &str) -> Result<()> {
    rig::eventually(|| {
        let state = rig::port_attribute(Place::Here, &format!("{device}/ports/{port}"), "state")?;
        ensure!(state == wanted, "{device} is {state}");
        Ok(())
    })
}

/// Does as a subnet manager would, and takes less time.
fn set_port(End(device, port): End<'_>, words: &[&str]) -> Result<()> {
    let tool = ["ibportstate", "-C", device, "-P", port, "-D", "0", port];
    rig::run(Place::Here, &[&tool[..], words].concat()).map(drop)
}

/// Kills most, and asks some to end.
fn end(mut process: Process, random: &mut ChaCha8Rng) -> Result<()> {
    if below(random, 4) > 0 { process.kill() } else { process.stop().map(drop) }
}

fn unload() -> nix::Result<()> {
    delete_module(c"ibtun", DeleteModuleFlags::O_NONBLOCK)
}

/// What the kernel has for others, and what it has taken for slabs that it cannot give back, in KiB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    free: u64,
    slabs: u64,
}

impl Memory {
    fn now() -> Result<Self> {
        rig::write(Place::Here, "/proc/sys/vm/drop_caches", "3")?;
        let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let value = |name: &str| -> Result<u64> {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|line| line.0 == name).context("a line of meminfo")?;
            Ok(value.trim().trim_end_matches(" kB").parse()?)
        };
        // Files of the guest, and what programs have said, are in the cache.
        let free = value("MemFree")? + value("Buffers")? + value("Cached")?;
        Ok(Self { free, slabs: value("SUnreclaim")? })
    }
}

fn same(before: Memory, after: Memory) -> Result<()> {
    let is_same = after.free + GROWTH >= before.free && after.slabs <= before.slabs + GROWTH;
    ensure!(is_same, "{before:?}, then {after:?}");
    Ok(())
}
