// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The life of a caller's request: when it may ask, where its answer is looked for, and the end of it.
//!
//! | | waits first | then, in this order |
//! |---|---|---|
//! | the kernel | until this node knows its own addresses | own addresses, memory, peers |
//! | the control socket | for a place in the share of its user | own addresses, peers and what their client remembers |
//! | ACM | not | own addresses, the administrator's list, memory; then as the control socket |
//!
//! A path is looked for in memory first, which costs a user no share; the kernel's requests go to the [`paths`] at
//! once, which remember for themselves. A client of ACM that waits for what is remembered alone is told if nothing is,
//! and the search goes on.
//!
//! **Each request gets exactly one answer**, but one that the kernel has withdrawn gets none. **The kernel's requests
//! pass no share**, because applications wait for them: they find room however much users ask.
//!
//! This core asks no other: it emits [`Event`]s, and the [`Node`](crate::node::Node) brings back what they find. It is
//! bounded by others, which count what they refuse: [`local_service::Limits`](crate::local_service::Limits) bounds the
//! requests of the kernel, and [`Limits`] those of users.

use alloc::collections::{BTreeMap, VecDeque};
use core::mem;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;

use crate::counters::Counters;
use crate::ip2gid::Question;
use crate::ip2gid::client;
use crate::paths::{self, Search};
use crate::places::Room;
use crate::request::{
    Caller, Freshness, KernelRequest, Outcome, RequestId, ResolutionId, Source, UserRequest,
};
use crate::shares::{self, Limits, Shares, User};

/// The requests of all callers, see the [module](self).
#[derive(Debug)]
pub struct Requests {
    is_known: bool,
    /// Requests of the kernel that arrived before this node knew its own addresses.
    early: BTreeMap<KernelRequest, AddressRequest>,
    addresses: Shares<AddressRequest>,
    paths: Shares<paths::Request>,
    acm_paths: Shares<paths::Request>,
    /// The users of the requests that have their share.
    admitted: BTreeMap<UserRequest, User>,
    admitted_paths: BTreeMap<UserRequest, User>,
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

/// A request for the GID of an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressRequest {
    /// The GID that the administrator has listed for the address.
    pub listed: Option<Gid>,
    /// What the peers' client is asked.
    pub request: client::Request,
}

/// What a caller asks, and what other cores have found.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Input {
    /// This node knows its own addresses.
    Known,
    /// A caller asks for a GID. One [`Event::Answered`] follows.
    Address(AddressRequest),
    /// A caller asks for a path. One [`Event::PathAnswered`] follows, at the latest at the deadline, or a moment after
    /// the request if there is no room.
    Path(paths::Request),
    /// The kernel no longer wants an answer.
    Unwanted(KernelRequest),
    /// The answer to [`Event::LookUp`].
    LookedUp(AddressRequest, Option<Outcome>),
    /// [`Event::Recall`] has found nothing.
    NotRemembered(client::Request),
    /// [`Event::RecallPath`] has found nothing.
    PathNotRemembered(paths::Request),
    /// The answer to [`Event::Recall`] or [`Event::AskPeer`].
    Answered { id: RequestId, outcome: Outcome },
    /// The answer to [`Event::RecallPath`] or [`Event::AskSa`].
    PathAnswered(paths::Answered),
}

/// What another core is to do.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Event {
    /// Look for the address among those of this node.
    LookUp(AddressRequest),
    /// Look for the answer in memory.
    Recall(client::Request),
    /// Look for the path in memory.
    RecallPath(paths::Request),
    /// Nothing is remembered for a client of ACM, and the network is asked.
    NotRemembered(ResolutionId),
    AskPeer(client::Request),
    AskSa(paths::Request),
    /// The answer of the peer is no longer wanted.
    Cancel(KernelRequest),
    Answered {
        id: RequestId,
        outcome: Outcome,
    },
    PathAnswered(paths::Answered),
}

