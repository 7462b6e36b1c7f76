// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests of the codec of the local service: recorded bytes, hostile bytes, and round trips.

// Netlink uses host byte order, and the recordings are of little-endian machines.
#![cfg(target_endian = "little")]

mod support;

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_common::ib::{DeviceName, Gid, PKey, PathRecord, PortNum, QosClass, ServiceId};
use ibarr_common::wire::ls::{
    Answer, Error, Kind, MAX_LEN, Message, Path, PathFlags, PathUse, Paths, PortId, Request,
    ResolveIp, ResolvePath, Seq, SetTimeout, Timeout, messages,
};
use proptest::prelude::*;

use self::support::golden;

#[test]
fn recorded_address_requests_are_read_and_written_byte_for_byte() {
    let cases = [
        (include_str!("golden/ls-ip-resolve-ipv4-request.hex"), 2, "10.2.0.5"),
        (include_str!("golden/ls-ip-resolve-ipv6-request.hex"), 5, "fd00:2::5"),
    ];
    for (recorded, seq, target) in cases {
        let bytes = golden(recorded);
        let ifindex = IfIndex::new(2).unwrap();
        let request = Request::ResolveIp(ResolveIp { ifindex, target: target.parse().unwrap() });
        let message = only(&bytes);
        assert_eq!((message.seq(), message.port_id()), (Seq(seq), PortId::KERNEL));
        assert_eq!(Request::parse(&message), Ok(request));
        assert_eq!(request.emit(Seq(seq)).as_ref(), bytes);
    }
}

#[test]
fn recorded_path_request_is_read_and_written_byte_for_byte() {
    let bytes = golden(include_str!("golden/ls-resolve-request.hex"));
    let request = Request::ResolvePath(rdma_cm_request());
    assert_eq!(Request::parse(&only(&bytes)), Ok(request));
    assert_eq!(request.emit(Seq(1)).as_ref(), bytes);
}

#[test]
fn recorded_address_answer_is_read_and_written_byte_for_byte() {
    let bytes = golden(include_str!("golden/ls-ip-resolve-response.hex"));
    let answer = Answer::Gid(gid("fe80::2:c903:0:201"));
    let message = only(&bytes);
    assert_eq!((message.seq(), message.port_id()), (Seq(3), PortId(180)));
    assert_eq!(Answer::parse(&message), Ok(answer));
    assert_eq!(answer.emit(Seq(3), PortId(180)).as_ref(), bytes);
}

#[test]
fn recorded_path_answers_are_read_and_written_byte_for_byte() {
    let cases = [
        (include_str!("golden/ls-resolve-response-1.hex"), 1, 180, &[PathFlags::GMP][..]),
        (
            include_str!("golden/ls-resolve-response-3.hex"),
            3,
            190,
            &[PathFlags::GMP, PathFlags::INBOUND, PathFlags::OUTBOUND],
        ),
    ];
    for (recorded, seq, port_id, flags) in cases {
        let bytes = golden(recorded);
        let answer = Answer::parse(&only(&bytes)).unwrap();
        let Answer::Paths(paths) = answer else { panic!("{answer:?}") };
        assert_eq!(paths.as_slice().iter().map(|path| path.flags).collect::<Vec<_>>(), flags);
        for path in paths.as_slice() {
            let record = path.record.octets();
            assert_eq!(record[8..24], gid("fe80::2:c903:0:201").octets());
            assert_eq!(record[24..40], gid("fe80::2:c903:0:101").octets());
        }
        assert_eq!(answer.emit(Seq(seq), PortId(port_id)).as_ref(), bytes);
    }
}

#[test]
fn messages_without_a_recording_have_the_layout_of_the_kernel_header() {
    let error = golden("10000000 0010 0001 07000000 00000000");
    assert_eq!(Answer::Error.emit(Seq(7), PortId(0)).as_ref(), error);
    assert_eq!(Answer::parse(&only(&error)), Ok(Answer::Error));

    let none = golden("10000000 0010 0000 07000000 00000000");
    assert_eq!(Answer::Paths(Paths::NONE).emit(Seq(7), PortId(0)).as_ref(), none);
    assert_eq!(Answer::parse(&only(&none)), Ok(Answer::Paths(Paths::NONE)));

    let timeout = golden("18000000 0110 0500 07000000 00000000 0800 0200 d0070000");
    assert_eq!(SetTimeout::new(Timeout::DEFAULT).emit(Seq(7), PortId(0)).as_ref(), timeout);
    let read = SetTimeout::parse(&only(&timeout)).unwrap();
    assert_eq!(read.timeout().get(), Duration::from_secs(2));
}

