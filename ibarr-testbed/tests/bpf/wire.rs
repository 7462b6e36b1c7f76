// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The programs on a veth pair, with the kernel's stack at both ends.

use std::net::{IpAddr, UdpSocket};

use aya::Ebpf;
use aya::programs::tc::{NlOptions, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType, Xdp, XdpMode};
use ibarr_common::ib::Gid;
use ibarr_common::map::{Interface, Program, Route};
use ibarr_common::wire::ip2gid::{MsgId, Query, Reply, Version};
use ibarr_testbed::lab::netns;
use ibarr_user::sys::udp_options::refuse_from_itself;

use crate::frame::Frame;
use crate::net::{Net, SERVER, TO_SERVER, ask, daemon, receive, send_frame, socket_in};
use crate::programs::{Programs, nonzero};

#[test]
fn tc_answers_with_every_offload_on_and_no_socket_behind() {
    both_families_are_answered(attach);
}

#[test]
fn clsact_answers_like_tcx() {
    both_families_are_answered(attach_to_clsact);
}

fn both_families_are_answered(attach: fn(&mut SchedClassifier, u16)) {
    let net = Net::new();
    let mut server = server(&net, 14);
    attach(server.tc(), 1);
    for target in ["10.2.0.5", "fd00:2::5"] {
        assert_eq!(gid_of(&ask("client", target, &query(target))), Some(gid()));
    }
    assert_eq!(nonzero(&server.counters(Program::Tc)), [("answered", 2)]);
}

#[test]
fn link_local_peer_is_answered() {
    let net = Net::new();
    let mut server = server(&net, 14);
    server.put_gid("fe80::5".parse().unwrap(), net.s0, Some(gid()));
    attach(server.tc(), 1);
    let c0 = netns::inside("client", || Ok(nix::net::if_::if_nametoindex("c0")?)).unwrap();
    let reply = ask("client", &format!("[fe80::5%{c0}]:4791"), &query("fe80::5"));
    assert_eq!(gid_of(&reply), Some(gid()));
    assert_eq!(nonzero(&server.counters(Program::Tc)), [("answered", 1)]);
}

#[test]
fn client_behind_a_router_is_answered_through_it() {
    let net = Net::new();
    let mut server = server(&net, 14);
    attach(server.tc(), 1);
    assert_eq!(gid_of(&ask("remote", "10.2.0.5", &query("10.2.0.5"))), Some(gid()));
    assert_eq!(nonzero(&server.counters(Program::Tc)), [("answered", 1)]);
}

#[test]
fn ipoib_link_header_is_answered_by_the_shift() {
    let net = Net::new();
    let mut server = server(&net, 24);
    let mut bench = Programs::bench();
    let widen = classifier(&mut bench, "widen_tc");
    attach(widen, 1);
    attach(server.tc(), 2);
    // The server's stack finds the next hop, and the client's stack receives the reply.
    for (source, target) in [("10.2.0.9", "10.2.0.5"), ("fd00:2::9", "fd00:2::5")] {
        let socket = socket_in("client", target);
        let source_port = socket.local_addr().unwrap().port();
        let frame = Frame {
            link: TO_SERVER,
            source_port,
            ..Frame::query(ip(source), ip(target), &query(target))
        };
        send_frame(&frame.bytes());
        assert_eq!(gid_of(&receive(&socket).0), Some(gid()));
    }
    assert_eq!(nonzero(&server.counters(Program::Tc)), [("answered", 2)]);
}

