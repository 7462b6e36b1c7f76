// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The core against plain lists, and against a kernel that repeats waiting requests after a nudge.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::rig::{START, gid, ms, overloaded, peer, request, tell, unknown_port};

const TARGETS: [&str; 2] = ["10.2.0.1", "10.2.0.2"];
/// Longer than [`LATELY`], and short enough for a test.
const DEADLINE: Duration = Duration::from_secs(5);
const LIMITS: Limits = Limits { requests: 4, paths: 2 };

#[derive(Clone, Debug)]
enum Op {
    Ask { seq: u32, target: usize },
    AskPath { seq: u32 },
    Find { which: prop::sample::Index, outcome: u8 },
    Take,
    Drained,
    Overrun,
    Nudged(Nudged),
    Pass(Duration),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..7_u32, 0..2_usize).prop_map(|(seq, target)| Op::Ask { seq, target }),
        1 => (1..4_u32).prop_map(|seq| Op::AskPath { seq }),
        4 => (any::<prop::sample::Index>(), 0..8_u8)
            .prop_map(|(which, outcome)| Op::Find { which, outcome }),
        6 => Just(Op::Take),
        3 => Just(Op::Drained),
        1 => Just(Op::Overrun),
        3 => prop::sample::select(vec![Nudged::Done, Nudged::Postponed, Nudged::Failed])
            .prop_map(Op::Nudged),
        4 => prop::sample::select(vec![0, 1, 2, 5, 50, 499, 500, 2_000, 3_000, 4_999])
            .prop_map(|millis| Op::Pass(ms(millis))),
    ]
}

/// A model of the core with lists that are searched from one end to the other.
#[expect(clippy::struct_excessive_bools, reason = "plain on purpose")]
struct Model {
    nudges_on: bool,
    now: Instant,
    requests: Vec<Held>,
    queue: Vec<Queued>,
    /// For each cause of a nudge, the time, and whether no other request waited.
    wants: Vec<(Instant, bool)>,
    /// The last nudge was for one request, and during it at most one request arrived, for the first
    /// time.
    calm: bool,
    asked_meanwhile: usize,
    last_nudge: Option<Instant>,
    /// The remaining pauses, with a nudge after each.
    follow_ups: Vec<Duration>,
    /// A postponed repetition: when it is due, and when it was due first.
    again: Option<(Instant, Instant)>,
    nudging: Option<Nudging>,
    failed: bool,
    more: bool,
    overruns_from: Instant,
    /// Requests whose search begins now, in this order.
    newly_sought: Vec<u32>,
}

/// The purpose of the nudge in progress.
#[derive(Clone, Debug)]
enum Nudging {
    Wants(Vec<(Instant, bool)>),
    Repetition { due: Instant },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Queued {
    Answer(u32),
    Error(u32),
}

#[derive(Clone, Debug)]
struct Held {
    seq: u32,
    target: usize,
    asked_at: Instant,
    mentioned_at: Instant,
    deadline: Instant,
    /// Set while no search is in progress and there is no answer.
    rests_until: Option<Instant>,
    answered: bool,
    nudges: u8,
    /// Repeated after its answer.
    repeated: bool,
    forget_at: Option<Instant>,
    repeat_at: Option<Instant>,
}

impl Held {
    fn is_sought(&self) -> bool {
        !self.answered && self.rests_until.is_none()
    }

