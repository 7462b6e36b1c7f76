// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::BTreeSet;

use ibarr_common::IfIndex;
use ibarr_common::map::{
    AllowPrefix, GidEntry, GidKey, Interface, Neighbour, NeighbourKey, ResponderCfg, Route,
    RoutePrefix,
};
use ibarr_proto::local_view::Served;

use super::Error;

/// The maps that the programs read and the engine writes. The responder's tests replace it.
pub(super) trait Kernel {
    /// Changes one element of a map, atomically.
    fn update(&mut self, update: &MapUpdate) -> Result<(), Error>;

    /// Reads the keys of all maps.
    fn held(&self) -> Result<Held, Error>;
}

/// Loads and attaches programs. Every call may take long: the verifier is slow, and attaching takes
/// a lock that every change of the network takes. The responder's tests replace it.
pub(super) trait Attacher {
    /// What this process or an earlier one has attached.
    fn attached(&self) -> Result<BTreeSet<(IfIndex, Hook)>, Error>;

    /// Whether our program is still attached.
    fn is_attached(&self, ifindex: IfIndex, hook: Hook) -> bool;

    /// Attaches our program, or replaces an older one without a gap.
    fn attach(&mut self, interface: &Served, hook: Hook) -> Result<(), Error>;

    /// Detaches our program, if it is attached.
    fn detach(&mut self, ifindex: IfIndex, hook: Hook) -> Result<(), Error>;

    /// Removes what remains of other layouts; only our programs are attached.
    fn settle(&mut self) -> Result<(), Error>;
}

/// A change of one element of a map.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MapUpdate {
    Address(GidEntry),
    NoAddress(GidKey),
    Interface(IfIndex, Interface),
    NoInterface(IfIndex),
    Allow(AllowKey),
    NoAllow(AllowKey),
    Route(RouteKey, Route),
    NoRoute(RouteKey),
    Neighbour(NeighbourKey, Neighbour),
    NoNeighbour(NeighbourKey),
    Cfg(ResponderCfg),
}

/// A prefix of sources.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct AllowKey {
    pub(super) bits: u32,
    pub(super) prefix: AllowPrefix,
}

/// A prefix of destinations.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct RouteKey {
    pub(super) bits: u32,
    pub(super) prefix: RoutePrefix,
}

/// The keys of all elements, and the values that the updates depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) addresses: Vec<GidKey>,
    pub(super) interfaces: Vec<IfIndex>,
    pub(super) allow: Vec<AllowKey>,
    pub(super) routes: Vec<(RouteKey, Route)>,
    pub(super) neighbours: Vec<NeighbourKey>,
    pub(super) cfg: ResponderCfg,
}

/// Where a program is attached to an interface.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Hook {
    /// tc ingress by a link (Linux 6.6).
    Tcx,
    /// tc ingress by a filter of the clsact qdisc.
    Clsact,
    /// XDP in the driver.
    XdpNative,
    /// XDP in the stack.
    XdpGeneric,
}

impl Hook {
    /// All hooks.
    pub const ALL: [Self; 4] = [Self::Tcx, Self::Clsact, Self::XdpNative, Self::XdpGeneric];

    /// The name in `ibarr status`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
            Self::XdpNative => "xdp-native",
            Self::XdpGeneric => "xdp-generic",
        }
    }
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
