// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Each fact with the reason that it becomes, and how reasons come and go.

use std::net::Ipv6Addr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use ibarr_common::ib::Lid;
use proptest::prelude::*;

use super::*;
use crate::Fault;
use crate::ip2gid::client::Candidate;
use crate::ip2gid::{Family, Question};
use crate::local_view::rules::{Datagrams, Diverted, Traffic};
use crate::paths::PortFacts;
use crate::responder::{Blocked, Hook};
use crate::sa::Shut;

const START: Instant = Instant::from_nanos(1_000_000_000_000);

fn at(seconds: u64) -> Instant {
    START + Duration::from_secs(seconds)
}

/// A daemon that has started, and whose parts are settled.
fn health() -> Health {
    let mut health = Health::default();
    health.handle_input(START, Input::Start);
    health
}

impl Health {
    fn assess(&mut self, now: Instant, inputs: impl IntoIterator<Item = Input>) {
        for input in inputs {
            self.handle_input(now, input);
        }
        self.handle_timeout(now);
    }
}

fn port(missing: Option<Missing>) -> Port {
    Port { name: "mlx5_0/1".parse().unwrap(), missing, silence: None }
}

fn ports(missing: Option<Missing>) -> Vec<Input> {
    vec![Input::Ports(vec![port(missing)])]
}

/// A port of which only the device says something.
fn device(closed: Option<Fault>, unheard: Option<Fault>) -> Vec<Input> {
    let port = port(None);
    let device = Device { port: port.name, closed, unheard };
    vec![Input::Ports(vec![port]), Input::Devices(vec![device])]
}

/// Each part without a fault.
fn nothing() -> [Input; 10] {
    [
        Input::Addresses(Addresses::default()),
        Input::AnswersRefused(None),
        Input::Ports(Vec::new()),
        Input::Configuration(Configuration::default()),
        Input::Kernel(Kernel::default()),
        Input::Responder(Programs::Unwanted, Vec::new()),
        Input::Peers(Peers::default()),
        Input::Devices(Vec::new()),
        Input::Control(Control::default()),
        Input::Snapshot(None),
    ]
}

#[test]
fn port_lacks_its_link_then_a_subnet_manager_then_its_umad_device() {
    let missing = |is_active, has_umad, sm_lid| {
        Missing::of(&PortFacts {
            is_active,
            has_umad,
            sm_lid: Lid::new(sm_lid),
            pkeys: Vec::new(),
            ..PortFacts::default()
        })
    };
    assert_eq!(missing(true, true, 1), None);
    assert_eq!(missing(true, false, 1), Some(Missing::Umad));
    assert_eq!(missing(true, false, 0), Some(Missing::SubnetManager));
    assert_eq!(missing(true, true, 0xffff), Some(Missing::SubnetManager));
    assert_eq!(missing(false, false, 0), Some(Missing::Down));
}

fn worst(health: &Health) -> State {
    health.report().map(|report| report.state).max().unwrap()
}

fn causes(health: &Health) -> Vec<(Subsystem, Cause, State)> {
    let reasons = health.report().flat_map(|report| {
        let subsystem = report.subsystem;
        report.reasons.into_iter().map(move |(cause, reason)| (subsystem, cause, reason.state))
    });
    reasons.collect()
}

fn events(health: &mut Health) -> Vec<String> {
    let mut events = Vec::new();
    while let Some(event) = health.poll_event() {
        events.push(match event {
            Event::Worse(subsystem, cause, reason) => {
                assert!(!reason.why.is_empty() && !reason.remedy.is_empty(), "{cause}");
                format!("{subsystem}: {cause}: {}", reason.state)
            }
            Event::Better { subsystem, cause, state, lasted } => {
                format!("{subsystem}: no {cause}: {state} after {} s", lasted.as_secs())
            }
        });
    }
    events
}

