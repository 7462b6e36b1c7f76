// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queue pairs that are broken on purpose: by `ibfab fault qp`, and by the process that is their wire.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::hostile::{LIDS, Wire};
use super::resources::{QueuePair, connected};
use super::{End, OTHER, OURS, start, start_pingpong};
use crate::report::Report;
use crate::rig::{self, Place, Process, spawn};
use crate::sys::{self, Fault, FaultKind};

const TRACING: &str = "/sys/kernel/tracing";
/// What libibverbs' handlers are told of, as the kernel calls them.
const PROBES: &str = "p:qp ib_uverbs:ib_uverbs_qp_event_handler event=+16(%di):u32
p:cq ib_uverbs:ib_uverbs_cq_event_handler event=+16(%di):u32
p:srq ib_uverbs:ib_uverbs_srq_event_handler event=+16(%di):u32
";
/// `enum ib_event_type`.
const CQ_ERR: u32 = 0;
const QP_FATAL: u32 = 1;
const SRQ_ERR: u32 = 14;

pub(super) fn prove(report: &mut Report) {
    report.claim("packets that are sent twice are taken once", duplicates());
    report.claim("dropped packets are sent again after a time-out each", drops());
    report.claim("a gap of dropped packets costs one sequence error", gap());
    report.claim("the events of broken objects are watched", watch());
    let pingpong = "ibv_rc_pingpong";
    report.claim(
        "a queue pair in error flushes its work and tells its program",
        broken(pingpong, &["-s", "100"], "qp", "qp", QP_FATAL),
    );
    report.claim(
        "a shared receive queue in error ends its queue pairs",
        broken("ibv_srq_pingpong", &["-q", "4"], "srq", "srq", SRQ_ERR),
    );
    for queue in ["send-cq", "receive-cq"] {
        report.claim(
            &format!("a completion queue in error tells its program ({queue})"),
            broken(pingpong, &["-s", "100"], queue, "cq", CQ_ERR),
        );
    }
    report.claim("faults of what does not exist are refused", refused());
}

/// Claims about single packets of a connection whose wire this process is.
pub(super) fn packets() -> Result<()> {
    let mut wire = Wire::make()?;
    let (mut server, mut client) = wire.talk(&["-s", "1000", "-n", "1000000"])?;
    carry(&mut wire, 40, |_| {})?;
    // The queue pair that sends to the first port is named by what it is sent.
    let to_second = wire.recent.iter().find(|record| record[sys::HEADER + 3] == LIDS[1]);
    let qpn =
        u32::from_be_bytes(to_second.context("one way only")?[sys::HEADER + 12..][..4].try_into()?);
    let break_packets = |wire: &Wire, kind: FaultKind, count, delay| {
        wire.device.fault(&Fault { qpn, kind: kind as u8, count, delay, ..Fault::default() })
    };
    let before = wire.device.stats(2)?;

    break_packets(&wire, FaultKind::Corrupt, 3, 0)?;
    // Both programs send what they have received, so a wrong byte stays until the next one. All bytes but
    // the first are 0x7b.
    let (mut last, mut changes, mut others) = (0x7b, 0, 0);
    carry(&mut wire, 100, |record| {
        let packet = &record[sys::HEADER..];
        // Acknowledges have no payload.
        let payload = packet.get(20..).filter(|payload| payload.len() == 1000);
        let Some([data @ .., end]) = payload else { return };
        changes += u32::from(*end != last);
        others += data.iter().skip(1).filter(|&&byte| byte != 0x7b).count();
        last = *end;
    })?;
    ensure!((changes, others) == (3, 0), "{changes} last bytes and {others} others are wrong");

    break_packets(&wire, FaultKind::Duplicate, 5, 0)?;
    let (mut last, mut same) = (Vec::new(), 0);
    carry(&mut wire, 100, |record| {
        // Its peer acknowledges what comes twice twice.
        if record[sys::HEADER + 3] == LIDS[0] {
            same += u32::from(last == record);
            last = record.to_vec();
        }
    })?;
    ensure!(same == 5, "{same} packets were sent twice");

    break_packets(&wire, FaultKind::DelayAcks, 0, 20_000)?;
    carry(&mut wire, 30, |_| {})?;
    break_packets(&wire, FaultKind::DelayAcks, 0, 0)?;
    let after = wire.device.stats(2)?;
    let counted: Vec<_> = (22..26).map(|index: usize| after[index] - before[index]).collect();
    ensure!(counted[..3] == [0, 5, 3] && counted[3] > 5, "counted {counted:?}");
    server.kill()?;
    client.kill()
}

