// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The nodes of a fabric, and the cables between their ports.

mod discovered;
mod generate;
mod parse;
mod rate;

pub use discovered::Discovered;
pub use generate::{GenerateError, fat_tree, torus};
pub use parse::{Mistake, ParseError};
pub use rate::{Rate, Rates};

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::str::FromStr;

use crate::wire::smp::NodeType;
use ibarr_common::ib::{Guid, PortNum};

/// Nodes and cables. Every cable ends at two different existing ports.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Topology {
    nodes: Vec<Node>,
    by_name: BTreeMap<String, NodeId>,
    by_guid: BTreeMap<Guid, NodeId>,
}

/// A node of a topology.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// Switch, channel adapter or router.
    pub kind: NodeType,
    /// Name in the topology and in commands, unique.
    pub name: String,
    /// NodeDescription that the node reports, at most 64 bytes.
    pub description: String,
    /// GUID of the node.
    pub guid: Guid,
    /// SystemImageGUID, shared by nodes that are one product.
    pub system_image_guid: Guid,
    /// IEEE's number of the vendor, 24 bits.
    pub vendor_id: u32,
    /// The vendor's number of the device.
    pub device_id: u16,
    /// If it is a router, how it finds the LID of a destination.
    pub routing: Routing,
    /// Ports by number, from 1 on.
    ports: Vec<Port>,
}

/// How a router finds the LID of a GID in a subnet to which it is connected.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Routing {
    /// It knows which port has the GUID, or has it as an alias.
    #[default]
    Guid,
    /// It takes the 16 low bits of the GID as the LID, as routers that are sold do. The subnet manager gives each host a
    /// GID that ends in its LID.
    Lid,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Port {
    guid: Guid,
    rates: Rates,
    peer: Option<PortId>,
}

/// Identifies a node of a topology.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeId(usize);

/// Identifies a port, where a cable can end.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortId {
    /// Node of the port.
    pub node: NodeId,
    /// Number of the port at the node.
    pub number: PortNum,
}

/// Limit of nodes. A subnet has fewer LIDs, but a topology may have several subnets.
pub const MAX_NODES: usize = 65_536;

/// First GUIDs of nodes for which none is given, as in ibsim.
const FIRST_CA_GUID: u64 = 0x10_0000;
const FIRST_SWITCH_GUID: u64 = 0x20_0000;
const FIRST_ROUTER_GUID: u64 = 0x30_0000;

impl Topology {
    /// A topology without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node with `ports` ports, whose GUIDs follow from that of the node: those of a switch
    /// are all equal to it, others count up from it.
    ///
    /// # Errors
    /// If the name or GUID is taken, or there are [`MAX_NODES`] nodes.
    pub fn add(
        &mut self,
        kind: NodeType,
        name: &str,
        guid: Guid,
        ports: PortNum,
    ) -> Result<NodeId, TopologyError> {
        if self.nodes.len() == MAX_NODES {
            return Err(TopologyError::TooManyNodes);
        }
        if self.by_name.contains_key(name) {
            return Err(TopologyError::NameTaken(name.to_owned()));
        }
        if self.by_guid.contains_key(&guid) {
            return Err(TopologyError::GuidTaken(guid));
        }
        let port_guid = |number: u8| match kind {
            NodeType::Switch => guid,
            _ => Guid::new(guid.get().wrapping_add(number.into())),
        };
        let node = Node {
            kind,
            name: name.to_owned(),
            description: name.to_owned(),
            guid,
            system_image_guid: guid,
            vendor_id: 0,
            device_id: 0,
            routing: Routing::default(),
            ports: (1..=ports.get())
                .map(|number| Port { guid: port_guid(number), rates: Rates::default(), peer: None })
                .collect(),
        };
        let id = NodeId(self.nodes.len());
        self.nodes.push(node);
        self.by_name.insert(name.to_owned(), id);
        self.by_guid.insert(guid, id);
        Ok(id)
    }

