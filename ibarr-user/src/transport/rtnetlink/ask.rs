// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What commands ask rtnetlink, in the calling thread. Any user may.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::client::{Candidate, Route};
use ibarr_proto::local_view::neighbours::Entry;
use neli::consts::nl::{NlmF, Nlmsg};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
    socket,
};

use super::message::{self, Change, Frame, Malformed};
use super::neigh::{self, Neigh};
use super::routes::{self, NoRoute};

/// The neighbours that the kernel knows now.
///
/// # Errors
/// If the kernel refuses, or an answer is malformed.
pub fn neighbours() -> io::Result<Vec<Entry>> {
    ask(&neigh::dump_neighbours(0), |frame| match Neigh::parse(frame)? {
        Some(Neigh::Is(entry)) => Ok(Some(entry)),
        _ => Ok(None),
    })
}

/// The addresses of this machine, each with its interface.
pub(crate) fn addresses() -> io::Result<Vec<(IfIndex, IpAddr)>> {
    ask(&message::dump_addresses(0), |frame| match Change::parse(frame)? {
        Some(Change::Address(entry)) => Ok(Some((entry.id.ifindex(), entry.id.address()))),
        _ => Ok(None),
    })
}

/// The interface that has this name or altname.
pub(crate) fn interface(name: &str) -> io::Result<IfIndex> {
    let links = ask(&message::get_link(name), |frame| match Change::parse(frame)? {
        Some(Change::Link(link)) => Ok(Some(link.ifindex)),
        _ => Ok(None),
    })?;
    links.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The route of a candidate.
pub(crate) fn route(candidate: Candidate) -> Result<Route, NoRoute> {
    let answer = ask(&routes::request(0, candidate), |frame| {
        routes::route(frame, candidate).map(|(route, _)| Some(route))
    });
    match answer {
        Ok(routes) => routes.first().copied().unwrap_or(Err(NoRoute::Malformed)),
        Err(error) => Err(match error.raw_os_error() {
            Some(errno) => routes::refused(Errno::from_raw(errno), candidate),
            None => NoRoute::Malformed,
        }),
    }
}

/// Sends a request, and returns what `parse` finds in the messages of the answer: one, or those of a dump.
fn ask<T>(
    request: &[u8],
    parse: impl Fn(&Frame<'_>) -> Result<Option<T>, Malformed>,
) -> io::Result<Vec<T>> {
    let (family, kind) = (AddressFamily::Netlink, SockType::Raw);
    let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    send(fd.as_raw_fd(), request, MsgFlags::empty())?;
    // The kernel fills at most 32 KiB at a time (`netlink_recvmsg`).
    let (mut found, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let (len, from) = recvfrom::<NetlinkAddr>(fd.as_raw_fd(), &mut buffer)?;
        // Any process may send messages here; the kernel's address is 0.
        if from.is_none_or(|from| from.pid() != 0) {
            continue;
        }
        for frame in message::frames(buffer.get(..len).unwrap_or(&buffer)) {
            let frame = frame.map_err(io::Error::other)?;
            if [Nlmsg::Done, Nlmsg::Error].map(u16::from).contains(&frame.kind) {
                return match frame.errno().map_err(io::Error::other)? {
                    0 => Ok(found),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                };
            }
            found.extend(parse(&frame).map_err(io::Error::other)?);
            if !frame.flags.contains(NlmF::MULTI) {
                return Ok(found);
            }
        }
    }
}
