// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which process holds a UDP port that the daemon wants, as far as /proc tells.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process;

use ibarr_proto::ip2gid::Family;

use super::listeners::{named, socket_inode};
use crate::causes::escaped;

/// What holds the port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holder {
    uid: u32,
    /// Its number and its name, which is any it likes; `None` if no process is seen to have the socket.
    process: Option<(u32, String)>,
}

impl Holder {
    /// What holds `port`, and what helps.
    pub fn explain(&self, port: u16) -> String {
        let keep = "ibarr.socket keeps the port for the daemon";
        match self {
            Self { uid, process: Some((pid, name)) } => {
                let name = escaped(name, |_| true);
                format!(
                    "UDP port {port} is held by {name} (pid {pid}, uid {uid}): stop it; {keep} from \
                     then on"
                )
            }
            Self { uid: 0, process: None } => format!(
                "UDP port {port} is held by the kernel, or by a process of root's that the daemon \
                 may not see: 4791 is RoCEv2's own, and rdma_rxe holds it while it is loaded (rmmod \
                 rdma_rxe)"
            ),
            Self { uid, process: None } => format!(
                "UDP port {port} is held by a process of uid {uid} that the daemon may not see: stop \
                 it (ss -lunp sport = {port}, as root, shows which); {keep} from then on"
            ),
        }
    }
}

/// Looks through all processes, so it is for a thread. `None` if nothing seems to hold it.
///
/// # Errors
/// If /proc cannot be read.
pub fn find(family: Family, port: u16) -> io::Result<Option<Holder>> {
    // A socket of IPv6 may have the port of both.
    let tables: &[&str] = match family {
        Family::V4 => &["udp", "udp6"],
        Family::V6 => &["udp6"],
    };
    for table in tables {
        let table = match fs::read_to_string(format!("/proc/thread-self/net/{table}")) {
            Ok(table) => table,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let sockets: Vec<_> = sockets(&table, port).collect();
        let Some((uid, _)) = sockets.first() else { continue };
        let inodes = sockets.iter().map(|(_, inode)| *inode).collect();
        match process(&inodes)? {
            // Its socket of the other family.
            Some((pid, _)) if pid == process::id() => {}
            process => return Ok(Some(Holder { uid: *uid, process })),
        }
    }
    Ok(None)
}

/// Owner and inode of each socket with `port` (`udp4_format_sock` in net/ipv4/udp.c).
fn sockets(table: &str, port: u16) -> impl Iterator<Item = (u32, u64)> {
    table.lines().filter_map(move |line| {
        let mut fields = line.split_whitespace();
        let (_, of) = fields.nth(1)?.rsplit_once(':')?;
        let is_wanted = u16::from_str_radix(of, 16) == Ok(port);
        let uid = fields.nth(5)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        is_wanted.then_some((uid, inode))
    })
}

/// Another process that has one of the sockets, before this one.
fn process(inodes: &BTreeSet<u64>) -> io::Result<Option<(u32, String)>> {
    let mut found = None;
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        // Another user's, or gone by now.
        let Ok(files) = fs::read_dir(entry.path().join("fd")) else { continue };
        let mut of_process = files.flatten().filter_map(|file| socket_inode(&file.path()));
        if of_process.any(|inode| inodes.contains(&inode)) {
            let comm = fs::read(entry.path().join("comm")).unwrap_or_default();
            found = Some((pid, named(&comm)));
            if pid != process::id() {
                break;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Linux 6.1.
    const TABLE: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  217: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 15302 2 00000000f1a5e3c5 0
  218: 0100007F:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 15303 2 00000000f1a5e3c6 0
";

    #[test]
    fn sockets_of_a_port_are_told_from_others() {
        assert_eq!(sockets(TABLE, 4791).collect::<Vec<_>>(), [(1000, 15302)]);
        assert_eq!(sockets(TABLE, 4792).collect::<Vec<_>>(), [(0, 15303)]);
        assert_eq!(sockets(TABLE, 80).count(), 0);
    }

    #[test]
    fn name_of_a_process_is_escaped() {
        let process = Some((7, "a\u{1b}[2J\nb".to_owned()));
        let said = Holder { uid: 1000, process }.explain(4791);
        assert!(said.contains("held by a\\u{1b}[2J\\nb (pid 7, uid 1000)"), "{said}");
    }

    #[test]
    fn socket_that_no_process_has_may_be_the_kernels() {
        let said = Holder { uid: 0, process: None }.explain(4791);
        assert!(said.contains("rmmod rdma_rxe"), "{said}");
        let said = Holder { uid: 1, process: None }.explain(4791);
        assert!(said.contains("of uid 1 that the daemon may not see"), "{said}");
    }
}
