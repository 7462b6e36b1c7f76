// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Client and server of ip2gid on a simulated network.

mod sim;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Reply, Version};
use ibarr_proto::ip2gid::client::{
    Config, Counter, Load, Outcome, RequestId, Settings, Source, SourceCheck,
};
use ibarr_proto::ip2gid::server;
use ibarr_proto::retry::below;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

use self::sim::{Faults, Packet, Sim};

const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 254));

#[test]
fn two_nodes_resolve_each_other_in_both_families() {
    let mut sim = Sim::new(1);
    let (a, b) = (client(&mut sim), peer(&mut sim, 5));
    let cases = [
        (a, "10.2.0.5", gid(5)),
        (a, "fd00:2::5", gid(5)),
        (b, "10.1.0.1", gid(1)),
        (b, "fd00:1::1", gid(1)),
    ];
    for (node, target, expected) in cases {
        let id = sim.resolve(node, target.parse().unwrap());
        sim.run_for(ms(1));
        assert_eq!(found(&sim, node, id), Some((expected, Source::Peer)), "{target}");
        let id = sim.resolve(node, target.parse().unwrap());
        assert_eq!(found(&sim, node, id), Some((expected, Source::Cache)), "{target}");
    }
}

#[test]
fn every_request_is_answered_once_and_correctly_on_a_bad_network() {
    for seed in 0..40 {
        let mut sim = Sim::new(seed);
        sim.faults = Faults { lost: 30, repeated: 20, delay: ms(0)..ms(40), ..Faults::default() };
        client(&mut sim);
        let alive = 1..30;
        for n in alive.clone() {
            peer(&mut sim, n);
        }
        for node in &mut sim.nodes {
            node.path_delay = ms(seed % 4 * 50);
        }
        let mut requests = Vec::new();
        let rng = &mut ChaCha12Rng::seed_from_u64(seed);
        for _ in 0..300 {
            // Half of the requests come from the client, the others from any node.
            let asker = usize::try_from(below(60, rng).saturating_sub(30)).unwrap();
            let n = u16::try_from(below(40, rng)).unwrap() + 1;
            requests.push((asker, n, sim.now, sim.resolve(asker, target(n))));
            sim.run_for(Duration::from_micros(below(20_000, rng)));
        }
        sim.run_for(Duration::from_secs(3));

        let mut timed_out = 0;
        for (asker, n, at, id) in requests {
            let (answered_at, outcome) = sim.nodes[asker].answers[&id];
            assert!(answered_at.since(at) <= Duration::from_secs(3));
            match outcome {
                Outcome::Found { gid: got, .. } => assert_eq!(got, gid(n)),
                // A server does not answer its own node.
                Outcome::TimedOut if asker == usize::from(n) => {}
                Outcome::TimedOut if !alive.contains(&n) => {}
                // Six sends may be lost in both directions.
                Outcome::TimedOut => timed_out += 1,
                other => panic!("{n}: {other:?}"),
            }
        }
        assert!(timed_out <= 6, "{timed_out} of 300");
        let mut ended = 0;
        for node in &sim.nodes {
            let load = node.client.load();
            assert_eq!((load.flights, load.waiters), (0, 0));
            let ends = [Counter::Found, Counter::TimedOut];
            ended += ends.iter().map(|&end| node.client.counters().get(end)).sum::<u64>();
        }
        assert_eq!(ended, 300);
    }
}

