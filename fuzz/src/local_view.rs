// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Links and addresses as no kernel would report them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Family;
use ibarr_proto::ip2gid::server::Local as _;
use ibarr_proto::local_view::neighbours::{Entry, Neighbour, Selection, State};
use ibarr_proto::local_view::routing::{Route, RouteBack, Via, Way, WayBack};
use ibarr_proto::local_view::rules::{Action, Rule, Selects, Traffic};
use ibarr_proto::local_view::{
    AltNames, Bonding, Config, Dad, Event, HwAddr, Input, InterfaceAddress, InterfaceFilter,
    InterfaceName, Limits, Link, LinkHeader, LinkType, LocalView, Owned, ServedInterface,
    StaticGid, StaticGids, Subject,
};
use ipnet::IpNet;

use crate::script::Script;

/// The local view under any history, which `script` encodes, also one that no kernel sends. The view keeps
/// its bounds, its events agree with its content, its answers are its content, its timers go forward, and
/// the same history gives the same view.
///
/// # Panics
/// The claim does not hold for `script`.
pub fn local_view(script: &[u8]) {
    assert_eq!(run(script), run(script), "the same history gave another view");
}

/// Few addresses, so that histories repeat them and reach every bound.
const ADDRESSES: [&str; 8] =
    ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.2.0.1", "fd00::1", "fd00::2", "fe80::1", "fe80::2"];
const NAMES: [&str; 4] = ["ib0", "ib1.8001", "eth0", "bond0"];
const INTERFACES: u8 = 7;
const LIMITS: Limits = Limits { links: 5, addresses: 7, routes: 6, neighbours: 3 };

fn run(script: &[u8]) -> Vec<String> {
    let mut script = Script(script);
    let mut view = LocalView::with_limits(config(script.byte()), LIMITS);
    let mut told = Told::default();
    let mut now = Instant::from_nanos(1);
    let mut heard = Vec::new();
    while !script.0.is_empty() {
        match script.byte() % 18 {
            0 => view.handle_input(now, Input::Link(script.link())),
            1 => view.handle_input(now, Input::LinkGone(script.ifindex())),
            2 | 3 => view.handle_input(now, Input::Address(script.address())),
            4 => view.handle_input(now, Input::AddressGone(script.address().id)),
            5 => view.handle_input(now, Input::DumpStarted),
            6 => view.handle_input(now, Input::ListedLink(script.link())),
            7 => view.handle_input(now, Input::ListedAddress(script.address())),
            8 => view.handle_input(now, Input::DumpDone),
            9 => view.reconfigure(config(script.byte())),
            10 => {
                now += Duration::from_millis(u64::from(script.byte()) * 50);
                view.handle_timeout(now);
                let due = view.poll_timeout().expect("there is always a next dump");
                assert!(due > now, "a timer does not go forward");
            }
            11 => view.handle_input(now, Input::RoutesStarted),
            12 | 13 => view.handle_input(now, Input::ListedRoute(script.route())),
            14 => view.handle_input(now, Input::ListedRule(script.rule())),
            15 => view.handle_input(now, Input::RoutesDone),
            16 => match script.byte() % 10 {
                0 => view.handle_input(now, Input::RoutesTooMany),
                1 | 2 => view.handle_input(now, Input::Neighbour(script.neighbour())),
                3 => {
                    let Entry { ifindex, address, .. } = script.neighbour();
                    view.handle_input(now, Input::NeighbourGone(ifindex, address));
                }
                4 => view.handle_input(now, Input::NeighboursStarted),
                5 => view.handle_input(now, Input::ListedNeighbour(script.neighbour())),
                6 => view.handle_input(now, Input::NeighboursDone),
                7 => view.handle_input(now, Input::DumpFailed(script.subject())),
                8 => view.handle_input(now, Input::LinksStarted),
                _ => view.handle_input(now, Input::RoutesChanged),
            },
            _ => {
                let asked: Vec<_> = std::iter::from_fn(|| view.poll_transmit()).collect();
                // Each at most once: a dump of each kind, and the end of neighbour events.
                let is_twice = |at: usize| asked[..at].contains(&asked[at]);
                assert!(!(0..asked.len()).any(is_twice), "{asked:?}");
                while let Some(event) = view.poll_event() {
                    heard.push(format!("{event:?}"));
                    hear(&mut told, event);
                }
                check(&view, &told);
            }
        }
    }
    heard.extend(view.interfaces().map(|interface| format!("{interface:?}")));
    heard
}

