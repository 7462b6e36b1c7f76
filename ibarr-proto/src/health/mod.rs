// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Health: what works, what does not, since when, why, and what to do. The node states what its cores
//! know, the driver what it alone knows; this core decides what that means. `ibarr status`, `--check`,
//! `STATUS=`, the log and the metrics all show its decisions.
//!
//! A *reason* is a cause at a subsystem. It counts once it has been there for the patience of its
//! cause, so that what is normal for a moment, such as a program that is being attached again, raises
//! no alarm. A cause that is only counted, such as lost requests, stays for [`HOLD`] after the last
//! count. A reason whose state is ok is advice: it is shown, and changes nothing.
//!
//! **What is not known is not called ok, and the first verdict is the truth.** A subsystem has none
//! while its parts have yet to say whether they work (*unsettled*). Once they have, each reason counts at
//! once: it is no change that may pass. The daemon is ready when each subsystem has its first verdict,
//! and at the latest after [`START`]. After a change of the configuration, verdicts are first ones again.

mod facts;
mod recent;
mod rules;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use ibarr_common::Instant;

use crate::Fault;
use crate::ip2gid::client::Candidate;
use crate::local_view::InterfaceName;
use crate::paths::PortName;

use self::facts::Facts;
pub use self::facts::{
    Acm, Addresses, Configuration, Control, Device, FewDescriptors, GroupUnknown, Input, Kernel,
    KernelSilent, Listener, Missing, Peers, Port, Programs, Served, Setting, Socket,
};
use self::rules::Finding;

/// The health of a daemon, see the [module](self).
#[derive(Debug, Default)]
pub struct Health {
    facts: Facts,
    /// When the next assessment may be; `None` before the start and after the end.
    due: Option<Instant>,
    assessed_at: Option<Instant>,
    /// When the start is over at the latest; `None` before and after it.
    ready_by: Option<Instant>,
    subsystems: BTreeMap<Subsystem, Assessment>,
    /// Subsystems with unsettled parts, as stated since the last assessment.
    unsettled: BTreeMap<Subsystem, Fault>,
    /// Those that have no verdict yet, and why not.
    unknown: BTreeMap<Subsystem, Fault>,
    /// Those whose next verdict is a first one, because the configuration has changed.
    anew: BTreeSet<Subsystem>,
    reasons: BTreeMap<(Subsystem, Cause), Reason>,
    /// Ports that were active at some time: they are missed when they are down.
    once_active: BTreeSet<PortName>,
    counts: BTreeMap<Cause, Count>,
    events: VecDeque<Event>,
    /// The peers that datagrams were sent to, the newest first.
    recent: Vec<Candidate>,
}

/// A daemon is ready at the latest after this, whatever is not known yet.
pub const START: Duration = Duration::from_secs(3);

/// Between two assessments until then at least this time passes.
pub const EARLY: Duration = Duration::from_millis(10);

/// Between two assessments at least this time passes, except if someone asks.
pub const OFTEN: Duration = Duration::from_secs(1);

/// Between two assessments at most this time passes.
pub const SELDOM: Duration = Duration::from_secs(5);

/// How long a cause that is only counted stays after the last count.
pub const HOLD: Duration = Duration::from_mins(1);

/// A part of the daemon, in the order of `ibarr status`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Subsystem {
    /// The configuration file.
    Configuration,
    /// The addresses and interfaces of this node.
    LocalView,
    /// The kernel's requests, and the answers to them.
    Kernel,
    /// The programs that answer peers in the kernel.
    Responder,
    /// The program on one interface.
    ResponderOn(InterfaceName),
    /// The sockets for peers' queries and for our own.
    Peers,
    /// The subnet administrator of one port.
    Sa(PortName),
    /// The caches of addresses and paths.
    Caches,
    /// The control socket, the log and the metrics.
    Control,
    /// The clients of ACM.
    Acm,
}

impl Subsystem {
    /// The name without its object, such as `sa`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::LocalView => "local-view",
            Self::Kernel => "kernel",
            Self::Responder | Self::ResponderOn(_) => "responder",
            Self::Peers => "peers",
            Self::Sa(_) => "sa",
            Self::Caches => "caches",
            Self::Control => "control",
            Self::Acm => "acm",
        }
    }

    /// The interface or port.
    pub fn object(self) -> Option<String> {
        match self {
            Self::ResponderOn(interface) => Some(interface.to_string()),
            Self::Sa(port) => Some(port.to_string()),
            _ => None,
        }
    }
}

