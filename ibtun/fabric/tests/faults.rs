// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The effects of faults, as a subnet manager and hosts see them.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use ibarr_common::ib::Lid;
use ibarr_common::wire::mad::{Method, Tid};
use ibarr_fabric::wire::packet::Packet;
use ibarr_fabric::wire::smp::{NODE_INFO, NOTICE, PORT_INFO, PortState, SM_INFO, Smp};
use ibarr_fabric::{DropReason, Fault, Input, LinkFault, MAX_IN_FLIGHT};

use self::support::{Subnet, gsi_packet, port_info, smp_packet};

fn fault(subnet: &mut Subnet, fault: Fault) {
    let now = subnet.now;
    subnet.fabric.handle_input(now, Input::Fault(fault));
    subnet.drain();
}

/// Advances the clock until all packets have arrived.
fn settle(subnet: &mut Subnet) {
    while let Some(due) = subnet.fabric.poll_timeout() {
        assert!(due > subnet.now, "overdue");
        subnet.now = due;
        subnet.fabric.handle_timeout(due);
        subnet.drain();
    }
}

/// The numbers of 10,000 packets from H1 to H3, in the order of arrival.
fn arrivals(fault_: LinkFault) -> Vec<u32> {
    let (mut subnet, lids) = Subnet::up();
    let port = subnet.port("S1/3");
    fault(&mut subnet, Fault::Link { port, fault: fault_ });
    let (from, to) = (subnet.port("H1"), subnet.port("H3"));
    let mut arrived = Vec::new();
    for number in 0..10_000_u32 {
        subnet.send(from, &gsi_packet(lids[0], lids[2], None, &number.to_be_bytes()));
        if number % 100 == 0 {
            settle(&mut subnet);
        }
        arrived.extend(subnet.take(to));
    }
    settle(&mut subnet);
    arrived.extend(subnet.take(to));
    let number = |packet: &Vec<u8>| {
        u32::from_be_bytes(Packet::parse(packet).unwrap().payload.try_into().unwrap())
    };
    arrived.iter().map(number).collect()
}

#[test]
fn link_loses_repeats_and_reorders_at_the_configured_rates() {
    let all: Vec<u32> = (0..10_000).collect();
    assert_eq!(arrivals(LinkFault::NONE), all);

    let lost = arrivals(LinkFault { loss: 100_000, ..LinkFault::NONE });
    assert!(lost.is_sorted());
    assert!((8_800..=9_200).contains(&lost.len()), "{} of 10000 with a loss of 10%", lost.len());

    let doubled = arrivals(LinkFault { duplication: 100_000, ..LinkFault::NONE });
    assert!((10_800..=11_200).contains(&doubled.len()), "{} with 10% twice", doubled.len());
    let mut once = doubled;
    once.dedup();
    assert_eq!(once, all);

    let jitter = Duration::from_millis(1);
    let mut shuffled = arrivals(LinkFault { jitter, ..LinkFault::NONE });
    assert!(!shuffled.is_sorted());
    shuffled.sort_unstable();
    assert_eq!(shuffled, all);
}

#[test]
fn lost_packets_are_errors_of_the_port_that_misses_them() {
    let (mut subnet, lids) = Subnet::up();
    let [from, switch, host] = ["H1", "S1/3", "H3"].map(|name| subnet.port(name));
    let to = subnet.fabric.topology().peer(switch).unwrap();
    let loss = LinkFault { loss: 1_000_000, ..LinkFault::NONE };
    fault(&mut subnet, Fault::Link { port: switch, fault: loss });
    for _ in 0..5 {
        subnet.send(from, &gsi_packet(lids[0], lids[2], None, b""));
    }
    settle(&mut subnet);
    assert!(subnet.take(host).is_empty());
    let counters = |port| subnet.fabric.counters(port).unwrap();
    let errors = [from, switch, to].map(|port| counters(port).receive_errors);
    assert_eq!(errors, [0, 0, 5]);
    assert_eq!(counters(to).symbol_errors, 5);
    assert_eq!(counters(switch).sent_packets - counters(to).received_packets, 5);
}

