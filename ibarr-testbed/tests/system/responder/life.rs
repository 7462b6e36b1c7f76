// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The life of the programs, from attachment to detachment.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ibarr_common::map::{Program, Reason};
use ibarr_testbed::start::program;
use nix::sys::signal::Signal;

use super::beside::Theirs;
use super::rig::*;
use crate::machine::{ibarr, said};

#[test]
fn peers_of_a_stopped_daemon_are_answered_and_counted() {
    let mut rig = Rig::new();
    for (responder, hook) in kinds() {
        rig.start(&format!("responder = \"{responder}\""));
        assert_eq!(rig.status_of("eth0")["responder"], hook);
        let by_daemon = rig.answered_by_daemon();
        let before = rig.answered_in_kernel();
        rig.signal(Signal::SIGSTOP);
        for target in [V4, V6] {
            socket(target).ask_all(500);
        }
        assert_eq!(rig.answered_in_kernel() - before, 1000);
        rig.signal(Signal::SIGCONT);
        assert_eq!(rig.answered_by_daemon(), by_daemon);
        let counters = rig.asked("counters");
        assert_eq!(counters["counters"]["bpf.tc.answered"], rig.answered_in_kernel());
        rig.end(Signal::SIGTERM);
    }
}

#[test]
fn detach_leaves_what_was_there_before() {
    for responder in ["tc", "clsact"] {
        let mut rig = Rig::new();
        let before = traces(&rig);
        rig.start(&format!("responder = \"{responder}\""));
        socket(V4).ask_all(1);
        // Refused while a daemon uses the pins.
        let output = rig.detach();
        assert_eq!(output.status.code(), Some(75), "{}", said(&output));
        assert!(said(&output).contains("another ibarr has these pins"), "{}", said(&output));
        rig.end(Signal::SIGKILL);
        assert_ne!(traces(&rig), before);
        let maps = rig.map_ids();
        assert!(maps.len() >= 8, "{maps:?}");

        let output = rig.detach();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(traces(&rig), before);
        rig.eventually("maps and programs are gone", || none_left(&maps));
        assert!(!socket(V4).ask(Duration::from_millis(100)));
        // And again, when nothing is left.
        let output = rig.detach();
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn daemon_killed_during_its_start_is_undone_or_taken_over() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        let before = traces(&rig);
        let config = format!("responder = \"{responder}\"");
        let began = Instant::now();
        rig.start(&config);
        let whole = began.elapsed();
        let maps = rig.map_ids();
        rig.end(Signal::SIGKILL);
        assert!(rig.detach().status.success());
        let rounds = rounds(12);
        for round in 0..rounds {
            rig.launch(program(ibarr()));
            // Kill at times that are spread evenly over a start, and a little later.
            std::thread::sleep(whole * round / rounds * 5 / 4);
            rig.end(Signal::SIGKILL);
            if round % 3 == 2 {
                rig.restart();
                assert_eq!(rig.status_of("eth0")["responder"], hook);
                let in_kernel = rig.answered_in_kernel();
                socket(V4).ask_all(5);
                assert_eq!(rig.answered_in_kernel(), in_kernel + 5);
                rig.end(Signal::SIGKILL);
            }
            let output = rig.detach();
            assert!(output.status.success(), "{}", said(&output));
            assert_eq!(traces(&rig), before, "killed after {round}/{rounds} of the start time");
        }
        rig.eventually("maps and programs are gone", || none_left(&maps));
    }
}

#[test]
fn a_qdisc_that_others_use_stays() {
    // Another program's qdisc, or ours with a filter of another program.
    for theirs_first in [true, false] {
        let mut rig = Rig::new();
        if theirs_first {
            tool("tc", &format!("-netns {NODE} qdisc add dev eth0 clsact"));
        }
        rig.start("responder = \"clsact\"");
        if !theirs_first {
            Theirs::filter(7);
        }
        rig.end(Signal::SIGTERM);
        let output = rig.detach();
        assert!(output.status.success(), "{}", said(&output));
        let qdiscs = tool("tc", &format!("-netns {NODE} qdisc show dev eth0"));
        assert!(qdiscs.contains("clsact"), "{qdiscs}");
        let filters = tool("tc", &format!("-netns {NODE} filter show dev eth0 ingress"));
        assert!(!filters.contains("ip2gid"), "{filters}");
        assert_eq!(filters.contains("empty_tc"), !theirs_first, "{filters}");
    }
}

