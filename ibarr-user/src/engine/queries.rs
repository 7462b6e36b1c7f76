// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Routes and sockets for the client's questions to peers.

use ibarr_common::Instant;
use ibarr_proto::ip2gid::client::{Input, Output, SocketEvent};
use ibarr_proto::node::{self, Node};
use ibarr_proto::trace::Step;
use tracing::debug;

use super::{log, trace};
use crate::transport::queries::{Incoming, Sockets};
use crate::transport::rtnetlink::{Answer, RouteAnswer, Routes};

pub(super) struct Queries {
    sockets: Sockets,
    routes: Routes,
}

impl Queries {
    pub(super) fn new(sockets: Sockets, routes: Routes) -> Self {
        Self { sockets, routes }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.sockets.dropped()
    }

    fn handle_socket(&mut self, now: Instant, event: SocketEvent, node: &mut Node) {
        let input = match event {
            SocketEvent::Close(socket) => return self.sockets.close(socket),
            SocketEvent::Open(socket) => match self.sockets.open(socket) {
                Ok(()) => Input::SocketOpened { socket },
                Err(error) => {
                    debug!(%socket, %error, "query socket not opened");
                    Input::SocketFailed { socket }
                }
            },
        };
        tell(node, now, input);
    }

    pub(super) fn carry_out(&mut self, now: Instant, output: Output, node: &mut Node) {
        match output {
            Output::Socket(event) => self.handle_socket(now, event, node),
            Output::Query(transmit) => {
                if let Err(error) = self.sockets.send(&transmit) {
                    trace::query_not_sent(node, now, transmit.to, &error);
                    let query = transmit.payload.as_ref();
                    return tell(node, now, Input::NotSent { query });
                }
                log::peer_is_asked(transmit.to, transmit.payload.as_ref());
                trace::query(node, now, &transmit);
            }
            Output::Route(candidate) => {
                node.trace().step(now, candidate.question, Step::RouteSought);
                if !self.routes.route(candidate) {
                    tell(node, now, Input::Route { candidate, route: None });
                }
            }
            Output::Neighbour(question, route) => {
                node.trace().step(now, question, Step::NeighbourSought);
                if !self.routes.neighbour(question, route) {
                    tell(node, now, Input::Neighbour { question, gid: None });
                }
            }
        }
    }
}

pub(super) fn handle_route(now: Instant, answer: Answer, node: &mut Node) {
    trace::route(node, now, &answer);
    let input = match answer {
        Answer::Route(RouteAnswer { candidate, route, .. }) => {
            Input::Route { candidate, route: route.ok() }
        }
        Answer::Neighbour { question, entry } => {
            Input::Neighbour { question, gid: entry.and_then(|entry| entry.gid()) }
        }
    };
    tell(node, now, input);
}

pub(super) fn handle_incoming(now: Instant, incoming: &Incoming, node: &mut Node) {
    log::peer_answers(incoming);
    trace::received(node, now, incoming);
    tell(node, now, incoming.input());
}

fn tell(node: &mut Node, now: Instant, input: Input<'_>) {
    node.handle_input(now, node::Input::Client(input));
}
