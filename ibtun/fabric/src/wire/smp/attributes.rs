// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Layouts of the attributes other than PortInfo.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The type of a node (IBA vol. 1 §14.2.5.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeType {
    /// Channel adapter: the source and destination of packets.
    ChannelAdapter,
    /// Forwards packets within a subnet.
    Switch,
    /// Forwards packets between subnets.
    Router,
}

impl NodeType {
    /// `None` for an undefined number.
    pub const fn new(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::ChannelAdapter,
            2 => Self::Switch,
            3 => Self::Router,
            _ => return None,
        })
    }

    /// The number in NodeInfo.
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
    /// Always 1.
    pub base_version: u8,
    /// Always 1.
    pub class_version: u8,
    /// See [`NodeType`].
    pub node_type: u8,
    /// Number of external ports.
    pub port_count: u8,
    /// GUID of the system that the node is part of.
    pub system_image_guid: U64,
    /// GUID of the node.
    pub node_guid: U64,
    /// GUID of the port that the SMP arrived on.
    pub port_guid: U64,
    /// Size of the P_Key table of each port; of port 0 in a switch.
    pub partition_cap: U16,
    /// Device number of the vendor.
    pub device_id: U16,
    /// Revision number of the vendor.
    pub revision: U32,
    /// The port that the SMP arrived on.
    pub local_port: u8,
    /// The vendor's IEEE number.
    pub vendor_id: [u8; 3],
}

/// Layout of SwitchInfo (IBA vol. 1 §14.2.5.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SwitchInfoWire {
    /// Capacity of the linear forwarding table.
    pub linear_cap: U16,
    /// Capacity of the random forwarding table; 0 if there is none.
    pub random_cap: U16,
    /// Capacity of the multicast forwarding table.
    pub multicast_cap: U16,
    /// The highest LID that is forwarded.
    pub linear_top: U16,
    /// The port for LIDs that are not in the random table.
    pub default_port: u8,
    /// The port for groups that are not in the table, unless the packet entered by this port.
    pub default_multicast_primary: u8,
    /// The port for groups that are not in the table, if the packet entered by the primary port.
    pub default_multicast_not_primary: u8,
    /// LifeTimeValue, 5 bits; PortStateChange, 1; OptimizedSLtoVL, 2.
    pub life_time: u8,
    /// LIDs per port in the random table.
    pub lids_per_port: U16,
    /// Size of the P_Key table of each external port.
    pub partition_enforcement_cap: U16,
    /// InboundEnforcementCap, OutboundEnforcementCap, FilterRawInboundCap, FilterRawOutboundCap,
    /// EnhancedPort0, 1 bit each; 3 reserved.
    pub capabilities: u8,
    /// Reserved.
    pub reserved: u8,
    /// The highest multicast LID that is forwarded; 0 for the whole table.
    pub multicast_top: U16,
}

impl SwitchInfoWire {
    /// In [`SwitchInfoWire::life_time`]: the state of a port has changed. Writing 1 clears it.
    pub const PORT_STATE_CHANGE: u8 = 0x04;
    /// In [`SwitchInfoWire::capabilities`]: the switch enforces P_Keys, inbound and outbound.
    pub const ENFORCES_P_KEYS: u8 = 0xc0;
}

/// Layout of SMInfo (IBA vol. 1 §14.2.5.13).
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmInfoWire {
    /// GUID of the subnet manager's port.
    pub guid: U64,
    /// Proof to other managers that this one is trusted.
    pub sm_key: U64,
    /// Increases while the manager is alive.
    pub activity: U32,
    /// Priority, 4 bits; [`SmState`], 4.
    pub priority_state: u8,
}

impl SmInfoWire {
    /// The state of the manager; `None` for an undefined number.
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

/// The state of a subnet manager.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum SmState {
    /// Inactive, because it was told so.
    NotActive,
    Discovering,
    /// Waits for the master to fail.
    Standby,
    Master,
}

/// Layout of a Notice (IBA vol. 1 §13.4.8.2), of the generic form.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct NoticeWire {
    /// Generic, 1 bit; type, 7.
    pub generic_type: u8,
    /// The [`NodeType`] of the issuer.
    pub producer: [u8; 3],
    pub trap: U16,
    /// LID of the issuer.
    pub issuer: U16,
    /// Toggle bit, and number of traps not sent for lack of room.
    pub toggle_count: U16,
    /// Defined by the trap.
    pub details: [u8; 54],
}

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
    assert!(size_of::<[U64; 8]>() == super::DATA_LEN);
    assert!(size_of::<[U16; 32]>() == super::DATA_LEN);
};
