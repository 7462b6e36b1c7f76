// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! 32 hosts of one fabric join and leave while they send packets to each other, over a network that loses, doubles and
//! mixes up datagrams.

mod support;

use std::collections::BTreeSet;

use ibarr_common::Instant;
use ibarr_common::ib::{Lid, PortNum};
use ibarr_fabric::remote::{ALIVE, Address, GONE, Host, Hosts, Key, Message, Refusal};
use ibarr_fabric::topology::{PortId, fat_tree};
use ibarr_fabric::wire::packet::Packet;
use ibarr_fabric::wire::smp::PortState;
use ibarr_fabric::{Event, Input};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};

use self::support::{Subnet, gsi_packet};

const HOSTS: usize = 32;

/// The kind of a packet, in a datagram's fifth byte.
const PACKET: u8 = 5;

/// What became of packets in datagrams of one direction.
#[derive(Debug, Default)]
struct Fates {
    sent: u64,
    doubled: u64,
    lost: u64,
    /// Their host is gone, or an end refused them.
    refused: u64,
    arrived: u64,
}

impl Fates {
    fn check(&self) {
        assert_eq!(self.sent + self.doubled, self.lost + self.refused + self.arrived, "{self:?}");
    }
}

/// One of the nodes that may have a host elsewhere.
struct Node {
    port: PortId,
    address: Address,
    /// While it is switched on.
    host: Option<Host>,
    /// Since when it is off.
    left: Instant,
    /// LID and state, as the host was told.
    told: Option<(Option<Lid>, PortState)>,
    received: BTreeSet<u64>,
}

struct Cluster {
    subnet: Subnet,
    hosts: Hosts,
    nodes: Vec<Node>,
    rng: ChaCha8Rng,
    /// Datagrams of this moment: the node, whether it is the sender, and the bytes.
    network: Vec<(usize, bool, Vec<u8>)>,
    /// Of a hundred datagrams, how many are lost, and how many are doubled.
    trouble: usize,
    up: Fates,
    down: Fates,
    number: u64,
}

impl Cluster {
    /// H1 is the manager's, and has a device beside the fabric. H34 to H36 have no host.
    fn new(seed: u64) -> Self {
        let text = fat_tree(36, 12).unwrap().to_string();
        let mut subnet = Subnet::new(&text, "H1");
        let mut hosts = Hosts::new(Some(key()), [7; 32]);
        let mut nodes = Vec::new();
        for index in 0..HOSTS {
            let port = subnet.port(&format!("H{}", index + 2));
            hosts.admit(port.node);
            subnet.fabric.handle_input(subnet.now, Input::Detach(port.node));
            let address = format!("udp:127.0.0.1:{}", index + 1).parse().unwrap();
            let (left, received) = (subnet.now, BTreeSet::new());
            nodes.push(Node { port, address, host: None, left, told: None, received });
        }
        subnet.drain();
        subnet.received.clear();
        subnet.events.clear();
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let (up, down) = (Fates::default(), Fates::default());
        Self { subnet, hosts, nodes, rng, network: Vec::new(), trouble: 2, up, down, number: 0 }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.rng.next_u32() as usize % limit
    }

    fn switch_on(&mut self, index: usize) {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        let name = format!("H{}", index + 2);
        self.nodes[index].host = Some(Host::new(name, Some(key()), seed, self.subnet.now));
        self.nodes[index].told = None;
    }

    fn switch_off(&mut self, index: usize) {
        self.nodes[index].host = None;
        self.nodes[index].left = self.subnet.now;
    }

    fn state(&self, index: usize) -> PortState {
        self.subnet.fabric.port_config(self.nodes[index].port).unwrap().state
    }

    /// Time passes, and all that is due is done.
    fn step(&mut self) {
        self.subnet.now += ALIVE / 4;
        let now = self.subnet.now;
        self.hosts.handle_timeout(&mut self.subnet.fabric, now);
        self.subnet.fabric.handle_timeout(now);
        for node in &mut self.nodes {
            if let Some(host) = &mut node.host {
                host.handle_timeout(now);
            }
        }
        self.exchange();
    }

    /// A subnet manager's sweep.
    fn sweep(&mut self) {
        self.subnet.bring_up();
        self.exchange();
    }

    /// Delivers datagrams until neither end sends one.
    fn exchange(&mut self) {
        loop {
            self.collect();
            if self.network.is_empty() {
                return;
            }
            let mut datagrams = std::mem::take(&mut self.network);
            while !datagrams.is_empty() {
                // Out of order, among the next eight.
                let next = self.below(datagrams.len().min(8));
                let (index, is_up, datagram) = datagrams.remove(next);
                let is_packet = datagram[4] == PACKET;
                let trouble = self.below(100);
                let copies = match trouble {
                    _ if trouble < self.trouble => 0,
                    _ if trouble < 2 * self.trouble => 2,
                    _ => 1,
                };
                let fates = if is_up { &mut self.up } else { &mut self.down };
                fates.sent += u64::from(is_packet);
                fates.lost += u64::from(is_packet && copies == 0);
                fates.doubled += u64::from(is_packet && copies == 2);
                for _ in 0..copies {
                    let arrived = self.deliver(index, is_up, &datagram);
                    let fates = if is_up { &mut self.up } else { &mut self.down };
                    fates.arrived += u64::from(is_packet && arrived);
                    fates.refused += u64::from(is_packet && !arrived);
                }
            }
        }
    }