/// The state according to the view's events.
#[derive(Default)]
struct Told {
    owned: BTreeMap<(IpAddr, Option<IfIndex>), Owned>,
    served: BTreeMap<IfIndex, ServedInterface>,
    routes: BTreeMap<(IfIndex, IpNet), Via>,
    neighbours: BTreeMap<(IfIndex, IpAddr), Neighbour>,
}

fn hear(told: &mut Told, event: Event) {
    let key = |owned: Owned| (owned.address, owned.scope);
    match event {
        Event::Added(owned) => assert_eq!(told.owned.insert(key(owned), owned), None),
        Event::Changed(owned) => {
            let before = told.owned.insert(key(owned), owned);
            assert!(before.is_some_and(|before| before != owned), "{before:?}, then {owned:?}");
        }
        Event::Removed(owned) => assert_eq!(told.owned.remove(&key(owned)), Some(owned)),
        Event::Served(served) => {
            assert_ne!(told.served.insert(served.ifindex, served), Some(served));
        }
        Event::NotServed(ifindex) => assert!(told.served.remove(&ifindex).is_some()),
        Event::Route(RouteBack { ifindex, prefix, via }) => {
            assert_ne!(told.routes.insert((ifindex, prefix), via), Some(via));
        }
        Event::NoRoute(ifindex, prefix) => {
            assert!(told.routes.remove(&(ifindex, prefix)).is_some());
        }
        Event::Neighbour(neighbour) => {
            let key = (neighbour.ifindex, neighbour.address);
            assert_ne!(told.neighbours.insert(key, neighbour), Some(neighbour));
        }
        Event::NoNeighbour(ifindex, address) => {
            assert!(told.neighbours.remove(&(ifindex, address)).is_some());
        }
    }
}

fn check(view: &LocalView, told: &Told) {
    let held: Vec<_> = view.owned().collect();
    assert_eq!(told.owned.values().copied().collect::<Vec<_>>(), held);
    assert!(told.served.values().eq(view.served()));
    let routes = view.routes_back().map(|route| ((route.ifindex, route.prefix), route.via));
    assert!(told.routes.iter().map(|(&key, &via)| (key, via)).eq(routes));
    assert!(told.routes.len() <= 4 * LIMITS.routes + 2 * LIMITS.links);
    for ((ifindex, prefix), via) in &told.routes {
        let served = told.served.get(ifindex).expect("a route of an interface that is not served");
        // Routes matter only for a family that some sources are answered in.
        let way_back = if prefix.addr().is_ipv4() { served.ipv4 } else { served.ipv6 };
        assert!(*via == Via::Elsewhere || !matches!(way_back, WayBack::None(_)), "{served:?}");
    }
    assert!(told.neighbours.values().copied().eq(view.neighbours()));
    assert!(told.neighbours.len() <= LIMITS.neighbours);
    for neighbour in told.neighbours.values() {
        let served = told.served.get(&neighbour.ifindex);
        assert!(served.is_some_and(|served| served.header == LinkHeader::Ipoib), "{neighbour:?}");
    }
    let interfaces: Vec<_> = view.interfaces().collect();
    assert!(interfaces.len() <= LIMITS.links, "{interfaces:?}");
    let addresses: usize = interfaces.iter().map(|interface| interface.addresses.len()).sum();
    assert!(addresses <= LIMITS.addresses && held.len() <= LIMITS.addresses);
    for address in ADDRESSES.map(ip) {
        let is_it = |owned: &&Owned| owned.address == address;
        assert_eq!(view.is_ours(address), held.iter().any(|owned| is_it(&owned)));
        for ingress in (1..=INTERFACES).map(index) {
            let owned = held
                .iter()
                .filter(is_it)
                .find(|owned| owned.scope.is_none_or(|scope| scope == ingress));
            assert_eq!(view.gid_of(address, ingress), owned.and_then(|owned| owned.gid));
        }
    }
}

