// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Machines on one virtual clock, which jumps from one event to the next. Each file is a part of the
//! surroundings: its types, and what happens to it.

mod addresses;
mod applications;
mod claims;
mod clients;
mod crowd;
mod daemon;
mod faults;
mod garbled;
mod health;
mod ipoib;
mod kernel_claims;
mod kernel_socket;
mod machine;
mod monitor;
mod network;
mod path_claims;
mod pending;
mod process;
mod programs;
mod rtnl;
mod schedule;
mod subnet;
mod troubles;
mod truth;
mod weather;
mod wire;
mod words;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::acm::Name;
use ibarr_common::wire::sa::{Answer, Request};
use ibarr_proto::ip2gid::client::Candidate;
use ibarr_proto::local_service::Nudge;
use ibarr_proto::local_view;

pub(crate) use self::claims::Broken;

use self::addresses::Packet;
use self::claims::Claims;
use self::faults::Fault;
use self::machine::Machine;
use self::process::Inbox;
use self::subnet::{Numbers, SUBNETS, Subnet};
use self::troubles::Trouble;
use self::truth::Truth;
use self::weather::Weather;
use crate::bugs::Bug;
use crate::dice::Dice;
use crate::record::{Entry, Record, START};
use crate::{Counts, Plan};

/// The end of a simulation.
pub(crate) struct Ended {
    pub(crate) broken: Option<Broken>,
    pub(crate) counts: Counts,
    pub(crate) record: Record,
}

/// Runs until the end, or until a claim is broken.
pub(crate) fn run(dice: Dice, plan: Plan, bug: Option<Bug>, with_lines: bool) -> Ended {
    let mut world = World::new(dice, plan, bug, with_lines);
    world.run();
    let broken = world.claims.broken().cloned();
    Ended { broken, counts: world.claims.counts, record: world.record }
}

/// The whole simulation, see the [module](self).
struct World {
    plan: Plan,
    bug: Option<Bug>,
    now: Instant,
    dice: Dice,
    machines: Vec<Machine>,
    truth: Truth,
    subnets: [Subnet; SUBNETS],
    /// Answers of administrators in flight, by number.
    mads: BTreeMap<u32, (Lid, Request, Answer)>,
    numbers: Numbers,
    weather: Weather,
    claims: Claims,
    record: Record,
    queue: BinaryHeap<Reverse<Due>>,
    scheduled: u64,
    /// Number of events in this second.
    steps: (u64, u32),
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The daemon has work.
    Turn(usize),
    /// The kernel's RDMA core has work.
    Kernel(usize),
    /// A datagram arrives; ICMP refuses one.
    Arrives(usize, Packet),
    Refused(usize, Packet),
    /// Rtnetlink delivers a message to the daemon with this life number.
    View(usize, u32, local_view::Input),
    /// A dump begins; its links are read; its addresses are read.
    DumpStarts(usize, u32),
    ListLinks(usize, u32),
    DumpLinks(usize, u32),
    DumpAddresses(usize, u32),
    /// A dump of routes or neighbours is read.
    DumpRoutes(usize, u32),
    DumpNeighbours(usize, u32),
    /// The maps of the programs are open, the thread has attached programs.
    Executed(usize, u32),
    /// The daemon with this life number reads its port; an answer of an SA arrives.
    PortSeen(usize, u32),
    MadArrives(usize, u32, u32),
    /// The daemon with this life number looks up a route.
    Route(usize, u32, Candidate),
    /// The daemon with this life number makes a nudge.
    Nudge(usize, u32, Nudge, u64),
    /// The resolver has found a name.
    Named(usize, u32, Name),
    /// The SA has given the path to the next hop.
    PathFound(usize, IpAddr),
    /// The reports of all daemons are checked.
    HealthChecked,
    /// A program on the machine calls `rdma_resolve_addr`, or asks the daemon.
    Call(usize),
    Fault(Fault),
    /// A daemon dies, and the next one starts.
    Dies(usize, u32, &'static str, bool),
    Starts(usize, u32),
    Ends(usize, u32),
    Wanders(IpAddr, usize),
    LinkUp(usize),
    LinkBack(usize),
    Looks(usize),
}

#[derive(Clone, Copy, Debug)]
struct Due {
    at: Instant,
    order: u64,
    what: What,
}

/// More events in a second are a livelock.
const MAX_STEPS: u32 = 2_000_000;

impl World {
    fn new(mut dice: Dice, plan: Plan, bug: Option<Bug>, with_lines: bool) -> Self {
        let weather = Weather::new(&mut dice, &plan);
        let mut world = Self {
            plan,
            bug,
            now: START,
            dice,
            machines: Vec::new(),
            truth: Truth::default(),
            subnets: Subnet::all(),
            mads: BTreeMap::new(),
            numbers: Numbers::default(),
            weather,
            claims: Claims::default(),
            record: Record::new(with_lines),
            queue: BinaryHeap::new(),
            scheduled: 0,
            steps: (0, 0),
        };
        world.build();
        world.check_health_soon();
        world
    }

