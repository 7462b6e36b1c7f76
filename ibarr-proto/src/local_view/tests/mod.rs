// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The local view with a kernel that the test plays.

mod model;
mod neighbours;
mod routes;
mod rules;

use std::collections::BTreeMap;
use std::time::Duration;

use super::routing::{NoWayBack, WayBack};
use super::*;
use crate::ip2gid::Question;
use crate::ip2gid::client::Egress;
use crate::ip2gid::server::Local as _;
use crate::request::Outcome;

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

/// A view with shorthands for a test: interfaces are numbers, ports are the last byte of a GID.
struct Story {
    view: LocalView,
}

impl Story {
    fn new(interfaces: &[&str], static_gids: &[(&str, u8)]) -> Self {
        Self::with_limits(interfaces, static_gids, Limits::default())
    }

    fn with_limits(interfaces: &[&str], static_gids: &[(&str, u8)], limits: Limits) -> Self {
        let mut view = LocalView::with_limits(config(interfaces, static_gids), limits);
        view.handle_timeout(NOW);
        assert_eq!(view.poll_transmit(), Some(Request::Dump(Subject::Node)));
        assert_eq!(view.poll_transmit(), Some(Request::Dump(Subject::Routes)));
        let mut story = Self { view };
        story.dump([], []).routes([]);
        story
    }

    fn say(&mut self, input: Input) -> &mut Self {
        self.view.handle_input(NOW, input);
        self
    }

    fn link(&mut self, link: Link) -> &mut Self {
        self.say(Input::Link(link))
    }

    fn add(&mut self, ifindex: u32, address: &str) -> &mut Self {
        self.say(Input::Address(on(ifindex, address)))
    }

    fn delete(&mut self, ifindex: u32, address: &str) -> &mut Self {
        self.say(Input::AddressGone(on(ifindex, address).id))
    }

    fn dump(
        &mut self,
        links: impl IntoIterator<Item = Link>,
        addresses: impl IntoIterator<Item = (u32, &'static str)>,
    ) -> &mut Self {
        self.say(Input::DumpStarted);
        links.into_iter().for_each(|link| self.view.handle_input(NOW, Input::ListedLink(link)));
        for (ifindex, address) in addresses {
            self.say(Input::ListedAddress(on(ifindex, address)));
        }
        self.say(Input::DumpDone)
    }

    /// A dump of routes, see [`route`].
    fn routes<'a>(&mut self, routes: impl IntoIterator<Item = &'a str>) -> &mut Self {
        self.say(Input::RoutesStarted);
        for route in routes {
            self.say(Input::ListedRoute(routes::route(route)));
        }
        self.say(Input::RoutesDone)
    }

    /// Checks the answers, as addresses and ports.
    fn owns(&self, expected: &[(&str, u8)]) {
        let owned: Vec<_> =
            self.view.owned().filter_map(|owned| Some((owned.address, port(owned.gid?)))).collect();
        let expected: Vec<_> =
            expected.iter().map(|&(address, port)| (ip(address), port)).collect();
        assert_eq!(owned, expected);
    }

    /// Changes since the last call, as `+`, `~` and `-`, with the port if there is a GID.
    fn told(&mut self, expected: &str) {
        let mut told = Vec::new();
        while let Some(event) = self.view.poll_event() {
            let (sign, owned) = match event {
                Event::Added(owned) => ('+', owned),
                Event::Changed(owned) => ('~', owned),
                Event::Removed(owned) => ('-', owned),
                // See `serves` and `routes::Story::leads`.
                _ => continue,
            };
            told.push(match owned.gid {
                Some(gid) if sign != '-' => format!("{sign}{}={}", owned.address, port(gid)),
                _ => format!("{sign}{}", owned.address),
            });
        }
        assert_eq!(told.join(" "), expected);
    }

