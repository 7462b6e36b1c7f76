// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The nodes, their requests, and the faults. Each seed has its own climate: most faults are absent
//! from most seeds, so that the mixture varies.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Version};
use ibarr_common::wire::ls::{ResolveIp, Timeout};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::{Question, client};
use ibarr_proto::local_service::Limits;
use ibarr_proto::places::Room;
use ibarr_proto::responder::Mode;
use ibarr_proto::{node, responder};

use super::addresses::{Packet, gid, home, missing_peer, wanderer};
use super::faults::FAULTS;
use super::ipoib::Ipoib;
use super::kernel_socket::KernelSocket;
use super::machine::{Assigned, Kind, Machine};
use super::network::{IPOIB, Network};
use super::process::Inbox;
use super::programs::Programs;
use super::schedule::Alarm;
use super::subnet::SUBNETS;
use super::troubles::{Pace, Troubles};
use super::{What, World};
use crate::Plan;
use crate::dice::{Dice, ms, secs, us};
use crate::kernel::{Config, Kernel};
use crate::record::{Entry, START};

#[derive(Debug)]
pub(super) struct Weather {
    pub(super) climate: Climate,
    pub(super) config: node::Config,
    /// The configuration of a client that forgets soon, and asks again.
    pub(super) short_lived: client::Config,
    pub(super) cut: Cut,
    /// Number of addresses that are asked for.
    pub(super) addresses: usize,
    pub(super) wanderers: Vec<IpAddr>,
    calls_every: Duration,
}

/// The behaviour of the network, per thousand datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Climate {
    pub(super) lost: u16,
    pub(super) repeated: u16,
    /// Datagrams that take long, and are overtaken.
    pub(super) straggles: u16,
    /// The longest travel time of the others.
    pub(super) delay: Duration,
    /// Mean time between two faults of a kind.
    pub(super) faults_every: Duration,
}

/// A network that is cut into two parts for a while.
#[derive(Debug)]
pub(super) struct Cut {
    /// The part of each machine.
    parts: Vec<bool>,
    until: Instant,
}

const WANDERERS: u8 = 2;
/// Addresses of a subnet and family that are asked for and that no host has.
const MISSING_PEERS: u8 = 4;

impl Weather {
    pub(super) fn new(dice: &mut Dice, plan: &Plan) -> Self {
        let mut config = node::Config::default();
        // Set in the kernel, and restored by a daemon that ends in an orderly way.
        config.local_service.timeout = *dice.pick(&[Timeout::DEFAULT, Timeout::MIN]);
        config.local_service.nudge = !dice.once_in(12);
        let settings = client::Settings {
            // One of four always asks.
            fresh_for: *dice.pick(&[secs(1), secs(1), secs(1), secs(0)]),
            ..client::Settings::default()
        };
        let checked = |settings| client::Config::new(settings).unwrap_or_default();
        config.client = checked(settings.clone());
        config.paths.ttl = *dice.pick(&[secs(3600), secs(60), secs(20)]);
        config.responder = responder::Settings {
            mode: *dice.pick(&[Mode::Auto, Mode::XdpGeneric]),
            lease: *dice.pick(&[secs(1), secs(60)]),
            ..responder::Settings::default()
        };
        config.view.neighbours = config.responder.wants_neighbours();
        if !plan.crowds {
            config.acm.clients = Room { all: 7, of_user: 3 };
            let limits = Limits { requests: 4, paths: 3 };
            config.local_service.limits = *dice.pick(&[Limits::default(), limits]);
        }
        let climate = Climate {
            lost: *dice.pick(&[0, 0, 1, 5, 20, 100]),
            repeated: *dice.pick(&[0, 0, 5, 50]),
            straggles: *dice.pick(&[0, 0, 1, 20]),
            delay: *dice.pick(&[us(60), us(200), ms(2), ms(15)]),
            faults_every: plan.time / *dice.pick(&[60, 20, 10, 5]),
        };
        Self {
            climate,
            config,
            short_lived: checked(client::Settings { cache_ttl: secs(5), sockets: 4, ..settings }),
            cut: Cut { parts: (0..plan.nodes).map(|_| dice.coin()).collect(), until: START },
            addresses: 0,
            wanderers: Vec::new(),
            calls_every: plan.time * *dice.pick(&[1, 2, 4]) / 150,
        }
    }
}

impl Cut {
    pub(super) fn begin(&mut self, until: Instant) {
        self.until = until;
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Whether these machines do not reach each other.
    pub(super) fn separates(&self, now: Instant, one: usize, other: usize) -> bool {
        self.until > now && self.parts[one] != self.parts[other]
    }
}

impl World {
    pub(super) fn build(&mut self) {
        for id in 0..self.plan.nodes {
            let machine = self.machine(id);
            self.machines.push(machine);
        }
        for id in 0..self.plan.nodes {
            let machine = &self.machines[id];
            if let Some(gid) = machine.gid() {
                self.truth.gid_changed(START, id, gid, false);
            }
            for address in machine.home {
                self.truth.begins(START, address, id);
            }
            if self.machines[id].kind == Kind::Ours {
                let after = self.dice.within(ms(0)..ms(300));
                self.at(START + after, What::Starts(id, 0));
            }
            let after = self.dice.around(self.weather.calls_every);
            self.at(START + secs(1) + after, What::Call(id));
        }
        for (subnet, n) in (1..=3).flat_map(|subnet| (0..WANDERERS).map(move |n| (subnet, n))) {
            let address = wanderer(subnet, n);
            self.weather.wanderers.push(address);
            let to = self.one_of_ours();
            self.at(START + ms(500), What::Wanders(address, to));
        }
        self.weather.addresses =
            2 * self.plan.nodes + SUBNETS * usize::from(WANDERERS + 2 * MISSING_PEERS);
        for fault in FAULTS {
            // Half of the faults do not exist in half of the worlds.
            if self.dice.coin() {
                self.next_fault(START + secs(2), fault);
            }
        }
    }

