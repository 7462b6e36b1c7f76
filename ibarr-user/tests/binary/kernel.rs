// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The binary as the kernel sees it: the test has the other end of a socket that the daemon
//! inherits as `FDNAME=ls`, and compares bytes. The daemon runs in its own network namespace, whose
//! only addresses are those of [`IN_NAMESPACE`].

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    socketpair, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::{Uid, close};
use serde_json::Value;

use crate::support::{Daemon, Kept, Over, PATIENCE, TempDir, daemon_command, json, program};

/// Two addresses of the namespace with a GID, and one without.
pub(crate) const CONFIG: &str = "[[static-gid]]\nip = \"192.0.2.7\"\ngid = \"fe80::2:c903:0:201\"\n\
                      [[static-gid]]\nip = \"2001:db8:7::7\"\ngid = \"fe80::2:c903:0:202\"\n";

/// "Who has 192.0.2.7?" as Linux 6.1 asks, with sequence number 12.
pub(crate) const REQUEST: &str = "1c000000 02100100 0c000000 00000000 02000000 08000920 c0000207";
/// "Which path?" as Linux 6.1 asks, with sequence number 1; recorded with a soft HCA called ibtun0.
const PATH_REQUEST: &str = "
    98000000 00100100 01000000 00000000
    696274756e300000 0000000000000000 0000000000000000 0000000000000000
    0000000000000000 0000000000000000 0000000000000000 0000000000000000
    01000000 0c000320 061c060100000000
    14000420 fe8000000000000000 02c90300000014 14000520 fe8000000000000000 02c90300000011
    06000720 ffff0000 06000820 00000000";
/// "Ask the SA", without the daemon's port id.
const ERROR: &str = "10000000 00100001";

#[test]
fn own_address_is_answered_byte_for_byte_and_nudged() {
    let dir = TempDir::new("own");
    let (daemon, kernel) = start(&dir, CONFIG);
    kernel.send(REQUEST);
    let gid = "14000400 fe80000000000000 0002c90300000201";
    let pid = kernel.expect("24000000 02100000 0c000000", gid);
    // IPv6, with sequence number 24.
    kernel.send(
        "28000000 02100100 18000000 00000000 02000000 14000a20 20010db800070000 0000000000000007",
    );
    let gid = "14000400 fe80000000000000 0002c90300000202";
    assert_eq!(kernel.expect("24000000 02100000 18000000", gid), pid);
    // The first request repeated, as after a nudge.
    kernel.send(REQUEST);
    kernel.expect("24000000 02100000 0c000000", "14000400 fe80000000000000 0002c90300000201");

    let counts = Counts::of(&daemon);
    assert_eq!(counts.get("requests"), 2);
    assert_eq!(counts.get("answered-local"), 2);
    assert_eq!(counts.get("duplicates-answered"), 1);
    assert!((1..=4).contains(&counts.get("nudges")), "{counts:?}");
    assert_eq!(counts.get("nudges-failed"), 0);
    let status = status(&daemon);
    assert_eq!((&status["state"], &status["nudges"]), (&"inherited".into(), &"on".into()));
}

