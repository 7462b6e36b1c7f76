// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the kernel sends to the daemon.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::native_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::netlink::{ALIGNMENT, FLAG_REQUEST, MANDATORY, attributes};
use super::{AttributeWire, Emitted, Error, HeaderWire, Kind, MAX_LEN, Message, PortId, Seq, set};
use super::{DGID, IPV4, IPV6, PKEY, QOS_CLASS, SERVICE_ID, SGID, TCLASS};
use crate::IfIndex;
use crate::ib::{DeviceName, Gid, PKey, PortNum, QosClass, ServiceId};

/// A request of the kernel.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Request {
    /// Asks for the GID of an address.
    ResolveIp(ResolveIp),
    /// Asks for a path to a GID.
    ResolvePath(ResolvePath),
}

/// Asks for the GID of `target`. The kernel asks this for a destination behind a gateway.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ResolveIp {
    /// The device that the route leaves by: its ifindex in the network namespace of the caller,
    /// which may differ from the daemon's.
    pub ifindex: IfIndex,
    /// The address whose GID is asked for.
    pub target: IpAddr,
}

/// Asks for a path from `sgid` to `dgid`. The kernel's caller gave the optional parts; they narrow
/// the answer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct ResolvePath {
    pub device: DeviceName,
    /// The port on `device`.
    pub port: PortNum,
    /// The kinds of path that the kernel can use.
    pub path_use: PathUse,
    /// The service that the connection is for. rdma_cm puts port space and port number here.
    pub service_id: Option<ServiceId>,
    /// The destination of the path.
    pub dgid: Gid,
    /// The source of the path.
    pub sgid: Gid,
    pub tclass: Option<u8>,
    /// The P_Key of the path.
    pub pkey: Option<PKey>,
    /// The class of service. rdma_cm puts the type of service of IPv4 here.
    pub qos_class: Option<QosClass>,
}

/// The paths that the kernel can use: `LS_RESOLVE_PATH_USE_…`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PathUse {
    /// Up to [`super::Paths::MAX`]: for GMPs, inbound and outbound. Requested since Linux 6.1.
    All,
    /// One outbound path.
    Unidirectional,
    /// One path for GMPs, in both directions.
    Gmp,
}

impl Request {
    /// Reads a message from the kernel.
    ///
    /// # Errors
    /// Anything except a request. Unknown attributes are skipped unless they are
    /// mandatory.
    pub fn parse(message: &Message<'_>) -> Result<Self, Error> {
        if !message.is_request() {
            return Err(Error::Kind);
        }
        match message.kind {
            Kind::ResolveIp => ResolveIp::parse(message.payload).map(Self::ResolveIp),
            Kind::ResolvePath => ResolvePath::parse(message.payload).map(Self::ResolvePath),
            _ => Err(Error::Kind),
        }
    }

    /// The message as the kernel sends it; for a stand-in of the kernel.
    pub fn emit(&self, seq: Seq) -> Emitted {
        let mut to = Emitted::new(self.kind(), FLAG_REQUEST, seq, PortId::KERNEL);
        match self {
            Self::ResolveIp(request) => request.emit(&mut to),
            Self::ResolvePath(request) => request.emit(&mut to),
        }
        to
    }

    /// The type that its answer repeats, besides the [`Seq`].
    pub fn kind(&self) -> Kind {
        match self {
            Self::ResolveIp(_) => Kind::ResolveIp,
            Self::ResolvePath(_) => Kind::ResolvePath,
        }
    }
}

impl ResolveIp {
    fn parse(payload: &[u8]) -> Result<Self, Error> {
        let (header, rest) =
            IpHeaderWire::ref_from_prefix(payload).map_err(|_| Error::Truncated)?;
        let ifindex = IfIndex::new(header.ifindex.get()).ok_or(Error::IfIndex)?;
        let mut target = None;
        for attribute in attributes(rest) {
            let attribute = attribute?;
            match attribute.number() {
                IPV4 => set(&mut target, Ipv4Addr::from(attribute.value::<4>()?).into())?,
                IPV6 => set(&mut target, Ipv6Addr::from(attribute.value::<16>()?).into())?,
                _ => attribute.skip()?,
            }
        }
        Ok(Self { ifindex, target: target.ok_or(Error::AttributeMissing)? })
    }

    fn emit(&self, to: &mut Emitted) {
        to.push(&IpHeaderWire { ifindex: self.ifindex.get().into() });
        match self.target {
            IpAddr::V4(target) => to.push_attribute(MANDATORY | IPV4, &target.octets()),
            IpAddr::V6(target) => to.push_attribute(MANDATORY | IPV6, &target.octets()),
        }
    }
}