    /// Checks changes of served interfaces since the last call, by interface and version of IP.
    fn serves(&mut self, expected: &str) {
        let mut told = Vec::new();
        while let Some(event) = self.view.poll_event() {
            let way_back = |way_back| match way_back {
                WayBack::All => "all",
                WayBack::Routed => "routed",
                WayBack::None(NoWayBack::Unknown) => "unknown",
                WayBack::None(NoWayBack::TooMany) => "too-many",
                WayBack::None(NoWayBack::Rule(_)) => "rule",
                WayBack::None(NoWayBack::Vrf) => "vrf",
                WayBack::None(NoWayBack::NoRoute) => "-",
            };
            match event {
                Event::Served(s) => {
                    told.push(format!("+{} {}/{}", s.name, way_back(s.ipv4), way_back(s.ipv6)));
                }
                Event::NotServed(ifindex) => told.push(format!("-{ifindex}")),
                _ => {}
            }
        }
        assert_eq!(told.join(" "), expected);
    }

    fn state(&self, ifindex: u32) -> Result<u8, NotServed> {
        let interfaces = self.view.interfaces();
        let found = interfaces.into_iter().find(|interface| interface.ifindex == index(ifindex));
        found.expect("no such interface").gid.map(port)
    }
}

fn config(interfaces: &[&str], static_gids: &[(&str, u8)]) -> Config {
    let static_gids =
        static_gids.iter().map(|&(address, port)| StaticGid { ip: ip(address), gid: gid(port) });
    Config {
        interfaces: InterfaceFilter::new(interfaces).unwrap(),
        static_gids: StaticGids::new(static_gids).unwrap(),
        ..Config::default()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn index(ifindex: u32) -> IfIndex {
    IfIndex::new(ifindex).unwrap()
}

fn gid(port: u8) -> Gid {
    format!("fe80::2:c903:0:{port:x}").parse().unwrap()
}

fn port(gid: Gid) -> u8 {
    gid.octets()[15]
}

/// `fe80::1` or `10.0.0.1/24`.
fn on(ifindex: u32, address: &str) -> InterfaceAddress {
    let (address, prefix_len) = address.split_once('/').unwrap_or((address, "24"));
    let prefix_len = prefix_len.parse().unwrap();
    InterfaceAddress::new(index(ifindex), ip(address), prefix_len, None, Dad::Passed)
}

fn ether(ifindex: u32) -> Link {
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

fn ib(ifindex: u32, port: u8) -> Link {
    let mut hwaddr = [0x80, 0, 0, 0x48].to_vec();
    hwaddr.extend(gid(port).octets());
    Link {
        name: InterfaceName::new(format!("ib{ifindex}").as_bytes()).unwrap(),
        link_type: LinkType::INFINIBAND,
        hwaddr: HwAddr::new(&hwaddr).unwrap(),
        ..ether(ifindex)
    }
}

fn bond(ifindex: u32, port: u8, active_slave: Option<u32>) -> Link {
    let active_slave = active_slave.map(index);
    Link { bonding: Bonding::Master { active_slave }, ..ib(ifindex, port) }
}

fn slave(ifindex: u32, port: u8, of: u32) -> Link {
    Link { bonding: Bonding::Slave { of: index(of) }, ..ib(ifindex, port) }
}

fn down(link: Link) -> Link {
    Link { up: false, ..link }
}

#[test]
fn address_of_an_ipoib_interface_has_its_gid() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").add(5, "fd00::1");
    story.owns(&[("10.1.0.1", 1), ("fd00::1", 1)]);
    story.told("+10.1.0.1=1 +fd00::1=1");
    assert_eq!(story.view.gid_of(ip("10.1.0.1"), index(9)), Some(gid(1)));
    assert!(story.view.is_ours(ip("10.1.0.1")));
    assert!(!story.view.is_ours(ip("10.1.0.2")));
}

/// The ifindex of a request is one of the caller's network namespace.
#[test]
fn own_address_is_no_answer_to_another_namespace() {
    let mut story = Story::new(&[], &[]);
    let ethernet = Link { link_type: LinkType::ETHERNET, ..ib(6, 9) };
    story.link(ib(5, 1)).add(5, "10.1.0.1").link(ethernet).add(6, "172.17.0.1");
    let told = |target: &str, egress| {
        let question = Question::new(ip(target), egress).unwrap();
        let found = |outcome| matches!(outcome, Outcome::Found { gid, .. } if gid == self::gid(1));
        let of = |outcome: Option<Outcome>| outcome.map(found);
        let own = story.view.lookup(question);
        (of(own), of(own.filter(|_| story.view.tells_kernel(question))))
    };
    let gid_known = (Some(true), Some(true));
    assert_eq!(told("10.1.0.1", Some(index(5))), gid_known);
    assert_eq!(told("10.1.0.1", None), gid_known);
    for elsewhere in [6, 7] {
        assert_eq!(told("10.1.0.1", Some(index(elsewhere))), (Some(true), None));
        assert_eq!(told("172.17.0.1", Some(index(elsewhere))), (Some(false), None));
    }
    assert_eq!(told("10.1.0.2", Some(index(5))), (None, None));
}

#[test]
fn order_of_link_and_address_does_not_matter() {
    let mut story = Story::new(&[], &[]);
    story.add(5, "10.1.0.1").told("");
    assert!(!story.view.is_ours(ip("10.1.0.1")));
    story.link(ib(5, 1)).told("+10.1.0.1=1");
}

#[test]
fn address_is_removed_by_its_event_or_with_its_link() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").add(5, "10.1.0.2").told("+10.1.0.1=1 +10.1.0.2=1");
    story.delete(5, "10.1.0.1").told("-10.1.0.1");
    story.say(Input::LinkGone(index(5))).told("-10.1.0.2");
    assert!(!story.view.is_ours(ip("10.1.0.2")));
    // A new device gets the index, but none of the old device's addresses.
    story.link(ib(5, 2)).told("");
}

#[test]
fn ipv4_address_is_ours_until_its_last_entry_is_deleted() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).add(5, "10.1.0.1/24").add(5, "10.1.0.1/32").told("+10.1.0.1=1");
    story.delete(5, "10.1.0.1/24").told("");
    story.delete(5, "10.1.0.1/32").told("-10.1.0.1");
}

