// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Checks the parsers against messages of the kernel, recorded or built from its source.
//!
//! The recordings are from a little-endian machine; netlink uses the host's byte order.
#![cfg(target_endian = "little")]

mod fib;
mod ipoib;
mod kernel;
mod neigh;
mod session;
mod story;

use ibarr_common::ib::PKey;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::local_view::{AddressId, Bonding, Dad, Input, InterfaceAddress, Link, LinkType};
use proptest::prelude::*;

use self::kernel::{Attr, Message, index, recorded};
use super::message::{Frame, Malformed, change, frames};
use super::routes::{Lookups, RouteQuery};
use super::*;

const LINKS: &str = include_str!("../../../tests/golden/rtnetlink-links.hex");
const ADDRESSES: &str = include_str!("../../../tests/golden/rtnetlink-addresses.hex");
const EVENTS: &str = include_str!("../../../tests/golden/rtnetlink-events.hex");
const BOND: &str = include_str!("../../../tests/golden/rtnetlink-bond.hex");
const ROUTES: &str = include_str!("../../../tests/golden/rtnetlink-routes.hex");

#[test]
fn recorded_links_are_read() {
    assert_eq!(
        tell(LINKS),
        [
            "datagram",
            "link 1 lo loopback 00:00:00:00:00:00 up",
            "link 2 ib0 infiniband - up",
            "link 3 br0 ether 56:49:9e:2e:bf:ea down",
            "datagram",
            "link 4 veth1 ether 56:49:9e:2e:bf:ea up",
            "link 5 veth0 ether ee:b3:f3:b8:a1:b7 up",
            "datagram",
        ]
    );
}

#[test]
fn recorded_addresses_are_read() {
    assert_eq!(
        tell(ADDRESSES),
        [
            "datagram",
            "address 127.0.0.1 on 1",
            "address 10.2.0.1 on 2",
            "address 10.1.0.1 on 5",
            "address 10.1.0.1 on 5",
            "address ::1 on 1",
            "address fe80::5449:9eff:fe2e:bfea on 4",
            "address fd00:1::2 on 5",
            "address fd00:1::1 on 5",
            "address fe80::ecb3:f3ff:feb8:a1b7 on 5",
            "datagram",
        ]
    );
    // 10.1.0.1 is there with a prefix of 24 bits, and with one of 32 and a peer.
    let ids: Vec<_> = changes(ADDRESSES)
        .filter_map(|change| match change {
            Input::Address(entry) if entry.id.address() == ip("10.1.0.1") => Some(entry.id),
            _ => None,
        })
        .collect();
    let peer = Some(ip("10.1.0.2"));
    let expected = [(24, None), (32, peer)]
        .map(|(bits, peer)| AddressId::new(index(5), ip("10.1.0.1"), bits, peer));
    assert_eq!(ids, expected);
}

#[test]
fn recorded_events_are_read() {
    let a1_up = "link 6 a1 ether 9a:74:90:4b:05:0c up";
    assert_eq!(
        tell(EVENTS),
        [
            "ip link add name a0 type veth peer name a1",
            "link 6 a1 ether 9a:74:90:4b:05:0c down",
            "link 7 a0 ether c6:01:02:21:bc:fb down",
            "ip link set a1 up",
            a1_up,
            "ip link set a0 up",
            "link 7 a0 ether c6:01:02:21:bc:fb up",
            "link 7 a0 ether c6:01:02:21:bc:fb up",
            a1_up,
            "address fe80::c401:2ff:fe21:bcfb on 7",
            "address fe80::9874:90ff:fe4b:50c on 6",
            "ip addr add fd00:9::1/64 dev a0",
            "address fd00:9::1 on 7 Tentative",
            "address fd00:9::1 on 7",
            "ip addr add 10.9.0.1/24 dev a0",
            "address 10.9.0.1 on 7",
            "ip addr del 10.9.0.1/24 dev a0",
            "address 10.9.0.1 on 7 gone",
            "ip link set a1 master br0",
            a1_up,
            a1_up,
            // One more event of the bridge, about its port.
            "ip link set a1 nomaster",
            a1_up,
            // Two more events of the bridge, one of them an RTM_DELLINK. The link is not gone.
            a1_up,
            "ip link set a0 down",
            "link 7 a0 ether c6:01:02:21:bc:fb down",
            "address fd00:9::1 on 7 gone",
            "address fe80::c401:2ff:fe21:bcfb on 7 gone",
            a1_up,
            "ip link set a0 name b0",
            "link 7 b0 ether c6:01:02:21:bc:fb down",
            "ip netns add view-cap-1; ip link set b0 netns view-cap-1",
            "link 7 gone",
            "ip link del a1",
            "link 6 a1 ether 9a:74:90:4b:05:0c down",
            "address fe80::9874:90ff:fe4b:50c on 6 gone",
            "link 6 gone",
        ]
    );
}

