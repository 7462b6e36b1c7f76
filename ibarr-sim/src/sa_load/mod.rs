// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What ten thousand nodes ask of one subnet administrator: after a power-on of all at once, over the
//! life of what is remembered, after all were told to register anew, and after another subnet manager
//! took over. The nodes are the product's cores; docs/dev/simulation.md derives the bounds.

mod bounds;
mod cluster;
mod sa;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ibarr_proto::paths;

pub use bounds::Bound;

use self::bounds::bounds;
use self::cluster::Cluster;
use crate::dice::secs;

/// How large a subnet is, and what its nodes run on.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Nodes, with one port each.
    pub nodes: usize,
    /// What decides all chance.
    pub seed: u64,
    /// What the SA can answer in a second.
    pub sa_rate: u32,
    /// Of each node. The bounds are those of the default.
    pub config: paths::Config,
    /// Whether nodes hear the kernel's events of their ports.
    pub hearing: Hearing,
}

/// See [`Plan::hearing`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hearing {
    /// They do.
    Heard,
    /// They have no libibverbs.
    Deaf,
    /// They have, and what it tells does not come to anything: a mistake, which is to be found.
    Ignored,
}

impl Plan {
    /// With an SA that answers two questions a second for each node.
    pub fn new(nodes: usize) -> Self {
        let sa_rate = u32::try_from(2 * nodes).unwrap_or(u32::MAX).max(2);
        let config = paths::Config::default();
        Self { nodes, seed: 0, sa_rate, config, hearing: Hearing::Heard }
    }
}

/// Paths that a node uses: those that IPoIB keeps, and those of connections.
const KEPT: usize = 8;
const CONNECTIONS: usize = 24;

/// What happens to the subnet.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Event {
    /// Every port comes up, and every path is wanted within a second.
    PowerOn,
    /// Nothing. Each path of connections is used now and then.
    Steady,
    /// A subnet manager comes back where it was, and nine of ten ports have other LIDs. The tenth can
    /// hear of it only by an event. IPoIB has nothing to send; connections are made all the time.
    Moved,
    /// Every IPoIB is told to register anew, and asks within a second for all paths that it keeps;
    /// connections are made all the time.
    Register,
    /// The same, and the SA is another.
    Takeover,
}

impl Event {
    const ALL: [Self; 5] =
        [Self::PowerOn, Self::Steady, Self::Moved, Self::Register, Self::Takeover];

    /// From one to the next.
    fn time(self, ttl: Duration) -> Duration {
        match self {
            // The SA needs 16 s for what is wanted.
            Self::PowerOn => secs(40),
            Self::Steady => ttl,
            Self::Moved => secs(60),
            Self::Register | Self::Takeover => secs(20),
        }
    }

    /// How often a node makes a connection meanwhile.
    fn uses_every(self) -> Duration {
        let all_within = match self {
            Self::PowerOn => secs(8),
            // Often enough that none expires unseen.
            Self::Steady => secs(300),
            Self::Moved => secs(24),
            Self::Register | Self::Takeover => secs(2),
        };
        all_within / u32::try_from(CONNECTIONS).unwrap_or(1)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PowerOn => "power-on of all at once",
            Self::Steady => "steady use over one TTL",
            Self::Moved => "nine of ten ports move",
            Self::Register => "all register anew",
            Self::Takeover => "another SM takes over",
        })
    }
}

/// What came to the SA in one second, and what became of it.
#[derive(Clone, Debug, Default)]
struct Second {
    /// MADs of ports.
    mads: u64,
    /// Of them, first ones of a question about a path that IPoIB keeps; about another; about the SA.
    kept: u64,
    connections: u64,
    infos: u64,
    /// Requests that were left to the kernel, the MADs that it sent for them, and requests that it was
    /// told to have no path for.
    left: u64,
    kernels: u64,
    failed: u64,
    answered: u64,
    /// It was busy, or had no room.
    refused: u64,
    /// Requests that were answered from memory, in doubt.
    doubted: u64,
    /// Nodes that were given a path to a LID that another port has.
    wrong: BTreeSet<usize>,
}

/// Whether a node keeps its LID when others move.
fn stays(node: usize) -> bool {
    node.is_multiple_of(10)
}

/// What an event has brought.
#[derive(Debug)]
struct Phase {
    event: Event,
    seconds: Vec<Second>,
}

impl Phase {
    fn sum(&self, of: impl Fn(&Second) -> u64) -> u64 {
        self.seconds.iter().map(of).sum()
    }

    fn peak(&self, of: impl Fn(&Second) -> u64) -> u64 {
        self.seconds.iter().map(of).max().unwrap_or_default()
    }
}

/// What the SA was asked.
#[derive(Debug)]
pub struct Report {
    plan: Plan,
    phases: Vec<Phase>,
    /// What it may be asked.
    pub bounds: Vec<Bound>,
}

/// Runs the simulation.
pub fn run(plan: Plan) -> Report {
    let mut cluster = Cluster::new(plan);
    let phases = Event::ALL.map(|event| Phase { event, seconds: cluster.run(event) });
    let phases: Vec<_> = phases.into();
    let bounds = bounds(&plan, &phases);
    Report { plan, phases, bounds }
}

impl Report {
    /// The bounds that do not hold.
    pub fn exceeded(&self) -> impl Iterator<Item = &Bound> {
        self.bounds.iter().filter(|bound| !bound.holds())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { nodes, seed, sa_rate, hearing, .. } = self.plan;
        let (paths, heard) = (KEPT + CONNECTIONS, hearing == Hearing::Heard);
        let heard = if heard { "events are heard" } else { "no event is heard" };
        writeln!(
            f,
            "{nodes} nodes of {paths} paths, an SA that answers {sa_rate}/s, {heard}, seed {seed}\n"
        )?;
        writeln!(
            f,
            "{:25} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "MADs to the SA",
            "s",
            "sum",
            "mean/s",
            "peak/s",
            "answered",
            "refused",
            "in doubt",
            "left",
            "kernels'",
            "failed"
        )?;
        for phase in &self.phases {
            let (seconds, sum) = (phase.seconds.len().max(1) as u64, phase.sum(|it| it.mads));
            writeln!(
                f,
                "{:25} {seconds:8} {sum:9} {:9} {:9} {:9} {:9} {:9} {:9} {:9} {:9}",
                phase.event,
                sum / seconds,
                phase.peak(|it| it.mads),
                phase.sum(|it| it.answered),
                phase.sum(|it| it.refused),
                phase.sum(|it| it.doubted),
                phase.sum(|it| it.left),
                phase.sum(|it| it.kernels),
                phase.sum(|it| it.failed),
            )?;
        }
        writeln!(f)?;
        for bound in &self.bounds {
            writeln!(f, "{bound}")?;
        }
        Ok(())
    }
}
