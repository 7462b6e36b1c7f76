// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The network: IPoIB, which first looks up a path to each next hop and queues three datagrams
//! meanwhile; behind it a wire that loses, repeats, delays and reorders.

use std::net::{IpAddr, SocketAddr};

use ibarr_common::ib::{Gid, PKey, QosClass, ServiceId};
use ibarr_common::wire::ip2gid::{Datagram, PORT, Query, Reply, Version};
use ibarr_common::wire::ls::{PathUse, ResolvePath, Seq};
use ibarr_proto::paths::PortName;

use super::addresses::Packet;
use super::ipoib::Way;
use super::machine::Kind;
use super::network::IPOIB;
use super::process::Inbox;
use super::subnet::{PARTITION, name, router};
use super::weather::Climate;
use super::{What, World};
use crate::dice::{ms, us};
use crate::kernel::{PathOutcome, Reason};
use crate::record::{Entry, Fate};

impl World {
    /// Sends a datagram by the path to its next hop.
    pub(super) fn send(&mut self, id: usize, packet: Packet) {
        let target = packet.to.ip();
        let machine = &mut self.machines[id];
        if !machine.network.is_up() {
            return self.lose(id, &packet);
        }
        let next_hop = machine.next_hop(target);
        match machine.ipoib.queue(next_hop, packet) {
            Way::Open => self.transmit(id, &packet),
            Way::Queued => {}
            Way::Full => self.lose(id, &packet),
            Way::Unknown => {
                let question = self.path_question(id, next_hop);
                let machine = &mut self.machines[id];
                let request = machine.kernel.resolve_path(self.now, question);
                machine.ipoib.seek(self.now, next_hop, request, packet);
                if request.is_none() {
                    self.ask_sa(id, next_hop);
                }
                self.settle_kernel(id);
            }
        }
    }

    /// Takes the outcome of the local service for a path.
    pub(super) fn path_outcome(&mut self, id: usize, seq: Seq, outcome: &PathOutcome) {
        match outcome {
            PathOutcome::Resolved(_) => self.claims.counts.paths_resolved += 1,
            PathOutcome::Failed => self.claims.counts.paths_failed += 1,
            PathOutcome::AsksSa(Reason::Silence) => self.path_unanswered(id, seq),
            PathOutcome::AsksSa(_) => self.claims.counts.paths_left += 1,
        }
        let Some(next_hop) = self.machines[id].ipoib.sought_by(seq) else { return };
        match outcome {
            PathOutcome::Resolved(_) => self.path_found(id, next_hop),
            PathOutcome::AsksSa(_) => self.ask_sa(id, next_hop),
            // The next datagram starts another look-up.
            PathOutcome::Failed => {
                for packet in self.machines[id].ipoib.fail(self.now, next_hop) {
                    self.lose(id, &packet);
                }
            }
        }
    }

    fn ask_sa(&mut self, id: usize, next_hop: IpAddr) {
        let at = self.now + self.dice.within(us(300)..ms(5));
        self.at(at, What::PathFound(id, next_hop));
    }

    pub(super) fn path_found(&mut self, id: usize, next_hop: IpAddr) {
        if let Some(queued) = self.machines[id].ipoib.open(self.now, next_hop) {
            self.neighbour_is_known(id, next_hop);
            for packet in queued {
                self.transmit(id, &packet);
            }
        }
    }

    /// The request of IPoIB for a path.
    pub(super) fn path_question(&self, id: usize, next_hop: IpAddr) -> ResolvePath {
        let machine = &self.machines[id];
        let router = router(machine.subnet);
        let neighbour = self.truth.owner(next_hop).and_then(|id| self.machines[id].gid());
        let PortName { device, port } = name();
        ResolvePath {
            device,
            port,
            path_use: PathUse::Unidirectional,
            service_id: None,
            dgid: neighbour.unwrap_or(router),
            sgid: machine.gid().unwrap_or(router),
            tclass: Some(0),
            pkey: Some(PKey::DEFAULT),
            qos_class: None,
        }
    }

    /// The request of `rdma_resolve_route`, for a connection to a resolved peer. No caller waits
    /// for the outcome.
    pub(super) fn connect(&mut self, id: usize, dgid: Gid) {
        let Some(sgid) = self.machines[id].gid() else { return };
        let PortName { device, port } = name();
        let service = 0x0106_0000 + u64::try_from(self.dice.below(1 << 16)).unwrap_or_default();
        let request = ResolvePath {
            device,
            port,
            path_use: *self.dice.pick(&[PathUse::All, PathUse::Gmp]),
            service_id: Some(ServiceId::new(service)),
            dgid,
            sgid,
            tclass: None,
            pkey: Some(*self.dice.pick(&[PKey::DEFAULT, PKey::DEFAULT, PARTITION])),
            qos_class: QosClass::new(0),
        };
        self.machines[id].kernel.resolve_path(self.now, request);
    }

