// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Divides the descriptors among the parts of the daemon. Query sockets and control connections are
//! opened on behalf of others, so they get only what leaves room for the rest.

use ibarr_proto::health::FewDescriptors;

use crate::control::places;
use crate::sys;

/// The shares of the descriptor limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Budget {
    limit: u64,
    /// Query sockets of each IP version; the same number may be in grace.
    pub query_sockets: u8,
    /// Connections to the control socket.
    pub connections: usize,
    pub acm_clients: usize,
}

/// Descriptors for all else: about 50 with BPF programs, two for each interface and port, files
/// that are read, and about 25 for the metrics.
const REST: u64 = 104;
/// The largest configurable number of query sockets.
const MOST_SOCKETS: u64 = 64;
const MOST_ACM_CLIENTS: u64 = 12_000;

impl Budget {
    /// The shares of the hard limit, to which the soft limit is raised.
    pub fn take() -> Self {
        // 1,024 is the usual default.
        Self::of(sys::descriptors::raise_limit().unwrap_or(1024))
    }

    fn of(limit: u64) -> Self {
        let left = limit.saturating_sub(REST);
        let query_sockets = (left / 2 / 4).clamp(1, MOST_SOCKETS);
        let most = u64::try_from(places::CONTROL.all).unwrap_or(u64::MAX);
        let connections = left.saturating_sub(query_sockets * 4).clamp(6, most);
        let rest = left.saturating_sub(query_sockets * 4 + connections);
        Self {
            limit,
            query_sockets: u8::try_from(query_sockets).unwrap_or(1),
            connections: usize::try_from(connections).unwrap_or(6),
            acm_clients: usize::try_from(rest.min(MOST_ACM_CLIENTS)).unwrap_or(0),
        }
    }

    /// Whether this is less than a daemon with `sockets` configured query sockets needs.
    pub fn shortage(&self, sockets: u8) -> Option<FewDescriptors> {
        let Self { limit, query_sockets, connections, .. } = *self;
        let is_enough = query_sockets >= sockets && connections == places::CONTROL.all;
        (!is_enough).then_some(FewDescriptors { limit, query_sockets, connections })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_room_for_the_rest() {
        for limit in 0..5000 {
            let budget = Budget::of(limit);
            let most = u64::from(budget.query_sockets) * 4
                + budget.connections as u64
                + budget.acm_clients as u64;
            assert!(most + REST <= limit.max(REST + 4 + 6), "{budget:?}");
            assert!(budget.query_sockets >= 1 && budget.connections >= 6);
        }
        assert_eq!(Budget::of(1024).shortage(32), None);
        assert_eq!(Budget::of(1024).shortage(64), None);
        assert_eq!(Budget::of(256).shortage(32).unwrap().limit, 256);
    }
}
