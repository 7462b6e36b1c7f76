// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's log, and whether the kernel has warned or failed.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::{Context as _, Result, bail, ensure};
use nix::libc;

/// Warnings that the tested programs do not cause, as two parts of the line. On 6.1, rdmavt copies a
/// request into a union by the name of its first member, which the kernel's checks take for an
/// overrun (`rvt_post_one_wr` of drivers/infiniband/sw/rdmavt/qp.c). IPoIB does not wait for a connection that its
/// worker is about to destroy, so a queue is still in use when its interface goes (`ipoib_cm_dev_stop` of
/// drivers/infiniband/ulp/ipoib/ipoib_cm.c).
const EXCUSED: [(&str, &str); 3] = [
    ("rdmavt/qp.c:", "rvt_post_send+"),
    ("rdma/ib_verbs.h:", "ipoib_transport_dev_cleanup+"),
    ("rdma/ib_verbs.h:", "ipoib_cm_dev_cleanup+"),
];

/// Lines of the kernel's log.
///
/// # Errors
/// The beginning of the log is lost.
pub fn lines() -> Result<Vec<String>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
    let mut file = file.context("/dev/kmsg")?;
    let (mut lines, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        match file.read(&mut buffer) {
            Ok(length) => {
                // Priority, number, time and flags come before the semicolon.
                let record = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let (head, text) = record.split_once(';').context("a record without text")?;
                let number = head.split(',').nth(1).and_then(|number| number.parse().ok());
                ensure!(number == Some(lines.len()), "the beginning of the log is lost");
                lines.push(text.lines().next().unwrap_or_default().to_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(lines),
            Err(error) => return Err(error).context("the beginning of the log is lost"),
        }
    }
}

/// Fails if the kernel has warned or worse, whatever the command's status is.
pub fn is_sound() -> Result<()> {
    /// Bits of Documentation/admin-guide/tainted-kernels.rst.
    const WARNED: u64 = 1 << 9;
    /// Machine check, bad page, died, soft lockup.
    const WORSE: u64 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 14;
    let file = "/proc/sys/kernel/tainted";
    let tainted: u64 = fs::read_to_string(file).context(file)?.trim().parse().context(file)?;
    ensure!(tainted & WORSE == 0, "the kernel complained, {file} is {tainted}");
    if tainted & WARNED != 0 {
        let lines = lines().context("the kernel warned, and its log cannot be read")?;
        if let Some(warning) = unexcused(&lines) {
            bail!("the kernel warned: {warning}");
        }
    }
    // The kernel does not count the findings of its lock validator as warnings.
    let lockdep = fs::read_to_string("/proc/lockdep_stats").unwrap_or_default();
    ensure!(!has_found_a_lock(&lockdep), "the kernel's lock validator has found something");
    Ok(())
}

/// The validator switches itself off after its first finding (`debug_locks_off` in lib/debug_locks.c).
fn has_found_a_lock(lockdep_stats: &str) -> bool {
    let mut lines = lockdep_stats.lines().filter_map(|line| line.split_once(':'));
    lines.any(|(name, value)| name.trim() == "debug_locks" && value.trim() == "0")
}

fn unexcused(lines: &[String]) -> Option<&str> {
    let warnings = lines.iter().filter(|line| line.starts_with("WARNING: "));
    let is_excused = |line: &str| {
        EXCUSED.iter().any(|(place, function)| line.contains(place) && line.contains(function))
    };
    warnings.map(String::as_str).find(|line| !is_excused(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_validator_that_is_off_has_found_something() {
        let stats = |on| format!(" max lock depth:        17\n debug_locks:           {on:11}\n");
        assert!(has_found_a_lock(&stats(0)));
        assert!(!has_found_a_lock(&stats(1)));
        assert!(!has_found_a_lock(""), "most kernels have none");
    }

    #[test]
    fn only_the_known_warnings_are_excused() {
        let of_ipoib = "WARNING: CPU: 1 PID: 9 at include/rdma/ib_verbs.h:3914 \
                        ipoib_transport_dev_cleanup+0xb5/0xc0 [ib_ipoib]";
        assert_eq!(unexcused(&[of_ipoib.to_owned()]), None);
        let known = "WARNING: CPU: 1 PID: 35 at drivers/infiniband/sw/rdmavt/qp.c:2041 \
                     rvt_post_send+0x7e6/0x8a0 [rdmavt]";
        let other = known.replace("rvt_post_send", "rvt_qp_exit");
        let lines = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        assert_eq!(unexcused(&lines(&["------------[ cut here ]------------", known])), None);
        assert_eq!(unexcused(&lines(&[known, &other])), Some(&other[..]));
    }
}
