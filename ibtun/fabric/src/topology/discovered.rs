// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A topology as `ibnetdiscover` would write it.

use std::fmt;

use super::{Node, NodeId, PortId, Topology};
use crate::wire::smp::NodeType;

/// Writes a topology as `ibnetdiscover` writes a fabric: switches, channel adapters, routers.
pub struct Discovered<'a, F> {
    topology: &'a Topology,
    /// The LID and LMC of a port.
    address: F,
}

impl Topology {
    /// The topology as `ibnetdiscover` writes it, with the LID and LMC that `address` gives a port;
    /// all ports of a switch have the same.
    pub fn discovered<F: Fn(PortId) -> (u16, u8)>(&self, address: F) -> Discovered<'_, F> {
        Discovered { topology: self, address }
    }
}

impl<F: Fn(PortId) -> (u16, u8)> fmt::Display for Discovered<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in [NodeType::Switch, NodeType::ChannelAdapter, NodeType::Router] {
            for (id, node) in self.topology.nodes().filter(|(_, node)| node.kind == kind) {
                self.node(f, id, node)?;
            }
        }
        Ok(())
    }
}

impl<F: Fn(PortId) -> (u16, u8)> Discovered<'_, F> {
    fn node(&self, f: &mut fmt::Formatter<'_>, id: NodeId, node: &Node) -> fmt::Result {
        let guid = node.guid.get();
        writeln!(f, "\nvendid=0x{:x}\ndevid=0x{:x}", node.vendor_id, node.device_id)?;
        if node.system_image_guid.get() != 0 {
            writeln!(f, "sysimgguid=0x{:x}", node.system_image_guid.get())?;
        }
        let kind = match node.kind {
            NodeType::Switch => "Switch",
            NodeType::ChannelAdapter => "Ca",
            NodeType::Router => "Rt",
        };
        write!(f, "{}guid=0x{guid:x}", kind.to_lowercase())?;
        let is_switch = node.kind == NodeType::Switch;
        if is_switch {
            write!(f, "({guid:x})")?;
        }
        let (ports, description) = (node.port_count(), clean(&node.description));
        write!(f, "\n{kind}\t{ports} {}\t\t# \"{description}\"", name(node))?;
        let port = |number| PortId { node: id, number };
        if let Some(number) = node.port_numbers().next().filter(|_| is_switch) {
            let (lid, lmc) = (self.address)(port(number));
            write!(f, " base port 0 lid {lid} lmc {lmc}")?;
        }
        writeln!(f)?;
        node.port_numbers().try_for_each(|number| self.port(f, node, port(number)))
    }

    fn port(&self, f: &mut fmt::Formatter<'_>, node: &Node, port: PortId) -> fmt::Result {
        let topology = self.topology;
        let Some(peer) = topology.peer(port) else { return Ok(()) };
        let Some(far) = topology.node(peer.node) else { return Ok(()) };
        let is_switch = node.kind == NodeType::Switch;
        let far_guid = far.port_guid(peer.number).filter(|_| far.kind != NodeType::Switch);
        write!(f, "[{}]", port.number)?;
        if let Some(guid) = node.port_guid(port.number).filter(|_| !is_switch) {
            write!(f, "({:x}) ", guid.get())?;
        }
        write!(f, "\t{}[{}]", name(far), peer.number)?;
        if let Some(guid) = far_guid {
            write!(f, "{}({:x}) ", if is_switch { "" } else { " " }, guid.get())?;
        }
        write!(f, "\t\t# ")?;
        if !is_switch {
            let (lid, lmc) = (self.address)(port);
            write!(f, "lid {lid} lmc {lmc} ")?;
        }
        let (lid, _) = (self.address)(peer);
        write!(f, "\"{}\" lid {lid}", clean(&far.description))?;
        match topology.rate(port) {
            Some(rate) => writeln!(f, " {rate}"),
            None => writeln!(f),
        }
    }
}

/// The name that `ibnetdiscover` makes of a GUID.
fn name(node: &Node) -> String {
    let kind = match node.kind {
        NodeType::Switch => 'S',
        NodeType::ChannelAdapter => 'H',
        NodeType::Router => 'R',
    };
    format!("\"{kind}-{:016x}\"", node.guid.get())
}

/// With a blank for each byte that is not printable.
fn clean(description: &str) -> String {
    let bytes = description.bytes();
    bytes.map(|byte| if matches!(byte, b' '..=b'~') { char::from(byte) } else { ' ' }).collect()
}
