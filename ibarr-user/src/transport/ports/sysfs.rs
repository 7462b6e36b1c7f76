// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Ports as sysfs shows them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ibarr_common::ib::{DeviceName, Guid, Lid, PKey, PortNum, Rate, Sl};
use ibarr_common::wire::umad::PKeyIndex;
use ibarr_proto::paths::{Device, GidIndex, PortFacts, PortName};

use crate::regular_file::text;

/// The InfiniBand ports of this machine, as they are now.
pub(crate) fn all(sys: &Path) -> Vec<(PortName, PortFacts)> {
    let class = sys.join("class/infiniband");
    let devices: BTreeSet<DeviceName> = names(&class).collect();
    let ports = devices.into_iter().flat_map(|device| {
        let dir = class.join(device.as_str()).join("ports");
        let numbers: BTreeSet<u8> = names(&dir).collect();
        numbers.into_iter().filter_map(PortNum::new).filter_map(move |port| {
            Some((PortName { device, port }, facts(&dir.join(port.to_string()), None)?))
        })
    });
    ports.collect()
}

/// `None` if it is not an InfiniBand port, or was removed. The tables, the rate and the device are as `known`, unless the
/// rest differs from it.
pub(super) fn facts(dir: &Path, known: Option<&PortFacts>) -> Option<PortFacts> {
    // Kernels without the file know only InfiniBand.
    let link_layer = text(&dir.join("link_layer"));
    if link_layer.is_some_and(|layer| layer != "InfiniBand") {
        return None;
    }
    let number = |file: &str| text(&dir.join(file)).and_then(|text| parse_number(&text));
    let lid = |file: &str| number(file).and_then(Lid::new);
    let state = text(&dir.join("state"))?;
    let mut facts = PortFacts {
        // `IB_PORT_ACTIVE` of include/rdma/ib_verbs.h.
        is_active: state.starts_with("4:"),
        has_umad: false,
        lid: lid("lid").filter(|lid| lid.is_unicast()),
        lmc: number("lid_mask_count").and_then(|lmc| u8::try_from(lmc).ok()).unwrap_or(0),
        sm_lid: lid("sm_lid").filter(|lid| lid.is_unicast()),
        sm_sl: number("sm_sl").and_then(|sl| Sl::new(u8::try_from(sl).ok()?)).unwrap_or_default(),
        ..known.cloned().unwrap_or_default()
    };
    if known != Some(&facts) {
        read_tables(&mut facts, dir);
    }
    // A port that was removed meanwhile was read in part.
    dir.exists().then_some(facts)
}

fn read_tables(facts: &mut PortFacts, dir: &Path) {
    let table = |name: &'static str| {
        let indices: BTreeSet<u16> = names(&dir.join(name)).collect();
        let entries = indices.into_iter().take(PortFacts::MAX_TABLE);
        entries
            .filter_map(move |index| Some((index, text(&dir.join(name).join(index.to_string()))?)))
    };
    let gids =
        table("gids").filter_map(|(index, text)| Some((GidIndex(index), text.parse().ok()?)));
    let pkeys = table("pkeys").filter_map(|(index, text)| {
        let pkey = parse_number(&text).and_then(PKey::new)?;
        Some((PKeyIndex(index), pkey))
    });
    facts.gids = gids.collect();
    facts.pkeys = pkeys.collect();
    facts.rate = text(&dir.join("rate")).and_then(|text| rate(&text));
    facts.device = device(dir);
}

/// What the directory above those of the ports says.
fn device(port: &Path) -> Device {
    let ports = port.parent();
    let guid = ports.and_then(Path::parent).and_then(|device| text(&device.join("node_guid")));
    let guid = guid.and_then(|text| u64::from_str_radix(&text.replace(':', ""), 16).ok());
    let count = ports.map_or(0, |ports| names::<u8>(ports).count());
    Device { guid: guid.map(Guid::new), ports: u8::try_from(count).unwrap_or(u8::MAX) }
}

/// Reads a rate as the kernel writes it: `2.5 Gb/sec (1X SDR)`. The text names no code: a link of a rate that is not
/// known here has the next lower one, because a path may be slower than its link.
fn rate(text: &str) -> Option<Rate> {
    let (number, _) = text.split_once(' ')?;
    let (whole, half) = match number.split_once('.') {
        Some((whole, half)) => (whole, half == "5"),
        None => (number, false),
    };
    let half_gigabits = whole.parse::<u16>().ok()?.checked_mul(2)? + u16::from(half);
    let known = (0..=u8::MAX >> 2).map(Rate::from_low_bits);
    known
        .filter(|rate| rate.half_gigabits().is_some_and(|known| known <= half_gigabits))
        .max_by_key(|rate| rate.half_gigabits())
}

/// The entries of a directory whose name parses as a `T`.
pub(super) fn names<T: std::str::FromStr>(dir: &Path) -> impl Iterator<Item = T> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The kernel writes some numbers with 0x and some without.
fn parse_number(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_that_no_code_is_known_for_is_the_next_lower_one() {
        let code = |text| rate(text).map(Rate::get);
        assert_eq!(code("2.5 Gb/sec (1X SDR)"), Some(2));
        assert_eq!(code("1600 Gb/sec (8X XDR)"), Some(25));
        assert_eq!(code("3200 Gb/sec (8X GDR)"), Some(25));
        assert_eq!([code("0 Gb/sec"), code("1600")], [None; 2]);
    }
}
