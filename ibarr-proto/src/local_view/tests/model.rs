// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The view against a kernel that sends events and dumps as the real one does, and against a naive
//! implementation of the module's rules.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// An event between two reads of the socket.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A link is made or changed.
    Set(Link),
    /// A link changes without an event, as when the subnet prefix changes.
    SetSilently(Link),
    Delete(IfIndex),
    /// A link and its addresses are deleted without events for the addresses.
    DeleteAtOnce(IfIndex),
    Add(InterfaceAddress),
    Remove(AddressId),
    /// The dump reads its next entry …
    Read,
    /// … and sends it, possibly long after.
    Flush,
    /// The daemon reads the messages, and reports the changes.
    Poll,
}

/// A kernel with its tables and the queue of the socket.
#[derive(Default)]
struct Kernel {
    links: BTreeMap<IfIndex, Link>,
    addresses: BTreeMap<AddressId, InterfaceAddress>,
    queue: Vec<Input>,
    dump: Option<DumpCursor>,
}

#[derive(Default)]
struct DumpCursor {
    last_link: Option<IfIndex>,
    last_address: Option<AddressId>,
    read: Vec<Input>,
}

impl Kernel {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Set(link) => {
                self.links.insert(link.ifindex, link);
                self.queue.push(Input::Link(link));
            }
            Step::SetSilently(link) => {
                if let Some(old) = self.links.get_mut(&link.ifindex) {
                    *old = link;
                }
            }
            Step::Delete(ifindex) => {
                let gone: Vec<_> =
                    self.addresses.keys().copied().filter(|id| id.ifindex == ifindex).collect();
                self.apply_all(gone.into_iter().map(Step::Remove));
                if self.links.remove(&ifindex).is_some() {
                    self.queue.push(Input::LinkGone(ifindex));
                }
            }
            Step::DeleteAtOnce(ifindex) => {
                self.addresses.retain(|id, _| id.ifindex != ifindex);
                self.apply(Step::Delete(ifindex));
            }
            Step::Add(entry) => {
                if self.links.contains_key(&entry.id.ifindex) {
                    self.addresses.insert(entry.id, entry);
                    self.queue.push(Input::Address(entry));
                }
            }
            Step::Remove(id) => {
                if self.addresses.remove(&id).is_some() {
                    self.queue.push(Input::AddressGone(id));
                }
            }
            Step::Read => self.read(),
            Step::Flush => {
                if let Some(dump) = &mut self.dump {
                    self.queue.append(&mut dump.read);
                }
            }
            Step::Poll => {}
        }
    }

    fn apply_all(&mut self, steps: impl IntoIterator<Item = Step>) {
        for step in steps {
            self.apply(step);
        }
    }

    fn start_dump(&mut self) {
        self.dump = Some(DumpCursor::default());
    }

    /// Never skips an entry that stays; the kernel's walks by index do not either.
    fn read(&mut self) {
        let Some(dump) = &mut self.dump else { return };
        let after = |last: Option<IfIndex>| {
            move |&ifindex: &IfIndex| last.is_none_or(|last| ifindex > last)
        };
        if let Some((&ifindex, &link)) =
            self.links.iter().find(|(ifindex, _)| after(dump.last_link)(ifindex))
        {
            dump.last_link = Some(ifindex);
            dump.read.push(Input::ListedLink(link));
        } else if let Some((&id, &entry)) =
            self.addresses.iter().find(|(id, _)| dump.last_address.is_none_or(|last| **id > last))
        {
            // Links are dumped before addresses.
            dump.last_link = IfIndex::new(u32::MAX);
            dump.last_address = Some(id);
            dump.read.push(Input::ListedAddress(entry));
        }
    }

    fn finish_dump(&mut self) {
        let Some(_) = self.dump else { return };
        for _ in 0..=self.links.len() + self.addresses.len() {
            self.read();
        }
        self.apply(Step::Flush);
        self.dump = None;
        self.queue.push(Input::DumpDone);
    }

    /// The rules, one by one and without any index.
    fn owned(&self, config: &Config) -> Vec<Owned> {
        let mut owned = Vec::new();
        for id in self.addresses.keys() {
            let key = Key::new(id.address, id.ifindex);
            let usable: Vec<&Link> = self
                .links
                .values()
                .filter(|link| link.up)
                .filter(|link| {
                    self.addresses.iter().any(|(other, entry)| {
                        entry.dad == Dad::Passed
                            && other.ifindex == link.ifindex
                            && Key::new(other.address, other.ifindex) == key
                    })
                })
                .collect();
            let local = usable.iter().find_map(|link| {
                let slave = matches!(link.bonding, Bonding::Slave { .. });
                let gid = match link.bonding {
                    Bonding::Master { active_slave: Some(active) } => {
                        self.links.get(&active)?.own_gid()
                    }
                    _ => link.own_gid(),
                };
                let ib = link.link_type == LinkType::INFINIBAND;
                let wanted = config.interfaces.selects(link) && ib && !slave;
                wanted.then_some(())?;
                Some((link.ifindex, gid?, Origin::Local))
            });
            let from_config = config.static_gids.lookup(id.address);
            let by_hand =
                from_config.and_then(|gid| Some((usable.first()?.ifindex, gid, Origin::Static)));
            let Some(first) = usable.first() else { continue };
            let (ifindex, gid, origin) = match by_hand.or(local) {
                Some((ifindex, gid, origin)) => (ifindex, Some(gid), origin),
                None => (first.ifindex, None, Origin::Local),
            };
            owned.push(Owned { address: key.address, scope: key.scope, gid, ifindex, origin });
        }
        owned.sort_by_key(|owned| (owned.address, owned.scope));
        owned.dedup();
        owned
    }

    /// The interfaces on which the kernel may answer, if there are routes back.
    fn served(&self, config: &Config) -> Vec<IfIndex> {
        let owned = self.owned(config);
        let answers = |link: &Link| {
            owned.iter().any(|owned| owned.gid.is_some() && owned.ifindex == link.ifindex)
        };
        self.links
            .values()
            .filter(|link| link.up && !matches!(link.bonding, Bonding::Slave { .. }))
            .filter(|link| config.interfaces.selects(link) || answers(link))
            .map(|link| link.ifindex)
            .collect()
    }
}

