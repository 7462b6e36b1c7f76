// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the daemon sends to the kernel.

use core::fmt;
use core::time::Duration;

use zerocopy::native_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::netlink::{FLAG_ACK, FLAG_ERROR, FLAG_REQUEST, attributes};
use super::{AttributeWire, Emitted, Error, HeaderWire, Kind, MAX_LEN, Message, PortId, Seq, set};
use super::{DGID, PATH_RECORD, TIMEOUT};
use crate::ib::{Gid, PathRecord};

/// An answer to a request of the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// For [`super::Request::ResolveIp`]: the GID of the address. There is no negative answer.
    Gid(Gid),
    /// For [`super::Request::ResolvePath`]: these paths lead to the GID. If there is none, the
    /// kernel fails the request (-EIO) and does not ask the SA.
    Paths(Paths),
    /// For [`super::Request::ResolvePath`]: ibarr cannot answer. The kernel asks the SA itself, at
    /// once.
    Error,
}

impl Answer {
    /// Reads a message to the kernel. A message that the kernel would ignore or misread is an error
    /// here, though the kernel reports none.
    ///
    /// # Errors
    /// Anything except an answer. Unknown attributes are skipped.
    pub fn parse(message: &Message<'_>) -> Result<Self, Error> {
        if message.is_request() {
            return Err(Error::Kind);
        }
        let has_error = message.flags & FLAG_ERROR != 0;
        match message.kind {
            Kind::ResolveIp if !has_error => Self::parse_gid(message.payload),
            Kind::ResolvePath if has_error => Ok(Self::Error),
            Kind::ResolvePath => Paths::parse(message.payload).map(Self::Paths),
            _ => Err(Error::Kind),
        }
    }

    fn parse_gid(payload: &[u8]) -> Result<Self, Error> {
        let mut gid = None;
        for attribute in attributes(payload) {
            let attribute = attribute?;
            // The type is compared unmasked: the kernel does not find the attribute if another bit
            // is set.
            if attribute.kind == DGID {
                set(&mut gid, Gid::new(attribute.value()?).ok_or(Error::Gid)?)?;
            }
        }
        gid.map(Self::Gid).ok_or(Error::AttributeMissing)
    }

    /// The message that answers the request `seq`. `port_id` is our socket's and only helps people
    /// who trace messages; the kernel ignores it.
    pub fn emit(&self, seq: Seq, port_id: PortId) -> Emitted {
        let new = |kind, flags| Emitted::new(kind, flags, seq, port_id);
        match self {
            Self::Gid(gid) => {
                let mut to = new(Kind::ResolveIp, 0);
                to.push_attribute(DGID, &gid.octets());
                to
            }
            Self::Paths(paths) => {
                let mut to = new(Kind::ResolvePath, 0);
                for path in paths.as_slice() {
                    to.push_attribute(PATH_RECORD, &path.wire());
                }
                to
            }
            Self::Error => new(Kind::ResolvePath, FLAG_ERROR),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gid(gid) => write!(f, "ls answer: {gid}"),
            Self::Paths(paths) => match paths.as_slice().len() {
                1 => f.write_str("ls answer: 1 path"),
                len => write!(f, "ls answer: {len} paths"),
            },
            Self::Error => f.write_str("ls answer: ask the SA"),
        }
    }
}

/// The paths in an answer, at most [`Paths::MAX`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Paths {
    paths: [Path; Self::MAX],
    len: usize,
}

impl Paths {
    /// `RDMA_PRIMARY_PATH_MAX_REC_NUM`: one for GMPs, one inbound, one outbound.
    pub const MAX: usize = 3;

    /// No path: the kernel fails the request.
    pub const NONE: Self = Self { paths: [Path::UNUSED; Self::MAX], len: 0 };

    /// `None` for more than [`Paths::MAX`] paths.
    pub fn new(paths: &[Path]) -> Option<Self> {
        let mut this = Self { len: paths.len(), ..Self::NONE };
        this.paths.get_mut(..paths.len())?.copy_from_slice(paths);
        Some(this)
    }

    /// In the order in which the kernel reads them.
    pub fn as_slice(&self) -> &[Path] {
        self.paths.get(..self.len).unwrap_or(&self.paths)
    }

    fn parse(payload: &[u8]) -> Result<Self, Error> {
        let mut paths = Self::NONE;
        for attribute in attributes(payload) {
            let attribute = attribute?;
            if attribute.kind == PATH_RECORD {
                let to = paths.paths.get_mut(paths.len).ok_or(Error::PathCount)?;
                let PathWire { flags, record, .. } =
                    zerocopy::transmute!(attribute.value::<{ size_of::<PathWire>() }>()?);
                *to =
                    Path { flags: PathFlags(flags.get()), record: PathRecord::from_octets(record) };
                paths.len += 1;
            }
        }
        Ok(paths)
    }
}

