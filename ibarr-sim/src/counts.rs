// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How often each kind of event has come in simulated networks.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// Counts of what happened in a simulation.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Counts {
    /// Calls of `rdma_resolve_addr`.
    pub calls: u64,
    /// Calls that had to be answered, because there was no trouble and hardly any loss.
    pub binding: u64,
    /// Calls among those that one daemon received and another had to answer.
    pub inherited: u64,
    /// Calls ended by a change of a neighbour within 1, 10, 100 and 1000 ms, and later.
    pub woken: [u64; 5],
    /// Calls whose answer was noticed only at the caller's time-out.
    pub by_timeout: u64,
    /// Calls that were never answered.
    pub timed_out: u64,
    /// Calls that were refused because no daemon was listening.
    pub no_listener: u64,
    /// Answers to the kernel.
    pub answers: u64,
    /// Answers that came when the kernel could not accept them.
    pub answers_lost: u64,
    /// Nudges.
    pub nudges: u64,
    /// Requests that the socket to a daemon had no room for.
    pub overruns: u64,
    /// Path requests answered with a path.
    pub paths_resolved: u64,
    /// Path requests answered with "there is no path".
    pub paths_failed: u64,
    /// Path requests answered with "ask the SA yourself".
    pub paths_left: u64,
    /// Path requests without an answer.
    pub paths_unanswered: u64,
    /// MADs to subnet administrators.
    pub mads: u64,
    /// Completed requests of users that never stop asking.
    pub users_told: u64,
    /// Refused requests among those.
    pub users_refused: u64,
    /// Replies to clients of ACM.
    pub applications_told: u64,
    /// Queries that our clients sent.
    pub queries: u64,
    pub replies: u64,
    /// Replies among those sent by programs in the kernel.
    pub answered_in_kernel: u64,
    pub datagrams: u64,
    /// Datagrams lost.
    pub lost: u64,
    /// Faults.
    pub faults: u64,
    pub turns: u64,
    /// Changes of the health of daemons.
    pub health_changes: u64,
    /// The largest size of each table.
    most: BTreeMap<&'static str, usize>,
}

impl Counts {
    pub(crate) fn took(&mut self, time: Duration) {
        let bucket = match time.as_micros() {
            0..1_000 => 0,
            1_000..10_000 => 1,
            10_000..100_000 => 2,
            100_000..1_000_000 => 3,
            _ => 4,
        };
        self.woken[bucket] += 1;
    }

    pub(crate) fn most(&mut self, what: &'static str, is: usize) {
        let most = self.most.entry(what).or_default();
        *most = is.max(*most);
    }
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.calls += other.calls;
        self.binding += other.binding;
        self.inherited += other.inherited;
        for (sum, count) in self.woken.iter_mut().zip(other.woken) {
            *sum += count;
        }
        self.by_timeout += other.by_timeout;
        self.timed_out += other.timed_out;
        self.no_listener += other.no_listener;
        self.answers += other.answers;
        self.answers_lost += other.answers_lost;
        self.nudges += other.nudges;
        self.overruns += other.overruns;
        self.paths_resolved += other.paths_resolved;
        self.paths_failed += other.paths_failed;
        self.paths_left += other.paths_left;
        self.paths_unanswered += other.paths_unanswered;
        self.mads += other.mads;
        self.users_told += other.users_told;
        self.users_refused += other.users_refused;
        self.applications_told += other.applications_told;
        self.queries += other.queries;
        self.replies += other.replies;
        self.answered_in_kernel += other.answered_in_kernel;
        self.datagrams += other.datagrams;
        self.lost += other.lost;
        self.faults += other.faults;
        self.turns += other.turns;
        self.health_changes += other.health_changes;
        for (what, &is) in &other.most {
            self.most(what, is);
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, binding, inherited, by_timeout, timed_out, no_listener, .. } = self;
        let [ms1, ms10, ms100, ms1000, later] = self.woken;
        writeln!(
            f,
            "{calls} calls of rdma_resolve_addr, of which {binding} had to be answered, {inherited} \
             by a later daemon"
        )?;
        writeln!(
            f,
            "  ended by a neighbour change within 1 ms {ms1}, 10 ms {ms10}, 100 ms {ms100}, 1 s {ms1000}, \
             later {later}"
        )?;
        writeln!(
            f,
            "  answer seen at the time-out {by_timeout}, never answered {timed_out}, no listener \
             {no_listener}"
        )?;
        let Self { answers, answers_lost, nudges, overruns, .. } = self;
        writeln!(
            f,
            "{answers} answers to kernels, {answers_lost} not accepted; {nudges} nudges; {overruns} \
             requests without room"
        )?;
        let Self { paths_resolved, paths_failed, paths_left, paths_unanswered, mads, .. } = self;
        writeln!(
            f,
            "{paths_resolved} paths for kernels, {paths_failed} times none, {paths_left} left to \
             them, {paths_unanswered} path requests unanswered; {mads} MADs to SAs"
        )?;
        let Self { users_told, users_refused, applications_told, .. } = self;
        writeln!(
            f,
            "{users_told} requests of users that never stop asking, {users_refused} refused; \
             {applications_told} replies to clients of ACM"
        )?;
        let Self { datagrams, lost, queries, replies, answered_in_kernel, .. } = self;
        writeln!(
            f,
            "{datagrams} datagrams, {lost} lost; {queries} own queries; {replies} replies, \
             {answered_in_kernel} by programs"
        )?;
        let Self { faults, turns, health_changes, .. } = self;
        write!(f, "{faults} faults, {turns} turns, {health_changes} changes of health; at most:")?;
        for (what, most) in &self.most {
            write!(f, " {what} {most},")?;
        }
        Ok(())
    }
}
