// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets of the ip2gid port: inherited ones, and a port that another process has.

use std::collections::HashSet;
use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ibarr_common::wire::ip2gid::{MsgId, Query, Reply, Version};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use nix::unistd::Uid;

use crate::support::{Daemon, Over, PATIENCE, TempDir, daemon_command, free_port, json, program};

/// The addresses of the namespace.
const ADDRESSES: [&str; 2] = ["192.0.2.7", "2001:db8:7::7"];
const GID: &str = "fe80::2:c903:0:201";

#[test]
fn waiting_query_is_answered_by_the_next_daemon() {
    if !in_namespace("sockets::waiting_query_is_answered_by_the_next_daemon") {
        return;
    }
    let dir = TempDir::new("inherited");
    let [port, other_port] = [4791, 4792];
    let held = [any_v4(port), any_v6(port, true)];
    let statics = ADDRESSES.map(|ip| format!("[[static-gid]]\nip = \"{ip}\"\ngid = \"{GID}\"\n"));
    let config = |port| format!("udp-port = {port}\n{}", statics.concat());
    for msg_id in 0..2 {
        let clients = ADDRESSES.map(|ip| ask(ip, port, msg_id));
        let inherited = held.each_ref().map(|socket| socket.try_clone().unwrap());
        let mut daemon = Daemon::spawn(with_inherited(&dir, inherited), &dir, &config(port));
        for client in &clients {
            expect_answer(client, msg_id);
        }

        // First the daemon's own sockets, then the inherited ones again.
        for port in [other_port, port] {
            dir.write("ibarr.toml", &format!("responder = \"user\"\n{}", config(port)));
            assert_eq!(daemon.ask(&["reload"]).status.code(), Some(0));
            let said = warnings(&daemon);
            let count = said.matches("is not used: it has port 4791 of IPv").count();
            assert_eq!(count, if port == 4791 { 0 } else { 2 }, "{said}");
            let may_be_taken = said.contains("any process can bind UDP port 4792");
            assert_eq!(may_be_taken, port == other_port, "{said}");
            daemon.until(|daemon| serves(daemon).then_some(()));
            for ip in ADDRESSES {
                expect_answer(&ask(ip, port, msg_id), msg_id);
            }
        }
        assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    }
}

/// Queries of a peer without an answer yet: fewer than fit into the socket.
const IN_FLIGHT: usize = 100;
const RESTARTS: usize = 20;

#[test]
fn restarts_lose_no_query_that_an_inherited_socket_holds() {
    if !in_namespace("sockets::restarts_lose_no_query_that_an_inherited_socket_holds") {
        return;
    }
    let dir = TempDir::new("restarts");
    let [address, _] = ADDRESSES;
    let held = [any_v4(4791), any_v6(4791, true)];
    let config = format!("[[static-gid]]\nip = \"{address}\"\ngid = \"{GID}\"\n");
    let peer = UdpSocket::bind((address, 0)).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        let asking = scope.spawn(|| {
            let (mut asked, mut waiting) = (0, HashSet::new());
            while !is_over.load(Ordering::Relaxed) || !waiting.is_empty() {
                while waiting.len() < IN_FLIGHT && !is_over.load(Ordering::Relaxed) {
                    asked += 1;
                    waiting.insert(asked);
                    let target = address.parse().unwrap();
                    let query = Query::new(Version::V1, MsgId(asked), target).unwrap();
                    peer.send_to(query.emit().as_ref(), (address, 4791)).unwrap();
                }
                let mut reply = [0; 64];
                let len = peer
                    .recv(&mut reply)
                    .unwrap_or_else(|error| panic!("{waiting:?} of {asked}: {error}"));
                let reply = Reply::parse(&reply[..len]).unwrap();
                assert!(waiting.remove(&reply.msg_id.0), "{reply}: answered twice");
            }
            asked
        });
        for _ in 0..RESTARTS {
            let inherited = held.each_ref().map(|socket| socket.try_clone().unwrap());
            let mut daemon = Daemon::spawn(with_inherited(&dir, inherited), &dir, &config);
            assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
        }
        drop(over);
        let inherited = held.each_ref().map(|socket| socket.try_clone().unwrap());
        let _last = Daemon::spawn(with_inherited(&dir, inherited), &dir, &config);
        assert!(asking.join().unwrap() > 1_000);
    });
}

