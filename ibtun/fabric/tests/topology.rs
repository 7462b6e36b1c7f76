// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Parsing of topologies, and the messages about mistakes.

use ibarr_common::ib::{Guid, PortNum};
use ibarr_fabric::Topology;
use ibarr_fabric::topology::{Node, PortId};
use ibarr_fabric::wire::smp::NodeType;
use proptest::prelude::*;

/// The output of `ibnetdiscover` for a fabric of `ibfab` under OpenSM 3.3.23.
const DISCOVERED: &str = include_str!("golden/ibnetdiscover.topo");

/// As `ibnetdiscover -g` groups it, with ports that have a number on the chassis.
const GROUPED: &str = include_str!("golden/ibnetdiscover-grouped.topo");

#[test]
fn output_of_ibnetdiscover_is_parsed() {
    let topology: Topology = DISCOVERED.parse().unwrap();
    assert_eq!(topology.nodes().count(), 6);
    let h2 = topology.find("0x100002").unwrap();
    let node = topology.node(h2).unwrap();
    assert_eq!((node.name.as_str(), node.description.as_str()), ("H-0000000000100002", "H2"));
    let port = topology.find_port("H-0000000000100002/1").unwrap();
    assert_eq!(node.port_guid(port.number), Some(Guid::new(0x10_0003)));
    let peer = topology.peer(port).unwrap();
    assert_eq!(topology.port_name(peer), "S-0000000000200000/2");
    assert_eq!(topology.peer(peer), Some(port));
}

#[test]
fn output_grouped_by_chassis_is_parsed() {
    let topology: Topology = GROUPED.parse().unwrap();
    let peers = ["leaf/1", "leaf/2", "spine/7"].map(|name| {
        let (node, number) = name.split_once('/').unwrap();
        let described = |(_, built): &(_, &Node)| built.description == node;
        let (node, _) = topology.nodes().find(described).unwrap();
        let number = PortNum::new(number.parse().unwrap()).unwrap();
        topology.port_name(topology.peer(PortId { node, number }).unwrap())
    });
    let [leaf, spine] = ["S-005442ba00001100", "S-005442ba00001200"];
    assert_eq!(
        peers,
        ["H-0008f10403960010/1".to_owned(), format!("{spine}/7"), format!("{leaf}/2")]
    );
    assert_eq!(topology.nodes().count(), 3);
}

#[test]
fn cable_without_a_far_port_leads_to_port_1() {
    let topology: Topology = "Hca 2 \"A\"\n[2] \"B\"\n\nHca 1 \"B\"\n[1] \"A\"[2]".parse().unwrap();
    let port = topology.find_port("A/2").unwrap();
    assert_eq!(topology.port_name(topology.peer(port).unwrap()), "B/1");
}

#[test]
fn guids_count_up_as_ibsim_counts_them() {
    let text = "Hca 1 \"H1\"\n\nHca 1 \"H2\"\n\nSwitch 8 \"S\"\n\nhcaguid=0x500\nHca 2 \"H3\"\n";
    let topology: Topology = text.parse().unwrap();
    let guids: Vec<_> = topology.nodes().map(|(_, node)| node.guid.get()).collect();
    assert_eq!(guids[..3], [0x10_0000, 0x10_0002, 0x20_0000]);
    assert_eq!(guids[3], 0x500);
    // Each key is known in the plural, too.
    let text = "hcaguids=0x100\nHca 1 \"A\"\n\nHca 1 \"B\"\n\nswitchguids=0x900\nSwitch 8 \"S\"\n";
    let topology: Topology = text.parse().unwrap();
    let guids: Vec<_> = topology.nodes().map(|(_, node)| node.guid.get()).collect();
    assert_eq!(guids, [0x100, 0x102, 0x900]);
}

#[test]
fn guids_wrap_around_after_the_last() {
    let text = "caguid=0xffffffffffffffff\nCa 1 \"H1\"\n\nCa 1 \"H2\"\n";
    let topology: Topology = text.parse().unwrap();
    let guids: Vec<_> = topology.nodes().map(|(_, node)| node.guid.get()).collect();
    assert_eq!(guids, [u64::MAX, 1]);
}

#[test]
fn quoted_name_may_contain_syntax_characters() {
    let text = "Switch 8 \"a=b # c\"\n[1] \"a=b # c\"[2] # a cable\n";
    let topology: Topology = text.parse().unwrap();
    let port = topology.find_port("a=b # c/1").unwrap();
    assert_eq!(topology.port_name(topology.peer(port).unwrap()), "a=b # c/2");
}

