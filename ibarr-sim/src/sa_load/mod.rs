// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The load that ten thousand nodes put on one subnet administrator: after all are powered on at
//! once, over one TTL of the cache, while all daemons are upgraded in turn, after all were told to
//! register anew, and after another subnet manager took over. More nodes than a subnet has LIDs are
//! several subnets, each with an SA of its own. The nodes are the product's cores; docs/dev/simulation.md derives the bounds.

mod bounds;
mod cluster;
mod sa;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use ibarr_proto::paths;

pub use bounds::Bound;

use self::bounds::bounds;
use self::cluster::Cluster;
use crate::dice::secs;

/// Size and configuration of a subnet.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of nodes, with one port each.
    pub nodes: usize,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Questions that the SA can answer per second.
    pub sa_rate: u32,
    /// LMC: number of low bits of a LID that each port ignores. The answers of this SA fit a MAD, with three paths.
    pub lmc: u8,
    /// Configuration of each node. The bounds apply to the default.
    pub config: paths::Config,
    /// How long [`Event::Steady`] lasts, one life of a path by default.
    pub steady: Duration,
    /// Whether nodes receive the kernel's events of their ports.
    pub port_events: PortEvents,
}

/// Whether nodes receive the kernel's events, see [`Plan::port_events`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortEvents {
    /// Nodes receive events.
    Received,
    /// Nodes have no libibverbs, and receive none.
    Absent,
    /// Nodes receive events and ignore them: a planted bug that the simulation must find.
    Ignored,
}

impl Plan {
    /// A plan with an SA that answers two questions per second and node.
    pub fn new(nodes: usize) -> Self {
        let sa_rate = u32::try_from(2 * nodes).unwrap_or(u32::MAX).max(2);
        let config = paths::Config::default();
        let (steady, port_events) = (config.ttl, PortEvents::Received);
        Self { nodes, seed: 0, sa_rate, lmc: 0, config, steady, port_events }
    }

    /// Nodes of one subnet: it has 49,151 unicast LIDs, of which switches need some.
    pub const MOST: usize = 45_000;

    /// The fewest subnets of about the same size for all nodes, each with the SA of its size.
    pub fn subnets(self) -> impl Iterator<Item = Self> {
        let count = self.nodes.div_ceil(Self::MOST).max(1);
        (0..count).map(move |at| Self {
            seed: self.seed + at as u64,
            lmc: self.lmc,
            config: self.config,
            steady: self.steady,
            port_events: self.port_events,
            ..Self::new((self.nodes + at) / count)
        })
    }
}

/// The paths of a node: those that IPoIB keeps, and those of connections.
const KEPT: usize = 8;
const CONNECTIONS: usize = 24;

/// Within this time all daemons are replaced.
const UPGRADE: Duration = secs(600);

/// An event of the subnet.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Event {
    /// All ports come up, and all paths are wanted within a second.
    PowerOn,
    /// No event. Each path of connections is used from time to time.
    Steady,
    /// Every daemon is replaced, one after the other, by one that takes over its snapshot.
    Upgrade,
    /// A subnet manager comes back at its old place, and nine of ten ports have other LIDs. The
    /// tenth can notice it only by an event. IPoIB has nothing to send; connections are made all
    /// the time.
    Moved,
    /// Every IPoIB interface is told to register anew, and asks within a second for all paths that
    /// it keeps; connections are made all the time.
    Register,
    /// As before, and the SA is another one.
    Takeover,
}

impl Event {
    const ALL: [Self; 6] =
        [Self::PowerOn, Self::Steady, Self::Upgrade, Self::Moved, Self::Register, Self::Takeover];

    /// The time until the next event.
    fn time(self, steady: Duration) -> Duration {
        match self {
            // The SA needs 16 s for the wanted paths.
            Self::PowerOn => secs(40),
            Self::Steady => steady,
            // A minute more than the daemons need.
            Self::Upgrade => UPGRADE + secs(60),
            Self::Moved => secs(60),
            Self::Register | Self::Takeover => secs(20),
        }
    }

    /// The interval between connections of a node.
    fn uses_every(self) -> Duration {
        let all_within = match self {
            Self::PowerOn => secs(8),
            // Often enough that no path expires unnoticed.
            Self::Steady => secs(300),
            Self::Moved | Self::Upgrade => secs(24),
            Self::Register | Self::Takeover => secs(2),
        };
        all_within / u32::try_from(CONNECTIONS).unwrap_or(1)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PowerOn => "power-on of all at once",
            Self::Steady => "steady use",
            Self::Upgrade => "rolling upgrade",
            Self::Moved => "nine of ten ports move",
            Self::Register => "all register anew",
            Self::Takeover => "another SM takes over",
        })
    }
}

/// The load on the SA in one second, and the outcomes.
#[derive(Clone, Debug, Default)]
struct Second {
    mads: u64,
    /// First MADs of a question: about a path that IPoIB keeps; about another path; about the SA.
    kept: u64,
    connections: u64,
    infos: u64,
    /// Requests left to the kernel, the MADs that it sent for them, and requests that failed, of these
    /// and others.
    left: u64,
    kernels: u64,
    failed: u64,
    answered: u64,
    /// Questions that the SA answered with BUSY, or had no room for.
    refused: u64,
    /// Requests answered from memory with a path in doubt.
    doubted: u64,
    /// Nodes that got a path to a LID of another port.
    wrong: BTreeSet<usize>,
}

