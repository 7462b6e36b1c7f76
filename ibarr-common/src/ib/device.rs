// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Names of RDMA devices.

use core::fmt;
use core::num::NonZeroU8;
use core::str::FromStr;

/// The kernel's name of an RDMA device, such as `mlx5_0`: 1 to 64 printable ASCII characters.
///
/// sysfs has a directory of this name, so it contains no `/` and is neither `.` nor `..`.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DeviceName {
    /// Padded with zeros.
    octets: [u8; Self::MAX_LEN],
}

impl DeviceName {
    /// `LS_DEVICE_NAME_MAX` of `rdma/rdma_netlink.h`, `IB_DEVICE_NAME_MAX` of the kernel.
    pub const MAX_LEN: usize = 64;

    /// Reads a field of the kernel: the name ends before the first NUL, if there is one, and what
    /// follows is ignored. `None` if the rest is not a legal name.
    pub fn from_field(field: &[u8; Self::MAX_LEN]) -> Option<Self> {
        let name = field.split(|&octet| octet == 0).next()?;
        let is_name = !matches!(name, b"" | b"." | b"..")
            && name.iter().all(|octet| octet.is_ascii_graphic() && *octet != b'/');
        if !is_name {
            return None;
        }
        let mut octets = [0; Self::MAX_LEN];
        octets.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
        Some(Self { octets })
    }

    /// The field of 64 bytes: the name, then zeros.
    pub const fn field(self) -> [u8; Self::MAX_LEN] {
        self.octets
    }

    /// The name without padding.
    pub fn as_str(&self) -> &str {
        let name = self.octets.split(|&octet| octet == 0).next().unwrap_or_default();
        // ASCII only: `from_field` refuses anything else.
        core::str::from_utf8(name).unwrap_or_default()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceName({self})")
    }
}

impl FromStr for DeviceName {
    type Err = ParseDeviceNameError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceNameError> {
        let mut field = [0; Self::MAX_LEN];
        let start = field.get_mut(..text.len()).ok_or(ParseDeviceNameError)?;
        start.copy_from_slice(text.as_bytes());
        Self::from_field(&field).filter(|name| name.as_str() == text).ok_or(ParseDeviceNameError)
    }
}

/// Error: a text is not a [`DeviceName`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ParseDeviceNameError;

impl fmt::Display for ParseDeviceNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a device name: write it like mlx5_0, 1 to 64 characters")
    }
}

impl core::error::Error for ParseDeviceNameError {}

/// Number of a port on its device, 1 to 254 (IBA vol. 1 §14.2.5.3, NumPorts).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortNum(NonZeroU8);

impl PortNum {
    /// `None` for 0, a switch's management port, and for 255, because no device has so many ports.
    pub const fn new(number: u8) -> Option<Self> {
        match NonZeroU8::new(number) {
            Some(number) if number.get() != u8::MAX => Some(Self(number)),
            _ => None,
        }
    }

    /// The port number, 1 to 254.
    pub const fn get(self) -> u8 {
        self.0.get()
    }
}

impl fmt::Display for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn device_name_ends_at_the_first_nul_or_its_fields_end() {
        let mut field = [b'x'; DeviceName::MAX_LEN];
        assert_eq!(DeviceName::from_field(&field).unwrap().as_str(), "x".repeat(64));
        field[..8].copy_from_slice(b"mlx5_10\0");
        let name = DeviceName::from_field(&field).unwrap();
        assert_eq!(name.to_string(), "mlx5_10");
        assert_eq!(name, "mlx5_10".parse().unwrap());
        assert_ne!(name, "mlx5_1".parse().unwrap());
        assert_eq!(name.field()[7..], [0; 57]);
    }

    #[test]
    fn illegal_device_names_are_refused() {
        let long = "x".repeat(65);
        for text in ["", ".", "..", "a/b", "a b", "a\0b", "a\n", "gerät", &long] {
            assert_eq!(text.parse::<DeviceName>(), Err(ParseDeviceNameError), "{text:?}");
        }
    }

    #[test]
    fn ports_are_numbered_from_one_to_254() {
        assert_eq!(PortNum::new(0), None);
        assert_eq!(PortNum::new(255), None);
        assert_eq!(PortNum::new(254).map(PortNum::get), Some(254));
    }
}
