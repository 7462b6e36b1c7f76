// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a connection to one peer needs: a route, its GID, and the path there.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::Route;
use nix::net::if_::if_indextoname;
use tokio::time::timeout;

use super::machine::INFINIBAND;
use crate::control::doctor_messages::Check;
use crate::control::messages::{Answer, AnswerStatus, Mismatch, PathAnswer, PathStatus};
use crate::regular_file::text;
use crate::transport::Counters;
use crate::transport::rtnetlink::{self, NoRoute, Routes};

/// A peer, as a user names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::cli) enum Peer {
    /// By an address.
    Ip(IpAddr),
    /// By a GID.
    Gid(Gid),
}

impl FromStr for Peer {
    type Err = String;

    /// A text that is both an IPv6 address and a GID is a GID if its prefix is that of subnets (fe80::/10, fec0::/10),
    /// where no peer has an address without its interface. `gid:` before it makes any other one a GID.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(gid) = text.strip_prefix("gid:") {
            return gid.parse().map(Self::Gid).map_err(|error| format!("{error}"));
        }
        match (text.parse::<IpAddr>(), text.parse::<Gid>()) {
            (Ok(IpAddr::V6(ip)), Ok(gid)) if ip.segments()[0] & 0xff80 == 0xfe80 => {
                Ok(Self::Gid(gid))
            }
            (Ok(ip), _) => Ok(Self::Ip(ip)),
            (Err(_), Ok(gid)) => Ok(Self::Gid(gid)),
            (Err(_), Err(_)) => Err("neither an IP address nor a GID".to_owned()),
        }
    }
}

/// Longer than the kernel takes for a look-up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the kernel for the route to an address.
pub(super) fn look_up(target: IpAddr) -> io::Result<Result<Route, NoRoute>> {
    let Some(question) = Question::new(target, None) else { return Ok(Err(NoRoute::NotUnicast)) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (routes, mut answers) = Routes::start(Arc::new(Counters::default()))?;
        routes.lookup(question.into());
        let answer = timeout(PATIENCE, answers.recv()).await?;
        match answer {
            Some(rtnetlink::Answer::Route(answer)) => Ok(answer.route),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    })
}

/// Whether the kernel asks the daemon for the address when an application connects: it does for a gateway on an
/// IPoIB interface (`fetch_ha` in drivers/infiniband/core/addr.c).
pub(super) fn route(
    target: IpAddr,
    route: io::Result<Result<Route, NoRoute>>,
    sys: &Path,
) -> Check {
    const CHECK: &str = "route";
    let Route { ifindex, next_hop } = match route {
        Ok(Ok(route)) => route,
        Ok(Err(NoRoute::Local)) => {
            return Check::ok(CHECK, format!("{target} is an address of this machine"));
        }
        Ok(Err(why)) => {
            return Check::fail(
                CHECK,
                format!("{target}: {why}"),
                format!("add a route: ip route add {target} via ROUTER dev ib0"),
            );
        }
        Err(error) => return Check::skipped(CHECK, format!("rtnetlink: {error}")),
    };
    let name = if_indextoname(ifindex.get())
        .map_or_else(|_| ifindex.to_string(), |name| name.to_string_lossy().into_owned());
    let of = |file: &str| text(&sys.join("class/net").join(&name).join(file));
    if of("type").as_deref() != Some(INFINIBAND) {
        return Check::warn(
            CHECK,
            format!("{target} is reached by {name}, which is not IPoIB: RDMA does not go there"),
            format!("add a route by an IPoIB interface: ip route add {target} via ROUTER dev ib0"),
        );
    }
    let asks = if next_hop == target {
        "on its link: the kernel asks the peer by ARP or ND, and not the daemon".to_owned()
    } else {
        format!("via {next_hop}: the kernel asks the daemon for the GID")
    };
    Check::ok(CHECK, format!("{target} by {name} {asks}"))
}

/// Whether the peer's ibarr has given its GID.
pub(super) fn gid(answer: &Answer) -> Check {
    const CHECK: &str = "peer";
    let ip = answer.ip;
    let found = match (answer.status, answer.gid) {
        (AnswerStatus::Found, Some(gid)) => {
            let by = answer.source.map_or(String::new(), |source| format!(" ({source})"));
            return Check::ok(CHECK, format!("{ip} is {gid}{by}, {:.2} ms", answer.ms.millis()));
        }
        (status, _) => format!("{ip}: {status}"),
    };
    let remedy = match answer.status {
        AnswerStatus::NotFound => {
            "that host does not have this address on InfiniBand: ibarr status there"
        }
        AnswerStatus::Refused => "start ibarr there (systemctl start ibarr)",
        AnswerStatus::Unreachable => "add a route to it",
        AnswerStatus::Overloaded => "wait until fewer requests are pending (ibarr status)",
        AnswerStatus::TimedOut | AnswerStatus::NotRemembered | AnswerStatus::Found => {
            "does the host run (ping), does ibarr run there, and do firewalls and routers on the way let UDP \
             port 4791 through?"
        }
    };
    Check::fail(CHECK, found, remedy)
}