impl Event {
    /// Whether it leads to no output but answers to the kernel and MADs.
    pub(crate) fn is_for_kernel_alone(&self) -> bool {
        match self {
            Self::LookUp(_) | Self::AskSa(_) => true,
            Self::Answered { id, .. } | Self::PathAnswered(paths::Answered { id, .. }) => {
                matches!(id, RequestId::Kernel(_))
            }
            _ => false,
        }
    }
}

impl Default for Requests {
    /// No request is pending.
    fn default() -> Self {
        Self {
            is_known: false,
            early: BTreeMap::new(),
            addresses: Shares::new(ADDRESSES),
            paths: Shares::new(PATHS),
            acm_paths: Shares::new(ACM_PATHS),
            admitted: BTreeMap::new(),
            admitted_paths: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }
}

impl Requests {
    /// Takes an input. [`Self::poll_event`] follows.
    pub fn handle_input(&mut self, now: Instant, input: Input) {
        match input {
            Input::Known => {
                self.is_known = true;
                self.events.extend(mem::take(&mut self.early).into_values().map(Event::LookUp));
            }
            Input::Address(request) => match (request.request.caller, request.request.id) {
                (Caller::Kernel, RequestId::Kernel(id)) if !self.is_known => {
                    // Peers would not answer for an address of this node.
                    self.early.insert(id, request);
                }
                (Caller::Kernel | Caller::Acm(_), _) => {
                    self.events.push_back(Event::LookUp(request));
                }
                (Caller::Control(user), _) => self.offer(now, user, request),
            },
            Input::Unwanted(id) => {
                if self.early.remove(&id).is_none() {
                    self.events.push_back(Event::Cancel(id));
                }
            }
            Input::LookedUp(request, own) => {
                let listed = || {
                    let gid = request.listed?;
                    Some(Outcome::Found { gid, source: Source::Cache })
                };
                let found = own.filter(|own| matches!(own, Outcome::Found { .. }));
                match found.or_else(listed).or(own) {
                    Some(outcome) => self.end(request.request.id, outcome),
                    None if self.may_ask(&request.request) => {
                        self.events.push_back(Event::AskPeer(request.request));
                    }
                    None => self.events.push_back(Event::Recall(request.request)),
                }
            }
            Input::NotRemembered(request) => match request.caller.user() {
                None => self.events.push_back(Event::AskPeer(request)),
                Some(user) => {
                    self.not_remembered(request.id, request.freshness);
                    self.offer(now, user, AddressRequest { listed: None, request });
                }
            },
            Input::Answered { id, outcome } => self.end(id, outcome),
            Input::Path(request) => match (request.caller.user(), request.question) {
                (None, _) => self.events.push_back(Event::AskSa(request)),
                (Some(_), Search::Path(_)) if request.freshness != Freshness::Fresh => {
                    self.events.push_back(Event::RecallPath(request));
                }
                (Some(user), _) => self.offer_path(now, user, request),
            },
            Input::PathNotRemembered(request) => match request.caller.user() {
                None => self.events.push_back(Event::AskSa(request)),
                Some(user) => {
                    self.not_remembered(request.id, request.freshness);
                    self.offer_path(now, user, request);
                }
            },
            Input::PathAnswered(answered) => self.end_path(answered),
        }
    }

