// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests of the codecs of MADs: recorded bytes, hostile bytes, and round trips.

mod support;

use std::time::Duration;

use ibarr_common::ib::{
    FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, QosClass, Rate, ServiceId, Sl,
};
use ibarr_common::wire::class_port_info::{ClassPortInfo, ClassPortInfoWire};
use ibarr_common::wire::mad::{
    self, AttributeId, Class, Error, Header, Mad, Method, Status, Tid, Transaction,
};
use ibarr_common::wire::path_record::{Fields, PathRecordWire};
use ibarr_common::wire::sa::{
    Answer, PathCount, PathQuery, PathQuestion, Question, Refusal, Request, Response, other_records,
};
use ibarr_common::wire::umad::{AgentId, HEADER_LEN, PKeyIndex, Received, Send};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use self::support::golden;

const GET: &str = include_str!("golden/sa-path-get-ibsim.hex");
const GET_RESP: &str = include_str!("golden/sa-path-get-resp-ibsim.hex");
const TABLE: &str = include_str!("golden/sa-path-table-opensm.hex");
const RECORD: &str = include_str!("golden/sa-path-record-opensm.hex");

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
fn status_codes_are_distinguished() {
    let no_records = Status::new(0x0300);
    assert_eq!((no_records.class_code(), no_records.is_busy()), (3, false));
    assert!(Status::new(0x0001).is_busy() && !Status::new(0x0001).is_redirect());
    assert!(Status::new(0x0002).is_redirect() && !Status::new(0x0002).is_busy());
}

#[test]
fn recorded_question_is_read_and_written_byte_for_byte() {
    let mut bytes = golden(GET);
    let request = Request { tid: Tid::new(0x1122_0000), question: Question::Path(question()) };
    assert_eq!(Request::parse(&bytes), Ok(request));
    bytes.resize(mad::LEN, 0);
    assert_eq!(request.emit().as_ref(), bytes);
}

#[test]
fn question_for_several_paths_differs_in_method_and_count_alone() {
    let mut bytes = golden(GET);
    let count = PathCount::new(8).unwrap();
    let question = Question::Paths(question(), count);
    let request = Request { tid: Tid::new(0x1122_0000), question };
    bytes.resize(mad::LEN, 0);
    (bytes[3], bytes[105]) = (0x12, 0x88);
    assert_eq!(request.emit().as_ref(), bytes);
    assert_eq!(Request::parse(&bytes), Ok(request));
    // A table of any length is not asked for.
    bytes[105] = 0x80;
    assert_eq!(Request::parse(&bytes), Err(Error::Components));
    assert_eq!([0, 128].map(PathCount::new), [None; 2]);
}

#[test]
fn recorded_table_has_a_path_for_each_lid() {
    let bytes = golden(TABLE);
    let Answer::Path(first) = Response::parse(&bytes).unwrap().answer else { panic!() };
    let all: Vec<_> = [first].into_iter().chain(other_records(&bytes)).collect();
    let lids = |record| Fields::parse(record).map(|it| (it.dlid.get(), it.slid.get())).unwrap();
    let lids: Vec<_> = all.iter().map(lids).collect();
    assert_eq!(lids, [(0x40, 0xc), (0x41, 0xd), (0x42, 0xe), (0x43, 0xf)]);
    assert_eq!(table(&all)[56..], bytes[56..]);
}

/// A table as the kernel gives it, after it has put the answer together.
fn table(records: &[PathRecord]) -> Vec<u8> {
    let mut bytes = golden(GET_RESP)[..56].to_vec();
    bytes[3] = 0x92;
    bytes.extend(records.iter().flat_map(|record| record.octets()));
    bytes
}

