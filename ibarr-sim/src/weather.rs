// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Who is there, what they ask, and what goes wrong. Each seed has a climate of its own: most faults
//! are absent from most, so that what is found is not always the same mixture.

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Version};
use ibarr_common::wire::ls::ResolveIp;
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::node;

use crate::Plan;
use crate::dice::{Dice, ms, secs, us};
use crate::kernel::{Config, Kernel};
use crate::machine::{
    IPOIB, Inbox, Kind, LocalServiceSocket, Machine, Network, Pace, Packet, Responder, ToDaemon,
    Troubles, entry, gid, home, links, nobody, wanderer,
};
use crate::record::{Entry, Id};
use crate::world::{START, What, World};

#[derive(Debug)]
pub(crate) struct Weather {
    pub(crate) climate: Climate,
    pub(crate) config: node::Config,
    /// Machines on different islands do not reach each other until then.
    pub(crate) islands: Vec<bool>,
    pub(crate) cut_until: Instant,
    /// Addresses that are asked for.
    pub(crate) addresses: usize,
    wanderers: Vec<IpAddr>,
    prefixes: [u16; SUBNETS],
    next_guid: u32,
    calls_every: Duration,
}

/// What the network does, in a thousand datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Climate {
    pub(crate) lost: u16,
    pub(crate) repeated: u16,
    /// Take long, and are overtaken.
    pub(crate) straggles: u16,
    /// The longest that others take.
    pub(crate) delay: Duration,
    /// The mean time between two faults of a kind.
    faults_every: Duration,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// The daemon is killed, and started again.
    Killed,
    /// The same, and the next one inherits the socket to the kernel.
    Upgraded,
    /// It is asked to end, and started again.
    Stopped,
    /// The machine sleeps; its clock goes on.
    Suspended,
    /// The daemon does not get to run.
    Stalled,
    /// The network falls in two.
    Cut,
    /// The socket to the daemon holds little.
    Squeezed,
    /// The socket to the kernel takes nothing.
    Clogged,
    NudgesFail,
    NoSockets,
    /// An address moves to another machine.
    Wanders,
    /// The SM changes the prefix of a subnet, and so all of its GIDs, and nobody is told.
    Prefix,
    /// A machine has another GID.
    Gid,
    LinkFlaps,
    /// The driver is unloaded and loaded again.
    LinkGone,
    RtnetlinkLoses,
    /// IPoIB looks for all paths again.
    PathsForgotten,
    /// Neighbours come and go on this machine.
    Neighbour,
    /// Somebody else writes to the daemon's sockets.
    Stranger,
}

const FAULTS: [Fault; 19] = [
    Fault::Killed,
    Fault::Upgraded,
    Fault::Stopped,
    Fault::Suspended,
    Fault::Stalled,
    Fault::Cut,
    Fault::Squeezed,
    Fault::Clogged,
    Fault::NudgesFail,
    Fault::NoSockets,
    Fault::Wanders,
    Fault::Prefix,
    Fault::Gid,
    Fault::LinkFlaps,
    Fault::LinkGone,
    Fault::RtnetlinkLoses,
    Fault::PathsForgotten,
    Fault::Neighbour,
    Fault::Stranger,
];

const SUBNETS: usize = 3;
const WANDERERS: u8 = 2;
/// Addresses of a subnet and family that are asked for and that nobody has.
const NOBODIES: u8 = 4;

/// Nothing goes wrong so long before the end that its effects would outlast the quiet.
const CALM_AT_END: Duration = secs(60);

impl Weather {
    pub(crate) fn new(dice: &mut Dice, plan: &Plan) -> Self {
        let climate = Climate {
            lost: *dice.pick(&[0, 0, 1, 5, 20, 100]),
            repeated: *dice.pick(&[0, 0, 5, 50]),
            straggles: *dice.pick(&[0, 0, 1, 20]),
            delay: *dice.pick(&[us(60), us(200), ms(2), ms(15)]),
            faults_every: *dice.pick(&[secs(10), secs(30), secs(60), secs(120)]),
        };
        Self {
            climate,
            config: node::Config::default(),
            islands: (0..plan.nodes).map(|_| dice.coin()).collect(),
            cut_until: START,
            addresses: 0,
            wanderers: Vec::new(),
            prefixes: [1, 2, 3],
            next_guid: 0,
            calls_every: *dice.pick(&[secs(4), secs(8), secs(16)]),
        }
    }
}

