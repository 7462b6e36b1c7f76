// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A process that is the wire of an open connection, and sends more than was sent: packets of the
//! connection again, late, and with wrong bytes anywhere behind the LRH.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng as _};

use super::{End, start};
use crate::report::Report;
use crate::rig::{Place, Process, spawn};
use crate::sys::{self, Create, Ibtun, Port};

const SEED: u64 = 18;
/// Packets that are changed and sent again.
const KEPT: usize = 64;
/// Odd packets in one `write`.
const BATCH: usize = 16;
/// In how many packets one has a changed copy before it, so that the copy has the PSN that is expected.
/// Often it ends the connection.
const BEFORE: u32 = 20;
pub(super) const LIDS: [u8; 2] = [5, 6];
/// A packet counts as received, malformed, for a port that is down or for another LID.
const FATES: [usize; 4] = [2, 7, 8, 9];

/// A connection between two ports of an HCA, whose wire this is.
pub(super) struct Wire {
    pub(super) device: Ibtun,
    name: String,
    random: ChaCha8Rng,
    /// The records that it carried last, the newest first.
    pub(super) recent: VecDeque<Vec<u8>>,
    written: u64,
}

/// Writes `odd` odd packets while programs talk over the wire. Then they talk undisturbed.
pub(super) fn harmless(odd: u64) -> Result<()> {
    let mut wire = Wire::make()?;
    let before = wire.received()?;
    let (mut sent, mut pairs) = (0, 0);
    let mut pair = None;
    while sent < odd {
        let (server, client) = if let Some(pair) = &mut pair {
            pair
        } else {
            pairs += 1;
            pair.insert(wire.talk(&["-e", "-s", "3000", "-n", "1000000"])?)
        };
        for _ in 0..50 {
            wire.carry(true)?;
            sent += wire.disturb()?;
        }
        if server.check_alive().is_err() || client.check_alive().is_err() {
            server.kill()?;
            client.kill()?;
            pair = None;
        }
    }
    if let Some((mut server, mut client)) = pair {
        server.kill()?;
        client.kill()?;
    }
    // What waits belongs to connections that have ended.
    while wire.carry(false)? > 0 {}
    Report::note(format_args!("{sent} odd packets of seed {SEED}; {pairs} connections"));

    let (mut server, mut client) = wire.talk(&["-e", "-s", "3000", "-n", "50"])?;
    while server.check_alive().is_ok() || client.check_alive().is_ok() {
        wire.carry(false)?;
    }
    for process in [server, client] {
        let said = process.said()?;
        let status = process.wait(Duration::ZERO)?;
        ensure!(status.success(), "{status}: {said}");
    }
    let counted = wire.received()? - before;
    ensure!(counted == wire.written, "of {} packets {counted} are counted", wire.written);
    Ok(())
}

impl Wire {
    pub(super) fn make() -> Result<Self> {
        let device = Ibtun::open()?;
        let mut port_guid = [[0; 8]; sys::MAX_PORTS];
        port_guid[0] = [2, 0, 0, 0, 0, 0, 0x20, 1];
        port_guid[1] = [2, 0, 0, 0, 0, 0, 0x20, 2];
        let mut node_desc = [0; 64];
        node_desc[..7].copy_from_slice(b"hostile");
        let created = device.create(&Create {
            version: sys::VERSION.into(),
            ports: 2,
            mtu: 0,
            pkeys: 0,
            guids: 0,
            reserved: 0,
            queue: 0,
            node_guid: [2, 0, 0, 0, 0, 0, 0x20, 0],
            system_image_guid: [0; 8],
            port_guid,
            node_desc,
            name: [0; 64],
        })?;
        let length = created.name.iter().position(|&byte| byte == 0).context("a name")?;
        let name = str::from_utf8(&created.name[..length])?.to_owned();
        for (number, lid) in [(1, LIDS[0]), (2, LIDS[1])] {
            device.set_port(&Port {
                port: number,
                state: 4,
                phys_state: 5,
                mtu: 5,
                lmc: 0,
                sm_sl: 0,
                subnet_timeout: 18,
                width: 2,
                speed: 32,
                lid: lid.into(),
                sm_lid: 1,
                reserved: 0,
                cap_mask: 0,
                reserved2: 0,
                gid_prefix: [0xfe, 0x80, 0, 0, 0, 0, 0, 0],
            })?;
        }
        let random = ChaCha8Rng::seed_from_u64(SEED);
        Ok(Self { device, name, random, recent: VecDeque::new(), written: 0 })
    }

