// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Topologies of any size: fat trees and tori.

use ibarr_common::ib::PortNum;

use super::{MAX_NODES, NodeId, PortId, Topology, TopologyError};
use crate::wire::smp::NodeType;

/// Why there is no such topology.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// There are no channel adapters.
    #[error("a topology has at least one channel adapter")]
    Empty,
    /// Half of the ports go down, half of them up.
    #[error("{0} ports: switches of a fat tree have an even number of ports, 2 to 254")]
    Radix(u8),
    /// A tree of three levels is too small.
    #[error(
        "switches of {radix} ports make a fat tree of at most {most} channel adapters: give them more ports"
    )]
    TooLarge {
        /// Number of ports of a switch.
        radix: u8,
        /// How many channel adapters three levels have.
        most: usize,
    },
    /// A torus has one to three dimensions.
    #[error("a torus has one to three sides of 1 to {MAX_NODES} switches, and so many in all")]
    Sides,
    /// The switches have too few ports.
    #[error("{0} channel adapters at each switch: a switch has at most 254 ports")]
    Hosts(usize),
    /// There are too many nodes.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// A fat tree of full bandwidth for `hosts` channel adapters, H1 and so on, of switches of `radix`
/// ports: one switch if they suffice; else leaves L1 …, each with half of its ports up, under spines
/// S1 …; else pods of those, with cores C1 … above them. Leaves that have no adapter are left out.
///
/// # Errors
/// If three levels do not suffice.
pub fn fat_tree(hosts: usize, radix: u8) -> Result<Topology, GenerateError> {
    let half = usize::from(radix / 2);
    let most = 2 * half * half * half;
    if hosts == 0 {
        return Err(GenerateError::Empty);
    }
    if !radix.is_multiple_of(2) || radix == 0 {
        return Err(GenerateError::Radix(radix));
    }
    if hosts > most {
        return Err(GenerateError::TooLarge { radix, most });
    }
    let mut tree = Builder::new(radix)?;
    if hosts <= usize::from(radix) {
        let switches = tree.switches("S", 1)?;
        tree.hosts(&switches, hosts, usize::from(radix))?;
        return Ok(tree.topology);
    }
    let leaves = tree.switches("L", hosts.div_ceil(half))?;
    tree.hosts(&leaves, hosts, half)?;
    // A pod has as many leaves as its spines have ports down.
    let is_two_levels = leaves.len() <= usize::from(radix);
    let pods: Vec<&[NodeId]> =
        leaves.chunks(if is_two_levels { usize::from(radix) } else { half }).collect();
    let spines = tree.switches("S", pods.len() * half)?;
    for (leaves, spines) in pods.iter().zip(spines.chunks(half)) {
        for (down, &leaf) in (1..).zip(*leaves) {
            for (up, &spine) in (half + 1..).zip(spines) {
                tree.connect((leaf, up), (spine, down))?;
            }
        }
    }
    if !is_two_levels {
        let cores = tree.switches("C", half * half)?;
        for (pod, spines) in (1..).zip(spines.chunks(half)) {
            for (spine, cores) in spines.iter().zip(cores.chunks(half)) {
                for (up, &core) in (half + 1..).zip(cores) {
                    tree.connect((*spine, up), (core, pod))?;
                }
            }
        }
    }
    Ok(tree.topology)
}

/// A torus of switches, S1 and so on, each with a cable to both neighbours along each side, which is
/// a ring. `hosts` channel adapters, H1 and so on, are spread evenly. Neighbours on a side of two
/// have one cable.
///
/// # Errors
/// If a switch would have too many ports.
pub fn torus(sides: &[usize], hosts: usize) -> Result<Topology, GenerateError> {
    let count = sides.iter().try_fold(1_usize, |count, &side| count.checked_mul(side));
    let count =
        count.filter(|count| (1..=MAX_NODES).contains(count)).ok_or(GenerateError::Sides)?;
    if !(1..=3).contains(&sides.len()) {
        return Err(GenerateError::Sides);
    }
    if hosts == 0 {
        return Err(GenerateError::Empty);
    }
    let each = hosts.div_ceil(count);
    let ports = each.checked_add(2 * sides.len()).and_then(|ports| u8::try_from(ports).ok());
    let mut torus = Builder::new(ports.ok_or(GenerateError::Hosts(each))?)?;
    let switches = torus.switches("S", count)?;
    let mut stride = 1;
    for (axis, &side) in sides.iter().enumerate() {
        let (forth, back) = (2 * axis + 1, 2 * axis + 2);
        for (index, &switch) in switches.iter().enumerate() {
            let at = index / stride % side;
            let next = if at + 1 == side { index - at * stride } else { index + stride };
            // A ring of two is one cable, and a ring of one is none.
            if side > 2 || at + 1 < side {
                torus.connect((switch, forth), (switches[next], back))?;
            }
        }
        stride *= side;
    }
    for host in 0..hosts {
        let port = 2 * sides.len() + 1 + host / count;
        torus.host(host, (switches[host % count], port))?;
    }
    Ok(torus.topology)
}

struct Builder {
    topology: Topology,
    /// Number of ports of a switch.
    radix: PortNum,
}

impl Builder {
    fn new(radix: u8) -> Result<Self, GenerateError> {
        let radix = PortNum::new(radix).ok_or(GenerateError::Hosts(radix.into()))?;
        Ok(Self { topology: Topology::new(), radix })
    }

    fn switches(&mut self, prefix: &str, count: usize) -> Result<Vec<NodeId>, GenerateError> {
        let switches = (1..=count).map(|index| {
            self.topology.add_next(NodeType::Switch, &format!("{prefix}{index}"), self.radix)
        });
        Ok(switches.collect::<Result<_, _>>()?)
    }

    /// Adds channel adapters below the leaves, so many to each.
    fn hosts(&mut self, leaves: &[NodeId], hosts: usize, each: usize) -> Result<(), GenerateError> {
        (0..hosts).try_for_each(|host| self.host(host, (leaves[host / each], host % each + 1)))
    }

    fn host(&mut self, index: usize, at: (NodeId, usize)) -> Result<(), GenerateError> {
        let name = format!("H{}", index + 1);
        let one = PortNum::new(1).ok_or(GenerateError::Empty)?;
        let host = self.topology.add_next(NodeType::ChannelAdapter, &name, one)?;
        self.connect((host, 1), at)
    }

    fn connect(
        &mut self,
        one: (NodeId, usize),
        other: (NodeId, usize),
    ) -> Result<(), GenerateError> {
        let port = |(node, number): (NodeId, usize)| {
            let number = u8::try_from(number).ok().and_then(PortNum::new);
            Some(PortId { node, number: number? })
        };
        let ends = port(one).zip(port(other)).ok_or(GenerateError::Hosts(one.1.max(other.1)))?;
        Ok(self.topology.connect(ends.0, ends.1)?)
    }
}
