// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What is to be attached, as a whole, and how that is brought about.

use std::collections::BTreeSet;

use ibarr_common::IfIndex;
use ibarr_proto::local_view::Served;

use super::Error;
use super::kernel::{Attacher, Hook};
use crate::causes::chain;

/// The interfaces that are to have a program. Whatever else of ours is attached goes.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    pub(super) wanted: Vec<Wanted>,
}

/// An interface that is to have a program.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) served: Served,
    /// Comes back with the outcome, which is for this wish and no later one.
    pub(super) wish: Wish,
    /// Where to attach, the best first.
    pub(super) hooks: &'static [Hook],
    /// Where this daemon has attached it.
    pub(super) attached: Option<Hook>,
}

/// Names what an interface is to have; another wish, another name.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Wish(pub(super) u64);

/// What has come of a [`Work`].
#[derive(Debug)]
pub(super) struct Done {
    pub(super) interfaces: Vec<(IfIndex, Wish, Outcome)>,
    /// Whether nothing else is attached now, and no other layout is left.
    pub(super) settled: Result<(), Error>,
}

/// What has come of one interface.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Somebody else had removed our program.
    pub(super) lost: bool,
    pub(super) now: Now,
}

/// What is attached now.
#[derive(Clone, Debug)]
pub(super) enum Now {
    /// What was.
    Kept,
    /// A program, anew or in the place of an older one.
    Attached(Hook),
    /// None, and why.
    Failed(String),
}

impl Work {
    /// New programs are in place before old ones go, and old layouts go last.
    pub(super) fn run(self, attacher: &mut impl Attacher) -> Done {
        let mut interfaces = Vec::new();
        let mut keep = BTreeSet::new();
        for wanted in self.wanted {
            let ifindex = wanted.served.ifindex;
            let outcome = wanted.attach(attacher);
            let hook = match outcome.now {
                Now::Kept => wanted.attached,
                Now::Attached(hook) => Some(hook),
                Now::Failed(_) => None,
            };
            keep.extend(hook.map(|hook| (ifindex, hook)));
            interfaces.push((ifindex, wanted.wish, outcome));
        }
        let settled = settle(attacher, &keep);
        Done { interfaces, settled }
    }
}

impl Wanted {
    fn attach(&self, attacher: &mut impl Attacher) -> Outcome {
        let lost = match self.attached {
            Some(hook) if attacher.is_attached(self.served.ifindex, hook) => {
                return Outcome { lost: false, now: Now::Kept };
            }
            before => before.is_some(),
        };
        let mut reasons = Vec::new();
        for &hook in self.hooks {
            match attacher.attach(&self.served, hook) {
                Ok(()) => return Outcome { lost, now: Now::Attached(hook) },
                Err(error) => reasons.push(chain(&error)),
            }
        }
        Outcome { lost, now: Now::Failed(reasons.join("; ")) }
    }
}

fn settle(attacher: &mut impl Attacher, keep: &BTreeSet<(IfIndex, Hook)>) -> Result<(), Error> {
    for &(ifindex, hook) in attacher.attached()?.difference(keep) {
        attacher.detach(ifindex, hook)?;
    }
    attacher.settle()
}