/// Without its tag the frame is a query, and the reply would leave outside of the VLAN.
#[test]
fn a_query_whose_vlan_tag_is_beside_the_frame_is_passed() {
    let net = Net::new();
    let mut server = server(&net, 14);
    attach(server.tc(), 1);
    let mut bench = Programs::bench();
    let tag = classifier(&mut bench, "tag_tc");
    let link = netns::inside("client", || {
        // The qdisc exists already if another program uses it.
        let _ = qdisc_add_clsact("c0");
        Ok(tag.attach_with_options(
            "c0",
            TcAttachType::Egress,
            TcAttachOptions::Netlink(NlOptions::default()),
        )?)
    })
    .expect("attached");
    for (source, target) in [("10.2.0.9", "10.2.0.5"), ("fd00:2::9", "fd00:2::5")] {
        let frame = Frame::query(ip(source), ip(target), &query(target));
        send_frame(&Frame { link: TO_SERVER, ..frame }.bytes());
    }
    netns::inside("client", || Ok(tag.detach(link)?)).expect("detached");
    // Passed frames are handled in order, so this query is answered last.
    assert_eq!(gid_of(&ask("client", "10.2.0.5", &query("10.2.0.5"))), Some(gid()));
    assert_eq!(nonzero(&server.counters(Program::Tc)), [("answered", 1), ("vlan", 2)]);
}

#[test]
fn sender_that_never_filled_in_its_checksum_gets_no_reply() {
    let net = Net::new();
    let mut server = server(&net, 14);
    attach(server.tc(), 1);
    for (source, target) in [("10.2.0.9", "10.2.0.5"), ("fd00:2::9", "fd00:2::5")] {
        let right = Frame {
            link: TO_SERVER,
            source_port: 4791,
            ..Frame::query(ip(source), ip(target), &query(target))
        };
        // The kernel does not complete a frame of a packet socket, so the checksum on the wire is wrong.
        let udp_checksum = Some(right.partial_checksum());
        send_frame(&Frame { udp_checksum, ..right }.bytes());
    }
    // Passed frames are handled in order, so this query is answered last.
    assert_eq!(gid_of(&ask("client", "10.2.0.5", &query("10.2.0.5"))), Some(gid()));
    assert_eq!(nonzero(&server.counters(Program::Tc)), [("answered", 1), ("checksum", 2)]);
}

#[test]
fn unanswered_datagrams_reach_the_daemon_unchanged() {
    let net = Net::new();
    let mut server = server(&net, 14);
    attach(server.tc(), 1);
    let socket = daemon("0.0.0.0");
    let client = socket_in("client", "10.2.0.5");
    let payloads = [query("10.2.0.8"), query("fd00:2::8"), b"not a query".to_vec()];
    for payload in &payloads {
        client.send_to(payload, "10.2.0.5:4791").expect("sent");
        assert_eq!(&receive(&socket).0, payload);
    }
    assert_eq!(nonzero(&server.counters(Program::Tc)), [("destination", 1)]);
}

#[test]
fn generic_xdp_answers_frames_with_a_whole_checksum_and_passes_the_others() {
    let net = Net::new();
    let mut server = server(&net, 14);
    server.xdp().attach("s0", XdpMode::Skb).expect("attached");
    xdp_answers();
    assert_eq!(nonzero(&server.counters(Program::Xdp)), [("answered", 2)]);

    let socket = daemon("0.0.0.0");
    let client = socket_in("client", "10.2.0.5");
    client.send_to(&query("10.2.0.5"), "10.2.0.5:4791").expect("sent");
    assert_eq!(receive(&socket).0, query("10.2.0.5"));
    assert_eq!(nonzero(&server.counters(Program::Xdp)), [("answered", 2), ("checksum", 1)]);
}

#[test]
fn native_xdp_answers_a_peer_that_has_a_program_too() {
    let net = Net::new();
    let mut server = server(&net, 14);
    server.xdp().attach("s0", XdpMode::Driver).expect("attached");
    let mut bench = Programs::bench();
    let empty: &mut Xdp = bench.program_mut("empty_xdp").unwrap().try_into().unwrap();
    empty.load().expect("loaded");
    netns::inside("client", || Ok(empty.attach("c0", XdpMode::Driver)?)).expect("attached");
    xdp_answers();
    assert_eq!(nonzero(&server.counters(Program::Xdp)), [("answered", 2)]);
}

