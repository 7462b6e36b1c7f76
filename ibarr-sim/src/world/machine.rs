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
use ibarr_proto::responder::{Done, Responder, Work};

use super::path_claims::PathClaims;
use super::pending::Crowd;
use super::programs::Programs;
use super::troubles::{Pace, Trouble, Troubles};
use crate::bugs::Core;
use crate::dice::{Dice, ms};
use crate::kernel::Kernel;

/// One machine, see the [module](self).
pub(super) struct Machine {
    pub(super) kind: Kind,
    pub(super) subnet: u8,
    /// Its permanent addresses: IPv4, then IPv6.
    pub(super) home: [IpAddr; 2],
    pub(super) kernel: Kernel,
    /// When the kernel is called next.
    pub(super) kernel_at: Option<Instant>,
    pub(super) network: Network,
    /// The values that the subnet manager has given its port.
    pub(super) given: Given,
    /// IPoIB's paths, by next hop.
    pub(super) paths: Vec<(IpAddr, Path)>,
    /// When a path last failed, or was found after a long look-up.
    pub(super) slow_path: Instant,
    pub(super) programs: Option<Programs>,
    pub(super) local_service: LocalServiceSocket,
    /// Number of the daemon, so that late events of an earlier one are dropped.
    pub(super) life: u32,
    pub(super) daemon: Option<Box<Daemon>>,
    pub(super) pace: Pace,
    pub(super) troubles: Troubles,
}

/// The values that a subnet manager has given to a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
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

/// The kernel's end of the socket to the daemon.
#[derive(Debug, Default)]
pub(super) struct LocalServiceSocket {
    pub(super) is_open: bool,
    pub(super) held: VecDeque<ToDaemon>,
    pub(super) overrun: bool,
}

#[derive(Debug)]
pub(super) struct ToDaemon {
    pub(super) at: Instant,
    pub(super) bytes: Vec<u8>,
    pub(super) from_kernel: bool,
}

/// The state of rtnetlink.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) links: Vec<Link>,
    pub(super) addresses: Vec<InterfaceAddress>,
    /// Messages keep their order: none is delivered before this time.
    pub(super) told_until: Instant,
    /// Number of the running dump of links and addresses.
    pub(super) dump: u32,
    /// The daemon gets the events of neighbours.
    pub(super) tells_neighbours: bool,
}

/// IPoIB's path to a next hop.
#[derive(Debug)]
pub(super) enum Path {
    Sought { request: Option<Seq>, since: Instant, parked: Vec<Packet> },
    Open,
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) payload: Datagram,
}

/// The daemon without its cores.
pub(super) struct Daemon {
    pub(super) core: Core,
    pub(super) inbox: VecDeque<Inbox>,
    /// When the queued inputs are handled.
    pub(super) wake_at: Option<Instant>,
    /// When the cores want to be called, and when that happens.
    pub(super) timer: Option<Instant>,
    pub(super) armed: Option<Instant>,
    pub(super) sockets: Vec<(u16, SocketId)>,
    /// A message for which the socket to the kernel had no room.
    pub(super) unsent: Option<Emitted>,
    /// Set while the maps of the programs can be written.
    pub(super) responder: Option<Responder>,
    /// The work of the thread that attaches programs.
    pub(super) work: Option<Work>,
    /// Pending requests of users, with their deadlines.
    pub(super) asked: BTreeMap<UserRequest, (IpAddr, Instant)>,
    pub(super) next_ask: u64,
    pub(super) crowd: Crowd,
    pub(super) last_nudge: Option<Instant>,
    /// Answers to address requests since the last nudge.
    pub(super) since_nudge: u64,
    /// Nudges that were made or tried.
    pub(super) nudges: u64,
    /// Datagrams read from the kernel's socket.
    pub(super) read: u64,
    /// Reasons for nudges: answers, overruns, the start.
    pub(super) answers: u64,
    pub(super) counts_overruns_from: Instant,
    pub(super) paths: PathClaims,
    /// By message type and sequence number.
    pub(super) dealt: BTreeMap<(u16, Seq), Dealt>,
    pub(super) is_ending: bool,
}

/// The history of a request of the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dealt {
    pub(super) heard: u32,
    pub(super) answered: u32,
    pub(super) target: Option<IpAddr>,
}

/// Inputs for the daemon's next turn.
#[derive(Debug)]
pub(super) enum Inbox {
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
    MapsOpened,
    Arranged(Done),
    Ask(Question),
    /// A user has room for more requests, until this time.
    Crowd(Instant),
    Reload,
    Flush,
    Stop,
}

