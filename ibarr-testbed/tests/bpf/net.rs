// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A server, a client at the other end of a veth pair, and a client behind a router.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::Stdio;
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;
use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, sendto, socket,
};
use nix::unistd::geteuid;

use crate::frame::Link;

/// Namespaces of the calling thread, which is the server. Its `s0` leads to the `client`.
pub(crate) struct Net {
    pub(crate) s0: IfIndex,
}

pub(crate) const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 5];
pub(crate) const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// The Ethernet header from the client to the server.
pub(crate) const TO_SERVER: Link = Link::Ethernet { destination: SERVER, source: CLIENT };

impl Net {
    pub(crate) fn new() -> Self {
        assert!(geteuid().is_root(), "system tests need root: cargo xtask test uses sudo");
        netns::own_directory().expect("system tests need a mount namespace");
        unshare(CloneFlags::CLONE_NEWNET).expect("system tests need a network namespace");
        ip(
            &[],
            "netns add client
             netns add remote
             link set lo up
             link add s0 address 02:00:00:00:00:05 type veth peer c0 address 02:00:00:00:00:09 netns client
             address add 10.2.0.5/24 dev s0
             address add fd00:2::5/64 dev s0 nodad
             address add fe80::5/64 dev s0 nodad
             link set s0 addrgenmode none
             link set s0 up
             route add default via 10.2.0.9",
        );
        ip(
            &["-netns", "client"],
            "link set lo up
             link add r0 type veth peer t0 netns remote
             address add 10.2.0.9/24 dev c0
             address add fd00:2::9/64 dev c0 nodad
             address add fe80::9/64 dev c0 nodad
             link set c0 addrgenmode none
             link set c0 up
             address add 10.3.0.9/24 dev r0
             link set r0 up",
        );
        ip(
            &["-netns", "remote"],
            "address add 10.3.0.1/24 dev t0
             link set t0 up
             route add default via 10.3.0.9",
        );
        netns::set("client", &[("ipv4/ip_forward", "1")]).expect("a setting");
        let s0 = nix::net::if_::if_nametoindex("s0").expect("just made");
        Self { s0: IfIndex::new(s0).expect("an index") }
    }
}

/// Sends `payload` through the stack of `namespace`, and waits for a reply.
pub(crate) fn ask(namespace: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let socket = socket_in(namespace, &format!("{destination}:0"));
    let to: SocketAddr = destination
        .parse::<SocketAddr>()
        .unwrap_or_else(|_| SocketAddr::new(destination.parse().expect("an address"), 4791));
    socket.send_to(payload, to).expect("sent");
    let (reply, from) = receive(&socket);
    assert_eq!(from, to, "the reply's source");
    reply
}

/// A socket in `namespace`.
pub(crate) fn socket_in(namespace: &str, address: &str) -> UdpSocket {
    let family = if address.starts_with('[') || address.matches(':').count() > 1 {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let bind = || Ok(UdpSocket::bind(family)?);
    let socket = netns::inside(namespace, bind).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    socket
}

/// Sends a whole frame by the client's interface, without changes by the kernel.
pub(crate) fn send_frame(frame: &[u8]) {
    netns::inside("client", || {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
        let c0 = link_addr("c0");
        sendto(socket.as_raw_fd(), frame, &c0, MsgFlags::empty())?;
        Ok(())
    })
    .expect("sent");
}

/// Longer than a packet waits on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The next datagram and its source.
#[track_caller]
pub(crate) fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 256];
    let (length, from) = socket.recv_from(&mut buffer).expect("a datagram within 20 s");
    (buffer[..length].to_vec(), from)
}

/// A socket like that of the server's daemon.
pub(crate) fn daemon(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address.parse::<IpAddr>().expect("an address"), 4791))
        .expect("the port is free");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    socket
}

fn link_addr(name: &str) -> LinkAddr {
    let mut interfaces = getifaddrs().expect("a list of interfaces");
    let found = interfaces.find_map(|interface| {
        let is_it = interface.interface_name == name;
        interface.address.filter(|_| is_it)?.as_link_addr().copied()
    });
    found.unwrap_or_else(|| panic!("no interface {name}"))
}

/// Runs one command of iproute2 a line.
fn ip(options: &[&str], lines: &str) {
    let mut ip = program("ip");
    let ip = ip.args(options).args(["-batch", "-"]).stdin(Stdio::piped());
    let mut ip = ip.spawn().expect("iproute2's ip is on PATH");
    ip.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("read");
    assert!(ip.wait().expect("it ran").success(), "{lines}");
}
