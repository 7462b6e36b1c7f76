// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the view is told and what it tells.

use std::net::IpAddr;

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::map::Origin;

use crate::ip2gid::Prefix;

use super::neighbours::{Entry, MAX_NEIGHBOURS, Neighbour};
use super::routing::{MAX_ROUTES, Route, RouteBack, Rule};
use super::{AddressId, Dad, InterfaceAddress, InterfaceName, Link, LinkType, Served};

/// How much of the kernel's tables is kept. What does not fit is refused and counted, and asked
/// for again with the next re-read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Links of any type.
    pub links: usize,
    /// Addresses on any link.
    pub addresses: usize,
    /// Prefixes with routes in the main table. If there are more, none is kept, and nobody is
    /// answered in the kernel.
    pub routes: usize,
    /// Neighbours on interfaces where they are followed, at most
    /// [`MAX_NEIGHBOURS`].
    pub neighbours: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { links: 8192, addresses: 32_768, routes: MAX_ROUTES, neighbours: MAX_NEIGHBOURS }
    }
}

/// Something that rtnetlink said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Input {
    /// Event: a link was made or changed.
    Link(Link),
    /// Event: a link was deleted, or moved to another network namespace.
    LinkGone(IfIndex),
    /// Event: an address was added or changed.
    Address(InterfaceAddress),
    /// Event: an address was deleted.
    AddressGone(AddressId),
    /// A dump is about to be asked for, and no event was lost since. A dump that was not done is
    /// void.
    DumpStarted,
    /// The dump lists a link.
    ListedLink(Link),
    /// The dump lists an address.
    ListedAddress(InterfaceAddress),
    /// The dump is complete and consistent (no `NLM_F_DUMP_INTR`): what it did not list is gone.
    DumpDone,
    /// Event: a route or a policy rule was added, changed or deleted.
    RoutesChanged,
    /// As [`Input::DumpStarted`], of routes and policy rules.
    RoutesStarted,
    /// The dump lists a policy rule.
    ListedRule(Rule),
    /// The dump lists a route.
    ListedRoute(Route),
    /// As [`Input::DumpDone`], of routes and policy rules.
    RoutesDone,
    /// The dump has listed [`MAX_LISTED_ROUTES`](super::routing::MAX_LISTED_ROUTES) and was broken off.
    /// Until the next one is asked for, no event comes either.
    RoutesTooMany,
    /// Event: a neighbour was added or changed.
    Neighbour(Entry),
    /// Event: a neighbour was deleted.
    NeighbourGone(IfIndex, IpAddr),
    /// As [`Input::DumpStarted`], of neighbours.
    NeighboursStarted,
    /// The dump lists a neighbour.
    ListedNeighbour(Entry),
    /// As [`Input::DumpDone`], of neighbours.
    NeighboursDone,
}

/// What the view needs of rtnetlink.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Request {
    /// A dump, and events from then on.
    Dump(Subject),
    /// No more events, until a dump is asked for.
    Leave(Subject),
}

/// What a dump is about.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Subject {
    /// Links and addresses.
    Node,
    /// Policy rules, and the routes of the main table.
    Routes,
    /// The neighbours over IPv4 and IPv6.
    Neighbours,
}

/// A fact about this node changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// An address has become ours.
    Added(Owned),
    /// An address of ours has another GID, none any more, or another interface or origin.
    Changed(Owned),
    /// An address is not ours any more; this is what it was.
    Removed(Owned),
    /// An interface is served, or otherwise than before.
    Served(Served),
    /// An interface is not served any more.
    NotServed(IfIndex),
    /// A prefix is led back by an interface that is served, or led elsewhere inside of one that is.
    Route(RouteBack),
    /// Nothing is to be said of that prefix on this interface any more.
    NoRoute(IfIndex, Prefix),
    /// A neighbour can be sent to, or has another hardware address.
    Neighbour(Neighbour),
    /// A neighbour cannot be sent to any more.
    NoNeighbour(IfIndex, IpAddr),
}

/// An address of this node and what is answered for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Owned {
    /// The address.
    pub address: IpAddr,
    /// The interface that a link-local IPv6 address means, `None` for any other.
    pub scope: Option<IfIndex>,
    /// Its GID. One without is never answered for, but ours: nobody else may ask in its name.
    pub gid: Option<Gid>,
    /// The interface that gives it the GID, or else has it.
    pub ifindex: IfIndex,
    /// Where the GID comes from.
    pub origin: Origin,
}

/// Why an interface serves no GID of its own.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, thiserror::Error)]
pub enum NotServed {
    /// The filter does not select it.
    #[error("not among the interfaces configured")]
    NotSelected,
    /// It has no InfiniBand port under it.
    #[error("not an IPoIB interface")]
    NotIpoib,
    /// It is part of this bond or team.
    #[error("a slave of interface {0}, which serves in its place")]
    Slave(IfIndex),
    /// Not `IFF_UP`.
    #[error("down")]
    Down,
    /// Its hardware address holds none, as before the subnet manager has brought the port up.
    #[error("its hardware address holds no GID")]
    NoGid,
}

/// An interface, for people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Its index.
    pub ifindex: IfIndex,
    /// Its name.
    pub name: InterfaceName,
    /// Its type.
    pub link_type: LinkType,
    /// The GID that it serves, or why it serves none.
    pub gid: Result<Gid, NotServed>,
    /// Its addresses.
    pub addresses: Vec<AddressStatus>,
}

/// An address of an interface, for people.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressStatus {
    /// The address.
    pub address: IpAddr,
    /// Whether it may be used yet.
    pub dad: Dad,
    /// What it is, if it is ours; `ifindex` may be that of another interface.
    pub owned: Option<Owned>,
}

crate::counters! {
    /// What happens to the view.
    pub enum Counter {
        /// Dumps that took effect.
        DumpsDone = "dumps-done",
        /// Dumps that were replaced by another before they were done.
        DumpsAbandoned = "dumps-abandoned",
        /// Dumps thrown away because more entries than fit had events meanwhile.
        DumpsSpoiled = "dumps-spoiled",
        /// Dumps that were asked for and did not come in time.
        DumpsOverdue = "dumps-overdue",
        /// Entries and ends of dumps that nobody had started.
        ListedOutsideDump = "listed-outside-dump",
        /// Links that did not fit.
        LinksRefused = "links-refused",
        /// Addresses that did not fit.
        AddressesRefused = "addresses-refused",
        /// Times that an address came to be on several interfaces with different GIDs.
        Contested = "contested",
        /// Dumps of routes that took effect.
        RouteDumpsDone = "route-dumps-done",
        /// Dumps of routes that were asked for and did not come in time.
        RouteDumpsOverdue = "route-dumps-overdue",
        /// Times that there were more routes than are kept.
        RoutesTooMany = "routes-too-many",
        /// Dumps of neighbours that took effect.
        NeighbourDumpsDone = "neighbour-dumps-done",
        /// Dumps of neighbours that were asked for and did not come in time.
        NeighbourDumpsOverdue = "neighbour-dumps-overdue",
        /// Neighbours that did not fit.
        NeighboursRefused = "neighbours-refused",
    }
}
