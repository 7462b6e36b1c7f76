// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A subnet administrator that answers one question after another.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::mad::Mad;
use ibarr_common::wire::sa::{Answer, PathQuestion, Question, Refusal, Request};

use crate::dice::{ms, us};
use crate::sa::other_paths;

/// The SA, see the [module](self).
#[derive(Debug)]
pub(super) struct Sa {
    takes: Duration,
    /// When it has answered all queued questions.
    free_at: Instant,
    /// Whether it answers BUSY every other time when its queue is full.
    says_busy: bool,
}

/// What the SA does with a question.
#[derive(Debug)]
pub(super) enum Verdict {
    Answers { at: Instant },
    Busy { at: Instant },
    Silent,
}

/// Its queue holds the questions of so much time: the kernel's queue has room for some thousands.
const QUEUE: Duration = ms(500);

/// Travel time of a MAD.
const WAY: Duration = us(10);

impl Sa {
    pub(super) fn new(rate: u32) -> Self {
        Self { takes: secs_over(rate), free_at: Instant::BOOT, says_busy: false }
    }

    pub(super) fn take(&mut self, now: Instant) -> Verdict {
        let arrives = now + WAY;
        if self.free_at.since(arrives) < QUEUE {
            self.free_at = self.free_at.max(arrives) + self.takes;
            return Verdict::Answers { at: self.free_at + WAY };
        }
        self.says_busy = !self.says_busy;
        if self.says_busy { Verdict::Busy { at: arrives + WAY } } else { Verdict::Silent }
    }

    /// An answer with a path to `dlid`, the first LID of its port, or with several.
    pub(super) fn answer(request: &Request, dlid: u16, lmc: u8) -> Mad {
        let mut others = Vec::new();
        let answer = match request.question {
            Question::Path(question) => Answer::Path(record(&question, dlid)),
            Question::Paths(question, count) => {
                let first = record(&question, dlid);
                others = other_paths(first, count, lmc);
                Answer::Path(first)
            }
            Question::ClassPortInfo => Answer::ClassPortInfo(ClassPortInfo { has_qos: false }),
            // No node asks by other fields.
            Question::Known(_) => Answer::Refused(Refusal::NO_RECORDS),
        };
        request.answer(answer).emit_table(&others)
    }

    pub(super) fn busy(request: &Request) -> Mad {
        request.answer(Answer::Refused(Refusal::BUSY)).emit()
    }
}

fn secs_over(rate: u32) -> Duration {
    Duration::from_secs(1) / rate.max(1)
}

fn record(question: &PathQuestion, dlid: u16) -> PathRecord {
    let mut octets = [0; PathRecord::LEN];
    octets[8..24].copy_from_slice(&question.dgid.octets());
    octets[24..40].copy_from_slice(&question.sgid.octets());
    octets[40..42].copy_from_slice(&dlid.to_be_bytes());
    octets[42..44].copy_from_slice(&[0, 8]);
    octets[49..52].copy_from_slice(&[0x80, 0xff, 0xff]);
    PathRecord::from_octets(octets)
}
