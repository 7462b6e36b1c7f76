// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! PathRecords, and the values in them.

use core::fmt;
use core::str::FromStr;

/// Partition key, 16 bits (IBA vol. 1 §10.9): the upper bit means full membership, the others name
/// the partition.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PKey(u16);

impl PKey {
    /// The key of full members of the default partition.
    pub const DEFAULT: Self = Self(0xffff);

    /// `None` for partition 0, which is not a legal partition.
    pub const fn new(pkey: u16) -> Option<Self> {
        if pkey << 1 == 0 {
            return None;
        }
        Some(Self(pkey))
    }

    /// The number, with the membership bit.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

impl FromStr for PKey {
    type Err = ParsePKeyError;

    /// Hexadecimal, with or without `0x`.
    fn from_str(text: &str) -> Result<Self, ParsePKeyError> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        u16::from_str_radix(digits, 16).ok().and_then(Self::new).ok_or(ParsePKeyError)
    }
}

/// Error: a text is not a [`PKey`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ParsePKeyError;

impl fmt::Display for ParsePKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a P_Key: write it like 0x8001; 0x0000 and 0x8000 are reserved")
    }
}

impl core::error::Error for ParsePKeyError {}

/// Service ID, 64 bits (IBA vol. 1 Annex A3): the service that a connection is for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServiceId(u64);

impl ServiceId {
    /// Takes the ID as a number.
    pub const fn new(service_id: u64) -> Self {
        Self(service_id)
    }

    /// The ID as a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

/// Class of service that a path is requested for, 12 bits (IBA vol. 1 Annex A13).
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

    /// The number, at most 12 bits.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Service level, 4 bits: selects the queue in which a packet travels (IBA vol. 1 §7.6).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Sl(u8);

impl Sl {
    /// `None` above 4 bits.
    pub const fn new(sl: u8) -> Option<Self> {
        if sl > 0x0f {
            return None;
        }
        Some(Self(sl))
    }

    /// The lower 4 bits; the others are ignored.
    pub const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 0x0f)
    }

    /// The number, 0 to 15.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Sl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Flow label of a GRH, 20 bits (IBA vol. 1 §8.3.3).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// The lower 20 bits; the others are ignored.
    pub const fn from_low_bits(bits: u32) -> Self {
        Self(bits & 0x000f_ffff)
    }

    /// The number, at most 20 bits.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:05x}", self.0)
    }
}

/// Code of the maximum packet payload, 6 bits (IBA vol. 1 §15.2.5.16).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Mtu(u8);

impl Mtu {
    /// The lower 6 bits; the others are ignored.
    pub const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 0x3f)
    }

    /// The code, see [`Self::bytes`].
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The payload in bytes; `None` for a code that is not known here, which may be a newer one.
    pub const fn bytes(self) -> Option<u16> {
        match self.0 {
            code @ 1..=5 => Some(128 << code),
            _ => None,
        }
    }
}

/// Code of the maximum injection rate, 6 bits (IBA vol. 1 §15.2.5.16).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Rate(u8);

impl Rate {
    /// The lower 6 bits; the others are ignored.
    pub const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 0x3f)
    }

    /// The code, see [`Self::half_gigabits`].
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The rate in units of 0.5 Gbit/s, so that every rate is a whole number; `None` for a code that is
    /// not known here, which may be a newer one.
    pub const fn half_gigabits(self) -> Option<u16> {
        Some(match self.0 {
            2 => 5,
            3 => 20,
            4 => 60,
            5 => 10,
            6 => 40,
            7 => 80,
            8 => 120,
            9 => 160,
            10 => 240,
            11 => 28,
            12 => 112,
            13 => 224,
            14 => 336,
            15 => 50,
            16 => 200,
            17 => 400,
            18 => 600,
            19 => 56,
            20 => 100,
            21 => 800,
            22 => 1200,
            23 => 1600,
            25 => 3200,
            _ => return None,
        })
    }
}

/// Code of the maximum time that a packet takes to its destination, 6 bits (IBA vol. 1 §15.2.5.16).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PacketLifeTime(u8);

impl PacketLifeTime {
    /// The lower 6 bits; the others are ignored.
    pub const fn from_low_bits(bits: u8) -> Self {
        Self(bits & 0x3f)
    }

    /// The code: the time is 4.096 µs times 2 to the power of the code.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A path record of the SA as in a MAD (IBA vol. 1 §15.2.5.16): 64 bytes, passed on unchanged.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PathRecord([u8; Self::LEN]);

impl PathRecord {
    /// Length of the attribute in bytes.
    pub const LEN: usize = 64;

    /// Takes the bytes of the attribute.
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
    fn partition_zero_is_refused_with_either_membership_bit() {
        assert_eq!(PKey::new(0), None);
        assert_eq!(PKey::new(0x8000), None);
        assert_eq!(PKey::new(0x8001).map(PKey::get), Some(0x8001));
        assert_eq!(PKey::new(0xffff), Some(PKey::DEFAULT));
    }

    #[test]
    fn pkey_is_read_as_it_is_written() {
        for text in ["0x8001", "8001"] {
            assert_eq!(text.parse(), Ok(PKey(0x8001)));
        }
        for text in ["", "0x", "0x8000", "0x10001", "x"] {
            assert_eq!(text.parse::<PKey>(), Err(ParsePKeyError), "{text:?}");
        }
    }

    #[test]
    fn qos_class_has_twelve_bits() {
        assert_eq!(QosClass::new(0x0fff).map(QosClass::get), Some(0x0fff));
        assert_eq!(QosClass::new(0x1000), None);
    }
}
