// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::server::Local as _;
use ibarr_proto::local_view::{
    Bonding, Config, Dad, Event, HwAddr, Input, InterfaceAddress, InterfaceFilter, InterfaceName,
    Limits, Link, LinkType, LocalView, Owned, StaticGid, StaticGids,
};

/// The local view under any history, however little of it a kernel could have sent, `script` being
/// read as what happens: it keeps its bounds, what it tells adds up to what it holds, what it answers
/// is what it holds, its timers go forward, and the same history gives the same view.
///
/// # Panics
/// The claim does not hold for `script`.
pub fn local_view(script: &[u8]) {
    assert_eq!(run(script), run(script), "the same history, another view");
}

/// Few of everything, so that histories meet themselves and every bound.
const ADDRESSES: [&str; 8] =
    ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.2.0.1", "fd00::1", "fd00::2", "fe80::1", "fe80::2"];
const NAMES: [&str; 4] = ["ib0", "ib1.8001", "eth0", "bond0"];
const INTERFACES: u8 = 7;
const LIMITS: Limits = Limits { links: 5, addresses: 7 };

fn run(script: &[u8]) -> Vec<String> {
    let mut script = Script(script);
    let mut view = LocalView::with_limits(config(script.byte()), LIMITS);
    let mut told = BTreeMap::new();
    let mut now = Instant::from_nanos(1);
    let mut heard = Vec::new();
    while !script.0.is_empty() {
        match script.byte() % 12 {
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
                let due = view.poll_timeout().expect("it always asks again");
                assert!(due > now, "a timer that does not go forward");
            }
            _ => {
                if view.poll_transmit().is_some() {
                    assert!(view.poll_transmit().is_none(), "asked twice");
                }
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

fn hear(told: &mut BTreeMap<(IpAddr, Option<IfIndex>), Owned>, event: Event) {
    match event {
        Event::Added(owned) => assert_eq!(told.insert((owned.address, owned.scope), owned), None),
        Event::Changed(owned) => {
            let before = told.insert((owned.address, owned.scope), owned);
            assert!(before.is_some_and(|before| before != owned), "{before:?}, then {owned:?}");
        }
        Event::Removed(owned) => {
            assert_eq!(told.remove(&(owned.address, owned.scope)), Some(owned));
        }
        Event::Served(_) | Event::NotServed(_) => {}
    }
}

fn check(view: &LocalView, told: &BTreeMap<(IpAddr, Option<IfIndex>), Owned>) {
    let held: Vec<_> = view.owned().collect();
    assert_eq!(told.values().copied().collect::<Vec<_>>(), held);
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
    Config { interfaces, static_gids: static_gids.expect("legal addresses") }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn index(number: u8) -> IfIndex {
    IfIndex::new(number.into()).expect("not zero")
}

/// What is read of it when it is used up is zero.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
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
