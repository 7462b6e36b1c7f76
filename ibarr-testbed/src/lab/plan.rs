// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Names, addresses and directories of a lab, before anything is made.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use ibarr_common::ib::Gid;
use serde::{Deserialize, Serialize};

/// The parts of a lab. They follow from its name, the number of nodes and whether there is a router, and
/// do not depend on the machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Plan {
    /// The name of the lab, unique on the machine.
    pub name: LabName,
    /// The namespace that all nodes are connected to: a router's, or a switch's.
    pub hub: String,
    /// One subnet, or two with a router between them.
    pub subnets: Vec<Subnet>,
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<Node>,
}

impl Plan {
    /// The maximum of nodes, by the room in a subnet.
    pub const MAX_NODES: u8 = 200;

    /// # Errors
    /// There are fewer nodes than subnets, or more than [`Self::MAX_NODES`].
    pub fn new(name: LabName, nodes: u8, router: bool) -> Result<Self> {
        let subnets = Subnet::ALL.get(..if router { 2 } else { 1 }).unwrap_or_default().to_vec();
        ensure!(
            (subnets.len()..=Self::MAX_NODES.into()).contains(&nodes.into()),
            "a lab has {} to {} nodes, not {nodes}",
            if router { "with a router 2" } else { "1" },
            Self::MAX_NODES,
        );
        let hub = format!("ibarr-{name}-{}", if router { "r" } else { "s" });
        let nodes = (1..=nodes)
            .map(|number| {
                let index = usize::from(number - 1);
                let subnet = subnets[index % subnets.len()];
                let host =
                    u8::try_from(index / subnets.len()).map_or(u8::MAX, |at| at + FIRST_HOST);
                Node {
                    name: NodeName(number),
                    namespace: format!("ibarr-{name}-n{number}"),
                    subnet,
                    addresses: [IpAddr::V4(subnet.ipv4(host)), IpAddr::V6(subnet.ipv6(host))],
                    gid: node_gid(number).to_string(),
                }
            })
            .collect();
        Ok(Self { name, hub, subnets, nodes })
    }

    /// Whether packets are routed between two subnets.
    pub fn has_router(&self) -> bool {
        self.subnets.len() > 1
    }

    /// The names of all namespaces of the lab.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.hub.as_str())
            .chain(self.nodes.iter().map(|node| node.namespace.as_str()))
    }

    /// The namespace of a node, or of the router (`r`).
    ///
    /// # Errors
    /// There is none of this name. The message lists the others.
    pub fn namespace_of(&self, name: &str) -> Result<&str> {
        if self.has_router() && ["r", "router"].contains(&name) {
            return Ok(&self.hub);
        }
        Ok(&self.node(name)?.namespace)
    }

    /// The node of this name.
    ///
    /// # Errors
    /// There is none of this name. The message lists the others.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let named = self.nodes.iter().find(|node| node.name.to_string() == name);
        let Some(node) = named else {
            let router = if self.has_router() { " and r (the router)" } else { "" };
            bail!(
                "lab {}: no node {name:?}, it has n1 to n{}{router}",
                self.name,
                self.nodes.len()
            );
        };
        Ok(node)
    }
}

/// One node: its namespace and the only interface in it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Node {
    /// The name: `n1`, `n2`, …
    pub name: NodeName,
    /// The name of its network namespace.
    pub namespace: String,
    /// The subnet that it is in.
    pub subnet: Subnet,
    /// Its IPv4 address, then its IPv6 address.
    pub addresses: [IpAddr; 2],
    /// The GID that its daemon answers for both addresses.
    pub gid: String,
}

impl Node {
    /// The name of its interface.
    pub const INTERFACE: &str = "eth0";

    /// The GID that its daemon answers.
    ///
    /// # Errors
    /// The state file has no valid GID.
    pub fn gid(&self) -> Result<Gid> {
        Ok(self.gid.parse()?)
    }
}

/// The name of a lab, which is a part of the names of its namespaces and its directory.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabName(String);

impl FromStr for LabName {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        ensure!(
            (1..=32).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('-'),
            "{name:?} cannot name a lab: use up to 32 of a-z, 0-9 and -"
        );
        Ok(Self(name.to_owned()))
    }
}

