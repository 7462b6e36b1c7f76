// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Requests of the control socket for GIDs of addresses.

use std::collections::HashMap;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_proto::request::{Outcome, Source, UserRequest};
use tokio::sync::oneshot;

use crate::control::messages::{Answer, AnswerSource, AnswerStatus, Body, Elapsed, Response, Text};

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
    addresses: Vec<IpAddr>,
    answers: Vec<Option<Answer>>,
    left: usize,
    to: oneshot::Sender<Response>,
}

impl Asks {
    /// Adds a request for `addresses`, answered through `to`; returns the request id of each
    /// address.
    pub(super) fn add(
        &mut self,
        now: Instant,
        addresses: Vec<IpAddr>,
        to: oneshot::Sender<Response>,
    ) -> Vec<(UserRequest, IpAddr)> {
        let left = addresses.len();
        if left == 0 {
            // The caller may have disconnected.
            drop(to.send(Body::Answers { answers: Vec::new() }.into()));
            return Vec::new();
        }
        let ask = self.fresh();
        let ids: Vec<_> =
            addresses.iter().map(|&ip| (UserRequest::Control(self.fresh()), ip)).collect();
        for (index, (id, _)) in ids.iter().enumerate() {
            self.waiting.insert(*id, (ask, index));
        }
        let answers = vec![None; left];
        self.gathered.insert(ask, Gathered { asked_at: now, addresses, answers, left, to });
        ids
    }

    /// Takes the answer for one address; the last one completes the request.
    pub(super) fn answered(&mut self, now: Instant, id: UserRequest, outcome: Outcome) {
        let Some((ask, index)) = self.waiting.remove(&id) else { return };
        let Some(gathered) = self.gathered.get_mut(&ask) else { return };
        let (status, gid, source) = match outcome {
            Outcome::Found { gid, source } => {
                let source = match source {
                    Source::Local => AnswerSource::Local,
                    Source::Cache => AnswerSource::Cache,
                    Source::Peer => AnswerSource::Peer,
                    Source::Neighbour => AnswerSource::Neighbour,
                };
                (AnswerStatus::Found, Some(Text(gid)), Some(source))
            }
            Outcome::NotFound => (AnswerStatus::NotFound, None, None),
            Outcome::TimedOut => (AnswerStatus::TimedOut, None, None),
            Outcome::Refused => (AnswerStatus::Refused, None, None),
            Outcome::Unreachable => (AnswerStatus::Unreachable, None, None),
            Outcome::Overloaded => (AnswerStatus::Overloaded, None, None),
        };
        let ms = Elapsed(now.since(gathered.asked_at));
        let ip = gathered.addresses[index];
        gathered.answers[index] = Some(Answer { ip, status, gid, source, ms });
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
    fn answers_are_sent_together_in_the_order_of_the_addresses() {
        let mut asks = Asks::default();
        let (to, mut from) = oneshot::channel();
        let addresses = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let ids = asks.add(Instant::BOOT, addresses.to_vec(), to);
        let later = Instant::BOOT + Duration::from_millis(2);
        let gid = "fe80::1".parse().unwrap();
        asks.answered(later, ids[1].0, Outcome::Found { gid, source: Source::Peer });
        assert!(from.try_recv().is_err());
        asks.answered(later, ids[0].0, Outcome::TimedOut);
        let Body::Answers { answers } = from.try_recv().unwrap().body else { panic!() };
        let ms = Elapsed(Duration::from_millis(2));
        let expected = [
            Answer {
                ip: addresses[0],
                status: AnswerStatus::TimedOut,
                gid: None,
                source: None,
                ms,
            },
            Answer {
                ip: addresses[1],
                status: AnswerStatus::Found,
                gid: Some(Text(gid)),
                source: Some(AnswerSource::Peer),
                ms,
            },
        ];
        assert_eq!(answers, expected);
        assert!(asks.waiting.is_empty() && asks.gathered.is_empty());
    }

    #[test]
    fn request_without_addresses_is_answered_at_once() {
        let mut asks = Asks::default();
        let (to, mut from) = oneshot::channel();
        assert!(asks.add(Instant::BOOT, Vec::new(), to).is_empty());
        assert_eq!(from.try_recv().unwrap().body, Body::Answers { answers: Vec::new() });
    }
}