    /// Starts server and client.
    pub(super) fn talk(&self, options: &[&str]) -> Result<(Process, Process)> {
        self.pair("ibv_rc_pingpong", &[&["-c"], options].concat())
    }

    /// The same of any program.
    pub(super) fn pair(&self, program: &str, options: &[&str]) -> Result<(Process, Process)> {
        let [server, client] = ["1", "2"].map(|port| End(&self.name, port));
        let (server, words) = start(program, server, client, options)?;
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        Ok((server, spawn(&format!("{program}-on-wire"), Place::Here, &words)?))
    }

    /// Carries what was sent to where it is addressed. Returns the number of packets.
    pub(super) fn carry(&mut self, disturbed: bool) -> Result<usize> {
        let sent = self.sent()?;
        let carried = sent.len();
        for record in sent {
            if disturbed && self.random.next_u32().is_multiple_of(BEFORE) {
                let odd = self.changed(&record);
                self.write(&odd, 1)?;
            }
            self.write(&record, 1)?;
            self.recent.truncate(KEPT - 1);
            self.recent.push_front(record);
        }
        Ok(carried)
    }

    /// Takes what was sent, as the records that carry it to where it is addressed.
    pub(super) fn sent(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut buffer = vec![0; 32 * sys::MAX_RECORD];
        let length = self.device.read(&mut buffer, Duration::from_millis(1))?;
        let mut rest = buffer.get(..length).context("a length")?;
        let mut sent = Vec::new();
        while let Some(bytes) = rest.get(4..8) {
            let length = usize::try_from(u32::from_ne_bytes(bytes.try_into()?))?;
            let (record, next) = rest.split_at_checked(length).context("half a record")?;
            rest = next;
            if record[1] != sys::PACKET {
                continue;
            }
            // The DLID.
            let to = LIDS.iter().position(|&lid| record[sys::HEADER + 2..][..2] == [0, lid]);
            let Some(to) = to else { continue };
            let mut record = record.to_vec();
            record[2] = u8::try_from(to + 1)?;
            record[8..16].fill(0);
            sent.push(record);
        }
        Ok(sent)
    }

    /// Writes recent packets again, most of them changed. Returns their number.
    fn disturb(&mut self) -> Result<u64> {
        if self.recent.is_empty() {
            return Ok(0);
        }
        let mut batch = Vec::new();
        for _ in 0..BATCH {
            let index = self.random.next_u32() as usize % self.recent.len();
            let record = self.recent[index].clone();
            batch.extend(self.changed(&record));
        }
        self.write(&batch, BATCH as u64)?;
        Ok(BATCH as u64)
    }

    /// The record with up to three other bytes behind the LRH, most of them in headers, and now and
    /// then another length.
    fn changed(&mut self, record: &[u8]) -> Vec<u8> {
        let mut changed = record.to_vec();
        let first = sys::HEADER + 8;
        for _ in 0..self.random.next_u32() % 4 {
            let headers = (first + 28).min(changed.len());
            let end =
                if self.random.next_u32().is_multiple_of(4) { changed.len() } else { headers };
            let at = first + self.random.next_u32() as usize % (end - first);
            changed[at] = self.random.next_u32().to_le_bytes()[0];
        }
        if self.random.next_u32().is_multiple_of(8) {
            let words = self.random.next_u32() as usize % 300 + 5;
            changed.resize(sys::HEADER + words * 4, 0x55);
            let length = u32::try_from(changed.len()).unwrap_or_default();
            changed[4..8].copy_from_slice(&length.to_ne_bytes());
            // PktLen counts the ICRC.
            let words = u16::try_from(words + 1).unwrap_or_default();
            changed[sys::HEADER + 4..][..2].copy_from_slice(&words.to_be_bytes());
        }
        changed
    }

    pub(super) fn write(&mut self, records: &[u8], number: u64) -> Result<()> {
        let written = self.device.write(records)?;
        ensure!(written == records.len(), "records of seed {SEED} were refused");
        self.written += number;
        Ok(())
    }

    /// The packets that the ports have counted, by their first fate.
    fn received(&self) -> Result<u64> {
        let mut sum = 0;
        for port in [1, 2] {
            let counters = self.device.stats(port)?;
            sum += FATES.iter().map(|&fate| counters[fate]).sum::<u64>();
        }
        Ok(sum)
    }
}
