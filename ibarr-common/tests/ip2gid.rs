// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests of the ip2gid codec: recorded bytes, the table of hostile cases, and round trips.

mod support;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ibarr_common::ib::Gid;
use ibarr_common::wire::Error;
use ibarr_common::wire::ip2gid::{MsgId, Query, Reply, Version, can_ask};
use proptest::prelude::*;

use self::support::golden;

const GID: &str = "fe80::2:c903:0:201";

#[test]
fn recorded_c_query_is_read_and_written_byte_for_byte() {
    let bytes = golden(include_str!("golden/ip2gid-query-ipv4-c.hex"));
    let query = Query::new(Version::V0, MsgId(1), "10.2.0.5".parse().unwrap()).unwrap();
    assert_eq!(Query::parse(&bytes), Ok(query));
    assert_eq!(query.emit().as_ref(), bytes);
}

#[test]
fn recorded_c_replies_are_read_and_written_byte_for_byte() {
    let cases = [
        (include_str!("golden/ip2gid-reply-ipv4-c.hex"), Version::V0, 1, Some(GID)),
        (include_str!("golden/ip2gid-reply-negative-c.hex"), Version::V0, 7, None),
        (
            include_str!("golden/ip2gid-reply-v1-c.hex"),
            Version::V1,
            0x9ad2,
            Some("fe80::2:c903:31:78f2"),
        ),
    ];
    for (recorded, version, msg_id, gid) in cases {
        let bytes = golden(recorded);
        let gid = gid.map(|gid| gid.parse().unwrap());
        let reply = Reply { version, msg_id: MsgId(msg_id), gid };
        assert_eq!(Reply::parse(&bytes), Ok(reply));
        assert_eq!(reply.emit().as_ref(), bytes);
    }
}

#[test]
fn recorded_c_query_gets_the_recorded_c_reply() {
    let query = Query::parse(&golden(include_str!("golden/ip2gid-query-ipv4-c.hex"))).unwrap();
    let reply = query.reply(Some(GID.parse().unwrap())).emit();
    assert_eq!(reply.as_ref(), golden(include_str!("golden/ip2gid-reply-ipv4-c.hex")));
}

#[test]
fn ipv6_query_has_the_layout_of_the_table() {
    let query = Query::new(Version::V1, MsgId(0x0102_0304), "fd00:2::5".parse().unwrap()).unwrap();
    let bytes = golden("01000000 01020304 00010000 0002 0014 fd000002000000000000000000000005");
    assert_eq!(query.emit().as_ref(), bytes);
    assert_eq!(Query::parse(&bytes), Ok(query));
}

#[test]
fn queries_and_replies_are_never_taken_for_each_other() {
    let query = golden(include_str!("golden/ip2gid-query-ipv4-c.hex"));
    let reply = golden(include_str!("golden/ip2gid-reply-ipv4-c.hex"));
    let negative = golden(include_str!("golden/ip2gid-reply-negative-c.hex"));
    assert_eq!(Reply::parse(&query), Err(Error::TlvType));
    assert_eq!(Query::parse(&reply), Err(Error::TlvType));
    assert_eq!(Query::parse(&negative), Err(Error::TlvCount));
}

#[test]
fn hostile_queries_are_refused_for_the_reason_in_the_table() {
    let table = include_str!("data/ip2gid-cases.txt");
    for case in table.lines().filter(|line| !line.starts_with('#')) {
        let Some((expected, bytes)) = case.split_once('|') else { continue };
        let (expected, bytes) = (expected.trim(), golden(bytes.split('|').next().unwrap()));
        let got = Query::parse(&bytes).map_or_else(|error| format!("{error:?}"), |_| "ok".into());
        assert_eq!(got, expected, "{case}");
    }
}

#[test]
fn hostile_replies_are_refused_for_their_reason() {
    let cases = [
        (Error::Truncated, "00000000 00000007 0000 00"),
        (Error::Version, "02000000 00000007 0000 0000"),
        (Error::TrailingBytes, "00000000 00000007 0000 0000 00"),
        (
            Error::Truncated,
            "00000000 00000007 0002 0000 0010 0014 fe800000000000000002c90300000201",
        ),
        (
            Error::TlvCount,
            "00000000 00000007 0002 0000 0010 0014 fe800000000000000002c90300000201 \
             0010 0014 fe800000000000000002c90300000202",
        ),
        (
            Error::TlvCount,
            "00000000 00000007 0002 0000 0010 0014 fe800000000000000002c90300000201 \
             0001 0008 0a020005",
        ),
        (Error::TlvType, "00000000 00000007 0002 0000 1234 0004 0001 0008 0a020005"),
        (Error::TlvLength, "00000000 00000007 0001 0000 1234 0003"),
        (Error::Truncated, "00000000 00000007 0002 0000 1234 0004"),
        (Error::TrailingBytes, "00000000 00000007 0001 0000 1234 0004 1234 0004"),
        (
            Error::TlvLength,
            "00000000 00000007 0001 0000 0010 0000 fe800000000000000002c90300000201",
        ),
        (
            Error::TlvLength,
            "00000000 00000007 0001 0000 0010 ffff fe800000000000000002c90300000201",
        ),
        (Error::Truncated, "00000000 00000007 0001 0000 0010 0014 fe800000000000000002c903000002"),
        (
            Error::TrailingBytes,
            "00000000 00000007 0001 0000 0010 0014 fe800000000000000002c9030000020100",
        ),
        (Error::Gid, "00000000 00000007 0001 0000 0010 0014 00000000000000000000000000000000"),
        (Error::Gid, "00000000 00000007 0001 0000 0010 0014 ff120000000000000000000000000001"),
    ];
    for (expected, bytes) in cases {
        assert_eq!(Reply::parse(&golden(bytes)), Err(expected), "{bytes}");
    }
}