    /// Adds a node with the next free GUID of its kind.
    ///
    /// # Errors
    /// See [`Topology::add`].
    pub fn add_next(
        &mut self,
        kind: NodeType,
        name: &str,
        ports: PortNum,
    ) -> Result<NodeId, TopologyError> {
        let first = match kind {
            NodeType::ChannelAdapter => FIRST_CA_GUID,
            NodeType::Switch => FIRST_SWITCH_GUID,
            NodeType::Router => FIRST_ROUTER_GUID,
        };
        // After the last node of its kind.
        let same_kind = self.nodes.iter().rev().find(|node| node.kind == kind);
        let next = same_kind
            .map(|node| node.guid.get().wrapping_add(node.ports.len() as u64).wrapping_add(1));
        self.add(kind, name, Guid::new(next.unwrap_or(first)), ports)
    }

    /// Puts a cable between two ports, or a plug into one that leads back to it.
    ///
    /// # Errors
    /// If a port does not exist or has a cable.
    pub fn connect(&mut self, one: PortId, other: PortId) -> Result<(), TopologyError> {
        for port in [one, other] {
            match self.port(port) {
                None => return Err(TopologyError::NoPort(self.port_name(port))),
                Some(Port { peer: Some(peer), .. }) => {
                    return Err(TopologyError::Cabled {
                        port: self.port_name(port),
                        peer: self.port_name(*peer),
                    });
                }
                Some(_) => {}
            }
        }
        for (port, peer) in [(one, other), (other, one)] {
            if let Some(port) = self.port_mut(port) {
                port.peer = Some(peer);
            }
        }
        Ok(())
    }

    /// The nodes, in the order in which they were added.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeId(index), node))
    }

    /// The node with this id. `None` if it is from another topology.
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(node.0)
    }

    /// The node with this name, or with this GUID in hexadecimal.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        let by_guid = || {
            let guid = u64::from_str_radix(name.strip_prefix("0x")?, 16).ok()?;
            self.by_guid.get(&Guid::new(guid))
        };
        self.by_name.get(name).or_else(by_guid).copied()
    }

    /// The port with this name: `NODE/PORT`, or `NODE` for its first.
    pub fn find_port(&self, name: &str) -> Option<PortId> {
        let (node, number) = match name.rsplit_once('/') {
            Some((node, number)) => (node, number.parse().ok()?),
            None => (name, 1),
        };
        let port = PortId { node: self.find(node)?, number: PortNum::new(number)? };
        self.port(port).map(|_| port)
    }

    /// The name of a port: `NODE/PORT`.
    pub fn port_name(&self, port: PortId) -> String {
        let name = self.node(port.node).map_or("?", |node| &node.name);
        format!("{name}/{}", port.number)
    }

    /// The other end of the cable.
    pub fn peer(&self, port: PortId) -> Option<PortId> {
        self.port(port)?.peer
    }

    /// Sets the widths and speeds of both ends of a cable.
    pub fn set_rate(&mut self, port: PortId, rate: Rate) {
        for end in [Some(port), self.peer(port)].into_iter().flatten() {
            if let Some(port) = self.port_mut(end) {
                port.rates = Rates::up_to(rate);
            }
        }
    }

    /// The widths and speeds that a port has enabled.
    pub fn rates(&self, port: PortId) -> Option<Rates> {
        Some(self.port(port)?.rates)
    }

    /// The width and speed of a link: the fastest that both ends have.
    pub fn rate(&self, port: PortId) -> Option<Rate> {
        let port = self.port(port)?;
        port.rates.common(self.port(port.peer?)?.rates)
    }

    /// Parses the format of `ibnetdiscover` and ibsim, which may contain any bytes. `files` reads
    /// the files that it includes.
    ///
    /// # Errors
    /// What is not understood, with its line.
    pub fn parse(
        bytes: &[u8],
        files: &mut dyn FnMut(&str) -> io::Result<Vec<u8>>,
    ) -> Result<Self, ParseError> {
        parse::parse(bytes, files)
    }

    fn port(&self, port: PortId) -> Option<&Port> {
        self.node(port.node)?.ports.get(usize::from(port.number.get()) - 1)
    }

    fn port_mut(&mut self, port: PortId) -> Option<&mut Port> {
        let node = self.nodes.get_mut(port.node.0)?;
        node.ports.get_mut(usize::from(port.number.get()) - 1)
    }
}