#[test]
fn verdicts_of_the_kernel_are_told_from_answers() {
    // EPERM for an answer with `NLM_F_REQUEST`: struct nlmsgerr, followed by the offending header.
    let refused = golden(
        "24000000 0200 0000 03000000 b4000000 ffffffff 24000000 0210 0100 03000000 b4000000",
    );
    let message = only(&refused);
    assert_eq!((message.kind(), message.errno()), (Kind::Verdict, Some(-1)));
    assert_eq!(Answer::parse(&message), Err(Error::Kind));
    let request = golden(include_str!("golden/ls-resolve-request.hex"));
    assert_eq!(only(&request).errno(), None);
    let short = golden("12000000 0200 0000 03000000 b4000000 ffff");
    assert_eq!(only(&short).errno(), None);
}

#[test]
fn requests_and_answers_are_never_taken_for_each_other() {
    let request = golden(include_str!("golden/ls-ip-resolve-ipv4-request.hex"));
    let answer = golden(include_str!("golden/ls-ip-resolve-response.hex"));
    assert_eq!(Answer::parse(&only(&request)), Err(Error::Kind));
    assert_eq!(Request::parse(&only(&answer)), Err(Error::Kind));
    let timeout = SetTimeout::new(Timeout::MIN).emit(Seq(1), PortId(1));
    assert_eq!(Request::parse(&only(timeout.as_ref())), Err(Error::Kind));
    assert_eq!(SetTimeout::parse(&only(&request)), Err(Error::Kind));
    // There is no negative answer to an address request; the kernel ignores this one.
    let error = golden("10000000 0210 0001 07000000 00000000");
    assert_eq!(Answer::parse(&only(&error)), Err(Error::Kind));
}

#[test]
fn messages_of_one_datagram_are_all_read() {
    let first = golden(include_str!("golden/ls-ip-resolve-ipv4-request.hex"));
    let second = golden(include_str!("golden/ls-ip-resolve-ipv6-request.hex"));
    let both = [&first[..], &second].concat();
    let seqs: Vec<_> = messages(&both).map(|message| message.unwrap().seq()).collect();
    assert_eq!(seqs, [Seq(2), Seq(5)]);
}

#[test]
fn broken_framing_is_an_error_once_and_then_the_end() {
    for datagram in [
        "00",
        "1c000000 02100100 02000000 000000", // shorter than a header
        "0f000000 02100100 02000000 00000000", // a length below the header's
        "00000000 02100100 02000000 00000000", // a length of nothing
        "1c000000 02100100 02000000 00000000 02000000", // a length past the end
        "ffffffff 02100100 02000000 00000000 02000000", // as far past as can be
    ] {
        let datagram = golden(datagram);
        let mut messages = messages(&datagram);
        assert_eq!(messages.next(), Some(Err(Error::Truncated)), "{datagram:02x?}");
        assert_eq!(messages.next(), None, "{datagram:02x?}");
        // With a header, the message can still be answered.
        let broken = messages.broken().map(|message| (message.kind(), message.seq()));
        assert_eq!(broken, (datagram.len() >= 16).then_some((Kind::ResolveIp, Seq(2))));
    }
    assert_eq!(messages(&[]).next(), None);
}

#[test]
fn unknown_attributes_are_skipped_and_unknown_mandatory_ones_refused() {
    let with = |attribute: &str| {
        let payload = format!("02000000 {attribute} 08000920 0a020005");
        Request::parse(&only(&framed(0x1002, 1, &golden(&payload))))
    };
    let plain = with("").unwrap();
    // Number 11 is unknown; number 2 belongs to another message; 0x8000 and 0x4000 are netlink's.
    for skipped in ["04000b00", "05000b00 ff000000", "08000200 00000000", "0400ff1f", "04000bc0"] {
        assert_eq!(with(skipped), Ok(plain), "{skipped}");
    }
    for refused in ["04000b20", "08000220 00000000", "0400ff3f", "04000be0"] {
        assert_eq!(with(refused), Err(Error::AttributeMandatory), "{refused}");
    }
}

#[test]
fn hostile_address_requests_are_refused_for_their_reason() {
    for (expected, payload) in [
        (Error::Truncated, "020000"),
        (Error::IfIndex, "00000000 08000920 0a020005"),
        (Error::AttributeMissing, "02000000"),
        (Error::AttributeLength, "02000000 07000920 0a020000"),
        (Error::AttributeLength, "02000000 0c000920 0a020005 00000000"),
        (Error::AttributeLength, "02000000 08000a20 0a020005"),
        (Error::Truncated, "02000000 08000920 0a0200"),
        (Error::Truncated, "02000000 03000920 0a020005"),
        (Error::Truncated, "02000000 00000920 0a020005"),
        (Error::Truncated, "02000000 ffff0920 0a020005"),
        (Error::Truncated, "02000000 08000920 0a020005 0000"),
        (Error::AttributeRepeated, "02000000 08000920 0a020005 08000920 0a020005"),
        (
            Error::AttributeRepeated,
            "02000000 08000920 0a020005 14000a20 fd000002000000000000000000000005",
        ),
    ] {
        let bytes = framed(0x1002, 1, &golden(payload));
        assert_eq!(Request::parse(&only(&bytes)), Err(expected), "{payload}");
    }
}

