// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run q`: what the kernel makes of path records whose GIDs are the interfaces' own or not.
//!
//! A, here, connects to an address of R, both in the first subnet. Instead of `ibarr` a small program answers the
//! kernel, with the GID and the record of a case. docs/routers.md rests on what is seen.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use ibarr_common::ib::{FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, Rate, Sl};
use ibarr_common::wire::path_record::Fields;

use super::by_lid::{PREFIXES, take};
use super::{A_PORT, R_PORT, Subnets, alias, gid, lid};
use crate::report::Report;
use crate::rig::{Place, Process, R, eventually, ip, is_listening, spawn};
use crate::{OWN, RESPONDER};

/// R's, behind its own address, so that the kernel asks for the GID.
const TARGET: &str = "10.9.0.1";

/// A GID of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Of {
    Port,
    Alias,
}

use Of::{Alias, Port};

/// What the interfaces of A and R are on, what the kernel is told, and what comes of it.
struct Case {
    interfaces: [Of; 2],
    /// The answer to the question for the address.
    told: Of,
    /// The source and the destination of the record.
    record: [Of; 2],
    hops: u8,
    end: End,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    /// Data arrives at both ends.
    Data,
    /// Both ends say that they are connected, and no data arrives.
    NoData,
    Rejected,
}

const fn case(interfaces: [Of; 2], told: Of, record: [Of; 2], hops: u8, end: End) -> Case {
    Case { interfaces, told, record, hops, end }
}

const CASES: [Case; 15] = [
    // The peer's kernel takes a connection at its interface's GID only, and the record decides where that is.
    case([Port, Port], Port, [Port, Port], 0, End::Data),
    case([Port, Port], Alias, [Port, Alias], 0, End::Rejected),
    case([Port, Port], Port, [Port, Alias], 0, End::Rejected),
    case([Port, Port], Alias, [Port, Port], 0, End::Data),
    // A record may be from another GID than the interface's. Packets have that GID only with a hop limit above 0.
    case([Port, Alias], Alias, [Port, Alias], 0, End::Data),
    case([Port, Alias], Alias, [Port, Alias], 1, End::Data),
    case([Port, Alias], Alias, [Port, Alias], 2, End::Data),
    case([Port, Alias], Alias, [Alias, Alias], 0, End::Data),
    case([Port, Alias], Alias, [Alias, Alias], 1, End::NoData),
    case([Port, Alias], Alias, [Alias, Alias], 2, End::NoData),
    case([Alias, Alias], Alias, [Alias, Alias], 0, End::Data),
    case([Alias, Alias], Alias, [Alias, Alias], 1, End::Data),
    case([Alias, Alias], Alias, [Alias, Alias], 2, End::Data),
    case([Alias, Alias], Alias, [Port, Alias], 0, End::Data),
    case([Alias, Alias], Alias, [Port, Alias], 1, End::NoData),
];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(mut subnets) = report.claim("two subnets stand", Subnets::up("lid", PREFIXES)) {
        if let Some(ends) = report.claim("OpenSM gives both ports aliases", Ends::new()) {
            let mut on = [Port, Port];
            for case in &CASES {
                let seen = ends.put(&mut on, case.interfaces).and_then(|()| ends.try_case(case));
                report.claim(&case.to_string(), seen);
            }
        }
        report.claim("fabric and managers are still there", subnets.stand());
    }
    report.end()
}

/// Both ports: each has its own GID, and an alias.
struct Ends {
    gids: [[Gid; 2]; 2],
    lids: [Lid; 2],
}

impl Ends {
    fn new() -> Result<Self> {
        let aliases = [A_PORT, R_PORT].map(|port| alias::add(port, lid(port)?.into()));
        let [ours, theirs] = aliases;
        let gids = [[gid(A_PORT)?, ours?], [gid(R_PORT)?, theirs?]];
        let lids = [alias::lid(A_PORT, "lid")?, alias::lid(R_PORT, "lid")?];
        ip(R, &format!("address add {TARGET}/32 dev ib3"))?;
        Ok(Self { gids, lids })
    }

    fn gid(&self, end: usize, of: Of) -> Gid {
        self.gids[end][usize::from(of == Alias)]
    }

    fn put(&self, on: &mut [Of; 2], wanted: [Of; 2]) -> Result<()> {
        for (end, (place, name)) in [(Place::Here, "ib0"), (R, "ib3")].into_iter().enumerate() {
            if on[end] != wanted[end] {
                take(place, name, self.gid(end, wanted[end]))?;
                on[end] = wanted[end];
            }
        }
        ip(Place::Here, &format!("route replace {TARGET} via 10.1.0.254"))?;
        ip(Place::Here, "neighbour flush all")?;
        ip(R, "neighbour flush all").map(drop)
    }

    fn try_case(&self, case: &Case) -> Result<()> {
        let record = Fields {
            sgid: self.gid(0, case.record[0]),
            dgid: self.gid(1, case.record[1]),
            slid: self.lids[0],
            dlid: self.lids[1],
            flow_label: FlowLabel::from_low_bits(0),
            hop_limit: case.hops,
            tclass: 0,
            reversible: true,
            pkey: PKey::new(0xffff).context("a partition")?,
            sl: Sl::from_low_bits(0),
            mtu: Mtu::from_low_bits(4),
            rate: Rate::from_low_bits(3),
            life_time: PacketLifeTime::from_low_bits(18),
        };
        let record = record.emit().octets().map(|octet| format!("{octet:02x}")).concat();
        let told = self.gid(1, case.told).to_string();
        let mut answers = spawn("records", Place::Here, &[OWN, RESPONDER, &told, &record])?;
        let mut server = spawn("records-server", R, &["rping", "-s", "-C", "1", "-a", TARGET])?;
        is_listening(&server)?;
        let words = ["rping", "-c", "-d", "-v", "-C", "1", "-a", TARGET];
        let mut client = spawn("records-client", Place::Here, &words)?;
        let end = eventually(|| end(&client));
        client.kill()?;
        server.kill()?;
        answers.kill()?;
        let end = end?;
        ensure!(end == case.end, "{end:?}: {}", client.said()?);
        Ok(())
    }
}

/// How the connection of rping ended, of all that its log has the last one.
fn end(client: &Process) -> Result<End> {
    let said = client.said()?;
    let own = said.rsplit("$ ").next().unwrap_or_default();
    let has = |text: &str| own.contains(text);
    if has("ping data: ") {
        return Ok(End::Data);
    }
    if has("RDMA_CM_EVENT_REJECTED") {
        return Ok(End::Rejected);
    }
    // IBV_WC_RETRY_EXC_ERR: no acknowledgement has come.
    if has("RDMA_CM_EVENT_ESTABLISHED") && has("failed status 12") {
        return Ok(End::NoData);
    }
    bail!("{own}")
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |of| if of == Alias { "alias" } else { "own GID" };
        let [a, r] = self.interfaces.map(name);
        let [sgid, dgid] = self.record.map(name);
        let (told, hops) = (name(self.told), self.hops);
        write!(
            f,
            "A on its {a}, R on its {r}; told {told}, record {sgid} to {dgid}, hop limit {hops}: "
        )?;
        f.write_str(match self.end {
            End::Data => "data",
            End::NoData => "connected, but no data",
            End::Rejected => "rejected",
        })
    }
}
