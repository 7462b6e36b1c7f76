// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The map of peers' answers, for people and for the next daemon. No program reads it, so a mistake
//! here costs a query but never gives a wrong answer.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use std::vec;

use aya::maps::{HashMap, Map, MapData, MapError};
use ibarr_common::ib::Gid;
use ibarr_common::map::{self, GidKey, LearnedGid};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{Cached, Learned};

use super::map::{Error, absent};
use super::plain::MapValue;

/// An element of the map, not validated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    pub key: GidKey,
    pub value: LearnedGid,
}

impl Element {
    /// `None` if no daemon can have written the element.
    pub(crate) fn parse(&self) -> Option<(Question, Cached)> {
        let question = Question::new(self.key.ip(), IfIndex::new(self.key.scope))?;
        let gid = Some(Gid::new(self.value.gid)?);
        let expires_at = Instant::from_nanos(self.value.expires_at);
        Some((question, Cached { gid, heard_at: None, expires_at }))
    }

    fn new(question: Question, gid: Gid, expires_at: Instant, source: Option<IpAddr>) -> Self {
        // An unspecified address if the peer is not known any more.
        let source = source.unwrap_or(IpAddr::from([0; 16]));
        Self { key: key(question), value: LearnedGid::new(gid, source, expires_at) }
    }
}

fn key(question: Question) -> GidKey {
    GidKey {
        address: map::octets(question.target()),
        scope: question.egress().map_or(0, IfIndex::get),
    }
}

/// The map, kept equal to the client's cache.
pub(super) struct Mirror {
    map: HashMap<MapData, MapValue<GidKey>, MapValue<LearnedGid>>,
}

impl Mirror {
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        let map = MapData::from_pin(dir.join(map::LEARNED_GIDS))
            .and_then(|data| HashMap::try_from(Map::HashMap(data)));
        Ok(Self { map: map.map_err(named)? })
    }

    pub(super) fn elements(&self) -> Result<Vec<Element>, Error> {
        let element = |element: Result<(MapValue<GidKey>, MapValue<LearnedGid>), MapError>| {
            element.map(|(key, value)| Element { key: key.0, value: value.0 })
        };
        self.map.iter().map(element).collect::<Result<_, _>>().map_err(named)
    }

    pub(super) fn learn(&mut self, change: &Learned) -> Result<(), Error> {
        match *change {
            Learned::Known { question, gid, expires_at, source } => {
                self.put(&Element::new(question, gid, expires_at, source))
            }
            Learned::Forgotten { question } => self.remove(&key(question)),
            // The whole map is rebuilt instead.
            Learned::Everything => Ok(()),
        }
    }

    /// Makes `element` equal to the cache, and returns whether it is in the map now.
    fn compare(&mut self, element: &Element, cached: Option<Cached>) -> Result<bool, Error> {
        let Some((question, there)) = element.parse() else {
            return self.remove(&element.key).map(|()| false);
        };
        let Some((gid, expires_at)) = cached.and_then(|it| Some((it.gid?, it.expires_at))) else {
            return self.remove(&element.key).map(|()| false);
        };
        // The cache drops the last bit of the time.
        let is_right = there.gid == Some(gid) && there.expires_at.since(expires_at).as_nanos() <= 1;
        if !is_right {
            self.put(&Element::new(question, gid, expires_at, None))?;
        }
        Ok(true)
    }

    fn put(&mut self, element: &Element) -> Result<(), Error> {
        self.map.insert(MapValue(element.key), MapValue(element.value), 0).map_err(named)
    }

    fn remove(&mut self, key: &GidKey) -> Result<(), Error> {
        absent(self.map.remove(&MapValue(*key))).map_err(named)
    }
}

/// The state of a rebuild, which goes in parts: first each element of the map is compared with the
/// cache, then each entry of the cache that is missing is added. Changes of the cache are written
/// all the while.
pub(super) struct Making {
    elements: vec::IntoIter<Element>,
    /// The elements were left by an earlier daemon.
    are_inherited: bool,
    /// Questions known to be in the map: compared ones, and those written since.
    in_map: HashSet<Question>,
    last: Option<(Question, Cached)>,
}

