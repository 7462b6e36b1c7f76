// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The binary as the kernel meets it: the test has the other end of a socket that the daemon
//! inherits as `FDNAME=ls`. Bytes in, bytes out. The daemon runs in a network namespace of its own,
//! whose only addresses are the ones below.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, recv, send, setsockopt, socketpair, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Uid;

use crate::support::{Daemon, PATIENCE, TempDir, daemon_command};

/// Its own addresses, the first with a GID.
const CONFIG: &str = "[[static-gid]]\nip = \"192.0.2.7\"\ngid = \"fe80::2:c903:0:201\"\n\
                      [[static-gid]]\nip = \"2001:db8:7::7\"\ngid = \"fe80::2:c903:0:202\"\n";

#[test]
fn an_address_of_our_own_is_answered_byte_for_byte() {
    let dir = TempDir::new("own");
    let (_daemon, kernel) = start(&dir);
    kernel.send("1c000000 02100100 0c000000 00000000 02000000 08000920 c0000207");
    let pid =
        kernel.expect("24000000 02100000 0c000000", "14000400 fe80000000000000 0002c90300000201");
    kernel.send(
        "28000000 02100100 18000000 00000000 02000000 14000a20 20010db8000700000000000000000007",
    );
    let same =
        kernel.expect("24000000 02100000 18000000", "14000400 fe80000000000000 0002c90300000202");
    assert_eq!(pid, same);
}

/// The other end of the daemon's socket.
struct Kernel(OwnedFd);

impl Kernel {
    fn send(&self, hex: &str) {
        let bytes = unhex(hex);
        assert_eq!(send(self.0.as_raw_fd(), &bytes, MsgFlags::empty()), Ok(bytes.len()));
    }

    fn receive(&self) -> Vec<u8> {
        let mut buffer = [0; 512];
        let len = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
        buffer[..len].to_vec()
    }

    /// The next message is `header`, a number that is the daemon's affair, `payload`.
    fn expect(&self, header: &str, payload: &str) -> Vec<u8> {
        let message = self.receive();
        let mut expected = unhex(header);
        expected.extend(&message[12..16]);
        expected.extend(unhex(payload));
        assert_eq!(message, expected, "{message:02x?}");
        message[12..16].to_vec()
    }
}

/// A daemon that is ready, with its kernel.
fn start(dir: &TempDir) -> (Daemon, Kernel) {
    let (kernel, inherited) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let patience = TimeVal::seconds(PATIENCE.as_secs().try_into().unwrap());
    setsockopt(&kernel, sockopt::ReceiveTimeout, &patience).unwrap();
    let daemon = Daemon::spawn(command(dir, inherited), dir, CONFIG);
    let kernel = Kernel(kernel);
    // SET_TIMEOUT of 2000 ms.
    kernel.expect("18000000 01100100 00000000", "08000200 d0070000");
    (daemon, kernel)
}

/// [`daemon_command`] in a network namespace, with `inherited` as `FDNAME=ls`.
fn command(dir: &TempDir, inherited: OwnedFd) -> Command {
    let daemon = daemon_command(dir);
    let mut command = Command::new("unshare");
    if !Uid::effective().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "sh", "-ec", IN_NAMESPACE, "sh"]);
    command.arg(daemon.get_program()).args(daemon.get_args()).stdin(inherited);
    command
}

/// The socket comes as standard input.
const IN_NAMESPACE: &str = "
    ip link set lo up
    ip addr add 192.0.2.7/32 dev lo
    ip addr add 2001:db8:7::7/128 dev lo nodad
    exec 3<&0 </dev/null
    LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=ls exec \"$@\"";

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&String::from_iter(pair), 16).unwrap()).collect()
}
