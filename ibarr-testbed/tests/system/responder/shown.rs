// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What `ibarr` shows of the responder: the maps, and why the kernel does not answer.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use ibarr_common::map;
use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use object::{Object, ObjectSection};
use serde_json::Value;

use super::report::Tracer;
use super::rig::*;
use crate::machine::{ibarr, said};

#[test]
fn kernels_entries_are_shown_as_bpftool_dumps_them() {
    let mut rig = Rig::new();
    rig.start("allow = [\"10.7.0.0/24\"]");
    let bpf_dir = rig.bpf_dir().to_owned();
    let dump = |name: &str| -> Value {
        let pin = bpf_dir.join(format!("v{}", map::ABI_VERSION)).join(name);
        let dump = tool("bpftool", &format!("--json map dump pinned {}", pin.display()));
        serde_json::from_str(&dump).unwrap()
    };
    let shown = |words: &str| {
        let output =
            ibarr_on_node(&format!("cache --kernel --bpf-dir {} {words}", bpf_dir.display()));
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let shown_json: Value = serde_json::from_str(&shown("--json")).unwrap();
    let kernel = &shown_json["kernel"];

    let octets = |value: &Value| -> [u8; 16] {
        serde_json::from_value::<Vec<u8>>(value.clone()).unwrap().try_into().unwrap()
    };
    let mut dumped: BTreeMap<String, Value> = BTreeMap::new();
    for element in dump(map::GID_CACHE).as_array().unwrap() {
        let (key, value) = (&element["formatted"]["key"], &element["formatted"]["value"]);
        assert_eq!(*key, value["key"], "an entry contains its key again");
        let ip = Ipv6Addr::from(octets(&key["address"])).to_canonical();
        dumped.insert(format!("{ip}%{}", key["scope"]), value.clone());
    }
    let entries = kernel["entries"].as_array().unwrap();
    assert_eq!(entries.len(), dumped.len());
    // Two addresses of the wire, two of the loopback interface, and the link-local one.
    assert_eq!(entries.len(), 5, "{entries:?}");
    for entry in entries {
        let scope = entry["scope"].as_u64().unwrap_or_default();
        let dumped = &dumped[&format!("{}%{scope}", entry["ip"].as_str().unwrap())];
        let gid = Ipv6Addr::from(octets(&dumped["gid"]));
        assert_eq!(entry["gid"].as_str().unwrap_or("::").parse::<Ipv6Addr>().unwrap(), gid);
        assert_eq!(entry["ifindex"], dumped["ifindex"]);
        assert_eq!(entry["origin"] == "static", dumped["origin"] == 2);
    }
    let cfg = &dump(map::RESPONDER_CFG)[0]["formatted"]["value"];
    assert_eq!(kernel["restricted"], cfg["switches"] == 1);
    let of_index = usize::try_from(kernel["interfaces"][0]["ifindex"].as_u64().unwrap()).unwrap();
    for (index, interface) in dump(map::INTERFACES).as_array().unwrap().iter().enumerate() {
        let switches = if index == of_index { 12 } else { 0 };
        assert_eq!(interface["formatted"]["value"]["switches"], switches);
    }
    assert_eq!(kernel["interfaces"][0]["name"], "eth0");

    let text = shown("");
    assert!(
        text.contains("lease ends in") && text.contains("only sources that allow names"),
        "{text}"
    );
    assert!(text.lines().any(|line| line.starts_with(V4) && line.contains(GID)), "{text}");
    // The command does not need the daemon.
    rig.end(Signal::SIGKILL);
    assert!(shown("").contains(GID));
    rig.detach();
    let output = ibarr_on_node(&format!("cache --kernel --bpf-dir {}", bpf_dir.display()));
    assert_eq!(output.status.code(), Some(69), "{}", said(&output));
}

#[test]
fn without_the_rights_the_daemon_answers_and_says_why() {
    for missing in ["-bpf", "-perfmon", "-net_admin", "-bpf,-perfmon,-net_admin"] {
        let mut rig = Rig::new();
        let before = tree(&rig.bpffs());
        rig.configure("");
        // CAP_SYS_ADMIN includes all of them.
        rig.spawn(with_capabilities(&format!("{missing},-sys_admin")));
        if missing == "-perfmon" && rig.status_of("eth0")["responder"].is_string() {
            // A kernel with mitigations=off does not need this one (`bpf_bypass_spec_v1`).
            continue;
        }
        answered_in_user_space(&rig, "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
        assert_eq!(tree(&rig.bpffs()), before, "what was begun is undone");
    }
}

#[test]
fn seccomp_filter_that_forbids_bpf_is_named() {
    let mut rig = Rig::new();
    rig.configure("");
    // It makes a filter of its own, by which the system call fails, and the daemon stays its parent.
    let mut strace = program("strace");
    strace.args([
        "-D",
        "-f",
        "-qq",
        "--seccomp-bpf",
        "-o",
        "/dev/null",
        "-e",
        "inject=bpf:error=EPERM",
    ]);
    strace.args(["-e", "trace=bpf"]).arg(ibarr());
    rig.spawn(strace);
    answered_in_user_space(
        &rig,
        "a seccomp filter forbids bpf(2), although the daemon has the capabilities",
    );
    rig.end(Signal::SIGTERM);
}

#[test]
fn small_receive_buffer_is_reported_and_losses_are_counted() {
    const QUERIES: u64 = 100_000;
    let mut rig = Rig::new();
    rig.configure("responder = \"user\"");
    rig.spawn(with_capabilities("-net_admin"));
    let status = rig.asked("status");
    let warnings = status["status"]["warnings"].as_array().unwrap();
    let said = warnings.iter().filter_map(Value::as_str);
    let about: Vec<_> = said.filter(|text| text.contains("net.core.rmem_max=")).collect();
    let [one] = about[..] else { panic!("{warnings:?}") };
    assert!(one.contains("over IPv4 holds") && one.contains("over IPv6 holds"), "{one}");
    let count = |name: &str| rig.asked("counters")["counters"][name].as_u64().unwrap();
    rig.signal(Signal::SIGSTOP);
    let query = Query::new(Version::V1, MsgId(1), V4.parse().unwrap()).unwrap().emit();
    send_to_node(query.as_ref(), QUERIES);
    rig.signal(Signal::SIGCONT);
    rig.eventually("each query is answered or counted as dropped", || {
        count("ip2gid.server.answered") + count("transport.query-dropped") == QUERIES
    });
    assert_ne!(count("transport.query-dropped"), 0);
}

#[test]
fn drops_of_the_guard_are_not_counted_as_lost() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        rig.start("");
        let count = |name: &str| rig.asked("counters")["counters"][name].as_u64().unwrap();
        let before = count("bpf.guard.malformed");
        send_to_node(b"no query", 100);
        rig.eventually("the guard", || count("bpf.guard.malformed") == before + 100);
        assert_eq!(count("transport.query-dropped"), 0);
        rig.end(Signal::SIGTERM);
    }
}

