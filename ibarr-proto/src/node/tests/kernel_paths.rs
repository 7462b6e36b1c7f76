// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's path requests, the resulting questions to the SA, and the answers.

use ibarr_common::ib::{DeviceName, Lid, PKey, PathRecord, PortNum, QosClass, ServiceId};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::ls::{PathUse, ResolvePath};
use ibarr_common::wire::path_record::PathRecordWire;
use ibarr_common::wire::sa::{self as wire, PathQuestion, Refusal};
use ibarr_common::wire::umad::PKeyIndex;

use super::*;
use crate::paths::{PortFacts, PortName};
use crate::sa::PortIndex;

const PORT: PortIndex = PortIndex(3);

fn port() -> PortName {
    PortName { device: "mlx5_0".parse().unwrap(), port: PortNum::new(1).unwrap() }
}

/// The request of rdma_cm over IPv4.
fn request() -> ResolvePath {
    ResolvePath {
        device: port().device,
        port: port().port,
        path_use: PathUse::All,
        service_id: Some(ServiceId::new(0x0106_0001)),
        dgid: gid("fec0:0:22:2::beef:1"),
        sgid: gid("fec0:0:1:1::10:9"),
        tclass: None,
        pkey: Some(PKey::DEFAULT),
        qos_class: QosClass::new(0x10),
    }
}

fn facts() -> PortFacts {
    PortFacts {
        is_active: true,
        has_umad: true,
        lid: Lid::new(8),
        sm_lid: Lid::new(1),
        gids: [gid("fec0:0:1:1::10:9")].into(),
        pkeys: vec![(PKeyIndex(0), PKey::DEFAULT)],
        ..PortFacts::default()
    }
}

impl Rig {
    fn with_port() -> Self {
        let mut rig = Self::new();
        let input = paths::Input::Port { port: PORT, name: port(), facts: facts() };
        rig.tell(Input::Paths(input));
        // The pause after an SA has appeared.
        rig.pass(Duration::from_secs(1));
        rig.sa(|question| match question {
            wire::Question::ClassPortInfo => {
                Some(wire::Answer::ClassPortInfo(ClassPortInfo::default()))
            }
            _ => None,
        });
        rig
    }

    fn asks_path(&mut self, seq: u32, request: ResolvePath) {
        let message = Request::ResolvePath(request).emit(Seq(seq));
        let bytes = message.as_ref();
        let input = local_service::Input::Datagram { sender: Sender::Kernel, bytes, cut: false };
        self.tell(Input::LocalService(input));
        self.tell(Input::LocalService(local_service::Input::Drained));
    }

    /// The SA answers its requests. Returns the paths that it was asked for.
    fn sa(
        &mut self,
        answer: impl Fn(&wire::Question) -> Option<wire::Answer>,
    ) -> Vec<PathQuestion> {
        let mut asked = Vec::new();
        while let Some(transmit) = self.node.paths.poll_transmit() {
            assert_eq!(transmit.port, PORT);
            let request = wire::Request::parse(transmit.mad.as_ref()).unwrap();
            if let wire::Question::Path(question) = request.question {
                asked.push(question);
            }
            if let Some(answer) = answer(&request.question) {
                let mad = request.answer(answer).emit();
                let from = Some(transmit.sa.lid);
                let input = paths::Input::Mad { port: PORT, from, mad: mad.as_ref() };
                self.tell(Input::Paths(input));
            }
        }
        asked
    }

    /// The answers as the kernel receives them.
    #[expect(clippy::type_complexity, reason = "a test of it compares numbers, flags and records")]
    fn told_paths(&mut self) -> Vec<(u32, Option<Vec<(u32, PathRecord)>>)> {
        let mut told = Vec::new();
        while let Some(transmit) = self.node.local_service.poll_transmit() {
            let Transmit::Message(message) = transmit else { continue };
            let message = messages(message.as_ref()).next().unwrap().unwrap();
            let Seq(seq) = message.seq();
            told.push(match Answer::parse(&message).unwrap() {
                Answer::Paths(paths) => {
                    let paths = paths.as_slice().iter();
                    (seq, Some(paths.map(|path| (path.flags.bits(), path.record)).collect()))
                }
                Answer::Error => (seq, None),
                Answer::Gid(gid) => panic!("{gid}"),
            });
        }
        told
    }
}