#[test]
fn kernel_answers_at_the_configured_port_and_at_no_other() {
    let mut rig = Rig::new();
    let silent = |port| !socket(V4).at(port).ask(Duration::from_millis(100));
    rig.start("");
    socket(V4).ask_all(10);
    for (port, old) in [(4999, 4791), (5000, 4999)] {
        rig.configure(&format!("udp-port = {port}"));
        rig.asked("reload");
        let in_kernel = rig.answered_in_kernel();
        for target in [V4, V6] {
            socket(target).at(port).ask_all(10);
        }
        assert!(silent(old) && silent(4791));
        assert_eq!(rig.answered_in_kernel() - in_kernel, 20);
    }
    // The next daemon, and the lease of a killed one.
    rig.end(Signal::SIGKILL);
    socket(V4).at(5000).ask_all(10);
    assert!(silent(4999) && silent(4791));
    rig.start("udp-port = 4998");
    socket(V4).at(4998).ask_all(10);
    assert!(silent(5000) && silent(4791));
    rig.end(Signal::SIGTERM);
    socket(V4).at(4998).ask_all(10);
}

#[test]
fn reply_that_the_kernel_refuses_is_no_answer_and_has_its_cause() {
    let mut rig = Rig::new();
    rig.start("responder = \"user\"");
    let mut peer = socket(V4);
    peer.ask_all(1);
    let source = peer.source();
    ip(&format!("-netns {NODE} route add prohibit {source}"));
    assert!(!peer.ask(Duration::from_millis(100)));
    let counter = |name: &str| rig.asked("counters")["counters"][name].as_u64().unwrap();
    rig.eventually("it is counted", || counter("ip2gid.server.not-sent-no-route") == 1);
    rig.until_answered_by_daemon(1);
    rig.eventually("status says it", || {
        rig.asked("status")["status"]["health"].to_string().contains("replies-unroutable")
    });
    ip(&format!("-netns {NODE} route delete prohibit {source}"));
    peer.ask_all(1);
}

#[test]
fn other_name_of_an_interface_selects_its_responder_at_run_time() {
    let mut rig = Rig::new();
    rig.start("responder-on = [{ interface = \"rail0\", responder = \"user\" }]");
    let in_kernel = |rig: &Rig| rig.status_of("eth0")["responder"].is_string();
    assert!(in_kernel(&rig));
    ip(&format!("-netns {NODE} link property add dev eth0 altname rail0"));
    rig.eventually("the daemon answers", || !in_kernel(&rig));
    ip(&format!("-netns {NODE} link property del dev eth0 altname rail0"));
    rig.eventually("the kernel answers", || in_kernel(&rig));
}

#[test]
fn responder_user_detaches_programs_at_once() {
    let mut rig = Rig::new();
    let before = traces(&rig);
    rig.start("");
    socket(V4).ask_all(1);
    rig.configure("responder = \"user\"");
    rig.asked("reload");
    assert_eq!(traces(&rig), before);
    // Now the daemon answers.
    let by_daemon = rig.answered_by_daemon();
    socket(V4).ask_all(10);
    rig.until_answered_by_daemon(by_daemon + 10);
    let status = rig.asked("status");
    assert_eq!(status["status"]["responder"]["blocked"], "responder = \"user\"");
    rig.configure("");
    rig.asked("reload");
    let in_kernel = rig.answered_in_kernel();
    socket(V4).ask_all(10);
    assert_eq!(rig.answered_in_kernel(), in_kernel + 10);
}

#[test]
fn interface_removed_from_the_configuration_is_detached_at_once() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        let responder = format!("responder = \"{responder}\"");
        rig.start(&responder);
        socket(V4).ask_all(5);
        let others = format!("{responder}\ninterfaces = [\"other*\"]\n");
        fs::write(rig.machine.directory().join("ibarr.toml"), others).unwrap();
        rig.asked("reload");
        assert_eq!(rig.hooks(), <[PathBuf; 0]>::default());
        assert!(rig.status_of("eth0")["responder"].is_null());
        let filters = tool("tc", &format!("-netns {NODE} filter show dev eth0 ingress"));
        assert!(!filters.contains("ip2gid_tc") && tcx_programs().is_empty(), "{filters}");
        let before = rig.answered_in_kernel();
        rig.configure(&responder);
        rig.asked("reload");
        assert_eq!(rig.status_of("eth0")["responder"], hook);
        socket(V4).ask_all(5);
        assert_eq!(rig.answered_in_kernel(), before + 5);
    }
}

