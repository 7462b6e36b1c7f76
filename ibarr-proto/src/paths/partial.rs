// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A user's question for a path, completed as a program on this node would most likely ask it.

use alloc::collections::BTreeSet;

use ibarr_common::ib::{Gid, Lid, PKey};
use ibarr_common::wire::sa::{PathQuery, PathQuestion};
use thiserror::Error;

use super::{Paths, PortFacts, PortName, Search};

/// A destination, and the parts of the question that the user chose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(
    feature = "serde",
    serde_with_macros::skip_serializing_none,
    derive(serde::Deserialize, serde::Serialize)
)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Partial {
    pub dgid: Gid,
    pub sgid: Option<Gid>,
    /// If `None`, the first one that can ask.
    pub port: Option<PortName>,
    pub pkey: Option<PKeyNumber>,
    /// Whether [`Freshness::Fresh`](crate::request::Freshness::Fresh) is asked for, or any.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "core::ops::Not::not"))]
    pub fresh: bool,
}

/// A P_Key whose form in JSON is a number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PKeyNumber(pub PKey);

ibarr_common::serde_as_number! {
    PKeyNumber, u16: |key| PKey::new(key).map(PKeyNumber), |PKeyNumber(key)| PKey::get(key);
}

/// A complete question, and why its port was chosen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct CompleteQuestion {
    pub port: PortName,
    pub question: PathQuestion,
    /// The first of the reasons that apply.
    pub why: Choice,
}

ibarr_common::words! {
    /// Why a port was chosen.
    Choice {
        /// The user named it.
        Named = "named",
        /// It alone has the source GID.
        HasSource = "has-source",
        /// There is no other port.
        Only = "only",
        /// It is the first whose SA can be asked, of all ports or of those with the source GID.
        FirstWithSa = "first-with-sa",
        /// It is the first of them; no SA can be asked.
        First = "first",
    }
}

/// Error: a part of the question is missing.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Incomplete {
    /// There is no port.
    #[error("this machine has no InfiniBand port: is its driver loaded?")]
    NoPort,
    /// There is no port of this name.
    #[error("{0}: there is no such port; see ibarr ports")]
    NoSuchPort(PortName),
    /// No port, or not the chosen one, has this source GID.
    #[error("{0}: no port of this machine has this GID; see ibarr ports")]
    NoSource(Gid),
    /// No port has this LID.
    #[error("LID {0}: no port of this machine has it; see ibarr ports")]
    NoSourceLid(Lid),
    /// Ports of several subnets could be meant.
    #[error("the ports of this machine are in several subnets: name the source")]
    SeveralSubnets,
    /// The port has no GID.
    #[error("{0} has no GID yet: name one with --sgid")]
    NoGid(PortName),
}

impl Paths {
    /// Chooses the first port with the source GID whose SA can be asked, or else the first with it. Then chooses the
    /// port's GID with a floating LID if `dgid` has one, or else its first GID; then its first
    /// partition.
    ///
    /// # Errors
    /// There is no such port, or it has no GID.
    pub fn chosen(&self, partial: &Partial) -> Result<CompleteQuestion, Incomplete> {
        let Partial { dgid, sgid, port, pkey, .. } = *partial;
        let pkey = pkey.map(|PKeyNumber(pkey)| pkey);
        let (name, facts) = self.choose(port, sgid, None)?;
        let question = PathQuestion {
            dgid,
            sgid: source(facts, sgid, Some(dgid)).ok_or(Incomplete::NoGid(name))?,
            reversible: true,
            pkey: pkey.or_else(|| facts.pkeys.first().map(|(_, pkey)| *pkey)),
            tclass: None,
            service_id: None,
            qos_class: None,
        };
        let has_source =
            |port: &(_, _, &PortFacts, _)| sgid.is_none_or(|sgid| port.2.gids.contains(sgid));
        let why = match () {
            () if port.is_some() => Choice::Named,
            () if self.ports().nth(1).is_none() => Choice::Only,
            () if self.ports().filter(has_source).nth(1).is_none() => Choice::HasSource,
            () if facts.sa().is_some() => Choice::FirstWithSa,
            () => Choice::First,
        };
        Ok(CompleteQuestion { port: name, question, why })
    }

