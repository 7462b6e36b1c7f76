// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Paths that OpenSM's plug-in `dump_pr` has written (`DUMP_FULL_PATH_RECORDS`), in the format that ibacm calls
//! `opensm_full_v1`. For each port of the subnet there is a heading and a line for each LID:
//!
//! ```text
//! Channel Adapter 0x0002c90300000201, base LID 5, "node1 HCA-1", port 1
//! # LID  : SL : MTU : RATE
//! 0x0001 : 0  : 4   : 3
//! 0x0002 : UNREACHABLE
//! ```
//!
//! MTU and rate are codes of a path record. Partition, traffic class and service are not in the file: the paths are
//! those of a port's first partition, as rdma_cm asks for them over IPv4.

use std::io::{self, BufRead};
use std::path::Path;

use ibarr_common::ib::{FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, Rate, Sl};
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::PathQuestion;
use ibarr_proto::paths::snapshot::{Identity, KeptPath, KeptPort, Snapshot};

use super::{Report, Selection, lines, open};

/// Reads a file.
///
/// # Errors
/// It is no regular file, or cannot be read.
pub fn read(path: &Path, wanted: &Selection) -> io::Result<(Snapshot, Report)> {
    parse(open(path)?, Report::new(path), wanted)
}

/// Reads lines. The file has a line for each pair of ports: only those of the wanted ports are kept.
///
/// # Errors
/// Those of `reader`.
pub fn parse(
    reader: impl BufRead,
    mut report: Report,
    wanted: &Selection,
) -> io::Result<(Snapshot, Report)> {
    let mut guids = vec![0; usize::from(Lid::MAX_UNICAST.get()) + 1];
    let mut rows = Vec::new();
    // The port of the block, and the blocks that were found.
    let (mut port, mut found) = (None, vec![false; wanted.ports.len()]);
    let mut is_in_block = false;
    lines(reader, |number, text| {
        if KINDS.iter().any(|kind| text.starts_with(kind)) {
            let heading = heading(text);
            is_in_block = heading.is_some();
            port = None;
            let Some((guid, lid)) = heading else {
                return report.add(number, || {
                    "write a kind of node, its GUID, \"base LID\" and a LID from 1 to 49151"
                        .to_owned()
                });
            };
            let known = &mut guids[usize::from(lid.get())];
            if *known != 0 && *known != guid {
                return report.add(number, || format!("LID {lid} is that of another port, too"));
            }
            *known = guid;
            let is_it =
                |it: &KeptPort| it.identity.gid.guid().get() == guid && it.identity.lid == lid;
            port = wanted.ports.iter().position(is_it);
            port.and_then(|port| found.get_mut(port)).into_iter().for_each(|it| *it = true);
        } else if is_in_block {
            match row(text) {
                Ok(Some(ends)) => rows.extend(port.map(|port| (port, number, ends))),
                Ok(None) => {}
                Err(reason) => report.add(number, || reason.to_owned()),
            }
        } else {
            report.add(number, || "it is below no usable heading".to_owned());
        }
    })?;
    for (port, _) in wanted.ports.iter().zip(&found).filter(|(_, is_found)| !**is_found) {
        let KeptPort { name, identity: Identity { gid, lid, .. } } = port;
        let guid = gid.guid();
        report.notes.push(format!(
            "it has no block of {name} (GUID {guid}, base LID {lid}): have OpenSM write it again"
        ));
    }
    let mut paths = Vec::new();
    let mut too_many = 0_u64;
    for (port, number, row) in rows {
        let Some(KeptPort { identity, .. }) = wanted.ports.get(port) else { continue };
        let guid = |lid: u16| guids.get(usize::from(lid)).copied().filter(|&guid| guid != 0);
        let base = row.dlid.get() >> identity.lmc << identity.lmc;
        match (guid(row.dlid.get()), guid(base)) {
            (Some(_), _) if paths.len() == wanted.most => too_many += 1,
            (Some(guid), _) => paths.extend(path(port, identity, guid, row)),
            // Another LID of a port that has several.
            (None, Some(_)) => {}
            (None, None) => {
                report.add(number, || format!("LID {} has no heading in this file", row.dlid));
            }
        }
    }
    if too_many > 0 {
        let most = wanted.most;
        report.notes.push(format!(
            "{too_many} paths are not used, because paths.max-cached is {most}: raise it"
        ));
    }
    let count = u64::try_from(paths.len()).unwrap_or(u64::MAX).max(1);
    for (n, path) in (0..).zip(&mut paths) {
        // From three to five quarters, so that they do not expire together.
        let life = wanted.life.as_millis().try_into().unwrap_or(u64::MAX);
        let varied = (life / 4).saturating_mul(3).saturating_add(life / 2 * n / count);
        path.life = u32::try_from(varied).unwrap_or(u32::MAX);
    }
    report.mistakes.sort_by_key(|mistake| mistake.line);
    report.entries = paths.len();
    Ok((Snapshot { begun_at: 0, ports: wanted.ports.clone(), paths }, report))
}