    fn collect(&mut self) {
        let Self { subnet, hosts, nodes, network, .. } = self;
        for (index, node) in nodes.iter_mut().enumerate() {
            while let Some(datagram) = node.host.as_mut().and_then(Host::poll_transmit) {
                network.push((index, true, datagram));
            }
        }
        subnet.drain();
        for Event::Port { port, config, reregister } in subnet.events.drain(..) {
            hosts.configure(port, &config, reregister);
        }
        for (port, packet) in subnet.received.drain(..) {
            hosts.write(port, &packet);
        }
        while let Some((to, datagram)) = hosts.poll_transmit() {
            let index = nodes.iter().position(|node| node.address == to).unwrap();
            network.push((index, false, datagram));
        }
    }

    /// `false` if it is refused.
    fn deliver(&mut self, index: usize, is_up: bool, datagram: &[u8]) -> bool {
        let Self { subnet, hosts, nodes, .. } = self;
        let (now, node) = (subnet.now, &mut nodes[index]);
        if is_up {
            let said = hosts.handle_datagram(&mut subnet.fabric, now, &node.address, datagram);
            return said.map_err(is_expected).is_ok();
        }
        let Some(host) = &mut node.host else { return false };
        match host.handle_datagram(now, datagram).map_err(is_expected) {
            Ok(Some(Message::Packet { packet, .. })) => {
                let packet = Packet::parse(packet).unwrap();
                let (to, number) = packet.payload.split_at(8);
                assert_eq!(to, (index as u64).to_be_bytes(), "a packet of another host");
                let number = u64::from_be_bytes(number.try_into().unwrap());
                assert!(node.received.insert(number), "received twice");
            }
            Ok(Some(Message::Config { config, .. })) => {
                node.told = Some((config.lid, config.state));
            }
            Ok(_) => {}
            Err(()) => return false,
        }
        true
    }

    /// A host sends a packet to another, if it believes that it can. The number of the packet.
    fn send(&mut self, from: usize, to: usize) -> Option<u64> {
        let config = self.subnet.fabric.port_config(self.nodes[to].port)?;
        // The LID of a host that has left may be another's by now.
        let there =
            config.lid.filter(|_| config.state == PortState::Active).or(Lid::new(0xbfff))?;
        let (Some(slid), PortState::Active) = self.nodes[from].told? else { return None };
        let host = self.nodes[from].host.as_mut()?;
        self.number += 1;
        let payload = [(to as u64).to_be_bytes(), self.number.to_be_bytes()].concat();
        host.write(PortNum::new(1)?, &gsi_packet(slid, there, None, &payload));
        Some(self.number)
    }
}

fn key() -> Key {
    Key::new(b"the key of 32 hosts").unwrap()
}

/// The network changes no byte, and all have the key.
fn is_expected(refusal: Refusal) {
    assert!(matches!(refusal, Refusal::Session | Refusal::Replayed), "{refusal:?}");
}

#[test]
fn each_packet_between_32_hosts_that_join_and_leave_is_accounted_for() {
    let mut cluster = Cluster::new(1);
    let (mut leavings, mut downs) = (0, 0);
    for step in 0..160 {
        let index = cluster.below(HOSTS);
        let leaves = cluster.below(3) == 0;
        if cluster.nodes[index].host.is_none() {
            cluster.switch_on(index);
        } else if leaves {
            leavings += 1;
            cluster.switch_off(index);
        }
        cluster.step();
        if step % 8 == 0 {
            cluster.sweep();
        }
        for from in 0..HOSTS {
            let to = cluster.below(HOSTS);
            cluster.send(from, to);
        }
        cluster.exchange();
        for index in 0..HOSTS {
            let node = &cluster.nodes[index];
            if node.host.is_none() && cluster.subnet.now >= node.left + GONE + ALIVE / 4 {
                downs += 1;
                assert_eq!(cluster.state(index), PortState::Down, "H{}", index + 2);
            }
        }
    }
    cluster.up.check();
    cluster.down.check();
    let dropped = cluster.subnet.fabric.drops().total();
    assert_eq!(cluster.up.arrived, cluster.down.sent + dropped);
    let received: usize = cluster.nodes.iter().map(|node| node.received.len()).sum();
    assert_eq!(received as u64, cluster.down.arrived);
    assert!(leavings > 20 && downs > 400, "{leavings}, {downs}");
    assert!(received > 1000, "{received} of {:?}", cluster.up);

    // The network is whole, and all hosts come back: each reaches each.
    cluster.trouble = 0;
    for index in 0..HOSTS {
        cluster.switch_on(index);
    }
    cluster.step();
    cluster.sweep();
    for from in 0..HOSTS {
        for to in 0..HOSTS {
            let number = cluster.send(from, to).expect("an active port");
            cluster.exchange();
            assert!(cluster.nodes[to].received.contains(&number), "{from} to {to}");
        }
    }
    assert_eq!(cluster.hosts.present().count(), HOSTS);
}
