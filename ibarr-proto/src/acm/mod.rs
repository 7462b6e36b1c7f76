// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Answers the clients of ACM, `ib_acme` and librdmacm, which wait without a time-out of their own.
//!
//! A client asks for a path by the names or addresses of its ends. The driver resolves names that are not listed
//! ([`Hosts`]), and finds the source that routing chooses; [`requests`](crate::requests) finds the GID of the
//! destination, and [`paths`] the path.
//!
//! A client that sends other bytes is disconnected, because the start of its next request cannot be found.

mod direct;
mod endpoints;
mod hosts;
mod names;
mod sources;
mod types;
mod young;

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::mem;
use core::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, PKey};
use ibarr_common::wire::acm::{
    self as wire, Address, Error, Name, Of, Reply, Request, Resolve, Status, refusal,
};
use ibarr_common::wire::ls::PathUse;
use ibarr_common::wire::sa::PathQuery;

use self::endpoints::seven;
pub use self::hosts::Hosts;
pub use self::names::NAMES;
use self::names::{Addresses, Names};
use self::sources::Sources;
pub use self::types::{
    Answer, Ask, ClientId, Config, Counter, Event, Input, LocalEndpoint, Output, Transmit, Which,
};
pub use self::young::YoungClients;
use crate::counters::Counters;
use crate::ip2gid::Question;
use crate::paths::{self, NoStart, PortName, Search};
use crate::places::Places;
use crate::request::{self, Freshness, Outcome, ResolutionId, UserRequest};
use crate::requests::AddressRequest;
use crate::shares::User;
use crate::timer::Timers;

/// See the [module](self).
#[derive(Debug)]
pub struct Acm {
    config: Config,
    clients: BTreeMap<ClientId, Client>,
    places: Places<ClientId>,
    /// When the rest of a message is due.
    halves: Timers<ClientId>,
    /// Each in its own place, because the map moves its entries. The older one has the earlier deadline, because
    /// [`Config::patience`] never changes.
    resolutions: BTreeMap<ResolutionId, Box<Resolution>>,
    hosts: Hosts,
    names: Names,
    sources: Sources,
    next: u64,
    events: VecDeque<Event>,
    /// Questions that cannot be answered before the node knows more of itself.
    early: BTreeMap<ResolutionId, Ask>,
    outputs: VecDeque<Output>,
    direct_reply: Vec<u8>,
    counters: Counters<Counter>,
    /// Those of searches by a port of this node.
    by_port: BTreeMap<PortName, Counters<Counter>>,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    user: User,
    /// Its request that has no reply yet.
    waits_for: Option<ResolutionId>,
}

/// A search for a path.
#[derive(Clone, Copy, Debug)]
struct Resolution {
    /// The client that gets the result. `None` if a client that does not wait has its reply already.
    client: Option<(ClientId, Request)>,
    user: User,
    deadline: Instant,
    /// A client that waits for what is remembered alone gets a reply if nothing is, and the search goes on.
    freshness: Freshness,
    /// The address that routing chose, which is part of the reply.
    chosen: Option<Address>,
    known: Known,
    /// What the client knows of the path.
    path: PathQuery,
    /// Whether the SA is to be asked for just that.
    asks_sa: bool,
    /// The partition of the source.
    partition: Option<PKey>,
    /// The port by which it asks.
    port: Option<PortName>,
    /// How the GID of the destination was found.
    address: Option<Counter>,
}

/// The part of the path that is known.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// The ends that the client gave. Addresses replace names as they become known.
    Said {
        source: Option<End>,
        target: End,
    },
    /// The destination, to which routing chooses a source.
    Unsourced(Question),
    Target(Target),
    Source(Gid),
    Ends,
    /// Nothing but which endpoint is meant.
    Endpoint,
}

/// The destination of a path whose source is not known yet.
#[derive(Clone, Copy, Debug)]
enum Target {
    Ip(IpAddr),
    Gid(Gid),
}

