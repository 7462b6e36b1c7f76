// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Each rule alone, and its counter.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_common::ib::{Gid, IpoibHwAddr};
use ibarr_common::map::{
    GidEntry, GidKey, Interface, Neighbour, NeighbourKey, Origin, OwnBit, Program, ResponderCfg,
    Route,
};
use ibarr_common::wire::ip2gid::{MsgId, Query, Reply, Version};
use ibarr_user::sys::clock;

use crate::frame::{self, Frame, Link};
use crate::programs::{Programs, TC_NEXT, TC_REDIRECT, XDP_PASS, XDP_TX, nonzero};

#[test]
fn query_gets_the_codecs_reply_from_the_address_it_was_sent_to() {
    for (source, destination) in [("10.2.0.9", "10.2.0.5"), ("fd00:2::9", "fd00:2::5")] {
        let query = Query::new(Version::V0, MsgId(0xdead_beef), ip(destination)).unwrap();
        let frame = Frame::query(ip(source), ip(destination), query.emit().as_ref());
        let verdict = node(14).run_tc(&frame.bytes());
        assert_eq!(verdict.action, TC_REDIRECT);
        let reply = frame::read(&verdict.frame[14..]);
        let expected = frame::Received {
            source: ip(destination),
            destination: ip(source),
            source_port: 4791,
            destination_port: 40_000,
            ttl: 64,
            payload: query.reply(Some(gid())).emit().as_ref().to_vec(),
        };
        assert_eq!(reply, expected);
        assert_eq!(Reply::parse(&reply.payload).unwrap().gid, Some(gid()));
    }
}

#[test]
fn nothing_is_answered_before_the_first_lease_or_after_its_end() {
    let mut programs = node(14);
    programs.lease_until(0, 0);
    assert_passed(&mut programs, &query(), "lease_over");
    // This lease is over, because the machine has been up for longer than a microsecond.
    programs.lease_until(1000, 0);
    assert_passed(&mut programs, &query(), "lease_over");
    programs.lease_until(u64::MAX, 0);
    assert_answered(&mut programs, &query());
    // The program reads the clock once a tick, and again if the end of the lease changes.
    programs.lease_until(1000, 0);
    assert_passed(&mut programs, &query(), "lease_over");
}

#[test]
fn a_lease_ends_while_queries_come_and_stays_ended() {
    let mut programs = node(14);
    let end = clock::now() + Duration::from_millis(500);
    programs.lease_until(end.as_nanos(), 0);
    let mut answered = 0;
    while programs.run_tc(&query().bytes()).action == TC_REDIRECT {
        answered += 1;
    }
    assert!(answered > 0, "the machine stood still for half a second");
    for _ in 0..1000 {
        assert_eq!(programs.run_tc(&query().bytes()).action, TC_NEXT);
    }
    assert_eq!(
        nonzero(&programs.counters(Program::Tc)),
        [("answered", answered), ("lease_over", 1001)]
    );
}

#[test]
fn an_interface_is_answered_on_by_family_and_only_if_listed() {
    let mut programs = node(14);
    let interface = |switches| Interface { switches, hwaddr: [0; 20] };
    programs.put_interface(IfIndex::MIN, interface(Interface::ANSWER_IPV6));
    assert_passed(&mut programs, &query(), "interface_off");
    assert_answered(&mut programs, &query_ipv6());
    programs.put_interface(IfIndex::MIN, interface(Interface::ANSWER_IPV4));
    assert_answered(&mut programs, &query());
    assert_passed(&mut programs, &query_ipv6(), "interface_off");

    let mut programs = Programs::load(14);
    programs.lease_until(u64::MAX, 0);
    assert_passed(&mut programs, &query(), "interface_off");
}

