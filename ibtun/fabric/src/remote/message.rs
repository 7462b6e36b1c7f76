// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a datagram says.
//!
//! | kind | sender | contents |
//! |---|---|---|
//! | 1 hello | host | name of its node |
//! | 2 challenge | fabric | none |
//! | 3 join | host | name of its node |
//! | 4 alive | host | none |
//! | 5 packet | both | from LRH to payload |
//! | 6 capabilities | host | PortInfo:CapabilityMask (4 bytes) |
//! | 7 configuration | fabric | [`ConfigWire`] |

use ibarr_common::ib::{Guid, Lid, PKey, PortNum, Sl, SubnetPrefix};
use zerocopy::network_endian::{U16 as Be16, U32 as Be32, U64 as Be64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::PortConfig;
use crate::wire::packet;
use crate::wire::smp::{PhysicalState, PortState};

/// The contents of a datagram.
#[derive(Clone, Debug, PartialEq)]
pub enum Message<'a> {
    /// A host wants to join as the named node.
    Hello(&'a str),
    /// The fabric wants to know whether the hello is of now.
    Challenge,
    /// It is, and the host joins.
    Join(&'a str),
    /// The host is still there.
    Alive,
    /// A port sends, or receives.
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    Packet { port: PortNum, packet: &'a [u8] },
    /// The software behind a port has changed its capabilities.
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    Capabilities { port: PortNum, mask: u32 },
    /// The state of a port.
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    Config {
        port: PortNum,
        config: Box<PortConfig>,
        /// Clients have to register anew with the subnet administrator.
        reregister: bool,
    },
}

/// Which end sent a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Sender {
    Host = 0,
    Fabric = 1,
}

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const JOIN: u8 = 3;
const ALIVE: u8 = 4;
const PACKET: u8 = 5;
const CAPABILITIES: u8 = 6;
const CONFIG: u8 = 7;

/// Longest name of a node in a message, in bytes.
const MAX_NAME: usize = 256;

/// Longest contents of a message, in bytes.
pub(super) const fn longest() -> usize {
    packet::MAX_LEN
}

const _: () = assert!(size_of::<ConfigWire>() <= longest() && MAX_NAME <= longest());

impl<'a> Message<'a> {
    pub(super) fn parse(kind: u8, port: u8, contents: &'a [u8]) -> Option<Self> {
        let name = || std::str::from_utf8(contents).ok().filter(|name| name.len() <= MAX_NAME);
        if let PACKET..=CONFIG = kind {
            let port = PortNum::new(port)?;
            return match kind {
                PACKET => Some(Self::Packet { port, packet: contents }),
                CAPABILITIES => {
                    let mask = Be32::read_from_bytes(contents).ok()?.get();
                    Some(Self::Capabilities { port, mask })
                }
                _ => {
                    let wire = ConfigWire::ref_from_bytes(contents).ok()?;
                    let config = Box::new(wire.config()?);
                    Some(Self::Config { port, config, reregister: wire.reregister != 0 })
                }
            };
        }
        if port != 0 {
            return None;
        }
        match kind {
            HELLO => name().map(Self::Hello),
            JOIN => name().map(Self::Join),
            CHALLENGE if contents.is_empty() => Some(Self::Challenge),
            ALIVE if contents.is_empty() => Some(Self::Alive),
            _ => None,
        }
    }

    /// Whether this end may say it.
    pub(super) fn is_of(&self, sender: Sender) -> bool {
        match self {
            Self::Packet { .. } => true,
            Self::Challenge | Self::Config { .. } => sender == Sender::Fabric,
            Self::Hello(_) | Self::Join(_) | Self::Alive | Self::Capabilities { .. } => {
                sender == Sender::Host
            }
        }
    }

    pub(super) fn kind_and_port(&self) -> (u8, u8) {
        match self {
            Self::Hello(_) => (HELLO, 0),
            Self::Challenge => (CHALLENGE, 0),
            Self::Join(_) => (JOIN, 0),
            Self::Alive => (ALIVE, 0),
            Self::Packet { port, .. } => (PACKET, port.get()),
            Self::Capabilities { port, .. } => (CAPABILITIES, port.get()),
            Self::Config { port, .. } => (CONFIG, port.get()),
        }
    }

    /// Appends the contents to the header.
    pub(super) fn emit(&self, to: &mut Vec<u8>) {
        match self {
            Self::Hello(name) | Self::Join(name) => to.extend_from_slice(name.as_bytes()),
            Self::Challenge | Self::Alive => {}
            Self::Packet { packet, .. } => to.extend_from_slice(packet),
            Self::Capabilities { mask, .. } => to.extend_from_slice(&mask.to_be_bytes()),
            Self::Config { config, reregister, .. } => {
                to.extend_from_slice(ConfigWire::new(config, *reregister).as_bytes());
            }
        }
    }
}

/// A [`PortConfig`] in a datagram.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct ConfigWire {
    gid_prefix: Be64,
    guids: [Be64; 32],
    capability_mask: Be32,
    lid: Be16,
    sm_lid: Be16,
    pkeys: [Be16; 32],
    state: u8,
    physical_state: u8,
    lmc: u8,
    sm_sl: u8,
    mtu: u8,
    subnet_timeout: u8,
    width: u8,
    speed: u8,
    reregister: u8,
    pkey_count: u8,
    guid_count: u8,
}

impl ConfigWire {
    fn new(config: &PortConfig, reregister: bool) -> Self {
        let mut this = Self {
            gid_prefix: config.gid_prefix.get().into(),
            guids: [Be64::ZERO; 32],
            capability_mask: config.capability_mask.into(),
            lid: config.lid.map_or(0, Lid::get).into(),
            sm_lid: config.sm_lid.map_or(0, Lid::get).into(),
            pkeys: [Be16::ZERO; 32],
            state: config.state.get(),
            physical_state: config.physical_state.get(),
            lmc: config.lmc,
            sm_sl: config.sm_sl.get(),
            mtu: config.mtu,
            subnet_timeout: config.subnet_timeout,
            width: config.width,
            speed: config.speed,
            reregister: reregister.into(),
            // Both tables have at most 32 entries.
            pkey_count: u8::try_from(config.pkeys.len()).unwrap_or(32),
            guid_count: u8::try_from(config.guids.len()).unwrap_or(32),
        };
        let pkeys = this.pkeys.iter_mut().zip(&config.pkeys);
        pkeys.for_each(|(to, from)| *to = from.map_or(0, PKey::get).into());
        this.guids.iter_mut().zip(&config.guids).for_each(|(to, from)| *to = from.get().into());
        this
    }

    fn config(&self) -> Option<PortConfig> {
        let pkeys = self.pkeys.get(..usize::from(self.pkey_count))?;
        let guids = self.guids.get(..usize::from(self.guid_count))?;
        Some(PortConfig {
            state: PortState::new(self.state)?,
            physical_state: PhysicalState::new(self.physical_state)?,
            gid_prefix: SubnetPrefix::new(self.gid_prefix.get()),
            lid: Lid::new(self.lid.get()),
            lmc: self.lmc,
            sm_lid: Lid::new(self.sm_lid.get()),
            sm_sl: Sl::new(self.sm_sl)?,
            mtu: self.mtu,
            subnet_timeout: self.subnet_timeout,
            width: self.width,
            speed: self.speed,
            capability_mask: self.capability_mask.get(),
            pkeys: pkeys.iter().map(|pkey| PKey::new(pkey.get())).collect(),
            guids: guids.iter().map(|guid| Guid::new(guid.get())).collect(),
        })
    }
}
