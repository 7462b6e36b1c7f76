// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Surveys of a network on a virtual clock.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::Route;
use ibarr_proto::ip2gid::client::survey::{
    BURST, Finding, Input, PAUSE, Settings, Speaks, Survey, Transmit,
};
use ibarr_proto::request::Status;
use ibarr_proto::retry::below;
use proptest::prelude::*;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

/// What a peer does with queries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Does {
    /// It answers as this implementation does.
    Answers(u64),
    /// It answers as the C original does, with this GID.
    AnswersAsC(u64),
    /// It says that it does not have the address.
    Denies,
    Refuses,
    Nothing,
    /// This machine's firewall forbids queries to it.
    Forbidden,
}

/// Peers behind next hops, each of which leads to `behind` of them.
struct Network {
    does: Vec<Does>,
    behind: usize,
    /// Of each hundred datagrams in each direction.
    lost: u64,
    /// From the first datagram to a next hop until the path to it exists; IPoIB keeps three until then.
    path_delay: Duration,
    rng: ChaCha12Rng,
    now: Instant,
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    numbers: u64,
    hops: BTreeMap<usize, (Instant, u32)>,
    /// When each peer was sent a query.
    sent: Vec<Vec<Instant>>,
    replies: u64,
}

const RATE: u32 = 6000;
const SETTINGS: Settings = Settings {
    udp_port: NonZeroU16::new(4791).unwrap(),
    rate: NonZeroU32::new(RATE).unwrap(),
    tries: NonZeroU32::new(8).unwrap(),
    rounds: NonZeroU32::MIN,
};
const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

fn target(n: usize) -> IpAddr {
    IpAddr::from(u32::try_from(0x0a00_0000 + n).unwrap().to_be_bytes())
}

fn gid(n: u64) -> Gid {
    let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    octets[8..].copy_from_slice(&(n + 1).to_be_bytes());
    Gid::new(octets).unwrap()
}

impl Network {
    fn new(seed: u64, does: Vec<Does>) -> Self {
        println!("seed {seed}");
        Self {
            sent: vec![Vec::new(); does.len()],
            does,
            behind: 100,
            lost: 0,
            path_delay: Duration::ZERO,
            rng: ChaCha12Rng::seed_from_u64(seed),
            now: BEGIN,
            wire: BTreeMap::new(),
            numbers: 0,
            hops: BTreeMap::new(),
            replies: 0,
        }
    }

    /// Runs a survey to its end, and checks what holds for each.
    fn survey(&mut self, settings: Settings) -> Vec<Finding> {
        let peers = (0..self.does.len()).map(|n| {
            let next_hop = IpAddr::from([192, 168, 0, u8::try_from(n / self.behind).unwrap()]);
            let route = Route { ifindex: IfIndex::MIN, next_hop };
            (Question::new(target(n), None).unwrap(), route)
        });
        let rng = ChaCha12Rng::seed_from_u64(self.rng.next_u64());
        let mut survey = Survey::new(settings, self.now, peers, rng);
        loop {
            let arrives = self.wire.keys().next().map(|&(at, _)| at);
            let Some(due) = survey.poll_timeout() else { break };
            self.now = self.now.max(arrives.map_or(due, |at| at.min(due)));
            self.deliver(&mut survey);
            survey.handle_timeout(self.now);
            while let Some(query) = survey.poll_query(self.now) {
                self.send(&mut survey, &query);
            }
        }
        assert_eq!(survey.progress(), (self.does.len(), self.does.len()));
        let findings = survey.into_findings();
        for (n, finding) in findings.iter().enumerate() {
            let is_unsent = self.does[n] == Does::Forbidden;
            let sent = if is_unsent { 0 } else { self.sent[n].len() };
            assert_eq!(usize::try_from(finding.queries).unwrap(), sent, "peer {n}");
        }
        findings
    }

    fn send(&mut self, survey: &mut Survey, query: &Transmit) {
        let octets = match query.to.ip() {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(_) => unreachable!("the peers have IPv4 addresses"),
        };
        let n = usize::try_from(u32::from_be_bytes(octets) - 0x0a00_0000).unwrap();
        self.sent[n].push(self.now);
        if self.does[n] == Does::Forbidden {
            return survey.handle_input(self.now, Input::NotSent { query: query.payload.as_ref() });
        }
        let first = (self.now + self.path_delay, 0);
        let (open_at, parked) = self.hops.entry(n / self.behind).or_insert(first);
        let is_parked = *open_at > self.now;
        *parked += u32::from(is_parked);
        if is_parked && *parked > 3 || self.is_lost() {
            return;
        }
        let at = if is_parked { self.hops[&(n / self.behind)].0 } else { self.now };
        let there = Duration::from_micros(100 + below(2000, &mut self.rng));
        self.numbers += 1;
        self.wire.insert((at + there, self.numbers), (n, query.payload.as_ref().to_vec()));
    }