#[test]
fn link_that_is_down_has_no_addresses_of_ours() {
    let mut story = Story::new(&[], &[("10.1.0.2", 9)]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").add(5, "10.1.0.2").told("+10.1.0.1=1 +10.1.0.2=9");
    story.link(down(ib(5, 1))).told("-10.1.0.1 -10.1.0.2");
    assert!(!story.view.is_ours(ip("10.1.0.1")));
    assert_eq!(story.state(5), Err(NotServed::Down));
    story.link(ib(5, 1)).told("+10.1.0.1=1 +10.1.0.2=9");
}

#[test]
fn new_hardware_address_changes_the_gid() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").told("+10.1.0.1=1");
    story.link(ib(5, 2)).told("~10.1.0.1=2");
    // A new subnet prefix causes no event, only the next dump contains it.
    story.dump([ib(5, 3)], [(5, "10.1.0.1")]).told("~10.1.0.1=3");
    story.link(Link { hwaddr: HwAddr::new(&[0; 20]).unwrap(), ..ib(5, 3) }).told("~10.1.0.1");
    assert_eq!(story.state(5), Err(NotServed::NoGid));
    assert!(story.view.is_ours(ip("10.1.0.1")));
}

#[test]
fn only_addresses_that_passed_duplicate_detection_are_ours() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1));
    for dad in [Dad::Tentative, Dad::Optimistic, Dad::Failed] {
        let entry = InterfaceAddress { dad, ..on(5, "fd00::1") };
        story.say(Input::Address(entry)).told("");
        assert!(!story.view.is_ours(ip("fd00::1")), "{dad:?}");
    }
    story.add(5, "fd00::1").told("+fd00::1=1");
    story.say(Input::Address(InterfaceAddress { dad: Dad::Failed, ..on(5, "fd00::1") }));
    story.told("-fd00::1");
}

#[test]
fn link_local_addresses_differ_by_interface() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).link(ib(6, 2)).add(5, "fe80::1").add(6, "fe80::1");
    story.owns(&[("fe80::1", 1), ("fe80::1", 2)]);
    assert_eq!(story.view.gid_of(ip("fe80::1"), index(5)), Some(gid(1)));
    assert_eq!(story.view.gid_of(ip("fe80::1"), index(6)), Some(gid(2)));
    assert_eq!(story.view.gid_of(ip("fe80::1"), index(7)), None);
    assert_eq!(story.view.counters().get(Counter::Contested), 0);
    story.delete(5, "fe80::1");
    assert_eq!(story.view.gid_of(ip("fe80::1"), index(5)), None);
    assert!(story.view.is_ours(ip("fe80::1")));
    story.delete(6, "fe80::1");
    assert!(!story.view.is_ours(ip("fe80::1")));
}