#[test]
fn unknown_tlvs_in_a_reply_are_ignored_wherever_they_stand() {
    let positive = "0010 0014 fe800000000000000002c90300000201";
    for (count, tlvs, gid) in [
        ("0002", format!("{positive} 1234 0004"), Some(GID)),
        ("0002", format!("1234 0004 {positive}"), Some(GID)),
        ("0003", format!("1234 0007 010203 {positive} ffff 0005 01"), Some(GID)),
        ("0001", "1234 0008 01020304".to_owned(), None),
        ("0002", "1234 0004 1234 0004".to_owned(), None),
    ] {
        let bytes = golden(&format!("01000000 00000007 {count} 0000 {tlvs}"));
        let gid = gid.map(|gid| gid.parse().unwrap());
        let reply = Reply { version: Version::V1, msg_id: MsgId(7), gid };
        assert_eq!(Reply::parse(&bytes), Ok(reply), "{tlvs}");
        assert_eq!(Query::parse(&bytes), Err(Error::TlvType), "{tlvs}");
    }
}

#[test]
fn sources_that_cannot_get_a_reply_cannot_ask() {
    for source in ["10.0.0.1", "169.254.3.4", "240.0.0.1", "fd00::1", "fe80::1"] {
        assert!(can_ask(source.parse().unwrap(), 40000), "{source}");
        assert!(!can_ask(source.parse().unwrap(), 0), "{source}");
    }
    for source in [
        "0.0.0.0",
        "127.0.0.1",
        "127.9.9.9",
        "224.0.0.1",
        "239.255.255.255",
        "255.255.255.255",
        "::",
        "::1",
        "ff02::1",
        "::ffff:10.0.0.1",
    ] {
        assert!(!can_ask(source.parse().unwrap(), 40000), "{source}");
    }
}

proptest! {
    #[test]
    fn emitted_messages_are_parsed_back(v1: bool, msg_id: u32, target: IpAddr, gid: Option<[u8; 16]>) {
        let version = if v1 { Version::V1 } else { Version::V0 };
        if let Some(query) = Query::new(version, MsgId(msg_id), target) {
            prop_assert_eq!(Query::parse(query.emit().as_ref()), Ok(query));
        }
        let reply = Reply { version, msg_id: MsgId(msg_id), gid: gid.and_then(Gid::new) };
        prop_assert_eq!(Reply::parse(reply.emit().as_ref()), Ok(reply));
    }

    #[test]
    fn parsed_messages_are_emitted_back_without_reserved_fields_and_unknown_tlvs(bytes: Vec<u8>, at in 0usize..48, byte: u8) {
        let mut near_miss = Query::new(Version::V1, MsgId(1), Ipv4Addr::new(10, 2, 0, 5).into())
            .unwrap().emit().as_ref().to_vec();
        if let Some(old) = near_miss.get_mut(at) {
            *old = byte;
        }
        for bytes in [bytes, near_miss] {
            if let Ok(query) = Query::parse(&bytes) {
                prop_assert_eq!(query.emit().as_ref().to_vec(), plain(&bytes));
            }
            if let Ok(reply) = Reply::parse(&bytes) {
                prop_assert_eq!(reply.emit().as_ref().to_vec(), plain(&bytes));
            }
        }
    }

    #[test]
    fn message_is_what_its_only_known_tlv_says(
        tlvs in prop::collection::vec(
            prop_oneof![
                Just("0001 0008 0a020005".to_owned()),
                Just("0010 0014 fe800000000000000002c90300000201".to_owned()),
                (0x11u16.., 0u8..40).prop_map(|(kind, len)| {
                    format!("{kind:04x} {:04x} {}", len + 4, "5a".repeat(len.into()))
                }),
            ],
            0..6,
        ),
    ) {
        let bytes = golden(&format!("01000000 00000007 {:04x} 0000 {}", tlvs.len(), tlvs.concat()));
        let known: Vec<_> = tlvs.iter().filter_map(|tlv| tlv.strip_prefix("00")?.get(..2)).collect();
        let known: Vec<_> = known.into_iter().filter(|kind| ["01", "10"].contains(kind)).collect();
        let is_short = bytes.len() <= 128;
        prop_assert_eq!(Query::parse(&bytes).is_ok(), is_short && known == ["01"]);
        let gid = Reply::parse(&bytes).ok().map(|reply| reply.gid.is_some());
        prop_assert_eq!(gid, match known[..] {
            [] if is_short => Some(false),
            ["10"] if is_short => Some(true),
            _ => None,
        });
    }

    #[test]
    fn queries_for_impossible_addresses_cannot_be_built(v4: [u8; 4]) {
        let mapped = Ipv4Addr::from(v4).to_ipv6_mapped();
        prop_assert_eq!(Query::new(Version::V1, MsgId(1), mapped.into()), None);
        prop_assert_eq!(Query::new(Version::V1, MsgId(1), Ipv6Addr::UNSPECIFIED.into()), None);
    }
}

/// A message without reserved fields and TLVs of unknown types.
fn plain(bytes: &[u8]) -> Vec<u8> {
    let (header, mut tlvs) = bytes.split_at(12);
    let mut plain = [&[header[0], 0, 0, 0], &header[4..8], &[0; 4]].concat();
    while let [kind_0, kind_1, length_0, length_1, ..] = *tlvs {
        let (tlv, rest) = tlvs.split_at(u16::from_be_bytes([length_0, length_1]).into());
        if [1, 2, 0x10].contains(&u16::from_be_bytes([kind_0, kind_1])) {
            plain.extend(tlv);
            plain[9] += 1;
        }
        tlvs = rest;
    }
    plain
}
