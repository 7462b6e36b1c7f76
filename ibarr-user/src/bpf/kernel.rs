// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::BTreeSet;

use ibarr_common::IfIndex;
use ibarr_common::map::{
    AllowPrefix, GidEntry, GidKey, Interface, Neighbour, NeighbourKey, ResponderCfg, Route,
    RoutePrefix,
};
use ibarr_proto::local_view::Served;

use super::Error;

/// The maps that the programs read, which the engine writes itself. A seam of the responder's tests.
pub(super) trait Kernel {
    /// Changes an element of a map, at once and as a whole.
    fn update(&mut self, update: &MapUpdate) -> Result<(), Error>;

    /// What the maps hold.
    fn held(&self) -> Result<Held, Error>;
}

/// Programs and where they are attached. All of it may take long: the verifier, and a lock that
/// every change of the network takes. Another seam.
pub(super) trait Attacher {
    /// What is attached, by this process or by one before it.
    fn attached(&self) -> Result<BTreeSet<(IfIndex, Hook)>, Error>;

    /// Whether what we have attached is still there.
    fn is_attached(&self, ifindex: IfIndex, hook: Hook) -> bool;

    /// Attaches our program, or puts it into the place of an older one without a gap.
    fn attach(&mut self, interface: &Served, hook: Hook) -> Result<(), Error>;

    /// Detaches what is attached there, if anything is.
    fn detach(&mut self, ifindex: IfIndex, hook: Hook) -> Result<(), Error>;

    /// Everything attached is ours: what remains of other layouts can go.
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

/// The key of a prefix of sources.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct AllowKey {
    pub(super) bits: u32,
    pub(super) prefix: AllowPrefix,
}

/// The key of a prefix of destinations.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct RouteKey {
    pub(super) bits: u32,
    pub(super) prefix: RoutePrefix,
}

/// Keys of all elements, and what else must be known of them.
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
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Tcx, Self::Clsact, Self::XdpNative, Self::XdpGeneric];

    /// As `ibarr status` shows it.
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
