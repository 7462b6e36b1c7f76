// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Shared by the tests: a minimal subnet manager, which knows the fabric only by its packets.

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ibarr_common::Instant;
use ibarr_common::ib::{Lid, PKey, Qpn, Sl};
use ibarr_common::wire::mad::{AttributeId, Method, Status, Tid};
use ibarr_fabric::topology::PortId;
use ibarr_fabric::wire::packet::{Datagram, GSI_QKEY, GrhWire, MAX_LEN, Packet};
use ibarr_fabric::wire::smp::{
    LINEAR_FORWARDING, NODE_INFO, NodeInfoWire, NodeType, PORT_INFO, PortInfoWire, PortState,
    SWITCH_INFO, Smp, SwitchInfoWire,
};
use ibarr_fabric::{Event, Fabric, Input, Topology};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// A fabric, and a subnet manager at one of its ports.
#[derive(Debug)]
pub(crate) struct Subnet {
    pub(crate) fabric: Fabric,
    pub(crate) now: Instant,
    manager: PortId,
    tid: u64,
    /// Packets that hosts received, without the answers to the manager.
    pub(crate) received: VecDeque<(PortId, Vec<u8>)>,
    pub(crate) events: Vec<Event>,
}

/// A node, as the manager sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: Vec<u8>,
    pub(crate) info: NodeInfoWire,
    pub(crate) lid: Lid,
    /// For a switch: the neighbour at each port.
    pub(crate) neighbours: BTreeMap<u8, u64>,
}

impl Subnet {
    /// `TWO_SWITCHES`, configured, and the LIDs of H1 to H4. The manager at H1 reaches S1 by [1], S2
    /// by [1, 3].
    pub(crate) fn up() -> (Self, [Lid; 4]) {
        let mut subnet = Self::new(TWO_SWITCHES, "H1");
        let seen = subnet.bring_up();
        let lids = ["H1", "H2", "H3", "H4"].map(|name| {
            let port = subnet.port(name);
            let node = subnet.fabric.topology().node(port.node).unwrap();
            seen[&node.port_guid(port.number).unwrap().get()].lid
        });
        (subnet, lids)
    }

    /// All channel adapters have hosts.
    pub(crate) fn new(topology: &str, manager: &str) -> Self {
        let topology: Topology = topology.parse().unwrap();
        let manager = topology.find_port(manager).unwrap();
        let adapters: Vec<_> = topology
            .nodes()
            .filter(|(_, node)| node.kind == NodeType::ChannelAdapter)
            .map(|(id, _)| id)
            .collect();
        let mut fabric = Fabric::new(topology, 1);
        let now = Instant::from_nanos(1);
        for node in adapters {
            fabric.handle_input(now, Input::Attach(node));
        }
        let mask = PortInfoWire::IS_SM;
        fabric.handle_input(now, Input::Capabilities { port: manager, mask });
        let mut this =
            Self { fabric, now, manager, tid: 0, received: VecDeque::new(), events: Vec::new() };
        this.drain();
        this
    }

    /// Moves the manager to another port.
    pub(crate) fn set_manager(&mut self, name: &str) {
        self.manager = self.port(name);
        let input = Input::Capabilities { port: self.manager, mask: PortInfoWire::IS_SM };
        self.fabric.handle_input(self.now, input);
    }

    pub(crate) fn port(&self, name: &str) -> PortId {
        self.fabric.topology().find_port(name).unwrap()
    }

    pub(crate) fn send(&mut self, port: PortId, packet: &[u8]) {
        self.fabric.handle_input(self.now, Input::Packet { port, packet });
        self.drain();
    }

    pub(crate) fn drain(&mut self) {
        while let Some(event) = self.fabric.poll_event() {
            self.events.push(event);
        }
        while let Some(packet) = self.fabric.poll_transmit() {
            self.received.push_back(packet);
        }
    }

    /// Takes the packets that the host of `port` has received.
    pub(crate) fn take(&mut self, port: PortId) -> Vec<Vec<u8>> {
        let (taken, left): (VecDeque<_>, _) =
            self.received.drain(..).partition(|(to, _)| *to == port);
        self.received = left;
        taken.into_iter().map(|(_, packet)| packet).collect()
    }

