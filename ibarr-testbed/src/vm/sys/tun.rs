// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Network interfaces whose packets the test reads and writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::libc;

/// A TUN device: a network interface whose packets a process reads and writes. It vanishes when this
/// is dropped.
#[derive(Debug)]
pub(crate) struct Tun {
    file: File,
}

/// `ARPHRD_INFINIBAND`, the type of IPoIB interfaces.
pub(crate) const INFINIBAND: u16 = 32;

impl Tun {
    /// Makes an interface called `name` of an `ARPHRD_…` type.
    ///
    /// # Errors
    /// Errors of the kernel; `InvalidInput` for a name of more than 15 bytes.
    pub(crate) fn open(name: &str, link_type: u16) -> io::Result<Self> {
        let mut ifr_name = [0; libc::IFNAMSIZ];
        if name.len() >= ifr_name.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "interface name too long"));
        }
        for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        let flags = (libc::IFF_TUN | libc::IFF_NO_PI).try_into().map_err(io::Error::other)?;
        let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_flags: flags };
        let request = libc::ifreq { ifr_name, ifr_ifru };
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        // SAFETY: TUNSETIFF reads and writes one `ifreq` at its argument, only during the call.
        // There is no other reference to it.
        unsafe { ioctl::set_interface(file.as_raw_fd(), &raw const request) }?;
        // SAFETY: TUNSETLINK takes its argument as a number and touches no memory of ours.
        unsafe { ioctl::set_link_type(file.as_raw_fd(), link_type.into()) }?;
        Ok(Self { file })
    }
}

/// A descriptor that reads and writes the packets of the interface, without link headers.
impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// `TUNSETIFF` and `TUNSETLINK` of include/uapi/linux/if_tun.h, which gives `int` for both.
mod ioctl {
    use nix::libc::{c_int, ifreq};

    nix::ioctl_write_ptr_bad!(
        set_interface,
        nix::request_code_write!(b'T', 202, size_of::<c_int>()),
        ifreq
    );
    nix::ioctl_write_int!(set_link_type, b'T', 205);
}
