// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Neighbours to which programs can send without asking the kernel.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::local_view::neighbours::{Entry, Neighbour, STALE_USE, Selection, State};

impl Story {
    fn following(limits: Limits) -> Self {
        let mut story = Self::with_limits(&[], &[], limits);
        story.view.reconfigure(following());
        story.link(ib(1, 1)).told("");
        assert_eq!(story.asked(NOW), [Request::Dump(Subject::Neighbours)]);
        story.neighbours([]);
        story
    }

    /// A dump of neighbours.
    fn neighbours(&mut self, entries: impl IntoIterator<Item = Entry>) -> &mut Self {
        self.say(Input::NeighboursStarted);
        for entry in entries {
            self.say(Input::ListedNeighbour(entry));
        }
        self.say(Input::NeighboursDone)
    }

    /// The view's requests for neighbours by `now`.
    fn asked(&mut self, now: Instant) -> Vec<Request> {
        self.view.handle_timeout(now);
        let asked = std::iter::from_fn(|| self.view.poll_transmit());
        asked.filter(|asked| is_about_neighbours(*asked)).collect()
    }

    /// Checks the neighbours that can be sent to, each with the last byte of its GID.
    fn knows(&self, expected: &[(&str, u8)]) -> &Self {
        let known = self.view.neighbours().map(|n| (n.address, port(n.hwaddr.gid())));
        let expected = expected.iter().map(|&(address, port)| (ip(address), port));
        assert_eq!(known.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        self
    }

    fn meets(&mut self, entry: Entry) -> &mut Self {
        self.say(Input::Neighbour(entry))
    }
}

fn is_about_neighbours(asked: Request) -> bool {
    matches!(asked, Request::Dump(Subject::Neighbours) | Request::Leave(Subject::Neighbours))
}

/// Neighbours are wanted on every IPoIB interface but one.
fn following() -> Config {
    let on = vec![("ib3".parse().unwrap(), false)];
    Config { neighbours: Selection { on, otherwise: true }, ..config(&[], &[]) }
}

fn entry(ifindex: u32, address: &str, state: State, at: u8) -> Entry {
    let hwaddr = ib(ifindex, at).hwaddr;
    Entry { ifindex: index(ifindex), address: ip(address), state, hwaddr }
}

fn reachable(address: &str, at: u8) -> Entry {
    entry(1, address, State::Reachable, at)
}

/// Each state, with whether neighbours in it are kept regardless of their earlier state.
const STATES: [(State, bool); 7] = [
    (State::Reachable, true),
    (State::Delay, true),
    (State::Probe, true),
    (State::Permanent, true),
    (State::NoArp, true),
    (State::Stale, false),
    (State::Unresolved, false),
];

#[test]
fn only_neighbours_the_kernel_would_not_probe_are_kept() {
    let mut story = Story::following(Limits::default());
    for (state, kept) in STATES {
        story.meets(reachable("10.1.0.9", 9)).knows(&[("10.1.0.9", 9)]);
        let here: &[_] = if kept { &[("10.1.0.9", 9)] } else { &[] };
        story.neighbours([entry(1, "10.1.0.9", state, 9)]).knows(here);
        if state != State::Stale {
            story.meets(entry(1, "10.1.0.9", state, 9)).knows(here);
        }
    }
}

#[test]
fn stale_neighbour_is_kept_until_the_kernel_would_probe_it() {
    let stale = |at| entry(1, "10.1.0.9", State::Stale, at);
    let end = NOW + STALE_USE;
    let just_before = Instant::from_nanos(end.as_nanos() - 1);
    // Whether the neighbour is new or was confirmed before.
    for begin in [None, Some(reachable("10.1.0.9", 9))] {
        let mut story = Story::following(Limits::default());
        if let Some(entry) = begin {
            story.meets(entry);
        }
        story.meets(stale(9)).knows(&[("10.1.0.9", 9)]);
        // A dump does not restart the time; another address or a new neighbour starts its own.
        story.neighbours([stale(9), entry(1, "10.1.0.8", State::Stale, 8)]);
        assert!(story.view.poll_timeout().is_some_and(|due| due <= end));
        story.asked(just_before);
        story.knows(&[("10.1.0.9", 9)]);
        story.asked(end);
        story.knows(&[]);
        story.neighbours([stale(9)]).knows(&[]);
        story.meets(stale(9)).neighbours([stale(7)]).knows(&[]);
    }
    // Confirmed meanwhile, by an event or in a dump.
    for by_dump in [false, true] {
        let mut story = Story::following(Limits::default());
        story.meets(stale(9));
        let reachable = reachable("10.1.0.9", 9);
        if by_dump {
            story.neighbours([reachable])
        } else {
            story.meets(reachable)
        };
        story.asked(end);
        story.knows(&[("10.1.0.9", 9)]);
    }
}

#[test]
fn only_hardware_addresses_of_ports_are_used() {
    let mut story = Story::following(Limits::default());
    let entry = |octets: &[u8]| Entry {
        hwaddr: HwAddr::new(octets).unwrap(),
        ..entry(1, "10.1.0.255", State::NoArp, 1)
    };
    let mut broadcast = [0; 20];
    broadcast[4..6].copy_from_slice(&[0xff, 0x12]);
    // A multicast group, all zero, Ethernet, empty.
    for octets in [&broadcast[..], &[0; 20], &[2, 0, 0, 0, 0, 1], &[]] {
        story.meets(entry(octets)).neighbours([entry(octets)]).knows(&[]);
    }
    // The map would confuse it with 10.1.0.9.
    story.meets(reachable("::ffff:10.1.0.9", 9)).knows(&[]);
}

#[test]
fn neighbours_of_other_interfaces_are_ignored() {
    let mut story = Story::following(Limits::default());
    story.link(ether(2)).link(ib(3, 3)).link(ib(4, 4)).told("");
    assert_eq!(story.asked(NOW + Reread::GAP), [Request::Dump(Subject::Neighbours)]);
    let listed = [1, 2, 3, 4].map(|on| entry(on, "10.1.0.9", State::Reachable, 9));
    story.neighbours(listed).knows(&[("10.1.0.9", 9), ("10.1.0.9", 9)]);
    let on: Vec<_> = story.view.neighbours().map(|neighbour| neighbour.ifindex.get()).collect();
    assert_eq!(on, [1, 4]);
    story.say(Input::LinkGone(index(1))).told("");
    story.knows(&[("10.1.0.9", 9)]);
    story.link(down(ib(4, 4))).told("");
    story.knows(&[]);
    assert_eq!(story.asked(NOW), [Request::Leave(Subject::Neighbours)]);
    // An event that was in transit.
    story.meets(reachable("10.1.0.9", 9)).knows(&[]);
    assert_eq!(story.asked(NOW + Duration::from_hours(1)), []);
}

#[test]
fn newly_followed_interface_voids_the_dump_that_skipped_it() {
    let mut story = Story::following(Limits::default());
    story.say(Input::NeighboursStarted);
    // The interface is not followed yet, so this event is skipped, and the earlier state is in the
    // dump.
    story.say(Input::NeighbourGone(index(4), ip("10.1.0.9")));
    story.link(ib(4, 4)).told("");
    story.say(Input::ListedNeighbour(entry(4, "10.1.0.9", State::Reachable, 9)));
    story.say(Input::NeighboursDone).knows(&[]);
    assert_eq!(story.asked(NOW + Reread::GAP), [Request::Dump(Subject::Neighbours)]);
}

#[test]
fn dumped_neighbours_of_an_interface_no_longer_followed_are_dropped() {
    let mut story = Story::following(Limits::default());
    story.link(ib(4, 4)).told("");
    assert_eq!(story.asked(NOW + Reread::GAP), [Request::Dump(Subject::Neighbours)]);
    story.say(Input::NeighboursStarted);
    story.say(Input::ListedNeighbour(entry(4, "10.1.0.9", State::Reachable, 9)));
    story.say(Input::LinkGone(index(4))).told("");
    story.say(Input::NeighbourGone(index(4), ip("10.1.0.9")));
    story.say(Input::NeighboursDone).knows(&[]);
}

#[test]
fn late_dump_does_not_count_as_the_requested_one() {
    let mut story = Story::following(Limits::default());
    story.view.reconfigure(config(&[], &[]));
    story.told("");
    assert_eq!(story.asked(NOW), [Request::Leave(Subject::Neighbours)]);
    story.view.reconfigure(following());
    story.told("");
    // The dump was in transit when the view left, and its end never arrives.
    story.say(Input::NeighboursStarted);
    story.say(Input::ListedNeighbour(reachable("10.1.0.9", 9)));
    assert_eq!(story.asked(NOW + Reread::GAP), [Request::Dump(Subject::Neighbours)]);
    story.neighbours([reachable("10.1.0.8", 8)]).knows(&[("10.1.0.8", 8)]);
}

#[test]
fn view_is_confirmed_when_neighbours_are_known_or_overdue() {
    for comes in [true, false] {
        let mut story = Story::with_limits(&[], &[], Limits::default());
        story.view.reconfigure(following());
        story.link(ib(1, 1)).told("");
        assert_eq!(story.view.confirmed_at(), None);
        assert_eq!(story.asked(NOW), [Request::Dump(Subject::Neighbours)]);
        let now = if comes {
            story.neighbours([reachable("10.1.0.9", 9)]);
            NOW
        } else {
            let now = NOW + Reread::PATIENCE;
            assert_eq!(story.asked(now), [Request::Dump(Subject::Neighbours)]);
            now
        };
        let overdue = story.view.counters().get(Counter::NeighbourDumpsOverdue);
        assert_eq!(overdue, u64::from(!comes));
        assert_eq!(story.view.confirmed_at(), Some(NOW));
        // A later wish for neighbours does not invalidate the confirmation.
        story.view.reconfigure(config(&[], &[]));
        story.told("");
        assert_eq!(story.asked(now), [Request::Leave(Subject::Neighbours)]);
        story.view.reconfigure(following());
        story.told("");
        assert_eq!(story.view.confirmed_at(), Some(NOW));
        story.knows(&[]);
    }
}

#[test]
fn unwanted_neighbours_are_not_requested() {
    let mut story = Story::new(&[], &[]);
    story.link(ib(1, 1)).told("");
    assert_eq!(story.view.confirmed_at(), Some(NOW));
    assert_eq!(story.asked(NOW + Duration::from_hours(1)), []);
    story.meets(reachable("10.1.0.9", 9)).knows(&[]);
}

#[test]
fn overdue_dump_makes_neighbours_unknown() {
    let mut story = Story::following(Limits::default());
    story.meets(reachable("10.1.0.9", 9)).knows(&[("10.1.0.9", 9)]);
    let due = NOW + Reread::LONG_INTERVAL;
    assert_eq!(story.asked(due), [Request::Dump(Subject::Neighbours)]);
    story.knows(&[("10.1.0.9", 9)]);
    assert_eq!(story.asked(due + Reread::PATIENCE), [Request::Dump(Subject::Neighbours)]);
    story.knows(&[]);
    story.neighbours([reachable("10.1.0.9", 9)]).knows(&[("10.1.0.9", 9)]);
}

#[test]
fn full_table_drops_and_counts_new_neighbours() {
    let mut story = Story::following(Limits { neighbours: 2, ..Limits::default() });
    story.meets(reachable("10.1.0.1", 1)).meets(reachable("10.1.0.2", 2));
    story.meets(reachable("10.1.0.3", 3)).knows(&[("10.1.0.1", 1), ("10.1.0.2", 2)]);
    assert_eq!(story.view.counters().get(Counter::NeighboursRefused), 1);
    // An existing neighbour can change its address.
    story.meets(reachable("10.1.0.1", 4)).knows(&[("10.1.0.1", 4), ("10.1.0.2", 2)]);
    // A dump is bounded too, together with the events that came meanwhile.
    story.say(Input::NeighboursStarted);
    for at in 1..=9 {
        story.say(Input::ListedNeighbour(reachable(&format!("10.2.0.{at}"), at)));
    }
    story.meets(reachable("10.1.0.1", 5)).say(Input::NeighboursDone);
    story.knows(&[("10.1.0.1", 5), ("10.2.0.1", 1)]);
    assert_eq!(story.view.counters().get(Counter::NeighboursRefused), 1 + 7 + 1);
    // More events than can be recorded.
    story.say(Input::NeighboursStarted);
    for at in 1..=3 {
        story.say(Input::NeighbourGone(index(1), ip(&format!("10.3.0.{at}"))));
    }
    story.say(Input::NeighboursDone).knows(&[("10.1.0.1", 5), ("10.2.0.1", 1)]);
    assert_eq!(story.view.counters().get(Counter::DumpsSpoiled), 1);
    assert_eq!(story.asked(NOW + Reread::GAP), [Request::Dump(Subject::Neighbours)]);
}

/// An event between two reads of the sockets.
#[derive(Clone, Copy, Debug)]
enum Step {
    Set(Entry),
    /// A stale entry is used: this causes no event.
    Use(IfIndex, IpAddr),
    Remove(IfIndex, IpAddr),
    /// A link is made, changed or deleted, and its neighbours with it.
    Link(u32, Option<Link>),
    /// Whether the configuration wants neighbours.
    Configure(bool),
    /// The dump reads its next entry …
    Read,
    /// … and sends it, possibly long after.
    Flush,
    /// This number of messages, the newest, did not fit the socket.
    Lose(usize),
    /// The daemon reads the messages about links, and those about neighbours.
    Poll(bool, bool),
}

/// The kernel's neighbours and links, and the queues of two sockets.
#[derive(Default)]
struct Kernel {
    neighbours: BTreeMap<(IfIndex, IpAddr), Entry>,
    links: BTreeMap<IfIndex, Link>,
    of_links: Vec<Input>,
    of_neighbours: Vec<Input>,
    is_heard: bool,
    dump: Option<DumpCursor>,
}

#[derive(Default)]
struct DumpCursor {
    last: Option<(IfIndex, IpAddr)>,
    read: Vec<Input>,
}

impl Kernel {
    fn say(&mut self, input: Input) {
        if self.is_heard {
            self.of_neighbours.push(input);
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Set(entry) if self.links.get(&entry.ifindex).is_some_and(|link| link.up) => {
                self.neighbours.insert((entry.ifindex, entry.address), entry);
                self.say(Input::Neighbour(entry));
            }
            Step::Use(ifindex, address) => {
                if let Some(entry) = self.neighbours.get_mut(&(ifindex, address))
                    && entry.state == State::Stale
                {
                    entry.state = State::Delay;
                }
            }
            Step::Remove(ifindex, address) => {
                if self.neighbours.remove(&(ifindex, address)).is_some() {
                    self.say(Input::NeighbourGone(ifindex, address));
                }
            }
            Step::Link(ifindex, link) => {
                let ifindex = index(ifindex);
                if link.is_none_or(|link| !link.up) {
                    let here = self.neighbours.keys().filter(|(on, _)| *on == ifindex);
                    for (ifindex, address) in here.copied().collect::<Vec<_>>() {
                        self.apply(Step::Remove(ifindex, address));
                    }
                }
                self.of_links.push(match link {
                    Some(link) => Input::Link(link),
                    None => Input::LinkGone(ifindex),
                });
                match link {
                    Some(link) => self.links.insert(ifindex, link),
                    None => self.links.remove(&ifindex),
                };
            }
            Step::Read => {
                let Some(dump) = &mut self.dump else { return };
                let is_next = |key: &(IfIndex, IpAddr)| dump.last.is_none_or(|last| *key > last);
                if let Some((key, entry)) = self.neighbours.iter().find(|(key, _)| is_next(key)) {
                    dump.last = Some(*key);
                    dump.read.push(Input::ListedNeighbour(*entry));
                }
            }
            Step::Flush => {
                if let Some(dump) = &mut self.dump {
                    self.of_neighbours.append(&mut dump.read);
                }
            }
            Step::Lose(lost) if self.is_heard => {
                let kept = self.of_neighbours.len().saturating_sub(lost);
                self.of_neighbours.truncate(kept);
                // The transport reads the rest, then starts again by itself.
                self.start_dump();
            }
            Step::Set(_) | Step::Lose(_) | Step::Configure(_) | Step::Poll(..) => {}
        }
    }

