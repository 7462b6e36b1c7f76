// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A machine: the parts that outlive its daemon, and the daemon without its cores.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ibarr_common::ib::{Gid, Lid};
use ibarr_common::wire::ip2gid::Datagram;
use ibarr_common::wire::ls::{Emitted, Seq};
use ibarr_common::wire::sa;
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{Route, SocketId};
use ibarr_proto::local_service::Nudged;
use ibarr_proto::local_view::{
    self, AddressId, Bonding, Dad, HwAddr, InterfaceAddress, InterfaceName, Link, LinkType,
};
use ibarr_proto::paths::PortFacts;
use ibarr_proto::request::UserRequest;

use crate::bugs::Core;
use crate::dice::{Dice, ms};
use crate::kernel::Kernel;
use crate::path_claims::PathClaims;
use crate::pending::Crowd;
use crate::subnet::Given;

/// One machine, see the [module](self).
pub(crate) struct Machine {
    pub(crate) kind: Kind,
    pub(crate) subnet: u8,
    /// Its permanent addresses: IPv4, then IPv6.
    pub(crate) home: [IpAddr; 2],
    pub(crate) kernel: Kernel,
    /// When the kernel is called next.
    pub(crate) kernel_at: Option<Instant>,
    pub(crate) network: Network,
    /// The values that the subnet manager has given its port.
    pub(crate) given: Given,
    /// IPoIB's paths, by next hop.
    pub(crate) paths: Vec<(IpAddr, Path)>,
    /// When a path last failed, or was found after a long look-up.
    pub(crate) slow_path: Instant,
    /// The maps of the programs in the kernel, while the lease lasts.
    pub(crate) responder: Option<Responder>,
    pub(crate) local_service: LocalServiceSocket,
    /// Number of the daemon, so that late events of an earlier one are dropped.
    pub(crate) life: u32,
    pub(crate) daemon: Option<Box<Daemon>>,
    pub(crate) pace: Pace,
    pub(crate) troubles: Troubles,
    pub(crate) restart: Option<Restart>,
}

/// A replacement of the daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub(crate) at: Instant,
    /// The next daemon has inherited the socket to the kernel.
    pub(crate) keeps_socket: bool,
    /// The end of other troubles.
    pub(crate) before: Instant,
    /// The end of this trouble, if there is no other.
    pub(crate) until: Instant,
    /// A neighbour changed while no daemon was listening, so the kernel gave up.
    pub(crate) woken: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Runs ibarr.
    Ours,
    /// Runs the C original: asks with version 0, answers only IPv4, and from its home address.
    Original,
}

/// The speed of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// The time from the arrival of an input until the daemon sees it.
    pub(crate) turn: Duration,
    /// The daemon preempts the kernel during a request, so that an immediate answer is always lost.
    pub(crate) is_eager: bool,
    /// One turn in so many takes a hundred times as long.
    pub(crate) hiccup: usize,
    /// The recent long turns: start and duration.
    pub(crate) hiccups: VecDeque<(Instant, Duration)>,
}

/// The ends of the current troubles; in the past if there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Troubles {
    /// Any trouble that may delay or lose messages of this machine.
    pub(crate) any: Instant,
    pub(crate) suspended: Instant,
    pub(crate) stalled: Instant,
    /// The socket to the kernel holds few datagrams.
    pub(crate) squeezed: Instant,
    /// The socket to the kernel accepts no datagrams.
    pub(crate) clogged: Instant,
    pub(crate) nudges_fail: Instant,
    pub(crate) no_sockets: Instant,
    pub(crate) rtnetlink_loses: Instant,
    /// When the daemon last resumed after a pause, and the sum of its pauses since then and in the
    /// minute before: its answers may be older by that much.
    pub(crate) slept: (Instant, Duration),
}

/// The maps from which programs in the kernel answer; they outlive the daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Responder {
    pub(crate) gids: BTreeMap<IpAddr, Gid>,
    pub(crate) lease_ends: Instant,
}

/// The kernel's end of the socket to the daemon.
#[derive(Debug, Default)]
pub(crate) struct LocalServiceSocket {
    pub(crate) is_open: bool,
    pub(crate) held: VecDeque<ToDaemon>,
    pub(crate) overrun: bool,
}

#[derive(Debug)]
pub(crate) struct ToDaemon {
    pub(crate) at: Instant,
    pub(crate) bytes: Vec<u8>,
    pub(crate) from_kernel: bool,
}

/// The state of rtnetlink.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) links: Vec<Link>,
    pub(crate) addresses: Vec<InterfaceAddress>,
    /// Messages keep their order: none is delivered before this time.
    pub(crate) told_until: Instant,
    /// Number of the running dump.
    pub(crate) dump: u32,
}

