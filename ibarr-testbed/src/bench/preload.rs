// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench preload`: what it costs to know a fabric before the first question: time to read the files, memory of each
//! node, and how long the daemon's loop is held up by what was read.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Stopwatch};

use anyhow::{Context, Result, ensure};
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, PortNum};
use ibarr_common::wire::umad::PKeyIndex;
use ibarr_proto::paths::{Config, Input, Paths, PortFacts, PortName};
use ibarr_proto::sa::PortIndex;
use ibarr_user::preload::{Selection, hosts, routes};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use tempfile::TempDir;

use super::cache::resident_bytes;
use super::report::{Report, Target, median};
use crate::interrupt::Interrupt;
use crate::lab::Store;

/// Measures the parsers and the core that the daemon uses, without a daemon.
///
/// # Errors
/// A file cannot be written, or is not read as it was written.
pub fn preload(_: &Store, _: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let mut report = Report::new("preload", quick)?;
    let rounds = if quick { 1 } else { 11 };
    let files = Files::write(if quick { 1_000_000 } else { 10_000_000 })?;
    let hosts = bytes_of_hosts(&files)?;
    let paths = bytes_of_paths(&files, &mut report)?;
    let (mut of_hosts, mut of_routes, mut of_others) = (Vec::new(), Vec::new(), Vec::new());
    eprintln!("bench: {rounds} rounds of reading …");
    for _ in 0..rounds {
        interrupt.check()?;
        of_hosts.push(seconds(|| hosts::read(&files.hosts).map(drop))?);
        of_routes.push(seconds(|| routes::read(&files.routes, &wanted()).map(drop))?);
        let rows = seconds(|| routes::read(&files.others, &wanted()).map(drop))?;
        of_others.push(rows / f64::from(files.rows) * 1e6);
    }
    let names = "s to read names and addresses of 100,000 nodes";
    let (of_hosts, of_routes) = (median(of_hosts.into_iter())?, median(of_routes.into_iter())?);
    report.add(names, of_hosts, None);
    report.add("s to read 48,000 paths", of_routes, None);
    report.add("s to read both", of_hosts + of_routes, Some(Target::AtMost(2.0)));
    report.add("s to read a million paths of others", median(of_others.into_iter())?, None);
    report.add("bytes of memory for a name and an IPv4 address", hosts, None);
    report.add("bytes of memory for a path", paths, None);
    report.add("bytes of memory for each node", hosts + paths, Some(Target::AtMost(300.0)));
    Ok(report)
}

/// Nodes of the fabric.
const NODES: u32 = 100_000;

/// Ports of our subnet: fewer than it has LIDs.
const PORTS: u16 = 48_000;

/// The files that are read, removed when dropped.
struct Files {
    hosts: PathBuf,
    routes: PathBuf,
    others: PathBuf,
    rows: u32,
    _dir: TempDir,
}

impl Files {
    /// `rows` lines are about paths of other ports.
    fn write(rows: u32) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = |name: &str| dir.path().join(name);
        let this = Self {
            hosts: file("hosts"),
            routes: file("routes"),
            others: file("others"),
            rows,
            _dir: dir,
        };
        let mut text = String::new();
        for n in 0..NODES {
            let [_, a, b, c] = n.to_be_bytes();
            writeln!(text, "node{n:06}.example {0}\n10.{a}.{b}.{c} {0}", gid(u64::from(n)))?;
        }
        fs::write(&this.hosts, &text)?;
        text.clear();
        heading(&mut text, 1)?;
        (1..=PORTS).try_for_each(|lid| writeln!(text, "0x{lid:04X} : 0  : 4   : 3   "))?;
        for lid in 2..=PORTS {
            heading(&mut text, lid)?;
        }
        fs::write(&this.routes, &text)?;
        text.clear();
        heading(&mut text, 2)?;
        for n in 0..rows {
            writeln!(text, "0x{:04X} : 0  : 4   : 3   ", n % u32::from(PORTS) + 1)?;
        }
        fs::write(&this.others, &text)?;
        Ok(this)
    }
}

