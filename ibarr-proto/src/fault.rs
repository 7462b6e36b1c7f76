// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Why something fails, in words for people.

use alloc::format;
use alloc::string::ToString as _;
use alloc::sync::Arc;
use core::error::Error;
use core::{fmt, iter};

/// Why the operating system, a file or another process does not do its part: an error with its causes on one
/// line, and the remedy if there is one. People read it; what code decides by is an enum beside it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault(Arc<str>);

impl Fault {
    /// A fault that is no error of the operating system, or needs more words.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }
}

impl<E: Error> From<E> for Fault {
    fn from(error: E) -> Self {
        let causes = iter::successors(error.source(), |&cause| cause.source());
        Self::new(causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}")))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
