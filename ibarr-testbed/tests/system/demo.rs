// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The demonstration of `cargo xtask run`.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::{Machine, ibarr, read_until, said, script};

#[test]
fn once_shows_every_exchange_and_leaves_nothing() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let shown = machine.run(&["demo", "--once", "--ibarr", ibarr().to_str().unwrap()]);
    for target in ["10.1.0.5", "10.2.0.5", "fd00:1::5", "fd00:2::5"] {
        assert!(shown.contains(&format!("which GID has {target}?")), "{shown}");
        assert!(shown.contains(&format!(": who has {target}?")), "{shown}");
    }
    // The bytes have the fields of the recorded C exchange.
    for bytes in
        ["00010000 00010008 0a020005", "00010000 00100014 fe800000000000000002c90300000201"]
    {
        assert!(shown.contains(&format!(" {bytes}\n")), "{shown}");
    }
    assert!(shown.contains("Nothing crossed the router."), "{shown}");
    // The kernel's messages are those recorded from a real one: an address request without sequence
    // number and interface, and the answer without its sender.
    for (target, bytes) in [
        ("10.2.0.5", "08000920 0a020005\n"),
        ("fd00:2::5", "14000a20 fd000002 00000000 00000000 00000005\n"),
        ("10.2.0.5", "14000400 fe800000 00000000 0002c903 00000201\n"),
    ] {
        assert!(shown.contains(&format!("n1's kernel asks: which GID has {target}?")), "{shown}");
        assert!(shown.contains(bytes), "{shown}");
    }
    // The path is asked of the SA once, then remembered; with floating LIDs there are three records.
    let (near, far) = ("fe80::2:c903:0:201", "fec0:0:22:2:2:c903:0:202");
    let parts: Vec<_> = shown.split(": which path leads to ").skip(1).collect();
    let [first, again, floating] = parts.as_slice() else { panic!("{shown}") };
    for (part, dgid, lines) in [
        (
            first,
            near,
            &[
                "  1 record, from its SA:",
                ": path from fe80::2:c903:0:101 to fe80::2:c903:0:201, All? (number 1)",
                "Get PathRecord: from fe80::2:c903:0:101 to fe80::2:c903:0:201?",
                "GetResp PathRecord: from LID 5 to LID 6",
                "  path flags   0x2b (PRIMARY, GMP, BIDIRECTIONAL)",
                "  SGID, SLID   fe80::2:c903:0:101, 5",
                "  DGID, DLID   fe80::2:c903:0:201, 6",
                "  P_Key 0xffff, SL 0, MTU 2048, rate 10 Gbit/s, reversible: yes",
                "  hop limit 0, flow label 0x00000, TClass 0",
                "  MADs that went to the SA: 1",
            ] as &[_],
        ),
        (
            again,
            near,
            &["  1 record, from memory:", "  DGID, DLID   fe80::2:c903:0:201, 6", "SA: 0"],
        ),
        (
            floating,
            far,
            &[
                "  3 records, from its SA:",
                "  path flags   0x2b (PRIMARY, GMP, BIDIRECTIONAL)",
                "  DGID, DLID   fec0:0:22:2:2:c903:0:202, 4",
                "  path flags   0x12 (PRIMARY, INBOUND)",
                "  SGID, SLID   fec0:0:1:1:2:c903:0:102, any",
                "  DGID, DLID   fec0:0:22:2:2:c903:0:202, 1",
                "  path flags   0x0a (PRIMARY, OUTBOUND)",
                "  DGID, DLID   fec0:0:22:2:2:c903:0:202, 34",
                "  hop limit 255, flow label 0x00000, TClass 0",
                "  MADs that went to the SA: 1",
            ],
        ),
    ] {
        assert!(part.starts_with(dgid), "{shown}");
        for line in lines {
            assert!(part.contains(line), "no {line:?} in: {shown}");
        }
    }
    assert!(!again.split("In another").next().unwrap().contains("PathRecord"), "{shown}");
    assert_eq!(machine.snapshot(), before);
}

/// The demonstration says what the machine lacks, and shows the same.
#[test]
fn ctrl_c_ends_the_demonstration_and_leaves_nothing() {
    let machine = Machine::new();
    let before = machine.snapshot();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut demo = machine.testbed(&["demo", "--ibarr", ibarr().to_str().unwrap()]);
        let mut demo = demo.stdout(Stdio::piped()).spawn().unwrap();
        read_until(&mut demo, "stays up until Ctrl-C");
        machine.run(&["lab", "status", "--name", "demo"]);
        let error = machine.fail(&["lab", "down", "--name", "demo"]);
        let held = format!("process {} uses lab demo", demo.id());
        assert!(error.contains(&held), "{error}");
        kill(Pid::from_raw(demo.id().cast_signed()), signal).unwrap();
        let output = demo.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(machine.snapshot(), before);
    }
}

#[test]
fn wrong_answer_fails_and_leaves_nothing() {
    let machine = Machine::new();
    let ibarr = ibarr().display();
    let liar =
        format!("[ \"$1\" = run ] && exec {ibarr} \"$@\"; {ibarr} \"$@\" | sed s/0:201/0:202/");
    let liar = script(machine.directory(), "liar", &liar);
    let before = machine.snapshot();
    let error = machine.fail(&["demo", "--once", "--ibarr", liar.to_str().unwrap()]);
    assert!(error.contains("n1: 10.2.0.5 should be fe80::2:c903:0:201"), "{error}");
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn answer_without_an_exchange_fails() {
    let machine = Machine::new();
    let ibarr = ibarr().display();
    // The daemons are not connected, and the script makes up the right answers.
    let answer = "{\"v\":1,\"answers\":[{\"ip\":\"10.2.0.5\",\"status\":\"found\",\
                  \"gid\":\"fe80::2:c903:0:201\",\"source\":\"peer\",\"ms\":1}]}";
    let liar = format!("[ \"$1\" = run ] && exec {ibarr} \"$@\"; echo '{answer}'");
    let liar = script(machine.directory(), "liar", &liar);
    let error = machine.fail(&["demo", "--once", "--ibarr", liar.to_str().unwrap()]);
    assert!(error.contains("no query with its reply crossed the router"), "{error}");
}
