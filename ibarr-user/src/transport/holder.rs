// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Finds the process that holds a UDP port which the daemon needs, from /proc.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process;

use ibarr_proto::ip2gid::Family;

use super::listeners;
use crate::causes::{Fault, escaped, fault};

/// The holder of a port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Holder {
    uid: u32,
    /// Process id and name (chosen by the process itself); `None` if no visible process has the
    /// socket.
    process: Option<(u32, String)>,
}

impl Holder {
    /// Names the holder of `port` and the remedy.
    pub(crate) fn explain(&self, port: u16) -> Fault {
        let keep = "ibarr.socket keeps the port for the daemon";
        match self {
            Self { uid, process: Some((pid, name)) } => {
                let name = escaped(name, |_| true);
                fault!(
                    "UDP port {port} is held by {name} (pid {pid}, uid {uid}): stop it; {keep} from \
                     then on"
                )
            }
            Self { uid: 0, process: None } => fault!(
                "UDP port {port} is held by the kernel, or by a process of root that the daemon \
                 cannot see: 4791 is RoCEv2's own, and rdma_rxe holds it while it is loaded (rmmod \
                 rdma_rxe)"
            ),
            Self { uid, process: None } => fault!(
                "UDP port {port} is held by a process of uid {uid} that the daemon cannot see: stop \
                 it (ss -lunp sport = {port}, as root, shows which); {keep} from then on"
            ),
        }
    }
}

/// Searches all processes; it blocks, so call it on a thread. `None` if nothing seems to hold the
/// port.
///
/// # Errors
/// If /proc cannot be read.
pub(crate) fn find(family: Family, port: u16) -> io::Result<Option<Holder>> {
    // An IPv6 socket may hold the port of both families.
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
            // The daemon's own socket of the other family.
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

/// A process with one of the sockets; other processes take precedence over this one.
fn process(inodes: &BTreeSet<u64>) -> io::Result<Option<(u32, String)>> {
    let mut found = None;
    for (pid, inode) in listeners::sockets()? {
        if inodes.contains(&inode) {
            found = Some((pid, listeners::name(pid)));
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

    /// Recorded on Linux 6.1.
    const TABLE: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  217: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 15302 2 00000000f1a5e3c5 0
  218: 0100007F:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 15303 2 00000000f1a5e3c6 0
";

    #[test]
    fn only_sockets_of_the_port_are_found() {
        assert_eq!(sockets(TABLE, 4791).collect::<Vec<_>>(), [(1000, 15302)]);
        assert_eq!(sockets(TABLE, 4792).collect::<Vec<_>>(), [(0, 15303)]);
        assert_eq!(sockets(TABLE, 80).count(), 0);
    }

    #[test]
    fn name_of_a_process_is_escaped() {
        let process = Some((7, "a\u{1b}[2J\nb".to_owned()));
        let said = Holder { uid: 1000, process }.explain(4791).to_string();
        assert!(said.contains("held by a\\u{1b}[2J\\nb (pid 7, uid 1000)"), "{said}");
    }

    #[test]
    fn socket_without_process_may_belong_to_the_kernel() {
        let said = Holder { uid: 0, process: None }.explain(4791).to_string();
        assert!(said.contains("rmmod rdma_rxe"), "{said}");
        let said = Holder { uid: 1, process: None }.explain(4791).to_string();
        assert!(said.contains("of uid 1 that the daemon cannot see"), "{said}");
    }
}
