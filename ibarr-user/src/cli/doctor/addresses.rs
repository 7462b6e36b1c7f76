// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The addresses of this machine: those that peers are to be answered for, and whether the kernel takes their queries
//! and sends replies back the same way.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{Candidate, Route};
use ipnet::Ipv4Net;

use crate::config::{self, Absent, Config};
use crate::control::messages::{Check, InterfaceStatus};
use crate::regular_file::text;
use crate::transport::rtnetlink::NoRoute;

/// Whether this machine has the address of each `[[static-gid]]`. `files` are those of the daemon's configuration, with
/// commas.
pub(super) fn static_gids(files: &str, own: &[(IfIndex, IpAddr)]) -> Option<Check> {
    const CHECK: &str = "static-gid";
    let mut sources = BTreeMap::new();
    for file in files.split(", ") {
        for source in config::gather(Path::new(file), Absent::Refused).ok()? {
            sources.insert(source.name.clone(), source);
        }
    }
    let sources: Vec<_> = sources.into_values().collect();
    let config = Config::read(&sources).ok()?;
    let all: Vec<_> = config.view.static_gids.addresses().collect();
    let is_absent = |ip: &&IpAddr| !own.iter().any(|(_, of)| of == *ip);
    let absent: Vec<_> = all.iter().filter(is_absent).map(IpAddr::to_string).collect();
    match (all.len(), &absent[..]) {
        (0, _) => None,
        (number, []) => Some(Check::ok(CHECK, format!("this machine has all {number} addresses"))),
        (_, absent) => Some(Check::warn(
            CHECK,
            format!("no interface has {}: peers are not answered for it", absent.join(", ")),
            "correct [[static-gid]], or add the address to its interface (ip addr)",
        )),
    }
}

/// An IPv4 address of an interface that peers are answered for, and the network on the interface's link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct OnLink {
    name: String,
    ifindex: IfIndex,
    address: Ipv4Addr,
    network: Ipv4Net,
}

/// Those of the interfaces in the daemon's status, among all of this machine.
pub(super) fn on_links(
    interfaces: &[InterfaceStatus],
    all: &[(IfIndex, Ipv4Addr, Ipv4Net)],
) -> Vec<OnLink> {
    let of = |&(ifindex, address, network): &(IfIndex, Ipv4Addr, Ipv4Net)| {
        let served = |one: &&InterfaceStatus| {
            one.ifindex == ifindex && one.addresses.contains_key(&address.into())
        };
        let name = interfaces.iter().find(served)?.name.clone();
        Some(OnLink { name, ifindex, address, network })
    };
    all.iter().filter_map(of).collect()
}

