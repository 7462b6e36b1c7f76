// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the facts mean: which of them are reasons, how bad each is, and what to do.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt::Display;
use core::time::Duration;

use ibarr_common::Instant;

use super::facts::{
    Device, Facts, FewDescriptors, Listener, Missing, Port, Programs, Served, Socket,
};
use super::{Cause, HOLD, State, Subsystem};
use crate::Fault;
use crate::ip2gid::Family;
use crate::local_view::rules::{Datagrams, Diverted};
use crate::paths::PortName;
use crate::responder;

const EPERM: i32 = 1;
const EINVAL: i32 = 22;

/// Reading the files of ACM for longer is told: one of 10,000 ports has a hundred million lines.
const LONG: Duration = Duration::from_mins(1);

/// Reading the configuration for longer is told.
const SLOW: Duration = Duration::from_secs(5);

/// A reason, before it is compared with the last ones.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) subsystem: Subsystem,
    pub(super) cause: Cause,
    pub(super) state: State,
    pub(super) why: String,
    pub(super) remedy: String,
}

/// The subsystems that this daemon has.
pub(super) fn subsystems(facts: &Facts) -> BTreeSet<Subsystem> {
    let interfaces = facts.served.iter().map(|served| Subsystem::ResponderOn(served.interface));
    let ports = facts.ports.iter().map(|port| Subsystem::Sa(port.name));
    let always = [
        Subsystem::Configuration,
        Subsystem::LocalView,
        Subsystem::Kernel,
        Subsystem::Responder,
        Subsystem::Peers,
        Subsystem::Caches,
        Subsystem::Control,
    ];
    let acm = facts.acm.is_on.then_some(Subsystem::Acm);
    always.into_iter().chain(interfaces).chain(ports).chain(acm).collect()
}

/// All reasons, at most one of each cause for a subsystem.
pub(super) fn judge(now: Instant, facts: &Facts, once_active: &BTreeSet<PortName>) -> Vec<Finding> {
    let mut found = Findings { of: Subsystem::Configuration, findings: Vec::new() };
    configuration(&mut found, now, facts);
    local_view(&mut found, facts);
    kernel(&mut found, facts);
    responder(&mut found, now, facts);
    peers(&mut found, facts);
    for port in &facts.ports {
        sa(&mut found, now, port, facts, once_active);
    }
    control(&mut found, now, facts);
    found.findings
}

struct Findings {
    /// The subsystem that is looked at.
    of: Subsystem,
    findings: Vec<Finding>,
}

impl Findings {
    fn degraded(&mut self, cause: Cause, why: impl Display, remedy: impl Display) {
        self.add(cause, State::Degraded, &why, &remedy);
    }

    fn failed(&mut self, cause: Cause, why: impl Display, remedy: impl Display) {
        self.add(cause, State::Failed, &why, &remedy);
    }

    /// Several objects with the same cause are one reason.
    fn add(&mut self, cause: Cause, state: State, why: &dyn Display, remedy: &dyn Display) {
        let subsystem = self.of;
        let is_same = |known: &&mut Finding| known.subsystem == subsystem && known.cause == cause;
        if let Some(known) = self.findings.iter_mut().find(is_same) {
            known.why = format!("{}; {why}", known.why);
        } else {
            let (why, remedy) = (why.to_string(), remedy.to_string());
            self.findings.push(Finding { subsystem, cause, state, why, remedy });
        }
    }
}

fn configuration(found: &mut Findings, now: Instant, facts: &Facts) {
    let facts = &facts.configuration;
    found.of = Subsystem::Configuration;
    if let Some(mistakes) = &facts.refused {
        found.degraded(
            Cause::ReloadRefused,
            format_args!(
                "the old configuration is in force, because the file has mistakes: {mistakes}"
            ),
            "correct the file (ibarr validate), then systemctl reload ibarr",
        );
    }
    let taken = facts.reading_since.map(|since| now.since(since));
    if let Some(taken) = taken.filter(|&taken| taken >= SLOW) {
        found.degraded(
            Cause::ReloadSlow,
            format_args!("the configuration has been read for {} s", taken.as_secs()),
            "look whether the file system of /etc/ibarr hangs",
        );
    }
    if let Some(setting) = facts.setting {
        found.degraded(Cause::Setting, setting, "see ibarr.toml(5)");
    }
}