    /// Makes IPoIB look up all paths again.
    pub(super) fn forget_paths(&mut self, id: usize) {
        for next_hop in self.machines[id].ipoib.forget() {
            self.neighbour_is_forgotten(id, next_hop);
        }
    }

    /// Puts a datagram onto the wire.
    fn transmit(&mut self, id: usize, packet: &Packet) {
        let climate = self.weather.climate;
        let Some(to) = self.truth.owner(packet.to.ip()) else {
            return self.lose(id, packet);
        };
        let is_cut = self.weather.cut.separates(self.now, id, to);
        if is_cut || self.dice.permille(climate.lost) {
            return self.lose(id, packet);
        }
        let is_repeated = self.dice.permille(climate.repeated);
        let fate = if is_repeated { Fate::Repeated } else { Fate::Arrives };
        self.record_packet(id, to, packet, fate);
        for _ in 0..=usize::from(is_repeated) {
            let mut after = self.dice.within(us(20)..climate.delay);
            if self.dice.permille(climate.straggles) {
                after = self.dice.within(ms(1)..ms(200));
            }
            self.at(self.now + after, What::Arrives(to, *packet));
        }
    }

    fn lose(&mut self, id: usize, packet: &Packet) {
        let to = self.truth.owner(packet.to.ip());
        self.claims.loses(self.now, id, to);
        self.record_packet(id, to.unwrap_or(id), packet, Fate::Lost);
    }

    fn record_packet(&mut self, id: usize, to_machine: usize, packet: &Packet, fate: Fate) {
        let Packet { from, to, payload } = packet;
        let payload = payload.as_ref();
        let entry = Entry::Datagram { from: *from, to: *to, to_machine, payload, fate };
        self.note(id, &entry);
        self.claims.counts.datagrams += 1;
    }

    pub(super) fn arrives(&mut self, id: usize, packet: Packet) {
        let machine = &self.machines[id];
        if self.truth.owner(packet.to.ip()) != Some(id) {
            return self.claims.loses(self.now, id, None);
        }
        if packet.to.port() != PORT {
            return self.reply_arrives(id, packet);
        }
        let to = packet.to.ip();
        let query = Query::parse(packet.payload.as_ref()).ok();
        match machine.kind {
            Kind::Original => {
                let Some(query) = query.filter(|query| query.target() == to && to.is_ipv4()) else {
                    return;
                };
                let (home, gid) = (machine.home[0], machine.gid());
                self.reply(id, home, packet.from, query.reply(gid).emit(), Some(to));
            }
            Kind::Ours => {
                let programs = self.machines[id].programs.as_mut();
                let gid = programs.and_then(|programs| {
                    programs.at(self.now).answer(
                        IPOIB,
                        packet.from,
                        packet.to,
                        packet.payload.as_ref(),
                    )
                });
                match (gid, query) {
                    (Some(gid), Some(query)) => {
                        self.claims.counts.answered_in_kernel += 1;
                        let payload = query.reply(Some(gid)).emit();
                        self.reply(id, to, packet.from, payload, None);
                    }
                    _ if self.machines[id].daemon.is_some() => self.put(id, Inbox::Query(packet)),
                    _ => match &mut self.machines[id].kept {
                        Some(kept) => kept.push(packet),
                        None => self.refuse(id, &packet),
                    },
                }
            }
        }
    }

    /// The machine has no daemon, and its kernel says so to the host that sent the query.
    fn refuse(&mut self, id: usize, packet: &Packet) {
        let Some(to) = self.truth.owner(packet.from.ip()) else { return };
        let Climate { lost, delay, .. } = self.weather.climate;
        if !self.weather.cut.separates(self.now, id, to) && !self.dice.permille(lost) {
            let after = self.dice.within(us(20)..delay);
            self.at(self.now + after, What::Refused(to, *packet));
        }
    }

    fn reply_arrives(&mut self, id: usize, packet: Packet) {
        let reply = Reply::parse(packet.payload.as_ref()).ok();
        if self.machines[id].kind == Kind::Original {
            if reply.is_none_or(|reply| reply.version != Version::V0) {
                let text = format!("a C original gets the answer {reply:?}");
                self.claims.breaks(self.now, [Some(id), None], text);
            }
            return;
        }
        let Some(daemon) = &self.machines[id].daemon else { return };
        let Some(socket) = daemon.sockets.at(packet.to.port()) else { return };
        self.put(id, Inbox::Reply { socket, packet });
    }

    /// Sends a reply about the address `about`; `None` is its source.
    pub(super) fn reply(
        &mut self,
        id: usize,
        from: IpAddr,
        to: SocketAddr,
        payload: Datagram,
        about: Option<IpAddr>,
    ) {
        self.claims.counts.replies += 1;
        if let Ok(Reply { gid: Some(gid), .. }) = Reply::parse(payload.as_ref()) {
            self.check_reply(id, about.unwrap_or(from), to.ip(), gid);
        }
        self.send(id, Packet { from: (from, PORT).into(), to, payload });
    }
}
