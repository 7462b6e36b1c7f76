// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which counters are of something that went wrong: all but these. A counter that is new is shown.

/// Whether `counter` counts what went wrong, was dropped or was left to others.
pub(super) fn is_error(counter: &str) -> bool {
    let is_of_users = counter.starts_with("users.");
    let is_normal = match counter.rsplit_once('.') {
        Some((_, "answered")) => true,
        Some((_, "requests" | "admitted")) if is_of_users => true,
        _ => NORMAL.contains(&counter),
    };
    !is_normal
}

/// Counters of what a daemon that works does, too.
const NORMAL: &[&str] = &[
    "acm.address-from-memory",
    "acm.address-from-peer",
    "acm.names-asked",
    "acm.names-from-memory",
    "acm.not-remembered",
    "acm.path-from-memory",
    "acm.path-from-sa",
    "acm.requests",
    "control.connections",
    "ip2gid.client.cache-hits",
    "ip2gid.client.cancelled",
    "ip2gid.client.found",
    "ip2gid.client.joined",
    "ip2gid.client.neighbours",
    "ip2gid.client.queries",
    "ip2gid.client.queued",
    "ip2gid.client.refreshes",
    "ip2gid.client.repeated-request",
    "ip2gid.client.replies",
    "ip2gid.client.requests",
    "ip2gid.client.restored",
    "ip2gid.client.sockets-opened",
    "ip2gid.server.answered-negative",
    "local-service.answered-cache",
    "local-service.answered-local",
    "local-service.answered-peer",
    "local-service.confirmations",
    "local-service.duplicates-answered",
    "local-service.duplicates-waiting",
    "local-service.nudges",
    "local-service.nudges-postponed",
    "local-service.nudges-repeated",
    "local-service.path-requests",
    "local-service.paths-answered",
    "local-service.requests",
    "local-service.superseded",
    "local-view.dumps-done",
    "local-view.neighbour-dumps-done",
    "local-view.route-dumps-done",
    "paths.asked-again",
    "paths.canaries",
    "paths.doubts",
    "paths.doubts-asked",
    "paths.events",
    "paths.found-cache",
    "paths.found-sa",
    "paths.informs",
    "paths.joined",
    "paths.preloaded",
    "paths.refreshes",
    "paths.reports",
    "paths.reports-doubted",
    "paths.reports-unknown",
    "paths.requests",
    "paths.restored",
    "responder.attached",
    "responder.lease-renewals",
    "rtnetlink.dump",
    "rtnetlink.event",
    "rtnetlink.neighbour-found",
    "rtnetlink.neighbour-not-found",
    "rtnetlink.route-found",
    "sa.opened",
    "sa.probes",
    "sa.queries",
    "sa.questions",
    "snapshot.written",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::descriptions;

    #[test]
    fn every_normal_counter_exists_and_the_rest_are_errors() {
        let known: Vec<_> = descriptions().map(|(name, _)| name).collect();
        for name in NORMAL {
            assert!(known.iter().any(|known| known == name), "{name}");
        }
        for (name, error) in [
            ("bpf.tc.answered", false),
            ("bpf.tc.lease-over", true),
            ("users.paths.requests", false),
            ("users.paths.refused", true),
            ("sa.silent", true),
            ("a-new-one", true),
        ] {
            assert_eq!(is_error(name), error, "{name}");
        }
    }
}