#[test]
fn requests_wait_in_the_kept_socket_for_the_next_daemon() {
    const REQUESTS: u8 = 200;
    let dir = TempDir::new("kept");
    let (kernel, inherited) = pair();
    let (mut first, kept) = Daemon::spawn_under_systemd(command(&dir, inherited), &dir, CONFIG);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    assert_eq!(kept.len(), 1, "the socket is kept once");
    let mut request = unhex(REQUEST);
    let mut ask = |seq: u8| {
        request[8] = seq;
        kernel.send_bytes(&request);
    };
    let answers = |count: u8| {
        let answers = (0..count).map(|_| kernel.receive());
        answers.map(|answer| (answer[8], answer[16..].to_vec()))
    };
    let mut answered = Vec::new();
    for n in 0..REQUESTS {
        ask(n);
    }
    answered.extend(answers(REQUESTS));

    // It cannot read these any more.
    first.stop();
    for n in 0..REQUESTS {
        ask(n);
    }
    assert_eq!(first.end(Signal::SIGKILL), None);
    let command = with_kept(&dir, &kept);
    let mut second = Daemon::spawn(command, &dir, CONFIG);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    answered.extend(answers(REQUESTS));
    let gid = unhex("14000400 fe80000000000000 0002c90300000201");
    let expected = (0..REQUESTS).chain(0..REQUESTS).map(|seq| (seq, gid.clone()));
    assert_eq!(answered, expected.collect::<Vec<_>>());
    close(kept[0].fd).unwrap();
    assert_eq!(second.end(Signal::SIGTERM), Some(0));
}

#[test]
fn every_path_request_is_passed_back_even_if_malformed() {
    let dir = TempDir::new("paths");
    let (daemon, kernel) = start(&dir, CONFIG);
    let whole = unhex(PATH_REQUEST);
    assert_eq!(whole.len(), 152);
    kernel.send_bytes(&whole);
    kernel.expect(&format!("{ERROR} 01000000"), "");
    for cut in [16, 40, 83, 100, 151] {
        kernel.send_bytes(&whole[..cut]);
        kernel.expect(&format!("{ERROR} 01000000"), "");
    }
    let mut too_long = whole.clone();
    too_long.resize(9000, 0);
    too_long[..4].copy_from_slice(&9000_u32.to_ne_bytes());
    kernel.send_bytes(&too_long);
    kernel.expect(&format!("{ERROR} 01000000"), "");
    let counts = Counts::of(&daemon);
    assert_eq!((counts.get("paths-unknown"), counts.get("paths-malformed")), (1, 6));
    assert_eq!((counts.get("malformed-truncated"), counts.get("datagrams-cut")), (6, 1));
}

#[test]
fn each_message_of_a_datagram_is_answered() {
    let dir = TempDir::new("many");
    let (_daemon, kernel) = start(&dir, CONFIG);
    kernel.send(&format!("{REQUEST} {PATH_REQUEST} {REQUEST}"));
    // The repetition gets no second answer.
    kernel.expect("24000000 02100000 0c000000", "14000400 fe80000000000000 0002c90300000201");
    kernel.expect(&format!("{ERROR} 01000000"), "");
    kernel.is_silent();
}

#[test]
fn messages_that_are_not_requests_get_no_answer() {
    let dir = TempDir::new("noise");
    let (daemon, kernel) = start(&dir, CONFIG);
    let noise = [
        // Shorter than a header; with a length of zero; shorter than its stated length.
        "1c0000",
        "00000000 02100100 0c000000 00000000",
        "1c000000 02100100 0c000000 00000000 02000000",
        // An answer, such as one of another daemon that was sent to the group.
        "24000000 02100000 0c000000 b4000000 14000400 fe80000000000000 0002c90300000201",
        // Unknown operations of this client, and of another one.
        "10000000 03100100 0c000000 00000000",
        "10000000 00140100 0c000000 00000000",
        // How kernels before 5.6 acknowledge an answer.
        "24000000 02000000 0c000000 b4000000 24000000 24000000 02100000 0c000000 b4000000",
        // An interface with index 0; an address that no host has; no address.
        "1c000000 02100100 0c000000 00000000 00000000 08000920 c0000207",
        "1c000000 02100100 0c000000 00000000 02000000 08000920 00000000",
        "14000000 02100100 0c000000 00000000 02000000",
    ];
    for message in noise {
        kernel.send(message);
    }
    // The answer to this request is the first one.
    kernel.send(PATH_REQUEST);
    kernel.expect(&format!("{ERROR} 01000000"), "");
    let counts = Counts::of(&daemon);
    for (name, count) in [
        ("malformed-truncated", 3),
        ("not-a-request", 1),
        ("unknown-operation", 2),
        ("confirmations", 1),
        ("malformed-value", 1),
        ("malformed-target", 1),
        ("malformed-attribute-missing", 1),
        ("requests", 0),
    ] {
        assert_eq!(counts.get(name), count, "{name}: {counts:?}");
    }
}

