// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The claims that must hold in every history. docs/dev/invariants.md gives their reasons.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::{ResolveIp, Seq, Timeout};
use ibarr_proto::local_service::{self, Limits, MEMORY};

use super::World;
use super::kernel_claims::{are_complete, header};
use super::machine::Kind;
use super::network::IPOIB;
use super::process::{Daemon, Sockets};
use super::troubles::Trouble;
use super::words::{SILENT_LAG, Words, before};
use crate::Counts;
use crate::dice::{ms, secs};
use crate::kernel::{IP_RESOLVE, IpOutcome, RESOLVE, SET_TIMEOUT, Wake};
use crate::record::{Entry, START};

#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) counts: Counts,
    broken: Option<Broken>,
    /// Pending requests of each machine's kernel.
    calls: BTreeMap<usize, Vec<Call>>,
    /// The times of recent requests.
    called: BTreeMap<usize, VecDeque<Instant>>,
    pub(super) words: Words,
    /// The times of recently lost datagrams between two machines.
    losses: BTreeMap<(usize, usize), VecDeque<Instant>>,
}

/// A claim that does not hold.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) at: Instant,
    pub(crate) about: [Option<usize>; 2],
    pub(crate) claim: String,
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug)]
struct Call {
    seq: Seq,
    target: IpAddr,
    /// Its interface is one of another network namespace.
    is_foreign: bool,
    asked_at: Instant,
    timeout: Duration,
}

/// The time from the end of all troubles until they have no effect any more: a round without an
/// answer, a false negative answer that was believed, and the time until the question is asked
/// again.
const SETTLE: Duration = secs(5);

/// The time limit of a request without troubles and losses. Behind a cold gateway another question
/// gets its turn within half of it.
const PROMPT: Duration = secs(1);

/// The time limit if at most [`FEW`] of the request's datagrams are lost.
const IN_TIME: Duration = ms(1900);
const FEW: usize = 2;

/// More questions than this at once make time-outs grow, so that there is time for one resend only.
const CROWD: usize = 8;

/// How long something is kept for a request: the kernel repeats it for at most 5 s, its deadline is
/// 30 s, and the answer is remembered for 5 s.
const HELD: Duration = secs(5 + 30 + 5 + 1);

impl Claims {
    pub(super) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Only the first broken claim is reported.
    pub(super) fn breaks(&mut self, at: Instant, about: [Option<usize>; 2], claim: String) {
        self.broken.get_or_insert(Broken { at, about, claim });
    }

    /// The kernel asks a daemon for an address.
    pub(super) fn asked_for(&mut self, now: Instant, id: usize) {
        self.called.entry(id).or_default().push_back(now);
    }

    pub(super) fn loses(&mut self, now: Instant, from: usize, to: Option<usize>) {
        self.counts.lost += 1;
        let Some(to) = to else { return };
        let losses = self.losses.entry((from.min(to), from.max(to))).or_default();
        losses.push_back(now);
        if losses.len() > 32 {
            losses.pop_front();
        }
    }

    pub(super) fn nudges(&mut self, now: Instant, id: usize, daemon: &mut Daemon) {
        self.counts.nudges += 1;
        let claim = daemon.kernel.orders_nudge(now).filter(|_| !daemon.is_ending);
        if let Some(claim) = claim {
            self.breaks(now, [Some(id), None], claim);
        }
    }

    pub(super) fn daemon_ends(&mut self, now: Instant, id: usize, daemon: &Daemon) {
        if let Some(claim) = daemon.kernel.excess() {
            self.breaks(now, [Some(id), None], claim);
        }
    }

    fn losses_since(&self, one: usize, other: usize, since: Instant) -> usize {
        let losses = self.losses.get(&(one.min(other), one.max(other)));
        losses.map_or(0, |losses| losses.iter().rev().take_while(|&&at| at >= since).count())
    }
}

impl World {
    /// Notes a call of `rdma_resolve_addr`.
    pub(super) fn resolve(&mut self, id: usize, request: ResolveIp, timeout: Duration) {
        let target = request.target;
        self.note(id, &Entry::Called { target, timeout });
        self.claims.counts.calls += 1;
        self.draw_window(id);
        if let Ok(seq) = self.machines[id].kernel.resolve_ip(self.now, request, timeout) {
            let is_foreign = request.ifindex != IPOIB;
            let call = Call { seq, target, is_foreign, asked_at: self.now, timeout };
            self.claims.calls.entry(id).or_default().push(call);
            self.claims.asked_for(self.now, id);
        } else {
            self.claims.counts.no_listener += 1;
            if self.machines[id].daemon.is_some() {
                let text = format!("no daemon receives the request for {target}");
                self.claims.breaks(self.now, [Some(id), None], text);
            }
        }
        self.settle_kernel(id);
    }

