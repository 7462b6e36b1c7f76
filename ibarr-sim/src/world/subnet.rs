// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Subnets: what their managers have given to ports, and their administrators, which answer
//! questions about paths. Each answer has a number, in bytes of the record that no reader uses.

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, PathRecord, PortNum};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::sa::{Answer, PathQuery, PathQuestion, Question, Refusal, Request};
use ibarr_common::wire::umad::PKeyIndex;
use ibarr_proto::paths::{PortFacts, PortName};
use ibarr_proto::sa::{PortIndex, Transmit};

use super::faults::Fault;
use super::machine::Machine;
use super::process::{Daemon, Inbox};
use super::{What, World};
use crate::dice::{ms, secs, us};
use crate::record::{Entry, Fate};

/// A subnet manager and its administrator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subnet {
    prefix: u16,
    sm_lid: u16,
    /// The SA is silent until then; it may answer pending questions afterwards.
    silent: Instant,
    /// The SA answers BUSY until then.
    busy: Instant,
}

/// A partition besides the default one.
pub(super) const PARTITION: PKey = match PKey::new(0x8001) {
    Some(pkey) => pkey,
    None => unreachable!(),
};

pub(super) const PORT: PortIndex = PortIndex(0);

/// The LID of a subnet's router; the router's own number.
const ROUTER_LID: u16 = 0xb000;

/// The last numbers of each kind; none is used twice.
#[derive(Debug)]
pub(super) struct Numbers {
    guid: u32,
    lid: u16,
    answer: u32,
}

pub(super) const SUBNETS: usize = 3;

impl Subnet {
    pub(super) fn all() -> [Self; SUBNETS] {
        [1, 2, 3].map(|prefix| Self {
            prefix,
            sm_lid: 1,
            silent: Instant::BOOT,
            busy: Instant::BOOT,
        })
    }

    pub(super) fn prefix(&self) -> u16 {
        self.prefix
    }

    /// Takes a prefix that no subnet has had.
    pub(super) fn change_prefix(&mut self) {
        self.prefix += 3;
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self { guid: 0, lid: 99, answer: 0 }
    }
}

impl Numbers {
    pub(super) fn guid(&mut self) -> u32 {
        self.guid += 1;
        self.guid
    }

    pub(super) fn lid(&mut self) -> u16 {
        self.lid += 1;
        self.lid
    }

    pub(super) fn answer(&mut self) -> u32 {
        self.answer += 1;
        self.answer
    }
}

impl World {
    /// Changes a port; its daemon notices at its next look.
    pub(super) fn port_changes(&mut self, id: usize) {
        let at = self.now + self.dice.within(us(50)..secs(1));
        let life = self.machines[id].life;
        self.at(at, What::PortSeen(id, life));
    }

    pub(super) fn port_seen(&mut self, id: usize, life: u32) {
        if self.machines[id].life == life {
            self.put(id, Inbox::Port(self.facts(id)));
        }
    }

    fn facts(&self, id: usize) -> Option<PortFacts> {
        let machine = &self.machines[id];
        let is_active = machine.network.ipoib()?.up;
        let mut pkeys = vec![(PKeyIndex(0), PKey::DEFAULT)];
        pkeys.extend(machine.assigned.is_member.then_some((PKeyIndex(1), PARTITION)));
        Some(PortFacts {
            is_active,
            has_umad: true,
            lid: Lid::new(machine.assigned.lid),
            sm_lid: Lid::new(self.subnets[usize::from(machine.subnet - 1)].sm_lid),
            gids: machine.gid().map(|gid| [gid].into()).unwrap_or_default(),
            pkeys,
            ..PortFacts::default()
        })
    }

    /// Sends a MAD to the LID at which the daemon assumes the SA.
    pub(super) fn ask_administrator(
        &mut self,
        id: usize,
        daemon: &mut Daemon,
        transmit: &Transmit,
    ) {
        let Ok(request) = Request::parse(transmit.mad.as_ref()) else {
            return self.claims.breaks(self.now, [Some(id), None], "an unexpected MAD".to_owned());
        };
        self.claims.counts.mads += 1;
        daemon.monitor.asks(self.now);
        if let Question::Path(question) = &request.question
            && !transmit.is_probe
            && let Some(claim) = daemon.paths.asks(self.now, question)
        {
            self.claims.breaks(self.now, [Some(id), None], claim);
        }
        if let Question::Path(question) = &request.question
            && let Some(claim) = daemon.crowd.asks(self.now, question.dgid)
        {
            self.claims.breaks(self.now, [Some(id), None], claim);
        }
        let climate = self.weather.climate;
        let subnet = self.subnets[usize::from(self.machines[id].subnet - 1)];
        let is_lost = self.dice.permille(climate.lost) || transmit.sa.lid.get() != subnet.sm_lid;
        let is_silent = subnet.silent > self.now && self.dice.coin();
        let is_lost = is_lost || is_silent;
        let fate = if is_lost { Fate::Lost } else { Fate::Arrives };
        self.note(id, &Entry::Mad { question: &request.question, fate });
        if is_lost {
            return;
        }
        let answer = if subnet.busy > self.now {
            Answer::Refused(Refusal::BUSY)
        } else {
            self.administrator_says(id, &request.question)
        };
        if let Question::Path(question) = &request.question {
            daemon.paths.sa_answers(self.now, question, &answer);
        }
        let late = if self.dice.permille(climate.straggles) { secs(3) } else { us(300) };
        let at = self.now.max(subnet.silent) + self.dice.within(us(50)..late);
        let (number, life) = (self.numbers.answer(), self.machines[id].life);
        self.mads.insert(number, (transmit.sa.lid, request, answer));
        self.at(at, What::MadArrives(id, life, number));
    }

