// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A node: the cores, wired together. The daemon's loop drives this type and the simulation drives
//! it, so that the order of things, which matters, is proven where it runs.

use std::collections::BTreeMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use rand_core::{CryptoRng, SeedableRng};

use crate::counters::Counters;
use crate::ip2gid::client::{self, Cached, Client, Learned, RequestId, SocketId};
use crate::ip2gid::server::{self, Server};
use crate::ip2gid::{Prefixes, Question};
use crate::local_service::{self, LocalService};
use crate::local_view::{self, LocalView};
use crate::paths::snapshot::{Restored, Snapshot};
use crate::paths::{self, Paths};
use crate::resolver::{self, Outcome, Resolver};
use crate::sa;
use crate::shares::{self, User};

/// See the [module](self).
///
/// A turn: any number of [`handle_input`](Self::handle_input), one
/// [`handle_timeout`](Self::handle_timeout), then [`poll`](Self::poll) until it says `None`, all with
/// the time of the turn; then wait until [`poll_timeout`](Self::poll_timeout).
pub struct Node<R> {
    view: LocalView,
    server: Server,
    resolver: Resolver<R>,
}

/// What an administrator decides.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// What is answered.
    pub view: local_view::Config,
    /// Who is answered.
    pub allow: Prefixes,
    /// How peers are asked.
    pub client: client::Config,
    /// How the kernel is answered.
    pub local_service: local_service::Config,
    /// How subnet administrators are asked.
    pub paths: paths::Config,
}

