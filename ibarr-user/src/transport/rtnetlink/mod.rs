// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the kernel says about links, addresses and routes (`NETLINK_ROUTE`).
//!
//! [`Watch`] listens: events and, when asked or after a loss, whole dumps go to the local view, in
//! the order in which the kernel queued them. [`Routes`] asks which way an address is. Each is one
//! task with a socket of its own. [`Nudger`] changes a neighbour entry, on a thread.

pub(crate) mod message;
mod nudge;
mod routes;
mod session;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ibarr_proto::local_view::Input;
use libc::{RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, RTMGRP_LINK};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

pub use self::nudge::{ADDRESS_V4, ADDRESS_V6, NudgeError, Nudger, Place};
pub use self::routes::{NoRoute, RouteAnswer, Routes};
use self::session::Session;
use self::socket::{Received, Socket};
use super::{Counter, Counters, VIEW_INPUTS};

/// How the socket is opened.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of messages that the kernel may hold for us. What does not fit is lost and brings a
    /// dump.
    pub receive_buffer: usize,
}

impl Default for Config {
    /// Enough for the events of a few thousand changes in one go.
    fn default() -> Self {
        Self { receive_buffer: 4 * 1024 * 1024 }
    }
}

/// Listens to links and addresses, until it is dropped or nobody takes the inputs.
#[derive(Debug)]
pub struct Watch {
    requests: mpsc::Sender<()>,
}

impl Watch {
    /// Opens the socket in the network namespace of this thread. Must be called within a runtime.
    /// Nothing is dumped before it is asked for.
    ///
    /// # Errors
    /// If the kernel has no such socket for us.
    pub fn start(counters: Arc<Counters>) -> io::Result<(Self, mpsc::Receiver<Input>)> {
        Self::start_with(Config::default(), counters)
    }

    /// With another configuration than the default.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        config: Config,
        counters: Arc<Counters>,
    ) -> io::Result<(Self, mpsc::Receiver<Input>)> {
        let socket = open(config)?;
        let (request, requests) = mpsc::channel(1);
        let (sender, inputs) = mpsc::channel(VIEW_INPUTS);
        let mut listener = Listener { socket, requests, inputs: sender, counters };
        tokio::spawn(async move {
            let mut dump_at_once = false;
            while let Err(error) = listener.listen(dump_at_once).await {
                tracing::error!(%error, "rtnetlink: socket broken, it is opened again");
                listener.socket = reopen(|| open(config)).await;
                listener.counters.count(Counter::RtnetlinkReopened);
                dump_at_once = true;
            }
        });
        Ok((Self { requests: request }, inputs))
    }

    /// Asks for a dump of all links and addresses.
    pub fn request_dump(&self) {
        // One that waits is this one.
        let _ = self.requests.try_send(());
    }
}

struct Listener {
    socket: Socket,
    requests: mpsc::Receiver<()>,
    inputs: mpsc::Sender<Input>,
    counters: Arc<Counters>,
}

impl Listener {
    /// Ends without an error when one of the channels is closed.
    async fn listen(&mut self, dump_at_once: bool) -> io::Result<()> {
        let mut session = Session::new(self.socket.portid(), Arc::clone(&self.counters));
        let mut said = Vec::new();
        let mut not_before = Instant::now();
        if dump_at_once {
            session.handle_request();
        }
        loop {
            if Instant::now() >= not_before
                && let Some(request) = session.poll_transmit(&mut said)
            {
                // The view must know of the dump before the kernel begins it.
                if !self.pass_on(&mut said).await {
                    return Ok(());
                }
                if let Err(error) = self.socket.send(&request) {
                    tracing::debug!(%error, "rtnetlink: dump not asked for");
                    session.handle_unsent();
                }
            }
            if let Some(pause) = session.poll_pause() {
                not_before = Instant::now() + pause;
            }
            tokio::select! {
                readable = self.socket.readable() => {
                    readable?;
                    match self.socket.receive()? {
                        Received::Datagram(datagram) => session.handle_datagram(datagram, &mut said),
                        Received::Foreign => self.counters.count(Counter::RtnetlinkForeign),
                        Received::Truncated => session.handle_loss(Counter::RtnetlinkOversized),
                        Received::Overrun => session.handle_loss(Counter::RtnetlinkOverrun),
                        Received::Drained => session.handle_drained(),
                    }
                }
                request = self.requests.recv() => match request {
                    Some(()) => session.handle_request(),
                    None => return Ok(()),
                },
                () = sleep_until(not_before), if session.wants_to_send() => {}
                () = self.inputs.closed() => return Ok(()),
            }
            if !self.pass_on(&mut said).await {
                return Ok(());
            }
        }
    }

    /// `false` if nobody listens any more.
    async fn pass_on(&self, said: &mut Vec<Input>) -> bool {
        for input in said.drain(..) {
            if self.inputs.send(input).await.is_err() {
                return false;
            }
        }
        true
    }
}

fn open(config: Config) -> io::Result<Socket> {
    let groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
    Socket::open(groups.cast_unsigned(), config.receive_buffer)
}

/// Tries until it succeeds: the daemon has nothing to go by without.
async fn reopen(open: impl Fn() -> io::Result<Socket>) -> Socket {
    loop {
        sleep(Duration::from_secs(1)).await;
        match open() {
            Ok(socket) => return socket,
            Err(error) => tracing::error!(%error, "rtnetlink: socket not opened"),
        }
    }
}
