// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A client driven by a test.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ibarr_common::ib::{Gid, SubnetPrefix};
use ibarr_common::wire::ip2gid::{MsgId, PORT, Query};
use ibarr_common::{IfIndex, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

use super::super::*;
use crate::places::User;
use crate::request::{Caller, Freshness, UserRequest};

/// A client and its driver.
pub(super) struct Rig {
    pub(super) client: Client,
    pub(super) now: Instant,
    /// Whether route questions are answered at once, all with one gateway.
    pub(super) answer_routes: bool,
    /// Whether sockets can be opened.
    pub(super) can_open: bool,
    /// Whether datagrams can be sent.
    pub(super) writable: bool,
    pub(super) open: BTreeSet<SocketId>,
    pub(super) routes_asked: Vec<Candidate>,
    pub(super) neighbours_asked: Vec<(Instant, Question, Route)>,
    pub(super) sent: Vec<(Instant, Transmit)>,
    pub(super) answers: BTreeMap<RequestId, (Instant, Outcome)>,
    pub(super) requests: u64,
}

impl Rig {
    pub(super) fn new(settings: Settings) -> Self {
        Self::seeded(settings, 1)
    }

    pub(super) fn seeded(settings: Settings, seed: u64) -> Self {
        let rng = ChaCha12Rng::seed_from_u64(seed);
        let mut client = Client::new(Config::new(settings).unwrap(), rng);
        let ipoib = Egress { is_on_fabric: true, ..Egress::default() };
        client.network_changed(BTreeMap::from([(ib0().unwrap(), Some(ipoib))]));
        Self {
            client,
            now: Instant::BOOT + secs(1000),
            answer_routes: true,
            can_open: true,
            writable: true,
            open: BTreeSet::new(),
            routes_asked: Vec::new(),
            neighbours_asked: Vec::new(),
            sent: Vec::new(),
            answers: BTreeMap::new(),
            requests: 0,
        }
    }

    pub(super) fn input(&mut self, input: Input<'_>) {
        self.client.handle_input(self.now, input);
        self.drain();
    }

    pub(super) fn ask(&mut self, question: Question) -> RequestId {
        self.ask_for(question, secs(3))
    }

    /// A request whose caller waits for `patience`.
    pub(super) fn ask_for(&mut self, question: Question, patience: Duration) -> RequestId {
        let (asked_at, deadline) = (self.now, self.now + patience);
        let request = self.of_user(question);
        self.put(Request { asked_at, deadline, caller: Caller::Kernel, ..request })
    }

    /// A request of a user, which a refusal ends.
    pub(super) fn ask_as_user(&mut self, question: Question) -> RequestId {
        let request = self.of_user(question);
        self.put(request)
    }

    /// A request of a user that wants the peer's own word.
    pub(super) fn ask_fresh(&mut self, question: Question) -> RequestId {
        let request = self.of_user(question);
        self.put(Request { freshness: Freshness::Fresh, ..request })
    }

    pub(super) fn of_user(&mut self, question: Question) -> Request {
        self.requests += 1;
        let id = RequestId::User(UserRequest::Control(self.requests));
        let (asked_at, deadline) = (Instant::BOOT, self.now + secs(3));
        let (caller, freshness) = (Caller::Control(User(0)), Freshness::Any);
        Request { id, caller, question, asked_at, deadline, freshness }
    }

    pub(super) fn put(&mut self, request: Request) -> RequestId {
        self.input(Input::Resolve(request));
        request.id
    }

    pub(super) fn renumber(&mut self, before: SubnetPrefix, after: SubnetPrefix) {
        self.input(Input::Subnet { before, after });
    }

    /// The GID that a request was given, if it has an answer.
    pub(super) fn found(&self, id: RequestId) -> Option<(Gid, Source)> {
        match self.answers.get(&id)?.1 {
            Outcome::Found { gid, source } => Some((gid, source)),
            other => panic!("{other:?}"),
        }
    }

    /// ICMP reports that the port of a sent datagram was unreachable.
    pub(super) fn refuse(&mut self, sent: usize) {
        let Transmit { socket, to, ref payload, .. } = self.sent[sent].1;
        let quoted = payload.as_ref().to_vec();
        self.input(Input::Refused { socket, to, quoted: &quoted });
    }

    pub(super) fn resolve(&mut self, n: u16) -> RequestId {
        self.ask(question(n))
    }

    pub(super) fn route(&mut self, n: u16, route: Option<Route>) {
        self.input(Input::Route { candidate: question(n).into(), route });
    }

    /// Advances by `duration`, and stops at each timer.
    pub(super) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..100_000 {
            let Some(at) = self.client.poll_timeout().filter(|&at| at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            self.client.handle_timeout(self.now);
            self.drain();
        }
        panic!("busy at {}: {:?}", self.now, self.client);
    }

    pub(super) fn drain(&mut self) {
        loop {
            let input = if let Some(Event::Answered { id, outcome }) = self.client.poll_event() {
                let twice = self.answers.insert(id, (self.now, outcome));
                assert_eq!(twice, None, "request {id:?} answered twice");
                continue;
            } else {
                let output = if self.writable {
                    self.client.poll_transmit()
                } else {
                    self.client.poll_look_up()
                };
                match output {
                    Some(Output::Socket(SocketEvent::Open(socket))) if self.can_open => {
                        self.open.insert(socket);
                        Input::SocketOpened { socket }
                    }
                    Some(Output::Socket(SocketEvent::Open(socket))) => {
                        Input::SocketFailed { socket }
                    }
                    Some(Output::Socket(SocketEvent::Close(socket))) => {
                        assert!(self.open.remove(&socket));
                        continue;
                    }
                    Some(Output::Route(candidate)) => {
                        self.routes_asked.push(candidate);
                        if !self.answer_routes {
                            continue;
                        }
                        Input::Route { candidate, route: Some(via(254)) }
                    }
                    Some(Output::Neighbour(question, route)) => {
                        self.neighbours_asked.push((self.now, question, route));
                        continue;
                    }
                    Some(Output::Query(transmit)) => {
                        assert!(self.open.contains(&transmit.socket));
                        self.sent.push((self.now, transmit));
                        continue;
                    }
                    None => return,
                }
            };
            self.client.handle_input(self.now, input);
        }
    }

    pub(super) fn msg_id(&self, sent: usize) -> MsgId {
        Query::parse(self.sent[sent].1.payload.as_ref()).unwrap().msg_id()
    }

    pub(super) fn reply_to(&self, sent: usize, gid: Option<Gid>) -> impl AsRef<[u8]> + use<> {
        Query::parse(self.sent[sent].1.payload.as_ref()).unwrap().reply(gid).emit()
    }

    /// The destination of a sent datagram replies.
    pub(super) fn reply(&mut self, sent: usize, gid: Option<Gid>) {
        let Transmit { socket, to, .. } = self.sent[sent].1;
        let reply = self.reply_to(sent, gid);
        self.deliver(socket, to, ib0(), reply.as_ref());
    }

    pub(super) fn deliver(
        &mut self,
        socket: SocketId,
        from: SocketAddr,
        ingress: Option<IfIndex>,
        payload: &[u8],
    ) {
        let ingress = ingress.unwrap();
        self.input(Input::Datagram { socket, from, ingress, payload });
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.client.counters().get(counter)
    }
}

pub(super) fn question(n: u16) -> Question {
    Question::new(peer(n).ip(), None).unwrap()
}

pub(super) fn peer(n: u16) -> SocketAddr {
    let [high, low] = n.to_be_bytes();
    SocketAddr::new(IpAddr::from([10, 2, high, low]), PORT)
}

pub(super) fn via(n: u16) -> Route {
    let [high, low] = n.to_be_bytes();
    Route { ifindex: ib0().unwrap(), next_hop: IpAddr::from([10, 1, high, low]) }
}

pub(super) fn ib0() -> Option<IfIndex> {
    IfIndex::new(2)
}

pub(super) fn gid(n: u16) -> Gid {
    format!("fe80::2:c903:0:{n:x}").parse().unwrap()
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
