// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The system calls that nothing safe wraps: the ioctls of `/dev/ibtun`.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use ibarr_fabric::ibtun::{Create, EVENT_CLIENT_REREGISTER, Event, Guids, PKeys, Port};
use nix::Result;

mod raw {
    use ibarr_fabric::ibtun::ioctl::{CREATE, EVENT, SET_GUIDS, SET_PKEYS, SET_PORT};

    use super::{Create, Event, Guids, PKeys, Port};

    nix::ioctl_readwrite_bad!(create, CREATE, Create);
    nix::ioctl_write_ptr_bad!(set_port, SET_PORT, Port);
    nix::ioctl_write_ptr_bad!(set_pkeys, SET_PKEYS, PKeys);
    nix::ioctl_write_ptr_bad!(set_guids, SET_GUIDS, Guids);
    nix::ioctl_write_ptr_bad!(event, EVENT, Event);
}

/// Makes the channel adapter; fills in its name.
pub(crate) fn create(fd: BorrowedFd<'_>, create: &mut Create) -> Result<()> {
    // SAFETY: the number says that the kernel reads and writes as many bytes as `Create` has, any
    // of which are one; the reference is good for that, and nobody keeps it.
    unsafe { raw::create(fd.as_raw_fd(), create) }?;
    Ok(())
}

/// Says what PortInfo says of a port.
pub(crate) fn set_port(fd: BorrowedFd<'_>, port: &Port) -> Result<()> {
    // SAFETY: the number says that the kernel reads as many bytes as `Port` has, and keeps nothing.
    unsafe { raw::set_port(fd.as_raw_fd(), port) }?;
    Ok(())
}

/// Fills the P_Key table of a port.
pub(crate) fn set_pkeys(fd: BorrowedFd<'_>, pkeys: &PKeys) -> Result<()> {
    // SAFETY: the number says that the kernel reads as many bytes as `PKeys` has, and keeps nothing.
    unsafe { raw::set_pkeys(fd.as_raw_fd(), pkeys) }?;
    Ok(())
}

/// Fills the GUID table of a port.
pub(crate) fn set_guids(fd: BorrowedFd<'_>, guids: &Guids) -> Result<()> {
    // SAFETY: the number says that the kernel reads as many bytes as `Guids` has, and keeps nothing.
    unsafe { raw::set_guids(fd.as_raw_fd(), guids) }?;
    Ok(())
}

/// Has all who use a port register anew.
pub(crate) fn reregister(fd: BorrowedFd<'_>, port: u8) -> Result<()> {
    let event = Event { port, event: EVENT_CLIENT_REREGISTER, ..Event::default() };
    // SAFETY: the number says that the kernel reads as many bytes as `Event` has, and keeps nothing.
    unsafe { raw::event(fd.as_raw_fd(), &raw const event) }?;
    Ok(())
}
