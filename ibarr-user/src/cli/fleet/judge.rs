// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the answers of a fleet mean together.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::ib::Gid;
use ibarr_proto::ip2gid::client::survey::Finding;
use ibarr_proto::request::Status;

use crate::cli::times::{Tally, times};
use crate::cli::verify::Neighbours;
use crate::control::messages::{
    Elapsed, FleetNode, FleetSummary, Mismatch, MismatchWith, Target, UnknownName,
};

pub(super) fn node(
    target: Target,
    name: Option<String>,
    finding: &Finding,
    tally: &mut Tally,
) -> FleetNode {
    tally.note_all(finding.status, &finding.round_trips);
    let other = finding.also.zip(finding.gid).map(|(also, gid)| Mismatch {
        with: MismatchWith::Peer,
        message: format!("the node has said {also} before, and {gid} then"),
    });
    FleetNode {
        ip: target.ip,
        name,
        status: finding.status,
        gid: finding.gid,
        speaks: finding.speaks,
        queries: finding.queries,
        ms: times(finding.round_trips.clone()),
        mismatches: other.into_iter().collect(),
    }
}

/// Adds what contradicts each answer.
pub(super) fn compare(
    nodes: &mut [FleetNode],
    targets: &[Target],
    neighbours: &Neighbours,
    remembered: &BTreeMap<IpAddr, Gid>,
) {
    let mut owners: BTreeMap<Gid, Vec<usize>> = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        if let Some(gid) = node.gid {
            owners.entry(gid).or_default().push(number);
        }
    }
    let addresses: Vec<_> = nodes.iter().map(|node| node.ip).collect();
    for (number, (node, target)) in nodes.iter_mut().zip(targets).enumerate() {
        let Some(gid) = node.gid else { continue };
        let others = owners.get(&gid).into_iter().flatten().filter(|other| **other != number);
        let others: Vec<_> = others.filter_map(|other| addresses.get(*other)).collect();
        node.mismatches.extend(shared(gid, &others));
        node.mismatches.extend(neighbours.contradict(*target, gid));
        if let Some(known) = remembered.get(&node.ip).filter(|known| **known != gid) {
            node.mismatches.push(Mismatch {
                with: MismatchWith::Memory,
                message: format!("the daemon remembers {known}, the answer is {gid}"),
            });
        }
    }
}

fn shared(gid: Gid, others: &[&IpAddr]) -> Option<Mismatch> {
    let (first, more) = others.split_first()?;
    let more = match more.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let message = format!("{first}{more} says {gid}, too");
    Some(Mismatch { with: MismatchWith::Node, message })
}

/// Whether it has answered, and nothing contradicts it.
pub(super) fn is_well(node: &FleetNode) -> bool {
    node.status == Status::Found && node.mismatches.is_empty()
}

pub(super) fn summary(
    nodes: &[FleetNode],
    unknown: &[UnknownName],
    tally: &Tally,
    total_ms: Elapsed,
) -> FleetSummary {
    let mut speaks = BTreeMap::new();
    for word in nodes.iter().filter_map(|node| node.speaks) {
        *speaks.entry(word).or_default() += 1;
    }
    let count = |is: &dyn Fn(&&FleetNode) -> bool| nodes.iter().filter(is).count() as u64;
    FleetSummary {
        nodes: nodes.len() as u64,
        well: count(&|node| is_well(node)),
        answers: tally.statuses.clone(),
        speaks,
        mismatches: count(&|node| !node.mismatches.is_empty()),
        unknown_names: unknown.len() as u64,
        ms: tally.times(),
        total_ms,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ibarr_proto::ip2gid::client::survey::Speaks;

    use super::*;

    fn found(gid: &str) -> Finding {
        Finding {
            status: Status::Found,
            gid: Some(gid.parse().unwrap()),
            also: None,
            speaks: Some(Speaks::Ibarr),
            queries: 2,
            round_trips: [2, 1].map(Duration::from_millis).to_vec(),
        }
    }

    #[test]
    fn each_contradiction_is_named_at_each_node_that_it_concerns() {
        let silent =
            Finding { status: Status::TimedOut, gid: None, speaks: None, ..found("fe80::1") };
        let also = Finding { also: Some("fe80::9".parse().unwrap()), ..found("fe80::4") };
        let findings =
            [found("fe80::1"), found("fe80::1"), found("fe80::1"), found("fe80::3"), also, silent];
        let targets: Vec<Target> = (1..=6).map(|n| IpAddr::from([10, 0, 0, n]).into()).collect();
        let mut tally = Tally::default();
        let mut nodes: Vec<_> = targets
            .iter()
            .zip(&findings)
            .map(|(it, found)| node(*it, None, found, &mut tally))
            .collect();
        let known =
            [([10, 0, 0, 4], "fe80::8"), ([10, 0, 0, 1], "fe80::1"), ([10, 0, 0, 6], "fe80::7")];
        let known = known.map(|(ip, gid)| (IpAddr::from(ip), gid.parse().unwrap()));
        compare(&mut nodes, &targets, &Neighbours::default(), &known.into());
        let said: Vec<_> = nodes
            .iter()
            .map(|node| node.mismatches.iter().map(|it| it.message.as_str()).collect::<Vec<_>>())
            .collect();
        assert_eq!(
            said,
            [
                &["10.0.0.2 and 1 more says fe80::1, too"][..],
                &["10.0.0.1 and 1 more says fe80::1, too"],
                &["10.0.0.1 and 1 more says fe80::1, too"],
                &["the daemon remembers fe80::8, the answer is fe80::3"],
                &["the node has said fe80::9 before, and fe80::4 then"],
                &[],
            ]
        );
        let summary = summary(&nodes, &[], &tally, Elapsed(Duration::ZERO));
        assert_eq!((summary.nodes, summary.well, summary.mismatches), (6, 0, 5));
        assert_eq!(summary.answers, [(Status::Found, 5), (Status::TimedOut, 1)].into());
        assert_eq!(summary.speaks, [(Speaks::Ibarr, 5)].into());
        assert_eq!(nodes[0].ms.unwrap().max.0, Duration::from_millis(2));
    }
}
