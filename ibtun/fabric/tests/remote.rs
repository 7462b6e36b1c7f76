// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A host that joins, and what is refused.

use ibarr_common::Instant;
use ibarr_common::ib::PortNum;
use ibarr_fabric::remote::{
    ALIVE, Address, Event, GONE, Host, Hosts, Key, MAX_DATAGRAM, Message, Refusal, Refusals,
    VERSION,
};
use ibarr_fabric::topology::PortId;
use ibarr_fabric::wire::smp::PortState;
use ibarr_fabric::{Event as FabricEvent, Fabric, Input, PortConfig};
use proptest::prelude::*;

const TOPOLOGY: &str =
    "Switch 2 \"S\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nCa 1 \"H1\"\n\nCa 1 \"H2\"\n";

const KEY: Option<&[u8]> = Some(b"a key of 18 bytes.");

/// A fabric and the host of H1. H2 may not have one elsewhere.
struct Pair {
    fabric: Fabric,
    hosts: Hosts,
    host: Host,
    now: Instant,
    port: PortId,
    address: Address,
    refused: Refusals,
    refused_by_host: Refusals,
    received: Vec<PortConfig>,
    packets: Vec<Vec<u8>>,
    /// All datagrams, with whether the host sent them.
    sent: Vec<(bool, Vec<u8>)>,
}

fn key(bytes: Option<&[u8]>) -> Option<Key> {
    bytes.map(|bytes| Key::new(bytes).unwrap())
}

fn fabric_end(bytes: Option<&[u8]>, port: PortId, seed: u8) -> Hosts {
    let mut hosts = Hosts::new(key(bytes), [seed; 32]);
    hosts.admit(port.node);
    hosts
}

