// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr trace --kernel`: for its time, programs that report their packets take the place of the plain
//! ones.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use aya::maps::{MapInfo, loaded_maps};
use aya::programs::loaded_programs;
use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::rig::*;
use crate::machine::ibarr;

const PEER_V4: &str = "10.7.0.2";

#[test]
fn each_query_is_shown_with_verdict_and_reason() {
    for (responder, hook) in all_kinds() {
        let mut rig = Rig::new();
        let _peers_program = prepare_for_xdp();
        rig.start(&format!("responder = \"{responder}\""));
        let tracer = Tracer::start(&rig);
        let program = if hook.starts_with("xdp") { "xdp" } else { "tc" };
        for (target, from) in [(V4, PEER_V4), (V6, "fd00:7::2")] {
            socket(target).ask_all(5);
            for _ in 0..5 {
                let shown = tracer.packet(program);
                assert_eq!(shown["ip"], target, "{shown}");
                assert_eq!(shown["from"], from, "{shown}");
                assert_eq!(shown["interface"], "eth0", "{shown}");
                assert_eq!(shown["verdict"], "answered", "{shown}");
                assert_eq!(shown.get("cause"), None, "{shown}");
            }
        }
        // Another address than the destination.
        socket(V4).send(&query(1, [10, 7, 0, 99]));
        let shown = tracer.packet(program);
        assert_eq!((&shown["ip"], &shown["verdict"]), (&"10.7.0.99".into(), &"passed".into()));
        assert_eq!(shown["cause"], "destination", "{shown}");
        let shown = tracer.packet("guard");
        assert_eq!((&shown["from"], &shown["verdict"]), (&PEER_V4.into(), &"passed".into()));
        // A version that does not exist.
        socket(V4).send(&query(9, [10, 7, 0, 1]));
        let shown = tracer.packet(program);
        assert_eq!((&shown["cause"], &shown["verdict"]), (&"malformed".into(), &"passed".into()));
        let shown = tracer.packet("guard");
        assert_eq!((&shown["cause"], &shown["verdict"]), (&"malformed".into(), &"dropped".into()));
    }
}

#[test]
fn traces_killed_under_load_lose_no_query_and_leave_plain_programs() {
    for (responder, hook) in all_kinds() {
        let mut rig = Rig::new();
        let _peers_program = prepare_for_xdp();
        rig.start(&format!("responder = \"{responder}\""));
        let link = link_id(&rig);
        let load = load(V4);
        for _ in 0..rounds(5) {
            let [first, second] = [Tracer::start(&rig), Tracer::start(&rig)];
            for tracer in [&first, &second] {
                assert_eq!(
                    tracer.packet(if hook.starts_with("xdp") { "xdp" } else { "tc" })["verdict"],
                    "answered"
                );
            }
            drop(first);
            assert!(is_reporting(&rig), "one trace is left");
            drop(second);
            rig.eventually("the plain programs are back", || !is_reporting(&rig));
        }
        load.end_without_loss(200);
        // The link was updated, and never made anew.
        assert_eq!(link_id(&rig), link);
    }
}

#[test]
fn daemon_that_ends_leaves_plain_programs_or_its_successor_does() {
    for (responder, _) in kinds() {
        let mut rig = Rig::new();
        rig.start(&format!("responder = \"{responder}\""));
        let load = load(V4);
        let tracer = Tracer::start(&rig);
        rig.end(Signal::SIGKILL);
        drop(tracer);
        assert!(is_reporting(&rig), "nothing has replaced them");
        socket(V4).ask_all(600);
        rig.restart();
        rig.eventually("the plain programs are back", || !is_reporting(&rig));

        let tracer = Tracer::start(&rig);
        rig.end(Signal::SIGTERM);
        rig.eventually("the plain programs are back", || !is_reporting(&rig));
        drop(tracer);
        load.end_without_loss(600);
    }
}

/// The ring has a fixed size, and the daemon does not read it for a while.
#[test]
fn reports_that_find_no_room_are_counted() {
    const ASKED: u32 = 3000;
    let mut rig = Rig::new();
    rig.start("responder = \"tc\"");
    let tracer = Tracer::start(&rig);
    rig.signal(Signal::SIGSTOP);
    socket(V4).ask_all(ASKED);
    rig.signal(Signal::SIGCONT);
    let (mut asked, mut shown, mut lost) = (u64::from(ASKED), 0, 0);
    // The next event tells how many were lost before it. Those of the ring are known only after a
    // while without a packet.
    rig.eventually("each report was shown or is counted as lost", || {
        socket(V4).ask_all(1);
        asked += 1;
        while let Ok(event) = tracer.events.recv_timeout(Duration::from_millis(500)) {
            shown += u64::from(event["event"]["step"] == "packet");
            lost += event["event"]["lost"].as_u64().unwrap_or(0);
        }
        eprintln!("{asked} asked, {shown} shown, {lost} lost");
        shown + lost == asked
    });
    assert!(shown > 100 && lost > 100, "{shown} shown, {lost} lost");
}

#[test]
fn trace_without_programs_says_why() {
    let mut rig = Rig::new();
    rig.start("responder = \"user\"");
    let tracer = Tracer::launch(&rig);
    let told = tracer.next("programs");
    assert_eq!(told["cause"], "responder = \"user\"", "{told}");
}

/// A running `ibarr trace --kernel --json`, killed when it is dropped.
pub(super) struct Tracer {
    child: Child,
    events: mpsc::Receiver<Value>,
}

impl Tracer {
    /// Starts it, and waits until the programs report.
    pub(super) fn start(rig: &Rig) -> Self {
        let tracer = Self::launch(rig);
        let told = tracer.next("programs");
        assert_eq!(told.get("cause"), None, "{told}; the log:\n{}", rig.log());
        assert!(is_reporting(rig));
        tracer
    }

    fn launch(rig: &Rig) -> Self {
        let mut command = program(ibarr());
        command.args(["trace", "--kernel", "--json", "--run-dir"]).arg(rig.run_dir());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = netns::spawn(NODE, &mut command).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        Self { child, events }
    }

    /// The next event with this step; others are skipped.
    fn next(&self, step: &str) -> Value {
        loop {
            let mut event = self.events.recv_timeout(Duration::from_secs(20)).expect(step);
            let event = event["event"].take();
            if event["step"] == step {
                return event;
            }
        }
    }

    /// The next packet of a program.
    pub(super) fn packet(&self, program: &str) -> Value {
        loop {
            let packet = self.next("packet");
            if packet["program"] == program {
                return packet;
            }
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn query(version: u8, target: [u8; 4]) -> Vec<u8> {
    [&[version, 0, 0, 0, 0, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 8][..], &target].concat()
}

/// Whether programs of the rig that report are loaded; a program that is attached nowhere is unloaded.
fn is_reporting(rig: &Rig) -> bool {
    let ours = rig.map_ids();
    let is_ring = |map: &MapInfo| map.name_as_str() == Some("AYA_LOGS");
    let rings: Vec<u32> =
        loaded_maps().filter_map(Result::ok).filter(is_ring).map(|map| map.id()).collect();
    loaded_programs().filter_map(Result::ok).any(|program| {
        let used = program.map_ids().ok().flatten().unwrap_or_default();
        let has_one_of = |maps: &[u32]| used.iter().any(|id| maps.contains(id));
        has_one_of(&ours) && has_one_of(&rings)
    })
}
