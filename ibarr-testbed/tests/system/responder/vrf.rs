// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An interface in a VRF, on kernels that have them: the guests of vm-responder run these tests.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;
use nix::sys::signal::Signal;

use super::learned::answer;
use super::rig::*;
use crate::machine::{ibarr, said};

/// Values of `net.ipv4.udp_l3mdev_accept`, with those of `responder`.
const WAYS: [(&str, &str); 4] = [("0", "user"), ("0", "auto"), ("1", "user"), ("1", "auto")];

#[test]
fn peers_in_a_vrf_are_answered_whatever_unbound_sockets_accept() {
    let mut rig = Rig::new();
    make_vrf();
    let ask = |rig: &Rig| {
        for target in [V4, V6] {
            rig.eventually("an answer", || socket(target).ask(Duration::from_millis(200)));
            socket(target).ask_all(10);
        }
    };
    for (accept, responder) in WAYS {
        netns::set(NODE, &[("ipv4/udp_l3mdev_accept", accept)]).unwrap();
        enslave("master blue");
        rig.start(&format!("responder = \"{responder}\""));
        let by_daemon = rig.answered_by_daemon();
        ask(&rig);
        // Outside of the VRF the programs may answer. Of the first queries, some may be lost.
        rig.eventually("the daemon answers", || rig.answered_by_daemon() >= by_daemon + 22);
        let status = rig.asked("status");
        assert!(status["status"]["servers"].to_string().contains("\"vrf\":\"blue\""), "{status}");
        assert!(!status["status"]["health"].to_string().contains("not-serving"), "{status}");
        // Out of the VRF and into it again, at run time.
        enslave("nomaster");
        ask(&rig);
        enslave("master blue");
        ask(&rig);
        // Another user's socket gets neither port.
        let other = netns::inside(NODE, || Ok(std::net::UdpSocket::bind("0.0.0.0:4791")?));
        assert!(other.is_err());
        rig.end(Signal::SIGTERM);
        assert!(rig.detach().status.success());
    }
}

#[test]
fn peers_are_asked_by_an_interface_in_a_vrf() {
    let mut rig = Rig::new();
    let peers = [("10.99.0.1", "10.7.0.2"), ("fd00:99::1", "fd00:7::2")];
    make_vrf();
    enslave("master blue");
    for (target, gateway) in peers {
        let nodad = if target.contains(':') { "nodad" } else { "" };
        ip(&format!("-netns {PEER} address add {target} dev lo {nodad}"));
        answer(target, &Arc::default());
        ip(&format!("-netns {NODE} route add {target} via {gateway} dev eth0 table 60"));
    }
    for (accept, responder) in WAYS {
        netns::set(NODE, &[("ipv4/udp_l3mdev_accept", accept)]).unwrap();
        rig.start(&format!("responder = \"{responder}\"\nsource-check = \"strict\""));
        for (target, _) in peers {
            for by in ["eth0", "blue"] {
                let run_dir = rig.run_dir();
                let ask = format!(
                    "resolve {target}%{by} --fresh --timeout 2s --run-dir {}",
                    run_dir.display()
                );
                let answered = said(&ibarr_on_node(&ask));
                assert!(answered.contains(GID), "{by}, accept {accept}: {answered}");
            }
        }
        rig.end(Signal::SIGTERM);
        assert!(rig.detach().status.success());
    }
}

#[test]
fn nodes_that_are_each_in_a_vrf_find_each_other() {
    let far = [("10.99.0.1", V4, "10.7.0.2"), ("fd00:99::1", V6, "fd00:7::2")];
    let mut rig = Rig::new();
    make_vrf();
    enslave("master blue");
    ip(&format!("-netns {PEER} link add red type vrf table 70"));
    ip(&format!("-netns {PEER} link set red up"));
    ip(&format!("-netns {PEER} link set eth0 master red"));
    ip(&format!("-netns {PEER} address replace fd00:7::2/64 dev eth0 nodad"));
    for (target, _, gateway) in far {
        let nodad = if target.contains(':') { "nodad" } else { "" };
        ip(&format!("-netns {PEER} address add {target} dev red {nodad}"));
        ip(&format!("-netns {NODE} route add {target} via {gateway} dev eth0 table 60"));
    }
    for (accept, responder) in WAYS {
        for namespace in [NODE, PEER] {
            netns::set(namespace, &[("ipv4/udp_l3mdev_accept", accept)]).unwrap();
        }
        rig.start(&format!("responder = \"{responder}\"\nsource-check = \"strict\""));
        let peer = Peer::start(&rig, responder, &far.map(|(target, ..)| target));
        for (target, ours, _) in far {
            for by in ["eth0", "blue"] {
                let ask =
                    format!("resolve {target}%{by} --fresh --run-dir {}", rig.run_dir().display());
                rig.eventually("the peer answers", || said(&ibarr_on_node(&ask)).contains(GID));
            }
            for by in ["eth0", "red"] {
                let found = peer.said(&format!("resolve {ours}%{by} --fresh"));
                assert!(found.contains(GID), "{by}, accept {accept}: {found}");
            }
            // Outside of the VRF there is neither.
            let outside = peer.said(&format!("resolve {ours} --fresh --timeout 200ms"));
            assert!(!outside.contains(GID), "accept {accept}: {outside}");
        }
        drop(peer);
        rig.end(Signal::SIGTERM);
        assert!(rig.detach().status.success());
    }
}

/// A daemon on the peer, until it is dropped.
struct Peer {
    daemon: Child,
    directory: PathBuf,
}

impl Peer {
    fn start(rig: &Rig, responder: &str, ours: &[&str]) -> Self {
        let directory = rig.machine.directory().join("peer");
        fs::create_dir_all(&directory).unwrap();
        let gids =
            ours.iter().map(|ip| format!("[[static-gid]]\nip = \"{ip}\"\ngid = \"{GID}\"\n"));
        let config = format!("responder = \"{responder}\"\ninterfaces = [\"eth*\"]\n");
        fs::write(directory.join("ibarr.toml"), config + &gids.collect::<String>()).unwrap();
        let mut command = program(ibarr());
        command.arg("run").arg("--config").arg(directory.join("ibarr.toml"));
        command.arg("--run-dir").arg(&directory).arg("--bpf-dir").arg(rig.bpffs().join("peer"));
        let log = fs::File::create(directory.join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self { daemon: netns::spawn(PEER, &mut command).unwrap(), directory }
    }

    /// What a command says on the peer.
    fn said(&self, words: &str) -> String {
        let mut command = program(ibarr());
        command.args(words.split_whitespace()).arg("--run-dir").arg(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        said(&netns::spawn(PEER, &mut command).unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn make_vrf() {
    ip(&format!("-netns {NODE} link add blue type vrf table 60"));
    ip(&format!("-netns {NODE} link set blue up"));
}

/// Changes the master of the node's interface, which loses its IPv6 address each time.
fn enslave(master: &str) {
    ip(&format!("-netns {NODE} link set eth0 {master}"));
    ip(&format!("-netns {NODE} address replace {V6}/64 dev eth0 nodad"));
}
