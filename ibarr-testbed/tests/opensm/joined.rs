// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Hosts that join a fabric of a hundred nodes, most of which have no kernel. Here a host is a socket of the test.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ibarr_common::ib::{Lid, PKey, PortNum, Qpn, Sl};
use ibarr_fabric::PortConfig;
use ibarr_fabric::remote::{Host, Key, MAX_DATAGRAM, Message};
use ibarr_fabric::topology::fat_tree;
use ibarr_fabric::wire::packet::{Datagram, GSI_QKEY, MAX_LEN};
use ibarr_fabric::wire::smp::PortState;
use ibarr_user::sys::clock;

use crate::daemon::PATIENCE;
use crate::rig::{HOSTS, KEY, Rig};

struct Joined {
    socket: UnixDatagram,
    fabric: PathBuf,
    host: Host,
    told: Option<PortConfig>,
    received: Vec<Vec<u8>>,
}

impl Joined {
    fn new(rig: &Rig, name: &str, key: &[u8]) -> Self {
        let directory = rig.machine.directory();
        let own = directory.join(format!("host-{name}"));
        // That of an earlier host of the test.
        drop(std::fs::remove_file(&own));
        let socket = UnixDatagram::bind(&own).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let seed = [name.bytes().fold(0, u8::wrapping_add); 32];
        let host = Host::new(name.to_owned(), Some(Key::new(key).unwrap()), seed, clock::now());
        let fabric = directory.join(HOSTS);
        Self { socket, fabric, host, told: None, received: Vec::new() }
    }

    /// Sends what is due, and takes what is there.
    fn turn(&mut self) {
        self.host.handle_timeout(clock::now());
        let mut buffer = [0; MAX_DATAGRAM];
        loop {
            while let Some(datagram) = self.host.poll_transmit() {
                self.socket.send_to(&datagram, &self.fabric).unwrap();
            }
            match self.socket.recv(&mut buffer) {
                Ok(len) => match self.host.handle_datagram(clock::now(), &buffer[..len]).unwrap() {
                    Some(Message::Config { config, .. }) => self.told = Some(*config),
                    Some(Message::Packet { packet, .. }) => self.received.push(packet.to_vec()),
                    // A challenge, which the host answers.
                    other => assert_eq!(other, None),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The LID of its port, when the port is active.
    fn lid(&self) -> Option<Lid> {
        let told = self.told.as_ref().filter(|told| told.state == PortState::Active)?;
        told.lid
    }
}

/// Lets the hosts run until `is_so`.
fn until(what: &str, hosts: &mut [Joined], is_so: impl Fn(&[Joined]) -> bool) {
    let begun = Instant::now();
    while !is_so(hosts) {
        assert!(begun.elapsed() < PATIENCE, "timed out before {what}");
        hosts.iter_mut().for_each(Joined::turn);
    }
}

fn adapters(rig: &Rig) -> usize {
    let seen = rig.diagnose("H2", &["ibnetdiscover"]);
    seen.lines().filter(|line| line.starts_with("Ca\t")).count()
}

#[test]
fn hosts_join_a_hundred_nodes_without_kernels_and_opensm_finds_them() {
    let topology = fat_tree(100, 36).unwrap().to_string();
    let rig = Rig::with_hosts(&topology, "H99,H100");
    let mut stranger = Joined::new(&rig, "H99", b"not the key of the fabric");
    stranger.turn();
    let shown = rig.ibfab(&["show", "H99"]);
    assert!(shown.contains("         1  sent with another key"), "{shown}");
    assert!(!shown.contains("Hosts that have joined"), "{shown}");

    let mut hosts = vec![Joined::new(&rig, "H100", KEY)];
    until("H100 joins", &mut hosts, |hosts| hosts[0].told.is_some());
    let manager = rig.manager("H1", "");
    until("H100 is active", &mut hosts, |hosts| hosts[0].lid().is_some());
    manager.until_says("SUBNET UP");
    assert_eq!(adapters(&rig), 99);

    // OpenSM hears of it from a switch.
    hosts.push(Joined::new(&rig, "H99", KEY));
    until("H99 is active", &mut hosts, |hosts| hosts[1].lid().is_some());
    assert_eq!(adapters(&rig), 100);
    let lids = [0, 1].map(|index: usize| hosts[index].lid().unwrap());
    let given: Vec<_> = manager.lids().into_values().collect();
    assert!(lids.iter().all(|lid| given.contains(&lid.get())), "{lids:?} of {given:?}");

    let packet = packet(lids[0], lids[1]);
    hosts[0].host.write(PortNum::new(1).unwrap(), &packet);
    until("the packet arrives", &mut hosts, |hosts| !hosts[1].received.is_empty());
    assert_eq!(hosts[1].received, [packet]);
    let shown = rig.ibfab(&["show", "H1"]);
    assert!(
        shown.contains("Hosts that have joined:\nH100 ") && shown.contains("\nH99 "),
        "{shown}"
    );
}

fn packet(from: Lid, to: Lid) -> Vec<u8> {
    let datagram = Datagram {
        vl: 0,
        sl: Sl::default(),
        dlid: to,
        slid: Some(from),
        grh: None,
        pkey: PKey::DEFAULT,
        destination: Qpn::new(17).unwrap(),
        qkey: GSI_QKEY,
        source: Qpn::GSI,
    };
    let mut packet = vec![0; MAX_LEN];
    let len = datagram.emit(b"from a host to another", &mut packet).unwrap();
    packet.truncate(len);
    packet
}
