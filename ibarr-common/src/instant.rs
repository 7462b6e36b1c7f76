// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Points on the clock that daemon and programs share.

use core::fmt;
use core::ops::{Add, AddAssign};
use core::time::Duration;

/// A point in time: nanoseconds of `CLOCK_BOOTTIME`, which continues during suspend and which BPF
/// programs read with `bpf_ktime_get_boot_ns`.
///
/// All arithmetic saturates: 2⁶⁴ ns are 584 years.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(u64);

impl Instant {
    /// The boot of the machine.
    pub const BOOT: Self = Self(0);

    /// Takes nanoseconds since boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl fmt::Display for Instant {
    /// Seconds since boot, as the kernel log prints them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since_boot = Duration::from_nanos(self.0);
        write!(f, "{}.{:06}", since_boot.as_secs(), since_boot.subsec_micros())
    }
}

crate::serde_as_number! { Instant, u64: |nanos| Some(Instant::from_nanos(nanos)), Instant::as_nanos; }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let last = Instant::from_nanos(u64::MAX);
        assert_eq!(last + Duration::from_secs(1), last);
        assert_eq!(Instant::BOOT + Duration::MAX, last);
        assert_eq!(Instant::BOOT.since(last), Duration::ZERO);
    }
}
