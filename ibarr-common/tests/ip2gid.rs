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
        (Error::TlvCount, "00000000 00000007 0002 0000 0010 0014 fe800000000000000002c90300000201"),
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
    fn parsed_messages_are_emitted_back_except_reserved_fields(bytes: Vec<u8>, at in 0usize..48, byte: u8) {
        let mut near_miss = Query::new(Version::V1, MsgId(1), Ipv4Addr::new(10, 2, 0, 5).into())
            .unwrap().emit().as_ref().to_vec();
        if let Some(old) = near_miss.get_mut(at) {
            *old = byte;
        }
        for bytes in [bytes, near_miss] {
            if let Ok(query) = Query::parse(&bytes) {
                prop_assert_eq!(query.emit().as_ref().to_vec(), without_reserved(&bytes));
            }
            if let Ok(reply) = Reply::parse(&bytes) {
                prop_assert_eq!(reply.emit().as_ref().to_vec(), without_reserved(&bytes));
            }
        }
    }

    #[test]
    fn queries_for_impossible_addresses_cannot_be_built(v4: [u8; 4]) {
        let mapped = Ipv4Addr::from(v4).to_ipv6_mapped();
        prop_assert_eq!(Query::new(Version::V1, MsgId(1), mapped.into()), None);
        prop_assert_eq!(Query::new(Version::V1, MsgId(1), Ipv6Addr::UNSPECIFIED.into()), None);
    }
}

fn without_reserved(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for reserved in [1, 2, 3, 10, 11] {
        bytes[reserved] = 0;
    }
    bytes
}
