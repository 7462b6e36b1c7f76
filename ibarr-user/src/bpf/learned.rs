// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The map that holds what peers have answered, for people and for the next daemon. No program reads
//! it, so that a mistake here costs a query and never an answer.

use std::collections::HashMap as Table;
use std::net::IpAddr;
use std::path::Path;

use aya::maps::{HashMap, Map, MapData, MapError};
use ibarr_common::ib::Gid;
use ibarr_common::map::{self, GidKey, LearnedGid};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{Cached, Learned};

use super::maps::{Error, absent};
use super::plain::MapValue;

/// An element as it lies in the map, whoever wrote it.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// What was asked.
    pub key: GidKey,
    /// What was answered.
    pub value: LearnedGid,
}

impl Element {
    /// `None` if no daemon can have written it.
    pub fn parse(&self) -> Option<(Question, Cached)> {
        let question = Question::new(self.key.ip(), IfIndex::new(self.key.scope))?;
        let gid = Some(Gid::new(self.value.gid)?);
        let expires_at = Instant::from_nanos(self.value.expires_at);
        Some((question, Cached { gid, expires_at }))
    }

    fn new(question: Question, gid: Gid, expires_at: Instant, source: Option<IpAddr>) -> Self {
        // Of no address, if nobody knows any more.
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

/// The map, kept as the cache is.
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
            // Whoever has the cache calls `fill`.
            Learned::Everything => Ok(()),
        }
    }

    /// Makes the map, of which these are the `elements`, as the cache is.
    pub(super) fn fill(
        &mut self,
        elements: &[Element],
        cache: impl Iterator<Item = (Question, Cached)>,
    ) -> Result<(), Error> {
        let mut wanted: Table<Question, (Gid, Instant)> = cache
            .filter_map(|(question, cached)| Some((question, (cached.gid?, cached.expires_at))))
            .collect();
        for element in elements {
            let there = element.parse();
            let is_right = |(question, cached): &(Question, Cached)| {
                wanted.get(question).is_some_and(|&(gid, expires_at)| {
                    // The cache forgets the last bit of the time.
                    cached.gid == Some(gid) && cached.expires_at.since(expires_at).as_nanos() <= 1
                })
            };
            if let Some((question, _)) = there.filter(is_right) {
                wanted.remove(&question);
            } else {
                self.remove(&element.key)?;
            }
        }
        for (question, (gid, expires_at)) in wanted {
            self.put(&Element::new(question, gid, expires_at, None))?;
        }
        Ok(())
    }

    fn put(&mut self, element: &Element) -> Result<(), Error> {
        self.map.insert(MapValue(element.key), MapValue(element.value), 0).map_err(named)
    }

    fn remove(&mut self, key: &GidKey) -> Result<(), Error> {
        absent(self.map.remove(&MapValue(*key))).map_err(named)
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
    fn what_is_written_is_read_back_with_its_interface() {
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
    fn what_no_daemon_writes_is_not_believed() {
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
