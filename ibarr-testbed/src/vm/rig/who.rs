// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What `ibarr` is compared with when an address moves.

use std::fmt;

/// Who finds the GID of an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Who {
    Ibarr,
    AlwaysAsks,
    KernelAlone,
}

impl Who {
    pub(crate) const ALL: [Self; 3] = [Self::Ibarr, Self::AlwaysAsks, Self::KernelAlone];

    /// The configuration of the daemon.
    pub(crate) fn config(self) -> &'static str {
        if self == Self::AlwaysAsks { "[client]\nfresh-for = \"0s\"\n" } else { "" }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ibarr => "ibarr",
            Self::AlwaysAsks => "an ibarr that always asks",
            Self::KernelAlone => "the kernel alone",
        })
    }
}
