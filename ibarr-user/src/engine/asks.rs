// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Requests of the control socket for GIDs of addresses.

use std::collections::HashMap;

use ibarr_common::Instant;
use ibarr_proto::request::{self, Outcome, UserRequest};
use tokio::sync::{mpsc, oneshot};

use crate::control::messages::{Answer, Body, Elapsed, Resolved, Response, Target};

/// Requests without an answer yet, each for one address or more. The control socket bounds their
/// number.
#[derive(Debug, Default)]
pub(super) struct Asks {
    next: u64,
    waiting: HashMap<UserRequest, (u64, usize)>,
    gathered: HashMap<u64, Gathered>,
}

/// The answers of one request, as they arrive.
#[derive(Debug)]
struct Gathered {
    asked_at: Instant,
    targets: Vec<Target>,
    answers: Vec<Option<Answer>>,
    left: usize,
    to: oneshot::Sender<Response>,
    /// Has room for one answer to each target.
    each: Option<mpsc::Sender<Response>>,
}

impl Asks {
    /// Adds a request for `targets`, answered through `to`, and each answer alone through `each`.
    /// Returns the request id of each target.
    pub(super) fn add(
        &mut self,
        now: Instant,
        targets: Vec<Target>,
        to: oneshot::Sender<Response>,
        each: Option<mpsc::Sender<Response>>,
    ) -> Vec<(UserRequest, Target)> {
        let left = targets.len();
        if left == 0 {
            // The caller may have disconnected.
            drop(to.send(Body::Answers { answers: Vec::new() }.into()));
            return Vec::new();
        }
        let ask = self.fresh();
        let ids: Vec<_> =
            targets.iter().map(|&target| (UserRequest::Control(self.fresh()), target)).collect();
        for (index, (id, _)) in ids.iter().enumerate() {
            self.waiting.insert(*id, (ask, index));
        }
        let answers = vec![None; left];
        self.gathered.insert(ask, Gathered { asked_at: now, targets, answers, left, to, each });
        ids
    }

    /// Takes the answer for one address; the last one completes the request. `None` if no answer is remembered, in
    /// a request that asks nothing.
    pub(super) fn answered(&mut self, now: Instant, id: UserRequest, outcome: Option<Outcome>) {
        let Some((ask, index)) = self.waiting.remove(&id) else { return };
        let Some(gathered) = self.gathered.get_mut(&ask) else { return };
        let ms = Elapsed(now.since(gathered.asked_at));
        let not_remembered = (request::Status::NotRemembered, None, None);
        let (status, gid, source) = outcome.map_or(not_remembered, Outcome::parts);
        let answer = Answer { ip: gathered.targets[index].ip, status, gid, source, ms };
        if let Some(each) = &gathered.each {
            let answer = Box::new(Resolved::from(answer.clone()));
            // The caller may have disconnected.
            drop(each.try_send(Body::Answer { answer, place: index }.into()));
        }
        gathered.answers[index] = Some(answer);
        gathered.left -= 1;
        if gathered.left == 0
            && let Some(gathered) = self.gathered.remove(&ask)
        {
            let answers = gathered.answers.into_iter().flatten().collect();
            // The caller may have disconnected.
            drop(gathered.to.send(Body::Answers { answers }.into()));
        }
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn answers_are_sent_as_they_come_and_together_in_order() {
        let mut asks = Asks::default();
        let (to, mut from) = oneshot::channel();
        let addresses = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let (each, mut alone) = mpsc::channel(2);
        let ids = asks.add(Instant::BOOT, addresses.map(Target::from).to_vec(), to, Some(each));
        let later = Instant::BOOT + Duration::from_millis(2);
        let gid = "fe80::1".parse().unwrap();
        asks.answered(later, ids[1].0, Some(Outcome::Found { gid, source: request::Source::Peer }));
        assert!(from.try_recv().is_err());
        asks.answered(later, ids[0].0, Some(Outcome::TimedOut));
        let Body::Answers { answers } = from.try_recv().unwrap().body else { panic!() };
        let ms = Elapsed(Duration::from_millis(2));
        let answer = |ip, status, gid, source| Answer { ip, status, gid, source, ms };
        let expected = [
            answer(addresses[0], request::Status::TimedOut, None, None),
            answer(addresses[1], request::Status::Found, Some(gid), Some(request::Source::Peer)),
        ];
        assert_eq!(answers, expected);
        for place in [1, 0] {
            let answer = Box::new(Resolved::from(expected[place].clone()));
            assert_eq!(alone.try_recv().unwrap().body, Body::Answer { answer, place });
        }
        assert!(asks.waiting.is_empty() && asks.gathered.is_empty());
    }

    #[test]
    fn request_without_addresses_is_answered_at_once() {
        let mut asks = Asks::default();
        let (to, mut from) = oneshot::channel();
        assert!(asks.add(Instant::BOOT, Vec::new(), to, None).is_empty());
        assert_eq!(from.try_recv().unwrap().body, Body::Answers { answers: Vec::new() });
    }
}
