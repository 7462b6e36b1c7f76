// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! PortInfo: what a port is, and what the subnet manager made of it.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ib::{Lid, Sl};

/// What a port lets pass.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PortState {
    /// Nothing: there is no link.
    Down,
    /// Subnet management.
    Initialize,
    /// That, and what comes in.
    Armed,
    /// Everything.
    Active,
}

impl PortState {
    /// From its number. `None` for 0, which asks for no change, and numbers that no state has.
    pub const fn new(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Down,
            2 => Self::Initialize,
            3 => Self::Armed,
            4 => Self::Active,
            _ => return None,
        })
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        match self {
            Self::Down => 1,
            Self::Initialize => 2,
            Self::Armed => 3,
            Self::Active => 4,
        }
    }
}

/// What a port's hardware does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PhysicalState {
    /// Waits to be told.
    Sleep,
    /// Looks for a peer.
    Polling,
    /// Is off.
    Disabled,
    /// Has a link.
    LinkUp,
}

impl PhysicalState {
    /// From its number. `None` for 0, which asks for no change, and what software cannot ask for.
    pub const fn new(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            5 => Self::LinkUp,
            _ => return None,
        })
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        match self {
            Self::Sleep => 1,
            Self::Polling => 2,
            Self::Disabled => 3,
            Self::LinkUp => 5,
        }
    }
}

/// Layout of PortInfo (IBA vol. 1 §14.2.5.6).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Eq,
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout,
    PartialEq,
    Unaligned,
)]
#[repr(C)]
pub struct PortInfoWire {
    /// What a manager has to show before it may change anything. 0: nothing.
    pub m_key: U64,
    /// Upper half of the port's GIDs.
    pub gid_prefix: U64,
    /// The port's. 0: none yet.
    pub lid: U16,
    /// The master subnet manager's. 0: none yet.
    pub sm_lid: U16,
    /// What it offers; see the constants.
    pub capability_mask: U32,
    /// The vendor's.
    pub diag_code: U16,
    /// Seconds.
    pub m_key_lease: U16,
    /// The port that the SMP came in by.
    pub local_port: u8,
    /// Widths that it may use: bits for 1, 4, 8, 12 lanes, and 2.
    pub width_enabled: u8,
    /// Widths that it can use.
    pub width_supported: u8,
    /// The one in use.
    pub width_active: u8,
    /// LinkSpeedSupported, 4 bits; [`PortState`], 4.
    pub speed_supported_state: u8,
    /// [`PhysicalState`], 4 bits; LinkDownDefaultState, 4.
    pub physical_default: u8,
    /// M_KeyProtectBits, 2 bits; 3 reserved; LMC, 3.
    pub m_key_protect_lmc: u8,
    /// LinkSpeedActive, 4 bits; LinkSpeedEnabled, 4.
    pub speed_active_enabled: u8,
    /// NeighborMTU, 4 bits; MasterSMSL, 4.
    pub mtu_sm_sl: u8,
    /// VLCap, 4 bits; InitType, 4.
    pub vl_cap_init: u8,
    /// Of virtual lane arbitration.
    pub vl_high_limit: u8,
    /// Entries of its table for high priority.
    pub vl_arb_high_cap: u8,
    /// And for low.
    pub vl_arb_low_cap: u8,
    /// InitTypeReply, 4 bits; MTUCap, 4.
    pub init_reply_mtu_cap: u8,
    /// VLStallCount, 3 bits; HOQLife, 5.
    pub stall_life: u8,
    /// OperationalVLs, 4 bits; PartitionEnforcementInbound, -Outbound, FilterRawInbound,
    /// -Outbound, 1 each.
    pub vls_enforcement: u8,
    /// SMPs with a wrong M_Key.
    pub m_key_violations: U16,
    /// Packets with a P_Key that the port does not have.
    pub p_key_violations: U16,
    /// Packets with a wrong Q_Key.
    pub q_key_violations: U16,
    /// Entries of the GUID table.
    pub guid_cap: u8,
    /// ClientReregister, 1 bit; 2 reserved; SubnetTimeOut, 5.
    pub reregister_timeout: u8,
    /// 3 bits reserved; RespTimeValue, 5.
    pub response_time: u8,
    /// LocalPhyErrors, 4 bits; OverrunErrors, 4.
    pub error_thresholds: u8,
    /// Of flow control.
    pub max_credit_hint: U16,
    /// 8 bits reserved; LinkRoundTripLatency, 24.
    pub round_trip: U32,
    /// More of what it offers.
    pub capability_mask_2: U16,
    /// LinkSpeedExtActive, 4 bits; LinkSpeedExtSupported, 4.
    pub speed_ext_active: u8,
    /// 3 bits reserved; LinkSpeedExtEnabled, 5.
    pub speed_ext_enabled: u8,
}

