// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The map of peers' answers is equal to the cache.

use ibarr_common::map::{GidKey, LearnedGid};

use super::super::mirror::{self, Element, Output};
use super::*;

/// A client with a map.
struct World {
    rig: Rig,
    map: Vec<Element>,
    is_open: bool,
    fails: bool,
    /// The map is to be read.
    reads: bool,
}

impl World {
    fn new(rig: Rig) -> Self {
        Self { rig, map: Vec::new(), is_open: false, fails: false, reads: false }
    }

    fn tell(&mut self, input: mirror::Input<'_>) {
        self.rig.input(Input::Mirror(input));
    }

    fn open(&mut self) {
        self.is_open = true;
        let elements = self.map.clone();
        self.tell(mirror::Input::Opened(&elements));
    }

    fn learn(&mut self, n: u16, of: u16) {
        self.rig.ask_fresh(question(n));
        if let Some(last) = self.rig.sent.len().checked_sub(1) {
            self.rig.reply(last, Some(gid(of)));
        }
    }

    /// Carries out what is due.
    fn turn(&mut self, time: Duration) {
        self.rig.run(time);
        while let Some(output) = self.rig.client.poll_mirror() {
            match output {
                _ if !self.is_open => self.tell(mirror::Input::Closed),
                Output::Read => self.reads = true,
                _ if self.fails => self.tell(mirror::Input::Failed),
                Output::Put(element) => {
                    self.map.retain(|held| held.key != element.key);
                    self.map.push(element);
                }
                Output::Remove(key) => self.map.retain(|held| held.key != key),
            }
        }
    }

    fn read(&mut self) {
        if std::mem::take(&mut self.reads) {
            let elements = self.map.clone();
            self.tell(if self.fails {
                mirror::Input::Failed
            } else {
                mirror::Input::Read(&elements)
            });
        }
    }

    /// What the next daemon finds, and what this one remembers.
    fn both(&self) -> [Vec<(Question, Option<Gid>)>; 2] {
        let is_valid = |(_, cached): &(_, Cached)| cached.expires_at > self.rig.now;
        let is_positive = |(_, cached): &(_, Cached)| cached.gid.is_some();
        let left = self.map.iter().filter_map(Element::parse).filter(is_valid);
        let remembered = self.rig.client.entries().filter(is_positive).filter(is_valid);
        let both = [left.collect::<Vec<_>>(), remembered.collect()];
        both.map(|all| {
            let mut all: Vec<_> = all.into_iter().map(|(of, cached)| (of, cached.gid)).collect();
            all.sort_unstable();
            all
        })
    }
}

fn garbage(n: u8) -> Element {
    let key = GidKey { address: [n; 16], scope: u32::from(n % 2) };
    let value = LearnedGid { gid: [n; 16], source: [0; 16], expires_at: u64::MAX };
    Element { key, value }
}

#[test]
fn next_daemon_takes_over_in_bounded_parts() {
    let mut first = World::new(Rig::new(Settings::default()));
    first.open();
    for n in 1..=1000 {
        first.learn(n, n);
        first.turn(Duration::ZERO);
    }
    assert_eq!(first.map.len(), 1000);
    let mut next = World::new(Rig::new(Settings::default()));
    next.rig.now = first.rig.now;
    next.map = std::mem::take(&mut first.map);
    next.map.push(garbage(0xff));
    next.is_open = true;
    let elements = next.map.clone();
    next.rig.client.handle_input(next.rig.now, Input::Mirror(mirror::Input::Opened(&elements)));
    let mut lens = Vec::new();
    while next.rig.client.inherits() {
        next.rig.client.handle_timeout(next.rig.now);
        lens.push(next.rig.client.entries().count());
    }
    assert_eq!(lens, [256, 512, 768, 1000]);
    next.turn(Duration::ZERO);
    assert_eq!(next.map.len(), 1000, "what no daemon writes is removed");
    assert_eq!(next.both(), first_of(&next));
}

fn first_of(world: &World) -> [Vec<(Question, Option<Gid>)>; 2] {
    let [_, remembered] = world.both();
    [remembered.clone(), remembered]
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Learn(u16, u16),
    Pass(u16),
    Fails(bool),
    Read,
    Open(u8),
    Close,
    Flush,
    Subnet(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..9_u16, 1..9_u16).prop_map(|(n, of)| Step::Learn(n, of)),
        3 => (0..30_000_u16).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::Fails),
        2 => Just(Step::Read),
        1 => (1..9_u8).prop_map(Step::Open),
        1 => Just(Step::Close),
        1 => Just(Step::Flush),
        1 => (1..4_u16).prop_map(Step::Subnet),
    ]
}

proptest! {
    /// The invariant of the module.
    #[test]
    fn map_is_equal_to_the_cache_in_the_end(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new(Rig::new(Settings::default()));
        for step in steps {
            match step {
                Step::Learn(n, of) => world.learn(n, of),
                Step::Pass(time) => world.rig.run(ms(time.into())),
                Step::Fails(fails) => world.fails = fails,
                Step::Read => world.read(),
                Step::Open(n) => {
                    world.map.push(garbage(n));
                    world.open();
                }
                Step::Close => world.is_open = false,
                Step::Flush => drop(world.rig.client.flush()),
                Step::Subnet(n) => {
                    let prefix = |n: u16| SubnetPrefix::new(u64::from(n));
                    world.rig.renumber(prefix(n), prefix(n + 1));
                }
            }
            world.turn(Duration::ZERO);
        }
        world.fails = false;
        world.open();
        world.turn(Duration::ZERO);
        // Too much may have changed to note each.
        for _ in 0..2 {
            world.read();
            world.turn(secs(11));
        }
        let [left, remembered] = world.both();
        prop_assert_eq!(left, remembered);
        prop_assert!(world.rig.client.poll_timeout().is_none_or(|at| at > world.rig.now));
    }
}