impl fmt::Display for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.object() {
            Some(object) => write!(f, "{} {object}", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

ibarr_common::words! {
    /// How well a subsystem works, the best first.
    #[derive(Default)]
    State {
        /// It works.
        #[default]
        Ok = "ok",
        /// It works worse than it should, or something else does its work.
        Degraded = "degraded",
        /// It does not do its work, and nothing else does.
        Failed = "failed",
    }
}

ibarr_common::words! {
    /// Why a subsystem does not work as it should.
    Cause {
        /// The last reload was refused.
        ReloadRefused = "reload-refused",
        /// The file takes long to read.
        ReloadSlow = "reload-slow",
        /// A setting is valid and has an unwanted effect.
        Setting = "setting",
        /// The addresses of this node are not known yet.
        ViewUnknown = "view-unknown",
        /// No address of this node has a GID.
        NoGid = "no-gid",
        /// A configured name matches no interface.
        NoSuchInterface = "no-such-interface",
        /// An address is on several interfaces.
        ContestedAddress = "contested-address",
        /// Events of rtnetlink were lost, and read again.
        EventsLost = "events-lost",
        /// The kernel sends no requests to the daemon.
        KernelSilent = "kernel-silent",
        /// The kernel refuses the daemon's answers.
        AnswersRefused = "answers-refused",
        /// The kernel does not look at answers at once.
        NudgesFail = "nudges-fail",
        /// Another process answers the kernel, too.
        OtherListener = "other-listener",
        /// Requests of the kernel were lost, and asked for again.
        RequestsLost = "requests-lost",
        /// The kernel was left to ask the SA, because the SA's records have other GIDs than the kernel asked for.
        OtherGids = "other-gids",
        /// No program answers in the kernel.
        NotLoaded = "not-loaded",
        /// The programs may end with the daemon.
        PinsPrivate = "pins-private",
        /// The programs stop answering soon, because the lease is not renewed.
        LeaseEnding = "lease-ending",
        /// The programs have stopped answering, because the lease was not renewed.
        LeaseEnded = "lease-ended",
        /// No program is attached to an interface.
        NotAttached = "not-attached",
        /// Another program had removed programs or pins of ours.
        ProgramsRemoved = "programs-removed",
        /// Maps of the programs could not be written.
        MapFaults = "map-faults",
        /// Queries of peers over one version of IP are not received.
        NotServing = "not-serving",
        /// The socket for queries holds too few bytes.
        SmallBuffer = "small-buffer",
        /// A socket that systemd has passed is not used.
        UnusedSocket = "unused-socket",
        /// The process may open too few descriptors.
        FewDescriptors = "few-descriptors",
        /// Queries of peers were lost.
        QueriesLost = "queries-lost",
        /// The firewall of this machine, or a route, forbids queries to peers.
        QueriesForbidden = "queries-forbidden",
        /// No route takes queries to peers.
        QueriesUnroutable = "queries-unroutable",
        /// Queries to peers were not sent for another reason.
        QueriesNotSent = "queries-not-sent",
        /// A policy rule sends queries or replies by another way than the kernel's connections.
        Diverted = "diverted-by-rule",
        /// No UDP port is free for queries to peers.
        NoFreePort = "no-free-port",
        /// No descriptor is free for queries to peers.
        NoFreeDescriptor = "no-free-descriptor",
        /// Replies of peers were lost.
        RepliesLost = "replies-lost",
        /// The firewall of this machine does not permit replies to peers.
        RepliesForbidden = "replies-forbidden",
        /// No route takes replies to peers.
        RepliesUnroutable = "replies-unroutable",
        /// Replies to peers were not sent for another reason.
        RepliesNotSent = "replies-not-sent",
        /// The port is down.
        PortDown = "port-down",
        /// The port knows no subnet manager.
        NoSubnetManager = "no-subnet-manager",
        /// The umad device of the port is not open.
        UmadClosed = "umad-closed",
        /// The subnet administrator does not answer.
        SaSilent = "sa-silent",
        /// The subnet administrator answers only that it is busy.
        SaBusy = "sa-busy",
        /// Events of the port are not received.
        EventsUnheard = "events-unheard",
        /// Addresses were forgotten to make room.
        AddressesEvicted = "addresses-evicted",
        /// Paths were forgotten to make room.
        PathsEvicted = "paths-evicted",
        /// Paths could not be saved for the next daemon.
        SnapshotFailed = "snapshot-failed",
        /// Group ibarr cannot be looked up.
        GroupUnknown = "group-unknown",
        /// Connections to the control socket were refused.
        ConnectionsRefused = "connections-refused",
        /// No program finds the control socket.
        ControlClosed = "control-closed",
        /// Another program had removed sockets or directories of ours.
        FilesRemoved = "files-removed",
        /// Lines of the log were lost.
        LogLost = "log-lost",
        /// The metrics cannot be served.
        MetricsClosed = "metrics-closed",
        /// Clients of ACM are not served.
        AcmClosed = "acm-closed",
        /// Files of ACM have mistakes.
        AcmFiles = "acm-files",
    }
}

impl Cause {
    /// How long it may be there before it counts, except in a first verdict.
    pub fn patience(self) -> Duration {
        match self {
            Self::NotLoaded | Self::NotAttached | Self::NotServing | Self::LeaseEnded => {
                Duration::from_secs(5)
            }
            Self::GroupUnknown
            | Self::NoGid
            | Self::NoSubnetManager
            | Self::UmadClosed
            | Self::PortDown => Duration::from_secs(3),
            Self::ViewUnknown => Duration::from_secs(10),
            _ => Duration::ZERO,
        }
    }
}

/// A subsystem in [`Health::report`].
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Report<'a> {
    pub subsystem: Subsystem,
    /// Its state: the worst of its reasons.
    pub state: State,
    /// Since when it has this state.
    pub since: Instant,
    pub reasons: Vec<(Cause, &'a Reason)>,
}

/// What is wrong with a subsystem, or could be better.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Reason {
    /// What it makes of the subsystem.
    pub state: State,
    /// When it was first seen.
    pub since: Instant,
    pub why: String,
    pub remedy: String,
    counts: bool,
}

/// A change for the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A subsystem has another reason.
    Worse(Subsystem, Cause, Reason),
    /// A reason has gone.
    Better {
        /// The subsystem.
        subsystem: Subsystem,
        /// The cause that has gone.
        cause: Cause,
        /// The state of the subsystem now.
        state: State,
        /// How long the reason was there.
        lasted: Duration,
    },
}