#[test]
fn recorded_routes_answer_their_questions() {
    let expected = [
        ("10.1.0.9", Ok(("10.1.0.9", 5)), Some("10.1.0.1")),
        ("10.3.0.1", Ok(("10.1.0.254", 5)), Some("10.1.0.1")),
        ("10.4.0.1", Ok(("fe80::254", 5)), Some("10.1.0.1")),
        ("10.1.0.1", Err(NoRoute::Local), Some("10.1.0.1")),
        ("10.1.0.255", Err(NoRoute::NotUnicast), None),
        ("10.5.0.1", Err(NoRoute::Unreachable), None),
        ("10.6.0.1", Err(NoRoute::Forbidden), None),
        ("10.7.0.1", Err(NoRoute::Forbidden), None),
        ("192.0.2.1", Err(NoRoute::Unreachable), None),
        ("fd00:1::9", Ok(("fd00:1::9", 5)), Some("fd00:1::2")),
        ("fd00:3::1", Ok(("fd00:1::254", 5)), Some("fd00:1::2")),
        ("fd00:1::1", Err(NoRoute::Local), Some("fd00:1::1")),
        ("fd00:5::1", Err(NoRoute::Unreachable), None),
        ("fd00:6::1", Err(NoRoute::Forbidden), None),
        ("fd00:7::1", Err(NoRoute::Forbidden), None),
        ("2001:db8::1", Err(NoRoute::Unreachable), None),
        ("fe80::1 oif 5", Ok(("fe80::1", 5)), Some("fe80::ecb3:f3ff:feb8:a1b7")),
        // An answer without a route, see `Routes`.
        ("192.0.2.1 oif 5", Ok(("192.0.2.1", 5)), Some("10.1.0.1")),
    ];
    let recorded = recorded(ROUTES);
    assert_eq!(recorded.len(), expected.len());
    for ((asked, mut datagram), (question, route, source)) in recorded.into_iter().zip(expected) {
        assert_eq!(asked, question);
        let (target, egress) = question.split_once(" oif ").unwrap_or((question, "0"));
        let question =
            Question::new(ip(target), ibarr_common::IfIndex::new(egress.parse().unwrap())).unwrap();
        let mut lookups = Lookups::new(Arc::default());
        lookups.handle_question(RouteQuery::Route(question.into()));
        let (seq, _) = lookups.poll_transmit().unwrap();
        // Recorded with the sequence number 7.
        datagram[8..12].copy_from_slice(&seq.to_ne_bytes());
        let mut answers = Vec::new();
        lookups.handle_datagram(&datagram, &mut answers);
        let [Answer::Route(answer)] = answers.as_slice() else { panic!("{question}: {answers:?}") };
        let got = answer.route.map(|route| (route.next_hop, route.ifindex));
        let route = route.map(|(next_hop, ifindex)| (ip(next_hop), index(ifindex)));
        assert_eq!((answer.candidate, got), (question.into(), route), "{question}");
        assert_eq!(answer.source, source.map(ip), "{question}");
    }
}

#[test]
fn recorded_bonds_and_teams_are_read() {
    let told: Vec<_> = changes(BOND)
        .map(|change| match change {
            Input::Link(link) => (link.name.to_string(), link.bonding),
            other => panic!("{other:?}"),
        })
        .collect();
    let slave = |of| Bonding::Slave { of: index(of) };
    let master = |active: Option<u32>| Bonding::Master { active_slave: active.map(index) };
    let expected = [
        ("d0", slave(6)),
        ("d1", slave(6)),
        ("bond1", master(Some(4))),
        ("team0", master(None)),
        ("d2", slave(7)),
        ("d0", slave(6)),
        ("bond1", master(Some(5))),
        ("d1", slave(6)),
        ("bond1", master(None)),
        ("d1", Bonding::None),
    ];
    assert_eq!(told, expected.map(|(name, bonding)| (name.to_owned(), bonding)));
}

