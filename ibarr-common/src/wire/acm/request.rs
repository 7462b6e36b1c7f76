// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a client of ACM sends to the service.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes as _, IntoBytes as _};

use super::super::ip2gid;
use super::{
    EP_QUERY, Error, HEADER_LEN, HeaderWire, IPV4, IPV6, MAX_RECORDS, MAX_REQUEST_LEN, NAME, Name,
    OPCODE, PATH, PERF_QUERY, RECORD_LEN, RESOLVE, RecordWire, Tid, put,
};
use crate::ib::PathRecord;

/// What a client asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Request {
    /// The client's number for it.
    pub tid: Tid,
    pub ask: Ask,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Ask {
    /// For the path to a destination.
    Resolve(Resolve),
    Counters(Of),
    /// For an endpoint, a port with one of its P_Keys.
    Endpoint {
        /// Its number, from 1.
        index: u8,
        port: u8,
    },
}

/// Whose counters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Of {
    /// Those of the service.
    Service,
    /// Those of an endpoint, by its number.
    Index(u8),
    /// Those of the endpoint with this address.
    Address(Address),
}

/// A question for paths. It has a destination, or a path that says where to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resolve {
    source: Option<Address>,
    destination: Option<Address>,
    path: Option<PathRecord>,
    is_from_memory: bool,
    asks_sa: bool,
}

/// An end of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Address {
    /// A name, which is not resolved yet.
    Name(Name),
    /// An IP address that an interface can have.
    Ip(IpAddr),
}

/// The length of the message that begins with `start`; `None` if its 8th byte is not there yet. Whoever
/// reads a stream has to end the connection after an error, because the next message cannot be found.
///
/// # Errors
/// No request begins like this.
pub fn length(start: &[u8]) -> Result<Option<usize>, Error> {
    let Some(start) = start.first_chunk::<8>() else { return Ok(None) };
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(start);
    let header: HeaderWire = zerocopy::transmute!(bytes);
    if header.version != super::VERSION {
        return Err(Error::Version);
    }
    let length = usize::from(header.length()?);
    let is_legal = (HEADER_LEN..=MAX_REQUEST_LEN).contains(&length);
    if is_legal { Ok(Some(length)) } else { Err(Error::Length) }
}

impl Request {
    /// Reads a whole message.
    ///
    /// # Errors
    /// Anything else than a request. After all but [`Error::Version`], [`Error::Opcode`] and
    /// [`Error::Length`], the client may be told.
    pub fn parse(message: &[u8]) -> Result<Self, Error> {
        let (header, rest) = HeaderWire::split(message)?;
        let records = <[RecordWire]>::ref_from_bytes(rest).map_err(|_| Error::Length)?;
        let [first, second, _] = header.data;
        let ask = match (header.opcode, records) {
            (RESOLVE, [_, ..]) if records.len() <= MAX_RECORDS => {
                Ask::Resolve(Resolve::parse(records)?)
            }
            (PERF_QUERY, []) if second == 0 => Ask::Counters(Of::Service),
            (PERF_QUERY, []) => Ask::Counters(Of::Index(second)),
            (PERF_QUERY, [record]) if record.flags() & SOURCE != 0 => {
                let address = Address::parse(record)?.ok_or(Error::Source)?;
                Ask::Counters(Of::Address(address))
            }
            (PERF_QUERY, [_]) => return Err(Error::Source),
            (EP_QUERY, []) => Ask::Endpoint { index: first, port: second },
            (RESOLVE | PERF_QUERY | EP_QUERY, _) => return Err(Error::Length),
            _ => return Err(Error::Opcode),
        };
        Ok(Self { tid: Tid(header.tid), ask })
    }

    /// Writes the message into `out`, which has room for [`MAX_REQUEST_LEN`] bytes, and returns it.
    pub fn emit<'a>(&self, out: &'a mut [u8; MAX_REQUEST_LEN]) -> &'a [u8] {
        let mut records = [None; 3];
        let (opcode, data) = match self.ask {
            Ask::Resolve(resolve) => {
                records = resolve.records();
                (RESOLVE, [0; 3])
            }
            Ask::Counters(Of::Service) => (PERF_QUERY, [0; 3]),
            Ask::Counters(Of::Index(index)) => (PERF_QUERY, [0, index, 0]),
            Ask::Counters(Of::Address(address)) => {
                records[0] = Some(address.record(SOURCE));
                (PERF_QUERY, [0; 3])
            }
            Ask::Endpoint { index, port } => (EP_QUERY, [index, port, 0]),
        };
        let records = || records.iter().flatten();
        let len = HEADER_LEN + RECORD_LEN * records().count();
        let header = HeaderWire::new(opcode, data, self.tid, len);
        let mut rest = header.and_then(|header| put(out, &header));
        for record in records() {
            rest = rest.and_then(|rest| put(rest, record));
        }
        // Three records always have room.
        out.get(..len).unwrap_or_default()
    }
}