    /// Chooses what a query lacks: source, partition, and that the path is reversible. One that says nothing of its
    /// source starts where the kernel would start it (`cma_resolve_ib_dev` of drivers/infiniband/core/cma.c): at the
    /// port with the destination's GID, or else at the first in its subnet.
    ///
    /// # Errors
    /// There is no such port, or it has no GID, or several subnets could be meant.
    pub(super) fn complete_query(
        &self,
        query: PathQuery,
    ) -> Result<(PortName, Search), Incomplete> {
        let (name, facts) = self.start_of(query)?;
        let sgid = source(facts, query.sgid(), query.dgid()).ok_or(Incomplete::NoGid(name))?;
        let query = query.with_source(sgid).unwrap_or(query).reversible();
        let pkey = facts.pkeys.first().map(|(_, pkey)| *pkey);
        Ok((name, pkey.map_or(query, |pkey| query.in_partition(pkey)).into()))
    }

    /// The port that asks the SA a query as it is. A query without a source gets one.
    ///
    /// # Errors
    /// As for [`Self::complete_query`].
    pub(super) fn source_of(&self, query: PathQuery) -> Result<(PortName, PathQuery), Incomplete> {
        let (name, facts) = self.start_of(query)?;
        if query.sgid().is_some() || query.slid().is_some() {
            return Ok((name, query));
        }
        let sgid = source(facts, None, query.dgid()).ok_or(Incomplete::NoGid(name))?;
        Ok((name, query.with_source(sgid).unwrap_or(query)))
    }

    fn start_of(&self, query: PathQuery) -> Result<(PortName, &PortFacts), Incomplete> {
        if query.sgid().is_some() || query.slid().is_some() {
            return self.choose(None, query.sgid(), query.slid());
        }
        let can_ask = || self.active_ports().filter(|(_, facts)| facts.sa().is_some());
        let near = query.dgid().and_then(|dgid| {
            let is_near = |facts: &PortFacts| {
                facts.gids.iter().any(|gid| gid.subnet_prefix() == dgid.subnet_prefix())
            };
            let own = self.active_ports().find(|(_, facts)| facts.gids.contains(dgid));
            own.or_else(|| can_ask().find(|(_, facts)| is_near(facts)))
        });
        let subnets: BTreeSet<_> =
            can_ask().filter_map(|(_, facts)| facts.gids.first().map(Gid::subnet_prefix)).collect();
        match near {
            Some(port) => Ok(port),
            None if subnets.len() > 1 => Err(Incomplete::SeveralSubnets),
            None => self.choose(None, None, None),
        }
    }

    fn choose(
        &self,
        port: Option<PortName>,
        sgid: Option<Gid>,
        lid: Option<Lid>,
    ) -> Result<(PortName, &PortFacts), Incomplete> {
        let is_chosen = |name: PortName| port.is_none_or(|port| port == name);
        let has_source = |facts: &PortFacts| {
            sgid.is_none_or(|sgid| facts.gids.contains(sgid))
                && lid.is_none_or(|lid| facts.has_lid(lid))
        };
        let chosen = || self.ports().filter(|(_, name, ..)| is_chosen(*name));
        let mut ports = chosen().filter(|(.., facts, _)| has_source(facts)).peekable();
        let first = ports.peek().copied();
        let none = || match (port, sgid, lid) {
            (_, Some(sgid), _) if chosen().next().is_some() => Incomplete::NoSource(sgid),
            (_, _, Some(lid)) if chosen().next().is_some() => Incomplete::NoSourceLid(lid),
            (Some(port), ..) => Incomplete::NoSuchPort(port),
            (None, ..) => Incomplete::NoPort,
        };
        let found = ports.find(|(_, _, facts, _)| facts.sa().is_some()).or(first);
        let (_, name, facts, _) = found.ok_or_else(none)?;
        Ok((name, facts))
    }
}

/// The GID of a port by which the destination can reach it: one with a floating LID if the destination has such a GID; the
/// alias if the destination has another subnet's alias; or else the port's first GID.
fn source(facts: &PortFacts, sgid: Option<Gid>, dgid: Option<Gid>) -> Option<Gid> {
    let own = facts.gids.first();
    let by_flid = || dgid?.flid().and_then(|_| facts.flid_gid());
    let by_alias = || {
        let is_near =
            |dgid: Gid| own.is_some_and(|own| own.subnet_prefix() == dgid.subnet_prefix());
        let far = dgid.filter(|&dgid| !is_near(dgid));
        far?.alias_lid().and_then(|_| facts.alias())
    };
    sgid.or_else(by_flid).or_else(by_alias).or(own)
}

