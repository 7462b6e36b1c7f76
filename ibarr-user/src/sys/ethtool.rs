// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Offloads of network drivers, by ethtool ioctls.

#![expect(unsafe_code, reason = "ethtool's requests have no safe wrapper")]

use std::io;
use std::os::fd::AsRawFd;

use ibarr_proto::local_view::InterfaceName;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Whether the driver removes VLAN tags from received frames (`rx-vlan-offload`).
///
/// # Errors
/// Errors of the ioctl: `EOPNOTSUPP` if the driver has no such flag, `ENODEV`.
pub(crate) fn strips_vlan_tags(interface: InterfaceName) -> io::Result<bool> {
    let mut ifr_name = [0; libc::IFNAMSIZ];
    // A name has at most 15 bytes, so the last byte stays 0. The sign of `c_char` depends on the machine.
    for (to, from) in ifr_name.iter_mut().zip(interface.as_bytes()) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let mut value = EthtoolValue { cmd: ETHTOOL_GFLAGS, data: 0 };
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut value).cast() };
    let mut request = libc::ifreq { ifr_name, ifr_ifru };
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: SIOCETHTOOL reads and writes one `ifreq` at its argument, and with ETHTOOL_GFLAGS one
    // `ethtool_value` at its `ifru_data`. Both are alive here, have those types, and are not
    // referred to elsewhere during the call.
    unsafe { ioctl::ethtool(socket.as_raw_fd(), &raw mut request) }?;
    Ok(value.data & ETH_FLAG_RXVLAN != 0)
}

mod ioctl {
    use nix::libc;

    nix::ioctl_readwrite_bad!(ethtool, libc::SIOCETHTOOL, libc::ifreq);
}

/// `struct ethtool_value` of include/uapi/linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// Of include/uapi/linux/ethtool.h.
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_vlan_tags() {
        let lo = InterfaceName::new(b"lo").unwrap();
        assert!(!strips_vlan_tags(lo).unwrap());
        let none = InterfaceName::new(b"no-such").unwrap();
        assert_eq!(strips_vlan_tags(none).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
