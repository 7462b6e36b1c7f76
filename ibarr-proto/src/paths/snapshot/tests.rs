// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Snapshots that are read, written, damaged and restored.

use std::collections::BTreeSet;

use ibarr_common::ib::{QosClass, ServiceId, Sl};
use ibarr_common::wire::path_record::Fields;
use proptest::prelude::*;

use super::super::tests::{Rig, facts, found, name, question, spread};
use super::super::{Counter, Input, Source};
use super::*;

/// The file was not made by the encoder; its first lines say how.
fn golden() -> Vec<u8> {
    let text = include_str!("../../../tests/data/paths-snapshot-1.txt");
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn encoded(snapshot: &Snapshot) -> Vec<u8> {
    let (mut encoder, mut bytes) = Encoder::new(snapshot.begun_at, &snapshot.ports);
    for paths in snapshot.paths.chunks(3) {
        bytes.extend(encoder.paths(paths));
    }
    bytes.extend(encoder.finish());
    bytes
}

#[test]
fn golden_snapshot_is_read_and_written_byte_for_byte() {
    let snapshot = Snapshot::parse(&golden()).unwrap();
    assert_eq!(snapshot.begun_at, 1_800_000_000);
    let [one, two] = &snapshot.ports[..] else { panic!("{:?}", snapshot.ports) };
    assert_eq!((one.name, two.name), (name(1), name(2)));
    let expected = Identity {
        gid: "fe80::1:9".parse().unwrap(),
        lid: Lid::new(8).unwrap(),
        lmc: 0,
        sm_lid: Lid::new(1).unwrap(),
        pkeys: vec![(PKeyIndex(0), PKey::DEFAULT), (PKeyIndex(3), PKey::new(0x8001).unwrap())],
    };
    assert_eq!(one.identity, expected);
    assert_eq!((two.identity.lmc, two.identity.pkeys.len()), (1, 0));
    let [one, two] = &snapshot.paths[..] else { panic!("{:?}", snapshot.paths) };
    let expected = PathQuestion {
        dgid: "fe80::1".parse().unwrap(),
        sgid: "fe80::1:9".parse().unwrap(),
        reversible: true,
        pkey: Some(PKey::DEFAULT),
        tclass: None,
        service_id: None,
        qos_class: None,
    };
    assert_eq!((one.port, one.question, one.life()), (0, expected, Duration::from_hours(1)));
    assert_eq!(Fields::parse(&one.record).unwrap().dlid, Lid::new(1).unwrap());
    let expected = PathQuestion {
        dgid: "fe80::2".parse().unwrap(),
        sgid: "fe80::1:a".parse().unwrap(),
        reversible: true,
        pkey: PKey::new(0x8001),
        tclass: Some(7),
        service_id: Some(ServiceId::new(0x0106_0001)),
        qos_class: QosClass::new(0x123),
    };
    assert_eq!((two.port, two.question, two.life()), (1, expected, Duration::from_mins(70)));
    assert_eq!(Fields::parse(&two.record).unwrap().sl, Sl::default());
    assert_eq!(encoded(&snapshot), golden());
    assert!(golden().len() < max_len(2));
}

#[test]
fn truncated_or_damaged_snapshot_is_refused() {
    let golden = golden();
    for len in 0..golden.len() {
        let error = Snapshot::parse(&golden[..len]).unwrap_err();
        let expected = match len {
            0..8 => Error::Magic,
            8..10 => Error::Length,
            _ => Error::Checksum,
        };
        assert_eq!(error, expected, "{len} bytes");
    }
    for bit in 0..golden.len() * 8 {
        let mut bytes = golden.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Snapshot::parse(&bytes).is_err(), "bit {bit}");
    }
    assert_eq!(Snapshot::parse(&[golden, vec![0]].concat()), Err(Error::Checksum));
}

