// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The responder with a kernel that the test plays. Long because it is the table of its behaviour; each
//! case stands alone.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use ibarr_common::ib::Gid;
use ibarr_common::map::{
    GidEntry, GidKey, Interface, Neighbour, NeighbourKey, Origin, Route, address,
};
use ipnet::IpNet;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;

use super::*;
use crate::local_view::neighbours::{self as raw, Entry};
use crate::local_view::routing::{self, Way};
use crate::local_view::{
    AltNames, Bonding, Config, Dad, HwAddr, Input, InterfaceAddress, InterfaceFilter,
    InterfaceName, Link, LinkType, StaticGid, StaticGids,
};
use crate::node::{self, Node, Room};

const T0: Instant = Instant::from_nanos(1_000_000_000_000);
const LEASE: Duration = Duration::from_mins(1);

#[test]
fn first_lease_is_written_when_all_maps_equal_the_view() {
    let mut story = Story::new(Settings::default());
    // An earlier daemon has left one address that is not ours any more, and one whose GID has
    // changed.
    story.kernel().hold_address("10.1.0.9", Some("fe80::9"));
    story.kernel().hold_address("10.1.0.1", Some("fe80::7"));
    story.kernel().interfaces.insert(index(9));
    story.kernel().attached.insert((index(9), Hook::Tcx));
    story.kernel().attached.insert((index(1), Hook::Tcx));
    story.link(1).address(1, "10.1.0.1");
    // Nothing is certain before the dump.
    story.turn(T0);
    assert_eq!(story.kernel().cfg.lease_end, 0);
    assert!(story.kernel().attached.contains(&(index(9), Hook::Tcx)));

    story.dump().turn(T0);
    assert_eq!(story.answers(), [("10.1.0.1".to_owned(), Some("fe80::1".to_owned()))]);
    assert_eq!(story.kernel().cfg.lease_end, (T0 + LEASE).as_nanos());
    assert_eq!(story.kernel().interfaces, BTreeSet::from([index(1)]));
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Tcx)]));
    assert!(story.kernel().is_settled);

    let log = &story.kernel().log;
    let at = |what: &str| {
        log.iter().position(|entry| entry == what).unwrap_or_else(|| panic!("no {what}: {log:?}"))
    };
    let lease = at("lease");
    // Stale elements are removed before the lease lets programs answer.
    assert!(at("-10.1.0.9") < lease && at("+10.1.0.1=fe80::1") < lease && at("-#9") < lease);
    // New programs are attached before old ones are detached, and old layouts are removed last.
    assert!(lease < at("attach 1 tcx") && at("attach 1 tcx") < at("detach 9 tcx"));
    assert!(at("detach 9 tcx") < at("settle"));
}

#[test]
fn removed_address_leaves_the_map_within_the_turn() {
    let mut story = Story::running();
    story.address(1, "10.1.0.2").turn(T0);
    assert_eq!(story.answers().len(), 2);
    story.no_address(1, "10.1.0.2").turn(T0);
    assert_eq!(story.answers().len(), 1);
}

#[test]
fn address_without_gid_is_in_the_map_but_not_answered() {
    let mut story = Story::running();
    story.link(2).address(2, "10.2.0.1").turn(T0);
    assert!(story.answers().contains(&("10.2.0.1".to_owned(), None)));
}

#[test]
fn lease_is_renewed_after_a_third() {
    let mut story = Story::running();
    story.turn(T0 + Duration::from_secs(19));
    assert_eq!(story.kernel().cfg.lease_end, (T0 + LEASE).as_nanos());
    assert_eq!(story.responder().poll_timeout(), Some(T0 + LEASE / 3));
    let now = T0 + LEASE / 3;
    story.dump_at(now).turn(now);
    assert_eq!(story.kernel().cfg.lease_end, (now + LEASE).as_nanos());
}

#[test]
fn lease_is_counted_from_the_last_dump() {
    let mut story = Story::running();
    // rtnetlink is dead: the daemon lives on, but its view is from `T0`.
    for seconds in [20, 40, 59] {
        story.turn(T0 + Duration::from_secs(seconds));
        assert_eq!(story.kernel().cfg.lease_end, (T0 + LEASE).as_nanos());
    }
    story.turn(T0 + Duration::from_secs(70));
    assert_eq!(story.kernel().cfg.lease_end, (T0 + LEASE).as_nanos());
    assert_eq!(story.responder().counters().get(Counter::LeaseWithheld), 1);
    let now = T0 + Duration::from_secs(71);
    story.dump_at(now).turn(now);
    assert_eq!(story.kernel().cfg.lease_end, (now + LEASE).as_nanos());
}

#[test]
fn lease_shorter_than_the_dump_interval_is_kept() {
    let lease = Duration::from_secs(2);
    let mut story = Story::new(Settings { lease, ..Settings::default() });
    story.link(1).address(1, "10.1.0.1").dump().turn(T0);
    let now = T0 + Duration::from_secs(9);
    story.turn(now);
    assert_eq!(story.kernel().cfg.lease_end, (now + lease).as_nanos());
}

