// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The running fabric: moves packets from port to port.
//!
//! A packet in flight is an arrival at a port, at some time. The node of the port handles each
//! arrival (`switch`, `adapter`, `router`): it may cause arrivals at other ports, or deliver the
//! packet to a host. Without faults all happens at once, in the order of sending.

mod adapter;
mod agent;
mod link;
mod router;
mod switch;
mod trap;
mod walk;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::wire::packet::{self, Packet};
use crate::wire::smp::{DATA_LEN, NodeType, PhysicalState, PortState, Smp};
use ibarr_common::Instant;
use ibarr_common::ib::{Guid, Lid, PKey, PortNum, Qpn, Sl, SubnetPrefix};
use ibarr_common::wire::mad::{AttributeId, Method, Status};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};

use self::adapter::ManagerProxy;
use self::trap::Traps;
use crate::drops::{DropReason, Drops};
use crate::fault::{Fault, LinkFault};
use crate::node::{Counters, Host, Node};
use crate::topology::{NodeId, PortId, Topology};

/// Limit of packets in flight. Further packets are dropped.
pub const MAX_IN_FLIGHT: usize = 4096;

/// Limit of packets in the queue for the host of a port.
pub const MAX_QUEUED: usize = 1024;

/// Limit of links that a packet crosses: InfiniBand's own limit of a directed route.
const MAX_HOPS: u8 = 64;

/// A running fabric.
///
/// After each `handle_…` call, the caller must call the `poll_…` functions until they return
/// nothing. The same history gives the same bytes.
#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    nodes: Vec<Node>,
    /// By the port GUIDs of channel adapters and routers.
    by_guid: BTreeMap<Guid, PortId>,
    /// Packets that arrive at once, in the order of sending.
    due: VecDeque<Arrival>,
    /// Packets that a fault delays.
    in_flight: BTreeMap<(Instant, u64), Arrival>,
    /// Number of packets delayed: those due at the same time arrive in the order of sending.
    sent: u64,
    queue: VecDeque<(PortId, Vec<u8>)>,
    queued: BTreeMap<PortId, usize>,
    changed: BTreeMap<PortId, Change>,
    proxy: ManagerProxy,
    traps: Traps,
    now: Instant,
    faults: BTreeMap<PortId, LinkFault>,
    broken_nodes: BTreeSet<NodeId>,
    cut_off: BTreeSet<PortId>,
    capture: Option<VecDeque<Crossing>>,
    drops: Drops,
    rng: ChaCha8Rng,
}

/// An action of a host, or a change of the fabric.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A host sends a packet through a port of its channel adapter.
    Packet {
        /// The port of the channel adapter.
        port: PortId,
        /// The bytes from LRH to payload.
        packet: &'a [u8],
    },
    /// The software behind a port has changed its PortInfo:CapabilityMask.
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    Capabilities {
        port: PortId,
        /// The whole mask; bits that software does not set are ignored.
        mask: u32,
    },
    /// A host joins: from now on it gets the packets that arrive at its channel adapter. Only
    /// channel adapters have hosts.
    Attach(NodeId),
    /// A host leaves, and the links of its channel adapter go down.
    Detach(NodeId),
    /// A fault begins or ends.
    Fault(Fault),
}

/// An event for a host.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Event {
    /// The state of a host's port has changed.
    Port {
        port: PortId,
        config: PortConfig,
        /// Clients have to register anew with the subnet administrator.
        reregister: bool,
    },
}