impl World {
    /// Puts everybody in place.
    pub(crate) fn build(&mut self) {
        for id in 0..self.plan.nodes {
            let machine = self.machine(id);
            self.machines.push(machine);
        }
        for id in 0..self.plan.nodes {
            let machine = &self.machines[id];
            if let Some(gid) = machine.gid() {
                self.truth.is_called(START, id, gid, false);
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
            2 * self.plan.nodes + SUBNETS * usize::from(WANDERERS + 2 * NOBODIES);
        for fault in FAULTS {
            // Half of the faults are unknown in half of the worlds.
            if self.dice.coin() {
                let after = self.dice.around(self.weather.climate.faults_every);
                self.at(START + secs(2) + after, What::Fault(fault));
            }
        }
    }

    fn machine(&mut self, id: Id) -> Machine {
        let subnet = 1 + u8::try_from(id % SUBNETS).unwrap_or_default();
        let home = home(subnet, 1 + u8::try_from(id / SUBNETS).unwrap_or_default());
        let kind = if self.dice.once_in(8) && id > 2 { Kind::Original } else { Kind::Ours };
        // Numbers go round.
        let from = if self.dice.coin() { u32::MAX - 20 } else { 0 };
        let config = Config { ip_seq: from, path_seq: from, ..Config::default() };
        let gid = self.new_gid(subnet);
        Machine {
            kind,
            subnet,
            home,
            kernel: Kernel::new(config),
            kernel_at: None,
            network: Network {
                links: links(gid),
                addresses: home.map(entry).into(),
                told_until: START,
                dump: 0,
            },
            paths: Vec::new(),
            responder: self.dice.coin().then(Responder::default),
            local_service: LocalServiceSocket::default(),
            life: 0,
            daemon: None,
            pace: Pace {
                is_eager: self.dice.once_in(10),
                turn: self.dice.within(us(40)..us(100)),
                hiccup: *self.dice.pick(&[50, 500]),
            },
            troubles: Troubles::none(START + secs(1)),
        }
    }

    fn new_gid(&mut self, subnet: u8) -> ibarr_common::ib::Gid {
        self.weather.next_guid += 1;
        gid(self.weather.prefixes[usize::from(subnet - 1)], self.weather.next_guid)
    }

    /// Somebody on the machine wants to know.
    pub(crate) fn call(&mut self, id: Id) {
        let next = self.now + self.dice.around(self.weather.calls_every);
        if next < START + self.plan.time {
            self.at(next, What::Call(id));
        }
        if self.machines[id].kind == Kind::Original {
            return self.original_asks(id);
        }
        // A job starts.
        let count = if self.dice.once_in(40) { 5 + self.dice.below(25) } else { 1 };
        for _ in 0..count {
            let target = self.somebody(id);
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
            // Of a namespace that is not ours.
            let other = IfIndex::new(77).unwrap_or(IfIndex::MIN);
            let ifindex = if self.dice.once_in(20) { other } else { IPOIB };
            self.resolve(id, ResolveIp { ifindex, target }, timeout);
        }
    }

    /// Whom it is about: mostly the same few.
    fn somebody(&mut self, id: Id) -> IpAddr {
        let v6 = self.dice.below(10) < 3;
        match self.dice.below(20) {
            0 => *self.dice.pick(&self.weather.wanderers),
            1 => {
                let subnet = 1 + self.dice.below(SUBNETS);
                let n = self.dice.below(usize::from(NOBODIES));
                nobody(u8::try_from(subnet).unwrap_or(1), u8::try_from(n).unwrap_or_default(), v6)
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

    fn original_asks(&mut self, id: Id) {
        let to = self.somebody(id);
        let msg_id = MsgId(u32::try_from(self.dice.below(1 << 20)).unwrap_or_default());
        let query = Query::new(Version::V0, msg_id, to).filter(|_| to.is_ipv4());
        if let Some(query) = query {
            let from = (self.machines[id].source(to), 40_000).into();
            self.send(id, Packet { from, to: (to, PORT).into(), payload: query.emit() });
        }
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        let next = self.now + self.dice.around(self.weather.climate.faults_every);
        if next + CALM_AT_END < START + self.plan.time {
            self.at(next, What::Fault(fault));
        }
        let id = self.one_of_ours();
        if !self.machines[id].is_running(self.now) {
            return;
        }
        self.claims.counts.faults += 1;
        match fault {
            Fault::Killed => self.ends_and_starts(id, "killed", false),
            Fault::Upgraded => self.ends_and_starts(id, "upgraded", true),
            Fault::Stopped => {
                let time = secs(1);
                self.trouble(id, "asked to end", time);
                let life = self.machines[id].life;
                self.put(id, Inbox::Stop);
                self.at(self.now + time, What::Ends(id, life));
            }
            Fault::Suspended => {
                let time = self.dice.within(secs(1)..secs(30));
                let until = self.trouble(id, "suspended", time);
                self.machines[id].troubles.suspended = until;
                self.machines[id].troubles.slept = (until, time);
            }
            Fault::Stalled => {
                let time = self.dice.within(ms(5)..ms(2500));
                let until = self.trouble(id, "not run", time);
                self.machines[id].troubles.stalled = until;
                self.machines[id].troubles.slept = (until, time);
            }
            Fault::Cut => {
                let time = self.dice.within(ms(100)..secs(20));
                self.weather.cut_until = self.now + time;
                self.note(id, &Entry::Weather("the network falls in two", Some(time)));
            }
            Fault::Squeezed => {
                let time = self.dice.within(ms(100)..secs(5));
                let until = self.trouble(id, "little room for requests", time);
                self.machines[id].troubles.squeezed = until;
            }
            Fault::Clogged => {
                let time = self.dice.within(ms(1)..secs(4));
                let until = self.trouble(id, "no room for answers", time);
                self.machines[id].troubles.clogged = until;
            }
            Fault::NudgesFail => {
                let time = self.dice.within(ms(100)..secs(10));
                let until = self.trouble(id, "nudges fail", time);
                self.machines[id].troubles.nudges_fail = until;
            }
            Fault::NoSockets => {
                let time = self.dice.within(ms(100)..secs(10));
                let until = self.trouble(id, "no sockets", time + secs(1));
                self.machines[id].troubles.no_sockets = until;
            }
            Fault::RtnetlinkLoses => {
                let time = self.dice.within(secs(1)..secs(30));
                self.note(id, &Entry::Weather("rtnetlink loses", Some(time)));
                self.machines[id].troubles.rtnetlink_loses = self.now + time;
            }
            Fault::Wanders | Fault::Prefix | Fault::Gid | Fault::LinkFlaps | Fault::LinkGone => {
                self.change(id, fault);
            }
            Fault::PathsForgotten => {
                self.note(id, &Entry::Weather("paths forgotten", None));
                self.forget_paths(id);
            }
            Fault::Neighbour => {
                self.note(id, &Entry::Neighbour { by_us: false });
                self.neighbour(id, self.machines[id].home[0]);
            }
            Fault::Stranger => self.stranger(id),
        }
    }

    /// Changes of what machines have.
    fn change(&mut self, id: Id, fault: Fault) {
        match fault {
            Fault::Wanders => {
                let address = *self.dice.pick(&self.weather.wanderers);
                if let Some(owner) = self.truth.owner(address)
                    && self.machines[owner].is_running(self.now)
                {
                    self.remove_address(owner, address);
                }
                let at = self.now + self.dice.within(ms(20)..secs(2));
                self.at(at, What::Wanders(address, id));
            }
            Fault::Prefix => {
                let subnet = self.machines[id].subnet;
                self.weather.prefixes[usize::from(subnet - 1)] += 3;
                let prefix = self.weather.prefixes[usize::from(subnet - 1)];
                for id in 0..self.machines.len() {
                    if self.machines[id].subnet == subnet && self.machines[id].is_running(self.now)
                    {
                        self.weather.next_guid += 1;
                        let gid = gid(prefix, self.weather.next_guid);
                        self.change_gid(id, gid, true);
                    }
                }
            }
            Fault::Gid => {
                let gid = self.new_gid(self.machines[id].subnet);
                self.change_gid(id, gid, false);
            }
            Fault::LinkFlaps => {
                let time = self.dice.within(ms(100)..secs(3));
                let until = self.trouble(id, "link down", time);
                self.link_down(id);
                self.at(until, What::LinkUp(id));
            }
            _ => {
                if self.machines[id].network.ipoib().is_some() {
                    let time = self.dice.within(ms(200)..secs(5));
                    let until = self.trouble(id, "driver unloaded", time);
                    self.link_gone(id);
                    self.at(until, What::LinkBack(id));
                }
            }
        }
    }

    fn ends_and_starts(&mut self, id: Id, what: &str, keeps_socket: bool) {
        if self.machines[id].daemon.is_none() {
            return;
        }
        let time = *self.dice.pick(&[ms(20), ms(200), ms(700), secs(4)]);
        self.trouble(id, what, time + ms(100));
        self.kill(id, keeps_socket);
        let life = self.machines[id].life;
        self.at(self.now + time, What::Starts(id, life));
    }

    pub(crate) fn start(&mut self, id: Id, life: u32) {
        if self.machines[id].life == life {
            self.note(id, &Entry::Weather("started", None));
            let inherited = self.machines[id].local_service.is_open;
            self.launch(id, inherited);
        }
    }

    /// A daemon that was asked to end has, or has had its time.
    pub(crate) fn ends(&mut self, id: Id, life: u32) {
        if self.machines[id].life == life && self.machines[id].daemon.is_some() {
            self.note(id, &Entry::Weather("ended", None));
            self.kill(id, false);
            let at = self.now + self.dice.within(ms(10)..ms(500));
            self.machines[id].trouble_until(at + ms(100));
            let life = self.machines[id].life;
            self.at(at, What::Starts(id, life));
        }
    }

    pub(crate) fn wanders(&mut self, address: IpAddr, to: Id) {
        if self.truth.owner(address).is_none()
            && self.machines.iter().all(|machine| {
                machine.network.addresses.iter().all(|entry| entry.id.address() != address)
            })
        {
            self.add_address(to, address);
        }
    }

    pub(crate) fn link_back(&mut self, id: Id) {
        if self.machines[id].network.ipoib().is_some() {
            return;
        }
        let gid = self.new_gid(self.machines[id].subnet);
        self.machines[id].network.links = links(gid);
        self.change_gid(id, gid, false);
        for address in self.machines[id].home {
            self.add_address(id, address);
        }
    }

    /// What is not the kernel's, at the socket to the kernel; at the port of peers; at a random one.
    fn stranger(&mut self, id: Id) {
        let bytes: Vec<u8> = (0..self.dice.below(80))
            .map(|_| u8::try_from(self.dice.below(256)).unwrap_or_default())
            .collect();
        let socket = &mut self.machines[id].local_service;
        if socket.is_open {
            socket.held.push_back(ToDaemon { bytes, from_kernel: false });
            self.wake(id);
        }
        let to = self.machines[id].home[0];
        let msg_id = MsgId(u32::try_from(self.dice.below(1 << 30)).unwrap_or_default());
        let Some(query) = Query::new(Version::V1, msg_id, to) else { return };
        let forged = query.reply(Some(gid(0xbad, 1))).emit();
        let sockets = self.machines[id].daemon.as_ref().map_or(&[][..], |daemon| &daemon.sockets);
        let port = sockets.first().map_or(PORT, |&(port, _)| port);
        for (port, payload) in [(PORT, forged), (port, forged), (PORT, query.emit())] {
            let from = (home(9, 9)[0], PORT).into();
            self.at(self.now, What::Arrives(id, Packet { from, to: (to, port).into(), payload }));
        }
    }

    /// Something is amiss for a while.
    fn trouble(&mut self, id: Id, what: &str, time: Duration) -> Instant {
        self.note(id, &Entry::Weather(what, Some(time)));
        let until = self.now + time;
        self.machines[id].trouble_until(until);
        until
    }

    fn one_of_ours(&mut self) -> Id {
        loop {
            let id = self.dice.below(self.machines.len());
            if self.machines[id].kind == Kind::Ours {
                return id;
            }
        }
    }
}