#[test]
fn same_seed_loses_the_same_packets() {
    let fault = LinkFault { loss: 300_000, duplication: 300_000, ..LinkFault::NONE };
    let jitter = LinkFault { jitter: Duration::from_millis(2), ..fault };
    assert_eq!(arrivals(jitter), arrivals(jitter));
}

#[test]
fn delayed_packet_arrives_when_due_and_not_before() {
    let (mut subnet, lids) = Subnet::up();
    let port = subnet.port("S1/3");
    let delay = Duration::from_millis(5);
    fault(&mut subnet, Fault::Link { port, fault: LinkFault { delay, ..LinkFault::NONE } });
    let (from, to) = (subnet.port("H1"), subnet.port("H3"));
    subnet.send(from, &gsi_packet(lids[0], lids[2], None, b""));
    assert!(subnet.take(to).is_empty());
    let due = subnet.now + delay;
    assert_eq!(subnet.fabric.poll_timeout(), Some(due));
    settle(&mut subnet);
    assert_eq!((subnet.take(to).len(), subnet.now), (1, due));
}

#[test]
fn packets_in_flight_are_bounded() {
    let (mut subnet, lids) = Subnet::up();
    let port = subnet.port("S1/3");
    let delay = Duration::from_secs(1);
    fault(&mut subnet, Fault::Link { port, fault: LinkFault { delay, ..LinkFault::NONE } });
    let from = subnet.port("H1");
    for _ in 0..5_000 {
        subnet.send(from, &gsi_packet(lids[0], lids[2], None, b""));
    }
    // One place is taken by each packet on the way from the host to the switch.
    let refused = subnet.fabric.drops().of(DropReason::InFlight);
    assert_eq!(refused, 5_000 - MAX_IN_FLIGHT as u64);
    settle(&mut subnet);
    let to = subnet.port("H3");
    assert_eq!(
        subnet.take(to).len() + usize::try_from(subnet.fabric.drops().total()).unwrap(),
        5_000
    );
}

#[test]
fn unplugged_cable_takes_both_ends_down_and_traps_are_repeated() {
    let (mut subnet, lids) = Subnet::up();
    let manager = subnet.port("H1");
    let cable = subnet.port("S2/3");
    fault(&mut subnet, Fault::Cable { port: cable, down: true });
    let state =
        |subnet: &Subnet, name: &str| subnet.fabric.port_config(subnet.port(name)).unwrap().state;
    assert_eq!(state(&subnet, "S1/3"), PortState::Down);
    assert_eq!(state(&subnet, "S2/3"), PortState::Down);
    assert_eq!(state(&subnet, "S1/1"), PortState::Active);

    // S1 can reach the manager; S2 is behind the cable.
    let traps = subnet.take(manager);
    let [trap] = &traps[..] else { panic!("{} traps", traps.len()) };
    let trap = Packet::parse(trap).unwrap();
    let smp = Smp::parse(trap.payload).unwrap();
    assert_eq!((smp.method(), smp.attribute()), (Method::TRAP, NOTICE));
    assert_eq!(smp.data()[4..6], 128_u16.to_be_bytes());

    // The trap is repeated until it is answered.
    let again = subnet.now + Duration::from_secs(1);
    assert_eq!(subnet.fabric.poll_timeout(), Some(again));
    subnet.now = again;
    subnet.fabric.handle_timeout(again);
    subnet.drain();
    assert_eq!(subnet.take(manager).len(), 1);
    let mut heard = Smp::lid_routed(Method::TRAP_REPRESS, NOTICE);
    heard.set_tid(smp.tid());
    subnet.send(manager, &smp_packet(&heard, Some(lids[0]), trap.slid.unwrap()));
    settle(&mut subnet);
    assert!(subnet.take(manager).is_empty());

    fault(&mut subnet, Fault::Cable { port: cable, down: false });
    assert_eq!(state(&subnet, "S1/3"), PortState::Initialize);
    let seen = subnet.bring_up();
    assert_eq!(seen.len(), 6);
}

