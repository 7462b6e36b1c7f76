// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A stand-in for the kernel's RDMA core, at the other end of the socket that systemd keeps for the daemon.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{Answer, Request, ResolveIp, Seq, messages};
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recv, recvmsg, send};
use nix::unistd::close;

use crate::node::{ADDRESS, GID, Node};

/// Requests without an answer at any time.
const IN_FLIGHT: usize = 200;

/// Makes a pair of sockets as the daemon's user. One end goes to systemd, which gives it to the daemon as the
/// kernel's; the other goes to the test. Later starts find no test that waits for one.
const PAIR: &str = r#"
use Socket;
sub pass {
    my ($path, $text, $end) = @_;
    socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die "socket: $!";
    connect($socket, pack_sockaddr_un($path)) or exit 0;
    my $control = pack('Q i i i x4', 20, SOL_SOCKET, SCM_RIGHTS, fileno $end);
    my $parts = pack('P Q', $text, length $text);
    my $message = pack('Q L x4 P Q P Q i x4', 0, 0, $parts, 1, $control, length $control, 0);
    # sendmsg(2)
    syscall(46, fileno $socket, $message, 0) >= 0 or die "sendmsg: $!";
}
socketpair(my $kernels, my $daemons, AF_UNIX, SOCK_SEQPACKET, 0) or die "socketpair: $!";
# Longer than a daemon takes to start.
setsockopt($kernels, SOL_SOCKET, SO_RCVTIMEO, pack('q q', 60, 0)) or die "setsockopt: $!";
pass('/run/kernel.sock', 'kernel', $kernels);
pass($ENV{NOTIFY_SOCKET}, "FDSTORE=1\nFDNAME=ls\nFDPOLL=0", $daemons);
"#;

pub(crate) struct Kernel {
    socket: RawFd,
    eth0: IfIndex,
}

impl Kernel {
    /// Starts the service of `node` with a stand-in for its kernel.
    pub(crate) fn start(node: &Node) -> Self {
        let door = node.inner_path("/run/kernel.sock");
        let waiting = UnixDatagram::bind(&door).unwrap();
        fs::set_permissions(&door, Permissions::from_mode(0o666)).unwrap();
        fs::write(node.path("/etc/kernel.pl"), PAIR).unwrap();
        node.limit("NotifyAccess=all\\nExecStartPre=/usr/bin/perl /etc/kernel.pl");
        node.ok("systemctl start ibarr");
        let socket = received(&waiting);
        fs::remove_file(door).unwrap();
        let index = node.ok("cat /sys/class/net/eth0/ifindex").parse().unwrap();
        Self { socket, eth0: IfIndex::new(index).unwrap() }
    }

    /// Asks for the node's address, so that there are always [`IN_FLIGHT`] requests without an answer, until
    /// `is_over`. Each has one answer, the right one. Returns how many they were.
    pub(crate) fn ask_without_pause(&self, is_over: &AtomicBool) -> u32 {
        let request = ResolveIp { ifindex: self.eth0, target: ADDRESS.into() };
        let (mut asked, mut open) = (0, BTreeSet::new());
        loop {
            while open.len() < IN_FLIGHT && !is_over.load(Ordering::Relaxed) {
                asked += 1;
                let bytes = Request::ResolveIp(request).emit(Seq(asked));
                send(self.socket, bytes.as_ref(), MsgFlags::MSG_NOSIGNAL).unwrap();
                open.insert(asked);
            }
            if open.is_empty() {
                return asked;
            }
            let mut datagram = [0; 8192];
            let length = recv(self.socket, &mut datagram, MsgFlags::empty());
            let length = length.unwrap_or_else(|error| panic!("{error}: no answer to {open:?}"));
            for message in messages(&datagram[..length]).map(Result::unwrap) {
                // The others set the kernel's time-out.
                let Ok(answer) = Answer::parse(&message) else { continue };
                assert_eq!(answer, Answer::Gid(GID.parse().unwrap()));
                let Seq(seq) = message.seq();
                assert!(open.remove(&seq), "request {seq} is answered twice, or was never made");
            }
        }
    }

    /// The times in milliseconds that the daemon has set for the kernel's requests (`RDMA_NL_LS_OP_SET_TIMEOUT`), after
    /// the service was stopped and systemd has closed the other end.
    pub(crate) fn timeouts_until_its_end(&self) -> Vec<u32> {
        const SET_TIMEOUT: [u8; 2] = 0x1001_u16.to_ne_bytes();
        let mut timeouts = Vec::new();
        loop {
            let mut datagram = [0; 8192];
            let length = recv(self.socket, &mut datagram, MsgFlags::empty()).unwrap();
            if length == 0 {
                return timeouts;
            }
            if datagram[4..6] == SET_TIMEOUT {
                // After the header of the message and that of its attribute.
                timeouts.push(u32::from_ne_bytes(datagram[20..24].try_into().unwrap()));
            }
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        close(self.socket).unwrap();
    }
}

/// The descriptor in the next message.
fn received(socket: &UnixDatagram) -> RawFd {
    let mut text = [0; 16];
    let mut parts = [IoSliceMut::new(&mut text)];
    let mut control = cmsg_space!(RawFd);
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut control), flags).unwrap();
    let found = message.cmsgs().unwrap().find_map(|control| match control {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    found.unwrap()
}
