// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The map of peers' answers.

use std::path::Path;

use aya::maps::{HashMap, Map, MapData, MapError};
use ibarr_common::map::{self, GidKey, LearnedGid};
use ibarr_proto::ip2gid::client::mirror::Element;

use super::map::{Error, absent, open};
use super::plain::MapValue;

/// The map, which the client keeps equal to its cache.
pub(super) struct Mirror {
    map: HashMap<MapData, MapValue<GidKey>, MapValue<LearnedGid>>,
}

impl Mirror {
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        Ok(Self { map: open(dir, map::LEARNED_GIDS, Map::HashMap)? })
    }

    pub(super) fn elements(&self) -> Result<Vec<Element>, Error> {
        let elements = self.map.iter().map(|element| {
            let (key, value) = element?;
            Ok(Element { key: key.0, value: value.0 })
        });
        elements.collect::<Result<_, _>>().map_err(named)
    }

    pub(super) fn put(&mut self, element: &Element) -> Result<(), Error> {
        self.map.insert(MapValue(element.key), MapValue(element.value), 0).map_err(named)
    }

    pub(super) fn remove(&mut self, key: &GidKey) -> Result<(), Error> {
        absent(self.map.remove(&MapValue(*key))).map_err(named)
    }
}

fn named(source: MapError) -> Error {
    Error { name: map::LEARNED_GIDS, source }
}