const KINDS: [&str; 3] = ["Channel Adapter ", "Switch ", "Router "];

/// OpenSM's default: up to a second.
const LIFE_TIME: PacketLifeTime = PacketLifeTime::from_low_bits(18);

/// A line below a heading.
#[derive(Clone, Copy, Debug)]
struct Row {
    dlid: Lid,
    sl: Sl,
    mtu: Mtu,
    rate: Rate,
}

/// The GUID of a port, and its LID.
fn heading(text: &str) -> Option<(u64, Lid)> {
    let text = KINDS.iter().find_map(|kind| text.strip_prefix(kind))?;
    let mut parts = text.split(',');
    let guid = number(parts.next()?.trim())?;
    let lid = number(parts.next()?.trim().strip_prefix("base LID")?.trim())?;
    let lid = unicast(lid)?;
    (guid != 0).then_some((guid, lid))
}

/// `None` if there is no path.
fn row(text: &str) -> Result<Option<Row>, &'static str> {
    const FORMAT: &str = "write LID : SL : MTU : RATE, or LID : UNREACHABLE";
    let mut parts = text.split(':').map(str::trim);
    let dlid = parts.next().and_then(number).and_then(unicast);
    let dlid = dlid.ok_or("it must begin with a LID from 1 to 49151")?;
    let mut part = || parts.next().ok_or(FORMAT);
    let sl = match part()? {
        "UNREACHABLE" => return Ok(None),
        sl => small(sl).and_then(Sl::new).ok_or("the SL must be from 0 to 15")?,
    };
    // Codes that are not known here may be newer ones: they are passed on.
    let mtu = small(part()?).filter(|code| *code >= 1).map(Mtu::from_low_bits);
    let rate = small(part()?).filter(|code| *code >= 2).map(Rate::from_low_bits);
    if parts.next().is_some() {
        return Err(FORMAT);
    }
    Ok(Some(Row {
        dlid,
        sl,
        mtu: mtu.ok_or("the MTU must be a code from 1 to 63")?,
        rate: rate.ok_or("the rate must be a code from 2 to 63")?,
    }))
}

fn small(text: &str) -> Option<u8> {
    text.parse().ok().filter(|&number| number < 64)
}

/// Decimal, or hexadecimal after `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn unicast(lid: u64) -> Option<Lid> {
    Lid::new(lid.try_into().ok()?).filter(|lid| lid.is_unicast())
}