/// IPoIB's path to a next hop.
#[derive(Debug)]
pub(crate) enum Path {
    Sought { request: Option<Seq>, since: Instant, parked: Vec<Packet> },
    Open,
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) payload: Datagram,
}

/// The daemon without its cores.
pub(crate) struct Daemon {
    pub(crate) core: Core,
    pub(crate) inbox: VecDeque<Inbox>,
    /// When the queued inputs are handled.
    pub(crate) wake_at: Option<Instant>,
    /// When the cores want to be called, and when that happens.
    pub(crate) timer: Option<Instant>,
    pub(crate) armed: Option<Instant>,
    pub(crate) sockets: Vec<(u16, SocketId)>,
    /// A message for which the socket to the kernel had no room.
    pub(crate) unsent: Option<Emitted>,
    /// The sum of the view's events.
    pub(crate) mirror: BTreeMap<IpAddr, Gid>,
    pub(crate) has_learnt: bool,
    /// Pending requests of users, with their deadlines.
    pub(crate) asked: BTreeMap<UserRequest, (IpAddr, Instant)>,
    pub(crate) next_ask: u64,
    pub(crate) crowd: Crowd,
    pub(crate) last_nudge: Option<Instant>,
    /// Answers to address requests since the last nudge.
    pub(crate) since_nudge: u64,
    /// Nudges that were made or tried.
    pub(crate) nudges: u64,
    /// Datagrams read from the kernel's socket.
    pub(crate) read: u64,
    /// Reasons for nudges: answers, overruns, the start.
    pub(crate) answers: u64,
    pub(crate) counts_overruns_from: Instant,
    pub(crate) paths: PathClaims,
    /// By message type and sequence number.
    pub(crate) dealt: BTreeMap<(u16, Seq), Dealt>,
    pub(crate) is_ending: bool,
}

/// The history of a request of the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dealt {
    pub(crate) heard: u32,
    pub(crate) answered: u32,
    pub(crate) target: Option<IpAddr>,
}

/// Inputs for the daemon's next turn.
#[derive(Debug)]
pub(crate) enum Inbox {
    Opened,
    View(local_view::Input),
    Route(Question, Option<Route>),
    Reply {
        socket: SocketId,
        packet: Packet,
    },
    Query(Packet),
    Port(Option<PortFacts>),
    Mad(Lid, sa::Request, sa::Answer),
    Nudged(Nudged),
    Ask(Question),
    /// A user has room for more requests, until this time.
    Crowd(Instant),
    Reload,
    Flush,
    Stop,
}

/// The interface with the addresses.
pub(crate) const IPOIB: IfIndex = match IfIndex::new(4) {
    Some(ifindex) => ifindex,
    None => unreachable!(),
};

/// Datagrams wait while a path is looked up; a shorter time does not matter.
pub(crate) const SLOW: Duration = ms(20);

impl Machine {
    pub(crate) fn is_running(&self, now: Instant) -> bool {
        self.troubles.suspended <= now
    }

    /// Notes a trouble that ends at `until`.
    pub(crate) fn trouble_until(&mut self, until: Instant) {
        self.troubles.any = self.troubles.any.max(until);
    }

    pub(crate) fn gid(&self) -> Option<Gid> {
        self.network.ipoib().and_then(Link::own_gid)
    }

    /// Since when IPoIB has found its paths at once.
    pub(crate) fn paths_are_quick_since(&self, now: Instant) -> Instant {
        let is_slow =
            |path: &Path| matches!(path, Path::Sought { since, .. } if now.since(*since) > SLOW);
        if self.paths.iter().any(|(_, path)| is_slow(path)) { now } else { self.slow_path }
    }

    pub(crate) fn route(&self, question: Question) -> Option<Route> {
        let target = question.target();
        let is_up = self.network.ipoib().is_some_and(|link| link.up);
        // The index of another namespace, or of an interface without routes.
        if !is_up || question.egress().is_some_and(|egress| egress != IPOIB) {
            return None;
        }
        Some(Route { ifindex: IPOIB, next_hop: self.next_hop(target) })
    }

    pub(crate) fn next_hop(&self, target: IpAddr) -> IpAddr {
        if subnet_of(target) == Some(self.subnet) { target } else { gateway(self.subnet, target) }
    }

    /// The source address of a datagram to `target`.
    pub(crate) fn source(&self, target: IpAddr) -> IpAddr {
        self.home[usize::from(target.is_ipv6())]
    }
}

impl Network {
    pub(crate) fn ipoib(&self) -> Option<&Link> {
        self.links.iter().find(|link| link.ifindex == IPOIB)
    }

    pub(crate) fn ipoib_mut(&mut self) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.ifindex == IPOIB)
    }
}

