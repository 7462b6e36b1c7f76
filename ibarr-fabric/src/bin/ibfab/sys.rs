// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The system calls that nothing safe wraps: the ioctls of `/dev/ibtun`. Its header,
//! `ibtun/include/uapi/rdma/ibtun.h`, is where layouts and numbers come from.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::Result;

/// `IBTUN_VERSION`.
pub(crate) const VERSION: u8 = 1;
/// `IBTUN_MAX_PORTS`.
pub(crate) const MAX_PORTS: usize = 16;
/// `IBTUN_MAX_PKEYS`.
pub(crate) const MAX_PKEYS: usize = 128;
/// `IBTUN_MAX_GUIDS`.
pub(crate) const MAX_GUIDS: usize = 32;

/// `struct ibtun_create`. GUIDs are big-endian.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Create {
    pub(crate) version: u32,
    pub(crate) ports: u8,
    pub(crate) mtu: u8,
    pub(crate) pkeys: u16,
    pub(crate) guids: u16,
    pub(crate) reserved: u16,
    pub(crate) queue: u32,
    pub(crate) node_guid: u64,
    pub(crate) system_image_guid: u64,
    pub(crate) port_guid: [u64; MAX_PORTS],
    pub(crate) node_desc: [u8; 64],
    pub(crate) name: [u8; 64],
}

/// `struct ibtun_port`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) state: u8,
    pub(crate) phys_state: u8,
    pub(crate) mtu: u8,
    pub(crate) lmc: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) width: u8,
    pub(crate) speed: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) reserved: u16,
    pub(crate) cap_mask: u32,
    pub(crate) reserved2: u32,
    /// Big-endian.
    pub(crate) gid_prefix: u64,
}

/// `struct ibtun_pkeys`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PKeys {
    pub(crate) port: u8,
    pub(crate) reserved: u8,
    pub(crate) count: u16,
    pub(crate) reserved2: u32,
    pub(crate) keys: [u16; MAX_PKEYS],
}

/// `struct ibtun_guids`. GUIDs are big-endian.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Guids {
    pub(crate) port: u8,
    pub(crate) reserved: u8,
    pub(crate) count: u16,
    pub(crate) reserved2: u32,
    pub(crate) guid: [u64; MAX_GUIDS],
}

/// `struct ibtun_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Event {
    port: u8,
    kind: u8,
    reserved: u16,
    reserved2: u32,
}

/// `IBTUN_EVENT_CLIENT_REREGISTER`.
const CLIENT_REREGISTER: u8 = 1;

const _: () = {
    assert!(size_of::<Create>() == 288);
    assert!(size_of::<Port>() == 32);
    assert!(size_of::<PKeys>() == 264);
    assert!(size_of::<Guids>() == 264);
    assert!(size_of::<Event>() == 8);
};

mod ioctl {
    use super::{Create, Event, Guids, PKeys, Port};

    const MAGIC: u8 = 0xb7;

    nix::ioctl_readwrite!(create, MAGIC, 0x00, Create);
    nix::ioctl_write_ptr!(set_port, MAGIC, 0x01, Port);
    nix::ioctl_write_ptr!(set_pkeys, MAGIC, 0x03, PKeys);
    nix::ioctl_write_ptr!(set_guids, MAGIC, 0x04, Guids);
    nix::ioctl_write_ptr!(event, MAGIC, 0x05, Event);
}

/// Makes the channel adapter; fills in its name.
pub(crate) fn create(fd: BorrowedFd<'_>, create: &mut Create) -> Result<()> {
    // SAFETY: the number says that the kernel reads and writes as many bytes as `Create` has, any
    // of which are one; the reference is good for that, and nobody keeps it.
    unsafe { ioctl::create(fd.as_raw_fd(), create) }?;
    Ok(())
}

/// Says what PortInfo says of a port.
pub(crate) fn set_port(fd: BorrowedFd<'_>, port: &Port) -> Result<()> {
    // SAFETY: the number says that the kernel reads as many bytes as `Port` has, and keeps nothing.
    unsafe { ioctl::set_port(fd.as_raw_fd(), port) }?;
    Ok(())
}

/// Fills the P_Key table of a port.
pub(crate) fn set_pkeys(fd: BorrowedFd<'_>, pkeys: &PKeys) -> Result<()> {
    // SAFETY: the number says that the kernel reads as many bytes as `PKeys` has, and keeps nothing.
    unsafe { ioctl::set_pkeys(fd.as_raw_fd(), pkeys) }?;
    Ok(())
}

/// Fills the GUID table of a port.
pub(crate) fn set_guids(fd: BorrowedFd<'_>, guids: &Guids) -> Result<()> {
    // SAFETY: the number says that the kernel reads as many bytes as `Guids` has, and keeps nothing.
    unsafe { ioctl::set_guids(fd.as_raw_fd(), guids) }?;
    Ok(())
}

/// Has all who use a port register anew.
pub(crate) fn reregister(fd: BorrowedFd<'_>, port: u8) -> Result<()> {
    let event = Event { port, kind: CLIENT_REREGISTER, reserved: 0, reserved2: 0 };
    // SAFETY: the number says that the kernel reads as many bytes as `Event` has, and keeps nothing.
    unsafe { ioctl::event(fd.as_raw_fd(), &raw const event) }?;
    Ok(())
}