#[test]
fn two_ports_in_one_subnet_keep_their_own_gids() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).link(ib(6, 2)).add(5, "10.1.0.1").add(6, "10.1.0.2");
    // Whatever interface the query arrived on.
    for arrived_on in [5, 6, 7].map(index) {
        assert_eq!(story.view.gid_of(ip("10.1.0.1"), arrived_on), Some(gid(1)));
        assert_eq!(story.view.gid_of(ip("10.1.0.2"), arrived_on), Some(gid(2)));
    }
}

#[test]
fn address_on_two_interfaces_has_the_gid_of_the_lower_index() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(6, 2)).add(6, "10.1.0.1").told("+10.1.0.1=2");
    story.link(ib(5, 1)).add(5, "10.1.0.1").told("~10.1.0.1=1");
    assert_eq!(story.view.counters().get(Counter::Contested), 1);
    assert_eq!(story.view.contested().collect::<Vec<_>>(), [ip("10.1.0.1")]);
    story.link(down(ib(5, 1))).told("~10.1.0.1=2");
    assert_eq!(story.view.contested().count(), 0);
    // An interface without a GID does not count.
    story.link(ether(4)).add(4, "10.1.0.1").told("");
}

#[test]
fn p_key_children_are_separate_interfaces() {
    let mut story = Story::new(&[], &[]);
    let child = Link { name: InterfaceName::new(b"ib5.8001").unwrap(), ..ib(8, 1) };
    story.link(ib(5, 1)).link(child).add(5, "10.1.0.1").add(8, "10.2.0.1");
    story.owns(&[("10.1.0.1", 1), ("10.2.0.1", 1)]);
    story.say(Input::LinkGone(index(5))).owns(&[("10.2.0.1", 1)]);
}

#[test]
fn bond_has_the_gid_of_its_active_slave_and_slaves_none() {
    let mut story = Story::new(&[], &[]);
    story.link(bond(9, 7, Some(5))).link(slave(5, 1, 9)).link(slave(6, 2, 9));
    story.add(9, "10.1.0.1").add(5, "10.1.0.5").told("+10.1.0.1=1 +10.1.0.5");
    assert_eq!(story.state(5), Err(NotServed::Slave(index(9))));
    story.link(bond(9, 7, Some(6))).told("~10.1.0.1=2");
    // The hardware address of the slave is more recent.
    story.link(slave(6, 3, 9)).told("~10.1.0.1=3");
    story.link(slave(5, 4, 9)).told("");
    // Active, but removed: there is no GID.
    story.say(Input::LinkGone(index(6))).told("~10.1.0.1");
    story.link(bond(9, 7, None)).told("~10.1.0.1=7");
    // A released slave serves by itself.
    story.link(ib(5, 4)).told("~10.1.0.5=4");
}

#[test]
fn filter_selects_names_of_any_type_and_follows_renames() {
    let mut story = Story::new(&["ib*", "eth1"], &[]);
    let renamed = |link, name: &[u8]| Link { name: InterfaceName::new(name).unwrap(), ..link };
    story.link(renamed(ib(5, 1), b"storage0")).add(5, "10.1.0.1").told("+10.1.0.1");
    assert_eq!(story.state(5), Err(NotServed::NotSelected));
    let unmatched: Vec<_> = story.view.unmatched_patterns().map(ToString::to_string).collect();
    assert_eq!(unmatched, ["ib*", "eth1"]);
    story.link(renamed(ib(5, 1), b"ib0")).told("~10.1.0.1=1");
    story.link(renamed(ib(5, 1), b"storage0")).told("~10.1.0.1");
    story.link(ether(1)).add(1, "10.9.0.1").told("+10.9.0.1");
    assert_eq!(story.state(1), Err(NotServed::NotIpoib));
    assert_eq!(story.view.unmatched_patterns().count(), 1);
}

