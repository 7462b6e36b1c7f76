// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The source address that routing chooses for a target. The kernel decides, because only it knows all rules and
//! metrics. A search costs five system calls, more than the rest of a request, so it is remembered for a second.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;

/// A change of routes that brings no event is noticed after this.
const MEMORY: Duration = Duration::from_secs(1);

/// How many are remembered. Then all are forgotten.
const MOST: usize = 4096;

/// What is remembered.
#[derive(Debug, Default)]
pub struct Sources {
    by_target: HashMap<IpAddr, IpAddr>,
    until: Instant,
}

impl Sources {
    /// The source of packets to `target`, remembered or found by `find`.
    pub fn to(
        &mut self,
        now: Instant,
        target: IpAddr,
        find: impl FnOnce(IpAddr) -> Option<IpAddr>,
    ) -> Option<IpAddr> {
        if self.until <= now {
            self.forget();
            self.until = now + MEMORY;
        }
        if let Some(source) = self.by_target.get(&target) {
            return Some(*source);
        }
        let source = find(target)?;
        if self.by_target.len() >= MOST {
            self.forget();
        }
        self.by_target.insert(target, source);
        Some(source)
    }

    /// Addresses or routes may have changed.
    pub fn forget(&mut self) {
        self.by_target.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(n: usize) -> IpAddr {
        Ipv4Addr::from_bits(u32::try_from(n).unwrap()).into()
    }

    #[test]
    fn source_is_searched_again_after_a_change_and_after_a_second() {
        let mut sources = Sources::default();
        let at = |sources: &mut Sources, millis: u64, found| {
            let now = Instant::from_nanos(5_000_000_000) + Duration::from_millis(millis);
            sources.to(now, ip(1), |_| found)
        };
        assert_eq!(at(&mut sources, 0, None), None);
        assert_eq!(at(&mut sources, 1, Some(ip(7))), Some(ip(7)), "no route is not remembered");
        assert_eq!(at(&mut sources, 999, Some(ip(8))), Some(ip(7)));
        assert_eq!(at(&mut sources, 1000, Some(ip(8))), Some(ip(8)));
        sources.forget();
        assert_eq!(at(&mut sources, 1001, Some(ip(9))), Some(ip(9)));
    }

    #[test]
    fn no_more_sources_are_remembered_than_the_limit() {
        let mut sources = Sources::default();
        for n in 0..=MOST {
            sources.to(Instant::from_nanos(1), ip(n), |_| Some(ip(7)));
        }
        assert_eq!(sources.by_target.len(), 1);
    }
}
