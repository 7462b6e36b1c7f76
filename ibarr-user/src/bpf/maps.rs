// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Opens the pinned maps, writes them and reads them.

use std::path::Path;

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray};
use ibarr_common::IfIndex;
use ibarr_common::map::{
    self, Allow, AllowPrefix, Counters, GidEntry, GidKey, Interface, Neighbour, NeighbourKey,
    Program, Reason, ResponderCfg, Route, RoutePrefix,
};
use ibarr_proto::responder::{AllowKey, MapElements, MapUpdate, RouteKey};

use super::interfaces::Interfaces;
use super::map::{Error, absent, open};
use super::own::{Known, Marked, OwnAddresses};
use super::plain::MapValue;

/// The pinned maps, with the types of their keys and values.
pub(super) struct Maps {
    gid_cache: HashMap<MapData, MapValue<GidKey>, MapValue<GidEntry>>,
    own: OwnAddresses<Known<Array<MapData, u64>>>,
    interfaces: Interfaces,
    allow: LpmTrie<MapData, MapValue<AllowPrefix>, MapValue<Allow>>,
    routes: LpmTrie<MapData, MapValue<RoutePrefix>, MapValue<Route>>,
    neighbours: HashMap<MapData, MapValue<NeighbourKey>, MapValue<Neighbour>>,
    cfg: Array<MapData, MapValue<ResponderCfg>>,
    counters: PerCpuArray<MapData, MapValue<Counters>>,
}

/// The contents of the maps that programs read.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    /// Addresses of this node, in their order.
    pub entries: Vec<GidEntry>,
    pub interfaces: Vec<(IfIndex, Interface)>,
    /// Prefixes that interfaces lead to: length in bits, key and value.
    pub routes: Vec<(u32, RoutePrefix, Route)>,
    /// Next hops, for programs that need to know them, in their order.
    pub neighbours: Vec<(NeighbourKey, Neighbour)>,
    /// The settings of all programs, with the lease.
    pub cfg: ResponderCfg,
    /// Whether the maps are about the network namespace of this process; interface indices mean
    /// something only there.
    pub is_here: bool,
}

