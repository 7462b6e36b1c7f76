// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Plays the kernel towards a daemon in a lab.

use std::fmt;
use std::io::Cursor;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use ibarr_common::Instant;
use ibarr_common::wire::ls::{ResolveIp, ResolvePath, Seq};
use ibarr_sim::Netlink;
use ibarr_user::sys::clock;
use neli::FromBytesWithInput;
use neli::consts::rtnl::{Nda, Ntf, Nud, RtAddrFamily, Rtm};
use neli::rtnl::Ndmsg;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket, socketpair,
};

use super::{Config, Event, Input, Kernel, NoListener, Transmit};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, NodeName, netns};

/// A [`Kernel`] in a node of a lab, on the socket that the daemon has inherited. Its neighbours are the
/// node's.
///
/// Two sockets have no common order. When a change of a neighbour is read, all messages of the daemon
/// that have arrived count as earlier. This is right for a daemon that first answers and then nudges. An
/// answer that comes just after a change counts as earlier, too.
///
/// Its time passes only inside of its methods.
#[derive(Debug)]
pub struct StandIn {
    kernel: Kernel,
    daemon: OwnedFd,
    neighbours: OwnedFd,
    said: Vec<Said>,
}

/// A datagram between the kernel and the daemon.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Said {
    /// The time at which it was sent, or read.
    pub at: Instant,
    /// Whether the kernel sent it.
    pub by_kernel: bool,
    /// The bytes of the datagram.
    pub bytes: Vec<u8>,
}

impl StandIn {
    /// Restarts the daemon of a node, with a stand-in for its kernel.
    ///
    /// # Errors
    /// There is no such node, or its daemon does not end or start.
    pub fn attach(
        lab: &mut Lab,
        name: NodeName,
        config: Config,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let namespace = lab.plan().namespace_of(&name.to_string())?;
        let neighbours = netns::inside(namespace, watch_neighbours)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (daemon, inherited) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
            .context("cannot make a pair of sockets")?;
        let mut kernel = Kernel::new(config);
        kernel.handle_input(clock::now(), Input::Listener(true));
        let mut this = Self { kernel, daemon, neighbours, said: Vec::new() };
        lab.restart_with(name, Some(inherited), interrupt)?;
        this.turn()?;
        Ok(this)
    }

    /// [`Kernel::resolve_ip`], now.
    ///
    /// # Errors
    /// A socket fails. The inner error is the kernel's.
    pub fn resolve_ip(
        &mut self,
        request: ResolveIp,
        timeout: Duration,
    ) -> Result<Result<Seq, NoListener>> {
        self.turn()?;
        let asked = self.kernel.resolve_ip(clock::now(), request, timeout);
        self.transmit()?;
        Ok(asked)
    }

    /// [`Kernel::resolve_path`], now.
    ///
    /// # Errors
    /// A socket fails.
    pub fn resolve_path(&mut self, request: ResolvePath) -> Result<Option<Seq>> {
        self.turn()?;
        let asked = self.kernel.resolve_path(clock::now(), request);
        self.transmit()?;
        Ok(asked)
    }

    /// Waits until a request ends. `None` if none ends in `time`.
    ///
    /// # Errors
    /// A socket fails, or we are interrupted.
    pub fn next_event(&mut self, time: Duration, interrupt: &Interrupt) -> Result<Option<Event>> {
        let deadline = clock::now() + time;
        loop {
            self.turn()?;
            if let Some(event) = self.kernel.poll_event() {
                return Ok(Some(event));
            }
            interrupt.check()?;
            let now = clock::now();
            if now >= deadline {
                return Ok(None);
            }
            let next = self.kernel.poll_timeout().map_or(deadline, |next| next.min(deadline));
            self.wait(next.since(now).min(LOOK_EVERY));
        }
    }