#[test]
fn other_names_of_an_interface_select_it_while_it_has_them() {
    let mut story = Story::new(&["ib0", "*-rail"], &[]);
    let with = |link: Link, names: &[&[u8]]| {
        let mut altnames = AltNames::default();
        for name in names {
            altnames.add(name);
        }
        Link { altnames, ..link }
    };
    let unmatched = |story: &Story| story.view.unmatched_patterns().count();
    story.link(ib(5, 1)).link(ib(6, 2)).add(5, "10.1.0.1").add(6, "10.1.0.2");
    story.told("+10.1.0.1 +10.1.0.2");
    assert_eq!(unmatched(&story), 2);
    let long = [&[b'x'; 100], &b"-rail"[..]].concat();
    story.link(with(ib(5, 1), &[&b"other"[..], &long])).told("~10.1.0.1=1");
    story.link(with(ib(6, 2), &[&b"ib0"[..]])).told("~10.1.0.2=2");
    assert_eq!(unmatched(&story), 0);
    // The name moves to another interface.
    story.link(ib(6, 2)).link(with(ib(5, 1), &[&b"ib0"[..]])).told("~10.1.0.2");
    assert_eq!(unmatched(&story), 1);
    story.link(ib(5, 1)).told("~10.1.0.1");
}

#[test]
fn static_gid_is_served_exactly_while_its_address_is_ours() {
    let mut story = Story::new(&[], &[("10.9.0.1", 9), ("10.1.0.1", 8)]);
    story.told("");
    story.link(ether(1)).told("");
    story.add(1, "10.9.0.1").told("+10.9.0.1=9");
    assert_eq!(story.view.owned().next().unwrap().origin, Origin::Static);
    story.delete(1, "10.9.0.1").told("-10.9.0.1");
    // It overrides the interface's own GID.
    story.link(ib(5, 1)).add(5, "10.1.0.1").told("+10.1.0.1=8");
    // Neither filter nor type matters to it.
    story.view.reconfigure(config(&["none"], &[("10.1.0.1", 8)]));
    story.told("");
}

#[test]
fn new_configuration_changes_only_affected_facts() {
    let mut story = Story::new(&[], &[("10.9.0.1", 9)]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").link(ether(1)).add(1, "10.9.0.1");
    story.told("+10.1.0.1=1 +10.9.0.1=9");
    story.view.reconfigure(config(&[], &[("10.9.0.1", 7)]));
    story.told("~10.9.0.1=7");
    story.view.reconfigure(config(&["eth*"], &[("10.1.0.1", 3)]));
    story.told("~10.1.0.1=3 ~10.9.0.1");
}

#[test]
fn selected_interfaces_and_owners_of_static_gids_are_served() {
    let mut story = Story::new(&[], &[("10.9.0.1", 9)]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").link(ether(1)).add(1, "10.3.0.1");
    story.routes(["0.0.0.0/0 by 5 via 10.1.0.9"]).serves("+ib5 all/routed");
    story.add(1, "10.9.0.1").serves("+eth1 -/routed");
    // A type that no program supports.
    let tun = Link { link_type: LinkType::new(65534), ..ether(2) };
    story.delete(1, "10.9.0.1").link(tun).add(2, "10.9.0.1").serves("-1");
    story.link(down(ib(5, 1))).serves("-5");
    story.link(ib(5, 1)).serves("+ib5 all/routed");
    // An interface selected by name is served, whatever it answers; a slave never is.
    story.view.reconfigure(config(&["eth*", "ib*"], &[]));
    story.link(slave(6, 2, 9)).add(6, "10.6.0.1").serves("+eth1 -/routed");
    story.say(Input::LinkGone(index(5))).serves("-5");
}

#[test]
fn changes_undone_between_two_polls_are_not_reported() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").delete(5, "10.1.0.1").told("");
    story.add(5, "10.1.0.1").told("+10.1.0.1=1");
    story.delete(5, "10.1.0.1").add(5, "10.1.0.1").link(ib(5, 2)).link(ib(5, 1)).told("");
}

#[test]
fn entries_missing_from_a_dump_are_removed() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).link(ib(6, 2)).add(5, "10.1.0.1").add(5, "10.1.0.2").add(6, "10.1.0.3");
    story.told("+10.1.0.1=1 +10.1.0.2=1 +10.1.0.3=2");
    story.dump([ib(5, 1)], [(5, "10.1.0.2"), (6, "10.1.0.3")]).told("-10.1.0.1 -10.1.0.3");
    assert_eq!(story.view.interfaces().count(), 1);
}

