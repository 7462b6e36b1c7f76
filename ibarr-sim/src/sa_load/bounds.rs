// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The bounds of what nodes may ask if they keep the rules; docs/dev/simulation.md derives each.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ibarr_proto::paths::{self, DOUBT_SPREAD};

use super::cluster::{KERNEL_PATIENCE, KERNEL_SENDS};
use super::{CONNECTIONS, Event, KEPT, Phase, Plan, PortEvents, Second, UPGRADE, stays};

/// A measured value and its bound.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Bound {
    /// Name of the value.
    pub what: String,
    pub is: f64,
    pub most: f64,
}

impl Bound {
    /// Whether the value is within its bound.
    pub fn holds(&self) -> bool {
        self.is <= self.most
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, is, most } = self;
        let verdict = if self.holds() { "" } else { "  EXCEEDED" };
        write!(f, "{what:74} {is:9.0}, at most {most:9.0}{verdict}")
    }
}

/// MADs of a port without any answer, in its first second and in each later one: two at once; two
/// more after they are lost, after 250 ms at the earliest; two more after another 500 ms. From then
/// on two are sent in a second, or a probe every 400 ms.
const UNANSWERED_AT_FIRST: f64 = 6.0;
const UNANSWERED: f64 = 2.5;

/// An answer makes room for one MAD and lets the window grow by one; the extra MAD may be lost and
/// sent again.
const FOR_AN_ANSWER: f64 = 3.0;

pub(super) fn bounds(plan: &Plan, phases: &[Phase]) -> Vec<Bound> {
    let design = paths::Config::default();
    let nodes = count(plan.nodes as u64);
    let per_second = |what: &str,
                      event: Event,
                      of: fn(&Second) -> u64,
                      most: &dyn Fn(f64) -> f64| {
        worst(phases, event, what, |seconds, at| (count(of(&seconds[at])), most(count(at as u64))))
    };
    let ttl = design.ttl.as_secs_f64();
    let spread = DOUBT_SPREAD.as_secs_f64();
    let used = count(CONNECTIONS as u64) + 1.0;
    let started = |at: f64| nodes * ((at + 1.0) / spread).min(1.0);
    // One per interval while paths are used.
    let times =
        if plan.port_events == PortEvents::Absent { 1 } else { paths::Config::CANARIES_IF_HEARD };
    let canaries = nodes / (design.canary_every * times).as_secs_f64();
    let busy = [Event::PowerOn, Event::Moved, Event::Register, Event::Takeover];
    let mut bounds: Vec<_> = busy.map(|event| self_clocked(phases, event, nodes)).into();
    bounds.extend(busy.map(|event| {
        worst(phases, event, "MADs of daemons and kernels up to a second", |seconds, at| {
            let so_far = seconds[..=at].iter().map(|it| it.mads + it.kernels).sum();
            let (_, daemons) = mads(seconds, at, nodes);
            (count(so_far), daemons + of_kernels(at) * left(at, nodes))
        })
    }));
    bounds.extend(Event::ALL.map(|event| {
        worst(phases, event, "requests left to the kernel up to a second", |seconds, at| {
            (count(seconds[..=at].iter().map(|it| it.left).sum()), left(at, nodes))
        })
    }));
    bounds.extend([
        // No answer lives for less than three quarters of the TTL, and none is refreshed before its
        // last eighth.
        mean(phases, nodes * used / (ttl * (0.75 - 0.125)) + canaries),
        // Answers that came at once expire at any time within half a TTL.
        per_second(
            "questions in a second",
            Event::Steady,
            |it| it.kept + it.connections + it.infos,
            &|_| by_chance(nodes * used / (ttl / 2.0) + canaries),
        ),
    ]);
    bounds.push(wrong(plan, phases));
    bounds.push(worst(phases, Event::Upgrade, "questions up to a second", |seconds, at| {
        let so_far = seconds[..=at].iter().map(|it| it.kept + it.connections + it.infos).sum();
        let since = count(at as u64 + 1);
        let replaced = nodes * (since / UPGRADE.as_secs_f64()).min(1.0);
        let others = since * (nodes * used / (ttl / 2.0) + canaries);
        (count(so_far), by_chance(replaced * count((KEPT + CONNECTIONS) as u64 + 1) + others))
    }));
    bounds.push(worst(phases, Event::Takeover, "ClassPortInfos up to a second", |seconds, at| {
        let so_far = seconds[..=at].iter().map(|it| it.infos).sum();
        (count(so_far), by_chance(started(count(at as u64))))
    }));
    bounds
}