#[test]
fn hostile_path_requests_are_refused_for_their_reason() {
    let whole = golden(include_str!("golden/ls-resolve-request.hex"));
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        Request::parse(&only(&bytes))
    };
    assert_eq!(changed(16, &[0; 64]), Err(Error::DeviceName));
    assert_eq!(changed(16, b"../"), Err(Error::DeviceName));
    assert_eq!(changed(80, &[0]), Err(Error::PortNum));
    assert_eq!(changed(81, &[3]), Err(Error::PathUse));
    assert_eq!(changed(100, &[0; 16]), Err(Error::Gid));
    assert_eq!(changed(120, &[0xff]), Err(Error::Gid));
    assert_eq!(changed(140, &[0, 0x80]), Err(Error::PKey));
    assert_eq!(changed(148, &[0, 0x10]), Err(Error::QosClass));
    // DGID as an attribute that is skipped, and as a second SGID.
    assert_eq!(changed(98, &[0x0b, 0]), Err(Error::AttributeMissing));
    assert_eq!(changed(98, &[0x05, 0]), Err(Error::AttributeRepeated));
    // Padding may hold anything.
    assert_eq!(changed(82, &[0xaa; 2]), Ok(Request::ResolvePath(rdma_cm_request())));
    for length in 0..whole.len() - 16 {
        let cut = framed(0x1000, 1, &whole[16..16 + length]);
        let read = Request::parse(&only(&cut));
        // After SGID, after PKEY without and with its padding, after QOS_CLASS without padding.
        let is_whole = [120, 126, 127, 128, 134, 135].contains(&length);
        assert_eq!(read.is_ok(), is_whole, "{length}: {read:?}");
    }
}

#[test]
fn answers_that_the_kernel_does_not_take_are_refused_for_their_reason() {
    for (expected, kind, payload) in [
        (Error::AttributeMissing, 0x1002, String::new()),
        (Error::AttributeMissing, 0x1002, format!("14000420 {}", "11".repeat(16))),
        (Error::AttributeLength, 0x1002, format!("0c000400 {}", "11".repeat(8))),
        (Error::AttributeRepeated, 0x1002, format!("14000400 {}", "11".repeat(16)).repeat(2)),
        (Error::Gid, 0x1002, format!("14000400 {}", "00".repeat(16))),
        // The request of C ibarr: a family header before the attribute.
        (Error::Truncated, 0x1002, format!("02000000 14000400 {}", "11".repeat(16))),
        (Error::AttributeLength, 0x1000, format!("48000100 {}", "00".repeat(68))),
        (Error::AttributeLength, 0x1000, format!("50000100 {}", "00".repeat(76))),
        (Error::PathCount, 0x1000, format!("4c000100 {}", "00".repeat(72)).repeat(4)),
    ] {
        let bytes = framed(kind, 0, &golden(&payload));
        assert_eq!(Answer::parse(&only(&bytes)), Err(expected), "{payload}");
    }
}

#[test]
fn timeouts_outside_the_kernels_bounds_cannot_be_built() {
    for (millis, is_one) in
        [(0, false), (99, false), (100, true), (200_000, true), (200_001, false)]
    {
        assert_eq!(Timeout::from_millis(millis).is_some(), is_one, "{millis}");
    }
    let bytes = framed(0x1001, 1, &golden("0800 0200 63000000"));
    assert_eq!(SetTimeout::parse(&only(&bytes)), Err(Error::Timeout));
}

#[test]
fn at_most_three_paths_fit_into_an_answer() {
    let path = Path { flags: PathFlags::GMP, record: PathRecord::from_octets([0; 64]) };
    let paths = Paths::new(&[path; 3]).unwrap();
    assert_eq!(paths.as_slice(), [path; 3]);
    assert_eq!(Answer::Paths(paths).emit(Seq(1), PortId(1)).as_ref().len(), MAX_LEN);
    assert_eq!(Paths::new(&[path; 4]), None);
}

