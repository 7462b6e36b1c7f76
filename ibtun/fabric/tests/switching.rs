// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Packets at switches and routers that a subnet manager has configured.

mod support;

use ibarr_common::ib::{Gid, Guid, Lid, PKey};
use ibarr_fabric::wire::packet::{Error, GrhWire, Packet};
use ibarr_fabric::wire::smp::{
    GUID_INFO, LINEAR_FORWARDING, MULTICAST_FORWARDING, P_KEY_TABLE, PORT_INFO, PortInfoWire,
    PortState,
};
use ibarr_fabric::{DropReason, Input, MAX_QUEUED};
use zerocopy::IntoBytes as _;

use self::support::{Subnet, TWO_SWITCHES, emit, gsi_datagram, gsi_packet, port_info};

fn lid(lid: u16) -> Lid {
    Lid::new(lid).unwrap()
}

/// Ports of a switch, as a mask of a multicast table.
fn mask(ports: &[u8]) -> [u8; 2] {
    ports.iter().fold(0_u16, |mask, port| mask | 1 << port).to_be_bytes()
}

const TO_S1: &[u8] = &[1];
const TO_S2: &[u8] = &[1, 3];

#[test]
fn multicast_reaches_each_member_once_even_the_sender() {
    let (mut subnet, lids) = Subnet::up();
    // H1, H2, H3 are members; H4 is not.
    let mut block = [0; 64];
    block[..2].copy_from_slice(&mask(&[1, 2, 3]));
    subnet.set(TO_S1, MULTICAST_FORWARDING, 0, &block);
    block[..2].copy_from_slice(&mask(&[1, 3]));
    subnet.set(TO_S2, MULTICAST_FORWARDING, 0, &block);

    let packet = gsi_packet(lids[1], Lid::FIRST_MULTICAST, None, b"to all");
    let sender = subnet.port("H2");
    subnet.send(sender, &packet);
    for (name, copies) in [("H1", 1), ("H2", 1), ("H3", 1), ("H4", 0)] {
        let port = subnet.port(name);
        assert_eq!(subnet.take(port), vec![packet.clone(); copies], "{name}");
    }
    assert_eq!(subnet.fabric.drops().total(), 0);

    let other_group = gsi_packet(lids[1], lid(0xc001), None, b"to another group");
    subnet.send(sender, &other_group);
    assert_eq!(subnet.fabric.drops().of(DropReason::DestinationLid), 1);
}

#[test]
fn every_lid_of_a_port_with_an_lmc_reaches_it() {
    let (mut subnet, lids) = Subnet::up();
    // H3 gets LIDs 8 to 11.
    let path = [TO_S2, &[1]].concat();
    let mut info = port_info(&subnet.get(&path, PORT_INFO, 0));
    info.lid = 8.into();
    info.m_key_protect_lmc = 2;
    info.speed_supported_state &= 0xf0;
    info.physical_default &= 0x0f;
    subnet.set(&path, PORT_INFO, 0, info.as_bytes());
    for (path, exit) in [(TO_S1, 3), (TO_S2, 1)] {
        let mut table = *subnet.get(path, LINEAR_FORWARDING, 0).data();
        table[8..12].fill(exit);
        subnet.set(path, LINEAR_FORWARDING, 0, &table);
        let mut info = *subnet.get(path, ibarr_fabric::wire::smp::SWITCH_INFO, 0).data();
        info[6..8].copy_from_slice(&12_u16.to_be_bytes());
        subnet.set(path, ibarr_fabric::wire::smp::SWITCH_INFO, 0, &info);
    }
    let (sender, target) = (subnet.port("H1"), subnet.port("H3"));
    for number in 8..12 {
        let packet = gsi_packet(lids[0], lid(number), None, b"");
        subnet.send(sender, &packet);
        assert_eq!(subnet.take(target), [packet], "LID {number}");
    }
    assert!(subnet.received.is_empty());
    // The host may send from each of its LIDs, but from no other.
    subnet.send(target, &gsi_packet(lid(11), lids[0], None, b""));
    assert_eq!(subnet.take(sender).len(), 1);
    subnet.send(target, &gsi_packet(lid(12), lids[0], None, b""));
    assert_eq!(subnet.fabric.drops().of(DropReason::SourceLid), 1);
}