    fn machine(&mut self, id: usize) -> Machine {
        let subnet = 1 + u8::try_from(id % SUBNETS).unwrap_or_default();
        let home = home(subnet, 1 + u8::try_from(id / SUBNETS).unwrap_or_default());
        let kind = if self.dice.once_in(8) && id > 2 { Kind::Original } else { Kind::Ours };
        // Sequence numbers wrap around.
        let from = if self.dice.coin() { u32::MAX - 20 } else { 0 };
        let confirms = self.dice.once_in(5);
        let config = Config { ip_seq: from, path_seq: from, confirms, ..Config::default() };
        let gid = self.new_gid(subnet);
        let assigned = Assigned { lid: self.numbers.lid(), is_member: true };
        Machine {
            kind,
            subnet,
            home,
            kernel: Kernel::new(config),
            kernel_alarm: Alarm::default(),
            kernel_socket: KernelSocket::default(),
            network: Network::new(gid, home),
            ipoib: Ipoib::new(START),
            assigned,
            kept: None,
            programs: self.dice.coin().then(|| Programs::new(self.bug)),
            learned: Vec::new(),
            life: 0,
            daemon: None,
            pace: Pace::new(&mut self.dice),
            troubles: Troubles::none(START + secs(1)),
            happened: BTreeMap::new(),
        }
    }

    pub(super) fn new_gid(&mut self, subnet: u8) -> ibarr_common::ib::Gid {
        gid(self.subnets[usize::from(subnet - 1)].prefix(), self.numbers.guid())
    }

    /// A program on the machine calls `rdma_resolve_addr`, or asks the daemon.
    pub(super) fn call(&mut self, id: usize) {
        let next = self.now + self.dice.around(self.weather.calls_every);
        if next < START + self.plan.time {
            self.at(next, What::Call(id));
        }
        if self.machines[id].kind == Kind::Original {
            return self.original_asks(id);
        }
        // Sometimes many calls at once, as at the start of a job.
        let count = if self.dice.once_in(40) { 5 + self.dice.below(25) } else { 1 };
        for _ in 0..count {
            let target = self.any_target(id);
            if self.dice.once_in(32) {
                if let Some(question) = Question::new(target, None)
                    && self.machines[id].daemon.is_some()
                {
                    self.note(id, &Entry::Asked { target });
                    self.put(id, Inbox::Ask(question));
                }
                continue;
            }
            let timeout = *self.dice.pick(&[secs(2), secs(2), secs(2), secs(5), secs(1), ms(200)]);
            // The index of another namespace.
            let other = IfIndex::new(77).unwrap_or(IfIndex::MIN);
            let ifindex = if self.dice.once_in(20) { other } else { IPOIB };
            self.resolve(id, ResolveIp { ifindex, target }, timeout);
        }
    }

    /// The target of a call: mostly the same few.
    pub(super) fn any_target(&mut self, id: usize) -> IpAddr {
        let v6 = self.dice.below(10) < 3;
        match self.dice.below(20) {
            0 => *self.dice.pick(&self.weather.wanderers),
            1 => {
                let subnet = 1 + self.dice.below(SUBNETS);
                let n = self.dice.below(usize::from(MISSING_PEERS));
                missing_peer(
                    u8::try_from(subnet).unwrap_or(1),
                    u8::try_from(n).unwrap_or_default(),
                    v6,
                )
            }
            2..=5 => {
                let other = self.dice.below(self.plan.nodes);
                self.machines[other].home[usize::from(v6)]
            }
            n => {
                let friend = (id * 7 + n) % self.plan.nodes;
                self.machines[friend].home[usize::from(v6)]
            }
        }
    }

    fn original_asks(&mut self, id: usize) {
        let to = self.any_target(id);
        let msg_id = MsgId(u32::try_from(self.dice.below(1 << 20)).unwrap_or_default());
        let query = Query::new(Version::V0, msg_id, to).filter(|_| to.is_ipv4());
        if let Some(query) = query {
            let from = (self.machines[id].source(to), 40_000).into();
            self.send(id, Packet { from, to: (to, PORT).into(), payload: query.emit() });
        }
    }

    pub(super) fn one_of_ours(&mut self) -> usize {
        loop {
            let id = self.dice.below(self.machines.len());
            if self.machines[id].kind == Kind::Ours {
                return id;
            }
        }
    }
}
