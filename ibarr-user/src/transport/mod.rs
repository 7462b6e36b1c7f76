// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Moves bytes between file descriptors and channels. What fails is tried again after a while, and named; nothing else
//! is decided here.
//!
//! | channel | from → to | depth | when full |
//! |---|---|---|---|
//! | batches | server sockets → engine | [`BATCHES`]: one for each version of IP; a VRF adds two sockets | the socket waits for its replies; datagrams beyond the kernel's receive buffer (`server::HOLD`) are dropped, `transport.query-dropped` |
//! | datagrams | query sockets → engine | [`DATAGRAMS`]: twice the burst that one wake-up can bring with a full pending table | newest dropped, `transport.reply-dropped`, `transport.refusal-dropped` |
//! | view | rtnetlink → engine | [`VIEW_INPUTS`]: the messages of one datagram | the socket waits; the kernel reports events that overflow its buffer, and a dump follows |
//! | dump requests | engine → rtnetlink | 1 per subject: a second one asks for the same | not sent |
//! | questions for routes and neighbours | engine → rtnetlink | [`ROUTE_QUESTIONS`]: twice the default number of flights, because a flight that has ended leaves its question | answered at once with none, `rtnetlink.route-refused` |
//! | their answers | rtnetlink → engine | [`ROUTE_ANSWERS`] | no further questions are taken |
//! | requests of the kernel | none: the engine reads the socket | | the socket waits; the kernel reports requests that overflow its buffer, and a nudge makes it repeat them |
//! | answers to the kernel | engine → socket | 1 that found no room | no further answers are made, no further requests read |
//! | ports | thread of each device → engine | [`PORT_EVENTS`] | the thread waits |
//! | events of ports | thread of each device → engine | [`EVENTS`] | the thread waits, and the kernel queues events |
//! | MADs | umad devices → engine | [`MADS`] | the device waits: the kernel holds at most the answers to what we have asked |
//! | orders, events of the snapshot | engine ↔ thread | [`SNAPSHOT_ORDERS`], [`SNAPSHOT_EVENTS`] | the engine reads no more paths; the thread waits |
//! | configurations | thread of a reload → engine | 1: there is one such thread | |
//! | nudges, outcomes | engine ↔ thread | 1 each: the core has at most one nudge in flight | |
//! | orders, progress | engine ↔ thread of the BPF programs | 1, 2: there is one order at a time, and the longest sends two messages | |
//! | what BPF programs report | thread → engine | 2 batches | the thread waits; the ring of the programs fills, and reports are lost and counted |
//! | requests of users | control connections and the server of metrics → engine | [`ASKS`]: one per connection | the connection waits |
//! | events of a trace | engine → control connection | [`MAX_EVENTS`](crate::control::messages::Request::MAX_EVENTS) | lost, and counted in the next one |
//! | clients of ACM: new ones at a TCP port, and late replies | tasks → engine | [`ACM_EVENTS`] | the connection waits |
//! | clients of ACM that connect or have sent something | none: the engine reads an epoll instance (`acm/ready.rs`) | | they wait in the kernel |
//! | orders for the sockets of ACM, what became of them | engine ↔ thread | 1 each: there is one order at a time | |
//! | addresses of names | threads of the resolver → engine | [`NAMES`] | the threads wait |
//! | preloaded files | thread → engine | 1: there is one such thread | |

pub mod acm;
pub mod alias;
pub(crate) mod events;
pub(crate) mod holder;
pub(crate) mod inherited;
pub(crate) mod listeners;
pub(crate) mod local_service;
pub(crate) mod names;
pub(crate) mod ports;
pub(crate) mod queries;
pub mod rtnetlink;
pub(crate) mod server;
pub(crate) mod snapshot;
pub(crate) mod socket_file;
pub(crate) mod umad;

use std::sync::atomic::{AtomicU64, Ordering};

use ibarr_proto::counters::Counter as _;

/// Depth of the channel for batches, see the table above.
pub const BATCHES: usize = 2;
/// Depth of the channel for datagrams.
pub const DATAGRAMS: usize = 8192;
/// Depth of the channel to the local view.
pub const VIEW_INPUTS: usize = 256;
/// Depth of the channel for questions for routes.
pub const ROUTE_QUESTIONS: usize = 32_768;
/// Depth of the channel for route answers.
pub const ROUTE_ANSWERS: usize = 256;
/// Depth of the channel for ports.
pub const PORT_EVENTS: usize = 64;
/// Depth of the channel for events of ports.
pub const EVENTS: usize = 64;
/// Depth of the channel for MADs.
pub const MADS: usize = 256;
/// Depth of the channel for orders to the snapshot's thread.
pub const SNAPSHOT_ORDERS: usize = 4;
/// Depth of the channel for events of the snapshot's thread.
pub const SNAPSHOT_EVENTS: usize = 4;
/// Depth of the channel for requests of users.
pub const ASKS: usize = 32;
/// Depth of the channel for clients of ACM.
pub const ACM_EVENTS: usize = 64;
/// Depth of the channel for the addresses of names.
pub const NAMES: usize = 64;

