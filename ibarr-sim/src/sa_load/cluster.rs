// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The nodes of a subnet and their SA, on one virtual clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, PortNum};
use ibarr_common::wire::mad::Mad;
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::{PathQuestion, Question, Request};
use ibarr_common::wire::umad::PKeyIndex;
use ibarr_proto::local_service;
use ibarr_proto::paths;
use ibarr_proto::paths::snapshot::{Snapshot, Step};
use ibarr_proto::paths::{
    Input, Outcome, Paths, PortEvent, PortFacts, PortName, RequestId, Source,
};
use ibarr_proto::request::{Caller, Freshness, UserRequest};
use ibarr_proto::sa::{Counter, PortIndex, Transmit};

use super::sa::{Sa, Verdict};
use super::{CONNECTIONS, Event, KEPT, Plan, PortEvents, Second, UPGRADE, stays};
use crate::dice::{Dice, ms, secs};
use crate::record::START;

/// The nodes and their SA, see the [module](self).
pub(super) struct Cluster {
    plan: Plan,
    now: Instant,
    dice: Dice,
    nodes: Vec<Node>,
    sa: Sa,
    sm_lid: u16,
    /// Whether ports have the LIDs of the subnet manager that came back.
    has_moved: bool,
    /// Answers in flight, of two kinds, each in the order of arrival.
    answers: VecDeque<OnTheWay>,
    busy: VecDeque<OnTheWay>,
    queue: BinaryHeap<Reverse<(Instant, u64, What)>>,
    scheduled: u64,
    /// When the current event began.
    began: Instant,
    event: Event,
    seconds: Vec<Second>,
    /// The paths that callers have got, by the low bits of their LID.
    pub(super) given: [u64; 128],
}

/// An answer in flight to a node.
struct OnTheWay {
    arrives: Instant,
    node: usize,
    from: Lid,
    mad: Mad,
}