#[test]
fn packet_in_a_loop_is_dropped() {
    let (mut subnet, lids) = Subnet::up();
    // S1 and S2 send LID 9 to each other.
    for path in [TO_S1, TO_S2] {
        let mut table = *subnet.get(path, LINEAR_FORWARDING, 0).data();
        table[9] = 3;
        subnet.set(path, LINEAR_FORWARDING, 0, &table);
        let mut info = *subnet.get(path, ibarr_fabric::wire::smp::SWITCH_INFO, 0).data();
        info[6..8].copy_from_slice(&9_u16.to_be_bytes());
        subnet.set(path, ibarr_fabric::wire::smp::SWITCH_INFO, 0, &info);
    }
    let sender = subnet.port("H1");
    subnet.send(sender, &gsi_packet(lids[0], lid(9), None, b""));
    assert_eq!(subnet.fabric.drops().of(DropReason::HopLimit), 1);
    assert_eq!(subnet.fabric.poll_timeout(), None);
}

#[test]
fn switch_passes_only_packets_of_shared_partitions() {
    let (mut subnet, lids) = Subnet::up();
    let (sender, target) = (subnet.port("H1"), subnet.port("H3"));
    let ask = |subnet: &mut Subnet, pkey: u16| {
        let mut datagram = gsi_datagram(lids[0], lids[2], None);
        datagram.pkey = PKey::new(pkey).unwrap();
        subnet.send(sender, &emit(&datagram, b""));
        subnet.take(target).len()
    };
    assert_eq!(ask(&mut subnet, 0x8001), 1, "without enforcement every partition passes");

    // S2 enforces partitions of packets that leave port 1, where H3 is: partition 1 as a limited
    // member.
    let mut table = [0; 64];
    table[..2].copy_from_slice(&0x0001_u16.to_be_bytes());
    subnet.set(TO_S2, P_KEY_TABLE, 1 << 16, &table);
    let mut info = port_info(&subnet.get(TO_S2, PORT_INFO, 1));
    info.vls_enforcement |= 0x0c;
    info.physical_default &= 0x0f;
    subnet.set(TO_S2, PORT_INFO, 1, info.as_bytes());
    assert_eq!(ask(&mut subnet, 0x8001), 1, "a full member talks to a limited one");
    assert_eq!(ask(&mut subnet, 0x0001), 0, "two limited members do not talk");
    assert_eq!(ask(&mut subnet, 0xffff), 0);
    assert_eq!(subnet.fabric.drops().of(DropReason::Partition), 2);
    let exit = subnet.port("S2/1");
    assert_eq!(subnet.fabric.counters(exit).unwrap().send_constraint_errors, 2);
    // The same table applies to packets that arrive.
    let mut datagram = gsi_datagram(lids[2], lids[0], None);
    datagram.pkey = PKey::DEFAULT;
    subnet.send(target, &emit(&datagram, b""));
    assert_eq!(subnet.take(sender).len(), 0);
    assert_eq!(subnet.fabric.counters(exit).unwrap().receive_constraint_errors, 1);
}

#[test]
fn inactive_port_passes_subnet_management_only() {
    let mut subnet = Subnet::new(TWO_SWITCHES, "H1");
    let path = [TO_S1, &[2]].concat();
    assert_eq!(port_info(&subnet.get(&path, PORT_INFO, 0)).state(), PortState::Initialize);
    let sender = subnet.port("H1");
    let mut info = port_info(&subnet.get(&[], PORT_INFO, 0));
    info.lid = 1.into();
    info.speed_supported_state &= 0xf0;
    info.physical_default &= 0x0f;
    subnet.set(&[], PORT_INFO, 0, info.as_bytes());
    subnet.send(sender, &gsi_packet(lid(1), lid(2), None, b""));
    assert_eq!(subnet.fabric.drops().of(DropReason::PortState), 1);
    // The port also cannot become active before it is armed.
    info.set_state(PortState::Active);
    let method = ibarr_common::wire::mad::Method::SET;
    let answer = subnet.ask(&[], method, PORT_INFO, 0, info.as_bytes()).unwrap();
    assert_eq!(answer.status(), ibarr_common::wire::mad::Status::BAD_FIELD);
}

