// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The order in which entries expire.
//!
//! It has only slots, 6 bytes an entry, and reads the times where the entries are. The order is cut
//! into blocks, so that an insertion moves few slots.

use alloc::vec;
use alloc::vec::Vec;

use ibarr_common::Instant;

use super::slab::Slot;

/// When the entry in a slot expires. Equal times are ordered by slot.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Position(pub(super) Instant, pub(super) Slot);

/// Slots in the order of their positions. A position is an argument while its slot is in the order,
/// and may not change. `of` tells the position of each slot in the order.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// None is empty, and two neighbours have at least half of [`FULL`].
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    /// Not above any slot in this block, except in the first one, and above all in the blocks before.
    from: Position,
    slots: Vec<Slot>,
}

/// A block with so many slots is cut: few in tests, so that they cut many.
const FULL: usize = if cfg!(test) { 8 } else { 128 };

impl Order {
    pub(super) fn first(&self) -> Option<Slot> {
        self.blocks.first()?.slots.first().copied()
    }

    pub(super) fn insert(&mut self, position: Position, of: impl Fn(Slot) -> Position) {
        let index = self.block_of(position);
        let Some(Block { slots, .. }) = self.blocks.get_mut(index) else {
            return self.blocks.push(Block { from: position, slots: vec![position.1] });
        };
        slots.insert(slots.partition_point(|&slot| of(slot) < position), position.1);
        if slots.len() == FULL {
            let slots = slots.split_off(FULL / 2);
            self.blocks.insert(index + 1, Block { from: of(slots[0]), slots });
        }
    }

    pub(super) fn remove(&mut self, position: Position, of: impl Fn(Slot) -> Position) {
        let index = self.block_of(position);
        if let Some(Block { slots, .. }) = self.blocks.get_mut(index)
            && let Ok(at) = slots.binary_search_by_key(&position, |&slot| of(slot))
        {
            slots.remove(at);
            self.join(index);
            self.join(index.saturating_sub(1));
            self.blocks.pop_if(|block| block.slots.is_empty());
        }
    }

    /// The slots after a position, or all.
    pub(super) fn after(
        &self,
        position: Option<Position>,
        of: impl Fn(Slot) -> Position,
    ) -> impl Iterator<Item = Slot> {
        let index = position.map_or(0, |position| self.block_of(position));
        let passed = position.zip(self.blocks.get(index)).map_or(0, |(position, block)| {
            block.slots.partition_point(|&slot| of(slot) <= position)
        });
        self.blocks.iter().skip(index).flat_map(|block| &block.slots).skip(passed).copied()
    }

    /// The block that a position belongs to.
    fn block_of(&self, position: Position) -> usize {
        self.blocks.partition_point(|block| block.from <= position).saturating_sub(1)
    }

    /// Makes this block and the next into one, if they fit.
    fn join(&mut self, index: usize) {
        if let Some([one, two, ..]) = self.blocks.get_mut(index..)
            && one.slots.len() + two.slots.len() < FULL
        {
            one.slots.append(&mut two.slots);
            self.blocks.remove(index + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check_that_blocks_are_full_enough(order: &Order) {
        let lens: Vec<_> = order.blocks.iter().map(|block| block.slots.len()).collect();
        assert!(lens.iter().all(|len| (1..FULL).contains(len)), "{lens:?}");
        assert!(lens.windows(2).all(|two| two[0] + two[1] >= FULL / 2), "{lens:?}");
    }

    #[test]
    fn blocks_that_shrink_in_either_direction_are_joined() {
        let of = |slot| Position(Instant::BOOT, slot);
        for is_backwards in [false, true] {
            let mut order = Order::default();
            // Those between the even ones fill the blocks, but do not cut them.
            for slot in (0..512).step_by(2).chain((1..512).step_by(2).filter(|slot| slot % 8 != 7))
            {
                order.insert(of(Slot(slot)), of);
            }
            assert!(order.blocks.iter().rev().skip(1).all(|block| block.slots.len() == FULL - 1));
            let mut gone: Vec<_> = (0..512).filter(|slot| slot % 8 != 0).collect();
            if is_backwards {
                gone.reverse();
            }
            for slot in gone {
                order.remove(of(Slot(slot)), of);
                check_that_blocks_are_full_enough(&order);
            }
        }
    }

    proptest! {
        #[test]
        fn order_is_that_of_a_sorted_list(
            ops in prop::collection::vec(any::<(u8, u8)>(), ..300),
        ) {
            let mut order = Order::default();
            let mut model: Vec<Position> = Vec::new();
            let mut times = [0; 64];
            for (at, (slot, time)) in ops.into_iter().enumerate() {
                let slot = slot % 64;
                // Many equal times.
                let of = |times: &[u8; 64], Slot(slot): Slot| {
                    Position(Instant::from_nanos(times[slot as usize].into()), Slot(slot))
                };
                let old = of(&times, Slot(slot.into()));
                if let Ok(at) = model.binary_search(&old) {
                    order.remove(old, |slot| of(&times, slot));
                    model.remove(at);
                }
                // It grows, then shrinks.
                if at < 100 {
                    times[usize::from(slot)] = time / 8;
                    let new = of(&times, Slot(slot.into()));
                    order.insert(new, |slot| of(&times, slot));
                    model.push(new);
                    model.sort_unstable();
                }
                prop_assert_eq!(order.first(), model.first().map(|first| first.1));
                let place = Position(Instant::from_nanos((time / 4).into()), Slot(7));
                for place in [None, Some(place)] {
                    let after = model.iter().filter(|it| Some(**it) > place).map(|it| it.1);
                    let listed: Vec<_> = order.after(place, |slot| of(&times, slot)).collect();
                    prop_assert_eq!(listed, after.collect::<Vec<_>>());
                }
                check_that_blocks_are_full_enough(&order);
            }
        }
    }
}
