// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A fabric, as a subnet manager and hosts see it.

mod support;

use ibarr_common::ib::Lid;
use ibarr_fabric::wire::smp::PortState;
use ibarr_fabric::{DropReason, Event};

use self::support::{Subnet, TWO_SWITCHES, gsi_packet};

#[test]
fn subnet_manager_brings_every_port_up() {
    let mut subnet = Subnet::new(TWO_SWITCHES, "H1");
    let seen = subnet.bring_up();
    assert_eq!(seen.len(), 6);
    for (name, lid) in [("H1", 1), ("H2", 2), ("H3", 3), ("H4", 4)] {
        let config = subnet.fabric.port_config(subnet.port(name)).unwrap();
        assert_eq!(config.state, PortState::Active, "{name}");
        assert_eq!(config.sm_lid, Lid::new(1), "{name}");
        let last = subnet.events.iter().rev().find_map(|Event::Port { port, config, .. }| {
            (*port == subnet.port(name)).then_some(config)
        });
        assert_eq!(last, Some(&config), "the host of {name} was told another");
        let _ = lid;
    }
    assert_eq!(subnet.fabric.drops().total(), 0);
}

#[test]
fn every_host_is_reached_by_its_own_lid_only() {
    let mut subnet = Subnet::new(TWO_SWITCHES, "H3");
    let seen = subnet.bring_up();
    let hosts = ["H1", "H2", "H3", "H4"].map(|name| subnet.port(name));
    let lids = hosts.map(|host| {
        let node = subnet.fabric.topology().node(host.node).unwrap();
        seen[&node.port_guid(host.number).unwrap().get()].lid
    });
    for (from, slid) in hosts.iter().zip(lids) {
        for (to, dlid) in hosts.iter().zip(lids) {
            let packet = gsi_packet(slid, dlid, None, b"any payload");
            subnet.send(*from, &packet);
            assert_eq!(subnet.received, [(*to, packet)]);
            subnet.received.clear();
        }
    }
    let unknown = gsi_packet(lids[0], Lid::new(77).unwrap(), None, b"");
    subnet.send(hosts[0], &unknown);
    assert!(subnet.received.is_empty());
    assert_eq!(subnet.fabric.drops().of(DropReason::DestinationLid), 1);
}
