// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Values by slot: 4 bytes name a value, where a map would have its key or a pointer.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// The position of a value in its slab.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Slot(pub(super) u32);

/// Values by slot, in blocks, so that growth moves none of them.
pub(super) struct Slab<T> {
    blocks: Vec<Box<[Option<T>]>>,
    free: Vec<Slot>,
}

impl<T: Copy> Slab<T> {
    const BLOCK: usize = 1024;

    /// Number of slots, including free ones.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.blocks.len() * Self::BLOCK).unwrap_or(u32::MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len() * Self::BLOCK - self.free.len()
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        let (block, at) = Self::place(slot);
        self.blocks.get(block)?.get(at)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.place_mut(slot)?.as_mut()
    }

    /// `None` if no slot is left, which is far beyond the bound of a cache.
    pub(super) fn insert(&mut self, value: T) -> Option<Slot> {
        if self.free.is_empty() {
            let start = self.blocks.len() * Self::BLOCK;
            let slots = (start..start + Self::BLOCK).rev();
            self.free.extend(slots.filter_map(|at| u32::try_from(at).ok()).map(Slot));
            self.blocks.push(vec![None; Self::BLOCK].into());
        }
        let slot = self.free.pop()?;
        *self.place_mut(slot)? = Some(value);
        Some(slot)
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<T> {
        let value = self.place_mut(slot)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    fn place_mut(&mut self, slot: Slot) -> Option<&mut Option<T>> {
        let (block, at) = Self::place(slot);
        self.blocks.get_mut(block)?.get_mut(at)
    }

    fn place(slot: Slot) -> (usize, usize) {
        let at = slot.0 as usize;
        (at / Self::BLOCK, at % Self::BLOCK)
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), free: Vec::new() }
    }
}

impl<T: Copy> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({})", self.len())
    }
}
