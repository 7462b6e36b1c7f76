// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The interfaces' elements by index: small indices in an array, which is cheap for a program, all
//! others in a hash.

use std::path::Path;

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use ibarr_common::IfIndex;
use ibarr_common::map::{self, Interface};

use super::map::{Error, absent, open};
use super::plain::MapValue;

pub(super) struct Interfaces {
    near: Array<MapData, MapValue<Interface>>,
    far: HashMap<MapData, u32, MapValue<Interface>>,
}

impl Interfaces {
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        Ok(Self {
            near: open(dir, map::INTERFACES, Map::Array)?,
            far: open(dir, map::FAR_INTERFACES, Map::HashMap)?,
        })
    }

    pub(super) fn set(&mut self, ifindex: IfIndex, interface: Interface) -> Result<(), Error> {
        let (index, value) = (ifindex.get(), MapValue(interface));
        if self.is_near(index) {
            self.near.set(index, value, 0).map_err(near)
        } else {
            self.far.insert(index, value, 0).map_err(far)
        }
    }

    /// Removing a missing element is no error.
    pub(super) fn remove(&mut self, ifindex: IfIndex) -> Result<(), Error> {
        let index = ifindex.get();
        if self.is_near(index) {
            self.near.set(index, MapValue(Interface::NONE), 0).map_err(near)
        } else {
            absent(self.far.remove(&index)).map_err(far)
        }
    }

    /// All interfaces, the ones in the array ordered by index.
    pub(super) fn all(&self) -> Result<Vec<(IfIndex, Interface)>, Error> {
        let mut all = Vec::new();
        for index in 0..self.near.len() {
            all.push((index, self.near.get(&index, 0).map_err(near)?));
        }
        for element in &self.far {
            all.push(element.map_err(far)?);
        }
        let is_there = |(index, MapValue(interface)): (u32, MapValue<Interface>)| {
            IfIndex::new(index).zip((interface != Interface::NONE).then_some(interface))
        };
        Ok(all.into_iter().filter_map(is_there).collect())
    }

    fn is_near(&self, index: u32) -> bool {
        index < self.near.len()
    }
}

fn near(source: MapError) -> Error {
    Error { name: map::INTERFACES, source }
}

fn far(source: MapError) -> Error {
    Error { name: map::FAR_INTERFACES, source }
}