#[test]
fn failed_map_write_ends_the_lease_until_all_maps_are_correct() {
    let mut story = Story::running();
    story.kernel().fail = Some("-10.1.0.1");
    story.no_address(1, "10.1.0.1").turn(T0);
    // The element is still in the map, so nothing may be answered.
    assert_eq!(story.answers().len(), 1);
    assert_eq!(story.kernel().cfg.lease_end, 0);
    assert!(story.responder().blocked().is_some());
    // Events that happen meanwhile are not lost.
    story.address(1, "10.1.0.5").turn(T0);
    story.turn(T0 + RETRY);
    assert_eq!(story.kernel().cfg.lease_end, 0);
    story.kernel().fail = None;
    let now = T0 + RETRY + RETRY;
    story.turn(now);
    assert_eq!(story.answers(), [("10.1.0.5".to_owned(), Some("fe80::1".to_owned()))]);
    assert_eq!(story.kernel().cfg.lease_end, (T0 + LEASE).as_nanos());
    assert_eq!(story.responder().blocked(), None);
    assert_eq!(story.responder().counters().get(Counter::Faults), 3);
}

#[test]
fn programs_are_detached_when_the_lease_cannot_be_revoked() {
    let mut story = Story::running();
    story.kernel().fail_all = true;
    story.address(1, "10.1.0.5").turn(T0);
    assert_eq!(story.kernel().attached, BTreeSet::new());
    story.kernel().fail_all = false;
    story.turn(T0 + RETRY);
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Tcx)]));
}

#[test]
fn kernel_without_tcx_gets_a_filter() {
    let mut story = Story::new(Settings::default());
    story.kernel().refuse = BTreeSet::from([Hook::Tcx]);
    story.link(1).address(1, "10.1.0.1").dump().turn(T0);
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Clsact)]));
    assert_eq!(story.responder().state(index(1)), Some(&State::Attached(Hook::Clsact)));
}

#[test]
fn failed_attachment_gives_its_reason_and_is_retried() {
    let mut story = Story::new(Settings::default());
    story.kernel().refuse = Hook::ALL.into();
    story.link(1).address(1, "10.1.0.1").dump().turn(T0);
    let Some(State::Failed(reason)) = story.responder().state(index(1)) else { panic!() };
    let reason = reason.to_string();
    assert!(reason.contains("tcx") && reason.contains("clsact"), "{reason}");
    let now = T0 + LEASE / 3;
    story.dump_at(now).turn(now);
    // Counted once for the interface, not for each attempt.
    assert_eq!(story.responder().counters().get(Counter::NotAttached), 1);
    story.kernel().refuse.clear();
    let now = now + LEASE / 3;
    story.dump_at(now).turn(now);
    assert_eq!(story.responder().state(index(1)), Some(&State::Attached(Hook::Tcx)));
}

#[test]
fn new_kind_of_program_is_attached_before_the_old_is_detached() {
    let mut story = Story::running();
    for (mode, hook) in [(Mode::Clsact, Hook::Clsact), (Mode::Xdp, Hook::XdpNative)] {
        story.kernel().log.clear();
        let before = story.kernel().attached.first().unwrap().1;
        story.reconfigure(Settings { mode, ..Settings::default() }, Prefixes::EVERYONE);
        let expected = [
            "lease".to_owned(),
            format!("attach 1 {hook}"),
            format!("detach 1 {before}"),
            "settle".to_owned(),
        ];
        assert_eq!(story.kernel().log, expected);
        assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), hook)]));
    }
}

#[test]
fn removed_interface_takes_its_program_along() {
    let mut story = Story::running();
    story.say(Input::LinkGone(index(1))).turn(T0);
    assert_eq!(story.kernel().attached, BTreeSet::new());
    assert_eq!(story.kernel().interfaces, BTreeSet::new());
    story.link(1).address(1, "10.1.0.1").turn(T0);
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Tcx)]));
}

#[test]
fn allowed_prefixes_are_written_before_the_map_is_enforced() {
    let mut story = Story::running();
    story.kernel().log.clear();
    let allow: Prefixes = ["10.0.0.0/8".parse::<IpNet>().unwrap()].into_iter().collect();
    story.reconfigure(Settings::default(), allow);
    assert_eq!(story.kernel().log, ["allow 104", "lease restricted", "lease restricted", "settle"]);
    story.kernel().log.clear();
    story.reconfigure(Settings::default(), Prefixes::EVERYONE);
    assert_eq!(story.kernel().log, ["lease", "no allow 104", "lease", "settle"]);
}

#[test]
fn programs_answer_at_the_port_that_a_reload_has_set() {
    let mut story = Story::running();
    assert_eq!(story.kernel().cfg.udp_port, 4791);
    for udp_port in [4999, 4791] {
        let port = NonZeroU16::new(udp_port).unwrap();
        let settings = Settings { udp_port: port, ..Settings::default() };
        story.reconfigure(settings, Prefixes::EVERYONE);
        assert_eq!(story.kernel().cfg.udp_port, udp_port);
    }
}

