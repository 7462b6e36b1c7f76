// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests of the ACM codec: recorded bytes, hostile bytes, and round trips.

// RESOLVE uses host byte order, and the recordings are of little-endian machines.
#![cfg(target_endian = "little")]

mod support;

use ibarr_common::ib::{Guid, Lid, PKey, PathRecord};
use ibarr_common::wire::acm::{
    Address, Ask, Counters, Endpoint, Error, HEADER_LEN, MAX_REQUEST_LEN, Name, Names, Of, Reply,
    Request, Resolve, Status, Tid, length,
};
use ibarr_common::wire::ls::{PathFlags, Paths};
use ibarr_common::wire::path_record::{Fields, PathRecordWire};
use proptest::prelude::*;

use self::support::golden;

fn ip(text: &str) -> Address {
    Address::Ip(text.parse().unwrap())
}

fn name(text: &str) -> Address {
    Address::Name(Name::new(text).unwrap())
}

#[test]
fn recorded_requests_of_ib_acme_are_read_and_written_byte_for_byte() {
    let cases = [
        (
            include_str!("golden/acm-resolve-ipv4.hex"),
            Ask::Resolve(Resolve::to(None, ip("10.2.0.1"))),
        ),
        (
            include_str!("golden/acm-resolve-ipv4-from-memory.hex"),
            Ask::Resolve(Resolve::to(Some(ip("10.1.0.1")), ip("10.2.0.1")).from_memory()),
        ),
        (
            include_str!("golden/acm-resolve-ipv6.hex"),
            Ask::Resolve(Resolve::to(None, ip("fd00:2::1"))),
        ),
        (
            include_str!("golden/acm-resolve-names.hex"),
            Ask::Resolve(Resolve::to(Some(name("a")), name("node1"))),
        ),
        (include_str!("golden/acm-perf-service.hex"), Ask::Counters(Of::Service)),
        (include_str!("golden/acm-perf-index.hex"), Ask::Counters(Of::Index(1))),
        (include_str!("golden/acm-perf-address.hex"), Ask::Counters(Of::Address(ip("10.1.0.1")))),
        (include_str!("golden/acm-ep.hex"), Ask::Endpoint { index: 1, port: 1 }),
    ];
    for (recorded, ask) in cases {
        let bytes = golden(recorded);
        let request = Request { tid: Tid::default(), ask };
        assert_eq!(length(&bytes), Ok(Some(bytes.len())));
        assert_eq!(Request::parse(&bytes), Ok(request));
        assert_eq!(request.emit(&mut [0; MAX_REQUEST_LEN]), bytes);
    }
}

#[test]
fn recorded_request_for_a_gid_says_where_to_by_a_path() {
    let bytes = golden(include_str!("golden/acm-resolve-gids.hex"));
    let Ok(Request { ask: Ask::Resolve(resolve), .. }) = Request::parse(&bytes) else { panic!() };
    let path = PathRecordWire::from(resolve.path().unwrap());
    assert_eq!((path.sgid[15], path.dgid[15]), (1, 2));
    assert_eq!((resolve.source(), resolve.destination()), (None, None));
    let again = Request { tid: Tid::default(), ask: Ask::Resolve(resolve) };
    assert_eq!(again.emit(&mut [0; MAX_REQUEST_LEN]), bytes);
}

#[test]
fn recorded_replies_of_ibacm_are_read_and_written_byte_for_byte() {
    let resolve = Ask::Resolve(Resolve::to(None, ip("10.1.0.1")));
    let bytes = golden(include_str!("golden/acm-paths-reply.hex"));
    let Ok((_, Reply::Paths(paths, source))) = Reply::parse(&bytes) else { panic!() };
    let [path] = paths.as_slice() else { panic!() };
    let fields = Fields::parse(&path.record).unwrap();
    assert_eq!((path.flags, source), (PathFlags::GMP, Some(ip("10.1.0.1"))));
    assert_eq!((fields.dlid, fields.pkey), (Lid::new(3).unwrap(), PKey::DEFAULT));
    is_written(resolve, &Reply::Paths(paths, source), &bytes);

    let bytes = golden(include_str!("golden/acm-no-data-reply.hex"));
    is_written(resolve, &Reply::Refused(Status::NoData), &bytes);

    let bytes = golden(include_str!("golden/acm-perf-reply.hex"));
    let counters = Counters {
        errors: 0.into(),
        resolved: 3.into(),
        no_data: 1.into(),
        address_queries: 1.into(),
        address_cache: 0.into(),
        route_queries: 0.into(),
        route_cache: 1.into(),
    };
    is_written(Ask::Counters(Of::Service), &Reply::Counters(counters), &bytes);

    let bytes = golden(include_str!("golden/acm-ep-reply.hex"));
    let names = ["10.1.0.1/24", "fd00:1::1/64", "fe80::200:0:10:1/64", "(none)", "(none)-1"];
    let names: Vec<_> = names.iter().map(|name| Name::new(name).unwrap()).collect();
    let endpoint = Endpoint {
        device: Guid::new(0x0010_0000),
        port: 1,
        ports: 5,
        pkey: PKey::DEFAULT,
        provider: Name::new("ibacmp").unwrap(),
    };
    let reply = Reply::Endpoint(endpoint, Names::new(&names).unwrap());
    is_written(Ask::Endpoint { index: 2, port: 0 }, &reply, &bytes);

    let bytes = golden(include_str!("golden/acm-ep-unknown-reply.hex"));
    is_written(Ask::Endpoint { index: 9, port: 1 }, &Reply::Refused(Status::Invalid), &bytes);
}