/// The path from a port to the one with this GUID. Its life is still missing.
fn path(port: usize, identity: &Identity, guid: u64, row: Row) -> Option<KeptPath> {
    let prefix = identity.gid.subnet_prefix().get();
    let octets = u128::from(prefix) << 64 | u128::from(guid);
    let (dgid, sgid) = (Gid::new(octets.to_be_bytes())?, identity.gid);
    let pkey = identity.pkeys.first().map_or(PKey::DEFAULT, |(_, pkey)| *pkey);
    let question = PathQuestion {
        dgid,
        sgid,
        reversible: true,
        pkey: Some(pkey),
        tclass: None,
        service_id: None,
        qos_class: None,
    };
    let Row { dlid, sl, mtu, rate } = row;
    let record = Fields {
        dgid,
        sgid,
        dlid,
        slid: identity.lid,
        flow_label: FlowLabel::default(),
        hop_limit: 0,
        tclass: 0,
        reversible: true,
        pkey,
        sl,
        mtu,
        rate,
        life_time: LIFE_TIME,
    };
    Some(KeptPath { port: port.try_into().ok()?, question, record: record.emit(), life: 0 })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ibarr_common::ib::PortNum;
    use ibarr_common::wire::umad::PKeyIndex;
    use ibarr_proto::paths::PortName;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A byte of a correct file is another one, or the file ends there.
        #[test]
        fn damaged_file_gives_no_path_that_does_not_start_at_the_port(
            at in 0..DUMP.len(), byte: u8, is_cut: bool,
        ) {
            let mut bytes = DUMP.as_bytes().to_vec();
            bytes[at] = byte;
            bytes.truncate(if is_cut { at } else { bytes.len() });
            let wanted = wanted();
            let (snapshot, report) =
                parse(bytes.as_slice(), Report::new(Path::new("f")), &wanted).unwrap();
            prop_assert_eq!(snapshot.paths.len(), report.entries);
            for path in snapshot.paths {
                let fields = Fields::parse(&path.record).unwrap();
                let Identity { gid, lid, .. } = wanted.ports[0].identity;
                prop_assert_eq!((fields.sgid, fields.slid), (gid, lid));
                prop_assert!(fields.mtu.get() > 0 && fields.rate.get() > 1 && path.life > 0);
            }
        }
    }

    /// The lines of one of two ports and a switch, as the plug-in writes them.
    const DUMP: &str = "\
Channel Adapter 0x0002c90300000201, base LID 5, \"node1, base LID 9\", port 1
# LID  : SL : MTU : RATE
0x0001 : 0  : 4   : 3   
0x0005 : 0  : 5   : 7   
0x0007 : 2  : 4   : 22  
0x0008 : UNREACHABLE

Switch 0x0002c90200000001, base LID 1, \"edge\", port 0
# LID  : SL : MTU : RATE
0x0005 : 0  : 4   : 3   

