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

/// As `ibnetdiscover -g` writes it, with a loopback plug and an odd description.
const CHASSIS: &str = include_str!("golden/ibnetdiscover-chassis.topo");

/// As `ibnetdiscover -s -g -f` writes it, with what its library says on stderr.
const PROGRESS: &str = include_str!("golden/ibnetdiscover-progress.topo");

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

/// The ports of a cable, by name.
fn peer(topology: &Topology, port: &str) -> String {
    topology.port_name(topology.peer(topology.find_port(port).unwrap()).unwrap())
}

fn rate(topology: &Topology, port: &str) -> String {
    topology.rate(topology.find_port(port).unwrap()).unwrap().to_string()
}

#[test]
fn chassis_loopback_plug_and_odd_description_are_read() {
    let topology: Topology = CHASSIS.parse().unwrap();
    let names = topology.nodes().map(|(_, node)| node.description.as_str());
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["S1", "S2", "H3", "odd \"name\"    # 1", "H2", "R1"]);
    assert_eq!(peer(&topology, "S-0000000000200000/5"), "S-0000000000200000/5");
    let bytes = CHASSIS.replace("H3", "H\u{fe}3").replace('\u{fe}', "\u{fe}\u{fe}").into_bytes();
    let bytes: Vec<u8> = bytes.into_iter().filter(|&byte| byte != 0xbe).collect();
    let topology = Topology::parse(&bytes, &mut |_| panic!("no file")).unwrap();
    let (_, odd) = topology.nodes().nth(2).unwrap();
    assert_eq!(odd.description, "H??3");
}

#[test]
fn progress_and_messages_of_the_libraries_are_passed_over() {
    let topology: Topology = PROGRESS.parse().unwrap();
    assert_eq!(topology.nodes().count(), 3);
    assert_eq!(rate(&topology, "H-0000000000100002"), "4xSDR");
    let (message, _) = PROGRESS.split_once("\nDR path").unwrap();
    let message = message.lines().last().unwrap();
    assert!(message.contains("bad status 110"), "{message}");
    // Wherever it stands.
    for message in [message, "ibwarn: [17846] mad_rpc: _do_madrpc failed; dport (Lid 7)"] {
        let lines = DISCOVERED.lines().flat_map(|line| [line, "\n", message, "\n"]);
        let noisy: String = lines.collect();
        assert_eq!(noisy.parse::<Topology>(), DISCOVERED.parse());
    }
}

#[test]
fn other_reports_of_ibnetdiscover_are_refused_by_name() {
    let cases = [
        (
            "Ca\t : 0x0000000000100020 ports 2 devid 0x0 vendid 0x2c9 \"H3\"",
            "a list of nodes has no cables: call ibnetdiscover without -l, -H, -S and -R",
        ),
        (
            "SW     2  1 0x0000000000200000 4x QDR - CA     1  1 0x0000000000100001 ( 'S1' - 'H1' )",
            "a report of ports lacks the nodes' ids: call ibnetdiscover without -p",
        ),
        (
            "< [1]\t\"H-0000000000100000\"[1](100001)",
            "a comparison is not a topology: call ibnetdiscover without --diff",
        ),
    ];
    for (line, reason) in cases {
        let error = line.parse::<Topology>().unwrap_err();
        assert_eq!(error.to_string(), format!("line 1: {reason}"));
    }
}

#[test]
fn descriptions_are_read_as_each_version_writes_them() {
    for (line, expected) in [
        ("Switch 8 \"S\"\t# \"a \"b\" c\" enhanced port 0 lid 2 lmc 0", "a \"b\" c"),
        (
            "Switch 8 \"S\"\t# MT47396 Infiniscale-III base port 0 lid 2 lmc 0",
            "MT47396 Infiniscale-III",
        ),
        ("Ca 1 \"S\"\t# \"vnic \"1\"\" (scp)", "vnic \"1\""),
        ("Ca 1 \"S\"\t# \"name\" and more", "name"),
        ("Ca 1 \"S\"\t# a comment", "S"),
        ("Ca 1 \"S\"\t# \"\"", "S"),
    ] {
        let topology: Topology = line.parse().unwrap();
        let (_, node) = topology.nodes().next().unwrap();
        assert_eq!(node.description, expected, "{line}");
    }
}

