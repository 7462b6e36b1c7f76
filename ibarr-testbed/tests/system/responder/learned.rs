// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a daemon has learned from peers is known to the next.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData};
use ibarr_common::map;
use ibarr_common::wire::ip2gid::Query;
use ibarr_testbed::lab::netns;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::rig::*;

#[test]
fn a_daemon_asks_nobody_what_the_one_before_it_has_learned() {
    let peers = ["10.7.0.2", "10.7.0.3", "fd00:7::2"];
    let mut rig = Rig::new();
    ip(&format!("-netns {PEER} address add 10.7.0.3/24 dev eth0"));
    let asked = Arc::new(AtomicU64::new(0));
    for peer in peers {
        answer(peer, &asked);
    }
    rig.start("");
    let resolve = |rig: &Rig, source: &str| {
        let said = rig.asked(&format!("resolve {}", peers.join(" ")));
        for answer in said["answers"].as_array().unwrap() {
            assert_eq!(
                (&answer["gid"], &answer["source"]),
                (&GID.into(), &source.into()),
                "{said}"
            );
        }
    };
    resolve(&rig, "peer");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    let learned = |rig: &Rig| {
        let kernel = rig.asked(&format!("cache --kernel --bpf-dir {}", rig.bpf_dir().display()));
        kernel["kernel"]["learned"].as_array().unwrap().clone()
    };
    let before = learned(&rig);
    let from = |learned: &Value| (learned["ip"].clone(), learned["from"].clone());
    let expected = peers.map(|peer| (Value::from(peer), Value::from(peer)));
    assert_eq!(before.iter().map(from).collect::<Vec<_>>(), expected);
    // bpftool reads it as well.
    let pin = rig.bpf_dir().join(format!("v{}", map::ABI_VERSION)).join(map::LEARNED_GIDS);
    let dump: Value =
        serde_json::from_str(&tool("bpftool", &format!("-j map dump pinned {}", pin.display())))
            .unwrap();
    assert_eq!(dump.as_array().unwrap().len(), 3);
    assert!(dump[0]["formatted"]["value"]["expires_at"].is_u64(), "{dump}");

    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        rig.end(signal);
        rig.restart();
        resolve(&rig, "cache");
        assert_eq!(rig.asked("counters")["counters"]["ip2gid.client.queries"], 0);
        assert_eq!(rig.asked("counters")["counters"]["ip2gid.client.restored"], 3);
        assert_eq!(learned(&rig).iter().map(from).collect::<Vec<_>>(), expected, "as it was");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    // What is forgotten is forgotten for the next one, too.
    rig.asked("cache --flush");
    rig.eventually("it is out of the map", || learned(&rig).is_empty());
    rig.end(Signal::SIGKILL);
    rig.restart();
    resolve(&rig, "peer");
    assert_eq!(asked.load(Ordering::Relaxed), 6);
}

/// The map is full of what no cache of this node's holds.
#[test]
fn what_could_not_be_written_is_written_when_there_is_room() {
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
    let holds = || learned.keys().map(|key| key.unwrap()[..16].to_vec()).collect::<Vec<_>>();
    rig.eventually("the map is as the cache", || holds() == [asked.clone()]);
    assert_eq!(faults(), 1);
}

/// The peer answers for one of its addresses, until the test ends, and counts what it is asked. A
/// daemon that had no answer in time asks the same again, with the same msg_id.
fn answer(address: &str, asked: &Arc<AtomicU64>) {
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
            let reply = query.reply(GID.parse().ok()).emit();
            socket.send_to(reply.as_ref(), from).unwrap();
        }
    });
}
