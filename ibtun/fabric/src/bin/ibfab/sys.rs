// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The system calls without a safe wrapper: the ioctls of `/dev/ibtun`, and setpriority(2).

use std::os::fd::{AsRawFd as _, BorrowedFd};

use ibarr_fabric::ibtun::{
    Behaviours, Create, EVENT_CLIENT_REREGISTER, Event, Fault, Guids, PKeys, Port,
};
use nix::errno::Errno;
use nix::{Result, libc};

mod raw {
    use ibarr_fabric::ibtun::ioctl::{
        CREATE, EVENT, FAULT, SET_BEHAVIOUR, SET_GUIDS, SET_PKEYS, SET_PORT,
    };

    use super::{Behaviours, Create, Event, Fault, Guids, PKeys, Port};

    nix::ioctl_readwrite_bad!(create, CREATE, Create);
    nix::ioctl_write_ptr_bad!(set_port, SET_PORT, Port);
    nix::ioctl_write_ptr_bad!(set_pkeys, SET_PKEYS, PKeys);
    nix::ioctl_write_ptr_bad!(set_guids, SET_GUIDS, Guids);
    nix::ioctl_write_ptr_bad!(event, EVENT, Event);
    nix::ioctl_write_ptr_bad!(fault, FAULT, Fault);
    nix::ioctl_write_ptr_bad!(set_behaviour, SET_BEHAVIOUR, Behaviours);
}

/// Lets this process run before others, as hardware does: a program that polls would keep it from its packets.
pub(crate) fn raise_priority() -> Result<()> {
    const HIGHEST: libc::c_int = -20;
    // SAFETY: the arguments are numbers; the call changes the priority of this process.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HIGHEST) })?;
    Ok(())
}

/// Makes the channel adapter; fills in its name.
pub(crate) fn create(fd: BorrowedFd<'_>, create: &mut Create) -> Result<()> {
    // SAFETY: the ioctl number states the size of `Create`, which is what the kernel reads and
    // writes. Any bytes are a valid `Create`; the reference is valid for that, and the kernel does
    // not keep it.
    unsafe { raw::create(fd.as_raw_fd(), create) }?;
    Ok(())
}

/// Sets the PortInfo of a port.
pub(crate) fn set_port(fd: BorrowedFd<'_>, port: &Port) -> Result<()> {
    // SAFETY: the ioctl number states the size of `Port`; the kernel reads as many bytes and keeps
    // nothing.
    unsafe { raw::set_port(fd.as_raw_fd(), port) }?;
    Ok(())
}

/// Sets the P_Key table of a port.
pub(crate) fn set_pkeys(fd: BorrowedFd<'_>, pkeys: &PKeys) -> Result<()> {
    // SAFETY: the ioctl number states the size of `PKeys`; the kernel reads as many bytes and keeps
    // nothing.
    unsafe { raw::set_pkeys(fd.as_raw_fd(), pkeys) }?;
    Ok(())
}

/// Sets the GUID table of a port.
pub(crate) fn set_guids(fd: BorrowedFd<'_>, guids: &Guids) -> Result<()> {
    // SAFETY: the ioctl number states the size of `Guids`; the kernel reads as many bytes and keeps
    // nothing.
    unsafe { raw::set_guids(fd.as_raw_fd(), guids) }?;
    Ok(())
}

/// Makes all users of a port register anew.
pub(crate) fn reregister(fd: BorrowedFd<'_>, port: u8) -> Result<()> {
    let event = Event { port, event: EVENT_CLIENT_REREGISTER, ..Event::default() };
    // SAFETY: the ioctl number states the size of `Event`; the kernel reads as many bytes and keeps
    // nothing.
    unsafe { raw::event(fd.as_raw_fd(), &raw const event) }?;
    Ok(())
}

/// Breaks a queue pair, or one of its queues.
pub(crate) fn fault(fd: BorrowedFd<'_>, fault: &Fault) -> Result<()> {
    // SAFETY: the ioctl number states the size of `Fault`; the kernel reads as many bytes and keeps
    // nothing.
    unsafe { raw::fault(fd.as_raw_fd(), fault) }?;
    Ok(())
}

/// Says which of its liberties the channel adapter takes.
pub(crate) fn set_behaviour(fd: BorrowedFd<'_>, behaviours: Behaviours) -> Result<()> {
    // SAFETY: the ioctl number states the size of `Behaviours`; the kernel reads as many bytes and
    // keeps nothing.
    unsafe { raw::set_behaviour(fd.as_raw_fd(), &raw const behaviours) }?;
    Ok(())
}
