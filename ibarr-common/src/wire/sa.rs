// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Subnet administration: questions to the SA, and its answers (IBA vol. 1 §15.2). A MAD of class
//! 3, version 2. All fields are big-endian.
//!
//! | bytes | field | rule |
//! |---|---|---|
//! | 0..23 | header | [`mad`]; methods Get and GetResp, GetTable and GetTableResp |
//! | 24..35 | RMPP | [`rmpp`](super::rmpp) |
//! | 36..43 | SM_Key | 0: ibarr has none |
//! | 44..45 | AttributeOffset | 0 in a question; in a table, 8 or only its first record counts |
//! | 46..47 | reserved | 0 when sent, ignored when read |
//! | 48..55 | ComponentMask | bits of the fields that are valid in the attribute |
//! | 56..255 | the attribute | [`path_record`](super::path_record), [`class_port_info`](super::class_port_info) |
//!
//! A table has one record after the other, to the end of its last MAD.

use core::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::class_port_info::{ClassPortInfo, ClassPortInfoWire};
use super::mad::{self, AttributeId, Error, Header, Mad, Method, Status, Tid};
use super::path_query::numb_path;
pub use super::path_query::{PathCount, PathQuery, PathQuestion};
use super::path_record::Fields;
use super::sa_header::{HeaderWire, header, parse};
use crate::ib::PathRecord;

/// A question to the SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Question {
    /// Asks for a path between two GIDs.
    Path(PathQuestion),
    /// Asks for at most so many paths between two GIDs.
    Paths(PathQuestion, PathCount),
    /// Asks for a path by other fields.
    Known(PathQuery),
    /// Asks for the SA's capabilities.
    ClassPortInfo,
}

/// A question with its transaction ID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Request {
    /// The answer has the same TID.
    pub tid: Tid,
    pub question: Question,
}

impl Request {
    /// Parses a MAD to the SA.
    ///
    /// # Errors
    /// Anything except a [`Question`]; one for a table that does not say how long it may be. Bits of
    /// the mask that name no field are ignored.
    pub fn parse(mad: &[u8]) -> Result<Self, Error> {
        let (header, wire, attribute) = parse(mad)?;
        let mask = wire.component_mask.get();
        let question = match (header.method, header.attribute) {
            (Method::GET, AttributeId::PATH_RECORD) => {
                let query = PathQuery::new(mask, first(attribute)?);
                match PathQuestion::try_from(query) {
                    Err(Error::Components) => Question::Known(query),
                    question => Question::Path(question?),
                }
            }
            (Method::GET_TABLE, AttributeId::PATH_RECORD) => {
                let record = first(attribute)?;
                let count = numb_path(mask, record).ok_or(Error::Components)?;
                Question::Paths(PathQuery::new(mask, record).try_into()?, count)
            }
            (Method::GET, AttributeId::CLASS_PORT_INFO) => Question::ClassPortInfo,
            (Method::GET | Method::SET | Method::GET_TABLE, _) => return Err(Error::Attribute),
            _ => return Err(Error::Method),
        };
        Ok(Self { tid: header.tid, question })
    }

    /// The request as a MAD.
    pub fn emit(&self) -> Mad {
        let (method, attribute) = self.question.subject();
        let header = header(method, Status::OK, self.tid, attribute);
        match &self.question {
            Question::Path(path) => emit_path(header, &PathQuery::from(*path), PathCount::ONE),
            Question::Paths(path, count) => emit_path(header, &PathQuery::from(*path), *count),
            Question::Known(path) => emit_path(header, path, PathCount::ONE),
            Question::ClassPortInfo => Mad::new(&[HeaderWire::new(header, 0, 0).as_bytes()]),
        }
    }

    /// The response to this request. An answer to another kind of question cannot be built.
    pub fn answer(&self, answer: Answer) -> Response {
        let (method, attribute) = self.question.subject();
        Response { tid: self.tid, is_table: method == Method::GET_TABLE, attribute, answer }
    }
}

