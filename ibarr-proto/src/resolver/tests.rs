// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

mod kernel_paths;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{Query, Reply};
use ibarr_common::wire::ls::{Answer, PortId, Request, ResolveIp, Seq, messages};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

use super::*;
use crate::ip2gid::client::{Route, SocketEvent};
use crate::local_service::{Counter, DEADLINE, FOLLOW_UPS, LATELY, Nudged, RETRY, Sender};

#[test]
fn own_address_is_answered_without_the_network() {
    let found = Outcome::Found { gid: gid("fe80::1"), source: Source::Local };
    for (target, egress, outcome) in [
        ("10.1.0.1", None, found),
        ("10.1.0.1", Some(9), found),
        ("192.0.2.1", None, Outcome::NotFound),
        ("fe80::5", Some(4), found),
    ] {
        let mut rig = Rig::new();
        rig.ask(7, target, egress);
        assert_eq!(rig.answered(), [(7, outcome)], "{target}");
        assert_eq!((rig.routes().as_str(), rig.sent().as_str()), ("", ""));
    }
}

#[test]
fn other_addresses_are_asked_for() {
    for (target, egress, asked) in [
        ("10.2.0.5", None, "10.2.0.5"),
        ("fe80::5", Some(5), "fe80::5%5"),
        ("fe80::5", None, "fe80::5"),
    ] {
        let mut rig = Rig::new();
        rig.ask(7, target, egress);
        assert_eq!(rig.answered(), []);
        assert_eq!(rig.routes(), asked);
    }
}

#[test]
fn fresh_question_asks_the_peer_whose_answer_is_remembered() {
    let mut rig = Rig::new();
    let (target, user) = (question("10.2.0.5", None), User(7));
    let deadline = rig.now + Duration::from_secs(3);
    for (n, its_gid) in ["fe80::9", "fe80::a"].into_iter().enumerate() {
        let id = UserRequest::Control(n as u64);
        let question = target;
        rig.tell(Input::Resolve(AddressRequest { id, user, question, is_fresh: true, deadline }));
        rig.drain();
        rig.route("10.2.0.5", None, Some((2, "10.1.0.254")));
        assert_eq!(rig.sent(), "10.2.0.5 by any");
        rig.reply(its_gid);
        let outcome = Outcome::Found { gid: gid(its_gid), source: Source::Peer };
        assert_eq!(rig.answered(), [(n as u64, outcome)]);
    }
    // The last answer is remembered.
    rig.ask(7, "10.2.0.5", None);
    let outcome = Outcome::Found { gid: gid("fe80::a"), source: Source::Cache };
    assert_eq!(rig.answered(), [(7, outcome)]);

    let id = UserRequest::Control(8);
    let question = question("10.1.0.1", None);
    rig.tell(Input::Resolve(AddressRequest { id, user, question, is_fresh: true, deadline }));
    rig.drain();
    let own = Outcome::Found { gid: gid("fe80::1"), source: Source::Local };
    assert_eq!(rig.answered(), [(8, own)]);
}

#[test]
fn kernel_gets_own_addresses_at_once() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.1.0.1");
    assert_eq!(rig.told(), "1 is fe80::1, nudge");
    // An address of this node without a GID: no peer has one for it.
    rig.kernel_asks(2, "192.0.2.1");
    assert_eq!((rig.told().as_str(), rig.routes().as_str()), ("", ""));
}

#[test]
fn early_kernel_requests_wait_for_the_local_view() {
    let mut rig = Rig::new();
    for (seq, target) in [(1, "10.1.0.1"), (2, "10.2.0.5")] {
        rig.kernel_asks_of(&NotKnown, seq, target);
    }
    assert_eq!((rig.told().as_str(), rig.routes().as_str()), ("", ""));
    rig.pass(Duration::from_millis(1));
    assert_eq!((rig.told().as_str(), rig.routes().as_str()), ("1 is fe80::1, nudge", "10.2.0.5%2"));

    // They wait no longer than the kernel does.
    rig.kernel_asks_of(&NotKnown, 3, "10.2.0.6");
    rig.now += DEADLINE;
    rig.resolver.handle_timeout(&mut rig.cores, rig.now, &NotKnown);
    rig.pass(Duration::from_millis(1));
    assert_eq!(rig.routes(), "");
}

