// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets that queries leave from. A reply must arrive at the socket that its query left from,
//! so an attacker that does not see the query has to guess its random port too.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use ibarr_common::{IfIndex, Instant};
use rand_core::Rng;

use super::super::Family;
use super::flights::{Flight, FlightId};
use super::types::Domain;
use super::{Settings, SocketEvent};
use crate::retry;

/// Identifies a UDP socket bound to an unspecified address of its family, a random port and perhaps
/// a VRF. Never reused for another socket.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SocketId {
    domain: Domain,
    slot: u8,
    generation: u32,
}

impl SocketId {
    /// The family of the socket.
    pub fn family(self) -> Family {
        self.domain.family
    }

    /// The VRF that the socket is bound to.
    pub fn vrf(self) -> Option<IfIndex> {
        self.domain.vrf
    }

    pub(super) fn domain(self) -> Domain {
        self.domain
    }

    #[cfg(test)]
    pub(super) fn closed_for_tests() -> Self {
        let domain = Domain { family: Family::V4, vrf: None };
        Self { domain, slot: 0, generation: 0 }
    }
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain: Domain { family, vrf }, slot, generation } = self;
        write!(f, "{family} socket {slot}.{generation}")?;
        vrf.map_or(Ok(()), |vrf| write!(f, " of VRF {vrf}"))
    }
}

/// The sockets of each domain, and the flights that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Outlets {
    by_domain: BTreeMap<Domain, Outlet>,
    /// The highest generation of any socket of a domain that was removed.
    generation: u32,
    /// Number of positions given so far.
    next_position: u64,
}

#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) pool: Pool,
    /// In the order in which they became ready.
    pub(super) ready: BTreeMap<u64, FlightId>,
}

impl Outlets {
    pub(super) fn of(&mut self, domain: Domain) -> Option<&mut Outlet> {
        self.by_domain.get_mut(&domain)
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.by_domain.values().map(|outlet| &outlet.pool)
    }

    pub(super) fn pools_mut(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.by_domain.values_mut().map(|outlet| &mut outlet.pool)
    }

    #[cfg(test)]
    pub(super) fn ready(&self) -> usize {
        self.by_domain.values().map(|outlet| outlet.ready.len()).sum()
    }

    /// Queues the flight at the outlet of its way, and returns that; `None` if there are too many domains.
    pub(super) fn enqueue(
        &mut self,
        settings: &Settings,
        id: FlightId,
        flight: &mut Flight,
    ) -> Option<&mut Outlet> {
        let domain = flight.domain();
        if !self.by_domain.contains_key(&domain) && self.by_domain.len() >= MAX_DOMAINS {
            let idle = self.by_domain.iter().find(|(_, outlet)| outlet.is_idle());
            let idle = *idle?.0;
            let gone = self.by_domain.remove(&idle)?;
            let latest = gone.pool.slots.iter().map(|slot| slot.generation).max();
            self.generation = self.generation.max(latest.unwrap_or_default());
        }
        let outlet = self.by_domain.entry(domain).or_insert_with(|| Outlet {
            pool: Pool::new(domain, self.generation, settings),
            ready: BTreeMap::new(),
        });
        if flight.ready.is_none() {
            flight.ready = Some(self.next_position);
            outlet.ready.insert(self.next_position, id);
            self.next_position += 1;
        }
        Some(outlet)
    }

    pub(super) fn dequeue(&mut self, flight: &mut Flight) {
        if let Some(place) = flight.ready.take()
            && let Some(outlet) = self.by_domain.get_mut(&flight.domain())
        {
            outlet.ready.remove(&place);
        }
    }

    /// The first ready flight of a domain that has a socket.
    pub(super) fn first_ready(&mut self) -> Option<&mut Outlet> {
        self.by_domain
            .values_mut()
            .filter(|outlet| outlet.pool.is_ready() && !outlet.ready.is_empty())
            .min_by_key(|outlet| outlet.ready.first_key_value().map(|(&place, _)| place))
    }
}

impl Outlet {
    fn is_idle(&self) -> bool {
        let is_closed = |slot: &Slot| slot.state == State::Closed && slot.retired.is_none();
        self.ready.is_empty() && self.pool.slots.iter().all(is_closed)
    }
}

/// The most domains that have sockets: each has up to twice as many as are configured. One whose
/// sockets are all closed makes room for another.
const MAX_DOMAINS: usize = 16;

/// How long a socket sends queries.
const LIFETIME: Duration = Duration::from_mins(1);

/// How long after that it still receives replies: as long as a round, so that no query loses its socket.
const GRACE: Duration = Duration::from_secs(3);