/// The knowledge of a listener to the events.
#[derive(Default)]
struct Mirror(
    BTreeMap<(IpAddr, Option<IfIndex>), Owned>,
    BTreeMap<IfIndex, ServedInterface>,
    BTreeSet<IfIndex>,
    BTreeMap<IfIndex, Egress>,
);

impl Mirror {
    fn poll(&mut self, view: &mut LocalView) {
        let key = |owned: Owned| (owned.address, owned.scope);
        while let Some(event) = view.poll_event() {
            match event {
                Event::Added(owned) => assert_eq!(self.0.insert(key(owned), owned), None),
                Event::Changed(owned) => {
                    let before = self.0.insert(key(owned), owned);
                    assert!(before.is_some_and(|before| before != owned), "{before:?} {owned:?}");
                }
                Event::Removed(owned) => assert_eq!(self.0.remove(&key(owned)), Some(owned)),
                Event::Served(served) => {
                    let before = self.1.insert(served.ifindex, served);
                    assert_ne!(before, Some(served));
                }
                Event::NotServed(ifindex) => assert!(self.1.remove(&ifindex).is_some()),
                // Only the route to the link's own neighbours: no others were listed.
                Event::Route(route) => assert!(self.2.insert(route.ifindex)),
                Event::NoRoute(ifindex, _) => assert!(self.2.remove(&ifindex)),
                Event::Neighbour(_) | Event::NoNeighbour(..) => panic!("no interface is followed"),
            }
        }
        assert_eq!(self.0.values().copied().collect::<Vec<_>>(), view.owned().collect::<Vec<_>>());
        assert_eq!(
            self.1.values().copied().collect::<Vec<_>>(),
            view.served().copied().collect::<Vec<_>>()
        );
        assert!(view.routes_back().map(|route| route.ifindex).eq(self.2.iter().copied()));
        for (ifindex, egress) in view.poll_egresses().unwrap_or_default() {
            match egress {
                Some(egress) => self.3.insert(ifindex, egress),
                None => self.3.remove(&ifindex),
            };
        }
        let all: Vec<_> = view.interfaces().collect();
        let egresses = all.iter().map(|interface| (interface.ifindex, egress(interface, &all)));
        assert_eq!(self.3, egresses.collect());
    }
}