/// The rule for an interface that may belong to another network namespace.
#[test]
fn interface_of_a_kernel_request_counts_only_with_a_gateway() {
    let cases = [
        // Routing confirms it: through that interface, by a gateway.
        (Some((2, "10.1.0.254")), None, "10.2.0.5 by 2"),
        // On its link: the kernel would not have asked.
        (Some((2, "10.2.0.5")), Some((3, "10.1.0.254")), "10.2.0.5 by any"),
        // The route uses another interface.
        (Some((3, "10.1.0.254")), Some((3, "10.1.0.254")), "10.2.0.5 by any"),
        // There is no such interface here.
        (None, Some((3, "10.1.0.254")), "10.2.0.5 by any"),
    ];
    for (by_interface, free, sent) in cases {
        let mut rig = Rig::new();
        rig.kernel_asks(1, "10.2.0.5");
        assert_eq!(rig.routes(), "10.2.0.5%2");
        rig.route("10.2.0.5", Some(2), by_interface);
        if free.is_some() {
            assert_eq!(rig.routes(), "10.2.0.5");
            rig.route("10.2.0.5", None, free);
        }
        assert_eq!((rig.routes().as_str(), rig.sent().as_str()), ("", sent), "{by_interface:?}");
        rig.reply("fe80::5");
        assert_eq!(rig.told(), "1 is fe80::5, nudge");
    }
}

#[test]
fn answer_cached_for_the_interface_needs_no_route_look_up() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.2.0.5");
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    rig.reply("fe80::5");
    rig.told();
    rig.tell(Input::LocalService(local_service::Input::Nudged(Nudged::Done)));
    rig.pass(Duration::from_millis(400));
    rig.kernel_asks(2, "10.2.0.5");
    assert_eq!(rig.told(), "2 is fe80::5, nudge");
    assert_eq!((rig.sent().as_str(), rig.routes().as_str()), ("", ""));
    let counters = rig.cores.local_service.counters();
    assert_eq!(counters.get(Counter::AnsweredPeer), 1);
    assert_eq!(counters.get(Counter::AnsweredCache), 1);
}

#[test]
fn older_answer_is_asked_for_and_the_trace_says_so() {
    let mut rig = Rig::new();
    rig.cores.trace.set(true);
    rig.kernel_asks(1, "10.2.0.5");
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    rig.reply("fe80::5");
    rig.told();
    rig.tell(Input::LocalService(local_service::Input::Nudged(Nudged::Done)));
    rig.now += Duration::from_secs(1);
    rig.kernel_asks(2, "10.2.0.5");
    // The nudge is the second one for the first answer.
    assert_eq!((rig.told().as_str(), rig.routes().as_str()), ("nudge", "10.2.0.5%2"));
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    rig.reply("fe80::6");
    assert_eq!(rig.told(), "2 is fe80::6");
    let steps = std::iter::from_fn(|| rig.cores.trace.poll()).map(|event| event.step);
    let older = steps.filter(|step| *step == trace::Step::Older).count();
    assert_eq!((older, rig.cores.client.counters().get(client::Counter::Older)), (1, 1));
    // What is remembered is known, however old it is.
    rig.now += Duration::from_secs(30);
    let remembered = Outcome::Found { gid: gid("fe80::6"), source: Source::Cache };
    let of = question("10.2.0.5", Some(2));
    assert_eq!(rig.resolver.lookup(&rig.cores, rig.now, &View, of), Some(remembered));
}

/// Another host may have the address there.
#[test]
fn answer_learned_on_another_route_is_not_used_for_this_one() {
    let mut rig = Rig::new();
    rig.ask(7, "10.2.0.5", None);
    rig.route("10.2.0.5", None, Some((3, "10.1.0.254")));
    rig.reply("fe80::5");
    rig.kernel_asks(1, "10.2.0.5");
    assert_eq!((rig.routes().as_str(), rig.told().as_str()), ("10.2.0.5%2", ""));
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    assert_eq!((rig.sent().as_str(), rig.told().as_str()), ("10.2.0.5 by 2", ""));
}

