// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The paths that a caller gets for a record of the SA.

use ibarr_common::ib::{Gid, Lid, PathRecord};
use ibarr_common::wire::ls::{Path, PathFlags, PathUse, Paths};
use ibarr_common::wire::path_record::{Fields, PathRecordWire};

/// The paths that the kernel accepts as an answer to such a request (`ib_nl_process_good_resolve_rsp` in
/// drivers/infiniband/core/sa_query.c), and librdmacm too.
pub fn records(path_use: PathUse, record: PathRecord) -> Paths {
    let path = |flags, record| Path { flags, record };
    let gmp = path(PathFlags::GMP, record);
    let paths = match path_use {
        PathUse::Unidirectional => Paths::new(&[path(PathFlags::OUTBOUND, record)]),
        PathUse::Gmp => Paths::new(&[gmp]),
        PathUse::All => match floating(record) {
            None => Paths::new(&[gmp]),
            Some(Floating { inbound, outbound }) => Paths::new(&[
                gmp,
                path(PathFlags::INBOUND, inbound),
                path(PathFlags::OUTBOUND, outbound),
            ]),
        },
    };
    // There are never more than fit.
    paths.unwrap_or(Paths::NONE)
}

/// Paths for data between subnets whose routers forward by floating LID. The original record
/// remains for connection management.
struct Floating {
    inbound: PathRecord,
    outbound: PathRecord,
}

/// `None` if the path stays in its subnet, or one of its ends has no floating LID.
fn floating(record: PathRecord) -> Option<Floating> {
    let wire = PathRecordWire::from(record);
    let (sgid, dgid) = (Gid::new(wire.sgid)?, Gid::new(wire.dgid)?);
    let (here, there) = (sgid.flid()?, dgid.flid()?);
    Fields::parse(&record).ok()?;
    if !record.leaves_subnet() || sgid.flid_subnet() == dgid.flid_subnet() {
        return None;
    }
    let one_way = |dlid: Lid| PathRecordWire {
        dlid: dlid.get().into(),
        reversible_and_numb_path: 0,
        ..record.into()
    };
    let from_anywhere = Lid::PERMISSIVE.get().into();
    Some(Floating {
        inbound: PathRecordWire { slid: from_anywhere, ..one_way(here) }.into(),
        outbound: one_way(there).into(),
    })
}

#[cfg(test)]
mod tests {
    use ibarr_common::ib::{FlowLabel, Mtu, PKey, PacketLifeTime, Rate, Sl};

    use super::*;

    /// From FLID 1 of subnet 1 to FLID 0x22 of subnet 2, by the router with LID 4.
    fn fields() -> Fields {
        Fields {
            dgid: "fec0:0:22:2::beef:1".parse().unwrap(),
            sgid: "fec0:0:1:1::10:9".parse().unwrap(),
            dlid: Lid::new(4).unwrap(),
            slid: Lid::new(8).unwrap(),
            flow_label: FlowLabel::default(),
            hop_limit: 255,
            tclass: 0,
            reversible: true,
            pkey: PKey::DEFAULT,
            sl: Sl::default(),
            mtu: Mtu::from_low_bits(4),
            rate: Rate::from_low_bits(3),
            life_time: PacketLifeTime::from_low_bits(18),
        }
    }

    /// For each record: flags, DLID, SLID, hop limit, the reversible byte.
    fn told(path_use: PathUse, fields: Fields) -> Vec<(u32, u16, u16, u8, u8)> {
        let record = fields.emit();
        let paths = records(path_use, record);
        let told = paths.as_slice().iter().map(|path| {
            let octets = path.record.octets();
            let lid = |at: usize| u16::from_be_bytes([octets[at], octets[at + 1]]);
            // All other fields are the SA's.
            let mut restored = octets;
            restored[40..44].copy_from_slice(&record.octets()[40..44]);
            restored[49] = record.octets()[49];
            assert_eq!(restored, record.octets());
            (path.flags.bits(), lid(40), lid(42), octets[47], octets[49])
        });
        told.collect()
    }

    /// The answer of the C original with OpenSM behind a router.
    #[test]
    fn path_between_floating_lids_has_three_records_original_first() {
        assert_eq!(
            told(PathUse::All, fields()),
            [(0x2b, 4, 8, 255, 0x80), (0x12, 1, 0xffff, 255, 0), (0x0a, 0x22, 8, 255, 0)]
        );
        assert_eq!(told(PathUse::Unidirectional, fields()), [(0x0a, 4, 8, 255, 0x80)]);
        assert_eq!(told(PathUse::Gmp, fields()), [(0x2b, 4, 8, 255, 0x80)]);
    }

    #[test]
    fn other_paths_have_one_record() {
        let gid = |text: &str| text.parse().unwrap();
        let others = [
            Fields { hop_limit: 1, ..fields() },
            Fields { hop_limit: 0, ..fields() },
            Fields { dgid: gid("fec0:0:22:1::beef:1"), ..fields() },
            Fields { dgid: gid("fec0:0:0:2::beef:1"), ..fields() },
            Fields { dgid: gid("2001:db8:22:2::1"), ..fields() },
            Fields { sgid: gid("fe80::10:9"), ..fields() },
            Fields { sgid: gid("fec0:0:c000:1::1"), ..fields() },
        ];
        for other in others {
            assert_eq!(told(PathUse::All, other).len(), 1, "{other:?}");
        }
    }
}
