// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Places that users share: the rule for every table that the users of this node can fill.
//!
//! The last eighth is root's, and of the others each user may have its share. Where a place can be taken from a user,
//! one that finds no room takes it from the user that has most, if it has none itself, or fewer by two: the place
//! without a sign of life for longest. So no number of users, or of user ids of one person, locks out root or a
//! newcomer. Where none can be taken, the quarter before root's eighth is for users that have none yet.

use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Reverse;

/// A user of this node: its user id. What serves other machines may count each as a user by a greater number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct User(pub u64);

impl User {
    /// Root, and the daemon's own user.
    pub const ROOT: Self = Self(0);
    /// All whose user the kernel does not say: no process has this one.
    pub const UNKNOWN: Self = Self(u32::MAX as u64);
}

/// How many places there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// For all users.
    pub all: usize,
    /// For each user. Root may have more of [`Places`].
    pub of_user: usize,
}

/// Why a user gets no place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Full {
    /// The user has its share.
    User,
    /// All places are taken, and no user has more.
    All,
}

/// The places that are taken, each named by a `K`, and their users.
#[derive(Debug)]
pub struct Places<K> {
    room: Room,
    held: BTreeMap<K, Slot>,
    /// The oldest first, by [`Slot::listed`].
    by_user: BTreeMap<User, BTreeSet<(u64, K)>>,
    /// The last one gives way: its user has most, and among such users its place is the oldest.
    ranks: BTreeSet<(usize, Reverse<u64>, User)>,
    next: u64,
}

#[derive(Debug)]
struct Slot {
    user: User,
    /// The number of its last sign of life.
    age: u64,
    /// The one by which it is in order. A sign of life does not change the order, so that it costs little: who
    /// looks for the oldest place lists those again that come first and are younger.
    listed: u64,
}

impl Room {
    /// Whether a user that has `own` of the places that are `taken`, and none can be taken from it, may have a free one.
    pub fn admits(self, user: User, own: usize, taken: usize) -> bool {
        self.reserve(user, own).is_some_and(|reserve| self.all.saturating_sub(taken) > reserve)
    }

    /// How many places must stay free for others if a user that has `own` gets one more; `None` if it has its share.
    pub fn reserve(self, user: User, own: usize) -> Option<usize> {
        let reserve = match (user, own) {
            (User::ROOT, _) => 0,
            (_, 0) => self.of_root(),
            _ => 3 * self.of_root(),
        };
        (own < self.of_user).then_some(reserve)
    }

    fn of_root(self) -> usize {
        self.all.div_ceil(8)
    }
}

impl<K: Copy + Ord> Places<K> {
    /// Without any that is taken.
    pub fn new(room: Room) -> Self {
        let (held, by_user) = (BTreeMap::new(), BTreeMap::new());
        Self { room, held, by_user, ranks: BTreeSet::new(), next: 0 }
    }

    /// Changes how many there are. Those that are taken stay.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// A user takes a place. Returns the one that gives way to it.
    ///
    /// # Errors
    /// If there is no room.
    pub fn take(&mut self, user: User, key: K) -> Result<Option<K>, Full> {
        let own = self.by_user.get(&user).filter(|_| user != User::ROOT).map_or(0, BTreeSet::len);
        let has_share = own >= self.room.of_user;
        let gone = if has_share && user == User::UNKNOWN {
            self.oldest_of(user)
        } else if has_share {
            return Err(Full::User);
        } else if self.room.admits(user, 0, self.held.len()) {
            None
        } else {
            let most = self.ranks.last().filter(|(most, ..)| own == 0 || *most > own + 1).copied();
            Some(most.and_then(|_| self.oldest_of_most()).ok_or(Full::All)?)
        };
        if let Some(gone) = gone {
            self.leave(gone);
        }
        let age = self.next;
        self.next += 1;
        self.held.insert(key, Slot { user, age, listed: age });
        self.change(user, |places| places.insert((age, key)));
        Ok(gone)
    }

    /// A sign of life.
    pub fn touch(&mut self, key: K) {
        if let Some(place) = self.held.get_mut(&key) {
            place.age = self.next;
            self.next += 1;
        }
    }

    /// A place is free again.
    pub fn leave(&mut self, key: K) {
        if let Some(Slot { user, listed, .. }) = self.held.remove(&key) {
            self.change(user, |places| places.remove(&(listed, key)));
        }
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.held.len()
    }

    fn oldest_of_most(&mut self) -> Option<K> {
        loop {
            let (.., user) = *self.ranks.last()?;
            let oldest = self.oldest_of(user);
            if self.ranks.last().is_some_and(|(.., last)| *last == user) {
                return oldest;
            }
        }
    }

    fn oldest_of(&mut self, user: User) -> Option<K> {
        loop {
            let (old, key) = *self.by_user.get(&user)?.first()?;
            let place = self.held.get_mut(&key)?;
            if place.age == old {
                return Some(key);
            }
            let age = place.age;
            place.listed = age;
            self.change(user, |places| places.remove(&(old, key)) && places.insert((age, key)));
        }
    }