/// An end of a path.
#[derive(Clone, Copy, Debug)]
enum End {
    Name(Name),
    Addresses(Addresses),
    /// The GID is listed.
    Gid(Gid),
}

impl Acm {
    /// Starts without clients.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            clients: BTreeMap::new(),
            places: Places::new(config.clients),
            halves: Timers::default(),
            resolutions: BTreeMap::new(),
            hosts: Hosts::default(),
            names: Names::default(),
            sources: Sources::default(),
            next: 0,
            events: VecDeque::new(),
            early: BTreeMap::new(),
            outputs: VecDeque::new(),
            direct_reply: Vec::new(),
            counters: Counters::default(),
            by_port: BTreeMap::new(),
        }
    }

    /// Changes how many clients there may be; those that are connected stay. [`Config::patience`] does not change.
    pub fn reconfigure(&mut self, config: Config) {
        self.places.set_room(config.clients);
        self.config.clients = config.clients;
    }

    /// Replaces the GIDs that the administrator has listed.
    pub fn set_hosts(&mut self, hosts: Hosts) {
        self.hosts = hosts;
    }

    /// Forgets the addresses of names.
    pub fn forget_names(&mut self) {
        self.names.forget();
    }

    /// The GIDs that the administrator has listed.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Takes an input. [`Self::poll_event`] follows.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        match input {
            Input::Connected { client, user } => self.connected(client, user),
            Input::Message { client, bytes } => self.asked(now, client, bytes),
            Input::Part { client } => {
                if self.clients.contains_key(&client) && !self.halves.contains(client) {
                    self.halves.set(client, Some(now + self.config.patience));
                }
            }
            Input::Gone { client } => self.gone(client),
            Input::NotTaken { client } => {
                self.counters.count(Counter::NotTaken);
                self.gone(client);
            }
            Input::Source { target, source } => {
                for id in self.sources.answered(now, target, source) {
                    self.routed(id, source);
                }
            }
            Input::NetworkChanged => self.sources.forget(),
            Input::Addresses { name, addresses } => self.named(now, name, addresses),
            Input::Answer { id, answer } => self.answered(id, answer),
            Input::Address { id, outcome } => self.gid_of_target(id, outcome),
            Input::Path { id, outcome } => self.path(id, outcome),
            Input::NotRemembered(id) => self.not_remembered(id),
            Input::NodeChanged => {
                let early = mem::take(&mut self.early).into_iter();
                self.events.extend(early.map(|(id, ask)| Event::Ask { id, ask }));
            }
            Input::Stop => {
                for id in self.resolutions.keys().copied().collect::<Vec<_>>() {
                    self.refuse(id, Status::NotConnected);
                }
            }
        }
    }

    /// Ends the searches and connections whose time is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((&id, _)) =
            self.resolutions.first_key_value().filter(|it| it.1.deadline <= now)
        {
            self.refuse(id, Status::TimedOut);
        }
        while let Some(client) = self.halves.pop(now) {
            self.counters.count(Counter::Unfinished);
            self.close(client);
        }
        self.ask_for_names(now);
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline =
            self.resolutions.first_key_value().map(|(_, resolution)| resolution.deadline);
        let next = [deadline, self.halves.next(), self.names.poll_timeout()];
        next.into_iter().flatten().min()
    }

    /// The next event for another core.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next action for the driver.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The counters.
    pub fn counters(&self) -> &Counters<Counter> {
        &self.counters
    }

    /// How many clients are connected, and how many of them wait.
    pub fn load(&self) -> (usize, usize) {
        (self.clients.len(), self.clients.values().filter(|it| it.waits_for.is_some()).count())
    }

    fn ask(&mut self, id: ResolutionId, ask: Ask) {
        self.events.push_back(Event::Ask { id, ask });
    }

    fn answered(&mut self, id: ResolutionId, answer: &Answer) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        match answer {
            Answer::NotYet(ask) => drop(self.early.insert(id, *ask)),
            Answer::Source { gid, pkey } => {
                resolution.partition = *pkey;
                self.gid_of_source(id, *gid);
            }
            Answer::Start(start) => self.starts(id, start),
            Answer::Endpoint(found) => self.endpoint(id, found.as_ref()),
        }
    }

    /// The GID of the source; `None` if this node does not have the source.
    fn gid_of_source(&mut self, id: ResolutionId, sgid: Option<Gid>) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        let (Known::Target(target), Some(sgid)) = (resolution.known, sgid) else {
            return self.refuse(id, Status::SourceAddress);
        };
        let target = match target {
            Target::Ip(target) => target,
            Target::Gid(dgid) => {
                return self.seek(id, Some(sgid), Some(dgid));
            }
        };
        resolution.known = Known::Source(sgid);
        let Resolution { user, deadline, freshness, .. } = **resolution;
        let Some(question) = Question::new(target, None) else {
            return self.refuse(id, Status::DestinationAddress);
        };
        let listed = self.hosts.gid_of(&Address::Ip(target));
        let request = AddressRequest::of_user(UserRequest::Acm(id), user, question, deadline);
        let request = AddressRequest { listed, ..request.with(freshness) };
        self.events.push_back(Event::Address(request));
    }

    fn gid_of_target(&mut self, id: ResolutionId, outcome: Outcome) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        let Known::Source(sgid) = resolution.known else { return };
        let dgid = match outcome {
            Outcome::Found { gid, source } => {
                let counter = match source {
                    request::Source::Local | request::Source::Cache => Counter::AddressFromMemory,
                    request::Source::Peer | request::Source::Neighbour => Counter::AddressFromPeer,
                };
                resolution.address = Some(counter);
                self.counters.count(counter);
                gid
            }
            Outcome::TimedOut => return self.refuse(id, Status::TimedOut),
            Outcome::Overloaded => return self.refuse(id, Status::NoMemory),
            Outcome::NotFound | Outcome::Refused | Outcome::Unreachable => {
                return self.refuse(id, Status::DestinationAddress);
            }
        };
        self.seek(id, Some(sgid), Some(dgid));
    }

    fn starts(&mut self, id: ResolutionId, start: &Result<(PortName, Search), NoStart>) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        let &(port, question) = match start {
            Ok(start) => start,
            Err(NoStart::NoSource) => return self.refuse(id, Status::SourceAddress),
            Err(NoStart::SeveralPorts) => return self.refuse(id, Status::DestinationType),
        };
        let Resolution { user, deadline, freshness, address, .. } = **resolution;
        let is_first = resolution.port.replace(port).is_none();
        if is_first {
            let counters = self.by_port.entry(port).or_default();
            counters.count(Counter::Requests);
            if let Some(address) = address {
                counters.count(address);
            }
        }
        if matches!(question, Search::Known(_)) {
            self.not_remembered(id);
            // Nothing would be remembered of the answer, so a search without a client would be in vain.
            if self.resolutions.get(&id).is_some_and(|resolution| resolution.client.is_none()) {
                return drop(self.forget(id));
            }
        }
        let request = paths::Request::of_user(UserRequest::Acm(id), user, port, question, deadline);
        self.events.push_back(Event::Path(paths::Request { freshness, ..request }));
    }

    fn path(&mut self, id: ResolutionId, outcome: paths::Outcome) {
        use paths::{Outcome, Source};
        let status = match outcome {
            Outcome::Found { record, source } => {
                self.count(
                    id,
                    match source {
                        Source::Sa => Counter::PathFromSa,
                        Source::Cache | Source::Doubted => Counter::PathFromMemory,
                    },
                );
                return self.end(id, |resolution| {
                    // The SA's answer is as long as the question for it.
                    let path_use = if resolution.asks_sa { PathUse::Gmp } else { PathUse::All };
                    Reply::Paths(paths::records(path_use, record), resolution.chosen)
                });
            }
            Outcome::NoRecord { .. } | Outcome::Refused(_) => Status::NoData,
            Outcome::Silent | Outcome::Busy => Status::TimedOut,
            Outcome::NoSa => Status::NotConnected,
            Outcome::Overloaded => Status::NoMemory,
            Outcome::UnknownPort => Status::SourceAddress,
        };
        self.refuse(id, status);
    }

    fn not_remembered(&mut self, id: ResolutionId) {
        let resolution = self.resolutions.get_mut(&id);
        let resolution = resolution.filter(|resolution| resolution.freshness == Freshness::Memory);
        if let Some((client, request)) = resolution.and_then(|resolution| resolution.client.take())
        {
            self.count(id, Counter::NotRemembered);
            self.reply(client, &request, &Reply::Refused(Status::NoData));
        }
    }

    fn connected(&mut self, client: ClientId, user: User) {
        let Ok(gone) = self.places.take(user, client) else {
            self.counters.count(Counter::ClientsRefused);
            return self.outputs.push_back(Output::Close(client));
        };
        if let Some(gone) = gone {
            self.counters.count(Counter::ClientsGaveWay);
            self.close(gone);
        }
        self.clients.insert(client, Client { user, waits_for: None });
    }

    fn gone(&mut self, client: ClientId) {
        let Some(Client { waits_for, .. }) = self.clients.remove(&client) else { return };
        self.places.leave(client);
        self.halves.set(client, None);
        if let Some(id) = waits_for {
            self.forget(id);
        }
    }

    fn asked(&mut self, now: Instant, client: ClientId, bytes: &[u8]) {
        let Some(&Client { user, waits_for }) = self.clients.get(&client) else { return };
        self.halves.set(client, None);
        self.places.touch(client);
        let request = match Request::parse(bytes) {
            _ if waits_for.is_some() => return self.close(client),
            Ok(request) => request,
            Err(error) => return self.misread(client, bytes, error),
        };
        match request.ask {
            wire::Ask::Resolve(resolve) => self.resolve(now, client, user, request, resolve),
            wire::Ask::Counters(Of::Service) => {
                self.reply(client, &request, &Reply::Counters(seven(&self.counters)));
            }
            wire::Ask::Counters(_) | wire::Ask::Endpoint { .. } => {
                self.seek_endpoint(now, client, user, request);
            }
        }
    }

    fn misread(&mut self, client: ClientId, bytes: &[u8], error: Error) {
        self.counters.count(Counter::Illegal);
        let status = match error {
            Error::Source => Status::SourceType,
            Error::Destination => Status::DestinationType,
            Error::Address | Error::Name => Status::Invalid,
            Error::Version | Error::Opcode | Error::Length | Error::Status | Error::Record => {
                return self.close(client);
            }
        };
        match refusal(bytes, status) {
            Some(bytes) => self.send(client, bytes.to_vec()),
            None => self.close(client),
        }
    }

    fn resolve(
        &mut self,
        now: Instant,
        client: ClientId,
        user: User,
        request: Request,
        resolve: Resolve,
    ) {
        self.counters.count(Counter::Requests);
        let end = |address| match address {
            Address::Ip(ip) => End::Addresses(Addresses::of(ip)),
            Address::Name(name) => End::Name(name),
        };
        let path = resolve.path().map_or(PathQuery::ANY, PathQuery::known);
        let (source, target) = (resolve.source().map(end), resolve.destination().map(end));
        let has_ends = source.is_some() || target.is_some();
        let target = target.or_else(|| path.dgid().map(End::Gid).filter(|_| source.is_some()));
        let known = target.map(|target| Known::Said { source, target });
        let id = self.begin(now, client, user, request, known.unwrap_or(Known::Ends));
        if let Some(resolution) = self.resolutions.get_mut(&id) {
            (resolution.path, resolution.asks_sa) = (path, resolve.asks_sa());
            if resolve.is_from_memory() {
                resolution.freshness = Freshness::Memory;
            }
        }
        match known {
            // Such a request is a path alone.
            _ if resolve.asks_sa() && has_ends => self.refuse(id, Status::Invalid),
            Some(_) => self.seek_ends(now, id),
            // An address and a LID.
            None if source.is_some() => self.refuse(id, Status::Invalid),
            None => self.seek(id, None, None),
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        client: ClientId,
        user: User,
        request: Request,
        known: Known,
    ) -> ResolutionId {
        let id = ResolutionId(self.next);
        self.next += 1;
        let deadline = now + self.config.patience;
        let resolution = Resolution {
            client: Some((client, request)),
            user,
            deadline,
            freshness: Freshness::Any,
            chosen: None,
            known,
            path: PathQuery::ANY,
            asks_sa: false,
            partition: None,
            port: None,
            address: None,
        };
        self.resolutions.insert(id, Box::new(resolution));
        if let Some(client) = self.clients.get_mut(&client) {
            client.waits_for = Some(id);
        }
        id
    }

    /// Searches for the path of which the client may know more than the ends.
    fn seek(&mut self, id: ResolutionId, sgid: Option<Gid>, dgid: Option<Gid>) {
        let Some(resolution) = self.resolutions.get_mut(&id) else { return };
        let is_named = matches!(resolution.known, Known::Said { source: None, .. });
        resolution.known = Known::Ends;
        let mut known = Some(resolution.path);
        if let Some(sgid) = sgid {
            known = known.and_then(|known| known.with_source(sgid));
        }
        if let Some(dgid) = dgid {
            known = known.and_then(|known| known.with_destination(dgid));
        }
        // No path has the ends of two.
        let Some(mut known) = known else { return self.refuse(id, Status::NoData) };
        if let Some(pkey) = resolution.partition {
            known = known.in_partition(pkey);
        }
        let asks_sa = resolution.asks_sa;
        if known.dgid().is_none() && known.dlid().is_none() && !asks_sa {
            return self.refuse(id, Status::DestinationAddress);
        }
        self.ask(id, Ask::Start { known, is_named, asks_sa });
    }

    fn refuse(&mut self, id: ResolutionId, status: Status) {
        let resolution = self.resolutions.get(&id);
        if resolution.is_some_and(|resolution| !matches!(resolution.known, Known::Endpoint)) {
            self.count(
                id,
                match status {
                    Status::NoData | Status::DestinationAddress => Counter::NoData,
                    _ => Counter::Failed,
                },
            );
        }
        self.end(id, |_| Reply::Refused(status));
    }

    fn end(&mut self, id: ResolutionId, reply: impl FnOnce(&Resolution) -> Reply<'static>) {
        let Some(resolution) = self.forget(id) else { return };
        if let Some((client, request)) = resolution.client {
            self.reply(client, &request, &reply(&resolution));
        }
    }

    fn forget(&mut self, id: ResolutionId) -> Option<Box<Resolution>> {
        self.early.remove(&id);
        let resolution = self.resolutions.remove(&id)?;
        match resolution.known {
            Known::Said { .. } => {
                resolution.known.names().for_each(|name| self.names.leave(&name, id));
            }
            Known::Unsourced(target) => self.sources.leave(target, id),
            _ => {}
        }
        Some(resolution)
    }

    fn reply(&mut self, client: ClientId, request: &Request, reply: &Reply<'_>) {
        let mut bytes = vec![0; reply.length()];
        match reply.emit(request, &mut bytes) {
            Some(_) => self.send(client, bytes),
            None => self.close(client),
        }
    }

    fn send(&mut self, client: ClientId, bytes: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.waits_for = None;
        }
        self.outputs.push_back(Output::Reply(Transmit { client, bytes }));
    }

    fn close(&mut self, client: ClientId) {
        self.gone(client);
        self.outputs.push_back(Output::Close(client));
    }

    /// Counts for the service, and for the port of a search.
    fn count(&mut self, id: ResolutionId, counter: Counter) {
        self.counters.count(counter);
        if let Some(port) = self.resolutions.get(&id).and_then(|resolution| resolution.port) {
            self.by_port.entry(port).or_default().count(counter);
        }
    }
}
