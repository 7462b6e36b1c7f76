// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Whether a rule of nftables may keep the queries of peers from the daemon.

use super::rules::{Kind, Lost, Way, suspects};
use crate::control::messages::Check;

/// Its name in the document.
const CHECK: &str = "firewall";

/// Examines the rules of this network namespace.
pub(super) fn check(port: u16) -> Check {
    let found = suspects(Lost { way: Way::In, kind: Kind::Query, port, peer: None });
    if found.rules.is_empty() {
        return Check::skipped(CHECK, format!("not proven: {}", found.remedy));
    }
    let rules = found.rules.join("; ");
    Check::fail(CHECK, format!("{rules} drops the queries of peers"), found.remedy)
}
