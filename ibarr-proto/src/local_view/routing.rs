// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The interface by which the kernel sends replies, according to its policy rules and the routes of
//! its main table.
//!
//! Both are known only from dumps; an event only shows that another dump is due. Events do not
//! suffice to follow a route: only their next hops tell routes of one prefix and metric apart, IPv6
//! reports a next hop that leaves a multipath route as a deleted route, and IPv4 drops the routes
//! of an interface that goes down without an event (`fib_sync_down_dev` in
//! net/ipv4/fib_semantics.c).
//!
//! The kernel's own routes of addresses are in no table that is read. With an address IPv4 drops, without an
//! event, the routes that name it as their source, and with the last of an interface those of the interface
//! (`fib_inetaddr_event`); a first address revives next hops (`fib_sync_up`).
//!
//! The rules:
//!
//! * **Policy rules** must be the kernel's own: local, main, default. A rule that cannot match a reply
//!   of this node is ignored: a rule for forwarded packets, for packets with a mark, and the rule of
//!   VRFs. Any other rule leaves its version of IP to the daemon.
//! * **The route** of a prefix is the one with the lowest metric. If it has several interfaces as next
//!   hops, or no known one, or is blackholed or prohibited, no interface has the prefix.
//! * **A VRF** has a table of its own, which is not read: an interface in a VRF is left to the daemon,
//!   whatever the main table says.
//! * The kernel reads the table `default` after the main one, so it never overrides a route of the main
//!   table; the table `local` is assumed to hold only the kernel's own entries.
//! * **The first and the last address of a subnet** of IPv4 belong to no interface: the last one is the
//!   broadcast address, which is not a legal source.
//! * Link-local addresses of IPv6 are neighbours on each interface, whatever the routes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use core::num::NonZeroU16;

use ibarr_common::IfIndex;
use ibarr_common::map::max_entries;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::rules::{self, Diverted, MAX_RULES, Rule};
use crate::ip2gid::{Family, is_link_local};

/// Maximum number of routes. A machine with more, for example with the routes of the Internet,
/// answers in the daemon.
pub const MAX_ROUTES: usize = 4096;

/// Maximum number of routes and rules in a dump; the driver stops reading after that many.
pub const MAX_LISTED_ROUTES: usize = 4 * MAX_ROUTES;

/// A route of the main table as in `RTM_NEWROUTE`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Route {
    pub prefix: IpNet,
    /// `RTA_PRIORITY`: among routes of a prefix, the lowest wins.
    pub metric: u32,
    pub way: Way,
    /// `RTA_PREFSRC`: the source of packets without one.
    pub source: Option<IpAddr>,
}

/// The outgoing interface of a route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Way {
    By {
        ifindex: IfIndex,
        /// One of its gateways, if there is any.
        gateway: Option<IpAddr>,
    },
    /// Several interfaces, none, or none that the message names.
    Unclear,
}

/// Whether replies to queries on an interface leave by the same interface. The kernel answers only
/// then: the programs send by the interface that the query arrived on, whatever the routes are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WayBack {
    /// All replies do: the interface has the default route, and no route leaves by another.
    All,
    /// Replies to the sources covered by [`RouteBack`]s do.
    Routed,
    /// No replies do, as far as known.
    None(NoWayBack),
}

/// Reason why an interface has no way back.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoWayBack {
    /// The kernel has not reported the routes yet, or does not.
    #[error("the routes of this machine are not known")]
    Unknown,
    /// There are more than [`Limits::routes`](super::Limits::routes).
    #[error("this machine has too many routes to follow")]
    TooMany,
    /// A policy rule may select another route.
    #[error("the policy rule with priority {0} may send replies elsewhere")]
    Rule(u32),
    /// The interface is in a VRF, whose table is not followed.
    #[error("the interface is in a VRF")]
    Vrf,
    /// No prefix is routed by this interface alone.
    #[error("no route uses this interface alone")]
    NoRoute,
}

/// A prefix, and the route of a served interface to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct RouteBack {
    pub ifindex: IfIndex,
    /// The destinations. A longer prefix overrides a shorter one.
    pub prefix: IpNet,
    pub via: Via,
}

