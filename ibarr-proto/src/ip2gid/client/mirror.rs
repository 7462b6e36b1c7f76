// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The map of peers' answers, for people and for the next daemon. No program reads it, so a mistake here costs a query
//! but never gives a wrong answer.
//!
//! **Once the map is equal to the positive answers of the cache, it is so at the end of each turn.** It is made equal
//! in parts, over several turns, after it was opened, some seconds after a change that failed, and after more changes
//! than the cache notes. First each element of the map is compared with the cache, then each answer that is missing is
//! added. Changes of the cache are written all the while.

use alloc::collections::VecDeque;
use alloc::vec::{self, Vec};
use core::net::IpAddr;
use core::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use ibarr_common::ib::Gid;
use ibarr_common::map::{self, GidKey, LearnedGid};
use ibarr_common::{IfIndex, Instant};

use super::{Cached, Client, Learned};
use crate::ip2gid::Question;

/// What has become of the map.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// It is open, and an earlier daemon has left these elements.
    Opened(&'a [Element]),
    /// The answer to [`Output::Read`].
    Read(&'a [Element]),
    /// A change or a reading has failed.
    Failed,
    /// It is not open.
    Closed,
}

/// An action on the map.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Output {
    /// Write the element, in place of one with its key.
    Put(Element),
    /// Remove the element, if it is there.
    Remove(GidKey),
    /// Read all elements, which may take long. [`Input::Read`] is the answer.
    Read,
}

/// An element of the map, not validated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they are")]
pub struct Element {
    pub key: GidKey,
    pub value: LearnedGid,
}

/// How far the map is equal to the cache, and what is to be done.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    step: Step,
    outputs: VecDeque<Output>,
    faults: u64,
}

#[derive(Debug, Default)]
enum Step {
    #[default]
    Closed,
    Equal,
    Comparing(Comparison),
    Reading,
    Failed {
        retry_at: Instant,
    },
}

#[derive(Debug)]
struct Comparison {
    elements: vec::IntoIter<Element>,
    /// An earlier daemon left the elements: the cache takes over the useful ones.
    are_inherited: bool,
    /// Questions known to be in the map: compared ones, and those written since.
    in_map: HashSet<Question, FixedState>,
    /// The last entry of the cache that was looked at.
    last: Option<(Question, Cached)>,
}

/// Elements in one part, which take some hundred microseconds of a turn.
const PART: usize = 256;

/// How long a map that differs from the cache stays so: making it equal reads all of it.
const RETRY: Duration = Duration::from_secs(10);

impl Client {
    /// The next action on the map. Without a map, there is none.
    pub fn poll_mirror(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.mirror.outputs.pop_front() {
                return Some(output);
            }
            let change = self.poll_learned()?;
            self.mirror.note(&change);
        }
    }

    /// Whether the cache has yet to take over elements of an earlier daemon.
    pub fn inherits(&self) -> bool {
        let inherits = |it: &Comparison| it.are_inherited && it.elements.len() > 0;
        matches!(&self.mirror.step, Step::Comparing(comparison) if inherits(comparison))
    }

    /// How often the map could not be read or written.
    pub fn mirror_faults(&self) -> u64 {
        self.mirror.faults
    }

    pub(super) fn mirror_input(&mut self, input: Input<'_>) {
        let step = match (input, &self.mirror.step) {
            (Input::Opened(elements), _) => Step::compare(elements, true),
            (Input::Read(elements), Step::Reading) => Step::compare(elements, false),
            // A failure has ended this reading meanwhile.
            (Input::Read(_), _) => return,
            (Input::Failed, step) => {
                self.mirror.faults += 1;
                if let Step::Closed | Step::Failed { .. } = step {
                    return;
                }
                Step::Failed { retry_at: self.now + RETRY }
            }
            (Input::Closed, _) => {
                self.mirror.outputs.clear();
                Step::Closed
            }
        };
        self.mirror.step = step;
    }

    /// Does the next part of what makes the map equal.
    pub(super) fn make_equal(&mut self) {
        let Step::Comparing(comparison) = &mut self.mirror.step else {
            return self.mirror.handle_timeout(self.now);
        };
        let elements: Vec<_> = comparison.elements.by_ref().take(PART).collect();
        let (are_inherited, last) = (comparison.are_inherited, comparison.last);
        for element in &elements {
            let there = element.parse();
            if let Some((question, answer)) = there.filter(|_| are_inherited) {
                self.restore(self.now, question, answer);
            }
            let cached = there.and_then(|(question, _)| self.lookup(self.now, question));
            self.mirror.compare(element, there, cached);
        }
        if elements.is_empty() {
            let entries: Vec<_> = match last {
                None => self.entries().take(PART).collect(),
                Some(last) => self.entries_after(last).take(PART).collect(),
            };
            self.mirror.add(&entries);
        }
    }
}

