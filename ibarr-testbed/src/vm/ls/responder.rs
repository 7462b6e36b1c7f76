// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The smallest program that answers the kernel at once: it answers all requests in the socket with one
//! GID, and then nudges. `vm ls` runs it if no daemon is given.
//!
//! The kernel first sends a request, then begins to wait for the answer. It loses an answer or a nudge
//! that comes in between, on a busy machine even both. So further nudges follow, which make it ask again.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::{Answer, Request, messages};

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

pub(crate) fn run() -> Result<Infallible> {
    const IDLE: Duration = Duration::from_hours(1);
    let gid: Gid = GID.parse()?;
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
            if answer(&socket, gid, &datagram)? {
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
fn answer(socket: &Socket, gid: Gid, datagram: &[u8]) -> Result<bool> {
    let mut has_answered = false;
    for message in messages(datagram) {
        let message = message?;
        let answer = match Request::parse(&message) {
            Ok(Request::ResolveIp(_)) => Answer::Gid(gid),
            Ok(Request::ResolvePath(_)) => Answer::Error,
            Err(_) => continue,
        };
        let answer = answer.emit(message.seq(), socket.port_id());
        socket.send(answer.as_ref()).context("an answer cannot be sent")?;
        has_answered = true;
    }
    Ok(has_answered)
}
