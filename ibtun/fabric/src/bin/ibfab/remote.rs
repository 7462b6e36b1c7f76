// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The socket at which hosts of other machines join.

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use anyhow::Context as _;
use ibarr_common::Instant;
use ibarr_fabric::remote::{Address, Hosts, MAX_DATAGRAM, Refusals};
use ibarr_fabric::topology::{NodeId, PortId};
use ibarr_fabric::{Fabric, Input, PortConfig};

use crate::socket::{Socket, read_key, refuse, seed};

/// The hosts of other machines.
#[derive(Debug)]
pub(crate) struct Remote {
    socket: Socket,
    hosts: Hosts,
    refusals: Refusals,
}

impl Remote {
    /// Listens for hosts at an address.
    pub(crate) fn listen(at: &Address, key: Option<&Path>) -> anyhow::Result<Self> {
        let key = key.map(read_key).transpose()?;
        let socket =
            Socket::bind(at, key.as_ref()).with_context(|| format!("cannot listen at {at}"))?;
        let hosts = Hosts::new(key, seed()?);
        Ok(Self { socket, hosts, refusals: Refusals::default() })
    }

    /// Lets these nodes have a host elsewhere. Their links are down until it joins.
    pub(crate) fn admit(&mut self, fabric: &mut Fabric, now: Instant, nodes: &[NodeId]) {
        for &node in nodes {
            self.hosts.admit(node);
            fabric.handle_input(now, Input::Detach(node));
        }
    }

    /// Whether the node may have a host elsewhere.
    pub(crate) fn may_have(&self, node: NodeId) -> bool {
        self.hosts.may_have(node)
    }

    /// When [`Remote::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.hosts.poll_timeout()
    }

    /// Handles all received datagrams.
    pub(crate) fn read(&mut self, fabric: &mut Fabric, now: Instant) {
        let mut buffer = [0; MAX_DATAGRAM + 1];
        while let Some((datagram, from)) = self.socket.receive(&mut buffer) {
            if let Err(refusal) = self.hosts.handle_datagram(fabric, now, &from, datagram) {
                refuse(&mut self.refusals, refusal, &from);
            }
            self.transmit();
        }
    }

    /// Detaches hosts that have been silent for too long.
    pub(crate) fn handle_timeout(&mut self, fabric: &mut Fabric, now: Instant) {
        self.hosts.handle_timeout(fabric, now);
    }

    /// Tells a host the state of its port.
    pub(crate) fn configure(&mut self, port: PortId, config: &PortConfig, reregister: bool) {
        self.hosts.configure(port, config, reregister);
        self.transmit();
    }

    /// Sends a packet to a host.
    pub(crate) fn write(&mut self, port: PortId, packet: &[u8]) {
        self.hosts.write(port, packet);
        self.transmit();
    }

    /// The hosts that have joined, and the counts of refused datagrams, for `ibfab show`.
    pub(crate) fn show(&self, fabric: &Fabric) -> String {
        let mut text = String::new();
        let mut hosts = self.hosts.present().peekable();
        if hosts.peek().is_some() {
            text += "\nHosts that have joined:\n";
        }
        for (node, address) in hosts {
            let name = fabric.topology().node(node).map_or("?", |node| &node.name);
            let _ = writeln!(text, "{name:<20} {address}");
        }
        let mut refusals = self.refusals.iter().peekable();
        if refusals.peek().is_some() {
            text += "\nRefused datagrams:\n";
        }
        for (refusal, count) in refusals {
            let _ = writeln!(text, "{count:>10}  {refusal}");
        }
        text
    }

    fn transmit(&mut self) {
        while let Some((to, datagram)) = self.hosts.poll_transmit() {
            self.socket.send(&datagram, &to);
        }
    }
}

impl AsFd for Remote {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use ibarr_fabric::remote::{Event, Host};

    use super::*;

    /// The sockets are in a temporary directory.
    #[test]
    fn host_joins_over_a_socket_and_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        // The name of a socket has few bytes, and that of the directory may have many.
        let open = File::open(directory.path()).unwrap();
        let path = |name: &str| format!("unix:/proc/self/fd/{}/{name}", open.as_raw_fd());
        let (at, own): (Address, Address) =
            (path("fabric").parse().unwrap(), path("host").parse().unwrap());
        let topology = "Switch 1 \"S\"\n[1] \"H1\"[1]\n\nCa 1 \"H1\"\n";
        let mut fabric = Fabric::new(topology.parse().unwrap(), 0);
        let node = fabric.topology().find("H1").unwrap();
        let now = Instant::from_nanos(1);
        let mut remote = Remote::listen(&at, None).unwrap();
        remote.admit(&mut fabric, now, &[node]);
        assert_eq!(remote.show(&fabric), "");

        let socket = Socket::bind(&own, None).unwrap();
        let mut host = Host::new("H1".to_owned(), None, seed().unwrap(), now);
        socket.send(b"\x01H1", &at);
        host.handle_timeout(now);
        for _ in 0..2 {
            while let Some(datagram) = host.poll_transmit() {
                socket.send(&datagram, &at);
            }
            remote.read(&mut fabric, now);
            while let Some(ibarr_fabric::Event::Port { port, config, reregister }) =
                fabric.poll_event()
            {
                remote.configure(port, &config, reregister);
            }
            let mut buffer = [0; MAX_DATAGRAM + 1];
            while let Some((datagram, from)) = socket.receive(&mut buffer) {
                assert_eq!(from, at);
                host.handle_datagram(now, datagram).unwrap();
            }
        }
        assert_eq!(host.poll_event(), Some(Event::Joined));
        let shown = remote.show(&fabric);
        let shown: Vec<_> = shown.lines().collect();
        assert_eq!(shown[..2], ["", "Hosts that have joined:"]);
        assert_eq!(shown[2].split_whitespace().collect::<Vec<_>>(), ["H1", &own.to_string()]);
        assert_eq!(shown[3..5], ["", "Refused datagrams:"]);
        assert!(shown[5].starts_with("         1  version 1 of joining"), "{shown:?}");
    }
}
