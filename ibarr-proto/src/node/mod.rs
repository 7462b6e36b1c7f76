// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A node: the cores, connected. The daemon's loop and the simulation both drive this type, so that
//! the simulation proves the order of steps that the daemon executes.
//!
//! What one core has for another changes it as an input, by its `handle_input`; look-ups, which change nothing, and
//! reports to the trace are calls. What the driver alone wants, to configure, forget or restore, is a call of it.

mod driver;
mod facts;
mod own;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;

use ibarr_common::Instant;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;

use crate::acm::{self, Acm};
use crate::health::{self, Health};
use crate::ip2gid::Prefixes;
use crate::ip2gid::client::{self, Client};
use crate::ip2gid::server::Server;
use crate::local_service::{self, LocalService};
use crate::local_view::{self, LocalView};
use crate::paths::{self, Paths, PortChange, Recalled};
use crate::request::{Caller, Freshness, Outcome, RequestId, UserRequest};
use crate::requests::{self, AddressRequest, Requests};
use crate::responder::{self, Responder};
use crate::sa;
use crate::trace::{self, Trace};

/// All cores of a node, see the [module](self).
///
/// A turn consists of any number of [`handle_input`](Self::handle_input), at most one
/// [`handle_timeout`](Self::handle_timeout) (see [`turn`](crate::turn)), then [`poll`](Self::poll) until it returns
/// `None`, all with the time of the turn; then the driver waits until [`poll_timeout`](Self::poll_timeout).
pub struct Node {
    view: LocalView,
    server: Server,
    client: Client,
    paths: Paths,
    local_service: LocalService,
    acm: Acm,
    requests: Requests,
    health: Health,
    responder: Responder,
    /// What happens to each request, if that is traced.
    trace: Trace,
    /// The time of the turn.
    now: Instant,
    /// Answers for the users of the driver.
    outputs: VecDeque<Output>,
    /// No core has an output that comes before those for the kernel, until one is told something.
    is_drained: bool,
    /// When something is due next but what the kernel is told. It is known as long as no other core is told or asked for
    /// anything.
    due: Option<Instant>,
    is_due_known: bool,
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
    ResolvePath(paths::Request),
}

impl From<responder::Input> for Input<'_> {
    fn from(input: responder::Input) -> Self {
        Self::Responder(input)
    }
}

