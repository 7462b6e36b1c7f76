// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Subnet management packets: MADs between subnet managers and the agents of nodes (IBA vol. 1
//! §14.2.1). All fields are big-endian.
//!
//! | bytes | field | rule |
//! |---|---|---|
//! | 0..23 | MAD header | classes 0x01 and 0x81, class version 1 |
//! | 24..31 | M_Key | proof that the sender may manage the agent's port |
//! | 32..33 | DrSLID | directed route: start of the LID-routed part before it; permissive if none |
//! | 34..35 | DrDLID | directed route: end of the LID-routed part after it; permissive if none |
//! | 36..63 | reserved | |
//! | 64..127 | data | one attribute, or a block of it |
//! | 128..191 | initial path | directed route: the exit port of each node, from index 1 |
//! | 192..255 | return path | directed route: the entry port of each node |
//!
//! A directed-route SMP follows the initial path up to its hop count, and its hop pointer counts
//! up; then its answer follows the return path, and the hop pointer counts down (§14.2.2). The
//! highest bit of the status is the direction.

mod attributes;
mod port_info;

pub use attributes::{NodeInfoWire, NodeType, NoticeWire, SmInfoWire, SmState, SwitchInfoWire};
pub use port_info::{PhysicalState, PortInfoWire, PortState};

use zerocopy::network_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use ibarr_common::wire::mad::{self, AttributeId, Class, Error, Method, Status, Tid};

/// Size of the data field in bytes; no attribute is longer.
pub const DATA_LEN: usize = 64;

/// Maximum number of hops of a directed route.
pub const MAX_HOPS: u8 = 63;

const CLASS_VERSION: u8 = 1;

/// An event that an agent or manager reports (trap).
pub const NOTICE: AttributeId = AttributeId::NOTICE;
/// Name of a node: 64 bytes of text.
pub const NODE_DESCRIPTION: AttributeId = AttributeId::new(0x0010);
/// Type and identity of a node: [`NodeInfoWire`].
pub const NODE_INFO: AttributeId = AttributeId::new(0x0011);
/// Capabilities of a switch: [`SwitchInfoWire`].
pub const SWITCH_INFO: AttributeId = AttributeId::new(0x0012);
/// The GUIDs of a port, in blocks of 8.
pub const GUID_INFO: AttributeId = AttributeId::new(0x0014);
/// State and capabilities of a port: [`PortInfoWire`].
pub const PORT_INFO: AttributeId = AttributeId::new(0x0015);
/// The P_Keys of a port, in blocks of 32.
pub const P_KEY_TABLE: AttributeId = AttributeId::new(0x0016);
/// The virtual lane of each service level: 16 nibbles.
pub const SL_TO_VL_TABLE: AttributeId = AttributeId::new(0x0017);
/// The priority of virtual lanes: 32 pairs of lane and weight.
pub const VL_ARBITRATION: AttributeId = AttributeId::new(0x0018);
/// The port that leads to each LID, 255 for none: a byte each, in blocks of 64.
pub const LINEAR_FORWARDING: AttributeId = AttributeId::new(0x0019);
/// The ports that lead to each multicast group: a mask of 16 ports for each LID, in blocks of 32 LIDs.
pub const MULTICAST_FORWARDING: AttributeId = AttributeId::new(0x001b);
/// State of a subnet manager: [`SmInfoWire`].
pub const SM_INFO: AttributeId = AttributeId::new(0x0020);

/// A legal SMP.
#[derive(Clone, Copy, Debug)]
pub struct Smp(SmpWire);

#[expect(missing_docs, reason = "its functions are named for what they return")]
impl Smp {
    /// Parses the payload of a packet to QP 0.
    ///
    /// # Errors
    /// Anything except an SMP of 256 bytes whose hop count is at most [`MAX_HOPS`].
    pub fn parse(mad: &[u8]) -> Result<Self, Error> {
        let wire = SmpWire::read_from_bytes(mad).map_err(|_| Error::Truncated)?;
        let (header, _) = mad::Header::parse(mad)?;
        if !matches!(header.class, Class::SM_LID_ROUTED | Class::SM_DIRECTED_ROUTE) {
            return Err(Error::Class);
        }
        if header.class_version != CLASS_VERSION {
            return Err(Error::ClassVersion);
        }
        let this = Self(wire);
        if this.is_directed()
            && (this.hop_count() > MAX_HOPS || this.hop_pointer() > this.hop_count() + 1)
        {
            return Err(Error::Hops);
        }
        Ok(this)
    }

    /// A request by directed route. `path` lists the exit ports, starting at the sender's. `None`
    /// if it is longer than [`MAX_HOPS`].
    pub fn directed(method: Method, attribute: AttributeId, path: &[u8]) -> Option<Self> {
        let mut this = Self::lid_routed(method, attribute);
        this.0.header.class = Class::SM_DIRECTED_ROUTE.get();
        let hops = u8::try_from(path.len()).ok().filter(|&hops| hops <= MAX_HOPS)?;
        this.0.header.class_specific = u16::from(hops).into();
        this.0.initial_path.get_mut(1..=path.len())?.copy_from_slice(path);
        this.0.dr_slid = u16::MAX.into();
        this.0.dr_dlid = u16::MAX.into();
        Some(this)
    }

