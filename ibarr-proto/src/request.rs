// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The names of requests and their senders, how old an answer may be, and the result of a request for an address.

use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::Seq;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::places::User;

/// A request to a core, repeated in its answer. Those for addresses and those for paths have numbers of their own. A
/// user's may be reused after the answer.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum RequestId {
    /// From a user of this node.
    User(UserRequest),
    /// From the kernel.
    Kernel(KernelRequest),
}

/// A request of a user of this node.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum UserRequest {
    /// Over the control socket, by the driver's number of it, which may be reused after the answer.
    Control(u64),
    Acm(ResolutionId),
}

/// Identifies what the ACM service searches for a client. Never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ResolutionId(pub(crate) u64);

/// A request of the kernel. Never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct KernelRequest {
    pub(crate) number: u64,
    /// The kernel's own number, which leads to the request.
    pub(crate) seq: Seq,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(Deserialize, Serialize),
    serde(tag = "by", content = "uid", rename_all = "kebab-case")
)]
pub enum Caller {
    /// The kernel's RDMA core.
    Kernel,
    /// A user, over the control socket.
    Control(User),
    /// A user, over ACM.
    Acm(User),
}

impl Caller {
    /// Whether an application waits in the kernel.
    pub fn is_kernel(self) -> bool {
        self == Self::Kernel
    }

    /// The user; `None` for the kernel.
    pub fn user(self) -> Option<User> {
        match self {
            Self::Kernel => None,
            Self::Control(user) | Self::Acm(user) => Some(user),
        }
    }
}

impl UserRequest {
    /// The sender of a request that `user` has made.
    pub fn caller(self, user: User) -> Caller {
        match self {
            Self::Control(_) => Caller::Control(user),
            Self::Acm(_) => Caller::Acm(user),
        }
    }
}

ibarr_common::words! {
    /// Which answers a caller waits for.
    #[derive(Default)]
    Freshness {
        /// What is remembered, or else what the network says.
        #[default]
        Any = "any",
        /// What is remembered alone.
        Memory = "memory",
        /// What the network says now, even if something is remembered. A question in flight is joined.
        Fresh = "peer",
    }
}

ibarr_common::outcomes! {
    /// The result of a request for an address.
    Outcome {
        /// The address has a GID.
        Found {
            /// The GID of the address.
            gid: Gid,
            /// The origin of the answer.
            source: Source,
        } = "found",
        /// It has none: its host says so, or it is an address of this node without one.
        NotFound = "not-found",
        /// Its host did not answer within the deadline.
        TimedOut = "timed-out",
        /// ICMP reports that no socket is bound to the port, or that a firewall rejects queries. Only
        /// users' requests end so.
        Refused = "refused",
        /// There is no route to it.
        Unreachable = "unreachable",
        /// A bound was reached: no query was sent, or none is sent again.
        Overloaded = "overloaded",
    }
    /// The result of a request for an address, as documents have it.
    Status {
        /// The daemon remembers no answer, and was told to ask nothing.
        NotRemembered = "not-remembered",
    }
}

impl Outcome {
    /// Its status, and the GID and its origin if found.
    pub fn parts(self) -> (Status, Option<Gid>, Option<Source>) {
        let (gid, source) = match self {
            Self::Found { gid, source } => (Some(gid), Some(source)),
            _ => (None, None),
        };
        (self.into(), gid, source)
    }
}

ibarr_common::words! {
    /// The origin of an answer.
    Source {
        /// The local view.
        Local = "local",
        /// The cache.
        Cache = "cache",
        /// A reply of a peer.
        Peer = "peer",
        /// The kernel's neighbour entry, of a peer that does not reply.
        Neighbour = "neighbour",
    }
}