#[test]
fn program_removed_by_others_is_attached_again() {
    let mut story = Story::running();
    story.kernel().attached.clear();
    let now = T0 + LEASE / 3;
    story.dump_at(now).turn(now);
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Tcx)]));
    assert_eq!(story.responder().counters().get(Counter::Lost), 1);
}

#[test]
fn lost_program_is_attached_after_the_next_dump() {
    let mut story = Story::running();
    story.kernel().attached.clear();
    let now = T0 + Duration::from_secs(5);
    story.turn(now);
    assert_eq!(story.kernel().attached, BTreeSet::new());
    story.dump_at(now).turn(now);
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Tcx)]));
    assert_eq!(story.responder().counters().get(Counter::Lost), 1);
    // The attachment is checked once for each dump, and not replaced.
    story.kernel().log.clear();
    let now = now + Duration::from_secs(5);
    story.dump_at(now).turn(now);
    story.turn(now);
    assert_eq!(story.kernel().log, ["settle"]);
}

#[test]
fn program_that_others_remove_again_and_again_is_attached_after_growing_pauses() {
    let mut story = Story::running();
    story.kernel().log.clear();
    let mut at = Vec::new();
    for second in 1..=200 {
        story.kernel().attached.clear();
        let now = T0 + Duration::from_secs(second);
        story.dump_at(now).turn(now);
        if std::mem::take(&mut story.kernel().log).iter().any(|log| log == "attach 1 tcx") {
            at.push(second);
        } else {
            let State::Failed(reason) = story.responder().state(index(1)).unwrap() else {
                panic!()
            };
            let reason = reason.to_string();
            assert!(reason.contains("another program removes ours again and again"), "{reason}");
        }
    }
    assert_eq!(at, [1, 3, 7, 15, 31, 63, 123, 183]);
}

#[test]
fn other_variant_takes_the_place_of_an_attached_program_at_once() {
    let mut story = Story::running();
    story.kernel().log.clear();
    story.kernel().wants_variant = true;
    story.turn(T0);
    assert_eq!(story.kernel().log, [""; 0]);
    story.node.handle_input(T0, super::Input::Report(true));
    story.turn(T0);
    assert_eq!(story.kernel().log, ["renew 1 tcx", "settle"]);
    assert_eq!(story.responder().counters().get(Counter::Lost), 0);
}

#[test]
fn pins_of_another_daemon_are_asked_for_again_after_a_second() {
    let mut story = Story::running();
    let lost = NotLoaded { fault: refusal(), kind: Kind::Pins };
    story.kernel().log.clear();
    story.kernel().refuse_load = Some(Kind::Taken);
    story.node.handle_input(T0, super::Input::Done(Done::Lost(lost)));
    story.turn(T0);
    // What others have removed is made again at once, with growing pauses.
    assert_eq!(story.kernel().log, ["close"]);
    assert_eq!(story.responder().blocked(), Some(Blocked::Fault(refusal())));
    story.turn(T0 + RETRY / 2);
    story.kernel().refuse_load = None;
    story.turn(T0 + RETRY / 2);
    assert_eq!(story.kernel().log, ["close"]);
    let now = T0 + RETRY;
    story.dump_at(now).turn(now);
    assert_eq!(story.kernel().log[..2], ["close", "open"]);
    assert_eq!(story.responder().blocked(), None);
    let counted = [Counter::Lost, Counter::NotLoaded, Counter::Attached];
    assert_eq!(counted.map(|counter| story.responder().counters().get(counter)), [1, 1, 1]);
}

#[test]
fn programs_that_cannot_be_loaded_wait_for_another_configuration() {
    let mut story = Story::running();
    let lost = NotLoaded { fault: refusal(), kind: Kind::Other };
    story.node.handle_input(T0, super::Input::Done(Done::Lost(lost)));
    story.kernel().log.clear();
    for now in [T0, T0 + LEASE] {
        story.turn(now);
    }
    assert_eq!(story.kernel().log, ["close"]);
    story.reconfigure(Settings::default(), Prefixes::EVERYONE);
    assert_eq!(story.responder().blocked(), None);
    // Until none are wanted any more.
    story.reconfigure(Settings { mode: Mode::User, ..Settings::default() }, Prefixes::EVERYONE);
    assert_eq!(story.responder().blocked(), Some(Blocked::Unwanted));
    assert_eq!(story.kernel().log.last().map(String::as_str), Some("close"));
    assert_eq!(story.responder().lease_end(), Instant::BOOT);
}