fn heading(text: &mut String, lid: u16) -> Result<()> {
    let guid = guid(u64::from(lid));
    writeln!(text, "\nChannel Adapter 0x{guid:016x}, base LID {lid}, \"node HCA-1\", port 1")?;
    writeln!(text, "# LID  : SL : MTU : RATE")?;
    Ok(())
}

fn seconds(read: impl FnOnce() -> std::io::Result<()>) -> Result<f64> {
    let start = Stopwatch::now();
    read()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Growth of the process for each node.
fn bytes_of_hosts(files: &Files) -> Result<f64> {
    let before = resident_bytes()?;
    let (hosts, report) = hosts::read(&files.hosts)?;
    ensure!(hosts.len() == 2 * NODES as usize && report.bad_lines == 0, "{report}");
    Ok((resident_bytes()? - before) / f64::from(NODES))
}

/// Growth of the process for each path, once the core has taken all of them.
fn bytes_of_paths(files: &Files, report: &mut Report) -> Result<f64> {
    let before = resident_bytes()?;
    let mut core = Paths::new(Config::default(), ChaCha12Rng::seed_from_u64(1));
    core.handle_input(START, Input::Port { port: PortIndex(0), name: name()?, facts: facts() });
    let ports = core.walk(START).ports();
    let (snapshot, read) = routes::read(&files.routes, &Selection { ports, ..wanted() })?;
    ensure!(read.entries == usize::from(PORTS) && read.bad_lines == 0, "{read}");
    let turn = |work: &mut dyn FnMut()| {
        let start = Stopwatch::now();
        work();
        start.elapsed()
    };
    let mut snapshot = Some(snapshot);
    let mut turns = vec![turn(&mut || {
        if let Some(snapshot) = snapshot.take() {
            core.preload(START, snapshot);
        }
    })];
    while core.load().cached < usize::from(PORTS) {
        ensure!(turns.len() < usize::from(PORTS), "the core takes no more paths");
        turns.push(turn(&mut || core.handle_timeout(START)));
    }
    let longest = turns.iter().max().copied().unwrap_or_default();
    let rest = turns.get(1..).unwrap_or_default().iter().max().copied().unwrap_or_default();
    report.add("ms that the daemon's loop is held up at once", longest.as_secs_f64() * 1e3, None);
    report.add("ms of each turn that takes 256 paths over", rest.as_secs_f64() * 1e3, None);
    let bytes = (resident_bytes()? - before) / f64::from(PORTS);
    ensure!(core.load().cached == usize::from(PORTS), "all paths are kept meanwhile");
    Ok(bytes)
}

/// Without ports, lines are read and nothing is kept.
fn wanted() -> Selection {
    Selection { ports: Vec::new(), most: usize::from(PORTS), life: Duration::from_hours(1) }
}

fn name() -> Result<PortName> {
    let port = PortNum::new(1).context("ports count from 1")?;
    Ok(PortName { device: "mlx5_0".parse()?, port })
}

fn facts() -> PortFacts {
    PortFacts {
        is_active: true,
        has_umad: true,
        lid: Lid::new(1),
        sm_lid: Lid::new(2),
        gids: [gid(1)].into(),
        pkeys: vec![(PKeyIndex(0), PKey::DEFAULT)],
        ..PortFacts::default()
    }
}

/// GUIDs are consecutive, as a vendor assigns them.
fn guid(number: u64) -> u64 {
    0x0002_c903_0000_0000 + number
}

fn gid(number: u64) -> Gid {
    let octets = (0xfe80_u128 << 112 | u128::from(guid(number))).to_be_bytes();
    Gid::new(octets).expect("a port's")
}

const START: Instant = Instant::from_nanos(1_000_000_000);
