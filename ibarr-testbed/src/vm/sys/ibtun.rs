// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `/dev/ibtun`, as ibtun/include/uapi/rdma/ibtun.h has it: an HCA whose wire is this descriptor.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub(crate) const VERSION: u8 = 1;
pub(crate) const MAX_PORTS: usize = 16;
pub(crate) const MAX_PKEYS: usize = 128;
pub(crate) const MAX_GUIDS: usize = 32;
pub(crate) const MAX_COUNTERS: usize = 32;
/// A record's header: version, type, port, 0, length of the whole record as u32, time as u64.
pub(crate) const HEADER: usize = 16;
pub(crate) const MAX_RECORD: usize = HEADER + 8 + 40 + 12 + 8 + 4 + 4096;
/// The type of a record that holds a packet.
pub(crate) const PACKET: u8 = 1;

/// `struct ibtun_create`.
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
    /// Big-endian, as all GUIDs.
    pub(crate) node_guid: [u8; 8],
    pub(crate) system_image_guid: [u8; 8],
    pub(crate) port_guid: [[u8; 8]; MAX_PORTS],
    pub(crate) node_desc: [u8; 64],
    pub(crate) name: [u8; 64],
}

/// `struct ibtun_port`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
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
    pub(crate) gid_prefix: [u8; 8],
}

/// `struct ibtun_pkeys`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PKeys {
    pub(crate) port: u8,
    pub(crate) reserved: u8,
    pub(crate) count: u16,
    pub(crate) reserved2: u32,
    pub(crate) pkey: [u16; MAX_PKEYS],
}

/// `struct ibtun_guids`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Guids {
    pub(crate) port: u8,
    pub(crate) reserved: u8,
    pub(crate) count: u16,
    pub(crate) reserved2: u32,
    pub(crate) guid: [[u8; 8]; MAX_GUIDS],
}

/// `struct ibtun_event`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Event {
    pub(crate) port: u8,
    pub(crate) kind: u8,
    pub(crate) reserved: u16,
    pub(crate) reserved2: u32,
}

/// `struct ibtun_stats`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Stats {
    pub(crate) port: u8,
    reserved: [u8; 7],
    pub(crate) counter: [u64; MAX_COUNTERS],
}

const _: () = assert!(size_of::<Create>() == 288 && size_of::<Port>() == 32);
const _: () = assert!(size_of::<PKeys>() == 264 && size_of::<Guids>() == 264);
const _: () = assert!(size_of::<Event>() == 8 && size_of::<Stats>() == 264);

/// An open descriptor. An HCA that it made ends with it.
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

    /// `IBTUN_CREATE`. Gives what it filled in.
    pub(crate) fn create(&self, create: &Create) -> io::Result<Create> {
        let mut create = *create;
        // SAFETY: IBTUN_CREATE reads and writes one `struct ibtun_create`, which `Create` is, and
        // nobody else refers to this one.
        unsafe { ioctl::create(self.file.as_raw_fd(), &raw mut create) }?;
        Ok(create)
    }

    pub(crate) fn set_port(&self, port: &Port) -> io::Result<()> {
        // SAFETY: IBTUN_SET_PORT reads one `struct ibtun_port`, which `Port` is.
        unsafe { ioctl::set_port(self.file.as_raw_fd(), port) }?;
        Ok(())
    }

    pub(crate) fn port(&self, number: u8) -> io::Result<Port> {
        let mut port = Port { number, ..Port::default() };
        // SAFETY: IBTUN_GET_PORT reads and writes one `struct ibtun_port`, which `Port` is, and
        // nobody else refers to this one.
        unsafe { ioctl::get_port(self.file.as_raw_fd(), &raw mut port) }?;
        Ok(port)
    }

    pub(crate) fn set_pkeys(&self, pkeys: &PKeys) -> io::Result<()> {
        // SAFETY: IBTUN_SET_PKEYS reads one `struct ibtun_pkeys`, which `PKeys` is.
        unsafe { ioctl::set_pkeys(self.file.as_raw_fd(), pkeys) }?;
        Ok(())
    }

    pub(crate) fn set_guids(&self, guids: &Guids) -> io::Result<()> {
        // SAFETY: IBTUN_SET_GUIDS reads one `struct ibtun_guids`, which `Guids` is.
        unsafe { ioctl::set_guids(self.file.as_raw_fd(), guids) }?;
        Ok(())
    }

    pub(crate) fn event(&self, event: Event) -> io::Result<()> {
        // SAFETY: IBTUN_EVENT reads one `struct ibtun_event`, which `Event` is.
        unsafe { ioctl::event(self.file.as_raw_fd(), &raw const event) }?;
        Ok(())
    }

    /// The counters of a port.
    pub(crate) fn stats(&self, port: u8) -> io::Result<[u64; MAX_COUNTERS]> {
        let mut stats = Stats { port, reserved: [0; 7], counter: [0; MAX_COUNTERS] };
        // SAFETY: IBTUN_GET_STATS reads and writes one `struct ibtun_stats`, which `Stats` is, and
        // nobody else refers to this one.
        unsafe { ioctl::get_stats(self.file.as_raw_fd(), &raw mut stats) }?;
        Ok(stats.counter)
    }

    /// What the ports send, as many records as there are and fit; nothing if nothing comes
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

    /// Lets the ports receive records.
    pub(crate) fn write(&self, records: &[u8]) -> io::Result<usize> {
        (&self.file).write(records)
    }
}

mod ioctl {
    use super::{Create, Event, Guids, PKeys, Port, Stats};

    nix::ioctl_readwrite!(create, 0xb7, 0x00, Create);
    nix::ioctl_write_ptr!(set_port, 0xb7, 0x01, Port);
    nix::ioctl_readwrite!(get_port, 0xb7, 0x02, Port);
    nix::ioctl_write_ptr!(set_pkeys, 0xb7, 0x03, PKeys);
    nix::ioctl_write_ptr!(set_guids, 0xb7, 0x04, Guids);
    nix::ioctl_write_ptr!(event, 0xb7, 0x05, Event);
    nix::ioctl_readwrite!(get_stats, 0xb7, 0x06, Stats);
}