fn record(question: &PathQuestion, hop_limit: u8) -> PathRecord {
    let mut octets = [0; 64];
    octets[8..24].copy_from_slice(&question.dgid.octets());
    octets[24..40].copy_from_slice(&question.sgid.octets());
    octets[40..44].copy_from_slice(&[0, 4, 0, 8]);
    octets[47] = hop_limit;
    octets[49..52].copy_from_slice(&[0x80, 0xff, 0xff]);
    // Fields that ibarr does not interpret are passed on too.
    octets[58..].copy_from_slice(b"opaque");
    PathRecord::from_octets(octets)
}

fn path(hop_limit: u8) -> impl Fn(&wire::Question) -> Option<wire::Answer> {
    move |question| match question {
        wire::Question::Path(question) => Some(wire::Answer::Path(record(question, hop_limit))),
        _ => None,
    }
}

#[test]
fn kernel_gets_the_path_unchanged_and_the_sa_is_asked_once() {
    let mut rig = Rig::with_port();
    for seq in 1..=2 {
        rig.asks_path(seq, request());
    }
    let asked = rig.sa(path(0));
    let expected = PathQuestion {
        dgid: request().dgid,
        sgid: request().sgid,
        reversible: true,
        pkey: request().pkey,
        tclass: None,
        service_id: None,
        qos_class: None,
    };
    assert_eq!(asked, [expected]);
    rig.asks_path(3, request());
    assert_eq!(rig.sa(path(0)), []);
    let paths = || Some(vec![(0x2b, record(&expected, 0))]);
    assert_eq!(rig.told_paths(), [(1, paths()), (2, paths()), (3, paths())]);
}

/// SA's record by its hop limit and the GIDs that it has, and the flags and GIDs of the records that the kernel is
/// given: none means that it asks the SA itself.
#[test]
fn kernel_is_given_no_record_with_other_gids_than_it_asked_for() {
    let ResolvePath { dgid, sgid, .. } = request();
    let (elsewhere, link_local) = (gid("fec0:0:22:3::beef:1"), gid("fe80::10:9"));
    let one = Some(vec![(0x2b, dgid, sgid)]);
    let three = Some([0x2b, 0x12, 0x0a].map(|flags| (flags, dgid, sgid)).to_vec());
    let rows = [
        (0, dgid, sgid, one.clone()),
        (1, dgid, sgid, one),
        (2, dgid, sgid, three),
        (0, elsewhere, sgid, None),
        (1, elsewhere, sgid, None),
        (2, elsewhere, sgid, None),
        (0, dgid, link_local, None),
        (1, dgid, link_local, None),
        (2, dgid, link_local, None),
    ];
    for (hop_limit, dgid, sgid, told) in rows {
        let mut rig = Rig::with_port();
        // The second request finds the record in memory, if it is there.
        for seq in 1..=2 {
            rig.asks_path(seq, request());
            let asked = rig.sa(|question| match question {
                wire::Question::Path(question) => {
                    let question = PathQuestion { dgid, sgid, ..*question };
                    Some(wire::Answer::Path(record(&question, hop_limit)))
                }
                _ => None,
            });
            assert_eq!(asked.len(), usize::from(seq == 1 || told.is_none()));
            let ends = |(flags, record): (u32, PathRecord)| {
                let PathRecordWire { dgid, sgid, flow, .. } = record.into();
                assert_eq!(flow.get(), u32::from(hop_limit));
                (flags, Gid::new(dgid).unwrap(), Gid::new(sgid).unwrap())
            };
            let given = rig.told_paths().into_iter().map(|(seq, paths)| {
                (seq, paths.map(|paths| paths.into_iter().map(ends).collect::<Vec<_>>()))
            });
            assert_eq!(given.collect::<Vec<_>>(), [(seq, told.clone())]);
        }
        let counted = rig.node.paths.counters().get(paths::Counter::OtherGids);
        assert_eq!(counted, if told.is_none() { 2 } else { 0 });
    }
}

