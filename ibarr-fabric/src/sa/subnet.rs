// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a subnet administrator knows: who has which GID and LID, and who may talk to whom.

use std::collections::BTreeMap;

use ibarr_common::ib::{
    FlowLabel, Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, Rate, ServiceId, Sl,
    SubnetPrefix,
};
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::{PathQuestion, Refusal};
use ibarr_common::wire::smp::NodeType;

use crate::topology::Topology;

/// A subnet as its administrator sees it.
#[derive(Clone, Debug)]
pub struct Subnet {
    /// Of all its GIDs.
    pub prefix: SubnetPrefix,
    /// By GUID; an alias GUID is a GUID.
    pub ports: BTreeMap<Guid, AddressedPort>,
    /// To other subnets. The first that fits counts.
    pub routes: Vec<Route>,
    /// The service level of services, when quality of service is on.
    pub service_levels: BTreeMap<ServiceId, Sl>,
    /// Of every path.
    pub mtu: Mtu,
    /// Of every path.
    pub rate: Rate,
    /// Of every path.
    pub life_time: PacketLifeTime,
}

/// A port that packets can be sent to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddressedPort {
    /// Its LID.
    pub lid: Lid,
    /// The partitions it is in.
    pub pkeys: Vec<PKey>,
}

/// A way to other subnets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// The subnet beyond. `None`: all.
    pub prefix: Option<SubnetPrefix>,
    /// The router's LID.
    pub lid: Lid,
    /// What its path records say. OpenSM's say 255.
    pub hop_limit: u8,
}

impl Subnet {
    /// Without a port. Paths have MTU 2048, 10 Gbit/s and a life time of 1 s, as from OpenSM on ibsim.
    pub fn new(prefix: SubnetPrefix) -> Self {
        Self {
            prefix,
            ports: BTreeMap::new(),
            routes: Vec::new(),
            service_levels: BTreeMap::new(),
            mtu: Mtu::from_low_bits(4),
            rate: Rate::from_low_bits(3),
            life_time: PacketLifeTime::from_low_bits(0x12),
        }
    }

    /// The ports of `topology`, all in the default partition, with LIDs from 1 on in the order of the
    /// topology.
    pub fn of(topology: &Topology, prefix: SubnetPrefix) -> Self {
        let mut this = Self::new(prefix);
        let nodes = topology.nodes().flat_map(|(_, node)| {
            let switch = (node.kind == NodeType::Switch).then_some(node.guid);
            let ports = node.port_numbers().filter_map(|number| match node.kind {
                NodeType::Switch => None,
                _ => node.port_guid(number),
            });
            switch.into_iter().chain(ports.collect::<Vec<_>>())
        });
        let lids = (1..=Lid::MAX_UNICAST.get()).filter_map(Lid::new);
        let ports = nodes
            .zip(lids)
            .map(|(guid, lid)| (guid, AddressedPort { lid, pkeys: vec![PKey::DEFAULT] }));
        this.ports = ports.collect();
        this
    }

    /// The GID of a port, whether there is one or not.
    ///
    /// `None`: the GUID is 0 in a subnet of prefix 0.
    pub fn gid(&self, guid: Guid) -> Option<Gid> {
        let number = u128::from(self.prefix.get()) << 64 | u128::from(guid.get());
        Gid::new(number.to_be_bytes())
    }

    /// The path that is asked for, as OpenSM gives it.
    pub(super) fn path(
        &self,
        question: &PathQuestion,
        has_qos: bool,
    ) -> Result<PathRecord, Refusal> {
        // The default prefix means the subnet, whatever its own is.
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

/// A partition of both ports, of which one at least is a full member; the one that is asked for, if
/// one is.
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