/// With a valid checksum, as after a mistake in our encoder.
#[test]
fn illegal_values_are_refused_despite_a_valid_checksum() {
    let refused = |at: usize, value: &[u8]| {
        let mut bytes = golden();
        bytes[at..at + value.len()].copy_from_slice(value);
        let (content, crc) = bytes.split_last_chunk_mut::<4>().unwrap();
        *crc = CRC.checksum(content).to_be_bytes();
        Snapshot::parse(&bytes).unwrap_err()
    };
    let (first_port, second_port) = (24, 24 + 88 + 2 * 4);
    let first_path = second_port + 88;
    let last = golden().len() - 8;
    for (at, value, error) in [
        (8, &[0, 2][..], Error::Version(2)),
        (12, &[1], Error::Value),
        (10, &[0, 1], Error::Length),
        (first_port, &[0], Error::Value),
        (first_port + 64, &[0], Error::Value),
        (first_port + 64, &[3], Error::Value),
        (first_port + 66, &[0, 0], Error::Value),
        (first_port + 70, &[0xff, 0xff], Error::Value),
        (first_path, &[0, 2], Error::Value),
        (first_path + 2, &[1], Error::Value),
        (first_path + 2, &[0x80], Error::Value),
        (first_path + 3, &[1], Error::Value),
        (first_path + 20, &[0; 16], Error::Value),
        (first_path + 52 + 8, &[0; 16], Error::Value),
        (first_path + 52 + 8 + 15, &[9], Error::Value),
        (last, &[0, 0, 0, 1], Error::Length),
    ] {
        assert_eq!(refused(at, value), error, "{value:x?} at {at}");
    }
}

/// Paths with each bit that a question can have, and with different destinations.
fn kept(n: u16, life: u32) -> KeptPath {
    let question = PathQuestion {
        reversible: n & 1 != 0,
        pkey: (n & 2 != 0).then_some(PKey::DEFAULT),
        tclass: (n & 4 != 0).then_some(0),
        service_id: (n & 8 != 0).then(|| ServiceId::new(n.into())),
        qos_class: QosClass::new(n).filter(|_| n & 16 != 0),
        ..question((n >> 5).into())
    };
    KeptPath { port: 0, question, record: super::super::tests::record(&question, n | 1), life }
}

proptest! {
    #[test]
    fn written_snapshot_is_read_back(paths: Vec<(u16, u32)>, begun_at: u64) {
        let paths = paths.iter().map(|&(n, life)| kept(n % 4096, life)).collect();
        let identity = Identity::of(&facts()).unwrap();
        let ports = vec![KeptPort { name: name(1), identity }];
        let snapshot = Snapshot { begun_at, ports, paths };
        prop_assert_eq!(Snapshot::parse(&encoded(&snapshot)), Ok(snapshot));
    }
}

/// A snapshot of `rig`, as its daemon writes it.
fn snapshot(rig: &Rig) -> Snapshot {
    let mut walk = rig.paths.walk(rig.now);
    let mut paths = Vec::new();
    loop {
        match rig.paths.step(&mut walk, 7) {
            Step::Paths(more) => paths.extend(more),
            Step::Done => return Snapshot { begun_at: 0, ports: walk.ports(), paths },
            Step::Void => panic!("nothing has changed"),
        }
    }
}

/// The snapshot of a daemon that has asked for `count` paths.
fn left(count: u64) -> Snapshot {
    let mut rig = Rig::new();
    for n in 0..count {
        rig.outcome(question(n));
    }
    let left = snapshot(&rig);
    Snapshot::parse(&encoded(&left)).unwrap()
}

fn results(rig: &mut Rig) -> Vec<(usize, RestoreResult)> {
    let restored = std::iter::from_fn(|| rig.paths.poll_restored());
    restored.map(|restored| (restored.paths, restored.result)).collect()
}

/// Performs all actions that are due.
fn settle(rig: &mut Rig) {
    while rig.paths.poll_timeout().is_some_and(|at| at <= rig.now) {
        rig.paths.handle_timeout(rig.now);
    }
}