/// The answer at once passes no queue, so what follows from it is noted there.
#[test]
fn old_path_is_given_at_once_and_refreshed() {
    let mut rig = Rig::with_port();
    rig.asks_path(1, request());
    rig.sa(path(0));
    rig.pass(paths::Config::default().ttl * 15 / 16);
    rig.told_paths();
    rig.node.is_drained = true;
    rig.asks_path(2, request());
    assert!(!rig.node.is_drained, "a MAD waits");
    assert!(matches!(rig.told_paths()[..], [(2, Some(_))]));
    assert_eq!(rig.sa(path(1)).len(), 1);
    rig.asks_path(3, request());
    let [(3, Some(paths))] = &rig.told_paths()[..] else { panic!() };
    let [(_, new)] = paths[..] else { panic!() };
    assert_eq!(new.octets()[47], 1);
    assert_eq!(rig.node.paths.counters().get(paths::Counter::FoundCache), 2);
}

/// It is asked for again from time to time, from its first use on.
#[test]
fn path_given_at_once_changes_when_something_is_due() {
    let mut rig = Rig::with_port();
    rig.asks_path(1, request());
    let [question] = rig.sa(path(0))[..] else { panic!("the SA is asked") };
    let mut recalled = |times: usize| {
        rig.node.poll_timeout();
        let found =
            (0..times).filter(|_| rig.node.recall_at_once(rig.now, &port(), question).is_some());
        (found.count(), rig.node.is_due_known)
    };
    assert_eq!(recalled(1), (1, false));
    assert_eq!(recalled(5), (5, true), "it is looked at already");
}

#[test]
fn remembered_answer_for_the_kernel_changes_no_other_due_time() {
    let mut rig = Rig::with_port();
    rig.asks_path(1, request());
    rig.sa(path(0));
    for (seq, is_known) in [(2, false), (3, true)] {
        rig.node.poll_timeout();
        rig.asks_path(seq, request());
        assert_eq!(rig.node.is_due_known, is_known, "request {seq}; 2 is its first use");
    }
    rig.asks_path(4, ResolvePath { dgid: gid("fec0:0:22:2::beef:2"), ..request() });
    assert!(!rig.node.is_due_known, "the SA is asked");
}

#[test]
fn kernel_that_asks_for_all_paths_gets_three_with_floating_lids() {
    let mut rig = Rig::with_port();
    rig.asks_path(1, request());
    rig.sa(path(255));
    rig.asks_path(2, ResolvePath { path_use: PathUse::Gmp, ..request() });
    rig.asks_path(3, ResolvePath { path_use: PathUse::Unidirectional, ..request() });
    let asked = rig.sa(path(255));
    assert_eq!(asked.len(), 1, "one way may be another path");
    assert!(!asked[0].reversible);
    let told = rig.told_paths();
    let flags: Vec<(u32, Vec<u32>)> = told
        .into_iter()
        .map(|(seq, paths)| (seq, paths.unwrap().into_iter().map(|(flags, _)| flags).collect()))
        .collect();
    assert_eq!(flags, [(1, vec![0x2b, 0x12, 0x0a]), (2, vec![0x2b]), (3, vec![0x0a])]);
}

