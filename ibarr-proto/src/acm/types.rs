// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Inputs and outputs of the ACM service.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use ibarr_common::ib::{Gid, Guid, PKey, PortNum};
use ibarr_common::wire::acm::{Endpoint, Name};
use ibarr_common::wire::sa::PathQuery;

use crate::ip2gid::Question;
use crate::paths::{self, Device, NoStart, PortName, Search};
use crate::places::Room;
use crate::request::{Outcome, ResolutionId};
use crate::requests::AddressRequest;
use crate::shares::User;

/// Limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Config {
    pub clients: Room,
    /// How long a client waits for a reply at most.
    pub patience: Duration,
}

impl Config {
    /// With at most so many clients.
    #[must_use]
    pub fn with_clients(self, most: usize) -> Self {
        let clients = Room { all: self.clients.all.min(most), ..self.clients };
        Self { clients, ..self }
    }
}

impl Default for Config {
    /// Less than the kernel and librdmacm wait for a route, and more than two queries to a peer take. Beside root's
    /// eighth there is room for four users.
    fn default() -> Self {
        let clients = Room { all: 12_000, of_user: 2500 };
        Self { clients, patience: Duration::from_secs(2) }
    }
}

/// The driver's number of a connection. Never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientId(pub u64);

/// An input of the service.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Input<'a> {
    /// A user has connected. If there is no room, [`Output::Close`] follows for it, or for one that gives way.
    Connected {
        client: ClientId,
        /// Its user, as the kernel says.
        user: User,
    },
    /// A client has sent a message. One [`Output::Reply`] or [`Output::Close`] follows, and the driver reads
    /// nothing from the client until then.
    Message {
        client: ClientId,
        /// The bytes, as many as [`length`](ibarr_common::wire::acm::length) says, or bytes of which it says that
        /// they are no message.
        bytes: &'a [u8],
    },
    /// A client has sent a part of a message. [`Output::Close`] follows if the rest does not come.
    Part { client: ClientId },
    /// A client has closed its connection.
    Gone { client: ClientId },
    /// A client has not read its reply, or has already gone, and its connection is closed.
    NotTaken { client: ClientId },
    /// The answer to [`Output::Route`].
    Source {
        target: Question,
        /// The address from which this node sends to the target; `None` if it has no route.
        source: Option<IpAddr>,
    },
    /// The answer to [`Output::Resolve`].
    Addresses {
        name: Name,
        /// Its addresses, the preferred ones first; none if the resolver knows none.
        addresses: &'a [IpAddr],
    },
    /// The answer to [`Event::Ask`].
    Answer { id: ResolutionId, answer: &'a Answer },
    /// The answer to [`Event::Address`].
    Address { id: ResolutionId, outcome: Outcome },
    /// The answer to [`Event::Path`].
    Path { id: ResolutionId, outcome: paths::Outcome },
    /// The answer is not remembered, so the network is asked for it.
    NotRemembered(ResolutionId),
    /// Addresses or routes may have changed.
    NetworkChanged,
    /// The node knows more of itself than before.
    NodeChanged,
    /// The daemon ends: waiting clients are told that there is no answer.
    Stop,
}

/// What another core is to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Event {
    /// Look up what this node knows of itself. [`Input::Answer`] follows at once.
    Ask { id: ResolutionId, ask: Ask },
    /// Resolve an address. [`Input::Address`] follows.
    Address(AddressRequest),
    /// Resolve a path. [`Input::Path`] follows.
    Path(paths::Request),
}

/// A question about this node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub enum Ask {
    /// The GID and the partition of an address.
    Source(IpAddr),
    /// The port at which a path starts, and the whole question for it.
    Start {
        /// The known parts of the path.
        known: PathQuery,
        /// Whether the destination is a listed name, and the source is left open.
        is_named: bool,
        /// Whether the SA is asked with exactly these parts. Otherwise missing ones are filled in, and a
        /// remembered path is an answer.
        asks_sa: bool,
    },
    Endpoint {
        which: Which,
        /// How many of its addresses are wanted at most.
        addresses: usize,
    },
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub enum Answer {
    /// It may be known in a moment. The question is asked again after [`Input::NodeChanged`].
    NotYet(Ask),
    Source {
        /// `None` if it is not an address of this node.
        gid: Option<Gid>,
        pkey: Option<PKey>,
    },
    Start(Result<(PortName, Search), NoStart>),
    /// What clients are told of an endpoint, and its addresses if they are wanted.
    Endpoint(Option<(LocalEndpoint, Vec<IpAddr>)>),
}

/// An endpoint of this node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct LocalEndpoint {
    pub port: PortName,
    /// What clients are told.
    pub endpoint: Endpoint,
}

impl LocalEndpoint {
    /// As clients are told of a port and one of its partitions.
    pub(crate) fn new(port: PortName, device: Device, pkey: PKey) -> Option<Self> {
        let (number, provider) = (port.port.get(), Name::new("ibarr")?);
        let (guid, ports) = (device.guid.unwrap_or(Guid::new(0)), device.ports);
        let endpoint = Endpoint { device: guid, port: number, ports, pkey, provider };
        Some(Self { port, endpoint })
    }
}

/// Names an endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Which {
    /// By its number among those of the ports with a number, or of all ports.
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    Index {
        /// From 1.
        index: u8,
        port: Option<PortNum>,
    },
    /// By one of its addresses.
    Address(IpAddr),
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Output {
    /// Find the source address of packets to a target. One [`Input::Source`] follows.
    Route(Question),
    /// Find the addresses of a name. [`Input::Addresses`] follows, however long that takes.
    Resolve(Name),
    Reply(Transmit),
    Close(ClientId),
}

/// A reply, which is sent in one write.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Transmit {
    /// The client that gets it.
    pub client: ClientId,
    pub bytes: Vec<u8>,
}

crate::counters! {
    /// Counters of the ACM service.
    pub enum Counter {
        /// Requests for paths.
        Requests = normal("requests"),
        /// Messages that are no request.
        Illegal = error("illegal"),
        /// Connections closed because there was no room, or the user had too many.
        ClientsRefused = error("clients-refused"),
        /// Connections closed because there was no room for a user with fewer, or none.
        ClientsGaveWay = error("clients-gave-way"),
        /// Connections closed because half of a message came, and not the rest.
        Unfinished = error("unfinished"),
        /// Clients that did not read their replies, and lost their connections.
        NotTaken = error("not-taken"),
        /// Requests for paths that failed.
        Failed = error("failed"),
        /// Requests for a link-local destination: each link has its own node of that address, and a request of ACM does
        /// not name the link.
        LinkLocal = error("link-local"),
        /// Requests for a destination that does not exist, or to which there is no path.
        NoData = error("no-data"),
        /// Requests for a remembered path when none was remembered.
        NotRemembered = normal("not-remembered"),
        /// Names that the system's resolver was asked for.
        NamesAsked = normal("names-asked"),
        /// Names whose addresses were remembered.
        NamesFromMemory = normal("names-from-memory"),
        /// Requests refused because too many names were being resolved.
        NamesRefused = error("names-refused"),
        /// Destinations whose GID a peer has given.
        AddressFromPeer = normal("address-from-peer"),
        /// Destinations whose GID was known.
        AddressFromMemory = normal("address-from-memory"),
        /// Paths that an SA has given.
        PathFromSa = normal("path-from-sa"),
        /// Paths that were remembered.
        PathFromMemory = normal("path-from-memory"),
    }
}
