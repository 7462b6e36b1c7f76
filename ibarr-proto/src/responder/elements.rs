// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the maps hold of the local view.

use ibarr_common::map::{GidEntry, GidKey, Interface, Neighbour, NeighbourKey};

use super::maps::MapUpdate;
use super::routes;
use crate::local_view::neighbours;
use crate::local_view::routing::WayBack;
use crate::local_view::{Event as Fact, Owned, ServedInterface};

/// The update of the maps that a change of the view causes.
pub(super) fn update(fact: &Fact) -> MapUpdate {
    match fact {
        Fact::Added(owned) | Fact::Changed(owned) => MapUpdate::Address(entry(owned)),
        Fact::Removed(owned) => MapUpdate::NoAddress(entry(owned).key),
        Fact::Served(served) => MapUpdate::Interface(served.ifindex, interface(served)),
        Fact::NotServed(ifindex) => MapUpdate::NoInterface(*ifindex),
        Fact::Route(route) => routes::update(*route),
        Fact::NoRoute(ifindex, prefix) => MapUpdate::NoRoute(routes::key(*ifindex, *prefix)),
        Fact::Neighbour(there) => {
            let (key, neighbour) = next_hop(there);
            MapUpdate::Neighbour(key, neighbour)
        }
        Fact::NoNeighbour(ifindex, address) => {
            MapUpdate::NoNeighbour(NeighbourKey::new(*address, *ifindex))
        }
    }
}

pub(super) fn entry(owned: &Owned) -> GidEntry {
    let key = GidKey::new(owned.address, owned.scope.unwrap_or(owned.ifindex));
    GidEntry::new(key, owned.gid, Some(owned.ifindex), owned.origin)
}

pub(super) fn next_hop(there: &neighbours::Neighbour) -> (NeighbourKey, Neighbour) {
    let key = NeighbourKey::new(there.address, there.ifindex);
    (key, Neighbour::new(&key, there.hwaddr))
}

fn interface(served: &ServedInterface) -> Interface {
    let switch = |way_back, all, routed| match way_back {
        WayBack::All => all,
        WayBack::Routed => routed,
        WayBack::None(_) => 0,
    };
    let mut hwaddr = [0; _];
    hwaddr.iter_mut().zip(served.hwaddr.as_bytes()).for_each(|(to, from)| *to = *from);
    Interface {
        switches: switch(served.ipv4, Interface::ANSWER_IPV4, Interface::ROUTED_IPV4)
            | switch(served.ipv6, Interface::ANSWER_IPV6, Interface::ROUTED_IPV6),
        hwaddr,
    }
}
