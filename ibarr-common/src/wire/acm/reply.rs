// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the service sends to a client of ACM.

use core::fmt;

use zerocopy::network_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::ls::{Path, PathFlags, Paths};
use super::request::{Address, Ask, Request};
use super::{
    ACK, EP_QUERY, Error, HEADER_LEN, HeaderWire, Name, OPCODE, PATH, PERF_QUERY, RECORD_LEN,
    RESOLVE, RecordWire, Tid, put,
};
use crate::ib::{Guid, PKey, PathRecord};

/// What the service answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Reply<'a> {
    Refused(Status),
    /// To [`Ask::Resolve`]: at least one path, and the source if the service has chosen it.
    Paths(Paths, Option<Address>),
    Counters(Counters),
    /// To [`Ask::Endpoint`]: the endpoint and its addresses.
    Endpoint(Endpoint, Names<'a>),
}

/// Why there is no answer: `ACM_STATUS_…` of `acm.h`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Status {
    /// `ENOMEM`.
    NoMemory = 1,
    /// `EINVAL`: the request makes no sense, or there is no such endpoint.
    Invalid = 2,
    /// `ENODATA`: nothing is known, or remembered.
    NoData = 3,
    /// `ENOTCONN`: the port is down.
    NotConnected = 5,
    /// `ETIMEDOUT`: the peer or the SA does not answer.
    TimedOut = 6,
    /// `ESRCADDR`: the source is not an address of this node.
    SourceAddress = 7,
    /// `ESRCTYPE`: the source is no address.
    SourceType = 8,
    /// `EDESTADDR`: nobody has the destination.
    DestinationAddress = 9,
    /// `EDESTTYPE`: the destination is no address.
    DestinationType = 10,
}

/// Counters of the service or of an endpoint, since its start.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Counters {
    /// Requests that failed.
    pub errors: U64,
    /// Requests for paths.
    pub resolved: U64,
    /// Requests for which there was nothing.
    pub no_data: U64,
    /// Questions to peers for an address.
    pub address_queries: U64,
    /// Addresses from memory.
    pub address_cache: U64,
    /// Questions to the SA.
    pub route_queries: U64,
    /// Paths from memory.
    pub route_cache: U64,
}

/// A port with one of its P_Keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Endpoint {
    /// GUID of the device.
    pub device: Guid,
    pub port: u8,
    /// How many ports the device has.
    pub ports: u8,
    pub pkey: PKey,
    /// Who serves it: `ibacmp` in ibacm.
    pub provider: Name,
}

/// The addresses of an endpoint, as text.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Names<'a>(&'a [[u8; Name::LEN]]);

impl<'a> Names<'a> {
    /// As many as a message can have.
    pub const MAX: usize = (u16::MAX as usize - HEADER_LEN - size_of::<EndpointWire>()) / Name::LEN;

    /// `None` for more than [`Names::MAX`].
    pub fn new(names: &'a [Name]) -> Option<Self> {
        let names = <[_]>::ref_from_bytes(names.as_bytes()).ok()?;
        (names.len() <= Self::MAX).then_some(Self(names))
    }

    fn parse(bytes: &'a [u8], count: u16) -> Result<Self, Error> {
        let names = <[[u8; Name::LEN]]>::ref_from_bytes(bytes).map_err(|_| Error::Length)?;
        if usize::from(count) != names.len() {
            return Err(Error::Length);
        }
        names.iter().try_for_each(|name| Name::parse(*name).map(drop))?;
        Ok(Self(names))
    }

    /// The addresses.
    pub fn iter(&self) -> impl Iterator<Item = Name> + 'a {
        self.0.iter().filter_map(|name| Name::parse(*name).ok())
    }
}

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The refusal of a message that is no request; `None` if it has no whole header, or one of another version or
/// opcode.
pub fn refusal(message: &[u8], status: Status) -> Option<[u8; HEADER_LEN]> {
    let (HeaderWire { opcode, tid, .. }, _) = HeaderWire::split(message).ok()?;
    let opcode = opcode & OPCODE;
    let mut header = HeaderWire::new(opcode, [0; 3], Tid(tid), HEADER_LEN)?;
    if opcode != RESOLVE {
        header.opcode |= ACK;
    }
    header.status = status as u8;
    Some(zerocopy::transmute!(header))
}

