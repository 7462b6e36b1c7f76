// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The part of the demonstration without a daemon: the daemon is stopped, and its node goes on answering.

use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ibarr_common::map::{self, Program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Router, ask, check, print};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, Node};

/// Stops the daemon of `owner`, makes `asker` resolve its addresses nevertheless, and shows the kernel's
/// maps.
///
/// # Errors
/// An answer is wrong, or the kernel did not give it.
pub(super) fn show(
    lab: &Lab,
    router: &Router,
    (asker, owner): (&Node, &Node),
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<()> {
    let status = lab.ask(owner, &["status"])?;
    let status = &status["status"];
    if let Some(reason) = status["responder"]["blocked"].as_str() {
        writeln!(out, "\n{} answers from user space only: {reason}", owner.name)?;
        return Ok(());
    }
    let pins = lab.bpf_dir(owner).join(format!("v{}", map::ABI_VERSION));
    let pid = status["pid"].as_i64().and_then(|pid| pid.try_into().ok()).context("no pid")?;
    let before = answered(&pins)?;
    lab.ask(asker, &["cache", "--flush"])?;

    writeln!(out, "\n{}'s daemon is stopped now (SIGSTOP, pid {pid}).", owner.name)?;
    let stopped = Stopped::new(Pid::from_raw(pid))?;
    for ip in owner.addresses {
        interrupt.check()?;
        let (answer, crossings) = ask(lab, router, asker, &[&ip.to_string()])?;
        let gid = check(&answer, asker, owner, ip, &crossings)?;
        writeln!(out, "\n{} asks: which GID has {ip}?", asker.name)?;
        writeln!(out, "  {gid}, from the kernel of {} in {:.3} ms:\n", owner.name, answer.ms)?;
        print(&crossings, out)?;
    }
    let answers = answered(&pins)? - before;
    drop(stopped);
    ensure!(
        answers == owner.addresses.len() as u64,
        "{}: its kernel counted {answers} answers, but {} were given",
        owner.name,
        owner.addresses.len(),
    );
    let cache = pins.join(map::GID_CACHE);
    let [ip, _] = owner.addresses;
    let entry = bpftool(&["-p"], &cache, &key(ip))?;
    let text = serde_json::to_string(&entry["formatted"]["value"]["gid"])?;
    writeln!(
        out,
        "\nThe BPF programs counted {answers} answers. They read what the daemon had pinned:"
    )?;
    writeln!(out, "  # bpftool map lookup pinned {} key …   ({ip})", cache.display())?;
    writeln!(out, "  \"gid\": {text}")?;
    Ok(())
}

/// A process that goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Result<Self> {
        kill(pid, Signal::SIGSTOP).with_context(|| format!("cannot stop process {pid}"))?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // This fails only if the process has ended.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Answers that the programs at tc ingress have counted, on all CPUs.
fn answered(pins: &Path) -> Result<u64> {
    let key = Program::Tc.index().to_ne_bytes();
    let counters = bpftool(&["-j"], &pins.join(map::COUNTERS), &key)?;
    let per_cpu = counters["formatted"]["values"].as_array().context("no counters")?;
    per_cpu
        .iter()
        .map(|cpu| cpu["value"]["answered"].as_u64().context("no counter of answers"))
        .sum()
}

/// The key of the map: 16 bytes of address and no scope.
fn key(ip: IpAddr) -> Vec<u8> {
    [&map::octets(ip)[..], &[0; 4]].concat()
}

/// The element of a pinned map, read by the stock tool.
fn bpftool(options: &[&str], pin: &Path, key: &[u8]) -> Result<Value> {
    let mut command = Command::new("bpftool");
    command.args(options).args(["map", "lookup", "pinned"]).arg(pin).arg("key");
    command.args(key.iter().map(u8::to_string));
    let output = command
        .output()
        .context("cannot run bpftool: start through `cargo xtask`, which fetches it")?;
    let said = || format!("bpftool: {}", String::from_utf8_lossy(&output.stdout));
    ensure!(output.status.success(), said());
    serde_json::from_slice(&output.stdout).with_context(said)
}
