// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `/dev/ibtun`: a descriptor whose reads and writes are the packets of an HCA.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub(crate) use ibarr_fabric::ibtun::{
    Behaviours, Create, Event, Fault, FaultKind, Guids, MAX_COUNTERS, MAX_GUIDS, MAX_PKEYS,
    MAX_PORTS, MAX_RECORD, PACKET, PKeys, Port, Stats, VERSION,
};

/// Bytes of a record's header.
pub(crate) const HEADER: usize = size_of::<ibarr_fabric::ibtun::Record>();

/// An open descriptor. Its HCA vanishes when it is dropped.
#[derive(Debug)]
pub(crate) struct Ibtun {
    file: File,
}

impl Ibtun {
    pub(crate) fn open() -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        Ok(Self { file: options.open("/dev/ibtun")? })
    }

    /// `IBTUN_CREATE`. Returns the structure as the kernel filled it in.
    pub(crate) fn create(&self, create: &Create) -> io::Result<Create> {
        let mut create = *create;
        self.create_with(&mut create).map(|()| create)
    }

    /// `IBTUN_CREATE`. The kernel fills in the structure, also if it refuses.
    pub(crate) fn create_with(&self, create: &mut Create) -> io::Result<()> {
        // SAFETY: IBTUN_CREATE reads and writes one `struct ibtun_create`, which `Create` is, and
        // there is no other reference to this one.
        unsafe { raw::create(self.file.as_raw_fd(), create) }?;
        Ok(())
    }

    pub(crate) fn set_port(&self, port: &Port) -> io::Result<()> {
        // SAFETY: IBTUN_SET_PORT reads one `struct ibtun_port`, which `Port` is.
        unsafe { raw::set_port(self.file.as_raw_fd(), port) }?;
        Ok(())
    }

    pub(crate) fn port(&self, number: u8) -> io::Result<Port> {
        let mut port = Port { port: number, ..Port::default() };
        // SAFETY: IBTUN_GET_PORT reads and writes one `struct ibtun_port`, which `Port` is, and
        // there is no other reference to this one.
        unsafe { raw::get_port(self.file.as_raw_fd(), &raw mut port) }?;
        Ok(port)
    }

    pub(crate) fn set_pkeys(&self, pkeys: &PKeys) -> io::Result<()> {
        // SAFETY: IBTUN_SET_PKEYS reads one `struct ibtun_pkeys`, which `PKeys` is.
        unsafe { raw::set_pkeys(self.file.as_raw_fd(), pkeys) }?;
        Ok(())
    }

    pub(crate) fn set_guids(&self, guids: &Guids) -> io::Result<()> {
        // SAFETY: IBTUN_SET_GUIDS reads one `struct ibtun_guids`, which `Guids` is.
        unsafe { raw::set_guids(self.file.as_raw_fd(), guids) }?;
        Ok(())
    }

    pub(crate) fn event(&self, event: Event) -> io::Result<()> {
        // SAFETY: IBTUN_EVENT reads one `struct ibtun_event`, which `Event` is.
        unsafe { raw::event(self.file.as_raw_fd(), &raw const event) }?;
        Ok(())
    }

    pub(crate) fn fault(&self, fault: &Fault) -> io::Result<()> {
        // SAFETY: IBTUN_FAULT reads one `struct ibtun_fault`, which `Fault` is.
        unsafe { raw::fault(self.file.as_raw_fd(), fault) }?;
        Ok(())
    }

    pub(crate) fn set_behaviour(&self, set: Behaviours) -> io::Result<()> {
        // SAFETY: IBTUN_SET_BEHAVIOUR reads one `struct ibtun_behaviour`, which `Behaviours` is.
        unsafe { raw::set_behaviour(self.file.as_raw_fd(), &raw const set) }?;
        Ok(())
    }

    /// The counters of a port.
    pub(crate) fn stats(&self, port: u8) -> io::Result<[u64; MAX_COUNTERS]> {
        let mut stats = Stats { port, reserved: [0; 7], counter: [0; MAX_COUNTERS] };
        // SAFETY: IBTUN_GET_STATS reads and writes one `struct ibtun_stats`, which `Stats` is, and
        // there is no other reference to this one.
        unsafe { raw::get_stats(self.file.as_raw_fd(), &raw mut stats) }?;
        Ok(stats.counter)
    }

    /// Reads the packets that the ports send, as many records as there are and fit; 0 bytes if none comes
    /// `within` that time.
    pub(crate) fn read(&self, buffer: &mut [u8], within: Duration) -> io::Result<usize> {
        let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        let within = PollTimeout::try_from(within).map_err(io::Error::other)?;
        if poll(&mut fds, within)? == 0 {
            return Ok(0);
        }
        match (&self.file).read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            read => read,
        }
    }

    /// Writes records, whose packets the ports receive.
    pub(crate) fn write(&self, records: &[u8]) -> io::Result<usize> {
        (&self.file).write(records)
    }
}

mod raw {
    use ibarr_fabric::ibtun::ioctl::{
        CREATE, EVENT, FAULT, GET_PORT, GET_STATS, SET_BEHAVIOUR, SET_GUIDS, SET_PKEYS, SET_PORT,
    };

    use super::{Behaviours, Create, Event, Fault, Guids, PKeys, Port, Stats};

    nix::ioctl_readwrite_bad!(create, CREATE, Create);
    nix::ioctl_write_ptr_bad!(set_port, SET_PORT, Port);
    nix::ioctl_readwrite_bad!(get_port, GET_PORT, Port);
    nix::ioctl_write_ptr_bad!(set_pkeys, SET_PKEYS, PKeys);
    nix::ioctl_write_ptr_bad!(set_guids, SET_GUIDS, Guids);
    nix::ioctl_write_ptr_bad!(event, EVENT, Event);
    nix::ioctl_write_ptr_bad!(fault, FAULT, Fault);
    nix::ioctl_write_ptr_bad!(set_behaviour, SET_BEHAVIOUR, Behaviours);
    nix::ioctl_readwrite_bad!(get_stats, GET_STATS, Stats);
}