/// The state that a subnet manager has given a port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortConfig {
    /// Logical state: which packets pass.
    pub state: PortState,
    /// Physical state of the link.
    pub physical_state: PhysicalState,
    /// Upper half of the port's GIDs.
    pub gid_prefix: SubnetPrefix,
    /// LID of the port.
    pub lid: Option<Lid>,
    /// LMC: how many low bits of the LID the port ignores.
    pub lmc: u8,
    /// LID of the subnet manager.
    pub sm_lid: Option<Lid>,
    /// Service level of packets to the subnet manager.
    pub sm_sl: Sl,
    /// Code of the MTU, 1 to 5.
    pub mtu: u8,
    /// PortInfo:SubnetTimeOut: 4.096 µs × 2ⁿ for an answer.
    pub subnet_timeout: u8,
    /// PortInfo:LinkWidthActive.
    pub width: u8,
    /// The speed of the link, as in Linux's `enum ib_port_speed`. XDR is said to be NDR, the fastest
    /// that Linux knows before 6.7.
    pub speed: u8,
    /// PortInfo:CapabilityMask.
    pub capability_mask: u32,
    /// The P_Key table, up to its last entry.
    pub pkeys: Vec<Option<PKey>>,
    /// The GUID table, up to its last entry.
    pub guids: Vec<Guid>,
}

/// A packet that has crossed a link.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Crossing {
    pub at: Instant,
    /// The port at which it arrived.
    pub port: PortId,
    /// The bytes from LRH to payload.
    pub packet: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Arrival {
    port: PortId,
    packet: Vec<u8>,
    /// Number of links that it may still cross.
    hops: u8,
    /// Whether it came over the link; otherwise it is from the port's own node.
    crossed: bool,
}

/// What is left to do with the bytes of an arrival. So they are moved and not copied.
#[derive(Clone, Copy, Debug)]
enum Next {
    Nothing,
    /// Send them, unchanged, over the link of this port.
    Send(PortId),
    /// Hand them to the host of the port at which they arrived.
    Host,
}

#[derive(Clone, Copy, Debug, Default)]
struct Change {
    reregister: bool,
}

impl Fabric {
    /// A fabric with all nodes on, which no subnet manager has configured. `seed` determines the
    /// effects of faults.
    pub fn new(topology: Topology, seed: u64) -> Self {
        let nodes: Vec<_> =
            topology.nodes().map(|(id, node)| Node::new(&topology, id, node)).collect();
        let end_nodes = topology.nodes().filter(|(_, node)| node.kind != NodeType::Switch);
        let by_guid = end_nodes.flat_map(|(id, node)| {
            let guids = node
                .port_numbers()
                .filter_map(|number| Some((node.port_guid(number)?, PortId { node: id, number })));
            guids.collect::<Vec<_>>()
        });
        let mut this = Self {
            by_guid: by_guid.collect(),
            nodes,
            topology,
            due: VecDeque::new(),
            in_flight: BTreeMap::new(),
            sent: 0,
            queue: VecDeque::new(),
            queued: BTreeMap::new(),
            changed: BTreeMap::new(),
            proxy: ManagerProxy::default(),
            traps: Traps::default(),
            now: Instant::BOOT,
            faults: BTreeMap::new(),
            broken_nodes: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            capture: None,
            drops: Drops::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        this.update_all_links();
        this
    }

    /// The nodes and cables.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Handles an input, and all that is due.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        self.now = now;
        match input {
            Input::Packet { port, packet } => self.host_sends(now, port, packet),
            Input::Capabilities { port, mask } => {
                self.set_capabilities(port, mask);
                self.answer_for_manager(now, port);
            }
            Input::Attach(node) if self.can_have_host(node) => self.attach(node),
            Input::Detach(node) if self.can_have_host(node) => self.detach(node),
            Input::Attach(_) | Input::Detach(_) => {}
            Input::Fault(fault) => self.set_fault(fault),
        }
        self.handle_timeout(now);
    }

