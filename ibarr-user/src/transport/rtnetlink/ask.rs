// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What commands ask rtnetlink, in the calling thread; the engine asks for routes. Any user may.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::client::{Candidate, Route};
use ibarr_proto::local_view::Input;
use ibarr_proto::local_view::neighbours::Entry;
use ibarr_proto::local_view::rules::{Diverted, Traffic};
use neli::consts::nl::{NlmF, Nlmsg};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, NetlinkAddr, recvfrom, send};

use super::message::{self, Frame, Malformed};
use super::neigh;
use super::routes::{self, NoRoute};
use super::socket::bound;

/// The neighbours that the kernel knows now.
///
/// # Errors
/// If the kernel refuses, or an answer is malformed.
pub fn neighbours() -> io::Result<Vec<Entry>> {
    ask(&neigh::dump_neighbours(0), |frame| match neigh::change(frame)? {
        Some(Input::Neighbour(entry)) => Ok(Some(entry)),
        _ => Ok(None),
    })
}

/// The addresses of this machine, each with its interface.
pub(crate) fn addresses() -> io::Result<Vec<(IfIndex, IpAddr)>> {
    ask(&message::dump_addresses(0), |frame| match message::change(frame)? {
        Some(Input::Address(entry)) => Ok(Some((entry.id.ifindex(), entry.id.address()))),
        _ => Ok(None),
    })
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

/// Whether the kernel connects by a candidate, but sends datagrams to it by another way.
pub(crate) fn is_diverted(candidate: Candidate, by: &Diverted) -> bool {
    let differs = |connections| way(candidate, by.traffic) != Ok(connections);
    candidate.question.family() == by.family
        && way(candidate, Traffic::CONNECTIONS).is_ok_and(differs)
}

/// The route of such packets by a candidate, and their source.
fn way(candidate: Candidate, packets: Traffic) -> Result<(Route, Option<IpAddr>), NoRoute> {
    let request = routes::request(0, candidate, packets);
    let answer = ask(&request, |frame| routes::route(frame, candidate).map(Some));
    match answer.map(|found| found.first().copied()) {
        Ok(Some((route, source))) => Ok((route?, source)),
        Ok(None) => Err(NoRoute::Malformed),
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
    // An answer is there when the request is sent, and the next part of a dump when one is read.
    let fd = bound(0)?;
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