prop_compose! {
    fn path_request()(
        device in "[a-z0-9_]{1,64}",
        port in 1u8..=254,
        path_use in prop_oneof![
            Just(PathUse::All), Just(PathUse::Unidirectional), Just(PathUse::Gmp)
        ],
        service_id: Option<u64>,
        gids in (any_gid(), any_gid()),
        tclass: Option<u8>,
        pkey in proptest::option::of(1u16..=0x7fff),
        qos_class in proptest::option::of(0u16..=0x0fff),
    ) -> Request {
        Request::ResolvePath(ResolvePath {
            device: device.parse().unwrap(),
            port: PortNum::new(port).unwrap(),
            path_use,
            service_id: service_id.map(ServiceId::new),
            dgid: gids.0,
            sgid: gids.1,
            tclass,
            pkey: pkey.map(|pkey| PKey::new(pkey).unwrap()),
            qos_class: qos_class.map(|class| QosClass::new(class).unwrap()),
        })
    }
}

fn any_gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_filter_map("names no port", Gid::new)
}

fn any_request() -> impl Strategy<Value = Request> {
    let ip = (1u32.., any::<IpAddr>()).prop_map(|(ifindex, target)| {
        Request::ResolveIp(ResolveIp { ifindex: IfIndex::new(ifindex).unwrap(), target })
    });
    prop_oneof![ip, path_request()]
}

fn any_answer() -> impl Strategy<Value = Answer> {
    let path = (any::<u32>(), any::<[[u8; 32]; 2]>()).prop_map(|(flags, halves)| Path {
        flags: PathFlags::from_bits(flags),
        record: PathRecord::from_octets(halves.concat().try_into().unwrap()),
    });
    let paths = proptest::collection::vec(path, 0..=Paths::MAX)
        .prop_map(|paths| Answer::Paths(Paths::new(&paths).unwrap()));
    prop_oneof![any_gid().prop_map(Answer::Gid), paths, Just(Answer::Error)]
}

proptest! {
    #[test]
    fn emitted_messages_are_parsed_back(
        request in any_request(), answer in any_answer(), seq: u32, port_id: u32,
        millis in 100u32..=200_000,
    ) {
        let (seq, port_id) = (Seq(seq), PortId(port_id));
        let emitted = request.emit(seq);
        let message = only(emitted.as_ref());
        prop_assert_eq!((message.seq(), message.port_id()), (seq, PortId::KERNEL));
        prop_assert_eq!(message.kind(), request.kind());
        prop_assert_eq!(Request::parse(&message), Ok(request));

        let emitted = answer.emit(seq, port_id);
        let message = only(emitted.as_ref());
        prop_assert_eq!((message.seq(), message.port_id()), (seq, port_id));
        prop_assert_eq!(Answer::parse(&message), Ok(answer));

        let timeout = SetTimeout::new(Timeout::from_millis(millis).unwrap());
        let emitted = timeout.emit(seq, port_id);
        prop_assert_eq!(SetTimeout::parse(&only(emitted.as_ref())), Ok(timeout));
    }

    #[test]
    fn parsed_messages_are_emitted_back(
        bytes: Vec<u8>, request in any_request(), answer in any_answer(),
        at in 0usize..MAX_LEN, byte: u8,
    ) {
        let mut requested = request.emit(Seq(1)).as_ref().to_vec();
        let mut answered = answer.emit(Seq(1), PortId(1)).as_ref().to_vec();
        for near_miss in [&mut requested, &mut answered] {
            if let Some(old) = near_miss.get_mut(at) {
                *old = byte;
            }
        }
        for datagram in [bytes, requested, answered] {
            for message in messages(&datagram).map_while(Result::ok) {
                if let Ok(request) = Request::parse(&message) {
                    let again = request.emit(message.seq());
                    prop_assert_eq!(Request::parse(&only(again.as_ref())), Ok(request));
                }
                if let Ok(answer) = Answer::parse(&message) {
                    let again = answer.emit(message.seq(), message.port_id());
                    prop_assert_eq!(Answer::parse(&only(again.as_ref())), Ok(answer));
                }
            }
        }
    }
}

fn rdma_cm_request() -> ResolvePath {
    ResolvePath {
        device: "sib0".parse::<DeviceName>().unwrap(),
        port: PortNum::new(1).unwrap(),
        path_use: PathUse::All,
        service_id: Some(ServiceId::new(0x0106_0000)),
        dgid: gid("fe80::2:c903:0:201"),
        sgid: gid("fe80::2:c903:0:101"),
        tclass: None,
        pkey: Some(PKey::DEFAULT),
        qos_class: QosClass::new(0),
    }
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

/// The only message in `datagram`.
fn only(datagram: &[u8]) -> Message<'_> {
    let mut messages = messages(datagram);
    let message = messages.next().expect("a message").expect("a whole one");
    assert_eq!(messages.next(), None);
    message
}

/// A message whose length field is right.
fn framed(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(16 + payload.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(payload);
    bytes
}
