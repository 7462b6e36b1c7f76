// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Hosts on other machines or in virtual machines: each has the device of one channel adapter, and exchanges its
//! packets with the fabric in datagrams. Both ends are state machines without I/O: [`Hosts`] is the fabric's, [`Host`]
//! that of a host.
//!
//! A host joins in three steps. Its hello has a random number; the fabric's challenge repeats it and adds one of its
//! own, which is good for one join to that node; the host's join repeats both. The two numbers are the session. What
//! has those of another session is refused, so that a datagram of the past changes nothing.
//!
//! With a key, each datagram ends with a code ([`Key`]) over all its bytes, and none is believed without. Without
//! one the session keeps only stray datagrams away: then a caller should use addresses of its own machine alone
//! ([`Address::is_local`]).
//!
//! Datagrams may be lost, doubled and overtake each other, as packets may. A host says once a second that it is
//! there, and the fabric answers with the state of its ports, so that a loss is repaired. An end that has heard
//! nothing for five seconds takes the session for ended.

mod address;
mod datagram;
mod host;
mod hosts;
mod key;
mod message;
mod session;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use address::{Address, AddressError};
pub use datagram::MAX_DATAGRAM;
pub use host::{Event, Host};
pub use hosts::Hosts;
pub use key::{Key, MIN_KEY_LEN, ShortKey};
pub use message::Message;

/// The version of the protocol. Datagrams of version 1 did not say so, and had no code.
pub const VERSION: u8 = 2;

/// Interval between messages of a host.
pub const ALIVE: Duration = Duration::from_secs(1);

/// An end that has been silent for so long is gone.
pub const GONE: Duration = Duration::from_secs(5);

/// Why a datagram was refused. It then changes nothing.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Refusal {
    /// It is not of this protocol, or says what its sender may not say.
    Malformed,
    /// It is of this version of the protocol.
    Version(u8),
    /// It has no code, and there is a key here.
    NoKey,
    /// It has a code, and there is no key here.
    NoKeyHere,
    /// Its code is not that of its bytes with the key of this end.
    Key,
    /// It is of no session, or of one that has ended.
    Session,
    /// Its number was received before, or is older than what can be remembered.
    Replayed,
    /// Its sender wants to be the host of a node that may have none elsewhere.
    Node,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Malformed => "no datagram of ibfab",
            Self::Version(version) => {
                return write!(
                    f,
                    "version {version} of joining, and {VERSION} is spoken here: install the same ibfab on both machines"
                );
            }
            Self::NoKey => "sent without a key: give `ibfab` the same --key on both machines",
            Self::NoKeyHere => "sent with a key: give `ibfab` the same --key on both machines",
            Self::Key => "sent with another key, or changed on its way",
            Self::Session => "of no session, or of one that has ended",
            Self::Replayed => "received before, or late",
            Self::Node => "for a node that is no channel adapter here, or whose device is here",
        };
        f.write_str(text)
    }
}

/// Number of refused datagrams by reason: at most one entry for each version and for each other reason.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Refusals(BTreeMap<Refusal, u64>);

impl Refusals {
    /// Counts one. Whether it is the first for its reason, which is worth a line in the log.
    pub fn count(&mut self, refusal: Refusal) -> bool {
        let count = self.0.entry(refusal).or_default();
        *count += 1;
        *count == 1
    }

    /// The number for one reason.
    pub fn of(&self, refusal: Refusal) -> u64 {
        self.0.get(&refusal).copied().unwrap_or_default()
    }

    /// All reasons with a number above 0.
    pub fn iter(&self) -> impl Iterator<Item = (Refusal, u64)> {
        self.0.iter().map(|(refusal, count)| (*refusal, *count))
    }
}
