// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The next daemon knows what peers have said to the one before it, and asks them nevertheless.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData};
use ibarr_common::ib::Gid;
use ibarr_common::map;
use ibarr_common::wire::ip2gid::Query;
use ibarr_testbed::lab::netns;
use ibarr_user::sys::clock;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::rig::*;

#[test]
fn inherited_answers_are_listed_and_peers_are_asked() {
    let peers = ["10.7.0.2", "10.7.0.3", "fd00:7::2"];
    let mut rig = Rig::new();
    ip(&format!("-netns {PEER} address add 10.7.0.3/24 dev eth0"));
    let asked = Arc::new(AtomicU64::new(0));
    for peer in peers {
        answer(peer, &asked);
    }
    rig.start("");
    let resolve = |rig: &Rig, how: &str, source: &str| {
        let said = rig.asked(&format!("resolve {how} {}", peers.join(" ")));
        for answer in said["answers"].as_array().unwrap() {
            assert_eq!(
                (&answer["gid"], &answer["source"]),
                (&GID.into(), &source.into()),
                "{said}"
            );
        }
    };
    resolve(&rig, "", "peer");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    let learned = |rig: &Rig| {
        let kernel = rig.asked(&format!("cache --kernel --bpf-dir {}", rig.bpf_dir().display()));
        kernel["kernel"]["learned"].as_array().unwrap().clone()
    };
    let before = learned(&rig);
    let from = |learned: &Value| (learned["ip"].clone(), learned["from"].clone());
    let expected = peers.map(|peer| (Value::from(peer), Value::from(peer)));
    assert_eq!(before.iter().map(from).collect::<Vec<_>>(), expected);
    // bpftool can read the map as well.
    let pin = rig.bpf_dir().join(format!("v{}", map::ABI_VERSION)).join(map::LEARNED_GIDS);
    let dump: Value =
        serde_json::from_str(&tool("bpftool", &format!("-j map dump pinned {}", pin.display())))
            .unwrap();
    assert_eq!(dump.as_array().unwrap().len(), 3);
    assert!(dump[0]["formatted"]["value"]["expires_at"].is_u64(), "{dump}");

    for (signal, queries) in [(Signal::SIGKILL, 6), (Signal::SIGTERM, 9)] {
        rig.end(signal);
        rig.restart();
        resolve(&rig, "--cached", "cache");
        assert_eq!(rig.asked("counters")["counters"]["ip2gid.client.queries"], 0);
        assert_eq!(rig.asked("counters")["counters"]["ip2gid.client.restored"], 3);
        assert_eq!(
            learned(&rig).iter().map(from).collect::<Vec<_>>(),
            expected,
            "the map is unchanged"
        );
        resolve(&rig, "", "peer");
        assert_eq!(asked.load(Ordering::Relaxed), queries);
    }
    // Forgotten answers are not there for the next daemon either.
    rig.asked("cache --flush");
    rig.eventually("it is out of the map", || learned(&rig).is_empty());
    rig.end(Signal::SIGKILL);
    rig.restart();
    resolve(&rig, "", "peer");
    assert_eq!(asked.load(Ordering::Relaxed), 12);
}