#[test]
fn only_sources_that_a_route_on_the_interface_covers_are_answered() {
    let routed = Interface::ROUTED_IPV4 | Interface::ROUTED_IPV6;
    let mut programs = node(14);
    programs.put_interface(IfIndex::MIN, Interface { switches: routed, hwaddr: [0; 20] });
    assert_passed(&mut programs, &query(), "no_route");
    assert_passed(&mut programs, &query_ipv6(), "no_route");
    assert_xdp_passed(&mut programs, &query(), "no_route");
    let other = IfIndex::new(9).unwrap();
    programs.put_route(other, ip("0.0.0.0"), 0, Route::ON_LINK);
    assert_passed(&mut programs, &query(), "no_route");

    // The longest prefix counts. The peers are 10.2.0.9 and fd00:2::9.
    programs.put_route(IfIndex::MIN, ip("10.0.0.0"), 8, Route::via(ip("10.1.0.254")));
    programs.put_route(IfIndex::MIN, ip("::"), 0, Route::ON_LINK);
    assert_answered(&mut programs, &query());
    assert_answered(&mut programs, &query_ipv6());
    programs.put_route(IfIndex::MIN, ip("10.2.0.0"), 24, Route::ELSEWHERE);
    programs.put_route(IfIndex::MIN, ip("fd00:2::"), 64, Route::ELSEWHERE);
    assert_passed(&mut programs, &query(), "no_route");
    assert_passed(&mut programs, &query_ipv6(), "no_route");
    programs.put_route(IfIndex::MIN, ip("10.2.0.9"), 32, Route::ON_LINK);
    assert_answered(&mut programs, &query());
    assert_eq!(programs.run_xdp(&query().bytes()).action, XDP_TX);

    // Routes do not matter if all sources are answered.
    let switches = routed | Interface::ANSWER_IPV6;
    programs.put_interface(IfIndex::MIN, Interface { switches, hwaddr: [0; 20] });
    assert_answered(&mut programs, &query_ipv6());
}

#[test]
fn programs_never_send_to_the_edge_addresses_of_a_subnet() {
    let mut programs = node(14);
    programs.put_route(IfIndex::MIN, ip("10.2.0.0"), 24, Route::ON_LINK);
    for edge in ["10.2.0.0", "10.2.0.255"] {
        programs.put_route(IfIndex::MIN, ip(edge), 32, Route::ELSEWHERE);
        let frame = Frame { source: ip(edge), ..query() };
        assert_passed(&mut programs, &frame, "no_route");
        assert_xdp_passed(&mut programs, &frame, "no_route");
    }
    // Only the bits behind the subnet's prefix make an address the first or last one.
    for source in ["10.2.0.4", "10.2.0.11", "10.3.0.255"] {
        let frame = Frame { source: ip(source), ..query() };
        assert_answered(&mut programs, &frame);
        assert_eq!(programs.run_xdp(&frame.bytes()).action, XDP_TX, "{source}");
    }
}

#[test]
fn frames_for_other_hosts_and_groups_are_passed() {
    for destination in [[2, 0, 0, 0, 0, 2], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let link = Link::Ethernet { destination, source: [2, 0, 0, 0, 0, 1] };
        let mut programs = node(14);
        assert_passed(&mut programs, &Frame { link, ..query() }, "other_host");
        assert_xdp_passed(&mut programs, &Frame { link, ..query() }, "other_host");
    }
}

#[test]
fn programs_do_not_send_to_a_group() {
    let link = Link::Ethernet { destination: [0; 6], source: [1, 0, 0x5e, 0, 0, 1] };
    assert_passed(&mut node(14), &Frame { link, ..query() }, "other_host");
    assert_xdp_passed(&mut node(14), &Frame { link, ..query() }, "other_host");
}