impl Question {
    /// Whether it is for paths between two GIDs, whose answer can be remembered.
    pub fn is_between_gids(&self) -> bool {
        matches!(self, Self::Path(_) | Self::Paths(..))
    }

    /// Whether the answer is a table, which may be longer than a MAD.
    pub fn is_for_table(&self) -> bool {
        matches!(self, Self::Paths(..))
    }

    fn subject(&self) -> (Method, AttributeId) {
        match self {
            Self::Path(_) | Self::Known(_) => (Method::GET, AttributeId::PATH_RECORD),
            Self::Paths(..) => (Method::GET_TABLE, AttributeId::PATH_RECORD),
            Self::ClassPortInfo => (Method::GET, AttributeId::CLASS_PORT_INFO),
        }
    }
}

/// The record at the begin of an attribute.
fn first(attribute: &[u8]) -> Result<PathRecord, Error> {
    let octets = attribute.first_chunk().ok_or(Error::Truncated)?;
    Ok(PathRecord::from_octets(*octets))
}

fn emit_path(header: Header, query: &PathQuery, count: PathCount) -> Mad {
    let (mask, wire) = query.emit(count);
    Mad::new(&[HeaderWire::new(header, 0, mask).as_bytes(), wire.as_bytes()])
}

/// An answer with its transaction ID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Response {
    /// The TID of the question.
    pub tid: Tid,
    is_table: bool,
    attribute: AttributeId,
    pub answer: Answer,
}

/// The result of a question.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Answer {
    /// A path, or the first one of a table.
    Path(PathRecord),
    ClassPortInfo(ClassPortInfo),
    /// The SA refuses to answer.
    Refused(Refusal),
}

impl Response {
    /// Parses a MAD from the SA. Bytes after its attribute are ignored, and may be missing. A table
    /// without a record says that there is none.
    ///
    /// # Errors
    /// Anything except an answer to a [`Question`]; a path whose ends are not ports.
    pub fn parse(mad: &[u8]) -> Result<Self, Error> {
        let (header, _, attribute) = parse(mad)?;
        let is_table = match header.method {
            Method::GET_RESP => false,
            Method::GET_TABLE_RESP if header.attribute == AttributeId::PATH_RECORD => true,
            Method::GET_TABLE_RESP => return Err(Error::Attribute),
            _ => return Err(Error::Method),
        };
        let answer = match (Refusal::new(header.status), header.attribute) {
            (Some(refusal), AttributeId::PATH_RECORD | AttributeId::CLASS_PORT_INFO) => {
                Answer::Refused(refusal)
            }
            (None, AttributeId::PATH_RECORD) if is_table && attribute.is_empty() => {
                Answer::Refused(Refusal::NO_RECORDS)
            }
            (None, AttributeId::PATH_RECORD) => {
                let record = first(attribute)?;
                Fields::parse(&record)?;
                Answer::Path(record)
            }
            (None, AttributeId::CLASS_PORT_INFO) => {
                let (wire, _) =
                    ClassPortInfoWire::read_from_prefix(attribute).map_err(|_| Error::Truncated)?;
                Answer::ClassPortInfo(wire.into())
            }
            _ => return Err(Error::Attribute),
        };
        Ok(Self { tid: header.tid, is_table, attribute: header.attribute, answer })
    }

    /// Whether its subject is that of `question`.
    pub fn is_for(&self, question: &Question) -> bool {
        let (method, attribute) = question.subject();
        self.is_table == (method == Method::GET_TABLE) && self.attribute == attribute
    }

    /// The response as a MAD, with these records after the first one: no more than the MAD has room
    /// for, which is two.
    pub fn emit_table(&self, others: &[PathRecord]) -> Mad {
        let mut octets = *self.emit().octets();
        let (_, room) = octets.split_at_mut(size_of::<HeaderWire>() + PathRecord::LEN);
        for (to, record) in room.chunks_exact_mut(PathRecord::LEN).zip(others) {
            to.copy_from_slice(&record.octets());
        }
        Mad::from_octets(octets)
    }