#[cfg(test)]
mod tests {
    use ibarr_common::wire::umad::PKeyIndex;

    use super::super::tests::{PORT, Rig, facts, gid, name};
    use super::super::{GidTable, Input, PortFacts};
    use super::*;
    use crate::sa::PortIndex;

    const OTHER: PortIndex = PortIndex(PORT.0 + 1);

    fn tell(rig: &mut Rig, port: PortIndex, number: u8, facts: PortFacts) {
        rig.paths.handle_input(rig.now, Input::Port { port, name: name(number), facts });
    }

    fn to(dgid: Gid) -> Partial {
        Partial { dgid, sgid: None, port: None, pkey: None, fresh: false }
    }

    #[test]
    fn port_with_an_sa_is_preferred_to_the_first() {
        let mut rig = Rig::without_port();
        assert_eq!(rig.paths.chosen(&to(gid(1))), Err(Incomplete::NoPort));
        tell(&mut rig, PORT, 1, PortFacts { is_active: false, ..facts() });
        assert_eq!(rig.paths.chosen(&to(gid(1))).map(|chosen| chosen.port), Ok(name(1)));
        tell(&mut rig, OTHER, 2, facts());
        assert_eq!(rig.paths.chosen(&to(gid(1))).map(|chosen| chosen.port), Ok(name(2)));
        let first = Partial { port: Some(name(1)), ..to(gid(1)) };
        assert_eq!(rig.paths.chosen(&first).map(|chosen| chosen.port), Ok(name(1)));
        let absent = Partial { port: Some(name(3)), ..to(gid(1)) };
        assert_eq!(rig.paths.chosen(&absent), Err(Incomplete::NoSuchPort(name(3))));
    }

    #[test]
    fn reason_for_the_port_is_given() {
        let mut rig = Rig::without_port();
        let why = |rig: &Rig, partial: &Partial| rig.paths.chosen(partial).unwrap().why;
        tell(&mut rig, PORT, 1, PortFacts { gids: [gid(7)].into(), is_active: false, ..facts() });
        assert_eq!(why(&rig, &to(gid(1))), Choice::Only);
        let gids: GidTable = [gid(7), gid(8)].into();
        tell(&mut rig, OTHER, 2, PortFacts { gids: gids.clone(), is_active: false, ..facts() });
        assert_eq!(why(&rig, &to(gid(1))), Choice::First);
        tell(&mut rig, OTHER, 2, PortFacts { gids, ..facts() });
        assert_eq!(why(&rig, &to(gid(1))), Choice::FirstWithSa);
        let from = |sgid| Partial { sgid: Some(sgid), ..to(gid(1)) };
        assert_eq!(why(&rig, &from(gid(7))), Choice::FirstWithSa);
        assert_eq!(why(&rig, &from(gid(8))), Choice::HasSource);
        assert_eq!(why(&rig, &Partial { port: Some(name(1)), ..to(gid(1)) }), Choice::Named);
    }

    #[test]
    fn first_gid_and_partition_are_taken_unless_the_user_chose() {
        let mut rig = Rig::without_port();
        tell(&mut rig, PORT, 1, PortFacts { gids: GidTable::default(), ..facts() });
        assert_eq!(rig.paths.chosen(&to(gid(1))), Err(Incomplete::NoGid(name(1))));
        let other = PKey::new(0x8001).unwrap();
        let pkeys = vec![(PKeyIndex(0), other), (PKeyIndex(1), PKey::DEFAULT)];
        tell(&mut rig, PORT, 1, PortFacts { gids: [gid(7), gid(8)].into(), pkeys, ..facts() });
        let question = rig.paths.chosen(&to(gid(1))).unwrap().question;
        assert_eq!((question.dgid, question.sgid, question.pkey), (gid(1), gid(7), Some(other)));
        let chosen =
            Partial { sgid: Some(gid(8)), pkey: Some(PKeyNumber(PKey::DEFAULT)), ..to(gid(1)) };
        let question = rig.paths.chosen(&chosen).unwrap().question;
        assert_eq!((question.sgid, question.pkey), (gid(8), Some(PKey::DEFAULT)));
    }

