// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Asks many peers at the same time, each afresh: a look at a whole fleet.
//!
//! A survey has sockets of its own and no part in the tables of a [`Client`](super::Client), so it takes nothing from
//! the requests of the node on which it runs.
//!
//! **A peer that does not answer is sent one query in [`PAUSE`] at most**, and [`Settings::tries`] in all. All peers
//! together are sent [`Settings::rate`] a second at most, after a pause [`BURST`] at once. A next hop that has not
//! answered is asked through the same gate as by the client (`hops.rs`).
//!
//! **Which implementation answers.** The bytes of a reply do not tell: each repeats the version and the number of its
//! query, and the C original answers like this one. So a peer that has answered for an IPv4 address is asked for
//! an IPv6 address that no node has ([`NOBODY`]). This implementation replies that it does not have it; the C original
//! knows no such question and is silent.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::num::{NonZeroU16, NonZeroU32};
use core::time::Duration;

use hashbrown::HashMap;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{Datagram, MsgId, Query, Reply, Version};
use ibarr_common::{IfIndex, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::Rng as _;

use super::super::{Question, is_link_local};
use super::flights::FlightId;
use super::hops::Hops;
use super::limits::hop_limits;
use super::{Config, Route};
use crate::hash::Seeded;
use crate::request::Status;
use crate::timer::Timers;

/// The time between two queries to a peer that does not answer.
pub const PAUSE: Duration = Duration::from_secs(1);

/// How many queries may leave at once after a pause.
pub const BURST: u32 = 32;

/// An address of the prefix that routers discard (RFC 6666).
pub const NOBODY: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1);

/// How a survey asks its peers.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The UDP port of the peers.
    pub udp_port: NonZeroU16,
    /// The most queries in a second, to all peers together.
    pub rate: NonZeroU32,
    /// How often a question is sent before its peer is silent.
    pub tries: NonZeroU32,
    /// How many replies about its address each peer is asked for, [`PAUSE`] apart.
    pub rounds: NonZeroU32,
}

ibarr_common::words! {
    /// What a peer that answers understands.
    Speaks {
        /// Questions about IPv6 addresses, too: it is this implementation.
        Ibarr = "ibarr",
        /// Only questions about IPv4 addresses: it is the C original, or this implementation while its daemon is away and
        /// its program answers in the kernel.
        Ipv4Only = "ipv4-only",
    }
}

/// What a survey has found about a peer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// Found, not found, timed out (silent), refused, or unreachable: no query could be sent.
    pub status: Status,
    /// Of the last reply.
    pub gid: Option<Gid>,
    /// Another GID, of an earlier reply.
    pub also: Option<Gid>,
    /// Known of a peer that was found.
    pub speaks: Option<Speaks>,
    /// Number of queries that were sent.
    pub queries: u32,
    /// Of each reply, from the query that it answers.
    pub round_trips: Vec<Duration>,
}

/// What happens to a survey.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Input<'a> {
    Datagram {
        from: SocketAddr,
        payload: &'a [u8],
    },
    /// ICMP reported "port unreachable". It counts if it quotes a query.
    Refused {
        to: SocketAddr,
        quoted: &'a [u8],
    },
    /// The kernel has refused to send this query.
    NotSent {
        query: &'a [u8],
    },
}

/// A query to send.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Transmit {
    pub to: SocketAddr,
    /// The outgoing interface; `None` if routing selects it.
    pub egress: Option<IfIndex>,
    pub payload: Datagram,
}

/// Asks all peers, see the [module](self).
///
/// After every `handle_…`, call [`Self::poll_query`] until it returns `None`, then [`Self::poll_timeout`]. The survey
/// is over when that returns `None`, too.
#[derive(Debug)]
pub struct Survey {
    settings: Settings,
    rng: ChaCha12Rng,
    now: Instant,
    peers: Vec<Peer>,
    /// When a peer is asked again or given up, by its index.
    due: Timers<usize>,
    hops: Hops,
    /// Peers that may be sent a query.
    ready: VecDeque<usize>,
    sent: HashMap<MsgId, Sent, Seeded>,
    /// When the queries sent so far would have been sent at the rate.
    paid_until: Instant,
    finished: usize,
    strays: u64,
}

#[derive(Debug)]
struct Peer {
    question: Question,
    route: Route,
    finding: Finding,
    /// The question of the next query; `None` if nothing more is asked.
    asks: Option<Asks>,
    /// How often that was sent without an answer.
    tries: u32,
    /// How many replies about its address have come.
    answers: u32,
    /// It waits for its next hop or for the rate.
    is_queued: bool,
    last_sent: Option<Instant>,
    /// Of the queries without an answer.
    msg_ids: Vec<MsgId>,
}