    /// Checks that a call has one effective outcome, in time and correct.
    pub(super) fn call_ends(&mut self, id: usize, seq: Seq, outcome: IpOutcome) {
        let calls = self.claims.calls.entry(id).or_default();
        let Some(at) = calls.iter().position(|call| call.seq == seq) else {
            let text = format!("request {} ends but was not pending", seq.0);
            return self.claims.breaks(self.now, [Some(id), None], text);
        };
        let call = calls.swap_remove(at);
        let Call { target, asked_at, timeout, .. } = call;
        let took = self.now.since(asked_at);
        let owner = self.truth.owner(target);
        let limit = self.limit(id, &call);
        let counts = &mut self.claims.counts;
        counts.binding += u64::from(limit.is_some());
        let troubles = &self.machines[id].troubles;
        counts.inherited += u64::from(limit.is_some() && troubles.was_restarted_since(asked_at));
        let mut complaint = None;
        let awake = troubles.until(Trouble::Suspended).max(asked_at + timeout);
        if self.now.since(awake) > ms(20) {
            complaint = Some(format!("{target} took {took:?} of {timeout:?}"));
        }
        match outcome {
            IpOutcome::Resolved { gid, by } => {
                let is_late = limit.is_some_and(|limit| took > limit);
                match by {
                    Wake::TimeOut => counts.by_timeout += 1,
                    Wake::Neighbour(_) => counts.took(took),
                }
                let has_nudges = self.weather.config.local_service.nudge;
                if has_nudges && (is_late || limit.is_some() && by == Wake::TimeOut) {
                    complaint = Some(format!("{target} is resolved after {took:?}, by {by:?}"));
                }
                let oldest = self.oldest(id, target, asked_at);
                let said = before(asked_at, oldest + self.under_way(id, asked_at));
                if let Some(gid) = Gid::new(gid) {
                    self.connect(id, gid);
                }
                if Gid::new(gid).is_none_or(|gid| !self.had(target, gid, said)) {
                    let gid = std::net::Ipv6Addr::from(gid);
                    complaint = Some(format!("{target} never had {gid}, or had it too long ago"));
                }
            }
            IpOutcome::TimedOut => counts.timed_out += 1,
            IpOutcome::NoListener => counts.no_listener += 1,
        }
        if limit.is_some() && !matches!(outcome, IpOutcome::Resolved { .. }) {
            complaint = Some(format!("{target} could be resolved, but: {outcome:?}"));
        }
        if let Some(complaint) = complaint {
            self.claims.breaks(self.now, [Some(id), owner], complaint);
        }
    }

    /// The time limit of a request, if it must be answered.
    fn limit(&self, id: usize, call: &Call) -> Option<Duration> {
        if self.has_little_room() {
            return None;
        }
        let since = before(call.asked_at, SETTLE);
        let owner = self.truth.owner_since(call.target, since)?;
        // The kernel asks for nothing on its own links. A caller of another namespace is left alone if it asks for that
        // or for this machine's own addresses.
        let is_on_link = self.machines[id].next_hop(call.target) == call.target;
        if owner != id && is_on_link || owner == id && call.is_foreign {
            return None;
        }
        let is_quick = |id: usize| self.machines[id].ipoib.quick_since(self.now) <= since;
        let is_calm = |id: usize| self.machines[id].troubles.end() <= since && is_quick(id);
        // The next daemon has to answer requests that wait during a restart: its first nudge makes
        // the kernel repeat them.
        let waited = self.machines[id].troubles.waited(call.asked_at, since);
        let waited = waited.filter(|_| self.weather.config.local_service.nudge);
        let extra = waited.unwrap_or_default();
        let speaks = self.machines[owner].kind == Kind::Ours || call.target.is_ipv4();
        let is_fit = is_calm(id) || waited.is_some() && owner != id && is_quick(id);
        let answers = is_fit && is_calm(owner) && speaks;
        let lately = |at: &&Instant| **at >= before(call.asked_at, secs(1));
        let called = self.claims.called.get(&id);
        let is_in_crowd = called.is_some_and(|at| at.iter().filter(lately).count() > CROWD);
        let few = if is_in_crowd { 1 } else { FEW };
        let limit = match self.claims.losses_since(id, owner, since) {
            0 => PROMPT,
            // A gateway behind which the network is cut has lost what others asked, too, and is asked
            // once a second.
            losses if losses <= few && self.weather.cut.until() <= since => IN_TIME,
            _ => return None,
        };
        let limit = limit + extra;
        (answers && limit < call.timeout).then_some(limit)
    }