fn local_view(found: &mut Findings, facts: &Facts) {
    let facts = &facts.addresses;
    found.of = Subsystem::LocalView;
    if facts.unknown {
        found.failed(
            Cause::ViewUnknown,
            "the kernel has not listed the addresses of this node yet",
            "look at the log (journalctl -u ibarr) and restart the daemon",
        );
    }
    if facts.no_gid {
        found.failed(
            Cause::NoGid,
            "no address of this machine has a GID",
            "load ib_ipoib and set the interface up; without IPoIB, write [[static-gid]] entries",
        );
    }
    for pattern in &facts.unmatched {
        found.degraded(
            Cause::NoSuchInterface,
            format_args!("interfaces: no interface has the name {pattern}"),
            "correct the name, or create the interface",
        );
    }
    for address in &facts.contested {
        found.degraded(
            Cause::ContestedAddress,
            format_args!(
                "{address} is on several interfaces with different GIDs: the one of the lowest \
                 index is answered"
            ),
            "remove the others, or write a [[static-gid]]",
        );
    }
}

fn kernel(found: &mut Findings, facts: &Facts) {
    found.of = Subsystem::Kernel;
    if let Some(reason) = &facts.kernel.silent {
        found.failed(
            Cause::KernelSilent,
            format_args!("the kernel sends no requests to ibarr: {reason}"),
            "load ib_core and rdma_cm (modprobe rdma_cm), and give the daemon CAP_NET_ADMIN",
        );
    }
    if let Some(errno) = facts.answers_refused {
        let (what, remedy) = match -errno {
            EPERM => ("the right is missing", "run the daemon with CAP_NET_ADMIN of the machine"),
            EINVAL => (
                "it is asked in another network namespace",
                "run the daemon in the network namespace of the machine",
            ),
            _ => ("an error that it should not give", "look at the kernel's log (dmesg)"),
        };
        let why = format!("the kernel refuses our answers: {what} (errno {})", -errno);
        found.failed(Cause::AnswersRefused, why, remedy);
    }
    if let Some(failure) = &facts.kernel.nudges_fail {
        found.degraded(
            Cause::NudgesFail,
            format_args!(
                "rdma_resolve_addr waits for its whole time-out, because nudges fail: {failure}"
            ),
            "give the daemon CAP_NET_ADMIN, and set an IPoIB interface or lo up",
        );
    }
    for Listener { pid, name } in &facts.kernel.listeners {
        let pid = pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
        found.degraded(
            Cause::OtherListener,
            format_args!(
                "{name}{pid} receives the kernel's requests as well, and the kernel takes the \
                 first answer"
            ),
            "stop it (systemctl disable --now ibacm.service ibacm.socket)",
        );
    }
}

fn responder(found: &mut Findings, now: Instant, facts: &Facts) {
    found.of = Subsystem::Responder;
    match &facts.programs {
        Programs::Unwanted => return,
        Programs::Absent(reason) => {
            return found.degraded(
                Cause::NotLoaded,
                format_args!("the daemon answers peers in user space: {reason}"),
                "remove the cause, or write responder = \"user\"",
            );
        }
        Programs::Loaded { lease_end, lease, private_pins } => {
            if let Some(dir) = private_pins {
                found.degraded(
                    Cause::PinsPrivate,
                    format_args!(
                        "only the daemon's mount namespace has the bpffs of {dir}: programs end \
                         with the last process in it"
                    ),
                    "mount the bpffs for the whole machine before the daemon starts \
                     (BindPaths=/sys/fs/bpf in its unit)",
                );
            }
            let left = lease_end.since(now);
            // It is renewed when two thirds are left.
            if left.is_zero() && !facts.served.is_empty() {
                found.degraded(
                    Cause::LeaseEnded,
                    "the kernel answers no peers, because the lease has ended: the clock of the \
                     lease stands still while the addresses of this node cannot be listed",
                    "look at the log (journalctl -u ibarr) and restart the daemon",
                );
            } else if !left.is_zero() && left < *lease / 3 {
                found.degraded(
                    Cause::LeaseEnding,
                    format_args!(
                        "the lease of the programs ends in {} s and is not renewed: the addresses \
                         of this node cannot be listed",
                        left.as_secs()
                    ),
                    "look at the log (journalctl -u ibarr) and restart the daemon",
                );
            }
        }
    }
    for Served { interface, program } in &facts.served {
        let reason = match program {
            responder::State::Attached(_) | responder::State::Unwanted => continue,
            responder::State::Failed(fault) => fault as &dyn Display,
            responder::State::Pending => &"no program is attached yet",
        };
        found.of = Subsystem::ResponderOn(*interface);
        found.degraded(
            Cause::NotAttached,
            format_args!("the daemon answers peers on {interface} in user space: {reason}"),
            format_args!("remove the cause, or write a [[responder-on]] with \"user\" for it"),
        );
    }
}