/// In another network namespace, without CAP_NET_ADMIN.
#[test]
fn daemon_closes_its_socket_when_the_kernel_refuses_its_messages() {
    for (errno, remedy) in [("ffffffff", "CAP_NET_ADMIN"), ("eaffffff", "nsenter")] {
        let dir = TempDir::new("refused");
        let (daemon, kernel) = start(&dir, CONFIG);
        let verdict = format!("24000000 02000000 00000000 b4000000 {errno}");
        kernel.send(&format!("{verdict} 18000000 01100500 00000000 b4000000"));
        assert!(kernel.receive().is_empty());
        let blocked = daemon.until(|daemon| status(daemon)["blocked"].as_str().map(str::to_owned));
        assert!(blocked.contains(remedy), "{blocked}");
        assert_eq!(Counts::of(&daemon).get("refusals"), 1);
        assert_eq!(daemon.ask(&["resolve", "192.0.2.7"]).status.code(), Some(0));
    }
}

#[test]
fn flood_is_answered_once_for_each_request() {
    const FLOOD: u32 = 5_000;
    let dir = TempDir::new("flood");
    let (daemon, kernel) = start(&dir, CONFIG);
    let request = |seq: u32| {
        let mut bytes = unhex(REQUEST);
        bytes[8..12].copy_from_slice(&seq.to_ne_bytes());
        bytes
    };
    // No answer is read before the daemon has stopped reading: it must not drop any.
    let mut next = 1;
    while kernel.try_send(&request(next)) {
        next += 1;
        assert!(next < FLOOD, "the daemon continues to read");
    }
    let asked = next;
    thread::scope(|scope| {
        scope.spawn(|| {
            for seq in asked..=FLOOD {
                // An answer in place of a request, as another daemon would send to the group.
                let forged = "24000000 02100000 0c000000 b4000000 14000400 fe80000000000000 0000000000000bad";
                kernel.send(forged);
                kernel.send_bytes(&request(seq));
            }
        });
        let mut answered: Vec<_> = (1..=FLOOD)
            .map(|_| {
                let answer = kernel.receive();
                assert_eq!(answer[20..], unhex("fe80000000000000 0002c90300000201"));
                u32::from_ne_bytes(answer[8..12].try_into().unwrap())
            })
            .collect();
        answered.sort_unstable();
        assert!(answered.into_iter().eq(1..=FLOOD));
    });
    let counts = Counts::of(&daemon);
    assert_eq!(counts.get("requests"), u64::from(FLOOD));
    assert_eq!(counts.get("answered-local"), u64::from(FLOOD));
    assert_eq!(counts.get("not-a-request"), u64::from(FLOOD - asked + 1));
    assert_eq!(counts.get("answers-late"), 0);
    kernel.is_silent();
}

/// The kernel's requests come first, 256 a turn, and there is always one more.
#[test]
fn endless_requests_of_the_kernel_block_no_other_caller() {
    const ASKED: u64 = 10;
    /// Datagrams read before the user gets an answer. The answer takes a few turns and the start of
    /// a process; the runtime would let the engine run 128 turns before it made it yield.
    const READ: u64 = 30_000;
    let dir = TempDir::new("endless");
    let (mut daemon, kernel) = start(&dir, CONFIG);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                // Not requests, so that the test has to read no answers. The daemon ends before the
                // test.
                while !is_over.load(Ordering::Relaxed) {
                    let _ = send(kernel.0.as_raw_fd(), &[0; 3], MsgFlags::MSG_NOSIGNAL);
                }
            });
        }
        let _over = Over(&is_over);
        let read = || Counts::of(&daemon).get("malformed-truncated");
        let before = read();
        for _ in 0..ASKED {
            assert_eq!(daemon.ask(&["resolve", "192.0.2.7"]).status.code(), Some(0));
        }
        let read = (read() - before) / ASKED;
        assert!((100..READ).contains(&read), "{read} datagrams read before an answer");
        assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    });
}