/// Sends datagrams from the peer.
fn send_to_node(payload: &[u8], times: u64) {
    let bind = || Ok(UdpSocket::bind("0.0.0.0:0")?);
    let socket = netns::inside(PEER, bind).unwrap();
    for _ in 0..times {
        socket.send_to(payload, (V4, 4791)).unwrap();
    }
}

#[test]
fn three_capabilities_are_enough() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        rig.configure(&format!("responder = \"{responder}\""));
        for _ in 0..2 {
            rig.spawn(with_capabilities("-all,+bpf,+perfmon,+net_admin"));
            assert_eq!(rig.status_of("eth0")["responder"], hook, "{}", rig.log());
            let before = rig.answered_in_kernel();
            socket(V4).ask_all(10);
            assert_eq!(rig.answered_in_kernel(), before + 10);
            let tracer = Tracer::start(&rig);
            socket(V4).ask_all(1);
            assert_eq!(tracer.packet("tc")["verdict"], "answered");
            rig.end(Signal::SIGTERM);
        }
    }
}

#[test]
fn without_a_bpffs_the_daemon_answers_and_says_why() {
    let mut rig = Rig::new();
    rig.configure("");
    nix::mount::umount(&rig.bpffs()).unwrap();
    rig.spawn(with_capabilities("-sys_admin"));
    answered_in_user_space(&rig, "is not on a bpffs; as root: mount -t bpf bpf");
}