/// Every fault that a fact can state, with the subsystem, the cause and the state that it makes.
#[expect(clippy::too_many_lines, reason = "a table")]
fn faults() -> Vec<(Vec<Input>, &'static str)> {
    let interface = InterfaceName::new(b"ib0").unwrap();
    let blocked = |family| Socket { family, blocked: Some(Fault::new("taken")), small: None };
    let serves = |small| Socket { family: Family::V4, blocked: None, small };
    let loaded = |left: u64, private: Option<&str>| Programs::Loaded {
        lease_end: if left == 0 { at(60) } else { at(100 + left) },
        lease: Duration::from_mins(1),
        private_pins: private.map(str::to_owned),
    };
    let attached =
        || vec![Served { interface, program: crate::responder::State::Attached(Hook::Tcx) }];
    let some = || Some(Fault::new("it is so"));
    let no = Facts::default;
    let configuration = |configuration| vec![Input::Configuration(configuration)];
    let addresses = |addresses| vec![Input::Addresses(addresses)];
    let kernel = |kernel| vec![Input::Kernel(kernel)];
    let responder = |programs, served| vec![Input::Responder(programs, served)];
    let peers = |peers| vec![Input::Peers(peers)];
    let sockets = |sockets| vec![Input::Peers(Peers { sockets, ..no().peers })];
    let control = |control| vec![Input::Control(control)];
    let acm = |acm| vec![Input::Acm(acm)];
    let silent = |busy| {
        let silence = Some(Shut { busy, since: at(70) });
        vec![Input::Ports(vec![Port { silence, ..port(None) }])]
    };
    let setting = Some(Setting::AllowTooLong { prefixes: 5000, most: 4096 });
    let few = Some(FewDescriptors { limit: 256, query_sockets: 19, connections: 76 });
    let ibacm = Listener { pid: Some(7), name: "ibacm".to_owned() };
    let failed = crate::responder::State::Failed(Fault::new("XDP: EOPNOTSUPP"));
    vec![
        (
            configuration(Configuration { refused: some(), ..no().configuration }),
            "configuration: reload-refused: degraded",
        ),
        (
            configuration(Configuration { reading_since: Some(at(74)), ..no().configuration }),
            "configuration: reload-slow: degraded",
        ),
        (
            configuration(Configuration { setting, ..no().configuration }),
            "configuration: setting: degraded",
        ),
        (
            addresses(Addresses { unknown: true, ..no().addresses }),
            "local-view: view-unknown: failed",
        ),
        (addresses(Addresses { no_gid: true, ..no().addresses }), "local-view: no-gid: failed"),
        (
            addresses(Addresses { unmatched: vec!["ib7".parse().unwrap()], ..no().addresses }),
            "local-view: no-such-interface: degraded",
        ),
        (
            addresses(Addresses { contested: vec!["10.0.0.1".parse().unwrap()], ..no().addresses }),
            "local-view: contested-address: degraded",
        ),
        (
            kernel(Kernel { silent: Some(KernelSilent::NoRdma), ..no().kernel }),
            "kernel: kernel-silent: failed",
        ),
        (vec![Input::AnswersRefused(Some(-1))], "kernel: answers-refused: failed"),
        (kernel(Kernel { nudges_fail: some(), ..no().kernel }), "kernel: nudges-fail: degraded"),
        (
            kernel(Kernel { listeners: vec![ibacm], ..no().kernel }),
            "kernel: other-listener: degraded",
        ),
        (
            responder(Programs::Absent(Blocked::Fault(Fault::new("EPERM"))), Vec::new()),
            "responder: not-loaded: degraded",
        ),
        (
            responder(loaded(60, Some("/sys/fs/bpf")), attached()),
            "responder: pins-private: degraded",
        ),
        (responder(loaded(19, None), attached()), "responder: lease-ending: degraded"),
        (responder(loaded(0, None), attached()), "responder: lease-ended: degraded"),
        (
            responder(loaded(60, None), vec![Served { interface, program: failed }]),
            "responder ib0: not-attached: degraded",
        ),
        (sockets(vec![blocked(Family::V4), blocked(Family::V6)]), "peers: not-serving: failed"),
        (sockets(vec![blocked(Family::V4), serves(None)]), "peers: not-serving: degraded"),
        (sockets(vec![serves(Some((1, 9)))]), "peers: small-buffer: degraded"),
        (peers(Peers { few_descriptors: few, ..no().peers }), "peers: few-descriptors: degraded"),
        (
            peers(Peers { diverted: vec![diverted(Some(200))], ..no().peers }),
            "peers: diverted-by-rule: degraded",
        ),
        (ports(Some(Missing::Down)), "sa mlx5_0/1: port-down: degraded"),
        (ports(Some(Missing::SubnetManager)), "sa mlx5_0/1: no-subnet-manager: degraded"),
        (ports(Some(Missing::Umad)), "sa mlx5_0/1: umad-closed: degraded"),
        (device(some(), None), "sa mlx5_0/1: umad-closed: degraded"),
        (silent(false), "sa mlx5_0/1: sa-silent: degraded"),
        (silent(true), "sa mlx5_0/1: sa-busy: degraded"),
        (device(None, some()), "sa mlx5_0/1: events-unheard: degraded"),
        (
            control(Control { group_unknown: Some(GroupUnknown::NoAnswerYet), ..no().control }),
            "control: group-unknown: degraded",
        ),
        (control(Control { closed: some(), ..no().control }), "control: control-closed: degraded"),
        (counted(Cause::ProgramsRemoved), "responder: programs-removed: degraded"),
        (counted(Cause::FilesRemoved), "control: files-removed: degraded"),
        (control(Control { log_lost: 3, ..no().control }), "control: log-lost: degraded"),
        (
            control(Control { metrics_closed: some(), ..no().control }),
            "control: metrics-closed: degraded",
        ),
        (acm(Acm { closed: some(), ..no().acm }), "acm: acm-closed: degraded"),
        (counted(Cause::EventsLost), "local-view: events-lost: degraded"),
        (counted(Cause::RequestsLost), "kernel: requests-lost: degraded"),
        (counted(Cause::OtherGids), "kernel: other-gids: degraded"),
        (counted(Cause::MapFaults), "responder: map-faults: degraded"),
        (counted(Cause::QueriesLost), "peers: queries-lost: degraded"),
        (counted(Cause::RepliesLost), "peers: replies-lost: degraded"),
        (counted(Cause::RepliesForbidden), "peers: replies-forbidden: degraded"),
        (counted(Cause::RepliesUnroutable), "peers: replies-unroutable: degraded"),
        (counted(Cause::RepliesNotSent), "peers: replies-not-sent: degraded"),
        (counted(Cause::QueriesForbidden), "peers: queries-forbidden: degraded"),
        (counted(Cause::QueriesUnroutable), "peers: queries-unroutable: degraded"),
        (counted(Cause::QueriesNotSent), "peers: queries-not-sent: degraded"),
        (counted(Cause::NoFreePort), "peers: no-free-port: degraded"),
        (counted(Cause::NoFreeDescriptor), "peers: no-free-descriptor: degraded"),
        (counted(Cause::AddressesEvicted), "caches: addresses-evicted: degraded"),
        (counted(Cause::PathsEvicted), "caches: paths-evicted: degraded"),
        (vec![Input::Snapshot(some())], "caches: snapshot-failed: degraded"),
        (acm(Acm { files: vec![Fault::new("a: b")], ..no().acm }), "acm: acm-files: degraded"),
        (acm(Acm { reading_since: Some(at(20)), ..no().acm }), "acm: acm-files: degraded"),
        (counted(Cause::ConnectionsRefused), "control: connections-refused: degraded"),
    ]
}

