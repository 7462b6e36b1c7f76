// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the daemon lacks to load programs, as far as this can be found out.

use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::utsname::uname;

use crate::sys::bpf;

/// Bits of include/uapi/linux/capability.h; CAP_SYS_ADMIN includes the others.
const SYS_ADMIN: u64 = 1 << 21;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

pub(super) fn lacks_perfmon() -> bool {
    effective_capabilities().is_some_and(|bits| bits & (SYS_ADMIN | PERFMON) == 0)
}

/// The limit of locked memory in bytes, if that may be why a process with CAP_BPF can make no maps.
pub(super) fn limit_of_maps() -> Option<u64> {
    let has_bpf = effective_capabilities().is_some_and(|bits| bits & (SYS_ADMIN | BPF) != 0);
    let release = uname().ok()?.release().to_string_lossy().into_owned();
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (has_bpf && limit != RLIM_INFINITY && charges_maps(&release)).then_some(limit)
}

/// Whether a seccomp filter forbids bpf(2) to a process with CAP_BPF. It is tried.
pub(super) fn is_filtered() -> bool {
    let has_bpf = effective_capabilities().is_some_and(|bits| bits & (SYS_ADMIN | BPF) != 0);
    let has_filter = own("Seccomp:").is_some_and(|mode| mode == "2");
    has_bpf && has_filter && bpf::is_forbidden()
}

fn effective_capabilities() -> Option<u64> {
    u64::from_str_radix(&own("CapEff:")?, 16).ok()
}

/// A value in the status of this thread.
fn own(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// Whether the kernel `release` charges maps to the limit of locked memory. Linux 5.11 charges them to the
/// control group.
pub(crate) fn charges_maps(release: &str) -> bool {
    let mut numbers = release.split(['.', '-', '+']).map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version < (5, 11))
}

#[cfg(test)]
mod tests {
    use super::charges_maps;

    #[test]
    fn maps_count_as_locked_memory_before_linux_5_11() {
        for old in ["5.10.0-35-amd64", "5.4.0", "4.18.0-553.el8_10.x86_64"] {
            assert!(charges_maps(old), "{old}");
        }
        for new in ["5.11.0", "6.1.0-44-amd64", "7.2.13+deb14-amd64", ""] {
            assert!(!charges_maps(new), "{new}");
        }
    }
}
