// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the kernel says about links, addresses, routes and neighbours (`NETLINK_ROUTE`).
//!
//! [`Watch`] listens: it passes events, and complete dumps on request, to the local
//! view, in the order in which the kernel queued them. Each subject has its own socket; the one for
//! neighbours is open only while the view wants them. [`Routes`] looks up the route to an address.
//! Each is one task with its own socket. [`Nudger`] changes a neighbour entry, on a thread.

mod ask;
mod fib;
pub(crate) mod ipoib;
pub(crate) mod message;
mod neigh;
mod nudge;
mod routes;
mod session;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ibarr_proto::local_view::{Input, Request, Subject};
use libc::{
    RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV4_RULE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE,
    RTMGRP_LINK, RTMGRP_NEIGH,
};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

pub use self::ask::neighbours;
pub(crate) use self::ask::{
    Error, addresses, ask, interface, networks, route, routes_of, takes, way,
};
pub use self::neigh::{ADDRESS_V4, ADDRESS_V6};
pub use self::nudge::{LOOPBACK, NudgeError, NudgeResult, NudgeTarget, Nudger};
pub use self::routes::{Answer, NoRoute, RouteAnswer, Routes};
use self::session::{Extent, Session};
use self::socket::{Received, Socket};
use super::{Counter, Counters, VIEW_INPUTS};

/// Options of the socket.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Receive buffer in bytes. Messages beyond it are lost, and a dump follows.
    pub receive_buffer: usize,
}

impl Default for Config {
    /// Enough for the events of a few thousand changes at once.
    fn default() -> Self {
        Self { receive_buffer: 4 * 1024 * 1024 }
    }
}

/// Listens to links, addresses, routes and policy rules, and on request to neighbours, until it is
/// dropped or the receiver is.
#[derive(Debug)]
pub struct Watch {
    node: watch::Sender<Order>,
    routes: watch::Sender<Order>,
    neighbours: watch::Sender<Order>,
}

/// An order for a listener. A later order replaces one that was not read yet.
#[derive(Clone, Copy, Debug)]
enum Order {
    None,
    Dump(Extent),
    Leave,
}

impl Watch {
    /// Opens the sockets in the network namespace of this thread. Must be called within a runtime.
    /// No dump starts before a request.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub fn start(
        config: Config,
        counters: &Arc<Counters>,
    ) -> io::Result<(Self, mpsc::Receiver<Input>)> {
        let (sender, inputs) = mpsc::channel(VIEW_INPUTS);
        let listen = |subject, socket| {
            let (order, orders) = watch::channel(Order::None);
            let (inputs, counters) = (sender.clone(), Arc::clone(counters));
            let listener = Listener { subject, orders, inputs, counters };
            tokio::spawn(listener.run(socket, config));
            order
        };
        let socket = |subject| open(subject, config).map(Some);
        let watch = Self {
            node: listen(Subject::Node, socket(Subject::Node)?),
            routes: listen(Subject::Routes, socket(Subject::Routes)?),
            neighbours: listen(Subject::Neighbours, None),
        };
        Ok((watch, inputs))
    }

    /// Carries out a request of the view.
    pub fn ask(&self, request: Request) {
        let (subject, order) = match request {
            Request::Dump(subject) => (subject, Order::Dump(Extent::All)),
            Request::Links => (Subject::Node, Order::Dump(Extent::Links)),
            Request::Leave(subject) => (subject, Order::Leave),
        };
        let orders = match subject {
            Subject::Node => &self.node,
            Subject::Routes => &self.routes,
            Subject::Neighbours => &self.neighbours,
        };
        // This fails only if the receiver of the inputs is gone.
        let _ = orders.send(order);
    }
}

struct Listener {
    subject: Subject,
    orders: watch::Receiver<Order>,
    inputs: mpsc::Sender<Input>,
    counters: Arc<Counters>,
}

/// Why a listener has ended without an error.
enum End {
    /// The receiver is gone.
    Unwanted,
    /// The view wants nothing of the subject, or not so much, until it asks for the next dump.
    Enough,
}

