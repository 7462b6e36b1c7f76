// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench instructions`: how many instructions a remembered answer costs the daemon, in all its threads, by callgrind.
//! Under [`Loads::Steady`] they are almost the same in each run, so that a change of some percent can be seen.

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

/// Which loads are counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Loads {
    /// Also those with few requests in flight.
    All,
    /// Those whose figure is the same in each run.
    Steady,
}

/// Counts in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, valgrind is missing, or an answer is wrong.
pub fn instructions(
    store: &Store,
    ibarr: &Path,
    quick: bool,
    loads: Loads,
    interrupt: &Interrupt,
) -> Result<Report> {
    let count = if quick { 100 } else { 10_000 };
    let callgrind = Callgrind::new(ibarr)?;
    let mut lab = super::lab(store, 2, true, &callgrind.ibarr(), interrupt)?;
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

    let mut report = Report::new("instructions", quick)?;
    let mut add = |kind: &str, aims: [f64; 2], load: &dyn Fn(u32, u32, bool) -> Result<()>| {
        load(16, NOT_COUNTED, false)?;
        load(16, NOT_COUNTED, false)?;
        let all = [1, 16, ALWAYS_ONE];
        let in_flight = if loads == Loads::Steady { &all[2..] } else { &all };
        for &outstanding in in_flight {
            callgrind.counted(daemon.pid())?;
            load(outstanding, count, true)?;
            let an_answer = callgrind.counted(daemon.pid())? / f64::from(count);
            let aim = Target::AtMost(aims[usize::from(outstanding > 1)]);
            report.add(format!("{kind}, {outstanding} in flight"), an_answer, Some(aim));
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
    for (clients, what) in [
        (1, What::Path),
        (100, What::Path),
        (1_000, What::Path),
        (1, What::Endpoint),
        (100, What::Endpoint),
    ] {
        if loads == Loads::Steady && (clients == 1 || what == What::Endpoint) {
            continue;
        }
        let mut load = acm::Load::start(&socket, clients, what, None)?;
        load.closed_loop(time / 10)?;
        callgrind.counted(daemon.pid())?;
        let (done, _) = load.closed_loop(time)?;
        let an_answer = callgrind.counted(daemon.pid())? / done.answers;
        let wish = if what == What::Path { "path by GIDs" } else { "endpoint" };
        let aim = Target::AtMost(if clients == 1 { 6_500.0 } else { 4_500.0 });
        let aim = (what == What::Path).then_some(aim);
        report.add(format!("ACM, {wish}, clients: {clients}"), an_answer, aim);
        interrupt.check()?;
    }
    drop((daemon, port));
    lab.down()?;
    Ok(report)
}

/// Starts daemons under callgrind, and asks it for its counts.
struct Callgrind(TempDir);

impl Callgrind {
    /// For daemons that inherit the kernel's socket; others of the lab run as they are.
    fn new(ibarr: &Path) -> Result<Self> {
        let this = Self(TempDir::new().context("cannot make a temporary directory")?);
        let script = format!(
            "#!/bin/sh\n\
             [ \"$LISTEN_FDS\" ] || exec '{ibarr}' \"$@\"\n\
             exec valgrind -q --tool=callgrind --callgrind-out-file='{directory}/counts' '{ibarr}' \"$@\"\n",
            ibarr = ibarr.display(),
            directory = this.0.path().display(),
        );
        fs::write(this.ibarr(), script).context("cannot write a script")?;
        fs::set_permissions(this.ibarr(), Permissions::from_mode(0o755))?;
        Ok(this)
    }

    fn ibarr(&self) -> PathBuf {
        self.0.path().join("ibarr")
    }

    /// The instructions of all threads of process `pid` since the last call.
    fn counted(&self, pid: u32) -> Result<f64> {
        let asked = program("vgdb").args([&format!("--pid={pid}"), "dump"]).output();
        let asked = asked.context("cannot run vgdb, which comes with valgrind")?;
        // Each dump has a number; callgrind counts from 0 after it.
        let number = |file: &PathBuf| file.extension()?.to_str()?.parse::<u32>().ok();
        let files = fs::read_dir(self.0.path())?.map(|file| Ok(file?.path()));
        let files = files.collect::<Result<Vec<_>>>()?;
        let last = files.into_iter().filter(|file| number(file).is_some()).max_by_key(number);
        let last = last.with_context(|| format!("callgrind does not say a count: {asked:?}"))?;
        let text = fs::read_to_string(last)?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.context("a dump of callgrind without a total")?.trim().parse()?)
    }
}