#[test]
fn requests_for_one_address_share_route_and_query() {
    let mut rig = Rig::new();
    for seq in 1..=3 {
        rig.kernel_asks(seq, "10.2.0.5");
    }
    rig.ask(0, "10.2.0.5", Some(2));
    assert_eq!(rig.routes(), "10.2.0.5%2");
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    assert_eq!(rig.sent(), "10.2.0.5 by 2");
    rig.reply("fe80::5");
    assert_eq!(rig.told(), "1 is fe80::5, 2 is fe80::5, 3 is fe80::5, nudge");
    let found = Outcome::Found { gid: gid("fe80::5"), source: Source::Peer };
    assert_eq!(rig.answered(), [(0, found)]);
}

#[test]
fn refusal_is_an_answer_to_users_and_not_to_the_kernel() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.2.0.5");
    rig.ask(0, "10.2.0.5", Some(2));
    rig.answer_routes();
    let query = rig.transmits[0].clone();
    let (socket, to, quoted) = (query.socket, query.to, query.payload.as_ref());
    rig.tell(Input::Client(client::Input::Refused { socket, to, quoted }));
    rig.drain();
    assert_eq!(rig.answered(), [(0, Outcome::Refused)]);
    assert_eq!((rig.told().as_str(), rig.cores.client.load().waiters), ("", 1));
    rig.reply("fe80::5");
    assert_eq!(rig.told(), "1 is fe80::5, nudge");
}

#[test]
fn question_ends_when_the_kernel_drops_its_request() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.2.0.5");
    rig.kernel_asks(2, "10.2.0.6");
    rig.route("10.2.0.6", Some(2), Some((2, "10.1.0.254")));
    assert_eq!(rig.cores.client.load().waiters, 2);
    assert_eq!(rig.routes(), "10.2.0.5%2");
    rig.kernel_request(&View, 3, "10.2.0.7");
    rig.pass(DEADLINE);
    assert_eq!(rig.routes(), "", "no request waits for the route to 10.2.0.7");
    assert_eq!(rig.cores.client.load().waiters, 0);
    assert_eq!(rig.told(), "");
    // No request waits for the result of the route look-up any more.
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    assert_eq!((rig.sent().as_str(), rig.told().as_str()), ("10.2.0.6 by 2", ""));
}

#[test]
fn address_without_a_route_is_looked_up_again() {
    let mut rig = Rig::new();
    rig.kernel_asks(1, "10.2.0.5");
    for _ in 0..2 {
        assert_eq!(rig.routes(), "10.2.0.5%2");
        rig.route("10.2.0.5", Some(2), None);
        assert_eq!(rig.routes(), "10.2.0.5");
        rig.route("10.2.0.5", None, None);
        rig.pass(RETRY);
    }
    rig.route("10.2.0.5", Some(2), Some((2, "10.1.0.254")));
    rig.reply("fe80::5");
    assert_eq!(rig.told(), "1 is fe80::5, nudge");
}

#[test]
fn dead_targets_do_not_lock_out_live_ones() {
    let mut rig = Rig::with(4096);
    let dead = 4200;
    for seq in 0..u32::try_from(dead).unwrap() {
        rig.kernel_asks(seq, &format!("10.3.{}.{}", seq / 250, seq % 250));
        rig.answer_routes();
    }
    for _ in 0..40 {
        rig.pass(Duration::from_millis(100));
        rig.answer_routes();
    }
    rig.transmits.clear();
    rig.kernel_asks(9999, "10.2.0.5");
    let mut waited = 0;
    while !rig.transmits.iter().any(|query| query.to.ip() == ip("10.2.0.5")) {
        rig.answer_routes();
        rig.pass(Duration::from_millis(10));
        waited += 10;
        assert!(waited <= 510, "longer than a turn at the cold gateway");
    }
    rig.transmits.retain(|query| query.to.ip() == ip("10.2.0.5"));
    rig.reply("fe80::5");
    assert_eq!(rig.told(), "9999 is fe80::5, nudge");
    let load = rig.cores.client.load();
    assert!(load.flights >= 4095, "the others are still asked for: {load:?}");
}