#[test]
fn interface_that_comes_back_is_served_again() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        rig.start(&format!("responder = \"{responder}\""));
        let mut pins = Vec::new();
        for name in ["eth0", "eth1", "eth2"] {
            if name != "eth0" {
                plug(name);
            }
            rig.eventually("the interface is served", || rig.status_of(name)["responder"] == hook);
            rig.eventually("a route covers the peer", || rig.asks_the_kernel());
            let before = rig.answered_in_kernel();
            socket(V4).ask_all(20);
            assert_eq!(rig.answered_in_kernel(), before + 20);
            let links = rig.hooks();
            assert_ne!(links, pins, "another interface has another pin");
            pins = links;
            ip(&format!("-netns {NODE} link delete {name}"));
            rig.eventually("the pins are gone", || rig.hooks().is_empty());
        }
    }
}

/// The array for other interfaces has no room for such an index.
#[test]
fn an_interface_with_a_large_index_is_served_like_any_other() {
    let mut rig = Rig::new();
    ip(&format!("-netns {NODE} link delete eth0"));
    plug_with("eth0", "index 70000");
    rig.start("");
    let interfaces = |rig: &Rig| {
        let kernel = rig.asked(&format!("cache --kernel --bpf-dir {}", rig.bpf_dir().display()));
        kernel["kernel"]["interfaces"].as_array().unwrap().clone()
    };
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        assert_eq!(rig.status_of("eth0")["responder"], kinds()[0].1);
        assert_eq!(interfaces(&rig)[0]["ifindex"], 70_000);
        let before = rig.answered_in_kernel();
        for target in [V4, V6] {
            socket(target).ask_all(20);
        }
        assert_eq!(rig.answered_in_kernel(), before + 40);
        rig.end(signal);
        rig.restart();
    }
    ip(&format!("-netns {NODE} link delete eth0"));
    rig.eventually("the entry is removed from the map", || interfaces(&rig).is_empty());
}

#[test]
fn interface_stays_served_when_renamed_or_set_down_and_up() {
    let mut rig = Rig::new();
    rig.start("");
    ip(&format!("-netns {NODE} link set eth0 down"));
    ip(&format!("-netns {NODE} link set eth0 name eth7"));
    ip(&format!("-netns {NODE} link set eth7 up"));
    rig.eventually("it is served by its new name", || {
        rig.status_of("eth7")["responder"] == kinds()[0].1
    });
    rig.eventually("the link is up", || socket(V4).ask(Duration::from_millis(100)));
    rig.eventually("a route covers the peer", || rig.asks_the_kernel());
    let before = rig.answered_in_kernel();
    socket(V4).ask_all(20);
    assert!(rig.answered_in_kernel() >= before + 20);
}

#[test]
fn program_that_is_removed_is_attached_again() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        // The daemon looks for its programs when it renews the lease.
        rig.start(&format!("responder = \"{responder}\"\nlease = \"1s\""));
        if hook == "tcx" {
            fs::remove_file(&rig.hooks()[0]).unwrap();
        } else {
            tool("tc", &format!("-netns {NODE} filter delete dev eth0 ingress"));
        }
        rig.eventually("the daemon notices the loss", || {
            rig.asked("counters")["counters"]["responder.lost"] == 1
        });
        rig.eventually("it is attached again", || rig.status_of("eth0")["responder"] == hook);
        let before = rig.answered_in_kernel();
        socket(V4).ask_all(20);
        assert_eq!(rig.answered_in_kernel(), before + 20);
    }
}

/// Its pin stays, and so does the link, but without effect.
#[test]
fn link_that_is_detached_is_attached_again() {
    let mut kinds = vec![("xdp", "xdp-native"), ("xdp-generic", "xdp-generic")];
    if has_tcx() {
        kinds.push(("tc", "tcx"));
    }
    for (responder, hook) in kinds {
        let mut rig = Rig::new();
        let _peers_program = prepare_for_xdp();
        // With a lease of an hour, its renewal plays no part.
        rig.start(&format!("responder = \"{responder}\"\nlease = \"1h\""));
        assert_eq!(rig.status_of("eth0")["responder"], hook);
        let program = if hook == "tcx" { Program::Tc } else { Program::Xdp };
        tool("bpftool", &format!("link detach pinned {}", rig.hooks()[0].display()));
        rig.eventually("the daemon notices the loss", || {
            rig.asked("counters")["counters"]["responder.lost"] == 1
        });
        assert!(rig.log().contains("the program is not attached any more"), "{}", rig.log());
        rig.eventually("it is attached again", || rig.status_of("eth0")["responder"] == hook);
        let before = rig.count(program, Reason::Answered);
        socket(V4).ask_all(20);
        assert_eq!(rig.count(program, Reason::Answered), before + 20);
        assert_eq!(rig.status_of("eth0")["responder"], hook);
    }
}