/// Checks that `reply` to `ask` has these bytes, and these bytes are that reply.
fn is_written(ask: Ask, reply: &Reply<'_>, bytes: &[u8]) {
    let request = Request { tid: Tid::default(), ask };
    assert_eq!(Reply::parse(bytes), Ok((Tid::default(), *reply)));
    assert_eq!(reply.emit(&request, &mut [0; 4096]), Some(bytes));
    // No room for the last byte.
    assert_eq!(reply.emit(&request, &mut vec![0; bytes.len() - 1]), None);
}

#[test]
fn reply_of_another_kind_than_the_request_is_not_written() {
    let request = Request { tid: Tid::default(), ask: Ask::Counters(Of::Service) };
    let reply = Reply::Paths(Paths::NONE, None);
    assert_eq!(reply.emit(&request, &mut [0; 4096]), None);
}

#[test]
fn length_is_known_after_eight_bytes_and_bounded() {
    let bytes = golden(include_str!("golden/acm-resolve-ipv4.hex"));
    assert_eq!(length(&bytes[..7]), Ok(None));
    assert_eq!(length(&bytes[..8]), Ok(Some(88)));
    let with = |at: usize, byte| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        length(&bytes)
    };
    assert_eq!(with(0, 2), Err(Error::Version));
    assert_eq!(with(1, 4), Err(Error::Opcode));
    assert_eq!(with(6, 15), Err(Error::Length));
    assert_eq!(with(7, 3), Err(Error::Length), "more than 8 records");
}

#[test]
fn mistake_in_a_request_is_named() {
    let parse = |recorded, at: usize, byte| {
        let mut bytes = golden(recorded);
        bytes[at] = byte;
        Request::parse(&bytes).unwrap_err()
    };
    let (one, two) = (
        include_str!("golden/acm-resolve-ipv4.hex"),
        include_str!("golden/acm-resolve-ipv4-from-memory.hex"),
    );
    let (flags, kind, data) = (HEADER_LEN, HEADER_LEN + 4, HEADER_LEN + 8);
    assert_eq!(parse(one, 1, 0x81), Error::Opcode, "a reply is no request");
    assert_eq!(parse(one, flags, 1), Error::Destination, "a source alone");
    assert_eq!(parse(one, flags, 0), Error::Destination, "neither end");
    assert_eq!(parse(one, kind, 4), Error::Destination);
    assert_eq!(parse(two, kind, 4), Error::Source);
    assert_eq!(parse(two, flags, 2), Error::Destination, "two destinations");
    assert_eq!(parse(two, flags + 72, 1), Error::Source, "two sources");
    assert_eq!(parse(one, data, 224), Error::Address, "a multicast address");
    let names = include_str!("golden/acm-resolve-names.hex");
    assert_eq!(parse(names, data, 0), Error::Name, "an empty name");
    assert_eq!(parse(names, data, 7), Error::Name, "a bell");
    assert_eq!(parse(include_str!("golden/acm-perf-address.hex"), flags, 2), Error::Source);
}

proptest! {
    /// Nothing that a client sends is read past its end, or read in two ways.
    #[test]
    fn any_request_that_is_read_is_written_and_read_again(
        opcode in 1..=3u8,
        data in any::<[u8; 3]>(),
        tid in any::<[u8; 8]>(),
        records in proptest::collection::vec(record(), 0..10),
    ) {
        let len = 16 + 72 * records.len();
        let len = u16::try_from(len).unwrap();
        let len = if opcode == 1 { len.to_ne_bytes() } else { len.to_be_bytes() };
        let header = [&[1, opcode, 0], &data[..], &len, &tid].concat();
        let bytes = [&header[..], &records.concat()].concat();
        if let Ok(request) = Request::parse(&bytes) {
            prop_assert_eq!(request.tid, Tid(tid));
            let mut out = [0; MAX_REQUEST_LEN];
            prop_assert_eq!(Request::parse(request.emit(&mut out)), Ok(request));
        }
    }
}

/// A record of which much is often legal.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![Just(0), Just(1), Just(2), any::<u32>()];
    let kind = prop_oneof![Just(1), Just(2), Just(3), Just(16), any::<u16>()];
    let data = proptest::collection::vec(prop_oneof![Just(0), b'a'..=b'z', any::<u8>()], 64);
    (flags, kind, data).prop_map(|(flags, kind, data): (u32, u16, _)| {
        [&flags.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 2], &data].concat()
    })
}

#[test]
fn path_that_the_sa_is_asked_for_is_marked() {
    let path = PathRecord::from_octets([7; 64]);
    let request = Request { tid: Tid([3; 8]), ask: Ask::Resolve(Resolve::along(path).by_the_sa()) };
    let mut out = [0; MAX_REQUEST_LEN];
    let bytes = request.emit(&mut out);
    assert_eq!((bytes.len(), &bytes[16..20]), (88, &[0, 0, 0, 0x80][..]));
    assert_eq!(Request::parse(bytes), Ok(request));
}