    fn due(&self) -> Option<Instant> {
        match (self.forget_at, self.rests_until) {
            (Some(_), _) => self.repeat_at,
            (None, Some(until)) => Some(until.min(self.deadline)),
            (None, None) => Some(self.deadline),
        }
    }
}

impl Model {
    fn ask(&mut self, seq: u32, target: usize) {
        self.more = true;
        let is_repeated = |held: &Held| held.seq == seq && held.target == target;
        if self.nudging.is_some() {
            self.asked_meanwhile += 1;
            self.calm &= self.asked_meanwhile == 1 && !self.requests.iter().any(is_repeated);
        }
        self.wants.iter_mut().for_each(|(_, is_alone)| *is_alone = false);
        let now = self.now;
        if let Some(held) = self.requests.iter_mut().find(|held| held.seq == seq) {
            if held.target == target {
                held.mentioned_at = now;
                if held.forget_at.is_some() && !self.queue.contains(&Queued::Answer(seq)) {
                    let later = self.now + REPEAT_AFTER;
                    let held = self.held(seq);
                    if std::mem::replace(&mut held.repeated, true) {
                        held.repeat_at.get_or_insert(later);
                    } else {
                        self.enqueue(seq);
                    }
                }
                return;
            }
            self.remove(seq);
        }
        if self.requests.len() == LIMITS.requests {
            let remembered = self.requests.iter().filter(|held| held.forget_at.is_some());
            let oldest = remembered.min_by_key(|held| (held.forget_at, held.seq));
            let waiting = self.requests.iter().filter(|held| !held.answered);
            let gone = waiting
                .filter(|held| now >= held.mentioned_at + LATELY)
                .min_by_key(|held| (held.mentioned_at, held.seq));
            let Some(seq) = oldest.or(gone).map(|held| held.seq) else { return };
            self.remove(seq);
        }
        self.requests.push(Held {
            seq,
            target,
            asked_at: self.now,
            mentioned_at: self.now,
            deadline: self.now + DEADLINE,
            rests_until: None,
            answered: false,
            nudges: 0,
            repeated: false,
            forget_at: None,
            repeat_at: None,
        });
        self.newly_sought.push(seq);
    }

    fn ask_path(&mut self, seq: u32) {
        self.more = true;
        let errors = self.queue.iter().filter(|item| matches!(item, Queued::Error(_))).count();
        if errors < LIMITS.paths {
            self.queue.push(Queued::Error(seq));
        }
    }

    fn find(&mut self, seq: u32, found: bool) {
        let now = self.now;
        let held = self.held(seq);
        if found {
            held.answered = true;
            held.nudges = MAX_NUDGES;
            self.enqueue(seq);
        } else {
            let is_new = now < held.asked_at + LATELY;
            held.rests_until = Some(now + if is_new { RETRY } else { 2 * RETRY });
        }
    }

