// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab trace` shows the packets of a connection, while it is there, and what its program calls.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::resources::connected;
use super::{M, M_ADDRESS, OTHER, OURS, SAME, pingpong, start_pingpong};
use crate::rig::{self, Place, Process, RESULTS, spawn};

/// Our end in the topology.
const PORT: &str = "N/1";
const MESSAGES: usize = 10;

/// Counts of what our end sends and receives.
pub(super) fn counts_packets() -> Result<()> {
    let mut trace = spawn("trace", Place::Here, &["ibfab", "trace", "--json", "--port", PORT])?;
    // The first packets show that it has begun.
    let small = ["-e", "-s", "10", "-n", "1"];
    rig::eventually(|| {
        pingpong("ibv_rc_pingpong", [OTHER, OURS], &small)?;
        ensure!(trace.said()?.contains("\"RC SEND Only\""), "it shows nothing");
        Ok(())
    })?;
    let before = trace.said()?.len();
    let number = MESSAGES.to_string();
    let options = ["-e", "-s", "3000", "-m", "1024", "-n", &number];
    pingpong("ibv_rc_pingpong", [OTHER, OURS], &options)?;
    for direction in ["sent", "received"] {
        for (opcode, least) in
            [("SEND First", 10), ("SEND Middle", 10), ("SEND Last", 10), ("Acknowledge", 1)]
        {
            let opcode = format!("RC {opcode}");
            let count = || -> Result<_> {
                let lines = lines(&trace, before)?;
                let is_it = |line: &&Value| {
                    line["port"] == PORT
                        && line["direction"] == direction
                        && line["opcode"] == opcode
                };
                Ok(lines.iter().filter(is_it).count())
            };
            rig::eventually(|| {
                let number = count()?;
                ensure!(number >= least, "{number} {opcode} {direction}");
                Ok(())
            })?;
            let number = count()?;
            // Acknowledges may be one for several packets, or for each.
            ensure!(number == least || least == 1, "{number} {opcode} {direction}");
        }
    }
    let all = lines(&trace, before)?;
    let last = all.iter().find(|line| line["opcode"] == "RC SEND Last").context("no last")?;
    ensure!(last["payload"] == 3000 - 2048 && last["ack_request"] == true, "{last}");
    let acknowledge = all.iter().find(|line| line["opcode"] == "RC Acknowledge");
    let code = &acknowledge.context("no acknowledge")?["aeth"]["code"];
    ensure!(code["ack"]["credits"].is_number(), "{code}");
    trace.kill()
}

fn lines(trace: &Process, from: usize) -> Result<Vec<Value>> {
    let said = trace.said()?;
    let whole = said.get(from..).context("it became shorter")?.rsplit_once('\n');
    let (whole, _) = whole.unwrap_or_default();
    // The first line is the command.
    let objects = whole.lines().filter(|line| !line.starts_with('$'));
    objects.map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
}

/// The packets of rping, and of the connection manager, in words.
pub(super) fn names_packets() -> Result<()> {
    let mut trace = spawn("trace-words", Place::Here, &["ibfab", "trace"])?;
    rig::eventually(|| {
        rig::rping(M, M_ADDRESS)?;
        let said = trace.said()?;
        for words in [
            " N/1 sends ",
            " SM/1 receives ",
            "ComMgt Send(REQ)",
            "ComMgt Send(RTU)",
            "RC RDMA READ Request QP ",
            "RC RDMA READ Response Only QP ",
            "RC RDMA WRITE Only QP ",
            " R_Key 0x",
            ", ACK MSN ",
        ] {
            ensure!(said.contains(words), "no {words}");
        }
        Ok(())
    })?;
    trace.kill()?;
    // It has ended, and the fabric has not.
    let refusal = rig::run(Place::Here, &["ibfab", "trace", "--port", "X/1"]).err();
    let refusal = refusal.map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refusal.contains("no port X/1"), "{refusal}");
    Ok(())
}

/// Begins a trace with calls, and says so in it.
fn with_calls(name: &str, mark: &str) -> Result<Process> {
    let trace = spawn(name, Place::Here, &["ibfab", "trace", "--json", "--calls"])?;
    rig::eventually(|| {
        rig::run(Place::Here, &["ibfab", "mark", mark])?;
        ensure!(lines(&trace, 0)?.iter().any(|line| line["mark"] == mark), "no mark");
        Ok(())
    })?;
    Ok(trace)
}

