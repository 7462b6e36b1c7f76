// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Changes and contents of the maps, before they are written or after they were read.

use alloc::vec::Vec;

use ibarr_common::IfIndex;
use ibarr_common::map::{
    AllowPrefix, GidEntry, GidKey, Interface, Neighbour, NeighbourKey, ResponderCfg, Route,
    RoutePrefix,
};

/// An atomic change of one element of a map. Removing a missing element is no error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MapUpdate {
    /// An address of this node is new or has changed.
    Address(GidEntry),
    /// An address is not this node's any more.
    NoAddress(GidKey),
    /// Peers that ask on the interface are answered in this way.
    Interface(IfIndex, Interface),
    /// No peer that asks on the interface is answered.
    NoInterface(IfIndex),
    /// Sources with the prefix may ask.
    Allow(AllowKey),
    /// Sources with the prefix may not ask, unless another prefix allows them.
    NoAllow(AllowKey),
    /// Destinations with the prefix are reached in this way.
    Route(RouteKey, Route),
    /// There is no route for the prefix any more.
    NoRoute(RouteKey),
    /// A next hop is new or has another hardware address.
    Neighbour(NeighbourKey, Neighbour),
    /// A next hop is unknown.
    NoNeighbour(NeighbourKey),
    /// The settings of all programs, with the lease.
    Cfg(ResponderCfg),
}

/// A prefix of sources.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AllowKey {
    /// Length of the prefix in bits.
    pub bits: u32,
    /// Its first address.
    pub prefix: AllowPrefix,
}

/// A prefix of destinations.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RouteKey {
    /// Length of the prefix in bits, with the interface in front of it.
    pub bits: u32,
    /// The interface and the first address.
    pub prefix: RoutePrefix,
}

/// The keys of all elements, and the values that the updates depend on.
#[derive(Clone, Debug, Default)]
pub struct MapElements {
    /// Addresses of this node.
    pub addresses: Vec<GidKey>,
    /// Interfaces on which peers are answered.
    pub interfaces: Vec<IfIndex>,
    /// Prefixes of sources.
    pub allow: Vec<AllowKey>,
    /// Routes.
    pub routes: Vec<(RouteKey, Route)>,
    /// Next hops.
    pub neighbours: Vec<NeighbourKey>,
    /// The settings of all programs.
    pub cfg: ResponderCfg,
}
