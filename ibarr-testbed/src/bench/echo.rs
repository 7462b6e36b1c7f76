// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! UDP echo servers as a comparison for the daemon: they show what the machine allows without decisions.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use ibarr_common::wire::ip2gid::MAX_LEN;
use ibarr_proto::ip2gid::Family;
use ibarr_user::sys::mmsg::{Inbox, Outgoing};
use ibarr_user::sys::udp::{Source, UdpSocket};
use ibarr_user::transport::server::BATCH;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg};
use tokio::io::Interest;

use super::process::READY;

/// How datagrams are moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Style {
    /// As in the daemon: its own sockets with packet info, in batches.
    Daemon,
    /// In batches without packet info, the minimum.
    Batched,
}

/// Echoes on `port` until killed. [`Style::Batched`] is only for IPv4.
///
/// # Errors
/// The port is taken, or the socket fails.
pub fn serve(style: Style, family: Family, port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(async {
        match style {
            Style::Daemon => as_the_daemon(family, port).await,
            Style::Batched => batched(port).await,
        }
    })
}

async fn as_the_daemon(family: Family, port: u16) -> Result<()> {
    let socket = UdpSocket::bind_server(family, port).context("cannot bind")?;
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

async fn batched(port: u16) -> Result<()> {
    let socket = std::net::UdpSocket::bind(("0.0.0.0", port)).context("cannot bind")?;
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UdpSocket::from_std(socket).context("cannot use a socket")?;
    // Two buffers, because nix leaves the addresses of sent datagrams in them.
    let mut incoming = MultiHeaders::preallocate(BATCH, None);
    let mut outgoing = MultiHeaders::preallocate(BATCH, None);
    let mut buffers = [[0; MAX_LEN + 1]; BATCH];
    say_ready()?;
    loop {
        let received: Vec<(usize, Option<SockaddrIn>)> = socket
            .async_io(Interest::READABLE, || {
                let mut vectors = buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
                let flags = MsgFlags::MSG_DONTWAIT;
                let results =
                    recvmmsg(socket.as_raw_fd(), &mut incoming, vectors.iter_mut(), flags, None)?;
                Ok(results.map(|message| (message.bytes, message.address)).collect())
            })
            .await
            .context("cannot receive")?;
        let mut left = received.iter().zip(&buffers).map(|(&(len, to), buffer)| {
            ([IoSlice::new(buffer.get(..len).unwrap_or_default())], to)
        });
        let (mut vectors, mut addresses): (Vec<_>, Vec<_>) = left.by_ref().unzip();
        while !vectors.is_empty() {
            let sent = socket
                .async_io(Interest::WRITABLE, || {
                    let flags = MsgFlags::MSG_DONTWAIT;
                    let fd = socket.as_raw_fd();
                    Ok(sendmmsg(fd, &mut outgoing, &vectors, &addresses, [], flags)?.count())
                })
                .await
                .context("cannot send")?;
            vectors.drain(..sent);
            addresses.drain(..sent);
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