#[derive(Clone, Copy, Debug)]
struct Assessment {
    state: State,
    since: Instant,
}

/// A count that only rises while something is wrong.
#[derive(Clone, Copy, Debug)]
struct Count {
    value: u64,
    rose_at: Option<Instant>,
}

impl Health {
    /// Notes what a part of the daemon knows.
    pub fn handle_input(&mut self, now: Instant, input: Input) {
        let facts = &mut self.facts;
        match input {
            Input::Start => (self.due, self.ready_by) = (Some(now), Some(now + START)),
            Input::Asked => self.hasten(now),
            Input::Unsettled(subsystem, why) => {
                self.unsettled.entry(subsystem).or_insert(why);
            }
            Input::Reconfigured => {
                self.anew = self.subsystems.keys().copied().collect();
                self.hasten(now);
            }
            Input::Stop => self.due = None,
            Input::Sent(peer) => self.sent_to(peer),
            Input::Addresses(addresses) => facts.addresses = addresses,
            Input::AnswersRefused(errno) => facts.answers_refused = errno,
            Input::Ports(ports) => facts.ports = ports,
            Input::Counted(cause, count) => self.count(now, cause, count),
            Input::Configuration(configuration) => facts.configuration = configuration,
            Input::Kernel(kernel) => facts.kernel = kernel,
            Input::Responder(programs, served) => {
                (facts.programs, facts.served) = (programs, served);
            }
            Input::Peers(peers) => facts.peers = peers,
            Input::Devices(devices) => facts.devices = devices,
            Input::Control(control) => facts.control = control,
            Input::Snapshot(failed) => facts.snapshot_failed = failed,
            Input::Acm(acm) => facts.acm = acm,
        }
    }

    /// Whether an assessment is due, and facts are to be stated.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Whether the start is over: each subsystem has a verdict, or has had [`START`] for it.
    pub fn is_ready(&self) -> bool {
        self.assessed_at.is_some() && self.ready_by.is_none()
    }