#[test]
fn request_left_by_a_killed_daemon_is_answered_by_the_next() {
    let dir = TempDir::new("killed");
    let (kernel, inherited) = pair();
    let command = |fd| command(&dir, fd);
    let mut first = Daemon::spawn(command(inherited.try_clone().unwrap()), &dir, "");
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    // The first daemon reads this request, and does not know the address.
    kernel.send(REQUEST);
    first.until(|first| (status(first)["waiting"] == 1).then_some(()));
    first.stop();
    // This request is in the socket when the daemon ends.
    kernel.send(
        "28000000 02100100 18000000 00000000 02000000 14000a20 20010db800070000 0000000000000007",
    );
    first.end(Signal::SIGKILL);

    let second = Daemon::spawn(command(inherited), &dir, CONFIG);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    kernel.expect("24000000 02100000 18000000", "14000400 fe80000000000000 0002c90300000202");
    // The first nudge is for the request that was lost with the first daemon: the kernel repeats
    // it.
    assert!(Counts::of(&second).get("nudges") >= 1);
    kernel.send(REQUEST);
    kernel.expect("24000000 02100000 0c000000", "14000400 fe80000000000000 0002c90300000201");
}

#[test]
fn daemon_answers_and_restores_the_time_out_before_it_ends() {
    let dir = TempDir::new("last-words");
    let config = format!("local-service-timeout = \"500ms\"\n{CONFIG}");
    let (kernel, inherited) = pair();
    let daemon = Daemon::spawn(command(&dir, inherited), &dir, &config);
    kernel.expect("18000000 01100500 00000000", "08000200 f4010000");
    daemon.stop();
    kernel.send(REQUEST);
    kernel.send(PATH_REQUEST);
    kill(daemon.pid(), Signal::SIGTERM).unwrap();
    kill(daemon.pid(), Signal::SIGCONT).unwrap();
    daemon.notified("STOPPING=1");
    let mut said: Vec<_> = (0..3).map(|_| kernel.receive()[4]).collect();
    said.sort_unstable();
    // RESOLVE, SET_TIMEOUT, IP_RESOLVE; then the end of the stream.
    assert_eq!(said, [0, 1, 2]);
    assert!(kernel.receive().is_empty());
}

#[test]
fn time_out_is_restored_to_the_kernels_default() {
    let dir = TempDir::new("given-back");
    let config = "local-service-timeout = \"500ms\"\nnudge = false\n";
    let (kernel, inherited) = pair();
    let mut daemon = Daemon::spawn(command(&dir, inherited), &dir, config);
    kernel.expect("18000000 01100500 00000000", "08000200 f4010000");
    assert_eq!(status(&daemon)["nudges"], "off");
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    kernel.expect("18000000 01100500 00000000", "08000200 d0070000");
    kernel.is_silent();
}

#[test]
fn daemon_continues_without_the_kernels_end_and_reports_it() {
    let dir = TempDir::new("gone");
    let (daemon, kernel) = start(&dir, CONFIG);
    drop(kernel);
    let reason = daemon.until(|daemon| status(daemon)["blocked"].as_str().map(str::to_owned));
    assert!(reason.contains("closed at its other end"), "{reason}");
    assert_eq!(daemon.ask(&["resolve", "192.0.2.7"]).status.code(), Some(0));
}