#[test]
fn dump_takes_effect_as_a_whole_and_only_when_done() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").told("+10.1.0.1=1");
    // The index belongs to another device by now, but the dump has not reached the addresses.
    story.say(Input::DumpStarted).say(Input::ListedLink(ib(5, 2))).told("");
    // The dump is interrupted, then repeated.
    story.say(Input::DumpStarted).told("");
    assert_eq!(story.view.counters().get(Counter::DumpsAbandoned), 1);
    story.say(Input::ListedLink(ib(5, 2)));
    story.say(Input::ListedAddress(on(5, "10.1.0.2"))).told("");
    story.say(Input::DumpDone).told("-10.1.0.1 +10.1.0.2=2");
}

#[test]
fn events_during_a_dump_overrule_it() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).link(ib(6, 2)).add(5, "10.1.0.1").add(6, "10.1.0.6");
    story.told("+10.1.0.1=1 +10.1.0.6=2");
    story.say(Input::DumpStarted);
    // The kernel read these entries, then deleted them, then the dump arrived.
    story.delete(5, "10.1.0.1").say(Input::LinkGone(index(6)));
    story.told("-10.1.0.1 -10.1.0.6");
    story.say(Input::ListedLink(ib(5, 1))).say(Input::ListedLink(ib(6, 2)));
    story.say(Input::ListedAddress(on(5, "10.1.0.1")));
    story.say(Input::ListedAddress(on(6, "10.1.0.6")));
    // The dump had passed this position when the address was added.
    story.add(5, "10.1.0.3").told("+10.1.0.3=1");
    story.say(Input::DumpDone).told("");
    story.owns(&[("10.1.0.3", 1)]);
}

#[test]
fn new_link_does_not_inherit_dumped_addresses_of_the_old_one() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(5, 1)).add(5, "10.1.0.1").told("+10.1.0.1=1");
    story.say(Input::DumpStarted).say(Input::LinkGone(index(5))).link(ib(5, 2));
    story.add(5, "10.1.0.2").say(Input::ListedAddress(on(5, "10.1.0.1"))).say(Input::DumpDone);
    story.told("-10.1.0.1 +10.1.0.2=2");
}

#[test]
fn entries_outside_a_dump_are_ignored_and_counted() {
    let mut story = Story::new(&[], &[]);
    story.say(Input::ListedLink(ib(5, 1))).say(Input::ListedAddress(on(5, "10.1.0.1")));
    story.say(Input::DumpDone).told("");
    assert_eq!(story.view.counters().get(Counter::ListedOutsideDump), 3);
    assert_eq!(story.view.interfaces().count(), 0);
}

#[test]
fn full_tables_drop_and_count_new_entries() {
    let limits = Limits { links: 2, addresses: 2, ..Limits::default() };
    let mut story = Story::with_limits(&[], &[], limits);
    story.link(ib(5, 1)).link(ib(6, 2)).link(ib(7, 3));
    story.add(5, "10.1.0.1").add(5, "10.1.0.2").add(5, "10.1.0.3");
    story.owns(&[("10.1.0.1", 1), ("10.1.0.2", 1)]);
    let counters = story.view.counters();
    assert_eq!(
        (counters.get(Counter::LinksRefused), counters.get(Counter::AddressesRefused)),
        (1, 1)
    );
    // Existing entries can change.
    story.link(ib(5, 4)).owns(&[("10.1.0.1", 4), ("10.1.0.2", 4)]);
    // A dump is bounded too, together with the events that came meanwhile.
    story.say(Input::DumpStarted);
    for port in 1..=9 {
        story.say(Input::ListedLink(ib(10 + u32::from(port), port)));
        let entry = on(10 + u32::from(port), &format!("10.2.0.{port}"));
        story.say(Input::ListedAddress(entry));
    }
    story.link(ib(5, 4)).add(5, "10.1.0.1").say(Input::DumpDone);
    assert_eq!(story.view.interfaces().count(), 2);
    story.owns(&[("10.1.0.1", 4), ("10.2.0.1", 1)]);
    let counters = story.view.counters();
    assert_eq!(
        (counters.get(Counter::LinksRefused), counters.get(Counter::AddressesRefused)),
        (1 + 7 + 1, 1 + 7 + 1)
    );
}