impl Node {
    /// Number of ports, without port 0 of a switch.
    pub fn port_count(&self) -> u8 {
        // They came from a `PortNum`.
        u8::try_from(self.ports.len()).unwrap_or(u8::MAX)
    }

    /// The numbers of its ports.
    pub fn port_numbers(&self) -> impl Iterator<Item = PortNum> + use<> {
        (1..=self.port_count()).filter_map(PortNum::new)
    }

    /// The GUID of a port. All ports of a switch have that of the node.
    pub fn port_guid(&self, number: PortNum) -> Option<Guid> {
        self.ports.get(usize::from(number.get()) - 1).map(|port| port.guid)
    }
}

impl NodeId {
    /// Position in the order of nodes.
    pub fn index(self) -> usize {
        self.0
    }
}

impl FromStr for Topology {
    type Err = ParseError;

    /// Parses the format of `ibnetdiscover` and ibsim; ibtun/fabric/README.md describes it. It
    /// includes no files.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text.as_bytes(), &mut |_| Err(io::ErrorKind::Unsupported.into()))
    }
}

impl fmt::Display for Topology {
    /// Writes the same format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, node) in self.nodes() {
            let (kind, guid) = match node.kind {
                NodeType::ChannelAdapter => ("Ca", "caguid"),
                NodeType::Switch => ("Switch", "switchguid"),
                NodeType::Router => ("Rt", "rtguid"),
            };
            writeln!(f, "vendid=0x{:x}\ndevid=0x{:x}", node.vendor_id, node.device_id)?;
            if node.kind == NodeType::Router {
                let routing = match node.routing {
                    Routing::Guid => "guid",
                    Routing::Lid => "lid",
                };
                writeln!(f, "routing={routing}")?;
            }
            writeln!(f, "sysimgguid={}\n{guid}={}", node.system_image_guid, node.guid)?;
            let (name, description) = (&node.name, &node.description);
            writeln!(f, "{kind}\t{} \"{name}\"\t# \"{description}\"", node.port_count())?;
            for number in node.port_numbers() {
                let port = PortId { node: id, number };
                let Some(Port { guid, rates, peer: Some(peer) }) = self.port(port) else {
                    continue;
                };
                let peer_name = self.node(peer.node).map_or("?", |node| &node.name);
                write!(f, "[{number}]")?;
                if node.kind != NodeType::Switch {
                    write!(f, "({:x})", guid.get())?;
                }
                write!(f, "\t\"{peer_name}\"[{}]", peer.number)?;
                // Nothing more of a link as it is without more.
                if *rates != Rates::default() {
                    let (speeds, extended) = (rates.speeds(), rates.extended());
                    write!(f, " w={} s={speeds} e={extended}", rates.widths())?;
                }
                writeln!(f)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Why a topology is impossible.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TopologyError {
    /// There are [`MAX_NODES`] already.
    #[error("more than {MAX_NODES} nodes")]
    TooManyNodes,
    /// Two nodes have the same name.
    #[error("there is a node {0:?} already: give each its own name")]
    NameTaken(String),
    /// Two nodes have the same GUID.
    #[error("there is a node with GUID {0} already: set another before this one")]
    GuidTaken(Guid),
    /// A cable ends at a port that does not exist.
    #[error("there is no port {0}: its node has fewer ports")]
    NoPort(String),
    /// A port has two cables.
    #[error("port {port} has a cable to {peer} already")]
    Cabled {
        /// The port with two cables.
        port: String,
        /// The other end of the first cable.
        peer: String,
    },
    /// The ends of a cable have no width or no speed in common.
    #[error("ports {port} and {peer} have no width or no speed in common")]
    NoRate {
        /// The end that the line is about.
        port: String,
        /// What is at the other end.
        peer: String,
    },
}