ibarr_proto::counters! {
    /// Counters of the transports.
    pub enum Counter {
        /// Queries that were not sent because this machine's firewall, or a route, forbids them
        /// (EPERM, EACCES).
        QueryForbidden = error("transport.query-not-sent-forbidden"),
        /// Queries that were not sent because the kernel had no route (ENETUNREACH, EHOSTUNREACH).
        QueryNoRoute = error("transport.query-not-sent-no-route"),
        /// Queries that were not sent because the kernel had no memory, or the send buffer no room
        /// (ENOBUFS, ENOMEM, EAGAIN).
        QueryNoRoom = error("transport.query-not-sent-no-room"),
        /// Queries that were not sent because they are longer than the MTU (EMSGSIZE).
        QueryTooLong = error("transport.query-not-sent-too-long"),
        /// Queries that were not sent for another reason, such as a source address or an interface
        /// that has gone since the route was looked up (EINVAL, ENODEV).
        QueryNotSent = error("transport.query-not-sent"),
        /// Datagrams for our query sockets that the engine had no room for.
        ReplyDropped = error("transport.reply-dropped"),
        /// ICMP errors about ports that the engine had no room for.
        RefusalDropped = error("transport.refusal-dropped"),
        /// Failed calls of recvmsg(2).
        ReceiveFailed = error("transport.receive-failed"),
        /// Sockets for our own queries that found no free UDP port (EADDRINUSE).
        SocketNoPort = error("transport.socket-no-port"),
        /// Sockets for our own queries for which there was no descriptor (EMFILE, ENFILE).
        SocketNoDescriptor = error("transport.socket-no-descriptor"),
        /// Sockets for our own queries that could not be opened for another reason.
        SocketNotOpened = error("transport.socket-not-opened"),
        /// Messages to the kernel that had to wait for room in the socket.
        LocalServiceBlocked = error("transport.local-service-blocked"),
        /// Messages that the socket to the kernel refused.
        LocalServiceNotSent = error("transport.local-service-not-sent"),
        /// MADs that a umad device did not take.
        MadNotSent = error("umad.not-sent"),
        /// How often a umad device was lost.
        UmadLost = error("umad.lost"),
        /// Messages from a umad device for another agent.
        UmadAgent = error("umad.other-agent"),
        /// Messages from a umad device that are too short.
        UmadTruncated = error("umad.malformed-truncated"),
        /// MADs that a umad device returned as unanswered and that are malformed.
        UmadMalformed = error("umad.malformed"),
        /// Snapshots of paths that were written completely.
        SnapshotWritten = normal("snapshot.written"),
        /// Snapshots of paths that could not be written; the previous one is kept.
        SnapshotNotWritten = error("snapshot.not-written"),
        /// Files that are not a snapshot of paths, or are damaged.
        SnapshotRefused = error("snapshot.refused"),
        /// Events about links, addresses, routes and policy rules.
        RtnetlinkEvent = normal("rtnetlink.event"),
        /// Dumps that were complete, and passed on.
        RtnetlinkDump = normal("rtnetlink.dump"),
        /// Dumps during which the kernel's tables changed (`NLM_F_DUMP_INTR`); each is repeated.
        RtnetlinkDumpInterrupted = error("rtnetlink.dump-interrupted"),
        /// Dumps during which events were lost; each is repeated.
        RtnetlinkDumpSpoiled = error("rtnetlink.dump-spoiled"),
        /// Dumps that the kernel refused or broke off; each is repeated.
        RtnetlinkDumpRefused = error("rtnetlink.dump-refused"),
        /// Messages of a dump that was given up.
        RtnetlinkStaleAnswer = error("rtnetlink.stale-answer"),
        /// How often events overflowed the socket; a dump follows each time.
        RtnetlinkOverrun = error("rtnetlink.overrun"),
        /// Datagrams that did not fit the buffer; a dump follows each.
        RtnetlinkOversized = error("rtnetlink.oversized"),
        /// Datagrams that another process sent to our rtnetlink sockets.
        RtnetlinkForeign = error("rtnetlink.foreign"),
        /// Datagrams with a message header that does not fit; a dump follows each.
        RtnetlinkMalformedHeader = error("rtnetlink.malformed-header"),
        /// Malformed messages, ignored.
        RtnetlinkMalformedMessage = error("rtnetlink.malformed-message"),
        /// How often an rtnetlink socket broke and was opened again.
        RtnetlinkReopened = error("rtnetlink.reopened"),
        /// Connections to the control socket that were served.
        ControlConnections = normal("control.connections"),
        /// Connections refused because their user had reached the limit.
        ControlUserFull = error("control.refused-user"),
        /// Connections refused because all were taken, and no user had more.
        ControlAllFull = error("control.refused-all"),
        /// Connections closed because there was no room for a user with fewer, or none.
        ControlGaveWay = error("control.gave-way"),
        /// Connections refused because the process had no descriptor left.
        ControlNoDescriptor = error("control.refused-descriptors"),
        /// Connections closed because no complete request came in time, or an answer was not read
        /// in time.
        ControlTimedOut = error("control.timed-out"),
        /// Sockets and directories that another program had removed, and that were made again.
        FileMadeAgain = error("transport.file-made-again"),
        /// Look-ups of a route that found one.
        RouteFound = normal("rtnetlink.route-found"),
        /// Look-ups of a route that found none, for a reason of the kernel.
        RouteNotFound = error("rtnetlink.route-not-found"),
        /// Look-ups of a neighbour that found an entry.
        NeighbourFound = normal("rtnetlink.neighbour-found"),
        /// Look-ups of a neighbour that found no entry.
        NeighbourNotFound = normal("rtnetlink.neighbour-not-found"),
        /// Look-ups of a route or neighbour repeated because answers were lost.
        RouteAskedAgain = error("rtnetlink.route-asked-again"),
        /// Answers about routes or neighbours that match no look-up.
        RouteUnasked = error("rtnetlink.route-unasked"),
        /// Look-ups of a route or neighbour not made because too many were queued.
        RouteRefused = error("rtnetlink.route-refused"),
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
    /// Adds one to `counter`.
    pub fn count(&self, counter: Counter) {
        self.0[counter.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// The value of `counter`.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter.index()].load(Ordering::Relaxed)
    }

    /// All counters with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }
}
