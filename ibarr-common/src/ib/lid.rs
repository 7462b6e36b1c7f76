// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use core::fmt;

/// A local identifier, 16 bits: where a packet goes within its subnet (IBA vol. 1 §4.1.3).
///
/// 0 is reserved and cannot be built. Without a LID a port is reached by directed route alone,
/// under [`Lid::PERMISSIVE`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lid(u16);

impl Lid {
    /// Means the port that gets it, whichever it is.
    pub const PERMISSIVE: Self = Self(0xffff);
    /// The highest that a port can have.
    pub const MAX_UNICAST: Self = Self(0xbfff);
    /// The first of a multicast group.
    pub const FIRST_MULTICAST: Self = Self(0xc000);

    /// `None` for 0.
    pub const fn new(lid: u16) -> Option<Self> {
        if lid == 0 {
            return None;
        }
        Some(Self(lid))
    }

    /// Its number.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether it names one port.
    pub const fn is_unicast(self) -> bool {
        self.0 <= Self::MAX_UNICAST.0
    }

    /// Whether it names a multicast group.
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
    fn lids_are_of_three_kinds() {
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
