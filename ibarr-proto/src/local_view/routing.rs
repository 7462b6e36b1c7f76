// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which way the kernel sends replies, as far as its policy rules and the routes of its main table
//! say.
//!
//! Both are known from dumps alone; an event only says that another dump is due. For what the
//! kernel says about a route is not enough to follow it: routes of one prefix and metric are told
//! apart by their next hops, IPv6 reports a next hop that leaves a multipath route as a route that
//! is gone, and IPv4 drops the routes of an interface that goes down without a word
//! (`fib_sync_down_dev` in net/ipv4/fib_semantics.c).
//!
//! What counts, and how:
//!
//! * **Policy rules** must be the kernel's own: local, main, default. Rules that cannot match a
//!   reply of this node do not count: those for what is forwarded, for packets with a mark, and the
//!   one that a VRF brings. Any other leaves its version of IP to user space.
//! * **The route** of a prefix with the lowest metric counts. With several interfaces as next hops,
//!   or none that is said, the prefix is nobody's; likewise what is blackholed or prohibited.
//! * **A VRF** has a table of its own, which is not looked at: an interface in one has no route
//!   here, and is left to user space.
//! * The table `default` is asked after the main one, so that it never leads back what the main
//!   one leads elsewhere; the table `local` is taken to hold what the kernel puts there.
//! * **The first and the last address of a subnet** of IPv4 are nobody's: the last one is its broadcast
//!   address, which is no source.
//! * The link-local addresses of IPv6 are neighbours on each interface, whatever the routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ibarr_common::IfIndex;
use ibarr_common::map::max_entries;

use crate::ip2gid::{Family, Prefix, is_link_local};

/// How many routes are kept. A machine with more, say one with the routes of the Internet, answers
/// in user space.
pub const MAX_ROUTES: usize = 4096;

/// How many routes and rules a dump may list: after so many, nobody reads on.
pub const MAX_LISTED_ROUTES: usize = 4 * MAX_ROUTES;

/// A route of the main table as `RTM_NEWROUTE` tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// Its destinations.
    pub prefix: Prefix,
    /// `RTA_PRIORITY`: of routes with one prefix, the lowest counts.
    pub metric: u32,
    /// Where it leads.
    pub way: Way,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// Out by one interface.
    By {
        /// The interface.
        ifindex: IfIndex,
        /// One of its gateways, if it has any.
        gateway: Option<IpAddr>,
    },
    /// To several interfaces, to none, or where the message does not say.
    Unclear,
}

/// A policy rule as `RTM_NEWRULE` tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule {
    /// Whose.
    pub family: Family,
    /// `FRA_PRIORITY`: they are asked in this order.
    pub priority: u32,
    /// What it is for.
    pub selects: Selects,
    /// The table that is looked up; `None` for anything else that a rule can do.
    pub table: Option<u32>,
}

/// What a policy rule is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Selects {
    /// Everything.
    All,
    /// What came in by an interface (`FRA_IIFNAME` other than lo) or bears a mark (`FRA_FWMARK`
    /// other than 0), which no reply of ours does.
    NoReply,
    /// What a VRF is made of (`FRA_L3MDEV`).
    Vrf,
    /// Something else.
    Some,
}

/// Whether the replies to those who ask over an interface leave by it. The kernel answers only
/// then: its programs send by the interface that the query came from, whatever the routes say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WayBack {
    /// Those to everybody do: it has the default route, and no route leaves by another.
    All,
    /// Those to the sources that [`RouteBack`]s lead to.
    Routed,
    /// None is known to.
    None(NoWayBack),
}

/// Why an interface has no way back.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoWayBack {
    /// The kernel has not said yet, or does not.
    #[error("the routes of this machine are not known")]
    Unknown,
    /// There are more than [`Limits::routes`](super::Limits::routes).
    #[error("this machine has too many routes to follow")]
    TooMany,
    /// Policy routing is at work.
    #[error("the policy rule with priority {0} may send replies elsewhere")]
    Rule(u32),
    /// No prefix is routed by this interface alone.
    #[error("no route leads back by this interface alone")]
    NoRoute,
}

