// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The promises of docs/lab.md.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ibarr_testbed::lab::{LabName, Node, Plan, netns};
use ibarr_testbed::start::program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::{MARKER, Machine, ibarr, said, script};

#[test]
fn down_leaves_nothing_behind() {
    let machine = Machine::new();
    let before = machine.snapshot();
    machine.lab_up(&["--nodes", "3", "--router"]);
    let between = machine.snapshot();
    assert_eq!(
        Vec::from_iter(&between.namespaces),
        ["lab-n1", "lab-n2", "lab-n3", "lab-r"]
            .map(|name| format!("/run/netns/ibarr-{name}"))
            .each_ref()
    );
    assert_eq!(between.processes.len(), 3, "{between:?}");
    // A process that a user started belongs to the lab, too.
    let mut sleeper =
        machine.testbed(&["lab", "exec", "n1", "--", "sleep", "1000"]).spawn().unwrap();
    while netns::processes("ibarr-lab-n1").unwrap().len() < 2 {
        assert!(sleeper.try_wait().unwrap().is_none());
    }

    machine.run(&["lab", "down"]);
    sleeper.wait().unwrap();
    assert_eq!(machine.snapshot(), before);
    machine.run(&["lab", "down"]);
}

#[test]
fn two_labs_can_exist_at_once() {
    let machine = Machine::new();
    let before = machine.snapshot();
    machine.lab_up(&["--name", "a"]);
    let only_a = machine.snapshot();
    machine.lab_up(&["--name", "b", "--router"]);
    assert_eq!(machine.run(&["lab", "list"]), "a\nb\n");
    machine.run(&["lab", "down", "--name", "b"]);
    assert_eq!(machine.snapshot(), only_a);
    machine.run(&["lab", "status", "--name", "a"]);
    machine.run(&["lab", "down", "--name", "a"]);
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn down_removes_what_a_killed_up_left() {
    const POINTS: u32 = 32;
    let machine = Machine::new();
    let before = machine.snapshot();
    let ibarr = ibarr().to_str().unwrap();
    let up = ["lab", "up", "--nodes", "4", "--router", "--ibarr", ibarr];
    let mut takes = Duration::ZERO;
    for _ in 0..2 {
        let start = Instant::now();
        machine.run(&up);
        takes = start.elapsed();
        machine.run(&["lab", "down"]);
    }
    let mut half_made = 0;
    for point in 0..POINTS {
        let mut child = machine.testbed(&up).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(takes * point / POINTS);
        child.kill().unwrap();
        let was_killed = child.wait().unwrap().code().is_none();
        let left = machine.snapshot();
        half_made += u32::from(was_killed && left != before);
        machine.run(&["lab", "down"]);
        assert_eq!(machine.snapshot(), before, "at point {point}, where this was left: {left:?}");
    }
    assert!(half_made >= POINTS / 4, "only {half_made} of {POINTS} were caught half-way");
}

#[test]
fn up_that_fails_says_why_and_leaves_nothing() {
    let machine = Machine::new();
    let broken = script(machine.directory(), "broken", "echo the disk is full >&2; exit 71");
    let before = machine.snapshot();
    let error = machine.fail(&["lab", "up", "--ibarr", broken.to_str().unwrap()]);
    assert!(error.contains("n1: ibarr ended at once (exit status: 71)"), "{error}");
    assert!(error.contains("the disk is full"), "{error}");
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn up_that_is_interrupted_leaves_nothing() {
    let machine = Machine::new();
    let mute = script(machine.directory(), "mute", "exec sleep 1000");
    let before = machine.snapshot();
    let mut up = machine.testbed(&["lab", "up", "--ibarr", mute.to_str().unwrap()]);
    let up = up.stderr(Stdio::piped()).spawn().unwrap();
    while machine.processes().iter().filter(|(_, name)| name == "sleep").count() < 2 {}
    kill(Pid::from_raw(up.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = up.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("stopped by SIGINT"), "{}", said(&output));
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn namespace_of_another_program_is_left_alone() {
    let machine = Machine::new();
    let ip = |arguments: &[&str]| program("ip").args(arguments).status().unwrap().success();
    assert!(ip(&["netns", "add", "ibarr-lab-n2"]));
    let before = machine.snapshot();
    let error = machine.fail(&["lab", "up", "--ibarr", ibarr().to_str().unwrap()]);
    assert!(error.contains("namespace ibarr-lab-n2 exists"), "{error}");
    machine.run(&["lab", "down"]);
    assert_eq!(machine.snapshot(), before);
    assert!(ip(&["netns", "delete", "ibarr-lab-n2"]));
}

#[test]
fn lab_is_not_made_twice() {
    let machine = Machine::new();
    machine.lab_up(&[]);
    let up = machine.snapshot();
    let error = machine.fail(&["lab", "up", "--ibarr", ibarr().to_str().unwrap()]);
    assert!(error.contains("lab lab is up already"), "{error}");
    assert_eq!(machine.snapshot(), up);
    machine.run(&["lab", "down"]);
}

#[test]
fn only_the_router_forwards() {
    let machine = Machine::new();
    machine.lab_up(&["--nodes", "2", "--router"]);
    let forwarding = |node: &str| {
        let files =
            ["ipv4", "ipv6"].map(|family| format!("/proc/sys/net/{family}/conf/all/forwarding"));
        machine.run(&["lab", "exec", node, "--", "cat", &files[0], &files[1]])
    };
    assert_eq!(["n1", "n2", "r"].map(forwarding), ["0\n0\n", "0\n0\n", "1\n1\n"]);
    machine.run(&["lab", "down"]);
}

#[test]
fn every_node_reaches_every_other_at_once() {
    let machine = Machine::new();
    for router in [true, false] {
        machine.lab_up(&["--nodes", "4", if router { "--router" } else { "--name=lab" }]);
        let plan = Plan::new("lab".parse::<LabName>().unwrap(), 4, router).unwrap();
        let sockets: Vec<_> = plan.nodes.iter().flat_map(open_sockets).collect();
        for from in &sockets {
            for to in &sockets {
                let (source, target) = (from.local_addr().unwrap(), to.local_addr().unwrap());
                if source.is_ipv4() != target.is_ipv4() || source == target {
                    continue;
                }
                from.send_to(b"hello", target).unwrap();
                let mut message = [0; 16];
                let received = to.recv_from(&mut message);
                assert_eq!(received.unwrap(), (5, source), "{source} to {target}");
            }
        }
        machine.run(&["lab", "down"]);
    }
}

#[test]
fn exec_runs_a_command_on_its_node_and_returns_its_status() {
    let machine = Machine::new();
    machine.lab_up(&[]);
    let shown = machine.run(&[
        "lab",
        "exec",
        "n2",
        "--",
        "sh",
        "-c",
        "ls /sys/class/net; command -v ibarr; ls $IBARR_RUN_DIR",
    ]);
    assert_eq!(shown, format!("eth0\nlo\n{}\ncontrol.sock\nlock\n", ibarr().display()));
    let exit = machine.testbed(&["lab", "exec", "n1", "--", "sh", "-c", "exit 7"]).status();
    assert_eq!(exit.unwrap().code(), Some(7));
    let error = machine.fail(&["lab", "exec", "n9", "--", "true"]);
    assert!(error.contains("no node \"n9\", it has n1 to n2"), "{error}");
    let error = machine.fail(&["lab", "exec", "--name", "other", "n1", "--", "true"]);
    assert!(error.contains("no lab other") && error.contains("there is lab"), "{error}");
    machine.run(&["lab", "down"]);
}

#[test]
fn status_shows_a_daemon_that_ended() {
    let machine = Machine::new();
    machine.lab_up(&[]);
    let status = |output: &str| -> serde_json::Value { serde_json::from_str(output).unwrap() };
    let sound = status(&machine.run(&["lab", "status", "--json"]));
    let pid = sound["nodes"][1]["pid"].as_i64().unwrap();
    assert_eq!(sound["v"], 1);
    assert_eq!(sound["nodes"][1]["running"], true);
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let output = loop {
        let output = machine.testbed(&["lab", "status", "--json"]).output().unwrap();
        if output.status.code() == Some(1) {
            break output;
        }
        assert!(Instant::now() < deadline, "{}", said(&output));
    };
    let broken = status(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(broken["nodes"][0]["running"], true);
    assert_eq!(broken["nodes"][1]["running"], false);
    machine.run(&["lab", "down"]);
}

#[test]
fn ordinary_user_has_a_lab_in_a_user_namespace() {
    const NOBODY: u32 = 65534;
    let machine = Machine::new();
    // Other users may not be able to read the build directory.
    let home = machine.directory().join("home");
    fs::create_dir(&home).unwrap();
    for program in [Path::new(env!("CARGO_BIN_EXE_ibarr-testbed")), ibarr()] {
        fs::copy(program, home.join(program.file_name().unwrap())).unwrap();
    }
    for path in [machine.directory(), &home] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let before = machine.snapshot();
    let run = |arguments: &[&str]| {
        let mut command = program(home.join("ibarr-testbed"));
        command.args(["--state-dir", home.join("labs").to_str().unwrap()]).args(arguments);
        command.env(MARKER, machine.marker()).current_dir("/");
        command.uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    let output = run(&["lab", "up"]);
    assert!(said(&output).contains("--userns"), "{}", said(&output));

    let output = run(&["--userns", "lab", "up", "--router"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(machine.snapshot().namespaces, before.namespaces);
    let output = run(&["lab", "exec", "n2", "--", "ls", "/sys/class/net"]);
    assert!(output.status.success(), "{}", said(&output));
    let output = run(&["lab", "exec", "n2", "--", "ip", "-brief", "address"]);
    assert!(said(&output).contains("10.2.0.5/24 fd00:2::5/64"), "{}", said(&output));
    let output = run(&["lab", "down"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(machine.snapshot(), before);
}

fn open_sockets(node: &Node) -> Vec<UdpSocket> {
    let sockets = netns::inside(&node.namespace, || {
        Ok(node.addresses.map(|address| UdpSocket::bind((address, 0)).unwrap()))
    });
    let sockets = Vec::from(sockets.unwrap());
    for socket in &sockets {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    sockets
}
