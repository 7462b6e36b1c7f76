// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The bench plays the kernel on the socket that a daemon has inherited. It does the same with a process
//! that only sends back what it receives, the minimum of a server.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::wire::ls::{self, Seq};
use ibarr_user::sys::local_service::RECEIVE_BUFFER;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, recv, send, setsockopt, socketpair, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::process::{self, Helper};
use super::report::Round;
use crate::interrupt::Interrupt;
use crate::lab::{Lab, NodeName};

/// The kernel's end of a server's socket.
pub(super) struct Server {
    pid: u32,
    socket: OwnedFd,
}

/// A datagram of a server.
struct Datagram {
    bytes: [u8; ls::MAX_LEN],
    len: usize,
}

impl Server {
    /// The daemon of a node of `lab`, restarted.
    pub(super) fn daemon(lab: &mut Lab, node: NodeName, interrupt: &Interrupt) -> Result<Self> {
        let (socket, inherited) = pair()?;
        lab.restart_with(node, Some(inherited), interrupt)?;
        let daemon = lab.state().daemons.iter().find(|daemon| daemon.node == node);
        let pid = daemon.context("the daemon was started")?.process.pid;
        let this = Self { pid, socket };
        // Skip its message about the kernel's time-out.
        this.receive()?;
        Ok(this)
    }

    /// An echo server inside `namespace`.
    pub(super) fn echo(namespace: &str) -> Result<(Self, Helper)> {
        let (socket, inherited) = pair()?;
        let arguments = ["bench", "ls-echo"].map(str::to_owned);
        let helper = Helper::start_with(namespace, &arguments, inherited)?;
        Ok((Self { pid: helper.pid(), socket }, helper))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Keeps `outstanding` requests in flight for `time`.
    pub(super) fn closed_loop<R: AsRef<[u8]>>(
        &self,
        outstanding: u32,
        time: Duration,
        request: impl Fn(Seq) -> R,
        is_right: impl Fn(Seq, &[u8]) -> bool,
    ) -> Result<Round> {
        let cpu = process::cpu_time(self.pid)?;
        let start = Instant::now();
        let goes_on = |_| start.elapsed() < time;
        let answers = self.exchange(outstanding, goes_on, request, is_right)?;
        let wall = start.elapsed();
        let cpu = process::cpu_time(self.pid)?.saturating_sub(cpu);
        ensure!(!cpu.is_zero(), "a server answers without using a CPU");
        Ok(Round { answers: f64::from(answers), wall, cpu })
    }

    /// Keeps `outstanding` requests in flight while `goes_on`, which gets the number of those sent. Returns how many
    /// were answered.
    pub(super) fn exchange<R: AsRef<[u8]>>(
        &self,
        outstanding: u32,
        goes_on: impl Fn(u32) -> bool,
        request: impl Fn(Seq) -> R,
        is_right: impl Fn(Seq, &[u8]) -> bool,
    ) -> Result<u32> {
        let first = fresh();
        let mut waiting: BTreeSet<u32> = (first..first + outstanding).collect();
        for &seq in &waiting {
            self.say(request(Seq(seq)).as_ref())?;
        }
        let mut next = first + outstanding;
        while !waiting.is_empty() {
            let datagram = self.receive()?;
            let seq = datagram.seq()?;
            ensure!(
                waiting.remove(&seq.0) && is_right(seq, datagram.as_ref()),
                "a wrong answer to {}: {:02x?}",
                seq.0,
                datagram.as_ref()
            );
            if goes_on(next - first) {
                self.say(request(Seq(next)).as_ref())?;
                waiting.insert(next);
                next += 1;
            }
        }
        Ok(next - first)
    }

    fn say(&self, datagram: &[u8]) -> Result<()> {
        send(self.socket.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL)
            .context("a server is gone")?;
        Ok(())
    }

    fn receive(&self) -> Result<Datagram> {
        let mut bytes = [0; ls::MAX_LEN];
        match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(0) => bail!("a server is gone"),
            Ok(len) => Ok(Datagram { bytes, len }),
            Err(error) => Err(error).context("a server is silent"),
        }
    }
}

impl AsRef<[u8]> for Datagram {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

impl Datagram {
    /// The sequence number of the request that it answers.
    fn seq(&self) -> Result<Seq> {
        let seq = self.as_ref().get(8..12).and_then(<[u8]>::first_chunk::<4>);
        seq.copied()
            .map(u32::from_ne_bytes)
            .map(Seq)
            .context("a datagram that is no netlink message")
    }
}

/// The first of many sequence numbers, none of which the daemon remembers.
fn fresh() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(u32::MAX / 1000, Ordering::Relaxed)
}

/// Sends back each datagram of `socket` until the socket is closed.
///
/// # Errors
/// The socket fails.
pub fn echo(socket: &OwnedFd) -> Result<()> {
    super::echo::say_ready()?;
    let mut datagram = [0; ls::MAX_LEN];
    loop {
        let len = recv(socket.as_raw_fd(), &mut datagram, MsgFlags::empty())?;
        if len == 0 {
            return Ok(());
        }
        let datagram = datagram.get(..len).context("a datagram longer than any request")?;
        send(socket.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL)?;
    }
}

/// Our end, whose reads wait for at most five seconds, and the server's end.
fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
        .context("cannot make a pair of sockets")?;
    setsockopt(&ours, sockopt::ReceiveTimeout, &TimeVal::seconds(5))?;
    // As with netlink, a datagram counts until it is read, with the kernel's overhead. So as many
    // fit as in the daemon's own netlink socket.
    if setsockopt(&ours, sockopt::SndBufForce, &RECEIVE_BUFFER).is_err() {
        setsockopt(&ours, sockopt::SndBuf, &RECEIVE_BUFFER)?;
    }
    Ok((ours, theirs))
}
