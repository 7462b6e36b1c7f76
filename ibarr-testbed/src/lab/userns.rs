// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Labs without root: the process is root of a user namespace, with a private `/run/netns`.

use std::fs::{self, File};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getegid, geteuid};

use super::netns;
use super::plan::LabName;
use super::store::{Process, State, Store};

/// The message about what a lab in a user namespace lacks.
pub const LACKS: &str = "\
without root: the daemons answer in user space only (BPF needs root), and the lab's namespaces are \
visible to `ibarr-testbed lab` only, not to `ip netns`";

/// Makes this process root of a new user namespace. Call it before any thread is started.
///
/// # Errors
/// The system does not allow it to this user. The message names the setting.
pub fn enter() -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    // We do not use the network namespace, but `ip` must be able to return to it.
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).context(
        "this system does not let ordinary users make a user namespace (sysctl user.max_user_namespaces, \
         kernel.unprivileged_userns_clone): use sudo without --userns",
    )?;
    fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {user} 1")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {group} 1")))
        .context("cannot map this user to root of its namespace")?;
    netns::own_directory().context(
        "cannot mount inside a user namespace (sysctl kernel.apparmor_restrict_unprivileged_userns \
         forbids it on some systems): use sudo without --userns",
    )
}

/// Enters the user namespace of a lab that was made with [`enter`]. Does nothing for another lab. Call it
/// before any thread is started.
///
/// # Errors
/// All processes of the lab have ended, and its namespaces with them; or the lab belongs to another user.
pub fn join(store: &Store, name: &LabName) -> Result<()> {
    let Ok((_, state)) = store.read(name) else { return Ok(()) };
    if !state.user_namespace || is_inside() {
        return Ok(());
    }
    let Some(pid) = living_process(&state) else {
        bail!("lab {name}: its daemons have ended, and its namespaces with them: take it down");
    };
    // Open both first, because the path of the second may be covered inside the first.
    let open = |kind| {
        let path = format!("/proc/{pid}/ns/{kind}");
        File::open(&path).with_context(|| format!("cannot open {path}"))
    };
    let (user, mounts) = (open("user")?, open("mnt")?);
    setns(user, CloneFlags::CLONE_NEWUSER)
        .and_then(|()| setns(mounts, CloneFlags::CLONE_NEWNS))
        .and_then(|()| unshare(CloneFlags::CLONE_NEWNET))
        .with_context(|| format!("cannot enter the user namespace of lab {name}"))
}

/// Whether the lab's namespaces have ended with its last process.
pub fn is_gone(store: &Store, name: &LabName) -> bool {
    let state = store.read(name).ok().map(|(_, state)| state);
    state.is_some_and(|state| state.user_namespace && living_process(&state).is_none())
}

/// Whether this process is inside a user namespace, of its own or of a container.
pub fn is_inside() -> bool {
    // The first user namespace maps all 2³² ids to themselves.
    fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"])
}

fn living_process(state: &State) -> Option<u32> {
    let mut processes = state.daemons.iter().map(|daemon| daemon.process);
    processes.find(Process::is_running).map(|process| process.pid)
}