#[test]
fn bpffs_is_mounted_if_missing_and_the_log_says_so() {
    // A daemon in a namespace has its own /sys, without mounts.
    for (dir, mount_point) in [("/sys/fs/bpf/ibarr", Some("/sys/fs/bpf")), ("bpffs/here", None)] {
        let mut rig = Rig::new();
        nix::mount::umount(&rig.bpffs()).unwrap();
        let dir = rig.machine.directory().join(dir);
        rig.move_bpf_dir(dir.clone());
        rig.start("");
        let in_kernel = |rig: &Rig| rig.asked("counters")["counters"]["bpf.tc.answered"].clone();
        assert_eq!(in_kernel(&rig), 0);
        socket(V4).ask_all(10);
        assert_eq!(in_kernel(&rig), 10);
        let mount_point = mount_point.map_or(dir, PathBuf::from);
        let said = format!("mounted a bpffs at {}", mount_point.display());
        assert_eq!(rig.log().matches(&said).count(), 1, "{}", rig.log());
    }
}

/// An old kernel does not know a helper that the program calls.
#[test]
fn a_kernel_that_is_too_old_is_named() {
    const CALL: u8 = 0x85;
    const REDIRECT: i32 = 23;
    const NEVER: i32 = 0x7000;
    let call = |helper: i32| [&[CALL, 0, 0, 0][..], &helper.to_le_bytes()].concat();
    let mut rig = Rig::new();
    let before = tree(&rig.bpffs());
    let mut object = ibarr_ebpf::OBJECT.to_vec();
    let places: Vec<_> = (0..object.len() - 8)
        .step_by(8)
        .filter(|&at| object[at..at + 8] == call(REDIRECT))
        .collect();
    assert!(!places.is_empty(), "the program calls bpf_redirect");
    for at in places {
        object[at..at + 8].copy_from_slice(&call(NEVER));
    }
    start_with(&mut rig, &object);
    answered_in_user_space(&rig, "BPF program ip2gid_tc: needs Linux 5.10 or later");
    assert_eq!(tree(&rig.bpffs()), before, "what was begun is undone");
}

#[test]
fn verifier_log_is_kept() {
    let mut rig = Rig::new();
    let before = tree(&rig.bpffs());
    start_with(&mut rig, &refused_object());
    answered_in_user_space(
        &rig,
        "BPF program ip2gid_tc: refused by the kernel's verifier: R9 !read_ok",
    );
    let log = fs::read_to_string(rig.run_dir().join("verifier.log")).unwrap();
    assert!(log.contains("R9 !read_ok"), "{log}");
    assert_eq!(tree(&rig.bpffs()), before, "what was begun is undone");
}

/// The maps of the old programs are not updated any more.
#[test]
fn old_programs_stop_answering_if_the_next_daemon_has_none() {
    for object in [refused_object(), b"no object".to_vec()] {
        let mut rig = Rig::new();
        rig.start("");
        let load = load(V4);
        let (link, before) = (link_id(&rig), tree(&rig.bpffs()));
        rig.end(Signal::SIGTERM);
        start_with(&mut rig, &object);
        let in_kernel = rig.answered_in_kernel();
        let by_daemon = rig.answered_by_daemon();
        socket(V4).ask_all(10);
        rig.eventually("the daemon answers", || rig.answered_by_daemon() >= by_daemon + 10);
        assert_eq!(rig.answered_in_kernel(), in_kernel);
        assert_eq!(tree(&rig.bpffs()), before, "the old pins stay");
        load.end_without_loss(100);

        // A daemon with programs takes over again.
        rig.end(Signal::SIGTERM);
        rig.restart();
        assert_eq!(link_id(&rig), link);
        let in_kernel = rig.answered_in_kernel();
        socket(V4).ask_all(10);
        assert_eq!(rig.answered_in_kernel(), in_kernel + 10);
    }
}