#[test]
fn guard_drops_exactly_what_the_server_would_drop() {
    let net = Net::new();
    for (ours, other, peer) in
        [("10.2.0.5", "10.2.0.8", "10.2.0.9"), ("fd00:2::5", "fd00:2::8", "fd00:2::9")]
    {
        let mut server = server(&net, 14);
        let socket = daemon(if ours.contains(':') { "::" } else { "0.0.0.0" });
        server.guard().attach(&socket).expect("attached");
        let mut malformed = query(ours);
        malformed[0] = 2;
        let long = [query(ours), vec![0]].concat();
        let dropped = [malformed, long, vec![], vec![2; 19], vec![1; 1400]];
        let mut with_another_tlv = [query(ours), vec![0x12, 0x34, 0, 4]].concat();
        with_another_tlv[9] = 2;
        // The server answers the second with "not here", and refuses the last, which has several TLVs.
        let kept = [query(ours), query(other), with_another_tlv, vec![1; 128]];
        let client = socket_in("client", ours);
        for payload in dropped.iter().chain(&kept) {
            client.send_to(payload, (ours, 4791)).expect("sent");
        }
        for payload in &kept {
            assert_eq!(&receive(&socket).0, payload);
        }
        let frame = Frame::query(ip(peer), ip(ours), &query(ours));
        let no_port = Frame { link: TO_SERVER, source_port: 0, ..frame };
        send_frame(&no_port.bytes());
        client.send_to(&query(ours), (ours, 4791)).expect("sent");
        assert_eq!(receive(&socket).1.port(), client.local_addr().unwrap().port());
        assert_eq!(
            nonzero(&server.counters(Program::Guard)),
            [("answered", 5), ("malformed", 5), ("source", 1)]
        );
    }
}

/// With and without the guard, and with right and wrong maps.
#[test]
fn own_address_as_source_passes_only_from_this_host() {
    let net = Net::new();
    // Otherwise the kernel drops packets from outside with an own address as source.
    std::fs::write("/proc/sys/net/ipv4/conf/s0/accept_local", "1").expect("a setting");
    for (ours, peer) in [("10.2.0.5", "10.2.0.9"), ("fd00:2::5", "fd00:2::9")] {
        for (guard, lease) in [(false, 0), (true, u64::MAX), (true, 0)] {
            let mut server = server(&net, 14);
            server.lease_until(lease, 0);
            let socket = daemon(if ours.contains(':') { "::" } else { "0.0.0.0" });
            refuse_from_itself(&socket).expect("attached");
            if guard {
                server.guard().attach(&socket).expect("attached");
            }
            let frame = Frame::query(ip(ours), ip(ours), &query(ours));
            send_frame(&Frame { link: TO_SERVER, ..frame }.bytes());
            let own = UdpSocket::bind((ip(ours), 0)).expect("a socket");
            let client = socket_in("client", ours);
            for (socket_of, source) in [(&own, ours), (&client, peer)] {
                socket_of.send_to(&query(ours), (ours, 4791)).expect("sent");
                let (payload, from) = receive(&socket);
                assert_eq!((payload, from.ip()), (query(ours), ip(source)), "guard: {guard}");
            }
            let counters = server.counters(Program::Guard);
            let expected: &[_] = if guard { &[("answered", 2), ("source", 1)] } else { &[] };
            assert_eq!(nonzero(&counters), expected);
        }
    }
}