#[test]
fn payload_beyond_the_mtu_of_a_link_is_dropped() {
    let (mut subnet, lids) = Subnet::up();
    let sender = subnet.port("H1");
    let mut info = port_info(&subnet.get(TO_S1, PORT_INFO, 3));
    info.mtu_sm_sl = 0x10;
    info.physical_default &= 0x0f;
    subnet.set(TO_S1, PORT_INFO, 3, info.as_bytes());
    subnet.send(sender, &gsi_packet(lids[0], lids[2], None, &[0; 256]));
    subnet.send(sender, &gsi_packet(lids[0], lids[2], None, &[0; 257]));
    let target = subnet.port("H3");
    assert_eq!(subnet.take(target).len(), 1);
    assert_eq!(subnet.fabric.drops().of(DropReason::Mtu), 1);
}

#[test]
fn headers_of_connected_packets_are_no_payload() {
    let (subnet, lids) = Subnet::up();
    drop(subnet);
    // The DETH and 20 bytes behind it, read as each operation of RC and of UC.
    let lengths = [
        28, 28, 28, 24, 28, 24, 12, 28, 28, 24, 12, 8, 12, 24, 28, 24, 24, 24, 16, 0, 0, 28, 24, 24,
    ];
    for (operation, expected) in (0..).zip(lengths) {
        for service in [0x00, 0x20] {
            let mut packet = gsi_packet(lids[0], lids[2], None, &[0; 20]);
            packet[8] = service | operation;
            let packet = Packet::parse(&packet).unwrap();
            assert_eq!(packet.payload.len(), expected, "opcode {:#x}", packet.opcode);
        }
    }
    let mut packet = gsi_packet(lids[0], lids[2], None, &[0; 16]);
    packet[8] = 0x13;
    assert_eq!(Packet::parse(&packet).unwrap_err(), Error::Truncated);
}

#[test]
fn switch_answers_for_its_counters_by_lid() {
    use ibarr_common::wire::mad::{Class, Header, Method, Status, Tid};
    use ibarr_fabric::wire::perf::{PORT_COUNTERS_EXTENDED, PortCountersExtendedWire};
    use zerocopy::FromBytes as _;

    let (mut subnet, lids) = Subnet::up();
    let sender = subnet.port("H1");
    let switch = subnet.fabric.switch_lid(subnet.port("S1").node).unwrap();
    let header = Header {
        class: Class::PERFORMANCE,
        class_version: 1,
        method: Method::GET,
        status: Status::OK,
        class_specific: 0,
        tid: Tid::new(9),
        attribute: PORT_COUNTERS_EXTENDED,
        modifier: 0,
    };
    let mut mad = [0; 256];
    mad[..24].copy_from_slice(header.wire().as_bytes());
    mad[65] = 1;
    let before = subnet.fabric.counters(subnet.port("S1/1")).unwrap();
    subnet.send(sender, &gsi_packet(lids[0], switch, None, &mad));
    let answers = subnet.take(sender);
    let answer = Packet::parse(&answers[0]).unwrap();
    let (answered, _) = Header::parse(answer.payload).unwrap();
    assert_eq!((answered.method, answered.tid), (Method::GET_RESP, header.tid));
    let (counters, _) = PortCountersExtendedWire::read_from_prefix(&answer.payload[64..]).unwrap();
    assert_eq!(counters.received_packets.get(), before.received_packets + 1);
    assert_eq!(counters.sent_packets.get(), before.sent_packets);
}