const SOURCE: u32 = 1;
const DESTINATION: u32 = 2;
const FROM_MEMORY: u32 = 1 << 30;
const ASK_SA: u32 = 1 << 31;

impl Resolve {
    /// A question for the paths to an address, from another or from one that the service chooses.
    pub fn to(source: Option<Address>, destination: Address) -> Self {
        let destination = Some(destination);
        Self { source, destination, path: None, is_from_memory: false, asks_sa: false }
    }

    /// A request for a path with the given fields of `path`.
    pub fn along(path: PathRecord) -> Self {
        let path = Some(path);
        Self { source: None, destination: None, path, is_from_memory: false, asks_sa: false }
    }

    /// The same question, which only what is remembered may answer.
    #[must_use]
    pub fn from_memory(self) -> Self {
        Self { is_from_memory: true, ..self }
    }

    /// The same question, which the SA has to answer.
    #[must_use]
    pub fn by_the_sa(self) -> Self {
        Self { asks_sa: true, ..self }
    }

    /// Where the path starts, unless the service chooses that.
    pub fn source(&self) -> Option<Address> {
        self.source
    }

    /// Where the path ends.
    pub fn destination(&self) -> Option<Address> {
        self.destination
    }

    /// Known fields of the path; zeros are unknown.
    pub fn path(&self) -> Option<PathRecord> {
        self.path
    }

    /// Whether the client does not wait for anything that is not remembered.
    pub fn is_from_memory(&self) -> bool {
        self.is_from_memory
    }

    /// Whether the SA itself is to be asked, past everything that is remembered.
    pub fn asks_sa(&self) -> bool {
        self.asks_sa
    }

    fn parse(records: &[RecordWire]) -> Result<Self, Error> {
        let mut this = Self {
            source: None,
            destination: None,
            path: None,
            is_from_memory: false,
            asks_sa: false,
        };
        for record in records {
            let flags = record.flags();
            this.is_from_memory |= flags & FROM_MEMORY != 0;
            this.asks_sa |= flags & ASK_SA != 0;
            let (end, wrong) = match Address::parse(record)? {
                None if this.path.is_none() && record.kind() == PATH => {
                    this.path = Some(PathRecord::from_octets(record.data));
                    continue;
                }
                found if flags & SOURCE != 0 => ((&mut this.source, found), Error::Source),
                found => ((&mut this.destination, found), Error::Destination),
            };
            let (place, Some(found)) = end else { return Err(wrong) };
            let is_known = flags & (SOURCE | DESTINATION);
            if place.is_some() || ![SOURCE, DESTINATION].contains(&is_known) {
                return Err(wrong);
            }
            *place = Some(found);
        }
        // The SA can be asked for a path alone.
        let is_known = this.path.is_some() || this.destination.is_some() && !this.asks_sa;
        if is_known { Ok(this) } else { Err(Error::Destination) }
    }

    /// As librdmacm and `ib_acme` write them: the last one says how to answer.
    fn records(&self) -> [Option<RecordWire>; 3] {
        let mut records = [
            self.source.map(|source| source.record(SOURCE)),
            self.destination.map(|destination| destination.record(DESTINATION)),
            self.path.map(|path| RecordWire::new(0, PATH, path.octets())),
        ];
        let how = if self.is_from_memory { FROM_MEMORY } else { 0 }
            | if self.asks_sa { ASK_SA } else { 0 };
        let by = if self.path.is_some() { 2 } else { 1 };
        if let Some(record) = &mut records[by] {
            record.flags = (record.flags() | how).to_ne_bytes();
        }
        records
    }
}

impl Address {
    /// `None` if the record is no address.
    pub(super) fn parse(record: &RecordWire) -> Result<Option<Self>, Error> {
        let [a, b, c, d, ..] = record.data;
        let ip = match record.kind() {
            NAME => return Name::parse(record.data).map(|name| Some(Self::Name(name))),
            IPV4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            IPV6 => {
                let octets = record.data.first_chunk::<16>();
                IpAddr::V6(Ipv6Addr::from(*octets.ok_or(Error::Length)?))
            }
            _ => return Ok(None),
        };
        if ip2gid::can_be_owned(ip) { Ok(Some(Self::Ip(ip))) } else { Err(Error::Address) }
    }

    pub(super) fn record(&self, flags: u32) -> RecordWire {
        let mut data = [0; 64];
        let kind = match self {
            Self::Name(name) => {
                data = name.0;
                NAME
            }
            Self::Ip(IpAddr::V4(address)) => {
                data.as_mut_bytes()[..4].copy_from_slice(&address.octets());
                IPV4
            }
            Self::Ip(IpAddr::V6(address)) => {
                data[..16].copy_from_slice(&address.octets());
                IPV6
            }
        };
        RecordWire::new(flags, kind, data)
    }
}

const _: () = assert!(OPCODE & super::ACK == 0);