/// The sockets of one domain: none until a query needs one, then as many as configured, as long as
/// there are queries.
///
/// A slot holds at most one socket that sends and one in its grace period, which only receives.
#[derive(Debug)]
pub(super) struct Pool {
    domain: Domain,
    /// That of sockets before the first.
    generation: u32,
    slots: Vec<Slot>,
    /// Number of slots in use; slots beyond it only wait for their grace period to end.
    size: usize,
    /// The sockets that can send.
    open: Vec<SocketId>,
    wanted_at: Option<Instant>,
    next_timeout: Option<Instant>,
}

impl Pool {
    pub(super) fn new(domain: Domain, generation: u32, settings: &Settings) -> Self {
        let mut pool = Self {
            domain,
            generation,
            slots: Vec::new(),
            size: 0,
            open: Vec::new(),
            wanted_at: None,
            next_timeout: None,
        };
        pool.reconfigure(Instant::BOOT, settings);
        pool
    }

    /// Sockets beyond the new number enter their grace period.
    pub(super) fn reconfigure(&mut self, now: Instant, settings: &Settings) {
        self.size = settings.sockets.into();
        for slot in self.slots.iter_mut().skip(self.size) {
            if let State::Open { until, .. } = &mut slot.state {
                *until = now;
            }
        }
        while self.slots.len() < self.size {
            self.slots.push(Slot { generation: self.generation, ..Slot::default() });
        }
        self.schedule();
    }

    /// A query is about to leave: requests a socket for every slot.
    pub(super) fn want(&mut self, now: Instant, events: &mut VecDeque<SocketEvent>) {
        self.wanted_at = Some(now);
        if self.open.len() == self.size {
            return;
        }
        for (index, slot) in (0..).zip(self.slots.iter_mut().take(self.size)) {
            if matches!(slot.state, State::Closed) {
                slot.request(self.domain, index, events);
            }
        }
    }

    /// A random open socket, preferably one that is not `used`.
    pub(super) fn pick(
        &self,
        rng: &mut impl Rng,
        used: impl Fn(SocketId) -> bool,
    ) -> Option<SocketId> {
        let mut candidates: Vec<SocketId> =
            self.open.iter().copied().filter(|&socket| !used(socket)).collect();
        if candidates.is_empty() {
            candidates.clone_from(&self.open);
        }
        let count = u64::try_from(candidates.len()).unwrap_or(u64::MAX);
        let index = usize::try_from(retry::below(count, rng)).ok()?;
        candidates.get(index).copied()
    }

    /// Whether a socket can send.
    pub(super) fn is_ready(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether replies at `socket` count: it is open or in its grace period.
    pub(super) fn receives(&self, socket: SocketId) -> bool {
        self.slots.get(usize::from(socket.slot)).is_some_and(|slot| {
            let current = matches!(slot.state, State::Open { socket: open, .. } if open == socket);
            current || slot.retired.is_some_and(|retired| retired.socket == socket)
        })
    }

    /// The driver has opened `socket`.
    pub(super) fn opened(
        &mut self,
        now: Instant,
        socket: SocketId,
        rng: &mut impl Rng,
        events: &mut VecDeque<SocketEvent>,
    ) {
        let is_known = self.receives(socket);
        let index = usize::from(socket.slot);
        let asked = self.slots.get_mut(index).filter(|slot| slot.state == State::Opening(socket));
        match asked {
            Some(slot) if index < self.size => {
                // Sockets opened together are not replaced together.
                let longer = retry::random(LIFETIME / 10, rng);
                slot.state = State::Open { socket, until: now + LIFETIME + longer };
                self.open.push(socket);
            }
            // The pool has become smaller meanwhile.
            Some(slot) => {
                slot.state = State::Closed;
                events.push_back(SocketEvent::Close(socket));
            }
            None if is_known => {}
            None => events.push_back(SocketEvent::Close(socket)),
        }
        self.schedule();
    }

    /// The driver could not open `socket`, or has lost it. The pool tries another after [`REOPEN`].
    pub(super) fn failed(&mut self, now: Instant, socket: SocketId) {
        let Some(slot) = self.slots.get_mut(usize::from(socket.slot)) else { return };
        match slot.state {
            State::Opening(current) | State::Open { socket: current, .. } if current == socket => {
                slot.state = State::Failed { until: now + REOPEN };
                self.open.retain(|&open| open != socket);
            }
            _ => slot.retired = slot.retired.filter(|retired| retired.socket != socket),
        }
        self.schedule();
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.next_timeout
    }

    /// Replaces sockets at the end of their life, and closes those at the end of their grace
    /// period. A domain that has sent nothing for a lifetime loses its sockets one by one.
    pub(super) fn handle_timeout(&mut self, now: Instant, events: &mut VecDeque<SocketEvent>) {
        if self.next_timeout.is_none_or(|at| at > now) {
            return;
        }
        let wanted = self.wanted_at.is_some_and(|at| now.since(at) < LIFETIME);
        for (index, slot) in (0..).zip(&mut self.slots) {
            if let Some(retired) = slot.retired.filter(|retired| retired.until <= now) {
                events.push_back(SocketEvent::Close(retired.socket));
                slot.retired = None;
            }
            match slot.state {
                State::Open { socket, until } if until <= now => {
                    self.open.retain(|&open| open != socket);
                    // The slot can hold another socket in grace only if the pool has just become
                    // smaller.
                    let retired = Retired { socket, until: now + GRACE };
                    if let Some(before) = slot.retired.replace(retired) {
                        events.push_back(SocketEvent::Close(before.socket));
                    }
                }
                State::Failed { until } if until <= now => {}
                _ => continue,
            }
            slot.state = State::Closed;
            if wanted && usize::from(index) < self.size {
                slot.request(self.domain, index, events);
            }
        }
        self.schedule();
    }

    fn schedule(&mut self) {
        let times = self.slots.iter().flat_map(|slot| {
            let state = match slot.state {
                State::Open { until, .. } | State::Failed { until } => Some(until),
                State::Closed | State::Opening(_) => None,
            };
            [state, slot.retired.map(|retired| retired.until)]
        });
        self.next_timeout = times.flatten().min();
    }
}

/// Time until a socket that could not be opened is tried again.
const REOPEN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    state: State,
    retired: Option<Retired>,
}