#[test]
fn mistake_is_reported_with_line_and_remedy() {
    let cases = [
        (
            "Swich 8 \"S\"",
            "line 1: not understood: write a node as `Switch 8 \"NAME\"`, a cable as \
          `[1] \"NAME\"[1]`",
        ),
        ("Switch \"S\"", "line 1: \"\" is not a number of ports: write 1 to 254"),
        ("Switch 255 \"S\"", "line 1: \"255\" is not a number of ports: write 1 to 254"),
        ("Switch 8 S", "line 1: the name is missing: write it in double quotes"),
        (
            "[1] \"S\"[1]",
            "line 1: a cable before the first node: begin with a line like \
          `Switch 8 \"NAME\"`",
        ),
        ("Switch 8 \"S\"\n[9] \"T\"[1]", "line 2: there is no port S/9: its node has fewer ports"),
        ("Switch 8 \"S\"\n[x] \"T\"[1]", "line 2: \"x\" is not a port: write 1 to 254 in brackets"),
        ("Switch 8 \"S\"\n[1] \"T\"1", "line 2: \"1\" is not a port: write 1 to 254 in brackets"),
        (
            "Switch 8 \"S\"\n\n[1] \"T\"[1]",
            "line 3: there is no node \"T\": add it, or correct the name",
        ),
        ("Switch 8 \"S\"\n[1] \"S\"[1]", "line 2: port S/1 cannot be cabled to itself"),
        (
            "Switch 8 \"S\"\n[1] \"S\"[2]\n[3] \"S\"[2]",
            "line 3: port S/2 has a cable to S/1 already",
        ),
        (
            "Switch 8 \"S\"\nSwitch 8 \"S\"",
            "line 2: there is a node \"S\" already: give each its own \
          name",
        ),
        (
            "caguid=0x200000\nCa 1 \"H\"\nSwitch 8 \"S\"",
            "line 3: there is a node with GUID 0x0000000000200000 already: set another before this \
             one",
        ),
        ("caguid=one", "line 1: \"one\" is not a number: write it like 0x200000"),
        (
            "Ca 1 \"H\"\n[1](xyz) \"S\"[1]",
            "line 2: \"xyz\" is not a number: write it like 0x200000",
        ),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Topology>().unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
    }
    let long = format!("Ca 1 \"H\" # \"{}\"", "x".repeat(65));
    let error = long.parse::<Topology>().unwrap_err();
    assert_eq!(error.to_string(), "line 1: the description is longer than 64 bytes");
}

fn topologies() -> impl Strategy<Value = Topology> {
    let nodes = prop::collection::vec((1..=3_u8, 1..=40_u8, "[ -~&&[^\"]]{1,20}"), 1..12);
    let cables = prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..40);
    (nodes, cables).prop_map(|(nodes, cables)| {
        let mut topology = Topology::new();
        for (kind, ports, name) in nodes {
            let (kind, ports) = (NodeType::new(kind).unwrap(), PortNum::new(ports).unwrap());
            // A name that is taken is not added again.
            let _ = topology.add_next(kind, &name, ports);
        }
        let ports: Vec<PortId> = topology
            .nodes()
            .flat_map(|(node, built)| {
                built.port_numbers().map(move |number| PortId { node, number })
            })
            .collect();
        for [one, other] in cables {
            let _ = topology.connect(*one.get(&ports), *other.get(&ports));
        }
        topology
    })
}

proptest! {
    #[test]
    fn topology_survives_writing_and_parsing(topology in topologies()) {
        let text = topology.to_string();
        prop_assert_eq!(text.parse::<Topology>(), Ok(topology), "{}", text);
    }

    #[test]
    fn any_text_gives_an_error_or_a_consistent_topology(text in "([\\[\\]()\"#=a-zA-Z0-9 \n\t]|Switch|Ca|caguid){0,80}") {
        if let Ok(topology) = text.parse::<Topology>() {
            for (id, node) in topology.nodes() {
                for number in node.port_numbers() {
                    let port = PortId { node: id, number };
                    if let Some(peer) = topology.peer(port) {
                        prop_assert_eq!(topology.peer(peer), Some(port));
                    }
                }
            }
        }
    }
}
