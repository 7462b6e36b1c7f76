// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel accepts the programs, and makes maps of the expected sizes.

use ibarr_common::map;

use crate::programs::Programs;

#[test]
fn every_program_is_accepted_for_both_link_headers() {
    for link_header in [14, 24] {
        let mut programs = Programs::load(link_header);
        programs.tc();
        programs.xdp();
        programs.guard();
    }
}

#[test]
fn loaded_maps_have_the_sizes_of_their_types() {
    let programs = Programs::load(14);
    let sizes: [(&str, usize, usize); 10] = [
        (map::GID_CACHE, size_of::<map::GidKey>(), size_of::<map::GidEntry>()),
        (map::OWN_BITS, 4, 8),
        (map::LEARNED_GIDS, size_of::<map::GidKey>(), size_of::<map::LearnedGid>()),
        (map::INTERFACES, 4, size_of::<map::Interface>()),
        (map::FAR_INTERFACES, 4, size_of::<map::Interface>()),
        (map::ALLOW, 4 + size_of::<map::AllowPrefix>(), size_of::<map::Allow>()),
        (map::NEIGHBOURS, size_of::<map::NeighbourKey>(), size_of::<map::Neighbour>()),
        (map::ROUTES, 4 + size_of::<map::RoutePrefix>(), size_of::<map::Route>()),
        (map::RESPONDER_CFG, 4, size_of::<map::ResponderCfg>()),
        (map::COUNTERS, 4, size_of::<map::Counters>()),
    ];
    assert_eq!(sizes.map(|(name, ..)| name), map::NAMES);
    for (name, key, value) in sizes {
        let info = programs.map_info(name);
        assert_eq!((info.key_size() as usize, info.value_size() as usize), (key, value), "{name}");
        assert_eq!(info.name_as_str(), Some(name));
    }
}