impl Listener {
    /// If there is no socket, opens one when a dump is requested.
    async fn run(mut self, mut socket: Option<Socket>, config: Config) {
        let mut dump_at_once = false;
        loop {
            let end = match socket.take() {
                Some(mut socket) => self.listen(&mut socket, dump_at_once).await,
                None => Ok(End::Enough),
            };
            socket = Some(match end {
                Ok(End::Unwanted) => return,
                Ok(End::Enough) => {
                    if !self.next_order().await {
                        return;
                    }
                    open_at_last(|| open(self.subject, config)).await
                }
                Err(error) => {
                    tracing::error!(%error, "rtnetlink: socket broken; opening it again");
                    self.counters.count(Counter::RtnetlinkReopened);
                    reopen(|| open(self.subject, config)).await
                }
            });
            dump_at_once = true;
        }
    }

    /// Waits until a dump is requested; `false` if none will be.
    async fn next_order(&mut self) -> bool {
        while self.orders.changed().await.is_ok() {
            if let Order::Dump(_) = *self.orders.borrow() {
                return true;
            }
        }
        false
    }

    async fn listen(&mut self, socket: &mut Socket, dump_at_once: bool) -> io::Result<End> {
        let counters = Arc::clone(&self.counters);
        let mut session = Session::new(self.subject, socket.portid(), counters);
        let mut said = Vec::new();
        if dump_at_once {
            session.handle_request(Extent::All);
        }
        loop {
            let request = session.poll_transmit(&mut said);
            // The view must know of the dump before the kernel begins it.
            if !self.pass_on(&mut said).await {
                return Ok(End::Unwanted);
            }
            if session.is_too_much() {
                return Ok(End::Enough);
            }
            if let Some(request) = request
                && let Err(error) = socket.send(&request)
            {
                tracing::debug!(%error, "rtnetlink: dump not asked for");
                session.handle_unsent(&mut said);
                continue;
            }
            tokio::select! {
                readable = socket.readable() => {
                    readable?;
                    match socket.receive()? {
                        Received::Datagram(datagram) => session.handle_datagram(datagram, &mut said),
                        Received::Foreign => self.counters.count(Counter::RtnetlinkForeign),
                        Received::Truncated => {
                            session.handle_loss(Counter::RtnetlinkOversized, &mut said);
                        }
                        Received::Overrun => session.handle_loss(Counter::RtnetlinkOverrun, &mut said),
                        Received::Drained => session.handle_drained(),
                    }
                }
                order = self.orders.changed() => {
                    let order = order.map_or(Order::None, |()| *self.orders.borrow());
                    match order {
                        Order::Dump(extent) => session.handle_request(extent),
                        Order::Leave => return Ok(End::Enough),
                        Order::None => return Ok(End::Unwanted),
                    }
                }
                () = self.inputs.closed() => return Ok(End::Unwanted),
            }
        }
    }

    /// `false` if the receiver is gone.
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
            RTMGRP_IPV4_ROUTE
                | RTMGRP_IPV6_ROUTE
                | RTMGRP_IPV4_RULE
                | RTMGRP_IPV6_RULE
                | RTMGRP_NEXTHOP
        }
        Subject::Neighbours => RTMGRP_NEIGH,
    };
    let socket = Socket::open(groups.cast_unsigned(), config.receive_buffer)?;
    if subject == Subject::Routes
        && let Err(errno) = socket.set_strict()
    {
        // Then the kernel lists the routes of all tables.
        tracing::debug!(%errno, "rtnetlink: this kernel does not filter what it dumps");
    }
    Ok(socket)
}

// `RTNLGRP_IPV6_RULE` is group 19, `RTNLGRP_NEXTHOP` is 32.
const RTMGRP_IPV6_RULE: i32 = 1 << 18;
const RTMGRP_NEXTHOP: i32 = 1 << 31;

async fn reopen(open: impl Fn() -> io::Result<Socket>) -> Socket {
    sleep(RETRY).await;
    open_at_last(open).await
}

/// Tries until it succeeds, because the daemon cannot work without it.
async fn open_at_last(open: impl Fn() -> io::Result<Socket>) -> Socket {
    loop {
        match open() {
            Ok(socket) => return socket,
            Err(error) => tracing::error!(%error, "rtnetlink: socket not opened"),
        }
        sleep(RETRY).await;
    }
}

const RETRY: Duration = Duration::from_secs(1);
