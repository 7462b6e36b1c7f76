// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The clients of a daemon's ACM service: which are connected, and which wait.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::wire::acm::Name;
use ibarr_proto::acm::ClientId;
use ibarr_proto::places::Room;
use ibarr_proto::shares::User;

use crate::dice::{Dice, ms, secs};

/// The clients of a daemon's ACM service.
#[derive(Debug, Default)]
pub(super) struct Applications {
    connected: u64,
    pub(super) clients: BTreeMap<ClientId, Application>,
    /// Clients that have connected in this turn: as many may be disconnected.
    pub(super) newcomers: usize,
    /// Clients that have disconnected in this turn: no claim is about what the daemon does for them.
    pub(super) left: Vec<ClientId>,
    /// Names that are looked up.
    pub(super) names: Vec<Name>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Application {
    user: User,
    /// Since when it waits, and for the path to which address.
    pub(super) asked: Option<(Instant, Option<IpAddr>)>,
    /// What it has sent may end the connection.
    pub(super) is_wrong: bool,
}

impl Applications {
    /// A client of `user` that does not wait, if it has one.
    pub(super) fn idle(&self, user: User) -> Option<ClientId> {
        let is_idle = |(_, it): &(&ClientId, &Application)| it.user == user && it.asked.is_none();
        self.clients.iter().find(is_idle).map(|(client, _)| *client)
    }

    pub(super) fn any(&self, dice: &mut Dice) -> Option<ClientId> {
        let at = dice.below(self.clients.len().max(1));
        self.clients.keys().nth(at).copied()
    }

    pub(super) fn connect(&mut self, user: User) -> ClientId {
        let client = ClientId(self.connected);
        self.connected += 1;
        self.newcomers += 1;
        self.clients.insert(client, Application { user, asked: None, is_wrong: false });
        client
    }

    /// The daemon disconnects a client; returns whether it may.
    pub(super) fn close(&mut self, client: ClientId) -> bool {
        let Some(it) = self.clients.remove(&client) else { return self.left.contains(&client) };
        let gives_way = !it.is_wrong && self.newcomers > 0;
        self.newcomers -= usize::from(gives_way);
        it.is_wrong || gives_way
    }

    pub(super) fn waits(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|it| it.asked.is_some())
    }

    pub(super) fn of(&self, user: User) -> usize {
        self.clients.values().filter(|it| it.user == user).count()
    }

    /// Number of clients that wait.
    pub(super) fn waiting(&self) -> usize {
        self.clients.values().filter(|it| it.asked.is_some()).count()
    }

    /// A client that has waited for too long, if the daemon could run since `awake`.
    pub(super) fn overdue(&self, now: Instant, awake: Instant) -> Option<ClientId> {
        let is_late = |since: Instant| now.since(awake.max(since + secs(2))) > ms(100);
        let overdue = self.clients.iter().find(|it| it.1.asked.is_some_and(|at| is_late(at.0)));
        overdue.map(|(client, _)| *client)
    }

    /// Whether users have more than their shares, or less than they are owed.
    pub(super) fn are_unfair(&self, room: Room) -> bool {
        let others = self.clients.len() - self.of(User::ROOT);
        let has_much = |it: &Application| it.user != User::ROOT && self.of(it.user) > room.of_user;
        self.clients.len() > room.all
            || others > room.all - room.all.div_ceil(8)
            || self.clients.values().any(has_much)
    }
}
