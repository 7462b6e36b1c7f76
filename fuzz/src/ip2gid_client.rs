// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The client of peers under any replies, routes, sockets and times.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{PORT, Query, Reply};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{
    Candidate, Client, Config, Event, Input, Outcome, Output, Request, RequestId, Route, Settings,
    SocketEvent, SocketId, Source,
};
use ibarr_proto::request::{Caller, Freshness, UserRequest};
use ibarr_proto::shares::User;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;

use crate::script::Script;

/// The ip2gid client under any history, which `script` encodes. It answers each request once and by its
/// deadline, never answers a cancelled one, believes only replies to its queries, gives no old answer
/// unless the peer refuses, keeps its bounds, and its timers go forward.
///
/// # Panics
/// The claim does not hold for `script`.
pub fn ip2gid_client(script: &[u8]) {
    let mut script = Script(script);
    let mut world = World::new(script.byte());
    while !script.0.is_empty() {
        world.step(&mut script);
    }
    world.finish();
}

/// Few targets, so that histories repeat them and reach every bound.
const TARGETS: [&str; 7] =
    ["10.1.0.5", "10.2.0.5", "10.2.0.6", "10.2.0.7", "fd00:2::5", "fd00:2::6", "fe80::5"];
const NEXT_HOPS: [&str; 5] = ["10.1.0.254", "10.1.0.253", "10.1.0.5", "fd00:1::254", "fe80::5"];

fn settings() -> Settings {
    let few = |n| NonZeroUsize::new(n).expect("not zero");
    Settings {
        max_flights: few(4),
        max_waiters_per_flight: few(3),
        max_waiters: few(8),
        sockets: 2,
        max_hops: few(4),
        cache_ttl: Duration::from_secs(4),
        max_cached: few(5),
        ..Settings::default()
    }
}

/// The client, and the knowledge of its driver and its peers.
struct World {
    now: Instant,
    client: Client,
    settings: Settings,
    requests: u64,
    /// Requests that wait for an answer, and their start.
    waiting: BTreeMap<RequestId, Instant>,
    asked: BTreeMap<RequestId, Question>,
    sockets: Vec<SocketId>,
    /// Questions whose route is being looked up.
    unrouted: Vec<Candidate>,
    /// Questions whose neighbour entry is being looked up.
    unmet: Vec<Question>,
    sent: Vec<(SocketId, Query)>,
    /// GIDs of replies that came to the socket of a query, with its msg_id; and when they last came.
    told: BTreeMap<(IpAddr, Gid), Instant>,
    /// Targets whose queries were refused by ICMP with the whole query.
    refused: BTreeSet<IpAddr>,
    /// The target that this input may be the refusal of.
    refusing: Option<IpAddr>,
}

