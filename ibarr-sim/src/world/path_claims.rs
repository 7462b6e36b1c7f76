// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The claims about paths in every history: each path was given by the SA since its port last
//! changed in a relevant way, no question is asked twice at once, and remembered paths are asked
//! for only by the allowed number of canaries. `claims.rs` claims that each request of the kernel
//! is answered in time.
//!
//! The claims know less than the core; where they cannot decide, they allow both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PathRecord};
use ibarr_common::wire::ls::{PathUse, Request, Seq, messages};
use ibarr_common::wire::sa::{Answer, PathQuestion};
use ibarr_proto::paths::{self, PortFacts};

use crate::dice::{ms, secs};

/// The history of a daemon, its kernel and its SA.
#[derive(Debug, Default)]
pub(super) struct PathClaims {
    ttl: Duration,
    negative_ttl: Duration,
    canary_every: Duration,
    /// When the daemon first knew its port, the number of canaries since, and the last one.
    started: Option<Instant>,
    canaries: u32,
    canary: Option<(Instant, PathQuestion)>,
    /// The daemon's last facts about its port, and the last ones with an SA.
    facts: Option<PortFacts>,
    last: Option<PortFacts>,
    /// Answers of before this time are wrong; of before the next, in doubt; of before the last, from another SA.
    void_at: Instant,
    doubt_at: Instant,
    moved_at: Instant,
    /// Pending requests of the kernel.
    wanted: BTreeMap<Seq, Wanted>,
    /// Questions without an answer yet: when they were first and last sent.
    asked: BTreeMap<PathQuestion, (Instant, Instant)>,
    /// Remembered answers: the earliest time of the question, and the shortest life.
    known: BTreeMap<PathQuestion, (Instant, Instant)>,
    /// Paths that a program keeps after it got them.
    kept: BTreeSet<PathQuestion>,
    /// Answers of the SA, by their number; and when it last knew no path.
    said: BTreeMap<u32, (Instant, PathQuestion)>,
    none: BTreeMap<PathQuestion, Instant>,
    lids: BTreeMap<Gid, u16>,
    /// Requests answered with no path because the kernel was not to ask a silent SA again so soon.
    spared: u64,
}

/// The shortest time before a question is sent again.
const PATIENCE: Duration = ms(249);

/// The longest time that a question waits before it is sent.
const WAITS: Duration = secs(3);

impl PathClaims {
    pub(super) fn new(config: &paths::Config) -> Self {
        let paths::Config { ttl, negative_ttl, canary_every, .. } = *config;
        Self { ttl, negative_ttl, canary_every, ..Self::default() }
    }

    /// The daemon learns the state of its port. Returns whether it forgets what it has asked the SA.
    pub(super) fn port_changed(&mut self, now: Instant, facts: Option<&PortFacts>) -> bool {
        self.started.get_or_insert(now);
        let sa = |facts: Option<&PortFacts>| facts.and_then(PortFacts::sa);
        let mut forgets = sa(self.facts.as_ref()) != sa(facts);
        if forgets {
            self.moved_at = now;
        }
        if self.facts.as_ref() != facts {
            self.doubt_at = now;
        }
        self.facts = facts.cloned();
        let Some(facts) = facts.filter(|facts| facts.sa().is_some()) else { return forgets };
        if let Some(last) = self.last.replace(facts.clone()) {
            let has_lost = |pkey: &_| !facts.pkeys.contains(pkey);
            let is_another = last.lid != facts.lid || last.gids.first() != facts.gids.first();
            if is_another || last.pkeys.iter().any(has_lost) {
                self.void_at = now;
                self.asked.clear();
                forgets = true;
            }
        }
        forgets
    }

    /// Where the daemon asks the SA.
    pub(super) fn sa_lid(&self) -> Option<Lid> {
        self.facts.as_ref().and_then(PortFacts::sa).map(|sa| sa.lid)
    }

    /// The daemon reads a request that the kernel sent at `sent_at`.
    pub(super) fn requested(&mut self, now: Instant, sent_at: Instant, bytes: &[u8]) {
        for message in messages(bytes).flatten() {
            let Ok(Request::ResolvePath(request)) = Request::parse(&message) else { continue };
            let reversible = request.path_use != PathUse::Unidirectional;
            let question = PathQuestion {
                dgid: request.dgid,
                sgid: request.sgid,
                reversible,
                pkey: request.pkey,
                tclass: request.tclass,
                // No SA here supports quality of service.
                service_id: None,
                qos_class: None,
            };
            // A program that asks again for a path that it keeps has a reason for doubt.
            if self.kept.contains(&question) {
                self.doubt_at = now;
            }
            let unread = now.since(sent_at);
            let wanted = Wanted { question, unread };
            // A request whose number another one takes is forgotten, and its question may be asked again.
            if let Some(forgotten) = self.wanted.insert(message.seq(), wanted) {
                self.asked.remove(&forgotten.question);
            }
        }
    }

    /// The daemon closes its socket to the kernel, and forgets its requests.
    pub(super) fn closed(&mut self) {
        self.wanted.clear();
        self.asked.clear();
    }

    /// How long the request lay unread behind others, if it has no answer yet.
    pub(super) fn unread(&self, seq: Seq) -> Duration {
        self.wanted.get(&seq).map_or(Duration::ZERO, |wanted| wanted.unread)
    }

