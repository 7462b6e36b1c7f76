// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The source address that routing chooses for a target. The kernel decides, because only it knows all rules and
//! metrics. A search costs several system calls, more than the rest of a request, so it is remembered for a second.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::request::LookupId;

/// A change of routes that brings no event is noticed after this.
const MEMORY: Duration = Duration::from_secs(1);

/// How many are remembered. Then all are forgotten.
const MOST: usize = 4096;

/// What is remembered, and the searches that wait for the kernel.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    by_target: HashMap<IpAddr, IpAddr>,
    until: Instant,
    /// A target is asked for once. The core bounds its searches.
    asked: HashMap<IpAddr, Vec<LookupId>>,
}

impl Sources {
    /// The source of packets to `target`, if it is remembered.
    pub(crate) fn to(&mut self, now: Instant, target: IpAddr) -> Option<IpAddr> {
        if self.until <= now {
            self.forget();
        }
        self.by_target.get(&target).copied()
    }

    /// A search waits for the source. Returns whether the kernel has to be asked.
    pub(crate) fn wait(&mut self, target: IpAddr, search: LookupId) -> bool {
        let searches = self.asked.entry(target).or_default();
        searches.push(search);
        searches.len() == 1
    }

    /// The kernel has answered. Returns the searches that wait for it.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        target: IpAddr,
        source: Option<IpAddr>,
    ) -> Vec<LookupId> {
        if let Some(source) = source {
            if self.by_target.len() >= MOST {
                self.forget();
            }
            if self.by_target.is_empty() {
                self.until = now + MEMORY;
            }
            self.by_target.insert(target, source);
        }
        self.asked.remove(&target).unwrap_or_default()
    }

    /// Addresses or routes may have changed.
    pub(crate) fn forget(&mut self) {
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
        let now = |millis: u64| Instant::from_nanos(5_000_000_000) + Duration::from_millis(millis);
        assert_eq!(sources.to(now(0), ip(1)), None);
        sources.answered(now(1), ip(1), Some(ip(7)));
        assert_eq!(sources.to(now(1000), ip(1)), Some(ip(7)));
        sources.answered(now(1000), ip(2), Some(ip(8)));
        assert_eq!([1, 2].map(|n| sources.to(now(1001), ip(n))), [None, None]);
        sources.answered(now(1002), ip(1), Some(ip(7)));
        sources.forget();
        assert_eq!(sources.to(now(1003), ip(1)), None);
    }

    #[test]
    fn no_more_sources_are_remembered_than_the_limit() {
        let mut sources = Sources::default();
        for n in 0..=MOST {
            sources.answered(Instant::from_nanos(1), ip(n), Some(ip(7)));
        }
        assert_eq!(sources.by_target.len(), 1);
    }
}