impl<'a> From<client::mirror::Input<'a>> for Input<'a> {
    fn from(input: client::mirror::Input<'a>) -> Self {
        Self::Client(client::Input::Mirror(input))
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
    /// Change or read the map of peers' answers.
    Mirror(client::mirror::Output),
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
            client: Client::new(client, rng),
            paths,
            local_service: LocalService::new(local_service),
            acm: Acm::new(acm),
            requests: Requests::default(),
            health: Health::default(),
            trace: Trace::default(),
            now: Instant::BOOT,
            outputs: VecDeque::new(),
            is_drained: false,
            due: None,
            is_due_known: false,
        }
    }

    /// Replaces the configuration.
    pub fn reconfigure(&mut self, now: Instant, config: Config) {
        let Config { view, allow, responder, client, local_service, paths, acm } = config;
        self.note_change();
        self.paths.reconfigure(paths);
        self.view.reconfigure(view);
        self.server.reconfigure(allow.clone());
        self.responder.reconfigure(now, responder, allow);
        self.client.reconfigure(now, client);
        self.local_service.reconfigure(local_service);
        self.acm.reconfigure(acm);
        self.health.handle_input(now, health::Input::Reconfigured);
    }

    /// A core may have an output now, and may be due at another time.
    fn note_change(&mut self) {
        (self.is_drained, self.is_due_known) = (false, false);
    }

    /// Passes an input to its core.
    pub fn handle_input<'a>(&mut self, now: Instant, input: impl Into<Input<'a>>) {
        let input = input.into();
        self.now = now;
        if let Input::Responder(responder::Input::Report(on)) = input
            && self.responder.wants_packets() == on
        {
            return;
        }
        // What the kernel says is passed on by `route`, if it concerns another core.
        let is_kernel = matches!(input, Input::LocalService(_));
        (self.is_drained, self.is_due_known) =
            (self.is_drained && is_kernel, self.is_due_known && is_kernel);
        match input {
            Input::View(input) => {
                let was_known = self.view.is_synced();
                self.view.handle_input(now, input);
                self.acm.handle_input(now, acm::Input::NetworkChanged);
                if self.view.is_synced() && !was_known {
                    self.requests.handle_input(now, requests::Input::Known);
                    self.acm.handle_input(now, acm::Input::NodeChanged);
                }
            }
            Input::Responder(input) => {
                return self.responder.handle_input(now, &self.view, input);
            }
            Input::Health(input) => return self.health.handle_input(now, input),
            Input::Client(input) => self.client.handle_input(now, input),
            Input::Paths(input) => self.paths.handle_input(now, input),
            Input::LocalService(input) => {
                if let local_service::Input::Stop = input {
                    self.is_due_known = false;
                    self.health.handle_input(now, health::Input::Stop);
                }
                self.local_service.handle_input(now, input);
            }
            Input::Acm(input) => self.acm.handle_input(now, input),
            Input::Resolve(request) => self.ask(now, request),
            Input::ResolvePath(request) => self.ask_for_path(now, request),
        }
        self.route(now);
    }

    /// Passes on what the cores have for each other. Each arm is one edge between two cores. An answer from memory is
    /// only passed to cores that have no output but for the kernel.
    fn route(&mut self, now: Instant) {
        loop {
            if let Some(event) = self.requests.poll_event() {
                self.is_drained &= event.is_for_kernel_alone();
                self.route_request(now, event);
            } else if let Some(event) = self.client.poll_event() {
                self.route_client(now, event);
            } else if let Some(change) = self.paths.poll_change() {
                self.is_drained = false;
                self.route_ports(now, change);
            } else if let Some(event) = self.paths.poll_event() {
                self.route_paths(now, event);
            } else if let Some(event) = self.local_service.poll_event() {
                self.route_kernel(now, event);
            } else if let Some(event) = self.acm.poll_event() {
                self.is_drained = false;
                self.route_acm(now, event);
            } else {
                return;
            }
        }
    }

    fn route_client(&mut self, now: Instant, event: client::Event) {
        let input = match event {
            client::Event::Answered { id, outcome } => requests::Input::Answered { id, outcome },
            client::Event::NotRemembered(request) => requests::Input::NotRemembered(request),
        };
        self.requests.handle_input(now, input);
    }

    fn route_ports(&mut self, now: Instant, change: PortChange) {
        match change {
            PortChange::Facts => {
                self.acm.handle_input(now, acm::Input::NodeChanged);
            }
            PortChange::Subnet { before, after } => {
                self.client.handle_input(now, client::Input::Subnet { before, after });
            }
        }
    }

    fn route_paths(&mut self, now: Instant, event: paths::Event) {
        let input = match event {
            paths::Event::Answered(answered) => requests::Input::PathAnswered(answered),
            paths::Event::NotRemembered(request) => requests::Input::PathNotRemembered(request),
            paths::Event::Overloaded { seq, is_left_to_kernel } => {
                let input = local_service::Input::PathOverloaded { seq, is_left_to_kernel };
                return self.local_service.handle_input(now, input);
            }
        };
        self.requests.handle_input(now, input);
    }

    fn route_acm(&mut self, now: Instant, event: acm::Event) {
        match event {
            acm::Event::Ask { id, ask } => {
                let answer = own::answer(ask, &self.view, &self.paths);
                let answer = answer.unwrap_or(acm::Answer::NotYet(ask));
                self.acm.handle_input(now, acm::Input::Answer { id, answer: &answer });
            }
            acm::Event::Address(request) => self.ask(now, request),
            acm::Event::Path(request) => self.ask_for_path(now, request),
        }
    }

    fn route_request(&mut self, now: Instant, event: requests::Event) {
        match event {
            requests::Event::LookUp(request) => {
                let client::Request { caller, question, .. } = request.request;
                let is_told = || caller != Caller::Kernel || self.view.tells_kernel(question);
                let own = self.view.lookup(question).filter(|_| is_told());
                self.requests.handle_input(now, requests::Input::LookedUp(request, own));
            }
            requests::Event::Recall(request) => {
                self.client.handle_input(now, client::Input::Recall(request));
            }
            requests::Event::RecallPath(request) => {
                self.paths.handle_input(now, paths::Input::Recall(request));
            }
            requests::Event::NotRemembered(id) => {
                self.acm.handle_input(now, acm::Input::NotRemembered(id));
            }
            requests::Event::AskPeer(request) => {
                let client::Request { question, freshness, .. } = request;
                let may_be_old = freshness != Freshness::Fresh;
                if self.trace.is_on() && may_be_old && self.client.is_older(now, question) {
                    self.trace.step(now, question, trace::Step::Older);
                }
                self.client.handle_input(now, client::Input::Resolve(request));
            }
            requests::Event::AskSa(request) => {
                self.paths.handle_input(now, paths::Input::Resolve(request));
                self.is_drained &= !self.paths.has_transmit();
            }
            requests::Event::Cancel(id) => {
                let id = RequestId::Kernel(id);
                self.client.handle_input(now, client::Input::Cancel { id });
            }
            requests::Event::Answered { id, outcome } => {
                self.trace.answered(now, trace::Answered::Address(id, outcome));
                match id {
                    RequestId::Kernel(id) => {
                        let input = local_service::Input::Answered { id, outcome };
                        self.local_service.handle_input(now, input);
                    }
                    RequestId::User(UserRequest::Acm(id)) => {
                        self.acm.handle_input(now, acm::Input::Address { id, outcome });
                    }
                    RequestId::User(id) => {
                        self.outputs.push_back(Output::Answered { id, outcome });
                    }
                }
            }
            requests::Event::PathAnswered(answered) => {
                self.trace.answered(now, trace::Answered::Path(answered));
                let paths::Answered { id, outcome, is_left_to_kernel } = answered;
                match id {
                    RequestId::Kernel(id) => {
                        let outcome = &outcome;
                        let input =
                            local_service::Input::PathAnswered { id, outcome, is_left_to_kernel };
                        self.local_service.handle_input(now, input);
                    }
                    RequestId::User(UserRequest::Acm(id)) => {
                        self.acm.handle_input(now, acm::Input::Path { id, outcome });
                    }
                    RequestId::User(id) => {
                        self.outputs.push_back(Output::PathAnswered { id, outcome });
                    }
                }
            }
        }
    }

    fn route_kernel(&mut self, now: Instant, event: local_service::Event) {
        match event {
            local_service::Event::Wanted { id, question, asked_at, deadline } => {
                let (id, caller, freshness) =
                    (RequestId::Kernel(id), Caller::Kernel, Freshness::Any);
                let request =
                    client::Request { id, caller, question, asked_at, deadline, freshness };
                self.ask(now, AddressRequest { listed: None, request });
            }
            local_service::Event::PathWanted { id, port, question, deadline } => {
                if let Some(recalled) = self.recall_at_once(now, &port, question) {
                    let Recalled { outcome, is_left_to_kernel, .. } = &recalled;
                    let is_left_to_kernel = *is_left_to_kernel;
                    let input =
                        local_service::Input::PathAnswered { id, outcome, is_left_to_kernel };
                    return self.local_service.handle_input(now, input);
                }
                let (id, caller, freshness) =
                    (RequestId::Kernel(id), Caller::Kernel, Freshness::Any);
                let question = question.into();
                let request = paths::Request { id, caller, port, question, freshness, deadline };
                self.ask_for_path(now, request);
            }
            local_service::Event::Unwanted { id, .. } => {
                self.is_due_known = false;
                self.trace.forget(trace::Id::Address(RequestId::Kernel(id)));
                self.requests.handle_input(now, requests::Input::Unwanted(id));
            }
            local_service::Event::Dropped { question, asked_at, why } => {
                self.trace.dropped(now, question, asked_at, why);
            }
            local_service::Event::PathOverloaded { seq, port } => {
                self.note_change();
                self.paths.handle_input(now, paths::Input::Overloaded { seq, port });
            }
        }
    }

    fn ask(&mut self, now: Instant, request: AddressRequest) {
        let client::Request { id, caller, question, asked_at, .. } = request.request;
        let asked_at = if caller.is_kernel() { asked_at } else { now };
        self.trace.asked(now, trace::Id::Address(id), caller, question, asked_at);
        self.is_due_known = false;
        self.requests.handle_input(now, requests::Input::Address(request));
    }

    fn ask_for_path(&mut self, now: Instant, request: paths::Request) {
        let paths::Request { id, caller, question, .. } = request;
        self.trace.asked(now, trace::Id::Path(id), caller, question, now);
        self.is_due_known = false;
        self.requests.handle_input(now, requests::Input::Path(request));
    }

    /// Performs all actions that are due, but for [`Self::assess`]. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.note_change();
        self.view.handle_timeout(now);
        if let Some(egresses) = self.view.poll_egresses() {
            self.client.handle_input(now, client::Input::Network(egresses));
        }
        self.client.handle_timeout(now);
        self.paths.handle_timeout(now);
        self.local_service.handle_timeout(now);
        self.requests.handle_timeout(now);
        self.acm.handle_timeout(now);
        self.route(now);
        self.responder.handle_timeout(now, &self.view);
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        if !self.is_due_known {
            (self.due, self.is_due_known) = (self.first_timeout(), true);
        }
        debug_assert_eq!(
            self.due,
            self.first_timeout(),
            "a core is due at another time without an input"
        );
        [self.due, self.local_service.poll_timeout()].into_iter().flatten().min()
    }

    fn first_timeout(&self) -> Option<Instant> {
        let timeouts = [
            self.view.poll_timeout(),
            self.client.poll_timeout(),
            self.paths.poll_timeout(),
            self.requests.poll_timeout(),
            self.acm.poll_timeout(),
            self.health.poll_timeout(),
            self.responder.poll_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// The next action, which the driver performs before it polls again.
    ///
    /// Outputs for the kernel come late: an opened socket causes queries, and a failure causes
    /// answers. Only when all queries are out are all answers known that one nudge can cover. No caller waits for the
    /// map of peers' answers, which comes last.
    pub fn poll(&mut self, room: Room) -> Option<Output> {
        let output = self.poll_in_order(room);
        self.is_due_known &= matches!(output, None | Some(Output::LocalService(_)));
        output
    }

    fn poll_in_order(&mut self, room: Room) -> Option<Output> {
        // A thousand answers for the kernel need not ask each other core a thousand times.
        if !self.is_drained {
            if let Some(output) = self.poll_first() {
                return Some(output);
            }
            self.is_drained = true;
        }
        debug_assert!(self.poll_first().is_none(), "a core has an output without an input");
        if room.local_service
            && let Some(transmit) = self.local_service.poll_transmit()
        {
            return Some(Output::LocalService(transmit));
        }
        self.client.poll_mirror().map(Output::Mirror)
    }

    fn poll_first(&mut self) -> Option<Output> {
        if let Some(request) = self.view.poll_transmit() {
            return Some(Output::View(request));
        }
        if let Some(output) = self.responder.poll_update() {
            return Some(Output::Responder(output));
        }
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if let Some(output) = self.acm.poll_output() {
            return Some(Output::Acm(output));
        }
        if let Some(event) = self.view.poll_event() {
            self.responder.handle_input(self.now, &self.view, responder::Input::Fact(event));
            return Some(Output::Changed(event));
        }
        if let Some(output) = self.responder.poll_output() {
            return Some(Output::Responder(output));
        }
        if let Some(output) = self.client.poll_transmit() {
            if let client::Output::Route(candidate) = output {
                self.health.handle_input(self.now, health::Input::Sent(candidate));
            }
            return Some(Output::Client(output));
        }
        self.paths.poll_transmit().map(Output::Sa)
    }
}
