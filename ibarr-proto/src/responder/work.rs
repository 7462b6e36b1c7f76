// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The wanted attachments of all interfaces, and the steps that bring them about.

use alloc::collections::BTreeSet;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use ibarr_common::IfIndex;

use crate::Fault;
use crate::local_view::{LinkHeader, ServedInterface};

/// A step of a [`Work`]. Each may take long: the verifier is slow, and attaching takes a lock that every
/// change of the network takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Say whether our program is still attached. If another variant of it is wanted now, replace it
    /// without a gap; on failure the old one stays, and the next look tries again.
    Look(ServedInterface, Hook),
    /// Attach our program, or replace an older one without a gap.
    Attach(ServedInterface, Hook),
    /// Detach our program, if it is attached.
    Detach(IfIndex, Hook),
    /// Remove what remains of other layouts; only our programs are attached.
    Settle,
}

ibarr_common::words! {
    /// The kind of program to attach.
    #[derive(Default)]
    Mode {
        /// The best that the kernel has: tc ingress.
        #[default]
        Auto = "auto",
        /// tc ingress, by a link or a filter.
        Tc = "tc",
        /// tc ingress by a filter.
        Clsact = "clsact",
        /// XDP: in the driver on Ethernet, in the stack on IPoIB, whose drivers have none.
        Xdp = "xdp",
        /// XDP in the stack.
        XdpGeneric = "xdp-generic",
        /// No program: the daemon answers.
        User = "user",
    }
}

impl Mode {
    /// The hooks to try, the best first.
    pub(super) const fn hooks(self, header: LinkHeader) -> &'static [Hook] {
        match (self, header) {
            (Self::Auto | Self::Tc, _) => &[Hook::Tcx, Hook::Clsact],
            (Self::Clsact, _) => &[Hook::Clsact],
            (Self::Xdp, LinkHeader::Ethernet) => &[Hook::XdpNative],
            (Self::Xdp, LinkHeader::Ipoib) | (Self::XdpGeneric, _) => &[Hook::XdpGeneric],
            (Self::User, _) => &[],
        }
    }
}

ibarr_common::words! {
    /// Where a program is attached to an interface.
    Hook {
        /// tc ingress by a link (Linux 6.6).
        Tcx = "tcx",
        /// tc ingress by a filter of the clsact qdisc.
        Clsact = "clsact",
        /// XDP in the driver.
        XdpNative = "xdp-native",
        /// XDP in the stack.
        XdpGeneric = "xdp-generic",
    }
}

/// The interfaces that need a program. All other attachments of ours are removed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Work {
    pub(super) wanted: Vec<Attachment>,
}

/// An interface that needs a program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Attachment {
    pub(super) served: ServedInterface,
    /// Returned with the outcome, which applies to this version and no later one.
    pub(super) version: Version,
    /// The hooks to try, the best first.
    pub(super) hooks: &'static [Hook],
    /// The hook at which this daemon has attached it.
    pub(super) attached: Option<Hook>,
}

/// Identifies a version of what an interface shall have.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Version(pub(super) u64);

/// The outcome of a [`Work`].
#[derive(Clone, Debug)]
pub struct WorkResult {
    pub(super) interfaces: Vec<(IfIndex, Version, Outcome)>,
    /// Whether all other attachments and layouts were removed.
    pub(super) settled: Result<(), Fault>,
}

/// The outcome for one interface.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// Unchanged.
    Kept,
    /// Another process has removed our program.
    Lost,
    /// A program was attached, or has replaced an older one.
    Attached(Hook),
    /// No program is attached, for this reason.
    Failed(Fault),
}

impl WorkResult {
    /// Nothing was changed.
    pub fn nothing() -> Self {
        Self { interfaces: Vec::new(), settled: Ok(()) }
    }
}

impl Work {
    /// New programs are attached before old ones are detached, and old layouts are removed last.
    ///
    /// `attached` is what this process or an earlier one has attached; `carry_out` returns whether a
    /// program is attached after the step.
    pub fn run(
        self,
        attached: Result<BTreeSet<(IfIndex, Hook)>, Fault>,
        mut carry_out: impl FnMut(Step) -> Result<bool, Fault>,
    ) -> WorkResult {
        let mut interfaces = Vec::new();
        let mut keep = BTreeSet::new();
        for wanted in self.wanted {
            let ifindex = wanted.served.ifindex;
            let outcome = wanted.attach(&mut carry_out);
            let hook = match outcome {
                Outcome::Kept => wanted.attached,
                Outcome::Attached(hook) => Some(hook),
                Outcome::Lost | Outcome::Failed(_) => None,
            };
            keep.extend(hook.map(|hook| (ifindex, hook)));
            interfaces.push((ifindex, wanted.version, outcome));
        }
        let settled = attached.and_then(|attached| {
            let mut gone = attached.difference(&keep);
            gone.try_for_each(|&(ifindex, hook)| carry_out(Step::Detach(ifindex, hook)).map(drop))?;
            carry_out(Step::Settle).map(drop)
        });
        WorkResult { interfaces, settled }
    }
}

impl Attachment {
    fn attach(&self, carry_out: &mut impl FnMut(Step) -> Result<bool, Fault>) -> Outcome {
        if let Some(hook) = self.attached {
            let is_attached = carry_out(Step::Look(self.served, hook));
            return if is_attached == Ok(true) { Outcome::Kept } else { Outcome::Lost };
        }
        let mut reasons = Vec::new();
        for &hook in self.hooks {
            match carry_out(Step::Attach(self.served, hook)) {
                Ok(_) => return Outcome::Attached(hook),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Outcome::Failed(Fault::new(reasons.join("; ")))
    }
}