#[test]
fn interface_made_anew_with_the_same_index_is_served_again() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        rig.start(&format!("responder = \"{responder}\"\nlease = \"1h\""));
        let index = rig.status_of("eth0")["ifindex"].clone();
        // Stopped, so that the daemon hears of both changes at once.
        rig.signal(Signal::SIGSTOP);
        ip(&format!("-netns {NODE} link delete eth0"));
        plug_with("eth0", &format!("index {index}"));
        rig.signal(Signal::SIGCONT);
        let answers = || socket(V4).ask(Duration::from_millis(100));
        rig.eventually("the kernel answers again", || answers() && rig.asks_the_kernel());
        // The thread that attaches programs tells the engine afterwards.
        rig.eventually("it is known", || rig.status_of("eth0")["responder"] == hook);
        assert_eq!(rig.status_of("eth0")["ifindex"], index);
    }
}

/// The lease is the bound, because programs cannot notice it before Linux 6.15, and XDP programs never.
#[test]
fn moved_interface_of_a_dead_daemon_is_answered_until_the_lease_ends() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        rig.start(&format!("responder = \"{responder}\"\nlease = \"3s\""));
        socket(V4).ask_all(1);
        rig.end(Signal::SIGKILL);
        ip("netns add other");
        ip(&format!("-netns {NODE} link set eth0 netns other"));
        ip("-netns other address add 10.7.0.200/24 dev eth0");
        ip("-netns other link set eth0 up");
        pin_neighbour_in("other", V4);
        let answers = || socket(V4).ask(Duration::from_millis(50));
        if hook == "clsact" {
            // The kernel removes the qdisc, and the filter with it (`dev_change_net_namespace`).
            assert!(!answers());
        }
        rig.eventually("the lease is over", || lease_over(&rig));
        let before = rig.answered_in_kernel();
        assert!(!answers());
        assert_eq!(rig.answered_in_kernel(), before);
    }
}

fn lease_over(rig: &Rig) -> bool {
    let words = format!("cache --kernel --json --bpf-dir {}", rig.bpf_dir().display());
    let shown: serde_json::Value = serde_json::from_slice(&ibarr_on_node(&words).stdout).unwrap();
    shown["kernel"]["lease-ends-in-ms"] == 0
}

/// The tests are in another mount namespace than process 1.
#[test]
fn status_warns_if_only_one_mount_namespace_has_the_pins() {
    let mut rig = Rig::new();
    rig.start("");
    let status = rig.asked("status");
    let early = status["status"]["responder"]["ends-early"].as_str().unwrap_or_default();
    assert!(early.contains("only the daemon's mount namespace has the bpffs of"), "{status}");
    assert!(rig.log().contains("only this mount namespace has the bpffs mounted"), "{}", rig.log());
}

#[test]
fn more_prefixes_than_the_map_holds_are_said_by_status_and_validate() {
    let mut rig = Rig::new();
    let prefixes: Vec<_> =
        (0..4097).map(|at| format!("\"10.{}.{}.2\"", at >> 8, at & 0xff)).collect();
    rig.start(&format!("allow = [{}]", prefixes.join(",")));
    let status = rig.asked("status");
    let blocked = status["status"]["responder"]["blocked"].as_str().unwrap_or_default();
    assert!(blocked.contains("no more than 4096 prefixes"), "{status}");
    let config = rig.machine.directory().join("ibarr.toml");
    let output = ibarr_on_node(&format!("validate {}", config.display()));
    assert!(output.status.success(), "{}", said(&output));
    let warning = "allow has 4097 prefixes, and the kernel holds 4096";
    assert!(String::from_utf8_lossy(&output.stdout).contains(warning), "{}", said(&output));
    assert!(rig.asked("reload")["done"].as_str().unwrap().contains(warning));
}