/// Three subnets with routers between them, each with its own manager.
const SUBNETS: &str = r#"
Switch 4 "S1"
[1] "H1"[1]
[2] "R"[1]

Switch 4 "S2"
[1] "H2"[1]
[2] "R"[2]
[3] "Q"[1]

Switch 4 "S3"
[1] "H3"[1]
[2] "Q"[2]

Ca 1 "H1"

Ca 1 "H2"

Ca 1 "H3"

rtguid=0x300000
Rt 2 "R"

Rt 2 "Q"
"#;

/// A host in the first and in the second subnet, and the router between them.
struct Routed {
    subnet: Subnet,
    here: Gid,
    away: Gid,
    slid: Lid,
    router: Lid,
    exit: Lid,
    /// Of the host in the other subnet.
    dlid: Lid,
}

/// The prefix of the other subnet.
const AWAY: u64 = 0xfec0_0000_0000_0002;
/// The prefix of the third.
const BEYOND: u64 = 0xfec0_0000_0000_0003;
/// No subnet has it.
const OTHER: u64 = 0xfec0_0000_0000_0004;

fn gid(prefix: u64, guid: Guid) -> Gid {
    Gid::new((u128::from(prefix) << 64 | u128::from(guid.get())).to_be_bytes()).unwrap()
}

/// The manager gives the ports at the ends of these paths a prefix.
fn give_prefix(subnet: &mut Subnet, paths: &[&[u8]], prefix: u64) {
    for path in paths {
        let mut info: PortInfoWire = port_info(&subnet.get(path, PORT_INFO, 0));
        info.gid_prefix = prefix.into();
        info.speed_supported_state &= 0xf0;
        info.physical_default &= 0x0f;
        subnet.set(path, PORT_INFO, 0, info.as_bytes());
    }
}

impl Routed {
    fn up(routing: &str) -> Self {
        let text = SUBNETS.replace("rtguid", &format!("routing={routing}\nrtguid"));
        let mut subnet = Subnet::new(&text, "H1");
        // The subnets share no link, so each manager sees its own; all start at LID 1.
        let left = subnet.bring_up();
        subnet.set_manager("H3");
        subnet.bring_up();
        give_prefix(&mut subnet, &[&[], &[1, 2]], BEYOND);
        subnet.set_manager("H2");
        let right = subnet.bring_up();
        give_prefix(&mut subnet, &[&[], &[1, 2], &[1, 3]], AWAY);
        let guid_of = |name: &str| {
            let port = subnet.port(name);
            subnet.fabric.topology().node(port.node).unwrap().port_guid(port.number).unwrap()
        };
        let [h1, h2, r1, r2] = ["H1", "H2", "R/1", "R/2"].map(guid_of);
        Self {
            here: gid(0xfe80 << 48, h1),
            away: gid(AWAY, h2),
            slid: left[&h1.get()].lid,
            router: left[&r1.get()].lid,
            exit: right[&r2.get()].lid,
            dlid: right[&h2.get()].lid,
            subnet,
        }
    }

    fn send(&mut self, to: Gid, hop_limit: u8) {
        let grh = GrhWire::new(self.here.octets(), to.octets(), hop_limit);
        let from = self.subnet.port("H1");
        let packet = gsi_packet(self.slid, self.router, Some(grh), b"over there");
        self.subnet.send(from, &packet);
    }

    /// Checks that a packet to `to` arrives, sent by the router to `dlid`.
    fn arrives(&mut self, to: Gid) {
        self.send(to, 64);
        let port = self.subnet.port("H2");
        let arrived = self.subnet.take(port);
        let packet = Packet::parse(&arrived[0]).unwrap();
        assert_eq!(packet.payload, b"over there");
        assert_eq!((packet.slid, packet.dlid), (Some(self.exit), self.dlid));
        assert_eq!(packet.grh.unwrap().hop_limit, 63);
    }