#[test]
fn dump_with_too_many_events_is_repeated() {
    let limits = Limits { links: 2, addresses: 2, ..Limits::default() };
    let mut story = Story::with_limits(&[], &[], limits);
    story.link(ib(5, 1)).add(5, "10.1.0.1").told("+10.1.0.1=1");
    story.say(Input::DumpStarted);
    for address in ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6"] {
        story.add(5, address).delete(5, address);
    }
    story.say(Input::DumpDone).told("");
    assert_eq!(story.view.counters().get(Counter::DumpsSpoiled), 1);
    let due = story.view.poll_timeout().unwrap();
    assert_eq!(due, NOW + Reread::GAP);
    story.view.handle_timeout(due);
    assert_eq!(story.view.poll_transmit(), Some(Request::Dump(Subject::Node)));
}

#[test]
fn interface_status_shows_the_answers_for_its_addresses() {
    let mut story = Story::new(&[], &[("10.9.0.1", 9)]);
    story.link(ether(1)).add(1, "10.9.0.1").add(1, "10.9.0.2").link(ib(5, 1)).add(5, "fe80::1");
    let interfaces: Vec<_> = story.view.interfaces().collect();
    let [eth1, ib5] = interfaces.as_slice() else { panic!("{interfaces:?}") };
    assert_eq!((eth1.gid, ib5.gid), (Err(NotServed::NotSelected), Ok(gid(1))));
    let answers: Vec<_> =
        eth1.addresses.iter().map(|status| status.owned.and_then(|owned| owned.gid)).collect();
    assert_eq!(answers, [Some(gid(9)), None]);
    assert_eq!(ib5.addresses[0].owned.unwrap().scope, Some(index(5)));
}

#[test]
fn every_link_event_causes_a_dump() {
    let mut story = Story::new(&[], &[]);
    let quiet = story.view.poll_timeout().unwrap();
    story.add(5, "fd00::1");
    assert_eq!(story.view.poll_timeout(), Some(quiet), "an address tells all of itself");
    for event in [Input::Link(ib(5, 1)), Input::LinkGone(index(5))] {
        story.dump([], []).routes([]).say(event);
        assert_eq!(story.view.poll_timeout(), Some(NOW + Reread::GAP));
    }
}

#[test]
fn client_learns_a_bounded_number_of_addresses_of_the_interface_that_changed() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(1, 1)).link(ib(2, 2)).view.poll_egresses();
    for n in 1..=200 {
        story.add(1, &format!("10.1.0.{n}")).add(1, &format!("fe80::{n}"));
    }
    let changed = story.view.poll_egresses().unwrap();
    let first = |prefix| (1..=8).map(move |n| ip(&format!("{prefix}{n}")));
    let addresses = first("10.1.0.").chain(first("fe80::")).collect();
    let egress = Egress { vrf: None, is_on_fabric: true, addresses };
    assert_eq!(changed, BTreeMap::from([(index(1), Some(egress))]));
    assert_eq!(story.view.poll_egresses(), None);
}

#[test]
fn address_behind_those_told_is_no_news_of_its_interface() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(1, 1));
    for n in 1..=9 {
        story.add(1, &format!("10.1.0.{n}")).add(1, &format!("fe80::{n}"));
    }
    story.view.poll_egresses();
    story.delete(1, "10.1.0.9").add(1, "10.2.0.1").add(1, "fe80::10").delete(1, "fe80::a");
    assert_eq!(story.view.poll_egresses(), Some(BTreeMap::new()));
    for (deleted, told) in [("10.1.0.8", "10.2.0.1"), ("fe80::1", "fe80::9")] {
        let egresses = story.delete(1, deleted).view.poll_egresses().unwrap();
        let addresses = &egresses[&index(1)].as_ref().unwrap().addresses;
        assert!(addresses.contains(&ip(told)) && !addresses.contains(&ip(deleted)));
    }
    for new in ["10.0.0.1", "fd00::1", "fe80::", "fec0::1"] {
        let egresses = story.add(1, new).view.poll_egresses().unwrap();
        assert!(egresses[&index(1)].as_ref().unwrap().addresses.contains(&ip(new)), "{new}");
    }
}