/// The interface with the addresses.
pub(super) const IPOIB: IfIndex = match IfIndex::new(4) {
    Some(ifindex) => ifindex,
    None => unreachable!(),
};

/// Datagrams wait while a path is looked up; a shorter time does not matter.
pub(super) const SLOW: Duration = ms(20);

impl Machine {
    pub(super) fn is_running(&self, now: Instant) -> bool {
        !self.troubles.has(now, Trouble::Suspended)
    }

    pub(super) fn gid(&self) -> Option<Gid> {
        self.network.ipoib().and_then(Link::own_gid)
    }

    /// Since when IPoIB has found its paths at once.
    pub(super) fn paths_are_quick_since(&self, now: Instant) -> Instant {
        let is_slow =
            |path: &Path| matches!(path, Path::Sought { since, .. } if now.since(*since) > SLOW);
        if self.paths.iter().any(|(_, path)| is_slow(path)) { now } else { self.slow_path }
    }

    pub(super) fn route(&self, question: Question) -> Option<Route> {
        let target = question.target();
        let is_up = self.network.ipoib().is_some_and(|link| link.up);
        // The index of another namespace, or of an interface without routes.
        if !is_up || question.egress().is_some_and(|egress| egress != IPOIB) {
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

impl Network {
    pub(super) fn ipoib(&self) -> Option<&Link> {
        self.links.iter().find(|link| link.ifindex == IPOIB)
    }

    pub(super) fn ipoib_mut(&mut self) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.ifindex == IPOIB)
    }
}

impl LocalServiceSocket {
    pub(super) fn has_something(&self) -> bool {
        self.overrun || !self.held.is_empty()
    }
}

impl Daemon {
    pub(super) fn new(core: Core, paths: PathClaims) -> Self {
        Self {
            core,
            inbox: VecDeque::new(),
            wake_at: None,
            timer: None,
            armed: None,
            sockets: Vec::new(),
            unsent: None,
            responder: None,
            work: None,
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
pub(super) fn source_port(dice: &mut Dice, sockets: &[(u16, SocketId)]) -> u16 {
    loop {
        let port = 32_768 + u16::try_from(dice.below(28_232)).unwrap_or_default();
        if sockets.iter().all(|&(taken, _)| taken != port) {
            return port;
        }
    }
}

/// 10.SUBNET.0.NODE and fd00::SUBNET:0:0:0:NODE.
pub(super) fn home(subnet: u8, node: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, subnet.into(), 0, 0, 0, node.into());
    [Ipv4Addr::new(10, subnet, 0, node).into(), v6.into()]
}

/// The `n`th moving address of a subnet.
pub(super) fn wanderer(subnet: u8, n: u8) -> IpAddr {
    Ipv4Addr::new(10, subnet, 1, n).into()
}

/// The `n`th address that no host has.
pub(super) fn missing_peer(subnet: u8, n: u8, v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, subnet.into(), 0, 0, 0xdead, n.into()).into()
    } else {
        Ipv4Addr::new(10, subnet, 2, n).into()
    }
}

pub(super) fn subnet_of(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(address) => Some(address.octets()[1]),
        IpAddr::V6(address) => u8::try_from(address.segments()[3]).ok(),
    }
}

pub(super) fn gateway(subnet: u8, target: IpAddr) -> IpAddr {
    home(subnet, 254)[usize::from(target.is_ipv6())]
}

/// The GID of a port: prefix of its subnet, and number of the machine.
pub(super) fn gid(prefix: u16, guid: u32) -> Gid {
    let mut octets = [0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 0];
    octets[6..8].copy_from_slice(&prefix.to_be_bytes());
    octets[12..].copy_from_slice(&guid.to_be_bytes());
    Gid::new(octets).unwrap_or_else(|| unreachable!("it is neither zero nor multicast"))
}

pub(super) fn hwaddr(gid: Gid) -> HwAddr {
    let mut octets = [0; 20];
    octets[3] = 0x48;
    octets[4..].copy_from_slice(&gid.octets());
    HwAddr::new(&octets).unwrap_or_default()
}

/// `lo` and `ib0` at the start.
pub(super) fn links(gid: Gid) -> Vec<Link> {
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

pub(super) fn entry(address: IpAddr) -> InterfaceAddress {
    let prefix_len = if address.is_ipv4() { 16 } else { 64 };
    InterfaceAddress::new(IPOIB, address, prefix_len, None, Dad::Passed)
}

pub(super) fn entry_id(address: IpAddr) -> AddressId {
    entry(address).id
}