#[test]
fn packets_that_only_the_stack_can_read_are_passed_uncounted() {
    let mut programs = node(14);
    let options = vec![1; 4];
    let destination_options = vec![17, 0, 1, 4, 0, 0, 0, 0];
    let mut tagged = query().bytes();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    for bytes in [
        Frame { options, ..query() }.bytes(),
        Frame { options: destination_options, ..query_ipv6() }.bytes(),
        Frame { padding: 2, ..query() }.bytes(),
        Frame { destination_port: 4790, ..query() }.bytes(),
        tagged,
    ] {
        let verdict = programs.run_tc(&bytes);
        assert_eq!((verdict.action, verdict.frame), (TC_NEXT, bytes.clone()));
        let verdict = programs.run_xdp(&bytes);
        assert_eq!((verdict.action, verdict.frame), (XDP_PASS, bytes));
    }
    assert_eq!(nonzero(&programs.counters(Program::Tc)), []);
    assert_eq!(nonzero(&programs.counters(Program::Xdp)), []);
}

#[test]
fn only_the_configured_port_is_answered_and_counted() {
    let mut programs = node(14);
    let answers = |programs: &mut Programs, frame: &Frame| {
        let bytes = frame.bytes();
        let (tc, xdp) = (programs.run_tc(&bytes).action, programs.run_xdp(&bytes).action);
        assert_eq!(tc == TC_REDIRECT, xdp == XDP_TX);
        xdp == XDP_TX
    };
    for udp_port in [4999, 4791, 1, u16::MAX] {
        programs.configure(ResponderCfg { lease_end: u64::MAX, udp_port, ..Default::default() });
        for frame in [query(), query_ipv6()] {
            for destination_port in [4999, 4791, 0, udp_port.swap_bytes()] {
                let frame = Frame { destination_port, ..frame.clone() };
                assert_eq!(answers(&mut programs, &frame), destination_port == udp_port);
            }
        }
    }
    let counted = nonzero(&programs.counters(Program::Tc));
    assert_eq!(counted, [("answered", 6)]);
    // A map that no daemon has filled.
    programs.configure(ResponderCfg { lease_end: u64::MAX, ..Default::default() });
    assert!(!answers(&mut programs, &query()));
}

#[test]
fn fragments_are_passed() {
    for fragment in [0x2000, 0x0001, 0x1fff] {
        assert_passed(&mut node(14), &Frame { fragment, ..query() }, "ip_header");
    }
    // "Do not fragment", and the reserved bit.
    for fragment in [0x4000, 0x8000] {
        assert_answered(&mut node(14), &Frame { fragment, ..query() });
    }
}

#[test]
fn a_wrong_header_checksum_is_passed() {
    let mut bytes = query().bytes();
    bytes[14 + 10] ^= 1;
    let mut programs = node(14);
    assert_eq!(programs.run_tc(&bytes).action, TC_NEXT);
    assert_eq!(nonzero(&programs.counters(Program::Tc)), [("ip_header", 1)]);
}

#[test]
fn udp_checksum_must_be_right_but_over_ipv4_may_be_absent() {
    let frame = |udp_checksum| Frame { udp_checksum: Some(udp_checksum), ..query() };
    let frame_ipv6 = |udp_checksum| Frame { udp_checksum: Some(udp_checksum), ..query_ipv6() };
    assert_answered(&mut node(14), &frame(0));
    assert_passed(&mut node(14), &frame_ipv6(0), "checksum");
    assert_passed(&mut node(14), &frame(0x1234), "checksum");
    assert_passed(&mut node(14), &frame_ipv6(0x1234), "checksum");
}

#[test]
fn pseudo_header_sum_is_no_checksum_of_a_frame_from_the_wire() {
    for frame in [query(), query_ipv6()] {
        let udp_checksum = Some(frame.partial_checksum());
        let frame = Frame { udp_checksum, ..frame };
        for link_header in [14, 24] {
            let link = if link_header == 14 { Link::LO } else { Link::Ipoib };
            let frame = Frame { link, ..frame.clone() };
            assert_passed(&mut node(link_header), &frame, "checksum");
            assert_xdp_passed(&mut node(link_header), &frame, "checksum");
        }
    }
}