#[test]
fn reload_while_programs_load_lets_an_old_lease_run_on() {
    let story = Story::new(Settings::default());
    let order = |order| Some(Output::Program(order));
    let reloaded = |mode| {
        let mut responder = Responder::new(Settings::default(), Prefixes::EVERYONE);
        assert_eq!(responder.poll_output(), order(Order::Open));
        responder.reconfigure(T0, Settings { mode, ..Settings::default() }, Prefixes::EVERYONE);
        responder.handle_input(T0, story.node.view(), super::Input::Opened);
        responder
    };
    let end = |responder: &mut Responder, result| {
        let opened = super::Input::Done(Done::Opened(result));
        responder.handle_input(T0, story.node.view(), opened);
    };
    let mut responder = reloaded(Mode::Auto);
    assert_eq!(responder.poll_output(), None);
    end(&mut responder, Ok(None));
    assert_eq!(responder.poll_output(), None);
    assert_eq!(responder.blocked(), None);
    assert!(responder.is_settled());
    // What could not be loaded may be there now.
    let mut responder = reloaded(Mode::Auto);
    end(&mut responder, Err(NotLoaded { fault: refusal(), kind: Kind::Other }));
    assert_eq!(responder.poll_output(), Some(Output::Close));
    assert_eq!(responder.poll_output(), Some(Output::Event(Event::Silent(refusal()))));
    assert_eq!(responder.poll_output(), order(Order::Open));
    // What is not wanted any more is removed.
    let mut responder = reloaded(Mode::User);
    assert_eq!(responder.poll_output(), Some(Output::Close));
    end(&mut responder, Ok(None));
    assert_eq!(responder.poll_output(), order(Order::Close));
}

#[test]
fn failed_attachment_is_not_retried_at_each_dump() {
    let mut story = Story::new(Settings::default());
    story.kernel().refuse = Hook::ALL.into();
    story.link(1).address(1, "10.1.0.1").dump().turn(T0);
    story.kernel().refuse.clear();
    let now = T0 + Duration::from_secs(5);
    story.dump_at(now).turn(now);
    assert_eq!(story.kernel().attached, BTreeSet::new());
}

#[test]
fn one_interface_can_have_another_kind_of_program() {
    let on = |pattern: &str, mode| (pattern.parse().unwrap(), mode);
    let settings = Settings {
        on: vec![on("eth1", Mode::Clsact), on("eth*", Mode::User)],
        ..Settings::default()
    };
    let mut story = Story::new(settings);
    story.link(1).address(1, "10.1.0.1").link(2).address(2, "10.1.0.2").dump().turn(T0);
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Clsact)]));
    assert_eq!(story.responder().state(index(2)), Some(&State::Unwanted));
    assert_eq!(story.responder().counters().get(Counter::NotAttached), 0);
    // The pattern matches the name.
    let renamed = Link { name: InterfaceName::new(b"eth2").unwrap(), ..link(1) };
    story.say(Input::Link(renamed)).turn(T0);
    assert_eq!(story.kernel().attached, BTreeSet::new());
}

#[test]
fn event_reaches_the_maps_while_programs_are_being_attached() {
    let mut story = Story::running();
    story.address(1, "10.1.0.2").link(2).address(2, "10.2.0.1");
    let now = T0 + LEASE / 3;
    let work = story.dump_at(now).turn_alone(now).expect("a look at what is attached");
    // The attaching thread is busy all the while.
    story.no_address(1, "10.1.0.1").turn_while_busy(now);
    assert!(!story.answers().iter().any(|(address, _)| address == "10.1.0.1"));
    let now = now + LEASE / 3;
    story.dump_at(now).turn_while_busy(now);
    assert_eq!(story.kernel().cfg.lease_end, (now + LEASE).as_nanos());
    story.work(now, work);
}

#[test]
fn wish_that_changed_meanwhile_is_carried_out_again() {
    let renewed = T0 + LEASE / 3;
    let goes_and_comes = |story: &mut Story| {
        story.say(Input::LinkGone(index(1))).turn_while_busy(T0);
        story.link(1).address(1, "10.1.0.1");
    };
    let is_renamed = |story: &mut Story| {
        story.say(Input::Link(Link { name: InterfaceName::new(b"eth9").unwrap(), ..link(1) }));
    };
    let is_configured = |story: &mut Story| {
        let settings = Settings { mode: Mode::Clsact, ..Settings::default() };
        story.reconfigure_at(renewed, settings, Prefixes::EVERYONE);
    };
    let gives_up = |story: &mut Story| {
        story.kernel().fail_all = true;
        story.address(1, "10.1.0.2").turn_while_busy(T0);
        story.kernel().fail_all = false;
    };
    let changes: [&dyn Fn(&mut Story); 4] =
        [&goes_and_comes, &is_renamed, &is_configured, &gives_up];
    for change in changes {
        let mut story = Story::with_interfaces(["eth1", "eth9"]);
        let work = story.link(1).address(1, "10.1.0.1").dump().turn_alone(T0).unwrap();
        change(&mut story);
        story.turn_while_busy(T0);
        story.work(T0, work);
        assert_ne!(story.responder().state(index(1)), Some(&State::Attached(Hook::Tcx)));
        story.kernel().log.clear();
        story.dump_at(renewed).turn(renewed);
        let attached =
            story.kernel().log.iter().filter(|line| line.starts_with("attach 1")).count();
        assert_eq!(attached, 1, "{:?}", story.kernel().log);
        assert_eq!(story.kernel().attached.len(), 1);
    }
}

