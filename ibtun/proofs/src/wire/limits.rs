// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a connection does at its limits. The wire is ours, so that each packet is seen.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::hostile::Wire;
use crate::rig;
use crate::sys;

/// The most packets of a requester that wait for their acknowledge (`IBTUN_WINDOW` in requester.c).
const ON_THEIR_WAY: usize = 64;

/// Opcodes of RC, IBA volume 1, 9.2.1.
mod opcode {
    pub(super) const WRITE_ONLY: u8 = 0x0a;
    pub(super) const ACKNOWLEDGE: u8 = 0x11;
    pub(super) const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    pub(super) const FETCH_ADD: u8 = 0x14;
}

/// Where the BTH begins, behind header and LRH: these packets have no GRH.
const BTH: usize = sys::HEADER + 8;
/// What follows the BTH.
const EXTENSION: usize = BTH + 12;
/// What a FETCH_ADD adds, behind address and R_Key.
const ADDED: usize = EXTENSION + 12;
/// The R_Key in a RETH, behind the address.
const R_KEY: usize = EXTENSION + 8;
/// A NAK for a remote access error, IBA volume 1, 9.7.5.1.
const ACCESS_ERROR: u8 = 0x62;

fn opcode(record: &[u8]) -> u8 {
    record[BTH]
}

fn psn(record: &[u8]) -> u32 {
    u32::from_be_bytes([0, record[BTH + 9], record[BTH + 10], record[BTH + 11]])
}

fn number(record: &[u8], at: usize) -> u64 {
    record[at..at + 8].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Carries everything, and gives each packet of a connection to `each`, which returns what is written.
fn carry(wire: &mut Wire, each: &mut impl FnMut(Vec<u8>) -> Vec<Vec<u8>>) -> Result<()> {
    for record in wire.sent()? {
        for record in each(record) {
            wire.write(&record, 1)?;
        }
    }
    Ok(())
}

/// Nothing arrives. So the requester stops, and after its time-out it sends the same again.
pub(super) fn window() -> Result<()> {
    let mut wire = Wire::make()?;
    let options = ["-e", "-s", "300000", "-m", "1024", "-n", "1"];
    let (mut server, mut client) = wire.talk(&options)?;
    let mut times = BTreeMap::new();
    let began = Instant::now();
    while !times.values().any(|&number| number > 2) {
        ensure!(began.elapsed() < rig::PATIENCE, "none of {} packets came again", times.len());
        for record in wire.sent()? {
            *times.entry(psn(&record)).or_insert(0) += 1;
        }
    }
    client.kill()?;
    server.kill()?;
    ensure!(times.len() == ON_THEIR_WAY, "{} packets: {times:?}", times.len());
    Ok(())
}

/// Each request comes twice. An answer has the value before, so the next one of the same address has what was added
/// once.
pub(super) fn repeated_atomics() -> Result<()> {
    let mut wire = Wire::make()?;
    let options = ["-F", "-A", "FETCH_AND_ADD", "-n", "300"];
    let (mut server, mut client) = wire.pair("ib_atomic_bw", &options)?;
    // What is added where, in the order of requests, and the answers to each.
    let mut requests = Vec::new();
    let mut answers: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut twice = |record: Vec<u8>| {
        let psn = psn(&record);
        if opcode(&record) == opcode::ATOMIC_ACKNOWLEDGE {
            // Behind the AETH.
            answers.entry(psn).or_default().push(number(&record, EXTENSION + 4));
        }
        if opcode(&record) != opcode::FETCH_ADD {
            return vec![record];
        }
        requests.push((psn, number(&record, EXTENSION), number(&record, ADDED)));
        vec![record.clone(), record]
    };
    while server.check_alive().is_ok() || client.check_alive().is_ok() {
        carry(&mut wire, &mut twice)?;
    }
    for process in [server, client] {
        let said = process.said()?;
        let status = process.wait(rig::PATIENCE)?;
        ensure!(status.success(), "{status}: {said}");
    }
    let repeated = answers.values().filter(|values| values.len() > 1).count();
    ensure!(repeated > answers.len() / 2, "{repeated} of {} are answered twice", answers.len());
    let (mut expected, mut known) = (BTreeMap::new(), 0);
    for (psn, address, added) in &requests {
        let values = answers.get(psn).map_or(&[][..], |values| &values[..]);
        let [first, rest @ ..] = values else { bail!("PSN {psn} has no answer") };
        ensure!(rest.iter().all(|value| value == first), "PSN {psn}: {values:?}");
        if let Some(before) = expected.insert(address, first.wrapping_add(*added)) {
            ensure!(before == *first, "PSN {psn} at {address:#x}: {first}, not {before}");
            known += 1;
        }
    }
    ensure!(known > 0, "no address is used twice: {requests:?}");
    Ok(())
}

/// A request with the key that rdmavt takes for all of the kernel's memory, in place of its own.
pub(super) fn no_r_key() -> Result<()> {
    let mut wire = Wire::make()?;
    let options = ["-F", "-s", "64", "-n", "5"];
    let (mut server, mut client) = wire.pair("ib_write_bw", &options)?;
    let (mut changed, mut refused) = (0, 0);
    let mut without = |mut record: Vec<u8>| {
        if opcode(&record) == opcode::WRITE_ONLY {
            record[R_KEY..R_KEY + 4].fill(0);
            changed += 1;
        } else if opcode(&record) == opcode::ACKNOWLEDGE && record[EXTENSION] == ACCESS_ERROR {
            refused += 1;
        }
        vec![record]
    };
    while client.check_alive().is_ok() {
        carry(&mut wire, &mut without)?;
    }
    let said = client.said()?;
    let status = client.wait(rig::PATIENCE)?;
    server.kill()?;
    ensure!(changed > 0 && refused > 0, "{changed} requests, {refused} refused");
    // IBV_WC_REM_ACCESS_ERR
    ensure!(!status.success() && said.contains("status 10"), "{status}: {said}");
    Ok(())
}
