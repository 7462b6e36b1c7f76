// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! PortInfo: the state of a port and its configuration by the subnet manager.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use ibarr_common::ib::{Lid, Sl};

/// The logical state of a port: the packets that it passes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PortState {
    /// No packets: there is no link.
    Down,
    /// Only subnet management packets.
    Initialize,
    /// Subnet management packets, and received data packets.
    Armed,
    /// All packets.
    Active,
}

impl PortState {
    /// `None` for 0, which asks for no change, and for undefined numbers.
    pub const fn new(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Down,
            2 => Self::Initialize,
            3 => Self::Armed,
            4 => Self::Active,
            _ => return None,
        })
    }

    /// The number in PortInfo.
    pub const fn get(self) -> u8 {
        match self {
            Self::Down => 1,
            Self::Initialize => 2,
            Self::Armed => 3,
            Self::Active => 4,
        }
    }
}

/// The physical state of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum PhysicalState {
    /// Inactive until software enables it.
    Sleep,
    /// Searches for a link partner.
    Polling,
    Disabled,
    LinkUp,
}

impl PhysicalState {
    /// `None` for 0, which asks for no change, and for states that software cannot request.
    pub const fn new(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            5 => Self::LinkUp,
            _ => return None,
        })
    }

    /// The number in PortInfo.
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
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct PortInfoWire {
    /// The key that a manager must show to change anything; 0 for none.
    pub m_key: U64,
    /// Upper half of the port's GIDs.
    pub gid_prefix: U64,
    /// LID of the port; 0 if it has none yet.
    pub lid: U16,
    /// LID of the master subnet manager; 0 if unknown.
    pub sm_lid: U16,
    /// Capabilities: the constants below.
    pub capability_mask: U32,
    /// Diagnostic code of the vendor.
    pub diag_code: U16,
    /// In seconds.
    pub m_key_lease: U16,
    /// The port that the SMP arrived on.
    pub local_port: u8,
    /// Enabled link widths: bits for 1, 4, 8, 12 and 2 lanes.
    pub width_enabled: u8,
    pub width_supported: u8,
    /// The link width in use.
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
    /// Limit of high-priority traffic in virtual lane arbitration.
    pub vl_high_limit: u8,
    /// Size of the high-priority arbitration table.
    pub vl_arb_high_cap: u8,
    /// Size of the low-priority arbitration table.
    pub vl_arb_low_cap: u8,
    /// InitTypeReply, 4 bits; MTUCap, 4.
    pub init_reply_mtu_cap: u8,
    /// VLStallCount, 3 bits; HOQLife, 5.
    pub stall_life: u8,
    /// OperationalVLs, 4 bits; PartitionEnforcementInbound, -Outbound, FilterRawInbound,
    /// -Outbound, 1 each.
    pub vls_enforcement: u8,
    /// Number of SMPs with a wrong M_Key.
    pub m_key_violations: U16,
    /// Number of packets with a P_Key that the port does not have.
    pub p_key_violations: U16,
    /// Number of packets with a wrong Q_Key.
    pub q_key_violations: U16,
    /// Size of the GUID table.
    pub guid_cap: u8,
    /// ClientReregister, 1 bit; 2 reserved; SubnetTimeOut, 5.
    pub reregister_timeout: u8,
    /// 3 bits reserved; RespTimeValue, 5.
    pub response_time: u8,
    /// LocalPhyErrors, 4 bits; OverrunErrors, 4.
    pub error_thresholds: u8,
    /// Hint for flow control.
    pub max_credit_hint: U16,
    /// 1 bit reserved; LinkSpeedExtActive2, 2 bits; LinkSpeedExtSupported2, 2; LinkSpeedExtEnabled2, 3.
    pub speed_ext_2: u8,
    /// LinkRoundTripLatency, a number of 24 bits.
    pub round_trip: [u8; 3],
    pub capability_mask_2: U16,
    /// LinkSpeedExtActive, 4 bits; LinkSpeedExtSupported, 4.
    pub speed_ext_active: u8,
    /// 3 bits reserved; LinkSpeedExtEnabled, 5.
    pub speed_ext_enabled: u8,
}

