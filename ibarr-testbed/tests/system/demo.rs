// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a newcomer sees first.

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
    // As bytes, with the fields of the recorded C exchange.
    for bytes in
        ["00010000 00010008 0a020005", "00010000 00100014 fe800000000000000002c90300000201"]
    {
        assert!(shown.contains(&format!(" {bytes}\n")), "{shown}");
    }
    assert!(shown.contains("Nothing crossed the router."), "{shown}");
    // Of the kernel's side, what was recorded with a real one: an address request without number
    // and interface, and the answer without its sender.
    for (target, bytes) in [
        ("10.2.0.5", "08000920 0a020005\n"),
        ("fd00:2::5", "14000a20 fd000002 00000000 00000000 00000005\n"),
        ("10.2.0.5", "14000400 fe800000 00000000 0002c903 00000201\n"),
    ] {
        assert!(shown.contains(&format!("n1's kernel asks: which GID has {target}?")), "{shown}");
        assert!(shown.contains(bytes), "{shown}");
    }
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn ctrl_c_ends_it_and_leaves_nothing() {
    let machine = Machine::new();
    let before = machine.snapshot();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut demo = machine.testbed(&["demo", "--ibarr", ibarr().to_str().unwrap()]);
        let mut demo = demo.stdout(Stdio::piped()).spawn().unwrap();
        read_until(&mut demo, "stays up until Ctrl-C");
        machine.run(&["lab", "status", "--name", "demo"]);
        let error = machine.fail(&["lab", "down", "--name", "demo"]);
        let held = format!("lab demo is in the hands of process {}", demo.id());
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
    // The daemons do not know each other; the right answers are made up.
    let answer = "{\"v\":1,\"answers\":[{\"ip\":\"10.2.0.5\",\"status\":\"found\",\
                  \"gid\":\"fe80::2:c903:0:201\",\"source\":\"peer\",\"ms\":1}]}";
    let liar = format!("[ \"$1\" = run ] && exec {ibarr} \"$@\"; echo '{answer}'");
    let liar = script(machine.directory(), "liar", &liar);
    let error = machine.fail(&["demo", "--once", "--ibarr", liar.to_str().unwrap()]);
    assert!(error.contains("no query with its reply crossed the router"), "{error}");
}
