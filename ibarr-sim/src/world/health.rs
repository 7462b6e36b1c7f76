// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The health that a daemon reports, and the claims about it. The node states what its cores know; the
//! programs and the nudges are simulated. The claims compare its reasons with what has happened to the
//! machine: a fault that lasts is told, and nothing is told that is not so, or is so no longer.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::sa::Answer;
use ibarr_proto::health::{Cause, HOLD, Input, Kernel, SELDOM, START};
use ibarr_proto::node;
use ibarr_proto::sa::Counter;

use super::monitor::{Unanswered, Unproven};
use super::network::IPOIB;
use super::process::Daemon;
use super::troubles::Trouble;
use super::{What, World};
use crate::bugs::SILENCES;
use crate::dice::{ms, secs};
use crate::record::Entry;

/// The time until each change is in the report: the daemon looks at a port once a second, and at
/// its health once in [`SELDOM`].
const LAG: Duration = secs(SELDOM.as_secs() + 2);

/// The unanswered MADs without which no SA counts as silent.
const FEW: u32 = 3;

/// The causes that must be told. The others are normal for the daemon, or told of another cause.
const TOLD: [Cause; 6] = [
    Cause::PortDown,
    Cause::NudgesFail,
    Cause::LeaseEnded,
    Cause::NotAttached,
    Cause::SaSilent,
    Cause::SaBusy,
];

impl Daemon {
    /// A MAD of the SA has been handled; `unasked` counts those that answered nothing before.
    pub(super) fn hears(&mut self, now: Instant, from: Lid, answer: &Answer, unasked: u64) {
        let is_busy = matches!(answer, Answer::Refused(refusal) if refusal.is_temporary());
        if is_busy {
            self.monitor.unanswered =
                self.monitor.unanswered.map(|unanswered| Unanswered { busy: true, ..unanswered });
        } else if self.unasked() == unasked && self.paths.sa_lid() == Some(from) {
            self.monitor.hears(now);
        }
    }

    pub(super) fn unasked(&self) -> u64 {
        self.core.node().paths().client().counters().get(Counter::Unasked)
    }

    pub(super) fn tells(&self, cause: Cause) -> bool {
        self.core.told().any(|(told, _)| told == cause)
    }

    fn tells_silence(&self) -> bool {
        SILENCES.iter().any(|cause| self.tells(*cause))
    }
}

impl World {
    /// Notes a fault that a daemon, the present one or the next, may notice until `until`.
    pub(super) fn may_notice(&mut self, id: usize, cause: Cause, until: Instant) {
        let last = self.machines[id].happened.entry(cause).or_insert(until);
        *last = until.max(*last);
    }

    /// Schedules the checks of health.
    pub(super) fn check_health_soon(&mut self) {
        self.at(self.now + secs(1), What::HealthChecked);
    }

    /// Assesses the health of a daemon if that is due.
    pub(super) fn assess(&mut self, id: usize, daemon: &mut Daemon) {
        let now = self.now;
        if !daemon.core.node().health().is_due(now) {
            return;
        }
        let wrong = self.wrong(id, daemon);
        daemon.monitor.observe(now, &wrong);
        let nudges_fail = daemon.monitor.nudges_fail.clone();
        let kernel = Input::Kernel(Kernel { nudges_fail, ..Kernel::default() });
        daemon.core.handle_input(now, node::Input::Health(kernel));
        for event in daemon.core.assess(now) {
            self.claims.counts.health_changes += 1;
            self.note(id, &Entry::Health(&event));
        }
        let tells_silence = daemon.tells_silence();
        if let Some(unanswered) = &mut daemon.monitor.unanswered {
            unanswered.told |= tells_silence;
        }
    }

    /// Checks the reports of all daemons, once a second.
    pub(super) fn check_health(&mut self) {
        self.check_health_soon();
        for id in 0..self.machines.len() {
            let Some(mut daemon) = self.machines[id].daemon.take() else { continue };
            let wrong = self.wrong(id, &daemon);
            daemon.monitor.observe(self.now, &wrong);
            if daemon.tells(Cause::NotLoaded) {
                daemon.monitor.not_loaded_told = self.now;
            }
            if !daemon.is_ending {
                self.check_report(id, &daemon);
            }
            self.machines[id].daemon = Some(daemon);
        }
    }