    fn take(&mut self) -> Option<String> {
        if self.queue.is_empty() {
            let due = self.nudge_due().filter(|&due| due <= self.now)?;
            let (since, nudging) = match (&self.wants[..], self.again.take()) {
                ([], Some((_, due))) => (due, Nudging::Repetition { due }),
                ([], None) => {
                    self.follow_ups.remove(0);
                    (due, Nudging::Repetition { due })
                }
                ([(since, is_one), others @ ..], _) => {
                    self.calm = *is_one && others.is_empty();
                    self.asked_meanwhile = 0;
                    (*since, Nudging::Wants(self.wants.clone()))
                }
            };
            self.wants.clear();
            (self.nudging, self.last_nudge) = (Some(nudging), Some(self.now));
            let is_overdue = since + NUDGE_BEHIND <= self.now;
            return Some(if is_overdue { "nudge anyway" } else { "nudge" }.to_owned());
        }
        let seq = match self.queue.remove(0) {
            Queued::Error(seq) => return Some(format!("{seq} asks the SA")),
            Queued::Answer(seq) => seq,
        };
        let (now, repeats) = (self.now, !self.nudges_on || self.failed);
        let waits = |held: &Held| !held.answered && now < held.mentioned_at + LATELY;
        let nobody_waits = !self.requests.iter().any(waits);
        let held = self.held(seq);
        let is_first = held.forget_at.is_none();
        if is_first {
            held.forget_at = Some(now + MEMORY);
            held.repeat_at = repeats.then_some(now + REPEAT_AFTER);
        }
        let text = format!("{seq} is {}", gid(TARGETS[held.target]));
        if held.nudges > 0 {
            held.nudges -= 1;
            self.want_nudge(is_first && nobody_waits);
        }
        Some(text)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let mut due: Vec<_> =
            self.requests.iter().filter_map(|held| Some((held.due()?, held.seq))).collect();
        due.retain(|&(at, _)| at <= self.now);
        due.sort_unstable();
        for (_, seq) in due {
            let now = self.now;
            let held = self.held(seq);
            if held.forget_at.is_some() {
                held.repeat_at = None;
                self.enqueue(seq);
            } else if held.rests_until.is_some() && now < held.deadline {
                held.rests_until = None;
                self.newly_sought.push(seq);
            } else {
                self.remove(seq);
            }
        }
        let is_over = |held: &&Held| held.forget_at.is_some_and(|at| at <= self.now);
        let over: Vec<_> = self.requests.iter().filter(is_over).map(|held| held.seq).collect();
        for seq in over {
            self.remove(seq);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let requests = self.requests.iter().flat_map(|held| [held.due(), held.forget_at]);
        requests.chain([self.nudge_due().filter(|&due| due > self.now)]).flatten().min()
    }

    fn nudge_due(&self) -> Option<Instant> {
        let since_last = |pause: Duration| self.last_nudge.map(|last| last + pause);
        let due = match self.wants[..] {
            [] => {
                let next = self.follow_ups.first().and_then(|&pause| since_last(pause));
                self.again.map(|(due, _)| due).or(next)
            }
            [(since, _), ..] => {
                let no_sooner = since_last(NUDGE_INTERVAL).unwrap_or(since);
                let alone = self.calm && matches!(self.wants[..], [(_, true)]);
                let due = if self.more {
                    no_sooner.max(since + NUDGE_BEHIND)
                } else if since >= no_sooner || alone {
                    since
                } else {
                    let (last, _) = self.wants[self.wants.len() - 1];
                    no_sooner.max((last + NUDGE_QUIET).min(since + NUDGE_WITHIN))
                };
                Some(due)
            }
        };
        due.filter(|_| self.nudging.is_none())
    }

    fn want_nudge(&mut self, is_one: bool) {
        if self.nudges_on {
            self.calm &= self.nudging.is_none() || is_one;
            self.wants.push((self.now, is_one));
            self.follow_ups = FOLLOW_UPS.to_vec();
            self.again = None;
        }
    }

    fn nudged(&mut self, nudging: Nudging, nudged: Nudged) {
        match nudged {
            Nudged::Done => self.failed = false,
            Nudged::Failed => self.failed = true,
            Nudged::Postponed => {
                self.calm = false;
                match nudging {
                    Nudging::Wants(wants) => drop(self.wants.splice(..0, wants)),
                    Nudging::Repetition { due } if self.wants.is_empty() => {
                        self.again = Some((self.now + NUDGE_INTERVAL, due));
                    }
                    Nudging::Repetition { .. } => {}
                }
            }
        }
    }

    fn overrun(&mut self) {
        if self.overruns_from <= self.now {
            self.overruns_from = self.now + OVERRUN_PAUSE;
            self.want_nudge(false);
        }
    }

    fn enqueue(&mut self, seq: u32) {
        if !self.queue.contains(&Queued::Answer(seq)) {
            self.queue.push(Queued::Answer(seq));
        }
    }

    fn remove(&mut self, seq: u32) {
        self.requests.retain(|held| held.seq != seq);
        self.queue.retain(|item| *item != Queued::Answer(seq));
    }

    fn held(&mut self, seq: u32) -> &mut Held {
        self.requests.iter_mut().find(|held| held.seq == seq).expect("it is held")
    }

    /// Requests with a search in progress, with their targets.
    fn sought(&self) -> Vec<(u32, &'static str)> {
        let sought = self.requests.iter().filter(|held| held.is_sought());
        let mut sought: Vec<_> = sought.map(|held| (held.seq, TARGETS[held.target])).collect();
        sought.sort_unstable();
        sought
    }
}

proptest! {
    #[test]
    fn core_behaves_like_plain_lists(
        nudges_on: bool, ops in prop::collection::vec(op(), 1..120)
    ) {
        let config = Config { nudge: nudges_on, deadline: DEADLINE, limits: LIMITS, ..Config::default() };
        let mut core = LocalService::new(config);
        core.handle_input(START, Input::Opened { port_id: PortId(180), is_member: true });
        prop_assert_eq!(core.poll_transmit().map(|t| tell(&t)), Some("timeout 3000".to_owned()));
        let mut model = Model {
            nudges_on,
            now: START,
            requests: Vec::new(),
            queue: Vec::new(),
            wants: nudges_on.then_some((START, false)).into_iter().collect(),
            calm: true,
            asked_meanwhile: 0,
            last_nudge: None,
            follow_ups: FOLLOW_UPS.to_vec(),
            again: None,
            nudging: None,
            failed: false,
            more: false,
            overruns_from: START,
            newly_sought: Vec::new(),
        };
        let mut ids = BTreeMap::new();
        for op in ops {
            let input = |core: &mut LocalService, input| core.handle_input(model.now, input);
            match op {
                Op::Ask { seq, target } => {
                    let bytes = request(seq, TARGETS[target]);
                    let bytes = bytes.as_ref();
                    input(&mut core, Input::Datagram { sender: Sender::Kernel, bytes, cut: false });
                    model.ask(seq, target);
                }
                Op::AskPath { seq } => {
                    let bytes = super::path_request(seq);
                    let bytes = bytes.as_ref();
                    input(&mut core, Input::Datagram { sender: Sender::Kernel, bytes, cut: false });
                    model.ask_path(seq);
                }
                Op::Find { which, outcome } => {
                    if ids.is_empty() {
                        continue;
                    }
                    let (&seq, &(id, target)) =
                        ids.iter().nth(which.index(ids.len())).expect("in range");
                    let outcome = match outcome {
                        0 => Outcome::NotFound,
                        1 => Outcome::Unreachable,
                        2 => Outcome::Overloaded,
                        _ => peer(target),
                    };
                    core.handle_input(model.now, Input::Answered { id, outcome });
                    ids.remove(&seq);
                    model.find(seq, matches!(outcome, Outcome::Found { .. }));
                    // Each search gets one result.
                    core.handle_input(model.now, Input::Answered { id, outcome });
                }
                Op::Take => {
                    prop_assert_eq!(core.poll_transmit().map(|t| tell(&t)), model.take());
                }
                Op::Drained => {
                    input(&mut core, Input::Drained);
                    model.more = false;
                }
                Op::Overrun => {
                    input(&mut core, Input::Overrun);
                    model.overrun();
                }
                Op::Nudged(nudged) => {
                    let Some(nudging) = model.nudging.take() else { continue };
                    core.handle_input(model.now, Input::Nudged(nudged));
                    model.nudged(nudging, nudged);
                }
                Op::Pass(time) => {
                    model.pass(time);
                    core.handle_timeout(model.now);
                }
            }
            // The core identifies searches by ids, the model by request numbers.
            let mut newly_sought = std::mem::take(&mut model.newly_sought).into_iter();
            while let Some(event) = core.poll_event() {
                match event {
                    Event::Wanted { id, question, asked_at, deadline } => {
                        let seq = newly_sought.next().expect("wanted as the model says");
                        let held = model.held(seq);
                        prop_assert_eq!((asked_at, deadline), (held.asked_at, held.deadline));
                        let target = TARGETS[held.target];
                        prop_assert_eq!(question.target().to_string(), target);
                        ids.insert(seq, (id, target));
                    }
                    Event::Unwanted { id, .. } => {
                        ids.retain(|_, (known, _)| *known != id);
                    }
                    Event::Dropped { .. } => {}
                    Event::PathWanted { id, .. } => {
                        core.handle_input(model.now, unknown_port(id));
                    }
                    Event::PathOverloaded { seq, .. } => {
                        core.handle_input(model.now, overloaded(seq));
                    }
                }
            }
            prop_assert_eq!(newly_sought.next(), None);
            let sought: Vec<_> =
                ids.iter().map(|(&seq, &(_, target))| (seq, target)).collect();
            prop_assert_eq!(sought, model.sought());
            prop_assert_eq!(core.load().held, model.requests.len());
            prop_assert_eq!(core.poll_timeout(), model.next_timeout());
        }
    }
}

/// A kernel by its contract: it sends a request before it has queued it, so that an answer can come
/// too early. After a nudge it looks at answers, and repeats requests without one.
struct Kernel {
    /// Each with whether it is queued by now, and its answer.
    waiting: BTreeMap<u32, (bool, Option<String>)>,
    resolved: BTreeSet<u32>,
    /// Requests to the daemon.
    sent: Vec<u32>,
}

impl Kernel {
    fn ask(&mut self, seq: u32, known: bool) {
        self.waiting.insert(seq, (known, None));
        self.sent.push(seq);
    }