    fn start_dump(&mut self) {
        self.is_heard = true;
        self.dump = Some(DumpCursor::default());
        self.of_neighbours.push(Input::NeighboursStarted);
    }

    fn finish_dump(&mut self) {
        if self.dump.is_some() {
            for _ in 0..self.neighbours.len() {
                self.apply(Step::Read);
            }
            self.apply(Step::Flush);
            self.dump = None;
            self.of_neighbours.push(Input::NeighboursDone);
        }
    }

    fn leave(&mut self) {
        self.is_heard = false;
        self.dump = None;
    }

    /// The neighbours that must be known, and those that may be: a use causes no event. Stale ones
    /// are not known after some time.
    fn usable(&self, config: &Config) -> [Vec<Entry>; 2] {
        let group = |entry: &Entry| entry.hwaddr.as_bytes()[4] == 0xff;
        let kept = |state| STATES.contains(&(state, true));
        let wanted = |link: &Link| {
            let is_ib = link.link_type == LinkType::INFINIBAND;
            is_ib && config.neighbours.otherwise && link.name.to_string() != "ib3"
        };
        let of = |ifindex| self.links.get(&ifindex).is_some_and(wanted);
        let usable = self.neighbours.values().copied();
        let usable: Vec<_> =
            usable.filter(|e| of(e.ifindex) && kept(e.state) && !group(e)).collect();
        let told = usable.iter().copied().filter(|entry| entry.state != State::Delay).collect();
        [told, usable]
    }
}

/// Updates the knowledge of a listener to the events.
fn hear(view: &mut LocalView, known: &mut BTreeMap<(IfIndex, IpAddr), Neighbour>) {
    while let Some(event) = view.poll_event() {
        match event {
            Event::Neighbour(neighbour) => {
                let key = (neighbour.ifindex, neighbour.address);
                assert_ne!(known.insert(key, neighbour), Some(neighbour));
            }
            Event::NoNeighbour(ifindex, address) => {
                assert!(known.remove(&(ifindex, address)).is_some());
            }
            _ => {}
        }
    }
    assert!(known.values().copied().eq(view.neighbours()));
}

fn entries() -> impl Strategy<Value = Entry> {
    let state = prop::sample::select(STATES.map(|(state, _)| state).to_vec());
    let address = prop::sample::select(vec!["10.1.0.1", "10.1.0.2", "fe80::1"]);
    (1..=3_u32, address, state, 1..=3_u8).prop_map(|(ifindex, address, state, at)| {
        let mut entry = entry(ifindex, address, state, at);
        if at == 3 {
            let mut group = [0; 20];
            group[4] = 0xff;
            entry.hwaddr = HwAddr::new(&group).unwrap();
        }
        entry
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let link = (1..=3_u32, 0..6_u8).prop_map(|(ifindex, kind)| {
        let link = match kind {
            0 => None,
            1 => Some(ether(ifindex)),
            2 => Some(down(ib(ifindex, 1))),
            _ => Some(ib(ifindex, 1)),
        };
        Step::Link(ifindex, link)
    });
    let configure = prop::bool::weighted(0.8).prop_map(Step::Configure);
    let step = prop_oneof![
        12 => entries().prop_map(Step::Set),
        3 => entries().prop_map(|entry| Step::Use(entry.ifindex, entry.address)),
        4 => entries().prop_map(|entry| Step::Remove(entry.ifindex, entry.address)),
        3 => link,
        1 => configure,
        6 => Just(Step::Read),
        3 => Just(Step::Flush),
        1 => (0..8_usize).prop_map(Step::Lose),
        4 => any::<(bool, bool)>().prop_map(|(links, neighbours)| Step::Poll(links, neighbours)),
    ];
    vec(step, 0..120)
}

proptest! {
    /// Whatever neighbours do, and whatever is lost, overtaken by a dump or no longer wanted: when
    /// all requested dumps have arrived, exactly the neighbours that the kernel reported last are
    /// known.
    #[test]
    fn neighbours_match_the_last_report_of_the_kernel(history in steps()) {
        let mut kernel = Kernel::default();
        let mut config = following();
        let mut view = LocalView::new(config.clone());
        for input in [Input::RoutesStarted, Input::RoutesDone] {
            view.handle_input(NOW, input);
        }
        (1..=3).for_each(|ifindex| kernel.apply(Step::Link(ifindex, Some(ib(ifindex, 1)))));
        let mut known = BTreeMap::new();
        let mut now = NOW;
        let mut turn = |kernel: &mut Kernel, view: &mut LocalView, links, neighbours| {
            now += Duration::from_secs(1);
            if links {
                kernel.of_links.drain(..).for_each(|input| view.handle_input(now, input));
            }
            if neighbours {
                kernel.of_neighbours.drain(..).for_each(|input| view.handle_input(now, input));
            }
            view.handle_timeout(now);
            let mut is_quiet = true;
            loop {
                hear(view, &mut known);
                match view.poll_transmit() {
                    Some(Request::Dump(Subject::Neighbours)) => kernel.start_dump(),
                    Some(Request::Leave(Subject::Neighbours)) => kernel.leave(),
                    Some(_) => continue,
                    None => return is_quiet,
                }
                is_quiet = false;
            }
        };
        for step in history {
            match step {
                Step::Poll(links, neighbours) => {
                    turn(&mut kernel, &mut view, links, neighbours);
                }
                Step::Configure(wanted) => {
                    config = if wanted { following() } else { self::config(&[], &[]) };
                    view.reconfigure(config.clone());
                }
                step => kernel.apply(step),
            }
        }
        for turns in 0.. {
            prop_assert!(turns < 9, "it asks without end");
            kernel.finish_dump();
            let links = turn(&mut kernel, &mut view, true, true);
            // Each turn takes two seconds, and the test continues until stale neighbours are
            // removed.
            let is_over = 2 * turns > STALE_USE.as_secs();
            if turn(&mut kernel, &mut view, true, true) && links && is_over {
                break;
            }
        }
        let [told, usable] = kernel.usable(&config);
        let is_known = |entry: &Entry| {
            let neighbour = known.get(&(entry.ifindex, entry.address));
            neighbour.is_some_and(|n| n.hwaddr.octets() == entry.hwaddr.as_bytes())
        };
        for entry in &told {
            prop_assert!(is_known(entry), "{entry:?} is not known");
        }
        let count = usable.iter().filter(|entry| is_known(entry)).count();
        prop_assert_eq!(count, known.len(), "of {:?} only {:?} are there", known, usable);
    }
}