/// Whether queries of some peers are taken on each interface that has them on its link, and replies leave by it. `conf`
/// is /proc/sys/net/ipv4/conf, `route` is the kernel's route, and `takes` says whether it takes a packet from the first
/// address to the second on an interface.
pub(super) fn returns(
    links: &[OnLink],
    peers: &[IpAddr],
    conf: &Path,
    route: impl Fn(Candidate) -> Result<Route, NoRoute>,
    takes: impl Fn(IfIndex, Ipv4Addr, Ipv4Addr) -> io::Result<()>,
) -> Vec<Check> {
    const CHECK: &str = "return";
    let (mut checks, mut proven) = (Vec::new(), Vec::new());
    for (OnLink { name, ifindex, address, .. }, peer) in links.iter().flat_map(|link| {
        let peers = peers.iter().filter_map(|&peer| match peer {
            IpAddr::V4(peer) => Some(peer),
            IpAddr::V6(_) => None,
        });
        peers.filter(|peer| link.network.contains(peer)).map(move |peer| (link, peer))
    }) {
        let Some(question) = Question::new(peer.into(), None) else { continue };
        let back = route(Candidate { source: Some((*address).into()), ..question.into() }).ok();
        let other = back
            .filter(|back| back.ifindex != *ifindex)
            .map(|back| super::peer::name(back.ifindex));
        let add = format!("ip rule add from {address} table TABLE, with a route by {name} in it");
        let is_filtered = |error: io::Error| match error.raw_os_error() {
            Some(libc::EXDEV) => true,
            // Linux 6.13 and later do not say why.
            Some(libc::EINVAL) => setting(conf, name, "rp_filter") > 0,
            _ => false,
        };
        if takes(*ifindex, peer, *address).is_err_and(is_filtered) {
            let by = other
                .map_or(String::new(), |other| format!(", because the way back leaves by {other}"));
            let found = format!("rp_filter drops the queries of {peer} to {address} on {name}{by}");
            let all = "net.ipv4.conf.all.rp_filter=2";
            let remedy = format!("sysctl -w {all} net.ipv4.conf.{name}.rp_filter=2; or {add}");
            checks.push(Check::fail(CHECK, found, remedy));
        } else if let Some(other) = other {
            let found = format!(
                "queries of {peer} to {address} come by {name}, and replies leave by {other}"
            );
            checks.push(Check::warn(CHECK, found, add));
        } else {
            proven.push(format!("{peer} to {address} by {name}"));
        }
    }
    if checks.is_empty() {
        checks.push(match &proven[..] {
            [] => Check::skipped(
                CHECK,
                "not proven: no remembered peer is on the link of an interface",
            ),
            proven => {
                Check::ok(CHECK, format!("the same way there and back: {}", proven.join(", ")))
            }
        });
    }
    checks
}

/// Whether interfaces of one network answer ARP for each other's addresses, so that the kernel's neighbour entries
/// contradict GIDs. `conf` is /proc/sys/net/ipv4/conf.
pub(super) fn arp(links: &[OnLink], conf: &Path) -> Option<Check> {
    const CHECK: &str = "arp-ignore";
    let is_beside = |one: &&OnLink| {
        let overlaps = |other: &OnLink| {
            other.ifindex != one.ifindex
                && (other.network.contains(&one.address) || one.network.contains(&other.address))
        };
        links.iter().any(overlaps)
    };
    let mut names: Vec<&str> =
        links.iter().filter(is_beside).map(|link| link.name.as_str()).collect();
    names.dedup();
    let (open, shut): (Vec<&str>, Vec<&str>) =
        names.iter().copied().partition(|name| setting(conf, name, "arp_ignore") == 0);
    match (&open[..], &shut[..]) {
        ([], []) => None,
        ([], shut) => Some(Check::ok(
            CHECK,
            format!("{} answer ARP for their own addresses only", shut.join(", ")),
        )),
        (open, _) => Some(Check::warn(
            CHECK,
            format!(
                "interfaces of one network answer ARP for each other: {} (arp_ignore = 0)",
                open.join(", ")
            ),
            "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2; then ip neigh flush all on peers",
        )),
    }
}