    fn check_report(&mut self, id: usize, daemon: &Daemon) {
        let (now, monitor) = (self.now, &daemon.monitor);
        if monitor.unproven == Some(Unproven::Must) && !daemon.tells_silence() {
            let text = "health says that the SA answers again, which it has not".to_owned();
            self.claims.breaks(now, [Some(id), None], text);
        }
        // What a machine cannot do for a while, it does later.
        let calm = self.machines[id].troubles.end().max(monitor.started + START);
        if calm + LAG > now {
            return;
        }
        for (cause, why) in daemon.core.told() {
            let is_counted = matches!(cause, Cause::RequestsLost | Cause::MapFaults);
            // The daemon sees a rise of a count late, holds it, and sees its end late. A daemon that
            // was suspended sees the rise when it goes on.
            let (lag, seen) =
                if is_counted { (LAG + HOLD + LAG, calm) } else { (LAG, Instant::BOOT) };
            let lasted = monitor.periods.get(&cause).map(|period| period.until);
            let happened = self.machines[id].happened.get(&cause).copied();
            if lasted.max(happened).is_none_or(|until| until.max(seen) + lag < now) {
                let text = format!("health says {cause}, which is not so: {why}");
                self.claims.breaks(now, [Some(id), None], text);
            }
        }
        for cause in TOLD {
            let period = monitor.periods.get(&cause);
            let Some(since) = period.and_then(|period| period.since) else { continue };
            // The worst that one fault does is told, and its lesser effects need not be.
            let same: &[Cause] = match cause {
                Cause::SaSilent | Cause::SaBusy => &SILENCES,
                Cause::LeaseEnded | Cause::NotAttached => {
                    &[Cause::NotLoaded, Cause::LeaseEnded, Cause::NotAttached]
                }
                _ => &[cause],
            };
            let is_told = same.iter().any(|cause| daemon.tells(*cause));
            // Programs that are loaded, and cannot be attached, are another fault.
            let since = match cause {
                Cause::LeaseEnded | Cause::NotAttached => since.max(monitor.not_loaded_told),
                _ => since,
            };
            // A few MADs at one time say nothing of later, until the daemon asks again.
            let since = match monitor.unanswered {
                _ if !SILENCES.contains(&cause) => since,
                Some(Unanswered { again: Some(again), .. }) => since.max(again),
                _ => continue,
            };
            // A probe that finds the window full is waited for longer.
            let probe = if SILENCES.contains(&cause) { ms(1500) } else { Duration::ZERO };
            if since.max(calm) + cause.patience() + LAG + probe < now && !is_told {
                let text = format!("health does not say {cause} after {:?}", now.since(since));
                self.claims.breaks(now, [Some(id), None], text);
            }
        }
    }

    /// The causes that are there now, by what the simulation knows. The daemon's cores are asked only for what the
    /// simulation does not decide.
    fn wrong(&self, id: usize, daemon: &Daemon) -> Vec<Cause> {
        let (now, machine) = (self.now, &self.machines[id]);
        let mut wrong = Vec::new();
        let mut add = |cause, is_so| wrong.extend(Some(cause).filter(|_| is_so));
        let network = &machine.network;
        add(Cause::PortDown, network.ipoib().is_some_and(|link| !link.up));
        add(Cause::NoGid, !network.is_up() || network.addresses().is_empty());
        add(Cause::ViewUnknown, machine.troubles.has(now, Trouble::RtnetlinkLoses));
        add(Cause::NudgesFail, daemon.monitor.nudges_fail.is_some());
        if let Some(programs) = &machine.programs {
            let lease = self.weather.config.responder.lease;
            let left = programs.lease_end().since(now);
            let is_loaded = daemon.has_maps;
            let is_served = is_loaded && daemon.core.node().view().served().next().is_some();
            let is_on = programs.is_on(IPOIB);
            let fails = programs.fails(now);
            add(Cause::NotLoaded, !is_loaded || fails || left.is_zero() || !is_on);
            add(Cause::LeaseEnding, !left.is_zero() && left < lease / 3);
            add(Cause::LeaseEnded, is_served && left.is_zero());
            add(Cause::NotAttached, is_served && !is_on);
        }
        if let Some(Unanswered { since, mads, busy, .. }) = daemon.monitor.unanswered {
            let sa = &self.weather.config.paths.sa;
            let lasts = |patience| mads >= FEW && since + patience <= now;
            add(Cause::SaSilent, lasts(sa.longest_patience()));
            add(Cause::SaBusy, busy && lasts(sa.patience));
        }
        wrong
    }
}