/// The next step of a rebuild.
#[derive(Debug)]
pub(crate) enum Part {
    /// The caller [compares](super::Handover::compare) each element with the cache.
    Compare {
        /// Elements that are, or were, in the map.
        elements: Vec<Element>,
        /// An earlier daemon left the elements: the cache first [takes
        /// over](ibarr_proto::ip2gid::client::Client::restore) the useful ones.
        are_inherited: bool,
    },
    /// The caller [adds](super::Handover::add) the next [`PART`] entries of the cache.
    Add {
        /// Last entry of the previous part.
        after: Option<(Question, Cached)>,
    },
}

/// Elements in one part, which take some hundred microseconds of a turn.
pub(crate) const PART: usize = 256;

impl Making {
    pub(super) fn new(elements: Vec<Element>, are_inherited: bool) -> Self {
        let in_map = HashSet::with_capacity(elements.len());
        Self { elements: elements.into_iter(), are_inherited, in_map, last: None }
    }

    /// Whether the cache has yet to take over elements.
    pub(super) fn inherits(&self) -> bool {
        self.are_inherited && self.elements.len() > 0
    }

    pub(super) fn next(&mut self) -> Part {
        let elements: Vec<_> = self.elements.by_ref().take(PART).collect();
        if elements.is_empty() {
            Part::Add { after: self.last }
        } else {
            Part::Compare { elements, are_inherited: self.are_inherited }
        }
    }

    pub(super) fn compare(
        &mut self,
        mirror: &mut Mirror,
        element: &Element,
        cached: Option<Cached>,
    ) -> Result<(), Error> {
        if mirror.compare(element, cached)? {
            self.in_map.extend(element.parse().map(|(question, _)| question));
        }
        Ok(())
    }

    /// Returns whether the rebuild is complete.
    pub(super) fn add(
        &mut self,
        mirror: &mut Mirror,
        entries: &[(Question, Cached)],
    ) -> Result<bool, Error> {
        for (question, cached) in entries {
            if let Some(gid) = cached.gid
                && !self.in_map.contains(question)
            {
                mirror.put(&Element::new(*question, gid, cached.expires_at, None))?;
            }
        }
        self.last = entries.last().copied();
        Ok(entries.len() < PART)
    }

    /// Notes that a change of the cache was written to the map, or removed from it.
    pub(super) fn note(&mut self, change: &Learned) {
        match change {
            Learned::Known { question, .. } => drop(self.in_map.insert(*question)),
            Learned::Forgotten { question } => drop(self.in_map.remove(question)),
            Learned::Everything => {}
        }
    }
}

fn named(source: MapError) -> Error {
    Error { name: map::LEARNED_GIDS, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(target: &str, egress: u32) -> Element {
        let question = Question::new(target.parse().unwrap(), IfIndex::new(egress)).unwrap();
        let gid = "fe80::1".parse().unwrap();
        Element::new(question, gid, Instant::from_nanos(7), Some([10, 2, 0, 5].into()))
    }

    #[test]
    fn written_element_is_read_back_with_its_interface() {
        for (target, egress) in [("10.2.0.5", 0), ("10.2.0.5", 4), ("fd00:2::5", 0), ("fe80::5", 4)]
        {
            let (question, cached) = element(target, egress).parse().unwrap();
            assert_eq!(
                (question.target().to_string().as_str(), question.egress()),
                (target, IfIndex::new(egress))
            );
            assert_eq!(cached.gid, "fe80::1".parse().ok());
            assert_eq!(cached.expires_at, Instant::from_nanos(7));
        }
    }

    #[test]
    fn full_map_is_rebuilt_in_bounded_parts() {
        let elements: Vec<_> =
            (1..=1000).map(|n| element(&format!("10.2.{}.{}", n / 250, n % 250), 0)).collect();
        let mut making = Making::new(elements, true);
        let mut lens = Vec::new();
        while making.inherits() {
            let Part::Compare { elements, are_inherited: true } = making.next() else { panic!() };
            lens.push(elements.len());
        }
        assert_eq!(lens, [PART, PART, PART, 1000 - 3 * PART]);
        assert!(matches!(making.next(), Part::Add { after: None }));
    }

    #[test]
    fn element_that_no_daemon_writes_is_ignored() {
        let good = element("10.2.0.5", 0);
        for address in ["0.0.0.0", "224.0.0.1", "ff02::1", "::"] {
            let address = map::octets(address.parse().unwrap());
            assert!(Element { key: GidKey { address, ..good.key }, ..good }.parse().is_none());
        }
        for gid in [[0; 16], [0xff; 16]] {
            assert!(Element { value: LearnedGid { gid, ..good.value }, ..good }.parse().is_none());
        }
        assert!(good.parse().is_some());
    }
}
