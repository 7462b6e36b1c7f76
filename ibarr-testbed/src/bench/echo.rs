// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A UDP echo server as a comparison for the daemon: it moves datagrams with the daemon's own code, and shows
//! what the machine allows without decisions.

use std::io::{self, Write};

use anyhow::{Context, Result};
use ibarr_common::wire::ip2gid::MAX_LEN;
use ibarr_proto::ip2gid::Family;
use ibarr_user::sys::mmsg::{Inbox, Outgoing};
use ibarr_user::sys::udp::{Source, UdpSocket};

use super::process::READY;

/// Echoes on `port` of IPv4 until killed.
///
/// # Errors
/// The port is taken, or the socket fails.
pub fn serve(port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(echo(port))
}

async fn echo(port: u16) -> Result<()> {
    let socket = UdpSocket::bind_server(Family::V4, port).context("cannot bind")?;
    let mut inbox = Inbox::<{ MAX_LEN + 1 }>::default();
    say_ready()?;
    loop {
        socket.receive(&mut inbox).await.context("cannot receive")?;
        let outgoing = inbox.datagrams().map(|(received, buffer)| {
            let received = received.context("a datagram without packet info")?;
            let source = Source { address: Some(received.to), egress: None };
            let payload = &buffer[..received.len.min(buffer.len())];
            Ok(Outgoing { to: received.from, source, payload })
        });
        let outgoing = outgoing.collect::<Result<Vec<_>>>()?;
        let mut left = outgoing.as_slice();
        while !left.is_empty() {
            let sent = socket.send_all(left).await.context("cannot send")?;
            left = &left[sent..];
        }
    }
}

pub(super) fn say_ready() -> Result<()> {
    let mut stdout = io::stdout();
    stdout
        .write_all(READY.as_bytes())
        .and_then(|()| stdout.flush())
        .context("no process reads the output")
}
