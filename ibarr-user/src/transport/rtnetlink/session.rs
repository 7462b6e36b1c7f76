// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::sync::Arc;
use std::time::Duration;

use ibarr_proto::local_view::Input;
use neli::consts::nl::{NlmF, Nlmsg};

use super::message::{self, Change, Frame};
use crate::transport::{Counter, Counters};

/// What is read from the socket, made into [`Input`]s, without the socket.
///
/// **No dump is begun while what the socket holds may be older than a loss.** The kernel reports an
/// overrun ahead of the messages that were queued before it. Taken for what happened since a dump
/// was asked for, they would overrule it with what the lost ones have undone.
pub(super) struct Session {
    /// Of our socket.
    portid: u32,
    /// Of the last request.
    seq: u32,
    phase: Phase,
    /// A dump is wanted.
    wanted: bool,
    /// Something was lost, and the socket has not been read to its end since.
    behind: bool,
    /// The dump that is running does not hold all there is.
    spoiled: bool,
    /// Dumps that failed since the last that did not.
    failures: u32,
    pause: Option<Duration>,
    counters: Arc<Counters>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Idle,
    Links,
    /// All links have come, addresses are to be asked for.
    LinksDone,
    Addresses,
}

impl Session {
    pub(super) fn new(portid: u32, counters: Arc<Counters>) -> Self {
        Self {
            portid,
            seq: 0,
            phase: Phase::Idle,
            wanted: false,
            behind: false,
            spoiled: false,
            failures: 0,
            pause: None,
            counters,
        }
    }

    /// A dump is wanted. One that is running then has taken too long.
    pub(super) fn handle_request(&mut self) {
        self.phase = Phase::Idle;
        self.wanted = true;
    }

    /// The kernel sent these bytes.
    pub(super) fn handle_datagram(&mut self, datagram: &[u8], inputs: &mut Vec<Input>) {
        for frame in message::frames(datagram) {
            match frame {
                Ok(frame) if self.is_answer(&frame) => self.handle_answer(&frame, inputs),
                Ok(frame) => self.handle_event(&frame, inputs),
                Err(error) => {
                    tracing::debug!(%error, "rtnetlink: datagram refused");
                    self.handle_loss(Counter::RtnetlinkMalformedHeader);
                }
            }
        }
    }

    /// Messages were lost: they did not fit the socket or our buffer.
    pub(super) fn handle_loss(&mut self, why: Counter) {
        self.counters.count(why);
        self.behind = true;
        self.spoiled = true;
        self.wanted = true;
    }

    /// The socket held nothing more.
    pub(super) fn handle_drained(&mut self) {
        self.behind = false;
    }

    /// The request could not be sent.
    pub(super) fn handle_unsent(&mut self) {
        self.fail(Counter::RtnetlinkDumpRefused);
    }

    /// How long to wait from now on before the next [`poll_transmit`](Self::poll_transmit), after a
    /// dump that failed: a machine whose links never rest would otherwise be asked without end.
    pub(super) fn poll_pause(&mut self) -> Option<Duration> {
        self.pause.take()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has something to send.
    pub(super) fn wants_to_send(&self) -> bool {
        match self.phase {
            Phase::Idle => self.wanted && !self.behind,
            Phase::LinksDone => true,
            Phase::Links | Phase::Addresses => false,
        }
    }

    /// The next request to the kernel. To be sent after `inputs` has been passed on.
    pub(super) fn poll_transmit(&mut self, inputs: &mut Vec<Input>) -> Option<Vec<u8>> {
        if !self.wants_to_send() {
            return None;
        }
        self.seq = self.seq.wrapping_add(1);
        if self.phase == Phase::LinksDone {
            self.phase = Phase::Addresses;
            return Some(message::dump_addresses(self.seq));
        }
        self.phase = Phase::Links;
        self.wanted = false;
        self.spoiled = false;
        inputs.push(Input::DumpStarted);
        Some(message::dump_links(self.seq))
    }

    /// Entries of a dump and its end have `NLM_F_MULTI`. Events do not, and may have our port id, if
    /// who made the change lives in another network namespace.
    fn is_answer(&self, frame: &Frame<'_>) -> bool {
        let error = frame.kind == u16::from(Nlmsg::Error);
        frame.portid == self.portid && (error || frame.flags.contains(NlmF::MULTI))
    }

    fn handle_answer(&mut self, frame: &Frame<'_>, inputs: &mut Vec<Input>) {
        if frame.seq != self.seq || !matches!(self.phase, Phase::Links | Phase::Addresses) {
            self.counters.count(Counter::RtnetlinkStaleAnswer);
            return;
        }
        if frame.flags.contains(NlmF::DUMP_INTR) && !self.spoiled {
            self.counters.count(Counter::RtnetlinkDumpInterrupted);
            self.spoiled = true;
        }
        match Nlmsg::from(frame.kind) {
            Nlmsg::Done => self.finish_phase(frame, inputs),
            Nlmsg::Error => {
                let errno = frame.errno().unwrap_or_default();
                tracing::debug!(errno, "rtnetlink: dump refused");
                self.fail(Counter::RtnetlinkDumpRefused);
            }
            Nlmsg::Overrun => self.handle_loss(Counter::RtnetlinkOverrun),
            _ => match Change::parse(frame) {
                Ok(Some(Change::Link(link))) => inputs.push(Input::ListedLink(link)),
                Ok(Some(Change::Address(entry))) => inputs.push(Input::ListedAddress(entry)),
                Ok(_) => {}
                Err(error) => self.refuse(error),
            },
        }
    }

    fn handle_event(&mut self, frame: &Frame<'_>, inputs: &mut Vec<Input>) {
        if frame.kind == u16::from(Nlmsg::Overrun) {
            return self.handle_loss(Counter::RtnetlinkOverrun);
        }
        match Change::parse(frame) {
            Ok(Some(change)) => {
                self.counters.count(Counter::RtnetlinkEvent);
                inputs.push(match change {
                    Change::Link(link) => Input::Link(link),
                    Change::LinkGone(ifindex) => Input::LinkGone(ifindex),
                    Change::Address(entry) => Input::Address(entry),
                    Change::AddressGone(id) => Input::AddressGone(id),
                });
            }
            Ok(None) => {}
            Err(error) => self.refuse(error),
        }
    }

    fn finish_phase(&mut self, frame: &Frame<'_>, inputs: &mut Vec<Input>) {
        if frame.errno() != Ok(0) {
            return self.fail(Counter::RtnetlinkDumpRefused);
        }
        if self.spoiled {
            return self.fail(Counter::RtnetlinkDumpSpoiled);
        }
        if self.phase == Phase::Links {
            self.phase = Phase::LinksDone;
            return;
        }
        self.phase = Phase::Idle;
        self.failures = 0;
        self.counters.count(Counter::RtnetlinkDump);
        inputs.push(Input::DumpDone);
    }

    fn fail(&mut self, why: Counter) {
        const AT_ONCE: u32 = 3;
        const FIRST: Duration = Duration::from_millis(10);
        const LONGEST: Duration = Duration::from_secs(1);
        self.counters.count(why);
        self.phase = Phase::Idle;
        self.wanted = true;
        self.failures = self.failures.saturating_add(1);
        self.pause = self
            .failures
            .checked_sub(AT_ONCE)
            .map(|n| FIRST.saturating_mul(1 << n.min(10)).min(LONGEST));
    }

    fn refuse(&self, error: message::Malformed) {
        tracing::debug!(%error, "rtnetlink: message refused");
        self.counters.count(Counter::RtnetlinkMalformedMessage);
    }
}
