// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench addresses`: what it costs the daemon to follow addresses that come and go, with each answer written to the
//! BPF maps. `ip monitor` receives the same events at the same time. Then, how long a daemon takes to be ready that has
//! [`MANY`] addresses, and what a change of one more costs it alone.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::process::{cpu_time, pin};
use super::report::{Report, Target, median};
use crate::interrupt::Interrupt;
use crate::lab::{Node, Store};
use crate::start::program;

/// Measures in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or the daemon does not answer for an address.
pub fn addresses(
    store: &Store,
    ibarr: &Path,
    quick: bool,
    interrupt: &Interrupt,
) -> Result<Report> {
    let (rounds, count) = if quick { (1, 100) } else { (11, 3_000) };
    let mut lab = super::lab(store, 1, false, ibarr, interrupt)?;
    let [node] = lab.plan().nodes.as_slice() else { bail!("a lab of one node") };
    let node = node.clone();
    let files = lab.files(&node);
    let mut config = fs::read_to_string(files.config())?;
    for number in 0..=MANY {
        write!(config, "[[static-gid]]\nip = \"{}\"\ngid = \"{}\"\n", address(number), node.gid)?;
    }
    fs::write(files.config(), config)?;
    lab.restart(node.name, interrupt)?;
    let daemon = lab.state().daemons.first().context("the daemon was started")?.process.pid;
    let ip = lab.ip()?;
    let mut monitor = ip.monitor(&node.namespace)?;
    pin(&[daemon, monitor.id()])?;

    let mut report = Report::new("addresses", quick)?;
    eprintln!("bench: {rounds} rounds of {count} addresses that come and go …");
    let (mut ratios, mut costs) = (Vec::new(), Vec::new());
    // One more, because the first fills caches and makes tables grow.
    for round in 0..=rounds {
        let before = [cpu_time(daemon)?, cpu_time(monitor.id())?];
        for verb in ["add", "del"] {
            interrupt.check()?;
            let line = |n| format!("address {verb} {}/32 dev {}", address(n), Node::INTERFACE);
            ip.batch(Some(&node.namespace), &(0..count).map(line).collect::<Vec<_>>())?;
            wait_until_idle(&[daemon, monitor.id()], interrupt)?;
            // A process that gets no CPU looks idle, too. No peer answers here.
            let last = ["resolve", &address(count - 1).to_string()];
            let mut tries = 0;
            while verb == "add" && !lab.ibarr(&node, &last)?.status.success() {
                tries += 1;
                ensure!(tries < 100, "the daemon does not answer for its last address");
                wait_until_idle(&[daemon, monitor.id()], interrupt)?;
            }
        }
        let [ours, theirs] = before;
        let ours = cpu_time(daemon)?.saturating_sub(ours).as_secs_f64();
        let theirs = cpu_time(monitor.id())?.saturating_sub(theirs).as_secs_f64();
        if round > 0 {
            ratios.push(ours / theirs);
            costs.push(ours * 1e6 / f64::from(2 * count));
        }
    }
    report.add("CPU time, to that of `ip monitor`", median(ratios.into_iter())?, None);
    report.add("µs of CPU time an event", median(costs.into_iter())?, None);

    let line = |n| format!("address add {}/32 dev {}", address(n), Node::INTERFACE);
    ip.batch(Some(&node.namespace), &(0..MANY).map(line).collect::<Vec<_>>())?;
    let (mut starts, mut costs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        lab.end(node.name, interrupt)?;
        let detached =
            program(ibarr).args(["detach", "--bpf-dir"]).arg(lab.bpf_dir(&node)).output()?;
        ensure!(detached.status.success(), "`ibarr detach`: {detached:?}");
        starts.push(lab.restart(node.name, interrupt)?.as_secs_f64() * 1e3);
        let daemon = lab.state().daemons.first().context("the daemon was started")?.process.pid;
        let both = [daemon, monitor.id()];
        pin(&both)?;
        wait_until_idle(&both, interrupt)?;
        let used = || -> Result<[f64; 2]> {
            Ok([cpu_time(daemon)?.as_secs_f64(), cpu_time(monitor.id())?.as_secs_f64()])
        };
        // The daemon also does something each second, whatever happens.
        let before = used()?;
        (0..ALONE).try_for_each(|_| interrupt.sleep(WHILE))?;
        let idle = used()?;
        for change in 0..ALONE {
            let verb = if change % 2 == 0 { "add" } else { "del" };
            let line = format!("address {verb} {}/32 dev {}", address(MANY), Node::INTERFACE);
            ip.batch(Some(&node.namespace), &[line])?;
            interrupt.sleep(WHILE)?;
        }
        let after = used()?;
        let [ours, theirs] = [0, 1].map(|at| after[at] - idle[at] - (idle[at] - before[at]));
        costs.push(ours * 1e6 / f64::from(ALONE));
        ratios.push(ours / theirs);
    }
    let _ = monitor.kill();
    monitor.wait().context("cannot wait for ip")?;
    lab.down()?;
    let what = format!("ms until ready, of {MANY} addresses");
    report.add(what, median(starts.into_iter())?, Some(Target::AtMost(80.0)));
    let what = format!("µs of CPU time an event alone, of {MANY} addresses");
    report.add(what, median(costs.into_iter())?, Some(Target::AtMost(60.0)));
    report.add("the same, to that of `ip monitor`", median(ratios.into_iter())?, None);
    Ok(report)
}

/// Number of addresses of a large node.
const MANY: u32 = 10_000;
/// So many changes, each alone.
const ALONE: u32 = 10;

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0ac8_0000 + number)
}

/// Waits until these processes have used next to no CPU time for a while.
fn wait_until_idle(pids: &[u32], interrupt: &Interrupt) -> Result<()> {
    let used = || pids.iter().map(|&pid| cpu_time(pid)).sum::<Result<Duration>>();
    let mut before = used()?;
    loop {
        interrupt.sleep(WHILE)?;
        let now = used()?;
        if now.saturating_sub(before) < WHILE / 100 {
            return Ok(());
        }
        before = now;
    }
}

const WHILE: Duration = Duration::from_millis(100);
