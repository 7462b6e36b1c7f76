// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Nodes on one virtual clock, connected by a network that loses, repeats, delays and reorders.
//!
//! The seed decides everything: the same calls give the same [`Sim::trace`]. Time jumps from event
//! to event. The number of steps is bounded, so that a livelock is a failure and not a hang.
//!
//! The kernel is modelled as far as it affects the cores: routes, random source ports, interfaces,
//! and IPoIB's path resolution, which queues three datagrams for each next hop and drops the
//! others.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::PORT;
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::client::{
    Client, Config, Event, Input, Outcome, Output, Request, RequestId, Route, SocketEvent, SocketId,
};
use ibarr_proto::ip2gid::server::{Local, Received, Server};
use ibarr_proto::ip2gid::{Prefixes, Question};
use ibarr_proto::request::{Caller, Freshness, UserRequest};
use ibarr_proto::retry::below;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

/// The network and its nodes.
pub(crate) struct Sim {
    pub(crate) now: Instant,
    pub(crate) faults: Faults,
    pub(crate) nodes: Vec<Node>,
    /// Each datagram sent and each answer, with its time.
    pub(crate) trace: Vec<String>,
    rng: ChaCha12Rng,
    /// Queries that wait for the resource that all peers share, and when it has handled one of
    /// them.
    unserved: Vec<Packet>,
    served_at: Option<Instant>,
    /// Datagrams in transit, by arrival and then by the order of sending.
    wire: BTreeMap<(Instant, u64), Packet>,
    sent: u64,
}

/// The faults of the network.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    /// Percentage of lost datagrams.
    pub(crate) lost: u64,
    /// Percentage of repeated datagrams.
    pub(crate) repeated: u64,
    /// Delay of one direction; a wide range reorders.
    pub(crate) delay: Range<Duration>,
    /// Time of each query on a resource that all peers share, one at a time and in any order: a
    /// processor, or the subnet administrator that resolves the path.
    pub(crate) service: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        let delay = Duration::from_micros(100)..Duration::from_micros(101);
        Self { lost: 0, repeated: 0, delay, service: Duration::ZERO }
    }
}

/// A machine, with one interface of index 1.
pub(crate) struct Node {
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) view: View,
    /// A dead machine neither receives nor sends.
    pub(crate) alive: bool,
    /// The next hop to networks that are not on the link; `None` if there is none.
    pub(crate) gateway: Option<IpAddr>,
    /// Replies from this address instead of the target, as the C original may.
    pub(crate) answers_from: Option<IpAddr>,
    /// From the first datagram to a next hop until the path to it exists.
    pub(crate) path_delay: Duration,
    /// The result of each request, with its time.
    pub(crate) answers: BTreeMap<RequestId, (Instant, Outcome)>,
    /// Datagrams that IPoIB dropped because the path did not exist yet.
    pub(crate) dropped_without_path: usize,
    ports: BTreeMap<SocketId, u16>,
    paths: BTreeMap<IpAddr, Path>,
    requests: u64,
}

/// The addresses of a node and their GIDs.
#[derive(Default)]
pub(crate) struct View(pub(crate) HashMap<IpAddr, Option<Gid>>);

impl Local for View {
    fn gid_of(&self, address: IpAddr, _ingress: IfIndex) -> Option<Gid> {
        self.0.get(&address).copied().flatten()
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.0.contains_key(&address)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) payload: Vec<u8>,
}

enum Path {
    Resolving { until: Instant, parked: Vec<Packet> },
    Open,
}

pub(crate) const INTERFACE: fn() -> IfIndex = || IfIndex::new(1).unwrap();

impl Sim {
    pub(crate) fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            now: Instant::from_nanos(1_000_000_000),
            faults: Faults::default(),
            nodes: Vec::new(),
            trace: Vec::new(),
            rng: ChaCha12Rng::seed_from_u64(seed),
            unserved: Vec::new(),
            served_at: None,
            wire: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Adds a node that has `addresses`, all with `gid`, and reaches addresses with another first
    /// half through `gateway`.
    pub(crate) fn add_node(
        &mut self,
        addresses: &[IpAddr],
        gid: Option<Gid>,
        config: Config,
    ) -> usize {
        let seed = self.rng.next_u64();
        self.nodes.push(Node {
            client: Client::new(config, ChaCha12Rng::seed_from_u64(seed)),
            server: Server::new(Prefixes::EVERYONE),
            view: View(addresses.iter().map(|&address| (address, gid)).collect()),
            alive: true,
            gateway: None,
            answers_from: None,
            path_delay: Duration::ZERO,
            answers: BTreeMap::new(),
            dropped_without_path: 0,
            ports: BTreeMap::new(),
            paths: BTreeMap::new(),
            requests: 0,
        });
        self.nodes.len() - 1
    }

