// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A whole node in its loop, with inputs in any order.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Version};
use ibarr_common::wire::ls::{PortId, Request, ResolveIp, Seq};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::client::{self, Route, SocketEvent, SocketId};
use ibarr_proto::ip2gid::{Question, server};
use ibarr_proto::local_service::{self, Nudged, Sender, Transmit};
use ibarr_proto::local_view;
use ibarr_proto::node::{Config, Input, Node, Output, Room};
use ibarr_proto::request::UserRequest;
use ibarr_proto::requests::AddressRequest;
use ibarr_proto::shares::User;
use ibarr_proto::turn::{self, Handled, Io, Limits, Read};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;

use crate::script::Script;

/// A node in the daemon's own loop, with any inputs in any order, which `script` encodes:
///
/// * A request of the kernel is read when all outputs for the one before have been taken.
/// * A turn reads no more inputs and no more messages than its limits.
/// * After each turn the outputs are taken, unless it had queries of peers alone.
/// * Each user's question is answered once, and none is left at the end.
/// * A time-out that is due and handled is not due again, and a request makes none due at once.
///
/// # Panics
/// The claim does not hold for `script`.
pub fn turn(script: &[u8]) {
    let mut script = Script(script);
    let mut world = World::new(script.byte());
    while !script.0.is_empty() {
        world.step(&mut script);
    }
    world.pass(Duration::from_mins(2));
    assert!(world.waiting.is_empty(), "{:?}", world.waiting);
    assert!(world.node.local_service().is_idle());
}

/// Few targets, so that histories repeat them. The fourth has no route.
const TARGETS: [&str; 5] = ["10.2.0.5", "10.2.0.6", "fd00:2::5", "10.3.0.1", "224.0.0.1"];
const LIMITS: Limits = Limits { inputs: 2, messages: 3, last_reads: 2 };

/// An input that waits for the turn.
enum Cue {
    Kernel,
    Query(Vec<u8>),
    Reply { socket: SocketId, from: SocketAddr, payload: Vec<u8> },
    Resolve(UserRequest, Question, Instant),
    Nudged(Nudged),
    View(local_view::Input),
}

struct World {
    now: Instant,
    node: Node,
    cues: VecDeque<Cue>,
    /// Messages in the socket from the kernel.
    held: VecDeque<Vec<u8>>,
    /// The socket is readable.
    asks: bool,
    has_room: bool,
    sockets_fail: bool,
    sent: Vec<client::Transmit>,
    users: u64,
    waiting: BTreeSet<UserRequest>,
    /// The numbers of this turn.
    inputs: usize,
    messages: usize,
    /// The outputs that have not been taken.
    owed: Owed,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Owed {
    Nothing,
    OfInput,
    /// Of a message of the kernel.
    OfMessage,
}

impl World {
    fn new(seed: u8) -> Self {
        let mut node = Node::new(Config::default(), ChaCha12Rng::seed_from_u64(seed.into()));
        let now = Instant::from_nanos(1 << 40);
        let opened = local_service::Input::Opened { port_id: PortId(180), is_member: true };
        node.handle_input(now, Input::LocalService(opened));
        Self {
            now,
            node,
            cues: VecDeque::new(),
            held: VecDeque::new(),
            asks: false,
            has_room: true,
            sockets_fail: false,
            sent: Vec::new(),
            users: 0,
            waiting: BTreeSet::new(),
            inputs: 0,
            messages: 0,
            owed: Owed::Nothing,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let target = TARGETS[usize::from(script.byte()) % TARGETS.len()].parse().expect("legal");
        match script.byte() % 12 {
            0 | 1 => {
                let request = Request::ResolveIp(ResolveIp { ifindex: IfIndex::MIN, target });
                let seq = Seq(u32::from(script.byte() % 8));
                self.held.push_back(request.emit(seq).as_ref().to_vec());
            }
            2 => {
                let len = usize::from(script.byte());
                self.held.push_back(script.bytes(len).to_vec());
            }
            3 => self.asks = true,
            4 => {
                let query =
                    Query::new(Version::V1, MsgId(self.users.try_into().expect("few")), target);
                let query = query.map(|query| query.emit().as_ref().to_vec());
                self.cues.push_back(Cue::Query(query.unwrap_or_default()));
            }
            5 | 6 if !self.sent.is_empty() => {
                let sent = self.sent.swap_remove(usize::from(script.byte()) % self.sent.len());
                let mut payload = sent.payload.as_ref().to_vec();
                if let Ok(query) = Query::parse(&payload) {
                    let gid = "fe80::2:c903:0:101".parse().ok();
                    let gid = gid.filter(|_| !script.byte().is_multiple_of(4));
                    payload = query.reply(gid).emit().as_ref().to_vec();
                }
                let (socket, from) = (sent.socket, SocketAddr::new(sent.to.ip(), PORT));
                self.cues.push_back(Cue::Reply { socket, from, payload });
            }
            7 => {
                let Some(question) = Question::new(target, None) else { return };
                let id = UserRequest::Control(self.users);
                self.users += 1;
                let deadline = self.now + Duration::from_millis(u64::from(script.byte()) * 20);
                self.waiting.insert(id);
                self.cues.push_back(Cue::Resolve(id, question, deadline));
            }
            8 => {
                let nudged = script.choose(&[Nudged::Done, Nudged::Failed, Nudged::Postponed]);
                self.cues.extend(nudged.map(Cue::Nudged));
            }
            9 => self.cues.push_back(Cue::View(match script.byte() % 4 {
                0 => local_view::Input::RoutesChanged,
                _ => local_view::Input::DumpFailed(script.subject()),
            })),
            10 => {
                (self.has_room, self.sockets_fail) = match script.byte() % 4 {
                    0 => (false, false),
                    1 => (true, true),
                    _ => (true, false),
                }
            }
            _ => self.pass(Duration::from_millis(u64::from(script.byte()).pow(2) / 8)),
        }
        if script.byte().is_multiple_of(2) {
            self.turns();
        }
    }

    /// Takes turns until there is no input.
    fn turns(&mut self) {
        // As in the daemon, the socket to the kernel comes first, and is looked at once a turn.
        while let Some(first) =
            std::mem::take(&mut self.asks).then_some(Cue::Kernel).or_else(|| self.cues.pop_front())
        {
            (self.inputs, self.messages) = (0, 0);
            let (is_due, asks_alone) = (self.is_due(), matches!(first, Cue::Kernel));
            let asks_on = turn::take(self, LIMITS, self.now, first, is_due);
            assert!(self.inputs <= LIMITS.inputs && self.owed == Owed::Nothing);
            assert_eq!(asks_on, self.messages == LIMITS.messages);
            let is_broken = !is_due && asks_alone && self.inputs == 0 && self.is_due();
            assert!(!is_broken, "a request makes something due at once");
            self.asks = asks_on;
        }
    }

    fn is_due(&self) -> bool {
        self.node.poll_timeout().is_some_and(|due| due <= self.now)
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        (self.has_room, self.sockets_fail) = (true, false);
        self.asks = true;
        self.turns();
        while let Some(due) = self.node.poll_timeout().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            turn::drain(self, self.now);
            self.turns();
            assert!(!self.is_due(), "it is due again");
        }
        self.now = end;
    }
}

impl Io<Cue> for World {
    fn next_input(&mut self) -> Option<Cue> {
        let cue = self.cues.pop_front()?;
        self.inputs += 1;
        Some(cue)
    }

