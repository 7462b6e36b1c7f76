// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Changes the map of ways back without a moment at which a reply goes astray.

use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ibarr_common::IfIndex;
use ibarr_common::map::{Route, RoutePrefix};
use ipnet::IpNet;

use super::maps::{MapElements, MapUpdate, RouteKey};
use crate::local_view::routing::{RouteBack, Via};

/// The map element of a route.
pub(super) fn update(route: RouteBack) -> MapUpdate {
    let RouteBack { ifindex, prefix, via } = route;
    let route = match via {
        Via::Link => Route::ON_LINK,
        Via::Gateway(gateway) => Route::via(gateway),
        Via::Elsewhere => Route::ELSEWHERE,
    };
    MapUpdate::Route(key(ifindex, prefix), route)
}

pub(super) fn key(ifindex: IfIndex, prefix: IpNet) -> RouteKey {
    let (bits, prefix) = RoutePrefix::new(ifindex, prefix.addr(), prefix.prefix_len());
    RouteKey { bits, prefix }
}

/// The updates, in order, that change the map from `held` to `wanted`. No source is led back
/// meanwhile that is not led back before or after: prefixes that lead elsewhere are added first and
/// removed last.
pub(super) fn change(
    held: &MapElements,
    wanted: impl Iterator<Item = RouteBack>,
) -> Vec<MapUpdate> {
    let there: HashMap<_, _, FixedState> = held.routes.iter().copied().collect();
    let mut wanted: HashMap<_, _, FixedState> = wanted
        .filter_map(|route| match update(route) {
            MapUpdate::Route(key, route) => Some((key, route)),
            _ => None,
        })
        .collect();
    let mut gone: Vec<_> =
        held.routes.iter().copied().filter(|(key, _)| !wanted.contains_key(key)).collect();
    wanted.retain(|key, route| there.get(key) != Some(route));
    let mut new: Vec<_> = wanted.into_iter().collect();
    new.sort_by_key(|(_, route)| route.is_here());
    gone.sort_by_key(|(_, route)| !route.is_here());
    let elsewhere = new.partition_point(|(_, route)| !route.is_here());
    let here = gone.partition_point(|(_, route)| route.is_here());
    let set = |&(key, route): &(RouteKey, Route)| MapUpdate::Route(key, route);
    let remove = |&(key, _): &(RouteKey, Route)| MapUpdate::NoRoute(key);
    new[..elsewhere]
        .iter()
        .map(set)
        .chain(gone[..here].iter().map(remove))
        .chain(new[elsewhere..].iter().map(set))
        .chain(gone[here..].iter().map(remove))
        .collect()
}