    /// The response as a MAD.
    pub fn emit(&self) -> Mad {
        let status = match self.answer {
            Answer::Refused(refusal) => refusal.status(),
            Answer::Path(_) | Answer::ClassPortInfo(_) => Status::OK,
        };
        let method = if self.is_table { Method::GET_TABLE_RESP } else { Method::GET_RESP };
        let header = header(method, status, self.tid, self.attribute);
        let wire = |len: u16| HeaderWire::new(header, len / 8, 0);
        match &self.answer {
            Answer::Path(record) => Mad::new(&[wire(64).as_bytes(), &record.octets()]),
            Answer::ClassPortInfo(info) => Mad::new(&[wire(72).as_bytes(), info.wire().as_bytes()]),
            Answer::Refused(_) => Mad::new(&[wire(0).as_bytes()]),
        }
    }
}

/// The usable records of a table after its first one, which [`Response::parse`] gives.
pub fn other_records(mad: &[u8]) -> impl Iterator<Item = PathRecord> {
    let table = parse(mad).ok().filter(|(_, wire, _)| wire.attribute_offset.get() == 8);
    let records = table.map_or(&[][..], |(.., table)| table).as_chunks().0.iter().skip(1);
    let records = records.map(|octets| PathRecord::from_octets(*octets));
    records.filter(|record| Fields::parse(record).is_ok())
}

/// Reason why the SA refuses (IBA vol. 1 §13.4.7, §15.2.2): any status but 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Refusal(Status);

impl Refusal {
    /// The SA is busy: try again later.
    pub const BUSY: Self = Self(Status::BUSY);
    /// Another manager has to be asked.
    pub const REDIRECT: Self = Self(Status::REDIRECT);
    /// The SA lacks resources for the request.
    pub const NO_RESOURCES: Self = Self(Status::new(0x0100));
    /// The request is invalid.
    pub const REQUEST_INVALID: Self = Self(Status::new(0x0200));
    /// No record matches.
    pub const NO_RECORDS: Self = Self(Status::new(0x0300));
    /// Several records match a question for one.
    pub const TOO_MANY_RECORDS: Self = Self(Status::new(0x0400));
    /// The SA does not know the GID in the question.
    pub const INVALID_GID: Self = Self(Status::new(0x0500));
    /// The SA denies the request.
    pub const DENIED: Self = Self(Status::new(0x0700));

    /// `None` if `status` is success.
    pub fn new(status: Status) -> Option<Self> {
        (status != Status::OK).then_some(Self(status))
    }

    /// The status field of the MAD.
    pub const fn status(self) -> Status {
        self.0
    }

    /// Whether the same question may get an answer later.
    pub fn is_temporary(self) -> bool {
        self.0.is_busy() || self.0.class_code() == Self::NO_RESOURCES.0.class_code()
    }

    /// Whether the SA knows no such path.
    pub fn is_final(self) -> bool {
        let codes = [Self::NO_RECORDS, Self::INVALID_GID].map(|refusal| refusal.0.class_code());
        !self.is_temporary() && codes.contains(&self.0.class_code())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            status if status.is_busy() => "busy",
            status if status.is_redirect() => "redirected",
            status => match status.class_code() {
                0x01 => "no resources",
                0x02 => "request invalid",
                0x03 => "no records",
                0x04 => "too many records",
                0x05 => "invalid GID",
                0x06 => "insufficient components",
                0x07 => "request denied",
                _ => "refused",
            },
        };
        write!(f, "{words} (status {})", self.0)
    }
}

const _: () = {
    assert!(size_of::<HeaderWire>() + size_of::<ClassPortInfoWire>() <= mad::LEN);
};