#[test]
fn edges_of_the_subnet_are_sent_nothing_by_either_program() {
    let net = Net::new();
    for xdp in [false, true] {
        let mut server = server(&net, 14);
        for edge in ["10.2.0.0", "10.2.0.255"] {
            server.put_route(net.s0, ip(edge), 32, Route::ELSEWHERE);
        }
        if xdp {
            server.xdp().attach("s0", XdpMode::Skb).expect("attached");
        } else {
            attach(server.tc(), 1);
        }
        // This socket receives datagrams to the broadcast address.
        let socket = socket_in("client", "10.2.0.5");
        let source_port = socket.local_addr().unwrap().port();
        let fence = Query::new(Version::V1, MsgId(1), ip("10.2.0.5")).unwrap().emit();
        let fence = ("10.2.0.9", fence.as_ref().to_vec());
        let edges = ["10.2.0.0", "10.2.0.255"].map(|edge| (edge, query("10.2.0.5")));
        for (source, payload) in edges.iter().chain([&fence]) {
            let frame = Frame::query(ip(source), ip("10.2.0.5"), payload);
            send_frame(&Frame { link: TO_SERVER, source_port, ..frame }.bytes());
        }
        let (reply, _) = receive(&socket);
        assert_eq!(Reply::parse(&reply).unwrap().msg_id, MsgId(1), "xdp: {xdp}");
        let counters = server.counters(if xdp { Program::Xdp } else { Program::Tc });
        assert_eq!(nonzero(&counters), [("answered", 1), ("no_route", 2)]);
    }
}

#[test]
fn guard_keeps_everything_once_the_lease_is_over() {
    let net = Net::new();
    let mut server = server(&net, 14);
    server.lease_until(0, 0);
    let socket = daemon("0.0.0.0");
    server.guard().attach(&socket).expect("attached");
    let client = socket_in("client", "10.2.0.5");
    client.send_to(b"not a query", "10.2.0.5:4791").expect("sent");
    assert_eq!(receive(&socket).0, b"not a query");
}

/// Sends queries of both families in frames with whole checksums. XDP must answer.
fn xdp_answers() {
    for (source, target) in [("10.2.0.9", "10.2.0.5"), ("fd00:2::9", "fd00:2::5")] {
        let socket: UdpSocket = socket_in("client", target);
        let source_port = socket.local_addr().unwrap().port();
        let frame = Frame {
            link: TO_SERVER,
            source_port,
            ..Frame::query(ip(source), ip(target), &query(target))
        };
        send_frame(&frame.bytes());
        assert_eq!(gid_of(&receive(&socket).0), Some(gid()));
    }
}

/// The responder's programs, with maps as the server's daemon would write them.
fn server(net: &Net, link_header: u32) -> Programs {
    let mut programs = Programs::load(link_header);
    programs.lease_until(u64::MAX, 0);
    let switches = Interface::ANSWER_IPV4 | Interface::ANSWER_IPV6;
    let mut hwaddr = [0; 20];
    hwaddr[..6].copy_from_slice(&SERVER);
    programs.put_interface(net.s0, Interface { switches, hwaddr });
    for address in ["10.2.0.5", "fd00:2::5"] {
        programs.put_gid(ip(address), net.s0, Some(gid()));
    }
    programs
}

/// Attaches `program` at position `place`: to tcx, or to clsact before Linux 6.6.
fn attach(program: &mut SchedClassifier, place: u16) {
    let last = TcAttachOptions::TcxOrder(LinkOrder::last());
    if let Err(no_tcx) = program.attach_with_options("s0", TcAttachType::Ingress, last) {
        println!("on clsact, because {no_tcx}");
        attach_to_clsact(program, place);
    }
}

fn attach_to_clsact(program: &mut SchedClassifier, place: u16) {
    // The qdisc exists already if another program is attached.
    let _ = qdisc_add_clsact("s0");
    let options = TcAttachOptions::Netlink(NlOptions { priority: place, ..NlOptions::default() });
    program.attach_with_options("s0", TcAttachType::Ingress, options).expect("attached");
}

fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    let program: &mut SchedClassifier = ebpf.program_mut(name).unwrap().try_into().unwrap();
    program.load().expect("loaded");
    program
}

fn query(target: &str) -> Vec<u8> {
    let query = Query::new(Version::V1, MsgId(0x0102_0304), ip(target)).unwrap();
    query.emit().as_ref().to_vec()
}

/// The answer to [`query`].
fn gid_of(payload: &[u8]) -> Option<Gid> {
    let reply = Reply::parse(payload).unwrap();
    assert_eq!(reply.msg_id, MsgId(0x0102_0304));
    reply.gid
}

fn gid() -> Gid {
    "fe80::2:c903:0:201".parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