fn diverted(instead: Option<u32>) -> Diverted {
    let (datagrams, traffic, family) = (Datagrams::Replies, Traffic::ALL, Family::V6);
    let port = NonZeroU16::new(4791).unwrap();
    Diverted { datagrams, port, traffic, family, rule: 100, instead }
}

#[test]
fn rule_counts_while_the_kernel_takes_it_to_a_recent_peer() {
    let peer = |n: u32| {
        Candidate::from(
            Question::new(Ipv6Addr::from_bits((0xfd << 120) + u128::from(n)).into(), None).unwrap(),
        )
    };
    let mut health = health();
    // The kernel has ways but for the datagrams to one peer.
    let found = |health: &mut Health, by_rules: Vec<Diverted>, cut: u32| {
        let is_there = |(to, traffic): &_| *to != peer(cut) || *traffic == Traffic::CONNECTIONS;
        let ways = health.ways(&by_rules).into_iter().filter(is_there);
        health.diverted(by_rules, &ways.map(|way| (way, 0)).collect::<Vec<_>>())
    };
    let add = |health: &mut Health, peers: RangeInclusive<u32>| {
        peers.for_each(|n| health.handle_input(at(1), Input::Sent(peer(n))));
    };
    add(&mut health, 1..=40);
    let rule = Diverted { traffic: Traffic([(7, 7); 4]), ..diverted(None) };
    let of_other = Diverted { family: Family::V4, ..rule };
    assert_eq!(found(&mut health, vec![rule, of_other], 1), [rule]);
    // The peer stays, others give way to newer ones, and a dead one diverts nothing.
    add(&mut health, 41..=60);
    let numbers = [1, 2, 32, 50, 60].map(|n| found(&mut health, vec![rule], n).len());
    assert_eq!(numbers, [1, 0, 0, 1, 0]);
    assert_eq!(health.diverted::<()>(vec![rule], &[]), []);
}