/// Whether a neighbour entry of the kernel contradicts the peer's answer. The kernel connects by the entry if the peer is
/// on its link.
pub(super) fn neighbour(target: IpAddr, mismatch: Option<Mismatch>) -> Check {
    const CHECK: &str = "neighbour";
    match mismatch {
        None => Check::ok(CHECK, format!("no neighbour entry of {target} has another GID")),
        Some(Mismatch { message, .. }) => Check::warn(
            CHECK,
            format!("{target}: {message}"),
            format!(
                "remove the entry (ip neigh flush to {target} nud all); if it comes back, two hosts have the address"
            ),
        ),
    }
}

/// Whether a path leads to the peer.
pub(super) fn path(answer: &PathAnswer) -> Check {
    const CHECK: &str = "path";
    let PathAnswer { port, dgid, .. } = answer;
    let remedy = match answer.status {
        PathStatus::Found => {
            let (by, ms) = (answer.source, answer.ms.millis());
            let by = by.map_or(String::new(), |source| format!(" ({source})"));
            let lid =
                answer.hops.as_ref().map_or(String::new(), |hops| format!(" by LID {}", hops.dlid));
            return Check::ok(CHECK, format!("{port} to {dgid}{lid}{by}, {ms:.2} ms"));
        }
        PathStatus::NoRecord => {
            "is the peer's port active, in the same partition (P_Key), and known to the subnet manager \
             (saquery NR)?"
        }
        PathStatus::Refused => "see the log of the subnet manager",
        PathStatus::Silent | PathStatus::Busy | PathStatus::NoSa => {
            "is a subnet manager running (sminfo)? ibarr ports shows what the daemon knows of it"
        }
        PathStatus::UnknownPort => "ibarr ports shows the ports",
        PathStatus::Overloaded => "wait until fewer requests are pending (ibarr status)",
    };
    Check::fail(CHECK, format!("{port} to {dgid}: {}", answer.status), remedy)
}

#[cfg(test)]
mod tests {
    use ibarr_common::IfIndex;

    use super::*;
    use crate::control::doctor_messages::CheckState;
    use crate::control::messages::MismatchWith;
    use crate::tests::on_own_network;

    #[test]
    fn peer_is_an_address_or_a_gid() {
        assert_eq!("10.0.0.1".parse(), Ok(Peer::Ip([10, 0, 0, 1].into())));
        assert_eq!("2001:db8::1".parse(), Ok(Peer::Ip("2001:db8::1".parse().unwrap())));
        assert_eq!("fe80::2".parse(), Ok(Peer::Gid("fe80::2".parse().unwrap())));
        assert_eq!("fec0:0:1:1::1".parse(), Ok(Peer::Gid("fec0:0:1:1::1".parse().unwrap())));
        assert_eq!("gid:2001:db8::1".parse(), Ok(Peer::Gid("2001:db8::1".parse().unwrap())));
        assert!("ten".parse::<Peer>().is_err() && "gid:10.0.0.1".parse::<Peer>().is_err());
    }

    #[test]
    fn route_says_whether_the_kernel_asks_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        let loopback = sys.join("class/net/lo");
        std::fs::create_dir_all(&loopback).unwrap();
        let target: IpAddr = [10, 0, 0, 1].into();
        let by = |next_hop: IpAddr| {
            let ifindex = IfIndex::MIN;
            route(target, Ok(Ok(Route { ifindex, next_hop })), sys)
        };
        std::fs::write(loopback.join("type"), "772\n").unwrap();
        assert_eq!(by(target).state, CheckState::Warn);
        std::fs::write(loopback.join("type"), "32\n").unwrap();
        assert!(by(target).found.contains("the kernel asks the peer by ARP"));
        assert!(by([10, 0, 1, 1].into()).found.contains("the kernel asks the daemon"));
        std::fs::remove_dir_all(sys).unwrap();
        assert_eq!(route(target, Ok(Err(NoRoute::Unreachable)), sys).state, CheckState::Fail);
    }

    #[test]
    fn neighbour_entry_that_contradicts_the_peer_is_named() {
        let target: IpAddr = [10, 0, 0, 1].into();
        assert_eq!(neighbour(target, None).state, CheckState::Ok);
        let message = "the kernel's neighbour entry on ib0 says fe80::1".to_owned();
        let check = neighbour(target, Some(Mismatch { with: MismatchWith::Neighbour, message }));
        assert_eq!(check.state, CheckState::Warn);
        assert!(check.found.contains("ib0 says fe80::1"), "{}", check.found);
        assert!(check.remedy.unwrap().contains("(ip neigh flush to 10.0.0.1 nud all)"));
    }

    #[test]
    fn kernel_is_asked_for_the_route() {
        if !on_own_network(|| ()) {
            return;
        }
        assert_eq!(look_up([127, 0, 0, 1].into()).unwrap(), Err(NoRoute::Local));
        assert_eq!(look_up([224, 0, 0, 1].into()).unwrap(), Err(NoRoute::NotUnicast));
    }
}