/// A setting of an interface: the larger one of its own and that of all (`IN_DEV_MAXCONF`).
fn setting(conf: &Path, interface: &str, name: &str) -> u8 {
    let of = |interface: &str| -> u8 {
        let value = text(&conf.join(interface).join(name));
        value.and_then(|value| value.parse().ok()).unwrap_or_default()
    };
    of("all").max(of(interface))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::CheckState;

    fn link(name: &str, ifindex: u32, address: [u8; 4]) -> OnLink {
        let network = Ipv4Net::new(address.into(), 24).unwrap();
        OnLink {
            name: name.to_owned(),
            ifindex: IfIndex::new(ifindex).unwrap(),
            address: address.into(),
            network,
        }
    }

    fn rails() -> [OnLink; 2] {
        [link("ib0", 1, [10, 0, 0, 1]), link("ib1", 4000, [10, 0, 0, 2])]
    }

    #[test]
    fn query_that_rp_filter_drops_is_told_from_one_answered_elsewhere() {
        let peers = [IpAddr::from([10, 0, 0, 9]), [10, 0, 1, 9].into(), "fd00::9".parse().unwrap()];
        let by_first = |asked: Candidate| {
            Ok(Route { ifindex: IfIndex::MIN, next_hop: asked.question.target() })
        };
        let states =
            |checks: Vec<Check>| checks.into_iter().map(|check| check.state).collect::<Vec<_>>();
        let conf = tempfile::tempdir().unwrap();
        std::fs::create_dir(conf.path().join("ib1")).unwrap();
        let set = |value: &str| std::fs::write(conf.path().join("ib1/rp_filter"), value).unwrap();
        set("1\n");
        let refused = |errno: i32| {
            move |ifindex: IfIndex, _, _| match ifindex.get() {
                1 => Ok(()),
                _ => Err(io::Error::from_raw_os_error(errno)),
            }
        };
        let of = |links: &[OnLink], peers: &[IpAddr], errno: i32| {
            returns(links, peers, conf.path(), by_first, refused(errno))
        };
        let found = "rp_filter drops the queries of 10.0.0.9 to 10.0.0.2 on ib1, because the way back leaves by lo";
        for errno in [libc::EXDEV, libc::EINVAL] {
            let checks = of(&rails(), &peers, errno);
            assert_eq!(checks[0].found, found);
            assert_eq!(states(checks), [CheckState::Fail]);
        }
        assert_eq!(states(of(&rails()[..1], &peers, libc::EXDEV)), [CheckState::Ok]);
        assert_eq!(states(of(&rails(), &peers[1..], libc::EXDEV)), [CheckState::Skipped]);
        // Without rp_filter the kernel has another reason, if any.
        set("0\n");
        assert_eq!(states(of(&rails(), &peers, libc::EINVAL)), [CheckState::Warn]);
        let takes_all = returns(&rails(), &peers, conf.path(), by_first, |_, _, _| Ok(()));
        assert_eq!(states(takes_all), [CheckState::Warn]);
    }

    #[test]
    fn interfaces_of_one_network_that_answer_arp_for_each_other_are_named() {
        let conf = tempfile::tempdir().unwrap();
        let set = |name: &str, value: &str| {
            std::fs::create_dir_all(conf.path().join(name)).unwrap();
            std::fs::write(conf.path().join(name).join("arp_ignore"), value).unwrap();
        };
        for name in ["all", "ib0", "ib1"] {
            set(name, "0\n");
        }
        assert_eq!(arp(&rails()[..1], conf.path()), None);
        assert_eq!(
            arp(&[link("ib0", 1, [10, 0, 0, 1]), link("ib1", 2, [10, 0, 1, 1])], conf.path()),
            None
        );
        let check = arp(&rails(), conf.path()).unwrap();
        assert!(check.state == CheckState::Warn && check.found.contains("ib0, ib1"), "{check:?}");
        set("ib0", "1\n");
        assert!(arp(&rails(), conf.path()).unwrap().found.contains(": ib1 ("));
        set("all", "2\n");
        assert_eq!(arp(&rails(), conf.path()).unwrap().state, CheckState::Ok);
    }

    #[test]
    fn static_gid_of_an_address_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ibarr.toml");
        let own = [(IfIndex::MIN, IpAddr::from([10, 0, 0, 1]))];
        let of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            static_gids(file.to_str().unwrap(), &own)
        };
        assert_eq!(of(""), None);
        let one = "[[static-gid]]\nip = \"10.0.0.1\"\ngid = \"fe80::1\"\n";
        assert_eq!(of(one).unwrap().state, CheckState::Ok);
        let check = of(&format!("{one}{}", one.replace("10.0.0.1", "10.0.0.2"))).unwrap();
        assert_eq!(check.state, CheckState::Warn);
        assert_eq!(check.found, "no interface has 10.0.0.2: peers are not answered for it");
    }
}
