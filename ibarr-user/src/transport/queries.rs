// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets that our own queries leave from: the core opens and closes them, replies go to the
//! engine. Nothing here waits to send: the core's schedule repeats what a full buffer swallowed.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;

use ibarr_common::IfIndex;
use ibarr_common::wire::ip2gid;
use ibarr_proto::ip2gid::Family;
use ibarr_proto::ip2gid::client::{SocketId, Transmit};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use super::{Counter, Counters};
use crate::sys::udp::{Source, UdpSocket};
use crate::sys::udp_options;

/// A datagram that may be a reply.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// The socket it came to.
    pub socket: SocketId,
    /// Who sent it.
    pub from: SocketAddr,
    /// The interface it came over.
    pub ifindex: IfIndex,
    buffer: [u8; ip2gid::MAX_LEN + 1],
    len: usize,
}

impl Datagram {
    /// Its first bytes: one more than the longest legal datagram, which decides what it is.
    pub fn payload(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// The open sockets, each with the task that reads it.
#[derive(Debug)]
pub struct Sockets {
    open: HashMap<SocketId, (Arc<UdpSocket>, AbortHandle)>,
    readers: JoinSet<()>,
    datagrams: mpsc::Sender<Datagram>,
    counters: Arc<Counters>,
    /// By sockets that are closed.
    dropped: u64,
}

/// What a socket is to hold in memory: 32 of them share the replies to 4,096 queries under way, which
/// may come at once. Twice what is its share then, for shares are chosen at random; 64 sockets of
/// each version of IP, half of them in grace, hold 256 MiB at most.
const HOLD: usize = 2 << 20;

impl Sockets {
    /// None yet. A datagram that `datagrams` has no room for is dropped and counted.
    pub fn new(datagrams: mpsc::Sender<Datagram>, counters: Arc<Counters>) -> Self {
        Self { open: HashMap::new(), readers: JoinSet::new(), datagrams, counters, dropped: 0 }
    }

    /// Opens `socket` on a port that the kernel picks.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2), `EMFILE` among them.
    pub fn open(&mut self, socket: SocketId, family: Family) -> io::Result<()> {
        let udp = UdpSocket::bind(family, 0)?;
        // With less, more is lost, which is counted and asked for again.
        let _ = udp_options::widen(&udp, HOLD);
        let udp = Arc::new(udp);
        let reader =
            read(socket, Arc::clone(&udp), self.datagrams.clone(), Arc::clone(&self.counters));
        let reader = self.readers.spawn(reader);
        self.open.insert(socket, (udp, reader));
        Ok(())
    }

    /// Closes `socket`; one that is not open stays so.
    pub fn close(&mut self, socket: SocketId) {
        if let Some((udp, reader)) = self.open.remove(&socket) {
            self.dropped += u64::from(udp_options::dropped(&*udp).unwrap_or_default());
            reader.abort();
        }
        while self.readers.try_join_next().is_some() {}
    }

    /// Datagrams that the kernel did not give to the sockets, open ones and others: there was no room,
    /// or they were broken.
    pub fn dropped(&self) -> u64 {
        let of_open = self.open.values().map(|(udp, _)| udp_options::dropped(&**udp));
        self.dropped + of_open.map(|dropped| u64::from(dropped.unwrap_or_default())).sum::<u64>()
    }

    /// Sends now or not at all; what was not sent is counted.
    pub fn send(&self, transmit: &Transmit) {
        let Transmit { socket, to, egress, payload } = transmit;
        let Some((udp, _)) = self.open.get(socket) else {
            self.counters.count(Counter::QueryNotSent);
            return;
        };
        let source = Source { address: None, egress: *egress };
        if let Err(error) = udp.try_send(payload.as_ref(), *to, source) {
            self.counters.count(Counter::QueryNotSent);
            debug!(%to, %error, "query not sent");
        }
    }
}

async fn read(
    socket: SocketId,
    udp: Arc<UdpSocket>,
    datagrams: mpsc::Sender<Datagram>,
    counters: Arc<Counters>,
) {
    while udp.readable().await.is_ok() {
        let mut buffer = [0; ip2gid::MAX_LEN + 1];
        match udp.try_recv(&mut buffer) {
            Ok(received) => {
                let len = received.len.min(buffer.len());
                let (from, ifindex) = (received.from, received.ifindex);
                let datagram = Datagram { socket, from, ifindex, buffer, len };
                if datagrams.try_send(datagram).is_err() {
                    counters.count(Counter::ReplyDropped);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                counters.count(Counter::ReceiveFailed);
                debug!(%error, "datagram not received");
            }
        }
        // One reader among up to 64: the others and the engine have their turn.
        tokio::task::coop::consume_budget().await;
    }
}