/// Waits for the end of the program at our end. Returns what was traced of our device and port.
fn until_destroyed(trace: &Process) -> Result<Vec<Value>> {
    rig::eventually(|| {
        let mut all = lines(trace, 0)?;
        all.retain(|line| {
            line["device"] == OURS.0 || line["port"] == PORT || line["mark"].is_string()
        });
        let is_end = |line: &Value| line["call"] == "dereg_mr" && is_pingpong(line);
        ensure!(all.iter().any(is_end), "the program has not ended");
        Ok(all)
    })
}

fn is_pingpong(line: &Value) -> bool {
    line["program"]
        .as_str()
        .is_some_and(|name| "ibv_rc_pingpong".starts_with(name) && name.len() > 10)
}

/// A program's calls, packets and completions are in the order in which they happen.
pub(super) fn calls_in_order() -> Result<()> {
    let mut trace = with_calls("trace-calls", "begin")?;
    pingpong("ibv_rc_pingpong", [OTHER, OURS], &["-e", "-s", "100", "-n", "5"])?;
    let all = until_destroyed(&trace)?;
    trace.kill()?;
    let created = all.iter().find(|line| line["call"] == "create_qp" && is_pingpong(line));
    let qp = created.context("no queue pair is made")?["qp"].clone();
    let state = |state: u32| {
        move |line: &Value| {
            line["call"] == "modify_qp" && line["state"] == state && line["result"] == 0
        }
    };
    let is_packet = |direction: &'static str, opcode: &'static str| {
        move |line: &Value| line["direction"] == direction && line["opcode"] == opcode
    };
    let is_completion = |line: &Value| line["event"] == "completion" && line["status"] == 0;
    let mut rest = all.iter();
    let mut comes = |step: &str, is_it: &dyn Fn(&Value) -> bool| -> Result<()> {
        ensure!(rest.any(is_it), "no {step}, or too early");
        Ok(())
    };
    comes("INIT", &state(1))?;
    comes("RTR", &state(2))?;
    comes("RTS", &state(3))?;
    comes("post_send", &|line| line["call"] == "post_send" && line["qp"] == qp)?;
    comes("request", &is_packet("sent", "RC SEND Only"))?;
    comes("acknowledge", &is_packet("received", "RC Acknowledge"))?;
    comes("completion", &is_completion)?;
    comes("destroy_qp", &|line| line["call"] == "destroy_qp" && line["qp"] == qp)?;
    comes("destroy_cq", &|line| line["call"] == "destroy_cq")?;
    for (what, expected) in [("post_send", 5), ("create_qp", 1), ("destroy_qp", 1)] {
        let is_it = |line: &&Value| line["call"] == what && line["qp"] == qp;
        let number = all.iter().filter(is_it).count();
        ensure!(number == expected, "{number} {what}");
    }
    let is_it = |line: &&Value| is_completion(line) && line["qp"] == qp;
    let number = all.iter().filter(is_it).count();
    ensure!(number == 10, "{number} completions of 5 sends and 5 receives");
    for call in ["create_cq", "reg_user_mr"] {
        ensure!(all.iter().any(|line| line["call"] == call && is_pingpong(line)), "no {call}");
    }
    let times = all.iter().map(|line| line["time"].as_u64().map(|time| time / 1000));
    ensure!(times.is_sorted(), "not in the order of time");
    Ok(())
}

/// A program's calls of these kinds, each of which succeeds.
pub(super) fn has_calls(program: &str, options: &[&str], calls: &[&str]) -> Result<()> {
    let mut trace = with_calls(&format!("trace-{program}"), program)?;
    pingpong(program, [OTHER, OURS], options)?;
    rig::eventually(|| {
        let all = lines(&trace, 0)?;
        for &call in calls {
            let is_it = |line: &Value| {
                line["call"] == call && line["device"] == OURS.0 && line["result"] == 0
            };
            ensure!(all.iter().any(is_it), "no {call} of {program}");
        }
        Ok(())
    })?;
    trace.kill()
}

