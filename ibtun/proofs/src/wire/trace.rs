// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab trace` shows the packets of a connection, while it is there.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{M, M_ADDRESS, OTHER, OURS, pingpong};
use crate::rig::{self, Place, Process, spawn};

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
    whole.lines().map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
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