fn peers(found: &mut Findings, facts: &Facts) {
    let by_kernel = matches!(facts.programs, Programs::Loaded { .. });
    let facts = &facts.peers;
    found.of = Subsystem::Peers;
    let all_blocked = facts.sockets.iter().all(|socket| socket.blocked.is_some());
    for Socket { family, blocked, small } in &facts.sockets {
        if let Some(reason) = blocked {
            let state = if all_blocked && !by_kernel { State::Failed } else { State::Degraded };
            let why = if by_kernel {
                format!("only the kernel answers peers over {family}: {reason}")
            } else {
                format!("peers are not answered over {family}: {reason}")
            };
            let remedy = "stop what holds the UDP port (ss -lunp, rmmod rdma_rxe); the daemon \
                          tries again every 5 s";
            found.add(Cause::NotServing, state, &why, &remedy);
        }
        if let Some((holds, needed)) = small {
            found.degraded(
                Cause::SmallBuffer,
                format_args!(
                    "the socket for queries over {family} holds {holds} bytes, {needed} are needed \
                     for 10,000 peers at once"
                ),
                format_args!(
                    "give the daemon CAP_NET_ADMIN, or raise the limit and restart it (sysctl \
                     net.core.rmem_max={})",
                    needed / 2
                ),
            );
        }
    }
    for diverted in &facts.diverted {
        let Diverted { datagrams, port, family, rule, instead, .. } = diverted;
        let (what, selector) = match datagrams {
            Datagrams::Queries => ("queries", "dport"),
            Datagrams::Replies => ("replies", "sport"),
        };
        let ip = if *family == Family::V4 { "ip" } else { "ip -6" };
        let before = rule.saturating_sub(1);
        let remedy = match instead {
            Some(next) => format!(
                "exempt them from the rule, like: {ip} rule add priority {before} ipproto udp \
                 {selector} {port} goto {next}"
            ),
            None => {
                format!("have the rule match UDP {selector} {port} too, or remove it ({ip} rule)")
            }
        };
        found.degraded(Cause::Diverted,
            format_args!(
                "the policy rule with priority {rule} sends {what} over {family} by another way than \
                 the connections of the kernel"
            ),
            remedy,
        );
    }
    for unused in &facts.unused {
        found.add(Cause::UnusedSocket, State::Ok, unused, &"see ibarr.socket in ibarr(8)");
    }
    if let Some(FewDescriptors { limit, query_sockets, connections }) = facts.few_descriptors {
        found.degraded(
            Cause::FewDescriptors,
            format_args!(
                "the process may have only {limit} descriptors: queries leave from at most \
                 {query_sockets} sockets of each IP version, and all users have {connections} \
                 connections; give it 1024 (LimitNOFILE=, ulimit -n)"
            ),
            "see LimitNOFILE= in systemd.exec(5)",
        );
    }
}

