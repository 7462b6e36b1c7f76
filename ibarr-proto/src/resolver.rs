// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Resolves IP addresses to GIDs for all callers on this node: an address of this node is answered
//! from the local view, any other by the [`client`].
//!
//! The kernel asks through [`local_service`].
//!
//! It also resolves GIDs to paths, with [`paths`].
//!
//! Requests of users pass [`shares`] first. Requests of the kernel do not, because applications
//! wait for them; they find room however much users ask.
//!
//! This file is long because every input passes through the same tables, whether a user or the kernel asks.

#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, VecDeque};

use ibarr_common::ib::SubnetPrefix;
use ibarr_common::wire::ls::{PathUse, ResolvePath};
use ibarr_common::wire::sa::PathQuestion;
use ibarr_common::{IfIndex, Instant};

use crate::counters::Counters;
use crate::ip2gid::client::{self, Cached, Client};
use crate::ip2gid::server::Local;
use crate::ip2gid::{Question, is_link_local};
use crate::local_service::{self, LocalService};
use crate::paths::{self, Paths, PortName, Sought};
use crate::places::Room;
use crate::request::{
    AddressRequest, KernelRequest, Outcome, PathRequest, RequestId, Source, UserRequest,
};
use crate::sa::{PortIndex, Rank};
use crate::shares::{self, Limits, Shares, User};
use crate::trace::{self, Caller, Id, Trace};

/// Which core asks for what, and what becomes of the answer; see the [module](self). It owns no core:
/// the [`Node`](crate::node::Node) lends them to each call.
///
/// Others bound its tables, and count what they refuse: [`local_service::Limits`] bounds the requests
/// of the kernel, each of which is in at most one table, and [`Limits`] those of users.
#[derive(Debug)]
pub struct Resolver {
    /// The subnet of each port, or its last one if the port is gone.
    subnets: BTreeMap<PortIndex, SubnetPrefix>,
    /// Requests of the kernel that arrived before this node knew its own addresses.
    early: BTreeMap<KernelRequest, Wanted>,
    /// Users' questions: waiting ones, and the users of those that have been admitted.
    users: Shares<(UserRequest, Wanted)>,
    askers: BTreeMap<UserRequest, User>,
    /// The same for paths.
    path_users: Shares<PathRequest>,
    acm_users: Shares<PathRequest>,
    path_askers: BTreeMap<UserRequest, User>,
    events: VecDeque<Event>,
}

/// Limits for users' questions about addresses. All users together get a small part of the client's
/// default number of flights. The number that may wait is what the control socket admits.
pub const ADDRESSES: Limits = Limits {
    under_way: Room { all: 1024, of_user: 256 },
    waiting: Room { all: 65_536, of_user: 8192 },
    rate: 4096,
    burst: 512,
};

/// Limits for users' requests for paths, which load the administrator of a whole subnet.
pub const PATHS: Limits = Limits {
    under_way: Room { all: 16, of_user: 4 },
    waiting: Room { all: 4096, of_user: 1024 },
    rate: 20,
    burst: 20,
};

/// The same for requests of the ACM service. An application that starts on all nodes of a fabric asks for many paths
/// at once, and then finds them in memory, which costs nothing.
pub const ACM_PATHS: Limits = Limits {
    under_way: Room { all: 1024, of_user: 256 },
    waiting: Room { all: 16_384, of_user: 4096 },
    rate: PATHS.rate,
    burst: 1000,
};

/// A question with its times.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    question: Question,
    asked_at: Instant,
    deadline: Instant,
    /// Whether the peer is asked even if its answer is remembered.
    is_fresh: bool,
}

/// An input of the resolver, or of a core that it connects.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// An event of the client's sockets, routes or datagrams.
    Client(client::Input<'a>),
    /// An event of the socket to the kernel.
    LocalService(local_service::Input<'a>),
    /// An event of an InfiniBand port, or a received MAD.
    Paths(paths::Input<'a>),
    /// A user of this node asks for a path. One [`Event::PathAnswered`] follows.
    ResolvePath(PathRequest),
    /// A user of this node asks for a GID. One [`Event::Answered`] follows.
    Resolve(AddressRequest),
}

/// An event for the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Event {
    /// The answer to a request; each request gets exactly one.
    Answered { id: UserRequest, outcome: Outcome },
    /// The answer to a path request; each request gets exactly one.
    PathAnswered { id: UserRequest, outcome: paths::Outcome },
}

/// The cores that the resolver connects.
#[derive(Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Cores {
    pub client: Client,
    pub paths: Paths,
    pub local_service: LocalService,
    /// What happens to each request, if that is traced.
    pub trace: Trace,
}