    /// Checks that a packet to `to` is dropped for this reason.
    fn is_dropped(&mut self, to: Gid, hop_limit: u8, why: DropReason) {
        let before = self.subnet.fabric.drops().of(why);
        self.send(to, hop_limit);
        assert_eq!(self.subnet.fabric.drops().of(why), before + 1, "{to} {hop_limit}");
        assert!(self.subnet.received.is_empty());
    }

    /// The second subnet's manager gives H2 an alias.
    fn give_alias(&mut self) -> Gid {
        let alias = Guid::new(0x1405);
        let mut block = [0; 64];
        block[8..16].copy_from_slice(&alias.get().to_be_bytes());
        self.subnet.set(&[], GUID_INFO, 0, &block);
        gid(AWAY, alias)
    }
}

#[test]
fn router_forwards_packets_with_a_global_route() {
    let mut routed = Routed::up("guid");
    let away = routed.away;
    routed.arrives(away);
    let alias = gid(AWAY, Guid::new(0x1405));
    routed.is_dropped(alias, 64, DropReason::GlobalRoute);
    assert_eq!(routed.give_alias(), alias);
    routed.arrives(alias);

    // With a hop limit of 1 the packet is dropped, and so is one to an unknown subnet.
    routed.is_dropped(away, 1, DropReason::HopLimit);
    routed.is_dropped(gid(OTHER, away.guid()), 64, DropReason::GlobalRoute);
    let mut plain = gsi_datagram(routed.slid, routed.router, None);
    plain.destination = ibarr_common::ib::Qpn::new(0x48).unwrap();
    let from = routed.subnet.port("H1");
    routed.subnet.send(from, &emit(&plain, b""));
    assert_eq!(routed.subnet.fabric.drops().of(DropReason::NotGlobal), 1);
    assert!(routed.subnet.received.is_empty());
}

#[test]
fn router_by_lid_takes_the_low_bits_of_the_gid() {
    let mut routed = Routed::up("lid");
    let lid = u64::from(routed.dlid.get());
    // Whatever is in the other bits, and whether or not a port has the GID.
    for guid in [lid, 0x1405_0000_0000 | lid] {
        routed.arrives(gid(AWAY, Guid::new(guid)));
    }
    let alias = routed.give_alias();
    routed.is_dropped(alias, 64, DropReason::DestinationLid);
    routed.is_dropped(gid(AWAY, Guid::new(0x1_0000)), 64, DropReason::GlobalRoute);
    routed.is_dropped(gid(OTHER, Guid::new(lid)), 64, DropReason::GlobalRoute);
    routed.is_dropped(gid(AWAY, Guid::new(lid)), 1, DropReason::HopLimit);
}

#[test]
fn router_sends_to_a_subnet_behind_another_router() {
    let mut routed = Routed::up("guid");
    let port = routed.subnet.port("H3");
    let guid = routed.subnet.fabric.topology().node(port.node).unwrap().port_guid(port.number);
    let beyond = gid(BEYOND, guid.unwrap());
    routed.send(beyond, 3);
    let arrived = routed.subnet.take(port);
    assert_eq!(Packet::parse(&arrived[0]).unwrap().grh.unwrap().hop_limit, 1);
    // Each router takes a hop.
    routed.is_dropped(beyond, 2, DropReason::HopLimit);
}

#[test]
fn host_that_does_not_read_gets_one_queue_of_packets() {
    let (mut subnet, lids) = Subnet::up();
    let packet = gsi_packet(lids[1], lids[3], None, b"");
    let port = subnet.port("H2");
    for _ in 0..MAX_QUEUED + 6 {
        let now = subnet.now;
        subnet.fabric.handle_input(now, Input::Packet { port, packet: &packet });
    }
    assert_eq!(subnet.fabric.drops().of(DropReason::HostQueue), 6);
    subnet.drain();
    assert_eq!(subnet.received.len(), MAX_QUEUED);
    // Reading makes room.
    subnet.send(port, &packet);
    assert_eq!(subnet.received.len(), MAX_QUEUED + 1);
}