#[test]
fn restored_paths_are_asked_for_at_the_rate_or_given_in_doubt() {
    let mut rig = Rig::new();
    rig.paths.restore(rig.now, left(1_000), Duration::from_mins(1));
    settle(&mut rig);
    assert_eq!(results(&mut rig), [(1_000, RestoreResult::Taken)]);
    assert_eq!((rig.paths.load().cached, rig.count(Counter::Restored)), (1_000, 1_000));
    assert!(rig.paths.entries().all(|entry| entry.is_doubted));
    for n in 0..1_000 {
        let outcome = rig.outcome(question(n));
        let record = found(question(n), 1, Source::Sa);
        assert!([record, found(question(n), 1, Source::Doubted)].contains(&outcome), "{outcome:?}");
    }
    assert!(rig.asked.len() <= 11, "{}", rig.asked.len());
    // Without a snapshot, each is a question.
    let mut rig = Rig::new();
    for n in 0..1_000 {
        rig.outcome(question(n));
    }
    assert_eq!(rig.asked.len(), 1_000);
}

#[test]
fn first_of_several_paths_is_restored_and_all_are_asked_for() {
    let lids = |given: Vec<(u16, Source)>| given.into_iter().collect::<BTreeSet<_>>();
    let mut rig = spread::rig(spread::config());
    spread::given(&mut rig, 3);
    let left = Snapshot::parse(&encoded(&snapshot(&rig))).unwrap();
    assert_eq!(left.paths.len(), 1);
    let mut rig = spread::rig(spread::config());
    rig.paths.restore(rig.now, left, Duration::from_mins(1));
    settle(&mut rig);
    assert_eq!(lids(spread::given(&mut rig, 4)), [(0x10, Source::Doubted)].into());
    rig.pass_spread();
    let lids = lids(spread::given(&mut rig, 4));
    assert_eq!(lids.iter().map(|(lid, _)| *lid).collect::<Vec<_>>(), [0x10, 0x11, 0x12, 0x13]);
}

#[test]
fn restored_paths_of_a_changed_port_are_dropped() {
    let changes = [
        ("SM", PortFacts { sm_lid: Lid::new(6), ..facts() }),
        ("LID", PortFacts { lid: Lid::new(9), ..facts() }),
        ("LMC", PortFacts { lmc: 1, ..facts() }),
        ("GID", PortFacts { gids: ["fe80::beef".parse().unwrap()].into(), ..facts() }),
        ("prefix", PortFacts { gids: ["fec0::1:0".parse().unwrap()].into(), ..facts() }),
        ("partition", PortFacts { pkeys: vec![], ..facts() }),
        (
            "place of a partition",
            PortFacts { pkeys: vec![(PKeyIndex(1), PKey::DEFAULT)], ..facts() },
        ),
    ];
    for (what, changed) in changes {
        let mut rig = Rig::without_port();
        rig.paths.restore(rig.now, left(3), Duration::ZERO);
        assert_eq!(results(&mut rig), [], "there was no request yet");
        rig.port(changed);
        settle(&mut rig);
        assert_eq!(results(&mut rig), [(3, RestoreResult::Changed)], "{what}");
        assert_eq!(rig.paths.load().cached, 0, "{what}");
    }
}

