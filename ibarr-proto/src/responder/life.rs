// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The life of the programs: what the thread that owns them does next, and when a failure is tried
//! again.

use alloc::string::String;

use ibarr_common::Instant;
use thiserror::Error;

use super::RETRY;
use super::work::{Work, WorkResult};
use crate::Fault;
use crate::retry::Repair;

/// An order for the thread that owns the programs. It executes one at a time, and ends it with its
/// [`Done`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Order {
    /// Load the programs. [`Input::Opened`](super::Input::Opened) comes first, as soon as the maps can
    /// be written.
    Open,
    /// Detach and remove everything.
    Close,
    /// Attach and detach programs.
    Arrange(Work),
    /// Use the programs that report their packets, or the plain ones again. They are attached by the
    /// next [`Order::Arrange`].
    Report(bool),
}

/// The end of the [`Order`] of that name. A failed close changes nothing.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its variants are named for the orders")]
pub enum Done {
    /// With the directory of the pins, if only the daemon's mount namespace has it.
    Opened(Result<Option<String>, NotLoaded>),
    Closed,
    Arranged(WorkResult),
    /// Others have changed the pins, so all was taken down.
    Lost(NotLoaded),
    Reporting(Result<(), Fault>),
}

/// Why the programs are not loaded. The kind of the fault decides whether it is tried again.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct NotLoaded {
    pub fault: Fault,
    pub kind: Kind,
}

/// What fails when programs are loaded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Another daemon has the pins.
    Taken,
    /// The pins cannot be used.
    Pins,
    /// The programs or maps.
    Other,
}

/// Why the programs answer nothing at all.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Blocked {
    /// By decision of the administrator.
    #[error("responder = \"user\"")]
    Unwanted,
    /// They may answer soon.
    #[error("the programs are being loaded")]
    Loading,
    /// It may be tried again.
    #[error("{0}")]
    Fault(Fault),
}

#[derive(Debug, Default)]
pub(super) struct Life {
    state: State,
    /// The thread is executing an order, and accepts no other.
    pub(super) is_busy: bool,
    /// Why the last load failed, so that it is told once.
    failure: Option<Fault>,
    /// The programs were loaded once, so it is not the configuration if the pins cannot be used.
    has_loaded: bool,
    repair: Repair,
    /// The directory of the pins, if they last only as long as the mount namespace of the daemon.
    pub(super) private_pins: Option<String>,
    /// How many loads were tried, and how often other variants of the programs were wanted.
    pub(super) generation: u32,
    pub(super) reporting: Reporting,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    /// The thread has to load the programs, or remove them.
    #[default]
    Wanted,
    Loading,
    Loaded,
    Unwanted,
    /// They could not be loaded, and are loaded again at the given time.
    Failed(Option<Instant>),
}

/// Whether programs report their packets.
#[derive(Debug, Default)]
pub(super) struct Reporting {
    /// A trace wants it.
    pub(super) is_wanted: bool,
    /// The last order to the thread.
    pub(super) is_ordered: bool,
    /// Programs that report may be attached.
    pub(super) may_be_attached: bool,
    /// Why they cannot. It is not tried again until the next trace.
    pub(super) failure: Option<Fault>,
}

impl Life {
    /// The next order, if it comes before the arrangement of programs.
    pub(super) fn poll_order(&mut self, is_wanted: bool) -> Option<Order> {
        if self.wants_change() {
            self.reporting.is_ordered = false;
            self.reporting.may_be_attached = false;
            self.state = if is_wanted { State::Loading } else { State::Unwanted };
            Some(if is_wanted { Order::Open } else { Order::Close })
        } else if self.wants_report() {
            let Reporting { is_ordered, may_be_attached, .. } = &mut self.reporting;
            *is_ordered = !*is_ordered;
            *may_be_attached |= *is_ordered;
            Some(Order::Report(*is_ordered))
        } else {
            None
        }
    }

    /// Whether an order can be given at once.
    pub(super) fn wants_order(&self) -> bool {
        !self.is_busy && (self.wants_change() || self.wants_report())
    }

    /// Whether programs have to be loaded or removed.
    pub(super) fn wants_change(&self) -> bool {
        self.state == State::Wanted
    }

    fn wants_report(&self) -> bool {
        let Reporting { is_wanted, is_ordered, failure, .. } = &self.reporting;
        self.state == State::Loaded && *is_ordered != (*is_wanted && failure.is_none())
    }

    /// Loads the programs anew, or removes them.
    pub(super) fn restart(&mut self) {
        self.state = State::Wanted;
    }

    /// Returns the directory of the pins, if it is news that they are private.
    pub(super) fn loaded(&mut self, pins: Option<String>, has_maps: bool) -> Option<String> {
        self.generation += 1;
        self.failure = None;
        self.has_loaded = true;
        // Unless the settings have changed, and the maps were closed meanwhile.
        if has_maps {
            self.state = State::Loaded;
        }
        let old = core::mem::replace(&mut self.private_pins, pins);
        self.private_pins.clone().filter(|_| old.is_none())
    }

    /// Returns whether this failure is another than the last.
    pub(super) fn not_loaded(&mut self, now: Instant, why: NotLoaded) -> bool {
        self.generation += 1;
        let retry_at = match why.kind {
            Kind::Taken => Some(now + RETRY),
            Kind::Pins if self.has_loaded => Some(self.repair.schedule(now)),
            Kind::Pins | Kind::Other => None,
        };
        // Unless the settings have changed meanwhile.
        if self.state != State::Wanted {
            self.state = State::Failed(retry_at);
        }
        let is_new = self.failure.as_ref() != Some(&why.fault);
        self.failure = Some(why.fault);
        is_new
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|retry_at| retry_at <= now) {
            self.restart();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if let State::Failed(retry_at) = self.state { retry_at } else { None }
    }

    /// Why no programs are loaded, nor will be soon.
    pub(super) fn absent(&self) -> Option<Blocked> {
        self.blocked().filter(|_| matches!(self.state, State::Unwanted | State::Failed(_)))
    }

    /// Why no programs are loaded.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        match self.state {
            State::Loaded => None,
            State::Unwanted => Some(Blocked::Unwanted),
            _ => Some(self.failure.clone().map_or(Blocked::Loading, Blocked::Fault)),
        }
    }
}

impl Reporting {
    pub(super) fn want(&mut self, on: bool) {
        if self.is_wanted != on {
            self.is_wanted = on;
            self.failure = None;
        }
    }
}