impl Pair {
    fn new(of_fabric: Option<&[u8]>, of_host: Option<&[u8]>) -> Self {
        let mut fabric = Fabric::new(TOPOLOGY.parse().unwrap(), 0);
        let port = fabric.topology().find_port("H1").unwrap();
        let now = Instant::from_nanos(1);
        fabric.handle_input(now, Input::Detach(port.node));
        Self {
            hosts: fabric_end(of_fabric, port, 1),
            host: Host::new("H1".to_owned(), key(of_host), [2; 32], now),
            fabric,
            now,
            port,
            address: "udp:127.0.0.1:1".parse().unwrap(),
            refused: Refusals::default(),
            refused_by_host: Refusals::default(),
            received: Vec::new(),
            packets: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn joined(bytes: Option<&[u8]>) -> Self {
        let mut pair = Self::new(bytes, bytes);
        pair.exchange();
        assert_eq!(pair.host.poll_event(), Some(Event::Joined));
        assert_eq!(pair.state(), PortState::Initialize);
        pair
    }

    fn state(&self) -> PortState {
        self.fabric.port_config(self.port).unwrap().state
    }

    /// Delivers all that both ends have to say.
    fn exchange(&mut self) {
        self.host.handle_timeout(self.now);
        self.hosts.handle_timeout(&mut self.fabric, self.now);
        loop {
            let mut is_quiet = true;
            while let Some(datagram) = self.host.poll_transmit() {
                is_quiet = false;
                self.fabric_gets(&datagram);
                self.sent.push((true, datagram));
            }
            self.drain();
            while let Some((to, datagram)) = self.hosts.poll_transmit() {
                is_quiet = false;
                assert_eq!(to, self.address);
                self.host_gets(&datagram);
                self.sent.push((false, datagram));
            }
            if is_quiet {
                return;
            }
        }
    }

    fn drain(&mut self) {
        while let Some(FabricEvent::Port { port, config, reregister }) = self.fabric.poll_event() {
            self.hosts.configure(port, &config, reregister);
        }
        while let Some((port, packet)) = self.fabric.poll_transmit() {
            self.hosts.write(port, &packet);
        }
    }

    fn fabric_gets(&mut self, datagram: &[u8]) {
        let Self { hosts, fabric, now, address, .. } = self;
        if let Err(refusal) = hosts.handle_datagram(fabric, *now, address, datagram) {
            self.refused.count(refusal);
        }
    }

    fn host_gets(&mut self, datagram: &[u8]) {
        match self.host.handle_datagram(self.now, datagram) {
            Ok(Some(Message::Config { config, .. })) => self.received.push(*config),
            Ok(Some(Message::Packet { packet, .. })) => self.packets.push(packet.to_vec()),
            Ok(other) => assert_eq!(other, None),
            Err(refusal) => {
                self.refused_by_host.count(refusal);
            }
        }
    }

    fn is_joined(&self) -> bool {
        self.hosts.present().any(|(node, address)| {
            assert_eq!(*address, self.address);
            node == self.port.node
        })
    }

    /// The datagrams that one of the ends has sent.
    fn sent_by(&self, is_host: bool) -> Vec<Vec<u8>> {
        let sent = self.sent.iter().filter(|(by_host, _)| *by_host == is_host);
        sent.map(|(_, datagram)| datagram.clone()).collect()
    }

    /// What a datagram could change.
    fn shown(&self) -> String {
        format!("{:?} {:?} {:?}", self.hosts, self.host, self.fabric)
    }
}

fn number(number: u8) -> PortNum {
    PortNum::new(number).unwrap()
}

#[test]
fn host_joins_exchanges_packets_and_leaves_when_silent() {
    for key in [KEY, None] {
        let mut pair = Pair::joined(key);
        let states: Vec<_> = pair.received.iter().map(|config| config.state).collect();
        assert_eq!(states, [PortState::Initialize]);
        pair.host.set_capabilities(number(1), 2);
        pair.host.write(number(1), b"none");
        pair.hosts.write(pair.port, b"packet");
        pair.exchange();
        assert_ne!(pair.fabric.port_config(pair.port).unwrap().capability_mask & 2, 0);
        assert_eq!(pair.fabric.drops().total(), 1);
        assert_eq!(pair.packets, [b"packet"]);

        // Each second the state of the port is repeated, which the host may have missed.
        pair.now += ALIVE;
        pair.exchange();
        assert_eq!(pair.received.len(), 2);
        assert_eq!(pair.hosts.poll_timeout(), Some(pair.now + GONE));
        pair.hosts.handle_timeout(&mut pair.fabric, pair.now + GONE);
        assert_eq!(pair.state(), PortState::Down);
        assert!(!pair.is_joined());
        assert_eq!(pair.refused, Refusals::default());
    }
}

#[test]
fn host_joins_again_after_its_fabric_has_started_again() {
    let mut pair = Pair::joined(KEY);
    pair.hosts = fabric_end(KEY, pair.port, 3);
    pair.fabric.handle_input(pair.now, Input::Detach(pair.port.node));
    pair.host.set_capabilities(number(1), 2);
    for _ in 0..5 {
        pair.now += ALIVE;
        pair.exchange();
    }
    assert_eq!(pair.host.poll_event(), Some(Event::Lost));
    assert_eq!(pair.host.poll_event(), Some(Event::Joined));
    assert_eq!(pair.state(), PortState::Initialize);
    assert_ne!(pair.fabric.port_config(pair.port).unwrap().capability_mask & 2, 0);
    // What it said meanwhile: its capabilities, and four times that it is there, with them.
    assert_eq!(pair.refused.of(Refusal::Session), 9);
}

#[test]
fn newest_host_of_a_node_wins() {
    let mut pair = Pair::joined(None);
    pair.host = Host::new("H1".to_owned(), None, [4; 32], pair.now);
    pair.address = "udp:127.0.0.1:2".parse().unwrap();
    pair.exchange();
    assert_eq!(pair.host.poll_event(), Some(Event::Joined));
    assert_eq!(pair.hosts.present().count(), 1);
    assert!(pair.is_joined());
}

#[test]
fn host_without_the_right_key_never_joins() {
    let other: Option<&[u8]> = Some(b"another key of 26 bytes...");
    for (of_fabric, of_host, expected) in
        [(KEY, other, Refusal::Key), (KEY, None, Refusal::NoKey), (None, KEY, Refusal::NoKeyHere)]
    {
        let mut pair = Pair::new(of_fabric, of_host);
        for _ in 0..5 {
            pair.exchange();
            pair.now += ALIVE;
        }
        assert!(!pair.is_joined());
        assert_eq!(pair.state(), PortState::Down);
        assert_eq!(pair.refused.iter().collect::<Vec<_>>(), [(expected, 5)]);
        assert!(pair.sent_by(false).is_empty(), "strangers get no answer");
    }
}

#[test]
fn node_that_may_have_no_host_elsewhere_gets_none() {
    for name in ["H2", "S", "H9", ""] {
        let mut pair = Pair::new(KEY, KEY);
        pair.host = Host::new(name.to_owned(), key(KEY), [2; 32], pair.now);
        pair.exchange();
        assert_eq!(pair.refused.iter().collect::<Vec<_>>(), [(Refusal::Node, 1)], "{name}");
        assert_eq!(pair.hosts.present().count(), 0);
    }
}

#[test]
fn each_changed_byte_is_refused_by_both_ends() {
    let pair = Pair::joined(KEY);
    for is_host in [true, false] {
        for datagram in pair.sent_by(is_host) {
            for at in 0..datagram.len() {
                let mut changed = datagram.clone();
                changed[at] ^= 1;
                let mut pair = Pair::joined(KEY);
                let before = pair.shown();
                if is_host {
                    pair.fabric_gets(&changed);
                } else {
                    pair.host_gets(&changed);
                }
                assert_eq!(pair.shown(), before, "byte {at}");
                let refused = if is_host { &pair.refused } else { &pair.refused_by_host };
                assert_eq!(refused.iter().map(|(_, count)| count).sum::<u64>(), 1);
                if at > 7 {
                    assert_eq!(refused.of(Refusal::Key), 1, "byte {at}");
                }
            }
        }
    }
}

#[test]
fn datagrams_of_the_past_change_nothing() {
    let mut pair = Pair::joined(KEY);
    pair.host.write(number(1), b"none");
    pair.now += ALIVE;
    pair.exchange();
    // Hello, join, packet, alive; challenge, state, state.
    let (hosts, fabrics) = (pair.sent_by(true), pair.sent_by(false));
    assert_eq!((hosts.len(), fabrics.len()), (4, 3));

    // In the same session. The hello gets the state of the port again, which changes nothing either.
    let before = format!("{:?}", pair.fabric);
    for datagram in &hosts {
        pair.fabric_gets(datagram);
    }
    for datagram in &fabrics {
        pair.host_gets(datagram);
    }
    assert_eq!(format!("{:?}", pair.fabric), before);
    assert_eq!(
        pair.refused.iter().collect::<Vec<_>>(),
        [(Refusal::Session, 1), (Refusal::Replayed, 2)]
    );
    assert_eq!(
        pair.refused_by_host.iter().collect::<Vec<_>>(),
        [(Refusal::Session, 1), (Refusal::Replayed, 2)]
    );
    // They do not keep the session alive.
    pair.hosts.handle_timeout(&mut pair.fabric, pair.now + GONE);
    assert!(!pair.is_joined());

    // After it, and in a fabric that has started again. A hello is asked back, and does no more.
    for restarted in [false, true] {
        if restarted {
            pair.hosts = fabric_end(KEY, pair.port, 3);
        }
        let before = format!("{:?}", pair.fabric);
        pair.refused = Refusals::default();
        for datagram in &hosts {
            pair.fabric_gets(datagram);
        }
        assert_eq!(format!("{:?}", pair.fabric), before);
        assert!(!pair.is_joined());
        assert_eq!(pair.refused.iter().collect::<Vec<_>>(), [(Refusal::Session, 3)]);
    }
    // A host that has started again.
    pair.host = Host::new("H1".to_owned(), key(KEY), [5; 32], pair.now);
    pair.refused_by_host = Refusals::default();
    for datagram in &fabrics {
        pair.host_gets(datagram);
    }
    assert_eq!(pair.refused_by_host.iter().collect::<Vec<_>>(), [(Refusal::Session, 3)]);
    assert_eq!(pair.host.poll_event(), None);
}

/// A datagram that one end has sent does not come back to it as one of the other.
#[test]
fn mirrored_datagram_is_refused() {
    let mut pair = Pair::joined(KEY);
    for (by_host, datagram) in pair.sent.clone() {
        if by_host { pair.host_gets(&datagram) } else { pair.fabric_gets(&datagram) }
    }
    assert_eq!(pair.refused.of(Refusal::Malformed), 2);
    assert_eq!(pair.refused_by_host.of(Refusal::Malformed), 2);
}

#[test]
fn datagrams_that_are_late_or_lost_do_not_end_a_session() {
    let mut pair = Pair::joined(KEY);
    for _ in 0..3 {
        pair.host.write(number(1), b"none");
    }
    let mut datagrams: Vec<_> = std::iter::from_fn(|| pair.host.poll_transmit()).collect();
    datagrams.remove(1);
    datagrams.reverse();
    for datagram in &datagrams {
        pair.fabric_gets(datagram);
    }
    assert_eq!(pair.fabric.drops().total(), 2);
    assert_eq!(pair.refused, Refusals::default());
}

#[test]
fn join_that_was_lost_is_repeated() {
    let mut pair = Pair::new(KEY, KEY);
    pair.host.handle_timeout(pair.now);
    let hello = pair.host.poll_transmit().unwrap();
    pair.fabric_gets(&hello);
    let (_, challenge) = pair.hosts.poll_transmit().unwrap();
    pair.host_gets(&challenge);
    let lost = pair.host.poll_transmit().unwrap();
    pair.now += ALIVE;
    pair.exchange();
    assert_eq!(pair.host.poll_event(), Some(Event::Joined));
    pair.fabric_gets(&lost);
    assert_eq!(pair.refused.iter().collect::<Vec<_>>(), [(Refusal::Session, 1)]);
}

#[test]
fn other_versions_are_named() {
    let mut pair = Pair::joined(KEY);
    let mut later = pair.sent_by(true).remove(0);
    later[3] = VERSION + 1;
    // The hello of version 1.
    let before = pair.shown();
    for datagram in [&later[..], b"\x01H1"] {
        pair.fabric_gets(datagram);
    }
    assert_eq!(pair.shown(), before);
    let refused: Vec<_> = pair.refused.iter().map(|(refusal, _)| refusal).collect();
    assert_eq!(refused, [Refusal::Version(1), Refusal::Version(VERSION + 1)]);
    assert!(refused[1].to_string().starts_with("version 3 of joining, and 2 is spoken here"));
}

/// Each reason is said once, whatever a stranger sends.
#[test]
fn counts_of_refused_datagrams_are_bounded() {
    let mut pair = Pair::new(KEY, KEY);
    let mut refused = Refusals::default();
    let mut lines = 0;
    for round in 0..5 {
        for version in 0..=255 {
            for datagram in [&[version][..], &[b'i', b'b', b'f', version, round]] {
                let Pair { hosts, fabric, now, address, .. } = &mut pair;
                let refusal = hosts.handle_datagram(fabric, *now, address, datagram).unwrap_err();
                lines += usize::from(refused.count(refusal));
            }
        }
    }
    assert_eq!(lines, 256);
    assert_eq!(refused.iter().count(), 256);
    assert_eq!(refused.iter().map(|(_, count)| count).sum::<u64>(), 5 * 512);
}

proptest! {
    /// Bytes of a stranger, and legal datagrams that were cut, lengthened and changed.
    #[test]
    fn any_bytes_are_refused_or_legal(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        take in 0usize..10,
        cut in 0usize..600,
        edits in prop::collection::vec((0usize..600, any::<u8>()), 0..4),
        has_key in any::<bool>(),
    ) {
        let mut pair = Pair::joined(if has_key { KEY } else { None });
        let (_, datagram) = pair.sent[take % pair.sent.len()].clone();
        let mut mutated = datagram.clone();
        mutated.truncate(cut.max(1));
        mutated.extend(&bytes);
        for (at, value) in edits {
            let at = at % mutated.len();
            mutated[at] = value;
        }
        let before = pair.shown();
        for bytes in [&bytes, &mutated, &vec![0x69; MAX_DATAGRAM + 1]] {
            pair.fabric_gets(bytes);
            pair.host_gets(bytes);
        }
        if has_key && mutated != datagram {
            prop_assert_eq!(pair.shown(), before);
        }
        pair.exchange();
    }
}
