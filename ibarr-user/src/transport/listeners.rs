// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Who else hears what the kernel asks: ibacm, whose answers race with ours, or somebody who never
//! answers, for whom the kernel waits when we are gone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

/// A process with a socket in the group, besides ours.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Listener {
    /// Its process; `None` if we may not see whose the socket is.
    pub pid: Option<u32>,
    /// The name of the process, which is any it likes, or of the socket.
    pub name: String,
}

/// How often it is looked for them.
const INTERVAL: Duration = Duration::from_mins(1);

/// Looks now and then, until nobody wants to know. `inode` is our own socket's. Must be called within
/// a runtime.
pub fn watch(inode: u64) -> watch::Receiver<Vec<Listener>> {
    let (sender, receiver) = watch::channel(Vec::new());
    tokio::spawn(async move {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sender.closed() => return,
            }
            // A machine can have many processes to look through.
            let look = tokio::task::spawn_blocking(move || find(RDMA, GROUP, inode));
            match look.await {
                Ok(Ok(listeners)) => {
                    sender.send_if_modified(|old| report(old, listeners));
                }
                Ok(Err(error)) => debug!(%error, "not seen who else hears the kernel"),
                Err(_) => return,
            }
        }
    });
    receiver
}

/// Whether anything is new.
fn report(old: &mut Vec<Listener>, new: Vec<Listener>) -> bool {
    for listener in new.iter().filter(|listener| !old.contains(listener)) {
        // A process chooses its name.
        let Listener { pid, name } = listener;
        warn!(?pid, ?name, "local service: another process hears the kernel's requests");
    }
    for listener in old.iter().filter(|listener| !new.contains(listener)) {
        info!(pid = ?listener.pid, name = ?listener.name, "local service: no longer hears them");
    }
    let changed = *old != new;
    *old = new;
    changed
}

/// `NETLINK_RDMA`.
const RDMA: u32 = 20;
/// `RDMA_NL_GROUP_LS` is group 3.
const GROUP: u32 = 1 << 2;

/// Who has a socket of `protocol` in `group`, other than the one with `inode`.
fn find(protocol: u32, group: u32, inode: u64) -> io::Result<Vec<Listener>> {
    let table = fs::read_to_string("/proc/thread-self/net/netlink")?;
    let mut sockets: BTreeMap<u64, u32> = members(&table, protocol, group).collect();
    sockets.remove(&inode);
    if sockets.is_empty() {
        return Ok(Vec::new());
    }
    let mut listeners = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        // Another user's, or gone by now.
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        for inode in files.flatten().filter_map(|file| socket_inode(&file.path())) {
            if sockets.remove(&inode).is_some() {
                let name = fs::read(process.path().join("comm")).unwrap_or_default();
                listeners.push(Listener { pid: Some(pid), name: named(&name) });
            }
        }
    }
    let unseen = |(_, port_id)| Listener { pid: None, name: format!("socket {port_id}") };
    listeners.extend(sockets.into_iter().map(unseen));
    listeners.sort();
    listeners.dedup();
    Ok(listeners)
}

/// The kernel ends it with a line feed (`proc_pid_comm`); the process may have chosen more of them.
pub(super) fn named(comm: &[u8]) -> String {
    String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(comm)).into_owned()
}

/// Inode and number of each member (`netlink_native_seq_show` in net/netlink/af_netlink.c).
fn members(table: &str, protocol: u32, group: u32) -> impl Iterator<Item = (u64, u32)> {
    table.lines().filter_map(move |line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, of, port_id, groups, .., inode] = fields.as_slice() else { return None };
        let is_member = of.parse() == Ok(protocol)
            && u32::from_str_radix(groups, 16).is_ok_and(|groups| groups & group != 0);
        is_member.then_some((inode.parse().ok()?, port_id.parse().ok()?))
    })
}

pub(super) fn socket_inode(file: &Path) -> Option<u64> {
    let target = fs::read_link(file).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use nix::sys::socket::{
        AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
    };
    use nix::sys::stat::fstat;

    use super::*;

    /// From Linux 6.1 with ibacm's socket unit, and with a member of another group.
    const TABLE: &str = "\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
00000000f1a5e3c5 0   612        80000551 0        0        0     2        0        15302   
0000000042c0a7a1 20  0          00000000 0        0        0     2        0        13000   
000000005d2c9c1e 20  1          00000004 0        0        0     2        0        15411   
000000005d2c9c1f 20  4026531840 00000008 0        0        0     2        0        15412   
000000005d2c9c20 20  4294963092 0000000c 0        0        0     2        0        15413   
";

    #[test]
    fn name_of_a_process_may_be_any_bytes() {
        assert_eq!(named(b"ibacm\n"), "ibacm");
        assert_eq!(named(b"\n"), "");
        assert_eq!(named(b"a\xff\n\n"), "a\u{fffd}\n");
    }

    #[test]
    fn members_of_the_group_are_told_from_others() {
        let found: Vec<_> = members(TABLE, RDMA, GROUP).collect();
        assert_eq!(found, [(15411, 1), (15413, 4_294_963_092)]);
        assert_eq!(members("", RDMA, GROUP).count(), 0);
    }

    /// This kernel may have no RDMA, so it is looked for members of a group of rtnetlink's.
    #[test]
    fn another_socket_in_the_group_is_found_with_its_process() {
        // RTNLGRP_NOP2, which nobody has a use for.
        let group = 1 << 13;
        let open = || -> OwnedFd {
            let flags = SockFlag::SOCK_CLOEXEC;
            let fd =
                socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)
                    .unwrap();
            bind(fd.as_raw_fd(), &NetlinkAddr::new(0, group)).unwrap();
            fd
        };
        let ours = open();
        let inode = fstat(&ours).unwrap().st_ino;
        let own_pid = Some(std::process::id());
        let found = || {
            let found = find(0, group, inode).unwrap();
            found.into_iter().filter(|listener| listener.pid == own_pid).count()
        };
        assert_eq!(found(), 0);
        let _other = open();
        assert_eq!(found(), 1);
    }
}
