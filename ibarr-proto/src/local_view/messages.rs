// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Inputs and outputs of the local view.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::map::Origin;
use ipnet::IpNet;

use super::neighbours::{Entry, MAX_NEIGHBOURS, Neighbour};
use super::routing::{MAX_ROUTES, Route, RouteBack};
use super::rules::Rule;
use super::{AddressId, Dad, InterfaceAddress, InterfaceName, Link, LinkType, ServedInterface};

/// Bounds on the copy of the kernel's tables. An entry beyond a bound is dropped and counted; the
/// next dump offers it again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Links of any type.
    pub links: usize,
    /// Addresses on any link.
    pub addresses: usize,
    /// Prefixes with routes in the main table. If there are more, the view keeps none, and the
    /// responder answers no query in the kernel.
    pub routes: usize,
    /// Neighbours on interfaces where the view follows them, at most [`MAX_NEIGHBOURS`].
    pub neighbours: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { links: 8192, addresses: 32_768, routes: MAX_ROUTES, neighbours: MAX_NEIGHBOURS }
    }
}

/// A message of rtnetlink.
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
    /// The driver is about to request a dump, and no event was lost since. An unfinished dump is
    /// void.
    DumpStarted,
    /// Like [`Input::DumpStarted`], for a dump of the links alone; [`Input::DumpDone`] ends it.
    LinksStarted,
    /// The dump lists a link.
    ListedLink(Link),
    /// The dump lists an address.
    ListedAddress(InterfaceAddress),
    /// The dump is complete and consistent (no `NLM_F_DUMP_INTR`): entries not in it no longer
    /// exist.
    DumpDone,
    /// Event: a route of any table, a policy rule or a nexthop object was added, changed or deleted.
    RoutesChanged,
    /// Event: the kernel added its own route of an address of this node, or deleted one of IPv6.
    OwnRoute,
    /// Event: the kernel deleted its own route of this address.
    OwnRouteGone(Ipv4Addr),
    /// Like [`Input::DumpStarted`], for routes and policy rules.
    RoutesStarted,
    /// The dump lists a policy rule.
    ListedRule(Rule),
    /// The dump lists a route.
    ListedRoute(Route),
    /// Like [`Input::DumpDone`], for routes and policy rules.
    RoutesDone,
    /// The dump was stopped after [`MAX_LISTED_ROUTES`](super::routing::MAX_LISTED_ROUTES) entries.
    /// No events arrive until the next dump is requested.
    RoutesTooMany,
    /// Event: a neighbour was added or changed.
    Neighbour(Entry),
    /// Event: a neighbour was deleted.
    NeighbourGone(IfIndex, IpAddr),
    /// Like [`Input::DumpStarted`], for neighbours.
    NeighboursStarted,
    /// The dump lists a neighbour.
    ListedNeighbour(Entry),
    /// Like [`Input::DumpDone`], for neighbours.
    NeighboursDone,
    /// A dump was given up, because it was refused, interrupted or lost a message; or events were
    /// lost while there was no dump. Only a new dump can be complete.
    DumpFailed(Subject),
}

/// A request of the view to rtnetlink.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Request {
    /// Send a dump, and events from then on.
    Dump(Subject),
    /// Send a dump of the links alone, and events from then on.
    Links,
    /// Send no events until a dump is requested.
    Leave(Subject),
}

/// The subject of a dump.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Subject {
    /// Links and addresses.
    Node,
    /// Policy rules, and the routes of the main table.
    Routes,
    /// Neighbours of IPv4 and IPv6.
    Neighbours,
}

