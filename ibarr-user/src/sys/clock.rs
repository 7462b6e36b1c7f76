// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The only clock of the daemon: `CLOCK_BOOTTIME` of the machine, which BPF programs read, too. A process in a time
//! namespace gets another one from the kernel (time_namespaces(7)).

use std::fs;
use std::sync::OnceLock;

use ibarr_common::Instant;
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::time::{ClockId, clock_gettime};

/// The time now, on the clock that cores, maps and lease share.
///
/// # Panics
/// Never on Linux 2.6.39 or later, which has `CLOCK_BOOTTIME`.
pub fn now() -> Instant {
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME exists");
    Instant::from_nanos(since_boot.num_nanoseconds().saturating_sub(offset()).max(0).unsigned_abs())
}

/// `at` on the clock that the kernel shows this process; never zero.
pub(super) fn shown(at: Instant) -> TimeSpec {
    let nanos = i64::try_from(at.as_nanos()).unwrap_or(i64::MAX);
    TimeSpec::nanoseconds(nanos.saturating_add(offset()).max(1))
}

/// How far the clock of this process's time namespace is ahead, in nanoseconds. It is the same for all its life.
fn offset() -> i64 {
    static OFFSET: OnceLock<i64> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        let namespace = |name| fs::read_link(format!("/proc/self/ns/{name}")).ok();
        // The file is about the namespace of later children. exec(2) enters it.
        if namespace("time") != namespace("time_for_children") {
            return 0;
        }
        fs::read_to_string("/proc/self/timens_offsets")
            .ok()
            .and_then(|text| parse(&text))
            .unwrap_or(0)
    })
}

fn parse(offsets: &str) -> Option<i64> {
    let mut numbers =
        offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_whitespace();
    let mut number = || numbers.next()?.parse::<i64>().ok();
    number()?.checked_mul(1_000_000_000)?.checked_add(number()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_of_a_time_namespace_is_read_from_its_file() {
        let parse = |boottime| parse(&format!("monotonic  7  0\nboottime  {boottime}\n"));
        assert_eq!(parse("0  0"), Some(0));
        assert_eq!(parse("100000         5"), Some(100_000_000_000_005));
        assert_eq!(parse("-2 500000000"), Some(-1_500_000_000));
        for wrong in ["", "7", "x 0", "9223372036854775807 0"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
