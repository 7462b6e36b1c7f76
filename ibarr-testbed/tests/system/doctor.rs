// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr doctor` on a node that is broken in one way after the other: it names each fault, with its
//! remedy, and no longer once it is mended.

mod firewall;

use std::fs;
use std::net::UdpSocket;
use std::process::Stdio;
use std::sync::Arc;

use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use nix::sys::utsname::uname;
use serde_json::Value;

use crate::machine::{MARKER, said};
use crate::responder::learned::answer_with;
use crate::responder::rig::*;
use crate::tun::{self, Tun};

const ANSWERING: &str = "10.7.0.2";
const ITS_GID: &str = "fe80::2:c903:0:702";
/// The peer has this address, and nothing there answers.
const REFUSING: &str = "10.7.0.3";
/// No host has this address.
const MISSING: &str = "10.7.0.77";
const WITHOUT_ROUTE: &str = "203.0.113.9";

#[test]
fn doctor_names_each_fault_of_a_node_until_it_is_mended() {
    let mut rig = Rig::new();
    ip(&format!("-netns {PEER} address add {REFUSING}/24 dev eth0"));
    answer_with(ITS_GID, ANSWERING, &Arc::default());
    let _tun = Tun::open("ib0", tun::INFINIBAND).unwrap();
    ip(&format!("link set ib0 netns {NODE}"));
    ip(&format!("-netns {NODE} link set ib0 up"));
    rig.start("");
    let well = ["interfaces", "bpffs", "daemon", "rights", "user", "limits", "peers"];
    rig.eventually("all is well", || {
        let checks = examine(&rig, ANSWERING);
        well.iter().all(|name| states(&checks, name).iter().all(|state| *state == "ok"))
    });
    let checks = examine(&rig, ANSWERING);
    for name in well.into_iter().chain(["peer", "neighbour"]) {
        assert!(!states(&checks, name).is_empty(), "{name}: {checks:?}");
        assert!(states(&checks, name).iter().all(|state| *state == "ok"), "{name}: {checks:?}");
    }

    // An address of [[static-gid]] that no interface has.
    names(&rig, ANSWERING, "static-gid", ("warn", "no interface has 10.7.0.9", "[[static-gid]]"));
    ip(&format!("-netns {NODE} address add 10.7.0.9/24 dev eth0"));
    forgets(&rig, "static-gid", "10.7.0.9");

    // An interface that is down.
    ip(&format!("-netns {NODE} link set ib0 down"));
    names(&rig, ANSWERING, "interfaces", ("fail", "ib0 is down", "ip link set ib0 up"));
    ip(&format!("-netns {NODE} link set ib0 up"));
    forgets(&rig, "interfaces", "is down");

    // Peers that do not answer, and one without a route.
    names(&rig, REFUSING, "peer", ("fail", REFUSING, "start ibarr there"));
    names(&rig, MISSING, "peer", ("fail", MISSING, ""));
    names(&rig, WITHOUT_ROUTE, "route", ("fail", WITHOUT_ROUTE, "ip route add 203.0.113.9"));

    // Another process has the UDP port, and the daemon starts.
    rig.end(Signal::SIGTERM);
    let taken = netns::inside(NODE, || Ok(UdpSocket::bind("0.0.0.0:4791")?)).unwrap();
    rig.restart();
    names(&rig, ANSWERING, "peers", ("warn", "is held by", "ss -lunp"));
    drop(taken);
    forgets(&rig, "peers", "is held by");

    // A daemon without the rights to load programs, so none answers.
    rig.end(Signal::SIGTERM);
    assert!(rig.detach().status.success());
    let mut unprivileged = program("setpriv");
    let without = "-bpf,-perfmon,-sys_admin";
    unprivileged.args(["--inh-caps", without, "--bounding-set", without]);
    rig.spawn({
        unprivileged.arg(crate::machine::ibarr());
        unprivileged
    });
    names(&rig, ANSWERING, "rights", ("warn", "lacks CAP_PERFMON, CAP_BPF", "systemctl start"));
    names(&rig, ANSWERING, "responder", ("warn", "in user space", "responder = \"user\""));
    rig.end(Signal::SIGTERM);
    rig.restart();
    forgets(&rig, "rights", "lacks");
    forgets(&rig, "responder", "in user space");

    // No bpffs is mounted.
    rig.end(Signal::SIGTERM);
    assert!(rig.detach().status.success());
    umount2(&rig.bpffs(), MntFlags::MNT_DETACH).unwrap();
    names(&rig, ANSWERING, "bpffs", ("warn", "no bpffs", "mount -t bpf"));
    // And the daemon is not there.
    names(&rig, ANSWERING, "daemon", ("fail", "", "systemctl start ibarr"));
}

