// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the cores of a node tell its health.

use alloc::vec::Vec;
use core::num::NonZeroU16;

use ibarr_common::Instant;

use super::Node;
use crate::Fault;
use crate::health::{
    Addresses, Cause, Event, Health, Input, Missing, Port, Programs, Served, Subsystem,
};
use crate::ip2gid::client::Candidate;
use crate::ip2gid::{client, server};
use crate::local_view::rules::{Diverted, Traffic};
use crate::responder::{Blocked, State};
use crate::{local_service, paths, responder};

impl Node {
    /// What works, and what does not. When an assessment [is due](Health::is_due), the driver states what
    /// it knows and calls [`Self::assess`].
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Decides anew what works, if that is due: the last step of a turn.
    pub fn assess(&mut self, now: Instant) {
        if self.health.is_due(now) {
            self.is_due_known = false;
            for input in self.facts().into_iter().chain(self.unsettled()) {
                self.health.handle_input(now, input);
            }
            self.health.handle_timeout(now);
        }
    }

    /// See [`Health::ways`]; for the datagrams of a user.
    pub fn ways(&self, user: u32, port: NonZeroU16) -> Vec<(Candidate, Traffic)> {
        self.health.ways(&self.view.diverted(user, port))
    }

    /// See [`Health::diverted`].
    pub fn diverted<W: PartialEq>(
        &mut self,
        user: u32,
        port: NonZeroU16,
        ways: &[((Candidate, Traffic), W)],
    ) -> Vec<Diverted> {
        self.health.diverted(self.view.diverted(user, port), ways)
    }

    /// See [`Health::poll_event`].
    pub fn poll_health(&mut self) -> Option<Event> {
        self.health.poll_event()
    }

    fn facts(&self) -> [Input; 13] {
        use server::Counter::{NotSentForbidden, NotSentNoRoom, NotSentNoRoute, NotSentTooLong};
        let (view, paths, local_service) = (self.view(), self.paths(), self.local_service());
        let (client, server) = (self.client().counters(), self.server().counters());
        let addresses = Addresses {
            unknown: view.confirmed_at().is_none(),
            no_gid: view.is_synced() && !view.has_answers(),
            unmatched: view.unmatched_patterns().cloned().collect(),
            contested: view.contested().collect(),
        };
        let port = |(index, name, facts, _): (_, _, &paths::PortFacts, _)| Port {
            name,
            missing: Missing::of(facts),
            silence: paths.client().tally(index).silence,
        };
        let responder = self.responder();
        let counted = responder.counters();
        let programs = match responder.blocked() {
            Some(Blocked::Unwanted) => Programs::Unwanted,
            Some(why) => Programs::Absent(why),
            None => Programs::Loaded {
                lease_end: responder.lease_end(),
                lease: responder.lease(),
                private_pins: responder.private_pins().cloned(),
            },
        };
        let state = |ifindex| responder.state(ifindex).cloned().unwrap_or(State::Pending);
        let interfaces = view
            .served()
            .map(|served| Served { interface: served.name, program: state(served.ifindex) })
            .collect();
        let overruns = local_service.counters().get(local_service::Counter::Overruns);
        let not_sent = server.get(NotSentNoRoom) + server.get(NotSentTooLong);
        [
            Input::Addresses(addresses),
            Input::AnswersRefused(local_service.refusal()),
            Input::Ports(paths.ports().map(port).collect()),
            Input::Responder(programs, interfaces),
            Input::Counted(Cause::ProgramsRemoved, counted.get(responder::Counter::Lost)),
            Input::Counted(Cause::MapFaults, counted.get(responder::Counter::Faults)),
            Input::Counted(Cause::RequestsLost, overruns),
            Input::Counted(Cause::AddressesEvicted, client.get(client::Counter::CacheEvicted)),
            Input::Counted(Cause::PathsEvicted, paths.counters().get(paths::Counter::Evicted)),
            Input::Counted(Cause::OtherGids, paths.counters().get(paths::Counter::OtherGids)),
            Input::Counted(Cause::RepliesForbidden, server.get(NotSentForbidden)),
            Input::Counted(Cause::RepliesUnroutable, server.get(NotSentNoRoute)),
            Input::Counted(Cause::RepliesNotSent, not_sent),
        ]
    }

    /// The parts that have yet to say whether they work.
    fn unsettled(&self) -> Vec<Input> {
        let (view, responder) = (self.view(), self.responder());
        let is_loaded = responder.blocked().is_none();
        let has_no_lease = responder.lease_end() == Instant::BOOT && view.served().next().is_some();
        let mut unsettled = Vec::new();
        let mut add = |is_so: bool, subsystem, why| {
            unsettled.extend(is_so.then(|| Input::Unsettled(subsystem, Fault::new(why))));
        };
        add(
            view.confirmed_at().is_none(),
            Subsystem::LocalView,
            "the kernel is listing the addresses",
        );
        add(!responder.is_settled(), Subsystem::Responder, "programs are being loaded or attached");
        add(
            is_loaded && has_no_lease,
            Subsystem::Responder,
            "the maps of the programs are being filled",
        );
        // Programs that are loaded next are attached then.
        let may_attach = matches!(responder.blocked(), None | Some(Blocked::Loading));
        for served in view.served().filter(|_| may_attach) {
            let is_pending = matches!(responder.state(served.ifindex), None | Some(State::Pending));
            add(is_pending, Subsystem::ResponderOn(served.name), "the program is being attached");
        }
        add(
            self.client().inherits(),
            Subsystem::Caches,
            "addresses of the last daemon are being read",
        );
        unsettled
    }
}