/// What peers are asked by, without a bound or an index.
fn egress(interface: &Interface, all: &[Interface]) -> Egress {
    let usable = interface.addresses.iter().filter(|status| status.dad == Dad::Passed);
    let addresses: BTreeSet<_> = usable.map(|status| status.address).collect();
    let is_ipoib = interface.link_type == LinkType::INFINIBAND;
    let mut owned = all.iter().flat_map(|one| &one.addresses).filter_map(|status| status.owned);
    let has_gid = owned.any(|owned| owned.ifindex == interface.ifindex && owned.gid.is_some());
    let is_on_fabric = is_ipoib || has_gid || interface.gid != Err(NotServed::NotSelected);
    Egress { vrf: interface.vrf, is_on_fabric, addresses: addresses.into_iter().collect() }
}

fn knowing_no_routes(config: Config) -> LocalView {
    let mut view = LocalView::new(config);
    view.handle_input(NOW, Input::RoutesStarted);
    view.handle_input(NOW, Input::RoutesDone);
    view
}

fn deliver(kernel: &mut Kernel, view: &mut LocalView) {
    kernel.queue.drain(..).for_each(|input| view.handle_input(NOW, input));
}

fn fresh_dump(kernel: &mut Kernel, view: &mut LocalView) {
    view.handle_input(NOW, Input::DumpStarted);
    kernel.start_dump();
    kernel.finish_dump();
    deliver(kernel, view);
}

/// Compares after the events were polled.
fn check(kernel: &Kernel, view: &LocalView, config: &Config) {
    let expected = kernel.owned(config);
    assert_eq!(view.owned().collect::<Vec<_>>(), expected);
    assert_eq!(view.has_answers(), expected.iter().any(|owned| owned.gid.is_some()));
    for arrived_on in (1..=INTERFACES + 1).map(index) {
        for address in ADDRESSES.map(ip) {
            let key = Key::new(address, arrived_on);
            let found = expected.iter().find(|o| (o.address, o.scope) == (key.address, key.scope));
            assert_eq!(view.gid_of(address, arrived_on), found.and_then(|owned| owned.gid));
        }
    }
    for address in ADDRESSES.map(ip) {
        let ours = kernel.addresses.iter().any(|(id, entry)| {
            let up = kernel.links.get(&id.ifindex).is_some_and(|link| link.up);
            id.address == address && entry.dad == Dad::Passed && up
        });
        assert_eq!(view.is_ours(address), ours, "{address}");
    }
    let served: Vec<_> = view.served().map(|served| served.ifindex).collect();
    assert_eq!(served, kernel.served(config));
    let links: Vec<_> = view.interfaces().map(|interface| interface.ifindex).collect();
    assert_eq!(links, kernel.links.keys().copied().collect::<Vec<_>>());
}

const INTERFACES: u32 = 3;
const ADDRESSES: [&str; 6] = ["10.1.0.1", "10.1.0.2", "fd00::1", "fe80::1", "fe80::2", "fec0::1"];

fn links() -> impl Strategy<Value = Link> {
    let bonding = prop_oneof![
        4 => Just(Bonding::None),
        3 => proptest::option::of(1..=INTERFACES)
            .prop_map(|active| Bonding::Master { active_slave: active.map(index) }),
        1 => (1..=INTERFACES).prop_map(|of| Bonding::Slave { of: index(of) }),
    ];
    let kind = prop_oneof![
        3 => (1..=INTERFACES, 1..=4u8).prop_map(|(ifindex, port)| ib(ifindex, port)),
        1 => (1..=INTERFACES).prop_map(ether),
        1 => (1..=INTERFACES).prop_map(|ifindex| Link { hwaddr: HwAddr::default(), ..ib(ifindex, 1) }),
    ];
    let name = prop_oneof![3 => Just(None), 1 => Just(Some("storage")), 1 => Just(Some("ib9"))];
    (kind, bonding, prop::bool::weighted(0.8), name).prop_map(|(link, bonding, up, name)| {
        let name = name.map_or(link.name, |name| InterfaceName::new(name.as_bytes()).unwrap());
        Link { name, up, bonding, ..link }
    })
}