#[test]
fn rule_that_diverts_is_named_with_the_command_that_exempts() {
    let remedy = |instead| {
        let mut health = health();
        let diverted = vec![diverted(instead)];
        health.assess(at(1), [Input::Peers(Peers { diverted, ..Peers::default() })]);
        let reason = health.reasons.values().next().unwrap();
        assert!(reason.why.contains("priority 100 sends replies over IPv6"), "{}", reason.why);
        reason.remedy.clone()
    };
    assert!(
        remedy(Some(200)).ends_with("ip -6 rule add priority 99 ipproto udp sport 4791 goto 200")
    );
    assert!(remedy(None).contains("match UDP sport 4791 too"));
}

fn counted(cause: Cause) -> Vec<Input> {
    vec![Input::Counted(cause, 1)]
}

#[test]
fn each_fault_is_told_when_it_begins_and_ends() {
    let mut seen = BTreeSet::from([Cause::UnusedSocket]);
    for (inputs, expected) in faults() {
        let mut health = health();
        // Longer than any patience, and shorter than the hold of a count.
        for second in [80, 90, 91, 99, 100] {
            health.assess(at(second), inputs.clone());
        }
        assert_eq!(events(&mut health), [expected]);
        let found = causes(&health);
        seen.extend(found.iter().map(|(_, cause, _)| *cause));
        assert_eq!(found.len(), 1, "{expected}");
        assert_eq!(worst(&health), found[0].2);

        let lasted = at(200).since(health.reasons.values().next().unwrap().since).as_secs();
        let is_on = expected.starts_with("acm");
        let acm = Input::Acm(Acm { is_on, ..Acm::default() });
        health.assess(at(200), nothing().into_iter().chain([acm]));
        assert_eq!(causes(&health), [], "{expected}");
        let [ended] = events(&mut health).try_into().expect("one event");
        let (subsystem, cause, _) = found[0];
        assert_eq!(ended, format!("{subsystem}: no {cause}: ok after {lasted} s"));
        assert_eq!(worst(&health), State::Ok);
    }
    assert_eq!(seen, Cause::ALL.into(), "each cause has a fault here");
}

#[test]
fn daemon_is_judged_from_its_start_to_its_end_and_when_asked() {
    let mut health = Health::default();
    health.assess(at(1), [Input::Asked]);
    assert_eq!((health.report().count(), health.poll_timeout()), (0, None));
    health.assess(at(2), [Input::Start]);
    assert!(health.report().count() > 0 && health.is_ready());
    for (input, is_due) in [(Input::Asked, true), (Input::Stop, false)] {
        health.handle_input(at(2), input);
        assert_eq!(health.is_due(at(2)), is_due);
    }
    health.assess(at(99), [Input::Asked]);
    assert_eq!((health.is_due(at(99)), health.poll_timeout()), (false, None));
}

fn unsettled(subsystem: Subsystem) -> Input {
    Input::Unsettled(subsystem, Fault::new("it is being tried"))
}

/// The socket is not open yet, or another program has the port.
fn taken(is_settled: bool) -> Vec<Input> {
    let socket =
        Socket { family: Family::V4, blocked: Some(Fault::new("taken by python")), small: None };
    // Advice, which counts at once and is no verdict.
    let unused = vec![Fault::new("systemd does not hold the port")];
    let peers = Input::Peers(Peers { sockets: vec![socket], unused, ..Peers::default() });
    [peers].into_iter().chain((!is_settled).then(|| unsettled(Subsystem::Peers))).collect()
}

fn bad_causes(health: &Health) -> Vec<(Subsystem, Cause, State)> {
    causes(health).into_iter().filter(|(.., state)| *state > State::Ok).collect()
}

fn unknown(health: &Health) -> Vec<Subsystem> {
    health.unknown().map(|(subsystem, _)| subsystem).collect()
}

