// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets that queries leave from. A reply must come to the socket that its query left from, so
//! their random ports are part of what somebody who does not see the query would have to guess.

use std::fmt;

use super::super::Family;

/// Names a UDP socket bound to an unspecified address of its family and a random port. Never used
/// again for another socket.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SocketId {
    family: Family,
    slot: u8,
    generation: u32,
}

impl SocketId {
    /// The family of the socket.
    pub fn family(self) -> Family {
        self.family
    }
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, slot, generation } = self;
        write!(f, "{family} socket {slot}.{generation}")
    }
}