impl AddAssign for Second {
    fn add_assign(&mut self, other: Self) {
        self.mads += other.mads;
        self.kept += other.kept;
        self.connections += other.connections;
        self.infos += other.infos;
        self.left += other.left;
        self.kernels += other.kernels;
        self.failed += other.failed;
        self.answered += other.answered;
        self.refused += other.refused;
        self.doubted += other.doubted;
        // Numbers of nodes are those of one subnet; only its bound reads them.
        self.wrong.extend(other.wrong);
    }
}

/// Whether a node keeps its LID when others move.
fn stays(node: usize) -> bool {
    node.is_multiple_of(10)
}

/// The load during an event.
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

    /// The seconds until no request fails any more, nor is left to the kernel.
    fn until_resolved(&self) -> usize {
        self.seconds.iter().rposition(|it| it.failed + it.left > 0).map_or(0, |last| last + 1)
    }
}

/// The load on the SA.
#[derive(Debug)]
pub struct Report {
    plan: Plan,
    subnets: usize,
    phases: Vec<Phase>,
    /// The paths that callers have got, by the low bits of their LID.
    given: [u64; 128],
    /// The bounds of the load.
    pub bounds: Vec<Bound>,
}

/// Runs the simulation. `begins` is told of each event: a large subnet takes minutes for one.
pub fn run(plan: Plan, begins: impl Fn(&Plan, Event)) -> Report {
    let mut cluster = Cluster::new(plan);
    let phases = Event::ALL.map(|event| {
        begins(&plan, event);
        Phase { event, seconds: cluster.run(event) }
    });
    let phases: Vec<_> = phases.into();
    let bounds = bounds(&plan, &phases);
    Report { plan, subnets: 1, phases, given: cluster.given, bounds }
}

/// Runs each subnet of the plan by itself: nodes ask only the SA of their own. The load is that on
/// all SAs together, and each bound that of the subnet that comes closest to it.
pub fn run_all(plan: Plan, begins: impl Fn(&Plan, Event)) -> Report {
    let run = |plan| run(plan, &begins);
    let all = plan.subnets().map(run).reduce(Report::beside).unwrap_or_else(|| run(plan));
    Report { plan: Plan { seed: plan.seed, ..all.plan }, ..all }
}

impl Report {
    fn beside(mut self, other: Self) -> Self {
        self.plan.nodes += other.plan.nodes;
        self.plan.sa_rate = self.plan.sa_rate.saturating_add(other.plan.sa_rate);
        self.subnets += other.subnets;
        for (phase, others) in self.phases.iter_mut().zip(other.phases) {
            for (second, other) in phase.seconds.iter_mut().zip(others.seconds) {
                *second += other;
            }
        }
        for (given, other) in self.given.iter_mut().zip(other.given) {
            *given += other;
        }
        for (bound, other) in self.bounds.iter_mut().zip(other.bounds) {
            if other.is / other.most > bound.is / bound.most {
                *bound = other;
            }
        }
        self
    }

    /// The MADs to the SA in each second.
    pub fn mads(&self) -> impl Iterator<Item = u64> {
        self.phases.iter().flat_map(|phase| &phase.seconds).map(|second| second.mads)
    }

    /// How many requests were answered from memory with a path in doubt.
    pub fn given_in_doubt(&self) -> u64 {
        self.phases.iter().map(|phase| phase.sum(|second| second.doubted)).sum()
    }

    /// How many of the paths that callers have got lead to each LID of a port.
    pub fn given_by_lid(&self) -> &[u64] {
        &self.given[..1 << self.plan.lmc]
    }

    /// The bounds that are exceeded.
    pub fn exceeded(&self) -> impl Iterator<Item = &Bound> {
        self.bounds.iter().filter(|bound| !bound.holds())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { nodes, seed, sa_rate, port_events, .. } = self.plan;
        let (paths, heard) = (KEPT + CONNECTIONS, port_events == PortEvents::Received);
        let heard = if heard { "events received" } else { "no events received" };
        writeln!(
            f,
            "{nodes} nodes of {paths} paths in {} of at most {} LIDs, SAs that answer {sa_rate}/s, {heard}, seed {seed}\n",
            if self.subnets == 1 {
                "a subnet".to_owned()
            } else {
                format!("{} subnets", self.subnets)
            },
            Plan::MOST,
        )?;
        writeln!(
            f,
            "{:25} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
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
            "failed",
            "resolved"
        )?;
        for phase in &self.phases {
            let (seconds, sum) = (phase.seconds.len().max(1) as u64, phase.sum(|it| it.mads));
            writeln!(
                f,
                "{:25} {seconds:8} {sum:9} {:9} {:9} {:9} {:9} {:9} {:9} {:9} {:9} {:7} s",
                phase.event,
                sum / seconds,
                phase.peak(|it| it.mads),
                phase.sum(|it| it.answered),
                phase.sum(|it| it.refused),
                phase.sum(|it| it.doubted),
                phase.sum(|it| it.left),
                phase.sum(|it| it.kernels),
                phase.sum(|it| it.failed),
                phase.until_resolved(),
            )?;
        }
        writeln!(f)?;
        for bound in &self.bounds {
            writeln!(f, "{bound}")?;
        }
        Ok(())
    }
}