/// More answers than a daemon takes over, or writes, in one turn.
#[test]
fn all_that_a_daemon_has_learned_is_taken_over() {
    const LEARNED: u64 = 3000;
    let mut rig = Rig::new();
    rig.start("");
    rig.end(Signal::SIGTERM);
    let pin = rig.bpf_dir().join(format!("v{}", map::ABI_VERSION)).join(map::LEARNED_GIDS);
    let mut learned: HashMap<_, [u8; 20], [u8; 40]> =
        Map::HashMap(MapData::from_pin(&pin).unwrap()).try_into().unwrap();
    let expires_at = (clock::now() + Duration::from_secs(55)).as_nanos();
    let gid: Gid = GID.parse().unwrap();
    for number in 1..=LEARNED {
        let [.., high, low] = number.to_be_bytes();
        let key = [&[0; 10][..], &[0xff, 0xff, 10, 9, high, low], &[0; 4]].concat();
        let value = [&gid.octets()[..], &key[..16], &expires_at.to_ne_bytes()].concat();
        let (key, value): ([u8; 20], [u8; 40]) =
            (key.try_into().unwrap(), value.try_into().unwrap());
        learned.insert(key, value, 0).unwrap();
    }
    // An element without a node's address, which the daemon must skip.
    learned.insert([0_u8; 20], [1_u8; 40], 0).unwrap();
    rig.restart();
    let count = |name: &str| rig.asked("counters")["counters"][name].as_u64().unwrap();
    assert_eq!(count("ip2gid.client.restored"), LEARNED);
    let last = rig.asked("resolve --cached 10.9.11.184")["answers"][0].clone();
    assert_eq!((&last["gid"], &last["source"]), (&GID.into(), &"cache".into()));
    rig.eventually("the map is as the cache", || learned.keys().count() as u64 == LEARNED);
    rig.asked("cache --flush");
    rig.eventually("nothing is left for the next", || learned.keys().count() == 0);
    assert_eq!((count("ip2gid.client.queries"), count("responder.mirror-faults")), (0, 0));
}

/// The map is full of entries that the daemon's cache does not have.
#[test]
fn mirror_of_the_cache_is_completed_when_the_map_has_room() {
    let mut rig = Rig::new();
    answer("10.7.0.2", &Arc::default());
    rig.start("");
    let pin = rig.bpf_dir().join(format!("v{}", map::ABI_VERSION)).join(map::LEARNED_GIDS);
    let pinned = MapData::from_pin(&pin).unwrap();
    let mut learned: HashMap<_, [u8; 20], [u8; 40]> = Map::HashMap(pinned).try_into().unwrap();
    for number in 0..map::max_entries::LEARNED_GIDS as u128 {
        let mut key = [0; 20];
        key[..16].copy_from_slice(&number.to_be_bytes());
        learned.insert(key, [0; 40], 0).unwrap();
    }
    rig.asked("resolve 10.7.0.2");
    let faults = || rig.asked("counters")["counters"]["responder.mirror-faults"].as_u64().unwrap();
    assert_eq!(faults(), 1);
    let asked = [&[0; 10][..], &[0xff, 0xff, 10, 7, 0, 2]].concat();
    // Read only two entries, because listing a full map delays a slow machine that empties it.
    let first_two = || {
        let keys = learned.keys().take(2);
        keys.map(|key| key.unwrap()[..16].to_vec()).collect::<Vec<_>>()
    };
    rig.eventually("the map is as the cache", || first_two() == [asked.clone()]);
    assert_eq!(faults(), 1);
}

/// Makes the peer answer for one of its addresses until the test ends, and count distinct queries. A
/// daemon without an answer in time sends the same query again, with the same msg_id.
pub(crate) fn answer(address: &str, asked: &Arc<AtomicU64>) {
    answer_with(GID, address, asked);
}

/// Like [`answer`], with another GID than that of the node.
pub(crate) fn answer_with(gid: &str, address: &str, asked: &Arc<AtomicU64>) {
    let gid: Gid = gid.parse().unwrap();
    let bound = SocketAddr::new(address.parse().unwrap(), 4791);
    let socket = netns::inside(PEER, || Ok(UdpSocket::bind(bound)?)).unwrap();
    socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let asked = Arc::clone(asked);
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        let mut last = None;
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let query = Query::parse(&buffer[..len]).expect("a query");
            if last.replace(query.msg_id()) != Some(query.msg_id()) {
                asked.fetch_add(1, Ordering::Relaxed);
            }
            let reply = query.reply(Some(gid)).emit();
            socket.send_to(reply.as_ref(), from).unwrap();
        }
    });
}
