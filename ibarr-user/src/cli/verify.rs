// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Compares what the daemon remembers with what others say now.

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_proto::local_view::neighbours::Entry;
use ibarr_proto::request::Freshness;
use ibarr_proto::{paths, request};
use nix::net::if_::if_indextoname;

use super::ask;
use super::source::Source;
use crate::control::client::Connection;
use crate::control::messages::{
    Answer, Failure, FailureKind, Mismatch, MismatchWith, PathAnswer, Resolved, Target,
};
use crate::transport::rtnetlink;

/// What an answer is compared with.
pub(super) struct Against<'a> {
    pub(super) source: &'a Source,
    pub(super) neighbours: &'a Neighbours,
    /// How long the peer has.
    pub(super) timeout: Duration,
}

/// The kernel's neighbour entries of IPoIB, read once by this process.
#[derive(Debug, Default)]
pub(super) struct Neighbours(Vec<(IfIndex, IpAddr, Gid)>);

impl Neighbours {
    /// Without entries if the kernel does not tell: they are not needed.
    pub(super) fn read() -> Self {
        let table = rtnetlink::neighbours().unwrap_or_default();
        Self(table.iter().filter_map(neighbour).collect())
    }

    pub(super) fn contradict(&self, target: Target, gid: Gid) -> Option<Mismatch> {
        let Target { ip, scope } = target;
        let is_other = |(ifindex, of, known): &&(IfIndex, IpAddr, Gid)| {
            *of == ip && *known != gid && scope.is_none_or(|scope| scope == *ifindex)
        };
        let (ifindex, _, known) = self.0.iter().find(is_other)?;
        let name = if_indextoname(ifindex.get()).ok().and_then(|name| name.into_string().ok());
        let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("#{ifindex}"));
        let message =
            format!("the kernel's neighbour entry on {name} says {known}, the answer is {gid}");
        Some(Mismatch { with: MismatchWith::Neighbour, message })
    }
}

fn neighbour(entry: &Entry) -> Option<(IfIndex, IpAddr, Gid)> {
    Some((entry.ifindex, entry.address, entry.gid()?))
}

/// Adds the path to an answer that was found, and what contradicts either.
pub(super) fn verify(
    connection: &mut Connection,
    against: &Against<'_>,
    target: Target,
    resolved: &mut Resolved,
) -> Result<(), Failure> {
    let Some(gid) = resolved.answer.gid else { return Ok(()) };
    let mismatches = &mut resolved.mismatches;
    if resolved.answer.source == Some(request::Source::Cache) {
        let timeout = Some(against.timeout);
        let now =
            ask::one(target, Freshness::Fresh, timeout, |request| connection.ask(request, |_| ()))?;
        mismatches.extend(of_peer(gid, &now));
    }
    mismatches.extend(against.neighbours.contradict(target, gid));
    match against.source.path(connection, gid, false) {
        Ok(path) => {
            if path.source == Some(paths::Source::Sa) {
                mismatches.extend(of_sa(&path, &path));
            } else {
                let now = against.source.path(connection, gid, true)?;
                mismatches.extend(of_sa(&path, &now));
            }
            resolved.path = Some(path);
        }
        Err(Failure { kind: FailureKind::Absent, message }) => {
            mismatches
                .push(Mismatch { with: MismatchWith::Sa, message: format!("no path: {message}") });
        }
        Err(failure) => return Err(failure),
    }
    Ok(())
}

fn of_peer(remembered: Gid, now: &Answer) -> Option<Mismatch> {
    let says = match (now.status, now.gid) {
        (request::Status::Found, Some(gid)) if gid == remembered => return None,
        (request::Status::Found, Some(gid)) => format!("the peer says {gid} now"),
        (status, _) => format!("the peer does not say so now ({status})"),
    };
    let message = format!("{says}, the daemon remembered {remembered}");
    Some(Mismatch { with: MismatchWith::Peer, message })
}

/// Compares a path with what the SA says now.
pub(super) fn of_sa(remembered: &PathAnswer, now: &PathAnswer) -> Option<Mismatch> {
    let was = || match &remembered.hops {
        Some(hops) => super::print::hops(hops),
        None => remembered.status.to_string(),
    };
    let is_said = |path| now.paths().contains(&path);
    let message = match (now.status, &now.hops) {
        (paths::Status::Found, _) if remembered.hops.as_ref().is_some_and(is_said) => return None,
        (paths::Status::Found, Some(hops)) => {
            let says = super::print::hops(hops);
            format!("the subnet administrator says {says} now, the daemon remembered {}", was())
        }
        (paths::Status::NoRecord, _) => {
            let gid = now.dgid;
            format!("the subnet administrator knows no path to {gid}, the daemon has {}", was())
        }
        (status, _) => format!("the subnet administrator does not confirm the path: {status}"),
    };
    Some(Mismatch { with: MismatchWith::Sa, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::{Body, Response};

    fn gid(text: &str) -> Gid {
        text.parse().unwrap()
    }

    #[test]
    fn neighbour_entry_with_another_gid_is_a_mismatch() {
        let ib0 = IfIndex::new(4000).unwrap();
        let ip = IpAddr::from([10, 0, 0, 1]);
        let neighbours = Neighbours(vec![(ib0, ip, gid("fe80::1"))]);
        assert_eq!(neighbours.contradict(ip.into(), gid("fe80::1")), None);
        let mismatch = neighbours.contradict(ip.into(), gid("fe80::2")).unwrap();
        let says = "the kernel's neighbour entry on #4000 says fe80::1, the answer is fe80::2";
        assert_eq!(mismatch.message, says);
        let elsewhere = Target { ip, scope: IfIndex::new(5) };
        assert_eq!(neighbours.contradict(elsewhere, gid("fe80::2")), None);
        let other = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(neighbours.contradict(other.into(), gid("fe80::2")), None);
    }

    fn path(status: &str, hops: &str) -> PathAnswer {
        let text = format!(
            "{{\"v\":1,\"path\":{{\"port\":\"mlx5_0/1\",\"sgid\":\"fec0::1\",\"dgid\":\"fec0::2\",\
             \"status\":\"{status}\",{hops}\"ms\":0.25}}}}"
        );
        let response: Response = serde_json::from_str(&text).unwrap();
        let Body::Path { path } = response.body else { panic!("{text}") };
        *path
    }

    fn to_lid(dlid: u16) -> String {
        format!(
            "\"hops\":{{\"slid\":8,\"dlid\":{dlid},\"hop-limit\":0,\"flow-label\":0,\"tclass\":0,\"sl\":0,\
             \"pkey\":\"0xffff\",\"reversible\":true}},"
        )
    }

    #[test]
    fn path_that_the_sa_does_not_confirm_is_a_mismatch() {
        let remembered = path("found", &to_lid(1));
        assert_eq!(of_sa(&remembered, &path("found", &to_lid(1))), None);
        for (now, says) in [
            (path("found", &to_lid(2)), "says LID 8 to 2, SL 0, P_Key 0xffff now"),
            (path("no-record", ""), "knows no path to fec0::2, the daemon has LID 8 to 1"),
            (path("silent", ""), "does not confirm the path: silent"),
        ] {
            let mismatch = of_sa(&remembered, &now).unwrap();
            assert!(mismatch.message.contains(says), "{}", mismatch.message);
        }
    }
}
