// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A node: the cores, connected. The daemon's loop and the simulation both drive this type, so that
//! the simulation proves the order of steps that the daemon executes.

mod facts;

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;
use core::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::acm::Address;
use ibarr_common::{IfIndex, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;

use crate::acm::{self, Acm};
use crate::counters::Counters;
use crate::health::{self, Health};
use crate::ip2gid::client::{self, Cached, Client, Egress, Learned};
use crate::ip2gid::server::{self, Local as _, Server};
use crate::ip2gid::{Prefixes, Question};
use crate::local_service::{self, LocalService};
use crate::local_view::{self, AddressStatus, Dad, Interface, LocalView};
use crate::paths::snapshot::{Restored, Snapshot};
use crate::paths::{self, Paths, Sought};
use crate::request::{self, AddressRequest, Outcome, PathRequest, RequestId, UserRequest};
use crate::resolver::{self, Cores, Resolver};
use crate::responder::{self, Responder};
use crate::sa;
use crate::shares;
use crate::trace::{self, Caller, Trace};

/// All cores of a node, see the [module](self).
///
/// A turn consists of any number of [`handle_input`](Self::handle_input), one
/// [`handle_timeout`](Self::handle_timeout), then [`poll`](Self::poll) until it returns `None`, all
/// with the time of the turn; then the driver waits until [`poll_timeout`](Self::poll_timeout).
pub struct Node {
    view: LocalView,
    server: Server,
    cores: Cores,
    resolver: Resolver,
    acm: Acm,
    health: Health,
    responder: Responder,
    /// The client does not know the last change of interfaces and routes yet.
    has_network_changed: bool,
    /// Answers for the users of the driver.
    outputs: VecDeque<Output>,
}

/// The configuration.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Config {
    /// For the local view.
    pub view: local_view::Config,
    /// The sources whose queries are answered.
    pub allow: Prefixes,
    /// For the programs that answer peers.
    pub responder: responder::Settings,
    pub client: client::Config,
    /// For the kernel's side.
    pub local_service: local_service::Config,
    pub paths: paths::Config,
    /// For the ACM service.
    pub acm: acm::Config,
}

