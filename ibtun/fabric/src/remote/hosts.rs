// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The fabric's end: it knows the host of each node.

use std::collections::{BTreeMap, VecDeque};

use ibarr_common::Instant;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _};

use super::datagram::Datagram;
use super::message::Sender;
use super::session::{Numbers, Session};
use super::{Address, GONE, Key, Message, Refusal};
use crate::topology::{self, NodeId, PortId};
use crate::{Fabric, Input, PortConfig};

/// The hosts of a fabric.
///
/// After each other call, the caller must call [`Hosts::poll_transmit`] until it returns nothing.
#[derive(Debug)]
pub struct Hosts {
    key: Option<Key>,
    /// Which nodes may have a host elsewhere, with the fabric's number of the next session of each.
    challenges: BTreeMap<NodeId, u64>,
    rng: ChaCha20Rng,
    present: Vec<Present>,
    out: VecDeque<(Address, Vec<u8>)>,
}

#[derive(Debug)]
struct Present {
    node: NodeId,
    address: Address,
    session: Session,
    heard: Instant,
}

impl Hosts {
    /// `seed` must be secret, and another one in each run.
    pub fn new(key: Option<Key>, seed: [u8; 32]) -> Self {
        let (challenges, rng) = (BTreeMap::new(), ChaCha20Rng::from_seed(seed));
        Self { key, challenges, rng, present: Vec::new(), out: VecDeque::new() }
    }

    /// Lets a node have a host.
    pub fn admit(&mut self, node: NodeId) {
        self.challenges.insert(node, self.rng.next_u64());
    }

    /// Whether the node may have a host.
    pub fn may_have(&self, node: NodeId) -> bool {
        self.challenges.contains_key(&node)
    }

    /// The nodes whose hosts have joined, and where these are.
    pub fn present(&self) -> impl Iterator<Item = (NodeId, &Address)> {
        self.present.iter().map(|host| (host.node, &host.address))
    }

    /// Handles a datagram that was received.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn handle_datagram(
        &mut self,
        fabric: &mut Fabric,
        now: Instant,
        from: &Address,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let datagram = Datagram::parse(bytes, Sender::Host, self.key.as_ref())?;
        match datagram.message {
            Message::Hello(name) => self.hello(fabric, from, name, datagram.numbers),
            Message::Join(name) => self.join(fabric, now, from, name, &datagram),
            message => {
                self.member_says(fabric, now, from, (datagram.numbers, datagram.count), &message)
            }
        }
    }

    /// When [`Hosts::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.present.iter().map(|host| host.heard + GONE).min()
    }

    /// Detaches hosts that have been silent for too long.
    pub fn handle_timeout(&mut self, fabric: &mut Fabric, now: Instant) {
        self.present.retain(|host| {
            let is_here = now < host.heard + GONE;
            if !is_here {
                fabric.handle_input(now, Input::Detach(host.node));
            }
            is_here
        });
    }

    /// Tells a host the state of its port. A lost message is repeated when the host says that it is there.
    pub fn configure(&mut self, port: PortId, config: &PortConfig, reregister: bool) {
        let config = Box::new(config.clone());
        self.send(port.node, Message::Config { port: port.number, config, reregister });
    }

    /// Passes a packet to a host.
    pub fn write(&mut self, port: PortId, packet: &[u8]) {
        self.send(port.node, Message::Packet { port: port.number, packet });
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<(Address, Vec<u8>)> {
        self.out.pop_front()
    }

    /// A hello may be of the past, so it changes nothing here.
    fn hello(
        &mut self,
        fabric: &Fabric,
        from: &Address,
        name: &str,
        Numbers { host, .. }: Numbers,
    ) -> Result<(), Refusal> {
        let node = fabric.topology().find(name).ok_or(Refusal::Node)?;
        let challenge = *self.challenges.get(&node).ok_or(Refusal::Node)?;
        let is_member = |member: &Present| {
            member.node == node && member.address == *from && member.session.numbers.host == host
        };
        if self.present.iter().any(is_member) {
            // It has missed that its join arrived.
            self.configure_all(fabric, node);
            return Ok(());
        }
        let numbers = Numbers { host, fabric: challenge };
        let message = Message::Challenge;
        let datagram = Datagram { sender: Sender::Fabric, numbers, count: 0, message };
        self.out.push_back((from.clone(), datagram.emit(self.key.as_ref())));
        Ok(())
    }

    fn join(
        &mut self,
        fabric: &mut Fabric,
        now: Instant,
        from: &Address,
        name: &str,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        let node = fabric.topology().find(name).ok_or(Refusal::Node)?;
        let challenge = self.challenges.get_mut(&node).ok_or(Refusal::Node)?;
        let mut session = Session::new(datagram.numbers);
        if datagram.numbers.fabric != *challenge || !session.admit(datagram.count) {
            return Err(Refusal::Session);
        }
        *challenge = self.rng.next_u64();
        // The newest host wins: the one before may have died without a message.
        self.present.retain(|host| host.node != node);
        self.present.push(Present { node, address: from.clone(), session, heard: now });
        fabric.handle_input(now, Input::Attach(node));
        Ok(())
    }

    fn member_says(
        &mut self,
        fabric: &mut Fabric,
        now: Instant,
        from: &Address,
        (numbers, count): (Numbers, u64),
        message: &Message<'_>,
    ) -> Result<(), Refusal> {
        let is_member =
            |host: &&mut Present| host.address == *from && host.session.numbers == numbers;
        let host = self.present.iter_mut().find(is_member).ok_or(Refusal::Session)?;
        if !host.session.admit(count) {
            return Err(Refusal::Replayed);
        }
        host.heard = now;
        let node = host.node;
        match *message {
            Message::Packet { port: number, packet } => {
                fabric.handle_input(now, Input::Packet { port: PortId { node, number }, packet });
            }
            Message::Capabilities { port: number, mask } => {
                fabric
                    .handle_input(now, Input::Capabilities { port: PortId { node, number }, mask });
            }
            _ => self.configure_all(fabric, node),
        }
        Ok(())
    }

    fn configure_all(&mut self, fabric: &Fabric, node: NodeId) {
        let numbers = fabric.topology().node(node).map(topology::Node::port_numbers);
        for number in numbers.into_iter().flatten() {
            if let Some(config) = fabric.port_config(PortId { node, number }) {
                self.configure(PortId { node, number }, &config, false);
            }
        }
    }

    fn send(&mut self, node: NodeId, message: Message<'_>) {
        if let Some(host) = self.present.iter_mut().find(|host| host.node == node) {
            let count = host.session.next_count();
            let numbers = host.session.numbers;
            let datagram = Datagram { sender: Sender::Fabric, numbers, count, message };
            self.out.push_back((host.address.clone(), datagram.emit(self.key.as_ref())));
        }
    }
}
