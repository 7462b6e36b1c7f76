// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A snapshot: the answers of subnet administrators as bytes for the next daemon.
//!
//! All numbers are big-endian. Nothing follows the checksum.
//!
//! | bytes | |
//! |---|---|
//! | 0 | `ibarrpth` |
//! | 8 | version, 1 (16 bits) |
//! | 10 | number of ports (16 bits) |
//! | 12 | 0 (32 bits) |
//! | 16 | when the snapshot began, seconds since 1970 (64 bits) |
//! | 24 | ports, in the order of their names |
//! | | paths, 116 bytes each, ordered by expiry |
//! | | number of paths (32 bits) |
//! | | CRC-32 (IEEE 802.3) of all before (32 bits) |
//!
//! | of a port | | of a path | |
//! |---|---|---|---|
//! | 0 | device, padded with zeros | 0 | index of its port (16 bits) |
//! | 64 | port number (8 bits) | 2 | parts of the question: flags of `Key` (8 bits) |
//! | 65 | LMC (8 bits) | 3 | traffic class (8 bits) |
//! | 66 | LID (16 bits) | 4 | partition (16 bits) |
//! | 68 | the subnet manager's LID (16 bits) | 6 | class of service (16 bits) |
//! | 70 | number of partitions (16 bits) | 8 | service id (64 bits) |
//! | 72 | first GID | 16 | remaining life when the snapshot began, milliseconds (32 bits) |
//! | 88 | partitions: index and key (32 bits each) | 20, 36 | DGID, SGID |
//! | | | 52 | the SA's record |

mod restoring;
mod schedule;
#[cfg(test)]
mod tests;
mod walk;

use alloc::vec::Vec;
use core::time::Duration;

use crc::{CRC_32_ISO_HDLC, Crc, Digest};
use ibarr_common::ib::{DeviceName, Gid, Lid, PKey, PathRecord, PortNum};
use ibarr_common::wire::sa::PathQuestion;
use ibarr_common::wire::umad::PKeyIndex;
use thiserror::Error;

use super::cache::{Gids, Key, Terms};
use super::leads;
use super::types::{PortFacts, PortName};
use crate::sa::PortIndex;

pub(super) use self::restoring::Restoring;
pub use self::restoring::{Origin, RestoreResult, Restored};
pub use self::schedule::{Action, Schedule};
pub use self::walk::{Step, Walk};

/// CRC-32 of IEEE 802.3.
static CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// The contents of a snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Snapshot {
    /// Start of the snapshot in seconds since 1970.
    pub begun_at: u64,
    /// The ports that have asked.
    pub ports: Vec<KeptPort>,
    pub paths: Vec<KeptPath>,
}

/// A port, and its identity.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeptPort {
    /// The kernel's name of the port.
    pub name: PortName,
    /// The paths of the port are usable while its identity is unchanged.
    pub identity: Identity,
}

/// The properties of a port that its paths depend on.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Identity {
    /// Subnet prefix and port GUID.
    pub gid: Gid,
    /// Its LID, the first of 2^[`Self::lmc`].
    pub lid: Lid,
    pub lmc: u8,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    pub pkeys: Vec<(PKeyIndex, PKey)>,
}

/// A path from the SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct KeptPath {
    /// Index of its port in [`Snapshot::ports`].
    pub port: u16,
    pub question: PathQuestion,
    pub record: PathRecord,
    /// Remaining life when the snapshot began, in milliseconds.
    pub life: u32,
}

/// Error: bytes are not a snapshot.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Error {
    /// The bytes do not begin like a snapshot.
    #[error("it is not a snapshot of paths")]
    Magic,
    /// Written by another version.
    #[error("it has version {0}, and this ibarr reads version 1")]
    Version(u16),
    /// Shorter or longer than its contents require.
    #[error("its length is wrong")]
    Length,
    /// The bytes have changed since they were written.
    #[error("its checksum is wrong")]
    Checksum,
    /// A value that the daemon never writes.
    #[error("it contains an illegal value")]
    Value,
}

impl Identity {
    /// `None` while the port has no SA.
    pub(super) fn of(facts: &PortFacts) -> Option<Self> {
        facts.sa()?;
        Some(Self {
            gid: facts.gids.first()?,
            lid: facts.lid?,
            lmc: facts.lmc,
            sm_lid: facts.sm_lid?,
            pkeys: facts.pkeys.clone(),
        })
    }
}

