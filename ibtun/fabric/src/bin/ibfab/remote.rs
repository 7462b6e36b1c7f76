// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Hosts on other machines or in virtual machines: `ibfab join` makes the device there, and
//! exchanges its packets with `ibfab run` here over a datagram socket.
//!
//! A datagram begins with a byte for its kind. Numbers are in host byte order, which has to be the
//! same on both sides: both run the same program.
//!
//! | kind | sender | contents |
//! |---|---|---|
//! | 1 | host | the name of its node; sent every second ("hello") |
//! | 2 | both | port, packet |
//! | 3 | host | port, capabilities (4 bytes) |
//! | 4 | fabric | port, configuration; repeated after each hello |
//!
//! Datagrams may be lost, as packets may. The state of a port is repeated every second, so that a
//! loss is repaired. A host that has sent nothing for five seconds is considered gone.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use ibarr_common::Instant;
use ibarr_common::ib::{Guid, Lid, PKey, PortNum, Sl, SubnetPrefix};
use ibarr_fabric::topology::{self, NodeId, PortId};
use ibarr_fabric::wire::packet;
use ibarr_fabric::wire::smp::{PhysicalState, PortState};
use ibarr_fabric::{Fabric, Input, PortConfig};
use nix::sys::socket::{setsockopt, sockopt};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Interval between hellos of a host.
pub(crate) const HELLO: Duration = Duration::from_secs(1);

/// A host that has been silent for so long is gone.
const GONE: Duration = Duration::from_secs(5);

/// The socket of either side.
#[derive(Debug)]
pub(crate) enum Socket {
    Udp(UdpSocket),
    /// The socket file of this side is removed at the end.
    Unix(UnixDatagram, PathBuf),
}

/// Origin or destination of a datagram.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Address {
    Udp(std::net::SocketAddr),
    Unix(PathBuf),
}

/// The contents of a datagram.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message<'a> {
    Hello(&'a str),
    Packet { port: PortNum, packet: &'a [u8] },
    Capabilities { port: PortNum, mask: u32 },
    Config { port: PortNum, config: Box<PortConfig>, reregister: bool },
}

/// Room of a socket for datagrams in each direction, in bytes. A connection may have 64 packets on their
/// way, and the kernel counts up to 16 KiB for each.
const ROOM: usize = 16 << 20;

/// Longest datagram, in bytes.
pub(crate) const MAX_DATAGRAM: usize = 2 + packet::MAX_LEN;

/// The remote hosts of a fabric.
#[derive(Debug)]
pub(crate) struct Hosts {
    socket: Socket,
    present: Vec<Host>,
}

#[derive(Debug)]
struct Host {
    node: NodeId,
    address: Address,
    heard: Instant,
}

impl Hosts {
    pub(crate) fn listen(at: &str) -> anyhow::Result<Self> {
        let socket = Socket::bind(at).with_context(|| format!("cannot listen at {at}"))?;
        Ok(Self { socket, present: Vec::new() })
    }

    /// When [`Hosts::forget_silent`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.present.iter().map(|host| host.heard + GONE).min()
    }

    /// Detaches hosts that have been silent for too long.
    pub(crate) fn forget_silent(&mut self, fabric: &mut Fabric, now: Instant) {
        self.present.retain(|host| {
            let is_here = now < host.heard + GONE;
            if !is_here {
                fabric.handle_input(now, Input::Detach(host.node));
            }
            is_here
        });
    }

    /// Handles all received datagrams. Only `nodes` may have remote hosts.
    pub(crate) fn read(&mut self, fabric: &mut Fabric, now: Instant, nodes: &[NodeId]) {
        let mut buffer = [0; MAX_DATAGRAM + 1];
        while let Some((len, address)) = self.socket.receive(&mut buffer) {
            let Some(message) = buffer.get(..len).and_then(Message::parse) else { continue };
            if let Message::Hello(name) = message {
                let node = fabric.topology().find(name).filter(|node| nodes.contains(node));
                if let Some(node) = node {
                    self.hello(fabric, now, node, address);
                }
                continue;
            }
            let Some(host) = self.present.iter().find(|host| host.address == address) else {
                continue;
            };
            let port = |number| PortId { node: host.node, number };
            match message {
                Message::Packet { port: number, packet } => {
                    fabric.handle_input(now, Input::Packet { port: port(number), packet });
                }
                Message::Capabilities { port: number, mask } => {
                    fabric.handle_input(now, Input::Capabilities { port: port(number), mask });
                }
                Message::Hello(_) | Message::Config { .. } => {}
            }
        }
    }

    fn hello(&mut self, fabric: &mut Fabric, now: Instant, node: NodeId, address: Address) {
        let known = self.present.iter_mut().find(|host| host.node == node);
        match known {
            Some(host) if host.address == address => {
                host.heard = now;
                let numbers = fabric.topology().node(node).map(topology::Node::port_numbers);
                for number in numbers.into_iter().flatten() {
                    if let Some(config) = fabric.port_config(PortId { node, number }) {
                        self.configure(PortId { node, number }, &config, false);
                    }
                }
            }
            // The newest host wins: the one before may have died without a message.
            Some(host) => {
                (host.address, host.heard) = (address, now);
                fabric.handle_input(now, Input::Attach(node));
            }
            None => {
                self.present.push(Host { node, address, heard: now });
                fabric.handle_input(now, Input::Attach(node));
            }
        }
    }

    /// Sends a host the state of its port. A lost message is repeated at the host's next hello.
    pub(crate) fn configure(&self, port: PortId, config: &PortConfig, reregister: bool) {
        let config = Box::new(config.clone());
        self.send(port.node, &Message::Config { port: port.number, config, reregister });
    }

    /// Sends a packet to a host.
    pub(crate) fn write(&self, port: PortId, packet: &[u8]) {
        self.send(port.node, &Message::Packet { port: port.number, packet });
    }

    fn send(&self, node: NodeId, message: &Message<'_>) {
        if let Some(host) = self.present.iter().find(|host| host.node == node) {
            self.socket.send(&message.emit(), &host.address);
        }
    }
}