#[test]
fn first_verdict_waits_for_all_parts_and_then_tells_faults_at_once() {
    let mut health = Health::default();
    let ms = |ms| START + Duration::from_millis(ms);
    health.assess(ms(0), [Input::Start].into_iter().chain(taken(false)));
    assert_eq!((unknown(&health), health.is_ready()), (vec![Subsystem::Peers], false));
    assert!(health.report().all(|report| report.subsystem != Subsystem::Peers), "not called ok");
    assert_eq!((causes(&health), health.poll_timeout()), (Vec::new(), Some(START + EARLY)));
    health.assess(ms(10), taken(true));
    assert_eq!((unknown(&health), health.is_ready()), (Vec::new(), true));
    let told = [(Subsystem::Peers, Cause::NotServing, State::Failed)];
    assert_eq!(bad_causes(&health), told);
    assert_eq!(events(&mut health), ["peers: not-serving: failed"]);
    // It lasts, and is not told again.
    health.assess(ms(2000), taken(true));
    assert_eq!((bad_causes(&health), events(&mut health)), (told.to_vec(), Vec::new()));
}

#[test]
fn what_stays_unsettled_delays_readiness_for_three_seconds_only() {
    for (closed, state) in [(None, State::Ok), (Some(Fault::new("taken")), State::Degraded)] {
        let acm = |closed| Input::Acm(Acm { is_on: true, closed, ..Acm::default() });
        let mut health = Health::default();
        health.handle_input(START, Input::Start);
        let mut now = START;
        while !health.is_ready() {
            now = health.poll_timeout().unwrap();
            health.assess(now, [acm(None), unsettled(Subsystem::Acm)]);
        }
        assert_eq!((now, unknown(&health)), (START + super::START, vec![Subsystem::Acm]));
        now += OFTEN;
        assert_eq!(health.poll_timeout(), Some(now), "it is still looked for");
        // A fault is shown even if more is awaited.
        let more = closed.is_some().then(|| unsettled(Subsystem::Acm));
        health.assess(now, [acm(closed)].into_iter().chain(more));
        let report = health.report().find(|report| report.subsystem == Subsystem::Acm);
        assert_eq!((unknown(&health), report.unwrap().state), (Vec::new(), state));
    }
}

#[test]
fn fault_that_outlives_its_patience_is_told_of_an_unsettled_part() {
    let mut health = Health::default();
    health.assess(at(0), [Input::Start].into_iter().chain(taken(false)));
    health.assess(at(4), taken(false));
    assert_eq!((unknown(&health), bad_causes(&health)), (vec![Subsystem::Peers], Vec::new()));
    health.assess(at(5), taken(false));
    assert_eq!(unknown(&health), []);
    assert_eq!(bad_causes(&health), [(Subsystem::Peers, Cause::NotServing, State::Failed)]);
}

#[test]
fn verdict_after_a_new_configuration_tells_faults_at_once() {
    for (is_new, expected) in [(false, 0), (true, 1)] {
        let mut health = health();
        health.assess(at(0), nothing());
        let reload = is_new.then_some(Input::Reconfigured);
        health.assess(at(7), reload.into_iter().chain(taken(false)));
        let old = (unknown(&health), bad_causes(&health));
        assert_eq!(old, (Vec::new(), Vec::new()), "the verdict of before");
        health.assess(at(8), taken(true));
        assert_eq!(bad_causes(&health).len(), expected, "{is_new}");
        // Later changes have patience again.
        health.assess(at(20), nothing());
        health.assess(at(21), taken(true));
        assert_eq!(bad_causes(&health), []);
    }
}

#[test]
fn what_is_normal_for_a_moment_is_no_reason() {
    let mut health = health();
    health.assess(at(0), ports(None));
    health.assess(at(1), ports(Some(Missing::Down)));
    assert_eq!(causes(&health), []);
    // The daemon looks again when the patience is over.
    assert_eq!(health.poll_timeout(), Some(at(4)));
    health.assess(at(3), ports(None));
    assert_eq!(events(&mut health), Vec::<String>::new());
    assert_eq!(health.poll_timeout(), Some(at(3) + SELDOM));
}

#[test]
fn silence_of_an_sa_does_not_end_when_its_port_goes_down() {
    let silence = Some(Shut { busy: false, since: at(0) });
    let ports = |missing| [Input::Ports(vec![Port { silence, ..port(missing) }])];
    let mut health = health();
    for (second, missing) in
        [(2, None), (10, Some(Missing::Down)), (20, Some(Missing::Down)), (30, None)]
    {
        health.assess(at(second), ports(missing));
    }
    let expected = [
        "sa mlx5_0/1: sa-silent: degraded",
        "sa mlx5_0/1: port-down: degraded",
        "sa mlx5_0/1: no port-down: degraded after 20 s",
    ];
    assert_eq!(events(&mut health), expected);
}