    /// Handles all that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.send_traps(now);
        while let Some(arrival) = self.next_arrival(now) {
            self.arrive(now, arrival);
        }
    }

    /// Delayed packets were sent earlier than those that arrive at once.
    fn next_arrival(&mut self, now: Instant) -> Option<Arrival> {
        match self.in_flight.first_entry() {
            Some(entry) if entry.key().0 <= now => Some(entry.remove()),
            _ => self.due.pop_front(),
        }
    }

    /// When [`Fabric::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let arrival = self.in_flight.first_key_value().map(|((at, _), _)| *at);
        arrival.into_iter().chain(self.traps.poll_timeout()).min()
    }

    /// The next packet for the host of a port.
    pub fn poll_transmit(&mut self) -> Option<(PortId, Vec<u8>)> {
        let (port, packet) = self.queue.pop_front()?;
        if let Some(queued) = self.queued.get_mut(&port) {
            *queued -= 1;
        }
        Some((port, packet))
    }

    /// The next event. Call it before [`Fabric::poll_transmit`], so that a host knows the state
    /// that a subnet manager has set before it gets the manager's next packet.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some((port, change)) = self.changed.pop_first() {
            if self.is_hosted(port.node)
                && let Some(config) = self.port_config(port)
            {
                return Some(Event::Port { port, config, reregister: change.reregister });
            }
        }
        None
    }

    /// Starts or stops capturing packets that cross links, at most [`MAX_QUEUED`] between two
    /// polls; later ones are left out.
    pub fn set_capture(&mut self, on: bool) {
        if on != self.capture.is_some() {
            self.capture = on.then(VecDeque::new);
        }
    }

    /// The next captured packet.
    pub fn poll_capture(&mut self) -> Option<Crossing> {
        self.capture.as_mut()?.pop_front()
    }

    /// Counts of dropped packets.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// The counters of a port. `None` if there is no such port.
    pub fn counters(&self, port: PortId) -> Option<Counters> {
        self.node(port.node)?.port(port.number.get()).map(|port| port.counters)
    }

    /// The LID of a switch.
    pub fn switch_lid(&self, node: NodeId) -> Option<Lid> {
        self.node(node)?.switch.as_ref()?.port_0.info.lid()
    }

    /// The state that a subnet manager has given a port. `None` if there is no such port.
    pub fn port_config(&self, port: PortId) -> Option<PortConfig> {
        let port = self.node(port.node)?.port(port.number.get())?;
        let info = &port.info;
        let pkeys = port.pkeys.iter().rposition(|&pkey| pkey != 0).map_or(0, |last| last + 1);
        let guids = port.guids.iter().rposition(|&guid| guid != 0).map_or(0, |last| last + 1);
        Some(PortConfig {
            state: info.state(),
            physical_state: info.physical_state(),
            gid_prefix: SubnetPrefix::new(info.gid_prefix.get()),
            lid: info.lid(),
            lmc: info.lmc(),
            sm_lid: info.sm_lid(),
            sm_sl: info.sm_sl(),
            mtu: info.mtu(),
            subnet_timeout: info.subnet_timeout(),
            width: info.width_active,
            speed: u8::try_from(info.speed()).unwrap_or(1 << 7),
            capability_mask: info.capability_mask.get(),
            pkeys: port.pkeys.iter().take(pkeys).map(|&pkey| PKey::new(pkey)).collect(),
            guids: port.guids.iter().take(guids).map(|&guid| Guid::new(guid)).collect(),
        })
    }

    /// The value of `attribute` at the agent behind a port. `None` if the agent does not know it.
    pub fn attribute(
        &mut self,
        port: PortId,
        attribute: AttributeId,
        modifier: u32,
    ) -> Option<[u8; DATA_LEN]> {
        let mut smp = Smp::lid_routed(Method::GET, attribute);
        smp.set_modifier(modifier);
        let answered = self.ask_agent(port.node, port.number.get(), &mut smp);
        (answered && smp.status() == Status::OK).then(|| *smp.data())
    }

    fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(node.index())
    }

    fn node_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(node.index())
    }

    fn can_have_host(&self, node: NodeId) -> bool {
        self.node(node).is_some_and(|node| node.kind == NodeType::ChannelAdapter)
    }

    fn is_hosted(&self, node: NodeId) -> bool {
        self.node(node).is_some_and(|node| node.host == Host::Present)
    }

    fn drop(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Passes an arrival to the node of the port.
    fn arrive(&mut self, now: Instant, arrival: Arrival) {
        let port = arrival.port;
        let parsed = match Packet::parse(&arrival.packet) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.count_at(port, |counters| counters.receive_errors += 1);
                return self.drop(DropReason::Packet(error));
            }
        };
        if arrival.crossed && !self.receive(now, port, &parsed, &arrival.packet) {
            return;
        }
        let next = match self.node(port.node).map(|node| (node.kind, node.switch.is_some())) {
            None => Next::Nothing,
            Some((_, true)) => self.arrive_at_switch(now, &arrival, &parsed),
            Some((NodeType::Router, _)) => self.arrive_at_router(now, &arrival, &parsed),
            Some(_) => self.arrive_at_adapter(now, &arrival, &parsed),
        };
        match next {
            Next::Send(exit) => {
                let len = arrival.packet.len();
                if let Some(link) = self.leave(exit, &parsed, len, arrival.hops) {
                    self.cross(now, link, arrival.packet);
                }
            }
            Next::Host => self.hand_to_host(port, arrival.packet),
            Next::Nothing => {}
        }
    }

    /// Queues a packet for the host of a port.
    fn hand_to_host(&mut self, port: PortId, packet: Vec<u8>) {
        match self.node(port.node).map(|node| node.host) {
            Some(Host::Present) => {}
            Some(Host::Expected) => return self.drop(DropReason::NoHost),
            _ => return self.drop(DropReason::NoAgent),
        }
        let queued = self.queued.entry(port).or_default();
        if *queued >= MAX_QUEUED {
            return self.drop(DropReason::HostQueue);
        }
        *queued += 1;
        self.queue.push_back((port, packet));
    }

    fn count_at(&mut self, port: PortId, count: impl FnOnce(&mut Counters)) {
        let number = port.number.get();
        if let Some(port) = self.node_mut(port.node).and_then(|node| node.port_mut(number)) {
            count(&mut port.counters);
        }
    }

    /// True for `share` in a million.
    fn chance(&mut self, share: u32) -> bool {
        // The remainder's bias is below 1 in 4000.
        share != 0 && self.rng.next_u32() % 1_000_000 < share
    }
}