    /// A caller on `node` asks, and waits for 3 s.
    pub(crate) fn resolve(&mut self, node: usize, target: IpAddr) -> RequestId {
        self.resolve_for(node, target, Duration::from_secs(3))
    }

    /// A caller on `node` asks, and waits for `patience`.
    pub(crate) fn resolve_for(
        &mut self,
        node: usize,
        target: IpAddr,
        patience: Duration,
    ) -> RequestId {
        let question = Question::new(target, None).unwrap();
        let id = RequestId::User(UserRequest::Control(self.nodes[node].requests));
        self.nodes[node].requests += 1;
        let (asked_at, deadline) = (self.now, self.now + patience);
        let (caller, freshness) = (Caller::Kernel, Freshness::Any);
        let request = Request { id, caller, question, asked_at, deadline, freshness };
        self.input(node, Input::Resolve(request));
        id
    }

    /// Passes an input to a client, and carries out its outputs.
    pub(crate) fn input(&mut self, node: usize, input: Input<'_>) {
        let now = self.now;
        self.nodes[node].client.handle_input(now, input);
        self.drain(node);
    }

    /// Sends a datagram that arrives `after`.
    pub(crate) fn inject(&mut self, after: Duration, packet: Packet) {
        self.sent += 1;
        self.wire.insert((self.now + after, self.sent), packet);
    }

    /// The ports of a node's open sockets.
    pub(crate) fn ports(&self, node: usize) -> Vec<u16> {
        self.nodes[node].ports.values().copied().collect()
    }

    /// Advances by `duration`.
    ///
    /// # Panics
    /// After a million steps.
    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..1_000_000 {
            match self.next_event() {
                Some(at) if at <= end => self.step(at),
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!("a million steps, and still busy at {}", self.now);
    }

    /// The time of the next event.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let arrival = self.wire.keys().next().map(|&(at, _)| at);
        let timers = self.nodes.iter().filter_map(Node::next_timeout);
        arrival.into_iter().chain(self.served_at).chain(timers).min()
    }