/// Built from `rtnl_fill_prop_list` and `rtnl_link_slave_info_fill` of Linux 6.12.
#[test]
fn other_names_and_the_vrf_of_a_link_are_read() {
    let with = |attrs: &[Attr]| {
        let link = Message::link(16, 5, LinkType::INFINIBAND.get(), 0x1043);
        let link = attrs
            .iter()
            .fold(link.with(Attr::text(3, "ibs0")), |link, attr| link.with(attr.clone()));
        match change(&frames(&link.bytes()).next().unwrap().unwrap()).unwrap() {
            Some(Input::Link(link)) => link,
            other => panic!("{other:?}"),
        }
    };
    let link = with(&[
        Attr::u32(10, 9),
        Attr::nest(18, &[Attr::text(4, "vrf")]),
        Attr::nest(
            0x34 | 1 << 15,
            &[Attr::text(53, "ib0"), Attr::new(54, b"x"), Attr::text(53, "rail-0")],
        ),
    ]);
    assert_eq!((link.vrf, link.bonding), (Some(index(9)), Bonding::None));
    assert_eq!(link.altnames.iter().collect::<Vec<_>>(), [&b"ib0"[..], b"rail-0"]);
    let other = with(&[Attr::u32(10, 9), Attr::nest(18, &[Attr::text(4, "bridge")])]);
    assert_eq!((other.vrf, other.altnames.iter().count()), (None, 0));
}

/// Built from `rtnl_fill_ifinfo`, `bond_fill_info`, `bond_fill_slave_info` and
/// `rtnl_link_slave_info_fill` of Linux 6.12, because no kernel that we have recorded has an
/// InfiniBand port.
#[test]
fn constructed_infiniband_bond_is_read() {
    let port = |last: u8| {
        let mut hwaddr = *b"\x80\0\0\x48\xfe\x80\0\0\0\0\0\0\0\x02\xc9\x03\0\0\0\0";
        hwaddr[19] = last;
        hwaddr
    };
    let link = |ifindex: u32, name: &str, hwaddr: [u8; 20]| {
        let kind = LinkType::INFINIBAND.get();
        Message::link(16, ifindex, kind, 0x1043)
            .with(Attr::text(3, name))
            .with(Attr::u32(4, 2044))
            .with(Attr::new(1, &hwaddr))
            .with(Attr::new(
                2,
                b"\0\xff\xff\xff\xff\x12\x40\x1b\xff\xff\0\0\0\0\0\0\xff\xff\xff\xff",
            ))
    };
    let info = |attrs: &[Attr]| Attr::nest(18, attrs);
    let bond_data = |active: &[Attr]| {
        let mode = [Attr::new(1, &[1])];
        Attr::nest(2, &[&mode, active, &[Attr::u32(3, 100), Attr::new(13, &[1])]].concat())
    };
    let slave_data = Attr::nest(5, &[Attr::new(1, &[0]), Attr::new(2, &[0]), Attr::u32(3, 0)]);
    let slave_info = |kind| info(&[Attr::text(4, kind), slave_data.clone()]);

    let bond0 = link(9, "bond0", port(1));
    let kind = Attr::text(1, "bond");
    let active = [Attr::u32(2, 5)];
    let bond0 = bond0.with(info(&[kind.clone(), bond_data(&active)]));
    let parsed = bond0.parse_link();
    assert_eq!(parsed.own_gid().unwrap().to_string(), "fe80::2:c903:0:1");
    assert_eq!(parsed.bonding, Bonding::Master { active_slave: Some(index(5)) });
    assert!(parsed.up);

    let ib0 = link(5, "ib0", port(2)).with(Attr::u32(10, 9)).with(slave_info("bond"));
    assert_eq!(ib0.parse_link().bonding, Bonding::Slave { of: index(9) });

    // All slaves down, so none is active. Then a team, whose attributes have other numbers and say
    // less.
    let none = link(9, "bond0", port(1)).with(info(&[kind, bond_data(&[])]));
    let team =
        link(9, "team0", port(1)).with(info(&[Attr::text(1, "team"), Attr::nest(2, &active)]));
    for master in [none, team] {
        assert_eq!(master.parse_link().bonding, Bonding::Master { active_slave: None });
    }
    // A slave of a VRF serves for itself, and so does a P_Key child, of kind ipoib.
    let vrf = link(5, "ib0", port(2)).with(Attr::u32(10, 9)).with(slave_info("vrf"));
    let pkey = Attr::nest(2, &[Attr::new(1, &0x8001_u16.to_ne_bytes())]);
    let child = link(8, "ib0.8001", port(2)).with(info(&[Attr::text(1, "ipoib"), pkey]));
    let ib =
        |broadcast| Message::link(16, 8, 32, 1).with(Attr::text(3, "ib0.8001")).with(broadcast);
    // Flags and QPN, then the multicast GID with the P_Key.
    let broadcast = |start: &[u8]| {
        Attr::new(
            2,
            &[start, &[0x12, 0x40, 0x1b, 0x80, 0x01, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]]
                .concat(),
        )
    };
    let parsed = ib(broadcast(&[0, 0xff, 0xff, 0xff, 0xff])).parse_link();
    assert_eq!(parsed.pkey, PKey::new(0x8001));
    assert_eq!(ib(broadcast(&[0, 0xff, 0xff, 0xff, 0xfe])).parse_link().pkey, None);
    assert_eq!(ib(Attr::new(2, &[0xff; 6])).parse_link().pkey, None);
    let in_vrf = [&vrf, &child].map(|link| link.parse_link().vrf);
    assert_eq!(in_vrf, [Some(index(9)), None]);
    for alone in [vrf, child] {
        assert_eq!(alone.parse_link().bonding, Bonding::None);
        assert!(alone.parse_link().own_gid().is_some());
    }
}