#[test]
fn no_record_is_final_and_silence_is_not() {
    let mut rig = Rig::with_port();
    let no_records = |_: &wire::Question| Some(wire::Answer::Refused(Refusal::NO_RECORDS));
    rig.asks_path(1, request());
    rig.sa(no_records);
    rig.asks_path(2, request());
    assert_eq!(rig.told_paths(), [(1, Some(vec![])), (2, Some(vec![]))]);

    rig.asks_path(3, ResolvePath { tclass: Some(1), ..request() });
    rig.asks_path(4, ResolvePath { tclass: Some(2), ..request() });
    rig.sa(|_| None);
    rig.pass(Duration::from_millis(249));
    assert_eq!(rig.told_paths(), []);
    // One of them, once its MAD is lost.
    rig.pass(Duration::from_millis(101));
    let [(seq, None)] = rig.told_paths()[..] else { panic!() };
    rig.sa(|_| None);
    rig.pass(Duration::from_millis(2_049));
    assert_eq!(rig.told_paths(), []);
    // The kernel's own time-out is at 3 s.
    rig.pass(Duration::from_millis(1));
    assert_eq!(rig.told_paths(), [(7 - seq, Some(vec![]))]);
    let counters = rig.node.local_service.counters();
    assert_eq!(counters.get(Counter::PathsNone), 2);
    assert_eq!(counters.get(Counter::PathsSilent), 1);
}

#[test]
fn kernel_is_left_few_of_many_unanswered_requests() {
    let mut rig = Rig::with_port();
    let mut left = 0;
    for seq in 0..200 {
        let tclass = Some(u8::try_from(seq).unwrap());
        rig.asks_path(seq, ResolvePath { tclass, ..request() });
        rig.sa(|_| None);
        rig.pass(Duration::from_millis(100));
        for (_, answer) in rig.told_paths() {
            assert!(answer.as_ref().is_none_or(Vec::is_empty));
            left += u32::from(answer.is_none());
        }
    }
    // In 20 s, there are less than four seconds from one to the next.
    assert!((3..=20 / 3).contains(&left), "{left} left to the kernel");
    let counters = rig.node.local_service.counters();
    assert_eq!(counters.get(Counter::PathsSilent), u64::from(left));
    assert!(counters.get(Counter::PathsSpared) >= 150);
}

#[test]
fn unknown_port_makes_the_kernel_ask_the_sa_at_once() {
    let mut rig = Rig::with_port();
    let device: DeviceName = "mlx5_01".parse().unwrap();
    rig.asks_path(1, ResolvePath { device, ..request() });
    rig.asks_path(2, ResolvePath { port: PortNum::new(2).unwrap(), ..request() });
    assert_eq!(rig.told_paths(), [(1, None), (2, None)]);
    rig.tell(Input::Paths(paths::Input::PortGone { port: PORT }));
    rig.asks_path(3, request());
    assert_eq!(rig.told_paths(), [(3, None)]);
}

#[test]
fn waiting_path_requests_go_to_the_sa_when_the_daemon_ends() {
    let mut rig = Rig::with_port();
    rig.asks_path(1, request());
    rig.sa(|_| None);
    rig.tell(Input::LocalService(local_service::Input::Stop));
    let Some(Transmit::Message(_)) = rig.node.local_service.poll_transmit() else {
        panic!("the time-out is given back first")
    };
    assert_eq!(rig.told_paths(), [(1, None)]);
    assert_eq!(rig.node.local_service.load().paths, 0);
}

#[test]
fn users_requests_are_separate_from_the_kernels() {
    let mut rig = Rig::with_port();
    rig.asks_path(0, request());
    let asked = rig.sa(path(0));
    let deadline = rig.now + Duration::from_secs(1);
    let id = UserRequest::Control(0);
    let request = paths::Request::of_user(id, User(7), port(), asked[0], deadline);
    rig.tell(Input::ResolvePath(request));
    let outcome =
        paths::Outcome::Found { record: record(&asked[0], 0), source: paths::Source::Cache };
    let id = UserRequest::Control(0);
    assert_eq!(rig.node.outputs.pop_front(), Some(Output::PathAnswered { id, outcome }));
    assert_eq!(rig.told_paths().len(), 1);

    // Past the cache.
    let freshness = Freshness::Fresh;
    rig.tell(Input::ResolvePath(paths::Request { freshness, ..request }));
    assert_eq!(rig.node.outputs.pop_front(), None);
    assert_eq!(rig.sa(path(0)), asked);
    let outcome = paths::Outcome::Found { record: record(&asked[0], 0), source: paths::Source::Sa };
    assert_eq!(rig.node.outputs.pop_front(), Some(Output::PathAnswered { id, outcome }));
}