    fn deliver(&mut self, survey: &mut Survey) {
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let (n, payload) = entry.remove();
            let query = Query::parse(&payload).unwrap();
            let from = SocketAddr::new(target(n), SETTINGS.udp_port.get());
            let gid = match self.does[n] {
                Does::Answers(_) if query.target() != target(n) => None,
                Does::AnswersAsC(_) if query.target() != target(n) => continue,
                Does::Answers(of) | Does::AnswersAsC(of) => Some(gid(of)),
                Does::Denies => None,
                Does::Refuses => {
                    survey.handle_input(self.now, Input::Refused { to: from, quoted: &payload });
                    continue;
                }
                Does::Nothing | Does::Forbidden => continue,
            };
            if !self.is_lost() {
                self.replies += 1;
                let payload = query.reply(gid).emit();
                let input = Input::Datagram { from, payload: payload.as_ref() };
                survey.handle_input(self.now, input);
            }
        }
    }

    fn is_lost(&mut self) -> bool {
        below(100, &mut self.rng) < self.lost
    }

    /// The shortest time between two queries to a peer.
    fn shortest_pause(&self, n: usize) -> Option<Duration> {
        self.sent[n].windows(2).map(|pair| pair[1].since(pair[0])).min()
    }

    /// The most queries in any second.
    fn busiest_second(&self) -> usize {
        let mut all: Vec<_> = self.sent.iter().flatten().copied().collect();
        all.sort_unstable();
        let within = |(n, &at)| all[n..].partition_point(|&later| later.since(at) < PAUSE);
        all.iter().enumerate().map(within).max().unwrap_or_default()
    }
}

/// The aim of `ibarr fleet`.
#[test]
fn fleet_of_ten_thousand_is_counted_exactly_within_fifteen_seconds() {
    for seed in 0..3 {
        let does = (0..10_000_u64).map(|n| match n % 100 {
            7 => Does::Nothing,
            // It claims the GID of the peer before it.
            50 => Does::Answers(n - 1),
            60..80 => Does::AnswersAsC(n),
            _ => Does::Answers(n),
        });
        let mut network = Network::new(seed, does.collect());
        (network.lost, network.path_delay) = (5, Duration::from_millis(50));
        let findings = network.survey(SETTINGS);
        let count = |is: &dyn Fn(&Finding) -> bool| findings.iter().filter(|it| is(it)).count();
        assert_eq!(count(&|it| it.status == Status::Found), 9900);
        assert_eq!(count(&|it| it.status == Status::TimedOut), 100);
        assert_eq!(count(&|it| it.speaks == Some(Speaks::Ipv4Only)), 2000);
        let claimed = |n: usize| if n % 100 == 50 { n - 1 } else { n };
        for (n, finding) in findings.iter().enumerate() {
            let expected = (n % 100 != 7).then(|| gid(claimed(n).try_into().unwrap()));
            assert_eq!(finding.gid, expected, "peer {n}");
            if n % 100 == 7 {
                assert!(network.shortest_pause(n) >= Some(PAUSE), "peer {n}");
                assert_eq!(network.sent[n].len(), 8);
            }
        }
        assert!(network.busiest_second() <= (RATE + BURST) as usize);
        let took = network.now.since(BEGIN);
        println!("{took:?}, {} queries", network.sent.iter().map(Vec::len).sum::<usize>());
        assert!(took <= Duration::from_secs(15), "{took:?}");
    }
}

#[test]
fn each_kind_of_peer_has_its_finding() {
    let does = [
        Does::Answers(0),
        Does::AnswersAsC(1),
        Does::Denies,
        Does::Refuses,
        Does::Nothing,
        Does::Forbidden,
    ];
    let mut network = Network::new(1, does.to_vec());
    let findings = network.survey(SETTINGS);
    let found: Vec<_> =
        findings.iter().map(|it| (it.status, it.gid, it.speaks, it.queries)).collect();
    let expected = [
        (Status::Found, Some(gid(0)), Some(Speaks::Ibarr), 2),
        (Status::Found, Some(gid(1)), Some(Speaks::Ipv4Only), 9),
        (Status::NotFound, None, None, 1),
        (Status::Refused, None, None, 1),
        (Status::TimedOut, None, None, 8),
        (Status::Unreachable, None, None, 0),
    ];
    assert_eq!(found, expected);
    assert_eq!(network.sent[5].len(), 8);
}

