// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Shares of users: limits each user's requests, and lets users take turns. The kernel's requests
//! do not pass here.
//!
//! A request is *admitted* if neither the user nor all users together have too many in progress
//! ([`Room`]), and the user has not exceeded its rate. Otherwise it waits, and users take turns as room becomes
//! available. A request that is not admitted by its deadline is refused, but not sooner than
//! [`PAUSE`] after its arrival: a caller that asks again at once gains nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use ibarr_common::Instant;

use crate::counters::Counters;
use crate::places::Room;
pub use crate::places::User;
use crate::timer::Timers;

ibarr_common::words! {
    /// What users ask for; each kind of request has limits of its own.
    #[expect(missing_docs, reason = "its values are named for what they are")]
    Kind {
        Addresses = "addresses",
        Paths = "paths",
        /// Paths to GIDs, for clients of ACM.
        AcmPaths = "acm-paths",
    }
}

/// The limits of users' requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Limits {
    pub under_way: Room,
    pub waiting: Room,
    /// Requests of a user that are admitted each second.
    pub rate: u32,
    /// Additional requests after a pause.
    pub burst: u32,
}

/// A request for which there is no room is refused no sooner than this after its arrival.
pub const PAUSE: Duration = Duration::from_secs(1);

/// Requests of users, each a `T`.
#[derive(Debug)]
pub struct Shares<T> {
    limits: Limits,
    users: BTreeMap<User, Account>,
    /// Users with a waiting request and a share that is not used up, by how many places must stay free for others.
    /// The first one's turn is next.
    turns: BTreeMap<usize, BTreeSet<(Instant, User)>>,
    waiting: BTreeMap<Ticket, (User, T)>,
    refusals: Timers<Ticket>,
    next_ticket: u64,
    under_way: usize,
    /// With more users than this, those without requests are forgotten.
    many: usize,
    counters: Counters<Counter>,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Ticket(u64);

#[derive(Debug, Default)]
struct Account {
    under_way: usize,
    waiting: BTreeSet<Ticket>,
    /// When the admitted requests would have been admitted at the configured rate, or when the user has begun to wait.
    paid_until: Instant,
}

impl<T> Shares<T> {
    /// Starts without requests.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            users: BTreeMap::new(),
            turns: BTreeMap::new(),
            waiting: BTreeMap::new(),
            refusals: Timers::default(),
            next_ticket: 0,
            under_way: 0,
            many: MANY_USERS,
            counters: Counters::default(),
        }
    }

    /// A user asks, and waits until `deadline`. The caller has to call [`Self::poll_admitted`]
    /// next.
    ///
    /// # Errors
    /// Returns the request if too many wait.
    pub fn offer(
        &mut self,
        now: Instant,
        user: User,
        request: T,
        deadline: Instant,
    ) -> Result<(), T> {
        self.counters.count(Counter::Requests);
        self.forget_idle(now);
        let own = self.users.get(&user).map_or(0, |account| account.waiting.len());
        if !self.limits.waiting.admits(user, own, self.waiting.len()) {
            self.counters.count(Counter::Refused);
            return Err(request);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.change(user, |account| {
            if account.waiting.is_empty() {
                account.paid_until = account.paid_until.max(now);
            }
            account.waiting.insert(ticket)
        });
        self.waiting.insert(ticket, (user, request));
        self.refusals.set(ticket, Some(deadline.max(now + PAUSE)));
        Ok(())
    }

    /// The next request that is admitted. The caller has to call [`Self::ended`] when it has its
    /// answer.
    pub fn poll_admitted(&mut self, now: Instant) -> Option<(User, T)> {
        let (_, user) = self.next().filter(|(at, _)| *at <= now)?;
        let interval = self.limits.interval();
        let ticket = self.change(user, |account| {
            account.paid_until = account.paid_until.max(now) + interval;
            account.under_way += 1;
            account.waiting.pop_first()
        })?;
        self.under_way += 1;
        self.refusals.set(ticket, None);
        self.counters.count(Counter::Admitted);
        self.waiting.remove(&ticket)
    }

    /// The next request whose time has expired. It is refused.
    pub fn poll_refused(&mut self, now: Instant) -> Option<T> {
        let ticket = self.refusals.pop(now)?;
        let (user, request) = self.waiting.remove(&ticket)?;
        self.change(user, |account| account.waiting.remove(&ticket));
        self.counters.count(Counter::Refused);
        Some(request)
    }

    /// An admitted request of `user` has its answer.
    pub fn ended(&mut self, user: User) {
        if self.users.contains_key(&user) {
            self.under_way = self.under_way.saturating_sub(1);
            self.change(user, |account| account.under_way = account.under_way.saturating_sub(1));
        }
    }

    /// When to poll again, if no request ends before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = self.next().map(|(at, _)| at);
        [next, self.refusals.next()].into_iter().flatten().min()
    }

    /// The counters.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// Number of requests in progress, and of those that wait.
    pub fn load(&self) -> (usize, usize) {
        (self.under_way, self.waiting.len())
    }

    /// Of the users that have room, the one that was admitted least lately, and when its next request may go.
    fn next(&self) -> Option<(Instant, User)> {
        if self.waiting.is_empty() {
            return None;
        }
        let free = self.limits.under_way.all.saturating_sub(self.under_way);
        let first = |(_, users): (_, &BTreeSet<_>)| users.first().copied();
        let (paid_until, user) = self.turns.range(..free).filter_map(first).min()?;
        let ahead = self.limits.interval() * self.limits.burst;
        let ahead = u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX);
        Some((Instant::from_nanos(paid_until.as_nanos().saturating_sub(ahead)), user))
    }

    fn change<R>(&mut self, user: User, change: impl FnOnce(&mut Account) -> R) -> R {
        let room = self.limits.under_way;
        let turn = |account: &Account| {
            let reserve = room.reserve(user, account.under_way)?;
            (!account.waiting.is_empty()).then_some((reserve, (account.paid_until, user)))
        };
        let account = self.users.entry(user).or_default();
        if let Some((reserve, turn)) = turn(account) {
            self.turns.entry(reserve).or_default().remove(&turn);
        }
        let changed = change(account);
        if let Some((reserve, turn)) = turn(account) {
            self.turns.entry(reserve).or_default().insert(turn);
        }
        changed
    }

    /// Forgets users without requests, as soon as their rate no longer limits them.
    fn forget_idle(&mut self, now: Instant) {
        if self.users.len() >= self.many {
            self.users.retain(|_, account| !account.is_idle(now));
            self.many = MANY_USERS.max(2 * self.users.len());
        }
    }
}