    pub(super) fn mad_arrives(&mut self, id: usize, life: u32, number: u32) {
        let Some((from, request, answer)) = self.mads.remove(&number) else { return };
        if self.machines[id].life == life {
            self.note(id, &Entry::Answer { question: &request.question, answer: &answer });
            self.put(id, Inbox::Mad(from, request, answer));
        }
    }

    fn administrator_says(&mut self, id: usize, question: &Question) -> Answer {
        let question = match question {
            Question::ClassPortInfo => {
                return Answer::ClassPortInfo(ClassPortInfo { has_qos: false });
            }
            Question::Path(question) | Question::Paths(question, _) => *question,
            Question::Known(query) => match self.between_gids(id, query) {
                Some(question) => question,
                None => return Answer::Refused(Refusal::NO_RECORDS),
            },
        };
        let question = &question;
        let machine = &self.machines[id];
        let is_ours = machine.gid() == Some(question.sgid)
            && (question.pkey != Some(PARTITION) || machine.assigned.is_member);
        match self.lid_of(machine.subnet, question.dgid).filter(|_| is_ours) {
            Some(dlid) => {
                let slid = machine.assigned.lid;
                let number = self.numbers.answer();
                Answer::Path(record(question, dlid, slid, number))
            }
            None => Answer::Refused(Refusal::NO_RECORDS),
        }
    }

    /// The question for the port that has the LID of a query.
    fn between_gids(&self, id: usize, query: &PathQuery) -> Option<PathQuestion> {
        let (subnet, lid) = (self.machines[id].subnet, query.dlid()?.get());
        let is_it = |machine: &&Machine| machine.subnet == subnet && machine.assigned.lid == lid;
        Some(PathQuestion {
            dgid: self.machines.iter().find(is_it)?.gid()?,
            sgid: query.sgid()?,
            reversible: true,
            pkey: query.pkey(),
            tclass: None,
            service_id: None,
            qos_class: None,
        })
    }

    /// The LID at which packets for `gid` leave the subnet, or end.
    fn lid_of(&self, subnet: u8, gid: Gid) -> Option<u16> {
        let prefix = self.subnets[usize::from(subnet - 1)].prefix().to_be_bytes();
        if gid == router(subnet) || gid.octets()[6..8] != prefix {
            return Some(ROUTER_LID + u16::from(subnet));
        }
        let owner = self.machines.iter().find(|machine| machine.gid() == Some(gid));
        owner.map(|owner| owner.assigned.lid)
    }

    /// Causes a fault of a subnet.
    pub(super) fn subnet_fault(&mut self, id: usize, fault: Fault) {
        let number = usize::from(self.machines[id].subnet - 1);
        match fault {
            Fault::SmMoves => {
                self.subnets[number].sm_lid += 1;
                self.note(id, &Entry::Weather("another subnet manager", None));
                self.registers(number);
            }
            Fault::SaSilent => {
                let time = self.dice.within(ms(100)..secs(20));
                self.note(id, &Entry::Weather("its SA is silent", Some(time)));
                self.subnets[number].silent = self.now + time;
            }
            Fault::SaBusy => {
                let time = self.dice.within(ms(100)..secs(5));
                self.note(id, &Entry::Weather("its SA is busy", Some(time)));
                self.subnets[number].busy = self.now + time;
            }
            Fault::SaRestarts => {
                let time = self.dice.within(ms(100)..secs(3));
                self.note(id, &Entry::Weather("its SA restarts", Some(time)));
                self.subnets[number].silent = self.now + time;
                // It also gives one port another LID, and tells only that port.
                self.gives_lid(id);
                self.registers(number);
            }
            Fault::Lid => self.gives_lid(id),
            // Partitions.
            _ => {
                let assigned = &mut self.machines[id].assigned;
                assigned.is_member = !assigned.is_member;
                self.note(id, &Entry::Weather("its partitions change", None));
                self.port_changes(id);
            }
        }
    }

    fn gives_lid(&mut self, id: usize) {
        self.machines[id].assigned.lid = self.numbers.lid();
        self.note(id, &Entry::Weather("its port has another LID", None));
        self.forget_paths(id);
        self.port_changes(id);
    }

    /// Makes all ports of a subnet register anew.
    fn registers(&mut self, number: usize) {
        for id in 0..self.machines.len() {
            if usize::from(self.machines[id].subnet - 1) == number {
                self.forget_paths(id);
                self.port_changes(id);
            }
        }
    }
}

pub(super) fn name() -> PortName {
    let (Ok(device), Some(port)) = ("mlx5_0".parse(), PortNum::new(1)) else {
        unreachable!("the name is valid")
    };
    PortName { device, port }
}

/// The GID of a subnet's router.
pub(super) fn router(subnet: u8) -> Gid {
    let octets = [0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, subnet, 0xfe];
    Gid::new(octets).unwrap_or_else(|| unreachable!("it is neither zero nor multicast"))
}

fn record(question: &PathQuestion, dlid: u16, slid: u16, number: u32) -> PathRecord {
    let mut octets = [0; PathRecord::LEN];
    octets[8..24].copy_from_slice(&question.dgid.octets());
    octets[24..40].copy_from_slice(&question.sgid.octets());
    octets[40..42].copy_from_slice(&dlid.to_be_bytes());
    octets[42..44].copy_from_slice(&slid.to_be_bytes());
    octets[47] = if dlid >= ROUTER_LID { 255 } else { 0 };
    octets[49] = if question.reversible { 0x80 } else { 0 };
    let pkey = question.pkey.unwrap_or(PKey::DEFAULT);
    octets[50..52].copy_from_slice(&pkey.get().to_be_bytes());
    octets[60..64].copy_from_slice(&number.to_be_bytes());
    PathRecord::from_octets(octets)
}