/// A prefix and where an interface that is served sends what is for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RouteBack {
    /// The interface.
    pub ifindex: IfIndex,
    /// The destinations. A longer prefix overrules a shorter one.
    pub prefix: Prefix,
    /// The way there.
    pub via: Via,
}

/// The way from an interface to a prefix.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Via {
    /// It is on the link.
    Link,
    /// Through a gateway on the link.
    Gateway(IpAddr),
    /// By another interface, or unclear.
    Elsewhere,
}

/// What the kernel said, from the last dump.
#[derive(Debug)]
pub(super) struct Routing {
    limit: usize,
    known: Result<Table, NoWayBack>,
    dump: Option<Table>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Table {
    /// Those that count, over IPv4 and over IPv6, in the order in which they are asked.
    rules: [Vec<Rule>; 2],
    /// By prefix the lowest metric and where it leads.
    ways: BTreeMap<Prefix, (u32, Way)>,
    overflown: bool,
}

impl Routing {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.min(MAX_ROUTES), known: Err(NoWayBack::Unknown), dump: None }
    }

    pub(super) fn start(&mut self) {
        self.dump = Some(Table::default());
    }

    /// `false` outside of a dump.
    pub(super) fn list_rule(&mut self, rule: Rule) -> bool {
        let Some(dump) = &mut self.dump else { return false };
        if !matches!(rule.selects, Selects::NoReply | Selects::Vrf) {
            let rules = &mut dump.rules[at(rule.family)];
            let after = rules.partition_point(|before| before.priority <= rule.priority);
            rules.insert(after, rule);
            // One that is not the kernel's own tells as much as all.
            rules.truncate(MAX_RULES);
        }
        true
    }

    /// `false` outside of a dump.
    pub(super) fn list_route(&mut self, route: Route) -> bool {
        let Some(dump) = &mut self.dump else { return false };
        let Route { prefix, metric, way } = route;
        if is_link_local(prefix.first()) {
            return true;
        }
        if dump.ways.len() >= self.limit && !dump.ways.contains_key(&prefix) {
            dump.overflown = true;
            return true;
        }
        let (lowest, kept) = dump.ways.entry(prefix).or_insert((metric, way));
        if metric < *lowest {
            (*lowest, *kept) = (metric, way);
        } else if metric == *lowest && !leave_together(*kept, way) {
            *kept = Way::Unclear;
        }
        true
    }

    /// Whether a dump was under way, and what it says is new.
    pub(super) fn finish(&mut self) -> Option<bool> {
        let dump = self.dump.take()?;
        let known = if dump.overflown { Err(NoWayBack::TooMany) } else { Ok(dump) };
        Some(self.set(known))
    }

    /// Whether that is new.
    pub(super) fn set_unknown(&mut self, why: NoWayBack) -> bool {
        self.dump = None;
        self.set(Err(why))
    }

    fn set(&mut self, known: Result<Table, NoWayBack>) -> bool {
        let is_new = self.known != known;
        self.known = known;
        is_new
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(self.known, Err(NoWayBack::TooMany))
    }

    /// The way back of each of these interfaces, over IPv4 and over IPv6, and what it is made of.
    ///
    /// Costs a look at each route, whatever has changed.
    pub(super) fn decide(&self, interfaces: &BTreeSet<IfIndex>) -> Decided {
        let mut decided = Decided::default();
        let unknown = |why| interfaces.iter().map(|&on| (on, [WayBack::None(why); 2])).collect();
        let table = match &self.known {
            Ok(table) => table,
            Err(why) => {
                decided.ways_back = unknown(*why);
                return decided;
            }
        };
        decided.ways_back = unknown(NoWayBack::NoRoute);
        for family in [Family::V4, Family::V6] {
            if let Some(rule) = table.foreign_rule(family) {
                let why = WayBack::None(NoWayBack::Rule(rule));
                decided.ways_back.values_mut().for_each(|ways_back| ways_back[at(family)] = why);
                continue;
            }
            if family == Family::V6 {
                decided.routes.extend(interfaces.iter().map(|&on| ((on, link_local()), Via::Link)));
            }
            table.lead_back(family, interfaces, &mut decided.routes);
        }
        for &(ifindex, prefix) in decided.routes.keys() {
            if let Some(ways_back) = decided.ways_back.get_mut(&ifindex) {
                ways_back[at(Family::of(prefix.first()))] = WayBack::Routed;
            }
        }
        for family in [Family::V4, Family::V6] {
            if let Some(sole) = table.sole_way(family)
                && let Some(ways_back) = decided.ways_back.get_mut(&sole)
                && ways_back[at(family)] == WayBack::Routed
            {
                ways_back[at(family)] = WayBack::All;
            }
        }
        decided.tell_families_apart();
        decided.leave_edges_out();
        decided
    }
}