/// What a query asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asks {
    Address,
    /// Whether the peer understands a question about an IPv6 address.
    Nobody,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    peer: usize,
    asks: Asks,
    at: Instant,
}

impl Survey {
    /// Asks `peers`, each by the route to it, from `now` on.
    pub fn new(
        settings: Settings,
        now: Instant,
        peers: impl IntoIterator<Item = (Question, Route)>,
        mut rng: ChaCha12Rng,
    ) -> Self {
        let hasher = Seeded::new(&mut rng);
        let mut this = Self {
            settings,
            rng,
            now,
            peers: peers.into_iter().map(Peer::new).collect(),
            due: Timers::default(),
            hops: Hops::new(hop_limits(&Config::default()), hasher.clone()),
            ready: VecDeque::new(),
            sent: HashMap::with_hasher(hasher),
            paid_until: now,
            finished: 0,
            strays: 0,
        };
        for (index, peer) in this.peers.iter().enumerate() {
            this.hops.join(peer.route, flight(index));
            this.due.set(index, Some(now));
        }
        this
    }

    /// Something happened to a query.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        self.now = self.now.max(now);
        let known = match input {
            Input::Datagram { from, payload } => self.reply(from, payload),
            Input::Refused { to, quoted } => self.refused(to, quoted),
            Input::NotSent { query } => self.not_sent(query),
        };
        self.strays += u64::from(known.is_none());
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some(peer) = self.due.pop(self.now) {
            self.ask_or_finish(peer);
        }
        while let Some(FlightId(id)) = self.hops.next_turn(self.now) {
            self.ready.extend(usize::try_from(id));
        }
    }

    /// When to call [`Self::handle_timeout`]; `None` if the survey is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let rate = (!self.ready.is_empty()).then(|| self.may_send_at());
        [rate, self.due.next(), self.hops.next_timeout()].into_iter().flatten().min()
    }

    /// The next query to send now.
    pub fn poll_query(&mut self, now: Instant) -> Option<Transmit> {
        self.now = self.now.max(now);
        while self.may_send_at() <= self.now {
            let peer = self.ready.pop_front()?;
            if let Some(query) = self.query(peer) {
                return Some(query);
            }
        }
        None
    }

    /// How many peers nothing more is asked of, and how many there are.
    pub fn progress(&self) -> (usize, usize) {
        (self.finished, self.peers.len())
    }

    /// How many datagrams and reports answered no query of this survey, or came after the end of their peer's.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// What was found, in the order of the peers. A peer that still has time is silent.
    pub fn into_findings(self) -> Vec<Finding> {
        self.peers.into_iter().map(|peer| peer.finding).collect()
    }

    fn may_send_at(&self) -> Instant {
        let ahead = self.interval() * BURST.saturating_sub(1);
        let ahead = u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(self.paid_until.as_nanos().saturating_sub(ahead))
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1) / self.settings.rate.get()
    }

    /// A peer's time has come: it is asked as soon as its next hop and the rate allow it, or given up.
    fn ask_or_finish(&mut self, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        if peer.is_queued {
            return;
        }
        if peer.tries >= self.settings.tries.get() {
            return self.give_up(index);
        }
        peer.is_queued = true;
        let (route, id, tries) = (peer.route, flight(index), peer.tries);
        if self.hops.may_send(self.now, route, id, usize::try_from(tries).unwrap_or(usize::MAX)) {
            self.ready.push_back(index);
        }
    }

    fn query(&mut self, index: usize) -> Option<Transmit> {
        let (msg_id, interval) = (self.unused_msg_id(), self.interval());
        let peer = self.peers.get_mut(index)?;
        peer.is_queued = false;
        let asks = peer.asks?;
        let target = match asks {
            Asks::Address => peer.question.target(),
            Asks::Nobody => IpAddr::V6(NOBODY),
        };
        let payload = Query::new(Version::V1, msg_id, target)?.emit();
        peer.last_sent = Some(self.now);
        peer.tries += 1;
        peer.finding.queries += 1;
        peer.msg_ids.push(msg_id);
        self.sent.insert(msg_id, Sent { peer: index, asks, at: self.now });
        self.due.set(index, Some(self.now + PAUSE));
        self.paid_until = self.paid_until.max(self.now) + interval;
        let needs_interface =
            peer.question.egress().is_some() || is_link_local(peer.question.target());
        Some(Transmit {
            to: SocketAddr::new(peer.question.target(), self.settings.udp_port.get()),
            egress: needs_interface.then_some(peer.route.ifindex),
            payload,
        })
    }

    fn reply(&mut self, from: SocketAddr, payload: &[u8]) -> Option<()> {
        let reply = Reply::parse(payload).ok()?;
        if from.port() != self.settings.udp_port.get() {
            return None;
        }
        let Sent { peer: index, asks, at } = self.sent.remove(&reply.msg_id)?;
        let peer = self.peers.get_mut(index)?;
        peer.msg_ids.retain(|id| *id != reply.msg_id);
        peer.finding.round_trips.push(self.now.since(at));
        let (route, rounds) = (peer.route, self.settings.rounds.get());
        match (asks, reply.gid) {
            (Asks::Address, None) => peer.finding.status = Status::NotFound,
            (Asks::Address, Some(gid)) => peer.note(gid),
            (Asks::Nobody, _) => peer.finding.speaks = Some(Speaks::Ibarr),
        }
        peer.answers += u32::from(asks == Asks::Address);
        let was_asked = peer.asks;
        peer.asks = peer.next(rounds);
        // A late reply to an earlier query leaves the schedule as it is, unless it ends it.
        if was_asked == Some(asks) || peer.asks.is_none() {
            self.go_on(index);
        }
        for (FlightId(id), was_waiting) in self.hops.heard(self.now, route) {
            if was_waiting {
                self.ready.extend(usize::try_from(id));
            }
        }
        Some(())
    }

    fn refused(&mut self, to: SocketAddr, quoted: &[u8]) -> Option<()> {
        let msg_id = Query::parse(quoted).ok()?.msg_id();
        let &Sent { peer: index, asks, .. } = self.sent.get(&msg_id)?;
        let peer = self.peers.get_mut(index)?;
        let target = SocketAddr::new(peer.question.target(), self.settings.udp_port.get());
        if (to.ip(), to.port()) != (target.ip(), target.port()) || peer.asks != Some(asks) {
            return None;
        }
        if asks == Asks::Address {
            peer.finding.status = Status::Refused;
        }
        self.finish(index);
        Some(())
    }

    fn not_sent(&mut self, query: &[u8]) -> Option<()> {
        let msg_id = Query::parse(query).ok()?.msg_id();
        let sent = self.sent.remove(&msg_id)?;
        let peer = self.peers.get_mut(sent.peer)?;
        peer.finding.queries -= 1;
        Some(())
    }

    /// The next question of a peer that has answered, or its end.
    fn go_on(&mut self, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.tries = 0;
        match (peer.asks, peer.last_sent) {
            (Some(Asks::Nobody), _) => self.due.set(index, Some(self.now)),
            (Some(Asks::Address), Some(at)) => self.due.set(index, Some(at + PAUSE)),
            (None, _) | (Some(_), None) => self.finish(index),
        }
    }

    fn give_up(&mut self, index: usize) {
        if let Some(peer) = self.peers.get_mut(index)
            && peer.asks == Some(Asks::Address)
            && peer.finding.queries == 0
        {
            peer.finding.status = Status::Unreachable;
        }
        self.finish(index);
    }

    fn finish(&mut self, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.asks = None;
        if peer.finding.status == Status::Found {
            peer.finding.speaks.get_or_insert(Speaks::Ipv4Only);
        }
        for msg_id in peer.msg_ids.drain(..) {
            self.sent.remove(&msg_id);
        }
        self.due.set(index, None);
        self.hops.leave(peer.route, flight(index));
        self.finished += 1;
    }

    fn unused_msg_id(&mut self) -> MsgId {
        // At most a small part of the 2^32 values is in use, so the loop ends soon.
        loop {
            let msg_id = MsgId(self.rng.next_u32());
            if !self.sent.contains_key(&msg_id) {
                return msg_id;
            }
        }
    }
}

impl Peer {
    fn new((question, route): (Question, Route)) -> Self {
        let finding = Finding {
            status: Status::TimedOut,
            gid: None,
            also: None,
            speaks: None,
            queries: 0,
            round_trips: Vec::new(),
        };
        Self {
            question,
            route,
            finding,
            asks: Some(Asks::Address),
            tries: 0,
            answers: 0,
            is_queued: false,
            last_sent: None,
            msg_ids: Vec::new(),
        }
    }

    /// What it is asked next, if it is asked for `rounds` replies.
    fn next(&self, rounds: u32) -> Option<Asks> {
        match &self.finding {
            Finding { status: Status::NotFound, .. } => None,
            _ if self.answers < rounds => Some(Asks::Address),
            Finding { speaks: None, .. } => Some(Asks::Nobody),
            Finding { .. } => None,
        }
    }

    fn note(&mut self, gid: Gid) {
        let finding = &mut self.finding;
        finding.status = Status::Found;
        finding.also = finding.gid.filter(|before| *before != gid).or(finding.also);
        finding.gid = Some(gid);
        if self.question.target().is_ipv6() {
            finding.speaks = Some(Speaks::Ibarr);
        }
    }
}

fn flight(index: usize) -> FlightId {
    FlightId(index as u64)
}