impl Slot {
    fn request(&mut self, domain: Domain, slot: u8, events: &mut VecDeque<SocketEvent>) {
        self.generation = self.generation.wrapping_add(1);
        let socket = SocketId { domain, slot, generation: self.generation };
        self.state = State::Opening(socket);
        events.push_back(SocketEvent::Open(socket));
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    #[default]
    Closed,
    Opening(SocketId),
    Open {
        socket: SocketId,
        until: Instant,
    },
    Failed {
        until: Instant,
    },
}

#[derive(Clone, Copy, Debug)]
struct Retired {
    socket: SocketId,
    until: Instant,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn settings(sockets: u8) -> Settings {
        Settings { sockets, ..Settings::default() }
    }

    /// A pool with a driver.
    struct Rig {
        pool: Pool,
        rng: ChaCha12Rng,
        now: Instant,
        events: VecDeque<SocketEvent>,
        /// The sockets that the driver holds open.
        open: BTreeSet<SocketId>,
        can_open: bool,
    }

    impl Rig {
        fn new(sockets: u8, seed: u64) -> Self {
            Self {
                pool: Pool::new(Domain { family: Family::V4, vrf: None }, 0, &settings(sockets)),
                rng: ChaCha12Rng::seed_from_u64(seed),
                now: Instant::BOOT + secs(1000),
                events: VecDeque::new(),
                open: BTreeSet::new(),
                can_open: true,
            }
        }

        fn want(&mut self) {
            self.pool.want(self.now, &mut self.events);
            self.drive();
        }

        fn drive(&mut self) {
            while let Some(event) = self.events.pop_front() {
                match event {
                    SocketEvent::Open(socket) if self.can_open => {
                        assert!(self.open.insert(socket), "{socket} twice");
                        self.pool.opened(self.now, socket, &mut self.rng, &mut self.events);
                    }
                    SocketEvent::Open(socket) => self.pool.failed(self.now, socket),
                    SocketEvent::Close(socket) => assert!(self.open.remove(&socket)),
                }
            }
        }

        /// Advances by `duration`, and stops at each timer.
        fn pass(&mut self, duration: Duration) {
            let end = self.now + duration;
            while let Some(at) = self.pool.next_timeout().filter(|&at| at <= end) {
                self.now = self.now.max(at);
                self.pool.handle_timeout(self.now, &mut self.events);
                self.drive();
            }
            self.now = end;
        }

        fn pick(&mut self) -> Option<SocketId> {
            self.pool.pick(&mut self.rng, |_| false)
        }
    }

    #[test]
    fn first_query_opens_all_sockets() {
        let mut rig = Rig::new(32, 1);
        rig.pass(secs(1000));
        assert_eq!((rig.open.len(), rig.pick()), (0, None));
        rig.want();
        assert_eq!(rig.open.len(), 32);
        let picked: BTreeSet<_> = (0..1000).map(|_| rig.pick().unwrap()).collect();
        assert_eq!(picked, rig.open, "each is chosen sooner or later");
    }

    #[test]
    fn sockets_are_replaced_then_closed_after_their_grace() {
        let mut rig = Rig::new(4, 1);
        rig.want();
        let first = rig.open.clone();
        rig.pass(secs(59));
        rig.want();
        assert_eq!(rig.open, first);
        rig.pass(secs(8));
        assert_eq!(rig.pool.open.len(), 4);
        assert!(first.iter().all(|socket| !rig.pool.open.contains(socket)), "all are replaced");
        rig.pass(secs(3));
        assert!(rig.open.is_disjoint(&first), "all are closed");
        assert!(first.iter().all(|&socket| !rig.pool.receives(socket)));
    }

