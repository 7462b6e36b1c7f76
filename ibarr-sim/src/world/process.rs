// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A daemon without its turn: its cores, what waits for it, and the claims about it.

use std::collections::VecDeque;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::acm::Name;
use ibarr_common::wire::ls::Emitted;
use ibarr_common::wire::sa;
use ibarr_proto::ip2gid::client::{Candidate, Route, SocketId};
use ibarr_proto::ip2gid::{Family, Question};
use ibarr_proto::local_service::Nudged;
use ibarr_proto::local_view;
use ibarr_proto::paths::PortFacts;
use ibarr_proto::responder::{Done, Order};

use super::addresses::Packet;
use super::clients::Applications;
use super::kernel_claims::KernelClaims;
use super::monitor::Monitor;
use super::path_claims::PathClaims;
use super::pending::{Asked, Crowd};
use super::schedule::Schedule;
use crate::bugs::Core;
use crate::dice::Dice;

pub(super) struct Daemon {
    pub(super) core: Core,
    pub(super) inbox: VecDeque<Inbox>,
    /// Queries that the server could not judge yet.
    pub(super) unjudged: Vec<Packet>,
    pub(super) schedule: Schedule,
    pub(super) sockets: Sockets,
    /// A message for which the socket to the kernel had no room.
    pub(super) unsent: Option<Emitted>,
    /// The maps of the programs can be written.
    pub(super) has_maps: bool,
    /// The order to the thread that loads and attaches programs.
    pub(super) order: Option<Order>,
    pub(super) asked: Asked,
    pub(super) crowd: Crowd,
    pub(super) applications: Applications,
    pub(super) kernel: KernelClaims,
    pub(super) paths: PathClaims,
    pub(super) monitor: Monitor,
    pub(super) is_ending: bool,
    /// The kernel seems to have refused a message.
    pub(super) was_refused: bool,
}

/// Inputs for the daemon's next turn.
#[derive(Debug)]
pub(super) enum Inbox {
    Opened,
    View(local_view::Input),
    Route(Candidate, Option<Route>),
    Reply {
        socket: SocketId,
        packet: Packet,
    },
    Query(Packet),
    /// ICMP says that no program receives this query.
    Refused(Packet),
    Port(Option<PortFacts>),
    Mad(Lid, sa::Request, sa::Answer),
    Nudged(Nudged),
    MapsOpened,
    MapRead,
    Executed(Done),
    Ask(Question),
    /// Clients of ACM do what any process may.
    Misbehave,
    /// The resolver has found the addresses of a name.
    Named(Name, Vec<IpAddr>),
    /// A user has room for more requests, until this time.
    Crowd(Instant),
    Reload,
    Flush,
    Stop,
}

/// The sockets for queries, with their ports.
#[derive(Debug, Default)]
pub(super) struct Sockets(Vec<(u16, SocketId)>);

impl Daemon {
    pub(super) fn new(core: Core, paths: PathClaims, monitor: Monitor) -> Self {
        Self {
            core,
            inbox: VecDeque::from([Inbox::Opened]),
            unjudged: Vec::new(),
            schedule: Schedule::default(),
            sockets: Sockets::default(),
            unsent: None,
            has_maps: false,
            order: None,
            asked: Asked::default(),
            crowd: Crowd::default(),
            applications: Applications::default(),
            kernel: KernelClaims::default(),
            paths,
            monitor,
            is_ending: false,
            was_refused: false,
        }
    }

    /// Whether the daemon has told the kernel all that it has to.
    pub(super) fn is_idle(&self) -> bool {
        self.unsent.is_none() && self.core.node().local_service().is_idle()
    }
}

impl Sockets {
    /// One socket to send from and one in grace for each slot, in each family.
    pub(super) const MOST: usize = [Family::V4, Family::V6].len() * 2 * 32;

    /// Opens a socket with a random port that none of the others has.
    pub(super) fn open(&mut self, dice: &mut Dice, socket: SocketId) {
        let port = loop {
            let port = 32_768 + u16::try_from(dice.below(28_232)).unwrap_or_default();
            if self.0.iter().all(|&(taken, _)| taken != port) {
                break port;
            }
        };
        self.0.push((port, socket));
    }

    pub(super) fn close(&mut self, socket: SocketId) {
        self.0.retain(|(_, open)| *open != socket);
    }

    pub(super) fn port(&self, socket: SocketId) -> Option<u16> {
        self.0.iter().find(|(_, open)| *open == socket).map(|(port, _)| *port)
    }

    pub(super) fn at(&self, port: u16) -> Option<SocketId> {
        self.0.iter().find(|(open, _)| *open == port).map(|(_, socket)| *socket)
    }

    /// The port of the oldest socket.
    pub(super) fn first_port(&self) -> Option<u16> {
        self.0.first().map(|(port, _)| *port)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
