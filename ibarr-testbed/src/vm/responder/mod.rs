// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run d`: programs in the kernel answer peers on real IPoIB, with the same bytes that the daemon
//! would send. This holds for each kind of program and both modes of IPoIB, while the daemon runs, is
//! stopped, or has ended.

mod ask;
mod bpftool;
mod bulk;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::Gid;
use ibarr_common::map::Program;
use ibarr_user::control::messages::Request;
use nix::sys::signal::Signal;
use serde_json::Value;

use self::ask::{ASKERS, Reply};
use crate::report::Report;
use crate::rig::{self, Ibarr, N, Place, Rig};

/// The interface of the node that answers.
const INTERFACE: rig::Interface = rig::INTERFACES[4];

/// Interfaces in the partition, in one IP subnet.
const CHILDREN: [(&str, Place, [&str; 2]); 2] = [
    ("ib0", Place::Here, ["10.3.0.1/24", "fd00:3::1/64"]),
    (INTERFACE.name, INTERFACE.place, ["10.3.0.2/24", "fd00:3::2/64"]),
];

/// Number of attached programs: on the node's interface and on its child.
const ATTACHED: u64 = 2;

fn interfaces() -> [String; 2] {
    [INTERFACE.name.to_owned(), rig::child_of(INTERFACE.name)]
}

/// Short, so that it ends during the test. It is set just before the daemon is killed, and all peers ask
/// in much less time.
const LEASE: Duration = Duration::from_secs(5);

/// A kind of program.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Its name in the configuration.
    responder: &'static str,
    program: Program,
    /// Its name in the kernel.
    name: &'static str,
}

/// Number of peers that ask.
const ALL_ASKERS: u64 = ASKERS.len() as u64;

/// Counter of the daemon's own answers.
const BY_DAEMON: &str = "ip2gid.server.answered";

const KINDS: [Kind; 2] = [
    Kind { responder: "tc", program: Program::Tc, name: "ip2gid_tc" },
    Kind { responder: "xdp", program: Program::Xdp, name: "ip2gid_xdp" },
];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(mut rig) = report.claim("the rig stands, with a partition", set_up()) {
        for mode in ["datagram", "connected"] {
            if mode == "connected" {
                report.claim("every interface goes to connected mode", connected());
            }
            prove(&mut report, mode);
        }
        report.claim("the fabric is still there", rig.fabric.check_alive());
    }
    report.end()
}

fn set_up() -> Result<Rig> {
    let rig = Rig::up()?;
    for (parent, place, addresses) in CHILDREN {
        rig::add_child(parent, place, &addresses)?;
    }
    // XDP knows only confirmed neighbours, and leaves others to the daemon. No neighbour may expire
    // while the test counts.
    for interface in interfaces() {
        for family in ["ipv4", "ipv6"] {
            let file = format!("/proc/sys/net/{family}/neigh/{interface}/base_reachable_time_ms");
            rig::write(N, &file, "3600000")?;
        }
    }
    Ok(rig)
}

fn connected() -> Result<()> {
    Rig::connected_mode()?;
    for (parent, place, _) in CHILDREN {
        rig::connected_mode(place, &rig::child_of(parent))?;
        rig::is_up(place, &rig::child_of(parent))?;
    }
    Ok(())
}

fn prove(report: &mut Report, mode: &str) {
    let by_daemon = by_daemon();
    let Some(replies) = report.claim(&format!("{mode}: the daemon answers all peers"), by_daemon)
    else {
        return;
    };
    for kind in KINDS {
        let kind_and_mode = format!("{mode}, {}", kind.responder);
        let started = Proof::start(kind, &replies);
        let Some(mut proof) = report.claim(&format!("{kind_and_mode}: is attached"), started)
        else {
            return;
        };
        let mut claim = |what: &str, outcome: Result<()>| {
            report.claim(&format!("{kind_and_mode}: {what}"), outcome);
        };
        claim("peers with unknown next hops get the daemon's bytes", proof.strangers());
        claim("answers all peers with the daemon's bytes", proof.all_askers());
        claim("bpftool shows the same as ibarr", proof.shown());
        claim("`ibarr trace --kernel` shows each query, and then goes", proof.traced(mode));
        claim("answers while the daemon is stopped", proof.stopped());
        claim("answers after the daemon was killed, until the lease ends", proof.killed());
    }
    report.claim(&format!("{mode}: a TCP stream passes each program"), streams(mode));
    report.claim(&format!("{mode}: `ibarr detach` leaves nothing"), detached());
}

/// The replies of the daemon alone, checked against the protocol and the port's GID.
fn by_daemon() -> Result<Vec<Reply>> {
    let ibarr = start("user", 0)?;
    let (replies, gid) = (ask_all()?, gid()?);
    for (id, (asker, reply)) in (0..).zip(ASKERS.iter().zip(&replies)) {
        let expected = asker.reply(id, gid)?;
        ensure!(*reply == expected, "{}: {reply:x?} instead of {expected:x?}", asker.what);
    }
    // It counts a reply after it has sent it.
    ibarr.until_counted(BY_DAEMON, ALL_ASKERS)?;
    ibarr.stop()?;
    Ok(replies)
}