    fn run(&mut self) {
        let end = START + self.plan.time + self.plan.quiet;
        while let Some(Reverse(due)) = self.queue.pop() {
            if due.at > end {
                break;
            }
            self.now = self.now.max(due.at);
            self.step(due);
            if self.claims.broken().is_some() {
                return;
            }
        }
        self.now = end;
        self.check_end();
    }

    fn at(&mut self, at: Instant, what: What) {
        self.scheduled += 1;
        self.queue.push(Reverse(Due { at, order: self.scheduled, what }));
    }

    fn note(&mut self, machine: usize, entry: &Entry<'_>) {
        self.record.add(self.now, machine, entry);
    }

    fn step(&mut self, due: Due) {
        let second = self.now.as_nanos() / 1_000_000_000;
        self.steps = (second, if self.steps.0 == second { self.steps.1 + 1 } else { 1 });
        if self.steps.1 > MAX_STEPS {
            let id = due.what.machine().unwrap_or_default();
            self.claims.breaks(self.now, [Some(id), None], "a livelock".to_owned());
            return;
        }
        // A suspended machine does nothing, and receives nothing that would not be kept for it.
        if let Some(id) = due.what.machine()
            && !self.machines[id].is_running(self.now)
        {
            self.sleeps(id, due);
            return;
        }
        self.happens(due.at, due.what);
    }

    /// Postpones an event until the machine wakes.
    fn sleeps(&mut self, id: usize, due: Due) {
        let machine = &mut self.machines[id];
        let wakes = machine.troubles.until(Trouble::Suspended);
        match due.what {
            What::Arrives(..) | What::Refused(..) => return,
            What::Turn(_) => {
                let Some(daemon) = &mut machine.daemon else { return };
                daemon.schedule.postpone(due.at, wakes);
            }
            What::Kernel(_) => machine.kernel_alarm.postpone(due.at, wakes),
            _ => {}
        }
        self.at(wakes, due.what);
    }

    fn happens(&mut self, at: Instant, what: What) {
        match what {
            What::Turn(id) => self.turn(id, at),
            What::Kernel(id) => self.kernel_timeout(id, at),
            What::Arrives(id, packet) => self.arrives(id, packet),
            What::Refused(id, packet) => self.put(id, Inbox::Refused(packet)),
            What::View(id, life, input) => self.tell_view(id, life, input),
            What::DumpStarts(id, life) => self.dump_starts(id, life),
            What::ListLinks(id, life) => self.list_links(id, life),
            What::DumpLinks(id, dump) => self.dump_links(id, dump),
            What::DumpAddresses(id, dump) => self.dump_addresses(id, dump),
            What::DumpRoutes(id, life) => self.dump_routes(id, life),
            What::DumpNeighbours(id, life) => self.dump_neighbours(id, life),
            What::Executed(id, life) => self.execute(id, life),
            What::PortSeen(id, life) => self.port_seen(id, life),
            What::MadArrives(id, life, number) => self.mad_arrives(id, life, number),
            What::Route(id, life, candidate) => self.route_said(id, life, candidate),
            What::Nudge(id, life, nudge, read) => self.nudge_done(id, life, nudge, read),
            What::Named(id, life, name) => self.named(id, life, name),
            What::PathFound(id, next_hop) => self.path_found(id, next_hop),
            What::HealthChecked => self.check_health(),
            What::Call(id) => self.call(id),
            What::Fault(fault) => self.strike(fault),
            What::Dies(id, life, what, keeps) => self.dies(id, life, what, keeps),
            What::Starts(id, life) => self.start(id, life),
            What::Ends(id, life) => self.ends(id, life),
            What::Wanders(address, to) => self.wanders(address, to),
            What::LinkUp(id) => self.link_up(id),
            What::LinkBack(id) => self.link_back(id),
            What::Looks(id) => self.wake(id),
        }
    }
}

impl What {
    fn machine(&self) -> Option<usize> {
        match *self {
            Self::Fault(_) | Self::HealthChecked => None,
            Self::Turn(id)
            | Self::Kernel(id)
            | Self::Arrives(id, _)
            | Self::Refused(id, _)
            | Self::View(id, ..)
            | Self::DumpStarts(id, _)
            | Self::ListLinks(id, _)
            | Self::DumpLinks(id, _)
            | Self::DumpAddresses(id, _)
            | Self::DumpRoutes(id, _)
            | Self::DumpNeighbours(id, _)
            | Self::Executed(id, _)
            | Self::PortSeen(id, _)
            | Self::MadArrives(id, ..)
            | Self::Route(id, ..)
            | Self::Nudge(id, ..)
            | Self::Named(id, ..)
            | Self::PathFound(id, _)
            | Self::Call(id)
            | Self::Dies(id, ..)
            | Self::Starts(id, _)
            | Self::Ends(id, _)
            | Self::Wanders(_, id)
            | Self::LinkUp(id)
            | Self::LinkBack(id)
            | Self::Looks(id) => Some(id),
        }
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}