/// The daemon removes the address from the map in the turn in which it hears of the removal, so before
/// `ibarr status` shows that.
#[test]
fn address_that_the_daemon_saw_removed_is_not_answered() {
    const ADDRESS: &str = "10.7.0.9";
    let mut rig = Rig::new();
    rig.start("");
    pin_neighbour(ADDRESS);
    let mut asker = socket(ADDRESS);
    for _ in 0..20 {
        ip(&format!("-netns {NODE} address add {ADDRESS}/24 dev eth0"));
        rig.eventually("it is answered", || asker.ask(Duration::from_millis(20)));
        ip(&format!("-netns {NODE} address delete {ADDRESS}/24 dev eth0"));
        rig.eventually("the daemon knows", || {
            rig.status_of("eth0")["addresses"].get(ADDRESS).is_none()
        });
        let (answered, unknown) =
            (rig.answered_in_kernel(), rig.count(Program::Tc, Reason::Unknown));
        for _ in 0..5 {
            assert!(!asker.ask(Duration::from_millis(5)));
        }
        let unknown_now = || rig.count(Program::Tc, Reason::Unknown);
        rig.eventually("all have come", || unknown_now() == unknown + 5);
        assert_eq!(rig.answered_in_kernel(), answered);
    }
}

#[test]
fn a_filter_of_others_in_our_place_stays_and_is_named() {
    for theirs_are_two in [false, true] {
        let mut rig = Rig::new();
        tool("tc", &format!("-netns {NODE} qdisc add dev eth0 clsact"));
        let _in_our_place = Theirs::filter_at(4791, 0x4791);
        let _another = theirs_are_two.then(|| Theirs::filter(7));
        let before = traces(&rig);
        rig.start("responder = \"clsact\"");
        let status = rig.status_of("eth0");
        let reason = status["in-user-space"].as_str().unwrap();
        assert!(reason.contains("another filter, \"empty_tc\", has priority 4791"), "{status}");
        let by_daemon = rig.answered_by_daemon();
        socket(V4).ask_all(10);
        rig.until_answered_by_daemon(by_daemon + 10);
        assert_eq!(rig.hooks(), <[PathBuf; 0]>::default(), "a half-made start is undone");
        rig.end(Signal::SIGTERM);
        assert!(rig.detach().status.success());
        assert_eq!(traces(&rig), before);
    }
}

#[test]
fn only_allowed_sources_are_answered_by_programs_and_daemon() {
    let mut rig = Rig::new();
    ip("-netns peer address add 10.7.0.66/24 dev eth0");
    rig.start("allow = [\"10.7.0.0/26\"]");
    socket(V4).ask_all(5);
    rig.configure("allow = [\"10.7.0.66\"]");
    rig.asked("reload");
    let refused = rig.count(Program::Tc, Reason::NotAllowed);
    let guarded = rig.count(Program::Guard, Reason::NotAllowed);
    assert!(!socket(V4).ask(Duration::from_millis(50)));
    assert_eq!(rig.count(Program::Tc, Reason::NotAllowed), refused + 1);
    assert_eq!(rig.count(Program::Guard, Reason::NotAllowed), guarded + 1);
}

#[test]
fn guard_drops_what_the_daemon_would_drop() {
    let mut rig = Rig::new();
    rig.start("");
    let malformed = |rig: &Rig| {
        let counters = rig.asked("counters");
        counters["counters"]["ip2gid.server.malformed-truncated"].as_u64().unwrap()
    };
    let asker = socket(V4);
    for _ in 0..10 {
        asker.send(b"nonsense");
    }
    rig.eventually("all are dropped", || rig.count(Program::Guard, Reason::Malformed) == 10);
    assert_eq!(malformed(&rig), 0);
}

/// Everything that ibarr could leave in the node's namespace and on the bpffs.
pub(super) fn traces(rig: &Rig) -> String {
    let mut traces = tool("tc", &format!("-netns {NODE} qdisc show"));
    let qdiscs = tool("tc", &format!("-netns {NODE} -json qdisc show dev eth0"));
    if qdiscs.contains("clsact") {
        traces += &tool("tc", &format!("-netns {NODE} filter show dev eth0 ingress"));
    }
    traces += &tcx_programs().join("\n");
    traces += &tool("ip", &format!("-netns {NODE} -details link show dev eth0"));
    for path in tree(&rig.bpffs()) {
        traces += path.to_str().unwrap();
        traces += "\n";
    }
    traces
}