impl Mirror {
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        match self.step {
            Step::Comparing(_) => Some(now),
            Step::Failed { retry_at } => Some(retry_at),
            Step::Closed | Step::Equal | Step::Reading => None,
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.step, Step::Failed { retry_at } if retry_at <= now) {
            self.read();
        }
    }

    fn read(&mut self) {
        self.step = Step::Reading;
        self.outputs.push_back(Output::Read);
    }

    fn note(&mut self, change: &Learned) {
        match (&mut self.step, *change) {
            // All of it will be compared.
            (Step::Closed, _) | (Step::Reading | Step::Failed { .. }, Learned::Everything) => {}
            (Step::Equal | Step::Comparing(_), Learned::Everything) => self.read(),
            (step, Learned::Known { question, gid, expires_at, source }) => {
                if let Step::Comparing(comparison) = step {
                    comparison.in_map.insert(question);
                }
                let element = Element::new(question, gid, expires_at, source);
                self.outputs.push_back(Output::Put(element));
            }
            (step, Learned::Forgotten { question }) => {
                if let Step::Comparing(comparison) = step {
                    comparison.in_map.remove(&question);
                }
                self.outputs.push_back(Output::Remove(key(question)));
            }
        }
    }

    /// Makes `element` equal to the cache, which remembers `cached`.
    fn compare(
        &mut self,
        element: &Element,
        there: Option<(Question, Cached)>,
        cached: Option<Cached>,
    ) {
        let Step::Comparing(comparison) = &mut self.step else { return };
        let right = cached.and_then(|it| Some((it.gid?, it.expires_at)));
        let (Some((question, there)), Some((gid, expires_at))) = (there, right) else {
            return self.outputs.push_back(Output::Remove(element.key));
        };
        comparison.in_map.insert(question);
        // The cache drops the last bit of the time.
        let apart = there.expires_at.as_nanos().abs_diff(expires_at.as_nanos());
        if there.gid != Some(gid) || apart > 1 {
            let element = Element::new(question, gid, expires_at, None);
            self.outputs.push_back(Output::Put(element));
        }
    }

    /// Adds the entries that are not in the map. If there are no more, it is equal.
    fn add(&mut self, entries: &[(Question, Cached)]) {
        let Step::Comparing(comparison) = &mut self.step else { return };
        for (question, cached) in entries {
            if let Some(gid) = cached.gid
                && !comparison.in_map.contains(question)
            {
                let element = Element::new(*question, gid, cached.expires_at, None);
                self.outputs.push_back(Output::Put(element));
            }
        }
        comparison.last = entries.last().copied();
        if entries.len() < PART {
            self.step = Step::Equal;
        }
    }
}

impl Step {
    fn compare(elements: &[Element], are_inherited: bool) -> Self {
        let in_map = HashSet::with_capacity_and_hasher(elements.len(), FixedState::default());
        let elements = Vec::from(elements).into_iter();
        Self::Comparing(Comparison { elements, are_inherited, in_map, last: None })
    }
}

impl Element {
    /// `None` if no daemon can have written the element.
    pub fn parse(&self) -> Option<(Question, Cached)> {
        let question = Question::new(self.key.ip(), IfIndex::new(self.key.scope))?;
        let gid = Some(Gid::new(self.value.gid)?);
        let expires_at = Instant::from_nanos(self.value.expires_at);
        Some((question, Cached { gid, heard_at: None, expires_at }))
    }

    fn new(question: Question, gid: Gid, expires_at: Instant, source: Option<IpAddr>) -> Self {
        // An unspecified address if the peer is not known any more.
        let source = source.unwrap_or(IpAddr::from([0; 16]));
        Self { key: key(question), value: LearnedGid::new(gid, source, expires_at) }
    }
}

fn key(question: Question) -> GidKey {
    GidKey {
        address: map::octets(question.target()),
        scope: question.egress().map_or(0, IfIndex::get),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(target: &str, egress: u32) -> Element {
        let question = Question::new(target.parse().unwrap(), IfIndex::new(egress)).unwrap();
        let gid = "fe80::1".parse().unwrap();
        Element::new(question, gid, Instant::from_nanos(7), Some([10, 2, 0, 5].into()))
    }

    #[test]
    fn written_element_is_read_back_with_its_interface() {
        for (target, egress) in [("10.2.0.5", 0), ("10.2.0.5", 4), ("fd00:2::5", 0), ("fe80::5", 4)]
        {
            let (question, cached) = element(target, egress).parse().unwrap();
            assert_eq!(
                (question.target().to_string().as_str(), question.egress()),
                (target, IfIndex::new(egress))
            );
            assert_eq!(cached.gid, "fe80::1".parse().ok());
            assert_eq!(cached.expires_at, Instant::from_nanos(7));
        }
    }

    #[test]
    fn element_that_no_daemon_writes_is_ignored() {
        let good = element("10.2.0.5", 0);
        for address in ["0.0.0.0", "224.0.0.1", "ff02::1", "::"] {
            let address = map::octets(address.parse().unwrap());
            assert!(Element { key: GidKey { address, ..good.key }, ..good }.parse().is_none());
        }
        for gid in [[0; 16], [0xff; 16]] {
            assert!(Element { value: LearnedGid { gid, ..good.value }, ..good }.parse().is_none());
        }
        assert!(good.parse().is_some());
    }
}
