// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The header of the MADs of subnet administration ([`sa`](super::sa)).

use zerocopy::network_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::{self, AttributeId, Class, Error, Header, Method, Status, Tid};
use super::rmpp::RmppWire;

/// Layout of the first 56 bytes of a MAD of this class.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields have the names of the specification")]
pub struct HeaderWire {
    pub mad: mad::HeaderWire,
    pub rmpp: RmppWire,
    /// SM_Key: proof that the sender is trusted.
    pub sm_key: U64,
    /// Size of an attribute in an answer, in units of 8 bytes.
    pub attribute_offset: U16,
    /// 0 when sent, ignored when read.
    pub reserved: [u8; 2],
    /// Bits of the fields that are valid in the attribute.
    pub component_mask: U64,
}

impl HeaderWire {
    pub(super) fn new(header: Header, attribute_offset: u16, component_mask: u64) -> Self {
        Self {
            mad: header.wire(),
            rmpp: RmppWire::default(),
            sm_key: 0.into(),
            attribute_offset: attribute_offset.into(),
            reserved: [0; 2],
            component_mask: component_mask.into(),
        }
    }
}

pub(super) fn header(method: Method, status: Status, tid: Tid, attribute: AttributeId) -> Header {
    Header {
        class: Class::SUBNET_ADM,
        class_version: CLASS_VERSION,
        method,
        status,
        class_specific: 0,
        tid,
        attribute,
        modifier: 0,
    }
}

pub(super) fn parse(mad: &[u8]) -> Result<(Header, HeaderWire, &[u8]), Error> {
    let (header, _) = Header::parse(mad)?;
    if header.class != Class::SUBNET_ADM {
        return Err(Error::Class);
    }
    if header.class_version != CLASS_VERSION {
        return Err(Error::ClassVersion);
    }
    let (wire, rest) = HeaderWire::read_from_prefix(mad).map_err(|_| Error::Truncated)?;
    Ok((header, wire, rest))
}

const CLASS_VERSION: u8 = 2;

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<HeaderWire>() == 56);
    assert!(offset_of!(HeaderWire, sm_key) == 36);
    assert!(offset_of!(HeaderWire, component_mask) == 48);
};