/// One thing that happened. Queries of peers are not among them: see [`Node::answer`].
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// Rtnetlink said something about this node.
    View(local_view::Input),
    /// Something happened to the client's sockets, routes or datagrams.
    Client(client::Input<'a>),
    /// Something happened to the socket to the kernel.
    LocalService(local_service::Input<'a>),
    /// Something happened to the InfiniBand ports, or a MAD came.
    Paths(paths::Input<'a>),
    /// A user of this node wants to know a path. Answered by one [`Output::PathAnswered`].
    ResolvePath {
        /// Who.
        user: User,
        /// What is asked.
        request: paths::Request,
    },
    /// A user of this node wants to know. Answered by one [`Output::Answered`].
    Resolve {
        /// Who.
        user: User,
        /// Comes back with the answer.
        id: RequestId,
        /// What is asked.
        question: Question,
        /// When the caller stops waiting.
        deadline: Instant,
    },
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask rtnetlink for what the view needs.
    View(local_view::Request),
    /// What this node answers has changed.
    Changed(local_view::Event),
    /// A request of this node has its answer.
    Answered {
        /// Of the request.
        id: RequestId,
        /// The answer.
        outcome: Outcome,
    },
    /// A request of this node for a path has its answer.
    PathAnswered {
        /// Of the request.
        id: paths::RequestId,
        /// The answer.
        outcome: paths::Outcome,
    },
    /// Send a MAD.
    Sa(sa::Transmit),
    /// As [`client::Event::OpenSocket`].
    OpenSocket(SocketId),
    /// As [`client::Event::CloseSocket`].
    CloseSocket(SocketId),
    /// As [`Client::poll_route`].
    Route(Question),
    /// Send a query.
    Query(client::Transmit),
    /// As [`LocalService::poll_transmit`].
    LocalService(local_service::Transmit),
}

/// Which sockets have room for more. What is said for one that has none waits; nothing else does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// The socket to the kernel.
    pub local_service: bool,
}

impl<R: CryptoRng + SeedableRng> Node<R> {
    /// Knows nothing of itself yet, and has no socket.
    pub fn new(config: Config, mut rng: R) -> Self {
        let Config { view, allow, client, local_service, paths } = config;
        let paths = Paths::new(paths, R::from_rng(&mut rng));
        Self {
            view: LocalView::new(view),
            server: Server::new(allow),
            resolver: Resolver::new(
                Client::new(client, rng),
                paths,
                LocalService::new(local_service),
            ),
        }
    }

    /// From now on runs on `config`.
    pub fn reconfigure(&mut self, now: Instant, config: Config) {
        let Config { view, allow, client, local_service, paths } = config;
        self.resolver.paths_mut().reconfigure(paths);
        self.view.reconfigure(view);
        self.server.reconfigure(allow);
        self.resolver.client_mut().reconfigure(now, client);
        self.resolver.local_service_mut().reconfigure(local_service);
    }

    /// Tells the cores what happened.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        match input {
            Input::View(input) => self.view.handle_input(now, input),
            Input::Client(input) => self.resolver.handle_input(now, input),
            Input::LocalService(input) => {
                self.resolver.handle_local_service(now, &self.view, input);
            }
            Input::Paths(input) => {
                let is_of_a_port =
                    matches!(input, paths::Input::Port { .. } | paths::Input::PortGone { .. });
                self.resolver.handle_paths(now, input);
                if is_of_a_port {
                    self.view.set_flid_gids(flid_gids(self.resolver.paths()));
                }
            }
            Input::ResolvePath { user, request } => {
                self.resolver.resolve_path(now, &self.view, user, request);
            }
            Input::Resolve { user, id, question, deadline } => {
                self.resolver.resolve(now, &self.view, user, id, question, deadline);
            }
        }
    }

    /// The reply to a peer's query, if it gets one.
    pub fn answer(&mut self, received: &server::Received<'_>) -> Option<server::Transmit> {
        self.server.answer(&self.view, received)
    }

    /// Does what is due. May be called at any time; early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.view.handle_timeout(now);
        self.resolver.handle_timeout(now, &self.view);
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [self.view.poll_timeout(), self.resolver.poll_timeout()];
        timeouts.into_iter().flatten().min()
    }

    /// The next thing to do, to be done before the one after it is asked for.
    ///
    /// The kernel comes last: opening a socket makes queries and a failure makes answers, so only
    /// when peers have been asked all there is to ask is everything said that one nudge can cover.
    pub fn poll(&mut self, room: Room) -> Option<Output> {
        if let Some(request) = self.view.poll_transmit() {
            return Some(Output::View(request));
        }
        if let Some(event) = self.view.poll_event() {
            return Some(Output::Changed(event));
        }
        if let Some(event) = self.resolver.poll_event() {
            return Some(match event {
                resolver::Event::Answered { id, outcome } => Output::Answered { id, outcome },
                resolver::Event::PathAnswered { id, outcome } => {
                    Output::PathAnswered { id, outcome }
                }
                resolver::Event::OpenSocket { socket } => Output::OpenSocket(socket),
                resolver::Event::CloseSocket { socket } => Output::CloseSocket(socket),
            });
        }
        if let Some(question) = self.resolver.poll_route() {
            return Some(Output::Route(question));
        }
        if let Some(transmit) = self.resolver.poll_transmit() {
            return Some(Output::Query(transmit));
        }
        if let Some(transmit) = self.resolver.poll_sa() {
            return Some(Output::Sa(transmit));
        }
        if room.local_service {
            return self.resolver.poll_local_service().map(Output::LocalService);
        }
        None
    }

    /// As [`Client::poll_learned`].
    pub fn poll_learned(&mut self) -> Option<Learned> {
        self.resolver.client_mut().poll_learned()
    }

    /// As [`Client::restore`].
    pub fn restore(&mut self, now: Instant, question: Question, answer: Cached) -> bool {
        self.resolver.client_mut().restore(now, question, answer)
    }

    /// Forgets all that peers have answered. Returns how many answers that was.
    pub fn flush(&mut self) -> usize {
        self.resolver.client_mut().flush(None)
    }

    /// Forgets all that subnet administrators have answered. Returns how many answers that was.
    pub fn flush_paths(&mut self) -> usize {
        self.resolver.paths_mut().flush()
    }

    /// As [`Paths::give_back`].
    pub fn give_back(&mut self, now: Instant, deadline: Instant) {
        self.resolver.paths_mut().give_back(now, deadline);
    }

    /// As [`Paths::restore`].
    pub fn restore_paths(&mut self, now: Instant, snapshot: Snapshot, age: Duration) {
        self.resolver.paths_mut().restore(now, snapshot, age);
    }

    /// As [`Paths::poll_restored`].
    pub fn poll_restored(&mut self) -> Option<Restored> {
        self.resolver.paths_mut().poll_restored()
    }

    /// What this node knows of itself.
    pub fn view(&self) -> &LocalView {
        &self.view
    }

    /// Who answers peers.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Who asks peers.
    pub fn client(&self) -> &Client<R> {
        self.resolver.client()
    }

    /// Who asks subnet administrators.
    pub fn paths(&self) -> &Paths<R> {
        self.resolver.paths()
    }

    /// As [`Resolver::users`].
    pub fn users(&self) -> [(&'static str, &Counters<shares::Counter>, (usize, usize)); 2] {
        self.resolver.users()
    }

    /// Who answers the kernel.
    pub fn local_service(&self) -> &LocalService {
        self.resolver.local_service()
    }
}