#[test]
fn a_daemon_without_programs_takes_nothing_from_another_one() {
    let mut rig = Rig::new();
    rig.start("");
    let mut second = program(ibarr());
    second.arg("run").arg("--config").arg(rig.machine.directory().join("ibarr.toml"));
    let run_dir = rig.machine.directory().join("second");
    second.arg("--run-dir").arg(&run_dir).arg("--bpf-dir").arg(rig.bpf_dir());
    second.env("IBARR_BPF_OBJECT", "/nonexistent").stdin(Stdio::null());
    let log = fs::File::create(rig.machine.directory().join("second.log")).unwrap();
    second.stdout(log.try_clone().unwrap()).stderr(log);
    let mut second = netns::spawn(NODE, &mut second).unwrap();
    rig.eventually("the second daemon has no programs", || {
        let words = format!("status --json --run-dir {}", run_dir.display());
        let status = String::from_utf8(ibarr_on_node(&words).stdout).unwrap();
        status.contains("/nonexistent: cannot be read")
    });
    let before = rig.answered_in_kernel();
    socket(V4).ask_all(10);
    assert_eq!(rig.answered_in_kernel(), before + 10);
    second.kill().unwrap();
    second.wait().unwrap();
}

/// An object whose first instruction is r0 = r9, although r9 has no value.
fn refused_object() -> Vec<u8> {
    let mut object = ibarr_ebpf::OBJECT.to_vec();
    let file = object::File::parse(ibarr_ebpf::OBJECT).unwrap();
    let section = file.section_by_name("classifier").unwrap();
    let (offset, _) = section.file_range().unwrap();
    let offset = usize::try_from(offset).unwrap();
    object[offset..offset + 8].copy_from_slice(&[0xbf, 0x90, 0, 0, 0, 0, 0, 0]);
    object
}

/// The object is a pipe, so that the daemon waits for it as long as the test wants.
#[test]
fn while_programs_are_loaded_the_daemon_answers_and_says_so() {
    let mut rig = Rig::new();
    let pipe = rig.machine.directory().join("object.pipe");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let launch = |rig: &mut Rig| {
        let mut command = program(ibarr());
        command.env("IBARR_BPF_OBJECT", &pipe);
        let launched = rig.launch(command);
        rig.eventually("the daemon answers", || socket(V4).ask(Duration::from_millis(50)));
        launched
    };
    rig.configure("");
    let before = tree(&rig.bpffs());
    launch(&mut rig);
    // The daemon ends without waiting for the object.
    rig.end(Signal::SIGTERM);
    assert_eq!(tree(&rig.bpffs()), before);

    let launched = launch(&mut rig);
    for target in [V4, V6] {
        socket(target).ask_all(100);
    }
    assert!(!launched.is_ready());
    let reason = "the programs are being loaded";
    assert_eq!(rig.asked("status")["status"]["responder"]["blocked"], reason);
    assert_eq!(rig.status_of("eth0")["in-user-space"], reason);

    fs::write(&pipe, ibarr_ebpf::OBJECT).unwrap();
    launched.wait(&mut rig);
    let before = rig.answered_in_kernel();
    socket(V4).ask_all(100);
    assert_eq!(rig.answered_in_kernel(), before + 100);
}

/// A daemon of root with fewer capabilities.
fn with_capabilities(change: &str) -> Command {
    let mut command = program("setpriv");
    command.args(["--bounding-set", change, "--inh-caps", change, "--"]).arg(ibarr());
    command
}

fn start_with(rig: &mut Rig, object: &[u8]) {
    let path = rig.machine.directory().join("broken.o");
    fs::write(&path, object).unwrap();
    let mut command = program(ibarr());
    command.env("IBARR_BPF_OBJECT", &path);
    rig.configure("");
    rig.spawn(command);
}

fn answered_in_user_space(rig: &Rig, reason: &str) {
    let by_daemon = rig.answered_by_daemon();
    socket(V4).ask_all(10);
    rig.until_answered_by_daemon(by_daemon + 10);
    for said in [
        &rig.asked("status")["status"]["responder"]["blocked"],
        &rig.status_of("eth0")["in-user-space"],
    ] {
        let said = said.as_str().unwrap_or_default();
        assert!(said.contains(reason), "{said}");
    }
    assert!(rig.log().contains(reason), "{}", rig.log());
}
