// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tables that pages have between two marks, made from results.

pub(crate) const BEGIN: &str = "<!-- made by cargo xtask systems -->\n";
pub(crate) const END: &str = "<!-- end -->\n";

/// `page` with this table. None if it has no place for one.
pub(crate) fn with_table(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}
