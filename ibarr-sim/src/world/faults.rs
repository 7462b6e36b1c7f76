// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The faults of a simulation.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Version};
use ibarr_common::wire::ls::ResolveIp;
use ibarr_proto::health::Cause;

use super::addresses::{Packet, gid, home};
use super::kernel_socket::ToDaemon;
use super::network::IPOIB;
use super::process::Inbox;
use super::programs::Programs;
use super::troubles::Trouble;
use super::{What, World};
use crate::dice::{ms, secs, us};
use crate::record::{Entry, START};

/// A kind of fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fault {
    /// The daemon is killed, and another one started.
    Killed,
    /// The daemon is killed, and the next one inherits the socket to the kernel.
    Upgraded,
    /// The daemon ends on request, and another one is started.
    Stopped,
    /// The machine is suspended; its clock continues.
    Suspended,
    /// The daemon gets no processor time.
    Stalled,
    /// The network is cut into two parts.
    Cut,
    /// The socket to the daemon holds few datagrams.
    Squeezed,
    /// The socket to the kernel accepts nothing.
    Clogged,
    NudgesFail,
    NoSockets,
    /// An address moves to another machine, perhaps because its owner is suspended.
    Wanders,
    /// The SM changes the prefix of a subnet, and so all its GIDs, without an event.
    Prefix,
    /// A machine gets another GID.
    Gid,
    LinkFlaps,
    /// The driver is unloaded and loaded again.
    LinkGone,
    /// The machine is installed anew, with another HCA: same addresses, another GID.
    Reimaged,
    RtnetlinkLoses,
    /// The maps of the programs cannot be written.
    MapsFail,
    /// IPoIB looks up all paths again.
    PathsForgotten,
    /// Neighbours change on this machine.
    Neighbour,
    /// Another process writes to the daemon's sockets.
    Stranger,
    /// The daemon reads its configuration again.
    Reloaded,
    /// The daemon is told to forget peers' answers.
    Flushed,
    /// The kernel's socket delivers what no kernel sends; clients of ACM do what none should.
    Garbled,
    Misbehaved,
    /// A subnet manager moves, or gives a port another LID or other partitions.
    SmMoves,
    Lid,
    Partitions,
    /// A user asks without end; a kernel asks for many missing peers.
    Hostile,
    Dead,
    /// An SA is silent, is busy, or restarts.
    SaSilent,
    SaBusy,
    SaRestarts,
}

pub(super) const FAULTS: [Fault; 33] = [
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
    Fault::Reimaged,
    Fault::RtnetlinkLoses,
    Fault::MapsFail,
    Fault::PathsForgotten,
    Fault::Neighbour,
    Fault::Stranger,
    Fault::Reloaded,
    Fault::Flushed,
    Fault::Garbled,
    Fault::Misbehaved,
    Fault::SmMoves,
    Fault::Lid,
    Fault::Partitions,
    Fault::SaSilent,
    Fault::SaBusy,
    Fault::SaRestarts,
    Fault::Hostile,
    Fault::Dead,
];

