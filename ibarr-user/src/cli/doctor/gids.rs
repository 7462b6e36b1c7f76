// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The GIDs of this machine: whether each IPoIB interface has one that its port has, which of them routers between
//! InfiniBand subnets can use, and whether peers are told the interfaces' own ones.
//!
//! The kernel accepts connections by IP only at the GID of the interface that has the address
//! (`ipoib_match_gid_pkey_addr` in drivers/infiniband/ulp/ipoib/ipoib_main.c).

use std::path::{Path, PathBuf};

use ibarr_common::ib::{Gid, IpoibHwAddr, Lid};
use ibarr_proto::paths::{GidIndex, PortFacts, PortName};

use super::machine;
use crate::control::messages::{Check, InterfaceStatus};
use crate::regular_file::text;

const CHECK: &str = "gids";

/// An IPoIB interface with a GID.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Ipoib {
    name: String,
    /// Of its partition, as sysfs writes it.
    pkey: String,
    address: IpoibHwAddr,
    /// It is up, and has not joined its broadcast group.
    lacks_carrier: bool,
}

impl Ipoib {
    fn gid(&self) -> Gid {
        self.address.gid()
    }
}

/// The IPoIB interfaces that are below sysfs.
pub(super) fn interfaces(sys: &Path) -> Vec<Ipoib> {
    let read = |dir: &PathBuf| {
        let address = text(&dir.join("address"))?;
        let octet = |octet: &str| u8::from_str_radix(octet, 16).ok();
        let octets: Vec<u8> = address.split(':').map(octet).collect::<Option<_>>()?;
        let is_ipoib = text(&dir.join("type")).as_deref() == Some(machine::INFINIBAND);
        let address = IpoibHwAddr::parse(&octets).filter(|_| is_ipoib)?;
        let pkey = text(&dir.join("pkey")).unwrap_or_default();
        // The file cannot be read if the interface is down.
        let lacks_carrier = text(&dir.join("carrier")).as_deref() == Some("0");
        Some(Ipoib { name: machine::name(dir), pkey, address, lacks_carrier })
    };
    machine::entries(&sys.join("class/net")).iter().filter_map(read).collect()
}

/// Whether routers and peers find this machine by the GIDs of its interfaces. `told` is what the daemon says of them.
pub(super) fn checks(
    ports: &[(PortName, PortFacts)],
    interfaces: &[Ipoib],
    told: &[InterfaceStatus],
) -> Vec<Check> {
    let mut checks: Vec<Check> =
        interfaces.iter().filter_map(|interface| absent(ports, interface)).collect();
    checks.extend(interfaces.iter().filter_map(|interface| forgotten(ports, interface)));
    checks.extend(beside(ports, interfaces));
    checks.extend(interfaces.iter().filter_map(|interface| contradicted(interface, told)));
    if checks.is_empty() && !interfaces.is_empty() {
        let of = |of: &Ipoib| match port_of(ports, of.gid()) {
            Some((port, GidIndex(index), _)) => format!("{} has GID {index} of {port}", of.name),
            None => format!("{} has {}", of.name, of.gid()),
        };
        let all: Vec<_> = interfaces.iter().map(of).collect();
        checks.push(Check::ok(CHECK, all.join(", ")));
    }
    checks.extend(routers(ports, interfaces));
    checks
}