/// What the view is to know of the ports.
fn flid_gids<R: CryptoRng + SeedableRng>(paths: &Paths<R>) -> BTreeMap<Gid, Gid> {
    let of_port = |facts: &paths::PortFacts| {
        let flid_gid = facts.flid_gid();
        let others = facts.gids.clone().into_iter();
        others.filter_map(move |gid| Some((gid, flid_gid?)))
    };
    paths.ports().flat_map(|(_, _, facts, _)| of_port(facts)).collect()
}

#[cfg(test)]
mod tests {
    use ibarr_common::IfIndex;
    use ibarr_common::wire::ls::{PortId, Request, ResolveIp, Seq};
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;
    use crate::local_service::{Nudge, Sender, Transmit};
    use crate::local_view::Subject;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const EGRESS: IfIndex = IfIndex::MIN;

    /// What is to be done, as far as there is `room`; routes and sockets are there, addresses are not.
    fn done(node: &mut Node<ChaCha12Rng>, local_service: bool) -> Vec<Output> {
        let mut done = Vec::new();
        node.handle_timeout(NOW);
        while let Some(output) = node.poll(Room { local_service }) {
            match output {
                Output::View(local_view::Request::Dump(Subject::Node)) => {
                    for input in [local_view::Input::DumpStarted, local_view::Input::DumpDone] {
                        node.handle_input(NOW, Input::View(input));
                    }
                    node.handle_timeout(NOW);
                }
                Output::OpenSocket(socket) => {
                    let input = client::Input::SocketOpened { socket };
                    node.handle_input(NOW, Input::Client(input));
                }
                Output::Route(question) => {
                    let next_hop = "10.1.0.254".parse().unwrap();
                    let route = Some(client::Route { ifindex: EGRESS, next_hop });
                    let input = client::Input::Route { question, route };
                    node.handle_input(NOW, Input::Client(input));
                }
                output => done.push(output),
            }
        }
        done
    }

    #[test]
    fn full_socket_to_the_kernel_holds_back_what_is_for_the_kernel_and_nothing_else() {
        let mut node = Node::new(Config::default(), ChaCha12Rng::seed_from_u64(1));
        let opened = local_service::Input::Opened { port_id: PortId(180), is_member: true };
        node.handle_input(NOW, Input::LocalService(opened));
        let target = "10.2.0.5".parse().unwrap();
        let request = Request::ResolveIp(ResolveIp { ifindex: EGRESS, target }).emit(Seq(1));
        let bytes = request.as_ref();
        let input = local_service::Input::Datagram { sender: Sender::Kernel, bytes, cut: false };
        node.handle_input(NOW, Input::LocalService(input));
        node.handle_input(NOW, Input::LocalService(local_service::Input::Drained));
        let without_room = done(&mut node, false);
        let [Output::View(_), Output::Query(query)] = without_room.as_slice() else {
            panic!("{without_room:?}")
        };
        assert_eq!(query.to.ip(), target);
        let with_room = done(&mut node, true);
        let told = with_room.as_slice();
        let [Output::LocalService(Transmit::Message(_)), last] = told else { panic!("{told:?}") };
        assert_eq!(last, &Output::LocalService(Transmit::Nudge(Nudge::IfQuiet)));
    }
}
