// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Finds other processes that receive the kernel's requests: ibacm, whose answers race with ours,
//! or a process that never answers, for which the kernel waits when the daemon is gone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use crate::logging::ids;
use ibarr_proto::health::Listener;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

const INTERVAL: Duration = Duration::from_mins(1);

/// Searches from time to time, until the receiver is dropped. `inode` is that of our own socket.
/// Until the first search has ended, there is no list. Must be called within a runtime.
pub(crate) fn watch(inode: u64) -> watch::Receiver<Option<Vec<Listener>>> {
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sender.closed() => return,
            }
            // A search blocks for long on a machine with many processes.
            let look = tokio::task::spawn_blocking(move || find(RDMA, GROUP, inode));
            match look.await {
                Ok(Ok(listeners)) => {
                    sender.send_modify(|old| report(old.get_or_insert_default(), listeners));
                }
                Ok(Err(error)) => {
                    debug!(%error, "cannot search for other listeners");
                    sender.send_modify(|old| *old = Some(old.take().unwrap_or_default()));
                }
                Err(_) => return,
            }
        }
    });
    receiver
}

/// Logs each listener that is new or gone.
fn report(old: &mut Vec<Listener>, new: Vec<Listener>) {
    for listener in new.iter().filter(|listener| !old.contains(listener)) {
        // A process chooses its name, so the log escapes it.
        let Listener { pid, name } = listener;
        warn!(
            message_id = ids::OTHER_LISTENER,
            ?pid,
            ?name,
            "local service: another process receives the kernel's requests"
        );
    }
    for listener in old.iter().filter(|listener| !new.contains(listener)) {
        info!(
            pid = ?listener.pid,
            name = ?listener.name,
            "local service: a process no longer receives the kernel's requests"
        );
    }
    *old = new;
}

/// `NETLINK_RDMA`.
const RDMA: u32 = 20;
/// `RDMA_NL_GROUP_LS` is group 3.
const GROUP: u32 = 1 << 2;

/// The processes with a socket of `protocol` in `group`, except the socket with `inode`.
fn find(protocol: u32, group: u32, inode: u64) -> io::Result<Vec<Listener>> {
    let table = fs::read_to_string("/proc/thread-self/net/netlink")?;
    let mut sockets: BTreeMap<u64, u32> = members(&table, protocol, group).collect();
    sockets.remove(&inode);
    if sockets.is_empty() {
        return Ok(Vec::new());
    }
    let mut listeners = Vec::new();
    for (pid, inode) in self::sockets()? {
        if sockets.remove(&inode).is_some() {
            listeners.push(Listener { pid: Some(pid), name: name(pid) });
        }
    }
    let unseen = |(_, port_id)| Listener { pid: None, name: format!("socket {port_id}") };
    listeners.extend(sockets.into_iter().map(unseen));
    listeners.sort();
    listeners.dedup();
    Ok(listeners)
}

/// The process id and the inode of each socket of the processes that we may look into.
pub(super) fn sockets() -> io::Result<impl Iterator<Item = (u32, u64)>> {
    Ok(fs::read_dir("/proc")?.flatten().flat_map(|process| {
        let pid = process.file_name().to_str().and_then(|pid| pid.parse().ok());
        // It may belong to another user, or have ended.
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        files.filter_map(move |file| {
            let target = fs::read_link(file.path()).ok()?;
            let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some((pid?, inode.parse().ok()?))
        })
    }))
}

pub(super) fn name(pid: u32) -> String {
    named(&fs::read(format!("/proc/{pid}/comm")).unwrap_or_default())
}

/// The kernel appends a line feed (`proc_pid_comm`); the name itself may contain others.
fn named(comm: &[u8]) -> String {
    String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(comm)).into_owned()
}

/// Inode and port id of each member (`netlink_native_seq_show` in net/netlink/af_netlink.c).
fn members(table: &str, protocol: u32, group: u32) -> impl Iterator<Item = (u64, u32)> {
    table.lines().filter_map(move |line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, of, port_id, groups, .., inode] = fields.as_slice() else { return None };
        let is_member = of.parse() == Ok(protocol)
            && u32::from_str_radix(groups, 16).is_ok_and(|groups| groups & group != 0);
        is_member.then_some((inode.parse().ok()?, port_id.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::SockProtocol;
    use nix::sys::stat::fstat;

    use super::*;
    use crate::sys::netlink;

    /// Recorded on Linux 6.1 with ibacm's socket unit, and with a member of another group.
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
    fn only_members_of_the_group_are_found() {
        let found: Vec<_> = members(TABLE, RDMA, GROUP).collect();
        assert_eq!(found, [(15411, 1), (15413, 4_294_963_092)]);
        assert_eq!(members("", RDMA, GROUP).count(), 0);
    }

    /// The kernel may have no RDMA, so the test searches a group of rtnetlink.
    #[test]
    fn another_socket_in_the_group_is_found_with_its_process() {
        // RTNLGRP_NOP2, which no program uses.
        let group = 1 << 13;
        let open = || netlink::open(SockProtocol::NetlinkRoute, group).unwrap();
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
