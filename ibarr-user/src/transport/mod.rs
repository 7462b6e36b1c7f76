// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Bytes between file descriptors and channels, and nothing else: no retries, no caches, no
//! decisions.
//!
//! | channel | from → to | depth | when full |
//! |---|---|---|---|
//! | batches | server sockets → engine | [`BATCHES`]: one a socket, which then waits for its replies | the socket waits, the kernel's receive buffer drops |
//! | datagrams | query sockets → engine | [`DATAGRAMS`]: twice the pending table's burst that one wake-up can bring | newest dropped, `transport.reply-dropped` |
//! | asks | control connections → engine | [`ASKS`]: one a connection | the connection waits |

pub mod queries;
pub mod rtnetlink;
pub mod server;

use std::sync::atomic::{AtomicU64, Ordering};

/// See the table above.
pub const BATCHES: usize = 2;
/// See the table above.
pub const DATAGRAMS: usize = 8192;
/// See the table above.
pub const ASKS: usize = 32;

/// What a transport counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Counter {
    /// The kernel refused a query of ours, or its buffer was full; it is sent again by schedule.
    QueryNotSent,
    /// The kernel refused a reply of ours, say for want of a route back.
    ReplyNotSent,
    /// More datagrams came to our query sockets than the engine took.
    ReplyDropped,
    /// recvmsg(2) failed.
    ReceiveFailed,
    /// A socket for our own queries could not be opened.
    SocketNotOpened,
}

impl Counter {
    /// Every counter.
    pub const ALL: [Self; 5] = [
        Self::QueryNotSent,
        Self::ReplyNotSent,
        Self::ReplyDropped,
        Self::ReceiveFailed,
        Self::SocketNotOpened,
    ];

    /// As `ibarr counters` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueryNotSent => "transport.query-not-sent",
            Self::ReplyNotSent => "transport.reply-not-sent",
            Self::ReplyDropped => "transport.reply-dropped",
            Self::ReceiveFailed => "transport.receive-failed",
            Self::SocketNotOpened => "transport.socket-not-opened",
        }
    }
}

/// The counters of all transports.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; Counter::ALL.len()]);

impl Counters {
    /// One more.
    pub fn count(&self, counter: Counter) {
        self.0[counter as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let value = |counter: Counter| self.0[counter as usize].load(Ordering::Relaxed);
        Counter::ALL.into_iter().map(move |counter| (counter.name(), value(counter)))
    }
}