/// A path record with its flags.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Path {
    /// The uses of the path.
    pub flags: PathFlags,
    /// The record from the SA, unchanged.
    pub record: PathRecord,
}

impl Path {
    const UNUSED: Self =
        Self { flags: PathFlags(0), record: PathRecord::from_octets([0; PathRecord::LEN]) };

    fn wire(&self) -> PathWire {
        PathWire { flags: self.flags.0.into(), reserved: [0; 4], record: self.record.octets() }
    }
}

/// The uses of a path: `IB_PATH_…` of include/uapi/rdma/ib_user_sa.h.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PathFlags(u32);

impl PathFlags {
    /// The only path, or the one for GMPs: `PRIMARY | GMP | BIDIRECTIONAL`. Every kernel accepts it
    /// for [`super::PathUse::All`] and [`super::PathUse::Gmp`].
    pub const GMP: Self = Self(0x2b);
    /// The path from this node to the peer: `PRIMARY | OUTBOUND`. Every kernel accepts it for
    /// [`super::PathUse::Unidirectional`].
    pub const OUTBOUND: Self = Self(0x0a);
    /// The path from the peer to this node: `PRIMARY | INBOUND`.
    pub const INBOUND: Self = Self(0x12);

    /// Takes the bits as the kernel defines them; any are legal.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits as the kernel defines them.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Tells the kernel how long to wait for an answer to a path request before it asks the SA. The
/// setting holds for the whole system, and also after the daemon has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SetTimeout(Timeout);

impl SetTimeout {
    /// A message that sets `timeout`.
    pub const fn new(timeout: Timeout) -> Self {
        Self(timeout)
    }

    /// The time-out that it sets.
    pub const fn timeout(self) -> Timeout {
        self.0
    }

    /// Reads a message to the kernel.
    ///
    /// # Errors
    /// Anything except this message. Unknown attributes are skipped.
    pub fn parse(message: &Message<'_>) -> Result<Self, Error> {
        if message.kind != Kind::SetTimeout || !message.is_request() {
            return Err(Error::Kind);
        }
        let mut timeout = None;
        for attribute in attributes(message.payload) {
            let attribute = attribute?;
            if attribute.kind == TIMEOUT {
                let millis = u32::from_ne_bytes(attribute.value()?);
                set(&mut timeout, Timeout::from_millis(millis).ok_or(Error::Timeout)?)?;
            }
        }
        timeout.map(Self).ok_or(Error::AttributeMissing)
    }

    /// The message. The kernel answers with a verdict: 0, or a positive number before Linux 5.6, or
    /// a negative error number.
    pub fn emit(self, seq: Seq, port_id: PortId) -> Emitted {
        let mut to = Emitted::new(Kind::SetTimeout, FLAG_REQUEST | FLAG_ACK, seq, port_id);
        to.push_attribute(TIMEOUT, &self.0.millis);
        to
    }
}

/// How long the kernel waits for an answer to a path request: 100 ms to 200 s.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Timeout {
    millis: u32,
}

impl Timeout {
    /// `IB_SA_LOCAL_SVC_TIMEOUT_MIN`.
    pub const MIN: Self = Self { millis: 100 };
    /// `IB_SA_LOCAL_SVC_TIMEOUT_DEFAULT`.
    pub const DEFAULT: Self = Self { millis: 2_000 };
    /// `IB_SA_LOCAL_SVC_TIMEOUT_MAX`.
    pub const MAX: Self = Self { millis: 200_000 };

    /// `None` below [`Timeout::MIN`] and above [`Timeout::MAX`]; the kernel would silently use
    /// these bounds instead.
    pub const fn from_millis(millis: u32) -> Option<Self> {
        if millis < Self::MIN.millis || millis > Self::MAX.millis {
            return None;
        }
        Some(Self { millis })
    }

    /// The time-out as a duration.
    pub const fn get(self) -> Duration {
        Duration::from_millis(self.millis as u64)
    }
}

/// Layout of `struct ib_path_rec_data`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PathWire {
    /// See [`PathFlags`].
    pub flags: U32,
    /// 0 when sent, ignored when read.
    pub reserved: [u8; 4],
    /// See [`PathRecord`].
    pub record: [u8; PathRecord::LEN],
}

const _: () = {
    assert!(size_of::<PathWire>() == 72);
    assert!(core::mem::offset_of!(PathWire, record) == 8);
    let headers = size_of::<HeaderWire>() + Paths::MAX * size_of::<AttributeWire>();
    assert!(headers + Paths::MAX * size_of::<PathWire>() == MAX_LEN);
};