    /// The datagrams since the last call, in both directions.
    pub fn take_said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.said)
    }

    fn turn(&mut self) -> Result<()> {
        // Read this before the daemon's messages, see the type.
        let changed = self.take_changed()?;
        self.take_datagrams()?;
        let now = clock::now();
        match changed {
            Some(address) => self.kernel.handle_input(now, Input::Neighbour(address)),
            None => self.kernel.handle_timeout(now),
        }
        self.transmit()
    }

    /// The neighbour that changed last, if any. Several changes together have one effect.
    fn take_changed(&self) -> Result<Option<IpAddr>> {
        let mut changed = None;
        let mut buffer = [0; 8192];
        loop {
            match recv(self.neighbours.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => changed = buffer.get(..len).and_then(valid_neighbour).or(changed),
                // Messages are lost, and most likely one was a change.
                Err(Errno::ENOBUFS) => changed = Some(Ipv6Addr::UNSPECIFIED.into()),
                Err(Errno::EAGAIN) => return Ok(changed),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("cannot hear of neighbours"),
            }
        }
    }

    fn take_datagrams(&mut self) -> Result<()> {
        let mut buffer = [0; 8192];
        loop {
            let len = match recv(self.daemon.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) | Err(Errno::ECONNRESET) => {
                    self.kernel.handle_input(clock::now(), Input::Listener(false));
                    return Ok(());
                }
                Ok(len) => len,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error).context("cannot hear the daemon"),
            };
            let bytes = buffer.get(..len).unwrap_or_default();
            let at = clock::now();
            self.kernel.handle_input(at, Input::Datagram(bytes));
            self.said.push(Said { at, by_kernel: false, bytes: bytes.to_vec() });
        }
    }

    fn transmit(&mut self) -> Result<()> {
        while let Some(transmit) = self.kernel.poll_transmit() {
            let Transmit { bytes, .. } = &transmit;
            // Take the time first, because the daemon may answer before `send` returns.
            let at = clock::now();
            match send(self.daemon.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
                Ok(_) => {
                    let bytes = transmit.bytes;
                    self.said.push(Said { at, by_kernel: true, bytes });
                }
                Err(Errno::EAGAIN | Errno::EPIPE | Errno::ECONNRESET) => {
                    self.kernel.not_delivered(&transmit);
                }
                Err(error) => return Err(error).context("cannot ask the daemon"),
            }
        }
        Ok(())
    }

    fn wait(&self, time: Duration) {
        let fds = [self.daemon.as_fd(), self.neighbours.as_fd()];
        let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // After EINTR the caller looks again, as after the time is over.
        let _ = ppoll(&mut fds, Some(time.into()), None);
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Netlink(&self.bytes).fmt(f)
    }
}

fn watch_neighbours() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let route = SockProtocol::NetlinkRoute;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, route)
        .context("cannot open a netlink socket")?;
    let address = NetlinkAddr::new(0, libc::RTMGRP_NEIGH.cast_unsigned());
    bind(fd.as_raw_fd(), &address).context("cannot watch neighbours")?;
    Ok(fd)
}

/// The neighbour of an rtnetlink message, if it is valid as [`Input::Neighbour`] means. The kernel's RDMA
/// core also hears of deleted entries (`neigh_cleanup_and_release`), in their last state.
fn valid_neighbour(message: &[u8]) -> Option<IpAddr> {
    // NUD_VALID
    let valid = Nud::PERMANENT | Nud::NOARP | Nud::REACHABLE | Nud::PROBE | Nud::STALE | Nud::DELAY;
    let (header, payload) = message.split_first_chunk::<16>()?;
    let kind = Rtm::from(u16::from_ne_bytes([header[4], header[5]]));
    if !matches!(kind, Rtm::Newneigh | Rtm::Delneigh) {
        return None;
    }
    let neighbour = Ndmsg::from_bytes_with_input(&mut Cursor::new(payload), payload.len()).ok()?;
    // A bridge announces its own entries by the same messages.
    let is_ip = matches!(neighbour.ndm_family(), RtAddrFamily::Inet | RtAddrFamily::Inet6);
    if !is_ip
        || !neighbour.ndm_state().intersects(valid)
        || neighbour.ndm_flags().contains(Ntf::PROXY)
    {
        return None;
    }
    let address = neighbour.rtattrs().iter().find(|attr| *attr.rta_type() == Nda::Dst)?;
    let address = address.rta_payload().as_ref();
    let v4 = <[u8; 4]>::try_from(address).map(Ipv4Addr::from).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(address).map(Ipv6Addr::from).map(IpAddr::from)).ok()
}

/// How often to check for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);