impl<'a> Reply<'a> {
    /// Writes the reply to `request` into `out`, and returns it. `None` if there is no room, or for a reply
    /// of another kind than the request.
    pub fn emit<'b>(&self, request: &Request, out: &'b mut [u8]) -> Option<&'b [u8]> {
        let len = self.length();
        let (opcode, data) = match (request.ask, self) {
            (Ask::Resolve(_), Self::Refused(_) | Self::Paths(..)) => (RESOLVE, [0; 3]),
            (Ask::Counters(_), Self::Refused(_)) => (PERF_QUERY, [0; 3]),
            (Ask::Counters(_), Self::Counters(_)) => (PERF_QUERY, [COUNTERS, 0, 0]),
            (Ask::Endpoint { index, .. }, Self::Refused(_) | Self::Endpoint(..)) => {
                (EP_QUERY, [index, 0, 0])
            }
            _ => return None,
        };
        let mut header = HeaderWire::new(opcode, data, request.tid, len)?;
        if opcode != RESOLVE {
            header.opcode |= ACK;
        }
        if let Self::Refused(status) = self {
            header.status = *status as u8;
        }
        self.emit_body(put(out, &header)?)?;
        out.get(..len)
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        let body = match self {
            Self::Refused(_) => 0,
            Self::Paths(paths, source) => {
                RECORD_LEN * (paths.as_slice().len() + usize::from(source.is_some()))
            }
            Self::Counters(_) => size_of::<Counters>(),
            Self::Endpoint(_, names) => size_of::<EndpointWire>() + size_of_val(names.0),
        };
        HEADER_LEN + body
    }

    fn emit_body(&self, mut out: &mut [u8]) -> Option<()> {
        match self {
            Self::Refused(_) => {}
            Self::Paths(paths, source) => {
                for Path { flags, record } in paths.as_slice() {
                    out = put(out, &RecordWire::new(flags.bits(), PATH, record.octets()))?;
                }
                if let Some(source) = source {
                    put(out, &source.record(SOURCE))?;
                }
            }
            Self::Counters(counters) => drop(put(out, counters)?),
            Self::Endpoint(endpoint, names) => {
                put(put(out, &EndpointWire::new(endpoint, names.0.len())?)?, names.0)?;
            }
        }
        Some(())
    }

    /// Reads a whole message: a reply, and the number of its request.
    ///
    /// # Errors
    /// Anything else than a reply.
    pub fn parse(message: &'a [u8]) -> Result<(Tid, Self), Error> {
        let (header, body) = HeaderWire::split(message)?;
        let reply = match (header.status, header.opcode & OPCODE) {
            (0, RESOLVE) => Self::parse_paths(body)?,
            (0, PERF_QUERY) if header.data[0] == COUNTERS => {
                Self::Counters(Counters::read_from_bytes(body).map_err(|_| Error::Length)?)
            }
            (0, PERF_QUERY) => return Err(Error::Length),
            (0, _) => {
                let (wire, names) =
                    EndpointWire::read_from_prefix(body).map_err(|_| Error::Length)?;
                Self::Endpoint(wire.parse()?, Names::parse(names, wire.names.get())?)
            }
            (status, _) if body.is_empty() => Self::Refused(Status::parse(status)?),
            _ => return Err(Error::Length),
        };
        Ok((Tid(header.tid), reply))
    }

    fn parse_paths(body: &[u8]) -> Result<Self, Error> {
        let records = <[RecordWire]>::ref_from_bytes(body).map_err(|_| Error::Length)?;
        let count = records.iter().take_while(|record| record.kind() == PATH).count();
        let (paths, rest) = records.split_at_checked(count).ok_or(Error::Record)?;
        let source = match rest {
            [] => None,
            [source] if source.flags() == SOURCE => {
                Some(Address::parse(source)?.ok_or(Error::Record)?)
            }
            _ => return Err(Error::Record),
        };
        let path = |record: &RecordWire| Path {
            flags: PathFlags::from_bits(record.flags()),
            record: PathRecord::from_octets(record.data),
        };
        let found = match paths {
            [only] => Paths::new(&[path(only)]),
            [first, second] => Paths::new(&[path(first), path(second)]),
            [first, second, third] => Paths::new(&[path(first), path(second), path(third)]),
            _ => None,
        };
        Ok(Self::Paths(found.ok_or(Error::Record)?, source))
    }
}

const SOURCE: u32 = 1;

/// How many counters a reply has.
const COUNTERS: u8 = 7;

impl Status {
    const ALL: [Self; 9] = [
        Self::NoMemory,
        Self::Invalid,
        Self::NoData,
        Self::NotConnected,
        Self::TimedOut,
        Self::SourceAddress,
        Self::SourceType,
        Self::DestinationAddress,
        Self::DestinationType,
    ];

    fn parse(status: u8) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|known| *known as u8 == status).ok_or(Error::Status)
    }
}

/// Layout of an endpoint, before its addresses.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct EndpointWire {
    device: U64,
    port: u8,
    ports: u8,
    reserved: [u8; 2],
    pkey: U16,
    names: U16,
    provider: [u8; 64],
}

impl EndpointWire {
    fn new(endpoint: &Endpoint, names: usize) -> Option<Self> {
        Some(Self {
            device: endpoint.device.get().into(),
            port: endpoint.port,
            ports: endpoint.ports,
            reserved: [0; 2],
            pkey: endpoint.pkey.get().into(),
            names: u16::try_from(names).ok()?.into(),
            provider: endpoint.provider.0,
        })
    }

    fn parse(&self) -> Result<Endpoint, Error> {
        Ok(Endpoint {
            device: Guid::new(self.device.get()),
            port: self.port,
            ports: self.ports,
            pkey: PKey::new(self.pkey.get()).ok_or(Error::Record)?,
            provider: Name::parse(self.provider)?,
        })
    }
}

const _: () = assert!(size_of::<Counters>() == COUNTERS as usize * 8);
const _: () = assert!(size_of::<EndpointWire>() == 80 && RECORD_LEN == 72 && HEADER_LEN == 16);