/// The route from an interface to a prefix.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Via {
    /// The prefix is on the link.
    Link,
    /// Through a gateway on the link.
    Gateway(IpAddr),
    /// Through another interface, or unknown.
    Elsewhere,
}

/// The kernel's rules and routes, from the last dump.
#[derive(Debug)]
pub(super) struct Routing {
    limit: usize,
    known: Result<Table, NoWayBack>,
    dump: Option<Table>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Table {
    /// The rules that count, of IPv4 and of IPv6, in order of evaluation.
    rules: [Vec<Rule>; 2],
    /// By prefix, the lowest metric and its route.
    ways: BTreeMap<IpNet, (u32, Way)>,
    /// The sources that routes name.
    sources: BTreeSet<IpAddr>,
    overflown: bool,
}

impl Routing {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.min(MAX_ROUTES), known: Err(NoWayBack::Unknown), dump: None }
    }

    pub(super) fn start(&mut self) {
        self.dump = Some(Table::default());
    }

    /// Returns `false` if no dump is in progress.
    pub(super) fn list_rule(&mut self, rule: Rule) -> bool {
        let Some(dump) = &mut self.dump else { return false };
        if rule.may_match_ours() {
            let rules = &mut dump.rules[at(rule.family)];
            let after = rules.partition_point(|before| before.priority <= rule.priority);
            rules.insert(after, rule);
            rules.truncate(MAX_RULES);
        }
        true
    }

    /// Returns `false` if no dump is in progress.
    pub(super) fn list_route(&mut self, route: Route) -> bool {
        let Some(dump) = &mut self.dump else { return false };
        let Route { prefix, metric, way, source } = route;
        dump.sources.extend(source);
        let prefix = prefix.trunc();
        if is_link_local(prefix.addr()) {
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

    /// `None` if no dump was in progress; else whether its contents are new.
    pub(super) fn finish(&mut self) -> Option<bool> {
        let dump = self.dump.take()?;
        let known = if dump.overflown { Err(NoWayBack::TooMany) } else { Ok(dump) };
        Some(self.set(known))
    }

    /// Returns whether that is new.
    pub(super) fn set_unknown(&mut self, why: NoWayBack) -> bool {
        self.dump = None;
        self.set(Err(why))
    }

    fn set(&mut self, known: Result<Table, NoWayBack>) -> bool {
        let is_new = self.known != known;
        self.known = known;
        is_new
    }

    pub(super) fn diverted(&self, user: u32, port: NonZeroU16) -> Vec<Diverted> {
        let rules = self.known.as_ref().map(|table| &table.rules[..]).unwrap_or_default();
        rules.iter().flat_map(|rules| rules::diverted(rules, user, port)).collect()
    }

    /// Whether the kernel may drop a route with this address (`fib_sync_down_addr`).
    pub(super) fn may_need(&self, source: IpAddr) -> bool {
        let needs = |table: &Table| table.sources.contains(&source);
        self.dump.is_some() || self.known.as_ref().map_or(true, needs)
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(self.known, Err(NoWayBack::TooMany))
    }

    /// The way back of each of these interfaces, for IPv4 and for IPv6, and its prefixes.
    ///
    /// Takes time proportional to the number of routes, whatever has changed.
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
                decided.routes.extend(interfaces.iter().map(|&on| ((on, LINK_LOCAL), Via::Link)));
            }
            table.lead_back(family, interfaces, &mut decided.routes);
        }
        for &(ifindex, prefix) in decided.routes.keys() {
            if let Some(ways_back) = decided.ways_back.get_mut(&ifindex) {
                ways_back[at(Family::of(prefix.addr()))] = WayBack::Routed;
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

/// The result of [`Routing::decide`].
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    pub(super) ways_back: BTreeMap<IfIndex, [WayBack; 2]>,
    pub(super) routes: BTreeMap<(IfIndex, IpNet), Via>,
}

impl Decided {
    /// The maps store IPv4 addresses as IPv6 ones, to which a route for all of IPv6 would apply.
    fn tell_families_apart(&mut self) {
        let mapped = Ipv6Addr::from_bits(0xffff_0000_0000);
        let around: Vec<_> = self
            .routes
            .keys()
            .filter(|(_, prefix)| prefix.contains(&IpAddr::V6(mapped)))
            .map(|&(ifindex, _)| (ifindex, IpNet::V4(Ipv4Net::default())))
            .collect();
        for all_of_ipv4 in around {
            self.routes.entry(all_of_ipv4).or_insert(Via::Elsewhere);
        }
    }

    /// The first and the last address of a subnet get no route, as far as the maps have room: the
    /// kernel sends nothing to a broadcast address unless the socket allows it, and before Linux
    /// 5.14 the first address was one too. The daemon answers queries from these addresses.
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

/// The edges of an IPv4 subnet; a subnet of two addresses has none (RFC 3021).
fn edges(subnet: IpNet) -> Option<[IpNet; 2]> {
    let IpNet::V4(subnet) = subnet else { return None };
    let has_edges = (1..=30).contains(&subnet.prefix_len());
    has_edges.then(|| [subnet.network(), subnet.broadcast()].map(|edge| IpAddr::V4(edge).into()))
}

impl Table {
    /// The first rule that is not the kernel's own.
    fn foreign_rule(&self, family: Family) -> Option<u32> {
        let rules = self.rules[at(family)].iter().filter(|rule| rule.may_match_replies());
        // A kernel without policy routing has no rules.
        let last = rules.clone().next_back()?;
        let mut own = [LOCAL, MAIN, DEFAULT].into_iter();
        let mut is_own = |rule: &&Rule| own.any(|own| rule.is_plain(own));
        let foreign = rules.clone().find(|rule| !is_own(rule));
        let has_main = rules.clone().any(|rule| rule.is_plain(MAIN));
        foreign.or((!has_main).then_some(last)).map(|rule| rule.priority)
    }

    /// Adds the prefixes that are routed by one of `interfaces`, and the prefixes inside them that
    /// are not.
    fn lead_back(
        &self,
        family: Family,
        interfaces: &BTreeSet<IfIndex>,
        routes: &mut BTreeMap<(IfIndex, IpNet), Via>,
    ) {
        // The prefixes that contain the current one: each sorts before the prefixes inside it.
        let mut around: Vec<(IpNet, Way)> = Vec::new();
        let of_family = |prefix: &IpNet| Family::of(prefix.addr()) == family;
        for (&prefix, &(_, way)) in self.ways.iter().filter(|(prefix, _)| of_family(prefix)) {
            while around.pop_if(|(outer, _)| !outer.contains(&prefix)).is_some() {}
            let by = interface(way).filter(|by| interfaces.contains(by));
            // For prefixes further out, one in between has the entry already.
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
        let mut ways = self.ways.iter().filter(|(p, _)| Family::of(p.addr()) == family);
        let (default, &(_, way)) = ways.next()?;
        let sole = interface(way).filter(|_| default.prefix_len() == 0)?;
        ways.all(|(_, &(_, way))| interface(way) == Some(sole)).then_some(sole)
    }
}

/// The index of a version of IP.
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

const LINK_LOCAL: IpNet =
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10));

// Each route causes an entry for its interface, and one for the interface of the route around it;
// each interface has two entries of its own. The edges of subnets use the remaining room.
const _: () = {
    let interfaces = max_entries::INTERFACES + max_entries::FAR_INTERFACES;
    assert!(2 * (MAX_ROUTES + interfaces) <= max_entries::ROUTES);
};

/// The routes back, and those last reported.
///
/// **Between any two events, only a source is answered that is answered before all of them or after
/// all of them.** A program that looks in between uses the longest prefix in the map, so a prefix
/// that leads elsewhere is added first and removed last.
#[derive(Debug, Default)]
pub(super) struct RoutesBack {
    now: BTreeMap<(IfIndex, IpNet), Via>,
    told: BTreeMap<(IfIndex, IpNet), Via>,
    untold: BTreeSet<(Turn, (IfIndex, IpNet))>,
}

/// The phase in which a change is reported.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Turn {
    LeadsElsewhereNow,
    Other,
    LedElsewhere,
}

impl RoutesBack {
    pub(super) fn set(&mut self, now: BTreeMap<(IfIndex, IpNet), Via>) {
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

    /// The next change: the current route of the prefix, or the key of a removed one.
    pub(super) fn poll(&mut self) -> Option<Result<RouteBack, (IfIndex, IpNet)>> {
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
