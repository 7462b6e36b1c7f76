// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's RDMA core: its requests, the answers to them, and the nudges after these.

use ibarr_common::{IfIndex, Instant};
use ibarr_proto::local_service::{Input, Nudge, Nudged as Outcome, Sender, Transmit};
use ibarr_proto::node::{self, Node, Room};
use ibarr_proto::turn::{Handled, Read};
use nix::errno::Errno;
use tracing::{error, info, warn};

use super::log;
use super::trace::name_of;
use crate::causes::Fault;
use crate::logging::ids;
use crate::process::{Systemd, Until};
use crate::sys::local_service::Received;
use crate::transport::local_service::{Event, LocalService, NAME};
use crate::transport::rtnetlink::{LOOPBACK, NudgeError, NudgeResult, NudgeTarget, Nudger};

/// The socket to the kernel, and the thread that makes nudges.
pub(super) struct Kernel {
    pub(super) socket: LocalService,
    pub(super) nudges: Nudges,
    pub(super) systemd: Systemd,
}

/// The longest request has 160 bytes, and the kernel sends each in its own datagram. The buffer is
/// cleared before each read, so it is not much larger.
const REQUEST_BUFFER: usize = 256;

impl Kernel {
    pub(super) fn room(&self) -> Room {
        Room { local_service: self.socket.has_room() }
    }

    /// States whether the socket is open.
    pub(super) fn tell_state(&self, now: Instant, node: &mut Node) {
        tell(node, now, self.socket.state());
        self.keep();
    }

    pub(super) fn handle(&mut self, event: Event) -> Handled {
        if event == Event::Readable {
            return Handled::KernelAsks;
        }
        self.socket.flush();
        Handled::Changed
    }

    pub(super) fn read(&mut self, now: Instant, node: &mut Node) -> Read {
        let mut buffer = [0; REQUEST_BUFFER];
        let (input, read) = match self.socket.receive(&mut buffer) {
            Received::Datagram { len, from_kernel } => {
                let sender = if from_kernel { Sender::Kernel } else { Sender::Other };
                let (bytes, cut) = (buffer.get(..len).unwrap_or(&buffer), len > REQUEST_BUFFER);
                log::kernel_asks(bytes);
                (Input::Datagram { sender, bytes, cut }, Read::Message)
            }
            Received::Overrun => (Input::Overrun, Read::Message),
            Received::Drained => (Input::Drained, Read::Nothing),
            Received::Closed => (self.socket.state(), Read::Nothing),
        };
        tell(node, now, input);
        read
    }

    pub(super) fn carry_out(&mut self, now: Instant, transmit: &Transmit, node: &mut Node) {
        match transmit {
            Transmit::Message(message) => {
                log::kernel_is_answered(message.as_ref());
                self.socket.send(message.as_ref());
            }
            Transmit::Open => {
                self.socket.open();
                self.tell_state(now, node);
            }
            Transmit::Join if self.socket.join() => self.keep(),
            Transmit::Join => self.tell_state(now, node),
            Transmit::Leave(errno) => {
                self.socket.leave(Errno::from_raw(-*errno));
                self.tell_state(now, node);
            }
            Transmit::Nudge(nudge) => {
                node.trace().nudge(now);
                let ipoib = node.view().first_ipoib();
                let fallback =
                    ipoib.map(|link| NudgeTarget { ifindex: link.ifindex, hwaddr: link.hwaddr });
                let quiet = self.socket.quiet();
                self.nudges.nudger.nudge(fallback, quiet.filter(|_| *nudge == Nudge::IfQuiet));
            }
        }
    }

    pub(super) fn handle_nudged(
        &mut self,
        now: Instant,
        outcome: Result<NudgeResult, NudgeError>,
        node: &mut Node,
    ) {
        let nudged = self.nudges.note(outcome, node);
        node.trace().nudged(now, nudged);
        tell(node, now, Input::Nudged(nudged));
    }

    /// While no daemon runs, the kernel's requests wait in the socket: without it, the kernel would
    /// refuse its callers at once (`ib_nl_fetch_ha`).
    fn keep(&self) {
        match self.socket.copy() {
            Some(Ok(copy)) => self.systemd.keep(NAME, vec![copy], Until::Stop),
            Some(Err(error)) => {
                error!(%error, "local service: the socket cannot be kept for the next daemon");
            }
            None => {}
        }
    }
}

pub(super) fn stop(now: Instant, node: &mut Node) {
    tell(node, now, Input::Stop);
}

/// Passes an input to the core that serves the kernel.
fn tell(node: &mut Node, now: Instant, input: Input<'_>) {
    node.handle_input(now, node::Input::LocalService(input));
}

/// The thread that makes nudges, and how the last one ended.
pub(super) struct Nudges {
    nudger: Nudger,
    /// The interface of the last nudge, or why it failed.
    pub(super) last: Option<Result<IfIndex, Fault>>,
}

impl Nudges {
    pub(super) fn new(nudger: Nudger) -> Self {
        Self { nudger, last: None }
    }

    /// Logs changes of the outcome, and returns the outcome for the core.
    fn note(&mut self, outcome: Result<NudgeResult, NudgeError>, node: &Node) -> Outcome {
        let (outcome, nudged) = match outcome {
            Ok(NudgeResult::On(ifindex)) => (Ok(ifindex), Outcome::Done),
            Ok(NudgeResult::Postponed) => return Outcome::Postponed,
            // There was no interface for it.
            Err(NudgeError::NoPlace(_)) if node.nudge_without_place() == Outcome::Postponed => {
                return Outcome::Postponed;
            }
            Err(error) => (Err(error.into()), Outcome::Failed),
        };
        match (&outcome, &self.last) {
            (outcome, Some(last)) if outcome == last => {}
            (Err(failure), _) => {
                warn!(message_id = ids::NUDGES_FAIL, cause = %failure, "nudges fail: {failure}");
            }
            (Ok(ifindex), _) if *ifindex != LOOPBACK => {
                let interface = name_of(node, *ifindex);
                info!(interface, "without IPv6 nudges are made on an IPoIB interface");
            }
            (Ok(_), Some(_)) => info!(message_id = ids::NUDGES_WORK, "nudges work again"),
            (Ok(_), None) => {}
        }
        self.last = Some(outcome);
        nudged
    }
}