fn entries() -> impl Strategy<Value = InterfaceAddress> {
    let dad =
        prop_oneof![4 => Just(Dad::Passed), 1 => Just(Dad::Tentative), 1 => Just(Dad::Failed)];
    (1..=INTERFACES, prop::sample::select(ADDRESSES.to_vec()), prop::bool::ANY, dad).prop_map(
        |(ifindex, address, host, dad)| {
            let prefix_len = match (host, address) {
                (false, _) => 24,
                (true, address) if address.contains(':') => 128,
                (true, _) => 32,
            };
            InterfaceAddress::new(index(ifindex), ip(address), prefix_len, None, dad)
        },
    )
}

fn steps(silent: u32) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => links().prop_map(Step::Set),
        silent => links().prop_map(Step::SetSilently),
        2 => (1..=INTERFACES).prop_map(|ifindex| Step::Delete(index(ifindex))),
        1 => (1..=INTERFACES).prop_map(|ifindex| Step::DeleteAtOnce(index(ifindex))),
        6 => entries().prop_map(Step::Add),
        3 => entries().prop_map(|entry| Step::Remove(entry.id)),
        6 => Just(Step::Read),
        3 => Just(Step::Flush),
        1 => Just(Step::Poll),
    ];
    vec(step, 0..60)
}

fn configs() -> impl Strategy<Value = Config> {
    let filters: [&[&str]; 3] = [&[], &["ib*"], &["ib1", "eth2", "storage"]];
    let static_gids: [&[(&str, u8)]; 3] =
        [&[], &[("10.1.0.1", 9)], &[("fd00::1", 9), ("fe80::1", 8)]];
    (prop::sample::select(filters.to_vec()), prop::sample::select(static_gids.to_vec()))
        .prop_map(|(interfaces, static_gids)| config(interfaces, static_gids))
}

proptest! {
    /// The invariant of the inventory: events during a dump, interleaved in any way with the
    /// entries that the dump has read and not yet sent, neither restore deleted entries nor lose
    /// existing ones.
    #[test]
    fn dump_during_events_ends_in_the_true_state(
        config in configs(), before in steps(0), during in steps(0), after in steps(0)
    ) {
        let (mut kernel, mut view) = (Kernel::default(), knowing_no_routes(config.clone()));
        let mut mirror = Mirror::default();
        kernel.apply_all(before);
        // A daemon that starts now has received no earlier event.
        kernel.queue.clear();
        view.handle_input(NOW, Input::DumpStarted);
        kernel.start_dump();
        for step in during {
            kernel.apply(step);
            if let Step::Poll = step {
                deliver(&mut kernel, &mut view);
                mirror.poll(&mut view);
            }
        }
        kernel.finish_dump();
        kernel.apply_all(after);
        deliver(&mut kernel, &mut view);
        mirror.poll(&mut view);
        check(&kernel, &view, &config);
    }

    /// Whatever was lost, overtaken, or never sent, the next quiet dump repairs it.
    #[test]
    fn dump_after_any_history_gives_the_state_of_the_dump(
        config in configs(), history in steps(2), lost in vec(prop::bool::weighted(0.3), 300),
        shuffle: bool
    ) {
        let (mut kernel, mut view) = (Kernel::default(), knowing_no_routes(config.clone()));
        let mut mirror = Mirror::default();
        for step in history {
            kernel.apply(step);
            if let Step::Poll = step {
                let mut lost = lost.iter();
                kernel.queue.retain(|_| lost.next() != Some(&true));
                if shuffle {
                    kernel.queue.reverse();
                }
                deliver(&mut kernel, &mut view);
                mirror.poll(&mut view);
            }
        }
        kernel.queue.clear();
        fresh_dump(&mut kernel, &mut view);
        mirror.poll(&mut view);
        check(&kernel, &view, &config);

        let mut fresh = knowing_no_routes(config);
        fresh_dump(&mut kernel, &mut fresh);
        prop_assert_eq!(view.interfaces().collect::<Vec<_>>(), fresh.interfaces().collect::<Vec<_>>());
    }

    /// After a reconfiguration, the view is the same as after a start with the new configuration.
    #[test]
    fn reconfigured_view_equals_a_new_one(old in configs(), new in configs(), history in steps(0)) {
        let mut kernel = Kernel::default();
        kernel.apply_all(history);
        kernel.queue.clear();
        let mut view = knowing_no_routes(old);
        let mut mirror = Mirror::default();
        fresh_dump(&mut kernel, &mut view);
        mirror.poll(&mut view);
        view.reconfigure(new.clone());
        mirror.poll(&mut view);
        check(&kernel, &view, &new);
    }
}