#[expect(missing_docs, reason = "its functions are named for what they return")]
impl PortInfoWire {
    /// Capability: a subnet manager runs on this port.
    pub const IS_SM: u32 = 1 << 1;
    /// Capability: the port sends notices.
    pub const HAS_NOTICE: u32 = 1 << 2;
    /// Capability: the port sends traps.
    pub const HAS_TRAP: u32 = 1 << 3;
    /// Capability: service levels are mapped to virtual lanes.
    pub const HAS_SL_MAPPING: u32 = 1 << 6;
    /// Capability: the node has a system image GUID.
    pub const HAS_SYSTEM_IMAGE_GUID: u32 = 1 << 11;
    /// Capability: the port may be faster than QDR; LinkSpeedExt… are valid.
    pub const HAS_EXTENDED_SPEEDS: u32 = 1 << 14;
    /// Capability: CapabilityMask2 is valid.
    pub const HAS_CAPABILITY_MASK_2: u32 = 1 << 15;
    /// Bit of CapabilityMask2: the port may be faster than NDR; LinkSpeedExt…2 are valid.
    pub const HAS_EXTENDED_SPEEDS_2: u16 = 1 << 11;
    /// Capability: the port passes ClientReregister on to clients.
    pub const HAS_CLIENT_REREGISTER: u32 = 1 << 25;

    /// The LID of the port, if it has one.
    pub const fn lid(&self) -> Option<Lid> {
        Lid::new(self.lid.get())
    }

    /// Number of low bits of the LID that are ignored: the port has 2^lmc LIDs.
    pub const fn lmc(&self) -> u8 {
        self.m_key_protect_lmc & 0x07
    }

    /// Whether `lid` is one of the port's LIDs.
    pub fn has_lid(&self, lid: Lid) -> bool {
        self.lid().is_some_and(|own| own.get() >> self.lmc() == lid.get() >> self.lmc())
    }

    /// The LID of the master subnet manager, if known.
    pub const fn sm_lid(&self) -> Option<Lid> {
        Lid::new(self.sm_lid.get())
    }

    /// The service level of packets to the subnet manager.
    pub const fn sm_sl(&self) -> Sl {
        Sl::from_low_bits(self.mtu_sm_sl)
    }

    pub fn state(&self) -> PortState {
        PortState::new(self.speed_supported_state & 0x0f).unwrap_or(PortState::Down)
    }

    /// Sets the logical state.
    pub fn set_state(&mut self, state: PortState) {
        self.speed_supported_state = self.speed_supported_state & 0xf0 | state.get();
    }

    pub fn physical_state(&self) -> PhysicalState {
        PhysicalState::new(self.physical_default >> 4).unwrap_or(PhysicalState::Polling)
    }

    /// Sets the physical state.
    pub fn set_physical_state(&mut self, state: PhysicalState) {
        self.physical_default = self.physical_default & 0x0f | state.get() << 4;
    }

    /// The speed in use, with the bits of Linux's `enum ib_port_speed`.
    pub fn speed(&self) -> u16 {
        match (self.speed_ext_2 >> 5 & 0x03, self.speed_ext_active >> 4) {
            (0, 0) => (self.speed_active_enabled >> 4).into(),
            (0, extended) => u16::from(extended) << 4,
            (fastest, _) => u16::from(fastest) << 8,
        }
    }

    /// Code of the MTU in use: 1 to 5 for 256 to 4096 bytes.
    pub const fn mtu(&self) -> u8 {
        self.mtu_sm_sl >> 4
    }

    /// Code of the largest supported MTU.
    pub const fn mtu_cap(&self) -> u8 {
        self.init_reply_mtu_cap & 0x0f
    }

    /// Protection level of the M_Key: 0 to 3.
    pub const fn m_key_protect(&self) -> u8 {
        self.m_key_protect_lmc >> 6
    }

    /// Whether received packets must have a P_Key of the port.
    pub const fn enforces_inbound(&self) -> bool {
        self.vls_enforcement & 0x08 != 0
    }

    /// Whether sent packets must have a P_Key of the port.
    pub const fn enforces_outbound(&self) -> bool {
        self.vls_enforcement & 0x04 != 0
    }

    /// Whether clients have to register again.
    pub const fn client_reregister(&self) -> bool {
        self.reregister_timeout & 0x80 != 0
    }

    /// Maximum time of an answer on its way: 4.096 µs times 2 to the power of this.
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
    assert!(offset_of!(PortInfoWire, speed_ext_2) == 56);
    assert!(offset_of!(PortInfoWire, capability_mask_2) == 60);
};
