// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A storm: many processes connect to the same destinations.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ibarr_common::wire::ls::{Answer, Seq};
use serde::Serialize;

use super::super::local_service::{Datagram, Server, fresh};
use super::super::report::float;
use super::sa::Administrator;
use super::{DESTINATIONS, gid, parse, request};
use crate::interrupt::Interrupt;

/// The pace of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pace {
    /// [`BURST`] at once, and again when all of them are answered.
    Bursts,
    /// [`PER_MILLISECOND`] every millisecond.
    Even,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bursts => write!(f, "{BURST} at once"),
            Self::Even => write!(f, "{PER_MILLISECOND}000 a second"),
        }
    }
}

/// Counts of a storm.
#[derive(Debug, Serialize)]
pub(super) struct Storm {
    pub(super) pace: Pace,
    pub(super) requests: u32,
    /// Number of distinct questions in them.
    pub(super) questions: u32,
    /// Questions of the daemon to the subnet administrator.
    pub(super) queries: u64,
    /// Requests that the daemon left to the kernel, or that failed because the daemon was too slow.
    pub(super) errors: u32,
    /// Requests that found no room in the daemon's socket, so that the kernel asks as well.
    pub(super) undelivered: u32,
    pub(super) seconds: f64,
}

const BURST: u32 = 5_000;
const PER_MILLISECOND: u32 = 25;

impl Storm {
    pub(super) fn run(
        daemon: &Server,
        sa: &Administrator,
        pace: Pace,
        requests: u32,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let asked = sa.asked();
        let start = Instant::now();
        let mut answers = Answers {
            first: fresh(),
            is_waiting: vec![false; requests as usize],
            waiting: 0,
            errors: 0,
        };
        let (chunk, gap) = match pace {
            Pace::Bursts => (BURST, None),
            Pace::Even => (PER_MILLISECOND, Some(Duration::from_millis(1))),
        };
        let mut undelivered = 0;
        let mut due = start;
        for from in (0..requests).step_by(chunk as usize) {
            interrupt.check()?;
            for number in from..requests.min(from + chunk) {
                let seq = Seq(answers.first + number);
                let request = request(seq, number % DESTINATIONS, number / DESTINATIONS);
                if daemon.try_say(request.as_ref())? {
                    answers.expect(number);
                } else {
                    undelivered += 1;
                }
            }
            match gap {
                None => answers.take_all(daemon)?,
                Some(gap) => {
                    due += gap;
                    while Instant::now() < due {
                        match daemon.try_hear()? {
                            Some(answer) => answers.take(&answer)?,
                            None => std::hint::spin_loop(),
                        }
                    }
                }
            }
        }
        answers.take_all(daemon)?;
        Ok(Self {
            pace,
            requests,
            questions: requests.min(DESTINATIONS),
            queries: sa.asked() - asked,
            errors: answers.errors,
            undelivered,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// How often the daemon and the kernel together ask the subnet administrator each distinct question.
    pub(super) fn asked_per_question(&self) -> f64 {
        let asked = self.queries + u64::from(self.errors) + u64::from(self.undelivered);
        float(asked) / f64::from(self.questions)
    }
}

/// The requests, each of which must be answered once.
struct Answers {
    first: u32,
    is_waiting: Vec<bool>,
    waiting: u32,
    errors: u32,
}

impl Answers {
    fn expect(&mut self, number: u32) {
        self.is_waiting[number as usize] = true;
        self.waiting += 1;
    }

    fn take_all(&mut self, daemon: &Server) -> Result<()> {
        while self.waiting > 0 {
            self.take(&daemon.hear()?)?;
        }
        Ok(())
    }

    fn take(&mut self, answer: &Datagram) -> Result<()> {
        let number = answer.seq()?.0.wrapping_sub(self.first);
        let waits = self.is_waiting.get_mut(number as usize);
        ensure!(waits.is_some_and(std::mem::take), "an answer to nothing, or a second one");
        self.waiting -= 1;
        match parse(answer.as_ref()) {
            // If the daemon is too slow, few requests are left to the kernel, and the others fail.
            Some(Answer::Error) => self.errors += 1,
            Some(Answer::Paths(paths)) if paths.as_slice().is_empty() => self.errors += 1,
            Some(Answer::Paths(paths)) => {
                let dgid = paths.as_slice().first().map(|path| path.record.octets());
                let is_right =
                    dgid.is_some_and(|octets| octets[8..24] == gid(number % DESTINATIONS).octets());
                ensure!(is_right, "a wrong answer to {number}: {:02x?}", answer.as_ref());
            }
            _ => ensure!(false, "no answer to {number}: {:02x?}", answer.as_ref()),
        }
        Ok(())
    }
}
