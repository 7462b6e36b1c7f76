// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Follows dumps and events of one subject, and notices what was lost.

use std::sync::Arc;

use ibarr_proto::local_view::routing::MAX_LISTED_ROUTES;
use ibarr_proto::local_view::{Input, Subject};
use neli::consts::nl::{NlmF, Nlmsg};
use neli::consts::rtnl::RtAddrFamily;

use super::fib::{self, Fib};
use super::message::{self, Frame, Malformed};
use super::neigh;
use crate::transport::{Counter, Counters};

/// Translates what is read from a socket into [`Input`]s; has no socket itself.
///
/// **No dump begins while the socket may hold messages from before a loss.** The kernel reports an
/// overrun ahead of the messages that were queued before it. If these counted as events since the
/// request for a dump, they would overrule the dump with facts that the lost messages have changed.
pub(super) struct Session {
    subject: Subject,
    /// Port id of our socket.
    portid: u32,
    /// Sequence number of the last request.
    seq: u32,
    phase: Phase,
    /// The dump that was requested.
    wanted: Option<Extent>,
    /// The extent of the running dump.
    extent: Extent,
    /// A message was lost, and the socket has not been empty since.
    behind: bool,
    /// The running dump is incomplete.
    spoiled: bool,
    /// Entries of the running dump.
    listed: usize,
    counters: Arc<Counters>,
}

/// How much of its subject a dump lists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Extent {
    All,
    /// The links alone, of [`Subject::Node`].
    Links,
}

/// The progress of a dump, as an index into the [`requests`] of its subject.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Idle,
    /// This request comes next.
    Next(usize),
    /// This request is running.
    Running(usize),
    /// The dump has too many entries, and was given up.
    TooMuch,
}

/// The requests of a dump, each a function of its sequence number.
fn requests(subject: Subject, extent: Extent) -> &'static [fn(u32) -> Vec<u8>] {
    match subject {
        Subject::Node if extent == Extent::Links => &[message::dump_links],
        Subject::Node => &[message::dump_links, message::dump_addresses],
        Subject::Routes => &[
            fib::dump_rules,
            |seq| fib::dump_routes(RtAddrFamily::Inet, seq),
            |seq| fib::dump_routes(RtAddrFamily::Inet6, seq),
        ],
        Subject::Neighbours => &[neigh::dump_neighbours],
    }
}

impl Session {
    pub(super) fn new(subject: Subject, portid: u32, counters: Arc<Counters>) -> Self {
        Self {
            subject,
            portid,
            seq: 0,
            phase: Phase::Idle,
            wanted: None,
            extent: Extent::All,
            behind: false,
            spoiled: false,
            listed: 0,
            counters,
        }
    }

    /// Whether the running dump had more entries than the limit. Then neither its rest nor events
    /// are wanted, and the socket should be closed.
    pub(super) fn is_too_much(&self) -> bool {
        self.phase == Phase::TooMuch
    }

    /// Starts a dump. A running one has taken too long, and is given up.
    pub(super) fn handle_request(&mut self, extent: Extent) {
        self.phase = Phase::Idle;
        self.wanted = Some(extent);
    }

    /// Takes a datagram of the kernel.
    pub(super) fn handle_datagram(&mut self, datagram: &[u8], inputs: &mut Vec<Input>) {
        for frame in message::frames(datagram) {
            match frame {
                Ok(frame) if self.is_answer(&frame) => self.handle_answer(&frame, inputs),
                Ok(frame) => self.handle_event(&frame, inputs),
                Err(error) => {
                    tracing::debug!(%error, "rtnetlink: datagram refused");
                    self.handle_loss(Counter::RtnetlinkMalformedHeader, inputs);
                }
            }
        }
    }

    /// Notes a loss: messages did not fit the socket or our buffer. A dump that runs fails at its
    /// end.
    pub(super) fn handle_loss(&mut self, why: Counter, inputs: &mut Vec<Input>) {
        self.counters.count(why);
        // A dump of all that has not begun makes up for it.
        if self.phase == Phase::Idle && self.wanted != Some(Extent::All) && !self.behind {
            inputs.push(Input::DumpFailed(self.subject));
        }
        self.behind = true;
        self.spoiled = true;
    }

    /// Notes that the socket is empty.
    pub(super) fn handle_drained(&mut self) {
        self.behind = false;
    }

    /// Notes that the request could not be sent.
    pub(super) fn handle_unsent(&mut self, inputs: &mut Vec<Input>) {
        self.fail(Counter::RtnetlinkDumpRefused, inputs);
    }

    /// The next request to the kernel. Send it after passing on `inputs`.
    pub(super) fn poll_transmit(&mut self, inputs: &mut Vec<Input>) -> Option<Vec<u8>> {
        let next = match self.phase {
            Phase::Next(next) => next,
            Phase::Idle if !self.behind => {
                self.extent = self.wanted.take()?;
                self.spoiled = false;
                self.listed = 0;
                inputs.push(match self.subject {
                    Subject::Node if self.extent == Extent::Links => Input::LinksStarted,
                    Subject::Node => Input::DumpStarted,
                    Subject::Routes => Input::RoutesStarted,
                    Subject::Neighbours => Input::NeighboursStarted,
                });
                0
            }
            Phase::Idle | Phase::Running(_) | Phase::TooMuch => return None,
        };
        let request = requests(self.subject, self.extent).get(next)?;
        self.seq = self.seq.wrapping_add(1);
        self.phase = Phase::Running(next);
        Some(request(self.seq))
    }