#[test]
fn table_is_as_long_as_its_bytes_and_only_usable_records_count() {
    let good = PathRecord::from_octets(golden(RECORD).try_into().unwrap());
    let bad = PathRecord::from_octets([0; 64]);
    let others = |bytes: &[u8]| other_records(bytes).count();
    let first = |bytes: &[u8]| Response::parse(bytes).map(|response| response.answer);
    for count in [1, 2, 3, 4, 8, 64, 1_000] {
        let bytes = table(&vec![good; count]);
        assert_eq!((first(&bytes), others(&bytes)), (Ok(Answer::Path(good)), count - 1));
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(others(cut), count.saturating_sub(2));
    }
    let none = Answer::Refused(Refusal::NO_RECORDS);
    assert_eq!((first(&table(&[])), others(&table(&[]))), (Ok(none), 0));
    assert_eq!(first(&table(&[good])[..100]), Err(Error::Truncated));
    assert_eq!(first(&table(&[bad, good])), Err(Error::Gid));
    assert_eq!(others(&table(&[good, bad, good, bad])), 1);
    // With records of another length, only the first one is known.
    let mut longer = table(&[good; 3]);
    longer[45] = 9;
    assert_eq!((first(&longer), others(&longer)), (Ok(Answer::Path(good)), 0));
    // No other attribute is asked for as a table.
    let mut info = table(&[good]);
    info[17] = 1;
    assert_eq!(first(&info), Err(Error::Attribute));
}

#[test]
fn table_answers_only_the_question_for_one() {
    let answer = Answer::Path(PathRecord::from_octets(golden(RECORD).try_into().unwrap()));
    let several = Question::Paths(question(), PathCount::new(2).unwrap());
    let questions = [Question::Path(question()), several, Question::ClassPortInfo];
    for asked in questions {
        let response = Request { tid: Tid::new(1), question: asked }.answer(answer);
        for question in questions {
            assert_eq!(response.is_for(&question), question == asked);
        }
    }
}

#[test]
fn recorded_answer_is_read_and_its_record_kept_byte_for_byte() {
    let bytes = golden(GET_RESP);
    let response = Response::parse(&bytes).unwrap();
    assert_eq!(response.tid.transaction(), Transaction(0x1122_0000));
    let Answer::Path(record) = response.answer else { panic!("{response:?}") };
    assert_eq!(record.octets(), bytes[56..]);
    // Our bytes differ only in the mask, which the SA repeats from the question.
    let mut expected = bytes.clone();
    expected[48..56].fill(0);
    expected.resize(mad::LEN, 0);
    assert_eq!(response.emit().as_ref(), expected);
}

#[test]
fn recorded_record_is_read_and_written_byte_for_byte() {
    let record = PathRecord::from_octets(golden(RECORD).try_into().unwrap());
    let fields = Fields {
        dgid: gid("fe80::2:c903:0:201"),
        sgid: gid("fe80::2:c903:0:101"),
        dlid: Lid::new(2).unwrap(),
        slid: Lid::new(1).unwrap(),
        flow_label: FlowLabel::default(),
        hop_limit: 0,
        tclass: 0,
        reversible: true,
        pkey: PKey::DEFAULT,
        sl: Sl::default(),
        mtu: Mtu::from_low_bits(4),
        rate: Rate::from_low_bits(7),
        life_time: PacketLifeTime::from_low_bits(0x12),
    };
    assert_eq!(Fields::parse(&record), Ok(fields));
    assert_eq!(fields.emit(), record);
    assert_eq!((fields.mtu.bytes(), fields.rate.half_gigabits()), (Some(2048), Some(80)));
}

#[test]
fn hop_limit_is_the_last_byte_of_the_flow_field() {
    let mut octets: [u8; 64] = golden(RECORD).try_into().unwrap();
    octets[44..48].copy_from_slice(&[0, 0x12, 0x34, 0xff]);
    let fields = Fields::parse(&PathRecord::from_octets(octets)).unwrap();
    assert_eq!((fields.hop_limit, fields.flow_label.get()), (255, 0x1234));
}