impl Default for Resolver {
    /// No request is pending.
    fn default() -> Self {
        Self {
            subnets: BTreeMap::new(),
            early: BTreeMap::new(),
            users: Shares::new(ADDRESSES),
            askers: BTreeMap::new(),
            path_users: Shares::new(PATHS),
            acm_users: Shares::new(ACM_PATHS),
            path_askers: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }
}

impl Resolver {
    /// Passes an input to its core, and what follows from it to the others.
    pub fn handle_input(
        &mut self,
        cores: &mut Cores,
        now: Instant,
        view: &impl Local,
        input: Input<'_>,
    ) {
        match input {
            Input::Client(input) => {
                cores.client.handle_input(now, input);
                self.settle(cores, now);
            }
            Input::Paths(input) => self.handle_paths(cores, now, input),
            Input::LocalService(input) => {
                cores.local_service.handle_input(now, input);
                self.serve(cores, now, view);
            }
            Input::Resolve(AddressRequest { id, user, question, is_fresh, deadline }) => {
                let wanted = Wanted { is_fresh, ..Wanted::of_user(question, deadline) };
                self.offer(cores, now, view, user, (id, wanted));
            }
            Input::ResolvePath(request) => {
                let user = request.user;
                let id = Id::Path(RequestId::User(request.id));
                cores.trace.asked(now, id, caller(request.id, user), request.question, now);
                // What is remembered costs a user nothing of its share.
                if let Sought::Path(question) = request.question
                    && let Some(outcome) = cores.paths.lookup(now, &request.port, question)
                {
                    return self.answer_users_path(cores, now, request.id, outcome);
                }
                let deadline = request.deadline;
                if let Err(request) =
                    self.path_shares(request.id).offer(now, user, request, deadline)
                {
                    self.refuse_path(cores, now, request.id);
                }
                self.admit(cores, now, view);
            }
        }
    }

    fn offer(
        &mut self,
        cores: &mut Cores,
        now: Instant,
        view: &impl Local,
        user: User,
        request: (UserRequest, Wanted),
    ) {
        let (id, Wanted { question, deadline, .. }) = request;
        let traced = Id::Address(RequestId::User(id));
        cores.trace.asked(now, traced, caller(id, user), question, now);
        if let Err((id, _)) = self.users.offer(now, user, request, deadline) {
            self.answer_user(cores, now, id, Outcome::Overloaded);
        }
        self.admit(cores, now, view);
    }

    /// Counters and load of users' requests for addresses and for paths: name, counters, (in
    /// progress, waiting).
    pub fn users(&self) -> [(shares::Kind, &Counters<shares::Counter>, (usize, usize)); 3] {
        [
            (shares::Kind::Addresses, self.users.counters(), self.users.load()),
            (shares::Kind::Paths, self.path_users.counters(), self.path_users.load()),
            (shares::Kind::AcmPaths, self.acm_users.counters(), self.acm_users.load()),
        ]
    }

    /// Admits users' requests for which there is room, and refuses those that have waited too long.
    fn admit(&mut self, cores: &mut Cores, now: Instant, view: &impl Local) {
        while let Some((id, _)) = self.users.poll_refused(now) {
            self.answer_user(cores, now, id, Outcome::Overloaded);
        }
        while let Some((user, (id, wanted))) = self.users.poll_admitted(now) {
            self.askers.insert(id, user);
            match own(view, wanted.question) {
                Some(outcome) => self.answer_user(cores, now, id, outcome),
                None => self.ask_peers(cores, now, RequestId::User(id), wanted),
            }
        }
        let both: [fn(&mut Self) -> &mut Shares<PathRequest>; 2] =
            [|this| &mut this.path_users, |this| &mut this.acm_users];
        for shares in both {
            while let Some(request) = shares(self).poll_refused(now) {
                self.refuse_path(cores, now, request.id);
            }
            while let Some((user, request)) = shares(self).poll_admitted(now) {
                let PathRequest { id, port, question, deadline, .. } = request;
                self.path_askers.insert(id, user);
                let (id, rank) = (RequestId::User(id), Rank::Other);
                match question {
                    Sought::Path(question) => {
                        let request = paths::Request { id, port, question, rank, deadline };
                        cores.paths.resolve(now, request);
                    }
                    Sought::Fresh(question) => {
                        let request = paths::Request { id, port, question, rank, deadline };
                        cores.paths.resolve_fresh(now, request);
                    }
                    Sought::Known(query) => {
                        cores.paths.ask_directly(now, id, &port, query, deadline);
                    }
                }
                self.settle(cores, now);
            }
        }
    }

    /// What the local view or the cache knows of the address, however old it is. Sends no query.
    pub fn lookup(
        &self,
        cores: &Cores,
        now: Instant,
        view: &impl Local,
        question: Question,
    ) -> Option<Outcome> {
        let client = &cores.client;
        own(view, question).or_else(|| {
            let known = client.lookup(now, question);
            known.or_else(|| client.lookup_neighbour(now, question)).map(cached)
        })
    }