#[test]
fn a_computed_checksum_of_zero_is_sent_as_ffff() {
    let mut programs = node(14);
    let mut checksum_for = |msg_id: u16| {
        let query = Query::new(Version::V1, MsgId(msg_id.into()), ip("10.2.0.5")).unwrap();
        let frame = Frame::query(ip("10.2.0.9"), ip("10.2.0.5"), query.emit().as_ref());
        let verdict = programs.run_tc(&frame.bytes());
        // This fails if the checksum is absent.
        frame::read(&verdict.frame[14..]);
        u16::from_be_bytes(verdict.frame[14 + 26..14 + 28].try_into().unwrap())
    };
    // The checksum makes up for the changed bytes.
    let checksum = checksum_for(0);
    assert_eq!(checksum_for(checksum - 1), 1);
    assert_eq!(checksum_for(checksum), 0xffff);
}

#[test]
fn only_unicast_sources_of_other_hosts_are_answered() {
    for source in ["10.2.0.5", "10.2.0.7", "127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.0"] {
        let source = ip(source);
        assert_passed(&mut node(14), &Frame { source, ..query() }, "source");
    }
    for source in ["fd00:2::5", "::1", "::", "ff02::1", "::ffff:10.2.0.9"] {
        let source = ip(source);
        assert_passed(&mut node(14), &Frame { source, ..query_ipv6() }, "source");
    }
    assert_passed(&mut node(14), &Frame { source_port: 0, ..query() }, "source");
}

#[test]
fn source_that_shares_a_bit_with_an_own_address_is_answered() {
    let bit = |address| OwnBit::of(&GidKey::new(address, IfIndex::MIN));
    let others = (0..).map(|number| IpAddr::from(Ipv4Addr::from_bits(0x0b00_0000 + number)));
    let ours = ip("10.2.0.5");
    let source = others.into_iter().find(|&other| bit(other) == bit(ours)).unwrap();
    assert_answered(&mut node(14), &Frame { source, ..query() });
}

#[test]
fn allow_restricts_sources_only_if_it_is_switched_on() {
    let mut programs = node(14);
    programs.lease_until(u64::MAX, ResponderCfg::RESTRICT);
    assert_passed(&mut programs, &query(), "not_allowed");
    programs.allow(ip("10.2.0.8"), 29);
    assert_answered(&mut programs, &query());
    assert_passed(&mut programs, &query_ipv6(), "not_allowed");
    programs.allow(ip("fd00:2::"), 64);
    assert_answered(&mut programs, &query_ipv6());
    assert_passed(&mut programs, &Frame { source: ip("10.2.0.16"), ..query() }, "not_allowed");
}

#[test]
fn only_an_address_of_ours_with_a_gid_is_answered() {
    for (target, counter) in [("10.2.0.7", "unknown"), ("10.2.0.8", "unknown")] {
        let query = Query::new(Version::V1, MsgId(1), ip(target)).unwrap().emit();
        let frame = Frame::query(ip("10.2.0.9"), ip(target), query.as_ref());
        assert_passed(&mut node(14), &frame, counter);
        let elsewhere = Frame { destination: ip("10.2.0.5"), ..frame };
        assert_passed(&mut node(14), &elsewhere, "destination");
    }
}

#[test]
fn link_local_address_is_different_on_each_interface() {
    let query = Query::new(Version::V1, MsgId(1), ip("fe80::5")).unwrap().emit();
    let frame = Frame::query(ip("fe80::9"), ip("fe80::5"), query.as_ref());
    let mut programs = node(14);
    programs.put_gid(ip("fe80::5"), IfIndex::new(77).unwrap(), Some(gid()));
    assert_passed(&mut programs, &frame, "unknown");
    programs.put_gid(ip("fe80::5"), IfIndex::MIN, Some(gid()));
    assert_answered(&mut programs, &frame);
}