Channel Adapter 0x0002c90300000301, base LID 7, \"node2\", port 1
# LID  : SL : MTU : RATE
0x0005 : 1  : 4   : 3   
";

    fn port(guid: u64, lid: u16) -> KeptPort {
        let octets = (0xfe80_u128 << 112 | u128::from(guid)).to_be_bytes();
        let identity = Identity {
            gid: Gid::new(octets).unwrap(),
            lid: Lid::new(lid).unwrap(),
            lmc: 0,
            sm_lid: Lid::new(1).unwrap(),
            pkeys: vec![(PKeyIndex(0), PKey::DEFAULT)],
        };
        let name = PortName { device: "mlx5_0".parse().unwrap(), port: PortNum::new(1).unwrap() };
        KeptPort { name, identity }
    }

    fn wanted() -> Selection {
        let ports = vec![port(0x0002_c903_0000_0201, 5)];
        Selection { ports, most: 100, life: Duration::from_secs(1000) }
    }

    fn read(text: &str, wanted: &Selection) -> (Snapshot, Vec<String>) {
        let report = Report::new(Path::new("dump"));
        let (snapshot, report) = parse(text.as_bytes(), report, wanted).unwrap();
        assert_eq!(report.entries, snapshot.paths.len());
        (snapshot, report.problems().collect())
    }

    #[test]
    fn paths_of_the_own_port_are_read_and_lead_to_the_ports_of_the_headings() {
        let (snapshot, problems) = read(DUMP, &wanted());
        assert_eq!(problems, [""; 0]);
        let fields = |path: &KeptPath| Fields::parse(&path.record).unwrap();
        let read: Vec<_> = snapshot
            .paths
            .iter()
            .map(|path| {
                let Fields { dgid, dlid, slid, sl, mtu, rate, .. } = fields(path);
                assert_eq!((dgid, slid.get()), (path.question.dgid, 5));
                (dgid.to_string(), dlid.get(), sl.get(), mtu.bytes(), rate.half_gigabits())
            })
            .collect();
        let expected = [
            ("fe80::2:c902:0:1".to_owned(), 1, 0, Some(2048), Some(20)),
            ("fe80::2:c903:0:201".to_owned(), 5, 0, Some(4096), Some(80)),
            ("fe80::2:c903:0:301".to_owned(), 7, 2, Some(2048), Some(1200)),
        ];
        assert_eq!(read, expected);
        let life = |n: usize| snapshot.paths[n].life;
        assert_eq!([life(0), life(1), life(2)], [750_000, 916_666, 1_083_333]);
    }

    #[test]
    fn codes_newer_than_the_table_are_passed_on() {
        let text = DUMP.replace("5   : 7   ", "5   : 25  ").replace("4   : 22  ", "6   : 63  ");
        let (snapshot, problems) = read(&text, &wanted());
        assert_eq!(problems, [""; 0]);
        let codes = |path: &KeptPath| {
            let Fields { mtu, rate, .. } = Fields::parse(&path.record).unwrap();
            (mtu.get(), rate.get(), rate.half_gigabits())
        };
        let codes: Vec<_> = snapshot.paths.iter().map(codes).collect();
        assert_eq!(codes, [(4, 3, Some(20)), (5, 25, Some(3_200)), (6, 63, None)]);
    }

    #[test]
    fn every_bad_line_is_named_and_the_others_are_used() {
        let rows = "0x0001 : 16 : 4 : 3\n0x0001 : 0 : 0 : 3\n0x0001 : 0 : 4 : 99\n0xc001 : 0 : 4 : 3\n\
                    0x0001 : 0 : 4\nnonsense\n0x0009 : 0 : 4 : 3\n";
        let text = format!("0x0001 : 0 : 4 : 3\nRouter 5, no LID\n{DUMP}")
            .replace("0x0008 : UNREACHABLE\n", rows);
        let (snapshot, problems) = read(&text, &wanted());
        assert_eq!(snapshot.paths.len(), 3);
        let expected = [
            "dump:1: it is below no usable heading",
            "dump:2: write a kind of node, its GUID, \"base LID\" and a LID from 1 to 49151",
            "dump:8: the SL must be from 0 to 15",
            "dump:9: the MTU must be a code from 1 to 63",
            "dump:10: the rate must be a code from 2 to 63",
            "dump:11: it must begin with a LID from 1 to 49151",
            "dump:12: write LID : SL : MTU : RATE, or LID : UNREACHABLE",
            "dump:13: it must begin with a LID from 1 to 49151",
            "dump:14: LID 9 has no heading in this file",
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn dump_of_another_time_has_no_block_of_the_port_and_gives_no_path() {
        let moved = Selection { ports: vec![port(0x0002_c903_0000_0201, 6)], ..wanted() };
        let (snapshot, problems) = read(DUMP, &moved);
        assert_eq!(snapshot.paths.len(), 0);
        let expected = "dump: it has no block of mlx5_0/1 (GUID 0x0002c90300000201, base LID 6): have \
                        OpenSM write it again";
        assert_eq!(problems, [expected]);
    }

    #[test]
    fn more_paths_than_are_remembered_are_not_used_and_other_lids_of_a_port_are_skipped() {
        let (snapshot, problems) = read(DUMP, &Selection { most: 2, ..wanted() });
        assert_eq!(snapshot.paths.len(), 2);
        let expected = "dump: 1 paths are not used, because paths.max-cached is 2: raise it";
        assert_eq!(problems, [expected]);
        let mut several = port(0x0002_c903_0000_0202, 4);
        several.identity.lmc = 1;
        let dump = "Channel Adapter 0x2c90300000202, base LID 4, \"n\", port 1\n4 : 0 : 4 : 3\n5 : 0 : 4 : 3\n";
        let (snapshot, problems) = read(dump, &Selection { ports: vec![several], ..wanted() });
        assert_eq!((snapshot.paths.len(), problems.len()), (1, 0));
    }
}