    /// The answer to a directed-route SMP along `path`, which begins with the manager's own port.
    pub(crate) fn ask(
        &mut self,
        path: &[u8],
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        data: &[u8],
    ) -> Option<Smp> {
        let mut smp = Smp::directed(method, attribute, path).unwrap();
        smp.set_modifier(modifier);
        smp.data_mut()[..data.len()].copy_from_slice(data);
        self.tid += 1;
        smp.set_tid(Tid::new(self.tid));
        self.send(self.manager, &smp_packet(&smp, None, Lid::PERMISSIVE));
        let tid = smp.tid();
        let answers = self.take(self.manager).into_iter().filter_map(|packet| {
            let packet = Packet::parse(&packet).unwrap();
            Smp::parse(packet.payload).ok().filter(|smp| smp.tid() == tid)
        });
        let mut answers: Vec<_> = answers.collect();
        assert!(answers.len() < 2, "{} answers", answers.len());
        answers.pop()
    }

    pub(crate) fn get(&mut self, path: &[u8], attribute: AttributeId, modifier: u32) -> Smp {
        let smp = self.ask(path, Method::GET, attribute, modifier, &[]).expect("an answer");
        assert_eq!(smp.status(), Status::OK, "{attribute} {modifier:#x}");
        smp
    }

    pub(crate) fn set(
        &mut self,
        path: &[u8],
        attribute: AttributeId,
        modifier: u32,
        data: &[u8],
    ) -> Smp {
        let smp = self.ask(path, Method::SET, attribute, modifier, data).expect("an answer");
        assert_eq!(smp.status(), Status::OK, "{attribute} {modifier:#x}");
        smp
    }

    /// Walks the subnet, assigns LIDs in the order of GUIDs, fills the forwarding tables, and makes
    /// the ports active.
    pub(crate) fn bring_up(&mut self) -> BTreeMap<u64, Seen> {
        let own = self.manager.number.get();
        let mut seen = BTreeMap::<u64, Seen>::new();
        let mut todo = VecDeque::from([vec![]]);
        while let Some(path) = todo.pop_front() {
            let answer = self.get(&path, NODE_INFO, 0);
            let (info, _) = NodeInfoWire::read_from_prefix(answer.data()).unwrap();
            let is_switch = info.node_type == NodeType::Switch.get();
            let guid = if is_switch { info.node_guid } else { info.port_guid }.get();
            if seen.contains_key(&guid) {
                continue;
            }
            let lid = Lid::PERMISSIVE;
            let node = Seen { path: path.clone(), info, lid, neighbours: BTreeMap::new() };
            seen.insert(guid, node);
            let exits = if is_switch { 1..=info.port_count } else { own..=own };
            for exit in exits.filter(|_| is_switch || path.is_empty()) {
                let port = port_info(&self.get(&path, PORT_INFO, u32::from(exit)));
                if port.state() != PortState::Down {
                    todo.push_back([&path[..], &[exit]].concat());
                }
            }
        }
        self.find_neighbours(&mut seen);
        for (index, node) in seen.values_mut().enumerate() {
            node.lid = Lid::new(1 + u16::try_from(index).unwrap()).unwrap();
        }
        let guids: Vec<_> = seen.keys().copied().collect();
        for guid in &guids {
            self.configure(&seen, *guid);
        }
        for state in [PortState::Armed, PortState::Active] {
            for guid in &guids {
                self.set_states(&seen[guid], state);
            }
        }
        seen
    }

    fn find_neighbours(&mut self, seen: &mut BTreeMap<u64, Seen>) {
        let switches: Vec<_> = seen
            .iter()
            .filter(|(_, node)| node.info.node_type == NodeType::Switch.get())
            .map(|(guid, node)| (*guid, node.path.clone(), node.info.port_count))
            .collect();
        for (guid, path, count) in switches {
            for exit in 1..=count {
                let port = port_info(&self.get(&path, PORT_INFO, u32::from(exit)));
                if port.state() == PortState::Down {
                    continue;
                }
                let answer = self.get(&[&path[..], &[exit]].concat(), NODE_INFO, 0);
                let (info, _) = NodeInfoWire::read_from_prefix(answer.data()).unwrap();
                let is_switch = info.node_type == NodeType::Switch.get();
                let peer = if is_switch { info.node_guid } else { info.port_guid }.get();
                seen.get_mut(&guid).unwrap().neighbours.insert(exit, peer);
            }
        }
    }

