// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The ways that a query may take: those that the kernel would take for a connection.
//!
//! The kernel's look-up for a connection knows target, source and, if the application has bound one,
//! interface (`addr_resolve` of drivers/infiniband/core/addr.c); its request names the interface
//! alone. So the candidates of a question are the look-up by its interface without a source, then
//! with each address of the interface. One counts if its route leaves by that interface to a gateway,
//! because the kernel asks only for destinations behind one, on IPoIB. The ifindex of a request may also
//! belong to another network namespace: if no candidate counts, routing selects the interface, under
//! the same condition. Otherwise the caller's network is another one, where the target may be another node.
//!
//! The first send takes the first way, each resend the next, since a gateway may be dead. A source
//! by which a peer has answered is the first candidate of the next flight.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use ibarr_common::IfIndex;

use super::super::{Family, Question, is_link_local};
use super::flights::{Flight, FlightId};
use super::types::Way;
use super::{Candidate, Client, Counter, Egress, Outcome, Route};

/// What the candidates depend on.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    egresses: BTreeMap<IfIndex, Egress>,
    /// The candidate by which a peer answered last, if it names a source. A full table is cleared.
    answered: BTreeMap<Question, Candidate>,
}

impl Candidates {
    /// The candidate that follows those that the round has looked up.
    fn next(&self, flight: &Flight) -> Option<Candidate> {
        let question = flight.question;
        let plain = Candidate::from(question);
        let egress = question.egress().or(flight.ways.first().map(|way| way.route.ifindex));
        let known = egress.and_then(|egress| self.egresses.get(&egress));
        let addresses = known.into_iter().flat_map(|egress| &egress.addresses);
        let is_like_target = |address: &&IpAddr| {
            Family::of(**address) == question.family()
                && is_link_local(**address) == is_link_local(question.target())
        };
        let sources = addresses.filter(is_like_target).take(Egress::MAX_SOURCES);
        let sources = sources.map(|&address| Candidate { egress, source: Some(address), ..plain });
        let is_last = flight.is_of_kernel && flight.ways.is_empty() && question.egress().is_some();
        let free = is_last.then_some(Candidate { egress: None, ..plain });
        let best = self.answered.get(&question).copied();
        let others = [plain].into_iter().chain(sources).chain(free);
        let others = others.filter(|&candidate| Some(candidate) != best);
        best.into_iter().chain(others).nth(flight.looked_up)
    }
}

/// The way of a candidate, if its route may be used. The kernel asks for what is behind a gateway on IPoIB; users may
/// also ask for what is on the link, and by other interfaces.
fn way(
    flight: &Flight,
    candidate: Candidate,
    route: Route,
    interface: Option<&Egress>,
) -> Option<Way> {
    let vrf = interface.and_then(|interface| interface.vrf);
    let is_gateway = route.next_hop != flight.question.target();
    let is_of_kernel = is_gateway && interface.is_some_and(|interface| interface.is_on_fabric);
    let is_of_user = !flight.is_of_kernel && (is_gateway || candidate.source.is_none());
    match candidate.egress {
        None => {
            let is_of_caller = flight.question.egress().is_none() || is_of_kernel;
            is_of_caller.then_some(Way { candidate, route, vrf: None })
        }
        Some(egress) => {
            let leaves_by_it = route.ifindex == egress || vrf == Some(egress);
            (leaves_by_it && (is_of_kernel || is_of_user)).then_some(Way { candidate, route, vrf })
        }
    }
}

impl Client {
    pub(super) fn network_changed(&mut self, changed: BTreeMap<IfIndex, Option<Egress>>) {
        let Candidates { egresses, answered } = &mut self.candidates;
        answered.clear();
        for (ifindex, egress) in changed {
            match egress {
                Some(egress) => egresses.insert(ifindex, egress),
                None => egresses.remove(&ifindex),
            };
        }
    }

    /// Looks up the next candidate. When the round has looked up all, the query leaves by the next way.
    pub(super) fn take_next_way(&mut self, id: FlightId) {
        let Some(flight) = self.flights.flight(id) else { return };
        if let Some(candidate) = self.candidates.next(flight) {
            flight.looked_up += 1;
            flight.sought = Some(candidate);
            self.unrouted.insert(id);
        } else if flight.ways.is_empty() {
            self.conclude(id, Outcome::Unreachable);
        } else {
            let next = (flight.current + 1) % flight.ways.len();
            self.take_way(id, next);
            self.send_when_allowed(id);
        }
    }

    /// The driver has looked up `candidate`.
    pub(super) fn route(&mut self, candidate: Candidate, route: Option<Route>) {
        let id = self.flights.of_question(candidate.question);
        let flight = id.and_then(|id| Some((id, self.flights.flight(id)?)));
        let Some((id, flight)) = flight.filter(|(_, of)| of.sought == Some(candidate)) else {
            return self.counters.count(Counter::UnaskedRoute);
        };
        flight.sought = None;
        self.unrouted.remove(&id);
        let interface = |ifindex| self.candidates.egresses.get(&ifindex);
        let way = route.and_then(|route| way(flight, candidate, route, interface(route.ifindex)));
        let is_new = |way: &Way| flight.ways.iter().all(|known| known.route != way.route);
        match way.filter(is_new) {
            Some(way) => {
                let number = flight.ways.len();
                flight.ways.push(way);
                self.take_way(id, number);
                self.send_when_allowed(id);
            }
            None => self.take_next_way(id),
        }
    }

    /// Makes `number` the way of the flight.
    pub(super) fn take_way(&mut self, id: FlightId, number: usize) {
        let Some(flight) = self.flights.flight(id) else { return };
        let before = flight.joined;
        let after = flight.ways.get(number).map(|way| way.route);
        if before == after {
            flight.current = number;
            return;
        }
        // First: the way says in which queue the flight is.
        self.outlets.dequeue(flight);
        (flight.current, flight.joined) = (number, after);
        if let Some(before) = before {
            self.hops.leave(before, id);
        }
        if let Some(after) = after {
            let evicted = self.hops.join(after, id);
            self.counters.add(Counter::HopsEvicted, evicted);
        }
    }

    /// A peer has answered by `candidate`.
    pub(super) fn note_answered(&mut self, candidate: Candidate) {
        let Candidate { question, source, .. } = candidate;
        let answered = &mut self.candidates.answered;
        if source.is_none() {
            answered.remove(&question);
            return;
        }
        if answered.len() >= self.config.settings().max_cached.get() {
            answered.clear();
            self.counters.count(Counter::SourcesForgotten);
        }
        answered.insert(question, candidate);
    }
}