impl PortInfoWire {
    /// Capability: a subnet manager runs behind it.
    pub const IS_SM: u32 = 1 << 1;
    /// Capability: it sends notices.
    pub const HAS_NOTICE: u32 = 1 << 2;
    /// Capability: it sends traps.
    pub const HAS_TRAP: u32 = 1 << 3;
    /// Capability: service levels are mapped to virtual lanes.
    pub const HAS_SL_MAPPING: u32 = 1 << 6;
    /// Capability: the node has a GUID of the system.
    pub const HAS_SYSTEM_IMAGE_GUID: u32 = 1 << 11;
    /// Capability: extended speeds.
    pub const HAS_EXTENDED_SPEEDS: u32 = 1 << 14;
    /// Capability: ClientReregister is passed on.
    pub const HAS_CLIENT_REREGISTER: u32 = 1 << 25;

    /// The port's LID.
    pub const fn lid(&self) -> Option<Lid> {
        Lid::new(self.lid.get())
    }

    /// The lower bits of its LID that do not count: it answers to 2^lmc of them.
    pub const fn lmc(&self) -> u8 {
        self.m_key_protect_lmc & 0x07
    }

    /// Whether packets to `lid` are for it.
    pub fn has_lid(&self, lid: Lid) -> bool {
        self.lid().is_some_and(|own| own.get() >> self.lmc() == lid.get() >> self.lmc())
    }

    /// Where the master subnet manager is.
    pub const fn sm_lid(&self) -> Option<Lid> {
        Lid::new(self.sm_lid.get())
    }

    /// The service level to reach it by.
    pub const fn sm_sl(&self) -> Sl {
        Sl::from_low_bits(self.mtu_sm_sl)
    }

    /// What it lets pass.
    pub fn state(&self) -> PortState {
        PortState::new(self.speed_supported_state & 0x0f).unwrap_or(PortState::Down)
    }

    /// Says what it lets pass.
    pub fn set_state(&mut self, state: PortState) {
        self.speed_supported_state = self.speed_supported_state & 0xf0 | state.get();
    }

    /// What its hardware does.
    pub fn physical_state(&self) -> PhysicalState {
        PhysicalState::new(self.physical_default >> 4).unwrap_or(PhysicalState::Polling)
    }

    /// Says what its hardware does.
    pub fn set_physical_state(&mut self, state: PhysicalState) {
        self.physical_default = self.physical_default & 0x0f | state.get() << 4;
    }

    /// Code of the MTU in use: 1 to 5 for 256 to 4096 bytes.
    pub const fn mtu(&self) -> u8 {
        self.mtu_sm_sl >> 4
    }

    /// Code of the largest MTU.
    pub const fn mtu_cap(&self) -> u8 {
        self.init_reply_mtu_cap & 0x0f
    }

    /// Protection of the M_Key: 0 to 3.
    pub const fn m_key_protect(&self) -> u8 {
        self.m_key_protect_lmc >> 6
    }

    /// Whether a packet that comes in has to be of a partition of the port's.
    pub const fn enforces_inbound(&self) -> bool {
        self.vls_enforcement & 0x08 != 0
    }

    /// Whether a packet that goes out has to.
    pub const fn enforces_outbound(&self) -> bool {
        self.vls_enforcement & 0x04 != 0
    }

    /// Whether clients are to register anew.
    pub const fn client_reregister(&self) -> bool {
        self.reregister_timeout & 0x80 != 0
    }

    /// How long an answer may be on its way: 4.096 µs times 2 to the power of this.
    pub const fn subnet_timeout(&self) -> u8 {
        self.reregister_timeout & 0x1f
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<PortInfoWire>() == super::DATA_LEN);
    assert!(offset_of!(PortInfoWire, capability_mask) == 20);
    assert!(offset_of!(PortInfoWire, local_port) == 28);
    assert!(offset_of!(PortInfoWire, mtu_sm_sl) == 36);
    assert!(offset_of!(PortInfoWire, m_key_violations) == 44);
    assert!(offset_of!(PortInfoWire, guid_cap) == 50);
    assert!(offset_of!(PortInfoWire, capability_mask_2) == 60);
};