/// See [`Routing::decide`].
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    pub(super) ways_back: BTreeMap<IfIndex, [WayBack; 2]>,
    pub(super) routes: BTreeMap<(IfIndex, Prefix), Via>,
}

impl Decided {
    /// The maps hold IPv4 addresses inside of IPv6, where a route for all of IPv6 would lead them.
    fn tell_families_apart(&mut self) {
        let mapped = Ipv6Addr::from_bits(0xffff_0000_0000);
        let around: Vec<_> = self
            .routes
            .keys()
            .filter(|(_, prefix)| prefix.contains(mapped.into()))
            .map(|&(ifindex, _)| (ifindex, Prefix::around([0; 4].into(), 0)))
            .collect();
        for all_of_ipv4 in around {
            self.routes.entry(all_of_ipv4).or_insert(Via::Elsewhere);
        }
    }

    /// The first and the last address of a subnet lead nowhere, as far as the maps have room: the
    /// kernel sends nothing to a broadcast address unless it is told to, and before Linux 5.14 the
    /// first address was one, too. The daemon answers queries from there.
    fn leave_edges_out(&mut self) {
        let subnets = self.routes.iter().filter(|(_, via)| **via == Via::Link);
        let edges: Vec<_> = subnets
            .filter_map(|(&(ifindex, subnet), _)| Some((ifindex, edges(subnet)?)))
            .flat_map(|(ifindex, edges)| edges.map(|edge| (ifindex, edge)))
            .take(max_entries::ROUTES - self.routes.len().min(max_entries::ROUTES))
            .collect();
        for edge in edges {
            self.routes.entry(edge).or_insert(Via::Elsewhere);
        }
    }
}

/// Of IPv4: RFC 3021 gives subnets of two addresses none.
fn edges(subnet: Prefix) -> Option<[Prefix; 2]> {
    let IpAddr::V4(first) = subnet.first() else { return None };
    if !(1..=30).contains(&subnet.len()) {
        return None;
    }
    let last = Ipv4Addr::from_bits(first.to_bits() | u32::MAX >> subnet.len());
    Some([first, last].map(|edge| Prefix::around(edge.into(), 32)))
}

impl Table {
    /// The first rule that is not the kernel's own.
    fn foreign_rule(&self, family: Family) -> Option<u32> {
        let rules = &self.rules[at(family)];
        // Without policy routing in the kernel there are none.
        let last = rules.last()?;
        let mut own = [LOCAL, MAIN, DEFAULT].into_iter();
        let mut is_own = |rule: &&Rule| {
            rule.selects == Selects::All
                && rule.table.is_some_and(|table| own.any(|own| own == table))
        };
        let foreign = rules.iter().find(|rule| !is_own(rule));
        let main = rules.iter().find(|rule| rule.table == Some(MAIN));
        foreign.or(if main.is_none() { Some(last) } else { None }).map(|rule| rule.priority)
    }