    /// Entries of a dump and its end have `NLM_F_MULTI`. Events do not; they may have our port id
    /// if the process that made the change is in another network namespace.
    fn is_answer(&self, frame: &Frame<'_>) -> bool {
        let error = frame.kind == u16::from(Nlmsg::Error);
        frame.portid == self.portid && (error || frame.flags.contains(NlmF::MULTI))
    }

    fn handle_answer(&mut self, frame: &Frame<'_>, inputs: &mut Vec<Input>) {
        let phase = match self.phase {
            Phase::Running(phase) if frame.seq == self.seq => phase,
            _ => return self.counters.count(Counter::RtnetlinkStaleAnswer),
        };
        if frame.flags.contains(NlmF::DUMP_INTR) && !self.spoiled {
            self.counters.count(Counter::RtnetlinkDumpInterrupted);
            self.spoiled = true;
        }
        match Nlmsg::from(frame.kind) {
            Nlmsg::Done | Nlmsg::Error if self.has_nothing_to_list(frame) => {
                self.finish_phase(phase, Ok(0), inputs);
            }
            Nlmsg::Done => self.finish_phase(phase, frame.errno(), inputs),
            Nlmsg::Error => {
                let errno = frame.errno().unwrap_or_default();
                tracing::debug!(errno, "rtnetlink: dump refused");
                self.fail(Counter::RtnetlinkDumpRefused, inputs);
            }
            Nlmsg::Overrun => self.handle_loss(Counter::RtnetlinkOverrun, inputs),
            _ => match self.listed(frame) {
                Ok(None) => {}
                Ok(Some(input)) => self.list(input, inputs),
                Err(error) => self.refuse(error),
            },
        }
    }

    /// A kernel without policy routing, or without IPv6, has no such dump; a kernel that never had
    /// a route has no table for routes.
    fn has_nothing_to_list(&self, refusal: &Frame<'_>) -> bool {
        self.subject == Subject::Routes
            && matches!(refusal.errno(), Ok(libc::EOPNOTSUPP | libc::ENOENT))
    }

    fn listed(&self, frame: &Frame<'_>) -> Result<Option<Input>, Malformed> {
        Ok(match self.subject {
            Subject::Node => match message::change(frame)? {
                Some(Input::Link(link)) => Some(Input::ListedLink(link)),
                Some(Input::Address(entry)) => Some(Input::ListedAddress(entry)),
                _ => None,
            },
            Subject::Routes => Fib::parse(frame)?.map(|entry| match entry {
                Fib::Route(route) => Input::ListedRoute(route),
                Fib::Rule(rule) => Input::ListedRule(rule),
            }),
            Subject::Neighbours => match neigh::change(frame)? {
                Some(Input::Neighbour(entry)) => Some(Input::ListedNeighbour(entry)),
                _ => None,
            },
        })
    }

    fn list(&mut self, input: Input, inputs: &mut Vec<Input>) {
        self.listed += 1;
        if self.subject == Subject::Routes && self.listed > MAX_LISTED_ROUTES {
            self.phase = Phase::TooMuch;
            return inputs.push(Input::RoutesTooMany);
        }
        inputs.push(input);
    }

    fn handle_event(&mut self, frame: &Frame<'_>, inputs: &mut Vec<Input>) {
        if frame.kind == u16::from(Nlmsg::Overrun) {
            return self.handle_loss(Counter::RtnetlinkOverrun, inputs);
        }
        match self.happened(frame) {
            Ok(None) => {}
            Ok(Some(event)) => {
                self.counters.count(Counter::RtnetlinkEvent);
                // Many events about routes mean no more than one.
                let is_same = matches!(event, Input::RoutesChanged | Input::OwnRoute);
                if !is_same || inputs.last() != Some(&event) {
                    inputs.push(event);
                }
            }
            Err(error) => self.refuse(error),
        }
    }

    fn happened(&self, frame: &Frame<'_>) -> Result<Option<Input>, Malformed> {
        Ok(match self.subject {
            Subject::Node => message::change(frame)?,
            Subject::Routes => fib::change(frame)?,
            Subject::Neighbours => neigh::change(frame)?,
        })
    }

    fn finish_phase(
        &mut self,
        phase: usize,
        errno: Result<i32, Malformed>,
        inputs: &mut Vec<Input>,
    ) {
        if errno != Ok(0) {
            return self.fail(Counter::RtnetlinkDumpRefused, inputs);
        }
        if self.spoiled {
            return self.fail(Counter::RtnetlinkDumpSpoiled, inputs);
        }
        let next = phase + 1;
        if next < requests(self.subject, self.extent).len() {
            self.phase = Phase::Next(next);
            return;
        }
        self.phase = Phase::Idle;
        self.counters.count(Counter::RtnetlinkDump);
        inputs.push(match self.subject {
            Subject::Node => Input::DumpDone,
            Subject::Routes => Input::RoutesDone,
            Subject::Neighbours => Input::NeighboursDone,
        });
    }

    fn fail(&mut self, why: Counter, inputs: &mut Vec<Input>) {
        self.counters.count(why);
        self.phase = Phase::Idle;
        inputs.push(Input::DumpFailed(self.subject));
    }

    fn refuse(&self, error: Malformed) {
        tracing::debug!(%error, "rtnetlink: message refused");
        self.counters.count(Counter::RtnetlinkMalformedMessage);
    }
}
