// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Bytes between file descriptors and channels, and nothing else: no retries, no caches, no
//! decisions.
//!
//! | channel | from → to | depth | when full |
//! |---|---|---|---|
//! | batches | server sockets → engine | [`BATCHES`]: one a socket, which then waits for its replies | the socket waits; what the kernel's receive buffer ([`server::HOLD`]) has no room for is dropped, `transport.query-dropped` |
//! | datagrams | query sockets → engine | [`DATAGRAMS`]: twice the pending table's burst that one wake-up can bring | newest dropped, `transport.reply-dropped`, `transport.refusal-dropped` |
//! | view | rtnetlink → engine | [`VIEW_INPUTS`]: the messages of one datagram | the socket waits, what then does not fit its buffer is lost, which the kernel tells: a dump follows |
//! | dump requests | engine → rtnetlink | 1 a subject: another one asks for the same | not sent |
//! | questions for routes | engine → rtnetlink | none: the client asks for one route a flight, and bounds its flights | |
//! | route answers | rtnetlink → engine | [`ROUTE_ANSWERS`] | no more questions are taken |
//! | requests of the kernel | none: the engine reads the socket | | the socket waits; what then does not fit its buffer is lost, which the kernel tells: a nudge has it sent again |
//! | answers to the kernel | engine → socket | 1, which had no room | no more answers are made, no more requests read |
//! | ports | thread of each device → engine | [`PORT_EVENTS`] | the thread waits |
//! | events of ports | thread of each device → engine | [`EVENTS`] | the thread waits, and the kernel keeps what happens |
//! | MADs | umad devices → engine | [`MADS`] | the device waits: the kernel holds no more than what we have asked for |
//! | orders, events of the snapshot | engine ↔ thread | [`SNAPSHOT_ORDERS`], [`SNAPSHOT_EVENTS`] | the engine reads no more paths; the thread waits |
//! | configurations | thread of a reload → engine | 1: there is one such thread | |
//! | nudges, outcomes | engine ↔ thread | 1 each: the core has one under way | |
//! | orders, progress | engine ↔ thread of the BPF programs | 1, 2: it has one order, of which the longest tells of two things | |
//! | asks | control connections → engine | [`ASKS`]: one a connection | the connection waits |

pub mod events;
pub mod holder;
pub mod inherited;
pub mod listeners;
pub mod local_service;
pub mod ports;
pub mod queries;
pub mod rtnetlink;
pub mod server;
pub mod snapshot;
pub mod umad;

use std::sync::atomic::{AtomicU64, Ordering};

use ibarr_proto::counters::Counter as _;

/// See the table above.
pub const BATCHES: usize = 2;
/// See the table above.
pub const DATAGRAMS: usize = 8192;
/// See the table above.
pub const VIEW_INPUTS: usize = 256;
/// See the table above.
pub const ROUTE_ANSWERS: usize = 256;
/// See the table above.
pub const PORT_EVENTS: usize = 64;
/// See the table above.
pub const EVENTS: usize = 64;
/// See the table above.
pub const MADS: usize = 256;
/// See the table above.
pub const SNAPSHOT_ORDERS: usize = 4;
/// See the table above.
pub const SNAPSHOT_EVENTS: usize = 4;
/// See the table above.
pub const ASKS: usize = 32;

