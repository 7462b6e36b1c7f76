// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr resolve` and `ibarr ping`, with peers and a subnet administrator that the test plays.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Output, Stdio};

use ibarr_common::ib::Guid;
use ibarr_proto::local_view::neighbours::{Entry, State};
use ibarr_user::transport::rtnetlink::neighbours;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::paths::{FOREIGN, LOCAL, Port, UNKNOWN, lid_of};
use crate::peers::{Peers, REFUSES, SILENT, name_hosts, sh};
use crate::sockets::in_namespace;
use crate::support::{Daemon, IBARR, TempDir, ibarr, json, program};

const GID: &str = "fe80::2:c903:0:201";
const OTHER: &str = "fe80::2:c903:0:202";

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn counter(daemon: &Daemon, name: &str) -> u64 {
    json(&daemon.ask(&["counters", "--json"]))["counters"][name].as_u64().unwrap()
}

#[test]
fn range_is_resolved_with_one_line_each_and_a_summary() {
    if !in_namespace("resolve::range_is_resolved_with_one_line_each_and_a_summary") {
        return;
    }
    let (dir, peers) = (TempDir::new("resolve-range"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    for n in 2..=5 {
        peers.set(&format!("10.9.0.{n}"), Some(&format!("fe80::{n}")));
    }
    let said = daemon.ask(&["resolve", "10.9.0.[2-3,5]", "--timeout", "30s"]);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let said = text(&said);
    let mut lines: Vec<_> = said.lines().collect();
    let summary = lines.pop().unwrap();
    assert!(summary.starts_with("3 answers: 3 found; "), "{summary}");
    assert!(summary.contains(" ms (min / median / 99th percentile / max); "), "{summary}");
    lines.sort_unstable();
    for (line, n) in lines.iter().zip([2, 3, 5]) {
        assert!(line.starts_with(&format!("10.9.0.{n}  fe80::{n}  peer  ")), "{line}");
    }
    assert_eq!(lines.len(), 3);

    // A document has the order of the command line, whatever the order of the answers.
    let asked =
        ["resolve", SILENT, REFUSES, "10.9.0.[2-4]", "fd00:9::2", "--timeout", "3s", "--json"];
    peers.set("fd00:9::2", Some("fe80::6"));
    let said = daemon.ask(&asked);
    assert_eq!(said.status.code(), Some(1));
    let document = json(&said);
    let outcomes: Vec<_> = document["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| {
            format!("{} {} {}", answer["ip"], answer["status"], answer["source"]).replace('"', "")
        })
        .collect();
    assert_eq!(
        outcomes,
        [
            "10.9.0.8 timed-out null",
            "10.9.0.9 refused null",
            "10.9.0.2 found cache",
            "10.9.0.3 found cache",
            "10.9.0.4 found peer",
            "fd00:9::2 found peer",
        ]
    );
    let summary = &document["summary"];
    assert_eq!(summary["answers"], serde_json::json!({ "found": 4, "refused": 1, "timed-out": 1 }));
    assert!(summary["ms"]["min"].as_f64() <= summary["ms"]["max"].as_f64());
}

#[test]
fn answer_is_printed_while_another_peer_is_silent() {
    if !in_namespace("resolve::answer_is_printed_while_another_peer_is_silent") {
        return;
    }
    let (dir, peers) = (TempDir::new("resolve-soon"), Peers::new());
    let _daemon = Daemon::start(&dir, &peers.config());
    peers.set("10.9.0.2", Some(GID));
    let mut command = program(IBARR);
    command.args(["resolve", SILENT, "10.9.0.2", "--timeout", "60s", "--run-dir"]).arg(&dir.0);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with(&format!("10.9.0.2  {GID}  peer")), "{line}");
    assert!(child.try_wait().unwrap().is_none(), "the silent peer still has time");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn names_are_resolved_by_the_command_and_unknown_ones_named() {
    if !in_namespace("resolve::names_are_resolved_by_the_command_and_unknown_ones_named") {
        return;
    }
    let (dir, peers) = (TempDir::new("resolve-names"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    name_hosts(&dir, "10.9.0.2 node01\nfd00:9::2 node01\n10.9.0.3 node02\n");
    for (address, gid) in [("10.9.0.2", GID), ("10.9.0.3", OTHER), ("fd00:9::2", OTHER)] {
        peers.set(address, Some(gid));
    }
    let unknown = "n".repeat(70);
    let document = daemon.ask(&["resolve", "node[01-02]", "-4", &unknown, "--json"]);
    assert_eq!(document.status.code(), Some(1));
    let document = json(&document);
    let answers = &document["answers"];
    assert_eq!((&answers[0]["name"], &answers[0]["ip"]), (&"node01".into(), &"10.9.0.2".into()));
    assert_eq!((&answers[1]["name"], &answers[1]["gid"]), (&"node02".into(), &OTHER.into()));
    assert_eq!(document["unknown-names"][0]["name"], unknown);
    assert_eq!(document["summary"]["unknown-names"], 1);
    let said = text(&daemon.ask(&["resolve", "node01", "-6"]));
    assert!(said.starts_with(&format!("node01  {OTHER}  peer  ")), "{said}");
    assert!(said.ends_with("  fd00:9::2\n"), "{said}");

    // The first of several addresses counts, and the others are told.
    let said = daemon.ask(&["resolve", "node01", "--json"]);
    let answer = &json(&said)["answers"][0];
    let both = [answer["ip"].as_str().unwrap(), answer["other-addresses"][0].as_str().unwrap()];
    assert!(both.contains(&"10.9.0.2") && both.contains(&"fd00:9::2"), "{answer}");
    let told = format!("ibarr: node01: {} is its first address", both[0]);
    for command in [&["resolve", "node01"][..], &["ping", "node01", "--count", "1"]] {
        let said = String::from_utf8(daemon.ask(command).stderr).unwrap();
        assert!(said.starts_with(&told) && said.ends_with(&format!(": {}\n", both[1])), "{said}");
    }
    let said = daemon.ask(&["resolve", "node01", "-4"]);
    assert_eq!(said.stderr, b"");

    // A link-local address without its interface.
    for command in [&["resolve", "fe80::1"][..], &["ping", "fe80::1"]] {
        let said = daemon.ask(command);
        assert_eq!(said.status.code(), Some(64));
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(said.contains("name the interface: ") && said.contains("fe80::1%near"), "{said}");
    }

    // Scoped: the queries leave by that interface.
    let said = daemon.ask(&["resolve", "10.9.0.2%near", "--json"]);
    let answer = &json(&said)["answers"][0];
    assert_eq!((&answer["name"], &answer["gid"]), (&"10.9.0.2%near".into(), &GID.into()));
    let said = daemon.ask(&["resolve", "fe80::1%far"]);
    assert_eq!(said.status.code(), Some(66), "the interface is elsewhere");
}

#[test]
fn thousands_of_addresses_are_asked_for_in_several_requests() {
    if !in_namespace("resolve::thousands_of_addresses_are_asked_for_in_several_requests") {
        return;
    }
    let dir = TempDir::new("resolve-many");
    let daemon = Daemon::start(&dir, &format!("udp-port = {}\n", crate::support::free_port()));
    let said = daemon.ask(&["resolve", "127.0.0.1", "--repeat", "300", "--json"]);
    let document = json(&said);
    assert_eq!(document["answers"].as_array().unwrap().len(), 1);
    assert_eq!(document["summary"]["answers"]["not-found"], 300);

    let many = daemon.ask(&["resolve", "198.51.[100-107].[0-255]", "--cached", "--json-lines"]);
    assert_eq!(many.status.code(), Some(1));
    let many = text(&many);
    let mut lines: Vec<Value> =
        many.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().unwrap();
    assert_eq!(summary["summary"]["answers"]["not-remembered"], 2048);
    let mut places: Vec<_> = lines.iter().map(|line| line["place"].as_u64().unwrap()).collect();
    places.sort_unstable();
    assert!(places.into_iter().eq(0..2048));
    assert!(lines.iter().all(|line| line["answer"]["status"] == "not-remembered"));
    let too_many = daemon.ask(&["resolve", "10.[0-255].[0-255].[0-255]", "--json"]);
    assert_eq!(too_many.status.code(), Some(64));
    assert!(json(&too_many)["error"]["message"].as_str().unwrap().contains("65536"));
}

#[test]
fn repeat_shows_an_answer_again_only_if_it_has_changed() {
    if !in_namespace("resolve::repeat_shows_an_answer_again_only_if_it_has_changed") {
        return;
    }
    let (dir, peers) = (TempDir::new("resolve-repeat"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    peers.set("10.9.0.2", Some(GID));
    let said = text(&daemon.ask(&["resolve", "10.9.0.2", "--repeat", "20"]));
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("\n20 answers: 20 found; "), "{said}");
    assert_eq!(counter(&daemon, "ip2gid.client.cache-hits"), 19, "the others were remembered");
    let said = daemon.ask(&["resolve", "10.9.0.2", "--repeat", "20", "--fresh", "--json"]);
    assert_eq!(json(&said)["answers"][0]["source"], "peer");
    assert!(peers.asked("10.9.0.2") >= 21, "each asked the peer");
    assert_eq!(counter(&daemon, "ip2gid.client.cache-hits"), 19);
}

#[test]
fn path_follows_the_address_from_the_chosen_source() {
    if !in_namespace("resolve::path_follows_the_address_from_the_chosen_source") {
        return;
    }
    let (dir, peers) = (TempDir::new("resolve-path"), Peers::new());
    let _port = Port::new(&dir);
    let daemon = Daemon::start(&dir, &peers.config());
    daemon.until(has_sa);
    for (address, gid) in [("10.9.0.2", LOCAL), ("10.9.0.3", FOREIGN), ("10.9.0.4", UNKNOWN)] {
        peers.set(address, Some(gid));
    }
    let said = text(&daemon.ask(&["resolve", "10.9.0.2", "--path"]));
    let path = "    LID 8 to 1, SL 0, P_Key 0xffff, MTU 2048, 10 Gbit/s, by mlx5_0/1, sa  ";
    assert!(said.lines().nth(1).unwrap().starts_with(path), "{said}");
    let said = daemon.ask(&[
        "resolve",
        "10.9.0.[2-4]",
        "--path",
        "--source",
        "fec0:0:1:1::10:9",
        "--json",
    ]);
    assert_eq!(said.status.code(), Some(1), "no path to one");
    let answers = json(&said)["answers"].clone();
    let path = |n: usize| &answers[n]["path"];
    assert_eq!((&path(0)["hops"]["dlid"], &path(0)["source"]), (&1.into(), &"cache".into()));
    assert_eq!((&path(1)["hops"]["dlid"], &path(1)["chosen"]), (&4.into(), &"named".into()));
    assert_eq!(path(2)["status"], "no-record");
    for absent in ["mlx5_7/1", "10.9.0.200", "fe80::dead"] {
        let said = daemon.ask(&["resolve", "10.9.0.2", "--path", "--source", absent, "--json"]);
        assert_eq!(said.status.code(), Some(66), "{absent}");
        assert_eq!(json(&said)["error"]["kind"], "absent");
    }
}

fn has_sa(daemon: &Daemon) -> Option<()> {
    let ports = json(&daemon.ask(&["ports", "--json"]));
    ports["ports"].get(0)?["blocked"].is_null().then_some(())
}

#[test]
fn verify_names_what_contradicts_a_remembered_answer() {
    if !in_namespace("resolve::verify_names_what_contradicts_a_remembered_answer") {
        return;
    }
    let (dir, peers) = (TempDir::new("resolve-verify"), Peers::new());
    let port = Port::new(&dir);
    let daemon = Daemon::start(&dir, &format!("{}[client]\nfresh-for = \"5s\"\n", peers.config()));
    daemon.until(has_sa);
    peers.set("10.9.0.2", Some(LOCAL));
    let verify = || daemon.ask(&["resolve", "10.9.0.2", "--verify", "--timeout", "30s"]);
    for _ in 0..2 {
        let said = verify();
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        assert!(!text(&said).contains("mismatch"), "{said:?}");
    }
    // The SA's node has moved, and nothing has told the daemon.
    port.hold().subnet_mut().ports.get_mut(&Guid::new(0x10_0001)).unwrap().lid = lid_of(5);
    let said = verify();
    assert_eq!(said.status.code(), Some(1));
    let mismatch = "    mismatch: the subnet administrator says LID 8 to 5, SL 0, P_Key 0xffff, MTU 2048, 10 Gbit/s now, \
                    the daemon remembered LID 8 to 1, SL 0, P_Key 0xffff, MTU 2048, 10 Gbit/s";
    assert!(text(&said).lines().any(|line| line == mismatch), "{said:?}");
    assert_eq!(verify().status.code(), Some(0), "the new path is remembered");

    // The peer has another GID, to which no path leads.
    peers.set("10.9.0.2", Some(OTHER));
    let said = daemon.ask(&["resolve", "10.9.0.2", "--verify", "--json"]);
    assert_eq!(said.status.code(), Some(1));
    let document = json(&said);
    let mismatches = &document["answers"][0]["mismatches"];
    assert_eq!(mismatches[0]["with"], "peer");
    let message = format!("the peer says {OTHER} now, the daemon remembered {LOCAL}");
    assert_eq!((&mismatches[0]["message"], mismatches.get(1)), (&message.into(), None));
    assert_eq!(document["summary"]["mismatches"], 1);
    port.hold().behaviour_mut().silent = true;
    let said = daemon.ask(&["resolve", "10.9.0.2", "--verify", "--json"]);
    assert_eq!(said.status.code(), Some(1));
    let with = &json(&said)["answers"][0]["mismatches"][0]["with"];
    assert_eq!(with, "sa", "it does not confirm");
}

#[test]
fn verify_without_infiniband_names_the_missing_port() {
    if !in_namespace("resolve::verify_without_infiniband_names_the_missing_port") {
        return;
    }
    let (dir, peers) = (TempDir::new("resolve-no-port"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    peers.set("10.9.0.2", Some(GID));
    let said = daemon.ask(&["resolve", "10.9.0.2", "--verify"]);
    assert_eq!(said.status.code(), Some(1));
    let named = "mismatch: no path: this machine has no InfiniBand port";
    assert!(text(&said).contains(named), "{said:?}");
}

#[test]
fn neighbour_entries_of_the_kernel_are_read_whole() {
    if !in_namespace("resolve::neighbour_entries_of_the_kernel_are_read_whole") {
        return;
    }
    // More than fit into one datagram of the kernel.
    sh("ip link add near type veth peer name far; ip link set near up
        for n in $(seq 1 1000); do
            echo neigh add 10.7.$((n / 250)).$((n % 250)) lladdr 02:00:00:00:00:07 dev near nud permanent
        done | ip -batch -");
    let table = neighbours().unwrap();
    let is_ours = |entry: &&Entry| {
        entry.state == State::Permanent && entry.hwaddr.as_bytes() == [2, 0, 0, 0, 0, 7]
    };
    assert_eq!(table.iter().filter(is_ours).count(), 1000);
}

#[test]
fn ping_asks_the_peer_in_each_round() {
    if !in_namespace("resolve::ping_asks_the_peer_in_each_round") {
        return;
    }
    let (dir, peers) = (TempDir::new("ping"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    peers.set("10.9.0.2", Some(GID));
    assert_eq!(daemon.ask(&["resolve", "10.9.0.2"]).status.code(), Some(0));
    let said = daemon.ask(&["ping", "10.9.0.2", "-c", "5", "-i", "10ms", "--timeout", "30s"]);
    assert_eq!(said.status.code(), Some(0));
    let said = text(&said);
    assert_eq!(said.matches(&format!("10.9.0.2 is {GID}: ")).count(), 5, "{said}");
    let summary = said.lines().last().unwrap();
    assert!(summary.starts_with("10.9.0.2: 5 asked, 5 answered, 0% lost; "), "{summary}");
    assert!(summary.ends_with(" ms (min / median / max)"), "{summary}");
    assert_eq!(counter(&daemon, "ip2gid.client.requests"), 6);
    assert_eq!(counter(&daemon, "ip2gid.client.cache-hits"), 0);
    assert!(peers.asked("10.9.0.2") >= 6);

    let pinged = ["ping", SILENT, "-c", "2", "-i", "0.01", "--timeout", "20ms", "--json"];
    let said = daemon.ask(&pinged);
    assert_eq!(said.status.code(), Some(1));
    let ping = json(&said)["ping"].clone();
    assert_eq!((&ping["asked"], &ping["answered"]), (&2.into(), &0.into()));
    assert_eq!((&ping["lost-percent"], &ping["answers"]["timed-out"]), (&100.0.into(), &2.into()));
    assert!(ping.get("gid").is_none() && ping.get("ms").is_none());
}

#[test]
fn interrupted_ping_prints_its_summary() {
    if !in_namespace("resolve::interrupted_ping_prints_its_summary") {
        return;
    }
    let (dir, peers) = (TempDir::new("ping-interrupted"), Peers::new());
    let daemon = Daemon::start(&dir, &peers.config());
    peers.set("10.9.0.2", Some(GID));
    let mut command = program(IBARR);
    command.args(["ping", "10.9.0.2", "-i", "1h", "--run-dir"]).arg(&dir.0);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with(&format!("10.9.0.2 is {GID}: ")), "{line}");
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("10.9.0.2: 1 asked, 1 answered, 0% lost; "), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(daemon);
}

#[test]
fn without_a_daemon_resolve_and_ping_say_so_as_asked() {
    let dir = TempDir::new("resolve-nobody");
    let run_dir = dir.0.to_str().unwrap();
    for command in [["resolve", "10.9.0.[1-200]"], ["ping", "10.9.0.1"]] {
        let said = ibarr(&[&command[..], &["--run-dir", run_dir, "--json"]].concat());
        assert_eq!(said.status.code(), Some(69), "{command:?}");
        assert_eq!(json(&said)["error"]["kind"], "unreachable");
        let said = ibarr(&[&command[..], &["--run-dir", run_dir, "--json-lines"]].concat());
        assert_eq!(json(&said)["error"]["kind"], "unreachable");
    }
}