impl World {
    fn new(seed: u8) -> Self {
        let settings = settings();
        let config = Config::new(settings.clone()).expect("settings are within their limits");
        Self {
            now: Instant::from_nanos(1),
            client: Client::new(config, ChaCha12Rng::seed_from_u64(seed.into())),
            settings,
            requests: 0,
            waiting: BTreeMap::new(),
            asked: BTreeMap::new(),
            sockets: Vec::new(),
            unrouted: Vec::new(),
            unmet: Vec::new(),
            sent: Vec::new(),
            told: BTreeMap::new(),
            refused: BTreeSet::new(),
            refusing: None,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 14 {
            0 | 1 => self.resolve(script),
            2 => self.cancel(script),
            3 | 4 => self.route(script),
            5 => self.reply(script),
            6 => self.any_datagram(script),
            7 => {
                if let Some(socket) = script.choose(&self.sockets) {
                    self.input(Input::SocketOpened { socket });
                }
            }
            8 => {
                if let Some(socket) = script.choose(&self.sockets) {
                    self.input(Input::SocketFailed { socket });
                }
            }
            9 => self.pass(Duration::from_millis(u64::from(script.byte()).pow(2))),
            10 => self.next_timeout(),
            11 => self.look_or_flush(script),
            12 => self.meet(script),
            _ => self.refuse(script),
        }
    }

    fn resolve(&mut self, script: &mut Script<'_>) {
        let Some(question) = question(script) else { return };
        let number = self.requests;
        let id = RequestId::User(UserRequest::Control(number));
        self.requests += 1;
        // Some callers wait for many rounds, and some ignore refusals.
        let deadline = self.now + Duration::from_millis(self.requests * 1171 % 30_000 + 1);
        let asked_at = if self.requests.is_multiple_of(3) { Instant::BOOT } else { self.now };
        self.waiting.insert(id, deadline);
        self.asked.insert(id, question);
        let caller = if is_user(number) { Caller::Control(User(0)) } else { Caller::Kernel };
        let freshness = if is_fresh(number) { Freshness::Fresh } else { Freshness::Any };
        let request = Request { id, caller, question, asked_at, deadline, freshness };
        self.input(Input::Resolve(request));
    }

    fn cancel(&mut self, script: &mut Script<'_>) {
        let ids: Vec<_> = self.asked.keys().copied().collect();
        let Some(id) = script.choose(&ids) else { return };
        self.waiting.remove(&id);
        self.input(Input::Cancel { id });
    }

    fn route(&mut self, script: &mut Script<'_>) {
        let candidate = if script.byte() == 0 {
            question(script).map(Candidate::from)
        } else {
            script.choose(&self.unrouted)
        };
        let Some(candidate) = candidate else { return };
        self.unrouted.retain(|unrouted| *unrouted != candidate);
        let next_hop = script.choose(&NEXT_HOPS).map(address);
        let ifindex = IfIndex::new(u32::from(script.byte() % 3));
        let route = next_hop.zip(ifindex).map(|(next_hop, ifindex)| Route { ifindex, next_hop });
        self.input(Input::Route { candidate, route });
    }

    /// The kernel's neighbour entry of a target; now and then of one that was not looked up.
    fn meet(&mut self, script: &mut Script<'_>) {
        let question =
            if script.byte() == 0 { question(script) } else { script.choose(&self.unmet) };
        let Some(question) = question else { return };
        self.unmet.retain(|unmet| *unmet != question);
        let gid = match script.byte() {
            0..64 => None,
            n => Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 2, n]),
        };
        let target = question.target();
        self.told.extend(gid.map(|gid| ((target, gid), self.now)));
        self.refusing = Some(target).filter(|target| self.refused.contains(target));
        self.input(Input::Neighbour { question, gid });
        self.refusing = None;
    }

    /// A reply to a sent query; now and then to the wrong socket or from a wrong port.
    fn reply(&mut self, script: &mut Script<'_>) {
        let Some((socket, query)) = script.choose(&self.sent) else { return };
        let gid = match script.byte() {
            0..64 => None,
            n => Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 1, n]),
        };
        let other = script.byte();
        let socket =
            if other < 32 { script.choose(&self.sockets).unwrap_or(socket) } else { socket };
        let port = if (32..48).contains(&other) { PORT + 1 } else { PORT };
        let from = SocketAddr::new(query.target(), port);
        self.datagram(socket, from, query.reply(gid).emit().as_ref());
    }

    fn any_datagram(&mut self, script: &mut Script<'_>) {
        let Some(socket) = script.choose(&self.sockets) else { return };
        let from = SocketAddr::new(script.choose(&TARGETS).map_or(address("::"), address), PORT);
        let length = usize::from(script.byte() % 40);
        let payload = script.bytes(length);
        self.datagram(socket, from, payload);
    }

    fn datagram(&mut self, socket: SocketId, from: SocketAddr, payload: &[u8]) {
        if let Ok(Reply { msg_id, gid: Some(gid), .. }) = Reply::parse(payload) {
            for (sent_from, query) in &self.sent {
                if *sent_from == socket && query.msg_id() == msg_id {
                    self.told.insert((query.target(), gid), self.now);
                }
            }
        }
        let ingress = IfIndex::new(1).expect("not zero");
        self.input(Input::Datagram { socket, from, ingress, payload });
    }

    /// ICMP about a sent query; now and then truncated, for another socket, or about another target.
    fn refuse(&mut self, script: &mut Script<'_>) {
        let Some((socket, query)) = script.choose(&self.sent) else { return };
        let mut quoted = query.emit().as_ref().to_vec();
        let mut to = SocketAddr::new(query.target(), PORT);
        let (mut of, how) = (socket, script.byte());
        match how {
            0..16 => quoted.truncate(usize::from(how)),
            16..32 => of = script.choose(&self.sockets).unwrap_or(socket),
            32..48 => to.set_port(PORT + 1),
            48..64 => to.set_ip(script.choose(&TARGETS).map_or(to.ip(), address)),
            _ => {}
        }
        if quoted == query.emit().as_ref()
            && to == SocketAddr::new(query.target(), PORT)
            && self.sent.contains(&(of, query))
        {
            self.refused.insert(query.target());
            self.refusing = Some(query.target());
        }
        self.input(Input::Refused { socket: of, to, quoted: &quoted });
        self.refusing = None;
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.client.handle_timeout(self.now);
        self.drain();
        for deadline in self.waiting.values() {
            assert!(*deadline > self.now, "a request is past its deadline");
        }
    }

    /// Advances the time to the client's next timer.
    fn next_timeout(&mut self) {
        if let Some(at) = self.client.poll_timeout() {
            self.pass(at.since(self.now));
        }
    }

    fn look_or_flush(&mut self, script: &mut Script<'_>) {
        let how = script.byte();
        let Some(question) = question(script) else { return };
        match how {
            0..16 => {
                self.client.flush();
                assert_eq!(self.client.entries().next(), None);
            }
            _ => {
                if let Some(cached) = self.client.lookup(self.now, question) {
                    assert!(cached.expires_at > self.now, "an answer has expired");
                }
            }
        }
        self.drain();
    }

    fn input(&mut self, input: Input<'_>) {
        self.client.handle_input(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(Event::Answered { id, outcome }) = self.client.poll_event() {
            self.answered(id, outcome);
        }
        while let Some(output) = self.client.poll_transmit() {
            let transmit = match output {
                Output::Socket(SocketEvent::Open(socket)) => {
                    assert!(!self.sockets.contains(&socket), "a socket's id is used again");
                    self.sockets.push(socket);
                    continue;
                }
                Output::Socket(SocketEvent::Close(socket)) => {
                    assert!(self.sockets.contains(&socket));
                    continue;
                }
                Output::Route(candidate) => {
                    self.unrouted.push(candidate);
                    continue;
                }
                Output::Neighbour(question, route) => {
                    assert_eq!(question.target(), route.next_hop, "no gateway's entry is wanted");
                    self.unmet.push(question);
                    continue;
                }
                Output::Query(transmit) => transmit,
            };
            let query =
                Query::parse(transmit.payload.as_ref()).expect("the client sends only queries");
            assert_eq!(transmit.to, SocketAddr::new(query.target(), PORT));
            assert_eq!(transmit.socket.family(), ibarr_proto::ip2gid::Family::of(query.target()));
            self.sent.push((transmit.socket, query));
        }
        let load = self.client.load();
        assert!(load.flights <= self.settings.max_flights.get(), "{load:?}");
        assert!(load.waiters <= self.settings.max_waiters.get(), "{load:?}");
        assert!(load.hops <= self.settings.max_hops.get(), "{load:?}");
        assert!(load.cached <= self.settings.max_cached.get(), "{load:?}");
        assert!(load.waiters == self.waiting.len(), "{load:?}");
    }

    fn answered(&mut self, id: RequestId, outcome: Outcome) {
        assert!(self.waiting.remove(&id).is_some(), "{id:?} is not waiting: {outcome:?}");
        let RequestId::User(UserRequest::Control(number)) = id else {
            panic!("{id:?} is the kernel's")
        };
        let target = self.asked[&id].target();
        if outcome == Outcome::Refused {
            assert!(is_user(number), "{number} ignores refusals");
            assert!(self.refused.contains(&target), "no query was refused");
        }
        if let Outcome::Found { gid, source } = outcome {
            let told_at = self.told.get(&(target, gid)).expect("a reply had this GID");
            let age = self.now.since(*told_at);
            let Settings { fresh_for, cache_ttl, .. } = self.settings;
            match source {
                Source::Peer => {}
                Source::Local => panic!("{number} is about an address of a peer"),
                Source::Neighbour => assert!(is_user(number), "{number} ignores hints"),
                Source::Cache if is_fresh(number) => panic!("{number} is answered from memory"),
                Source::Cache if age < fresh_for => {}
                Source::Cache => {
                    assert_eq!(self.refusing, Some(target), "an answer of {age:?} is too old");
                    assert!(age < cache_ttl, "an answer of {age:?} was forgotten");
                }
            }
        }
    }

    /// Without further input, every request ends.
    fn finish(&mut self) {
        let end = self.now + Duration::from_mins(10);
        for _ in 0..10_000 {
            match self.client.poll_timeout() {
                Some(at) if at <= end => self.next_timeout(),
                _ => {
                    assert!(self.waiting.is_empty(), "requests without an answer");
                    return;
                }
            }
        }
        panic!("ten thousand timers in ten minutes without a request");
    }
}

/// Whether a request ends on a hint.
fn is_user(number: u64) -> bool {
    number.is_multiple_of(2) || is_fresh(number)
}

/// Whether a request wants the peer's own word.
fn is_fresh(number: u64) -> bool {
    number % 5 == 4
}

fn question(script: &mut Script<'_>) -> Option<Question> {
    let target = script.choose(&TARGETS).map(address)?;
    Question::new(target, IfIndex::new(u32::from(script.byte() % 3)))
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address of the tables above")
}
