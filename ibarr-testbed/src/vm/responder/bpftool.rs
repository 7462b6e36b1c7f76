// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The programs and their maps as Debian's bpftool shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context as _, Result};
use ibarr_common::map::{self, Program};
use serde_json::Value;

use crate::rig::{self, Place};

/// The counters of a program, by their names in the map.
pub(super) fn counters(bpf_dir: &str, program: Program) -> Result<BTreeMap<String, u64>> {
    let dump = dump(bpf_dir, map::COUNTERS)?;
    let is_it = |element: &&Value| element["formatted"]["key"] == program.index();
    let element = dump.iter().find(is_it).context("no counters")?;
    let mut sums = BTreeMap::new();
    for value in element["formatted"]["values"].as_array().context("no values")? {
        for (name, count) in value["value"].as_object().context("no counters")? {
            *sums.entry(name.clone()).or_default() += count.as_u64().context("no number")?;
        }
    }
    Ok(sums)
}

/// The addresses that have a GID, with the GID. Link-local addresses are left out.
pub(super) fn entries(bpf_dir: &str) -> Result<BTreeMap<IpAddr, [u8; 16]>> {
    let mut entries = BTreeMap::new();
    for element in dump(bpf_dir, map::GID_CACHE)? {
        let (key, value) = (&element["formatted"]["key"], &element["formatted"]["value"]);
        let address = Ipv6Addr::from(octets(&key["address"])?).to_canonical();
        let gid = octets(&value["gid"])?;
        if key["scope"] == 0 && gid != [0; 16] {
            entries.insert(address, gid);
        }
    }
    Ok(entries)
}

/// Number of next hops in XDP's map.
pub(super) fn next_hops(bpf_dir: &str) -> Result<usize> {
    Ok(dump(bpf_dir, map::NEIGHBOURS)?.len())
}

/// The names of the programs that use the map of addresses.
pub(super) fn programs(bpf_dir: &str) -> Result<BTreeSet<String>> {
    let map = bpftool(&["map", "show", "pinned", &pin(bpf_dir, map::GID_CACHE)])?["id"].clone();
    named(|program| program["map_ids"].as_array().is_some_and(|maps| maps.contains(&map)))
}

/// The names of all loaded programs of ibarr.
pub(super) fn all_programs() -> Result<BTreeSet<String>> {
    named(|program| program["name"].as_str().is_some_and(|name| name.starts_with("ip2gid")))
}

/// Number of rings of programs that report their packets.
pub(super) fn rings() -> Result<usize> {
    let maps = bpftool(&["map", "show"])?;
    let maps = maps.as_array().context("no list")?;
    Ok(maps.iter().filter(|map| map["name"] == "AYA_LOGS").count())
}

fn named(is_wanted: impl Fn(&Value) -> bool) -> Result<BTreeSet<String>> {
    let programs = bpftool(&["prog", "show"])?;
    let wanted = programs.as_array().context("no list")?.iter().filter(|one| is_wanted(one));
    wanted.map(|one| Ok(one["name"].as_str().context("no name")?.to_owned())).collect()
}

fn dump(bpf_dir: &str, map: &str) -> Result<Vec<Value>> {
    let dump = bpftool(&["map", "dump", "pinned", &pin(bpf_dir, map)])?;
    Ok(dump.as_array().context("no list")?.clone())
}

fn pin(bpf_dir: &str, map: &str) -> String {
    format!("{bpf_dir}/v{}/{map}", map::ABI_VERSION)
}

fn bpftool(words: &[&str]) -> Result<Value> {
    let said = rig::run(Place::Here, &[&["bpftool", "--json"], words].concat())?;
    serde_json::from_str(&said).with_context(|| said.clone())
}

fn octets(value: &Value) -> Result<[u8; 16]> {
    let octets: Vec<u8> = serde_json::from_value(value.clone())?;
    octets.try_into().ok().context("not 16 octets")
}
