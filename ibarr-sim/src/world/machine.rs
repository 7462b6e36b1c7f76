// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A machine: the parts that outlive its daemon, and its daemon.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::Gid;
use ibarr_proto::health::Cause;
use ibarr_proto::ip2gid::client::mirror::Element;
use ibarr_proto::ip2gid::client::{Candidate, Route};
use ibarr_proto::local_view::Link;

use super::addresses::{Packet, gateway, subnet_of};
use super::ipoib::Ipoib;
use super::kernel_socket::KernelSocket;
use super::network::{IPOIB, Network};
use super::process::Daemon;
use super::programs::Programs;
use super::schedule::Alarm;
use super::troubles::{Pace, Trouble, Troubles};
use crate::kernel::Kernel;

/// One machine, see the [module](self).
pub(super) struct Machine {
    pub(super) kind: Kind,
    pub(super) subnet: u8,
    /// Its permanent addresses: IPv4, then IPv6.
    pub(super) home: [IpAddr; 2],
    pub(super) kernel: Kernel,
    /// When the kernel is called next.
    pub(super) kernel_alarm: Alarm,
    pub(super) kernel_socket: KernelSocket,
    pub(super) network: Network,
    pub(super) ipoib: Ipoib,
    /// The values that the subnet manager has given its port.
    pub(super) assigned: Assigned,
    pub(super) programs: Option<Programs>,
    /// What the last daemon has learned, in a map beside those of the programs.
    pub(super) learned: Vec<Element>,
    /// Number of the daemon, so that late events of an earlier one are dropped.
    pub(super) life: u32,
    pub(super) daemon: Option<Box<Daemon>>,
    /// Queries that wait for the next daemon, if the sockets of the last one are kept.
    pub(super) kept: Option<Vec<Packet>>,
    pub(super) pace: Pace,
    pub(super) troubles: Troubles,
    /// When faults happened last that a daemon may notice later.
    pub(super) happened: BTreeMap<Cause, Instant>,
}

/// The values that a subnet manager has given to a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assigned {
    pub(super) lid: u16,
    /// Whether the port is in the second partition, too.
    pub(super) is_member: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Runs ibarr.
    Ours,
    /// Runs the C original: asks with version 0, answers only IPv4, and from its home address.
    Original,
}

impl Machine {
    pub(super) fn is_running(&self, now: Instant) -> bool {
        !self.troubles.has(now, Trouble::Suspended)
    }

    pub(super) fn gid(&self) -> Option<Gid> {
        self.network.ipoib().and_then(Link::own_gid)
    }

    pub(super) fn route(&self, candidate: Candidate) -> Option<Route> {
        let target = candidate.question.target();
        // The index of another namespace, or of an interface without routes.
        if !self.network.is_up() || candidate.egress.is_some_and(|egress| egress != IPOIB) {
            return None;
        }
        Some(Route { ifindex: IPOIB, next_hop: self.next_hop(target) })
    }

    pub(super) fn next_hop(&self, target: IpAddr) -> IpAddr {
        if subnet_of(target) == Some(self.subnet) { target } else { gateway(self.subnet, target) }
    }

    /// The source address of a datagram to `target`.
    pub(super) fn source(&self, target: IpAddr) -> IpAddr {
        self.home[usize::from(target.is_ipv6())]
    }
}
