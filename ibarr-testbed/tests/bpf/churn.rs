// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Maps change while programs read them.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use aya::maps::{HashMap, Map, MapData};
use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::map::{self, GidEntry, GidKey, Interface, Origin, Program};
use ibarr_common::wire::ip2gid::{MsgId, Query, Reply, Version};

use crate::frame::{self, Frame};
use crate::programs::{Programs, TC_NEXT, TC_REDIRECT};

const UPDATES: u32 = 1_000_000;

/// The GID of the address in the queries changes all the time. Between the changes, elements are freed
/// and filled again for other addresses, so the kernel recycles elements that were just in use.
#[test]
fn a_million_updates_during_queries_give_no_wrong_gid() {
    let target: IpAddr = "10.2.0.5".parse().unwrap();
    let key = GidKey::new(target, IfIndex::MIN);
    let gid = |number: u128| Gid::new((0xfe80 << 112 | number << 64 | number).to_be_bytes());
    let (ours, theirs) = ([1, 2, 3].map(gid), gid(0xbad));

    let others = [1, 2, 3, 4, 5, 6, 7].map(|last| IpAddr::from([10, 2, 1, last]));

    let mut programs = Programs::load(14);
    programs.lease_until(u64::MAX, 0);
    let switches = Interface::ANSWER_IPV4;
    programs.put_interface(IfIndex::MIN, Interface { switches, hwaddr: [0; 20] });

    let id = programs.map_info(map::GID_CACHE).id();
    let over = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        scope.spawn(|| {
            let data = MapData::from_id(id).expect("the map exists");
            let map = Map::from_map_data(data).expect("of a known type");
            let mut map: HashMap<_, [u8; 20], [u8; 56]> = map.try_into().expect("a hash");
            let mut put = |key: GidKey, gid| {
                let entry = GidEntry::new(key, gid, None, Origin::Local);
                let (key, entry): ([u8; 20], [u8; 56]) =
                    (zerocopy::transmute!(key), zerocopy::transmute!(entry));
                map.insert(key, entry, 0).expect("updated");
            };
            for update in 0..UPDATES {
                let other = others[update as usize % others.len()];
                if update % 3 == 0 {
                    put(GidKey::new(other, IfIndex::MIN), theirs);
                } else {
                    put(key, ours[update as usize % 5 % 3]);
                }
            }
            over.store(true, Ordering::Release);
        });

        let query = Query::new(Version::V1, MsgId(1), target).unwrap().emit();
        let frame = Frame::query("10.2.0.9".parse().unwrap(), target, query.as_ref()).bytes();
        let mut answers = 0u32;
        while !over.load(Ordering::Acquire) {
            let verdict = programs.run_tc(&frame);
            match verdict.action {
                TC_REDIRECT => {
                    let reply = frame::read(&verdict.frame[14..]);
                    let gid = Reply::parse(&reply.payload).expect("a reply").gid;
                    assert!(ours.contains(&gid), "{gid:?} is no GID of {target}");
                    answers += 1;
                }
                TC_NEXT => {}
                other => panic!("{other}"),
            }
        }
        answers
    });
    println!("{answers} answers; {:?}", programs.counters(Program::Tc));
    assert!(answers > 1000, "only {answers} answers");
}
