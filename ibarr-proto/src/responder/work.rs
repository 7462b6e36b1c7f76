// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The wanted attachments of all interfaces, and the steps that bring them about.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use ibarr_common::IfIndex;

use super::Fault;
use crate::local_view::{LinkHeader, Served};

/// Loads and attaches programs. Every call may take long: the verifier is slow, and attaching takes
/// a lock that every change of the network takes.
pub trait Attacher {
    /// What this process or an earlier one has attached.
    ///
    /// # Errors
    /// If it cannot be read.
    fn attached(&self) -> Result<BTreeSet<(IfIndex, Hook)>, Fault>;

    /// Whether our program is still attached.
    fn is_attached(&self, ifindex: IfIndex, hook: Hook) -> bool;

    /// Replaces our attached program, without a gap, if another variant of it is wanted now. On
    /// failure the old one stays, and the next look tries again.
    fn renew(&mut self, _interface: &Served, _hook: Hook) {}

    /// Attaches our program, or replaces an older one without a gap.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn attach(&mut self, interface: &Served, hook: Hook) -> Result<(), Fault>;

    /// Detaches our program, if it is attached.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn detach(&mut self, ifindex: IfIndex, hook: Hook) -> Result<(), Fault>;

    /// Removes what remains of other layouts; only our programs are attached.
    ///
    /// # Errors
    /// If something cannot be removed.
    fn settle(&mut self) -> Result<(), Fault>;
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
    pub(super) wanted: Vec<Wanted>,
}

/// An interface that needs a program.
#[derive(Clone, Debug, Eq, PartialEq)]
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
#[derive(Clone, Debug)]
pub struct Done {
    pub(super) interfaces: Vec<(IfIndex, Wish, Outcome)>,
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
    Failed(String),
}

impl Done {
    /// Nothing was changed.
    pub fn nothing() -> Self {
        Self { interfaces: Vec::new(), settled: Ok(()) }
    }
}

impl Work {
    /// New programs are attached before old ones are detached, and old layouts are removed last.
    pub fn run(self, attacher: &mut impl Attacher) -> Done {
        let mut interfaces = Vec::new();
        let mut keep = BTreeSet::new();
        for wanted in self.wanted {
            let ifindex = wanted.served.ifindex;
            let outcome = wanted.attach(attacher);
            let hook = match outcome {
                Outcome::Kept => wanted.attached,
                Outcome::Attached(hook) => Some(hook),
                Outcome::Lost | Outcome::Failed(_) => None,
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
        match self.attached {
            Some(hook) if attacher.is_attached(self.served.ifindex, hook) => {
                attacher.renew(&self.served, hook);
                return Outcome::Kept;
            }
            Some(_) => return Outcome::Lost,
            None => {}
        }
        let mut reasons = Vec::new();
        for &hook in self.hooks {
            match attacher.attach(&self.served, hook) {
                Ok(()) => return Outcome::Attached(hook),
                Err(error) => reasons.push(error.0),
            }
        }
        Outcome::Failed(reasons.join("; "))
    }
}

fn settle(attacher: &mut impl Attacher, keep: &BTreeSet<(IfIndex, Hook)>) -> Result<(), Fault> {
    for &(ifindex, hook) in attacher.attached()?.difference(keep) {
        attacher.detach(ifindex, hook)?;
    }
    attacher.settle()
}