/// A change of a fact about this node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// An address has become ours.
    Added(Owned),
    /// An address of this node has another GID, none any more, or another interface or origin.
    Changed(Owned),
    /// An address is no longer ours; with its last state.
    Removed(Owned),
    /// An interface is served, or its state as a served interface has changed.
    Served(ServedInterface),
    /// An interface is no longer served.
    NotServed(IfIndex),
    /// A served interface has a route to this prefix, or the prefix inside such a route leads
    /// elsewhere.
    Route(RouteBack),
    /// There is no longer an entry for the prefix on this interface.
    NoRoute(IfIndex, IpNet),
    /// A neighbour can be sent to, or has another hardware address.
    Neighbour(Neighbour),
    /// A neighbour can no longer be sent to.
    NoNeighbour(IfIndex, IpAddr),
}

/// An address of this node, and the answer for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Owned {
    pub address: IpAddr,
    /// The interface of a link-local IPv6 address; `None` for any other.
    pub scope: Option<IfIndex>,
    /// Its GID. An address without GID is never answered for, but queries from it are refused too.
    pub gid: Option<Gid>,
    /// The interface that gives it the GID, or, without a GID, an interface that has it.
    pub ifindex: IfIndex,
    /// The origin of the GID.
    pub origin: Origin,
}

/// Reason why an interface serves no GID of its own.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, thiserror::Error)]
pub enum NotServed {
    /// The filter does not select it.
    #[error("not among the interfaces configured")]
    NotSelected,
    /// It has no InfiniBand port.
    #[error("not an IPoIB interface")]
    NotIpoib,
    /// It is a slave of this bond or team.
    #[error("a slave of interface {0}, which serves in its place")]
    Slave(IfIndex),
    /// Not `IFF_UP`.
    #[error("down")]
    Down,
    /// Its hardware address has no GID, for example before the subnet manager has brought the port
    /// up.
    #[error("its hardware address holds no GID")]
    NoGid,
}

/// An interface in reports.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Interface {
    pub ifindex: IfIndex,
    pub name: InterfaceName,
    pub link_type: LinkType,
    /// The VRF that it is in.
    pub vrf: Option<IfIndex>,
    /// The GID that it serves, or the reason why it serves none.
    pub gid: Result<Gid, NotServed>,
    pub addresses: Vec<AddressStatus>,
}

/// An address of an interface in reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct AddressStatus {
    pub address: IpAddr,
    /// Its state of duplicate address detection.
    pub dad: Dad,
    /// The answer for it, if it is ours; `ifindex` may be that of another interface.
    pub owned: Option<Owned>,
}

crate::counters! {
    /// Counters of the view.
    pub enum Counter {
        /// Dumps that took effect.
        DumpsDone = normal("dumps-done"),
        /// Dumps of the links alone that took effect.
        LinkDumpsDone = normal("link-dumps-done"),
        /// Dumps replaced by another before they were done.
        DumpsAbandoned = error("dumps-abandoned"),
        /// Dumps discarded because more entries than fit had events meanwhile.
        DumpsSpoiled = error("dumps-spoiled"),
        /// Dumps that did not arrive in time.
        DumpsOverdue = error("dumps-overdue"),
        /// Entries and ends of dumps that were not in progress.
        ListedOutsideDump = error("listed-outside-dump"),
        /// Links dropped for lack of room.
        LinksRefused = error("links-refused"),
        /// Addresses dropped for lack of room.
        AddressesRefused = error("addresses-refused"),
        /// Times that an address got different GIDs on several interfaces.
        Contested = error("contested"),
        /// Dumps of routes that took effect.
        RouteDumpsDone = normal("route-dumps-done"),
        /// Dumps of routes that did not arrive in time.
        RouteDumpsOverdue = error("route-dumps-overdue"),
        /// Times that there were more routes than the limit.
        RoutesTooMany = error("routes-too-many"),
        /// Dumps of neighbours that took effect.
        NeighbourDumpsDone = normal("neighbour-dumps-done"),
        /// Dumps of neighbours that did not arrive in time.
        NeighbourDumpsOverdue = error("neighbour-dumps-overdue"),
        /// Neighbours dropped for lack of room.
        NeighboursRefused = error("neighbours-refused"),
    }
}