    /// Sets LIDs and forwarding tables of a node.
    fn configure(&mut self, seen: &BTreeMap<u64, Seen>, guid: u64) {
        let node = &seen[&guid];
        let is_switch = node.info.node_type == NodeType::Switch.get();
        let number = if is_switch { 0 } else { u32::from(node.info.local_port) };
        let mut info = port_info(&self.get(&node.path, PORT_INFO, number));
        info.lid = node.lid.get().into();
        info.sm_lid = 1.into();
        info.speed_supported_state &= 0xf0;
        info.physical_default &= 0x0f;
        self.set(&node.path, PORT_INFO, number, info.as_bytes());
        if !is_switch {
            return;
        }
        let answer = self.get(&node.path, SWITCH_INFO, 0);
        let (mut switch, _) = SwitchInfoWire::read_from_prefix(answer.data()).unwrap();
        switch.linear_top = u16::try_from(seen.len()).unwrap().into();
        self.set(&node.path, SWITCH_INFO, 0, switch.as_bytes());
        let mut table = vec![255; (seen.len() + 1).next_multiple_of(64)];
        table[usize::from(node.lid.get())] = 0;
        // Each node is reached through the port with the nearest neighbour.
        let mut exits = BTreeMap::from([(guid, 0)]);
        let mut todo: VecDeque<_> =
            node.neighbours.iter().map(|(exit, peer)| (*exit, *peer)).collect();
        let mut visited = BTreeSet::from([guid]);
        while let Some((exit, at)) = todo.pop_front() {
            if visited.insert(at) {
                exits.insert(at, exit);
                table[usize::from(seen[&at].lid.get())] = exit;
                todo.extend(seen[&at].neighbours.values().map(|peer| (exit, *peer)));
            }
        }
        for (block, entries) in table.chunks(64).enumerate() {
            self.set(&node.path, LINEAR_FORWARDING, u32::try_from(block).unwrap(), entries);
        }
    }

    fn set_states(&mut self, node: &Seen, state: PortState) {
        let is_switch = node.info.node_type == NodeType::Switch.get();
        let numbers: Vec<_> = if is_switch {
            node.neighbours.keys().copied().collect()
        } else {
            vec![node.info.local_port]
        };
        for number in numbers {
            let mut info = port_info(&self.get(&node.path, PORT_INFO, u32::from(number)));
            if info.state() >= state {
                continue;
            }
            info.set_state(state);
            info.physical_default &= 0x0f;
            self.set(&node.path, PORT_INFO, u32::from(number), info.as_bytes());
        }
    }
}

pub(crate) fn port_info(smp: &Smp) -> PortInfoWire {
    zerocopy::transmute!(*smp.data())
}

pub(crate) fn smp_packet(smp: &Smp, slid: Option<Lid>, dlid: Lid) -> Vec<u8> {
    emit(
        &Datagram {
            vl: 15,
            sl: Sl::default(),
            dlid,
            slid,
            grh: None,
            pkey: PKey::DEFAULT,
            destination: Qpn::SMI,
            qkey: 0,
            source: Qpn::SMI,
        },
        smp.as_bytes(),
    )
}

/// A packet between general services.
pub(crate) fn gsi_packet(slid: Lid, dlid: Lid, grh: Option<GrhWire>, payload: &[u8]) -> Vec<u8> {
    emit(&gsi_datagram(slid, dlid, grh), payload)
}

pub(crate) fn gsi_datagram(slid: Lid, dlid: Lid, grh: Option<GrhWire>) -> Datagram {
    Datagram {
        vl: 0,
        sl: Sl::default(),
        dlid,
        slid: Some(slid),
        grh,
        pkey: PKey::DEFAULT,
        destination: Qpn::GSI,
        qkey: GSI_QKEY,
        source: Qpn::GSI,
    }
}

pub(crate) fn emit(datagram: &Datagram, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; MAX_LEN];
    let len = datagram.emit(payload, &mut packet).unwrap();
    packet.truncate(len);
    packet
}

/// Two switches, each with two hosts.
pub(crate) const TWO_SWITCHES: &str = r#"
Switch 4 "S1"
[1] "H1"[1]
[2] "H2"[1]
[3] "S2"[3]

Switch 4 "S2"
[1] "H3"[1]
[2] "H4"[1]

Ca 2 "H1"

Ca 1 "H2"

Ca 1 "H3"

Ca 1 "H4"
"#;

/// Parses hexadecimal, without white space and comments.
pub(crate) fn golden(text: &str) -> Vec<u8> {
    let digits: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.chars().filter(char::is_ascii_hexdigit))
        .collect();
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}
