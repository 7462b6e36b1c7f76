// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's numbers of network devices.

use core::fmt;
use core::num::NonZeroU32;

/// Index of a network device in one network namespace (`ifindex` in rtnetlink, host byte order).
///
/// Zero means "none" to the kernel and cannot be built. Each new namespace counts from 1 again, and
/// the kernel may give the index of a removed device to another one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IfIndex(NonZeroU32);

impl IfIndex {
    /// The lowest index, that of the loopback interface.
    pub const MIN: Self = Self(NonZeroU32::MIN);

    /// `None` if `index` is zero.
    pub const fn new(index: u32) -> Option<Self> {
        match NonZeroU32::new(index) {
            Some(index) => Some(Self(index)),
            None => None,
        }
    }

    /// The number as the kernel writes it.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for IfIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

crate::serde_as_number! { IfIndex, u32: IfIndex::new, IfIndex::get; }