/// An input of a core. Queries of peers are passed to [`Node::answer`] instead.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A message of rtnetlink.
    View(local_view::Input),
    /// An event of the client's sockets, routes or datagrams.
    Client(client::Input<'a>),
    /// An event of an InfiniBand port, or a received MAD.
    Paths(paths::Input<'a>),
    /// An event of the socket to the kernel.
    LocalService(local_service::Input<'a>),
    /// An event of a client of ACM.
    Acm(acm::Input<'a>),
    /// What the driver knows of the daemon.
    Health(health::Input),
    /// A report about maps and programs.
    Responder(responder::Input),
    /// A user of this node asks for a GID. One [`Output::Answered`] follows, at once if the local view or the cache
    /// has the answer and the user has room in its share.
    Resolve(AddressRequest),
    /// A user of this node asks for a path. One [`Output::PathAnswered`] follows, at the latest at the deadline of the
    /// request, or a moment after its arrival if there is no room.
    ResolvePath(PathRequest),
}

impl From<responder::Input> for Input<'_> {
    fn from(input: responder::Input) -> Self {
        Self::Responder(input)
    }
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Output {
    /// Send a request to rtnetlink.
    View(local_view::Request),
    /// Note a change of the local view.
    Changed(local_view::Event),
    /// Change the maps or the programs that answer peers in the kernel.
    Responder(responder::Output),
    /// Answer a client of ACM, or look up a route for it.
    Acm(acm::Output),
    /// The answer to a user's request for a GID; each request gets exactly one.
    Answered { id: UserRequest, outcome: Outcome },
    /// The answer to a user's request for a path; each request gets exactly one.
    PathAnswered { id: UserRequest, outcome: paths::Outcome },
    /// Send a MAD.
    Sa(sa::Transmit),
    /// Ask a peer, or look up how to reach it.
    Client(client::Output),
    /// See [`LocalService::poll_transmit`].
    LocalService(local_service::Transmit),
}

/// Which sockets have room. Outputs for a full socket wait, others do not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// Whether the socket to the kernel has room.
    pub local_service: bool,
}

impl Node {
    /// The local view is empty, and no socket is open.
    pub fn new(config: Config, mut rng: ChaCha12Rng) -> Self {
        let Config { view, allow, responder, client, local_service, paths, acm } = config;
        let paths = Paths::new(paths, ChaCha12Rng::from_rng(&mut rng));
        Self {
            view: LocalView::new(view),
            server: Server::new(allow.clone()),
            responder: Responder::new(responder, allow),
            cores: Cores {
                client: Client::new(client, rng),
                paths,
                local_service: LocalService::new(local_service),
                trace: Trace::default(),
            },
            resolver: Resolver::default(),
            acm: Acm::new(acm),
            health: Health::default(),
            has_network_changed: false,
            outputs: VecDeque::new(),
        }
    }

    /// Replaces the configuration.
    pub fn reconfigure(&mut self, now: Instant, config: Config) {
        let Config { view, allow, responder, client, local_service, paths, acm } = config;
        self.cores.paths.reconfigure(paths);
        self.view.reconfigure(view);
        self.server.reconfigure(allow.clone());
        self.responder.reconfigure(now, responder, allow);
        self.cores.client.reconfigure(now, client);
        self.cores.local_service.reconfigure(local_service);
        self.acm.reconfigure(acm);
    }

    /// Passes an input to its core.
    pub fn handle_input<'a>(&mut self, now: Instant, input: impl Into<Input<'a>>) {
        match input.into() {
            Input::View(input) => {
                use local_view::Input as View;
                let was_known = self.view.is_known();
                self.has_network_changed |= matches!(
                    input,
                    View::Link(_)
                        | View::LinkGone(_)
                        | View::Address(_)
                        | View::AddressGone(_)
                        | View::DumpDone
                        | View::RoutesChanged
                        | View::RoutesTooMany
                        | View::DumpFailed(local_view::Subject::Routes)
                );
                self.view.handle_input(now, input);
                if self.view.is_known() && !was_known {
                    self.acm.ask_again();
                }
            }
            Input::Acm(input) => self.acm.handle_input(now, input),
            Input::Client(input) => self.resolve(now, resolver::Input::Client(input)),
            Input::Health(input) => self.health.handle_input(now, input),
            Input::Responder(input) => {
                return self.responder.handle_input(now, &self.view, input);
            }
            Input::LocalService(input) => {
                if let local_service::Input::Stop = input {
                    self.health.handle_input(now, health::Input::Stop);
                }
                self.resolve(now, resolver::Input::LocalService(input));
            }
            Input::Resolve(request) => self.resolve(now, resolver::Input::Resolve(request)),
            Input::ResolvePath(request) => self.resolve(now, resolver::Input::ResolvePath(request)),
            Input::Paths(input) => {
                let is_of_a_port =
                    matches!(input, paths::Input::Port { .. } | paths::Input::PortGone { .. });
                self.resolve(now, resolver::Input::Paths(input));
                if is_of_a_port {
                    self.view.set_flid_gids(flid_gids(&self.cores.paths));
                    self.acm.ask_again();
                }
            }
        }
        self.serve_acm(now);
    }

    fn resolve(&mut self, now: Instant, input: resolver::Input<'_>) {
        self.resolver.handle_input(&mut self.cores, now, &self.view, input);
    }

    /// Passes the questions of the ACM service to the other cores, and their answers to it, until none is left.
    fn serve_acm(&mut self, now: Instant) {
        loop {
            while let Some(event) = self.resolver.poll_event() {
                match event {
                    resolver::Event::Answered { id: UserRequest::Acm(id), outcome } => {
                        self.acm.gid_of_target(id, outcome);
                    }
                    resolver::Event::PathAnswered { id: UserRequest::Acm(id), outcome } => {
                        self.acm.path(id, Some(outcome));
                    }
                    resolver::Event::Answered { id, outcome } => {
                        self.outputs.push_back(Output::Answered { id, outcome });
                    }
                    resolver::Event::PathAnswered { id, outcome } => {
                        self.outputs.push_back(Output::PathAnswered { id, outcome });
                    }
                }
            }
            let Some(ask) = self.acm.poll_ask() else { return };
            self.ask_for_acm(now, ask);
        }
    }

    /// An answer from memory does not count against the share of its user.
    fn ask_for_acm(&mut self, now: Instant, ask: acm::Ask) {
        let (view, cores) = (&self.view, &mut self.cores);
        match ask {
            acm::Ask::Source { .. } | acm::Ask::Endpoint { .. } if !view.is_known() => {
                self.acm.park(ask);
            }
            acm::Ask::Endpoint { id, which, has_addresses } => {
                let found = acm::find(&cores.paths, view, which).map(|found| {
                    let wanted = has_addresses.then(|| acm::addresses(&cores.paths, view, &found));
                    (found, wanted.unwrap_or_default())
                });
                self.acm.endpoint(id, found);
            }
            acm::Ask::Source { id, source } => {
                self.acm.partition_of_source(id, view.pkey_of(source, IfIndex::MIN));
                self.acm.gid_of_source(id, view.gid_of(source, IfIndex::MIN));
            }
            acm::Ask::Gid { id, user, question, deadline } => {
                let source = request::Source::Cache;
                let listed = listed(&self.acm, view, question.target());
                let known = listed
                    .map(|gid| Outcome::Found { gid, source })
                    .or_else(|| resolver::recall(cores, now, view, question));
                if let Some(outcome) = known {
                    let traced = trace::Id::Address(RequestId::User(UserRequest::Acm(id)));
                    let answer = trace::Outcome::Address(outcome);
                    cores.trace.remembered(now, traced, Caller::Acm(user), question, answer);
                    return self.acm.gid_of_target(id, outcome);
                }
                self.acm.not_remembered(id);
                let id = UserRequest::Acm(id);
                let request = AddressRequest { id, user, question, is_fresh: false, deadline };
                self.resolver.handle_input(cores, now, view, resolver::Input::Resolve(request));
            }
            acm::Ask::Path { id, is_named: true, .. }
                if cores
                    .paths
                    .ports()
                    .filter(|(.., facts, _)| facts.is_active)
                    .nth(1)
                    .is_some() =>
            {
                self.acm.could_start_elsewhere(id);
            }
            acm::Ask::Path { id, user, known, asks_sa, deadline, .. } => {
                let complete = if asks_sa {
                    cores.paths.source_of(known).map(|(port, query)| (port, Sought::Known(query)))
                } else {
                    cores.paths.complete_query(known)
                };
                let (port, question) = match complete {
                    Ok(complete) => complete,
                    // It may be known in a moment.
                    Err(paths::Incomplete::NoPort) => return self.acm.park(ask),
                    Err(_) => return self.acm.path(id, None),
                };
                self.acm.starts_at(id, port);
                if let Sought::Path(question) = question {
                    let known = cores.paths.lookup(now, &port, question);
                    if let Some(outcome) = known.or_else(|| cores.paths.loopback(&port, &question))
                    {
                        let traced = trace::Id::Path(RequestId::User(UserRequest::Acm(id)));
                        let answer = trace::Outcome::Path { outcome, is_left_to_kernel: false };
                        cores.trace.remembered(now, traced, Caller::Acm(user), question, answer);
                        return self.acm.path(id, Some(outcome));
                    }
                }
                self.acm.not_remembered(id);
                if matches!(question, Sought::Known(_)) && self.acm.is_in_vain(id) {
                    return;
                }
                let id = UserRequest::Acm(id);
                let request = PathRequest { id, user, port, question, deadline };
                let input = resolver::Input::ResolvePath(request);
                self.resolver.handle_input(cores, now, view, input);
            }
        }
    }

    /// What is known of an address without asking a peer, however old it is.
    pub fn lookup(&self, now: Instant, question: Question) -> Option<Outcome> {
        self.resolver.lookup(&self.cores, now, &self.view, question)
    }

    /// The reply to a peer's query, if there is one.
    pub fn answer(&mut self, received: &server::Received<'_>) -> Option<server::Transmit> {
        self.server.answer(&self.view, received)
    }

    /// See [`Server::handle_sent`].
    pub fn handle_sent(&mut self, reply: &server::Transmit, errno: i32) -> server::Counter {
        self.server.handle_sent(reply, errno)
    }

    /// See [`Server::why_silent`].
    pub fn why_silent(&self, received: &server::Received<'_>) -> Option<server::Counter> {
        self.server.why_silent(&self.view, received)
    }

    /// Performs all actions that are due. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.view.handle_timeout(now);
        if core::mem::take(&mut self.has_network_changed) {
            self.cores.client.network_changed(egresses(&self.view));
        }
        self.resolver.handle_timeout(&mut self.cores, now, &self.view);
        self.acm.handle_timeout(now);
        self.serve_acm(now);
        self.responder.handle_timeout(now, &self.view);
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [
            self.view.poll_timeout(),
            self.resolver.poll_timeout(&self.cores),
            self.acm.poll_timeout(),
            self.health.poll_timeout(),
            self.responder.poll_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// The next action, which the driver performs before it polls again.
    ///
    /// Outputs for the kernel come last: an opened socket causes queries, and a failure causes
    /// answers. Only when all queries are out are all answers known that one nudge can cover.
    pub fn poll(&mut self, room: Room) -> Option<Output> {
        if let Some(request) = self.view.poll_transmit() {
            return Some(Output::View(request));
        }
        if let Some(output) = self.responder.poll_update() {
            return Some(Output::Responder(output));
        }
        if let Some(event) = self.view.poll_event() {
            self.responder.handle_fact(&event);
            return Some(Output::Changed(event));
        }
        if let Some(output) = self.responder.poll_output() {
            return Some(Output::Responder(output));
        }
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if let Some(output) = self.acm.poll_output() {
            return Some(Output::Acm(output));
        }
        if let Some(output) = self.cores.client.poll_transmit() {
            return Some(Output::Client(output));
        }
        if let Some(transmit) = self.cores.paths.poll_transmit() {
            return Some(Output::Sa(transmit));
        }
        if room.local_service {
            return self.cores.local_service.poll_transmit().map(Output::LocalService);
        }
        None
    }

    /// The trace, to which the driver reports what goes over the wire.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.cores.trace
    }

    /// See [`Client::poll_learned`].
    pub fn poll_learned(&mut self) -> Option<Learned> {
        self.cores.client.poll_learned()
    }

    /// See [`Client::restore`].
    pub fn restore(&mut self, now: Instant, question: Question, answer: Cached) -> bool {
        self.cores.client.restore(now, question, answer)
    }

    /// Drops all answers of peers, and the addresses of names. Returns how many answers of peers that was.
    pub fn flush(&mut self) -> usize {
        self.acm.forget_names();
        self.cores.client.flush(None)
    }

    /// Drops all answers of subnet administrators. Returns how many that was.
    pub fn flush_paths(&mut self) -> usize {
        self.cores.paths.flush()
    }

    /// See [`Acm::set_hosts`].
    pub fn set_acm_hosts(&mut self, hosts: acm::Hosts) {
        self.acm.set_hosts(hosts);
    }

    /// See [`Paths::restore`].
    pub fn restore_paths(&mut self, now: Instant, snapshot: Snapshot, age: Duration) {
        self.cores.paths.restore(now, snapshot, age);
    }

    /// See [`Paths::preload`].
    pub fn preload_paths(&mut self, now: Instant, listed: Snapshot) {
        self.cores.paths.preload(now, listed);
    }

    /// See [`Paths::poll_restored`].
    pub fn poll_restored(&mut self) -> Option<Restored> {
        self.cores.paths.poll_restored()
    }

    /// The outcome of a nudge for which the driver found no interface. The nudge is only postponed
    /// if there may be one by now.
    pub fn nudge_without_place(&self) -> local_service::Nudged {
        let may_be_there = !self.view.is_synced() || self.view.first_ipoib().is_some();
        if may_be_there { local_service::Nudged::Postponed } else { local_service::Nudged::Failed }
    }

    /// The local view.
    pub fn view(&self) -> &LocalView {
        &self.view
    }

    /// The server, which answers peers.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The client, which asks peers.
    pub fn client(&self) -> &Client {
        &self.cores.client
    }

    /// The paths, for which subnet administrators are asked.
    pub fn paths(&self) -> &Paths {
        &self.cores.paths
    }

    /// See [`Resolver::users`].
    pub fn users(&self) -> [(shares::Kind, &Counters<shares::Counter>, (usize, usize)); 3] {
        self.resolver.users()
    }

    /// The ACM service.
    pub fn acm(&self) -> &Acm {
        &self.acm
    }

    /// The rules of maps and programs.
    pub fn responder(&self) -> &Responder {
        &self.responder
    }

    /// The kernel's side.
    pub fn local_service(&self) -> &LocalService {
        &self.cores.local_service
    }
}

/// The GID that the administrator has listed for an address. This machine knows its own addresses better.
fn listed(acm: &Acm, view: &LocalView, target: IpAddr) -> Option<Gid> {
    let gid = acm.hosts().gid_of(&Address::Ip(target))?;
    view.gid_of(target, IfIndex::MIN).is_none().then_some(gid)
}

fn egresses(view: &LocalView) -> BTreeMap<IfIndex, Egress> {
    let usable = |status: &AddressStatus| (status.dad == Dad::Passed).then_some(status.address);
    let of = |interface: Interface| Egress {
        vrf: interface.vrf,
        addresses: interface.addresses.iter().filter_map(usable).collect(),
    };
    view.interfaces().map(|interface| (interface.ifindex, of(interface))).collect()
}

/// The GIDs with a floating LID, as the local view needs them.
fn flid_gids(paths: &Paths) -> BTreeMap<Gid, Gid> {
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
    use crate::ip2gid::client::{Route, SocketEvent};
    use crate::local_service::{Nudge, Nudged, Sender, Transmit};
    use crate::local_view::Subject;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const EGRESS: IfIndex = IfIndex::MIN;

    /// Performs the actions for which there is `room`; routes and sockets exist, addresses do not.
    fn done(node: &mut Node, local_service: bool) -> Vec<Output> {
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
                Output::Client(client::Output::Socket(SocketEvent::Open(socket))) => {
                    let input = client::Input::SocketOpened { socket };
                    node.handle_input(NOW, Input::Client(input));
                }
                Output::Client(client::Output::Route(candidate)) => {
                    let next_hop = "10.1.0.254".parse().unwrap();
                    let route = Some(Route { ifindex: EGRESS, next_hop });
                    let input = client::Input::Route { candidate, route };
                    node.handle_input(NOW, Input::Client(input));
                }
                output => done.push(output),
            }
        }
        done
    }

    #[test]
    fn nudge_without_an_interface_is_postponed_until_the_interfaces_are_known() {
        let mut node = Node::new(Config::default(), ChaCha12Rng::seed_from_u64(1));
        assert_eq!(node.nudge_without_place(), Nudged::Postponed);
        for input in [local_view::Input::DumpStarted, local_view::Input::DumpDone] {
            node.handle_input(NOW, Input::View(input));
        }
        assert_eq!(node.nudge_without_place(), Nudged::Failed);
    }

    #[test]
    fn full_kernel_socket_holds_back_only_outputs_for_the_kernel() {
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
        let [Output::View(_), Output::Client(client::Output::Query(query))] =
            without_room.as_slice()
        else {
            panic!("{without_room:?}")
        };
        assert_eq!(query.to.ip(), target);
        let with_room = done(&mut node, true);
        let told = with_room.as_slice();
        let [Output::LocalService(Transmit::Message(_)), last] = told else { panic!("{told:?}") };
        assert_eq!(last, &Output::LocalService(Transmit::Nudge(Nudge::IfQuiet)));
    }
}