fn sa(
    found: &mut Findings,
    now: Instant,
    port: &Port,
    facts: &Facts,
    once_active: &BTreeSet<PortName>,
) {
    let name = port.name;
    found.of = Subsystem::Sa(name);
    let is_down = |port: &Port| port.missing == Some(Missing::Down);
    let device = facts.devices.iter().find(|device| device.port == name);
    let closed = device.and_then(|device| device.closed.as_ref());
    match port.missing {
        // A port without a cable is not missed while another one works.
        Some(Missing::Down)
            if !once_active.contains(&name) && !facts.ports.iter().all(is_down) => {}
        Some(Missing::Down) => found.degraded(Cause::PortDown,
            format_args!("port {name} is not active"),
            "look at cable and switch (ibstat, iblinkinfo), and whether a subnet manager runs",
        ),
        Some(Missing::SubnetManager) if closed.is_none() => found.degraded(Cause::NoSubnetManager,
            format_args!("port {name} knows no subnet manager"),
            "start one (systemctl start opensm), or look why it does not reach the port (sminfo)",
        ),
        None if closed.is_none() => {}
        _ => found.degraded(Cause::UmadClosed,
            format_args!(
                "the subnet administrator of {name} cannot be asked, the kernel asks it itself: {}",
                closed.map_or(&Missing::Umad as &dyn Display, |closed| closed)
            ),
            "load ib_umad (modprobe ib_umad), and give the daemon the device (ls -l /dev/infiniband)",
        ),
    }
    if let Some(silence) = &port.silence {
        let (cause, what) = if silence.busy {
            (Cause::SaBusy, "answers only that it is busy")
        } else {
            (Cause::SaSilent, "does not answer")
        };
        found.degraded(cause,
            format_args!(
                "the subnet administrator of {name} {what}, for {} s: paths from memory are used, and \
                 other requests fail or are left to the kernel",
                now.since(silence.since).as_secs()
            ),
            "look at the subnet manager (sminfo, saquery, systemctl status opensm on its node)",
        );
    }
    if let Some(Device { unheard: Some(reason), .. }) = device {
        found.degraded(
            Cause::EventsUnheard,
            format_args!(
                "events of {name} are not received, so a change of the subnet is noticed some \
                 seconds later: {reason}"
            ),
            "install libibverbs, and give the daemon /dev/infiniband/uverbs*",
        );
    }
}

fn control(found: &mut Findings, now: Instant, facts: &Facts) {
    found.of = Subsystem::Control;
    if let Some(state) = &facts.control.group_unknown {
        found.degraded(
            Cause::GroupUnknown,
            format_args!("group ibarr: {state}: until then only root may reload and flush"),
            "fix what nsswitch.conf names, then reload",
        );
    }
    if let Some(reason) = &facts.control.closed {
        found.degraded(Cause::ControlClosed,
            format_args!("no command finds the daemon: {reason}"),
            "remove what is in the way; the daemon tries again, and at the latest a restart makes its directory",
        );
    }
    if facts.control.log_lost > 0 {
        found.degraded(
            Cause::LogLost,
            format_args!(
                "the log lacks {} lines: its place is full, closed, or read too slowly",
                facts.control.log_lost
            ),
            "free the disk of the journal, or log less (ibarr log-level)",
        );
    }
    if let Some(reason) = &facts.control.metrics_closed {
        found.degraded(
            Cause::MetricsClosed,
            format_args!("the metrics are not served: {reason}"),
            "correct listen below [metrics], or free the address; the daemon tries again",
        );
    }
    if let Some(reason) = &facts.snapshot_failed {
        let remedy = "look at the disk and the directory of snapshot below [paths]";
        found.of = Subsystem::Caches;
        found.degraded(Cause::SnapshotFailed, reason, remedy);
    }
    found.of = Subsystem::Acm;
    let taken = facts.acm.reading_since.map(|since| now.since(since));
    let slow = taken.filter(|&taken| taken >= LONG).map(|taken| {
        let taken = taken.as_secs();
        Fault::new(format!(
            "acm: hosts and routes have been read for {taken} s: does their file system hang?"
        ))
    });
    for mistake in slow.iter().chain(&facts.acm.files) {
        found.degraded(Cause::AcmFiles, mistake, "correct the file, then reload");
    }
    if let Some(reason) = &facts.acm.closed {
        found.degraded(Cause::AcmClosed, reason, "see [acm] in ibarr.toml(5)");
    }
}

/// The reason that a count makes which has risen lately.
pub(super) fn counted(cause: Cause, count: u64) -> Finding {
    let (subsystem, what, remedy) = what_is_counted(cause);
    let why = format!("{what} within {} s; {count} since the start", HOLD.as_secs());
    Finding { subsystem, cause, state: State::Degraded, why, remedy: remedy.to_owned() }
}