impl AsFd for Hosts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Socket {
    /// Binds `udp:ADDRESS:PORT` or `unix:PATH`.
    pub(crate) fn bind(at: &str) -> anyhow::Result<Self> {
        let socket = match parse_address(at)? {
            Address::Udp(address) => Self::Udp(UdpSocket::bind(address)?),
            Address::Unix(path) => {
                // A dead process has left the file.
                if UnixDatagram::unbound()?.connect(&path).is_err() && path.exists() {
                    std::fs::remove_file(&path)?;
                }
                Self::Unix(UnixDatagram::bind(&path)?, path)
            }
        };
        match &socket {
            Self::Udp(socket) => socket.set_nonblocking(true)?,
            Self::Unix(socket, _) => socket.set_nonblocking(true)?,
        }
        // Beyond net.core.rmem_max and wmem_max only with CAP_NET_ADMIN.
        let fd = socket.as_fd();
        setsockopt(&fd, sockopt::RcvBufForce, &ROOM)
            .or_else(|_| setsockopt(&fd, sockopt::RcvBuf, &ROOM))?;
        setsockopt(&fd, sockopt::SndBufForce, &ROOM)
            .or_else(|_| setsockopt(&fd, sockopt::SndBuf, &ROOM))?;
        Ok(socket)
    }

    /// `None` if there is no datagram at present.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Option<(usize, Address)> {
        loop {
            let received = match self {
                Self::Udp(socket) => {
                    socket.recv_from(buffer).map(|(len, from)| (len, Some(Address::Udp(from))))
                }
                Self::Unix(socket, _) => socket.recv_from(buffer).map(|(len, from)| {
                    (len, from.as_pathname().map(|path| Address::Unix(path.to_owned())))
                }),
            };
            match received {
                Ok((len, Some(from))) => return Some((len, from)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // A sender without address cannot be answered; or the peer of an earlier datagram
                // is gone.
                Ok((_, None)) | Err(_) => {}
            }
        }
    }

