// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A nudge as processes that watch neighbours see it. The kernel announces a change to its RDMA core and to
//! these processes at the same time (`neigh_update_notify` in net/core/neighbour.c).

use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use ibarr_common::IfIndex;
use ibarr_proto::local_view::HwAddr;
use ibarr_testbed::start::program;
use ibarr_user::sys::local_service::Socket;
use ibarr_user::transport::rtnetlink::{
    ADDRESS_V4, ADDRESS_V6, NudgeError, NudgeResult, NudgeTarget, Nudger,
};
use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket, socketpair,
};

use crate::machine::Machine;

#[test]
fn a_nudge_is_seen_by_others_and_leaves_nothing() {
    let _machine = Machine::new();
    let (nudger, mut outcomes) = Nudger::start().unwrap();
    for _ in 0..3 {
        let watcher = Watcher::new();
        nudger.nudge(None, None);
        outcomes.blocking_recv().unwrap().unwrap();
        assert_eq!(watcher.created(), [(ADDRESS_V6.into(), 1)]);
        nothing_is_left();
    }
}

#[test]
fn an_entry_in_the_way_is_removed_and_another_made() {
    let _machine = Machine::new();
    let stale = format!("-6 neigh add {ADDRESS_V6} dev lo nud permanent");
    // The entry of a crashed daemon. The start removes it without a nudge.
    ip(&stale);
    drop(Nudger::start().unwrap());
    // The thread ends on its own. The start of the next one does not wait for it.
    let (nudger, mut outcomes) = Nudger::start().unwrap();
    nudger.nudge(None, None);
    outcomes.blocking_recv().unwrap().unwrap();
    nothing_is_left();
    // The entry of another daemon at this moment.
    ip(&stale);
    let watcher = Watcher::new();
    nudger.nudge(None, None);
    outcomes.blocking_recv().unwrap().unwrap();
    assert_eq!(watcher.created(), [(ADDRESS_V6.into(), 1)]);
    nothing_is_left();
}

#[test]
fn without_ipv6_nudges_use_ipv4_but_never_on_loopback() {
    let _machine = Machine::new();
    ip("link set lo up");
    ip("link add v0 type veth peer name v1");
    fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
    fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
    let (nudger, mut outcomes) = Nudger::start().unwrap();
    let watcher = Watcher::new();
    nudger.nudge(None, None);
    let error = outcomes.blocking_recv().unwrap().unwrap_err();
    assert!(matches!(error, NudgeError::NoPlace(Errno::EINVAL)), "{error}");
    assert_eq!(watcher.created(), []);

    let ifindex = IfIndex::new(if_nametoindex("v0").unwrap()).unwrap();
    let target = |hwaddr| Some(NudgeTarget { ifindex, hwaddr: HwAddr::new(hwaddr).unwrap() });
    nudger.nudge(target(&[2, 0, 0, 0, 0, 1]), None);
    outcomes.blocking_recv().unwrap().unwrap();
    assert_eq!(watcher.created(), [(ADDRESS_V4.into(), ifindex.get())]);
    nothing_is_left();

    // A hardware address that no neighbour of this interface can have.
    nudger.nudge(target(&[2; 5]), None);
    let error = outcomes.blocking_recv().unwrap().unwrap_err();
    assert!(matches!(error, NudgeError::Refused(IpAddr::V4(ADDRESS_V4), Errno::EINVAL)), "{error}");
    nothing_is_left();
}

#[test]
fn nudge_is_postponed_while_the_kernel_asks() {
    let _machine = Machine::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let flags = SockFlag::SOCK_CLOEXEC;
    let (kernel, ours) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
    let socket = runtime.block_on(async { Socket::adopt(ours) }).unwrap();
    let (nudger, mut outcomes) = Nudger::start().unwrap();
    let watcher = Watcher::new();
    let quiet = socket.quiet();
    send(kernel.as_raw_fd(), b"a request", MsgFlags::empty()).unwrap();
    nudger.nudge(None, Some(quiet));
    assert_eq!(outcomes.blocking_recv().unwrap().unwrap(), NudgeResult::Postponed);
    assert_eq!(watcher.created(), []);
    // The nudge is late now, and is made whether or not there is something to read.
    nudger.nudge(None, None);
    assert_eq!(outcomes.blocking_recv().unwrap().unwrap(), NudgeResult::On(IfIndex::MIN));
    assert_eq!(watcher.created(), [(ADDRESS_V6.into(), 1)]);
    nothing_is_left();
}

/// Each makes its own entry. Otherwise the kernel would not look at the answers of one of them.
#[test]
fn two_daemons_at_once_both_nudge() {
    const EACH: usize = 200;
    let _machine = Machine::new();
    let watcher = Watcher::new();
    let mut created = 0;
    let mut nudgers = [Nudger::start().unwrap(), Nudger::start().unwrap()];
    for _ in 0..EACH {
        for (nudger, _) in &nudgers {
            nudger.nudge(None, None);
        }
        for (_, outcomes) in &mut nudgers {
            outcomes.blocking_recv().unwrap().unwrap();
        }
        created += watcher.created().len();
    }
    assert_eq!(created, nudgers.len() * EACH);
    nothing_is_left();
}

/// Watches all neighbour changes in this network namespace.
struct Watcher(OwnedFd);

impl Watcher {
    fn new() -> Self {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRoute,
        )
        .unwrap();
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, libc::RTMGRP_NEIGH.cast_unsigned())).unwrap();
        Self(fd)
    }

    /// Address and interface of each entry that became permanent since the last call.
    fn created(&self) -> Vec<(IpAddr, u32)> {
        let mut created = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => created.extend(permanent(&buffer[..len])),
                Err(Errno::EAGAIN) => return created,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// `struct nlmsghdr`, `struct ndmsg`, then attributes of which the first is `NDA_DST`
/// (`neigh_fill_info`).
fn permanent(message: &[u8]) -> Option<(IpAddr, u32)> {
    let number = |at: usize| u16::from_ne_bytes([message[at], message[at + 1]]);
    let is_permanent = number(4) == libc::RTM_NEWNEIGH && number(24) == libc::NUD_PERMANENT;
    let address = &message[32..28 + usize::from(number(28))];
    let address = match address.len() {
        4 => <[u8; 4]>::try_from(address).unwrap().into(),
        _ => <[u8; 16]>::try_from(address).unwrap().into(),
    };
    is_permanent.then_some((address, u32::from(number(20))))
}

fn nothing_is_left() {
    let output = program("ip").args(["neigh", "show", "nud", "all"]).output().unwrap();
    assert!(output.status.success());
    let neighbours = String::from_utf8_lossy(&output.stdout);
    let ours = [ADDRESS_V4.to_string(), ADDRESS_V6.to_string()];
    assert!(!ours.iter().any(|address| neighbours.contains(address)), "{neighbours}");
}

fn ip(line: &str) {
    let output = program("ip").args(line.split(' ')).output().expect("ip(8) is there");
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}