    fn handle(&mut self, now: Instant, cue: Cue) -> Handled {
        let input: Input<'_> = match &cue {
            Cue::Kernel => return Handled::KernelAsks,
            Cue::Query(payload) => {
                let from = SocketAddr::new([10, 1, 0, 9].into(), PORT);
                let (to, ingress) = ([10, 1, 0, 1].into(), IfIndex::MIN);
                let received = server::Received { from, to, ingress, is_local: false, payload };
                if let Some(reply) = self.node.answer(&received) {
                    self.node.handle_sent(&reply, 0);
                }
                return Handled::Unchanged;
            }
            Cue::Reply { socket, from, payload } => Input::Client(client::Input::Datagram {
                socket: *socket,
                from: *from,
                ingress: IfIndex::MIN,
                payload,
            }),
            &Cue::Resolve(id, question, deadline) => {
                Input::Resolve(AddressRequest::of_user(id, User(7), question, deadline))
            }
            &Cue::Nudged(nudged) => Input::LocalService(local_service::Input::Nudged(nudged)),
            Cue::View(input) => Input::View(input.clone()),
        };
        self.node.handle_input(now, input);
        self.owed = self.owed.max(Owed::OfInput);
        Handled::Changed
    }

    fn read_kernel(&mut self, now: Instant) -> Read {
        assert!(
            self.owed < Owed::OfMessage,
            "a request is read before the previous one is handled"
        );
        let Some(bytes) = self.held.pop_front() else {
            let drained = local_service::Input::Drained;
            self.node.handle_input(now, Input::LocalService(drained));
            return Read::Nothing;
        };
        self.messages += 1;
        assert!(self.messages <= LIMITS.messages);
        self.owed = Owed::OfMessage;
        let datagram =
            local_service::Input::Datagram { sender: Sender::Kernel, bytes: &bytes, cut: false };
        self.node.handle_input(now, Input::LocalService(datagram));
        Read::Message
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node.handle_timeout(now);
    }

    fn poll(&mut self, _: Instant) -> Option<Output> {
        let output = self.node.poll(Room { local_service: self.has_room });
        if output.is_none() {
            self.owed = Owed::Nothing;
        }
        output
    }

    fn carry_out(&mut self, now: Instant, output: Output) {
        let input = match output {
            Output::View(local_view::Request::Dump(local_view::Subject::Node)) => {
                for input in [local_view::Input::DumpStarted, local_view::Input::DumpDone] {
                    self.node.handle_input(now, Input::View(input));
                }
                return;
            }
            Output::Client(client::Output::Socket(SocketEvent::Open(socket)))
                if self.sockets_fail =>
            {
                client::Input::SocketFailed { socket }
            }
            Output::Client(client::Output::Socket(SocketEvent::Open(socket))) => {
                client::Input::SocketOpened { socket }
            }
            Output::Client(client::Output::Route(candidate)) => {
                let has_route = candidate.question.target()
                    != TARGETS[3].parse::<std::net::IpAddr>().expect("legal");
                let next_hop = "10.1.0.254".parse().expect("legal");
                let route = has_route.then_some(Route { ifindex: IfIndex::MIN, next_hop });
                client::Input::Route { candidate, route }
            }
            Output::Client(client::Output::Neighbour(question, _)) => {
                client::Input::Neighbour { question, gid: None }
            }
            Output::Client(client::Output::Query(transmit)) => return self.sent.push(transmit),
            Output::Answered { id, .. } => {
                assert!(self.waiting.remove(&id), "answered twice");
                return;
            }
            Output::LocalService(Transmit::Nudge(_)) => {
                return self.cues.push_back(Cue::Nudged(Nudged::Done));
            }
            _ => return,
        };
        self.node.handle_input(now, Input::Client(input));
    }

    fn settle(&mut self, _: Instant) {}
}
