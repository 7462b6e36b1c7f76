// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use core::fmt;
use core::num::NonZeroU32;

/// Index of a network device in one network namespace (`ifindex` in rtnetlink, host byte order).
///
/// Zero means "none" to the kernel and cannot be built. Indices start again when a namespace is
/// made, and the kernel may give a freed one to another device.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IfIndex(NonZeroU32);

impl IfIndex {
    /// The lowest, that of the loopback interface.
    pub const MIN: Self = Self(NonZeroU32::MIN);

    /// `None` if `index` is zero.
    pub const fn new(index: u32) -> Option<Self> {
        match NonZeroU32::new(index) {
            Some(index) => Some(Self(index)),
            None => None,
        }
    }

    /// The kernel's number for it.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for IfIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