/// The file for Wireshark has packets and calls, in the order of time.
pub(super) fn for_wireshark() -> Result<()> {
    const NAME: &str = "trace-pcapng";
    let mut trace = spawn(NAME, Place::Here, &["ibfab", "trace", "--calls", "--pcapng"])?;
    let file = format!("{RESULTS}/{NAME}.log");
    let read = || fs::read(&file).context(file.clone());
    rig::eventually(|| {
        rig::run(Place::Here, &["ibfab", "mark", "begin"])?;
        ensure!(contains(&read()?, b"-- begin"), "no mark");
        Ok(())
    })?;
    pingpong("ibv_rc_pingpong", [OTHER, OURS], &["-e", "-s", "100", "-n", "5"])?;
    rig::eventually(|| {
        ensure!(contains(&read()?, b"call=dereg_mr"), "the program has not ended");
        Ok(())
    })?;
    trace.kill()?;
    let written = read()?;
    // The first line is the command's. Section and interfaces follow, and then a block for each packet and text.
    let start = written.iter().position(|&byte| byte == b'\n').context("no command")? + 1;
    let mut rest = written.get(start..).context("nothing")?;
    let (mut times, mut kinds) = (Vec::new(), [0, 0]);
    while let Some(head) = rest.get(..28) {
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) == 6 {
            times.push(u64::from(word(12)) << 32 | u64::from(word(16)));
            let interface = usize::try_from(word(8))?;
            *kinds.get_mut(interface).context("an unknown interface")? += 1;
        }
        rest = rest.get(usize::try_from(word(4))?..).unwrap_or_default();
    }
    ensure!(kinds[0] >= 20 && kinds[1] >= 20, "{kinds:?} packets and texts");
    ensure!(times.iter().map(|time| time / 1000).is_sorted(), "not in the order of time");
    Ok(())
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// What makes no packets is there, too.
pub(super) fn calls_inside() -> Result<()> {
    let mut trace = with_calls("trace-inside", "inside")?;
    pingpong("ibv_rc_pingpong", [SAME, OURS], &["-s", "100", "-n", "5"])?;
    let all = until_destroyed(&trace)?;
    trace.kill()?;
    let number =
        all.iter().filter(|line| line["event"] == "completion" && line["status"] == 0).count();
    ensure!(number >= 20, "{number} completions of two queue pairs");
    let is_rc =
        |line: &&Value| line["opcode"].as_str().is_some_and(|opcode| opcode.starts_with("RC "));
    ensure!(!all.iter().any(|line| is_rc(&line)), "packets of a connection");
    Ok(())
}

/// Retries and asynchronous events.
pub(super) fn retries_and_events() -> Result<()> {
    let mut trace = with_calls("trace-faults", "faults")?;
    let options = ["-s", "100", "-n", "1000000"];
    let (mut server, words) = start_pingpong("ibv_rc_pingpong", OTHER, OURS, &options)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut client = spawn("ibv_rc_pingpong-traced", Place::Here, &words)?;
    let qp = connected(OURS)?;
    let name = format!("{}/{}", qp.device, qp.number);
    let has = |what: &str, is_it: &dyn Fn(&Value) -> bool| {
        rig::eventually(|| {
            ensure!(lines(&trace, 0)?.iter().any(is_it), "no {what}");
            Ok(())
        })
    };
    rig::run(Place::Here, &["ibfab", "fault", "qp", &name, "--drop", "1"])?;
    // Its peer's, if what is lost is an acknowledge.
    has("retry", &|line| line["event"] == "retry" && line["reason"] == "time-out")?;
    rig::run(Place::Here, &["ibfab", "fault", "qp", &name, "--error", "qp"])?;
    // IB_EVENT_QP_FATAL.
    let is_ours = |line: &Value| line["device"] == OURS.0 && line["qp"] == qp.number;
    has("event", &|line| is_ours(line) && line["event"] == "event" && line["number"] == 1)?;
    has("flushed completion", &|line| {
        is_ours(line) && line["event"] == "completion" && line["status"] == 5
    })?;
    client.kill()?;
    server.kill()?;
    trace.kill()
}
