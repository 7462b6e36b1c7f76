// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the kernel says about links, addresses and routes (`NETLINK_ROUTE`).
//!
//! [`Watch`] listens: events and, when asked or after a loss, whole dumps go to the local view, in
//! the order in which the kernel queued them, each subject by a socket of its own. [`Routes`] asks which way an address is. Each is one
//! task with a socket of its own. [`Nudger`] changes a neighbour entry, on a thread.

mod fib;
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

use ibarr_proto::local_view::{Input, Subject};
use libc::{
    RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV4_RULE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE,
    RTMGRP_LINK,
};
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

/// Listens to links, addresses, routes and policy rules, until it is dropped or nobody takes the
/// inputs.
#[derive(Debug)]
pub struct Watch {
    node: mpsc::Sender<()>,
    routes: mpsc::Sender<()>,
}

impl Watch {
    /// Opens the sockets in the network namespace of this thread. Must be called within a runtime.
    /// Nothing is dumped before it is asked for.
    ///
    /// # Errors
    /// If the kernel has no such socket for us.
    pub fn start(counters: &Arc<Counters>) -> io::Result<(Self, mpsc::Receiver<Input>)> {
        Self::start_with(Config::default(), counters)
    }

    /// With another configuration than the default.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        config: Config,
        counters: &Arc<Counters>,
    ) -> io::Result<(Self, mpsc::Receiver<Input>)> {
        let (sender, inputs) = mpsc::channel(VIEW_INPUTS);
        let listen = |subject| {
            let socket = open(subject, config)?;
            let (request, requests) = mpsc::channel(1);
            let (inputs, counters) = (sender.clone(), Arc::clone(counters));
            let listener = Listener { subject, requests, inputs, counters };
            tokio::spawn(listener.run(socket, config));
            Ok::<_, io::Error>(request)
        };
        Ok((Self { node: listen(Subject::Node)?, routes: listen(Subject::Routes)? }, inputs))
    }

    /// Asks for a dump.
    pub fn request_dump(&self, subject: Subject) {
        let requests = match subject {
            Subject::Node => &self.node,
            Subject::Routes => &self.routes,
        };
        // One that waits is this one.
        let _ = requests.try_send(());
    }
}

struct Listener {
    subject: Subject,
    requests: mpsc::Receiver<()>,
    inputs: mpsc::Sender<Input>,
    counters: Arc<Counters>,
}

/// Why a listener has ended without an error.
enum End {
    /// Nobody wants to hear of it any more.
    Unwanted,
    /// There is more to hear than anybody wants, until the next request.
    TooMuch,
}

impl Listener {
    async fn run(mut self, mut socket: Socket, config: Config) {
        let mut dump_at_once = false;
        loop {
            let end = self.listen(&mut socket, dump_at_once).await;
            drop(socket);
            match end {
                Ok(End::Unwanted) => return,
                Ok(End::TooMuch) => {
                    if self.requests.recv().await.is_none() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "rtnetlink: socket broken, it is opened again");
                    self.counters.count(Counter::RtnetlinkReopened);
                }
            }
            socket = reopen(|| open(self.subject, config)).await;
            dump_at_once = true;
        }
    }

    async fn listen(&mut self, socket: &mut Socket, dump_at_once: bool) -> io::Result<End> {
        let counters = Arc::clone(&self.counters);
        let mut session = Session::new(self.subject, socket.portid(), counters);
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
                    return Ok(End::Unwanted);
                }
                if let Err(error) = socket.send(&request) {
                    tracing::debug!(%error, "rtnetlink: dump not asked for");
                    session.handle_unsent();
                }
            }
            if let Some(pause) = session.poll_pause() {
                not_before = Instant::now() + pause;
            }
            tokio::select! {
                readable = socket.readable() => {
                    readable?;
                    match socket.receive()? {
                        Received::Datagram(datagram) => session.handle_datagram(datagram, &mut said),
                        Received::Foreign => self.counters.count(Counter::RtnetlinkForeign),
                        Received::Truncated => session.handle_loss(Counter::RtnetlinkOversized),
                        Received::Overrun => session.handle_loss(Counter::RtnetlinkOverrun),
                        Received::Drained => session.handle_drained(),
                    }
                }
                request = self.requests.recv() => match request {
                    Some(()) => session.handle_request(),
                    None => return Ok(End::Unwanted),
                },
                () = sleep_until(not_before), if session.wants_to_send() => {}
                () = self.inputs.closed() => return Ok(End::Unwanted),
            }
            if !self.pass_on(&mut said).await {
                return Ok(End::Unwanted);
            }
            if session.is_too_much() {
                return Ok(End::TooMuch);
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

fn open(subject: Subject, config: Config) -> io::Result<Socket> {
    let groups = match subject {
        Subject::Node => RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR,
        Subject::Routes => {
            RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE | RTMGRP_IPV4_RULE | RTMGRP_IPV6_RULE
        }
    };
    let socket = Socket::open(groups.cast_unsigned(), config.receive_buffer)?;
    if subject == Subject::Routes
        && let Err(errno) = socket.set_strict()
    {
        // It then lists the routes of all tables.
        tracing::debug!(%errno, "rtnetlink: this kernel does not filter what it dumps");
    }
    Ok(socket)
}

/// `RTNLGRP_IPV6_RULE` is group 19.
const RTMGRP_IPV6_RULE: i32 = 1 << 18;

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