impl Account {
    fn is_idle(&self, now: Instant) -> bool {
        self.under_way == 0 && self.waiting.is_empty() && self.paid_until <= now
    }
}

impl Limits {
    /// Mean time between two requests of a user at its rate.
    fn interval(&self) -> Duration {
        Duration::from_secs(1) / self.rate.max(1)
    }
}

/// See [`Shares::many`], which grows with the users that cannot be forgotten yet.
const MANY_USERS: usize = 64;

crate::counters! {
    /// Counters of all users' requests.
    pub enum Counter {
        /// Requests made.
        Requests = normal("requests"),
        /// Requests admitted, at once or after a wait.
        Admitted = normal("admitted"),
        /// Requests refused because their user, or all users, had too many in progress.
        Refused = error("refused"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: Room = Room { all: 8, of_user: 0 };
    const LIMITS: Limits = Limits {
        under_way: Room { all: 8, of_user: 2 },
        waiting: Room { all: 24, of_user: 8 },
        rate: 1000,
        burst: 100,
    };
    const START: Instant = Instant::from_nanos(1_000_000_000_000);

    fn later() -> Instant {
        START + Duration::from_secs(3)
    }

    fn admitted(shares: &mut Shares<u32>, now: Instant) -> Vec<(u64, u32)> {
        let next = || shares.poll_admitted(now).map(|(user, request)| (user.0, request));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn users_take_turns_however_much_one_of_them_asks() {
        let mut shares = Shares::new(LIMITS);
        for (user, requests) in [(1, 0..8), (2, 10..12), (3, 20..21)] {
            for request in requests {
                shares.offer(START, User(user), request, later()).unwrap();
            }
        }
        assert_eq!(admitted(&mut shares, START), [(1, 0), (2, 10), (3, 20), (1, 1), (2, 11)]);
        assert_eq!(shares.load(), (5, 6));
        shares.ended(User(3));
        assert_eq!(admitted(&mut shares, START), [], "user 1 has its share");
        shares.ended(User(1));
        assert_eq!(admitted(&mut shares, START), [(1, 2)]);
    }

    #[test]
    fn refusal_comes_at_the_deadline_but_not_before_the_pause() {
        let mut shares = Shares::new(Limits { under_way: NONE, ..LIMITS });
        shares.offer(START, User(1), 1, START).unwrap();
        shares.offer(START, User(1), 2, later()).unwrap();
        assert_eq!(shares.poll_timeout(), Some(START + PAUSE));
        assert_eq!(shares.poll_refused(START), None);
        assert_eq!(shares.poll_refused(START + PAUSE), Some(1));
        assert_eq!(shares.poll_refused(START + PAUSE), None);
        assert_eq!(shares.poll_refused(later()), Some(2));
        assert_eq!((shares.load(), shares.poll_timeout()), ((0, 0), None));
    }

    #[test]
    fn user_is_admitted_at_its_rate_after_a_burst() {
        let under_way = Room { all: 20, of_user: 10 };
        let limits = Limits { under_way, rate: 10, burst: 3, ..LIMITS };
        let mut shares = Shares::new(limits);
        for request in 0..8 {
            shares.offer(START, User(1), request, later()).unwrap();
        }
        assert_eq!(admitted(&mut shares, START).len(), 4);
        let tenth = Duration::from_millis(100);
        assert_eq!(shares.poll_timeout(), Some(START + tenth));
        for _ in 0..4 {
            shares.ended(User(1));
        }
        assert_eq!(admitted(&mut shares, START + tenth), [(1, 4)]);
        assert_eq!(admitted(&mut shares, START + tenth * 3), [(1, 5), (1, 6)]);
    }

    #[test]
    fn waiting_requests_are_bounded_per_user_and_in_total() {
        let mut shares = Shares::new(Limits { under_way: NONE, ..LIMITS });
        let mut taken = Vec::new();
        for user in [1, 2, 3, 0] {
            let offers = (0..10).map(|n| shares.offer(START, User(user), n, later()));
            taken.push(offers.flatten().count());
        }
        assert_eq!(taken, [8, 7, 1, 8], "the last eighth is root's");
        assert_eq!(shares.counters().get(Counter::Refused), 16);
    }

    #[test]
    fn slow_requests_of_many_users_leave_room_for_a_newcomer_and_root() {
        let mut shares = Shares::new(LIMITS);
        let users = [(1, 2), (2, 2), (3, 2), (4, 1), (5, 1), (6, 1), (0, 2)];
        for (user, requests) in users {
            for request in 0..requests {
                shares.offer(START, User(user), request, later()).unwrap();
            }
        }
        let admitted = |shares: &mut Shares<u32>| {
            admitted(shares, START).into_iter().map(|(user, _)| user).collect::<Vec<_>>()
        };
        assert_eq!(admitted(&mut shares), [0, 1, 2, 3, 4, 5, 6, 0]);
        shares.ended(User(4));
        shares.ended(User::ROOT);
        assert_eq!(admitted(&mut shares), [], "users that have one already wait");
        shares.offer(START, User(7), 0, later()).unwrap();
        assert_eq!(admitted(&mut shares), [7]);
    }

    #[test]
    fn idle_users_are_forgotten() {
        let mut shares = Shares::new(LIMITS);
        let mut now = START;
        for user in 0..1000 {
            now += Duration::from_secs(1);
            shares.offer(now, User(user), 7, now).unwrap();
            assert_eq!(admitted(&mut shares, now), [(user, 7)]);
            shares.ended(User(user));
        }
        assert!(shares.users.len() <= MANY_USERS);
    }

    proptest! {
        #[test]
        fn every_request_is_admitted_or_refused_once(
            steps in prop::collection::vec((0..4u8, 0..3u64, 0..2000u64), 0..200),
        ) {
            let mut shares = Shares::new(LIMITS);
            let (mut now, mut offered, mut done) = (START, 0_usize, BTreeSet::new());
            let mut under_way = Vec::new();
            for (step, user, ms) in steps {
                match step {
                    0 | 1 => {
                        let deadline = now + Duration::from_millis(ms);
                        if shares.offer(now, User(user), offered, deadline).is_err() {
                            done.insert(offered);
                        }
                        offered += 1;
                    }
                    2 => now += Duration::from_millis(ms),
                    _ => {
                        if let Some(user) = under_way.pop() {
                            shares.ended(user);
                        }
                    }
                }
                while let Some(request) = shares.poll_refused(now) {
                    prop_assert!(done.insert(request));
                }
                while let Some((user, request)) = shares.poll_admitted(now) {
                    under_way.push(user);
                    prop_assert!(done.insert(request));
                }
                let of = |user| under_way.iter().filter(|other| **other == User(user)).count();
                prop_assert!((0..3).all(|user| of(user) <= LIMITS.under_way.of_user));
                prop_assert!(under_way.len() <= LIMITS.under_way.all);
                prop_assert_eq!(shares.load(), (under_way.len(), offered - done.len()));
                prop_assert!(shares.poll_timeout().is_none_or(|at| at > now));
                let turns: usize = shares.turns.values().map(BTreeSet::len).sum();
                let has_turn = |account: &&Account| {
                    !account.waiting.is_empty() && account.under_way < LIMITS.under_way.of_user
                };
                prop_assert_eq!(turns, shares.users.values().filter(has_turn).count());
            }
            while let Some(user) = under_way.pop() {
                shares.ended(user);
            }
            now += Duration::from_secs(10);
            while let Some(request) = shares.poll_refused(now) {
                prop_assert!(done.insert(request));
            }
            prop_assert_eq!(done.len(), offered);
        }
    }
}