impl TryFrom<String> for LabName {
    type Error = anyhow::Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl From<LabName> for String {
    fn from(name: LabName) -> Self {
        name.0
    }
}

impl AsRef<std::path::Path> for LabName {
    fn as_ref(&self) -> &std::path::Path {
        self.0.as_ref()
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `n` and a number from 1.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(u8);

impl TryFrom<String> for NodeName {
    type Error = anyhow::Error;

    fn try_from(name: String) -> Result<Self> {
        let number = name.strip_prefix('n').and_then(|number| number.parse().ok());
        let Some(number) = number else { bail!("{name:?} is not the name of a node") };
        Ok(Self(number))
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// An IPv4 and an IPv6 subnet on the same bridge.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Subnet(u8);

impl Subnet {
    const ALL: [Self; 2] = [Self(1), Self(2)];

    /// Length of the IPv4 prefix.
    pub const IPV4_PREFIX: u8 = 24;
    /// Length of the IPv6 prefix.
    pub const IPV6_PREFIX: u8 = 64;

    /// The router's addresses in it.
    pub fn gateway(self) -> (Ipv4Addr, Ipv6Addr) {
        (self.ipv4(GATEWAY), self.ipv6(GATEWAY))
    }

    /// The name of its bridge in the hub's namespace.
    pub fn bridge(self) -> String {
        format!("subnet{}", self.0)
    }

    fn ipv4(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.0, 0, host)
    }

    /// The IPv6 address that looks like the IPv4 address: 10.2.0.5 and fd00:2::5, 10.2.0.254 and fd00:2::254.
    fn ipv6(self, host: u8) -> Ipv6Addr {
        let digits =
            u16::from(host / 100) << 8 | u16::from(host / 10 % 10) << 4 | u16::from(host % 10);
        Ipv6Addr::new(0xfd00, self.0.into(), 0, 0, 0, 0, 0, digits)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subnet {}", self.0)
    }
}

/// With this number, n2 behind a router is the server of the recorded C exchange: 10.2.0.5 is
/// fe80::2:c903:0:201.
const FIRST_HOST: u8 = 5;
const GATEWAY: u8 = 254;

/// The GID of port 1 of node `number`: an OpenIB GUID under the default subnet prefix.
fn node_gid(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0002, 0xc903, 0, u16::from(number) << 8 | 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn plan(nodes: u8, router: bool) -> Result<Plan> {
        Plan::new("a".parse()?, nodes, router)
    }

    #[test]
    fn second_node_behind_a_router_is_the_server_of_the_recorded_exchange() {
        let plan = plan(2, true).unwrap();
        let [n1, n2] = plan.nodes.as_slice() else { panic!("{plan:?}") };
        assert_eq!(n1.addresses.map(|ip| ip.to_string()), ["10.1.0.5", "fd00:1::5"]);
        assert_eq!(n2.addresses.map(|ip| ip.to_string()), ["10.2.0.5", "fd00:2::5"]);
        assert_eq!(n2.gid().unwrap(), "fe80::2:c903:0:201".parse().unwrap());
        let namespaces: Vec<_> = plan.namespaces().collect();
        assert_eq!(namespaces, ["ibarr-a-r", "ibarr-a-n1", "ibarr-a-n2"]);
        assert_eq!(plan.namespace_of("r").unwrap(), "ibarr-a-r");
    }

    #[test]
    fn no_two_nodes_share_an_address_or_a_gid() {
        for router in [false, true] {
            let plan = plan(Plan::MAX_NODES, router).unwrap();
            let gateways = plan.subnets.iter().map(|subnet| subnet.gateway());
            let addresses: Vec<IpAddr> = gateways
                .flat_map(|(v4, v6)| [v4.into(), v6.into()])
                .chain(plan.nodes.iter().flat_map(|node| node.addresses))
                .collect();
            assert_eq!(addresses.iter().collect::<HashSet<_>>().len(), addresses.len());
            let gids: HashSet<_> = plan.nodes.iter().map(|node| node.gid().unwrap()).collect();
            assert_eq!(gids.len(), plan.nodes.len());
        }
    }

    #[test]
    fn impossible_sizes_and_names_are_refused() {
        assert!(plan(0, false).is_err());
        assert!(plan(1, true).is_err());
        assert!(plan(Plan::MAX_NODES + 1, false).is_err());
        for name in ["", "-a", "a/b", "..", "A", "a b", &"a".repeat(33)] {
            assert!(name.parse::<LabName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn unknown_node_is_an_error_that_lists_the_nodes() {
        let error = plan(2, true).unwrap().namespace_of("n3").unwrap_err().to_string();
        assert_eq!(error, "lab a: no node \"n3\", it has n1 to n2 and r (the router)");
        assert!(plan(2, false).unwrap().namespace_of("r").is_err());
    }
}