#[test]
fn switch_that_was_off_has_lost_its_configuration() {
    let (mut subnet, lids) = Subnet::up();
    let node = subnet.port("S2").node;
    fault(&mut subnet, Fault::Node { node, down: true });
    let from = subnet.port("H1");
    subnet.send(from, &gsi_packet(lids[0], lids[2], None, b""));
    assert_eq!(subnet.fabric.drops().of(DropReason::LinkDown), 1);
    let h3 = subnet.port("H3");
    assert_eq!(subnet.fabric.port_config(h3).unwrap().state, PortState::Down);

    fault(&mut subnet, Fault::Node { node, down: false });
    assert_eq!(subnet.fabric.switch_lid(node), None);
    assert_eq!(subnet.bring_up().len(), 6);
    subnet.received.clear();
    subnet.send(from, &gsi_packet(lids[0], lids[2], None, b""));
    assert_eq!(subnet.take(h3).len(), 1);
}

#[test]
fn blocked_manager_reaches_no_node_while_other_packets_pass() {
    let (mut subnet, lids) = Subnet::up();
    let port = subnet.port("H1");
    fault(&mut subnet, Fault::Manager { port, cut: true });
    assert!(subnet.ask(&[1], Method::GET, NODE_INFO, 0, &[]).is_none());
    let administration = [1, 3, 2, 1].repeat(64);
    subnet.send(subnet.port("H2"), &gsi_packet(lids[1], lids[0], None, &administration));
    assert!(subnet.take(port).is_empty());
    assert_eq!(subnet.fabric.drops().of(DropReason::CutOff), 2);
    subnet.send(subnet.port("H2"), &gsi_packet(lids[1], lids[0], None, b"other"));
    assert_eq!(subnet.take(port).len(), 1);

    fault(&mut subnet, Fault::Manager { port, cut: false });
    assert!(subnet.ask(&[1], Method::GET, NODE_INFO, 0, &[]).is_some());
}

#[test]
fn host_that_leaves_takes_its_links_down_and_returns_unconfigured() {
    let (mut subnet, _) = Subnet::up();
    let port = subnet.port("H3");
    let now = subnet.now;
    subnet.fabric.handle_input(now, Input::Detach(port.node));
    assert_eq!(subnet.fabric.port_config(port).unwrap().state, PortState::Down);
    subnet.fabric.handle_input(now, Input::Attach(port.node));
    let config = subnet.fabric.port_config(port).unwrap();
    assert_eq!((config.state, config.lid), (PortState::Initialize, None));
    subnet.drain();
}

#[test]
fn switch_has_no_host_and_keeps_its_configuration() {
    let (mut subnet, _) = Subnet::up();
    let (node, now) = (subnet.port("S2").node, subnet.now);
    for input in [Input::Attach(node), Input::Detach(node)] {
        subnet.fabric.handle_input(now, input);
        assert!(subnet.fabric.switch_lid(node).is_some());
        let port = subnet.fabric.port_config(subnet.port("S2/3")).unwrap();
        assert_eq!(port.state, PortState::Active);
    }
}

#[test]
fn directed_route_requests_to_a_manager_are_turned_into_lid_routed_ones() {
    let (mut subnet, _) = Subnet::up();
    let other = subnet.port("H4");
    let now = subnet.now;
    let path = [1, 3, 2];
    // There is no manager yet: the agent says so.
    let answer = subnet.ask(&path, Method::GET, SM_INFO, 0, &[]).unwrap();
    assert_ne!(answer.status().get(), 0);

    let mask = ibarr_fabric::wire::smp::PortInfoWire::IS_SM;
    subnet.fabric.handle_input(now, Input::Capabilities { port: other, mask });
    let info = port_info(&subnet.get(&path, PORT_INFO, 0));
    assert_ne!(info.capability_mask.get() & mask, 0);
    assert!(subnet.ask(&path, Method::GET, SM_INFO, 0, &[]).is_none());
    let asked = subnet.take(other);
    let asked = Packet::parse(&asked[0]).unwrap();
    let mut smp = Smp::parse(asked.payload).unwrap();
    assert!(!smp.is_directed() && smp.method() == Method::GET);

    smp.data_mut()[20] = 0x53;
    smp.answer(ibarr_common::wire::mad::Status::OK);
    subnet.send(other, &smp_packet(&smp, asked.slid, asked.slid.unwrap()));
    let answers = subnet.take(subnet.port("H1"));
    let answer = Smp::parse(Packet::parse(&answers[0]).unwrap().payload).unwrap();
    assert!(answer.is_directed() && answer.is_returning());
    assert_eq!((answer.tid(), answer.data()[20], answer.hop_pointer()), (smp.tid(), 0x53, 1));
    // The request is done: the same packet again goes to the LID in it, which has no receiver.
    subnet.send(other, &smp_packet(&smp, asked.slid, asked.slid.unwrap()));
    assert!(subnet.take(subnet.port("H1")).is_empty());
}

