// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Routes and sockets for the client's questions to peers.

use ibarr_common::Instant;
use ibarr_proto::ip2gid::client::{Candidate, Input, Output, SocketEvent};
use ibarr_proto::local_view::rules::Diverted;
use ibarr_proto::node;
use ibarr_proto::trace::Step;
use tracing::debug;

use super::{Engine, log};
use crate::transport::queries::{Heard, Sockets};
use crate::transport::rtnetlink::{self, Answer, RouteAnswer, Routes};

pub(super) struct Queries {
    sockets: Sockets,
    routes: Routes,
    /// The peers that datagrams were sent to, for [`Self::diverted`], the newest first.
    peers: Vec<Candidate>,
}

/// How many peers [`Queries::diverted`] keeps. Until the next call there may be twice as many.
const PEERS: usize = 16;

impl Queries {
    pub(super) fn new(sockets: Sockets, routes: Routes) -> Self {
        Self { sockets, routes, peers: Vec::new() }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.sockets.dropped()
    }

    /// Keeps the peer that a datagram is sent to, if there is room.
    pub(super) fn note(&mut self, peer: Candidate) {
        if self.peers.len() < 2 * PEERS && !self.peers.contains(&peer) {
            self.peers.insert(0, peer);
        }
    }

    /// Returns those that divert datagrams to a peer that is kept. That peer stays.
    pub(super) fn diverted(&mut self, mut by_rules: Vec<Diverted>) -> Vec<Diverted> {
        by_rules.retain(|by| {
            let at = self.peers.iter().position(|&peer| rtnetlink::is_diverted(peer, by));
            at.map(|at| self.peers[..=at].rotate_right(1)).is_some()
        });
        self.peers.truncate(PEERS);
        by_rules
    }
}

impl Engine {
    fn handle_query_socket(&mut self, now: Instant, event: SocketEvent) {
        let input = match event {
            SocketEvent::Close(socket) => return self.queries.sockets.close(socket),
            SocketEvent::Open(socket) => match self.queries.sockets.open(socket) {
                Ok(()) => Input::SocketOpened { socket },
                Err(error) => {
                    debug!(%socket, %error, "query socket not opened");
                    Input::SocketFailed { socket }
                }
            },
        };
        self.tell_client(now, input);
    }

    pub(super) fn carry_out_query(&mut self, now: Instant, output: Output) {
        match output {
            Output::Socket(event) => self.handle_query_socket(now, event),
            Output::Query(transmit) => {
                if let Err(error) = self.queries.sockets.send(&transmit) {
                    self.trace_query_not_sent(now, transmit.to, &error);
                    let query = transmit.payload.as_ref();
                    return self.tell_client(now, Input::NotSent { query });
                }
                log::peer_is_asked(transmit.to, transmit.payload.as_ref());
                self.trace_query(now, &transmit);
            }
            Output::Route(candidate) => {
                self.node.trace().step(now, candidate.question, Step::RouteSought);
                self.queries.note(candidate);
                if !self.queries.routes.route(candidate) {
                    self.tell_client(now, Input::Route { candidate, route: None });
                }
            }
            Output::Neighbour(question, route) => {
                self.node.trace().step(now, question, Step::NeighbourSought);
                if !self.queries.routes.neighbour(question, route) {
                    self.tell_client(now, Input::Neighbour { question, gid: None });
                }
            }
        }
    }

    pub(super) fn handle_route(&mut self, now: Instant, answer: Answer) {
        self.trace_route(now, &answer);
        let input = match answer {
            Answer::Route(RouteAnswer { candidate, route, .. }) => {
                Input::Route { candidate, route: route.ok() }
            }
            Answer::Neighbour { question, entry } => {
                Input::Neighbour { question, gid: entry.and_then(|entry| entry.gid()) }
            }
        };
        self.tell_client(now, input);
    }

    pub(super) fn handle_heard(&mut self, now: Instant, heard: &Heard) {
        log::peer_answers(heard);
        self.trace_heard(now, heard);
        self.tell_client(now, heard.input());
    }

    fn tell_client(&mut self, now: Instant, input: Input<'_>) {
        self.node.handle_input(now, node::Input::Client(input));
    }
}
