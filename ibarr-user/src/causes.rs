// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::error::Error;
use std::fmt::Write as _;

/// An error and what caused it, on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a String cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