#[test]
fn agent_answers_requests_that_wait_for_a_manager_that_leaves() {
    let (mut subnet, _) = Subnet::up();
    let other = subnet.port("H4");
    let mask = ibarr_fabric::wire::smp::PortInfoWire::IS_SM;
    let now = subnet.now;
    subnet.fabric.handle_input(now, Input::Capabilities { port: other, mask });
    assert!(subnet.ask(&[1, 3, 2], Method::GET, SM_INFO, 0, &[]).is_none());
    subnet.fabric.handle_input(now, Input::Capabilities { port: other, mask: 0 });
    subnet.drain();
    let answers = subnet.take(subnet.port("H1"));
    let answer = Smp::parse(Packet::parse(&answers[0]).unwrap().payload).unwrap();
    assert!(answer.is_directed() && answer.is_returning() && answer.hop_pointer() == 1);
    assert_ne!(answer.status().get(), 0);
}

#[test]
fn requests_waiting_for_a_manager_are_bounded() {
    let (mut subnet, _) = Subnet::up();
    let other = subnet.port("H4");
    let mask = ibarr_fabric::wire::smp::PortInfoWire::IS_SM;
    let now = subnet.now;
    subnet.fabric.handle_input(now, Input::Capabilities { port: other, mask });
    let port = subnet.port("H1");
    for tid in 0..70 {
        let mut smp = Smp::directed(Method::GET, SM_INFO, &[1, 3, 2]).unwrap();
        smp.set_tid(Tid::new(tid));
        subnet.send(port, &smp_packet(&smp, None, Lid::PERMISSIVE));
    }
    assert_eq!(subnet.fabric.drops().of(DropReason::Unanswered), 6);
    // The newest requests are answered, the oldest are not.
    let asked = subnet.take(other);
    let mut answered = BTreeMap::new();
    for packet in &asked {
        let packet = Packet::parse(packet).unwrap();
        let mut smp = Smp::parse(packet.payload).unwrap();
        smp.answer(ibarr_common::wire::mad::Status::OK);
        subnet.send(other, &smp_packet(&smp, packet.slid, packet.slid.unwrap()));
        answered.insert(smp.tid().get(), subnet.take(port).len());
    }
    assert!(answered.iter().all(|(tid, answers)| *answers == usize::from(*tid >= 6)));
}

#[test]
fn wrong_m_key_reads_what_protection_allows_and_changes_nothing() {
    use zerocopy::IntoBytes as _;

    let (mut subnet, _) = Subnet::up();
    let path = [1, 2];
    let mut info = port_info(&subnet.get(&path, PORT_INFO, 0));
    info.m_key = 0x1234.into();
    info.m_key_protect_lmc = 1 << 6;
    info.speed_supported_state &= 0xf0;
    info.physical_default &= 0x0f;
    subnet.set(&path, PORT_INFO, 0, info.as_bytes());
    assert_eq!(port_info(&subnet.get(&path, PORT_INFO, 0)).m_key.get(), 0);
    assert!(subnet.ask(&path, Method::SET, PORT_INFO, 0, info.as_bytes()).is_none());
    assert_eq!(subnet.fabric.drops().of(DropReason::MKey), 1);
    assert_eq!(port_info(&subnet.get(&path, PORT_INFO, 0)).m_key_violations.get(), 1);
}