/// The virtual lane of subnet management.
const MANAGEMENT_LANE: u8 = 15;

/// Whether the packet is subnet management, or claims to be.
fn is_management(packet: &Packet<'_>) -> bool {
    packet.destination == Qpn::SMI
}

/// The port with this number. `None` for 0, a switch's management port.
fn port_id(node: NodeId, number: u8) -> Option<PortId> {
    PortNum::new(number).map(|number| PortId { node, number })
}

/// A packet to `to` with the answer `mad` to `request`, from `lid`.
fn answer(request: &Packet<'_>, to: Option<Lid>, mad: &[u8], lid: Option<Lid>) -> Option<Vec<u8>> {
    let is_smp = is_management(request);
    let grh = request.grh.map(|grh| packet::GrhWire::new(grh.dgid, grh.sgid, 255));
    let datagram = packet::Datagram {
        vl: request.vl,
        sl: request.sl,
        dlid: to.unwrap_or(Lid::PERMISSIVE),
        slid: lid,
        grh,
        pkey: request.pkey.unwrap_or(PKey::DEFAULT),
        destination: request.source?,
        qkey: if is_smp { 0 } else { packet::GSI_QKEY },
        source: request.destination,
    };
    let mut bytes = vec![0; packet::MAX_LEN];
    let len = datagram.emit(mad, &mut bytes)?;
    bytes.truncate(len);
    Some(bytes)
}

/// The same packet with another SMP.
fn with_smp(bytes: &[u8], packet: &Packet<'_>, smp: &Smp) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let payload = bytes.iter_mut().skip(packet.payload_at());
    payload.zip(smp.as_bytes()).for_each(|(to, from)| *to = *from);
    bytes
}