#[test]
fn link_has_the_fastest_rate_that_both_ends_have() {
    let of = |one: &str, other: &str| {
        let text =
            format!("Switch 2 \"S\"\n[1] \"H\"[1]{one}\n\nCa 1 \"H\"\n[1] \"S\"[1]{other}\n");
        text.parse::<Topology>().map(|topology| rate(&topology, "S"))
    };
    let seen = |rate: &str| format!("(100001) \t\t# \"H\" lid 7 {rate} s=4 w=2 v=4");
    for (one, other, expected) in [
        (String::new(), String::new(), "4xQDR"),
        // What one end says of the link holds for the other, if that says nothing.
        (seen("4xNDR"), String::new(), "4xNDR"),
        (seen("12xXDR"), seen("12xXDR"), "12xXDR"),
        (seen("2xHDR"), seen("2xHDR"), "2xHDR"),
        // An attribute of one vendor says that it is FDR10; PortInfo says QDR.
        (seen("4xFDR10"), String::new(), "4xQDR"),
        // ibnetdiscover did not know it either.
        (seen("4x???"), String::new(), "4xQDR"),
        // An option is of its port alone.
        (" w=1 s=1".to_owned(), String::new(), "1xSDR"),
        (" w=11 e=15".to_owned(), "\tw=15 s=7 e=0x0f".to_owned(), "12xNDR"),
        (" e=32".to_owned(), " e=0x2f".to_owned(), "4xXDR"),
        (" s=0".to_owned(), " s=4".to_owned(), "4xQDR"),
    ] {
        assert_eq!(of(&one, &other), Ok(expected.to_owned()), "{one} {other}");
    }
    for (one, other, expected) in [
        (" w=8", " w=2", "line 2: ports S/1 and H/1 have no width or no speed in common"),
        (" w=0", "", "line 2: \"w=0\" is not an option of a port: "),
        (" s=8", "", "line 2: \"s=8\" is not an option of a port: "),
        (" e=16", "", "line 2: \"e=16\" is not an option of a port: "),
        (" v=1", "", "line 2: \"v=1\" is not an option of a port: "),
        ("", " # lid 1 lmc 0 \"S\" lid 2 4xGDR", "line 5: \"4xGDR\" is not a width and speed"),
    ] {
        let error = of(one, other).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Every keyword of ibsim's parser but `include`.
const IBSIM: &str = "\
pdebug=0
width=11
speed=7
extspeed=8
module=\"A\"
vendid=0x8f1
devid=23108
switchguids=0x500
Switch 4 \"S\"
[1] \"H\"[1]
[2] \"B@up\"
@[3] \"in\" w=3

hcaguids+0x10
Hca 2 \"H\"
[1] \"S\"

module=\"B\"
switchguid+0x20
Switch 4 \"S\"
@[4] \"up\"
[1] \"A#H\"[2]

module=\"\"
rtguid=0x900
Rt 1 \"R\"
[1] \"A@in\"
";

#[test]
fn language_of_ibsim_is_read() {
    let topology: Topology = IBSIM.parse().unwrap();
    let guids = topology.nodes().map(|(_, node)| (node.name.as_str(), node.guid.get()));
    let guids: Vec<_> = guids.collect();
    assert_eq!(guids, [("A#S", 0x500), ("A#H", 0x10_0010), ("B#S", 0x520), ("R", 0x900)]);
    let peers = ["A#S/1", "A#S/2", "A#S/3", "A#H/2"].map(|port| peer(&topology, port));
    assert_eq!(peers, ["A#H/1", "B#S/4", "R/1", "B#S/1"]);
    let rates = ["A#S/1", "A#S/3"].map(|port| rate(&topology, port));
    assert_eq!(rates, ["12xNDR", "4xNDR"]);
    let (_, node) = topology.nodes().next().unwrap();
    assert_eq!((node.vendor_id, node.device_id), (0x8f1, 23108));
}

#[test]
fn what_ibsim_alone_can_do_is_refused_by_name() {
    for (text, expected) in [
        (
            "Ca 1 \"H\"\n\ndo Unlink \"H\"[1]",
            "line 3: a command for ibsim's console: leave it out, and use `ibfab fault` when it runs",
        ),
        ("\ninclude \"a.net\"", "line 2: cannot read a.net: unsupported"),
        ("include a.net", "line 1: the name is missing: write it in double quotes"),
        ("module=A", "line 1: the name is missing: write it in double quotes"),
        ("vendid+1", "line 1: not understood: "),
        ("width=32", "line 1: \"32\" is not an option of a port: "),
        (
            "Ca 1 \"H\"\n[1] \"@up\"",
            "line 2: there is no alias \"@up\": define it as `@[1] \"ALIAS\"` at its port",
        ),
        (
            "Ca 2 \"H\"\n@[1] \"up\"\n@[2] \"up\"",
            "line 3: there is an alias \"@up\" already: give each its own",
        ),
    ] {
        let error = text.parse::<Topology>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn file_includes_others_and_mistakes_name_the_file() {
    let read = |text: &str, other: &str| {
        Topology::parse(text.as_bytes(), &mut |name| match name {
            "b.net" => Ok(other.as_bytes().to_vec()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        })
    };
    let top = "Switch 2 \"S\"\n[1] \"H\"[1]\n\ninclude \"b.net\"\n[2] \"H\"[2]\n";
    let topology = read(top, "Ca 2 \"H\"\n").unwrap();
    assert_eq!(peer(&topology, "S/1"), "H/1");
    // What follows continues the last node of the file.
    assert_eq!(peer(&topology, "H/2"), "H/2");
    let error = read(top, "\n\nCa \"H\"\n").unwrap_err();
    assert_eq!(error.to_string(), "b.net, line 3: \"\" is not a number of ports: write 1 to 254");
    let error = read(top, "include \"b.net\"").unwrap_err();
    assert_eq!(error.to_string(), "b.net, line 1: more than 9 files that include each other");
    let error = read(top, "include \"c.net\"").unwrap_err();
    assert_eq!(error.to_string(), "b.net, line 1: cannot read c.net: entity not found");
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
    fn any_text_gives_an_error_or_a_consistent_topology(text in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        "([\\[\\]()\"#=+@a-zA-Z0-9 \n\t]|Switch|Ca|caguid|module=|include \"|lid 1 4x){0,80}".prop_map(String::into_bytes),
        // Real output with a piece of it somewhere else.
        (any::<[prop::sample::Index; 3]>(), any::<u8>()).prop_map(|(at, byte)| {
            let mut text = [CHASSIS, IBSIM].concat().into_bytes();
            let [from, to, changed] = at.map(|at| at.index(text.len()));
            let piece = text[from..text.len().min(from + 40)].to_vec();
            text.splice(to..to, piece);
            text[changed] = byte;
            text
        }),
    ]) {
        if let Ok(topology) = Topology::parse(&text, &mut |_| Ok(b"Ca 1 \"I\"".to_vec())) {
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