#[test]
fn routes_are_written_before_the_interface_uses_them() {
    let mut story = Story::new(Settings::default());
    // An earlier daemon has left a prefix that is routed elsewhere now, and one that is gone.
    let (here, gone) = (Route::ON_LINK, Route::ELSEWHERE);
    let key = |text: &str| {
        let prefix: IpNet = text.parse().unwrap();
        routes::key(index(1), prefix)
    };
    story.kernel().routes = vec![(key("10.1.0.0/16"), here), (key("10.1.0.0/17"), gone)];
    story.routes = vec![route("10.0.0.0/8", 1), route("10.1.0.0/16", 2)];
    story.link(1).address(1, "10.1.0.1").dump().turn(T0);
    // All except the first and last address of a subnet, which have 128 and 32 bits.
    let is_prefix = |line: &str| line.contains("route") && !line.contains(" 160");
    let is_of_routes = |line: &&String| is_prefix(line) || *line == "+#1" || *line == "lease";
    let logged = |story: &mut Story| -> Vec<String> {
        let logged = story.kernel().log.iter().filter(is_of_routes).cloned().collect();
        story.kernel().log.clear();
        logged
    };
    let log = logged(&mut story);
    let at = |what: &str| log.iter().rposition(|line| line == what).expect(what);
    assert!(at("route 144 elsewhere") < at("route 136") && at("route 136") < at("no route 145"));
    assert!(at("no route 145") < at("+#1") && at("+#1") < at("lease"));
    let routed = Interface::ROUTED_IPV4 | Interface::ROUTED_IPV6;
    assert_eq!(story.kernel().switches, routed);

    story.routes = vec![route("10.0.0.0/8", 1), route("10.2.0.0/16", 2)];
    story.routes_at(T0).turn(T0);
    assert_eq!(logged(&mut story), ["route 144 elsewhere", "no route 144"]);
    // First to all destinations, then to none.
    story.routes = vec![route("0.0.0.0/0", 1), route("10.2.0.0/16", 1)];
    story.routes_at(T0).turn(T0);
    assert_eq!(logged(&mut story), ["route 128", "no route 136", "route 144", "+#1"]);
    assert_eq!(story.kernel().switches, Interface::ANSWER_IPV4 | Interface::ROUTED_IPV6);
    story.routes.clear();
    story.routes_at(T0).turn(T0);
    assert_eq!(logged(&mut story), ["no route 128", "no route 144", "+#1"]);
    assert_eq!(story.kernel().switches, Interface::ROUTED_IPV6);
}

/// Formatted as by `ip neigh`.
fn neighbours(story: &mut Story) -> Vec<String> {
    let held = story.kernel().neighbours.values();
    held.map(|(key, there)| {
        format!("{} dev {} at {:x}", address(key.address), key.ifindex, there.hwaddr[19])
    })
    .collect()
}

#[test]
fn next_hops_are_written_only_where_the_program_needs_them() {
    let neighbour = |last: u8, at: u8| {
        let mut hwaddr = [0; 20];
        (hwaddr[4], hwaddr[19]) = (0xfe, at);
        let (ifindex, state) = (index(1), raw::State::Reachable);
        let hwaddr = HwAddr::new(&hwaddr).unwrap();
        Entry { ifindex, address: [10, 1, 0, last].into(), state, hwaddr }
    };
    let mut story = Story::new(Settings { mode: Mode::Xdp, ..Settings::default() });
    // An earlier daemon has left a neighbour that has moved, and one that is gone.
    for last in [8, 9] {
        let key = NeighbourKey::new([10, 1, 0, last].into(), index(1));
        let update = MapUpdate::Neighbour(key, Neighbour { hwaddr: [7; 20], check: 0 });
        story.kernel().update(&update).unwrap();
    }
    let ipoib = |name: &str| {
        let mut hwaddr = [0; 20];
        hwaddr[4] = 0xfe;
        Link {
            link_type: LinkType::INFINIBAND,
            hwaddr: HwAddr::new(&hwaddr).unwrap(),
            name: InterfaceName::new(name.as_bytes()).unwrap(),
            ..link(1)
        }
    };
    story.say(Input::Link(ipoib("eth1"))).dump_of(&[ipoib("eth1")]).turn(T0);
    // They stay, and there is no new lease, until the neighbours are known.
    assert_eq!(neighbours(&mut story), ["10.1.0.8 dev 1 at 7", "10.1.0.9 dev 1 at 7"]);
    assert_eq!(story.kernel().cfg.lease_end, 0);
    // The view asks for neighbours now.
    story.node.handle_timeout(T0);
    story.say(Input::NeighboursStarted).say(Input::ListedNeighbour(neighbour(8, 8)));
    story.say(Input::NeighboursDone).turn(T0);
    assert_eq!(neighbours(&mut story), ["10.1.0.8 dev 1 at 8"]);
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::XdpGeneric)]));
    assert_eq!(story.kernel().cfg.lease_end, (T0 + LEASE).as_nanos());

    story.say(Input::Neighbour(neighbour(9, 9))).say(Input::Neighbour(neighbour(8, 10)));
    story.turn(T0);
    assert_eq!(neighbours(&mut story), ["10.1.0.8 dev 1 at a", "10.1.0.9 dev 1 at 9"]);
    story.say(Input::NeighbourGone(index(1), [10, 1, 0, 8].into())).turn(T0);
    assert_eq!(neighbours(&mut story), ["10.1.0.9 dev 1 at 9"]);
    // tc programs leave the neighbour look-up to the kernel.
    story.reconfigure(Settings { mode: Mode::Tc, ..Settings::default() }, Prefixes::EVERYONE);
    assert_eq!(neighbours(&mut story), <[String; 0]>::default());
    assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Tcx)]));
}