/// 20 connections of a user; each asks for 256 dead targets again as soon as it is answered.
#[test]
fn users_dead_targets_delay_no_kernel_request() {
    const ASKED: u64 = 20 * 256;
    let mut rig = Rig::with(2048);
    let target = |n: u64| format!("10.{}.{}.{}", 3 + n / 62_500, n / 250 % 250, n % 250);
    let mut asked = 0;
    let mut live = BTreeSet::new();
    for step in 0..800_u64 {
        let again = rig.answered().len() as u64;
        let more = if step == 0 { ASKED } else { again };
        for _ in 0..more {
            rig.ask(asked, &target(asked), None);
            asked += 1;
        }
        if step % 40 == 20 {
            let target = format!("10.2.0.{}", step / 40);
            rig.kernel_asks(u32::try_from(step).unwrap(), &target);
            live.insert(ip(&target));
        }
        rig.answer_routes();
        rig.pass(Duration::from_millis(10));
        rig.answer_routes();
        let flights = rig.cores.client.load().flights;
        assert!(flights <= ADDRESSES.under_way.of_user + live.len(), "{flights}");
    }
    assert_eq!(live.len(), 20);
    let sent: BTreeSet<_> = rig.transmits.iter().map(|query| query.to.ip()).collect();
    assert!(live.is_subset(&sent), "{:?}", live.difference(&sent));
    // In 8 s, with a wait of 3 s each time.
    assert!(asked <= 3 * ASKED, "refusals spin: {asked}");
    let [(_, counters, (under_way, waiting)), ..] = rig.resolver.users();
    assert!(counters.get(shares::Counter::Refused) > ASKED);
    assert_eq!((under_way + waiting) as u64, ASKED);
}

#[test]
fn tables_hold_only_what_local_service_and_shares_admit() {
    let limits = local_service::Limits { requests: 3, ..local_service::Limits::default() };
    let mut rig = Rig::new();
    rig.cores.local_service = LocalService::with_limits(local_service::Config::default(), limits);
    let opened = local_service::Input::Opened { port_id: PortId(180), is_member: true };
    rig.tell(Input::LocalService(opened));
    let early = |rig: &Rig| rig.resolver.early.keys().copied().collect::<Vec<_>>();
    for seq in 0..10 {
        rig.kernel_request(&NotKnown, seq, &format!("10.2.0.{seq}"));
    }
    let first = early(&rig);
    // Each new request replaces one whose caller may be gone.
    rig.now += LATELY;
    for seq in 10..20 {
        rig.kernel_request(&NotKnown, seq, &format!("10.2.0.{seq}"));
    }
    assert_eq!((first.len(), early(&rig).len()), (3, 3));
    assert!(first.iter().all(|flight| !early(&rig).contains(flight)));
    rig.now += LATELY;
    for seq in 20..30 {
        rig.kernel_request(&View, seq, &format!("10.2.0.{seq}"));
    }
    assert!(rig.resolver.early.is_empty());
    assert_eq!(rig.cores.client.load().waiters, 3);
    assert_eq!(rig.cores.local_service.counters().get(Counter::RequestsFull), 27);

    let Room { all: limit, of_user } = ADDRESSES.under_way;
    // Seven users end where the room for newcomers begins; root goes on.
    let most = limit / 8 * 5 - limit / 8 * 5 / 8 + of_user;
    for n in 0..2 * limit {
        let id = UserRequest::Control(n as u64);
        let user = User(u32::try_from(n % 8).unwrap());
        let question = question(&format!("10.3.{}.{}", n / 250, n % 250), None);
        let deadline = rig.now + Duration::from_secs(3);
        rig.tell(Input::Resolve(AddressRequest { id, user, question, is_fresh: false, deadline }));
    }
    assert_eq!(
        (rig.resolver.askers.len(), rig.resolver.users()[0].2),
        (most, (most, 2 * limit - most))
    );
    for _ in 0..2 {
        rig.pass(Duration::from_secs(3));
    }
    let asked: BTreeSet<_> = rig.answered.iter().map(|&(id, _)| id).collect();
    assert_eq!((asked.len(), rig.answered.len()), (2 * limit, 2 * limit));
    assert!(rig.resolver.askers.is_empty() && rig.resolver.events.is_empty());
}