impl LocalServiceSocket {
    pub(crate) fn has_something(&self) -> bool {
        self.overrun || !self.held.is_empty()
    }
}

impl Troubles {
    /// No troubles, and none before for a long time.
    pub(crate) fn none(now: Instant) -> Self {
        let long_ago = Instant::BOOT;
        Self {
            any: now,
            suspended: long_ago,
            stalled: long_ago,
            squeezed: long_ago,
            clogged: long_ago,
            nudges_fail: long_ago,
            no_sockets: long_ago,
            rtnetlink_loses: long_ago,
            slept: (long_ago, Duration::ZERO),
        }
    }

    /// The daemon does not run for `time`.
    pub(crate) fn sleep(&mut self, now: Instant, time: Duration) {
        let (until, slept) = self.slept;
        let lately = if until + Duration::from_mins(1) >= now { slept } else { Duration::ZERO };
        self.slept = (until.max(now + time), lately + time);
    }
}

impl Daemon {
    pub(crate) fn new(core: Core, paths: PathClaims) -> Self {
        Self {
            core,
            inbox: VecDeque::new(),
            wake_at: None,
            timer: None,
            armed: None,
            sockets: Vec::new(),
            unsent: None,
            mirror: BTreeMap::new(),
            has_learnt: false,
            asked: BTreeMap::new(),
            next_ask: 0,
            crowd: Crowd::default(),
            last_nudge: None,
            since_nudge: 0,
            nudges: 0,
            read: 0,
            answers: 0,
            counts_overruns_from: Instant::BOOT,
            paths,
            dealt: BTreeMap::new(),
            is_ending: false,
        }
    }
}

/// A random port that none of the sockets uses.
pub(crate) fn source_port(dice: &mut Dice, sockets: &[(u16, SocketId)]) -> u16 {
    loop {
        let port = 32_768 + u16::try_from(dice.below(28_232)).unwrap_or_default();
        if sockets.iter().all(|&(taken, _)| taken != port) {
            return port;
        }
    }
}

/// 10.SUBNET.0.NODE and fd00::SUBNET:0:0:0:NODE.
pub(crate) fn home(subnet: u8, node: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, subnet.into(), 0, 0, 0, node.into());
    [Ipv4Addr::new(10, subnet, 0, node).into(), v6.into()]
}

/// The `n`th moving address of a subnet.
pub(crate) fn wanderer(subnet: u8, n: u8) -> IpAddr {
    Ipv4Addr::new(10, subnet, 1, n).into()
}

/// The `n`th address that no host has.
pub(crate) fn missing_peer(subnet: u8, n: u8, v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, subnet.into(), 0, 0, 0xdead, n.into()).into()
    } else {
        Ipv4Addr::new(10, subnet, 2, n).into()
    }
}

pub(crate) fn subnet_of(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(address) => Some(address.octets()[1]),
        IpAddr::V6(address) => u8::try_from(address.segments()[3]).ok(),
    }
}

fn gateway(subnet: u8, target: IpAddr) -> IpAddr {
    home(subnet, 254)[usize::from(target.is_ipv6())]
}

/// The GID of a port: prefix of its subnet, and number of the machine.
pub(crate) fn gid(prefix: u16, guid: u32) -> Gid {
    let mut octets = [0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 0];
    octets[6..8].copy_from_slice(&prefix.to_be_bytes());
    octets[12..].copy_from_slice(&guid.to_be_bytes());
    Gid::new(octets).unwrap_or_else(|| unreachable!("it is neither zero nor multicast"))
}

pub(crate) fn hwaddr(gid: Gid) -> HwAddr {
    let mut octets = [0; 20];
    octets[3] = 0x48;
    octets[4..].copy_from_slice(&gid.octets());
    HwAddr::new(&octets).unwrap_or_default()
}

/// `lo` and `ib0` at the start.
pub(crate) fn links(gid: Gid) -> Vec<Link> {
    let link = |ifindex, name: &[u8], link_type, hwaddr| Link {
        ifindex,
        name: InterfaceName::new(name)
            .unwrap_or_else(|| unreachable!("the kernel gives this name")),
        link_type,
        hwaddr,
        up: true,
        bonding: Bonding::None,
    };
    vec![
        link(IfIndex::MIN, b"lo", LinkType::LOOPBACK, HwAddr::default()),
        link(IPOIB, b"ib0", LinkType::INFINIBAND, hwaddr(gid)),
    ]
}

pub(crate) fn entry(address: IpAddr) -> InterfaceAddress {
    let prefix_len = if address.is_ipv4() { 16 } else { 64 };
    InterfaceAddress::new(IPOIB, address, prefix_len, None, Dad::Passed)
}

pub(crate) fn entry_id(address: IpAddr) -> AddressId {
    entry(address).id
}