#[test]
fn neighbours_are_wanted_only_where_xdp_answers() {
    let on = |pattern: &str, mode| (pattern.parse().unwrap(), mode);
    for (mode, otherwise) in [(Mode::Auto, false), (Mode::Xdp, true), (Mode::XdpGeneric, true)] {
        let on = vec![on("ib1", Mode::Clsact), on("ib2", Mode::Xdp), on("ib3", Mode::User)];
        let wanted = Settings { mode, on, ..Settings::default() }.wants_neighbours();
        let each: Vec<_> = wanted.on.iter().map(|(_, wanted)| *wanted).collect();
        assert_eq!((each, wanted.otherwise), (vec![false, true, false], otherwise));
    }
}

/// A kernel that records all calls, and refuses when told to.
#[derive(Default)]
struct Fake {
    addresses: BTreeMap<([u8; 16], u32), GidEntry>,
    interfaces: BTreeSet<IfIndex>,
    switches: u32,
    allow: Vec<AllowKey>,
    routes: Vec<(RouteKey, Route)>,
    neighbours: BTreeMap<([u8; 16], u32), (NeighbourKey, Neighbour)>,
    cfg: ResponderCfg,
    attached: BTreeSet<(IfIndex, Hook)>,
    is_settled: bool,
    /// Another variant of the programs is wanted.
    wants_variant: bool,
    refuse: BTreeSet<Hook>,
    refuse_load: Option<Kind>,
    fail: Option<&'static str>,
    fail_all: bool,
    log: Vec<String>,
}

impl Fake {
    fn hold_address(&mut self, address: &str, gid: Option<&str>) {
        let key = GidKey::new(address.parse().unwrap(), index(1));
        let gid = gid.map(|gid| gid.parse().unwrap());
        let entry = GidEntry::new(key, gid, IfIndex::new(1), Origin::Local);
        self.addresses.insert((key.address, key.scope), entry);
    }
}

impl Fake {
    fn update(&mut self, update: &MapUpdate) -> Result<(), Fault> {
        let told = match update {
            MapUpdate::Address(entry) => match gid(entry) {
                Some(gid) => format!("+{}={gid}", entry.key.ip()),
                None => format!("+{}", entry.key.ip()),
            },
            MapUpdate::NoAddress(key) => format!("-{}", key.ip()),
            MapUpdate::Interface(ifindex, _) => format!("+#{ifindex}"),
            MapUpdate::NoInterface(ifindex) => format!("-#{ifindex}"),
            MapUpdate::Allow(key) => format!("allow {}", key.bits),
            MapUpdate::NoAllow(key) => format!("no allow {}", key.bits),
            MapUpdate::Route(key, route) if route.is_here() => format!("route {}", key.bits),
            MapUpdate::Route(key, _) => format!("route {} elsewhere", key.bits),
            MapUpdate::NoRoute(key) => format!("no route {}", key.bits),
            MapUpdate::Neighbour(key, _) => format!("neighbour {}", address(key.address)),
            MapUpdate::NoNeighbour(key) => format!("no neighbour {}", address(key.address)),
            MapUpdate::Cfg(cfg) if cfg.restricts() => "lease restricted".to_owned(),
            MapUpdate::Cfg(_) => "lease".to_owned(),
        };
        if self.fail_all || self.fail == Some(told.as_str()) {
            return Err(refusal());
        }
        self.log.push(told);
        match *update {
            MapUpdate::Address(entry) => {
                self.addresses.insert((entry.key.address, entry.key.scope), entry);
            }
            MapUpdate::NoAddress(key) => {
                self.addresses.remove(&(key.address, key.scope));
            }
            MapUpdate::Interface(ifindex, interface) => {
                self.interfaces.insert(ifindex);
                self.switches = interface.switches;
            }
            MapUpdate::NoInterface(ifindex) => {
                self.interfaces.remove(&ifindex);
            }
            MapUpdate::Allow(key) => self.allow.push(key),
            MapUpdate::NoAllow(key) => self.allow.retain(|held| *held != key),
            MapUpdate::Route(key, route) => {
                self.routes.retain(|(held, _)| *held != key);
                self.routes.push((key, route));
            }
            MapUpdate::NoRoute(key) => self.routes.retain(|(held, _)| *held != key),
            MapUpdate::Neighbour(key, there) => {
                self.neighbours.insert((key.address, key.ifindex), (key, there));
            }
            MapUpdate::NoNeighbour(key) => {
                self.neighbours.remove(&(key.address, key.ifindex));
            }
            MapUpdate::Cfg(cfg) => self.cfg = cfg,
        }
        Ok(())
    }

