// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Why programs do not answer, and who can mend it.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use ibarr_proto::local_view::InterfaceName;
use ibarr_proto::responder::{Hook, Kind, NotLoaded};
use thiserror::Error;

use super::{hooks, map, pins, rights};

use crate::causes::Fault;

/// Why the programs do not answer.
#[derive(Debug, Error)]
pub enum Error {
    /// The object named by `IBARR_BPF_OBJECT` cannot be read.
    #[error("BPF object {}: cannot be read", path.display())]
    Object {
        /// Path of the object.
        path: PathBuf,
        /// The error of read(2).
        source: io::Error,
    },
    /// The object lacks a program of the responder.
    #[error("BPF object: has no program {0}")]
    NotInObject(&'static str),
    /// The daemon lacks a privilege.
    #[error(
        "BPF programs: not permitted; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Permission(#[source] Box<dyn StdError + Send + Sync>),
    /// A kernel before Linux 5.11 charges maps to the limit of locked memory, and they are larger.
    #[error(
        "BPF programs: need more locked memory than {} KiB on a kernel before Linux 5.11: \
         set LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited before the start", .limit / 1024
    )]
    LockedMemory {
        /// Bytes.
        limit: u64,
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The daemon has the privileges, and something else forbids bpf(2).
    #[error(
        "BPF programs: a seccomp filter forbids bpf(2), although the daemon has the capabilities; let it through: \
         SystemCallFilter=bpf in a unit, --security-opt seccomp=PROFILE for a container"
    )]
    Seccomp(#[source] Box<dyn StdError + Send + Sync>),
    /// The kernel refuses the object or a program.
    #[error("BPF programs: cannot be loaded")]
    Load(#[source] Box<dyn StdError + Send + Sync>),
    /// The kernel lacks a helper that the program calls.
    #[error("BPF program {program}: needs Linux 5.10 or later: {reason}")]
    TooOld {
        /// Name of the program.
        program: &'static str,
        reason: String,
    },
    /// The verifier refuses the program.
    #[error("BPF program {program}: refused by the kernel's verifier: {reason}; {kept}")]
    Verifier {
        /// Name of the program.
        program: &'static str,
        /// The verifier's last line that is not a statistic.
        reason: String,
        /// Where the whole log is.
        kept: String,
    },
    /// The directory of pins cannot be used.
    #[error("pins")]
    Pins(#[from] pins::Error),
    /// A map cannot be opened, read or written.
    #[error(transparent)]
    Map(#[from] map::Error),
    /// A program cannot be attached.
    #[error("{interface}, {hook}")]
    Attach {
        /// Name of the interface.
        interface: InterfaceName,
        hook: Hook,
        /// The error of the hook.
        source: hooks::Error,
    },
    /// A program or qdisc cannot be removed.
    #[error(transparent)]
    NotDetached(#[from] hooks::NotDetached),
    /// Filters of another network namespace cannot be reached.
    #[error(
        "{}: has filters in another network namespace; run this there (nsenter --net=...)",
        .0.display()
    )]
    Elsewhere(PathBuf),
    /// The programs cannot be loaded, and the objects made for them cannot be removed.
    #[error(
        "{}; besides, objects made for it cannot be removed: {}",
        Fault::from(cause),
        Fault::from(undo)
    )]
    NotUndone {
        /// Why they cannot be loaded.
        cause: Box<Error>,
        /// Why the objects cannot be removed.
        undo: pins::Error,
    },
    /// The guard cannot be attached to a socket.
    #[error("guard of the server sockets: cannot be attached")]
    Guard(#[source] Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// Whether more privileges would help.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::NotUndone { cause, .. } => cause.is_permission(),
            // The remedy is another.
            Self::LockedMemory { .. } | Self::Seccomp(_) => false,
            error => is_permission(error),
        }
    }

    /// Whether another directory of pins would help.
    pub fn is_of_the_directory(&self) -> bool {
        use pins::Error::{Foreign, NoName, Open, Owner};
        matches!(self, Self::Pins(Foreign { .. } | NoName(_) | Open { .. } | Owner { .. }))
    }

    /// Whether a daemon has the directory of pins.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Pins(pins::Error::Taken(_)))
    }

    pub(super) fn load(error: Box<dyn StdError + Send + Sync>) -> Self {
        if rights::is_filtered() {
            return Self::Seccomp(error);
        }
        if !is_permission(&*error) {
            return Self::Load(error);
        }
        match rights::limit_of_maps() {
            Some(limit) => Self::LockedMemory { limit, source: error },
            None => Self::Permission(error),
        }
    }
}

fn is_permission(error: &(dyn StdError + 'static)) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|io| io.kind() == io::ErrorKind::PermissionDenied)
        || error.source().is_some_and(is_permission)
}

impl From<Error> for NotLoaded {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Pins(pins::Error::Taken(_)) => Kind::Taken,
            Error::Pins(_) => Kind::Pins,
            _ => Kind::Other,
        };
        Self { fault: error.into(), kind }
    }
}