#[test]
fn strict_rp_filter_that_drops_a_peers_queries_is_named() {
    let mut rig = Rig::new();
    answer_with(ITS_GID, ANSWERING, &Arc::default());
    rig.start("");
    let is = |rig: &Rig, state: &str, found: &str| {
        rig.eventually(&format!("return is {state}, because {found:?}"), || {
            let checks = examine_by(rig, &[]);
            let is_it = |check: &Value| {
                check["state"] == state && check["found"].as_str().unwrap().contains(found)
            };
            checks.iter().any(|check| check["check"] == "return" && is_it(check))
        });
    };
    rig.asked(&format!("resolve {ANSWERING}"));
    is(&rig, "ok", "10.7.0.2 to 10.7.0.1 by eth0");
    let dropped = || {
        let netstat = || Ok(fs::read_to_string("/proc/thread-self/net/netstat")?);
        count(&netns::inside(NODE, netstat).unwrap(), "IPReversePathFilter")
    };
    let filter = |value| netns::set(NODE, &[("ipv4/conf/all/rp_filter", value)]).unwrap();
    filter("0");
    // The way back leaves by another interface.
    ip(&format!("-netns {NODE} link add other0 type veth peer name other1"));
    for link in ["other0", "other1"] {
        ip(&format!("-netns {NODE} link set {link} up"));
    }
    ip(&format!("-netns {NODE} route add {ANSWERING}/32 dev other0"));
    is(&rig, "warn", "replies leave by other0");
    filter("1");
    is(&rig, "fail", "rp_filter drops the queries of 10.7.0.2 to 10.7.0.1 on eth0");
    // The kernel does drop a query that the programs pass on.
    let before = dropped();
    let query = Query::new(Version::V1, MsgId(1), [10, 7, 0, 200].into()).unwrap();
    rig.eventually("rp_filter drops a query", || {
        socket(V4).send(query.emit().as_ref());
        dropped() > before
    });
    filter("2");
    is(&rig, "warn", "replies leave by other0");
    ip(&format!("-netns {NODE} route del {ANSWERING}/32 dev other0"));
    is(&rig, "ok", "10.7.0.2 to 10.7.0.1 by eth0");
}

/// A counter of /proc/net/netstat, where a line of names comes before each line of numbers.
fn count(netstat: &str, name: &str) -> u64 {
    let lines: Vec<&str> = netstat.lines().collect();
    let mut all =
        lines.chunks(2).flat_map(|pair| pair[0].split_whitespace().zip(pair[1].split_whitespace()));
    all.find(|(of, _)| *of == name).unwrap().1.parse().unwrap()
}

#[test]
fn report_of_a_node_names_no_host_and_no_address() {
    let mut rig = Rig::new();
    answer_with(ITS_GID, ANSWERING, &Arc::default());
    rig.start("");
    rig.asked(&format!("resolve {ANSWERING}"));
    let file = rig.machine.directory().join("report");
    let words = format!(
        "doctor --peer {ANSWERING} --report {} --run-dir {}",
        file.display(),
        rig.run_dir().display()
    );
    let output = ibarr_on_node(&words);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let report = fs::read_to_string(&file).unwrap();
    let host = uname().unwrap().nodename().to_str().unwrap().to_owned();
    let mac = hwaddr(NODE, "eth0");
    let is_word = |name: &str| {
        let is_inside = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.';
        report.split(is_inside).any(|word| word == name)
    };
    assert!(!is_word(&host) || host == "localhost", "{host}: {report}");
    for planted in [V4, V6, ANSWERING, "10.7.0.", "fd00:7", GID, ITS_GID, "c903", &mac] {
        assert!(!report.contains(planted), "{planted}: {report}");
    }
    for section in ["versions", "ports", "interfaces", "self-test", "journal", "status", "counters"]
    {
        assert!(report.contains(&format!("\n== {section}\n")), "{section}: {report}");
    }
    // What the daemon answers, and what the peer answers, are told apart.
    assert!(report.contains("ipv4-1") && report.contains("ipv4-2"), "{report}");
    let again = ibarr_on_node(&words);
    assert_eq!(again.status.code(), Some(64), "the file stays: {}", said(&again));
    assert_eq!(fs::read_to_string(&file).unwrap(), report);
}

/// All checks of `ibarr doctor` on the node, which sees its own interfaces.
fn examine(rig: &Rig, peer: &str) -> Vec<Value> {
    examine_by(rig, &["--peer", peer])
}

fn examine_by(rig: &Rig, words: &[&str]) -> Vec<Value> {
    let mut command = program("ip");
    command.args(["netns", "exec", NODE]).arg(crate::machine::ibarr());
    command.args(["doctor", "--json"]).args(words).arg("--run-dir").arg(rig.run_dir());
    command.arg("--bpf-dir").arg(rig.bpf_dir());
    command.env(MARKER, rig.machine.marker()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    let checks = told["checks"].as_array().unwrap().clone();
    // This machine has no InfiniBand, which is a failure.
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    checks
}

fn states<'a>(checks: &'a [Value], name: &str) -> Vec<&'a str> {
    let named = checks.iter().filter(|check| check["check"] == name);
    named.map(|check| check["state"].as_str().unwrap()).collect()
}

/// Waits until a check has this state, and the finding and the remedy contain these texts.
fn names(rig: &Rig, peer: &str, name: &str, (state, found, remedy): (&str, &str, &str)) {
    rig.eventually(&format!("{name} is {state}, because {found:?}"), || {
        let is_it = |check: &Value| {
            let has = |field: &str, text| check[field].as_str().is_some_and(|it| it.contains(text));
            check["check"] == name
                && check["state"] == state
                && has("found", found)
                && has("remedy", remedy)
        };
        examine(rig, peer).iter().any(is_it)
    });
}

/// Waits until the check is there and its finding does not contain this text any more.
fn forgets(rig: &Rig, name: &str, found: &str) {
    rig.eventually(&format!("{name} is no longer so that {found:?}"), || {
        let checks = examine(rig, ANSWERING);
        let mut named = checks.iter().filter(|check| check["check"] == name).peekable();
        named.peek().is_some()
            && !named.any(|check| check["found"].as_str().unwrap().contains(found))
    });
}

/// Changes the rules of the node's firewall.
pub(crate) fn nft(words: &str) {
    let mut command = program("nft");
    command.args(words.split_whitespace()).stdin(Stdio::null());
    let status = netns::spawn(NODE, &mut command).unwrap().wait().unwrap();
    assert!(status.success(), "nft {words}: {status}");
}
