// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A peer cannot tell the programs from the server: both send the same reply or none.

use std::net::IpAddr;

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::map::{Interface, ResponderCfg, Route};
use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{TestCaseResult, TestError, TestRunner};

use crate::frame::{self, Frame, Link, hex};
use crate::oracle::Node;
use crate::programs::{Programs, TC_NEXT, TC_REDIRECT, XDP_PASS, XDP_TX};

#[test]
fn hostile_payloads_get_the_same_from_programs_and_server() {
    let table = include_str!("../../../ibarr-common/tests/data/ip2gid-cases.txt");
    let cases = table.lines().filter(|line| !line.starts_with('#')).filter_map(|case| {
        let (verdict, rest) = case.split_once('|')?;
        Some((verdict.trim() == "ok", hex(rest.split('|').next()?)))
    });
    let cases: Vec<(bool, Vec<u8>)> = cases.collect();
    assert!(cases.len() > 30, "the table is read");
    let mut nodes = Nodes::new(&[]);
    let mut answered = 0;
    for (is_query, payload) in &cases {
        for (source, destination) in [("10.2.0.9", "10.2.0.5"), ("fd00:2::9", "fd00:2::5")] {
            let frame = Frame::query(ip(source), ip(destination), payload);
            let replies = nodes.check(&frame).unwrap();
            assert!(*is_query || !replies, "{payload:02x?}");
            answered += u32::from(replies);
        }
    }
    // The payloads with one TLV that the table calls ok, over the family of their target.
    assert_eq!(answered, 4);
}

#[test]
fn payloads_of_every_length_get_the_same_from_both() {
    let mut nodes = Nodes::new(&[]);
    for (source, destination) in [("10.2.0.9", "10.2.0.5"), ("fd00:2::9", "fd00:2::5")] {
        let query = Query::new(Version::V1, MsgId(7), ip(destination)).unwrap().emit();
        for length in 0..=128 {
            let mut payload = query.as_ref().to_vec();
            payload.resize(length, 0);
            let frame = Frame::query(ip(source), ip(destination), &payload);
            let replies = nodes.check(&frame).unwrap();
            assert_eq!(replies, length == query.as_ref().len(), "{length} bytes");
        }
    }
}

#[test]
fn truncated_frames_get_the_same_from_both() {
    let mut nodes = Nodes::new(&[]);
    for (source, destination) in [("10.2.0.9", "10.2.0.5"), ("fd00:2::9", "fd00:2::5")] {
        let query = Query::new(Version::V1, MsgId(7), ip(destination)).unwrap().emit();
        let frame = Frame::query(ip(source), ip(destination), query.as_ref());
        for link in Nodes::LINKS {
            let whole = Frame { link, ..frame.clone() }.bytes();
            // The kernel's test run needs a whole IP header.
            let ip_header = if frame.source.is_ipv4() { 20 } else { 40 };
            for length in link.header_len() + ip_header..whole.len() {
                let replies = nodes.check_bytes(link, &whole[..length], false).unwrap();
                assert!(!replies, "{length} of {} bytes", whole.len());
            }
        }
    }
}

#[test]
fn any_frame_gets_the_same_from_both() {
    let allowed = ["10.0.0.0/8", "fd00::/16", "fe80::/10"].map(|text| text.parse().unwrap());
    for allow in [&[][..], &allowed] {
        let nodes = std::cell::RefCell::new(Nodes::new(allow));
        let answered = std::cell::Cell::new(0u32);
        let check = |(frame, flips): (Frame, Vec<(usize, u8)>)| -> TestCaseResult {
            let mut nodes = nodes.borrow_mut();
            if flips.is_empty() {
                answered.set(answered.get() + u32::from(nodes.check(&frame)?));
            }
            for link in Nodes::LINKS {
                let mut bytes = Frame { link, ..frame.clone() }.bytes();
                for &(at, bits) in &flips {
                    let at = link.header_len() + at % (bytes.len() - link.header_len());
                    bytes[at] ^= bits;
                }
                nodes.check_bytes(link, &bytes, false)?;
            }
            Ok(())
        };
        let config = ProptestConfig { cases: 4000, ..ProptestConfig::default() };
        let flips = prop::collection::vec((any::<usize>(), any::<u8>()), 0..3);
        match TestRunner::new(config).run(&(frames(), flips), check) {
            Ok(()) => assert!(answered.get() > 200, "only {} were answered", answered.get()),
            Err(TestError::Fail(why, case)) => panic!("{why}\n{case:?}"),
            Err(TestError::Abort(why)) => panic!("{why}"),
        }
    }
}

