// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which word was meant by one that nothing knows.

/// Whether `typed` could be a typing error for `known`: equal except for `_`, case and two letters.
pub(crate) fn are_near(known: &str, typed: &str) -> bool {
    let typed = typed.to_lowercase().replace('_', "-");
    strsim::levenshtein(known, &typed) <= 2
}
