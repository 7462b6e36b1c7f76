// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Restarts and upgrades that no peer notices, and what a crash costs.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Reply, Version};
use ibarr_user::sys::mmsg;
use nix::sys::socket::{setsockopt, sockopt};

use crate::kernel::Kernel;
use crate::machine::said;
use crate::node::{ADDRESS, GID, Node};

/// Queries that a peer sends at once, and its pause: 2,000 a second.
const BATCH: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);
/// Queries before and after each event.
const AROUND: Duration = Duration::from_millis(300);

/// A peer and the kernel ask without pause while `events` happen. Each answer must be right, and the only one to
/// its query. Returns the number of the peer's queries without an answer.
fn lost_meanwhile(node: &Node, kernel: Option<&Kernel>, events: &[&str]) -> usize {
    let peer = node.peer();
    // Room for the replies to all queries that have waited for a daemon.
    setsockopt(peer, sockopt::RcvBufForce, &(16 << 20)).unwrap();
    let is_over = AtomicBool::new(false);
    let (asked, answers) = thread::scope(|scope| {
        let over = Over(&is_over);
        let kernel = kernel.map(|kernel| scope.spawn(|| kernel.ask_without_pause(&is_over)));
        let asking = scope.spawn(|| {
            let mut asked = 0;
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..BATCH {
                    asked += 1;
                    let query = Query::new(Version::V1, MsgId(asked), IpAddr::V4(ADDRESS)).unwrap();
                    peer.send_to(query.emit().as_ref(), (ADDRESS, PORT)).unwrap();
                }
                thread::sleep(PAUSE);
            }
            asked
        });
        let hearing = scope.spawn(|| {
            let mut answers = BTreeMap::<_, u32>::new();
            let mut buffer = [0; 64];
            loop {
                match peer.recv(&mut buffer) {
                    Ok(len) => {
                        let reply = Reply::parse(&buffer[..len]).unwrap();
                        assert_eq!(reply.gid, Some(GID.parse().unwrap()));
                        *answers.entry(reply.msg_id.0).or_default() += 1;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if is_over.load(Ordering::Relaxed) {
                            return answers;
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for event in events {
            thread::sleep(AROUND);
            node.ok(event);
            node.until("the daemon runs", || node.show("ActiveState", "ibarr") == "active");
        }
        thread::sleep(AROUND);
        drop(over);
        if let Some(kernel) = kernel {
            let answered = kernel.join().unwrap();
            assert!(answered > 1_000, "the kernel asked only {answered} times");
        }
        (asking.join().unwrap(), hearing.join().unwrap())
    });
    assert!(answers.values().all(|&count| count == 1));
    assert!(asked > 1_000, "the peer asked only {asked} times");
    (1..=asked).filter(|id| !answers.contains_key(id)).count()
}

/// Sets the flag when it is dropped, also by a panic: the threads that wait for it end.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A package of this tree with a later version.
const LATER: &str = "dpkg-deb --raw-extract /ibarr.deb /later
    sed --in-place 's/^Version: .*/&+1/' /later/DEBIAN/control
    dpkg-deb -Znone --build /later /later.deb";

/// A node whose daemon answers itself: otherwise the programs would answer meanwhile.
fn installed() -> Node {
    let node = Node::installed();
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    node.configure(&format!("responder = \"user\"\n{config}"));
    node
}

#[test]
fn neither_peers_nor_the_kernel_notice_a_restart_or_an_upgrade() {
    let node = installed();
    let kernel = Kernel::start(&node);
    node.ok(LATER);
    let first = node.ok("dpkg-query --show --showformat='${Version}' ibarr");
    let [restart, upgrade, downgrade] =
        ["systemctl restart ibarr", "dpkg --install /later.deb", "dpkg --install /ibarr.deb"];
    let lost = lost_meanwhile(&node, Some(&kernel), &[restart, restart, upgrade, downgrade]);
    assert_eq!(lost, 0);
    assert_eq!(node.ok("dpkg-query --show --showformat='${Version}' ibarr"), first);
}

#[test]
fn version_that_refuses_the_configuration_does_not_replace_the_running_daemon() {
    let node = installed();
    node.ok("systemctl start ibarr");
    let pid = node.show("MainPID", "ibarr");
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    // What a later version would accept.
    node.configure(&format!("key-of-a-later-version = 1\n{config}"));
    let installed = node.run("dpkg --install /ibarr.deb");
    assert!(installed.status.success(), "{}", said(&installed));
    let reason = "/etc/ibarr/ibarr.toml:1:1: key-of-a-later-version is not a key of ibarr";
    for words in [reason, "was not restarted; correct the configuration"] {
        assert!(said(&installed).contains(words), "{}", said(&installed));
    }
    assert_eq!(node.show("MainPID", "ibarr"), pid);
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.configure(&config);
    node.ok("systemctl restart ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
}

#[test]
fn crash_loses_only_the_queries_that_the_daemon_had_read() {
    let node = installed();
    node.ok("systemctl start ibarr");
    let lost = lost_meanwhile(&node, None, &["systemctl kill --signal=KILL ibarr.service"]);
    assert!(lost <= mmsg::MAX, "{lost}");
}