#[test]
fn stream_of_events_has_the_addresses_read_again_only_after_a_loss() {
    let mut story = Story::new(&[], &[]);
    story.dump([ib(5, 1)], (1..=9).map(|_| (5, "10.9.0.1")));
    let mut now = NOW;
    let (mut of_all, mut of_links) = (0, 0);
    let mut stream = |story: &mut Story, seconds: u32| {
        for n in 0..10 * seconds {
            now += Duration::from_millis(100);
            let view = &mut story.view;
            let entry = on(5, &format!("10.1.{}.1", n % 250));
            view.handle_input(now, Input::Address(entry));
            view.handle_input(now, Input::AddressGone(entry.id));
            view.handle_input(now, Input::RoutesChanged);
            view.handle_timeout(now);
            let asked: Vec<_> = std::iter::from_fn(|| view.poll_transmit()).collect();
            for request in asked {
                let mut said = vec![Input::ListedLink(ib(5, 1))];
                match request {
                    Request::Links => {
                        of_links += 1;
                        said.insert(0, Input::LinksStarted);
                    }
                    Request::Dump(Subject::Node) => {
                        of_all += 1;
                        said.insert(0, Input::DumpStarted);
                        said.push(Input::ListedAddress(on(5, "10.9.0.1")));
                    }
                    _ => {
                        view.handle_input(now, Input::RoutesStarted);
                        view.handle_input(now, Input::RoutesDone);
                        continue;
                    }
                }
                said.push(Input::DumpDone);
                for input in said {
                    view.handle_input(now, input);
                }
            }
            let confirmed_at = view.confirmed_at().unwrap();
            assert!(now.since(confirmed_at) <= Reread::INTERVAL, "the lease goes on");
        }
        (of_all, of_links)
    };
    assert_eq!(stream(&mut story, 60), (0, 60 / 5));
    story.say(Input::DumpFailed(Subject::Node));
    let (of_all, of_links) = stream(&mut story, 60);
    assert!(of_all == 1 && of_links >= 2 * 60 / 5 - 1, "{of_all} of all, {of_links} of links");
    story.owns(&[("10.9.0.1", 1)]);
}

#[test]
fn addresses_are_read_after_what_the_kernel_does_without_an_event() {
    let asked = |tell: &dyn Fn(&mut Story)| {
        let mut story = Story::new(&[], &[]);
        story.dump([ib(5, 1), down(ib(6, 2))], [(5, "10.1.0.1")]);
        tell(&mut story);
        story.view.handle_timeout(NOW + Reread::INTERVAL);
        story.view.poll_transmit()
    };
    let links = |story: &mut Story, links: &[Link]| {
        story.say(Input::LinksStarted);
        for link in links {
            story.say(Input::ListedLink(*link));
        }
        story.say(Input::DumpDone);
    };
    let (some, all) = (Some(Request::Links), Some(Request::Dump(Subject::Node)));
    assert_eq!(asked(&|_| {}), some);
    assert_eq!(
        asked(&|story| {
            story.link(down(ib(5, 1)));
        }),
        some
    );
    assert_eq!(
        asked(&|story| {
            story.link(ib(5, 2));
        }),
        some
    );
    assert_eq!(asked(&|story| links(story, &[ib(5, 1), down(ib(6, 2))])), some);
    assert_eq!(
        asked(&|story| {
            story.link(ib(6, 2));
        }),
        all,
        "kept addresses are tentative"
    );
    assert_eq!(asked(&|story| links(story, &[ib(5, 2), down(ib(6, 2))])), all, "a silent change");
    assert_eq!(
        asked(&|story| {
            story.say(Input::DumpFailed(Subject::Node));
        }),
        all
    );
    let given_up = |story: &mut Story| {
        story.say(Input::DumpStarted);
        links(story, &[ib(5, 1), down(ib(6, 2))]);
    };
    assert_eq!(asked(&given_up), all, "a dump that was not done");
}

#[test]
fn dump_of_links_confirms_nothing_after_a_loss() {
    let mut story = Story::new(&[], &[]);
    let before = story.view.confirmed_at();
    let later = NOW + Reread::INTERVAL;
    for input in [Input::LinksStarted, Input::DumpFailed(Subject::Node), Input::DumpDone] {
        story.view.handle_input(later, input);
    }
    assert_eq!(story.view.confirmed_at(), before);
    story.view.handle_timeout(later);
    assert_eq!(story.view.poll_transmit(), Some(Request::Dump(Subject::Node)));
}
