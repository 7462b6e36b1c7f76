// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! LIDs, the addresses that switches know.

use core::fmt;

/// A local identifier, 16 bits: switches forward a packet by it within its subnet (IBA vol. 1
/// §4.1.3).
///
/// 0 is reserved and cannot be built. A port without a LID is reached by directed route only,
/// addressed to [`Lid::PERMISSIVE`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lid(u16);

impl Lid {
    /// Addresses the port that receives the packet, whatever its LID.
    pub const PERMISSIVE: Self = Self(0xffff);
    /// The highest LID of a port.
    pub const MAX_UNICAST: Self = Self(0xbfff);
    /// The lowest LID of a multicast group.
    pub const FIRST_MULTICAST: Self = Self(0xc000);

    /// `None` for 0.
    pub const fn new(lid: u16) -> Option<Self> {
        if lid == 0 {
            return None;
        }
        Some(Self(lid))
    }

    /// The number, 1 to 0xffff.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether this LID names one port.
    pub const fn is_unicast(self) -> bool {
        self.0 <= Self::MAX_UNICAST.0
    }

    /// Whether this LID names a multicast group.
    pub const fn is_multicast(self) -> bool {
        !self.is_unicast() && self.0 != Self::PERMISSIVE.0
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lid_is_unicast_multicast_or_permissive() {
        assert_eq!(Lid::new(0), None);
        let kind = |lid| {
            let lid = Lid::new(lid).unwrap();
            (lid.is_unicast(), lid.is_multicast())
        };
        for lid in [1, 0xbfff] {
            assert_eq!(kind(lid), (true, false));
        }
        for lid in [0xc000, 0xfffe] {
            assert_eq!(kind(lid), (false, true));
        }
        assert_eq!(kind(0xffff), (false, false));
    }
}
