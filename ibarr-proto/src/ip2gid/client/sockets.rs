// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets that queries leave from. A reply must come to the socket that its query left from, so
//! their random ports are part of what somebody who does not see the query would have to guess.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use ibarr_common::Instant;
use rand_core::Rng;

use super::super::Family;
use super::{Event, Settings};
use crate::retry;

/// Names a UDP socket bound to an unspecified address of its family and a random port. Never used
/// again for another socket.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SocketId {
    family: Family,
    slot: u8,
    generation: u32,
}

impl SocketId {
    /// The family of the socket.
    pub fn family(self) -> Family {
        self.family
    }
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, slot, generation } = self;
        write!(f, "{family} socket {slot}.{generation}")
    }
}

/// The sockets of one family: none until a query needs one, then as many as the configuration says
/// as long as queries go on.
///
/// A slot holds at most one socket to send from and one in grace, which only receives.
#[derive(Debug)]
pub(super) struct Pool {
    family: Family,
    slots: Vec<Slot>,
    /// Slots in use; those behind are only waiting to be emptied.
    size: usize,
    lifetime: Duration,
    grace: Duration,
    /// What can be sent from.
    open: Vec<SocketId>,
    wanted_at: Option<Instant>,
    next_timeout: Option<Instant>,
}

impl Pool {
    pub(super) fn new(family: Family, settings: &Settings) -> Self {
        let mut pool = Self {
            family,
            slots: Vec::new(),
            size: 0,
            lifetime: Duration::ZERO,
            grace: Duration::ZERO,
            open: Vec::new(),
            wanted_at: None,
            next_timeout: None,
        };
        pool.reconfigure(Instant::BOOT, settings);
        pool
    }

    /// Sockets beyond the new number go into grace; other times hold for sockets opened from now on.
    pub(super) fn reconfigure(&mut self, now: Instant, settings: &Settings) {
        self.size = settings.sockets.into();
        self.lifetime = settings.socket_lifetime;
        self.grace = settings.socket_grace;
        for slot in self.slots.iter_mut().skip(self.size) {
            if let State::Open { until, .. } = &mut slot.state {
                *until = now;
            }
        }
        while self.slots.len() < self.size {
            self.slots.push(Slot::default());
        }
        self.schedule();
    }

    /// A query is about to leave: has every slot opened.
    pub(super) fn want(&mut self, now: Instant, events: &mut VecDeque<Event>) {
        self.wanted_at = Some(now);
        if self.open.len() == self.size {
            return;
        }
        for (index, slot) in (0..).zip(self.slots.iter_mut().take(self.size)) {
            if matches!(slot.state, State::Closed) {
                slot.request(self.family, index, events);
            }
        }
    }

    /// A socket to send from, by chance, if one is open.
    pub(super) fn pick(&self, rng: &mut impl Rng) -> Option<SocketId> {
        let count = u64::try_from(self.open.len()).unwrap_or(u64::MAX);
        let index = usize::try_from(retry::below(count, rng)).ok()?;
        self.open.get(index).copied()
    }

    /// Whether queries can be sent.
    pub(super) fn is_ready(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether replies to `socket` count: it is open or in grace.
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
        events: &mut VecDeque<Event>,
    ) {
        let said_before = self.receives(socket);
        let index = usize::from(socket.slot);
        let asked = self.slots.get_mut(index).filter(|slot| slot.state == State::Opening(socket));
        match asked {
            Some(slot) if index < self.size => {
                // Opened together, they need not be replaced together.
                let spread = u64::try_from((self.lifetime / 10).as_nanos()).unwrap_or(u64::MAX);
                let longer = Duration::from_nanos(retry::below(spread, rng));
                slot.state = State::Open { socket, until: now + self.lifetime + longer };
                self.open.push(socket);
            }
            // The pool has shrunk meanwhile.
            Some(slot) => {
                slot.state = State::Closed;
                events.push_back(Event::CloseSocket { socket });
            }
            None if said_before => {}
            None => events.push_back(Event::CloseSocket { socket }),
        }
        self.schedule();
    }

    /// The driver could not open `socket`, or has lost it. Another is tried after [`REOPEN`].
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

    /// Replaces sockets at the end of their life, closes those at the end of their grace. A family
    /// in which nothing has been sent for a lifetime loses its sockets one by one.
    pub(super) fn handle_timeout(&mut self, now: Instant, events: &mut VecDeque<Event>) {
        if self.next_timeout.is_none_or(|at| at > now) {
            return;
        }
        let wanted = self.wanted_at.is_some_and(|at| now.since(at) < self.lifetime);
        for (index, slot) in (0..).zip(&mut self.slots) {
            if let Some(retired) = slot.retired.filter(|retired| retired.until <= now) {
                events.push_back(Event::CloseSocket { socket: retired.socket });
                slot.retired = None;
            }
            match slot.state {
                State::Open { socket, until } if until <= now => {
                    self.open.retain(|&open| open != socket);
                    // Only the shrinking of a pool can find another one in grace.
                    let retired = Retired { socket, until: now + self.grace };
                    if let Some(before) = slot.retired.replace(retired) {
                        events.push_back(Event::CloseSocket { socket: before.socket });
                    }
                }
                State::Failed { until } if until <= now => {}
                _ => continue,
            }
            slot.state = State::Closed;
            if wanted && usize::from(index) < self.size {
                slot.request(self.family, index, events);
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

/// Time before a socket that could not be opened is tried again.
const REOPEN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    state: State,
    retired: Option<Retired>,
}

impl Slot {
    fn request(&mut self, family: Family, slot: u8, events: &mut VecDeque<Event>) {
        self.generation = self.generation.wrapping_add(1);
        let socket = SocketId { family, slot, generation: self.generation };
        self.state = State::Opening(socket);
        events.push_back(Event::OpenSocket { socket });
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