struct View;

impl Local for View {
    fn gid_of(&self, address: IpAddr, ingress: IfIndex) -> Option<Gid> {
        let scoped = is_link_local(address) && ingress.get() == 4;
        (scoped || address == ip("10.1.0.1")).then(|| gid("fe80::1"))
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        address == ip("10.1.0.1") || address == ip("192.0.2.1")
    }
}

struct NotKnown;

impl Local for NotKnown {
    fn gid_of(&self, _address: IpAddr, _ingress: IfIndex) -> Option<Gid> {
        None
    }

    fn is_ours(&self, _address: IpAddr) -> bool {
        false
    }

    fn is_known(&self) -> bool {
        false
    }
}

/// A resolver; the test plays kernel, routing and peers.
struct Rig {
    cores: Cores,
    resolver: Resolver,
    now: Instant,
    answered: Vec<(u64, Outcome)>,
    transmits: Vec<client::Transmit>,
    sought: Vec<client::Candidate>,
    unrouted: VecDeque<client::Candidate>,
}

impl Rig {
    fn tell(&mut self, input: Input<'_>) {
        self.resolver.handle_input(&mut self.cores, self.now, &View, input);
    }

    fn new() -> Self {
        Self::with(16_384)
    }

    fn with(max_flights: usize) -> Self {
        let max_flights = NonZeroUsize::new(max_flights).unwrap();
        let settings = client::Settings { max_flights, ..client::Settings::default() };
        let config = client::Config::new(settings).unwrap();
        let client = Client::new(config, ChaCha12Rng::seed_from_u64(1));
        let paths = Paths::new(paths::Config::default(), ChaCha12Rng::seed_from_u64(2));
        let local_service = LocalService::new(local_service::Config::default());
        let mut rig = Self {
            cores: Cores { client, paths, local_service, trace: Trace::default() },
            resolver: Resolver::default(),
            now: Instant::from_nanos(1_000_000_000_000),
            answered: Vec::new(),
            transmits: Vec::new(),
            sought: Vec::new(),
            unrouted: VecDeque::new(),
        };
        let opened = local_service::Input::Opened { port_id: PortId(180), is_member: true };
        rig.tell(Input::LocalService(opened));
        assert_eq!(rig.told(), "timeout, nudge");
        for pause in FOLLOW_UPS {
            rig.tell(Input::LocalService(local_service::Input::Nudged(Nudged::Done)));
            rig.pass(pause);
            assert_eq!(rig.told(), "nudge");
        }
        rig.tell(Input::LocalService(local_service::Input::Nudged(Nudged::Done)));
        rig.pass(Duration::from_millis(1));
        rig
    }

    fn ask(&mut self, id: u64, target: &str, egress: Option<u32>) {
        let question = question(target, egress);
        let deadline = self.now + Duration::from_secs(3);
        let (user, id) = (User(7), UserRequest::Control(id));
        self.tell(Input::Resolve(AddressRequest { id, user, question, is_fresh: false, deadline }));
        self.drain();
    }

    fn kernel_asks(&mut self, seq: u32, target: &str) {
        self.kernel_asks_of(&View, seq, target);
    }

    fn kernel_asks_of(&mut self, view: &impl Local, seq: u32, target: &str) {
        self.kernel_request(view, seq, target);
        self.drain();
    }

    fn kernel_request(&mut self, view: &impl Local, seq: u32, target: &str) {
        let request = ResolveIp { ifindex: IfIndex::new(2).unwrap(), target: ip(target) };
        let bytes = Request::ResolveIp(request).emit(Seq(seq));
        let bytes = bytes.as_ref();
        let input = local_service::Input::Datagram { sender: Sender::Kernel, bytes, cut: false };
        self.resolver.handle_input(&mut self.cores, self.now, view, Input::LocalService(input));
        self.resolver.handle_input(
            &mut self.cores,
            self.now,
            view,
            Input::LocalService(local_service::Input::Drained),
        );
    }