impl KeptPath {
    /// Remaining life when the snapshot began.
    pub fn life(&self) -> Duration {
        Duration::from_millis(self.life.into())
    }

    fn emit(&self) -> Vec<u8> {
        let key = Key::new(PortIndex(self.port), &self.question);
        let mut octets = Vec::with_capacity(PATH_LEN);
        octets.extend(self.port.to_be_bytes());
        octets.extend([key.terms.flags, key.terms.tclass]);
        octets.extend(key.terms.pkey.to_be_bytes());
        octets.extend(key.terms.qos_class.to_be_bytes());
        octets.extend(key.terms.service_id.to_be_bytes());
        octets.extend(self.life.to_be_bytes());
        octets.extend(key.gids.dgid);
        octets.extend(key.gids.sgid);
        octets.extend(self.record.octets());
        octets
    }

    fn parse(octets: &[u8; PATH_LEN]) -> Option<Self> {
        let mut from = octets.as_slice();
        let port = u16::from_be_bytes(*take(&mut from)?);
        let [flags, tclass] = *take(&mut from)?;
        let pkey = u16::from_be_bytes(*take(&mut from)?);
        let qos_class = u16::from_be_bytes(*take(&mut from)?);
        let service_id = u64::from_be_bytes(*take(&mut from)?);
        let life = u32::from_be_bytes(*take(&mut from)?);
        let gids = Gids { dgid: *take(&mut from)?, sgid: *take(&mut from)? };
        let port_index = PortIndex(port);
        let terms = Terms { service_id, port: port_index, pkey, qos_class, tclass, flags };
        let question = Key { gids, terms }.question()?;
        let this =
            Self { port, question, record: PathRecord::from_octets(*take(&mut from)?), life };
        // There is one encoding of a path, so fields without meaning are zero.
        (this.emit() == octets && leads(&this.record, &this.question)).then_some(this)
    }
}

impl KeptPort {
    fn emit(&self) -> Vec<u8> {
        let Identity { gid, lid, lmc, sm_lid, pkeys } = &self.identity;
        // A port has at most 256.
        let count = u16::try_from(pkeys.len()).unwrap_or(u16::MAX);
        let mut octets = Vec::with_capacity(PORT_LEN + pkeys.len() * PKEY_LEN);
        octets.extend(self.name.device.field());
        octets.extend([self.name.port.get(), *lmc]);
        octets.extend(lid.get().to_be_bytes());
        octets.extend(sm_lid.get().to_be_bytes());
        octets.extend(count.to_be_bytes());
        octets.extend(gid.octets());
        for (index, pkey) in pkeys.iter().take(count.into()) {
            octets.extend(index.0.to_be_bytes());
            octets.extend(pkey.get().to_be_bytes());
        }
        octets
    }

    fn parse(from: &mut &[u8]) -> Result<Self, Error> {
        let field = take(from).ok_or(Error::Length)?;
        // Only zeros follow the name.
        let device = DeviceName::from_field(field).filter(|device| device.field() == *field);
        let [number, lmc] = *take(from).ok_or(Error::Length)?;
        let number_of = |from: &mut &[u8]| take(from).copied().map(u16::from_be_bytes);
        let lid = number_of(from).ok_or(Error::Length)?;
        let sm_lid = number_of(from).ok_or(Error::Length)?;
        let count = number_of(from).ok_or(Error::Length)?;
        let gid = Gid::new(*take(from).ok_or(Error::Length)?);
        let mut pkeys = Vec::new();
        for _ in 0..count {
            let index = number_of(from).ok_or(Error::Length)?;
            let pkey = number_of(from).ok_or(Error::Length)?;
            pkeys.push((PKeyIndex(index), PKey::new(pkey).ok_or(Error::Value)?));
        }
        let name = device.zip(PortNum::new(number));
        let (device, port) = name.ok_or(Error::Value)?;
        let identity = Identity {
            gid: gid.ok_or(Error::Value)?,
            lid: Lid::new(lid).ok_or(Error::Value)?,
            lmc,
            sm_lid: Lid::new(sm_lid).ok_or(Error::Value)?,
            pkeys,
        };
        Ok(Self { name: PortName { device, port }, identity })
    }
}

