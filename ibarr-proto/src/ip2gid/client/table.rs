// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Answers by question, in compact form.

use core::net::IpAddr;
use core::time::Duration;

use hashbrown::HashMap;
use ibarr_common::ib::Gid;
use ibarr_common::{IfIndex, Instant};

use super::super::Question;
use super::{Outcome, Source};
use crate::hash::Seeded;

/// A remembered answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cached {
    /// The GID, or `None` for a negative answer.
    pub gid: Option<Gid>,
    /// When the peer said so; `None` if it said so to an earlier client.
    pub heard_at: Option<Instant>,
    /// The answer is forgotten at this time.
    pub expires_at: Instant,
}

impl From<Cached> for Outcome {
    fn from(cached: Cached) -> Self {
        cached.gid.map_or(Self::NotFound, |gid| Self::Found { gid, source: Source::Cache })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) entries: usize,
    /// How long a GID is remembered.
    pub(super) ttl: Duration,
    /// How long a negative answer is remembered.
    pub(super) negative_ttl: Duration,
}

/// Entries by question; each family has a table with keys of its own size.
#[derive(Debug)]
pub(super) struct Table {
    v4: HashMap<V4Key, Entry, Seeded>,
    v6: HashMap<V6Key, Entry, Seeded>,
}

impl Table {
    pub(super) fn new(hasher: &Seeded) -> Self {
        Self { v4: HashMap::with_hasher(hasher.clone()), v6: HashMap::with_hasher(hasher.clone()) }
    }

    pub(super) fn get(&self, question: Question) -> Option<&Entry> {
        match Key::of(question) {
            Key::V4(key) => self.v4.get(&key),
            Key::V6(key) => self.v6.get(&key),
        }
    }

    pub(super) fn insert(&mut self, question: Question, entry: Entry) {
        match Key::of(question) {
            Key::V4(key) => self.v4.insert(key, entry),
            Key::V6(key) => self.v6.insert(key, entry),
        };
    }

    pub(super) fn remove(&mut self, question: Question) -> Option<Entry> {
        match Key::of(question) {
            Key::V4(key) => self.v4.remove(&key),
            Key::V6(key) => self.v6.remove(&key),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    pub(super) fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
    }
}

/// A question in compact form.
enum Key {
    V4(V4Key),
    V6(V6Key),
}

/// The address, then the interface.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct V4Key(u64);

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct V6Key([u8; 16], u32);

impl Key {
    fn of(question: Question) -> Self {
        // 0 is not a legal ifindex.
        let egress = question.egress().map_or(0, IfIndex::get);
        match question.target() {
            IpAddr::V4(target) => {
                Self::V4(V4Key(u64::from(target.to_bits()) << 32 | u64::from(egress)))
            }
            IpAddr::V6(target) => Self::V6(V6Key(target.octets(), egress)),
        }
    }
}

/// An answer, and the time of it.
#[derive(Debug)]
pub(super) struct Entry {
    /// All zero, which is not a legal GID, for a negative answer.
    gid: [u8; 16],
    /// Nanoseconds since boot; the lowest bit is set if an earlier client heard the answer.
    heard: u64,
}

impl Entry {
    pub(super) fn new(gid: Option<Gid>, heard_at: Instant) -> Self {
        Self { gid: gid.map_or([0; 16], Gid::octets), heard: heard_at.as_nanos() & !1 }
    }

    /// The answer that an earlier client heard, and that is forgotten at `expires_at`.
    pub(super) fn restored(gid: Gid, expires_at: Instant, limits: &Limits) -> Self {
        let ttl = u64::try_from(limits.ttl.as_nanos()).unwrap_or(u64::MAX);
        Self { gid: gid.octets(), heard: expires_at.as_nanos().saturating_sub(ttl) | 1 }
    }

    pub(super) fn cached(&self, limits: &Limits) -> Cached {
        let heard_at = (self.heard & 1 == 0).then(|| Instant::from_nanos(self.heard));
        Cached { gid: Gid::new(self.gid), heard_at, expires_at: self.expires_at(limits) }
    }

    pub(super) fn expires_at(&self, limits: &Limits) -> Instant {
        let is_negative = self.gid == [0; 16];
        let ttl = if is_negative { limits.negative_ttl } else { limits.ttl };
        Instant::from_nanos(self.heard & !1) + ttl
    }
}

const _: () = assert!(size_of::<(V4Key, Entry)>() == 32);