#[test]
fn same_seed_gives_the_same_bytes_at_the_same_times() {
    let trace = |seed| {
        let mut sim = Sim::new(seed);
        sim.faults = Faults { lost: 20, repeated: 20, delay: ms(0)..ms(30), ..Faults::default() };
        let node = client(&mut sim);
        sim.nodes[node].path_delay = ms(50);
        for n in 1..20 {
            peer(&mut sim, n);
        }
        for n in 1..100 {
            sim.resolve(node, target(n % 30 + 1));
            sim.run_for(ms(7));
        }
        sim.run_for(Duration::from_mins(5));
        sim.trace
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

#[test]
fn live_peer_among_dead_ones_is_answered_within_a_round() {
    for (dead, limit) in [(0, ms(1)), (20, ms(401)), (100, ms(501)), (4000, ms(501))] {
        let mut sim = Sim::new(dead);
        let node = client(&mut sim);
        peer(&mut sim, 9999);
        for n in 1..=dead {
            sim.resolve(node, target(n.try_into().unwrap()));
        }
        let asked_at = sim.now;
        let id = sim.resolve(node, target(9999));
        sim.run_for(Duration::from_secs(3));
        assert_eq!(found(&sim, node, id), Some((gid(9999), Source::Peer)));
        let waited = sim.nodes[node].answers[&id].0.since(asked_at);
        assert!(waited <= limit, "behind {dead} dead ones: {waited:?}");
    }
}

#[test]
fn live_peer_overtakes_dead_ones_after_their_turn() {
    let mut sim = Sim::new(1);
    let node = client(&mut sim);
    peer(&mut sim, 9999);
    for n in 1..=100 {
        sim.resolve(node, target(n));
    }
    sim.run_for(ms(600));
    let asked_at = sim.now;
    let id = sim.resolve(node, target(9999));
    sim.run_for(ms(100));
    let waited = sim.nodes[node].answers[&id].0.since(asked_at);
    assert!(waited <= ms(21), "{waited:?}");
}

#[test]
fn silent_gateway_is_sent_datagrams_at_a_bounded_pace() {
    let sent_in_3_s = |targets: u16| {
        let mut sim = Sim::new(targets.into());
        let node = client(&mut sim);
        for n in 1..=targets {
            sim.resolve(node, target(n));
        }
        sim.run_for(Duration::from_secs(4));
        assert_eq!(sim.nodes[node].answers.len(), targets.into());
        let counters = sim.nodes[node].client.counters();
        counters.get(Counter::Queries) + counters.get(Counter::Resends)
    };
    // One question follows its own schedule, few share 50 a second, many get two a second each.
    assert_eq!(sent_in_3_s(1), 7);
    assert!(sent_in_3_s(25) <= 151);
    assert!(sent_in_3_s(1000) <= 6000);
}

/// The cost of targets that never answer, behind a gateway that answers and behind a dead one.
#[test]
fn dead_targets_are_sent_one_datagram_a_second_each() {
    for (targets, gateway_is_cold) in
        [(1, false), (100, false), (4096, false), (1, true), (100, true), (4096, true)]
    {
        let mut sim = Sim::new(u64::from(targets));
        let node = client(&mut sim);
        if !gateway_is_cold {
            peer(&mut sim, 9999);
            sim.resolve(node, target(9999));
            sim.run_for(ms(10));
        }
        for n in 1..=targets {
            sim.resolve_for(node, target(n), Duration::from_secs(30));
        }
        let mut sent = u64::from(!gateway_is_cold);
        let rates: Vec<u64> = (0..30)
            .map(|_| {
                sim.run_for(Duration::from_secs(1));
                let counters = sim.nodes[node].client.counters();
                let now = counters.get(Counter::Queries) + counters.get(Counter::Resends);
                now - std::mem::replace(&mut sent, now)
            })
            .collect();
        println!("{targets} dead targets, cold: {gateway_is_cold}: {rates:?} datagrams a second");
        let targets = u64::from(targets);
        let first_round: u64 = rates[..3].iter().sum();
        assert!(first_round <= 8 * targets, "{rates:?}");
        // Two datagrams of a target may fall into the same half second.
        assert!(rates[4..].iter().all(|&rate| rate <= 2 * targets), "{rates:?}");
        let later: u64 = rates[4..].iter().sum();
        let a_second = 26 * targets;
        assert!(later <= a_second * 11 / 10, "{rates:?}");
        assert!(later >= a_second * 9 / 10, "each is asked until the end: {rates:?}");
    }
}

/// The cost of a burst of 200 questions to different peers, and their times.
#[derive(Debug)]
struct Burst {
    queries: u64,
    answered: usize,
    median: Duration,
    mean: Duration,
    ninetieth: Duration,
}

impl Burst {
    /// Each peer is on the client's link, or all are behind its gateway. None has been asked
    /// before, or all have, but their answers were dropped.
    fn new(faults: &Faults, is_near: bool, is_known: bool, apart: Duration) -> Self {
        let mut sim = Sim::new(7);
        let node = client(&mut sim);
        let address = |n| if is_near { near(n) } else { target(n) };
        for n in 2..202 {
            let peer = sim.add_node(&[address(n)], Some(gid(n)), Config::default());
            sim.nodes[peer].gateway = Some("10.2.255.254".parse().unwrap());
        }
        if is_known {
            (2..202).for_each(|n| {
                let _ = sim.resolve(node, address(n));
            });
            sim.run_for(Duration::from_secs(30));
            sim.nodes[node].client.flush();
        }
        sim.faults = faults.clone();
        let queries = |sim: &Sim| {
            let counters = sim.nodes[node].client.counters();
            counters.get(Counter::Queries) + counters.get(Counter::Resends)
        };
        let before = queries(&sim);
        let asked: Vec<_> = (2..202)
            .map(|n| {
                let asked_at = sim.now;
                let id = sim.resolve(node, address(n));
                sim.run_for(apart);
                (asked_at, id)
            })
            .collect();
        sim.run_for(Duration::from_secs(3));
        let answers = &sim.nodes[node].answers;
        let found = asked.iter().filter_map(|(asked_at, id)| match answers[id] {
            (at, Outcome::Found { .. }) => Some(at.since(*asked_at)),
            _ => None,
        });
        let mut waits: Vec<_> = found.collect();
        waits.sort_unstable();
        let all = u32::try_from(waits.len()).unwrap();
        let burst = Self {
            queries: queries(&sim) - before,
            answered: waits.len(),
            median: waits[waits.len() / 2],
            mean: waits.iter().sum::<Duration>() / all,
            ninetieth: waits[waits.len() * 9 / 10],
        };
        println!("near {is_near}, known {is_known}, {apart:?} apart, {faults:?}: {burst:?}");
        burst
    }
}

#[test]
fn peers_that_answer_one_after_another_are_sent_one_query_each() {
    for service in [500, 1000, 2400, 5000].map(Duration::from_micros) {
        let faults = Faults { service, ..Faults::default() };
        for (is_near, is_known) in [(true, false), (true, true), (false, false), (false, true)] {
            let burst = Burst::new(&faults, is_near, is_known, Duration::ZERO);
            assert!(burst.queries <= 200 * 105 / 100, "{burst:?}");
            // The shared resource handles each query once, so half of all are done in half of the
            // time.
            assert!(burst.median <= 101 * service + ms(2), "{burst:?}");
        }
    }
}

/// With round trips shorter than the first resend, resends are when they would be without them.
#[test]
fn measured_round_trips_delay_no_resend_of_a_lost_query() {
    for rtt in [200, 2000, 10_000].map(Duration::from_micros) {
        let delay = rtt / 2..rtt / 2 + Duration::from_nanos(1);
        let faults = Faults { lost: 10, delay, ..Faults::default() };
        for (is_near, is_known) in [(true, false), (true, true), (false, false), (false, true)] {
            for apart in [ms(0), ms(50)] {
                let burst = Burst::new(&faults, is_near, is_known, apart);
                assert_eq!(burst.answered, 200);
                // With the schedule alone, the mean exceeded the median by up to 8.1 ms, and by
                // 1.27 ms.
                assert!(burst.mean <= burst.median + Duration::from_micros(8500), "{burst:?}");
                assert!(burst.ninetieth <= burst.median + ms(23), "{burst:?}");
                assert!(burst.queries <= 256, "{burst:?}");
            }
        }
    }
}

#[test]
fn burst_through_a_slow_gateway_loses_nothing_once_its_path_exists() {
    let mut sim = Sim::new(1);
    let node = client(&mut sim);
    sim.nodes[node].path_delay = ms(300);
    for n in 1..=100 {
        peer(&mut sim, n);
    }
    let asked_at = sim.now;
    for n in 1..=100 {
        sim.resolve(node, target(n));
    }
    sim.run_for(Duration::from_secs(3));
    for (id, (answered_at, outcome)) in &sim.nodes[node].answers {
        assert!(matches!(outcome, Outcome::Found { .. }), "{id:?}: {outcome:?}");
        // The path, and the first interval for a query sent just before it existed.
        let waited = answered_at.since(asked_at);
        assert!(waited <= ms(300 + 21), "{id:?}: {waited:?}");
    }
}

/// What nodes cost each other when a job starts on all of them, each of which asks for all behind the router.
#[test]
fn nodes_asking_each_other_repeat_at_most_one_query_in_ten() {
    for side in [10, 50] {
        let mut sim = Sim::new(side.into());
        sim.faults = Faults { delay: ms(1)..ms(3), ..Faults::default() };
        for n in 1..=side {
            let node = sim.add_node(&[near(n)], Some(gid(n)), Config::default());
            sim.nodes[node].gateway = Some(GATEWAY);
            peer(&mut sim, n);
        }
        sim.nodes.iter_mut().for_each(|node| node.path_delay = ms(50));
        for turn in 0..side {
            for n in 0..side {
                let other = (n + turn) % side + 1;
                sim.resolve(2 * usize::from(n), target(other));
                sim.resolve(2 * usize::from(n) + 1, near(other));
            }
            sim.run_for(ms(1000) / u32::from(side));
        }
        sim.run_for(Duration::from_secs(3));
        let questions = 2 * u64::from(side) * u64::from(side);
        let count =
            |counter| sim.nodes.iter().map(|node| node.client.counters().get(counter)).sum();
        let [found, queries, resends]: [u64; 3] =
            [Counter::Found, Counter::Queries, Counter::Resends].map(count);
        println!("{} nodes: {questions} questions, {queries} queries, {resends} again", 2 * side);
        assert_eq!((found, queries), (questions, questions));
        assert!(resends * 10 <= questions, "{resends}");
    }
}

#[test]
fn flood_of_forged_replies_changes_no_answer_and_no_time() {
    let run = |flood: u32| {
        let mut sim = Sim::new(3);
        sim.faults = Faults { lost: 10, delay: ms(0)..ms(20), ..Faults::default() };
        let node = client(&mut sim);
        for n in 1..10 {
            peer(&mut sim, n);
        }
        let rng = &mut ChaCha12Rng::seed_from_u64(9);
        for n in 1..=20 {
            sim.resolve(node, target(n));
            sim.run_for(ms(20));
            // The worst case: an attacker knows all our ports, and the address that we ask.
            for port in sim.ports(node) {
                for _ in 0..flood {
                    let msg_id = MsgId(rng.next_u32());
                    let reply = Reply { version: Version::V1, msg_id, gid: Some(gid(666)) };
                    let payload = reply.emit().as_ref().to_vec();
                    let from = SocketAddr::new(target(n), PORT);
                    let to = SocketAddr::new("10.1.0.1".parse().unwrap(), port);
                    sim.inject(Duration::ZERO, Packet { from, to, payload });
                }
            }
        }
        sim.run_for(Duration::from_secs(3));
        let counters = sim.nodes[node].client.counters().clone();
        (sim.trace, sim.nodes[node].client.load(), counters)
    };
    let (quiet, quiet_load, quiet_counters) = run(0);
    let (flooded, flooded_load, flooded_counters) = run(50);
    assert_eq!(flooded, quiet);
    assert_eq!(flooded_load, quiet_load);
    for ((counter, quiet), (_, flooded)) in quiet_counters.iter().zip(flooded_counters.iter()) {
        let forged = if counter == Counter::Unasked { 20 * 50 * 32 } else { 0 };
        assert_eq!(flooded - quiet, forged, "{counter}");
    }
}

#[test]
fn reply_from_another_address_counts_unless_the_check_is_strict() {
    for (source_check, answered) in [(SourceCheck::MsgId, true), (SourceCheck::Strict, false)] {
        let mut sim = Sim::new(1);
        let node = client_with(&mut sim, Settings { source_check, ..Settings::default() });
        let multi_homed = peer(&mut sim, 5);
        sim.nodes[multi_homed].answers_from = Some("10.3.0.5".parse().unwrap());
        let id = sim.resolve(node, target(5));
        sim.run_for(Duration::from_secs(3));
        assert_eq!(found(&sim, node, id).is_some(), answered);
        let dropped = sim.nodes[node].client.counters().get(Counter::SourceAddress);
        assert_eq!(dropped, if answered { 0 } else { 7 });
    }
}

#[test]
fn steady_use_costs_a_peer_two_queries_a_second_at_most() {
    let mut sim = Sim::new(1);
    let node = client(&mut sim);
    let (used, unused) = (peer(&mut sim, 1), peer(&mut sim, 2));
    sim.resolve(node, target(1));
    sim.resolve(node, target(2));
    for _ in 0..1000 {
        sim.run_for(ms(20));
        let id = sim.resolve(node, target(1));
        assert_eq!(found(&sim, node, id), Some((gid(1), Source::Cache)), "nobody waits");
    }
    let answered = |node: usize| sim.nodes[node].server.counters().get(server::Counter::Answered);
    // In 20 s: every half a second, and not while the query before it is on its way.
    assert!((37..=41).contains(&answered(used)), "{}", answered(used));
    assert_eq!(answered(unused), 1);
}

#[test]
fn idle_node_closes_its_sockets_and_sleeps() {
    let mut sim = Sim::new(1);
    let node = client(&mut sim);
    peer(&mut sim, 1);
    sim.resolve(node, target(1));
    sim.run_for(ms(10));
    assert_eq!(sim.ports(node).len(), 32, "no IPv6 socket without an IPv6 question");
    sim.run_for(Duration::from_mins(5));
    assert_eq!(sim.ports(node), []);
    assert_eq!(sim.next_event(), None);
    assert_eq!(sim.nodes[node].client.load(), Load { hops: 1, ..Load::default() });
}

#[test]
fn two_servers_cannot_keep_each_other_busy() {
    let mut sim = Sim::new(1);
    let (a, b) = (peer(&mut sim, 1), peer(&mut sim, 2));
    // A forged query with the other server's address and port as source.
    let query = Query::new(Version::V1, MsgId(7), target(2)).unwrap().emit();
    let [from, to] = [1, 2].map(|n| SocketAddr::new(target(n), PORT));
    sim.inject(Duration::ZERO, Packet { from, to, payload: query.as_ref().to_vec() });
    sim.run_for(Duration::from_secs(10));
    assert_eq!(sim.trace.len(), 1, "one reply: {:?}", sim.trace);
    assert_eq!(sim.nodes[b].server.counters().get(server::Counter::Answered), 1);
    assert_eq!(sim.nodes[a].server.counters().get(server::Counter::MalformedTlvType), 1);
}

/// The node that asks, in both families, behind a gateway.
fn client(sim: &mut Sim) -> usize {
    client_with(sim, Settings::default())
}

fn client_with(sim: &mut Sim, settings: Settings) -> usize {
    let addresses = ["10.1.0.1", "fd00:1::1"].map(|address| address.parse().unwrap());
    let node = sim.add_node(&addresses, Some(gid(1)), Config::new(settings).unwrap());
    sim.nodes[node].gateway = Some(GATEWAY);
    node
}

/// A peer, 10.2.0.n and fd00:2::n, behind a gateway.
fn peer(sim: &mut Sim, n: u16) -> usize {
    let addresses = [target(n), format!("fd00:2::{n:x}").parse().unwrap()];
    let node = sim.add_node(&addresses, Some(gid(n)), Config::default());
    sim.nodes[node].gateway = Some("10.2.255.254".parse().unwrap());
    node
}

fn target(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(10, 2, high, low).into()
}

/// An address on the client's link.
fn near(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(10, 1, high, low).into()
}

fn gid(n: u16) -> Gid {
    format!("fe80::2:c903:0:{n:x}").parse().unwrap()
}

fn found(sim: &Sim, node: usize, id: RequestId) -> Option<(Gid, Source)> {
    match sim.nodes[node].answers.get(&id) {
        Some(&(_, Outcome::Found { gid, source, .. })) => Some((gid, source)),
        _ => None,
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
