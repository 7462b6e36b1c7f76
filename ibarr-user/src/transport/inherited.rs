// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Sockets of the ip2gid port that another process opened for the daemon and keeps while no daemon
//! runs, as systemd does with `ibarr.socket`. Then no other process can bind the port.

use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use ibarr_proto::ip2gid::Family;
use nix::sys::socket::{SockType, SockaddrStorage, getpeername, getsockname, getsockopt, sockopt};

use crate::causes::{Fault, fault};
use crate::sys::udp::socket_addr;

#[derive(Debug)]
pub(crate) struct Inherited {
    /// The lowest port that any process can bind.
    lowest_free: u16,
    sockets: Vec<Socket>,
    /// Why others are not used.
    pub refused: Vec<Fault>,
}

#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    family: Family,
    port: u16,
}

/// The descriptor name of a socket of the port (`FileDescriptorName=`), for both families: all
/// sockets of a systemd unit have one name.
pub(crate) const NAME: &str = "ip2gid";

impl Inherited {
    /// No sockets. Reads a file of /proc.
    pub(crate) fn none() -> Self {
        let lowest = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok();
        let lowest_free = lowest.and_then(|port| port.trim().parse().ok()).unwrap_or(1024);
        Self { lowest_free, sockets: Vec::new(), refused: Vec::new() }
    }

    /// Adds a socket.
    ///
    /// # Errors
    /// Why it cannot be used, and the remedy if there is one.
    pub(crate) fn add(&mut self, fd: OwnedFd) -> Result<(), Fault> {
        let (family, port) = check(&fd)?;
        if self.sockets.iter().any(|other| other.family == family) {
            return Err(fault!(
                "there is another one of {family}: give one ListenDatagram= of each family"
            ));
        }
        self.sockets.push(Socket { fd, family, port });
        Ok(())
    }

    /// Notes why an inherited descriptor of any name is not used.
    pub(crate) fn refuse(&mut self, number: RawFd, name: &str, reason: &Fault) {
        let name = name.escape_debug();
        let reason = format!("inherited descriptor {number} ({name}) is not used: {reason}");
        self.refused.push(Fault::new(reason));
    }

    /// Duplicates the socket that is bound to `port`.
    pub(crate) fn socket(&self, family: Family, port: u16) -> Option<OwnedFd> {
        let bound = |socket: &&Socket| socket.family == family && socket.port == port;
        self.sockets.iter().find(bound)?.fd.try_clone().ok()
    }

    /// Which descriptors are not used, with reason and remedy, if `udp_port` is to be served.
    pub(crate) fn warnings(&self, udp_port: u16) -> impl Iterator<Item = Fault> {
        let elsewhere = self.sockets.iter().filter(move |socket| socket.port != udp_port);
        let elsewhere = elsewhere.map(move |Socket { fd, family, port }| {
            format!(
                "inherited descriptor {} ({NAME}) is not used: it has port {port} of {family}, and \
                 udp-port is {udp_port}: make ListenDatagram= and udp-port the same, then restart the \
                 socket unit and the daemon",
                fd.as_raw_fd()
            )
        });
        let held = self.sockets.iter().filter(|socket| socket.port == udp_port).count();
        let may_be_taken = held < 2 && udp_port >= self.lowest_free;
        let may_be_taken = may_be_taken.then(|| {
            format!(
                "any process can bind UDP port {udp_port} while no daemon has it, and give peers \
                 false answers: let systemd keep the port (ibarr.socket, see ibarr(8))"
            )
        });
        self.refused.iter().cloned().chain(elsewhere.chain(may_be_taken).map(Fault::new))
    }
}

/// The family and port of the socket, or why it cannot be used.
fn check(fd: &OwnedFd) -> Result<(Family, u16), Fault> {
    const WRITE: &str = "write ListenDatagram=0.0.0.0:4791 or [::]:4791";
    let name = getsockname(fd.as_raw_fd());
    let name = name.map_err(|error| fault!("it is not a socket ({error}): {WRITE}"))?;
    let address =
        socket_addr(&name).ok_or_else(|| fault!("it is neither IPv4 nor IPv6: {WRITE}"))?;
    if getsockopt(fd, sockopt::SockType) != Ok(SockType::Datagram) {
        return Err(fault!("it is not UDP: {WRITE}"));
    }
    if !address.ip().is_unspecified() || address.port() == 0 {
        return Err(fault!("it is bound to {address}, not to all addresses of a port: {WRITE}"));
    }
    if getpeername::<SockaddrStorage>(fd.as_raw_fd()).is_ok() {
        return Err(fault!("it is connected, so it receives from one peer only"));
    }
    let is_dual = address.is_ipv6() && getsockopt(fd, sockopt::Ipv6V6Only) != Ok(true);
    if is_dual {
        return Err(fault!("it also receives IPv4: write BindIPv6Only=ipv6-only"));
    }
    let family = match address.ip() {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    };
    Ok((family, address.port()))
}
