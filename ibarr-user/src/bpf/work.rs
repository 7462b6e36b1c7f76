// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The wanted attachments of all interfaces, and the steps that bring them about.

use std::collections::BTreeSet;

use ibarr_common::IfIndex;
use ibarr_proto::local_view::Served;

use super::Error;
use super::kernel::{Attacher, Hook};
use crate::causes::chain;

/// The interfaces that need a program. All other attachments of ours are removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    pub(super) wanted: Vec<Wanted>,
}

/// An interface that needs a program.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) served: Served,
    /// Returned with the outcome, which applies to this wish and no later one.
    pub(super) wish: Wish,
    /// The hooks to try, the best first.
    pub(super) hooks: &'static [Hook],
    /// The hook at which this daemon has attached it.
    pub(super) attached: Option<Hook>,
}

/// Identifies a version of the wish for an interface.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Wish(pub(super) u64);

/// The outcome of a [`Work`].
#[derive(Debug)]
pub(super) struct Done {
    pub(super) interfaces: Vec<(IfIndex, Wish, Outcome)>,
    /// Whether all other attachments and layouts were removed.
    pub(super) settled: Result<(), Error>,
}

/// The outcome for one interface.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Another process had removed our program.
    pub(super) lost: bool,
    pub(super) now: Now,
}

/// The state of an interface after the work.
#[derive(Clone, Debug)]
pub(super) enum Now {
    /// Unchanged.
    Kept,
    /// A program was attached, or has replaced an older one.
    Attached(Hook),
    /// No program is attached, for this reason.
    Failed(String),
}

impl Work {
    /// New programs are attached before old ones are detached, and old layouts are removed last.
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