#[test]
fn an_element_with_another_key_inside_never_answers() {
    let key = |text| GidKey::new(ip(text), IfIndex::MIN);
    let entry = |text, gid| GidEntry::new(key(text), Some(gid), None, Origin::Static);
    let other_gid = "fe80::2:c903:0:202".parse().unwrap();
    let mut torn = entry("10.2.0.5", gid());
    torn.gid = entry("10.2.0.5", other_gid).gid;
    for recycled in [entry("10.2.0.6", gid()), torn] {
        let mut programs = node(14);
        programs.put_entry(key("10.2.0.5"), recycled);
        assert_passed(&mut programs, &query(), "replaced");
        assert_xdp_passed(&mut programs, &query(), "replaced");
    }
}

#[test]
fn xdp_uses_room_behind_the_frame_if_there_is_none_before_it() {
    let mut ipoib = node(24);
    ipoib.put_route(IfIndex::MIN, ip("10.2.0.0"), 24, Route::ON_LINK);
    ipoib.put_neighbour(IfIndex::MIN, ip("10.2.0.9"), [7; 20]);
    for (mut programs, link) in [(node(14), Link::LO), (ipoib, Link::Ipoib)] {
        let query = Frame { link, ..query() }.bytes();
        let before = programs.run_xdp(&query);
        let behind = programs.run_xdp_without_headroom(&query);
        assert_eq!(behind.action, XDP_TX);
        assert_eq!(behind, before);
        assert_eq!(behind.frame.len(), query.len() + 12);
        frame::read(&behind.frame[link.header_len()..]);
    }
}

#[test]
fn xdp_passes_queries_without_room_for_the_reply() {
    for (link_header, link) in [(14, Link::LO), (24, Link::Ipoib)] {
        let mut programs = of_node(Programs::load_without_tailroom(link_header));
        programs.put_route(IfIndex::MIN, ip("10.2.0.0"), 24, Route::ON_LINK);
        programs.put_neighbour(IfIndex::MIN, ip("10.2.0.9"), [7; 20]);
        let query = Frame { link, ..query() }.bytes();
        assert_eq!(programs.run_xdp(&query).action, XDP_TX);
        let verdict = programs.run_xdp_without_headroom(&query);
        assert_eq!((verdict.action, verdict.frame), (XDP_PASS, query));
        let counters = programs.counters(Program::Xdp);
        assert_eq!(nonzero(&counters), [("answered", 1), ("no_room", 1)]);
    }
}

/// A program may read an element that the kernel has just reused for another neighbour.
#[test]
fn xdp_on_ipoib_sends_nothing_while_the_neighbour_is_replaced() {
    let query = Frame { link: Link::Ipoib, ..query() };
    let at = |last| IpoibHwAddr::parse(&[&[7; 19][..], &[last]].concat()).unwrap();
    let key = |address| NeighbourKey::new(ip(address), IfIndex::MIN);
    let (asker, other) = (key("10.2.0.9"), key("10.2.0.10"));
    let whole = Neighbour::new(&asker, at(9));
    let torn = Neighbour { hwaddr: at(10).octets(), ..whole };
    let mut programs = node(24);
    programs.put_route(IfIndex::MIN, ip("10.2.0.0"), 24, Route::ON_LINK);
    for recycled in [Neighbour::new(&other, at(10)), torn] {
        programs.put_as_neighbour(asker, recycled);
        assert_xdp_passed(&mut programs, &query, "no_route");
    }
    programs.put_as_neighbour(asker, whole);
    assert_eq!(programs.run_xdp(&query.bytes()).action, XDP_TX);
}

