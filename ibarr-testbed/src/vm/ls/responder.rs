// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The smallest program that answers the kernel at once: it answers all requests in the socket with one
//! GID, and then nudges. `vm ls` runs it if no daemon is given, and `vm run q` with a path record.
//!
//! The kernel first sends a request, then begins to wait for the answer. It loses an answer or a nudge
//! that comes in between, on a busy machine even both. So further nudges follow, which make it ask again.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ibarr_common::ib::{Gid, PathRecord};
use ibarr_common::wire::ls::{Answer, Path, PathFlags, PathUse, Paths, Request, messages};

use super::socket::Socket;
use crate::rtnetlink::Rtnetlink;

/// The GID of every address.
pub(super) const GID: &str = "fe80::2:c903:0:201";

/// Shortest times from the last nudge to the nudges after an answer. Nudges keep a distance, because each
/// makes the kernel ask again for everything that it still waits for.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(50),
    Duration::from_millis(500),
];

/// Answers with the GID and the record of its arguments, if there are any.
pub(crate) fn run(arguments: &[String]) -> Result<Infallible> {
    const IDLE: Duration = Duration::from_hours(1);
    let (gid, record) = match arguments {
        [gid, record] => (gid.parse()?, Some(record_of(record)?)),
        _ => (GID.parse()?, None),
    };
    let socket = Socket::open()?;
    let rtnetlink = Rtnetlink::open()?;
    let mut last = Instant::now();
    let mut pauses = [].iter();
    let mut pause: Option<&Duration> = None;
    loop {
        let until_nudge = |pause: &Duration| pause.saturating_sub(last.elapsed());
        let mut within = pause.map_or(IDLE, until_nudge);
        while let Some(datagram) = socket.receive(within)? {
            within = Duration::ZERO;
            if answer(&socket, gid, record, &datagram)? {
                pauses = PAUSES.iter();
                pause = pauses.next();
            }
        }
        if pause.is_some_and(|pause| last.elapsed() >= *pause) {
            rtnetlink.nudge()?;
            last = Instant::now();
            pause = pauses.next();
        }
    }
}

/// Returns whether there was something to answer.
fn answer(socket: &Socket, gid: Gid, record: Option<PathRecord>, datagram: &[u8]) -> Result<bool> {
    let mut has_answered = false;
    for message in messages(datagram) {
        let message = message?;
        let answer = match Request::parse(&message) {
            Ok(Request::ResolveIp(_)) => Answer::Gid(gid),
            // IPoIB's own are for one direction.
            Ok(Request::ResolvePath(asked)) if asked.path_use != PathUse::Unidirectional => {
                let path = record.map(|record| Path { flags: PathFlags::GMP, record });
                let paths = path.and_then(|path| Paths::new(&[path]));
                paths.map_or(Answer::Error, Answer::Paths)
            }
            Ok(Request::ResolvePath(_)) => Answer::Error,
            Err(_) => continue,
        };
        let answer = answer.emit(message.seq(), socket.port_id());
        socket.send(answer.as_ref()).context("an answer cannot be sent")?;
        has_answered = true;
    }
    Ok(has_answered)
}

/// A record in hexadecimal digits.
fn record_of(text: &str) -> Result<PathRecord> {
    let octets =
        text.as_bytes().chunks(2).map(|two| Ok(u8::from_str_radix(str::from_utf8(two)?, 16)?));
    let octets = octets.collect::<Result<Vec<_>>>()?;
    let octets = octets.try_into().ok().context("a record has 64 octets")?;
    Ok(PathRecord::from_octets(octets))
}
