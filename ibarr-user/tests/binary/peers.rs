// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Peers of the daemon in a network namespace of their own, behind a veth link. The test plays them.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use ibarr_common::wire::ip2gid::{Query, Reply};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

use crate::support::{TempDir, free_port, program};

/// The peers' addresses are 10.9.0.2 to 10.9.0.9, and fd00:9::2. Nothing listens at the last but one. 10.8.0.2 and
/// 10.8.0.3 are behind a gateway.
pub(crate) const REFUSES: &str = "10.9.0.9";
pub(crate) const SILENT: &str = "10.9.0.8";
pub(crate) const GATEWAY: &str = "10.9.0.7";

/// What the peers answer; an address without a GID has no answer.
#[derive(Clone)]
pub(crate) struct Peers {
    gids: Arc<Mutex<BTreeMap<IpAddr, String>>>,
    asked: Arc<Mutex<Vec<IpAddr>>>,
    pub(crate) port: u16,
}

impl Peers {
    /// Makes the link and the peers. Only inside a namespace of the test.
    pub(crate) fn new() -> Self {
        let this = Self { gids: Arc::default(), asked: Arc::default(), port: free_port() };
        let (says, said) = channel();
        let (go, goes) = channel();
        let peers = this.clone();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            says.send(gettid()).unwrap();
            goes.recv().unwrap();
            let addresses = (2..=9).map(|n| format!("ip addr add 10.9.0.{n}/24 dev far;"));
            sh(&format!(
                "{} ip addr add fd00:9::2/64 dev far nodad; ip link set far up
                 ip addr add 10.8.0.2/32 dev far; ip addr add 10.8.0.3/32 dev far",
                addresses.collect::<String>()
            ));
            let all = (2..=8).map(|n| format!("10.9.0.{n}"));
            let all = all.chain(["fd00:9::2", "10.8.0.2", "10.8.0.3"].map(str::to_owned));
            for address in all {
                let address: IpAddr = address.parse().unwrap();
                let socket = UdpSocket::bind((address, peers.port)).unwrap();
                let peers = peers.clone();
                thread::spawn(move || peers.serve(&socket, address));
            }
            says.send(gettid()).unwrap();
        });
        let thread = said.recv().unwrap();
        sh(&format!(
            "ip link add near type veth peer name far; ip link set far netns {thread}
             ip addr add 10.9.0.1/24 dev near; ip addr add fd00:9::1/64 dev near nodad; ip link set near up
             ip route add 10.8.0.0/24 via {GATEWAY}"
        ));
        go.send(()).unwrap();
        said.recv().unwrap();
        this
    }

    pub(crate) fn set(&self, address: &str, gid: Option<&str>) {
        let address = address.parse().unwrap();
        let mut gids = self.gids.lock().unwrap();
        match gid {
            Some(gid) => gids.insert(address, gid.to_owned()),
            None => gids.remove(&address),
        };
    }

    /// How many queries for `address` have arrived.
    pub(crate) fn asked(&self, address: &str) -> usize {
        let address: IpAddr = address.parse().unwrap();
        self.asked.lock().unwrap().iter().filter(|asked| **asked == address).count()
    }

    pub(crate) fn config(&self) -> String {
        format!("udp-port = {}\n", self.port)
    }

    /// The kernel may ask by the link, as by IPoIB.
    pub(crate) fn config_for_kernel(&self) -> String {
        format!("{}interfaces = [\"near\"]\n", self.config())
    }

    fn serve(&self, socket: &UdpSocket, address: IpAddr) {
        let mut buffer = [0; 64];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let query = Query::parse(&buffer[..len]).unwrap();
            self.asked.lock().unwrap().push(address);
            let Some(gid) = self.gids.lock().unwrap().get(&address).cloned() else { continue };
            let (version, msg_id) = (query.version(), query.msg_id());
            let reply = Reply { version, msg_id, gid: Some(gid.parse().unwrap()) };
            socket.send_to(reply.emit().as_ref(), from).unwrap();
        }
    }
}

pub(crate) fn sh(script: &str) {
    let output = program("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A directory whose `hosts` is the system's, with these lines besides: for `ibarr` in a mount namespace of the test.
pub(crate) fn name_hosts(dir: &TempDir, lines: &str) {
    let old = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let hosts = dir.write("hosts", &format!("{old}\n{lines}"));
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
    sh(&format!("mount --make-rprivate /; mount --bind {} /etc/hosts", hosts.display()));
}