    /// A datagram without room is lost.
    pub(crate) fn send(&self, bytes: &[u8], to: &Address) {
        let _ = match (self, to) {
            (Self::Udp(socket), Address::Udp(to)) => socket.send_to(bytes, to),
            (Self::Unix(socket, _), Address::Unix(to)) => socket.send_to(bytes, to),
            _ => Ok(0),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(socket) => socket.as_fd(),
            Self::Unix(socket, _) => socket.as_fd(),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Parses `udp:ADDRESS:PORT` or `unix:PATH`.
pub(crate) fn parse_address(text: &str) -> anyhow::Result<Address> {
    match text.split_once(':') {
        Some(("udp", address)) => {
            let address = address.parse();
            Ok(Address::Udp(address.context("write it like udp:192.0.2.1:7471")?))
        }
        Some(("unix", path)) => Ok(Address::Unix(Path::new(path).to_owned())),
        _ => anyhow::bail!("{text}: write udp:ADDRESS:PORT or unix:PATH"),
    }
}

const HELLO_KIND: u8 = 1;
const PACKET_KIND: u8 = 2;
const CAPABILITIES_KIND: u8 = 3;
const CONFIG_KIND: u8 = 4;

impl<'a> Message<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        if kind == HELLO_KIND {
            return std::str::from_utf8(rest).ok().map(Self::Hello);
        }
        let (&port, rest) = rest.split_first()?;
        let port = PortNum::new(port)?;
        match kind {
            PACKET_KIND => Some(Self::Packet { port, packet: rest }),
            CAPABILITIES_KIND => {
                Some(Self::Capabilities { port, mask: u32::read_from_bytes(rest).ok()? })
            }
            CONFIG_KIND => {
                let wire = ConfigWire::read_from_bytes(rest).ok()?;
                let config = Box::new(wire.config()?);
                Some(Self::Config { port, config, reregister: wire.reregister != 0 })
            }
            _ => None,
        }
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        match self {
            Self::Hello(name) => [&[HELLO_KIND], name.as_bytes()].concat(),
            Self::Packet { port, packet } => [&[PACKET_KIND, port.get()], *packet].concat(),
            Self::Capabilities { port, mask } => {
                [&[CAPABILITIES_KIND, port.get()], mask.as_bytes()].concat()
            }
            Self::Config { port, config, reregister } => {
                let wire = ConfigWire::new(config, *reregister);
                [&[CONFIG_KIND, port.get()], wire.as_bytes()].concat()
            }
        }
    }
}

/// A [`PortConfig`] in a datagram.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct ConfigWire {
    gid_prefix: u64,
    guids: [u64; 32],
    capability_mask: u32,
    lid: u16,
    sm_lid: u16,
    pkeys: [u16; 32],
    state: u8,
    physical_state: u8,
    lmc: u8,
    sm_sl: u8,
    mtu: u8,
    subnet_timeout: u8,
    width: u8,
    speed: u8,
    reregister: u8,
    pkey_count: u8,
    guid_count: u8,
    padding: [u8; 5],
}

impl ConfigWire {
    fn new(config: &PortConfig, reregister: bool) -> Self {
        let mut this = Self {
            gid_prefix: config.gid_prefix.get(),
            guids: [0; 32],
            capability_mask: config.capability_mask,
            lid: config.lid.map_or(0, Lid::get),
            sm_lid: config.sm_lid.map_or(0, Lid::get),
            pkeys: [0; 32],
            state: config.state.get(),
            physical_state: config.physical_state.get(),
            lmc: config.lmc,
            sm_sl: config.sm_sl.get(),
            mtu: config.mtu,
            subnet_timeout: config.subnet_timeout,
            width: config.width,
            speed: config.speed,
            reregister: reregister.into(),
            // Both tables have at most 32 entries.
            pkey_count: u8::try_from(config.pkeys.len()).unwrap_or(32),
            guid_count: u8::try_from(config.guids.len()).unwrap_or(32),
            padding: [0; 5],
        };
        let pkeys = this.pkeys.iter_mut().zip(&config.pkeys);
        pkeys.for_each(|(to, from)| *to = from.map_or(0, PKey::get));
        this.guids.iter_mut().zip(&config.guids).for_each(|(to, from)| *to = from.get());
        this
    }