    /// When an assessment is due at the latest: then reasons may begin to count.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.due?;
        let Some(at) = self.assessed_at.filter(|_| self.unknown.is_empty()) else {
            return Some(due);
        };
        let waiting = self.reasons.iter().filter(|(_, reason)| !reason.counts);
        let counts_at = waiting.map(|((_, cause), reason)| reason.since + cause.patience());
        counts_at.chain([at + SELDOM]).min().map(|at| at.max(due))
    }

    /// Decides anew what works, if that is due. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.is_due(now) {
            return;
        }
        self.assessed_at = Some(now);
        let ports = &self.facts.ports;
        let active = ports.iter().filter(|port| port.missing != Some(Missing::Down));
        self.once_active.extend(active.map(|port| port.name));
        self.once_active.retain(|name| ports.iter().any(|port| port.name == *name));
        let mut found = rules::judge(now, &self.facts, &self.once_active);
        let held = |count: &Count| count.rose_at.is_some_and(|at| now.since(at) < HOLD);
        let counts = self.counts.iter().filter(|(_, count)| held(count));
        found.extend(counts.map(|(cause, count)| rules::counted(*cause, count.value)));
        let mut subsystems = rules::subsystems(&self.facts);
        subsystems.extend(found.iter().map(|finding| finding.subsystem));
        subsystems.extend(self.unsettled.keys());
        self.note(now, found);
        self.decide(now, subsystems);
        self.ready_by = self.ready_by.filter(|&by| now < by && !self.unknown.is_empty());
        self.due = Some(now + if self.is_ready() { OFTEN } else { EARLY });
    }

    /// The subsystems that have no verdict yet, in order, and what is awaited.
    pub fn unknown(&self) -> impl Iterator<Item = (Subsystem, &Fault)> {
        self.unknown.iter().map(|(&subsystem, why)| (subsystem, why))
    }

    /// Every subsystem that has a verdict, in order.
    pub fn report(&self) -> impl Iterator<Item = Report<'_>> {
        self.subsystems.iter().map(|(&subsystem, &Assessment { state, since })| {
            let reasons = self.reasons_of(subsystem).collect();
            Report { subsystem, state, since, reasons }
        })
    }

    /// The next change.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn hasten(&mut self, now: Instant) {
        self.due = self.due.map(|due| due.min(now));
    }

    fn reasons_of(&self, subsystem: Subsystem) -> impl Iterator<Item = (Cause, &Reason)> {
        let reasons = self.reasons.iter();
        let reasons = reasons.filter(move |((of, _), reason)| *of == subsystem && reason.counts);
        reasons.map(|((_, cause), reason)| (*cause, reason))
    }

    fn count(&mut self, now: Instant, cause: Cause, count: u64) {
        let known = self.counts.entry(cause).or_insert(Count { value: 0, rose_at: None });
        if count > known.value {
            known.rose_at = Some(now);
        }
        known.value = count;
    }

    /// Adds what is new, keeps what is known, drops what has gone.
    fn note(&mut self, now: Instant, found: Vec<Finding>) {
        let before = core::mem::take(&mut self.reasons);
        for Finding { subsystem, cause, state, why, remedy } in found {
            let known = before.get(&(subsystem, cause));
            let since = known.map_or(now, |known| known.since);
            let counts = known.is_some_and(|known| known.counts)
                || now.since(since) >= cause.patience()
                || self.judges_first(subsystem);
            let reason = Reason { state, since, why, remedy, counts };
            let was_better = known.is_none_or(|known| !known.counts || known.state < state);
            if counts && was_better && state > State::Ok {
                self.events.push_back(Event::Worse(subsystem, cause, reason.clone()));
            }
            self.reasons.insert((subsystem, cause), reason);
        }
        for ((subsystem, cause), gone) in before {
            if gone.counts
                && gone.state > State::Ok
                && !self.reasons.contains_key(&(subsystem, cause))
            {
                let state = self.state_of(subsystem);
                let lasted = now.since(gone.since);
                self.events.push_back(Event::Better { subsystem, cause, state, lasted });
            }
        }
    }

    /// Whether this assessment makes the first verdict on the subsystem.
    fn judges_first(&self, subsystem: Subsystem) -> bool {
        let is_first = !self.subsystems.contains_key(&subsystem) || self.anew.contains(&subsystem);
        is_first && !self.unsettled.contains_key(&subsystem)
    }

    fn state_of(&self, subsystem: Subsystem) -> State {
        self.reasons_of(subsystem).map(|(_, reason)| reason.state).max().unwrap_or_default()
    }

    fn decide(&mut self, now: Instant, subsystems: BTreeSet<Subsystem>) {
        self.unknown = core::mem::take(&mut self.unsettled);
        self.anew.retain(|subsystem| self.unknown.contains_key(subsystem));
        self.subsystems.retain(|subsystem, _| subsystems.contains(subsystem));
        for subsystem in subsystems {
            let is_late = self.ready_by.is_none_or(|by| by <= now);
            // What is known already says nothing of the rest, which may be worse.
            let is_sure = |(cause, reason): (Cause, &Reason)| {
                !cause.patience().is_zero() || is_late && reason.state > State::Ok
            };
            let has_verdict =
                self.subsystems.contains_key(&subsystem) || self.reasons_of(subsystem).any(is_sure);
            if has_verdict {
                self.unknown.remove(&subsystem);
            } else if self.unknown.contains_key(&subsystem) {
                continue;
            }
            let state = self.state_of(subsystem);
            let assessment =
                self.subsystems.entry(subsystem).or_insert(Assessment { state, since: now });
            if assessment.state != state {
                *assessment = Assessment { state, since: now };
            }
        }
    }
}
