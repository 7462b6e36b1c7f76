// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a connection to one peer needs: a route, its GID, and the path there.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use ibarr_common::IfIndex;
use ibarr_common::ib::{Gid, Lid};
use ibarr_proto::ip2gid::client::{Candidate, Route};
use ibarr_proto::ip2gid::{Family, Question, is_link_local};
use ibarr_proto::{paths, request};
use nix::net::if_::if_indextoname;

use super::machine::INFINIBAND;
use crate::cli::targets::{self, Destination};
use crate::cli::verify;
use crate::control::messages::{Answer, Check, Mismatch, PathAnswer, Target};
use crate::regular_file::text;
use crate::transport::rtnetlink::NoRoute;

/// A peer, as a user names it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::cli) enum Peer {
    /// By an address or a name.
    Ip(Destination),
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
        let is_ip = match text.parse() {
            Ok(IpAddr::V6(ip)) => ip.segments()[0] & 0xff80 != 0xfe80,
            parsed => parsed.is_ok(),
        };
        match text.parse() {
            Ok(gid) if !is_ip => Ok(Self::Gid(gid)),
            _ => targets::one(text).map(Self::Ip).map_err(|error| error.to_string()),
        }
    }
}

/// Whether the kernel asks the daemon for the address when an application connects: it does for a gateway on an
/// IPoIB interface (`fetch_ha` in drivers/infiniband/core/addr.c). If only an application that is bound to an interface
/// has such a route, returns that interface, too. `addresses` are those of this machine.
pub(super) fn route(
    target: Target,
    sys: &Path,
    addresses: &[(IfIndex, IpAddr)],
    look_up: impl Fn(Candidate) -> Result<Route, NoRoute>,
) -> (Check, Option<IfIndex>) {
    const CHECK: &str = "route";
    let Target { ip, scope } = target;
    let Some(question) = Question::new(ip, scope) else {
        let found = format!("{ip}: {}", NoRoute::NotUnicast);
        return (Check::fail(CHECK, found, "name the address of one host"), None);
    };
    let is_ipoib = |ifindex| {
        let file = sys.join("class/net").join(name(ifindex)).join("type");
        text(&file).as_deref() == Some(INFINIBAND)
    };
    let plain = Candidate::from(question);
    let route = look_up(plain);
    let found = match route {
        Err(NoRoute::Local) => {
            return (Check::ok(CHECK, format!("{ip} is an address of this machine")), None);
        }
        Ok(route) if is_ipoib(route.ifindex) => {
            let way = way(ip, route);
            return (Check::ok(CHECK, format!("{ip} by {} {way}", name(route.ifindex))), None);
        }
        Ok(Route { ifindex, .. }) => {
            let name = name(ifindex);
            format!("{ip} is reached by {name}, which is not IPoIB: RDMA does not go there")
        }
        Err(why) => format!("{ip}: {why}"),
    };
    // With a rule by source, or in a VRF.
    let is_like_target = |&&(ifindex, address): &&(IfIndex, IpAddr)| {
        Family::of(address) == Family::of(ip)
            && is_link_local(address) == is_link_local(ip)
            && scope.is_none_or(|scope| scope == ifindex)
            && is_ipoib(ifindex)
    };
    let bound = addresses.iter().filter(is_like_target).find_map(|&(ifindex, address)| {
        let mut sources = [None, Some(address)].into_iter();
        let candidate = |source| Candidate { egress: Some(ifindex), source, ..plain };
        let found = |source| look_up(candidate(source)).ok().filter(|by| by.ifindex == ifindex);
        Some((address, sources.find_map(found)?))
    });
    if let Some((address, route)) = bound {
        let (name, way) = (name(route.ifindex), way(ip, route));
        let found = format!("{found}; from {address} by {name} {way}");
        let remedy = format!(
            "connect from {address}, or let rules and routes do so (ip rule, ip route get {ip} from {address} oif {name})"
        );
        return (Check::warn(CHECK, found, remedy), Some(route.ifindex));
    }
    let dev = scope.map_or("ib0".to_owned(), name);
    let add = format!("ip route add {ip} via ROUTER dev {dev}");
    let check = match route {
        Ok(_) => Check::warn(CHECK, found, format!("add a route by an IPoIB interface: {add}")),
        Err(NoRoute::Unreachable) => Check::fail(CHECK, found, format!("add a route: {add}")),
        Err(_) => Check::fail(
            CHECK,
            found,
            format!("see which route says so (ip rule, ip route get {ip})"),
        ),
    };
    (check, None)
}

