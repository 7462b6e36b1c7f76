// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The packets that the fabric has written to its capture file.

use std::fs;

use anyhow::{Context as _, Result};
use ibarr_fabric::wire::packet::Packet;

use super::RESULTS;

/// Option and value with which `ibfab run` writes the file.
pub fn options() -> [String; 2] {
    ["--capture".to_owned(), format!("{RESULTS}/fabric.pcap")]
}

/// All packets so far that crossed a link, once for each link, from LRH to payload.
pub fn packets() -> Result<Vec<Vec<u8>>> {
    let [_, file] = options();
    let capture = fs::read(&file).context(file)?;
    let mut packets = Vec::new();
    let mut rest = capture.get(24..).context("no header")?;
    // A record has a header of 16 bytes, whose third word is the length, and the packet one of ERF.
    while let Some((header, behind)) = rest.split_at_checked(16) {
        let length = header.get(8..12).and_then(|word| word.try_into().ok());
        let length = usize::try_from(u32::from_ne_bytes(length.context("a length")?))?;
        // The last one may not be there as a whole.
        let Some((record, next)) = behind.split_at_checked(length) else { break };
        let packet = record.get(16..).context("a short record")?;
        // The LRH's PktLen, which counts words up to the ICRC. The file has made-up checksums.
        let words = usize::from(packet[4] & 7) << 8 | usize::from(packet[5]);
        packets.push(packet.get(..words * 4 - 4).context("a short packet")?.to_vec());
        rest = next;
    }
    Ok(packets)
}

/// Those of reliable connections.
pub fn connected(packets: &[Vec<u8>]) -> impl Iterator<Item = Packet<'_>> {
    /// The largest opcode of RC, but for acknowledges of atomics.
    const LAST: u8 = 0x17;
    packets.iter().filter_map(|packet| Packet::parse(packet).ok()).filter(|one| one.opcode <= LAST)
}