#[test]
fn every_component_of_a_question_has_its_bit_and_place() {
    let question = PathQuestion {
        pkey: PKey::new(0x8001),
        tclass: Some(0x2a),
        service_id: Some(ServiceId::new(0x0106_0001)),
        qos_class: QosClass::new(0xabc),
        ..question()
    };
    let mad = Request { tid: Tid::new(1), question: Question::Path(question) }.emit();
    let mad = mad.octets();
    assert_eq!(mad[48..56], 0x7c0f_u64.to_be_bytes());
    assert_eq!(mad[56..64], 0x0106_0001_u64.to_be_bytes());
    assert_eq!(mad[56 + 48..56 + 54], [0x2a, 0x81, 0x80, 0x01, 0xab, 0xc0]);
}

#[test]
fn illegal_path_records_are_refused() {
    let with = |at: usize, value: u8, len: usize| {
        let mut bytes = golden(GET_RESP);
        bytes[56 + at..56 + at + len].fill(value);
        Response::parse(&bytes).map(|response| response.answer)
    };
    assert_eq!(with(8, 0, 16), Err(Error::Gid));
    assert_eq!(with(24, 0xff, 16), Err(Error::Gid));
    assert_eq!(with(40, 0, 2), Err(Error::Lid));
    assert_eq!(with(40, 0xc0, 2), Err(Error::Lid));
    assert_eq!(with(42, 0xff, 2), Err(Error::Lid));
    assert_eq!(with(50, 0, 2), Err(Error::PKey));
    assert_eq!(Response::parse(&golden(GET_RESP)[..119]), Err(Error::Truncated));
}

#[test]
fn question_and_answer_are_never_taken_for_each_other() {
    assert_eq!(Response::parse(&golden(GET)), Err(Error::Method));
    assert_eq!(Request::parse(&golden(GET_RESP)), Err(Error::Method));
}

#[test]
fn refusals_are_distinguished_and_need_no_attribute() {
    let request = Request { tid: Tid::new(7), question: Question::Path(question()) };
    let cases = [
        (Refusal::BUSY, true, false),
        (Refusal::NO_RESOURCES, true, false),
        (Refusal::NO_RECORDS, false, true),
        (Refusal::INVALID_GID, false, true),
        (Refusal::TOO_MANY_RECORDS, false, false),
        (Refusal::REDIRECT, false, false),
    ];
    for (refusal, is_temporary, is_final) in cases {
        assert_eq!((refusal.is_temporary(), refusal.is_final()), (is_temporary, is_final));
        let response = request.answer(Answer::Refused(refusal));
        let mad = response.emit();
        assert_eq!(Response::parse(&mad.octets()[..56]), Ok(response), "{refusal}");
    }
    assert_eq!(Refusal::new(Status::OK), None);
}

#[test]
fn quality_of_service_is_bit_1_of_the_second_capability_mask() {
    let mut bytes = [0; 72];
    bytes[4..8].copy_from_slice(&(2_u32 << 5 | 0x12).to_be_bytes());
    let wire = ClassPortInfoWire::read_from_bytes(&bytes).unwrap();
    assert_eq!(ClassPortInfo::from(wire), ClassPortInfo { has_qos: true });
    let other =
        ClassPortInfoWire { capability_mask_2_and_resp_time: (!(2_u32 << 5)).into(), ..wire };
    assert_eq!(ClassPortInfo::from(other), ClassPortInfo { has_qos: false });
}