#[test]
fn port_without_a_cable_is_not_missed_beside_one_that_works() {
    let other = Port { name: "mlx5_1/1".parse().unwrap(), ..port(Some(Missing::Down)) };
    let ports = |first| [Input::Ports(vec![port(first), other.clone()])];
    let mut health = health();
    for second in [0, 10] {
        health.assess(at(second), ports(None));
    }
    assert_eq!(causes(&health), []);
    for second in [20, 30] {
        health.assess(at(second), ports(Some(Missing::Down)));
    }
    let down =
        |name: &str| (Subsystem::Sa(name.parse().unwrap()), Cause::PortDown, State::Degraded);
    assert_eq!(causes(&health), [down("mlx5_0/1"), down("mlx5_1/1")]);
}

#[test]
fn count_that_rises_again_keeps_its_reason_and_its_start() {
    let mut health = health();
    let of = |count| [Input::Counted(Cause::RequestsLost, count)];
    for (second, count) in [(0, 0), (10, 1), (60, 2), (100, 2)] {
        health.assess(at(second), of(count));
    }
    assert_eq!(events(&mut health), ["kernel: requests-lost: degraded"]);
    health.assess(at(120), of(2));
    assert_eq!(events(&mut health), ["kernel: no requests-lost: ok after 110 s"]);
}

#[test]
fn advice_is_shown_and_changes_nothing() {
    let mut health = health();
    let peers = Peers { unused: vec![Fault::new("a: b")], ..Peers::default() };
    health.assess(at(0), [Input::Peers(peers)]);
    assert_eq!(causes(&health), [(Subsystem::Peers, Cause::UnusedSocket, State::Ok)]);
    assert_eq!((worst(&health), events(&mut health)), (State::Ok, Vec::new()));
}

/// A fault is a reason exactly while it has been there for its patience, or since the first look.
#[derive(Default)]
struct Model {
    since: BTreeMap<usize, Instant>,
}

proptest! {
    #[test]
    fn health_does_what_a_plain_model_does(
        steps in prop::collection::vec((1_u64..8, prop::collection::vec(any::<bool>(), 5)), 1..40)
    ) {
        let all = [Cause::NoGid, Cause::KernelSilent, Cause::GroupUnknown, Cause::ViewUnknown, Cause::LogLost];
        let (mut health, mut model, mut now) = (health(), Model::default(), START);
        let (mut told, mut state, mut is_first) = (BTreeSet::new(), State::Ok, true);
        for (seconds, there) in steps {
            let is_first = std::mem::replace(&mut is_first, false);
            now += Duration::from_secs(seconds);
            let addresses = Addresses { no_gid: there[0], unknown: there[3], ..Addresses::default() };
            let silent = there[1].then_some(KernelSilent::NoRdma);
            let kernel = Kernel { silent, ..Kernel::default() };
            let group_unknown = there[2].then_some(GroupUnknown::NoAnswerYet);
            let log_lost = there[4].into();
            let control = Control { group_unknown, log_lost, ..Control::default() };
            let inputs =
                [Input::Addresses(addresses), Input::Kernel(kernel), Input::Control(control)];
            health.assess(now, inputs);
            model.since.retain(|index, _| there[*index]);
            for index in (0..all.len()).filter(|index| there[*index]) {
                model.since.entry(index).or_insert(if is_first { Instant::BOOT } else { now });
            }
            let counts = |(index, since): (&usize, &Instant)| {
                let cause = all[*index];
                (now.since(*since) >= cause.patience()).then_some(cause)
            };
            let expected: BTreeSet<_> = model.since.iter().filter_map(counts).collect();
            let found: BTreeSet<_> = causes(&health).into_iter().map(|(_, cause, _)| cause).collect();
            prop_assert_eq!(&found, &expected);
            // The events tell the difference, no more and no less.
            while let Some(event) = health.poll_event() {
                let is_new = match event {
                    Event::Worse(_, cause, _) => told.insert(cause),
                    Event::Better { cause, .. } => told.remove(&cause),
                };
                prop_assert!(is_new);
            }
            prop_assert_eq!(&told, &expected);
            let before = std::mem::replace(&mut state, worst(&health));
            let since = health.report().map(|report| report.since).max().unwrap();
            prop_assert!(before == state || since == now, "a change is as old as it is");
        }
    }
}