    fn change(&mut self, user: User, change: impl FnOnce(&mut BTreeSet<(u64, K)>) -> bool) {
        let reserve = if user == User::ROOT { self.room.of_root() } else { 0 };
        let rank = |places: &BTreeSet<(u64, K)>| {
            let (age, _) = places.first()?;
            Some((places.len().checked_sub(reserve + 1)? + 1, Reverse(*age), user))
        };
        let mut places = self.by_user.remove(&user).unwrap_or_default();
        if let Some(rank) = rank(&places) {
            self.ranks.remove(&rank);
        }
        change(&mut places);
        self.ranks.extend(rank(&places));
        if !places.is_empty() {
            self.by_user.insert(user, places);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Root has 4 of them for itself.
    const ROOM: Room = Room { all: 32, of_user: 10 };

    struct Rig {
        places: Places<u32>,
        next: u32,
    }

    impl Rig {
        fn new() -> Self {
            Self { places: Places::new(ROOM), next: 0 }
        }

        fn take(&mut self, user: User) -> Result<Option<u32>, Full> {
            self.next += 1;
            self.places.take(user, self.next - 1)
        }

        fn of(&self, user: User) -> usize {
            self.places.by_user.get(&user).map_or(0, BTreeSet::len)
        }
    }

    #[test]
    fn user_has_its_share_and_no_more() {
        let mut rig = Rig::new();
        assert!((0..ROOM.of_user).all(|_| rig.take(User(1)) == Ok(None)));
        assert_eq!(rig.take(User(1)), Err(Full::User));
        assert_eq!(rig.take(User(2)), Ok(None));
        rig.places.leave(0);
        assert_eq!(rig.take(User(1)), Ok(None));
    }

    #[test]
    fn users_with_all_places_lock_out_neither_root_nor_a_newcomer() {
        let mut rig = Rig::new();
        for user in (1..=4).cycle().take(400) {
            let _ = rig.take(User(user));
        }
        assert_eq!([1, 2, 3, 4].map(|user| rig.of(User(user))), [7; 4]);
        assert_eq!(rig.take(User(1)), Err(Full::All));
        // From those with most, the oldest first.
        assert_eq!([20, 21, 22].map(|user| rig.take(User(user))), [0, 1, 2].map(Some).map(Ok));
        // One that has a place takes further ones from those that have two more.
        assert_eq!([(); 4].map(|()| rig.take(User(20))), [3, 4, 5, 6].map(Some).map(Ok));
        assert_eq!(rig.take(User(20)), Err(Full::All));
        assert!((0..4).all(|_| rig.take(User::ROOT) == Ok(None)));
        assert_eq!(rig.places.taken(), ROOM.all);
        assert!(rig.take(User::ROOT).unwrap().is_some());
    }

    #[test]
    fn person_with_more_user_ids_than_places_locks_out_nobody() {
        let mut rig = Rig::new();
        for user in 100_000..165_536 {
            rig.take(User(user)).unwrap();
        }
        assert_eq!(rig.places.taken(), 28);
        assert!((0..4).all(|_| rig.take(User::ROOT) == Ok(None)));
        rig.take(User(7)).unwrap();
        let (newcomer, others) = (rig.next - 1, 100_000..100_020);
        // It asks, and has all the time that as many connections take as there are places.
        others.for_each(|user| assert_ne!(rig.take(User(user)), Ok(Some(newcomer))));
        rig.places.touch(newcomer);
        (200_000..200_020).for_each(|user| assert_ne!(rig.take(User(user)), Ok(Some(newcomer))));
        assert_eq!(rig.of(User::ROOT), 4, "root's reserve gives way to nobody");
    }

    #[test]
    fn users_that_the_kernel_does_not_name_give_way_to_each_other() {
        let mut rig = Rig::new();
        assert!((0..10).all(|_| rig.take(User::UNKNOWN) == Ok(None)));
        rig.places.touch(0);
        assert_eq!([(); 2].map(|()| rig.take(User::UNKNOWN)), [Ok(Some(1)), Ok(Some(2))]);
    }

    /// Of the users with most places, the place without a sign of life for longest.
    fn first_to_give_way(held: &BTreeMap<u32, (User, usize)>) -> Option<u32> {
        let of = |user| held.values().filter(|(other, _)| *other == user).count();
        let rank =
            |user| of(user).saturating_sub(if user == User::ROOT { ROOM.of_root() } else { 0 });
        let first = held.iter().min_by_key(|(_, (user, age))| (Reverse(rank(*user)), *age));
        first.map(|(key, _)| *key)
    }

    proptest! {
        #[test]
        fn places_are_bounded_and_each_newcomer_gets_one(
            steps in prop::collection::vec((0..4u8, 0..40u32), 0..400),
        ) {
            let mut rig = Rig::new();
            let mut held = BTreeMap::new();
            for (now, (step, n)) in steps.into_iter().enumerate() {
                let (own, user) = (rig.of(User(n.into())), User(n.into()));
                match step {
                    0 => {
                        rig.places.leave(n);
                        held.remove(&n);
                    }
                    1 => {
                        rig.places.touch(n);
                        held.entry(n).and_modify(|(_, age)| *age = now);
                    }
                    _ => {
                        let taken = rig.take(user);
                        prop_assert!(own > 0 || taken.is_ok());
                        prop_assert!(taken != Err(Full::User) || own == ROOM.of_user);
                        if let Ok(gone) = taken {
                            prop_assert_eq!(gone, gone.and(first_to_give_way(&held)));
                            gone.map(|gone| held.remove(&gone));
                            held.insert(rig.next - 1, (user, now));
                        }
                    }
                }
                let by_user: usize = rig.places.by_user.values().map(BTreeSet::len).sum();
                prop_assert_eq!(by_user, rig.places.taken());
                prop_assert!(rig.places.taken() <= ROOM.all);
                let others = rig.places.taken() - rig.of(User::ROOT);
                prop_assert!(others <= ROOM.all - ROOM.of_root());
                prop_assert!(rig.places.ranks.len() <= rig.places.by_user.len());
            }
        }
    }
}