fn start(responder: &str, interfaces: u64) -> Result<Ibarr> {
    Ibarr::start("n", N, &config(responder, ""), interfaces)
}

fn config(responder: &str, more: &str) -> String {
    format!("responder = \"{responder}\"\n{more}\n")
}

/// All peers ask, with the same queries each time.
fn ask_all() -> Result<Vec<Reply>> {
    (0..).zip(ASKERS).map(|(id, asker)| asker.ask(id)).collect()
}

/// The GID of the port that answers.
fn gid() -> Result<[u8; 16]> {
    let file = format!("/sys/class/infiniband/{}/gids/0", INTERFACE.port);
    let gid: Gid = fs::read_to_string(&file).context(file.clone())?.trim().parse().context(file)?;
    Ok(gid.octets())
}

/// A daemon with programs of one kind.
struct Proof<'a> {
    ibarr: Ibarr,
    kind: Kind,
    /// The replies of the daemon alone.
    replies: &'a [Reply],
}

impl<'a> Proof<'a> {
    fn start(kind: Kind, replies: &'a [Reply]) -> Result<Self> {
        Ok(Self { ibarr: start(kind.responder, ATTACHED)?, kind, replies })
    }

    fn all_askers(&self) -> Result<()> {
        let before = self.ibarr.count(BY_DAEMON)?;
        self.answers_all()?;
        let by_daemon = self.ibarr.count(BY_DAEMON)? - before;
        ensure!(by_daemon == 0, "the daemon answered {by_daemon}");
        Ok(())
    }

    /// All peers get the daemon's bytes, from the program.
    fn answers_all(&self) -> Result<()> {
        let before = self.counted("answered")?;
        self.same_bytes()?;
        let by_program = self.counted("answered")? - before;
        ensure!(by_program == ALL_ASKERS, "the program answered {by_program}");
        Ok(())
    }

    fn same_bytes(&self) -> Result<()> {
        for (asker, (reply, expected)) in ASKERS.iter().zip(ask_all()?.iter().zip(self.replies)) {
            ensure!(reply == expected, "{}: {reply:x?} instead of {expected:x?}", asker.what);
        }
        Ok(())
    }

    /// The node has forgotten its next hops to all peers. With tc, the kernel looks for the next hops. XDP
    /// leaves these queries to the daemon, whose replies make the kernel look for the next hops; then XDP
    /// knows them too.
    fn strangers(&self) -> Result<()> {
        let forget = || -> Result<()> {
            for interface in interfaces() {
                rig::ip(N, &format!("neigh flush dev {interface}"))?;
            }
            Ok(())
        };
        if self.kind.program == Program::Tc {
            forget()?;
            return self.answers_all();
        }
        rig::eventually(|| {
            // A packet of another program may have brought one back since.
            forget()?;
            let known = bpftool::next_hops(&self.ibarr.bpf_dir())?;
            ensure!(known == 0, "{known} next hops are still known");
            Ok(())
        })?;
        let before = (self.counted("answered")?, self.ibarr.count(BY_DAEMON)?);
        self.same_bytes()?;
        let by_program = self.counted("answered")? - before.0;
        ensure!(by_program < ALL_ASKERS, "the program answered all");
        self.ibarr.until_counted(BY_DAEMON, before.1 + ALL_ASKERS - by_program)?;
        rig::eventually(|| self.all_askers())
    }

    fn shown(&self) -> Result<()> {
        let (gid, bpf_dir) = (gid()?, self.ibarr.bpf_dir());
        let targets = ASKERS.iter().map(|asker| Ok((asker.target.parse()?, gid)));
        let targets: BTreeMap<IpAddr, _> = targets.collect::<Result<_>>()?;
        let entries = bpftool::entries(&bpf_dir)?;
        ensure!(entries == targets, "in the map: {entries:x?}");
        let programs = bpftool::programs(&bpf_dir)?;
        ensure!(programs.contains(self.kind.name), "programs: {programs:?}");
        let said = self.ibarr.ask(&Request::Counters)?;
        for (reason, count) in bpftool::counters(&bpf_dir, self.kind.program)? {
            let name = format!("bpf.{}.{}", self.kind.responder, reason.replace('_', "-"));
            let said = &said["counters"][&name];
            ensure!(*said == count, "{name}: ibarr shows {said}, bpftool {count}");
        }
        Ok(())
    }