pub(super) fn name(ifindex: IfIndex) -> String {
    let name = if_indextoname(ifindex.get());
    name.map_or_else(|_| ifindex.to_string(), |name| name.to_string_lossy().into_owned())
}

fn way(ip: IpAddr, Route { next_hop, .. }: Route) -> String {
    if next_hop == ip {
        "on its link: the kernel asks the peer by ARP or ND, and not the daemon".to_owned()
    } else {
        format!("via {next_hop}: the kernel asks the daemon for the GID")
    }
}

/// Whether the peer's ibarr gives its GID now. `remembered` is what the daemon remembers of it, and `own` are the GIDs of
/// this machine.
pub(super) fn gid(answer: &Answer, remembered: Option<Gid>, own: &[Gid]) -> Check {
    const CHECK: &str = "peer";
    let ip = answer.ip;
    let found = match (answer.status, answer.source, answer.gid) {
        (request::Status::Found, Some(request::Source::Neighbour), Some(gid)) => {
            format!("{ip}: silent (the kernel's neighbour entry says {gid})")
        }
        (request::Status::Found, source, Some(gid)) => {
            let by = source.map_or(String::new(), |source| format!(" ({source})"));
            let found = format!("{ip} is {gid}{by}, {:.2} ms", answer.ms.millis());
            if own.contains(&gid) && source != Some(request::Source::Local) {
                let found = format!("{found}: that is a GID of this machine");
                let remedy = "two hosts give the same GID: look at [[static-gid]] and at the port GUIDs there and here";
                return Check::fail(CHECK, found, remedy);
            }
            return match remembered.filter(|remembered| *remembered != gid) {
                None => Check::ok(CHECK, found),
                Some(remembered) => Check::warn(
                    CHECK,
                    format!("{found}; the daemon remembered {remembered}"),
                    "if the address has not moved, two hosts have it: ibarr ping it, and look which GIDs answer",
                ),
            };
        }
        (status, ..) => format!("{ip}: {status}"),
    };
    let found = match remembered {
        Some(gid) => format!("{found}; the daemon remembers {gid}"),
        None => found,
    };
    let remedy = match answer.status {
        request::Status::NotFound => {
            "that host does not have this address on InfiniBand: ibarr status there"
        }
        request::Status::Refused => "start ibarr there (systemctl start ibarr)",
        request::Status::Unreachable => "see the check of the route",
        request::Status::Overloaded => "wait until fewer requests are pending (ibarr status)",
        request::Status::TimedOut | request::Status::NotRemembered | request::Status::Found => {
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

/// Whether a path leads to the peer, and whether the subnet administrator confirms it. `own` are the LIDs of this
/// machine, and `is_ours` says whether the GID is.
pub(super) fn path(
    answer: &PathAnswer,
    now: Option<&PathAnswer>,
    own: &[Lid],
    is_ours: bool,
) -> Check {
    const CHECK: &str = "path";
    let PathAnswer { port, dgid, .. } = answer;
    if let Some(Mismatch { message, .. }) = now.and_then(|now| verify::of_sa(answer, now)) {
        let remedy = "ibarr cache --flush makes the daemon ask again; ibarr ports shows whether it hears the port's events";
        return Check::warn(CHECK, format!("{port} to {dgid}: {message}"), remedy);
    }
    if let Some(hops) = &answer.hops
        && own.contains(&hops.dlid)
        && !is_ours
    {
        return Check::fail(
            CHECK,
            format!(
                "{port} to {dgid}: the path leads to LID {}, which is of this machine",
                hops.dlid
            ),
            "the peer gives a GID that the subnet manager knows as one of this machine: ibarr ports there and here",
        );
    }
    let remedy = match answer.status {
        paths::Status::Found => {
            let (by, ms) = (answer.source, answer.ms.millis());
            let by = by.map_or(String::new(), |source| format!(" ({source})"));
            let lid =
                answer.hops.as_ref().map_or(String::new(), |hops| format!(" by LID {}", hops.dlid));
            return Check::ok(CHECK, format!("{port} to {dgid}{lid}{by}, {ms:.2} ms"));
        }
        paths::Status::NoRecord => {
            "is the peer's port active, in the same partition (P_Key), and known to the subnet manager \
             (saquery NR)?"
        }
        paths::Status::Refused => "see the log of the subnet manager",
        paths::Status::Silent | paths::Status::Busy | paths::Status::NoSa => {
            "is a subnet manager running (sminfo)? ibarr ports shows what the daemon knows of it"
        }
        paths::Status::UnknownPort => "ibarr ports shows the ports",
        paths::Status::Overloaded => "wait until fewer requests are pending (ibarr status)",
    };
    Check::fail(CHECK, format!("{port} to {dgid}: {}", answer.status), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::{CheckState, MismatchWith};
    use crate::tests::on_own_network;
    use crate::transport::rtnetlink;

    #[test]
    fn peer_is_an_address_a_name_or_a_gid() {
        for text in ["10.0.0.1", "2001:db8::1", "fe80::2%lo", "node1", "node1%lo"] {
            assert_eq!(text.parse(), Ok(Peer::Ip(targets::one(text).unwrap())), "{text}");
        }
        for text in ["fe80::2", "fec0:0:1:1::1"] {
            assert_eq!(text.parse(), Ok(Peer::Gid(text.parse().unwrap())));
        }
        assert_eq!("gid:2001:db8::1".parse(), Ok(Peer::Gid("2001:db8::1".parse().unwrap())));
        for wrong in ["10.0.0", "gid:10.0.0.1", "fe80::2%no-such-if", "node[1-2]"] {
            assert!(wrong.parse::<Peer>().is_err(), "{wrong}");
        }
    }

    /// What is said of the route to 10.0.0.1 if interface 1 has a type and the kernel says this.
    fn of_route(
        link_type: &str,
        kernel: impl Fn(Candidate) -> Result<Route, NoRoute>,
    ) -> (Check, Option<IfIndex>) {
        let dir = tempfile::tempdir().unwrap();
        let loopback = dir.path().join("class/net/lo");
        std::fs::create_dir_all(&loopback).unwrap();
        std::fs::write(loopback.join("type"), link_type).unwrap();
        let addresses = ["fd00::1", "10.0.9.1", "10.0.9.2"];
        let addresses = addresses.map(|address| (IfIndex::MIN, address.parse().unwrap()));
        route(IpAddr::from([10, 0, 0, 1]).into(), dir.path(), &addresses, kernel)
    }

    fn by(next_hop: &str) -> Route {
        Route { ifindex: IfIndex::MIN, next_hop: next_hop.parse().unwrap() }
    }

    #[test]
    fn route_says_whether_the_kernel_asks_the_daemon() {
        let found = |next_hop| of_route("32\n", |_| Ok(by(next_hop))).0.found;
        assert!(found("10.0.0.1").contains("the kernel asks the peer by ARP"));
        assert!(found("10.0.1.1").contains("the kernel asks the daemon"));
        assert_eq!(of_route("32\n", |_| Err(NoRoute::Local)).0.state, CheckState::Ok);
        let elsewhere = of_route("772\n", |_| Ok(by("10.0.0.1"))).0;
        assert_eq!(elsewhere.state, CheckState::Warn);
        assert!(elsewhere.remedy.unwrap().starts_with("add a route by an IPoIB interface"));
    }

    #[test]
    fn route_is_to_be_added_only_where_the_kernel_has_none() {
        for why in [NoRoute::Unreachable, NoRoute::Forbidden, NoRoute::NotUnicast] {
            let (check, bound) = of_route("32\n", |_| Err(why));
            assert_eq!((check.state, bound), (CheckState::Fail, None));
            let is_lack = why == NoRoute::Unreachable;
            assert_eq!(check.remedy.unwrap().starts_with("add a route"), is_lack, "{why}");
        }
        // By a rule, and in a VRF.
        let second = Some("10.0.9.2".parse().unwrap());
        for (source, address) in [(second, "10.0.9.2"), (None, "10.0.9.1")] {
            for plain in [
                Err(NoRoute::Unreachable),
                Ok(Route { ifindex: IfIndex::new(9).unwrap(), next_hop: [10, 9, 9, 9].into() }),
            ] {
                let (check, bound) = of_route("32\n", |asked| match asked {
                    Candidate { egress: None, .. } => plain,
                    Candidate { source: of, .. } if of == source => Ok(by("10.0.9.254")),
                    _ => Err(NoRoute::Unreachable),
                });
                assert_eq!((check.state, bound), (CheckState::Warn, Some(IfIndex::MIN)));
                let way = format!("; from {address} by lo via 10.0.9.254");
                assert!(check.found.contains(&way), "{}", check.found);
                assert!(check.remedy.unwrap().starts_with(&format!("connect from {address}, or")));
            }
        }
    }

    #[test]
    fn peer_is_judged_by_its_fresh_answer_and_not_by_memory() {
        let of = |text: &str| text.parse::<Gid>().unwrap();
        let answer = |status: &str, more: &str| -> Answer {
            let text = format!("{{\"ip\":\"10.0.0.1\",\"status\":\"{status}\",{more}\"ms\":1}}");
            serde_json::from_str(&text).unwrap()
        };
        let by = |source: &str| {
            answer("found", &format!("\"gid\":\"fe80::1\",\"source\":\"{source}\","))
        };
        let state = |answer: &Answer, remembered: Option<Gid>, own: &[Gid]| {
            let Check { state, found, .. } = gid(answer, remembered, own);
            (state, found)
        };
        assert_eq!(state(&by("peer"), Some(of("fe80::1")), &[]).0, CheckState::Ok);
        let (moved, found) = state(&by("peer"), Some(of("fe80::2")), &[]);
        assert!(moved == CheckState::Warn && found.contains("remembered fe80::2"), "{found}");
        let (ours, found) = state(&by("peer"), None, &[of("fe80::1")]);
        assert!(ours == CheckState::Fail && found.contains("a GID of this machine"), "{found}");
        assert_eq!(state(&by("local"), None, &[of("fe80::1")]).0, CheckState::Ok);
        for silent in [by("neighbour"), answer("timed-out", ""), answer("refused", "")] {
            let (state, found) = state(&silent, Some(of("fe80::2")), &[]);
            assert_eq!(state, CheckState::Fail);
            assert!(found.ends_with("; the daemon remembers fe80::2"), "{found}");
        }
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
    fn kernel_is_asked_for_routes_addresses_and_interfaces() {
        if !on_own_network(|| ()) {
            return;
        }
        let local = Question::new([127, 0, 0, 1].into(), None).unwrap();
        assert_eq!(rtnetlink::route(local.into()), Err(NoRoute::Local));
        // An address of documentation, like one that has gone.
        let gone = Candidate { source: Some([192, 0, 2, 1].into()), ..local.into() };
        assert_eq!(rtnetlink::route(gone), Err(NoRoute::NoSource));
        let lo = rtnetlink::interface("lo").unwrap();
        assert!(rtnetlink::addresses().unwrap().contains(&(lo, [127, 0, 0, 1].into())));
        for absent in ["no-such-if", "no-such-interface-of-this-machine", &"x".repeat(128)] {
            assert!(rtnetlink::interface(absent).is_err(), "{absent}");
        }
    }
}