impl Snapshot {
    /// Parses the bytes.
    ///
    /// # Errors
    /// Anything except the complete output of an [`Encoder`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let mut from = bytes;
        if take(&mut from) != Some(MAGIC) {
            return Err(Error::Magic);
        }
        let version = take(&mut from).copied().map(u16::from_be_bytes).ok_or(Error::Length)?;
        if version != VERSION {
            return Err(Error::Version(version));
        }
        let (content, crc) = bytes.split_last_chunk().ok_or(Error::Length)?;
        if CRC.checksum(content) != u32::from_be_bytes(*crc) {
            return Err(Error::Checksum);
        }
        let ports = take(&mut from).copied().map(u16::from_be_bytes).ok_or(Error::Length)?;
        let reserved: &[u8; 4] = take(&mut from).ok_or(Error::Length)?;
        let begun_at = take(&mut from).copied().map(u64::from_be_bytes).ok_or(Error::Length)?;
        if *reserved != [0; 4] {
            return Err(Error::Value);
        }
        let ports =
            (0..ports).map(|_| KeptPort::parse(&mut from)).collect::<Result<Vec<_>, _>>()?;
        if !ports.is_sorted_by(|one, other| one.name < other.name) {
            return Err(Error::Value);
        }
        let paths = from.len().checked_sub(TRAILER_LEN).ok_or(Error::Length)?;
        let (paths, trailer) = from.split_at(paths);
        let (paths, rest) = paths.as_chunks::<PATH_LEN>();
        let count = trailer.first_chunk().copied().map(u32::from_be_bytes);
        if !rest.is_empty() || count.map(|count| count as usize) != Some(paths.len()) {
            return Err(Error::Length);
        }
        let parse = |octets| {
            let path = KeptPath::parse(octets).ok_or(Error::Value)?;
            if usize::from(path.port) < ports.len() { Ok(path) } else { Err(Error::Value) }
        };
        let paths = paths.iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { begun_at, ports, paths })
    }
}

/// Encodes a snapshot part by part.
pub struct Encoder {
    crc: Digest<'static, u32>,
    paths: u32,
}

impl Encoder {
    /// Starts a snapshot, and returns its first bytes. There are at most 65,535 ports.
    pub fn new(begun_at: u64, ports: &[KeptPort]) -> (Self, Vec<u8>) {
        let count = u16::try_from(ports.len()).unwrap_or(u16::MAX);
        let mut octets = Vec::new();
        octets.extend(MAGIC);
        octets.extend(VERSION.to_be_bytes());
        octets.extend(count.to_be_bytes());
        octets.extend([0; 4]);
        octets.extend(begun_at.to_be_bytes());
        octets.extend(ports.iter().take(count.into()).flat_map(KeptPort::emit));
        let mut crc = CRC.digest();
        crc.update(&octets);
        (Self { crc, paths: 0 }, octets)
    }

    /// The bytes of these paths. A snapshot has at most 2³² - 1 paths.
    pub fn paths(&mut self, paths: &[KeptPath]) -> Vec<u8> {
        let octets: Vec<_> = paths.iter().flat_map(KeptPath::emit).collect();
        self.crc.update(&octets);
        self.paths += u32::try_from(paths.len()).unwrap_or(u32::MAX);
        octets
    }

    /// The last bytes.
    pub fn finish(mut self) -> Vec<u8> {
        let mut octets = self.paths.to_be_bytes().to_vec();
        self.crc.update(&octets);
        octets.extend(self.crc.finalize().to_be_bytes());
        octets
    }
}

/// Length in bytes of a snapshot with `paths` paths and one port: a bound for readers of a file.
pub const fn max_len(paths: usize) -> usize {
    let ports = 256 * (PORT_LEN + PortFacts::MAX_TABLE * PKEY_LEN);
    HEADER_LEN + ports + paths * PATH_LEN + TRAILER_LEN
}

const MAGIC: &[u8; 8] = b"ibarrpth";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 24;
const PORT_LEN: usize = 88;
const PKEY_LEN: usize = 4;
const PATH_LEN: usize = 116;
const TRAILER_LEN: usize = 8;

/// Takes the first `N` octets off `from`.
fn take<'a, const N: usize>(from: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (octets, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(octets)
}