    /// For the time of the trace, programs that report answer. The plain ones come back.
    fn traced(&self, mode: &str) -> Result<()> {
        let run_dir = self.ibarr.run_dir();
        let words = ["ibarr", "trace", "--kernel", "--json", "--run-dir", &run_dir];
        let program = self.kind.responder;
        let tracer = rig::spawn(&format!("trace-{mode}-{program}"), N, &words)?;
        let events = || -> Result<Vec<Value>> {
            let said = tracer.said()?;
            // The last line may be incomplete.
            let documents = said.lines().filter_map(|line| serde_json::from_str(line).ok());
            Ok(documents.map(|mut document: Value| document["event"].take()).collect())
        };
        rig::eventually(|| {
            let told = events()?.into_iter().find(|event| event["step"] == "programs");
            let told = told.context("nothing is said of the programs")?;
            ensure!(told.get("cause").is_none(), "{told}");
            Ok(())
        })?;
        let rings = bpftool::rings()?;
        ensure!(rings > 0, "no program reports");
        self.answers_all()?;
        let expected: Vec<_> = ASKERS.iter().map(|asker| asker.target).collect();
        rig::eventually(|| {
            let events = events()?;
            let answered = events.iter().filter(|event| {
                event["step"] == "packet"
                    && event["program"] == program
                    && event["verdict"] == "answered"
            });
            let shown: Vec<_> = answered.filter_map(|event| event["ip"].as_str()).collect();
            ensure!(shown == expected, "shown: {shown:?}");
            Ok(())
        })?;
        let status = tracer.stop()?;
        ensure!(status.success(), "ibarr trace: {status}");
        rig::eventually(|| {
            let rings = bpftool::rings()?;
            ensure!(rings == 0, "{rings} rings of programs that report");
            Ok(())
        })?;
        // It took seconds, after which XDP leaves a stale next hop to the daemon, once.
        rig::eventually(|| self.all_askers())
    }

    fn stopped(&self) -> Result<()> {
        self.ibarr.signal(Signal::SIGSTOP)?;
        let answered = self.answers_all();
        self.ibarr.signal(Signal::SIGCONT)?;
        answered?;
        // The daemon had nothing to answer when it woke.
        self.all_askers()
    }

    fn killed(&mut self) -> Result<()> {
        let more = format!("lease = \"{}s\"", LEASE.as_secs());
        self.ibarr.reconfigure(&config(self.kind.responder, &more))?;
        // The change is in effect when the reload returns, so kill at once.
        self.ibarr.kill()?;
        self.answers_all()?;
        let left = self.lease_ms()?;
        ensure!(u128::from(left) <= LEASE.as_millis(), "the lease ends in {left} ms");
        thread::sleep(LEASE);
        let left = self.lease_ms()?;
        ensure!(left == 0, "the lease ends in {left} ms");
        let (answered, over) = (self.counted("answered")?, self.counted("lease_over")?);
        for (id, asker) in (0..).zip(ASKERS) {
            asker.ask_in_vain(id)?;
        }
        let over = self.counted("lease_over")? - over;
        ensure!(self.counted("answered")? == answered && over == ALL_ASKERS, "{over} were passed");
        Ok(())
    }

    fn lease_ms(&self) -> Result<u64> {
        let bpf_dir = self.ibarr.bpf_dir();
        let words = ["ibarr", "cache", "--kernel", "--json", "--bpf-dir", &bpf_dir];
        let shown: Value = serde_json::from_str(&rig::run(N, &words)?)?;
        shown["kernel"]["lease-ends-in-ms"].as_u64().with_context(|| format!("{shown}"))
    }

    /// One of the program's counters.
    fn counted(&self, reason: &str) -> Result<u64> {
        let counters = bpftool::counters(&self.ibarr.bpf_dir(), self.kind.program)?;
        counters.get(reason).copied().with_context(|| format!("no {reason} in {counters:?}"))
    }
}

/// The throughput of a stream through each kind of program, divided by that of a stream without one. All
/// are measured twice, the second time in the opposite order, so that a machine that gets busier favours
/// none.
fn streams(mode: &str) -> Result<()> {
    let ibarr = start("user", 0)?;
    let responders: Vec<_> = ["user"].into_iter().chain(KINDS.map(|kind| kind.responder)).collect();
    let mut rates = vec![0.0; responders.len()];
    let there = 0..responders.len();
    for which in there.clone().chain(there.rev()) {
        ibarr.reconfigure(&config(responders[which], ""))?;
        rates[which] += bulk::stream()?;
    }
    let with = responders.iter().zip(&rates).skip(1);
    let with = with.map(|(name, rate)| format!("{:.2} times that with {name}", rate / rates[0]));
    Report::figure(format_args!(
        "TCP, {mode}: {:.0} MB/s without a program, {}",
        rates[0] / 2e6,
        with.collect::<Vec<_>>().join(", ")
    ));
    ibarr.stop()
}

fn detached() -> Result<()> {
    let bpf_dir = rig::bpf_dir("n");
    rig::run(N, &["ibarr", "detach", "--bpf-dir", &bpf_dir])?;
    ensure!(!fs::exists(&bpf_dir)?, "{bpf_dir} is there");
    let programs = bpftool::all_programs()?;
    ensure!(programs.is_empty(), "programs: {programs:?}");
    for interface in interfaces() {
        let qdisc = rig::run(N, &["tc", "qdisc", "show", "dev", &interface, "clsact"])?;
        ensure!(qdisc.trim().is_empty(), "{interface}: {qdisc}");
        let link = rig::ip(N, &format!("link show dev {interface}"))?;
        ensure!(!link.contains("xdp"), "{link}");
    }
    Ok(())
}
