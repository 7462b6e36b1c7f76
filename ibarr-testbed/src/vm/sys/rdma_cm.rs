// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The part of the connection manager's character device (include/uapi/rdma/rdma_user_cm.h) that resolves
//! addresses and routes. Applications use librdmacm, but that refuses to work without an HCA.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// An event channel and its identifiers.
#[derive(Debug)]
pub(crate) struct Channel {
    file: File,
}

/// The kernel's number of an identifier.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Id(u32);

/// The end of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Id,
    pub(crate) kind: EventKind,
    /// 0, or a negative error number.
    pub(crate) status: i32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EventKind {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    Other(u32),
}

const CREATE_ID: u32 = 0;
const RESOLVE_ROUTE: u32 = 4;
const GET_EVENT: u32 = 12;
const QUERY: u32 = 19;
const RESOLVE_ADDR: u32 = 21;
/// `RDMA_USER_CM_QUERY_PATH`.
const QUERY_PATH: u32 = 1;
/// `RDMA_PS_TCP`.
const PORT_SPACE_TCP: u16 = 0x0106;
/// `IB_QPT_RC`.
const RELIABLE_CONNECTION: u8 = 2;

impl Channel {
    /// Opens the device of the module rdma_ucm.
    pub(crate) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/infiniband/rdma_cm")?;
        Ok(Self { file })
    }

    /// `rdma_create_id`, for connections as of TCP. The identifier ends with the channel.
    pub(crate) fn create_id(&self) -> io::Result<Id> {
        let mut response = [0; 4];
        // struct rdma_ucm_create_id: uid, response, ps, qp_type, 5 reserved. We choose the uid;
        // the kernel keeps no events for 0.
        let mut request = [0; 24];
        request[0] = 1;
        request[16..18].copy_from_slice(&PORT_SPACE_TCP.to_ne_bytes());
        request[18] = RELIABLE_CONNECTION;
        self.command(CREATE_ID, &mut request, Some((8, &mut response)))?;
        Ok(Id(u32::from_ne_bytes(response)))
    }

    /// `rdma_resolve_addr`. An event tells how it ends; an error, that it cannot begin.
    pub(crate) fn resolve_addr(
        &self,
        id: Id,
        target: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let millis = u32::try_from(timeout.as_millis()).map_err(io::Error::other)?;
        // struct rdma_ucm_resolve_addr: id, timeout_ms, src_size, dst_size, reserved, then source
        // and destination of 128 bytes each. The kernel chooses the source.
        let mut request = [0; 16 + 2 * 128];
        let target = socket_address(target);
        let size = u16::try_from(target.len()).map_err(io::Error::other)?;
        request[0..4].copy_from_slice(&id.0.to_ne_bytes());
        request[4..8].copy_from_slice(&millis.to_ne_bytes());
        request[10..12].copy_from_slice(&size.to_ne_bytes());
        request[144..144 + target.len()].copy_from_slice(&target);
        self.command(RESOLVE_ADDR, &mut request, None)
    }

    /// `rdma_resolve_route`, after the address was resolved. An event tells how it ends.
    pub(crate) fn resolve_route(&self, id: Id, timeout: Duration) -> io::Result<()> {
        let millis = u32::try_from(timeout.as_millis()).map_err(io::Error::other)?;
        // struct rdma_ucm_resolve_route: id, timeout_ms.
        let mut request = [0; 8];
        request[0..4].copy_from_slice(&id.0.to_ne_bytes());
        request[4..8].copy_from_slice(&millis.to_ne_bytes());
        self.command(RESOLVE_ROUTE, &mut request, None)
    }

    /// The path that the kernel uses, in the format of a subnet administrator. `None` before the route
    /// was resolved.
    pub(crate) fn path(&self, id: Id) -> io::Result<Option<[u8; 64]>> {
        // struct rdma_ucm_query_path_resp: num_paths, reserved, then struct ib_path_rec_data (flags,
        // reserved, record); the first one is the path. If there is room for only one, Linux 6.12
        // gives none (`ucma_query_path`).
        let mut response = [0; 8 + 2 * (8 + 64)];
        // struct rdma_ucm_query: response, id, option.
        let mut request = [0; 16];
        request[8..12].copy_from_slice(&id.0.to_ne_bytes());
        request[12..16].copy_from_slice(&QUERY_PATH.to_ne_bytes());
        self.command(QUERY, &mut request, Some((0, &mut response)))?;
        let is_there = response.first_chunk().is_some_and(|count| u32::from_ne_bytes(*count) > 0);
        Ok(response[16..].first_chunk().copied().filter(|_| is_there))
    }

    /// The next event; `None` if none comes `within` that time.
    pub(crate) fn event(&self, within: Duration) -> io::Result<Option<Event>> {
        let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        let within = PollTimeout::try_from(within).map_err(io::Error::other)?;
        if poll(&mut fds, within)? == 0 {
            return Ok(None);
        }
        // struct rdma_ucm_get_event: response. struct rdma_ucm_event_resp: uid, id, event, status,
        // then fields that we do not read.
        let mut response = [0; 336];
        self.command(GET_EVENT, &mut [0; 8], Some((0, &mut response)))?;
        let word = |at: usize| {
            let bytes = [response[at], response[at + 1], response[at + 2], response[at + 3]];
            u32::from_ne_bytes(bytes)
        };
        let kind = match word(12) {
            0 => EventKind::AddrResolved,
            1 => EventKind::AddrError,
            2 => EventKind::RouteResolved,
            3 => EventKind::RouteError,
            other => EventKind::Other(other),
        };
        Ok(Some(Event { id: Id(word(8)), kind, status: word(16).cast_signed() }))
    }

    /// Sends the kernel a command. If it has a response, `request` has 8 bytes for the address of the
    /// response, at the offset given with it.
    fn command(
        &self,
        command: u32,
        request: &mut [u8],
        response: Option<(usize, &mut [u8])>,
    ) -> io::Result<()> {
        let mut room = 0;
        if let Some((at, response)) = response {
            room = response.len();
            // The kernel writes to this address, so the compiler must know.
            let address = response.as_mut_ptr().expose_provenance() as u64;
            request[at..at + 8].copy_from_slice(&address.to_ne_bytes());
        }
        let length = |length: usize| u16::try_from(length).map_err(io::Error::other);
        // struct rdma_ucm_cmd_hdr: cmd, in, out.
        let mut message = command.to_ne_bytes().to_vec();
        message.extend(length(request.len())?.to_ne_bytes());
        message.extend(length(room)?.to_ne_bytes());
        message.extend_from_slice(request);
        // SAFETY: the kernel reads `message.len()` bytes of `message`. The only memory it writes
        // is at the address in `request`, at most `room` bytes (`copy_to_user` of the smaller of
        // `out` and what it has): those of `response`, which our caller lends to all of this
        // function; there is no other reference to it.
        let written =
            unsafe { libc::write(self.file.as_raw_fd(), message.as_ptr().cast(), message.len()) };
        if written == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// `struct sockaddr_in` or `sockaddr_in6`.
fn socket_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut start = |family: i32| {
        // Both fit.
        bytes.extend(u16::try_from(family).unwrap_or_default().to_ne_bytes());
        bytes.extend(address.port().to_be_bytes());
    };
    match address {
        SocketAddr::V4(address) => {
            start(libc::AF_INET);
            bytes.extend(address.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(address) => {
            start(libc::AF_INET6);
            bytes.extend(address.flowinfo().to_be_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend(address.scope_id().to_ne_bytes());
        }
    }
    bytes
}