#[test]
fn wrong_inherited_socket_is_refused_by_name() {
    let dir = TempDir::new("refused");
    let port = free_port();
    let here: OwnedFd = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().into();
    for (sockets, reasons) in [
        ([here, any_v6(0, false)], ["not to all addresses of a port", "BindIPv6Only=ipv6-only"]),
        (
            [any_v4(0), socket_of(AddressFamily::Unix, SockType::Datagram)],
            [", and udp-port is", "neither IPv4 nor IPv6"],
        ),
        (
            [socket_of(AddressFamily::Inet, SockType::Stream), any_v6(0, true)],
            ["it is not UDP", ", and udp-port is"],
        ),
    ] {
        let config = format!("udp-port = {port}\n");
        let mut daemon = Daemon::spawn(with_inherited(&dir, sockets), &dir, &config);
        let said = warnings(&daemon);
        for (number, reason) in [3, 4].into_iter().zip(reasons) {
            let refused = format!("inherited descriptor {number} (ip2gid) is not used: ");
            assert!(said.contains(&refused) && said.contains(reason), "{reason}: {said}");
        }
        assert!(serves(&daemon), "by its own sockets");
        assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    }
}

/// Whether this process runs in a network namespace with [`ADDRESSES`]; otherwise it runs the test
/// of this name in one.
pub(crate) fn in_namespace(name: &str) -> bool {
    const INSIDE: &str = "IBARR_TEST_IN_NAMESPACE";
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let [v4, v6] = ADDRESSES;
    let script = format!(
        "ip link set lo up; ip addr add {v4}/32 dev lo; ip addr add {v6}/128 dev lo nodad
         exec \"$@\""
    );
    let mut command = program("unshare");
    if !Uid::effective().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "sh", "-ec", &script, "sh"]).arg(env::current_exe().unwrap());
    // It is this program, with what it depends on.
    let command = command.args(["--exact", name]).envs(env::vars_os()).env(INSIDE, "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" 1 passed"), "{said}");
    false
}

/// [`daemon_command`] with `sockets` as `FDNAME=ip2gid`.
fn with_inherited(dir: &TempDir, sockets: [OwnedFd; 2]) -> Command {
    let own = daemon_command(dir);
    let mut command = program("sh");
    let script = "export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=ip2gid:ip2gid
                  exec 3<&0 4<&1; exec \"$@\" </dev/null >/dev/null";
    command.args(["-ec", script, "sh"]).arg(own.get_program()).args(own.get_args());
    let [first, second] = sockets.map(Stdio::from);
    command.stdin(first).stdout(second);
    command
}

fn socket_of(family: AddressFamily, of: SockType) -> OwnedFd {
    socket(family, of, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

/// Made like a socket of systemd with `PassPacketInfo=yes`.
fn any_v4(port: u16) -> OwnedFd {
    let fd = socket_of(AddressFamily::Inet, SockType::Datagram);
    setsockopt(&fd, sockopt::Ipv4PacketInfo, &true).unwrap();
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    bind(fd.as_raw_fd(), &SockaddrStorage::from(any)).unwrap();
    fd
}

fn any_v6(port: u16, v6_only: bool) -> OwnedFd {
    let fd = socket_of(AddressFamily::Inet6, SockType::Datagram);
    setsockopt(&fd, sockopt::Ipv6V6Only, &v6_only).unwrap();
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    bind(fd.as_raw_fd(), &SockaddrStorage::from(any)).unwrap();
    fd
}

fn ask(address: &str, port: u16, msg_id: u32) -> UdpSocket {
    let address: IpAddr = address.parse().unwrap();
    let client = UdpSocket::bind((address, 0)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let query = Query::new(Version::V1, MsgId(msg_id), address).unwrap();
    client.send_to(query.emit().as_ref(), (address, port)).unwrap();
    client
}

fn expect_answer(client: &UdpSocket, msg_id: u32) {
    let mut buffer = [0; 64];
    let len = client.recv(&mut buffer).unwrap();
    let reply = Reply::parse(&buffer[..len]).unwrap();
    assert_eq!(reply.msg_id, MsgId(msg_id));
    assert_eq!(reply.gid.unwrap().to_string(), GID);
}

fn warnings(daemon: &Daemon) -> String {
    json(&daemon.ask(&["status", "--json"]))["status"]["warnings"].to_string()
}

/// Whether the daemon serves both families.
fn serves(daemon: &Daemon) -> bool {
    let status = json(&daemon.ask(&["status", "--json"]));
    let servers = status["status"]["servers"].as_array().unwrap();
    servers.len() == 2 && servers.iter().all(|server| server["blocked"].is_null())
}