    /// A request that is routed by LID.
    pub fn lid_routed(method: Method, attribute: AttributeId) -> Self {
        let mut this = Self(SmpWire::new_zeroed());
        this.0.header = mad::Header {
            class: Class::SM_LID_ROUTED,
            class_version: CLASS_VERSION,
            method,
            status: Status::OK,
            class_specific: 0,
            tid: Tid::new(0),
            attribute,
            modifier: 0,
        }
        .wire();
        this
    }

    /// The payload of the packet.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether it is routed by directed route.
    pub fn is_directed(&self) -> bool {
        self.0.header.class == Class::SM_DIRECTED_ROUTE.get()
    }

    /// Sets whether it is routed by directed route, and changes nothing else.
    pub fn set_directed(&mut self, directed: bool) {
        let class = if directed { Class::SM_DIRECTED_ROUTE } else { Class::SM_LID_ROUTED };
        self.0.header.class = class.get();
    }

    pub fn method(&self) -> Method {
        Method::new(self.0.header.method)
    }

    /// The attribute that the operation is about.
    pub fn attribute(&self) -> AttributeId {
        AttributeId::new(self.0.header.attribute.get())
    }

    /// The instance or block of the attribute.
    pub fn modifier(&self) -> u32 {
        self.0.header.modifier.get()
    }

    /// Selects an instance or block of the attribute.
    pub fn set_modifier(&mut self, modifier: u32) {
        self.0.header.modifier = modifier.into();
    }

    /// The ID that ties an answer to its request.
    pub fn tid(&self) -> Tid {
        Tid::new(self.0.header.tid.get())
    }

    /// Sets the ID that ties an answer to its request.
    pub fn set_tid(&mut self, tid: Tid) {
        self.0.header.tid = tid.get().into();
    }

    pub fn status(&self) -> Status {
        Status::new(self.0.header.status.get() & !DIRECTION)
    }

    /// The M_Key; 0 if there is none.
    pub fn m_key(&self) -> u64 {
        self.0.m_key.get()
    }

    /// The attribute, or a block of it.
    pub fn data(&self) -> &[u8; DATA_LEN] {
        &self.0.data
    }

    /// The attribute, or a block of it, for writing.
    pub fn data_mut(&mut self) -> &mut [u8; DATA_LEN] {
        &mut self.0.data
    }

    /// Removes the directed route. If the SMP is not directed either, it is routed by LID.
    pub fn forget_route(&mut self) {
        self.0.header.status = 0.into();
        self.0.header.class_specific = 0.into();
        self.0.dr_slid = 0.into();
        self.0.dr_dlid = 0.into();
        self.0.initial_path = [0; 64];
        self.0.return_path = [0; 64];
    }

    /// Turns the request into its answer, which returns by the same route.
    pub fn answer(&mut self, status: Status) {
        self.0.header.method = Method::GET_RESP.get();
        let direction = if self.is_directed() { DIRECTION } else { 0 };
        self.0.header.status = (status.get() | direction).into();
    }

    /// Whether it travels along its return path.
    pub fn is_returning(&self) -> bool {
        self.0.header.status.get() & DIRECTION != 0
    }

    /// Number of hops of its directed route.
    pub fn hop_count(&self) -> u8 {
        self.0.header.class_specific.get().to_be_bytes()[1]
    }

    /// Number of hops that it has passed.
    pub fn hop_pointer(&self) -> u8 {
        self.0.header.class_specific.get().to_be_bytes()[0]
    }

    /// Sets the number of hops that it has passed.
    pub fn set_hop_pointer(&mut self, pointer: u8) {
        self.0.header.class_specific = u16::from_be_bytes([pointer, self.hop_count()]).into();
    }

    /// The exit port of the node at `hop`; 0 past the end of the path.
    pub fn exit(&self, hop: u8) -> u8 {
        self.0.initial_path.get(usize::from(hop)).copied().unwrap_or_default()
    }

    /// The entry port of the node at `hop`; 0 past the end of the path.
    pub fn entry(&self, hop: u8) -> u8 {
        self.0.return_path.get(usize::from(hop)).copied().unwrap_or_default()
    }

    /// Records the entry port of the node at `hop`.
    pub fn set_entry(&mut self, hop: u8, port: u8) {
        if let Some(entry) = self.0.return_path.get_mut(usize::from(hop)) {
            *entry = port;
        }
    }

    /// Whether a LID-routed part precedes or follows its directed route.
    pub fn has_lid_routed_part(&self) -> bool {
        let end = if self.is_returning() { self.0.dr_slid } else { self.0.dr_dlid };
        self.is_directed() && end.get() != u16::MAX
    }
}

const DIRECTION: u16 = 0x8000;

/// Layout of an SMP.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct SmpWire {
    pub header: mad::HeaderWire,
    pub m_key: U64,
    /// 0xffff, or the LID where the directed route starts.
    pub dr_slid: U16,
    /// 0xffff, or the LID where the directed route ends.
    pub dr_dlid: U16,
    /// Reserved.
    pub reserved: [u8; 28],
    pub data: [u8; DATA_LEN],
    /// Exit ports, from index 1.
    pub initial_path: [u8; 64],
    /// Entry ports, from index 1.
    pub return_path: [u8; 64],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<SmpWire>() == mad::LEN);
    assert!(offset_of!(SmpWire, m_key) == 24);
    assert!(offset_of!(SmpWire, data) == 64);
    assert!(offset_of!(SmpWire, initial_path) == 128);
    assert!(offset_of!(SmpWire, return_path) == 192);
};