    fn held(&self) -> MapElements {
        MapElements {
            addresses: self.addresses.values().map(|entry| entry.key).collect(),
            interfaces: self.interfaces.iter().copied().collect(),
            allow: self.allow.clone(),
            routes: self.routes.clone(),
            neighbours: self.neighbours.values().map(|(key, _)| *key).collect(),
            cfg: self.cfg,
        }
    }

    fn carry_out(&mut self, step: Step) -> Result<bool, Fault> {
        match step {
            Step::Look(interface, hook) => {
                if self.wants_variant {
                    self.log.push(format!("renew {} {hook}", interface.ifindex));
                }
                return Ok(self.attached.contains(&(interface.ifindex, hook)));
            }
            Step::Attach(interface, hook) if self.refuse.contains(&hook) => {
                return Err(Fault::new(format!("{}, {hook}: refused", interface.name)));
            }
            Step::Attach(interface, hook) => {
                self.log.push(format!("attach {} {hook}", interface.ifindex));
                self.attached.insert((interface.ifindex, hook));
            }
            Step::Detach(ifindex, hook) => {
                self.log.push(format!("detach {ifindex} {hook}"));
                self.attached.remove(&(ifindex, hook));
            }
            Step::Settle => {
                self.log.push("settle".to_owned());
                self.is_settled = true;
            }
        }
        Ok(true)
    }
}

fn refusal() -> Fault {
    Fault::new("no memory")
}

/// A node and a kernel.
struct Story {
    node: Node,
    config: node::Config,
    kernel: Fake,
    /// Work for the thread.
    work: Option<Work>,
    links: BTreeSet<u32>,
    addresses: Vec<InterfaceAddress>,
    /// Routes of the next dump.
    routes: Vec<routing::Route>,
}

impl Story {
    fn new(settings: Settings) -> Self {
        Self::made(settings, &["eth1"])
    }

    fn with_interfaces<const N: usize>(interfaces: [&str; N]) -> Self {
        Self::made(Settings::default(), &interfaces)
    }

    fn made(settings: Settings, interfaces: &[&str]) -> Self {
        let view = Config {
            interfaces: InterfaceFilter::new(interfaces.iter().copied()).unwrap(),
            neighbours: settings.wants_neighbours(),
            static_gids: StaticGids::new(["10.1.0.1", "10.1.0.2", "10.1.0.5"].map(|ip| {
                StaticGid { ip: ip.parse().unwrap(), gid: "fe80::1".parse::<Gid>().unwrap() }
            }))
            .unwrap(),
        };
        let config = node::Config { view, responder: settings, ..node::Config::default() };
        let node = Node::new(config.clone(), ChaCha12Rng::seed_from_u64(1));
        let kernel = Fake::default();
        let (links, addresses) = (BTreeSet::new(), Vec::new());
        let routes = vec![route("0.0.0.0/0", 1)];
        let mut story = Self { node, config, kernel, work: None, links, addresses, routes };
        story.drain(T0);
        story
    }

    /// A story with eth1 and its address 10.1.0.1, and the first lease.
    fn running() -> Self {
        let mut story = Self::new(Settings::default());
        story.link(1).address(1, "10.1.0.1").dump().turn(T0);
        assert_eq!(story.kernel().attached, BTreeSet::from([(index(1), Hook::Tcx)]));
        story
    }

    fn responder(&self) -> &Responder {
        self.node.responder()
    }

    fn say(&mut self, input: Input) -> &mut Self {
        self.say_at(T0, input)
    }

    fn say_at(&mut self, now: Instant, input: Input) -> &mut Self {
        self.node.handle_input(now, node::Input::View(input));
        self
    }

    fn link(&mut self, ifindex: u32) -> &mut Self {
        self.links.insert(ifindex);
        self.say(Input::Link(link(ifindex)))
    }

    fn address(&mut self, ifindex: u32, address: &str) -> &mut Self {
        let entry = entry_on(ifindex, address);
        self.addresses.push(entry);
        self.say(Input::Address(entry))
    }

    fn no_address(&mut self, ifindex: u32, address: &str) -> &mut Self {
        let id = entry_on(ifindex, address).id;
        self.addresses.retain(|entry| entry.id != id);
        self.say(Input::AddressGone(id))
    }

    fn dump(&mut self) -> &mut Self {
        self.dump_at(T0)
    }

    fn dump_at(&mut self, now: Instant) -> &mut Self {
        let links: Vec<_> = self.links.iter().map(|&ifindex| link(ifindex)).collect();
        self.dump_of_at(&links, now)
    }

