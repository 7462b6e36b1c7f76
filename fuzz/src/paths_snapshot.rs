// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Files of paths with any bytes.

use std::time::Duration;

use crc::{CRC_32_ISO_HDLC, Crc};
use ibarr_common::Instant;
use ibarr_proto::paths::snapshot::{Encoder, Identity, KeptPort, Snapshot, Step};
use ibarr_proto::paths::{Config, Input, Paths, PortFacts};
use ibarr_proto::sa::PortIndex;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

/// A snapshot is refused, or writing its content gives the same bytes. The cache keeps no more of it than
/// it has room for, and writes the kept paths again.
///
/// # Panics
/// The claim does not hold for `bytes`.
pub fn paths_snapshot(bytes: &[u8]) {
    check(bytes);
    // A fuzzer does not find the right checksum, so set it.
    if let Some((content, _)) = bytes.split_last_chunk::<4>() {
        check(
            &[content, &Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(content).to_be_bytes()].concat(),
        );
    }
}

fn check(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::parse(bytes) else { return };
    let (mut encoder, mut written) = Encoder::new(snapshot.begun_at, &snapshot.ports);
    for path in &snapshot.paths {
        written.extend(encoder.paths(&[*path]));
    }
    written.extend(encoder.finish());
    assert_eq!(written, bytes);

    let config = Config { max_cached: ROOM, ..Config::default() };
    let mut core = Paths::new(config, ChaCha12Rng::seed_from_u64(1));
    let now = Instant::from_nanos(1 << 40);
    let paths = snapshot.paths.len();
    let ports = snapshot.ports.clone();
    core.restore(now, snapshot, Duration::from_secs(1));
    for (index, port) in (0..).zip(&ports) {
        let input =
            Input::Port { port: PortIndex(index), name: port.name, facts: facts(&port.identity) };
        core.handle_input(now, input);
        core.handle_timeout(now);
    }
    for _ in 0..paths {
        core.handle_timeout(now);
        while core.poll_transmit().is_some() || core.poll_restored().is_some() {}
    }
    let cached = core.load().cached;
    assert!(cached <= paths.min(ROOM), "{cached} of {paths}");
    let mut walk = core.walk(now);
    assert!(walk.ports().iter().map(|KeptPort { name, .. }| name).is_sorted());
    let mut read = 0;
    while let Step::Paths(more) = core.step(&mut walk, 3) {
        assert!(more.len() <= 3);
        read += more.len();
    }
    assert_eq!(read, cached);
}

/// The facts of the port in a snapshot.
fn facts(identity: &Identity) -> PortFacts {
    PortFacts {
        is_active: true,
        has_umad: true,
        lid: Some(identity.lid),
        lmc: identity.lmc,
        sm_lid: Some(identity.sm_lid),
        gids: [identity.gid].into(),
        pkeys: identity.pkeys.clone(),
        ..PortFacts::default()
    }
}

const ROOM: usize = 4;