    fn route(&mut self, target: &str, egress: Option<u32>, route: Option<(u32, &str)>) {
        let route = route.map(|(ifindex, next_hop)| Route {
            ifindex: IfIndex::new(ifindex).unwrap(),
            next_hop: ip(next_hop),
        });
        let question = question(target, egress);
        let asked = self.sought.iter().rfind(|asked| asked.to_string() == question.to_string());
        let candidate = asked.copied().unwrap_or(question.into());
        self.unrouted.retain(|&unrouted| unrouted != candidate);
        self.tell(Input::Client(client::Input::Route { candidate, route }));
        self.drain();
    }

    /// Each through the kernel's interface and one gateway.
    fn answer_routes(&mut self) {
        while let Some(candidate) = self.unrouted.pop_front() {
            let route = Route { ifindex: IfIndex::new(2).unwrap(), next_hop: ip("10.1.0.254") };
            let input = client::Input::Route { candidate, route: Some(route) };
            self.tell(Input::Client(input));
            self.drain();
        }
    }

    /// The peer answers the last query.
    fn reply(&mut self, its_gid: &str) {
        let query = self.transmits.pop().unwrap();
        let asked = Query::parse(query.payload.as_ref()).unwrap();
        let (version, msg_id) = (asked.version(), asked.msg_id());
        let payload = Reply { version, msg_id, gid: Some(gid(its_gid)) }.emit();
        let input = client::Input::Datagram {
            socket: query.socket,
            from: SocketAddr::new(query.to.ip(), query.to.port()),
            ingress: IfIndex::new(2).unwrap(),
            payload: payload.as_ref(),
        };
        self.tell(Input::Client(input));
        self.transmits.clear();
        self.drain();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.resolver.handle_timeout(&mut self.cores, self.now, &View);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(event) = self.resolver.poll_event() {
            match event {
                Event::Answered { id: UserRequest::Control(id), outcome } => {
                    self.answered.push((id, outcome));
                }
                Event::Answered { id, .. } => panic!("{id:?}"),
                Event::PathAnswered { .. } => {}
            }
        }
        while let Some(output) = self.cores.client.poll_transmit() {
            match output {
                client::Output::Route(candidate) => {
                    self.sought.push(candidate);
                    self.unrouted.push_back(candidate);
                }
                client::Output::Query(transmit) => self.transmits.push(transmit),
                client::Output::Socket(SocketEvent::Open(socket)) => {
                    self.tell(Input::Client(client::Input::SocketOpened { socket }));
                }
                client::Output::Neighbour(..) | client::Output::Socket(SocketEvent::Close(_)) => {}
            }
        }
    }

    /// The answers to the driver since the last call.
    fn answered(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.answered)
    }

    /// The questions for route look-ups.
    fn routes(&mut self) -> String {
        self.unrouted
            .drain(..)
            .map(|candidate| candidate.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The queries sent since the last reply.
    fn sent(&self) -> String {
        let sent = self.transmits.iter().map(|transmit| {
            let egress = transmit.egress.map_or("any".to_owned(), |egress| egress.to_string());
            format!("{} by {egress}", transmit.to.ip())
        });
        let mut sent: Vec<_> = sent.collect();
        sent.dedup();
        sent.join(", ")
    }

    /// The actions for the kernel.
    fn told(&mut self) -> String {
        let told =
            std::iter::from_fn(|| self.cores.local_service.poll_transmit()).map(|transmit| {
                let local_service::Transmit::Message(message) = transmit else {
                    return "nudge".to_owned();
                };
                let message = messages(message.as_ref()).next().unwrap().unwrap();
                match Answer::parse(&message) {
                    Ok(Answer::Gid(gid)) => format!("{} is {gid}", message.seq().0),
                    other => {
                        assert!(message.is_request(), "{other:?}");
                        "timeout".to_owned()
                    }
                }
            });
        told.collect::<Vec<_>>().join(", ")
    }
}

fn question(target: &str, egress: Option<u32>) -> Question {
    Question::new(ip(target), egress.and_then(IfIndex::new)).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}