fn what_is_counted(cause: Cause) -> (Subsystem, &'static str, &'static str) {
    match cause {
        Cause::EventsLost => (
            Subsystem::LocalView,
            "events about addresses and routes were lost, and read again",
            "look what changes so many of them (ip monitor)",
        ),
        Cause::RequestsLost => (
            Subsystem::Kernel,
            "requests of the kernel were lost, and asked for again",
            "look whether the machine or the daemon lacks processor time (top)",
        ),
        Cause::OtherGids => (
            Subsystem::Kernel,
            "paths were left to the kernel: the subnet administrator wrote GIDs of another prefix into them",
            "set an interface down and up whose GID no port has (ibarr doctor); let programs that ask by fe80:: use the prefix of the port (ibarr status)",
        ),
        Cause::MapFaults => (
            Subsystem::Responder,
            "the maps of the programs could not be written, so the daemon answered peers",
            "look at the log (journalctl -u ibarr): is memory short?",
        ),
        Cause::RepliesLost => (
            Subsystem::Peers,
            "replies of peers were lost, and asked for again",
            "look whether the machine or the daemon lacks processor time (top)",
        ),
        Cause::RepliesForbidden => (
            Subsystem::Peers,
            "replies to peers were not permitted (EPERM) by the firewall of this machine",
            "permit UDP from our udp-port in its output chains (nft list ruleset)",
        ),
        Cause::RepliesUnroutable => (
            Subsystem::Peers,
            "replies to peers were not sent: no route from the address that they asked",
            "look at rules and routes (ip route get PEER from ADDRESS), or exclude them by allow",
        ),
        Cause::RepliesNotSent => (
            Subsystem::Peers,
            "replies to peers were not sent: the kernel had no memory, or the MTU is too small",
            "look which in ibarr counters (not-sent), then at free memory or ip link show",
        ),
        Cause::QueriesForbidden => (
            Subsystem::Peers,
            "queries to peers were not permitted (EPERM) by the firewall of this machine",
            "permit UDP to the peers' udp-port in its output chains (nft list ruleset)",
        ),
        Cause::QueriesUnroutable => (
            Subsystem::Peers,
            "queries to peers were not sent: no route took them",
            "look at rules and routes (ip rule, ip route get PEER)",
        ),
        Cause::QueriesNotSent => (
            Subsystem::Peers,
            "queries to peers were not sent: the kernel had no memory, or the MTU is too small",
            "look which in ibarr counters (not-sent), then at free memory or ip link show",
        ),
        Cause::NoFreePort => (
            Subsystem::Peers,
            "no UDP port was free for queries to peers",
            "widen net.ipv4.ip_local_port_range, shorten ip_local_reserved_ports (sysctl), or stop \
             what holds the ports (ss -uanp)",
        ),
        Cause::NoFreeDescriptor => (
            Subsystem::Peers,
            "no descriptor was free for queries to peers",
            "raise LimitNOFILE= of the daemon, or fs.file-max (sysctl)",
        ),
        Cause::AddressesEvicted => (
            Subsystem::Caches,
            "addresses were forgotten to make room",
            "raise max-cached below [client]",
        ),
        Cause::PathsEvicted => (
            Subsystem::Caches,
            "paths were forgotten to make room",
            "raise max-cached below [paths]",
        ),
        Cause::ProgramsRemoved => (
            Subsystem::Responder,
            "another program removed programs or pins of ibarr, which has made them again or says why not",
            "find that program (bpftool net, tc filter show, findmnt) and have it spare them",
        ),
        Cause::FilesRemoved => (
            Subsystem::Control,
            "another program removed sockets or directories of the daemon, which has made them again",
            "find that program (a cleaner, systemd-tmpfiles, a script) and have it spare them",
        ),
        Cause::ConnectionsRefused => (
            Subsystem::Control,
            "connections to the control socket were refused",
            "look which users hold connections (ss -xp)",
        ),
        _ => (
            Subsystem::Peers,
            "queries of peers were lost",
            "let the kernel answer (responder = \"auto\"), and give the daemon CAP_NET_ADMIN for a \
             larger buffer",
        ),
    }
}