    /// Whether a daemon may refuse a request because of others.
    fn has_little_room(&self) -> bool {
        self.weather.config.local_service.limits != Limits::default()
    }

    /// Checks a message of the daemon to the kernel.
    pub(super) fn check_message(&mut self, id: usize, daemon: &mut Daemon, bytes: &[u8]) {
        let Some((kind, seq)) = header(bytes).filter(|(kind, _)| *kind != SET_TIMEOUT) else {
            return;
        };
        self.claims.counts.answers += 1;
        let counters = daemon.core.node().local_service().counters();
        let repeated = counters.get(local_service::Counter::AnswersRepeated);
        let spared = counters.get(local_service::Counter::PathsSpared);
        let (history, claim) = daemon.kernel.answered(kind, seq, repeated);
        if let Some(claim) = claim {
            self.claims.breaks(self.now, [Some(id), None], claim);
        }
        // A daemon that did not run, or could not send, may give an answer that was true before.
        let is_calm = self.machines[id].troubles.end() <= before(self.now, secs(1));
        if kind == RESOLVE
            && let Some(claim) = daemon.paths.answered(self.now, seq, bytes, spared)
            && is_calm
        {
            self.claims.breaks(self.now, [Some(id), None], claim);
        }
        if kind != IP_RESOLVE {
            return;
        }
        let gid = bytes.get(20..36).and_then(|gid| gid.first_chunk::<16>()).copied();
        let (Some(gid), Some(target)) = (gid.and_then(Gid::new), history.target) else {
            let text = format!("the message is not an answer: {bytes:02x?}");
            return self.claims.breaks(self.now, [Some(id), None], text);
        };
        // An answer may be repeated, or have waited for room.
        let has_waited = self.machines[id].troubles.until(Trouble::Clogged) >= history.asked_at;
        if history.is_reused && has_waited {
            return;
        }
        let is_new = history.is_first() && !has_waited;
        let late = self.slept_lately(Some(id), history.asked_at) + ms(100);
        let since = match (is_new, has_waited) {
            // Which of its requests is answered is not known, so the age is not.
            _ if history.is_reused => before(self.now, secs(60)),
            (true, _) => self.now,
            (false, false) => history.asked_at.max(before(self.now, MEMORY + late)),
            (false, true) => history.asked_at,
        };
        self.check_age(id, target, gid, since);
    }

    /// Checks a reply: the machine has the address, or had it until a moment ago.
    pub(super) fn check_reply(&mut self, id: usize, about: IpAddr, asker: IpAddr, gid: Gid) {
        let machine = &self.machines[id];
        let runs = machine.daemon.as_ref().is_some_and(|daemon| {
            // Until it has written all maps, the programs answer from those of an earlier daemon.
            let has_maps = daemon.core.node().responder().lease_end() > Instant::BOOT;
            daemon.core.node().view().is_synced()
                && (machine.programs.is_none() || has_maps)
                && !machine.troubles.has(self.now, Trouble::Stalled)
        });
        let lease = self.weather.config.responder.lease;
        let extra = if runs { Duration::ZERO } else { lease };
        if !self.is_own(id, about, gid, self.now, extra) {
            let other = self.truth.owner(asker);
            let text = format!("node {id} says that {about} has {gid}, which is no longer true");
            self.claims.breaks(self.now, [Some(id), other], text);
        }
    }

    /// Checks that a daemon which knows no such address has had time to learn it.
    pub(super) fn check_silence(&mut self, id: usize, address: IpAddr) {
        let slept = self.slept_lately(Some(id), before(self.now, SILENT_LAG));
        let since = before(self.now, SILENT_LAG + slept);
        if self.truth.owner_since(address, since) == Some(id) {
            let text = format!("node {id} is silent about its own address {address}");
            self.claims.breaks(self.now, [Some(id), None], text);
        }
    }

    /// Checks that a daemon which ended in an orderly way has restored the kernel's time-out.
    pub(super) fn check_peaceful_end(&mut self, id: usize) {
        let machine = &self.machines[id];
        let Some(daemon) = machine.daemon.as_ref().filter(|it| it.is_ending && !it.was_refused)
        else {
            return;
        };
        if daemon.is_idle() && machine.kernel.path_timeout() != Timeout::DEFAULT.get() {
            let text =
                format!("the kernel keeps a time-out of {:?}", machine.kernel.path_timeout());
            self.claims.breaks(self.now, [Some(id), None], text);
        }
    }