    fn path_shares(&mut self, id: UserRequest) -> &mut Shares<PathRequest> {
        match id {
            UserRequest::Control(_) => &mut self.path_users,
            UserRequest::Acm(_) => &mut self.acm_users,
        }
    }

    fn answer_user(&mut self, cores: &mut Cores, now: Instant, id: UserRequest, outcome: Outcome) {
        if let Some(user) = self.askers.remove(&id) {
            self.users.ended(user);
        }
        let traced = trace::Outcome::Address(outcome);
        cores.trace.answered(now, Id::Address(RequestId::User(id)), traced);
        self.events.push_back(Event::Answered { id, outcome });
    }

    fn refuse_path(&mut self, cores: &mut Cores, now: Instant, id: UserRequest) {
        self.answer_users_path(cores, now, id, paths::Outcome::Overloaded);
    }

    fn answer_users_path(
        &mut self,
        cores: &mut Cores,
        now: Instant,
        id: UserRequest,
        outcome: paths::Outcome,
    ) {
        if let Some(user) = self.path_askers.remove(&id) {
            self.path_shares(id).ended(user);
        }
        let traced = trace::Outcome::Path { outcome, is_left_to_kernel: false };
        cores.trace.answered(now, Id::Path(RequestId::User(id)), traced);
        self.events.push_back(Event::PathAnswered { id, outcome });
    }

    fn handle_paths(&mut self, cores: &mut Cores, now: Instant, input: paths::Input<'_>) {
        if let paths::Input::Port { port, facts, .. } = &input
            && let Some(after) = facts.gids.first().map(|gid| gid.subnet_prefix())
            && let Some(before) = self.subnets.insert(*port, after)
            && before != after
        {
            cores.client.subnet_changed(now, before, after);
        }
        cores.paths.handle_input(now, input);
        self.settle(cores, now);
    }

