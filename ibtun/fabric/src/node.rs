// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A node of the running fabric: its ports, and the tables that a subnet manager fills.

use std::collections::BTreeMap;

use crate::wire::smp::{
    NodeInfoWire, NodeType, PhysicalState, PortInfoWire, PortState, SwitchInfoWire,
};
use ibarr_common::ib::{Guid, Lid, PKey};
use zerocopy::network_endian::U16;

use crate::topology::{self, PortId, Rate, Rates, Topology};

/// Entries of a port's P_Key table.
pub(crate) const PKEYS: u16 = 32;
/// Entries of a port's GUID table.
pub(crate) const GUIDS: u8 = 32;
/// LIDs that a switch forwards: all unicast ones.
pub(crate) const LINEAR_CAP: u16 = 0xc000;
/// Multicast LIDs that a switch forwards.
pub(crate) const MULTICAST_CAP: u16 = 1024;
/// Stands for "no port" in a linear forwarding table.
pub(crate) const NO_PORT: u8 = 255;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) info: NodeInfoWire,
    pub(crate) kind: NodeType,
    /// Padded with zeros.
    pub(crate) description: [u8; 64],
    /// Receives the packets that are not for the agent.
    pub(crate) host: Host,
    /// Tables of a switch; `None` for other nodes.
    pub(crate) switch: Option<Box<Switch>>,
    /// Ports with cables, by number from 1 on.
    ports: Vec<Port>,
}

/// The host behind a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Host {
    /// None: only the agent answers.
    Absent,
    /// The host has not joined yet, or has left: the links are down.
    Expected,
    /// The host receives and sends packets.
    Present,
}

/// The parts that only a switch has.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) info: SwitchInfoWire,
    /// Management port of the switch.
    pub(crate) port_0: Port,
    /// The port for each LID, up to the last entry that was written.
    pub(crate) linear: Vec<u8>,
    /// The ports of each group, one bit each; position p has ports 16p to 16p+15.
    pub(crate) multicast: BTreeMap<(u16, u8), [U16; 32]>,
}

/// How fast a port can be, and how fast its link is.
#[derive(Clone, Copy, Debug, Default)]
struct PortRates {
    supported: Rates,
    active: Rates,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) guid: Guid,
    pub(crate) info: PortInfoWire,
    pub(crate) pkeys: [u16; PKEYS as usize],
    pub(crate) guids: [u64; GUIDS as usize],
    /// By the port at which a packet arrived; a channel adapter has only 0.
    pub(crate) sl_to_vl: BTreeMap<u8, [u8; 8]>,
    /// Blocks 1 to 4.
    pub(crate) vl_arbitration: [[u8; 64]; 4],
    pub(crate) counters: Counters,
    /// The other end of the cable.
    pub(crate) peer: Option<PortId>,
    rates: PortRates,
    /// Disabled by a subnet manager.
    pub(crate) is_disabled: bool,
    /// Disabled by a fault.
    pub(crate) is_broken: bool,
}

/// The counters of a port (IBA vol. 1 §16.1.3.5).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Counters {
    /// Sent words of four bytes, without checksums.
    pub sent_words: u64,
    /// Received words of four bytes.
    pub received_words: u64,
    pub sent_packets: u64,
    pub received_packets: u64,
    pub sent_multicast: u64,
    pub received_multicast: u64,
    /// Packets that could not be sent.
    pub send_discards: u64,
    /// Packets that a switch had no route for.
    pub relay_errors: u64,
    /// Packets dropped on sending because the port is not in their partition.
    pub send_constraint_errors: u64,
    /// Packets dropped on receiving because the port is not in their partition.
    pub receive_constraint_errors: u64,
    /// Malformed packets received.
    pub receive_errors: u64,
    /// Damaged packets received.
    pub symbol_errors: u64,
    /// How often the link went down.
    pub link_downed: u64,
}

impl Counters {
    /// The sum of both counters.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            sent_words: self.sent_words + other.sent_words,
            received_words: self.received_words + other.received_words,
            sent_packets: self.sent_packets + other.sent_packets,
            received_packets: self.received_packets + other.received_packets,
            sent_multicast: self.sent_multicast + other.sent_multicast,
            received_multicast: self.received_multicast + other.received_multicast,
            send_discards: self.send_discards + other.send_discards,
            relay_errors: self.relay_errors + other.relay_errors,
            send_constraint_errors: self.send_constraint_errors + other.send_constraint_errors,
            receive_constraint_errors: self.receive_constraint_errors
                + other.receive_constraint_errors,
            receive_errors: self.receive_errors + other.receive_errors,
            symbol_errors: self.symbol_errors + other.symbol_errors,
            link_downed: self.link_downed + other.link_downed,
        }
    }
}

