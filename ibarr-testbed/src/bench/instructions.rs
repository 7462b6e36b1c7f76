// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench instructions`: how many instructions a remembered answer costs the daemon, in all its threads, by callgrind,
//! or which system calls, by strace. Under [`Counted::Steady`] the instructions are almost the same in each run, so that a
//! change of some percent can be seen.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{Request, ResolveIp};
use ibarr_sim::sa::StandIn;
use nix::net::if_::if_nametoindex;
use tempfile::TempDir;

use super::acm::{self, What};
use super::local_service::Server;
use super::paths::{OWN, SA, SGID, is_path_to, name, near, remembered, subnet, wait_for_port};
use super::report::{Report, Target};
use crate::interrupt::Interrupt;
use crate::lab::{Node, Store, netns};
use crate::start::program;
use crate::umad::{Administrator, Port, Shown};

/// The first requests of each kind fill memory: so many, twice.
const NOT_COUNTED: u32 = 1_000;

/// So many requests in flight that the daemon always has one to read. It nudges the kernel when it has none, at most
/// after some milliseconds: the slower the machine, the more nudges an answer.
const ALWAYS_ONE: u32 = 256;

/// What a run counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Counted {
    /// Instructions under all loads, also those with few requests in flight.
    Instructions,
    /// Instructions under the loads whose figure is the same in each run.
    Steady,
    /// System calls under all loads.
    SystemCalls,
}

/// Counts in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, valgrind or strace is missing, or an answer is wrong.
pub fn instructions(
    store: &Store,
    ibarr: &Path,
    quick: bool,
    what: Counted,
    interrupt: &Interrupt,
) -> Result<Report> {
    let count = if quick { 100 } else { 10_000 };
    let mut tool = Counter::new(ibarr, what)?;
    let mut lab = super::lab(store, 2, true, &tool.ibarr(), interrupt)?;
    let [asker, target] = lab.plan().nodes.as_slice() else { bail!("a lab of two nodes") };
    let (asker, target) = (asker.clone(), target.clone());
    let shown = Shown::active(OWN, SGID, SA);
    let wire = Administrator::new(StandIn::new(subnet(), SA, 1));
    let port = Port::new(&lab.files(&asker).infiniband(), name(), 0, Some(shown), wire)?;
    let sockets = acm::directory()?;
    let socket = sockets.path().join("acm");
    let config = lab.files(&asker).config();
    let before = fs::read_to_string(&config)?;
    // A peer is asked anew by the clock: as seldom as possible.
    let serve = format!(
        "[client]\nfresh-for = \"5s\"\n[acm]\nserve = \"tools\"\nsocket = \"{}\"\n",
        socket.display()
    );
    fs::write(&config, before + &serve)?;
    let daemon = Server::daemon(&mut lab, asker.name, interrupt)?;
    wait_for_port(&lab, &asker, interrupt)?;
    let ifindex = netns::inside(&asker.namespace, || Ok(if_nametoindex(Node::INTERFACE)?))?;
    let ifindex = IfIndex::new(ifindex).context("a network device without a number")?;
    let gid = target.gid()?.octets();

    let name = if what == Counted::SystemCalls { "system-calls" } else { "instructions" };
    let mut report = Report::new(name, quick)?;
    let mut add = |kind: &str, aims: [f64; 2], load: &dyn Fn(u32, u32, bool) -> Result<()>| {
        load(16, NOT_COUNTED, false)?;
        load(16, NOT_COUNTED, false)?;
        let all = [1, 16, ALWAYS_ONE];
        let in_flight = if what == Counted::Steady { &all[2..] } else { &all };
        for &outstanding in in_flight {
            tool.counted(daemon.pid())?;
            load(outstanding, count, true)?;
            let counted = tool.counted(daemon.pid())?;
            let aim = aims[usize::from(outstanding > 1)];
            counted.report(
                &mut report,
                format!("{kind}, {outstanding} in flight"),
                f64::from(count),
                Some(aim),
            );
        }
        interrupt.check()
    };
    add("RESOLVE", [5_000.0, 3_500.0], &|outstanding, count, is_counted| {
        // Under callgrind the daemon is so slow that it takes the subnet administrator for silent at first.
        let is_right = |seq, answer: &[u8]| !is_counted || is_path_to(answer, near(seq));
        daemon.exchange(outstanding, |sent| sent < count, remembered, is_right).map(drop)
    })?;
    for address in target.addresses {
        let request = Request::ResolveIp(ResolveIp { ifindex, target: address });
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        add(&format!("IP_RESOLVE, {family}"), [8_000.0, 5_000.0], &|outstanding, count, _| {
            let is_right = |_, answer: &[u8]| answer.ends_with(&gid);
            let request = |seq| request.emit(seq);
            daemon.exchange(outstanding, |sent| sent < count, request, is_right).map(drop)
        })?;
    }
    let time = Duration::from_millis(if quick { 50 } else { 3_000 });
    for (clients, wish) in [
        (1, What::Path),
        (100, What::Path),
        (1_000, What::Path),
        (1, What::Endpoint),
        (100, What::Endpoint),
    ] {
        if what == Counted::Steady && (clients == 1 || wish == What::Endpoint) {
            continue;
        }
        let mut load = acm::Load::start(&socket, clients, wish, None)?;
        load.closed_loop(time / 10)?;
        tool.counted(daemon.pid())?;
        let (done, _) = load.closed_loop(time)?;
        let counted = tool.counted(daemon.pid())?;
        let kind = if wish == What::Path { "path by GIDs" } else { "endpoint" };
        let aim = if clients == 1 { 6_500.0 } else { 4_500.0 };
        let aim = (wish == What::Path).then_some(aim);
        counted.report(&mut report, format!("ACM, {kind}, clients: {clients}"), done.answers, aim);
        interrupt.check()?;
    }
    drop((daemon, port));
    lab.down()?;
    Ok(report)
}