/// An interface whose GID no port has. Peers are told that GID, and their connections to it fail.
fn absent(ports: &[(PortName, PortFacts)], interface: &Ipoib) -> Option<Check> {
    let (name, gid) = (&interface.name, interface.gid());
    if ports.is_empty() || port_of(ports, gid).is_some() {
        return None;
    }
    let mut near = ports.iter().filter(|(_, facts)| {
        facts.gids.first().is_some_and(|own| own.subnet_prefix() == gid.subnet_prefix())
    });
    let Some((_, facts)) = near.next() else {
        ports.iter().find_map(|(_, facts)| facts.gids.first())?;
        let found = format!("{name} has the GID {gid}, whose prefix no port has");
        // The kernel takes no other prefix from us (`ipoib_check_lladdr`).
        let remedy =
            format!("ip link set {name} down; ip link set {name} up; then its routes again");
        return Some(Check::fail(CHECK, found, remedy));
    };
    let found = format!("{name} has the GID {gid}, which is in no port's table");
    Some(match (gid.alias_lid(), facts.alias()) {
        (Some(_), Some(now)) => Check::fail(
            CHECK,
            format!("{found}: the subnet manager has replaced it by {now}"),
            set(interface, "alias"),
        ),
        (Some(lid), None) if facts.lid == Some(lid) => Check::fail(
            CHECK,
            format!("{found}: the subnet manager has forgotten it, or was not asked for it"),
            set(interface, "alias --ask-sa"),
        ),
        _ => Check::fail(CHECK, found, set(interface, "port")),
    })
}

/// An interface on an alias that the port shows, and that the subnet administrator knows no more: it refuses the
/// interface's joins.
fn forgotten(ports: &[(PortName, PortFacts)], interface: &Ipoib) -> Option<Check> {
    let (port, _, facts) = port_of(ports, interface.gid())?;
    let is_alias = interface.gid().alias_lid().is_some_and(|lid| facts.has_lid(lid));
    let found = format!(
        "{} has an alias of {port} and no carrier: the subnet manager may have forgotten the alias",
        interface.name
    );
    (is_alias && interface.lacks_carrier)
        .then(|| Check::fail(CHECK, found, set(interface, "alias --ask-sa")))
}

/// Interfaces of one port and partition with different GIDs: only the first of them may join the multicast group.
fn beside(ports: &[(PortName, PortFacts)], interfaces: &[Ipoib]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (n, one) in interfaces.iter().enumerate() {
        let port = |of: &Ipoib| port_of(ports, of.gid()).map(|(port, ..)| port);
        let is_beside = |other: &&Ipoib| {
            other.pkey == one.pkey && other.gid() != one.gid() && port(one) == port(other)
        };
        if let Some(other) = interfaces.iter().skip(n + 1).find(is_beside)
            && let Some(port) = port(one)
        {
            let (found, pkey) = (format!("{} and {}", one.name, other.name), &one.pkey);
            checks.push(Check::fail(
                CHECK,
                format!("{found} have different GIDs of {port} in partition {pkey}"),
                format!("delete {}, and make it in another partition", other.name),
            ));
        }
    }
    checks
}

/// An interface about whose addresses peers are told another GID.
fn contradicted(interface: &Ipoib, told: &[InterfaceStatus]) -> Option<Check> {
    let (name, gid) = (&interface.name, interface.gid());
    let status = told.iter().find(|status| status.name == *name)?;
    let (ip, other) = status.addresses.iter().find(|(_, told)| **told != gid)?;
    Some(Check::warn(
        CHECK,
        format!("peers are told {other} for {ip}, and {name} has {gid}: it rejects connections"),
        format!("correct [[static-gid]] of {ip}, or remove it"),
    ))
}

/// How routers find this machine.
fn routers(ports: &[(PortName, PortFacts)], interfaces: &[Ipoib]) -> Vec<Check> {
    const CHECK: &str = "routers";
    let mut checks = Vec::new();
    for (port, facts) in ports {
        let of_port = |of: &&Ipoib| facts.gids.contains(of.gid());
        let by = |gid: Gid| interfaces.iter().find(|of| of.gid() == gid);
        if let Some((gid, flid)) = facts.flid_gid().and_then(|gid| Some((gid, gid.flid()?))) {
            let found = format!("{port} is found by floating LID {flid}: GID {gid}");
            checks.push(Check::ok(CHECK, found));
        } else if let Some(alias) = facts.alias() {
            let lid = alias.alias_lid().as_ref().map(Lid::to_string).unwrap_or_default();
            let found = format!("{port} is found by its alias {alias}, of LID {lid}");
            checks.push(match (by(alias), interfaces.iter().find(of_port)) {
                (Some(of), _) => Check::ok(CHECK, format!("{found}: {} has it", of.name)),
                (None, Some(of)) => Check::warn(
                    CHECK,
                    format!("{found}; no interface has it: routers cannot find {}", of.name),
                    set(of, "alias"),
                ),
                (None, None) => Check::ok(CHECK, found),
            });
        }
    }
    checks
}