// The recordings are of a little-endian machine.
#[cfg(target_endian = "little")]
#[test]
fn recorded_umad_headers_are_written_and_read_byte_for_byte() {
    let mut expected = golden(include_str!("golden/umad-write-56-ibsim.hex"));
    // ibarr resends by itself; the recorded program let the kernel do it.
    expected[12] = 0;
    expected.extend(golden(GET));
    expected.resize(56 + mad::LEN, 0);
    let request = Request { tid: Tid::new(0x1122_0000), question: Question::Path(question()) };
    let send = Send {
        agent: AgentId(0),
        to: Lid::new(1).unwrap(),
        sl: Sl::default(),
        pkey_index: PKeyIndex(5),
        timeout: Duration::from_secs(1),
        mad: request.emit(),
    };
    // The recorded program used the short header, which has no P_Key index.
    expected.splice(56..56, [5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(send.emit().as_ref(), expected);

    let mut read = golden(include_str!("golden/umad-read-56-ibsim.hex"));
    read.extend([0; 8]);
    read.extend(golden(GET_RESP));
    let expected = Received::Mad { agent: AgentId(0), from: Lid::new(1), mad: &golden(GET_RESP) };
    assert_eq!(Received::parse(&read), Ok(expected));
}

#[test]
fn unanswered_request_is_read_from_a_header_alone() {
    let sent = golden(GET);
    let received = Received::Unanswered { agent: AgentId(3), tid: Tid::new(0x1122_0000) };
    let bytes = received.emit(&sent[..24]);
    assert_eq!(bytes.as_ref().len(), HEADER_LEN + 24);
    assert_eq!(Received::parse(bytes.as_ref()), Ok(received));
    let cut = &bytes.as_ref()[..HEADER_LEN + 23];
    assert_eq!(Received::parse(cut), Err(Error::Truncated));
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

/// The question of the recording.
fn question() -> PathQuestion {
    PathQuestion {
        dgid: gid("fe80::10:1"),
        sgid: gid("fe80::10:9"),
        reversible: true,
        pkey: None,
        tclass: None,
        service_id: None,
        qos_class: None,
    }
}

fn any_gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_filter_map("no port", Gid::new)
}

prop_compose! {
    fn any_question()(
        dgid in any_gid(),
        sgid in any_gid(),
        reversible: bool,
        pkey in any::<Option<u16>>(),
        tclass: Option<u8>,
        service_id in any::<Option<u64>>(),
        qos_class in any::<Option<u16>>(),
    ) -> PathQuestion {
        PathQuestion {
            dgid,
            sgid,
            reversible,
            pkey: pkey.and_then(PKey::new),
            tclass,
            service_id: service_id.map(ServiceId::new),
            qos_class: qos_class.and_then(QosClass::new),
        }
    }
}

proptest! {
    #[test]
    fn emitted_questions_are_parsed_back(question in any_question(), tid: u64) {
        let request = Request { tid: Tid::new(tid), question: Question::Path(question) };
        prop_assert_eq!(Request::parse(request.emit().as_ref()), Ok(request));
    }

    #[test]
    fn any_bytes_parse_without_panic_and_results_are_emitted_back(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        start in 0..4_u8,
    ) {
        // Random bytes are rarely a MAD of the class.
        let recorded = golden(if start == 0 { GET } else { GET_RESP });
        let header = if start == 2 { &[] } else { &recorded[..24] };
        bytes.iter_mut().zip(header).for_each(|(to, from)| *to = *from);
        if let (3, Some(method)) = (start, bytes.get_mut(3)) {
            *method = 0x92;
        }
        if let Ok(request) = Request::parse(&bytes) {
            prop_assert_eq!(Request::parse(request.emit().as_ref()), Ok(request));
        }
        if let Ok(response) = Response::parse(&bytes) {
            prop_assert_eq!(Response::parse(response.emit().as_ref()), Ok(response));
        }
        prop_assert!(other_records(&bytes).count() <= bytes.len() / PathRecord::LEN);
        if let Ok(Received::Mad { mad, .. }) = Received::parse(&bytes) {
            prop_assert_eq!(mad, &bytes[HEADER_LEN..]);
        }
    }

    #[test]
    fn emitted_mad_follows_its_header(
        octets in any::<[u8; 32]>(), agent: u32, millis: u32,
    ) {
        let mut mad = [0; mad::LEN];
        mad[..32].copy_from_slice(&octets);
        let send = Send {
            agent: AgentId(agent),
            to: Lid::new(1).unwrap(),
            sl: Sl::default(),
            pkey_index: PKeyIndex(0),
            timeout: Duration::from_millis(millis.into()),
            mad: Mad::from_octets(mad),
        };
        let bytes = send.emit();
        let received = Received::Mad { agent: AgentId(agent), from: Lid::new(1), mad: &mad };
        prop_assert_eq!(Received::parse(bytes.as_ref()), Ok(received));
        let again = received.emit(&mad);
        prop_assert_eq!(Received::parse(again.as_ref()), Ok(received));
    }

    #[test]
    fn header_is_parsed_from_24_bytes_of_base_version_1_only(mut mad: Vec<u8>, one: bool) {
        if one && let Some(version) = mad.first_mut() {
            *version = 1;
        }
        match Header::parse(&mad) {
            Ok((header, rest)) => {
                prop_assert_eq!(rest, &mad[24..]);
                mad.truncate(24);
                // The reserved bytes.
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

/// A record whose fields are all different from 0.
fn full_record() -> PathRecord {
    let octets: Vec<_> = (0..64).map(|at| (0x11 + 3 * at) | 1).collect();
    PathRecord::from_octets(octets.try_into().unwrap())
}

#[test]
fn known_fields_of_a_path_are_those_that_the_mask_names() {
    let tid = Tid::new(1);
    let mad = |query| Request { tid, question: Question::Known(query) }.emit();
    let all = mad(PathQuery::known(full_record()));
    let bytes = all.octets();
    // All but the reserved one, and one path.
    assert_eq!(bytes[48..56], 0x7f_ff7f_u64.to_be_bytes());
    let mut expected = full_record().octets();
    expected[44] &= 0x8f;
    expected[49] = 0x81;
    expected[58..].fill(0);
    assert_eq!(bytes[56..120], expected);
    let none = mad(PathQuery::ANY);
    assert_eq!(none.octets()[48..56], 0x1000_u64.to_be_bytes());
    // A field of a record that is 0 is not known, and another one is.
    let lids = PathRecordWire {
        dlid: 5.into(),
        slid: 1.into(),
        ..PathRecord::from_octets([0; 64]).into()
    };
    let lids = PathQuery::known(lids.into());
    let bytes = mad(lids);
    assert_eq!(bytes.octets()[48..56], 0x1030_u64.to_be_bytes());
    assert_eq!((lids.dlid(), lids.slid(), lids.dgid()), (Lid::new(5), Lid::new(1), None));
    assert_eq!(
        Request::parse(bytes.as_ref()),
        Ok(Request { tid, question: Question::Known(lids) })
    );
}

#[test]
fn question_between_gids_stays_one_when_its_fields_are_known() {
    let query = PathQuery::from(question());
    assert_eq!(PathQuestion::try_from(query), Ok(question()));
    let slid = PathRecordWire { slid: 1.into(), ..PathRecord::from_octets([0; 64]).into() };
    let more = PathQuery::known(slid.into()).with_destination(question().dgid).unwrap();
    let more = more.with_source(question().sgid).unwrap().reversible();
    assert_eq!(PathQuestion::try_from(more), Err(Error::Components));
    // Its ends are fixed.
    assert_eq!(more.with_destination(question().sgid), None);
    assert_eq!(more.with_source(question().dgid), None);
    // The partition is only chosen once.
    let partition = PKey::new(0x8001).unwrap();
    assert_eq!(more.in_partition(partition).in_partition(PKey::DEFAULT).pkey(), Some(partition));
}

proptest! {
    #[test]
    fn any_known_fields_are_read_as_written(record in any::<[u8; 32]>(), more in any::<[u8; 32]>()) {
        let octets: Vec<_> = record.into_iter().chain(more).map(|byte| byte & (byte >> 1)).collect();
        let query = PathQuery::known(PathRecord::from_octets(octets.try_into().unwrap()));
        let mad = Request { tid: Tid::new(1), question: Question::Known(query) }.emit();
        let question = Request::parse(mad.as_ref()).map(|request| request.question);
        match PathQuestion::try_from(query) {
            Ok(between_gids) => prop_assert_eq!(question, Ok(Question::Path(between_gids))),
            Err(Error::Components) => prop_assert_eq!(question, Ok(Question::Known(query))),
            Err(error) => prop_assert_eq!(question, Err(error)),
        }
    }
}