    /// Admits requests for which there is room, and refuses those that have waited too long. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(request) = self.addresses.poll_refused(now) {
            self.end(request.request.id, Outcome::Overloaded);
        }
        while let Some((user, request)) = self.addresses.poll_admitted(now) {
            if let RequestId::User(id) = request.request.id {
                self.admitted.insert(id, user);
            }
            self.events.push_back(Event::LookUp(request));
        }
        let all: [fn(&mut Self) -> &mut Shares<paths::Request>; 2] =
            [|this| &mut this.paths, |this| &mut this.acm_paths];
        for shares in all {
            while let Some(request) = shares(self).poll_refused(now) {
                self.end_path(answered(request.id, paths::Outcome::Overloaded));
            }
            while let Some((user, request)) = shares(self).poll_admitted(now) {
                if let RequestId::User(id) = request.id {
                    self.admitted_paths.insert(id, user);
                }
                self.events.push_back(Event::AskSa(request));
            }
        }
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [
            self.addresses.poll_timeout(),
            self.paths.poll_timeout(),
            self.acm_paths.poll_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// The next event for another core.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Counters and load of users' requests for addresses and for paths: name, counters, (in
    /// progress, waiting).
    pub fn users(&self) -> [(shares::Kind, &Counters<shares::Counter>, (usize, usize)); 3] {
        [
            (shares::Kind::Addresses, self.addresses.counters(), self.addresses.load()),
            (shares::Kind::Paths, self.paths.counters(), self.paths.load()),
            (shares::Kind::AcmPaths, self.acm_paths.counters(), self.acm_paths.load()),
        ]
    }

    #[cfg(test)]
    pub(crate) fn early(&self) -> Vec<KernelRequest> {
        self.early.keys().copied().collect()
    }

    #[cfg(test)]
    pub(crate) fn admitted(&self) -> usize {
        self.admitted.len()
    }

    /// Whether the request may load the network: the client looks into its memory first.
    fn may_ask(&self, request: &client::Request) -> bool {
        match request.id {
            RequestId::Kernel(_) => true,
            RequestId::User(id) => self.admitted.contains_key(&id),
        }
    }

    fn offer(&mut self, now: Instant, user: User, request: AddressRequest) {
        if let Err(request) = self.addresses.offer(now, user, request, request.request.deadline) {
            self.end(request.request.id, Outcome::Overloaded);
        }
        self.handle_timeout(now);
    }

    fn offer_path(&mut self, now: Instant, user: User, request: paths::Request) {
        let shares = self.path_shares(request.caller);
        if let Err(request) = shares.offer(now, user, request, request.deadline) {
            self.end_path(answered(request.id, paths::Outcome::Overloaded));
        }
        self.handle_timeout(now);
    }

    fn path_shares(&mut self, caller: Caller) -> &mut Shares<paths::Request> {
        if let Caller::Acm(_) = caller { &mut self.acm_paths } else { &mut self.paths }
    }

    fn not_remembered(&mut self, id: RequestId, freshness: Freshness) {
        if let (RequestId::User(UserRequest::Acm(id)), Freshness::Memory) = (id, freshness) {
            self.events.push_back(Event::NotRemembered(id));
        }
    }

    fn end(&mut self, id: RequestId, outcome: Outcome) {
        self.events.push_back(Event::Answered { id, outcome });
        if let RequestId::User(id) = id
            && let Some(user) = self.admitted.remove(&id)
        {
            self.addresses.ended(user);
        }
    }

    fn end_path(&mut self, answered: paths::Answered) {
        self.events.push_back(Event::PathAnswered(answered));
        if let RequestId::User(id) = answered.id
            && let Some(user) = self.admitted_paths.remove(&id)
        {
            match id {
                UserRequest::Control(_) => self.paths.ended(user),
                UserRequest::Acm(_) => self.acm_paths.ended(user),
            }
        }
    }
}

impl AddressRequest {
    /// A request of a user. It has the oldest time that there is, so that it makes way for the kernel's requests, and none
    /// of them for it.
    pub fn of_user(id: UserRequest, user: User, question: Question, deadline: Instant) -> Self {
        let (caller, asked_at, id) = (id.caller(user), Instant::BOOT, RequestId::User(id));
        let freshness = Freshness::Any;
        let request = client::Request { id, caller, question, asked_at, deadline, freshness };
        Self { listed: None, request }
    }

    /// Waits for answers of another freshness.
    #[must_use]
    pub fn with(self, freshness: Freshness) -> Self {
        Self { request: client::Request { freshness, ..self.request }, ..self }
    }
}

fn answered(id: RequestId, outcome: paths::Outcome) -> paths::Answered {
    paths::Answered { id, outcome, is_left_to_kernel: false }
}