    /// Performs all actions that are due. Early calls do nothing.
    pub fn handle_timeout(&mut self, cores: &mut Cores, now: Instant, view: &impl Local) {
        cores.client.handle_timeout(now);
        cores.paths.handle_timeout(now);
        self.settle(cores, now);
        cores.local_service.handle_timeout(now);
        self.serve(cores, now, view);
        self.admit(cores, now, view);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    pub fn poll_timeout(&self, cores: &Cores) -> Option<Instant> {
        let timeouts = [
            cores.client.poll_timeout(),
            cores.paths.poll_timeout(),
            cores.local_service.poll_timeout(),
            self.users.poll_timeout(),
            self.path_users.poll_timeout(),
            self.acm_users.poll_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Begins to search for the answers that the kernel wants.
    fn serve(&mut self, cores: &mut Cores, now: Instant, view: &impl Local) {
        if !self.early.is_empty() && view.is_known() {
            for (flight, wanted) in core::mem::take(&mut self.early) {
                self.look_for(cores, now, view, flight, wanted);
            }
        }
        while let Some(event) = cores.local_service.poll_event() {
            match event {
                local_service::Event::Wanted { flight, question, asked_at, deadline } => {
                    let id = Id::Address(RequestId::Kernel(flight));
                    cores.trace.asked(now, id, Caller::Kernel, question, asked_at);
                    let wanted = Wanted { question, asked_at, deadline, is_fresh: false };
                    if view.is_known() {
                        self.look_for(cores, now, view, flight, wanted);
                    } else {
                        // Peers would not answer for an address of this node.
                        self.early.insert(flight, wanted);
                    }
                }
                local_service::Event::Unwanted { flight, .. } => {
                    cores.trace.forget(Id::Address(RequestId::Kernel(flight)));
                    if self.early.remove(&flight).is_none() {
                        let id = RequestId::Kernel(flight);
                        cores.client.handle_input(now, client::Input::Cancel { id });
                    }
                }
                local_service::Event::Dropped { question, asked_at, why } => {
                    cores.trace.dropped(now, question, asked_at, why);
                }
                local_service::Event::PathOverloaded { seq, port } => {
                    let may = cores.paths.may_fall_back(now, &port);
                    cores.local_service.path_overloaded(now, seq, may);
                }
                local_service::Event::PathWanted { flight, request, deadline } => {
                    self.seek_path(cores, now, flight, &request, deadline);
                }
            }
        }
        self.settle(cores, now);
    }

    fn seek_path(
        &mut self,
        cores: &mut Cores,
        now: Instant,
        flight: KernelRequest,
        request: &ResolvePath,
        deadline: Instant,
    ) {
        let ResolvePath { device, port, path_use, service_id, .. } = *request;
        let ResolvePath { dgid, sgid, tclass, pkey, qos_class, .. } = *request;
        // A request for one direction ignores the other (`ib_nl_set_path_rec_attrs`).
        let reversible = path_use != PathUse::Unidirectional;
        let question = PathQuestion { dgid, sgid, reversible, pkey, tclass, service_id, qos_class };
        let id = RequestId::Kernel(flight);
        cores.trace.asked(now, Id::Path(id), Caller::Kernel, question, now);
        let port = PortName { device, port };
        let rank = Rank::Kernel;
        cores.paths.resolve(now, paths::Request { id, port, question, rank, deadline });
        self.settle(cores, now);
    }

    fn look_for(
        &mut self,
        cores: &mut Cores,
        now: Instant,
        view: &impl Local,
        flight: KernelRequest,
        wanted: Wanted,
    ) {
        let client = &mut cores.client;
        let recall = || client.recall(now, wanted.question, false).map(cached);
        match own(view, wanted.question).or_else(recall) {
            Some(outcome) => answer_kernel(cores, now, flight, outcome),
            None => self.ask_peers(cores, now, RequestId::Kernel(flight), wanted),
        }
    }

    fn ask_peers(&mut self, cores: &mut Cores, now: Instant, id: RequestId, wanted: Wanted) {
        let Wanted { question, asked_at, deadline, is_fresh } = wanted;
        if cores.trace.is_on() && !is_fresh && cores.client.is_older(now, question) {
            cores.trace.step(now, question, trace::Step::Older);
        }
        // The kernel does not ask again by itself when the peer has returned.
        let heeds_hints = matches!(id, RequestId::User(_));
        let input = if is_fresh {
            client::Input::ResolveFresh { id, question, deadline }
        } else {
            client::Input::Resolve { id, question, asked_at, deadline, heeds_hints }
        };
        cores.client.handle_input(now, input);
        self.settle(cores, now);
    }

    /// Passes answers to the requests that wait for them.
    fn settle(&mut self, cores: &mut Cores, now: Instant) {
        while let Some(paths::Answered { id, outcome, is_left_to_kernel }) =
            cores.paths.poll_event()
        {
            match id {
                RequestId::User(id) => self.answer_users_path(cores, now, id, outcome),
                RequestId::Kernel(flight) => {
                    cores.local_service.path_answered(now, flight, &outcome, is_left_to_kernel);
                    let traced = trace::Outcome::Path { outcome, is_left_to_kernel };
                    cores.trace.answered(now, Id::Path(RequestId::Kernel(flight)), traced);
                }
            }
        }
        while let Some(client::Answered { id, outcome }) = cores.client.poll_event() {
            match id {
                RequestId::User(id) => self.answer_user(cores, now, id, outcome),
                RequestId::Kernel(flight) => answer_kernel(cores, now, flight, outcome),
            }
        }
    }
}

impl Wanted {
    /// With the oldest time there is: the request gives way to those of the kernel, and they never
    /// to it.
    fn of_user(question: Question, deadline: Instant) -> Self {
        Self { question, asked_at: Instant::BOOT, deadline, is_fresh: false }
    }
}

fn answer_kernel(cores: &mut Cores, now: Instant, flight: KernelRequest, outcome: Outcome) {
    let traced = trace::Outcome::Address(outcome);
    cores.trace.answered(now, Id::Address(RequestId::Kernel(flight)), traced);
    cores.local_service.answered(now, flight, outcome);
}

fn caller(id: UserRequest, user: User) -> Caller {
    match id {
        UserRequest::Control(_) => Caller::Control(user),
        UserRequest::Acm(_) => Caller::Acm(user),
    }
}

/// The answer from the local view; `None` if the address is not of this node.
fn own(view: &impl Local, question: Question) -> Option<Outcome> {
    let target = question.target();
    // Without an interface, a link-local address may be any node's.
    let ingress = match question.egress() {
        Some(egress) => egress,
        None if is_link_local(target) => return None,
        None => ANY_INTERFACE,
    };
    match view.gid_of(target, ingress) {
        Some(gid) => Some(Outcome::Found { gid, source: Source::Local }),
        None if !is_link_local(target) && view.is_ours(target) => Some(Outcome::NotFound),
        None => None,
    }
}

fn cached(cached: Cached) -> Outcome {
    cached.gid.map_or(Outcome::NotFound, |gid| Outcome::Found { gid, source: Source::Cache })
}

/// The result for a user that waits for no peer.
pub(crate) fn recall(
    cores: &mut Cores,
    now: Instant,
    view: &impl Local,
    question: Question,
) -> Option<Outcome> {
    own(view, question).or_else(|| cores.client.recall(now, question, true).map(cached))
}

/// Any interface: an address without scope has the same GID on all of them.
const ANY_INTERFACE: IfIndex = match IfIndex::new(1) {
    Some(loopback) => loopback,
    None => unreachable!(),
};