fn config(byte: u8) -> Config {
    let filters: [&[&str]; 4] = [&[], &["ib*"], &["*0"], &["eth0", "bond?"]];
    let interfaces = InterfaceFilter::new(filters[usize::from(byte % 4)]).expect("legal patterns");
    let entry = |address| StaticGid { ip: ip(address), gid: "fe80::9".parse().expect("a GID") };
    let ips = ["10.1.0.1", "fe80::1", "fd00::1"];
    let chosen = ips.iter().enumerate().filter(|(bit, _)| byte & (4 << bit) != 0);
    let static_gids = StaticGids::new(chosen.map(|(_, address)| entry(address)));
    let static_gids = static_gids.expect("legal addresses");
    let neighbours = Selection { on: Vec::new(), otherwise: byte & 128 != 0 };
    Config { interfaces, static_gids, neighbours }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn index(number: u8) -> IfIndex {
    IfIndex::new(number.into()).expect("not zero")
}

impl Script<'_> {
    pub(crate) fn subject(&mut self) -> Subject {
        match self.byte() % 3 {
            0 => Subject::Node,
            1 => Subject::Routes,
            _ => Subject::Neighbours,
        }
    }

    fn ifindex(&mut self) -> IfIndex {
        index(1 + self.byte() % INTERFACES)
    }

    fn link(&mut self) -> Link {
        let (ifindex, kind, place) = (self.ifindex(), self.byte(), self.byte());
        let mut hwaddr = [0; 20];
        hwaddr[4] = 0xfe;
        hwaddr[19] = kind >> 6;
        let hwaddr = match kind % 4 {
            0 => &hwaddr[..6],
            1 => &[0; 20],
            _ => &hwaddr[..],
        };
        let other = index(1 + (place >> 4) % INTERFACES);
        Link {
            ifindex,
            name: InterfaceName::new(NAMES[usize::from(kind >> 2) % 4].as_bytes()).expect("legal"),
            link_type: if kind % 4 == 0 { LinkType::ETHERNET } else { LinkType::INFINIBAND },
            hwaddr: HwAddr::new(hwaddr).expect("short"),
            up: place & 1 == 0,
            bonding: match (place >> 1) % 5 {
                0 => Bonding::Slave { of: other },
                1 => Bonding::Master { active_slave: Some(other) },
                2 => Bonding::Master { active_slave: None },
                _ => Bonding::None,
            },
            altnames: AltNames::default(),
            vrf: (place >> 1 == 7).then_some(other),
            pkey: None,
        }
    }

    fn neighbour(&mut self) -> Entry {
        let (ifindex, byte) = (self.ifindex(), self.byte());
        let mut hwaddr = [0; 20];
        hwaddr[4] = if byte & 64 == 0 { 0xfe } else { 0xff };
        hwaddr[19] = byte >> 7;
        let states =
            [State::Reachable, State::Stale, State::Delay, State::Unresolved, State::Permanent];
        Entry {
            ifindex,
            address: ip(ADDRESSES[usize::from(byte % 8)]),
            state: states[usize::from(byte >> 3 & 7) % 5],
            hwaddr: HwAddr::new(&hwaddr).expect("short"),
        }
    }

    fn route(&mut self) -> Route {
        let (ifindex, byte) = (self.ifindex(), self.byte());
        let around = ip(ADDRESSES[usize::from(byte % 8)]);
        let len = [0, 8, 24, 31, 32, 64, 128][usize::from(byte >> 3 & 7) % 7];
        let gateway = (byte & 64 != 0).then(|| ip("10.1.0.9"));
        let way = if byte >= 224 { Way::Unclear } else { Way::By { ifindex, gateway } };
        let prefix = IpNet::new(around, len).unwrap_or(around.into());
        Route { prefix, metric: u32::from(byte >> 7), way, source: Some(around) }
    }

    fn rule(&mut self) -> Rule {
        let byte = self.byte();
        let selects = [Selects::All, Selects::All, Selects::NotOurs, Selects::Vrf, Selects::Some];
        let lookup = |table| Action::Lookup { table, suppresses: false };
        Rule {
            family: if byte & 1 == 0 { Family::V4 } else { Family::V6 },
            priority: u32::from(byte >> 4),
            only: Traffic::ALL,
            selects: selects[usize::from(byte >> 1 & 7) % 5],
            inverted: false,
            action: [lookup(255), lookup(254), lookup(253), Action::Refuse]
                [usize::from(byte >> 4 & 3)],
        }
    }

    fn address(&mut self) -> InterfaceAddress {
        let (ifindex, byte) = (self.ifindex(), self.byte());
        let dad = match byte >> 6 {
            0 => Dad::Tentative,
            1 => Dad::Failed,
            _ => Dad::Passed,
        };
        let peer = (byte & 8 != 0).then(|| ip("10.1.0.9"));
        let prefix_len = if byte & 16 == 0 { 24 } else { 32 };
        InterfaceAddress::new(ifindex, ip(ADDRESSES[usize::from(byte % 8)]), prefix_len, peer, dad)
    }
}