#[test]
fn remembered_paths_cost_a_user_nothing_of_its_share() {
    let mut rig = Rig::with_port();
    rig.asks_path(0, request());
    let question = rig.sa(path(0))[0];
    let deadline = rig.now + Duration::from_secs(1);
    for n in 0..10 * u64::from(PATHS.burst) {
        let id = UserRequest::Control(n);
        let request = paths::Request::of_user(id, User(7), port(), question, deadline);
        rig.tell(Input::ResolvePath(request));
        let answered = rig.node.outputs.pop_front();
        assert!(matches!(answered, Some(Output::PathAnswered { id: of, .. }) if of == id));
    }
}

/// The SA answers at once; 3,000 requests of a user reach it at the user's rate.
#[test]
fn user_with_many_path_requests_is_held_to_its_rate() {
    let mut rig = Rig::with_port();
    rig.asks_path(0, request());
    let [of_kernel] = rig.sa(path(0))[..] else { panic!("the kernel's is asked") };
    let deadline = rig.now + Duration::from_secs(2);
    for id in 0..3000_u16 {
        let dgid = gid(&format!("fec0:0:22:2::{id:x}"));
        let question = PathQuestion { dgid, ..of_kernel };
        let id = UserRequest::Control(id.into());
        let request = paths::Request::of_user(id, User(7), port(), question, deadline);
        rig.tell(Input::ResolvePath(request));
    }
    let mut asked = 0;
    for _ in 0..200 {
        let questions = rig.sa(path(0));
        assert!(questions.len() <= PATHS.under_way.of_user, "{}", questions.len());
        asked += questions.len();
        rig.pass(Duration::from_millis(5));
    }
    let a_second = usize::try_from(PATHS.burst + PATHS.rate).unwrap();
    assert!((a_second - 1..=a_second + 1).contains(&asked), "{asked}");
    // The kernel's request does not wait behind them.
    rig.asks_path(1, ResolvePath { dgid: gid("fec0:0:22:2::beef:2"), ..request() });
    assert!(rig.sa(path(0)).iter().any(|question| question.dgid == gid("fec0:0:22:2::beef:2")));
}

/// A subnet manager has given the port and the peers in its subnet another prefix.
#[test]
fn peers_are_asked_again_after_a_change_of_the_subnet_prefix() {
    let mut rig = Rig::with_port();
    let ask = |rig: &mut Rig, gid: &str| {
        rig.ask(7, "10.2.0.5", None);
        let is_asked = rig.routes() == "10.2.0.5";
        if is_asked {
            rig.route("10.2.0.5", None, Some((3, "10.1.0.254")));
            rig.reply(gid);
        }
        let answered = rig.answered();
        (is_asked, answered)
    };
    let found = |text: &str, source| vec![(7, Outcome::Found { gid: gid(text), source })];
    let (old, new) = ("fec0:0:1:1::10:5", "fec0:0:1:2::10:5");
    assert_eq!(ask(&mut rig, old), (true, found(old, Source::Peer)));
    assert_eq!(ask(&mut rig, old), (false, found(old, Source::Cache)));
    let told = |rig: &mut Rig, gids: &[&str]| {
        let gids = (0..).map(paths::GidIndex).zip(gids.iter().map(|text| gid(text))).collect();
        let facts = PortFacts { gids, ..facts() };
        let input = paths::Input::Port { port: PORT, name: port(), facts };
        rig.tell(Input::Paths(input));
    };
    // One more GID, and none at all, as during the reset of a driver.
    told(&mut rig, &["fec0:0:1:1::10:9", "fec0:0:7:7::10:9"]);
    told(&mut rig, &[]);
    rig.tell(Input::Paths(paths::Input::PortGone { port: PORT }));
    assert_eq!(ask(&mut rig, old), (false, found(old, Source::Cache)));

    told(&mut rig, &["fec0:0:1:2::10:9"]);
    assert_eq!(ask(&mut rig, new), (true, found(new, Source::Peer)));
    assert_eq!(ask(&mut rig, new), (false, found(new, Source::Cache)));
}
