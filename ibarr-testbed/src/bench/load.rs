// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queries as fast as a server answers them.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
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
    /// Whether queries cross the network in datagrams of their own.
    is_single: bool,
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
        Ok(Self { sockets, target: server.ip(), ending: ending.to_vec(), is_single: false })
    }

    /// The same client, whose queries programs in the kernel can read: each crosses the network in a datagram of its own.
    pub(super) fn datagram_by_datagram(self) -> Self {
        Self { is_single: true, ..self }
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
        let query = self.query()?;
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
                state.send(socket, query.as_ref(), self.is_single)?;
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

    fn query(&self) -> Result<ibarr_common::wire::ip2gid::Datagram> {
        let query = Query::new(Version::V1, MsgId(0), self.target);
        Ok(query.context("a server address that no node can have")?.emit())
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
    fn send(&mut self, socket: &UdpSocket, query: &[u8], is_single: bool) -> Result<()> {
        let missing = WINDOW - self.under_way;
        if missing < WINDOW / 4 {
            return Ok(());
        }
        if is_single {
            while self.under_way < WINDOW && socket.send(query).is_ok() {
                self.under_way += 1;
            }
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
