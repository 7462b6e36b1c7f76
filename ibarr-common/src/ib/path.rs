// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use core::fmt;

/// Partition key, 16 bits (IBA vol. 1 §10.9): the upper bit is full membership, the others
/// name the partition.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PKey(u16);

impl PKey {
    /// The default partition as its full members have it.
    pub const DEFAULT: Self = Self(0xffff);

    /// `None` if it names partition 0, which is none.
    pub const fn new(pkey: u16) -> Option<Self> {
        if pkey << 1 == 0 {
            return None;
        }
        Some(Self(pkey))
    }

    /// Its number, with the membership bit.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

/// What a connection is for, 64 bits (IBA vol. 1 Annex A3).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServiceId(u64);

impl ServiceId {
    /// From its number.
    pub const fn new(service_id: u64) -> Self {
        Self(service_id)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

/// Class of service that a path is wanted for, 12 bits (IBA vol. 1 Annex A13).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QosClass(u16);

impl QosClass {
    /// `None` above 12 bits.
    pub const fn new(qos_class: u16) -> Option<Self> {
        if qos_class > 0x0fff {
            return None;
        }
        Some(Self(qos_class))
    }

    /// Its number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// What the SA says of a path, as it stands in a MAD (IBA vol. 1 §15.2.5.16): 64 bytes, passed on
/// and never changed.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct PathRecord([u8; Self::LEN]);

impl PathRecord {
    /// Bytes of the attribute.
    pub const LEN: usize = 64;

    /// From the bytes of the attribute.
    pub const fn from_octets(octets: [u8; Self::LEN]) -> Self {
        Self(octets)
    }

    /// The bytes of the attribute.
    pub const fn octets(self) -> [u8; Self::LEN] {
        self.0
    }
}

impl fmt::Debug for PathRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathRecord(")?;
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_zero_is_none_with_either_membership() {
        assert_eq!(PKey::new(0), None);
        assert_eq!(PKey::new(0x8000), None);
        assert_eq!(PKey::new(0x8001).map(PKey::get), Some(0x8001));
        assert_eq!(PKey::new(0xffff), Some(PKey::DEFAULT));
    }

    #[test]
    fn qos_class_has_twelve_bits() {
        assert_eq!(QosClass::new(0x0fff).map(QosClass::get), Some(0x0fff));
        assert_eq!(QosClass::new(0x1000), None);
    }
}