ibarr_proto::counters! {
    /// What the transports count.
    pub enum Counter {
        /// The kernel refused a query of ours, or its buffer was full; it is sent again by schedule.
        QueryNotSent = "transport.query-not-sent",
        /// The kernel refused a reply of ours, say for want of a route back.
        ReplyNotSent = "transport.reply-not-sent",
        /// More datagrams came to our query sockets than the engine took.
        ReplyDropped = "transport.reply-dropped",
        /// More was said about unreachable ports than the engine took.
        RefusalDropped = "transport.refusal-dropped",
        /// recvmsg(2) failed.
        ReceiveFailed = "transport.receive-failed",
        /// A socket for our own queries could not be opened.
        SocketNotOpened = "transport.socket-not-opened",
        /// Messages to the kernel that had to wait for room in the socket.
        LocalServiceBlocked = "transport.local-service-blocked",
        /// Messages that the socket to the kernel refused.
        LocalServiceNotSent = "transport.local-service-not-sent",
        /// MADs that a umad device did not take.
        MadNotSent = "umad.not-sent",
        /// Times that a umad device was lost.
        UmadLost = "umad.lost",
        /// What was read of a umad device for somebody else.
        UmadAgent = "umad.other-agent",
        /// What was read of a umad device and is too short.
        UmadTruncated = "umad.malformed-truncated",
        /// MADs that a umad device gave back unanswered and that are none.
        UmadMalformed = "umad.malformed",
        /// Snapshots of paths that are in their place.
        SnapshotWritten = "snapshot.written",
        /// Snapshots of paths that could not be written; the one before is still there.
        SnapshotNotWritten = "snapshot.not-written",
        /// Files that are no snapshot of paths, or a damaged one.
        SnapshotRefused = "snapshot.refused",
        /// Events about links, addresses, routes and policy rules.
        RtnetlinkEvent = "rtnetlink.event",
        /// Dumps that were passed on whole.
        RtnetlinkDump = "rtnetlink.dump",
        /// Dumps during which the kernel's tables changed (`NLM_F_DUMP_INTR`), each done again.
        RtnetlinkDumpInterrupted = "rtnetlink.dump-interrupted",
        /// Dumps during which events were lost, each done again.
        RtnetlinkDumpSpoiled = "rtnetlink.dump-spoiled",
        /// Dumps that the kernel refused or broke off, each asked for again.
        RtnetlinkDumpRefused = "rtnetlink.dump-refused",
        /// Messages of a dump that had been given up.
        RtnetlinkStaleAnswer = "rtnetlink.stale-answer",
        /// Times that events did not fit the socket, each followed by a dump.
        RtnetlinkOverrun = "rtnetlink.overrun",
        /// Datagrams that did not fit the buffer, each followed by a dump.
        RtnetlinkOversized = "rtnetlink.oversized",
        /// Datagrams that another process sent to our rtnetlink sockets.
        RtnetlinkForeign = "rtnetlink.foreign",
        /// Datagrams with a message header that does not fit, each followed by a dump.
        RtnetlinkMalformedHeader = "rtnetlink.malformed-header",
        /// Messages that make no sense, passed over.
        RtnetlinkMalformedMessage = "rtnetlink.malformed-message",
        /// Times that an rtnetlink socket broke and was opened again.
        RtnetlinkReopened = "rtnetlink.reopened",
        /// Connections to the control socket that were served.
        ControlConnections = "control.connections",
        /// Connections refused because their user had as many as one may have.
        ControlUserFull = "control.refused-user",
        /// Connections refused because users of their class had all that there may be.
        ControlClassFull = "control.refused-class",
        /// Connections refused because the process had no descriptor left.
        ControlNoDescriptor = "control.refused-descriptors",
        /// Connections closed because no whole request came in time, or an answer was not read in time.
        ControlTimedOut = "control.timed-out",
        /// Questions for a route that were answered with one.
        RouteFound = "rtnetlink.route-found",
        /// Questions for a route that were answered with the reason why there is none.
        RouteNotFound = "rtnetlink.route-not-found",
        /// Questions for a route asked again because answers were lost.
        RouteAskedAgain = "rtnetlink.route-asked-again",
        /// Answers about routes to no question.
        RouteUnasked = "rtnetlink.route-unasked",
    }
}

/// The counters of all transports.
#[derive(Debug)]
pub struct Counters([AtomicU64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Counter::ALL.len()])
    }
}

impl Counters {
    /// One more.
    pub fn count(&self, counter: Counter) {
        self.0[counter.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// How often `counter` was counted.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter.index()].load(Ordering::Relaxed)
    }

    /// Each with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }
}
