// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The knowledge of a subnet administrator: the GIDs and LIDs of all ports, and their partitions.

use std::collections::BTreeMap;

use ibarr_common::ib::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, Rate, ServiceId, Sl,
    SubnetPrefix,
};
use ibarr_common::wire::path_record::{Fields, PathRecordWire};
use ibarr_common::wire::sa::{PathCount, PathQuery, PathQuestion, Refusal};
use zerocopy::network_endian::U16;

/// A subnet, as its administrator sees it.
#[derive(Clone, Debug)]
pub struct Subnet {
    /// Prefix of all its GIDs.
    pub prefix: SubnetPrefix,
    /// Ports by GUID, including alias GUIDs.
    pub ports: BTreeMap<Guid, AddressedPort>,
    /// Routes to other subnets. The first that matches counts.
    pub routes: Vec<Route>,
    /// The service levels of services, used if quality of service is on.
    pub service_levels: BTreeMap<ServiceId, Sl>,
    /// LMC: number of low bits of a LID that each port ignores.
    pub lmc: u8,
    /// MTU of every path.
    pub mtu: Mtu,
    /// Rate of every path.
    pub rate: Rate,
    /// Packet lifetime of every path.
    pub life_time: PacketLifeTime,
}

/// A port with a LID.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddressedPort {
    /// LID of the port.
    pub lid: Lid,
    /// Partitions of the port.
    pub pkeys: Vec<PKey>,
}

/// A route to other subnets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// Prefix of the other subnet. `None` for all.
    pub prefix: Option<SubnetPrefix>,
    /// LID of the router.
    pub lid: Lid,
    /// Hop limit in its path records. OpenSM uses 255.
    pub hop_limit: u8,
}

impl Subnet {
    /// A subnet without ports. Paths have MTU 2048, 10 Gbit/s and a lifetime of 1 s, as from OpenSM
    /// on ibsim.
    pub fn new(prefix: SubnetPrefix) -> Self {
        Self {
            prefix,
            ports: BTreeMap::new(),
            routes: Vec::new(),
            service_levels: BTreeMap::new(),
            lmc: 0,
            mtu: Mtu::from_low_bits(4),
            rate: Rate::from_low_bits(3),
            life_time: PacketLifeTime::from_low_bits(0x12),
        }
    }

    /// The GID of a port with this GUID, whether the port exists or not.
    ///
    /// `None` if the GUID is 0 in a subnet with prefix 0.
    pub fn gid(&self, guid: Guid) -> Option<Gid> {
        let number = u128::from(self.prefix.get()) << 64 | u128::from(guid.get());
        Gid::new(number.to_be_bytes())
    }

    /// The path with these ends and this partition. Other fields are not compared.
    pub(super) fn known(&self, query: &PathQuery) -> Result<PathRecord, Refusal> {
        let with = |lid: Lid| {
            let mut ports = self.ports.iter().filter(|(_, port)| port.lid == lid);
            self.gid(*ports.next()?.0)
        };
        let sgid = query.sgid().or_else(|| with(query.slid()?));
        let dgid = query.dgid().or_else(|| with(query.dlid()?));
        let (Some(sgid), Some(dgid)) = (sgid, dgid) else { return Err(Refusal::NO_RECORDS) };
        let question = PathQuestion {
            dgid,
            sgid,
            reversible: true,
            pkey: query.pkey(),
            tclass: None,
            service_id: None,
            qos_class: None,
        };
        let record = self.path(&question, false)?;
        if query.has_ends_of(&record) { Ok(record) } else { Err(Refusal::NO_RECORDS) }
    }

    /// The path for a question, as OpenSM answers it.
    pub(super) fn path(
        &self,
        question: &PathQuestion,
        has_qos: bool,
    ) -> Result<PathRecord, Refusal> {
        // The default prefix always means this subnet.
        let is_local =
            |gid: Gid| [self.prefix, SubnetPrefix::DEFAULT].contains(&gid.subnet_prefix());
        let port = |gid: Gid| {
            self.ports.get(&gid.guid()).filter(|_| is_local(gid)).ok_or(Refusal::NO_RECORDS)
        };
        let own = |gid: Gid| self.gid(gid.guid()).ok_or(Refusal::NO_RECORDS);
        let source = port(question.sgid)?;
        let (to, lid, hop_limit, shared) = if is_local(question.dgid) {
            let target = port(question.dgid)?;
            let shared = shared_partition(source, Some(target), question.pkey);
            (own(question.dgid)?, target.lid, 0, shared)
        } else {
            let prefix = question.dgid.subnet_prefix();
            let fits = |route: &&Route| route.prefix.is_none_or(|beyond| beyond == prefix);
            let route = self.routes.iter().find(fits).ok_or(Refusal::NO_RECORDS)?;
            let shared = shared_partition(source, None, question.pkey);
            (question.dgid, route.lid, route.hop_limit, shared)
        };
        let level = |service| self.service_levels.get(&service).copied();
        let sl = question.service_id.filter(|_| has_qos).and_then(level);
        Ok(Fields {
            dgid: to,
            sgid: own(question.sgid)?,
            dlid: lid,
            slid: source.lid,
            flow_label: FlowLabel::default(),
            hop_limit,
            tclass: question.tclass.unwrap_or_default(),
            reversible: true,
            pkey: shared.ok_or(Refusal::NO_RECORDS)?,
            sl: sl.unwrap_or_default(),
            mtu: self.mtu,
            rate: self.rate,
            life_time: self.life_time,
        }
        .emit())
    }
}

/// The paths beside the first one, as OpenSM gives them: each has other LIDs at both ends.
pub(crate) fn other_paths(first: PathRecord, count: PathCount, lmc: u8) -> Vec<PathRecord> {
    let wire = PathRecordWire::from(first);
    let next = |lid: U16, n: u8| (lid.get() + u16::from(n)).into();
    let other = |n| PathRecordWire { dlid: next(wire.dlid, n), slid: next(wire.slid, n), ..wire };
    (1..count.get().min(1 << lmc)).map(|n| other(n).into()).collect()
}

/// A partition of both ports, in which at least one is a full member; the requested one, if there
/// is a request.
fn shared_partition(
    source: &AddressedPort,
    target: Option<&AddressedPort>,
    wanted: Option<PKey>,
) -> Option<PKey> {
    let same = |one: PKey, other: PKey| one.get() << 1 == other.get() << 1;
    let candidates = source.pkeys.iter().filter(|own| wanted.is_none_or(|pkey| same(**own, pkey)));
    candidates.copied().find(|&own| {
        target.is_none_or(|target| {
            target
                .pkeys
                .iter()
                .any(|&other| same(own, other) && (own.get() | other.get()) & 0x8000 != 0)
        })
    })
}