/// Carries packets until there were so many, and shows each.
fn carry(wire: &mut Wire, packets: usize, mut each: impl FnMut(&[u8])) -> Result<()> {
    let (mut carried, mut idle) = (0, 0);
    while carried < packets {
        let number = wire.carry(false)?;
        wire.recent.iter().take(number).rev().for_each(|record| each(record));
        carried += number;
        idle = if number == 0 { idle + 1 } else { 0 };
        ensure!(idle < 20_000, "the connection stands still after {carried} packets");
    }
    Ok(())
}

/// Counters of both ends, ours first.
fn counts(names: &[&str]) -> Result<[Vec<u64>; 2]> {
    let of = |end: End<'_>| names.iter().map(|name| end.count(name)).collect::<Result<Vec<_>>>();
    Ok([of(OURS)?, of(OTHER)?])
}

/// What `work` adds to the counters.
fn added(names: &[&str], work: impl FnOnce() -> Result<()>) -> Result<[Vec<u64>; 2]> {
    let before = counts(names)?;
    work()?;
    let mut after = counts(names)?;
    for (after, before) in after.iter_mut().flatten().zip(before.iter().flatten()) {
        *after -= before;
    }
    Ok(after)
}

/// Breaks our end of a pingpong, whose programs have to end well.
fn survives(fault: &[&str]) -> Result<()> {
    let options = ["-e", "-s", "100", "-n", "500"];
    let (server, words) = start_pingpong("ibv_rc_pingpong", OTHER, OURS, &options)?;
    let client = start_client("ibv_rc_pingpong-broken", &words)?;
    let qp = connected(OURS)?;
    break_qp(&qp, fault)?;
    let said = client.said()?;
    let status = client.wait(Duration::from_mins(1))?;
    ensure!(status.success(), "the client: {status}\n{said}");
    let status = server.wait(Duration::from_mins(1))?;
    ensure!(status.success(), "the server: {status}");
    Ok(())
}

fn start_client(name: &str, words: &[String]) -> Result<Process> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    spawn(name, Place::Here, &words)
}

fn break_qp(qp: &QueuePair, fault: &[&str]) -> Result<()> {
    let name = format!("{}/{}", qp.device, qp.number);
    rig::run(Place::Here, &[&["ibfab", "fault", "qp", &name], fault].concat()).map(drop)
}

fn duplicates() -> Result<()> {
    let names = ["fault_duplicates", "rx_duplicates", "rx_drop_sequence", "rc_time_outs"];
    let [ours, other] = added(&names, || survives(&["--duplicate", "20"]))?;
    // Ours sends requests and acknowledges.
    ensure!(
        ours[0] == 20 && other[1] + other[2] == 20 && ours[3] + other[3] == 0,
        "{names:?}: {ours:?} and {other:?}"
    );
    Ok(())
}

fn drops() -> Result<()> {
    let names = ["fault_drops", "rc_time_outs", "rc_sequence_naks"];
    let [ours, other] = added(&names, || survives(&["--drop", "3"]))?;
    // One message at a time is on its way: nothing behind it shows that it is missing.
    ensure!(
        ours[0] == 3 && ours[1] + other[1] == 3 && ours[2] + other[2] == 0,
        "{names:?}: {ours:?} and {other:?}"
    );
    Ok(())
}