    fn dump_of(&mut self, links: &[Link]) -> &mut Self {
        self.dump_of_at(links, T0)
    }

    fn dump_of_at(&mut self, links: &[Link], now: Instant) -> &mut Self {
        self.say_at(now, Input::DumpStarted);
        for &link in links {
            self.say_at(now, Input::ListedLink(link));
        }
        for entry in self.addresses.clone() {
            self.say_at(now, Input::ListedAddress(entry));
        }
        self.say_at(now, Input::DumpDone).routes_at(now)
    }

    fn routes_at(&mut self, now: Instant) -> &mut Self {
        self.say_at(now, Input::RoutesStarted);
        for route in self.routes.clone() {
            self.say_at(now, Input::ListedRoute(route));
        }
        self.say_at(now, Input::RoutesDone)
    }

    /// Turns of the engine, with the thread's work.
    fn turn(&mut self, now: Instant) {
        while let Some(work) = self.turn_alone(now) {
            self.work(now, work);
        }
    }

    /// One turn of the engine; returns the thread's work.
    fn turn_alone(&mut self, now: Instant) -> Option<Work> {
        self.turn_while_busy(now);
        self.work.take()
    }

    /// One turn of the engine while the thread is busy.
    fn turn_while_busy(&mut self, now: Instant) {
        self.node.handle_timeout(now);
        self.drain(now);
    }

    fn drain(&mut self, now: Instant) {
        while let Some(output) = self.node.poll(Room { local_service: true }) {
            match output {
                node::Output::Responder(Output::Map(update)) => {
                    let done = self.kernel.update(&update);
                    self.node.handle_input(now, super::Input::MapDone(done));
                }
                node::Output::Responder(Output::Keys) => {
                    let held = Ok(self.kernel.held());
                    self.node.handle_input(now, super::Input::Keys(held));
                }
                node::Output::Responder(Output::Program(order)) => {
                    assert_eq!(self.work, None, "one at a time");
                    let done = match (order, self.kernel.refuse_load) {
                        (Order::Open, Some(kind)) => {
                            Done::Opened(Err(NotLoaded { fault: refusal(), kind }))
                        }
                        (Order::Open, None) => {
                            self.kernel.log.push("open".to_owned());
                            self.node.handle_input(now, super::Input::Opened);
                            Done::Opened(Ok(None))
                        }
                        (Order::Arrange(work), _) => {
                            self.work = Some(work);
                            continue;
                        }
                        (Order::Report(_), _) => Done::Reporting(Ok(())),
                        (Order::Close, _) => Done::Closed,
                    };
                    self.node.handle_input(now, super::Input::Done(done));
                }
                node::Output::Responder(Output::Close) => {
                    self.kernel.log.push("close".to_owned());
                }
                _ => {}
            }
        }
    }

    fn work(&mut self, now: Instant, work: Work) {
        let attached = Ok(self.kernel.attached.clone());
        let done = work.run(attached, |step| self.kernel.carry_out(step));
        self.node.handle_input(now, super::Input::Done(Done::Arranged(done)));
    }

    fn reconfigure(&mut self, settings: Settings, allow: Prefixes) {
        self.reconfigure_at(T0, settings, allow);
        self.turn(T0);
    }

    fn reconfigure_at(&mut self, now: Instant, settings: Settings, allow: Prefixes) {
        let view = Config { neighbours: settings.wants_neighbours(), ..self.config.view.clone() };
        let config = node::Config { view, responder: settings, allow, ..self.config.clone() };
        self.node.reconfigure(now, config);
    }

    fn kernel(&mut self) -> &mut Fake {
        &mut self.kernel
    }

    /// The contents of the map of addresses.
    fn answers(&mut self) -> Vec<(String, Option<String>)> {
        let entries = self.kernel().addresses.values();
        entries.map(|entry| (entry.key.ip().to_string(), gid(entry))).collect()
    }
}

fn gid(entry: &GidEntry) -> Option<String> {
    entry.has_gid().then(|| std::net::Ipv6Addr::from(entry.gid).to_string())
}

fn index(ifindex: u32) -> IfIndex {
    IfIndex::new(ifindex).unwrap()
}

fn link(ifindex: u32) -> Link {
    Link {
        ifindex: index(ifindex),
        name: InterfaceName::new(format!("eth{ifindex}").as_bytes()).unwrap(),
        link_type: LinkType::ETHERNET,
        hwaddr: HwAddr::new(&[2, 0, 0, 0, 0, 1]).unwrap(),
        up: true,
        bonding: Bonding::None,
        altnames: AltNames::default(),
        vrf: None,
        pkey: None,
    }
}

fn route(prefix: &str, ifindex: u32) -> routing::Route {
    let way = Way::By { ifindex: index(ifindex), gateway: None };
    routing::Route { prefix: prefix.parse().unwrap(), metric: 0, way, source: None }
}

fn entry_on(ifindex: u32, address: &str) -> InterfaceAddress {
    InterfaceAddress::new(index(ifindex), address.parse().unwrap(), 24, None, Dad::Passed)
}