/// MADs since the beginning of an event. The reported second is the one closest to the bound.
fn self_clocked(phases: &[Phase], event: Event, nodes: f64) -> Bound {
    worst(phases, event, "MADs up to a second", |seconds, at| mads(seconds, at, nodes))
}

/// MADs of daemons up to a second, and the most that they may be.
fn mads(seconds: &[Second], at: usize, nodes: f64) -> (f64, f64) {
    let so_far = &seconds[..=at];
    let sum = |of: fn(&Second) -> u64| count(so_far.iter().map(of).sum());
    let unanswered = nodes * (UNANSWERED_AT_FIRST + UNANSWERED * count(at as u64));
    (sum(|it| it.mads), unanswered + FOR_AN_ANSWER * sum(|it| it.answered))
}

/// The most requests that are left to kernels up to a second.
fn left(at: usize, nodes: f64) -> f64 {
    let every = paths::Config::default().fallback_interval.as_secs_f64() * 0.75;
    nodes * (1.0 + (count(at as u64 + 1) / every).floor())
}

/// The most MADs that a kernel has sent for one request up to a second of an event. The daemon leaves
/// it to the kernel after 250 ms at the earliest.
fn of_kernels(at: usize) -> f64 {
    let since = Duration::from_secs(at as u64 + 1).saturating_sub(Duration::from_millis(250));
    let sent = 1.0 + since.div_duration_f64(KERNEL_PATIENCE).floor();
    sent.min(f64::from(KERNEL_SENDS))
}

/// Nodes that get a wrong path although they could know better. An event arrives within a second,
/// and the SA is then asked for each wanted path. Without events a canary is sent after half an
/// interval to one and a half; its path has moved in nine cases of ten; three canaries are sent in
/// half a minute.
fn wrong(plan: &Plan, phases: &[Phase]) -> Bound {
    let (from, most) = match plan.port_events {
        PortEvents::Received | PortEvents::Ignored => (2, 0.0),
        PortEvents::Absent => {
            let staying = (0..plan.nodes).filter(|node| stays(*node)).count();
            (30, by_chance(count(staying as u64) * 0.1_f64.powi(3)))
        }
    };
    let seconds = phases.iter().find(|phase| phase.event == Event::Moved);
    let seconds = seconds.map_or(&[][..], |phase| &phase.seconds);
    let nodes: BTreeSet<_> = seconds.iter().skip(from).flat_map(|it| &it.wrong).collect();
    let what = format!("{}: nodes with a wrong path, from second {from} on", Event::Moved);
    Bound { what, is: count(nodes.len() as u64), most }
}

fn mean(phases: &[Phase], most: f64) -> Bound {
    let is = phases.iter().find(|phase| phase.event == Event::Steady).map_or(0.0, |phase| {
        count(phase.sum(|it| it.mads)) / count(phase.seconds.len().max(1) as u64)
    });
    Bound { what: format!("{}: MADs a second, mean", Event::Steady), is, most }
}

fn worst(
    phases: &[Phase],
    event: Event,
    what: &str,
    of: impl Fn(&[Second], usize) -> (f64, f64),
) -> Bound {
    let seconds = phases.iter().find(|phase| phase.event == event);
    let seconds = seconds.map_or(&[][..], |phase| &phase.seconds);
    let all = (0..seconds.len()).map(|at| (at, of(seconds, at)));
    let share = |(_, (is, most)): &(usize, (f64, f64))| is / most;
    let worst = all.max_by(|one, other| share(one).total_cmp(&share(other)));
    let (at, (is, most)) = worst.unwrap_or_default();
    Bound { what: format!("{event}: {what}, in second {at}"), is, most }
}