fn gap() -> Result<()> {
    let options = ["-F", "-s", "65536", "-n", "1000000"];
    let (mut server, words) = start("ib_write_bw", OTHER, OURS, &options)?;
    let mut client = start_client("ib_write_bw-broken", &words)?;
    let qp = connected(OURS)?;
    let names = ["fault_drops", "rc_sequence_naks"];
    let [ours, other] = added(&names, || {
        let before = OURS.count("rc_sequence_naks")?;
        break_qp(&qp, &["--drop", "3"])?;
        rig::eventually(|| {
            ensure!(OURS.count("rc_sequence_naks")? > before, "no sequence error");
            Ok(())
        })?;
        let sent = OURS.count("tx_packets")?;
        rig::eventually(|| {
            ensure!(OURS.count("tx_packets")? > sent + 1000, "no traffic: {}", client.said()?);
            Ok(())
        })
    })?;
    client.kill()?;
    server.kill()?;
    ensure!(ours == [3, 1] && other == [0, 0], "{names:?}: {ours:?} and {other:?}");
    Ok(())
}

/// Watches the handlers of ib_uverbs.
fn watch() -> Result<()> {
    rig::run(Place::Here, &["busybox", "mount", "-t", "tracefs", "tracefs", TRACING])?;
    let file = format!("{TRACING}/kprobe_events");
    fs::write(&file, PROBES).context(file)?;
    let file = format!("{TRACING}/events/kprobes/enable");
    fs::write(&file, "1").context(file)
}

/// How often a handler has been told of the event since [`forget`].
fn events(handler: &str, event: u32) -> Result<usize> {
    let file = format!("{TRACING}/trace");
    let trace = fs::read_to_string(&file).context(file)?;
    let (probe, value) = (format!(": {handler}: "), format!("event={event}"));
    let is_it = |line: &&str| line.contains(&probe) && line.ends_with(&value);
    Ok(trace.lines().filter(is_it).count())
}

fn forget() -> Result<()> {
    let file = format!("{TRACING}/trace");
    fs::write(&file, "").context(file)
}

/// Puts something of the client's into error. The handler is told of the event, and then it is so.
fn broken(program: &str, options: &[&str], what: &str, handler: &str, event: u32) -> Result<()> {
    let options = [options, &["-n", "1000000"]].concat();
    let (mut server, words) = start_pingpong(program, OTHER, OURS, &options)?;
    let mut client = start_client(&format!("{program}-{what}"), &words)?;
    let qp = connected(OURS)?;
    forget()?;
    break_qp(&qp, &["--error", what])?;
    rig::eventually(|| {
        ensure!(events(handler, event)? > 0, "no event {event} of a {handler}");
        Ok(())
    })?;
    match what {
        "qp" => rig::eventually(|| {
            let said = client.said()?;
            ensure!(said.contains("Work Request Flushed Error (5)"), "{said}");
            Ok(())
        })?,
        // Receives of a shared queue are not flushed, so the program may wait for ever, or end at once.
        "srq" => {
            let ended = events("qp", QP_FATAL)?;
            ensure!(ended == 4, "{ended} queue pairs have ended");
        }
        _ => {
            let again = break_qp(&qp, &["--error", what]);
            let refusal = again.err().map(|error| format!("{error:#}")).unwrap_or_default();
            ensure!(refusal.contains("is in error already"), "{refusal}");
        }
    }
    client.kill()?;
    server.kill()
}

fn refused() -> Result<()> {
    for (words, says) in [
        (&["ibtun0/900000", "--drop", "1"][..], "lists them"),
        (&["ibtun9/17", "--drop", "1"], "no device ibtun9"),
        (&["ibtun0/17", "--drop", "1000001"], "1000001 is not in 0..=1000000"),
        (&["ibtun0/17", "--delay-acks", "11s"], "write at most 10s"),
        (&["ibtun0/1", "--error", "qp"], "EINVAL"),
    ] {
        let outcome = rig::run(Place::Here, &[&["ibfab", "fault", "qp"], words].concat());
        let refusal = outcome.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(refusal.contains(says), "{words:?}: {refusal}");
    }
    Ok(())
}