impl ResolvePath {
    fn parse(payload: &[u8]) -> Result<Self, Error> {
        let (header, _) = PathHeaderWire::ref_from_prefix(payload).map_err(|_| Error::Truncated)?;
        let rest = payload.get(PathHeaderWire::PADDED_LEN..).unwrap_or_default();
        let device = DeviceName::from_field(&header.device).ok_or(Error::DeviceName)?;
        let port = PortNum::new(header.port).ok_or(Error::PortNum)?;
        let path_use = match header.path_use {
            0 => PathUse::All,
            1 => PathUse::Unidirectional,
            2 => PathUse::Gmp,
            _ => return Err(Error::PathUse),
        };
        let (mut service_id, mut dgid, mut sgid) = (None, None, None);
        let (mut tclass, mut pkey, mut qos_class) = (None, None, None);
        for attribute in attributes(rest) {
            let attribute = attribute?;
            let gid = || Gid::new(attribute.value()?).ok_or(Error::Gid);
            let number = || attribute.value().map(u16::from_ne_bytes);
            match attribute.number() {
                SERVICE_ID => {
                    let number = u64::from_ne_bytes(attribute.value()?);
                    set(&mut service_id, ServiceId::new(number))?;
                }
                DGID => set(&mut dgid, gid()?)?,
                SGID => set(&mut sgid, gid()?)?,
                TCLASS => set(&mut tclass, u8::from_ne_bytes(attribute.value()?))?,
                PKEY => set(&mut pkey, PKey::new(number()?).ok_or(Error::PKey)?)?,
                QOS_CLASS => {
                    set(&mut qos_class, QosClass::new(number()?).ok_or(Error::QosClass)?)?;
                }
                _ => attribute.skip()?,
            }
        }
        Ok(Self {
            device,
            port,
            path_use,
            service_id,
            dgid: dgid.ok_or(Error::AttributeMissing)?,
            sgid: sgid.ok_or(Error::AttributeMissing)?,
            tclass,
            pkey,
            qos_class,
        })
    }

    /// Writes the attributes in the kernel's order.
    fn emit(&self, to: &mut Emitted) {
        to.push(&PathHeaderWire {
            device: self.device.field(),
            port: self.port.get(),
            path_use: match self.path_use {
                PathUse::All => 0,
                PathUse::Unidirectional => 1,
                PathUse::Gmp => 2,
            },
        });
        if let Some(service_id) = self.service_id {
            to.push_attribute(MANDATORY | SERVICE_ID, &service_id.get());
        }
        to.push_attribute(MANDATORY | DGID, &self.dgid.octets());
        to.push_attribute(MANDATORY | SGID, &self.sgid.octets());
        if let Some(tclass) = self.tclass {
            to.push_attribute(MANDATORY | TCLASS, &tclass);
        }
        if let Some(pkey) = self.pkey {
            to.push_attribute(MANDATORY | PKEY, &pkey.get());
        }
        if let Some(qos_class) = self.qos_class {
            to.push_attribute(MANDATORY | QOS_CLASS, &qos_class.get());
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ResolveIp(ResolveIp { ifindex, target }) => {
                write!(f, "ls request dev {ifindex}: who has {target}?")
            }
            Self::ResolvePath(ResolvePath { device, port, path_use, dgid, sgid, .. }) => {
                write!(f, "ls request {device}/{port}: path from {sgid} to {dgid}, {path_use:?}?")
            }
        }
    }
}

/// Layout of `struct rdma_ls_ip_resolve_header`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IpHeaderWire {
    /// The ifindex, see [`ResolveIp::ifindex`].
    pub ifindex: U32,
}

/// Layout of `struct rdma_ls_resolve_header`. Two bytes of padding follow it.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PathHeaderWire {
    /// The name, padded with zeros, see [`DeviceName`].
    pub device: [u8; DeviceName::MAX_LEN],
    /// The port, see [`PortNum`].
    pub port: u8,
    /// The number of a [`PathUse`].
    pub path_use: u8,
}

impl PathHeaderWire {
    const PADDED_LEN: usize = size_of::<Self>().next_multiple_of(ALIGNMENT);
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<IpHeaderWire>() == 4);
    assert!(size_of::<PathHeaderWire>() == 66);
    assert!(PathHeaderWire::PADDED_LEN == 68);
    assert!(offset_of!(PathHeaderWire, port) == 64);
    assert!(offset_of!(PathHeaderWire, path_use) == 65);
    // The longest request has every attribute.
    let attributes = 6 * size_of::<AttributeWire>() + 8 + 16 + 16 + 4 + 4 + 4;
    assert!(size_of::<HeaderWire>() + PathHeaderWire::PADDED_LEN + attributes <= MAX_LEN);
};