#[test]
fn early_request_for_an_own_address_asks_no_peer() {
    let dir = TempDir::new("early");
    let (kernel, inherited) = pair();
    // The request is in the socket before the daemon starts.
    kernel.send(REQUEST);
    let daemon = Daemon::spawn(command(&dir, inherited), &dir, CONFIG);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    kernel.expect("24000000 02100000 0c000000", "14000400 fe80000000000000 0002c90300000201");
    let counts = json(&daemon.ask(&["counters", "--json"]))["counters"].clone();
    assert_eq!(counts["local-service.answered-local"], 1);
    assert_eq!(counts["ip2gid.client.requests"], 0, "{counts}");
}

#[test]
fn inherited_descriptor_of_another_kind_is_refused_by_name() {
    let dir = TempDir::new("another");
    let (_other_end, inherited) = UnixStream::pair().unwrap();
    let daemon = Daemon::spawn(command(&dir, inherited.into()), &dir, CONFIG);
    let status = status(&daemon);
    assert_eq!(status["state"], "closed");
    let reason = status["blocked"].as_str().unwrap();
    assert!(reason.contains("SOCK_SEQPACKET") && reason.contains("ListenNetlink"), "{reason}");
    assert_eq!(daemon.ask(&["resolve", "192.0.2.7"]).status.code(), Some(0));
}

#[test]
fn daemon_opens_a_socket_if_it_inherits_none() {
    let dir = TempDir::new("no-ls");
    let daemon = Daemon::spawn(in_namespace(&dir), &dir, CONFIG);
    let status = status(&daemon);
    let rdma = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRDMA,
    );
    if rdma.err() == Some(Errno::EPROTONOSUPPORT) {
        assert_eq!(status["state"], "closed");
        assert!(status["blocked"].as_str().unwrap().contains("ib_core"), "{status}");
    } else {
        // The kernel accepts no answers from this namespace.
        assert_eq!(status["state"], "closed", "{status}");
    }
    assert_eq!(daemon.ask(&["resolve", "192.0.2.7"]).status.code(), Some(0));
}

/// The kernel's end of the daemon's socket.
pub(crate) struct Kernel(OwnedFd);

impl Kernel {
    pub(crate) fn send(&self, hex: &str) {
        self.send_bytes(&unhex(hex));
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        assert_eq!(send(self.0.as_raw_fd(), bytes, MsgFlags::empty()), Ok(bytes.len()));
    }

    /// `false` if the daemon makes no room within a second, because it has stopped reading.
    fn try_send(&self, bytes: &[u8]) -> bool {
        setsockopt(&self.0, sockopt::SendTimeout, &TimeVal::seconds(1)).unwrap();
        let sent = send(self.0.as_raw_fd(), bytes, MsgFlags::empty());
        setsockopt(&self.0, sockopt::SendTimeout, &TimeVal::seconds(0)).unwrap();
        match sent {
            Err(Errno::EAGAIN) => false,
            sent => {
                assert_eq!(sent, Ok(bytes.len()));
                true
            }
        }
    }

    /// Empty when the daemon has closed its end.
    pub(crate) fn receive(&self) -> Vec<u8> {
        let mut buffer = [0; 512];
        let len = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
        buffer[..len].to_vec()
    }

    /// Checks that the next message is `header`, any port id, `payload`. Returns the port id.
    #[track_caller]
    pub(crate) fn expect(&self, header: &str, payload: &str) -> Vec<u8> {
        let message = self.receive();
        assert!(message.len() >= 16, "{message:02x?}");
        let mut expected = unhex(header);
        expected.extend(&message[12..16]);
        expected.extend(unhex(payload));
        assert_eq!(message, expected, "{message:02x?}");
        message[12..16].to_vec()
    }

    /// Checks that the socket is empty.
    fn is_silent(&self) {
        let mut buffer = [0; 512];
        let received = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT);
        assert!(matches!(received, Err(Errno::EAGAIN) | Ok(0)), "{received:?}: {buffer:02x?}");
    }
}

