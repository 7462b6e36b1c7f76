// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr gid --set` on interfaces here: what they lose when they go down is there again.

use std::env;

use anyhow::{Result, ensure};
use ibarr_common::ib::Gid;

use crate::rig::{self, Place, eventually, ip};

const SECOND: &str = "ib0.second";

/// What an administrator may have given the interface, of each kind that goes when it is down.
pub(super) fn furnish(name: &str, network: u8) -> Result<()> {
    let n = network;
    for command in [
        format!("address add fd00:{n}::1/64 dev {name}"),
        format!("address add fd00:{n}::2/64 dev {name} nodad preferred_lft 0 noprefixroute"),
        format!("route add 10.{n}.9.0/24 via 10.{n}.0.254 dev {name} onlink proto static table 77"),
        format!("route add 10.{n}.8.0/24 dev {name} metric 7 mtu 1500"),
        format!("route append 10.{n}.8.0/24 via 10.{n}.0.254 dev {name} onlink metric 7"),
        format!(
            "route add 10.{n}.7.0/24 nexthop via 10.{n}.0.253 dev {name} onlink nexthop via 10.{n}.0.254 dev {name} onlink weight 2"
        ),
        format!(
            "neighbour add 10.{n}.0.77 lladdr {} dev {name} nud permanent",
            ["00"; 20].join(":")
        ),
    ] {
        ip(Place::Here, &command)?;
    }
    // Only an address that is proven unique may be the source of a route.
    eventually(|| {
        let to = format!("fd00:{n}:9::/64 via fd00:{n}::fe dev {name} src fd00:{n}::1");
        ip(Place::Here, &format!("-6 route add {to} proto static expires 9000"))
    })
    .map(drop)
}

/// All that it has, but what the kernel makes of the GID.
fn has(name: &str) -> Result<String> {
    let lists = [
        "-oneline address show scope global",
        "-oneline -6 address show scope global",
        "-4 route show table all",
        "-6 route show table all proto static",
        "neighbour show nud permanent",
    ];
    // Those with several next hops are listed for no interface.
    let mut said = ip(Place::Here, "route show table main")?;
    for list in lists {
        said.push_str(&ip(Place::Here, &format!("{list} dev {name}"))?);
    }
    Ok(without_time(&said))
}

/// Seconds that are left are fewer each time.
fn without_time(list: &str) -> String {
    let words = list.split(' ').map(|word| match word.strip_suffix("sec") {
        Some(number) if number.parse::<u32>().is_ok() => "some",
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The interface gets the GID, and none of these loses anything.
pub(super) fn set(name: &str, to: &str, gid: Gid, others: &[&str]) -> Result<()> {
    let all: Vec<_> = [&[name], others].concat();
    let of_all = || all.iter().map(|name| has(name)).collect::<Result<Vec<_>>>();
    let before = of_all()?;
    let planned = rig::run(Place::Here, &["ibarr", "gid", name, "--set", to, "--dry-run"])?;
    ensure!(planned.contains(&format!("ip link set {name} down")), "{planned}");
    let after = of_all()?;
    ensure!(after == before, "--dry-run: before:\n{before:#?}\nafter:\n{after:#?}");
    let said = rig::run(Place::Here, &["ibarr", "gid", name, "--set", to])?;
    ensure!(said.ends_with(&format!("{name} has {gid}\n")), "{said}");
    let after = of_all()?;
    ensure!(after == before, "before:\n{before:#?}\nafter:\n{after:#?}");
    let again = rig::run(Place::Here, &["ibarr", "gid", name, "--set", to])?;
    ensure!(again.contains("already"), "{again}");
    let shown = rig::run(Place::Here, &["ibarr", "gid", name])?;
    ensure!(shown.contains(&gid.to_string()), "{shown}");
    rig::is_up(Place::Here, name)
}

/// The port has lost the alias that the interface has: it is asked for, and set again.
pub(super) fn asks(name: &str, gid: Gid) -> Result<()> {
    let set = ["ibarr", "gid", name, "--set", "alias"];
    ensure!(rig::run(Place::Here, &set).is_err(), "the port has the alias");
    let said = rig::run(Place::Here, &[&set[..], &["--ask-sa"]].concat())?;
    let is_said = said.contains("# ask the subnet administrator of ibtun0/1");
    ensure!(is_said && said.ends_with(&format!("{name} has {gid}\n")), "{said}");
    let again = rig::run(Place::Here, &[&set[..], &["--ask-sa"]].concat())?;
    ensure!(again.contains("already"), "{again}");
    rig::is_up(Place::Here, name)
}

/// A second child of the partition comes up with the GID of the first alone (multicast.c). It is asked to take the
/// port's own, which is given up when its time is over, or it is interrupted.
pub(super) fn gives_up(pkey: &str) -> Result<()> {
    ip(Place::Here, &format!("link add link ib0 name {SECOND} type ipoib pkey 0x{pkey}"))?;
    ip(Place::Here, &format!("address add 10.50.0.1/24 dev {SECOND}"))?;
    ip(Place::Here, &format!("link set {SECOND} up"))?;
    rig::run(Place::Here, &["ibarr", "gid", SECOND, "--set", "alias"])?;
    furnish(SECOND, 50)?;
    let before = (has(SECOND)?, ip(Place::Here, &format!("link show {SECOND}"))?);
    let set = format!("ibarr gid {SECOND} --set port");
    let file = env::temp_dir().join("gid").display().to_string();
    let waits = format!("until busybox grep -q carrier {file}; do busybox sleep 0.1; done");
    for (script, why) in [
        (format!("{set} --timeout 3s; echo $?"), "it has none"),
        (
            format!(
                "{set} > {file} 2>&1 & {waits}; kill -TERM $!; wait $!; echo $?; busybox cat {file}"
            ),
            "interrupted",
        ),
    ] {
        let said = rig::run(Place::Here, &["busybox", "sh", "-c", &script])?;
        let is_said = said.contains(why) && said.contains("has its old GID again");
        ensure!(is_said && said.contains("69\n"), "{script}: {said}");
        rig::is_up(Place::Here, SECOND)?;
        let after = (has(SECOND)?, ip(Place::Here, &format!("link show {SECOND}"))?);
        ensure!(after == before, "{script}: before:\n{before:#?}\nafter:\n{after:#?}");
    }
    ip(Place::Here, &format!("link delete {SECOND}")).map(drop)
}