#[test]
fn restored_paths_wait_for_their_port_and_yield_to_newer_answers() {
    let mut rig = Rig::without_port();
    rig.paths.restore(rig.now, left(2), Duration::ZERO);
    rig.port(PortFacts { is_active: false, ..facts() });
    settle(&mut rig);
    assert_eq!((results(&mut rig), rig.paths.load().cached), (vec![], 0));
    rig.port(facts());
    settle(&mut rig);
    assert_eq!((results(&mut rig), rig.paths.load().cached), (vec![(2, RestoreResult::Taken)], 2));

    // A port that has got an answer before the file was read.
    let mut rig = Rig::new();
    rig.dlid = 9;
    rig.outcome(question(1));
    rig.paths.restore(rig.now, left(2), Duration::ZERO);
    settle(&mut rig);
    assert_eq!(rig.outcome(question(1)), found(question(1), 9, Source::Cache));
    assert_eq!(rig.paths.load().cached, 2);

    // A port that changes while its paths are taken over.
    let mut rig = Rig::new();
    rig.paths.restore(rig.now, left(1_000), Duration::ZERO);
    rig.paths.handle_timeout(rig.now);
    rig.port(PortFacts { lid: Lid::new(9), ..facts() });
    settle(&mut rig);
    assert_eq!(rig.paths.entries().count(), 0);

    // The paths of a port that does not come up are dropped.
    let mut rig = Rig::without_port();
    rig.paths.restore(rig.now, left(2), Duration::ZERO);
    rig.advance(Duration::from_mins(10));
    assert_eq!(results(&mut rig), [(2, RestoreResult::Absent)]);
    assert_eq!(rig.paths.flush(), 0);
}

#[test]
fn snapshot_does_not_prolong_the_life_of_a_path() {
    let mut rig = Rig::new();
    rig.paths.restore(rig.now, left(100), Duration::from_hours(2));
    settle(&mut rig);
    assert_eq!((results(&mut rig), rig.paths.load().cached), (vec![(0, RestoreResult::Taken)], 0));
    let mut snapshot = left(1);
    snapshot.paths[0].life = u32::MAX;
    rig.paths.restore(rig.now, snapshot, Duration::ZERO);
    settle(&mut rig);
    let entries: Vec<_> = rig.paths.entries().map(|entry| entry.expires_at).collect();
    assert_eq!(entries, [rig.now + Duration::from_mins(75)]);
}

#[test]
fn restored_paths_beyond_the_bound_or_flushed_are_dropped() {
    let config = super::super::Config { max_cached: 300, ..Default::default() };
    let mut rig = Rig::with(config);
    rig.paths.restore(rig.now, left(1_000), Duration::ZERO);
    rig.paths.handle_timeout(rig.now);
    assert_eq!(rig.paths.load().cached, 256, "a part at a time");
    settle(&mut rig);
    assert_eq!((rig.paths.load().cached, rig.count(Counter::Evicted)), (300, 700));
    rig.paths.restore(rig.now, left(1_000), Duration::ZERO);
    rig.paths.handle_timeout(rig.now);
    assert_eq!(rig.paths.flush(), 300 + 744);
    settle(&mut rig);
    assert_eq!(rig.paths.load().cached, 0);
}

#[test]
fn preloaded_path_is_doubted_until_the_sa_has_confirmed_it_even_after_a_change() {
    let mut rig = Rig::new();
    rig.paths.preload(rig.now, left(2));
    settle(&mut rig);
    assert_eq!(results(&mut rig), [(2, RestoreResult::Taken)]);
    assert_eq!(rig.count(Counter::Preloaded), 2);
    // Others are loaded by a reload, when answers of the SA have become wrong meanwhile.
    rig.outcome(question(0));
    rig.port(PortFacts { lid: Lid::new(9), ..facts() });
    assert_eq!(rig.paths.entries().count(), 0);
    rig.paths.preload(rig.now, left(2));
    assert_eq!(results(&mut rig), [(2, RestoreResult::Changed)]);
    rig.port(facts());
    rig.dlid = 7;
    assert_eq!(rig.outcome(question(1)), found(question(1), 7, Source::Sa));
    rig.paths.preload(rig.now, left(2));
    settle(&mut rig);
    let doubted: Vec<_> = rig.paths.entries().map(|entry| entry.is_doubted).collect();
    assert_eq!(doubted.iter().filter(|is_doubted| **is_doubted).count(), 1, "{doubted:?}");
    assert_eq!(rig.outcome(question(1)), found(question(1), 7, Source::Cache));
    // It is used if the SA is silent, and sure once the SA has confirmed it.
    rig.dlid = 1;
    assert_eq!(rig.outcome(question(0)), found(question(0), 1, Source::Sa));
    assert_eq!(rig.outcome(question(0)), found(question(0), 1, Source::Cache));
}