/// Frames that are queries except for a few fields.
fn frames() -> impl Strategy<Value = Frame> {
    let v4 = [
        "10.2.0.5",
        "10.2.0.6",
        "10.2.0.7",
        "10.2.0.9",
        "192.0.2.1",
        "127.0.0.1",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "10.2.0.0",
        "10.2.0.255",
    ];
    let v6 = [
        "fd00:2::5",
        "fd00:2::6",
        "fd00:2::7",
        "fd00:2::9",
        "2001:db8::1",
        "fe80::5",
        "fe80::9",
        "::1",
        "::",
        "ff02::1",
        "::ffff:10.2.0.5",
    ];
    let family = prop_oneof![Just(v4.to_vec()), Just(v6.to_vec())];
    family
        .prop_flat_map(move |pool| {
            // The first address is ours, the fourth a peer's.
            let (ours, peer) = (ip(pool[0]), ip(pool[3]));
            let any_address = || select(pool.clone()).prop_map(ip);
            let source = prop_oneof![Just(peer), any_address()];
            let destination = prop_oneof![Just(ours), any_address()];
            let target = prop_oneof![
                12 => Just(None),
                1 => select([&v4[..], &v6[..]].concat()).prop_map(|text| Some(ip(text))),
            ];
            let payload = (any::<bool>(), any::<u32>(), target);
            let odd = (
                prop_oneof![20 => Just(0), 1 => any::<u16>()],
                prop_oneof![
                    20 => Just(None),
                    1 => Just(Some(0)),
                    1 => any::<u16>().prop_map(Some)
                ],
                prop_oneof![20 => Just(vec![]), 1 => Just(vec![17, 0, 1, 4, 0, 0, 0, 0])],
                prop_oneof![20 => Just(0), 1 => 1..20usize],
                prop_oneof![20 => Just(40_000), 1 => Just(0), 1 => Just(4791)],
                prop_oneof![20 => Just(4791), 1 => Just(4790)],
            );
            (source, destination, payload, odd, any::<u8>())
        })
        .prop_map(|(source, destination, (v1, msg_id, target), odd, ttl)| {
            let (fragment, udp_checksum, options, padding, source_port, destination_port) = odd;
            let version = if v1 { Version::V1 } else { Version::V0 };
            let query = Query::new(version, MsgId(msg_id), target.unwrap_or(destination));
            let payload = query.map_or_else(Vec::new, |query| query.emit().as_ref().to_vec());
            Frame {
                source_port,
                destination_port,
                ttl,
                fragment,
                udp_checksum,
                options,
                padding,
                ..Frame::query(source, destination, &payload)
            }
        })
}

/// The same node four times as programs, and once as stack and server.
struct Nodes {
    ethernet: Programs,
    ipoib: Programs,
    oracle: Node,
}

impl Nodes {
    const LINKS: [Link; 2] = [Link::LO, Link::Ipoib];