impl Node {
    pub(crate) fn new(topology: &Topology, id: topology::NodeId, node: &topology::Node) -> Self {
        let is_switch = node.kind == NodeType::Switch;
        let [_, high, middle, low] = node.vendor_id.to_be_bytes();
        let mut description = [0; 64];
        description.iter_mut().zip(node.description.bytes()).for_each(|(to, from)| *to = from);
        let ports = node.port_numbers().map(|number| {
            let id = PortId { node: id, number };
            let guid = node.port_guid(number).unwrap_or(node.guid);
            let supported = topology.rates(id).unwrap_or_default();
            // Without a link, the fastest that the port could do.
            let rate = topology.rate(id).or_else(|| supported.common(supported));
            let active = rate.map(Rate::alone).unwrap_or_default();
            Port::new(guid, node.kind, topology.peer(id), PortRates { supported, active })
        });
        let ports: Vec<_> = ports.collect();
        let switch = is_switch.then(|| {
            // Its capabilities are those of all ports.
            let rates = ports.iter().map(|port| port.rates);
            let rates = rates.max_by_key(|rates| rates.supported.extended()).unwrap_or_default();
            let mut port_0 = Port::new(node.guid, node.kind, None, rates);
            port_0.info.set_state(PortState::Active);
            port_0.info.set_physical_state(PhysicalState::LinkUp);
            port_0.info.guid_cap = GUIDS;
            Box::new(Switch {
                info: SwitchInfoWire {
                    linear_cap: LINEAR_CAP.into(),
                    multicast_cap: MULTICAST_CAP.into(),
                    partition_enforcement_cap: PKEYS.into(),
                    capabilities: SwitchInfoWire::ENFORCES_P_KEYS,
                    ..SwitchInfoWire::default()
                },
                port_0,
                linear: Vec::new(),
                multicast: BTreeMap::new(),
            })
        });
        Self {
            info: NodeInfoWire {
                base_version: 1,
                class_version: 1,
                node_type: node.kind.get(),
                port_count: node.port_count(),
                system_image_guid: node.system_image_guid.get().into(),
                node_guid: node.guid.get().into(),
                port_guid: node.guid.get().into(),
                partition_cap: PKEYS.into(),
                device_id: node.device_id.into(),
                revision: 1.into(),
                local_port: 0,
                vendor_id: [high, middle, low],
            },
            kind: node.kind,
            description,
            host: Host::Absent,
            switch,
            ports,
        }
    }

    /// The port with this number; 0 is a switch's management port.
    pub(crate) fn port(&self, number: u8) -> Option<&Port> {
        match number.checked_sub(1) {
            Some(index) => self.ports.get(usize::from(index)),
            None => self.switch.as_ref().map(|switch| &switch.port_0),
        }
    }

    pub(crate) fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        match number.checked_sub(1) {
            Some(index) => self.ports.get_mut(usize::from(index)),
            None => self.switch.as_mut().map(|switch| &mut switch.port_0),
        }
    }

    /// The ports with cables, with their numbers.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (u8, &Port)> {
        (1..=u8::MAX).zip(&self.ports)
    }

    pub(crate) fn port_count(&self) -> u8 {
        self.info.port_count
    }

    /// The number of the port whose LID and GIDs apply to packets through port `number`: a switch
    /// has one for all.
    pub(crate) fn addressed_port(&self, number: u8) -> u8 {
        if self.switch.is_some() { 0 } else { number }
    }
}

impl Switch {
    /// The port that leads to `lid`.
    pub(crate) fn route(&self, lid: Lid) -> Option<u8> {
        if lid.get() > self.info.linear_top.get() {
            return None;
        }
        self.linear.get(usize::from(lid.get())).copied().filter(|&port| port != NO_PORT)
    }

    /// Whether `port` leads to members of the group `lid`.
    pub(crate) fn leads_to_group(&self, lid: Lid, port: u8) -> bool {
        let index = lid.get() - Lid::FIRST_MULTICAST.get();
        let top = self.info.multicast_top.get();
        if index >= MULTICAST_CAP || top != 0 && lid.get() > top {
            return false;
        }
        let block = self.multicast.get(&(index / 32, port / 16));
        let mask = block.and_then(|block| block.get(usize::from(index % 32)));
        mask.is_some_and(|mask| mask.get() & 1 << (port % 16) != 0)
    }
}