    #[test]
    fn late_replies_count_only_during_the_grace() {
        let mut rig = Rig::new(1, 1);
        rig.want();
        let socket = rig.pick().unwrap();
        let retires_at = rig.pool.next_timeout().unwrap();
        rig.want();
        rig.pass(retires_at.since(rig.now));
        assert_ne!(rig.pick(), Some(socket));
        rig.pass(Duration::from_nanos(2_999_999_999));
        assert!(rig.pool.receives(socket));
        rig.pass(Duration::from_nanos(1));
        assert!(!rig.pool.receives(socket));
    }

    #[test]
    fn unused_sockets_are_closed_and_not_replaced() {
        let mut rig = Rig::new(8, 1);
        rig.want();
        rig.pass(secs(3600));
        assert!(rig.open.is_empty());
        assert_eq!(rig.pool.next_timeout(), None);
        rig.want();
        assert_eq!(rig.open.len(), 8);
    }

    #[test]
    fn failed_socket_is_tried_again_after_a_second() {
        let mut rig = Rig::new(2, 1);
        rig.can_open = false;
        rig.want();
        rig.want();
        assert_eq!(rig.pick(), None);
        assert_eq!(rig.pool.next_timeout(), Some(rig.now + secs(1)));
        rig.can_open = true;
        rig.pass(secs(1));
        assert_eq!(rig.open.len(), 2);
        let lost = rig.pick().unwrap();
        rig.pool.failed(rig.now, lost);
        rig.open.remove(&lost);
        assert!(!rig.pool.receives(lost));
        rig.pass(secs(1));
        assert_eq!(rig.pool.open.len(), 2);
    }

    #[test]
    fn pool_retires_or_opens_sockets_when_its_size_changes() {
        let mut rig = Rig::new(8, 1);
        rig.want();
        rig.pool.reconfigure(rig.now, &settings(2));
        rig.pass(Duration::ZERO);
        assert_eq!((rig.pool.open.len(), rig.open.len()), (2, 8));
        rig.pass(secs(3));
        assert_eq!(rig.open.len(), 2);
        rig.pool.reconfigure(rig.now, &settings(4));
        rig.want();
        assert_eq!(rig.open.len(), 4);
    }

    #[test]
    fn unrequested_socket_is_closed() {
        let mut rig = Rig::new(1, 1);
        let stray = SocketId::closed_for_tests();
        rig.pool.opened(rig.now, stray, &mut rig.rng, &mut rig.events);
        assert_eq!(rig.events.pop_front(), Some(SocketEvent::Close(stray)));
    }

    proptest! {
        #[test]
        fn driver_and_pool_agree_on_what_is_open(
            seed: u64,
            ops: Vec<(u8, u16)>,
        ) {
            let mut rig = Rig::new(4, seed);
            let mut last_picked: BTreeMap<SocketId, Instant> = BTreeMap::new();
            let mut first_picked: BTreeMap<SocketId, Instant> = BTreeMap::new();
            for (op, time) in ops {
                match op % 8 {
                    0..=2 => rig.want(),
                    3 | 4 => rig.pass(Duration::from_millis(time.into())),
                    5 => rig.can_open = time % 3 != 0,
                    6 => {
                        let size = u8::try_from(time % 6 + 1).unwrap();
                        rig.pool.reconfigure(rig.now, &settings(size));
                        rig.pass(Duration::ZERO);
                    }
                    _ => {
                        let Some(&socket) = rig.open.iter().nth(usize::from(time % 8)) else { continue };
                        rig.pool.failed(rig.now, socket);
                        rig.open.remove(&socket);
                    }
                }
                if let Some(socket) = rig.pick() {
                    prop_assert!(rig.open.contains(&socket));
                    let since = rig.now.since(*first_picked.entry(socket).or_insert(rig.now));
                    prop_assert!(since <= secs(66), "{} is still sent from after {:?}", socket, since);
                    last_picked.insert(socket, rig.now);
                }
                prop_assert_eq!(rig.pick().is_some(), rig.pool.is_ready());
                for &socket in &rig.open {
                    prop_assert!(rig.pool.receives(socket), "{} is open for nothing", socket);
                }
                for &socket in last_picked.keys() {
                    prop_assert_eq!(rig.pool.receives(socket), rig.open.contains(&socket));
                }
                prop_assert!(rig.open.len() <= 2 * 6, "one to send from and one in grace each");
            }
            rig.pass(secs(300));
            prop_assert!(rig.open.is_empty());
            prop_assert_eq!(rig.pool.next_timeout(), None);
        }
    }
}