    fn new(allow: &[IpNet]) -> Self {
        let gid = |text: &str| -> Option<Gid> { Some(text.parse().unwrap()) };
        let addresses = vec![
            (ip("10.2.0.5"), gid("fe80::2:c903:0:201")),
            (ip("10.2.0.6"), gid("fec0:0:1::2:c903:0:202")),
            (ip("10.2.0.7"), None),
            (ip("fd00:2::5"), gid("fe80::2:c903:0:201")),
            (ip("fd00:2::6"), gid("fe80::2:c903:0:203")),
            (ip("fd00:2::7"), None),
            (ip("fe80::5"), gid("fe80::2:c903:0:201")),
        ];
        let load = |link_header| {
            let mut programs = Programs::load(link_header);
            let switches = if allow.is_empty() { 0 } else { ResponderCfg::RESTRICT };
            programs.lease_until(u64::MAX, switches);
            let switches = Interface::ANSWER_IPV4 | Interface::ANSWER_IPV6;
            programs.put_interface(IfIndex::MIN, Interface { switches, hwaddr: [0; 20] });
            for &(address, gid) in &addresses {
                programs.put_gid(address, IfIndex::MIN, gid);
            }
            for prefix in allow {
                programs.allow(prefix.addr(), prefix.prefix_len());
            }
            for (prefix, gateway) in [("0.0.0.0", "10.2.0.254"), ("::", "fd00:2::fe")] {
                programs.put_route(IfIndex::MIN, ip(prefix), 0, Route::via(ip(gateway)));
                programs.put_neighbour(IfIndex::MIN, ip(gateway), GATEWAY);
            }
            for edge in EDGES.map(ip) {
                programs.put_route(IfIndex::MIN, edge, 32, Route::ELSEWHERE);
            }
            programs
        };
        let allow = allow.iter().copied().collect();
        let oracle = Node { addresses: addresses.clone(), allow, ifindex: IfIndex::MIN };
        Self { ethernet: load(14), ipoib: load(24), oracle }
    }

    /// Whether the programs answer `frame`, on each link. They must answer a regular frame that the server
    /// answers with a GID.
    fn check(&mut self, frame: &Frame) -> Result<bool, TestCaseError> {
        // The programs leave messages with several TLVs to the server.
        let has_one_tlv = frame.payload.get(8..10) == Some(&[0, 1]);
        let is_plain = frame.options.is_empty() && frame.padding == 0 && has_one_tlv;
        let mut replies = Vec::new();
        for link in Self::LINKS {
            let bytes = Frame { link, ..frame.clone() }.bytes();
            replies.push(self.check_bytes(link, &bytes, is_plain)?);
        }
        prop_assert_eq!(replies[0], replies[1]);
        Ok(replies[0])
    }

    fn check_bytes(
        &mut self,
        link: Link,
        bytes: &[u8],
        is_plain: bool,
    ) -> Result<bool, TestCaseError> {
        let expected = self.oracle.reply_to(&bytes[link.header_len()..]);
        // The kernel sends nothing to the first and last address of a subnet.
        let is_sent = |reply: &frame::Received| !EDGES.map(ip).contains(&reply.destination);
        let positive = expected.filter(|reply| reply.payload.len() == 32).filter(is_sent);
        let programs = if link == Link::Ipoib { &mut self.ipoib } else { &mut self.ethernet };

        let tc = programs.run_tc(bytes);
        let tc_reply = match tc.action {
            TC_NEXT => None,
            TC_REDIRECT => Some(frame::read(&tc.frame[14..])),
            other => panic!("{other}"),
        };
        if tc_reply.is_some()
            && let Link::Ethernet { destination, source } = link
        {
            prop_assert_eq!(&tc.frame[..12], [source, destination].concat());
        }
        let xdp = programs.run_xdp(bytes);
        let xdp_reply = match xdp.action {
            XDP_PASS => None,
            XDP_TX => Some(frame::read(&xdp.frame[link.header_len()..])),
            other => panic!("{other}"),
        };
        if xdp_reply.is_some() {
            match link {
                Link::Ethernet { destination, source } => {
                    prop_assert_eq!(&xdp.frame[..6], source);
                    prop_assert_eq!(&xdp.frame[6..12], destination);
                }
                Link::Ipoib => {
                    prop_assert_eq!(&xdp.frame[..20], GATEWAY);
                    prop_assert_eq!(&xdp.frame[20..24], &bytes[20..24]);
                }
            }
        } else {
            prop_assert_eq!(&xdp.frame, bytes, "XDP changed a frame that it passed");
        }
        if tc.action == TC_NEXT {
            prop_assert_eq!(&tc.frame, bytes, "tc changed a frame that it passed");
        }
        for reply in [&tc_reply, &xdp_reply] {
            if reply.is_some() || is_plain {
                prop_assert_eq!(reply, &positive);
            }
        }
        Ok(tc_reply.is_some())
    }
}

/// The first and the last address of 10.2.0.0/24.
const EDGES: [&str; 2] = ["10.2.0.0", "10.2.0.255"];

const GATEWAY: [u8; 20] =
    [0x80, 0, 1, 0x40, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 0xfe];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