    fn hear(&mut self, answer: &str) {
        let (seq, gid) = answer.split_once(" is ").expect("an answer with a GID");
        let seq = seq.parse().expect("a number");
        if let Some((true, slot)) = self.waiting.get_mut(&seq) {
            *slot = Some(gid.to_owned());
        }
    }

    fn be_nudged(&mut self) {
        for (&seq, (known, answer)) in &mut self.waiting {
            // When it is nudged, all sent requests are queued.
            *known = true;
            if answer.is_some() {
                self.resolved.insert(seq);
            } else {
                self.sent.push(seq);
            }
        }
        self.waiting.retain(|seq, _| !self.resolved.contains(seq));
    }
}

proptest! {
    /// Whatever comes too early, and in whichever order answers are found: every request with an
    /// answer is answered, each request ends once, nudges end, and no state remains.
    #[test]
    fn every_request_ends_once_and_leaves_nothing(
        requests in prop::collection::vec((any::<bool>(), 0..5_u64, 0..4_u64), 1..25)
    ) {
        let config = Config { deadline: DEADLINE, ..Config::default() };
        let mut core = LocalService::new(config);
        let mut kernel = Kernel {
            waiting: BTreeMap::new(),
            resolved: BTreeSet::new(),
            sent: Vec::new(),
        };
        let mut now = START;
        core.handle_input(now, Input::Opened { port_id: PortId(180), is_member: true });
        // When each is asked, and how long its search lasts: 3 is forever.
        let mut asks: Vec<_> = (1..).zip(&requests).collect();
        let mut finds: Vec<(Instant, KernelRequest, String)> = Vec::new();
        let mut searches = 0;
        let end = START + DEADLINE + MEMORY + MEMORY;
        while now < end {
            if let Some(&(seq, &(known, pause, _))) = asks.first()
                && now >= START + ms(pause)
            {
                asks.remove(0);
                kernel.ask(seq, known);
            }
            // Answers overtake one another, but not requests sent before them.
            for seq in std::mem::take(&mut kernel.sent) {
                let bytes = request(seq, &format!("10.2.0.{seq}"));
                let bytes = bytes.as_ref();
                core.handle_input(now, Input::Datagram { sender: Sender::Kernel, bytes, cut: false });
            }
            core.handle_input(now, Input::Drained);
            finds.retain(|(at, id, target)| {
                let found = *at <= now;
                if found {
                    core.handle_input(now, Input::Answered { id: *id, outcome: peer(target) });
                }
                !found
            });
            core.handle_timeout(now);
            while let Some(event) = core.poll_event() {
                if let Event::Wanted { id, question, .. } = event {
                    searches += 1;
                    let target = question.target().to_string();
                    let seq: usize = target.rsplit('.').next().expect("a part").parse().expect("N");
                    let (_, _, takes) = requests[seq - 1];
                    if takes < 3 {
                        finds.push((now + ms(takes * 3), id, target));
                    }
                }
            }
            let mut nudged = false;
            while let Some(transmit) = core.poll_transmit() {
                prop_assert!(!nudged, "an answer after a nudge, in one turn");
                match tell(&transmit).as_str() {
                    "nudge" | "nudge anyway" => nudged = true,
                    "timeout 3000" => {}
                    answer => kernel.hear(answer),
                }
            }
            if nudged {
                kernel.be_nudged();
                core.handle_input(now, Input::Nudged(Nudged::Done));
            }
            let next = core.poll_timeout().filter(|_| asks.is_empty() && kernel.sent.is_empty());
            let next = next.into_iter().chain(finds.iter().map(|(at, ..)| *at)).min();
            let tick = now + Duration::from_micros(250);
            now = next.filter(|_| kernel.sent.is_empty() && asks.is_empty()).unwrap_or(tick).max(tick);
        }
        let findable = (1..).zip(&requests).filter(|(_, (.., takes))| *takes < 3);
        let findable: BTreeSet<u32> = findable.map(|(seq, _)| seq).collect();
        prop_assert_eq!(&kernel.resolved, &findable);
        prop_assert_eq!(core.load(), Load::default());
        prop_assert_eq!(core.poll_timeout(), None);

        let count = |counter| core.counters().get(counter);
        let asked = u64::try_from(requests.len()).expect("few");
        let found = u64::try_from(findable.len()).expect("few");
        prop_assert_eq!(count(Counter::Requests), asked);
        prop_assert_eq!(count(Counter::AnsweredPeer), found);
        prop_assert_eq!(count(Counter::TimedOut), asked - found);
        prop_assert_eq!(searches, asked);
        // One nudge is that of the start.
        let each = u64::from(MAX_NUDGES) * (1 + FOLLOW_UPS.len() as u64);
        prop_assert!(count(Counter::Nudges) <= 4 + each * found);
    }
}