#[test]
fn preloaded_and_restored_paths_are_both_taken_and_bounded() {
    let config = super::super::Config { max_cached: 300, ..Default::default() };
    let mut rig = Rig::with(config);
    rig.paths.preload(rig.now, left(200));
    rig.paths.preload(rig.now, left(200));
    assert_eq!(results(&mut rig), [(200, RestoreResult::Taken), (100, RestoreResult::Taken)]);
    rig.paths.restore(rig.now, left(250), Duration::ZERO);
    settle(&mut rig);
    assert_eq!(results(&mut rig), [(250, RestoreResult::Taken)]);
    assert_eq!((rig.count(Counter::Preloaded), rig.count(Counter::Restored)), (0, 250));
    assert_eq!(rig.paths.load().cached, 250);
    assert_eq!(rig.paths.flush(), 250);
    // A port that is not there gets nothing.
    let mut rig = Rig::without_port();
    rig.paths.preload(rig.now, left(2));
    assert_eq!(results(&mut rig), [(2, RestoreResult::Absent)]);
}

#[test]
fn walk_reads_valid_paths_once_and_ends_when_a_port_changes() {
    let mut rig = Rig::new();
    for n in 0..20 {
        rig.outcome(question(n));
    }
    rig.resolve(question(99));
    rig.refuse(ibarr_common::wire::sa::Refusal::NO_RECORDS);
    rig.answered();
    let mut walk = rig.paths.walk(rig.now);
    let Step::Paths(first) = rig.paths.step(&mut walk, 8) else { panic!() };
    for n in 100..200 {
        rig.outcome(question(n));
    }
    let mut paths = first;
    while let Step::Paths(more) = rig.paths.step(&mut walk, 8) {
        paths.extend(more);
    }
    assert!(paths.len() <= 21, "no more than there were: {}", paths.len());
    assert!(paths.is_sorted_by_key(|path| path.life));

    let mut walk = rig.paths.walk(rig.now);
    rig.port(PortFacts { is_active: false, sm_lid: None, lid: None, ..facts() });
    assert!(matches!(rig.paths.step(&mut walk, 8), Step::Paths(_)), "it may come back");
    rig.port(PortFacts { sm_lid: Lid::new(6), ..facts() });
    assert_eq!(rig.paths.step(&mut walk, 8), Step::Void);
    rig.paths.handle_input(rig.now, Input::PortGone { port: super::super::tests::PORT });
    assert_eq!(snapshot(&rig).paths.len(), 120, "for when it is there again");
}

#[test]
fn snapshot_is_written_in_parts_whenever_the_writer_has_room() {
    let mut rig = Rig::new();
    for n in 0..300 {
        rig.outcome(question(n));
    }
    let begins = rig.now + Schedule::INTERVAL;
    let mut schedule = Schedule::new(begins);
    assert_eq!(schedule.poll(rig.now, &rig.paths, true), None);
    assert_eq!(schedule.poll(begins, &rig.paths, false), None);
    let now = schedule.poll_timeout();
    assert!(now > begins);
    assert!(
        matches!(schedule.poll(now, &rig.paths, true), Some(Action::Begin(ports)) if ports.len() == 1)
    );
    let mut parts = Vec::new();
    while let Some(Action::Continue(Step::Paths(paths))) = schedule.poll(now, &rig.paths, true) {
        assert_eq!(schedule.poll_timeout(), now, "the next part is due at once");
        parts.push(paths.len());
    }
    assert!(parts.len() > 1 && parts.iter().all(|part| *part <= 256), "{parts:?}");
    assert_eq!(parts.iter().sum::<usize>(), 300);
    assert_eq!(schedule.poll_timeout(), now + Schedule::INTERVAL);
    assert_eq!(schedule.poll(now, &rig.paths, true), None);
}
