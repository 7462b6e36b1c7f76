// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Changes the map of allowed sources without a moment at which a source is wrongly treated.

use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use ibarr_common::map::{AllowPrefix, ResponderCfg};
use ipnet::IpNet;

use super::maps::{AllowKey, MapElements, MapUpdate};
use crate::ip2gid::Prefixes;

/// The updates, in order, that change the map from `held` to `wanted`.
///
/// Programs run between any two updates. **In between, a source is allowed only if it was allowed
/// before or will be, and refused only if it was refused before or will be.** So a source that both
/// sets allow is never refused, and one that both refuse is never allowed. While the map is in use
/// (`RESTRICT`), it first grows to the union of both sets, then shrinks. While it is not in use,
/// every source is allowed, which is one of the two sets.
pub(super) fn change(held: &MapElements, wanted: &Prefixes) -> Vec<MapUpdate> {
    let wanted: Vec<_> = wanted.iter().map(key).collect();
    let there: HashSet<_, FixedState> = held.allow.iter().copied().collect();
    let kept: HashSet<_, FixedState> = wanted.iter().copied().collect();
    let add = wanted.iter().copied().filter(|key| !there.contains(key)).map(MapUpdate::Allow);
    let remove =
        held.allow.iter().copied().filter(|key| !kept.contains(key)).map(MapUpdate::NoAllow);

    let restrict = ResponderCfg::RESTRICT;
    let switches = if wanted.is_empty() {
        held.cfg.switches & !restrict
    } else {
        held.cfg.switches | restrict
    };
    let switch = (switches != held.cfg.switches)
        .then_some(MapUpdate::Cfg(ResponderCfg { switches, ..held.cfg }));
    if wanted.is_empty() {
        switch.into_iter().chain(remove).collect()
    } else if held.cfg.restricts() && held.cfg.lease_end != 0 {
        add.chain(remove).collect()
    } else {
        // No program reads the map yet, so remove first: it never holds more than it must.
        remove.chain(add).chain(switch).collect()
    }
}

pub(super) fn key(prefix: IpNet) -> AllowKey {
    let (bits, prefix) = AllowPrefix::new(prefix.addr(), prefix.prefix_len());
    AllowKey { bits, prefix }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    /// Whether the programs allow `source`.
    fn allows(held: &MapElements, source: IpAddr) -> bool {
        let (_, address) = AllowPrefix::new(source, 0);
        let source = u128::from_be_bytes(address.address);
        let covers = |key: &AllowKey| {
            let mask = !u128::MAX.checked_shr(key.bits).unwrap_or(0);
            source & mask == u128::from_be_bytes(key.prefix.address)
        };
        !held.cfg.restricts() || held.allow.iter().any(covers)
    }

    fn apply(held: &mut MapElements, update: &MapUpdate) {
        match *update {
            MapUpdate::Allow(key) => held.allow.push(key),
            MapUpdate::NoAllow(key) => held.allow.retain(|held| *held != key),
            MapUpdate::Cfg(cfg) => held.cfg = cfg,
            update => panic!("{update:?}"),
        }
    }

    fn prefixes() -> impl Strategy<Value = Prefixes> {
        // Few bits differ, so that prefixes often meet and contain each other.
        let v4 = (0..4u8, 28..=32u8)
            .prop_map(|(low, len)| IpNet::new_assert([10, 0, 0, low].into(), len));
        let v6 = (0..4u16, 124..=128u8)
            .prop_map(|(low, len)| IpNet::new_assert([0xfd00, 0, 0, 0, 0, 0, 0, low].into(), len));
        prop::collection::vec(prop_oneof![v4, v6], 0..6).prop_map(|all| all.into_iter().collect())
    }

    proptest! {
        #[test]
        fn change_of_allow_affects_no_other_source_meanwhile(
            old in prefixes(), new in prefixes()
        ) {
            let mut held = MapElements::default();
            held.cfg.lease_end = 1;
            for update in change(&held, &old) {
                apply(&mut held, &update);
            }
            let mut sources: Vec<IpAddr> = (0..20).map(|low| [10, 0, 0, low].into()).collect();
            sources.extend((0..20).map(|low| IpAddr::from([0xfd00u16, 0, 0, 0, 0, 0, 0, low])));
            sources.iter().try_for_each(|&source| {
                prop_assert_eq!(allows(&held, source), old.contains(source));
                Ok(())
            })?;
            for update in change(&held.clone(), &new) {
                apply(&mut held, &update);
                for &source in &sources {
                    let (before, after) = (old.contains(source), new.contains(source));
                    if before == after {
                        prop_assert_eq!(allows(&held, source), before, "{} at {:?}", source, update);
                    }
                }
            }
            for &source in &sources {
                prop_assert_eq!(allows(&held, source), new.contains(source));
            }
            prop_assert_eq!(held.allow.len(), new.iter().count());
        }
    }
}
