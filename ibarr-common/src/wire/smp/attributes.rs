// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Layouts of the attributes but PortInfo.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a node is (IBA vol. 1 §14.2.5.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeType {
    /// A channel adapter: where packets begin and end.
    ChannelAdapter,
    /// Moves packets within a subnet.
    Switch,
    /// Moves packets between subnets.
    Router,
}

impl NodeType {
    /// From its number.
    pub const fn new(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::ChannelAdapter,
            2 => Self::Switch,
            3 => Self::Router,
            _ => return None,
        })
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        match self {
            Self::ChannelAdapter => 1,
            Self::Switch => 2,
            Self::Router => 3,
        }
    }
}

/// Layout of NodeInfo (IBA vol. 1 §14.2.5.3).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NodeInfoWire {
    /// 1.
    pub base_version: u8,
    /// 1.
    pub class_version: u8,
    /// See [`NodeType`].
    pub node_type: u8,
    /// Ports on cables.
    pub port_count: u8,
    /// What is sold as one has one.
    pub system_image_guid: U64,
    /// The node's.
    pub node_guid: U64,
    /// The GUID of the port that the SMP came in by.
    pub port_guid: U64,
    /// Entries of the P_Key table of each port, of a switch's of its port 0.
    pub partition_cap: U16,
    /// The vendor's.
    pub device_id: U16,
    /// The vendor's.
    pub revision: U32,
    /// The port that the SMP came in by.
    pub local_port: u8,
    /// IEEE's number of the vendor.
    pub vendor_id: [u8; 3],
}

/// Layout of SwitchInfo (IBA vol. 1 §14.2.5.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SwitchInfoWire {
    /// Entries of the linear forwarding table.
    pub linear_cap: U16,
    /// Entries of the random one. 0: there is none.
    pub random_cap: U16,
    /// Entries of the multicast one.
    pub multicast_cap: U16,
    /// The last LID that is forwarded.
    pub linear_top: U16,
    /// For LIDs that are not in the random table.
    pub default_port: u8,
    /// For groups that are not in the table, from other ports than itself.
    pub default_multicast_primary: u8,
    /// And from itself.
    pub default_multicast_not_primary: u8,
    /// LifeTimeValue, 5 bits; PortStateChange, 1; OptimizedSLtoVL, 2.
    pub life_time: u8,
    /// Of the random table.
    pub lids_per_port: U16,
    /// Entries of the P_Key table of each external port.
    pub partition_enforcement_cap: U16,
    /// InboundEnforcementCap, OutboundEnforcementCap, FilterRawInboundCap, FilterRawOutboundCap,
    /// EnhancedPort0, 1 bit each; 3 reserved.
    pub capabilities: u8,
    /// Reserved.
    pub reserved: u8,
    /// The last multicast LID that is forwarded. 0: all of the table.
    pub multicast_top: U16,
}

impl SwitchInfoWire {
    /// In [`SwitchInfoWire::life_time`]: the state of a port has changed. Written as 1 to clear it.
    pub const PORT_STATE_CHANGE: u8 = 0x04;
    /// In [`SwitchInfoWire::capabilities`]: P_Keys are enforced, inbound and outbound.
    pub const ENFORCES_P_KEYS: u8 = 0xc0;
}

/// Layout of SMInfo (IBA vol. 1 §14.2.5.13).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmInfoWire {
    /// Of the port that it runs behind.
    pub guid: U64,
    /// What another manager has to know to be believed.
    pub sm_key: U64,
    /// Goes up while it is alive.
    pub activity: U32,
    /// Priority, 4 bits; [`SmState`], 4.
    pub priority_state: u8,
}

impl SmInfoWire {
    /// What it does at present. `None`: a number that no state has.
    pub const fn state(&self) -> Option<SmState> {
        Some(match self.priority_state & 0x0f {
            0 => SmState::NotActive,
            1 => SmState::Discovering,
            2 => SmState::Standby,
            3 => SmState::Master,
            _ => return None,
        })
    }
}

/// What a subnet manager does at present.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SmState {
    /// Nothing, as it was told.
    NotActive,
    /// Looks who is there.
    Discovering,
    /// Waits for the master to fail.
    Standby,
    /// Runs the subnet.
    Master,
}

/// Layout of a Notice (IBA vol. 1 §13.4.8.2), of the generic form.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct NoticeWire {
    /// Generic, 1 bit; type, 7.
    pub generic_type: u8,
    /// A [`NodeType`].
    pub producer: [u8; 3],
    /// What happened.
    pub trap: U16,
    /// Whose trap it is.
    pub issuer: U16,
    /// Of traps that were not sent for lack of room.
    pub toggle_count: U16,
    /// The trap decides.
    pub details: [u8; 54],
}

/// Layout of a block of the GUID table: 8 entries.
pub type GuidBlock = [U64; 8];
/// Layout of a block of the P_Key table: 32 entries.
pub type PKeyBlock = [U16; 32];
/// Layout of a block of the linear forwarding table: the port for each of 64 LIDs, 255 for none.
pub type LinearForwardingBlock = [u8; 64];
/// Layout of a block of the multicast forwarding table: the ports for each of 32 LIDs, 16 ports a
/// position.
pub type MulticastForwardingBlock = [U16; 32];

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<NodeInfoWire>() == 40);
    assert!(offset_of!(NodeInfoWire, port_guid) == 20);
    assert!(offset_of!(NodeInfoWire, local_port) == 36);
    assert!(size_of::<SwitchInfoWire>() == 20);
    assert!(offset_of!(SwitchInfoWire, life_time) == 11);
    assert!(offset_of!(SwitchInfoWire, capabilities) == 16);
    assert!(size_of::<SmInfoWire>() == 21);
    assert!(size_of::<NoticeWire>() == super::DATA_LEN);
    assert!(size_of::<GuidBlock>() == super::DATA_LEN);
    assert!(size_of::<PKeyBlock>() == super::DATA_LEN);
    assert!(size_of::<MulticastForwardingBlock>() == super::DATA_LEN);
};