fn port_of(ports: &[(PortName, PortFacts)], gid: Gid) -> Option<(PortName, GidIndex, &PortFacts)> {
    ports.iter().find_map(|(port, facts)| {
        let (index, _) = facts.gids.entries().find(|(_, of)| *of == gid)?;
        Some((*port, index, facts))
    })
}

/// The command that gives an interface another GID.
fn set(interface: &Ipoib, gid: &str) -> String {
    format!("ibarr gid {} --set {gid}", interface.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ibarr_common::IfIndex;

    use super::*;
    use crate::control::messages::CheckState;

    const OWN: &str = "fec0::1:2:c903:0:1";
    const ALIAS: &str = "fec0:0:0:1::5";

    fn gid(text: &str) -> Gid {
        text.parse().unwrap()
    }

    fn port(number: u8, lid: u16, gids: &[(u16, &str)]) -> (PortName, PortFacts) {
        let gids = gids.iter().map(|&(index, text)| (GidIndex(index), gid(text))).collect();
        let facts = PortFacts { lid: Lid::new(lid), gids, ..PortFacts::default() };
        (format!("mlx5_0/{number}").parse().unwrap(), facts)
    }

    /// Its hardware address is of an interface that allows connected mode.
    fn ipoib(name: &str, pkey: &str, of: &str) -> Ipoib {
        let octets = [&[0x80, 0, 2, 8], &gid(of).octets()[..]].concat();
        let (name, pkey) = (name.to_owned(), pkey.to_owned());
        let address = IpoibHwAddr::parse(&octets).unwrap();
        Ipoib { name, pkey, address, lacks_carrier: false }
    }

    fn found(
        ports: &[(PortName, PortFacts)],
        interfaces: &[Ipoib],
        told: &[InterfaceStatus],
    ) -> Vec<String> {
        let said = |Check { check, state, found, .. }| format!("{state} {check} {found}");
        checks(ports, interfaces, told).into_iter().map(said).collect()
    }

    #[test]
    fn each_trap_of_an_interface_gid_is_named_and_no_other() {
        let table = [(0, OWN), (2, ALIAS)];
        let (with_alias, plain) = (port(1, 5, &table), port(1, 5, &table[..1]));
        let of = |port: &(PortName, PortFacts), gid: &str| {
            found(std::slice::from_ref(port), &[ipoib("ib0", "0xffff", gid)], &[])
        };
        assert_eq!(of(&plain, OWN), ["ok gids ib0 has GID 0 of mlx5_0/1"]);
        let by_alias = format!("routers mlx5_0/1 is found by its alias {ALIAS}, of LID 5");
        assert_eq!(
            of(&with_alias, ALIAS),
            ["ok gids ib0 has GID 2 of mlx5_0/1", &format!("ok {by_alias}: ib0 has it")]
        );
        assert_eq!(
            of(&with_alias, OWN),
            [
                "ok gids ib0 has GID 0 of mlx5_0/1".to_owned(),
                format!("warn {by_alias}; no interface has it: routers cannot find ib0")
            ]
        );
        let lost =
            |gid: &str| format!("fail gids ib0 has the GID {gid}, which is in no port's table");
        let stale = "fec0:0:0:1::4";
        assert_eq!(
            of(&with_alias, stale)[0],
            format!("{}: the subnet manager has replaced it by {ALIAS}", lost(stale))
        );
        assert_eq!(
            of(&plain, ALIAS),
            [format!(
                "{}: the subnet manager has forgotten it, or was not asked for it",
                lost(ALIAS)
            )]
        );
        let guid = "fec0::1:2:c903:0:99";
        assert_eq!(of(&plain, guid), [lost(guid)]);
        let prefix = "fe80::2:c903:0:1";
        assert_eq!(
            of(&plain, prefix),
            [format!("fail gids ib0 has the GID {prefix}, whose prefix no port has")]
        );
        assert_eq!(
            found(&[], &[ipoib("ib0", "0xffff", OWN)], &[]),
            [format!("ok gids ib0 has {OWN}")]
        );
        let flid = "fec0:0:20:1:2:c903:0:1";
        assert_eq!(
            of(&port(1, 5, &[(0, flid)]), flid)[1],
            format!("ok routers mlx5_0/1 is found by floating LID 32: GID {flid}")
        );
    }

    #[test]
    fn alias_without_a_carrier_is_named_as_forgotten() {
        let ports = [port(1, 5, &[(0, OWN), (2, ALIAS)])];
        let of = |gid: &str| {
            let interface = Ipoib { lacks_carrier: true, ..ipoib("ib0", "0xffff", gid) };
            checks(&ports, &[interface], &[]).remove(0)
        };
        let check = of(ALIAS);
        assert!(check.found.starts_with("ib0 has an alias of mlx5_0/1 and no carrier"));
        assert_eq!(check.remedy.as_deref(), Some("ibarr gid ib0 --set alias --ask-sa"));
        assert_eq!(of(OWN).state, CheckState::Ok);
    }

    #[test]
    fn interfaces_of_one_partition_with_different_gids_are_named() {
        let ports = [port(1, 5, &[(0, OWN), (1, ALIAS)]), port(2, 6, &[(0, "fec0::1:2:c903:0:2")])];
        let of = |pkey, other| {
            let interfaces = [ipoib("ib0", "0xffff", OWN), ipoib("ib1", pkey, other)];
            found(&ports, &interfaces, &[]).remove(0)
        };
        let fault = "fail gids ib0 and ib1 have different GIDs of mlx5_0/1 in partition 0xffff";
        assert_eq!(of("0xffff", ALIAS), fault);
        assert!(of("0x8001", ALIAS).starts_with("ok"));
        assert!(of("0xffff", OWN).starts_with("ok"));
        assert!(of("0xffff", "fec0::1:2:c903:0:2").starts_with("ok"), "of another port");
    }

    #[test]
    fn address_that_peers_are_told_another_gid_for_is_named() {
        let told = |gid: &str| InterfaceStatus {
            name: "ib0".to_owned(),
            ifindex: IfIndex::MIN,
            gid: Some(self::gid(OWN)),
            responder: None,
            in_user_space: None,
            addresses: BTreeMap::from([([10, 1, 0, 1].into(), self::gid(gid))]),
            not_served: None,
        };
        let of = |gid: &str| {
            let ports = [port(1, 5, &[(0, OWN)])];
            checks(&ports, &[ipoib("ib0", "0xffff", OWN)], &[told(gid)]).remove(0)
        };
        assert_eq!(of(OWN).state, CheckState::Ok);
        let check = of(ALIAS);
        assert_eq!(check.state, CheckState::Warn);
        assert_eq!(
            check.found,
            format!(
                "peers are told {ALIAS} for 10.1.0.1, and ib0 has {OWN}: it rejects connections"
            )
        );
    }

    #[test]
    fn ipoib_interfaces_are_read_from_sysfs_and_others_passed_over() {
        let sys = tempfile::tempdir().unwrap();
        let write = |name: &str, kind: &str, address: &str| {
            let dir = sys.path().join("class/net").join(name);
            std::fs::create_dir_all(&dir).unwrap();
            for (file, text) in [("type", kind), ("address", address), ("pkey", "0xffff")] {
                std::fs::write(dir.join(file), format!("{text}\n")).unwrap();
            }
        };
        let zeros = ["00"; 16].join(":");
        write("eth0", "1", "52:54:00:12:34:56");
        write("ib0", "32", "80:00:02:08:fe:c0:00:00:00:00:00:01:00:02:c9:03:00:00:00:01");
        write("ib1", "32", &format!("80:00:02:08:{zeros}"));
        assert_eq!(interfaces(sys.path()), [ipoib("ib0", "0xffff", OWN)]);
    }
}