/// Starts a daemon with its kernel, waits until it is ready, and reads the default time-out that it
/// sets.
fn start(dir: &TempDir, config: &str) -> (Daemon, Kernel) {
    let (kernel, inherited) = pair();
    let daemon = Daemon::spawn(command(dir, inherited), dir, config);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    (daemon, kernel)
}

pub(crate) fn pair() -> (Kernel, OwnedFd) {
    let (kernel, inherited) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let patience = TimeVal::seconds(PATIENCE.as_secs().try_into().unwrap());
    setsockopt(&kernel, sockopt::ReceiveTimeout, &patience).unwrap();
    (Kernel(kernel), inherited)
}

/// [`in_namespace`], with `inherited` as `FDNAME=ls`.
pub(crate) fn command(dir: &TempDir, inherited: OwnedFd) -> Command {
    let mut command = in_namespace(dir);
    command.env("LISTEN_FDNAMES", "ls").stdin(inherited);
    command
}

/// [`daemon_command`] in the namespace of the test, with `inherited` as `FDNAME=ls`.
pub(crate) fn command_here(dir: &TempDir, inherited: OwnedFd) -> Command {
    let mut command = program("bash");
    with_descriptors(&mut command, INHERITING, &daemon_command(dir));
    command.env("LISTEN_FDNAMES", "ls").stdin(inherited);
    command
}

/// [`in_namespace`], with descriptors that systemd has kept.
pub(crate) fn with_kept(dir: &TempDir, kept: &[Kept]) -> Command {
    let mut command = in_namespace(dir);
    // In this order none takes the number of a later one.
    let mut kept = kept.to_vec();
    kept.sort_unstable_by_key(|kept| kept.fd);
    let (names, numbers): (Vec<_>, Vec<_>) =
        kept.into_iter().map(|kept| (kept.name, kept.fd.to_string())).unzip();
    command.env("LISTEN_FDNAMES", names.join(":")).env("KEPT", numbers.join(" "));
    command
}

/// [`daemon_command`] in a network namespace of its own.
fn in_namespace(dir: &TempDir) -> Command {
    let mut command = program("unshare");
    if !Uid::effective().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "bash"]);
    with_descriptors(&mut command, &format!("{ADDRESSES}{INHERITING}"), &daemon_command(dir));
    command
}

/// Has bash run `script`, then `daemon`. A descriptor's number may have two digits, which dash does not understand.
fn with_descriptors(command: &mut Command, script: &str, daemon: &Command) {
    command.args(["-ec", script, "bash"]).arg(daemon.get_program()).args(daemon.get_args());
}

const ADDRESSES: &str = "
    ip link set lo up
    ip addr add 192.0.2.7/32 dev lo
    ip addr add 2001:db8:7::7/128 dev lo nodad";

/// The socket is passed as standard input, or those of `KEPT` as they are; they become the first descriptors after
/// the standard ones.
const INHERITING: &str = "
    if [ -n \"$LISTEN_FDNAMES\" ]; then
        export LISTEN_PID=$$ LISTEN_FDS=0
        for kept in ${KEPT:-0}; do
            eval \"exec $((LISTEN_FDS + 3))<&$kept\"
            LISTEN_FDS=$((LISTEN_FDS + 1))
        done
    fi
    exec \"$@\" </dev/null";

fn status(daemon: &Daemon) -> Value {
    json(&daemon.ask(&["status", "--json"]))["status"]["local-service"].clone()
}

/// The daemon's counters about the kernel.
#[derive(Debug)]
struct Counts(Value);

impl Counts {
    fn of(daemon: &Daemon) -> Self {
        Self(json(&daemon.ask(&["counters", "--json"]))["counters"].clone())
    }

    #[track_caller]
    fn get(&self, name: &str) -> u64 {
        self.0[format!("local-service.{name}")].as_u64().expect("the counter exists")
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&String::from_iter(pair), 16).unwrap()).collect()
}