#[test]
fn xdp_on_ipoib_sends_to_the_neighbour_that_the_maps_name() {
    let hwaddr =
        |last| [0x80, 0, 1, 0x40, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, last];
    let on_link = Frame { link: Link::Ipoib, ..query() };
    let routed = Frame { source: ip("192.0.2.1"), ..on_link.clone() };
    let mut programs = node(24);
    assert_xdp_passed(&mut programs, &on_link, "no_route");
    programs.put_route(IfIndex::MIN, ip("10.2.0.0"), 24, Route::ON_LINK);
    assert_xdp_passed(&mut programs, &on_link, "no_route");
    programs.put_neighbour(IfIndex::MIN, ip("10.2.0.9"), hwaddr(9));
    assert_xdp_passed(&mut programs, &routed, "no_route");
    programs.put_route(IfIndex::MIN, ip("0.0.0.0"), 0, Route::via(ip("10.2.0.254")));
    programs.put_neighbour(IfIndex::MIN, ip("10.2.0.254"), hwaddr(254));

    for (frame, next_hop) in [(&on_link, 9), (&routed, 254)] {
        let verdict = programs.run_xdp(&frame.bytes());
        assert_eq!(verdict.action, XDP_TX);
        assert_eq!(verdict.frame[..24], [&hwaddr(next_hop)[..], &[8, 0, 0, 0]].concat());
        assert_eq!(frame::read(&verdict.frame[24..]).destination, frame.source);
    }
    // Routes of other interfaces do not count.
    let mut programs = node(24);
    let other = IfIndex::new(77).unwrap();
    programs.put_route(other, ip("10.2.0.0"), 24, Route::ON_LINK);
    programs.put_neighbour(other, ip("10.2.0.9"), hwaddr(9));
    assert_xdp_passed(&mut programs, &on_link, "no_route");
}

/// A node with addresses of both families, answering on `lo`.
fn node(link_header: u32) -> Programs {
    of_node(Programs::load(link_header))
}

fn of_node(mut programs: Programs) -> Programs {
    programs.lease_until(u64::MAX, 0);
    let switches = Interface::ANSWER_IPV4 | Interface::ANSWER_IPV6;
    programs.put_interface(IfIndex::MIN, Interface { switches, hwaddr: [0; 20] });
    programs.put_gid(ip("10.2.0.5"), IfIndex::MIN, Some(gid()));
    programs.put_gid(ip("10.2.0.7"), IfIndex::MIN, None);
    programs.put_gid(ip("fd00:2::5"), IfIndex::MIN, Some(gid()));
    programs
}

fn query() -> Frame {
    let query = Query::new(Version::V1, MsgId(7), ip("10.2.0.5")).unwrap().emit();
    Frame::query(ip("10.2.0.9"), ip("10.2.0.5"), query.as_ref())
}

fn query_ipv6() -> Frame {
    let query = Query::new(Version::V1, MsgId(7), ip("fd00:2::5")).unwrap().emit();
    Frame::query(ip("fd00:2::9"), ip("fd00:2::5"), query.as_ref())
}

#[track_caller]
fn assert_answered(programs: &mut Programs, frame: &Frame) {
    let verdict = programs.run_tc(&frame.bytes());
    assert_eq!(verdict.action, TC_REDIRECT, "{:?}", programs.counters(Program::Tc));
    assert_eq!(frame::read(&verdict.frame[14..]).destination, frame.source);
}

/// Checks that tc passes `frame` unchanged, and counts only `counter`.
#[track_caller]
fn assert_passed(programs: &mut Programs, frame: &Frame, counter: &str) {
    let before = programs.counters(Program::Tc);
    let verdict = programs.run_tc(&frame.bytes());
    assert_eq!((verdict.action, verdict.frame), (TC_NEXT, frame.bytes()));
    assert_eq!(nonzero(&(programs.counters(Program::Tc) - before)), [(counter, 1)]);
}

/// Like [`assert_passed`], for XDP.
#[track_caller]
fn assert_xdp_passed(programs: &mut Programs, frame: &Frame, counter: &str) {
    let before = programs.counters(Program::Xdp);
    let verdict = programs.run_xdp(&frame.bytes());
    assert_eq!((verdict.action, verdict.frame), (XDP_PASS, frame.bytes()));
    assert_eq!(nonzero(&(programs.counters(Program::Xdp) - before)), [(counter, 1)]);
}

fn gid() -> Gid {
    "fe80::2:c903:0:201".parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