    /// The daemon asks the SA; returns what is wrong with that.
    pub(super) fn asks(&mut self, now: Instant, question: &PathQuestion) -> Option<String> {
        let dgid = question.dgid;
        let since = self.void_at.max(self.doubt_at);
        let known = self.known.get(question);
        let is_known = known.is_some_and(|&(asked, until)| asked > since && now < until);
        let (_, last) = self.asked.entry(*question).or_insert((now, Instant::BOOT));
        let is_waiting = now.since(*last) < PATIENCE && *last > self.moved_at;
        *last = now;
        if is_waiting {
            return Some(format!("the SA is asked twice at once for {dgid}"));
        }
        (is_known && !self.may_be_canary(now, question))
            .then(|| format!("the SA is asked for {dgid}, which is remembered"))
    }

    /// A port sends one canary per interval on average, and at most two. A lost one is sent again.
    fn may_be_canary(&mut self, now: Instant, question: &PathQuestion) -> bool {
        if self.canary.is_some_and(|(at, sent)| sent == *question && now.since(at) < WAITS) {
            return true;
        }
        self.canary = Some((now, *question));
        self.canaries += 1;
        let time = now.since(self.started.unwrap_or(now));
        f64::from(self.canaries) <= 1.0 + 2.0 * time.div_duration_f64(self.canary_every)
    }

    /// The SA answers.
    pub(super) fn sa_answers(&mut self, now: Instant, question: &PathQuestion, answer: &Answer) {
        match answer {
            Answer::Path(record) => {
                self.said.insert(number(record), (now, *question));
            }
            Answer::Refused(refusal) if refusal.is_final() => {
                self.none.insert(*question, now);
            }
            Answer::Refused(_) | Answer::ClassPortInfo(_) => {}
        }
    }

    /// The daemon receives an answer of the SA, and accepts it or not.
    pub(super) fn received(
        &mut self,
        now: Instant,
        question: &PathQuestion,
        answer: &Answer,
        is_taken: bool,
    ) {
        if let Answer::Path(record) = answer {
            let octets = record.octets();
            let lid = |at: usize| u16::from_be_bytes([octets[at], octets[at + 1]]);
            for (gid, lid) in [(question.dgid, lid(40)), (question.sgid, lid(42))] {
                if self.lids.insert(gid, lid).is_some_and(|before| before != lid) {
                    self.doubt_at = now;
                }
            }
        }
        // It may be asked again: a request may have caused doubt since it was sent.
        if let Some((_, last)) = self.asked.get_mut(question) {
            *last = Instant::BOOT;
        }
        if !is_taken {
            return;
        }
        if !question.reversible {
            self.kept.insert(*question);
        }
        let life = match answer {
            Answer::Path(_) => self.ttl * 5 / 8,
            _ => self.negative_ttl * 3 / 4,
        };
        if let Some((first, _)) = self.asked.remove(question) {
            let asked = Instant::from_nanos(
                first.as_nanos().saturating_sub(WAITS.as_nanos().try_into().unwrap_or(u64::MAX)),
            );
            self.known.insert(*question, (asked, now + life));
        }
    }

    /// The daemon answers a request of the kernel by this message; `spared` counts requests that
    /// got neither a path nor the fallback. Returns what is wrong with that.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        seq: Seq,
        bytes: &[u8],
        spared: u64,
    ) -> Option<String> {
        let Wanted { question, .. } = self.wanted.remove(&seq)?;
        // The daemon waits for the SA no longer, whatever the answer is.
        self.asked.remove(&question);
        let flags = u16::from_ne_bytes(*bytes.get(6..8)?.first_chunk::<2>()?);
        if flags & ERROR != 0 {
            return None;
        }
        let dgid = question.dgid;
        let records = bytes.get(16..)?;
        if records.is_empty() {
            let oldest = self.negative_ttl * 5 / 4 + WAITS;
            let is_valid = |at: &&Instant| **at >= self.void_at || self.void_at == now;
            let said = self.none.get(&question).filter(is_valid);
            let is_fresh = said.is_some_and(|&at| now.since(at) <= oldest);
            if !is_fresh && self.spared < spared {
                self.spared += 1;
                return None;
            }
            return (!is_fresh).then(|| format!("no path to {dgid}, but the SA has not said so"));
        }
        for record in records.chunks(76) {
            let number = record.last_chunk::<4>().map(|number| u32::from_be_bytes(*number))?;
            let Some((at, about)) = self.said.get(&number) else {
                return Some(format!("a path to {dgid} that no SA has given"));
            };
            if *about != question {
                return Some(format!("a path to {dgid} that is one to {}", about.dgid));
            }
            // Within one turn the answer may have come first.
            if *at < self.void_at && self.void_at < now {
                return Some(format!("a path to {dgid} from before the port has changed"));
            }
            if now.since(*at) > self.ttl * 5 / 4 + WAITS {
                return Some(format!("a path to {dgid} that has expired"));
            }
        }
        None
    }
}

/// A request that the daemon has read.
#[derive(Debug)]
struct Wanted {
    question: PathQuestion,
    unread: Duration,
}

/// `RDMA_NL_LS_F_ERR`.
const ERROR: u16 = 0x0100;

fn number(record: &PathRecord) -> u32 {
    record.octets().last_chunk::<4>().map_or(0, |number| u32::from_be_bytes(*number))
}