    fn config(&self) -> Option<PortConfig> {
        let pkeys = self.pkeys.get(..usize::from(self.pkey_count))?;
        let guids = self.guids.get(..usize::from(self.guid_count))?;
        Some(PortConfig {
            state: PortState::new(self.state)?,
            physical_state: PhysicalState::new(self.physical_state)?,
            gid_prefix: SubnetPrefix::new(self.gid_prefix),
            lid: Lid::new(self.lid),
            lmc: self.lmc,
            sm_lid: Lid::new(self.sm_lid),
            sm_sl: Sl::new(self.sm_sl)?,
            mtu: self.mtu,
            subnet_timeout: self.subnet_timeout,
            width: self.width,
            speed: self.speed,
            capability_mask: self.capability_mask,
            pkeys: pkeys.iter().map(|&pkey| PKey::new(pkey)).collect(),
            guids: guids.iter().map(|&guid| Guid::new(guid)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use nix::unistd::mkdtemp;

    use super::*;

    /// The hosts are sockets in a temporary directory.
    #[test]
    fn remote_host_joins_exchanges_packets_and_leaves_when_silent() {
        let directory = mkdtemp(&std::env::temp_dir().join("ibfab-XXXXXX")).unwrap();
        // The name of a socket has few bytes, and that of the directory may have many.
        let open = File::open(&directory).unwrap();
        let path = |name: &str| format!("unix:/proc/self/fd/{}/{name}", open.as_raw_fd());
        let topology =
            "Switch 2 \"S\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nCa 1 \"H1\"\n\nCa 1 \"H2\"\n";
        let mut fabric = Fabric::new(topology.parse().unwrap(), 0);
        let mut hosts = Hosts::listen(&path("fabric")).unwrap();
        let node = fabric.topology().find("H1").unwrap();
        let port = fabric.topology().find_port("H1").unwrap();
        let now = Instant::from_nanos(1);
        fabric.handle_input(now, Input::Detach(node));

        let host = Socket::bind(&path("host")).unwrap();
        let at = parse_address(&path("fabric")).unwrap();
        let config = || fabric_port(&host);
        // A node that may have no remote host is ignored, and so is a host without a hello.
        host.send(&Message::Hello("H2").emit(), &at);
        host.send(&Message::Capabilities { port: port.number, mask: 2 }.emit(), &at);
        hosts.read(&mut fabric, now, &[node]);
        assert!(hosts.present.is_empty());

        host.send(&Message::Hello("H1").emit(), &at);
        hosts.read(&mut fabric, now, &[node]);
        while let Some(ibarr_fabric::Event::Port { port, config, reregister }) = fabric.poll_event()
        {
            hosts.configure(port, &config, reregister);
        }
        assert_eq!(config(), Some(PortState::Initialize));
        host.send(&Message::Capabilities { port: port.number, mask: 2 }.emit(), &at);
        host.send(&Message::Packet { port: port.number, packet: b"none" }.emit(), &at);
        hosts.read(&mut fabric, now, &[node]);
        assert_ne!(fabric.port_config(port).unwrap().capability_mask & 2, 0);
        assert_eq!(fabric.drops().total(), 1);
        // Each hello is answered with the state of the port, which the host may have missed.
        host.send(&Message::Hello("H1").emit(), &at);
        hosts.read(&mut fabric, now, &[node]);
        assert_eq!(config(), Some(PortState::Initialize));

        let gone = hosts.poll_timeout().unwrap();
        hosts.forget_silent(&mut fabric, gone);
        assert_eq!(fabric.port_config(port).unwrap().state, PortState::Down);
        drop((hosts, host));
        std::fs::remove_dir(&directory).unwrap();
    }

    /// The last state of the port that the host received.
    fn fabric_port(host: &Socket) -> Option<PortState> {
        let mut buffer = [0; MAX_DATAGRAM + 1];
        let mut state = None;
        while let Some((len, _)) = host.receive(&mut buffer) {
            if let Some(Message::Config { config, .. }) = Message::parse(&buffer[..len]) {
                state = Some(config.state);
            }
        }
        state
    }

    #[test]
    fn messages_survive_sending_and_parsing() {
        let port = PortNum::new(2).unwrap();
        let config = PortConfig {
            state: PortState::Active,
            physical_state: PhysicalState::LinkUp,
            gid_prefix: SubnetPrefix::DEFAULT,
            lid: Lid::new(7),
            lmc: 1,
            sm_lid: Lid::new(1),
            sm_sl: Sl::new(3).unwrap(),
            mtu: 5,
            subnet_timeout: 18,
            width: 2,
            speed: 4,
            capability_mask: 0x1234_5678,
            pkeys: vec![Some(PKey::DEFAULT), None, PKey::new(0x8001)],
            guids: vec![Guid::new(1), Guid::new(2)],
        };
        let messages = [
            Message::Hello("H1"),
            Message::Packet { port, packet: b"packet" },
            Message::Capabilities { port, mask: 2 },
            Message::Config { port, config: Box::new(config), reregister: true },
        ];
        for message in messages {
            let bytes = message.emit();
            assert_eq!(Message::parse(&bytes), Some(message));
        }
    }

    #[test]
    fn malformed_message_is_rejected() {
        let mut config = vec![CONFIG_KIND, 1];
        config.extend([0xff; size_of::<ConfigWire>()]);
        for bytes in [&[][..], &[9], &[2], &[2, 0], &[3, 1, 0], &[4, 1], &config] {
            assert_eq!(Message::parse(bytes), None, "{bytes:?}");
        }
    }
}