impl Port {
    fn new(guid: Guid, kind: NodeType, peer: Option<PortId>, rates: PortRates) -> Self {
        let mut pkeys = [0; PKEYS as usize];
        pkeys[0] = PKey::DEFAULT.get();
        let mut guids = [0; GUIDS as usize];
        guids[0] = guid.get();
        Self {
            guid,
            info: power_on(kind, rates),
            pkeys,
            guids,
            sl_to_vl: BTreeMap::new(),
            vl_arbitration: [[0; 64]; 4],
            counters: Counters::default(),
            peer,
            rates,
            is_disabled: false,
            is_broken: false,
        }
    }

    /// Resets the port to its state after power-on, except for the counters.
    pub(crate) fn reset(&mut self, kind: NodeType) {
        let Self { guid, counters, peer, rates, is_broken, .. } = *self;
        let state = (self.info.state(), self.info.physical_state());
        *self = Self { counters, is_broken, ..Self::new(guid, kind, peer, rates) };
        self.info.set_state(state.0);
        self.info.set_physical_state(state.1);
    }

    /// Whether the port shares a partition with the holder of `pkey`: at least one of both must be
    /// a full member (IBA vol. 1 §10.9.3).
    pub(crate) fn shares_partition(&self, pkey: Option<PKey>) -> bool {
        let Some(pkey) = pkey else { return false };
        self.pkeys
            .iter()
            .any(|&own| own << 1 == pkey.get() << 1 && (own | pkey.get()) & 0x8000 != 0)
    }

    /// Whether the link would be up if the other end enabled it.
    pub(crate) fn wants_link(&self) -> bool {
        self.peer.is_some() && !self.is_disabled && !self.is_broken
    }
}

/// The PortInfo of an unconfigured port: MTU 4096, 8 virtual lanes.
fn power_on(kind: NodeType, PortRates { supported, active }: PortRates) -> PortInfoWire {
    let mut capabilities = match kind {
        NodeType::Switch => PortInfoWire::HAS_NOTICE | PortInfoWire::HAS_TRAP,
        _ => 0,
    };
    if supported.extended() != 0 {
        capabilities |= PortInfoWire::HAS_EXTENDED_SPEEDS;
    }
    let mut capability_mask_2 = 0;
    if supported.extended_speeds_2() != 0 {
        capabilities |= PortInfoWire::HAS_CAPABILITY_MASK_2;
        capability_mask_2 |= PortInfoWire::HAS_EXTENDED_SPEEDS_2;
    }
    // A link that is faster than QDR is QDR for those who do not know better.
    let speed = if active.speeds() == 0 { 4 } else { active.speeds() };
    let (extended, extended_2) = (supported.extended_speeds(), supported.extended_speeds_2());
    let mut info = PortInfoWire {
        gid_prefix: 0xfe80_0000_0000_0000.into(),
        capability_mask: (capabilities
            | PortInfoWire::HAS_SL_MAPPING
            | PortInfoWire::HAS_SYSTEM_IMAGE_GUID
            | PortInfoWire::HAS_CLIENT_REREGISTER)
            .into(),
        width_enabled: supported.widths(),
        width_supported: supported.widths(),
        width_active: active.widths(),
        speed_supported_state: supported.speeds() << 4,
        // The port polls when its link goes down.
        physical_default: 0x02,
        speed_active_enabled: speed << 4 | supported.speeds(),
        mtu_sm_sl: 0x50,
        vl_cap_init: 0x40,
        vl_arb_high_cap: 8,
        vl_arb_low_cap: 8,
        init_reply_mtu_cap: 0x05,
        vls_enforcement: 0x40,
        guid_cap: if kind == NodeType::Switch { 0 } else { GUIDS },
        reregister_timeout: 18,
        response_time: 16,
        speed_ext_2: active.extended_speeds_2() << 5 | extended_2 << 3 | extended_2,
        capability_mask_2: capability_mask_2.into(),
        speed_ext_active: active.extended_speeds() << 4 | extended,
        speed_ext_enabled: extended,
        ..PortInfoWire::default()
    };
    info.set_state(PortState::Down);
    info.set_physical_state(PhysicalState::Polling);
    info
}
