// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Why replies of `ibarr` differ from those of ibacm.

use super::compare::Difference;

pub(super) fn of(_difference: &Difference) -> Option<&'static str> {
    None
}