    /// Checks a path request that got no answer in the kernel's time. This is allowed only if there
    /// was a trouble, or the daemon did not run, or read other requests, for half of the time that
    /// remains after the SA's silence.
    pub(super) fn path_unanswered(&mut self, id: usize, seq: Seq) {
        self.claims.counts.paths_unanswered += 1;
        let machine = &self.machines[id];
        let time = machine.kernel.path_timeout();
        let slept = machine.pace.hiccups_since(before(self.now, time));
        let daemon = machine.daemon.as_ref();
        let unread = daemon.map_or(Duration::ZERO, |daemon| daemon.paths.unread(seq));
        if machine.troubles.end() < before(self.now, SETTLE)
            && slept + unread < time / 10
            && !self.has_little_room()
        {
            let text = format!("path request {} gets no answer", seq.0);
            self.claims.breaks(self.now, [Some(id), None], text);
        }
    }

    /// Checks that no table is larger than the requests justify.
    pub(super) fn check_bounds(&mut self, id: usize, daemon: &Daemon) {
        let node = daemon.core.node();
        let held_for = HELD + self.slept_lately(Some(id), before(self.now, HELD));
        let called = self.claims.called.entry(id).or_default();
        while called.front().is_some_and(|&at| at < before(self.now, held_for)) {
            called.pop_front();
        }
        let (client, held) = (node.client().load(), node.local_service().load().held);
        let users = daemon.asked.len() + daemon.crowd.len() + daemon.applications.waiting();
        let asked = called.len() + users;
        let addresses = self.weather.addresses;
        let limits = self.weather.config.local_service.limits;
        let sleeps = self.machines[id].troubles.end() > before(self.now, HELD);
        let too_much = [
            ("sockets", daemon.sockets.len(), Sockets::MOST),
            ("requests held", held, if sleeps { limits.requests } else { called.len() }),
            ("requests in the table", held, limits.requests),
            ("path requests held", node.local_service().load().paths, limits.paths),
            // Each address may be cached with and without an interface, and is then refreshed.
            ("answers remembered", client.cached, 2 * addresses),
            ("flights", client.flights, asked + 2 * addresses),
            ("next hops", client.hops, addresses),
            ("inputs", daemon.inbox.len(), 4096),
        ];
        let load = node.local_service().load();
        if !are_complete(node.local_service().counters(), load) {
            let text = format!("{:?} do not add up to {load:?}", node.local_service().counters());
            self.claims.breaks(self.now, [Some(id), None], text);
        }
        for (what, is, most) in too_much {
            self.claims.counts.most(what, is);
            if is > most {
                let text = format!("{what}: {is}, at most {most}");
                self.claims.breaks(self.now, [Some(id), None], text);
            }
        }
    }

    /// Checks that no table holds anything after minutes without requests.
    pub(super) fn check_end(&mut self) {
        for id in 0..self.machines.len() {
            let machine = &self.machines[id];
            let mut left = Vec::new();
            let mut holds = |what: &str, count: usize| {
                if count > 0 {
                    left.push(format!("{count} {what}"));
                }
            };
            holds("calls", self.claims.calls.get(&id).map_or(0, Vec::len));
            holds("paths being looked up", machine.ipoib.sought());
            holds("datagrams for the daemon", machine.kernel_socket.len());
            if let Some(daemon) = &machine.daemon {
                let node = daemon.core.node();
                let client = node.client().load();
                holds("path requests", node.paths().load().waiters);
                holds("questions to the SA", node.paths().load().questions);
                holds("requests of users", daemon.asked.len() + daemon.crowd.len());
                holds("clients of ACM that wait", daemon.applications.waiting());
                holds("sockets", daemon.sockets.len());
                holds("requests held", node.local_service().load().held);
                holds("flights", client.flights);
                holds("waiters", client.waiters);
                holds("answers remembered", client.cached);
                self.claims.daemon_ends(self.now, id, daemon);
            } else if machine.kind == Kind::Ours {
                holds("missing daemon", 1);
            }
            if !left.is_empty() {
                let text = format!("left at the end: {}", left.join(", "));
                self.claims.breaks(self.now, [Some(id), None], text);
            }
        }
    }

    /// Whether a machine could say since then that the address has this GID.
    fn had(&self, address: IpAddr, gid: Gid, since: Instant) -> bool {
        let lease = self.weather.config.responder.lease;
        let mut owners = self.truth.owners(address, START);
        owners.any(|owner| self.is_own(owner, address, gid, since, lease))
    }

    /// How long the machine has not run, if that was after `since`.
    pub(super) fn slept_lately(&self, id: Option<usize>, since: Instant) -> Duration {
        id.map_or(Duration::ZERO, |id| self.machines[id].troubles.slept_since(since))
    }
}
