// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The codecs of MADs against recorded bytes, hostile ones, and themselves.

mod support;

use ibarr_common::wire::mad::{
    AttributeId, Class, Error, Header, Method, Status, Tid, Transaction,
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use self::support::golden;

const GET: &str = include_str!("golden/sa-path-get-ibsim.hex");
const GET_RESP: &str = include_str!("golden/sa-path-get-resp-ibsim.hex");

#[test]
fn recorded_headers_are_read_and_written_byte_for_byte() {
    let header = |method, tid| Header {
        class: Class::SUBNET_ADM,
        class_version: 2,
        method,
        status: Status::OK,
        class_specific: 0,
        tid: Tid::new(tid),
        attribute: AttributeId::PATH_RECORD,
        modifier: 0,
    };
    let cases = [
        (GET, header(Method::GET, 0x1122_0000)),
        (GET_RESP, header(Method::GET_RESP, 0x0001_0000_1122_0000)),
    ];
    for (recorded, expected) in cases {
        let bytes = golden(recorded);
        let (header, rest) = Header::parse(&bytes).unwrap();
        assert_eq!(header, expected);
        assert_eq!(rest, &bytes[24..]);
        assert_eq!(header.wire().as_bytes(), &bytes[..24]);
        assert_eq!(header.tid.transaction(), Transaction(0x1122_0000));
    }
}

#[test]
fn method_says_whether_it_is_an_answer() {
    assert!(!Method::GET.is_response() && !Method::GET_TABLE.is_response());
    assert!(Method::GET_RESP.is_response() && Method::TRAP_REPRESS.is_response());
}

#[test]
fn status_is_told_apart() {
    let no_records = Status::new(0x0300);
    assert_eq!((no_records.class_code(), no_records.is_busy()), (3, false));
    assert!(Status::new(0x0001).is_busy() && !Status::new(0x0001).is_redirect());
    assert!(Status::new(0x0002).is_redirect() && !Status::new(0x0002).is_busy());
}

proptest! {
    #[test]
    fn header_is_read_from_any_24_bytes_of_base_version_1_and_no_other(mut mad: Vec<u8>, one: bool) {
        if one && let Some(version) = mad.first_mut() {
            *version = 1;
        }
        match Header::parse(&mad) {
            Ok((header, rest)) => {
                prop_assert_eq!(rest, &mad[24..]);
                mad.truncate(24);
                // Reserved.
                mad[18..20].fill(0);
                let wire = header.wire();
                prop_assert_eq!(wire.as_bytes(), &mad[..]);
            }
            Err(Error::Truncated) => prop_assert!(mad.len() < 24),
            Err(error) => {
                prop_assert_eq!(error, Error::BaseVersion);
                prop_assert!(mad[0] != 1);
            }
        }
    }
}