/// A value above this is not by chance, if `mean` is expected: six standard deviations.
fn by_chance(mean: f64) -> f64 {
    mean + 6.0 * mean.sqrt()
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: u16 = 1_000;

    /// One second of each event.
    fn exceeded(busy: Event, second: &Second) -> Vec<String> {
        let phases = Event::ALL.map(|event| Phase {
            event,
            seconds: vec![if event == busy { second.clone() } else { Second::default() }],
        });
        let bounds = bounds(&Plan::new(NODES.into()), &phases);
        bounds.into_iter().filter(|bound| !bound.holds()).map(|bound| bound.what).collect()
    }

    #[test]
    fn each_bound_holds_up_to_its_value_and_fails_above() {
        assert_eq!(exceeded(Event::Steady, &Second::default()), [""; 0]);
        let nodes = u64::from(NODES);
        let mads = |mads| Second { mads, ..Second::default() };
        // Six MADs per node, and three for each answer.
        for event in [Event::PowerOn, Event::Moved, Event::Register, Event::Takeover] {
            assert_eq!(exceeded(event, &mads(6 * nodes)), [""; 0]);
            let what = format!("{event}: MADs up to a second, in second 0");
            assert_eq!(exceeded(event, &mads(6 * nodes + 1)), [what]);
            let answered = Second { answered: 1, ..mads(6 * nodes + 3) };
            assert_eq!(exceeded(event, &answered), [""; 0]);
        }
        // Four MADs per node more, of the kernel for the one request that is left to it.
        let kernels = |kernels| Second { kernels, ..mads(6 * nodes) };
        for event in [Event::PowerOn, Event::Moved, Event::Register, Event::Takeover] {
            assert_eq!(exceeded(event, &kernels(4 * nodes)), [""; 0]);
            let what = format!("{event}: MADs of daemons and kernels up to a second, in second 0");
            assert_eq!(exceeded(event, &kernels(4 * nodes + 1)), [what]);
        }
        // In the first of five seconds: a fifth of the nodes, and the margin for chance at 200.
        let infos = |infos| Second { infos, ..Second::default() };
        assert_eq!(exceeded(Event::Takeover, &infos(284)), [""; 0]);
        let what = "another SM takes over: ClassPortInfos up to a second, in second 0";
        assert_eq!(exceeded(Event::Takeover, &infos(285)), [what]);
        // In the first of 600 seconds: 33 questions of 1 2/3 nodes, 30.6 as in steady use.
        let asked = |kept| Second { kept, ..Second::default() };
        assert_eq!(exceeded(Event::Upgrade, &asked(141)), [""; 0]);
        let what = "rolling upgrade: questions up to a second, in second 0";
        assert_eq!(exceeded(Event::Upgrade, &asked(142)), [what]);
        // One per node, and another after three quarters of 5 s.
        let left = |left| Second { left, ..Second::default() };
        for event in Event::ALL {
            assert_eq!(exceeded(event, &left(nodes)), [""; 0]);
            let what = format!("{event}: requests left to the kernel up to a second, in second 0");
            assert_eq!(exceeded(event, &left(nodes + 1)), [what]);
        }
        // 25 answers per node with a life of an hour, or half of one, and a canary per minute.
        let first = |connections| Second { connections, ..Second::default() };
        assert_eq!(exceeded(Event::Steady, &mads(27)), [""; 0]);
        assert_eq!(exceeded(Event::Steady, &mads(28)).len(), 1);
        assert_eq!(exceeded(Event::Steady, &first(63)), [""; 0]);
        assert_eq!(exceeded(Event::Steady, &first(64)).len(), 1);
    }

    #[test]
    fn wrong_path_is_allowed_in_the_first_seconds_only() {
        let phase = |at: usize| {
            let mut seconds = vec![Second::default(); 60];
            seconds[at].wrong.insert(0);
            [Phase { event: Event::Moved, seconds }]
        };
        let holds =
            |port_events, at| wrong(&Plan { port_events, ..Plan::new(100) }, &phase(at)).holds();
        assert!(holds(PortEvents::Received, 1) && !holds(PortEvents::Received, 2));
        assert!(holds(PortEvents::Absent, 29) && !holds(PortEvents::Absent, 30));
    }
}
