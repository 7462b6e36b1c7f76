// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The state of the daemon in one line, for `systemctl status`.

use crate::control::messages::{PortStatus, Status};

/// The longest list of names.
const NAMES: usize = 4;

/// Ports, subnet administrators, paths, and the answers of the kernel and of the daemon.
pub(super) fn of(status: &Status) -> String {
    let mut parts = Vec::new();
    let active: Vec<_> = status.ports.iter().filter(|port| port.active).collect();
    if !active.is_empty() {
        parts.push(count(active.len(), "port"));
        let is_silent = |port: &&PortStatus| port.blocked.is_some() || port.probing.is_some();
        let silent = active.iter().copied().filter(is_silent).map(|port| port.port.to_string());
        parts.push(names(silent).map_or("SA answers".to_owned(), |of| format!("no SA on {of}")));
        parts.push(count(status.cached_paths, "path"));
    }
    let served = || status.interfaces.iter().filter(|interface| !interface.addresses.is_empty());
    let (kernel, daemon): (Vec<_>, Vec<_>) =
        served().partition(|interface| interface.responder.is_some());
    for (who, interfaces) in [("kernel", kernel), ("daemon", daemon)] {
        let interfaces = interfaces.into_iter().map(|interface| interface.name.clone());
        parts.extend(names(interfaces).map(|on| format!("{who} answers on {on}")));
    }
    if served().next().is_none() {
        parts.push("no address is answered".to_owned());
    }
    if status.failed_reload.is_some() {
        parts.push("last reload refused".to_owned());
    }
    if !status.warnings.is_empty() {
        parts.push(format!("{} (ibarr status)", count(status.warnings.len(), "warning")));
    }
    parts.join(", ")
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// The first names of a list, and how many more there are; `None` if there is none.
fn names(names: impl Iterator<Item = String>) -> Option<String> {
    let mut names: Vec<_> = names.collect();
    let more = names.len().saturating_sub(NAMES);
    names.truncate(NAMES);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_list_of_names_is_cut() {
        let all = ["ib0", "ib1", "ib2", "ib3", "ib4", "ib5"].map(str::to_owned);
        assert_eq!(names([].into_iter()), None);
        assert_eq!(names(all[..2].iter().cloned()).as_deref(), Some("ib0, ib1"));
        assert_eq!(names(all.into_iter()).as_deref(), Some("ib0, ib1, ib2, ib3, 2 more"));
    }
}
