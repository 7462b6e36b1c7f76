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
}

impl Sockets {
    /// None yet. A datagram that `datagrams` has no room for is dropped and counted.
    pub fn new(datagrams: mpsc::Sender<Datagram>, counters: Arc<Counters>) -> Self {
        Self { open: HashMap::new(), readers: JoinSet::new(), datagrams, counters }
    }

    /// Opens `socket` on a port that the kernel picks.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2), `EMFILE` among them.
    pub fn open(&mut self, socket: SocketId, family: Family) -> io::Result<()> {
        let udp = Arc::new(UdpSocket::bind(family, 0)?);
        let reader =
            read(socket, Arc::clone(&udp), self.datagrams.clone(), Arc::clone(&self.counters));
        let reader = self.readers.spawn(reader);
        self.open.insert(socket, (udp, reader));
        Ok(())
    }

    /// Closes `socket`; one that is not open stays so.
    pub fn close(&mut self, socket: SocketId) {
        if let Some((_, reader)) = self.open.remove(&socket) {
            reader.abort();
        }
        while self.readers.try_join_next().is_some() {}
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