impl Maps {
    /// Opens the pins in `dir`. Keys or values of another size are an error.
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        Ok(Self {
            gid_cache: open(dir, map::GID_CACHE, Map::HashMap)?,
            own: OwnAddresses::new(Known::new(open(dir, map::OWN_BITS, Map::Array)?)),
            interfaces: Interfaces::open(dir)?,
            allow: open(dir, map::ALLOW, Map::LpmTrie)?,
            routes: open(dir, map::ROUTES, Map::LpmTrie)?,
            neighbours: open(dir, map::NEIGHBOURS, Map::HashMap)?,
            cfg: open(dir, map::RESPONDER_CFG, Map::Array)?,
            counters: open(dir, map::COUNTERS, Map::PerCpuArray)?,
        })
    }

    /// Reads the bits that an earlier daemon has left. Call it before anything is written.
    pub(super) fn take_over(&mut self) -> Result<(), Error> {
        let keys = all(map::GID_CACHE, self.gid_cache.keys())?.into_iter();
        let routes = self.routes()?.into_iter();
        let edges = routes.filter_map(|(key, route)| edge(&key, &route));
        for marked in keys.map(|key| Marked::from(key.0)).chain(edges) {
            self.own.add(marked).map_err(|source| Error { name: map::OWN_BITS, source })?;
        }
        Ok(())
    }

    /// Removing a missing element is no error.
    pub(super) fn write(&mut self, update: &MapUpdate) -> Result<(), Error> {
        let any = 0;
        let lpm = |key: AllowKey| Key::new(key.bits, MapValue(key.prefix));
        let destination = |key: RouteKey| Key::new(key.bits, MapValue(key.prefix));
        let own = |source| Error { name: map::OWN_BITS, source };
        let marked = match *update {
            MapUpdate::Address(entry) => Some(entry.key.into()),
            MapUpdate::Route(key, route) => edge(&key, &route),
            _ => None,
        };
        if let Some(marked) = marked {
            self.own.add(marked).map_err(own)?;
        }
        let (name, result) = match *update {
            MapUpdate::Address(entry) => {
                (map::GID_CACHE, self.gid_cache.insert(MapValue(entry.key), MapValue(entry), any))
            }
            MapUpdate::NoAddress(key) => {
                (map::GID_CACHE, absent(self.gid_cache.remove(&MapValue(key))))
            }
            MapUpdate::Interface(ifindex, interface) => {
                return self.interfaces.set(ifindex, interface);
            }
            MapUpdate::NoInterface(ifindex) => return self.interfaces.remove(ifindex),
            MapUpdate::Allow(key) => {
                (map::ALLOW, self.allow.insert(&lpm(key), MapValue(Allow { allowed: 1 }), any))
            }
            MapUpdate::NoAllow(key) => (map::ALLOW, absent(self.allow.remove(&lpm(key)))),
            MapUpdate::Route(key, route) => {
                (map::ROUTES, self.routes.insert(&destination(key), MapValue(route), any))
            }
            MapUpdate::NoRoute(key) => (map::ROUTES, absent(self.routes.remove(&destination(key)))),
            MapUpdate::Neighbour(key, neighbour) => {
                (map::NEIGHBOURS, self.neighbours.insert(MapValue(key), MapValue(neighbour), any))
            }
            MapUpdate::NoNeighbour(key) => {
                (map::NEIGHBOURS, absent(self.neighbours.remove(&MapValue(key))))
            }
            MapUpdate::Cfg(cfg) => (map::RESPONDER_CFG, self.cfg.set(0, MapValue(cfg), any)),
        };
        result.map_err(|source| Error { name, source })?;
        let unmarked = match *update {
            MapUpdate::NoAddress(key) => Some(key.into()),
            MapUpdate::NoRoute(key) => Marked::edge(&key),
            MapUpdate::Route(key, route) if route.is_here() => Marked::edge(&key),
            _ => None,
        };
        unmarked.map_or(Ok(()), |unmarked| self.own.remove(unmarked)).map_err(own)
    }

    pub(super) fn keys(&self) -> Result<MapElements, Error> {
        let addresses = self.gid_cache.keys().map(|key| Ok(key?.0));
        let allow = self.allow.keys().map(|key| {
            let key = key?;
            Ok(AllowKey { bits: key.prefix_len(), prefix: key.data().0 })
        });
        let neighbours = self.neighbours.keys().map(|key| Ok(key?.0));
        Ok(MapElements {
            addresses: all(map::GID_CACHE, addresses)?,
            interfaces: self.interfaces.all()?.into_iter().map(|(ifindex, _)| ifindex).collect(),
            allow: all(map::ALLOW, allow)?,
            routes: self.routes()?,
            neighbours: all(map::NEIGHBOURS, neighbours)?,
            cfg: self.cfg()?,
        })
    }

    fn routes(&self) -> Result<Vec<(RouteKey, Route)>, Error> {
        let routes = self.routes.iter().map(|element| {
            let (key, route) = element?;
            Ok((RouteKey { bits: key.prefix_len(), prefix: key.data().0 }, route.0))
        });
        all(map::ROUTES, routes)
    }

    fn cfg(&self) -> Result<ResponderCfg, Error> {
        let cfg = self.cfg.get(&0, 0);
        cfg.map(|cfg| cfg.0).map_err(|source| Error { name: map::RESPONDER_CFG, source })
    }

    pub(super) fn contents(&self, is_here: bool) -> Result<Contents, Error> {
        let entries = self.gid_cache.iter().map(|element| Ok(element?.1.0));
        let routes = self.routes()?.into_iter();
        let neighbours = self.neighbours.iter().map(|element| {
            let (key, neighbour) = element?;
            Ok((key.0, neighbour.0))
        });
        let mut contents = Contents {
            entries: all(map::GID_CACHE, entries)?,
            interfaces: self.interfaces.all()?,
            routes: routes.map(|(key, route)| (key.bits, key.prefix, route)).collect(),
            neighbours: all(map::NEIGHBOURS, neighbours)?,
            cfg: self.cfg()?,
            is_here,
        };
        contents.routes.sort_by_key(|(bits, prefix, _)| (prefix.ifindex, prefix.address, *bits));
        contents.neighbours.sort_by_key(|(key, _)| (key.ifindex, key.address));
        contents.entries.sort_by_key(|entry| (entry.key.ip(), entry.key.scope));
        contents.interfaces.sort_by_key(|(ifindex, _)| *ifindex);
        Ok(contents)
    }

    /// The programs' counters, summed over all CPUs.
    pub(super) fn counts(&self) -> Result<Vec<(Program, Reason, u64)>, Error> {
        let mut counts = Vec::new();
        for program in Program::ALL {
            let per_cpu = self.counters.get(&program.index(), 0);
            let per_cpu = per_cpu.map_err(|source| Error { name: map::COUNTERS, source })?;
            let sum = Counters::sum(per_cpu.iter().map(|counters| &counters.0));
            counts.extend(Reason::ALL.map(|reason| (program, reason, sum.of(reason))));
        }
        Ok(counts)
    }
}

/// The address of a route that is [marked](OwnAddresses).
fn edge(key: &RouteKey, route: &Route) -> Option<Marked> {
    if route.is_here() { None } else { Marked::edge(key) }
}

fn all<T>(
    name: &'static str,
    elements: impl Iterator<Item = Result<T, MapError>>,
) -> Result<Vec<T>, Error> {
    elements.collect::<Result<_, _>>().map_err(|source| Error { name, source })
}
