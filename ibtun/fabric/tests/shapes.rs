// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Generated topologies, and topologies in the form of `ibnetdiscover`.

use std::collections::{BTreeMap, BTreeSet};

use ibarr_common::ib::PortNum;
use ibarr_fabric::Topology;
use ibarr_fabric::topology::{GenerateError, NodeId, PortId, Rate, fat_tree, torus};
use ibarr_fabric::wire::smp::NodeType;
use proptest::prelude::*;

/// The ports that cables lead to from a node.
fn neighbours(topology: &Topology, node: NodeId) -> Vec<NodeId> {
    let numbers = topology.node(node).unwrap().port_numbers();
    let peers = numbers.filter_map(|number| topology.peer(PortId { node, number }));
    peers.map(|peer| peer.node).collect()
}

/// How many nodes there are whose name begins so, and how many cables each of them has.
fn degrees(topology: &Topology) -> BTreeMap<(char, usize), usize> {
    let mut degrees = BTreeMap::new();
    for (id, node) in topology.nodes() {
        let kind = node.name.chars().next().unwrap();
        *degrees.entry((kind, neighbours(topology, id).len())).or_default() += 1;
    }
    degrees
}

fn is_connected(topology: &Topology) -> bool {
    let first = topology.nodes().next().unwrap().0;
    let (mut seen, mut next) = (BTreeSet::from([first]), vec![first]);
    while let Some(node) = next.pop() {
        next.extend(neighbours(topology, node).into_iter().filter(|&far| seen.insert(far)));
    }
    seen.len() == topology.nodes().count()
}

#[test]
fn fat_tree_has_as_many_switches_and_cables_as_it_should() {
    for (hosts, radix, expected) in [
        // One switch.
        (1, 36, &[(('H', 1), 1), (('S', 1), 1)][..]),
        (4, 4, &[(('H', 1), 4), (('S', 4), 1)]),
        // Two levels: full, and with a leaf of one adapter.
        (8, 4, &[(('H', 1), 8), (('L', 4), 4), (('S', 4), 2)]),
        (5, 4, &[(('H', 1), 5), (('L', 3), 1), (('L', 4), 2), (('S', 3), 2)]),
        (648, 36, &[(('H', 1), 648), (('L', 36), 36), (('S', 36), 18)]),
        // Three levels: full, and with a pod of one leaf.
        (16, 4, &[(('C', 4), 4), (('H', 1), 16), (('L', 4), 8), (('S', 4), 8)]),
        (
            9,
            4,
            &[
                (('C', 3), 4),
                (('H', 1), 9),
                (('L', 3), 1),
                (('L', 4), 4),
                (('S', 3), 2),
                (('S', 4), 4),
            ],
        ),
        (11_664, 36, &[(('C', 36), 324), (('H', 1), 11_664), (('L', 36), 648), (('S', 36), 648)]),
    ] {
        let tree = fat_tree(hosts, radix).unwrap();
        let expected: BTreeMap<_, _> = expected.iter().copied().collect();
        assert_eq!(degrees(&tree), expected, "{hosts} of {radix}");
        assert!(is_connected(&tree), "{hosts} of {radix}");
        assert_eq!(fat_tree(hosts, radix).unwrap(), tree, "the same call, the same tree");
    }
    let refused = [fat_tree(0, 36), fat_tree(17, 4), fat_tree(4, 5), fat_tree(4, 0)];
    let expected = [
        GenerateError::Empty,
        GenerateError::TooLarge { radix: 4, most: 16 },
        GenerateError::Radix(5),
        GenerateError::Radix(0),
    ];
    assert_eq!(refused, expected.map(Err));
}

#[test]
fn torus_is_a_ring_along_each_side() {
    for (sides, hosts, expected) in [
        (&[4, 4, 4][..], 64, &[(('H', 1), 64), (('S', 7), 64)][..]),
        (&[3, 5], 15, &[(('H', 1), 15), (('S', 5), 15)]),
        // A side of two has one cable between both, a side of one none.
        (&[2, 3, 1], 6, &[(('H', 1), 6), (('S', 4), 6)]),
        // Adapters are spread evenly.
        (&[3], 7, &[(('H', 1), 7), (('S', 4), 2), (('S', 5), 1)]),
        (&[1], 2, &[(('H', 1), 2), (('S', 2), 1)]),
    ] {
        let built = torus(sides, hosts).unwrap();
        let expected: BTreeMap<_, _> = expected.iter().copied().collect();
        assert_eq!(degrees(&built), expected, "{hosts} at {sides:?}");
        assert!(is_connected(&built), "{hosts} at {sides:?}");
        // A switch has one cable to each neighbour.
        for (id, _) in built.nodes() {
            let all = neighbours(&built, id);
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        }
    }
    // Along the sides: from S1 three steps forth are back.
    let ring = torus(&[3, 3], 9).unwrap();
    let mut at = ring.find("S1").unwrap();
    let ways = [1, 1, 1, 3, 3, 3].map(|number| {
        at = ring.peer(PortId { node: at, number: PortNum::new(number).unwrap() }).unwrap().node;
        ring.node(at).unwrap().name.as_str()
    });
    assert_eq!(ways, ["S2", "S3", "S1", "S4", "S7", "S1"]);
    for (sides, hosts, expected) in [
        (&[][..], 1, GenerateError::Sides),
        (&[1, 1, 1, 1], 1, GenerateError::Sides),
        (&[0, 4], 1, GenerateError::Sides),
        (&[usize::MAX, 2], 1, GenerateError::Sides),
        (&[4], 0, GenerateError::Empty),
        (&[1], 300, GenerateError::Hosts(300)),
        (&[1], 253, GenerateError::Hosts(255)),
    ] {
        assert_eq!(torus(sides, hosts), Err(expected), "{hosts} at {sides:?}");
    }
}

