// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Asks the subnet administrator of a port for a further GUID, with which the port has a further GID: an alias.

use std::io;
use std::time::Duration;

use ibarr_common::ib::{Guid, Lid};
use ibarr_common::wire::mad::{self, Mad};
use ibarr_common::wire::umad::{HEADER_LEN, MAX_LEN, PKeyIndex, Send};
use ibarr_proto::paths::{GidIndex, PortFacts};
use thiserror::Error;

use crate::sys::umad::{Device, Opened};

/// Why there is no alias.
#[derive(Debug, Error)]
pub enum AliasError {
    /// The port has no LID, or knows none of a subnet manager.
    #[error("the port is not active")]
    NotActive,
    /// All eight places of the first block are taken.
    #[error("its table has no room for another GID")]
    Full,
    /// The umad device failed.
    #[error("umad device: {0}")]
    Device(#[from] io::Error),
    /// Nothing was heard in time.
    #[error("the subnet administrator does not answer")]
    Silent,
    /// The status of its answer (IBA volume 1, 13.4.7 and 15.2.1).
    #[error("the subnet administrator refuses, with status {0:#06x}")]
    Refused(u16),
}

/// Asks for a GUID, and waits for the answer. The port has the GID a moment later.
///
/// # Errors
/// If the port has no room for it, or the subnet administrator cannot be asked or refuses.
pub fn ask(
    opened: Opened,
    facts: &PortFacts,
    guid: Guid,
    patience: Duration,
) -> Result<(), AliasError> {
    const SET_RESPONSE: u8 = 0x81;
    let (Some(lid), Some(to)) = (facts.lid, facts.sm_lid) else {
        return Err(AliasError::NotActive);
    };
    let entry = entry(facts, guid).ok_or(AliasError::Full)?;
    let mad = request(lid, entry, guid);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let device = Device::adopt(opened)?;
        let (agent, pkey_index) = (device.agent(), PKeyIndex(0));
        let request = Send { agent, to, sl: facts.sm_sl, pkey_index, timeout: patience, mad };
        device.write(request.emit().as_ref())?;
        let mut answer = [0; MAX_LEN];
        let read = tokio::time::timeout(2 * patience, device.read(&mut answer)).await;
        let len = read.map_err(|_| AliasError::Silent)??;
        // The kernel gives a request back that was not answered.
        match answer.get(HEADER_LEN..len.min(MAX_LEN)) {
            Some([_, _, _, SET_RESPONSE, 0, 0, ..]) => Ok(()),
            Some([_, _, _, SET_RESPONSE, high, low, ..]) => {
                Err(AliasError::Refused(u16::from_be_bytes([*high, *low])))
            }
            _ => Err(AliasError::Silent),
        }
    })
}

/// The entry in the first block of a port's table that has the GUID, or else the first free one.
fn entry(facts: &PortFacts, guid: Guid) -> Option<u8> {
    let at = |entry: u8| {
        let mut entries = facts.gids.entries();
        entries.find(|(GidIndex(index), _)| *index == u16::from(entry)).map(|(_, gid)| gid.guid())
    };
    let has = |entry: &u8| at(*entry) == Some(guid);
    (1..8).find(has).or_else(|| (1..8).find(|&entry| at(entry).is_none()))
}

/// SubnAdmSet(GUIDInfoRecord) for one entry of the first block (IBA volume 1, 15.2.5.18).
fn request(lid: Lid, entry: u8, guid: Guid) -> Mad {
    const SET: u8 = 2;
    const GUID_INFO_RECORD: u16 = 0x30;
    // LID, block number, and one of eight GUIDs.
    let components: u64 = 1 | 1 << 1 | 1 << (4 + entry);
    let mut octets = [0; mad::LEN];
    // Version 1, class SubnAdm, its version 2.
    octets[..4].copy_from_slice(&[1, 3, 2, SET]);
    // Any transaction will do: this agent has but one.
    octets[8..16].copy_from_slice(&1_u64.to_be_bytes());
    octets[16..18].copy_from_slice(&GUID_INFO_RECORD.to_be_bytes());
    octets[48..56].copy_from_slice(&components.to_be_bytes());
    octets[56..58].copy_from_slice(&lid.get().to_be_bytes());
    let place = 64 + 8 * usize::from(entry);
    octets[place..place + 8].copy_from_slice(&guid.get().to_be_bytes());
    Mad::from_octets(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_with_the_guid_or_the_first_free_one_is_asked_for() {
        let (other, asked) = (Guid::new(1), Guid::new(0x0002_c903_0000_0001));
        let facts = |entries: &[u16]| {
            let gid = "fec0::1:2:c903:0:1".parse().unwrap();
            let gids = entries.iter().map(|&index| (GidIndex(index), gid)).collect();
            PortFacts { gids, ..PortFacts::default() }
        };
        assert_eq!(entry(&facts(&[0]), other), Some(1));
        assert_eq!(entry(&facts(&[0, 1, 3]), other), Some(2));
        assert_eq!(entry(&facts(&[0, 1, 2, 3, 4, 5, 6, 7]), other), None);
        assert_eq!(entry(&facts(&[0, 2]), asked), Some(2));
        assert_eq!(entry(&facts(&[0]), asked), Some(1));
    }

    #[test]
    fn request_sets_one_guid_of_the_first_block() {
        let mad = request(Lid::new(3).unwrap(), 2, Guid::new(0x0102_0304_0506_0708));
        let octets: &[u8] = mad.as_ref();
        assert_eq!(octets[..4], [1, 3, 2, 2]);
        assert_eq!(octets[16..18], [0, 0x30]);
        assert_eq!(octets[48..56], [0, 0, 0, 0, 0, 0, 0, 0x43]);
        assert_eq!(octets[56..58], [0, 3]);
        assert_eq!(octets[80..88], [1, 2, 3, 4, 5, 6, 7, 8]);
        let zeros = |range: std::ops::Range<usize>| octets[range].iter().all(|octet| *octet == 0);
        assert!(zeros(58..80) && zeros(88..octets.len()));
    }
}
