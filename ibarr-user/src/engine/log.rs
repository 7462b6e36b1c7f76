// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The log level while the daemon runs; and, at level 0, a line for each request and answer, as the C
//! original has. At other levels the messages are not read for the log.

use std::net::SocketAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::ip2gid::{Query, Reply};
use ibarr_common::wire::ls::{self, messages};
use ibarr_common::wire::mad::Header;
use ibarr_proto::ip2gid::client;
use ibarr_proto::sa::PortIndex;
use tracing::{Level, enabled, trace};

use crate::control::messages::{Body, LevelChange, LogStatus, Response};
use crate::logging::Levels;
use crate::transport::queries::Incoming;
use crate::transport::umad::Umads;

/// Changes the level if that is asked for, and shows it.
pub(super) fn level(now: Instant, change: Option<&LevelChange>, levels: &mut Levels) -> Response {
    if let Some(LevelChange { level, for_ms }) = change {
        levels.set(now, level.clone(), for_ms.map(Duration::from));
    }
    let (level, end) = levels.get();
    let ends_in_ms = end.map(|end| end.since(now).into());
    Body::Log { log: LogStatus { level, ends_in_ms } }.into()
}

/// The kernel's requests in a datagram.
pub(super) fn kernel_asks(datagram: &[u8]) {
    if enabled!(Level::TRACE) {
        for message in messages(datagram).flatten() {
            match ls::Request::parse(&message) {
                Ok(request) => trace!(seq = message.seq().0, "from the kernel: {request}"),
                Err(error) => trace!(seq = message.seq().0, "from the kernel: {error}"),
            }
        }
    }
}

/// The answers in a datagram for the kernel.
pub(super) fn kernel_is_answered(datagram: &[u8]) {
    if enabled!(Level::TRACE) {
        for message in messages(datagram).flatten() {
            let (seq, kind) = (message.seq().0, message.kind());
            let answer = ls::Answer::parse(&message).map(|answer| answer.to_string());
            // The other message to the kernel sets its time-out.
            trace!(seq, "to the kernel: {}", answer.unwrap_or_else(|_| format!("{kind:?}")));
        }
    }
}

pub(super) fn peer_asks(from: SocketAddr, payload: &[u8]) {
    if enabled!(Level::TRACE) {
        match Query::parse(payload) {
            Ok(query) => trace!(%from, "{query}"),
            Err(error) => trace!(%from, "ip2gid query: {error}"),
        }
    }
}

/// The reply to a peer.
pub(super) fn peer_is_answered(to: SocketAddr, payload: &[u8]) {
    if enabled!(Level::TRACE)
        && let Ok(reply) = Reply::parse(payload)
    {
        trace!(%to, "{reply}");
    }
}

/// A query to a peer.
pub(super) fn peer_is_asked(to: SocketAddr, payload: &[u8]) {
    if enabled!(Level::TRACE)
        && let Ok(query) = Query::parse(payload)
    {
        trace!(%to, "{query}");
    }
}

/// What a peer replies.
pub(super) fn peer_answers(incoming: &Incoming) {
    if enabled!(Level::TRACE)
        && let client::Input::Datagram { from, payload, .. } = incoming.input()
    {
        match Reply::parse(payload) {
            Ok(reply) => trace!(%from, "{reply}"),
            Err(error) => trace!(%from, "ip2gid reply: {error}"),
        }
    }
}

/// A MAD to or from a subnet administrator.
pub(super) fn mad(umads: &Umads, port: PortIndex, way: &str, mad: &[u8]) {
    if enabled!(Level::TRACE) {
        let port = umads.name(port);
        match Header::parse(mad) {
            Ok((header, _)) => trace!(%port, "{way} the subnet administrator: {header}"),
            Err(error) => trace!(%port, "{way} the subnet administrator: {error}"),
        }
    }
}