/// Recorded from a fabric of `ibfab`, whose own export must say the same.
const DISCOVERED: &str = include_str!("golden/ibnetdiscover-chassis.topo");

/// Whatever the order of the nodes: the paragraphs without comments of their own lines, sorted.
fn paragraphs(text: &str) -> BTreeSet<String> {
    let text = text.replace("\t\t# Chassis 1\n", "\n").replace("\t# \n", "\n");
    let paragraphs = text.split("\n\n").filter(|text| text.contains("guid="));
    let lines = paragraphs
        .map(|text| text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')));
    lines.map(|lines| lines.collect::<Vec<_>>().join("\n")).collect()
}

#[test]
fn export_is_what_ibnetdiscover_wrote() {
    let topology: Topology = DISCOVERED.parse().unwrap();
    // As OpenSM had assigned them.
    let lids = BTreeMap::from([
        ("H-0000000000100000/1", 1),
        ("H-0000000000100010/1", 5),
        ("H-0000000000100020/1", 6),
        ("H-0000000000100020/2", 7),
        ("R-0000000000300000/1", 3),
    ]);
    let lid = |port: PortId| match topology.node(port.node).unwrap().guid.get() {
        0x20_0000 => 2,
        0x20_0010 => 4,
        _ => lids[topology.port_name(port).as_str()],
    };
    let exported = topology.discovered(|port| (lid(port), 0)).to_string();
    assert_eq!(paragraphs(&exported), paragraphs(DISCOVERED));
}

fn discovered(topology: &Topology) -> String {
    topology.discovered(|_| (0, 0)).to_string()
}

prop_compose! {
    fn topologies()(
        nodes in prop::collection::vec((1..=3_u8, 1..=40_u8, "[ -~&&[^\"]]{1,20}"), 1..12),
        cables in prop::collection::vec(any::<([prop::sample::Index; 2], prop::sample::Index)>(), 0..40),
    ) -> Topology {
        let mut topology = Topology::new();
        for (kind, ports, name) in nodes {
            let (kind, ports) = (NodeType::new(kind).unwrap(), PortNum::new(ports).unwrap());
            // A name that is taken is not added again.
            let _ = topology.add_next(kind, &name, ports);
        }
        let ports: Vec<PortId> = topology
            .nodes()
            .flat_map(|(node, built)| built.port_numbers().map(move |number| PortId { node, number }))
            .collect();
        let rates: [Rate; 5] =
            ["1xSDR", "4xQDR", "2xHDR", "8xNDR", "12xXDR"].map(|rate| rate.parse().unwrap());
        for ([one, other], rate) in cables {
            if topology.connect(*one.get(&ports), *other.get(&ports)).is_ok() {
                topology.set_rate(*one.get(&ports), *rate.get(&rates));
            }
        }
        topology
    }
}

proptest! {
    #[test]
    fn export_then_read_gives_the_same_topology(topology in topologies()) {
        let text = discovered(&topology);
        let read: Topology = text.parse().unwrap();
        prop_assert_eq!(discovered(&read), text);
        let originals: BTreeMap<_, _> =
            topology.nodes().map(|(id, node)| (node.guid, (id, node))).collect();
        prop_assert_eq!(read.nodes().count(), originals.len());
        for (id, node) in read.nodes() {
            let (original_id, original) = originals[&node.guid];
            prop_assert_eq!(node.kind, original.kind);
            prop_assert_eq!(&node.description, &original.description);
            prop_assert_eq!(node.system_image_guid, original.system_image_guid);
            prop_assert_eq!(node.port_count(), original.port_count());
            for number in node.port_numbers() {
                let (port, before) =
                    (PortId { node: id, number }, PortId { node: original_id, number });
                let end = |topology: &Topology, port| {
                    let peer = topology.peer(port)?;
                    Some((topology.node(peer.node)?.guid, peer.number, topology.rate(port)?))
                };
                prop_assert_eq!(end(&read, port), end(&topology, before));
                prop_assert_eq!(node.port_guid(number), original.port_guid(number));
            }
        }
        // And in the language of ibsim.
        prop_assert_eq!(topology.to_string().parse::<Topology>(), Ok(topology));
    }
}
