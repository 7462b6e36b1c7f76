// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Descriptors that the parent process opened for the daemon (sd_listen_fds(3)).

#![expect(unsafe_code, reason = "a number becomes the descriptor that it stands for")]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, process};

use nix::libc;

/// `SD_LISTEN_FDS_START`.
const FIRST: RawFd = 3;

/// The inherited descriptors with their names (`FDNAME=`, `FileDescriptorName=`), once in the life of the process;
/// and what is wrong with the variables that list them. Call it before anything else opens a descriptor.
pub(crate) fn take() -> (Vec<(String, OwnedFd)>, Option<String>) {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return (Vec::new(), None);
    }
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let [pid, count, names] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"].map(variable);
    match (pid, count) {
        (Some(pid), Some(count)) => all(process::id(), &pid, &count, names.as_deref(), claim),
        _ => (Vec::new(), None),
    }
}

/// Takes the descriptors that the variables list. Those that are there follow one another, so the first one that is not
/// there is the end, whatever number the variable has.
fn all<T>(
    this: u32,
    pid: &str,
    count: &str,
    names: Option<&str>,
    claim: impl FnMut(RawFd) -> Option<T>,
) -> (Vec<(String, T)>, Option<String>) {
    let none = |why: String| (Vec::new(), Some(format!("{why}: no inherited descriptor is used")));
    let Ok(count) = count.parse::<u16>() else {
        return none(format!("LISTEN_FDS is {count:?}, and no number up to {}", u16::MAX));
    };
    if pid.parse() != Ok(this) {
        return none(format!(
            "LISTEN_PID is {pid:?}, and this process is {this} (a script starts it by exec)"
        ));
    }
    let taken: Vec<T> = (FIRST..FIRST + RawFd::from(count)).map_while(claim).collect();
    let names: Option<Vec<_>> = names.map(|names| names.split(':').collect());
    let are_wrong = names.as_ref().is_some_and(|names| names.len() != usize::from(count));
    let wrong = if are_wrong {
        Some(format!("LISTEN_FDNAMES has not {count} names, which is LISTEN_FDS: none counts"))
    } else if taken.len() < usize::from(count) {
        Some(format!("LISTEN_FDS is {count}, but only {} of them are open", taken.len()))
    } else {
        None
    };
    let names = names.filter(|_| !are_wrong).unwrap_or_default();
    // systemd has this name for a descriptor without one.
    let names = names.into_iter().chain(std::iter::repeat("unknown"));
    (names.map(str::to_owned).zip(taken).collect(), wrong)
}

/// The descriptor, if it is open. A child process does not get it.
fn claim(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_SETFD has a number as its argument, and touches no memory.
    let set = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: the descriptor is open, or F_SETFD would have failed. Nothing else owns it: LISTEN_PID says that it was
    // opened for this process before it started, nothing else in the process looks for it, and `take` gives each one away
    // only once.
    (set != -1).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The taken descriptors, and the warning, if descriptors 3 and 4 are open.
    fn taken(pid: &str, count: &str, names: Option<&str>) -> (Vec<(String, RawFd)>, String) {
        let (taken, wrong) = all(77, pid, count, names, |fd| (fd < 5).then_some(fd));
        (taken, wrong.unwrap_or_default())
    }

    #[test]
    fn descriptors_for_this_process_are_taken_with_their_names() {
        let named = |names: [&str; 2]| vec![(names[0].to_owned(), 3), (names[1].to_owned(), 4)];
        assert_eq!(taken("77", "2", Some("a:b")), (named(["a", "b"]), String::new()));
        assert_eq!(taken("77", "2", Some("a:")), (named(["a", ""]), String::new()));
        assert_eq!(taken("77", "2", None), (named(["unknown"; 2]), String::new()));
        assert_eq!(taken("77", "0", None), (Vec::new(), String::new()));
    }

    #[test]
    fn malformed_variables_are_named_and_what_they_do_not_say_is_not_used() {
        let unknown = |count: usize| vec!["unknown".to_owned(); count];
        for (pid, count, names, are, says) in [
            ("1", "2", Some("a:b"), unknown(0), "LISTEN_PID is \"1\", and this process is 77"),
            ("", "2", None, unknown(0), "LISTEN_PID is \"\""),
            ("77", "two", None, unknown(0), "LISTEN_FDS is \"two\""),
            ("77", "-1", None, unknown(0), "LISTEN_FDS is \"-1\""),
            ("77", "4294967295", None, unknown(0), "LISTEN_FDS is \"4294967295\""),
            ("77", "65535", None, unknown(2), "LISTEN_FDS is 65535, but only 2 of them are open"),
            ("77", "2", Some("a"), unknown(2), "LISTEN_FDNAMES has not 2 names"),
            ("77", "2", Some("a:b:c"), unknown(2), "LISTEN_FDNAMES has not 2 names"),
        ] {
            let (taken, wrong) = taken(pid, count, names);
            assert_eq!(taken.into_iter().map(|it| it.0).collect::<Vec<_>>(), are, "{pid} {count}");
            assert!(wrong.starts_with(says), "{wrong}");
        }
    }
}