    /// Adds what leads back by `interfaces`: each prefix that is routed by one, and each inside of
    /// it that is not.
    fn lead_back(
        &self,
        family: Family,
        interfaces: &BTreeSet<IfIndex>,
        routes: &mut BTreeMap<(IfIndex, Prefix), Via>,
    ) {
        // Those that hold the prefix at hand: each sorts before those inside it.
        let mut around: Vec<(Prefix, Way)> = Vec::new();
        let of_family = |prefix: &Prefix| Family::of(prefix.first()) == family;
        for (&prefix, &(_, way)) in self.ways.iter().filter(|(prefix, _)| of_family(prefix)) {
            while around.pop_if(|(outer, _)| !outer.contains(prefix.first())).is_some() {}
            let by = interface(way).filter(|by| interfaces.contains(by));
            // Further out, somebody in between has said so already.
            let outer = around.last().and_then(|&(_, way)| interface(way));
            if let Some(outer) = outer.filter(|outer| interfaces.contains(outer))
                && Some(outer) != by
            {
                routes.insert((outer, prefix), Via::Elsewhere);
            }
            if let (Some(by), Way::By { gateway, .. }) = (by, way) {
                routes.insert((by, prefix), gateway.map_or(Via::Link, Via::Gateway));
            }
            around.push((prefix, way));
        }
    }

    /// The interface of all routes, if one of them is the default route.
    fn sole_way(&self, family: Family) -> Option<IfIndex> {
        let mut ways = self.ways.iter().filter(|(p, _)| Family::of(p.first()) == family);
        let (default, &(_, way)) = ways.next()?;
        let sole = interface(way).filter(|_| default.len() == 0)?;
        ways.all(|(_, &(_, way))| interface(way) == Some(sole)).then_some(sole)
    }
}

/// The place of what is known of a version of IP.
fn at(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

fn interface(way: Way) -> Option<IfIndex> {
    match way {
        Way::By { ifindex, .. } => Some(ifindex),
        Way::Unclear => None,
    }
}

fn leave_together(a: Way, b: Way) -> bool {
    interface(a).is_some() && interface(a) == interface(b)
}

/// `RT_TABLE_LOCAL` and the others of include/uapi/linux/rtnetlink.h.
const LOCAL: u32 = 255;
const MAIN: u32 = 254;
const DEFAULT: u32 = 253;
/// Rules of one version of IP that are kept.
const MAX_RULES: usize = 8;

fn link_local() -> Prefix {
    Prefix::around(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10)
}

// Each route brings an entry for its interface, and one for that of the route around it; and each
// interface has two of its own. Edges of subnets take what is left.
const _: () = {
    let interfaces = max_entries::INTERFACES + max_entries::FAR_INTERFACES;
    assert!(2 * (MAX_ROUTES + interfaces) <= max_entries::ROUTES);
};

/// The routes back, and those last told.
///
/// **Between any two of the events, nobody is led back who is not before all of them or after.** A
/// program that looks in between finds the longest prefix there is, so what leads elsewhere comes
/// first and goes last.
#[derive(Debug, Default)]
pub(super) struct RoutesBack {
    now: BTreeMap<(IfIndex, Prefix), Via>,
    told: BTreeMap<(IfIndex, Prefix), Via>,
    untold: BTreeSet<(Turn, (IfIndex, Prefix))>,
}

/// When a change is told.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Turn {
    LeadsElsewhereNow,
    Other,
    LedElsewhere,
}

impl RoutesBack {
    pub(super) fn set(&mut self, now: BTreeMap<(IfIndex, Prefix), Via>) {
        self.untold.clear();
        for (&key, via) in &now {
            if self.told.get(&key) != Some(via) {
                let elsewhere = *via == Via::Elsewhere;
                self.untold
                    .insert((if elsewhere { Turn::LeadsElsewhereNow } else { Turn::Other }, key));
            }
        }
        for (&key, via) in &self.told {
            if !now.contains_key(&key) {
                let elsewhere = *via == Via::Elsewhere;
                self.untold.insert((if elsewhere { Turn::LedElsewhere } else { Turn::Other }, key));
            }
        }
        self.now = now;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = RouteBack> {
        self.now.iter().map(|(&(ifindex, prefix), &via)| RouteBack { ifindex, prefix, via })
    }

    /// The next change: what leads there now, if anything does.
    pub(super) fn poll(&mut self) -> Option<Result<RouteBack, (IfIndex, Prefix)>> {
        let (_, key) = self.untold.pop_first()?;
        let (ifindex, prefix) = key;
        let Some(&via) = self.now.get(&key) else {
            self.told.remove(&key);
            return Some(Err(key));
        };
        self.told.insert(key, via);
        Some(Ok(RouteBack { ifindex, prefix, via }))
    }
}