/// Starts daemons under callgrind or strace, and asks it for its counts.
struct Counter {
    directory: TempDir,
    what: Counted,
    /// Bytes of strace's output that are counted already.
    read: usize,
}

impl Counter {
    /// For daemons that inherit the kernel's socket; others of the lab run as they are.
    fn new(ibarr: &Path, what: Counted) -> Result<Self> {
        let directory = TempDir::new().context("cannot make a temporary directory")?;
        let at = directory.path().display();
        let under = match what {
            // As a grandchild, so that the daemon keeps the number that LISTEN_PID says.
            Counted::SystemCalls => format!("strace -D -f -qq -e signal=none -o '{at}/counts'"),
            _ => format!("valgrind -q --tool=callgrind --callgrind-out-file='{at}/counts'"),
        };
        let script = format!(
            "#!/bin/sh\n\
             [ \"$LISTEN_FDS\" ] || exec '{ibarr}' \"$@\"\n\
             exec {under} '{ibarr}' \"$@\"\n",
            ibarr = ibarr.display(),
        );
        let this = Self { directory, what, read: 0 };
        fs::write(this.ibarr(), script).context("cannot write a script")?;
        fs::set_permissions(this.ibarr(), Permissions::from_mode(0o755))?;
        Ok(this)
    }

    fn ibarr(&self) -> PathBuf {
        self.directory.path().join("ibarr")
    }

    /// What all threads of process `pid` have done since the last call.
    fn counted(&mut self, pid: u32) -> Result<Counts> {
        match self.what {
            Counted::SystemCalls => self.calls(),
            _ => self.instructions(pid),
        }
    }

    fn calls(&mut self) -> Result<Counts> {
        let text = fs::read_to_string(self.directory.path().join("counts"))?;
        let new = text.get(self.read..).context("strace's output is shorter than before")?;
        self.read = text.len();
        let mut counts = Counts::default();
        // "12345 recvmsg(7, …", and "12345 <... recvmsg resumed>" for the end of a call that waited.
        let names = new.lines().filter_map(|line| line.split_whitespace().nth(1)?.split_once('('));
        for (name, _) in names {
            *counts.by_name.entry(name.to_owned()).or_default() += 1.0;
            counts.all += 1.0;
        }
        Ok(counts)
    }

    fn instructions(&self, pid: u32) -> Result<Counts> {
        let asked = program("vgdb").args([&format!("--pid={pid}"), "dump"]).output();
        let asked = asked.context("cannot run vgdb, which comes with valgrind")?;
        // Each dump has a number; callgrind counts from 0 after it.
        let number = |file: &PathBuf| file.extension()?.to_str()?.parse::<u32>().ok();
        let files = fs::read_dir(self.directory.path())?.map(|file| Ok(file?.path()));
        let files = files.collect::<Result<Vec<_>>>()?;
        let last = files.into_iter().filter(|file| number(file).is_some()).max_by_key(number);
        let last = last.with_context(|| format!("callgrind does not say a count: {asked:?}"))?;
        let text = fs::read_to_string(last)?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let all = total.context("a dump of callgrind without a total")?.trim().parse()?;
        Ok(Counts { all, by_name: BTreeMap::new() })
    }
}

#[derive(Default)]
struct Counts {
    all: f64,
    /// Of system calls only.
    by_name: BTreeMap<String, f64>,
}

impl Counts {
    /// Reports what each of so many answers took, and beside instructions their aim.
    fn report(&self, report: &mut Report, load: String, answers: f64, aim: Option<f64>) {
        let calls = self.by_name.iter().filter(|(_, count)| **count >= answers / 100.0);
        let rows = calls.map(|(name, count)| (format!("{load}: {name}"), count / answers));
        let rows: Vec<_> = rows.collect();
        let aim = aim.filter(|_| self.by_name.is_empty()).map(Target::AtMost);
        report.add(load, self.all / answers, aim);
        for (row, count) in rows {
            report.add(row, count, None);
        }
    }
}