impl World {
    /// Draws when a fault strikes next, after `since`. None begins so shortly before the end that its effects would
    /// outlast the quiet time.
    pub(super) fn next_fault(&mut self, since: Instant, fault: Fault) {
        let next = since + self.dice.around(self.weather.climate.faults_every);
        if next + self.plan.time / 10 < START + self.plan.time {
            self.at(next, What::Fault(fault));
        }
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        self.next_fault(self.now, fault);
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
                self.trouble(id, "told to end", time);
                let life = self.machines[id].life;
                self.put(id, Inbox::Stop);
                self.at(self.now + time, What::Ends(id, life));
            }
            Fault::Suspended => self.begin(id, Trouble::Suspended, "suspended", secs(1)..secs(30)),
            Fault::Stalled => self.begin(id, Trouble::Stalled, "not running", ms(5)..ms(2500)),
            Fault::Cut => {
                let time = self.dice.within(ms(100)..secs(20));
                self.weather.cut.begin(self.now + time);
                self.note(id, &Entry::Weather("the network is cut in two", Some(time)));
            }
            Fault::Squeezed => {
                let times = ms(100)..secs(5);
                self.begin(id, Trouble::Squeezed, "little room for requests", times);
            }
            Fault::Clogged => {
                self.begin(id, Trouble::Clogged, "no room for answers", ms(1)..secs(4));
            }
            Fault::NudgesFail => {
                self.begin(id, Trouble::NudgesFail, "nudges fail", ms(100)..secs(10));
            }
            Fault::NoSockets => {
                self.begin(id, Trouble::NoSockets, "no sockets", ms(1100)..secs(11));
            }
            Fault::RtnetlinkLoses => {
                self.begin(id, Trouble::RtnetlinkLoses, "rtnetlink loses", secs(1)..secs(30));
            }
            Fault::MapsFail => self.maps_fail(id),
            Fault::Wanders
            | Fault::Prefix
            | Fault::Gid
            | Fault::LinkFlaps
            | Fault::LinkGone
            | Fault::Reimaged => {
                self.change(id, fault);
            }
            Fault::SmMoves
            | Fault::Lid
            | Fault::Partitions
            | Fault::SaSilent
            | Fault::SaBusy
            | Fault::SaRestarts => self.subnet_fault(id, fault),
            Fault::PathsForgotten => {
                self.note(id, &Entry::Weather("paths forgotten", None));
                self.forget_paths(id);
            }
            Fault::Neighbour => {
                self.note(id, &Entry::Neighbour { by_us: false });
                self.neighbour(id, self.machines[id].home[0]);
            }
            Fault::Stranger => self.stranger(id),
            Fault::Garbled => self.garble(id),
            Fault::Misbehaved => self.put(id, Inbox::Misbehave),
            Fault::Hostile | Fault::Dead if !self.plan.crowds => {}
            Fault::Hostile => {
                let time = self.dice.within(ms(100)..secs(3));
                self.note(id, &Entry::Weather("a user asks without end", Some(time)));
                self.put(id, Inbox::Crowd(self.now + time));
            }
            // Rarely, because it takes many datagrams.
            Fault::Dead if self.dice.once_in(12) => self.kernel_wants_the_dead(id),
            Fault::Dead => {}
            Fault::Reloaded => {
                self.note(id, &Entry::Weather("configuration read again", None));
                self.put(id, Inbox::Reload);
            }
            Fault::Flushed => {
                self.note(id, &Entry::Weather("cache flushed", None));
                self.put(id, Inbox::Flush);
            }
        }
    }

    fn maps_fail(&mut self, id: usize) {
        let time = self.dice.within(ms(100)..secs(10));
        self.note(id, &Entry::Weather("maps fail", Some(time)));
        if let Some(programs) = &mut self.machines[id].programs {
            programs.fail_until(self.now + time);
        }
        self.may_notice(id, Cause::MapFaults, self.now + time);
    }

    /// Changes addresses, GIDs and links.
    fn change(&mut self, id: usize, fault: Fault) {
        match fault {
            Fault::Wanders => {
                let address = *self.dice.pick(&self.weather.wanderers);
                if let Some(owner) = self.truth.owner(address) {
                    self.remove_address(owner, address);
                }
                let at = self.now + self.dice.within(ms(20)..secs(2));
                self.at(at, What::Wanders(address, id));
            }
            Fault::Prefix => {
                let subnet = self.machines[id].subnet;
                self.subnets[usize::from(subnet - 1)].change_prefix();
                for id in 0..self.machines.len() {
                    if self.machines[id].subnet == subnet && self.machines[id].is_running(self.now)
                    {
                        let gid = self.new_gid(subnet);
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
            _ if self.machines[id].network.ipoib().is_none() => {}
            Fault::Reimaged => {
                let time = self.dice.within(secs(1)..secs(20));
                let until = self.trouble(id, "re-imaged", time + ms(100));
                self.kill(id, false);
                self.link_gone(id);
                let machine = &mut self.machines[id];
                machine.programs = machine.programs.take().map(|_| Programs::new(self.bug));
                machine.learned.clear();
                machine.troubles.restart(self.now, false, until, until);
                let life = machine.life;
                self.at(self.now + time, What::LinkBack(id));
                self.at(self.now + time, What::Starts(id, life));
            }
            _ => {
                let time = self.dice.within(ms(200)..secs(5));
                let until = self.trouble(id, "driver unloaded", time);
                self.link_gone(id);
                self.at(until, What::LinkBack(id));
            }
        }
    }

    /// Ends and starts a daemon amid requests, which the next daemon has to answer.
    fn ends_and_starts(&mut self, id: usize, what: &'static str, keeps_socket: bool) {
        if self.machines[id].daemon.is_none() {
            return;
        }
        for _ in 0..self.dice.below(4) {
            let target = self.any_target(id);
            self.resolve(id, ResolveIp { ifindex: IPOIB, target }, secs(5));
        }
        let life = self.machines[id].life;
        let at = self.now + self.dice.within(us(0)..us(500));
        self.at(at, What::Dies(id, life, what, keeps_socket));
    }

    pub(super) fn dies(&mut self, id: usize, life: u32, what: &str, keeps_socket: bool) {
        if self.machines[id].life != life || self.machines[id].daemon.is_none() {
            return;
        }
        // Nothing keeps a socket for long.
        let times = [ms(20), ms(200), ms(700), secs(4), secs(20)];
        let time = *self.dice.pick(if keeps_socket { &times[..4] } else { &times });
        let before = self.machines[id].troubles.end();
        let until = self.trouble(id, what, time + ms(100));
        self.kill(id, keeps_socket);
        let machine = &mut self.machines[id];
        machine.troubles.restart(self.now, keeps_socket, before, until);
        let life = machine.life;
        self.at(self.now + time, What::Starts(id, life));
    }

    pub(super) fn start(&mut self, id: usize, life: u32) {
        if self.machines[id].life == life {
            self.note(id, &Entry::Weather("started", None));
            self.launch(id);
            // Its successor finds a takeover that is not complete.
            if self.machines[id].troubles.was_restarted() && self.dice.once_in(4) {
                let (life, keeps) = (self.machines[id].life, self.dice.coin());
                let at = self.now + self.dice.within(us(20)..ms(60));
                self.at(at, What::Dies(id, life, "killed while it takes over", keeps));
            }
        }
    }

    /// Ends a daemon that was told to end, when it has ended or its time is over.
    pub(super) fn ends(&mut self, id: usize, life: u32) {
        if self.machines[id].life == life && self.machines[id].daemon.is_some() {
            self.note(id, &Entry::Weather("ended", None));
            self.check_peaceful_end(id);
            self.kill(id, false);
            let at = self.now + self.dice.within(ms(10)..ms(500));
            self.machines[id].troubles.disturb(at + ms(100));
            let life = self.machines[id].life;
            self.at(at, What::Starts(id, life));
        }
    }

    pub(super) fn wanders(&mut self, address: IpAddr, to: usize) {
        if self.truth.owner(address).is_none()
            && self.machines.iter().all(|machine| !machine.network.has(address))
        {
            self.add_address(to, address);
        }
    }

    pub(super) fn link_back(&mut self, id: usize) {
        if self.machines[id].network.ipoib().is_some() {
            return;
        }
        let gid = self.new_gid(self.machines[id].subnet);
        self.machines[id].network.load(gid);
        self.change_gid(id, gid, false);
        for address in self.machines[id].home {
            self.add_address(id, address);
        }
    }

    /// Sends foreign data to the socket of the kernel, to the port of peers, and to a random port.
    fn stranger(&mut self, id: usize) {
        let bytes = self.dice.bytes(80);
        let datagram = ToDaemon { at: self.now, bytes, from_kernel: false, cut: false };
        if self.machines[id].kernel_socket.take(datagram, usize::MAX) {
            self.wake(id);
        }
        let to = self.machines[id].home[0];
        let msg_id = MsgId(u32::try_from(self.dice.below(1 << 30)).unwrap_or_default());
        let Some(query) = Query::new(Version::V1, msg_id, to) else { return };
        let forged = query.reply(Some(gid(0xbad, 1))).emit();
        let daemon = self.machines[id].daemon.as_ref();
        let port = daemon.and_then(|daemon| daemon.sockets.first_port()).unwrap_or(PORT);
        for (port, payload) in [(PORT, forged), (port, forged), (PORT, query.emit())] {
            let from = (home(9, 9)[0], PORT).into();
            self.at(self.now, What::Arrives(id, Packet { from, to: (to, port).into(), payload }));
        }
    }

    /// Begins a trouble, for a random time.
    fn begin(&mut self, id: usize, trouble: Trouble, what: &str, times: Range<Duration>) {
        let time = self.dice.within(times);
        self.note(id, &Entry::Weather(what, Some(time)));
        self.machines[id].troubles.begin(self.now, trouble, time);
    }

    /// Notes an event that may delay messages for a while.
    fn trouble(&mut self, id: usize, what: &str, time: Duration) -> Instant {
        self.note(id, &Entry::Weather(what, Some(time)));
        let until = self.now + time;
        self.machines[id].troubles.disturb(until);
        until
    }
}