    fn step(&mut self, at: Instant) {
        self.now = self.now.max(at);
        if self.served_at.is_some_and(|at| at <= self.now) {
            let count = u64::try_from(self.unserved.len()).unwrap();
            let which = usize::try_from(below(count, &mut self.rng)).unwrap();
            let packet = self.unserved.swap_remove(which);
            let next = self.now + self.faults.service;
            self.served_at = (!self.unserved.is_empty()).then_some(next);
            self.inject(self.faults.delay.start, packet);
        }
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let packet = entry.remove();
            self.deliver(&packet);
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].next_timeout().is_some_and(|at| at <= self.now) {
                self.open_paths(node);
                let now = self.now;
                self.nodes[node].client.handle_timeout(now);
                self.drain(node);
            }
        }
    }

    fn drain(&mut self, index: usize) {
        let now = self.now;
        loop {
            let node = &mut self.nodes[index];
            if let Some(Event::Answered { id, outcome }) = node.client.poll_event() {
                self.trace.push(format!("{now} node {index}: request {id:?}: {outcome:?}"));
                let twice = node.answers.insert(id, (now, outcome));
                assert_eq!(twice, None, "request {id:?} answered twice");
                continue;
            }
            match node.client.poll_transmit() {
                Some(Output::Socket(SocketEvent::Open(socket))) => {
                    let port = random_port(&mut self.rng);
                    node.ports.insert(socket, port);
                    node.client.handle_input(now, Input::SocketOpened { socket });
                }
                Some(Output::Socket(SocketEvent::Close(socket))) => {
                    node.ports.remove(&socket).expect("only open sockets are closed");
                }
                Some(Output::Route(candidate)) => {
                    let route = node.route(candidate.question.target());
                    node.client.handle_input(now, Input::Route { candidate, route });
                }
                Some(Output::Query(transmit)) => {
                    let port = node.ports[&transmit.socket];
                    let source = node.source(transmit.to.ip());
                    let payload = transmit.payload.as_ref().to_vec();
                    let from = SocketAddr::new(source, port);
                    self.send(index, Packet { from, to: transmit.to, payload });
                }
                Some(Output::Neighbour(..)) => {}
                None => return,
            }
        }
    }

    /// Sends on the path to the next hop.
    fn send(&mut self, index: usize, packet: Packet) {
        let node = &mut self.nodes[index];
        let Some(route) = node.route(packet.to.ip()) else { return };
        let until = self.now + node.path_delay;
        let path =
            node.paths.entry(route.next_hop).or_insert(Path::Resolving { until, parked: vec![] });
        match path {
            Path::Open => self.transmit(&packet),
            Path::Resolving { parked, .. } if parked.len() < 3 => parked.push(packet),
            Path::Resolving { .. } => node.dropped_without_path += 1,
        }
        self.open_paths(index);
    }

    fn open_paths(&mut self, index: usize) {
        let now = self.now;
        let mut released = Vec::new();
        for path in self.nodes[index].paths.values_mut() {
            if matches!(path, Path::Resolving { until, .. } if *until <= now)
                && let Path::Resolving { parked, .. } = std::mem::replace(path, Path::Open)
            {
                released.extend(parked);
            }
        }
        for packet in released {
            self.transmit(&packet);
        }
    }

    /// Sends to the network, which may lose, repeat and delay the datagram.
    fn transmit(&mut self, packet: &Packet) {
        let Packet { from, to, payload } = packet;
        self.trace.push(format!("{} {from} to {to}: {payload:02x?}", self.now));
        let Faults { lost, repeated, delay, service } = self.faults.clone();
        let copies = 1 + usize::from(below(100, &mut self.rng) < repeated);
        for _ in 0..copies {
            if below(100, &mut self.rng) < lost {
                continue;
            }
            let width = u64::try_from(delay.end.saturating_sub(delay.start).as_nanos()).unwrap();
            let after = delay.start + Duration::from_nanos(below(width, &mut self.rng));
            if to.port() == PORT && !service.is_zero() {
                self.unserved.push(packet.clone());
                self.served_at.get_or_insert(self.now + service);
                continue;
            }
            self.inject(after, packet.clone());
        }
    }

    fn deliver(&mut self, packet: &Packet) {
        let to = packet.to.ip();
        let owner = self.nodes.iter().position(|node| node.alive && node.view.is_ours(to));
        let Some(index) = owner else { return };
        let (now, ingress) = (self.now, INTERFACE());
        let node = &mut self.nodes[index];
        if packet.to.port() == PORT {
            let received = Received {
                from: packet.from,
                to,
                ingress,
                is_local: false,
                payload: &packet.payload,
            };
            if let Ok(reply) = node.server.answer(&node.view, &received) {
                node.server.handle_sent(&reply, 0);
                let source = node.answers_from.unwrap_or(reply.from);
                let payload = reply.payload.as_ref().to_vec();
                let from = SocketAddr::new(source, PORT);
                self.send(index, Packet { from, to: reply.to, payload });
            }
            return;
        }
        let socket = node.ports.iter().find(|&(_, &port)| port == packet.to.port());
        if let Some((&socket, _)) = socket {
            let payload = &packet.payload;
            let input = Input::Datagram { socket, from: packet.from, ingress, payload };
            node.client.handle_input(now, input);
            self.drain(index);
        }
    }
}

impl Node {
    fn route(&self, target: IpAddr) -> Option<Route> {
        let on_link = self.view.0.keys().any(|&own| subnet(own) == subnet(target));
        let next_hop = if on_link { target } else { self.gateway? };
        Some(Route { ifindex: INTERFACE(), next_hop })
    }

    fn source(&self, target: IpAddr) -> IpAddr {
        let mut own: Vec<IpAddr> = self.view.0.keys().copied().collect();
        own.retain(|own| own.is_ipv4() == target.is_ipv4());
        own.sort_unstable();
        *own.first().expect("a node has an address of each family that it asks in")
    }

    fn next_timeout(&self) -> Option<Instant> {
        let paths = self.paths.values().filter_map(|path| match path {
            Path::Resolving { until, .. } => Some(*until),
            Path::Open => None,
        });
        paths.chain(self.client.poll_timeout()).min()
    }
}

/// The first half of an address.
fn subnet(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits() >> 16),
        IpAddr::V6(address) => address.to_bits() >> 64,
    }
}

fn random_port(rng: &mut impl Rng) -> u16 {
    32_768 + u16::try_from(below(28_232, rng)).unwrap()
}