    #[test]
    fn destination_by_alias_in_another_subnet_is_reached_from_the_alias() {
        let gid = |text: &str| text.parse::<Gid>().unwrap();
        let (own, alias) = (gid("fec0:0:0:1:2:c903:0:1"), gid("fec0:0:0:1::8"));
        let source = |lid, table: [Gid; 2], dgid: &str| {
            let mut rig = Rig::without_port();
            let facts = PortFacts { lid: Lid::new(lid), lmc: 1, gids: table.into(), ..facts() };
            tell(&mut rig, PORT, 1, facts);
            rig.paths.chosen(&to(gid(dgid))).unwrap().question.sgid
        };
        let (far, near) = ("fec0:0:0:2::5", "fec0:0:0:1::5");
        for lid in [8, 9] {
            assert_eq!(source(lid, [own, alias], far), alias);
        }
        assert_eq!(source(8, [own, alias], near), own);
        assert_eq!(source(8, [own, alias], "fec0:0:0:2:2:c903:0:5"), own, "not of a router's form");
        assert_eq!(source(10, [own, alias], far), own, "the LID is another one now");
        assert_eq!(source(8, [alias, own], far), alias, "the first in any case");
    }

    #[test]
    fn port_is_chosen_that_has_the_source() {
        let mut rig = Rig::without_port();
        let from = |sgid| Partial { sgid: Some(sgid), ..to(gid(1)) };
        assert_eq!(rig.paths.chosen(&from(gid(9))), Err(Incomplete::NoPort));
        tell(&mut rig, PORT, 1, PortFacts { gids: [gid(7)].into(), ..facts() });
        tell(&mut rig, OTHER, 2, PortFacts { gids: [gid(8)].into(), ..facts() });
        assert_eq!(rig.paths.chosen(&from(gid(8))).map(|chosen| chosen.port), Ok(name(2)));
        assert_eq!(rig.paths.chosen(&from(gid(9))), Err(Incomplete::NoSource(gid(9))));
        let other = Partial { port: Some(name(1)), ..from(gid(8)) };
        assert_eq!(rig.paths.chosen(&other), Err(Incomplete::NoSource(gid(8))));
    }

    #[test]
    fn query_without_a_source_starts_where_the_kernel_would_or_nowhere() {
        let mut rig = Rig::without_port();
        let gids = |prefix: &str| [format!("{prefix}::{}", prefix.len()).parse().unwrap()].into();
        let in_subnet = |prefix| PortFacts { gids: gids(prefix), ..facts() };
        let to = |dgid: &str| PathQuery::ANY.with_destination(dgid.parse().unwrap()).unwrap();
        let start = |rig: &Rig, query| {
            let start = rig.paths.complete_query(query).map(|(port, _)| port);
            assert_eq!(rig.paths.source_of(query).map(|(port, _)| port), start);
            start
        };
        tell(&mut rig, PORT, 1, in_subnet("fec0:0:1:1"));
        // There is no other port.
        assert_eq!(start(&rig, to("fec0:0:9:9::1")), Ok(name(1)));
        tell(&mut rig, OTHER, 2, PortFacts { is_active: false, ..in_subnet("fec0:0:20:2") });
        assert_eq!(start(&rig, PathQuery::ANY), Ok(name(1)));
        tell(&mut rig, OTHER, 2, in_subnet("fec0:0:20:2"));
        assert_eq!(start(&rig, to("fec0:0:1:1::5")), Ok(name(1)));
        assert_eq!(start(&rig, to("fec0:0:20:2::5")), Ok(name(2)));
        // A LID has no subnet, and a router may be in each.
        assert_eq!(start(&rig, PathQuery::ANY), Err(Incomplete::SeveralSubnets));
        assert_eq!(start(&rig, to("fec0:0:9:9::1")), Err(Incomplete::SeveralSubnets));
        // Both lead to the same destinations, but to the own port only one without a switch.
        let second = PortFacts { gids: ["fec0:0:1:1::2".parse().unwrap()].into(), ..facts() };
        tell(&mut rig, OTHER, 2, second);
        assert_eq!(start(&rig, PathQuery::ANY), Ok(name(1)));
        assert_eq!(start(&rig, to("fec0:0:1:1::2")), Ok(name(2)));
    }
}