struct Node {
    paths: Paths,
    /// When the node is called next.
    armed: Option<Instant>,
    asked: u64,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum What {
    Timer(usize),
    /// The port appears, or its subnet manager changes.
    Facts(usize),
    /// The kernel reports an event of the port.
    Happens(usize),
    /// The daemon is replaced by another one.
    Upgrades(usize),
    /// A caller asks for a path.
    Wants(usize, usize),
    /// A connection is made, and after a while another.
    Uses(usize, Event),
    /// A kernel asks the SA itself, or again after so many MADs, unless an answer has arrived by then.
    KernelAsks(u32, Option<Instant>),
}

/// Within this time a change of a port is noticed, and IPoIB asks for the paths that it keeps.
const SOON: Duration = secs(1);

/// The MADs of a query share the caller's 2 s (drivers/infiniband/core/sa_query.c).
pub(super) const KERNEL_PATIENCE: Duration = ms(200);
pub(super) const KERNEL_SENDS: u32 = 11;

const PORT: PortIndex = PortIndex(0);

impl Cluster {
    pub(super) fn new(plan: Plan) -> Self {
        let mut dice = Dice::new(plan.seed);
        let node =
            |_| Node { paths: Paths::new(plan.config, dice.seed_core()), armed: None, asked: 0 };
        Self {
            plan,
            now: START,
            nodes: (0..plan.nodes).map(node).collect(),
            dice,
            sa: Sa::new(plan.sa_rate),
            sm_lid: 1,
            has_moved: false,
            answers: VecDeque::new(),
            busy: VecDeque::new(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            began: START,
            event: Event::PowerOn,
            seconds: Vec::new(),
            given: [0; 128],
        }
    }

    /// Runs the event, and returns the load on the SA in each second.
    pub(super) fn run(&mut self, event: Event) -> Vec<Second> {
        (self.began, self.event) = (self.now, event);
        let time = event.time(self.plan.steady);
        self.seconds = vec![Second::default(); usize::try_from(time.as_secs()).unwrap_or_default()];
        for node in 0..self.nodes.len() {
            self.begin(node, event);
        }
        let end = self.began + time;
        while let Some(at) = self.next().filter(|&at| at < end) {
            self.now = self.now.max(at);
            self.step(at);
        }
        self.now = end;
        std::mem::take(&mut self.seconds)
    }

    fn begin(&mut self, node: usize, event: Event) {
        if event == Event::Moved {
            self.has_moved = true;
        }
        let seen_at = match event {
            Event::PowerOn => Some(self.now),
            Event::Takeover => {
                self.sm_lid = 2;
                Some(self.now + self.dice.within(Duration::ZERO..SOON))
            }
            Event::Moved if !stays(node) => Some(self.now + self.dice.within(Duration::ZERO..SOON)),
            Event::Steady | Event::Upgrade | Event::Moved | Event::Register => None,
        };
        if event == Event::Upgrade {
            let at = self.now + self.dice.within(Duration::ZERO..UPGRADE);
            self.at(at, What::Upgrades(node));
        }
        let is_told = matches!(event, Event::Moved | Event::Register | Event::Takeover);
        if is_told && self.plan.port_events == PortEvents::Received {
            let at = self.now + self.dice.within(Duration::ZERO..SOON);
            self.at(at, What::Happens(node));
        }
        if let Some(at) = seen_at {
            self.at(at, What::Facts(node));
        }
        let wanted = match event {
            Event::PowerOn => KEPT + CONNECTIONS,
            Event::Steady | Event::Upgrade | Event::Moved => 0,
            Event::Register | Event::Takeover => KEPT,
        };
        for which in 0..wanted {
            let at = self.now + self.dice.within(Duration::ZERO..SOON);
            self.at(at, What::Wants(node, which));
        }
        let first = self.dice.within(Duration::ZERO..event.uses_every());
        self.at(self.now + first, What::Uses(node, event));
    }

    fn at(&mut self, at: Instant, what: What) {
        self.scheduled += 1;
        self.queue.push(Reverse((at, self.scheduled, what)));
    }

    fn next(&self) -> Option<Instant> {
        let queued = self.queue.peek().map(|Reverse((at, ..))| *at);
        let on_their_way =
            [&self.answers, &self.busy].map(|way| way.front().map(|answer| answer.arrives));
        on_their_way.into_iter().chain([queued]).flatten().min()
    }

    fn step(&mut self, at: Instant) {
        let arrived = |answer: &mut OnTheWay| answer.arrives <= at;
        let arrived = match self.answers.pop_front_if(arrived) {
            None => self.busy.pop_front_if(arrived),
            answer => answer,
        };
        if let Some(OnTheWay { node, from, mad, .. }) = arrived {
            let input = Input::Mad { port: PORT, from: Some(from), mad: mad.as_ref() };
            self.nodes[node].paths.handle_input(self.now, input);
            return self.settle(node);
        }
        let Some(Reverse((at, _, what))) = self.queue.pop() else { return };
        match what {
            What::Timer(node) if self.nodes[node].armed == Some(at) => {
                self.nodes[node].armed = None;
                self.settle(node);
            }
            What::Facts(node) => self.tell_facts(node),
            What::Upgrades(node) => {
                let paths = Paths::new(self.plan.config, self.dice.seed_core());
                let this = &mut self.nodes[node];
                let snapshot = snapshot(&this.paths, self.now);
                (this.paths, this.armed) = (paths, None);
                this.paths.restore(self.now, snapshot, Duration::ZERO);
                self.tell_facts(node);
            }
            What::Happens(node) => {
                let input = Input::Happened { port: PORT, event: PortEvent::ClientReregister };
                self.nodes[node].paths.handle_input(self.now, input);
                self.settle(node);
            }
            What::Wants(node, which) => self.want(node, which),
            What::Uses(node, event) if event == self.event => {
                let which = KEPT + self.dice.below(CONNECTIONS);
                let next = self.dice.around(event.uses_every());
                self.at(self.now + next, What::Uses(node, event));
                self.want(node, which);
            }
            What::KernelAsks(times, answered_at) => self.kernel_asks(times, answered_at),
            What::Timer(_) | What::Uses(..) => {}
        }
    }

    fn tell_facts(&mut self, node: usize) {
        let lmc = self.plan.lmc;
        let facts = PortFacts { lmc, ..facts(node, self.lid(node), self.sm_lid) };
        let input = Input::Port { port: PORT, name: name(), facts };
        let heard = self.plan.port_events != PortEvents::Absent;
        let paths = &mut self.nodes[node].paths;
        paths.handle_input(self.now, input);
        paths.handle_input(self.now, Input::Hearing { port: PORT, heard });
        self.settle(node);
    }

    fn want(&mut self, node: usize, which: usize) {
        let question = question(node, which, self.nodes.len());
        let deadline = self.now + local_service::Config::default().timeout.get() * 4 / 5;
        let this = &mut self.nodes[node];
        this.asked += 1;
        let id = RequestId::User(UserRequest::Control(this.asked));
        let request = paths::Request {
            id,
            port: name(),
            question: question.into(),
            caller: Caller::Kernel,
            freshness: Freshness::Any,
            deadline,
        };
        this.paths.handle_input(self.now, Input::Resolve(request));
        self.settle(node);
    }

    /// Executes the outputs of a node.
    fn settle(&mut self, node: usize) {
        let now = self.now;
        self.nodes[node].paths.handle_timeout(now);
        loop {
            let queries = |node: &Node| node.paths.client().counters().get(Counter::Queries);
            let before = queries(&self.nodes[node]);
            let Some(transmit) = self.nodes[node].paths.poll_transmit() else { break };
            let is_first = queries(&self.nodes[node]) > before;
            self.arrives(node, &transmit, is_first);
        }
        while let Some(paths::Event::Answered(answered)) = self.nodes[node].paths.poll_event() {
            match answered.outcome {
                Outcome::Found { record, source } => {
                    let Ok(Fields { dlid, dgid, .. }) = Fields::parse(&record) else {
                        unreachable!("the SA's records are well-formed")
                    };
                    let low = dlid.get() % (1 << self.plan.lmc);
                    let is_wrong = dlid.get() - low != self.lid(number(dgid));
                    self.given[usize::from(low)] += 1;
                    let counts_here = is_wrong && self.event == Event::Moved && stays(node);
                    let second = self.second();
                    second.doubted += u64::from(source == Source::Doubted);
                    if counts_here {
                        second.wrong.insert(node);
                    }
                }
                Outcome::NoRecord { .. } => {}
                _ if answered.is_left_to_kernel => {
                    self.second().left += 1;
                    self.kernel_asks(0, None);
                }
                _ => self.second().failed += 1,
            }
        }
        let this = &mut self.nodes[node];
        let next = this.paths.poll_timeout().map(|at| at.max(now));
        if let Some(next) = next.filter(|&next| this.armed.is_none_or(|armed| next < armed)) {
            this.armed = Some(next);
            self.at(next, What::Timer(node));
        }
    }

    /// Like `ib_sa_path_rec_get`: resends ten times within its time, regardless of other requests,
    /// until there is any answer. BUSY is one, and fails the caller.
    fn kernel_asks(&mut self, times: u32, answered_at: Option<Instant>) {
        if answered_at.is_some_and(|at| at <= self.now) {
            return;
        }
        if times == KERNEL_SENDS {
            self.second().failed += 1;
            return;
        }
        self.second().kernels += 1;
        let verdict = self.sa.take(self.now);
        self.account(&verdict);
        let answered_at = match verdict {
            Verdict::Answers { at } => Some(answered_at.map_or(at, |before| before.min(at))),
            Verdict::Silent => answered_at,
            Verdict::Busy { .. } => {
                self.second().failed += 1;
                return;
            }
        };
        self.at(self.now + KERNEL_PATIENCE, What::KernelAsks(times + 1, answered_at));
    }

    fn arrives(&mut self, node: usize, transmit: &Transmit, is_first: bool) {
        let Ok(request) = Request::parse(transmit.mad.as_ref()) else {
            unreachable!("a core sends well-formed MADs")
        };
        let second = self.second();
        second.mads += 1;
        if is_first {
            *match request.question {
                Question::Path(PathQuestion { reversible: false, .. })
                | Question::Paths(PathQuestion { reversible: false, .. }, _) => &mut second.kept,
                Question::Path(_) | Question::Paths(..) | Question::Known(_) => {
                    &mut second.connections
                }
                Question::ClassPortInfo => &mut second.infos,
            } += 1;
        }
        let verdict = self.sa.take(self.now);
        self.account(&verdict);
        let from = transmit.sa.lid;
        match verdict {
            Verdict::Answers { at } => {
                let dlid = match request.question {
                    Question::Path(question) | Question::Paths(question, _) => {
                        self.lid(number(question.dgid))
                    }
                    Question::Known(_) | Question::ClassPortInfo => 0,
                };
                let mad = Sa::answer(&request, dlid, self.plan.lmc);
                self.answers.push_back(OnTheWay { arrives: at, node, from, mad });
            }
            Verdict::Busy { at } => {
                let mad = Sa::busy(&request);
                self.busy.push_back(OnTheWay { arrives: at, node, from, mad });
            }
            Verdict::Silent => {}
        }
    }

    fn account(&mut self, verdict: &Verdict) {
        let second = self.second();
        match verdict {
            Verdict::Answers { .. } => second.answered += 1,
            Verdict::Busy { .. } | Verdict::Silent => second.refused += 1,
        }
    }

    /// Nine of ten nodes have exchanged their LIDs when a subnet manager came back.
    fn lid(&self, node: usize) -> u16 {
        let has_moved = self.has_moved && !stays(node);
        let place = if has_moved { node / 10 * 10 + node % 10 % 9 + 1 } else { node };
        u16::try_from(100 + place).unwrap_or_default() << self.plan.lmc
    }

    fn second(&mut self) -> &mut Second {
        let second = usize::try_from(self.now.since(self.began).as_secs()).unwrap_or_default();
        let last = self.seconds.len() - 1;
        &mut self.seconds[second.min(last)]
    }
}

fn name() -> PortName {
    let (Ok(device), Some(port)) = ("mlx5_0".parse(), PortNum::new(1)) else {
        unreachable!("the name is valid")
    };
    PortName { device, port }
}

/// What a daemon leaves for the next one.
fn snapshot(of: &Paths, now: Instant) -> Snapshot {
    let mut walk = of.walk(now);
    let ports = walk.ports();
    let mut paths = Vec::new();
    while let Step::Paths(some) = of.step(&mut walk, KEPT + CONNECTIONS) {
        paths.extend(some);
    }
    Snapshot { begun_at: 0, ports, paths }
}

fn gid(node: usize) -> Gid {
    let guid = u128::try_from(node + 1).unwrap_or(1);
    Gid::new((0xfe80_u128 << 112 | guid).to_be_bytes())
        .unwrap_or_else(|| unreachable!("it is neither zero nor multicast"))
}

/// The number of the node that has the GID.
fn number(gid: Gid) -> usize {
    usize::try_from(gid.guid().get()).unwrap_or(1) - 1
}

fn facts(node: usize, lid: u16, sm_lid: u16) -> PortFacts {
    PortFacts {
        is_active: true,
        has_umad: true,
        lid: Lid::new(lid),
        sm_lid: Lid::new(sm_lid),
        gids: [gid(node)].into(),
        pkeys: vec![(PKeyIndex(0), PKey::DEFAULT)],
        ..PortFacts::default()
    }
}

/// Path number `which` of a node: IPoIB keeps the first ones, which need not be reversible.
fn question(node: usize, which: usize, nodes: usize) -> PathQuestion {
    let peer = (node + 1 + which * 977) % nodes;
    PathQuestion {
        dgid: gid(peer),
        sgid: gid(node),
        reversible: which >= KEPT,
        pkey: Some(PKey::DEFAULT),
        tclass: None,
        service_id: None,
        qos_class: None,
    }
}