#[test]
fn each_round_asks_an_answering_peer_once_a_second() {
    let mut network = Network::new(1, vec![Does::Answers(0), Does::AnswersAsC(1)]);
    let rounds = NonZeroU32::new(4).unwrap();
    let findings = network.survey(Settings { rounds, ..SETTINGS });
    assert_eq!(findings[0].round_trips.len(), 5, "four rounds, and one about IPv6");
    assert_eq!(findings[1].round_trips.len(), 4);
    for sent in &network.sent {
        assert!(sent[..4].windows(2).all(|pair| pair[1].since(pair[0]) == PAUSE), "{sent:?}");
    }
}

#[test]
fn dead_next_hop_delays_no_peer_behind_another() {
    let mut does = vec![Does::Nothing; 5000];
    does.extend((0..100).map(Does::Answers));
    let mut network = Network::new(1, does);
    network.behind = 5000;
    let findings = network.survey(SETTINGS);
    assert!(findings[..5000].iter().all(|it| it.status == Status::TimedOut && it.queries == 8));
    assert!(findings[5000..].iter().all(|it| it.status == Status::Found));
    let last = network.sent[5000..].iter().flatten().max().unwrap();
    assert!(last.since(BEGIN) < Duration::from_secs(2), "{:?}", last.since(BEGIN));
}

#[test]
fn reply_that_answers_no_query_changes_one_counter() {
    let settings = Settings { tries: NonZeroU32::MIN, ..SETTINGS };
    let route = Route { ifindex: IfIndex::MIN, next_hop: target(1) };
    let peers = [(Question::new(target(1), None).unwrap(), route)];
    let mut survey = Survey::new(settings, BEGIN, peers, ChaCha12Rng::seed_from_u64(1));
    survey.handle_timeout(BEGIN);
    let query = survey.poll_query(BEGIN).unwrap();
    let asked = Query::parse(query.payload.as_ref()).unwrap();
    let payload = asked.reply(Some(gid(1))).emit();
    let other = MsgId(asked.msg_id().0 ^ 1);
    let forged = Query::new(Version::V1, other, target(1)).unwrap().reply(Some(gid(1))).emit();
    let port = |port| SocketAddr::new(target(1), port);
    for input in [
        Input::Datagram { from: query.to, payload: forged.as_ref() },
        Input::Datagram { from: query.to, payload: b"no reply" },
        Input::Datagram { from: port(4790), payload: payload.as_ref() },
        Input::Refused { to: query.to, quoted: forged.as_ref() },
        Input::Refused { to: port(4790), quoted: query.payload.as_ref() },
    ] {
        survey.handle_input(BEGIN, input);
    }
    assert_eq!((survey.strays(), survey.progress()), (5, (0, 1)));
    survey.handle_timeout(BEGIN + PAUSE);
    assert_eq!((survey.poll_timeout(), survey.into_findings()[0].status), (None, Status::TimedOut));
}

proptest! {
    /// Whatever peers do, none that stays silent is sent a second query within a second.
    #[test]
    fn silent_peer_is_sent_one_query_a_second(
        seed: u64,
        kinds in proptest::collection::vec(0..8_u8, 1..60),
        lost in 0..60_u64,
        path_delay in 0..1500_u64,
        rounds in 1..4_u32,
    ) {
        let does = kinds.iter().zip(0..).map(|(kind, n)| match kind {
            0 => Does::Denies,
            1 => Does::Refuses,
            2 => Does::Forbidden,
            3 | 4 => Does::Nothing,
            5 => Does::AnswersAsC(n),
            _ => Does::Answers(n),
        });
        let mut network = Network::new(seed, does.collect());
        (network.lost, network.behind) = (lost, 7);
        network.path_delay = Duration::from_millis(path_delay);
        let rounds = NonZeroU32::new(rounds).unwrap();
        let rate = NonZeroU32::new(50).unwrap();
        let findings = network.survey(Settings { rounds, rate, ..SETTINGS });
        for (n, finding) in findings.iter().enumerate() {
            // A peer that has answered may be asked about IPv6 at once.
            let is_silent = finding.round_trips.is_empty();
            let pause = network.shortest_pause(n);
            prop_assert!(!is_silent || pause.is_none_or(|pause| pause >= PAUSE), "{pause:?}");
            prop_assert!(!is_silent || network.sent[n].len() <= 8);
            prop_assert!(finding.queries <= 8 * (rounds.get() + 1));
        }
        prop_assert!(network.busiest_second() <= (50 + BURST) as usize);
    }
}
