// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Policy rules, and whether they may send our datagrams by another way than the kernel's connections.
//!
//! The kernel's look-up for a connection has user 0, and neither protocol nor ports (`addr_resolve` of
//! drivers/infiniband/core/addr.c); queries and replies have all of them. A rule that selects by these
//! may match one and not the other. What else a rule selects by is the same for both, so what counts
//! is which rules decide about each. Whether the routes differ, the driver asks the kernel.

use alloc::vec::Vec;
use core::num::NonZeroU16;

use crate::ip2gid::Family;

/// A policy rule as in `RTM_NEWRULE`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule {
    /// The version of IP.
    pub family: Family,
    /// `FRA_PRIORITY`: rules are evaluated in this order.
    pub priority: u32,
    /// Users, protocols and ports that it matches.
    pub only: Traffic,
    /// What else it matches.
    pub selects: Selects,
    /// It matches all other packets (`FIB_RULE_INVERT`).
    pub inverted: bool,
    /// What it does with a packet.
    pub action: Action,
}

/// Packets by user, protocol, source port and destination port: a first and a last one of each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Traffic(pub [(u32, u32); 4]);

/// The packets that a policy rule matches, but for [`Traffic`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Selects {
    All,
    /// Packets that arrived on an interface (`FRA_IIFNAME` other than lo) or have a mark
    /// (`FRA_FWMARK` other than 0); those of this node never do.
    NotOurs,
    /// The rule of VRFs (`FRA_L3MDEV`).
    Vrf,
    Some,
}

/// What a policy rule does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// It looks up a table, and may ignore some of the results (`FRA_SUPPRESS_PREFIXLEN`).
    #[expect(missing_docs, reason = "its fields are named for what they hold")]
    Lookup {
        table: u32,
        /// Whether it ignores some results.
        suppresses: bool,
    },
    /// It goes on with the rule of this priority.
    Goto(u32),
    /// Nothing.
    Nothing,
    /// It refuses or discards the packet.
    Refuse,
}

/// The datagrams of a daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants and fields are named for what they are")]
pub enum Datagrams {
    Queries,
    Replies,
}

/// Datagrams that policy rules may send by another way than the kernel's connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Diverted {
    pub datagrams: Datagrams,
    pub port: NonZeroU16,
    /// What rules know of the datagrams.
    pub traffic: Traffic,
    /// The version of IP.
    pub family: Family,
    /// The priority of the rule that makes the difference.
    pub rule: u32,
    /// The priority of the later rule with which a connection goes on.
    pub instead: Option<u32>,
}

impl Rule {
    /// Whether it matches these packets; `None` if that depends on other properties.
    fn matches(&self, traffic: &Traffic) -> Option<bool> {
        let matches = match self.selects {
            Selects::NotOurs => Some(false),
            _ if !self.only.contains(traffic) => Some(false),
            Selects::All => Some(true),
            Selects::Vrf | Selects::Some => None,
        };
        matches.map(|matches| matches != self.inverted)
    }

    /// Whether it may match a packet of this node.
    pub(super) fn may_match_ours(&self) -> bool {
        self.inverted || self.selects != Selects::NotOurs
    }

    /// Whether it may match a reply to a peer outside of a VRF.
    pub(super) fn may_match_replies(&self) -> bool {
        self.inverted || self.selects != Selects::Vrf
    }

    /// Whether it looks up this table for each packet.
    pub(super) fn is_plain(&self, table: u32) -> bool {
        let action = Action::Lookup { table, suppresses: false };
        let (only, selects, inverted) = (Traffic::ALL, Selects::All, false);
        *self == Self { only, selects, inverted, action, ..*self }
    }
}

impl Traffic {
    /// All packets.
    pub const ALL: Self = Self([(0, u32::MAX); 4]);
    /// The look-ups for the kernel's connections.
    pub const CONNECTIONS: Self = Self([(0, 0); 4]);
    /// The ports that sockets get (`net.ipv4.ip_local_port_range`). A rule for one of them meets few
    /// datagrams.
    const OF_SOCKETS: (u32, u32) = (32_768, 60_999);
    const UDP: u32 = 17;

    fn of(datagrams: Datagrams, user: u32, port: NonZeroU16) -> Self {
        let port = (port.get().into(), port.get().into());
        let [source, destination] = match datagrams {
            Datagrams::Queries => [Self::OF_SOCKETS, port],
            Datagrams::Replies => [port, Self::OF_SOCKETS],
        };
        Self([(user, user), (Self::UDP, Self::UDP), source, destination])
    }

    fn contains(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(outer, inner)| outer.0 <= inner.0 && inner.1 <= outer.1)
    }
}

/// Maximum number of rules kept for a version of IP. With more, none is named.
pub(super) const MAX_RULES: usize = 1024;

/// The rules of one version of IP, given in their order, that may divert datagrams of `user`. Whether they
/// do depends on the routes: a look-up without a result goes on with the next rule.
pub(super) fn diverted(rules: &[Rule], user: u32, port: NonZeroU16) -> Vec<Diverted> {
    let diversion = |datagrams| {
        let traffic = Traffic::of(datagrams, user, port);
        let differs = |rule: &Rule| rule.matches(&traffic) != rule.matches(&Traffic::CONNECTIONS);
        let first = rules.iter().find(|rule| differs(rule))?;
        let (ours, theirs) = (steps(rules, &traffic), steps(rules, &Traffic::CONNECTIONS));
        let at = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
        let (ours, theirs) = (ours.get(at), theirs.get(at));
        // If a jump makes the difference, the steps are of other rules.
        let mut different = [ours, theirs].into_iter().flatten().map(|step| step.1).peekable();
        different.peek()?;
        let rule = different.find(|rule| differs(rule)).unwrap_or(first);
        let instead = theirs.map(|step| step.1.priority).filter(|next| *next > rule.priority);
        let (family, rule) = (rule.family, rule.priority);
        Some(Diverted { datagrams, port, traffic, family, rule, instead })
    };
    let all = [Datagrams::Queries, Datagrams::Replies].into_iter();
    all.filter(|_| rules.len() < MAX_RULES).filter_map(diversion).collect()
}

/// The rules that may decide about packets, in their order, and whether each matches all of them.
fn steps<'a>(rules: &'a [Rule], traffic: &Traffic) -> Vec<(bool, &'a Rule)> {
    let mut steps = Vec::new();
    let mut rest = rules;
    while let [rule, after @ ..] = rest {
        rest = after;
        let is_certain = match rule.matches(traffic) {
            Some(false) => continue,
            matches => matches.is_some(),
        };
        match rule.action {
            Action::Nothing => continue,
            Action::Goto(priority) if is_certain => {
                let skipped = after.iter().position(|rule| rule.priority == priority);
                rest = &after[skipped.unwrap_or_default()..];
                continue;
            }
            Action::Refuse if is_certain => rest = &[],
            Action::Lookup { .. } | Action::Goto(_) | Action::Refuse => {}
        }
        steps.push((is_certain, rule));
    }
    steps
}
