// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queries as fast as a server answers them, or at fixed times.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::wire::ip2gid::{MAX_LEN, MsgId, Query, Version};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, recvmmsg, sendmsg};

use crate::interrupt::Interrupt;
use crate::lab::netns;

/// A client with several sockets, all connected to one server.
#[derive(Debug)]
pub(super) struct Load {
    sockets: Vec<UdpSocket>,
    target: IpAddr,
    /// The last bytes of each right answer.
    ending: Vec<u8>,
}

impl Load {
    /// A client in `namespace` that asks `server` for its own address. A right answer ends in `ending`.
    ///
    /// # Errors
    /// There is no such namespace, or it has no route to the server.
    pub(super) fn new(namespace: &str, server: SocketAddr, ending: &[u8]) -> Result<Self> {
        let sockets = netns::inside(namespace, || {
            let sockets = (0..SOCKETS).map(|_| {
                let socket = UdpSocket::bind(match server {
                    SocketAddr::V4(_) => "0.0.0.0:0",
                    SocketAddr::V6(_) => "[::]:0",
                })?;
                socket.connect(server)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            sockets.collect::<std::io::Result<Vec<_>>>().context("cannot open sockets")
        })?;
        Ok(Self { sockets, target: server.ip(), ending: ending.to_vec() })
    }

    /// Keeps [`WINDOW`] queries in flight on each socket for `time`, or longer until there is an answer.
    /// Counts the answers, and returns how long it took.
    ///
    /// # Errors
    /// The server gives a wrong answer or none.
    pub(super) fn closed_loop(
        &self,
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<(u64, Duration)> {
        let query = self.query(0)?;
        let mut loops: Vec<_> = self.sockets.iter().map(|_| Loop::new()).collect();
        let start = Instant::now();
        let mut answers = 0;
        let mut last_answer = start;
        while start.elapsed() < time || answers == 0 {
            for (socket, state) in self.sockets.iter().zip(&mut loops) {
                let received = state.receive(socket, &self.ending)?;
                answers += u64::try_from(received)?;
                if received > 0 {
                    last_answer = Instant::now();
                }
                state.send(socket, query.as_ref())?;
            }
            if last_answer.elapsed() > LOST_AFTER {
                interrupt.check()?;
                ensure!(last_answer.elapsed() < SILENT_AFTER, "the server is silent");
                // All queries in flight are lost.
                for state in &mut loops {
                    state.under_way = 0;
                }
            }
        }
        let took = start.elapsed();
        // Late answers must not be counted in the next round.
        std::thread::sleep(Duration::from_millis(20));
        for (socket, state) in self.sockets.iter().zip(&mut loops) {
            while state.receive(socket, &self.ending)? > 0 {}
        }
        Ok((answers, took))
    }

    /// Sends `rate` queries a second for `time`, each when it is due, whether or not earlier ones were
    /// answered. Returns the sorted times from each query's *due* time to its answer, and the number of
    /// queries without an answer. So a server that stalls is charged for all queries that it delayed.
    ///
    /// # Errors
    /// The server gives a wrong answer.
    pub(super) fn open_loop(&self, rate: u32, time: Duration) -> Result<Latencies> {
        let total = u32::try_from(time.as_millis() * u128::from(rate) / 1000)?;
        let due = |id: u32| Duration::from_secs(1) / rate * id;
        let mut latencies = vec![None; usize::try_from(total)?];
        let (mut sent, mut answered) = (0, 0);
        let start = Instant::now();
        let mut datagram = [0; MAX_LEN + 1];
        while answered < total && start.elapsed() < due(total) + LOST_AFTER {
            while sent < total && due(sent) <= start.elapsed() {
                let socket = &self.sockets[usize::try_from(sent)? % self.sockets.len()];
                match socket.send(self.query(sent)?.as_ref()) {
                    Ok(_) => {}
                    // This query will count as lost.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("cannot send a query"),
                }
                sent += 1;
            }
            for socket in &self.sockets {
                let len = match socket.recv(&mut datagram) {
                    Ok(len) => len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error).context("cannot receive an answer"),
                };
                let at = start.elapsed();
                let answer = datagram.get(..len).unwrap_or_default();
                let id = answer.get(4..8).and_then(<[u8]>::first_chunk).copied();
                let id = id.map(u32::from_be_bytes).filter(|_| answer.ends_with(&self.ending));
                let slot = id.and_then(|id| latencies.get_mut(usize::try_from(id).ok()?));
                let (Some(id), Some(slot)) = (id, slot) else {
                    bail!("a wrong answer: {answer:02x?}")
                };
                if slot.replace(at.saturating_sub(due(id))).is_none() {
                    answered += 1;
                }
            }
        }
        let mut answered: Vec<Duration> = latencies.iter().flatten().copied().collect();
        answered.sort_unstable();
        Ok(Latencies { lost: latencies.len() - answered.len(), answered })
    }

    fn query(&self, id: u32) -> Result<ibarr_common::wire::ip2gid::Datagram> {
        let query = Query::new(Version::V1, MsgId(id), self.target);
        Ok(query.context("a server address that no node can have")?.emit())
    }
}

/// The result of an open loop.
#[derive(Debug)]
pub(super) struct Latencies {
    answered: Vec<Duration>,
    /// Queries without an answer. They count as slowest.
    pub(super) lost: usize,
}

impl Latencies {
    pub(super) const fn none() -> Self {
        Self { answered: Vec::new(), lost: 0 }
    }

    /// Adds another round.
    pub(super) fn merge(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.answered.sort_unstable();
        self.lost += other.lost;
    }

    /// How many queries there were.
    pub(super) const fn total(&self) -> usize {
        self.answered.len() + self.lost
    }

    /// The latency that `per_mille` of a thousand queries do not exceed. `None` if fewer were answered.
    pub(super) fn percentile(&self, per_mille: usize) -> Option<Duration> {
        self.answered.get((self.total() * per_mille).div_ceil(1000).max(1) - 1).copied()
    }
}

/// Enough sockets that neither flow hashing nor one socket's lock is the limit.
const SOCKETS: usize = 8;

/// Enough queries that the server never waits: its batch is 64 datagrams.
const WINDOW: usize = 32;

const SILENT_AFTER: Duration = Duration::from_secs(5);
const LOST_AFTER: Duration = Duration::from_millis(100);

/// The state of one socket in a closed loop.
struct Loop {
    headers: MultiHeaders<()>,
    buffers: [[u8; MAX_LEN + 1]; WINDOW],
    under_way: usize,
}

impl Loop {
    fn new() -> Self {
        Self {
            headers: MultiHeaders::preallocate(WINDOW, None),
            buffers: [[0; MAX_LEN + 1]; WINDOW],
            under_way: 0,
        }
    }

    /// Reads the waiting answers, and returns their number.
    fn receive(&mut self, socket: &UdpSocket, ending: &[u8]) -> Result<usize> {
        let mut vectors = self.buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
        let flags = MsgFlags::MSG_DONTWAIT;
        let results =
            recvmmsg(socket.as_raw_fd(), &mut self.headers, vectors.iter_mut(), flags, None);
        let lengths: Vec<usize> = match results {
            Ok(results) => results.map(|message| message.bytes).collect(),
            Err(Errno::EAGAIN) => return Ok(0),
            Err(error) => return Err(error).context("cannot receive answers"),
        };
        for (buffer, &len) in self.buffers.iter().zip(&lengths) {
            let answer = buffer.get(..len).unwrap_or_default();
            ensure!(answer.ends_with(ending), "a wrong answer: {answer:02x?}");
        }
        self.under_way = self.under_way.saturating_sub(lengths.len());
        Ok(lengths.len())
    }

    /// Fills the window, as soon as enough queries are missing. They cross the network as one datagram,
    /// which the kernel splits at the server's socket (`UDP_SEGMENT`). This makes the load cheaper than the
    /// server.
    fn send(&mut self, socket: &UdpSocket, query: &[u8]) -> Result<()> {
        let missing = WINDOW - self.under_way;
        if missing < WINDOW / 4 {
            return Ok(());
        }
        let segment = u16::try_from(query.len())?;
        let datagrams = query.repeat(missing);
        let sent = sendmsg::<()>(
            socket.as_raw_fd(),
            &[IoSlice::new(&datagrams)],
            &[ControlMessage::UdpGsoSegments(&segment)],
            MsgFlags::MSG_DONTWAIT,
            None,
        );
        match sent {
            Ok(_) => self.under_way = WINDOW,
            Err(Errno::EAGAIN | Errno::ENOBUFS) => {}
            Err(error) => return Err(error).context("cannot send queries"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_queries_are_the_slowest() {
        let answered = (1..=98).map(Duration::from_micros).collect();
        let latencies = Latencies { answered, lost: 2 };
        assert_eq!(latencies.percentile(500), Some(Duration::from_micros(50)));
        assert_eq!(latencies.percentile(980), Some(Duration::from_micros(98)));
        assert_eq!(latencies.percentile(990), None);
        assert_eq!(latencies.percentile(0), Some(Duration::from_micros(1)));
    }
}
