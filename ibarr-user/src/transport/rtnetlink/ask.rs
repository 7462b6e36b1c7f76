// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Asks rtnetlink in the calling thread: the programs about their hooks, commands about the rest, which any user may.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::client::{Candidate, Route};
use ibarr_proto::local_view::neighbours::Entry;
use ibarr_proto::local_view::rules::Traffic;
use ibarr_proto::local_view::{Input, InterfaceAddress};
use ipnet::Ipv4Net;
use neli::consts::nl::{NlmF, Nlmsg};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, NetlinkAddr, SockProtocol, recvfrom, sendto};
use thiserror::Error;

use super::message::{self, Frame, Malformed};
use super::neigh;
use super::routes::{self, NoRoute};
use crate::sys::netlink;

/// The neighbours that the kernel knows now.
///
/// # Errors
/// If the kernel refuses, or an answer is malformed.
pub fn neighbours() -> io::Result<Vec<Entry>> {
    Ok(ask(&neigh::dump_neighbours(0), |frame| match neigh::change(frame)? {
        Some(Input::Neighbour(entry)) => Ok(Some(entry)),
        _ => Ok(None),
    })?)
}

/// The addresses of this machine, each with its interface.
pub(crate) fn addresses() -> io::Result<Vec<(IfIndex, IpAddr)>> {
    Ok(ask(&message::dump_addresses(0), |frame| match message::change(frame)? {
        Some(Input::Address(entry)) => Ok(Some((entry.id.ifindex(), entry.id.address()))),
        _ => Ok(None),
    })?)
}

/// The IPv4 addresses of this machine, each with the network on the link of its interface.
pub(crate) fn networks() -> io::Result<Vec<(IfIndex, Ipv4Addr, Ipv4Net)>> {
    Ok(ask(&message::dump_addresses(0), |frame| match message::change(frame)? {
        Some(Input::Address(InterfaceAddress { id, .. })) => {
            Ok(match (id.address(), id.network()) {
                (IpAddr::V4(address), Some(network)) => Some((id.ifindex(), address, network)),
                _ => None,
            })
        }
        _ => Ok(None),
    })?)
}

/// Whether the kernel takes a packet from one address to the other that arrives on the interface.
///
/// # Errors
/// `EXDEV` if rp_filter drops it (`fib_validate_source`), `EINVAL` from Linux 6.13 on; `EINVAL` if its source is
/// impossible.
pub(crate) fn takes(ingress: IfIndex, from: Ipv4Addr, to: Ipv4Addr) -> io::Result<()> {
    ask(&routes::arrival(ingress, from, to), |_| Ok(Some(())))?;
    Ok(())
}

/// The interface that has this name or altname.
pub(crate) fn interface(name: &str) -> io::Result<IfIndex> {
    let links = ask(&message::get_link(name), |frame| match message::change(frame)? {
        Some(Input::Link(link)) => Ok(Some(link.ifindex)),
        _ => Ok(None),
    })?;
    links.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The route of a candidate.
pub(crate) fn route(candidate: Candidate) -> Result<Route, NoRoute> {
    way(candidate, Traffic::CONNECTIONS).map(|(route, _)| route)
}

/// The routes of candidates, in their order, by one socket: to open and close one for each takes longer than to ask.
pub(crate) fn routes_of(
    candidates: impl Iterator<Item = Candidate>,
) -> Vec<Result<Route, NoRoute>> {
    let socket = open();
    let routes = (0..).zip(candidates).map(|(seq, candidate)| {
        let socket = socket.as_ref().map_err(|errno| routes::refused(*errno, candidate))?;
        way_on(socket, seq, candidate, Traffic::CONNECTIONS).map(|(route, _)| route)
    });
    routes.collect()
}

/// The route of such packets by a candidate, and their source.
pub(crate) fn way(
    candidate: Candidate,
    packets: Traffic,
) -> Result<(Route, Option<IpAddr>), NoRoute> {
    let socket = open().map_err(|errno| routes::refused(errno, candidate))?;
    way_on(&socket, 0, candidate, packets)
}

fn way_on(
    socket: &OwnedFd,
    seq: u32,
    candidate: Candidate,
    packets: Traffic,
) -> Result<(Route, Option<IpAddr>), NoRoute> {
    let request = routes::request(seq, candidate, packets);
    let answer = ask_on(socket, &mut buffer(), &request, seq, |frame| {
        routes::route(frame, candidate).map(Some)
    });
    match answer.map(|found| found.first().copied()) {
        Ok(Some((route, source))) => Ok((route?, source)),
        Ok(None) => Err(NoRoute::Malformed),
        Err(error) => Err(match io::Error::from(error).raw_os_error() {
            Some(errno) => routes::refused(Errno::from_raw(errno), candidate),
            None => NoRoute::Malformed,
        }),
    }
}

fn open() -> nix::Result<OwnedFd> {
    netlink::open(SockProtocol::NetlinkRoute, 0)
}

/// Sends a request on a socket of its own, and returns what `parse` finds in the messages of the answer: one, or those
/// of a dump. The number of the request is 0.
pub(crate) fn ask<T>(
    request: &[u8],
    parse: impl Fn(&Frame<'_>) -> Result<Option<T>, Malformed>,
) -> Result<Vec<T>, Error> {
    let socket = open().map_err(io::Error::from)?;
    ask_on(&socket, &mut buffer(), request, 0, parse)
}

/// Room for an answer. The kernel fills at most 32 KiB at a time (`netlink_recvmsg`).
pub(super) fn buffer() -> Vec<u8> {
    vec![0; 64 << 10]
}

/// Sends requests, and returns what `parse` finds in the answer to that with this number.
pub(super) fn ask_on<T>(
    socket: &OwnedFd,
    buffer: &mut [u8],
    requests: &[u8],
    seq: u32,
    parse: impl Fn(&Frame<'_>) -> Result<Option<T>, Malformed>,
) -> Result<Vec<T>, Error> {
    // An answer is there when the request is sent, and the next part of a dump when one is read.
    let fd = socket.as_raw_fd();
    sendto(fd, requests, &NetlinkAddr::new(0, 0), MsgFlags::empty()).map_err(io::Error::from)?;
    let mut found = Vec::new();
    loop {
        let (len, from) = recvfrom::<NetlinkAddr>(fd, buffer).map_err(io::Error::from)?;
        // Any process may send messages here; the kernel's address is 0.
        if from.is_none_or(|from| from.pid() != 0) {
            continue;
        }
        for frame in message::frames(buffer.get(..len).unwrap_or(buffer)) {
            let frame = frame.map_err(Error::Malformed)?;
            if frame.seq != seq {
                continue;
            }
            if [Nlmsg::Done, Nlmsg::Error].map(u16::from).contains(&frame.kind) {
                return match frame.errno().map_err(Error::Malformed)? {
                    0 => Ok(found),
                    errno => Err(Error::Refused(io::Error::from_raw_os_error(errno))),
                };
            }
            found.extend(parse(&frame).map_err(Error::Malformed)?);
            if !frame.flags.contains(NlmF::MULTI) {
                return Ok(found);
            }
        }
    }
}

/// Why a request to rtnetlink failed.
#[derive(Debug, Error)]
pub enum Error {
    #[error("rtnetlink")]
    Io(#[from] io::Error),
    /// The kernel's own answer is an error.
    #[error("rtnetlink")]
    Refused(#[source] io::Error),
    #[error("rtnetlink: the answer makes no sense: {0}")]
    Malformed(Malformed),
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) | Error::Refused(error) => error,
            Error::Malformed(error) => Self::other(error),
        }
    }
}