#[test]
fn flags_of_duplicate_address_detection_are_recognized() {
    let (tentative, optimistic, failed, permanent) = (0x40, 0x04, 0x08, 0x80);
    let cases = [
        (permanent, Dad::Passed),
        (tentative, Dad::Tentative),
        (permanent | tentative, Dad::Tentative),
        (optimistic | tentative, Dad::Optimistic),
        (permanent | tentative | failed, Dad::Failed),
        // Flags above the eight of the header, here IFA_F_STABLE_PRIVACY.
        (0x800, Dad::Passed),
    ];
    for (flags, dad) in cases {
        let attr = Attr::new(1, &"fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        let old = Message::address(20, 10, 64, u8::try_from(flags & 0xff).unwrap(), 5);
        let new = Message::address(20, 10, 64, 0, 5).with(attr.clone()).with(Attr::u32(8, flags));
        for message in [old.with(attr), new] {
            let Ok(Some(Input::Address(entry))) = message.parse() else { panic!("{message:?}") };
            assert_eq!(entry.dad, dad, "{flags:#x}");
        }
    }
}

#[test]
fn malformed_message_is_rejected_with_its_reason() {
    let link = |kind: u16| Message::link(kind, 5, 32, 1);
    let v4 = |bits| Message::address(20, 2, bits, 0, 5);
    let name = || Attr::text(3, "ib0");
    let address = || Attr::new(2, &[10, 1, 0, 1]);
    let cases = [
        (link(16), Malformed::AttributeMissing),
        (link(16).with(Attr::text(3, "a/b")), Malformed::Name),
        (link(16).with(Attr::new(3, b"")), Malformed::Name),
        (link(16).with(name()).with(Attr::new(1, &[0; 33])), Malformed::AttributeLength),
        (link(16).with(name()).with(Attr::new(18, b"\x03\0\x01\0")), Malformed::Attributes),
        (Message::link(16, 0, 32, 1).with(name()), Malformed::IfIndex),
        (Message::link(17, 0x8000_0000, 32, 1), Malformed::IfIndex),
        (link(16).with(name()).cut(1), Malformed::Attributes),
        (link(16).cut(8), Malformed::Attributes),
        (v4(24), Malformed::AttributeMissing),
        (v4(33).with(address()), Malformed::PrefixLen),
        (v4(24).with(Attr::new(2, &[10, 1, 0])), Malformed::AttributeLength),
        (v4(24).with(address()).with(Attr::new(8, &[0])), Malformed::AttributeLength),
        (Message::address(20, 2, 24, 0, 0).with(address()), Malformed::IfIndex),
        (Message::address(20, 10, 129, 0, 5).with(Attr::new(1, &[1; 16])), Malformed::PrefixLen),
        (v4(24).cut(1), Malformed::Attributes),
    ];
    for (message, reason) in cases {
        assert_eq!(message.parse(), Err(reason), "{message:?}");
    }
    // A slave that does not name the kind of its master.
    let slave = link(16).with(name()).with(Attr::nest(18, &[Attr::text(4, "bond")]));
    assert_eq!(slave.parse(), Err(Malformed::AttributeMissing));
}

#[test]
fn messages_of_other_protocols_about_a_link_are_ignored() {
    // From a bridge about its port (AF_BRIDGE), from a wireless extension, about addresses of MCTP.
    let bridge = Message::link(17, 5, 1, 1).family(7);
    let wireless =
        Message::link(16, 5, 1, 1).with(Attr::text(3, "wlan0")).with(Attr::new(11, b"x"));
    let mctp = Message::address(20, 45, 0, 0, 5).with(Attr::new(2, &[8]));
    for message in [bridge, wireless, mctp] {
        assert_eq!(message.parse(), Ok(None), "{message:?}");
    }
}

#[test]
fn frames_end_at_the_first_that_does_not_fit() {
    let datagram = recorded(LINKS).remove(0).1;
    let count = |bytes: &[u8]| (frames(bytes).flatten().count(), frames(bytes).count());
    assert_eq!(count(&datagram), (3, 3));
    assert_eq!(count(&datagram[..datagram.len() - 1]), (2, 3));
    assert_eq!(count(&[]), (0, 0));
    for lie in [0, 15, u32::MAX] {
        let mut datagram = datagram.clone();
        datagram[..4].copy_from_slice(&lie.to_ne_bytes());
        assert_eq!(count(&datagram), (0, 1), "{lie}");
    }
}

proptest! {
    /// Neither our walk nor neli's may read past the end, loop or panic.
    #[test]
    fn no_bytes_cause_a_panic(
        which in 0..5usize, message: prop::sample::Index, at: prop::sample::Index, byte: u8,
        cut: prop::sample::Index, noise: Vec<u8>
    ) {
        let recorded = recorded([LINKS, ADDRESSES, EVENTS, BOND, ROUTES][which]);
        let mut near_miss = message.get(&recorded).1.clone();
        *at.get_mut(&mut near_miss) = byte;
        let short = near_miss[..cut.index(near_miss.len())].to_vec();
        for bytes in [near_miss, short, noise] {
            for frame in frames(&bytes).flatten() {
                let _ = change(&frame);
                let _ = frame.errno();
            }
            let mut lookups = Lookups::new(Arc::default());
            lookups.handle_question(RouteQuery::Route(Question::new(ip("10.0.0.1"), None).unwrap().into()));
            lookups.poll_transmit().unwrap();
            let mut bytes = bytes;
            if let Some(seq) = bytes.get_mut(8..12) {
                seq.copy_from_slice(&1_u32.to_ne_bytes());
            }
            lookups.handle_datagram(&bytes, &mut Vec::new());
        }
    }
}

fn ip(text: &str) -> std::net::IpAddr {
    text.parse().unwrap()
}

fn changes(golden: &str) -> impl Iterator<Item = Input> {
    recorded(golden).into_iter().flat_map(|(_, datagram)| {
        let parse = |frame: Result<_, _>| change(&frame.unwrap()).unwrap();
        frames(&datagram).filter_map(parse).collect::<Vec<_>>()
    })
}

/// A line for each label and each change.
fn tell(golden: &str) -> Vec<String> {
    lines(golden, |frame| {
        change(frame).unwrap().map(|change| match change {
            Input::Link(link) => tell_link(&link),
            Input::LinkGone(ifindex) => format!("link {ifindex} gone"),
            Input::Address(InterfaceAddress { id, dad: Dad::Passed, .. }) => {
                format!("address {} on {}", id.address(), id.ifindex())
            }
            Input::Address(InterfaceAddress { id, dad, .. }) => {
                format!("address {} on {} {dad:?}", id.address(), id.ifindex())
            }
            Input::AddressGone(id) => format!("address {} on {} gone", id.address(), id.ifindex()),
            other => panic!("{other:?}"),
        })
    })
}

/// A line for each label, and for each message that has one.
fn lines(golden: &str, line: impl Fn(&Frame<'_>) -> Option<String>) -> Vec<String> {
    let mut told = Vec::new();
    for (label, datagram) in recorded(golden) {
        if label != "..." {
            told.push(label.to_owned());
        }
        told.extend(frames(&datagram).filter_map(|frame| line(&frame.unwrap())));
    }
    told
}

fn tell_link(link: &Link) -> String {
    let octets: Vec<_> = link.hwaddr.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let hwaddr = if octets.is_empty() { "-".to_owned() } else { octets.join(":") };
    let state = if link.up { "up" } else { "down" };
    format!("link {} {} {} {hwaddr} {state}", link.ifindex, link.name, link.link_type)
}
