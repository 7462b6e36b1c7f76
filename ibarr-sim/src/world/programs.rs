// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The responder in the kernel of a machine: its maps and programs, which outlive the daemon. The
//! programs decide as the real ones do ([`ibarr_ebpf::decide`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ibarr_common::ib::Gid;
use ibarr_common::map::{
    AllowPrefix, GidEntry, GidKey, Interface, NeighbourKey, Program, Reason, ResponderCfg, Route,
    RoutePrefix, octets,
};
use ibarr_common::{IfIndex, Instant};
use ibarr_ebpf::decide::{self, Ingress, Node};
use ibarr_ebpf::packet::{Ipv4Query, Ipv6Query, QueryPacket};
use ibarr_proto::Fault;
use ibarr_proto::local_view::{LocalView, Owned};
use ibarr_proto::responder::{
    AllowKey, Hook, MapElements, MapUpdate, RouteKey, Step, Work, WorkResult,
};
use zerocopy::FromBytes as _;

use crate::bugs::Bug;

#[derive(Debug)]
pub(super) struct Programs {
    now: Instant,
    /// Until then, most calls of bpf(2) fail.
    fails_until: Instant,
    calls: u64,
    bug: Option<Bug>,
    addresses: BTreeMap<([u8; 16], u32), GidEntry>,
    interfaces: BTreeMap<IfIndex, Interface>,
    allow: Vec<AllowKey>,
    routes: Vec<(RouteKey, Route)>,
    neighbours: BTreeMap<([u8; 16], u32), NeighbourKey>,
    cfg: ResponderCfg,
    attached: BTreeSet<(IfIndex, Hook)>,
}

impl Programs {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        Self {
            now: Instant::BOOT,
            fails_until: Instant::BOOT,
            calls: 0,
            bug,
            addresses: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            allow: Vec::new(),
            routes: Vec::new(),
            neighbours: BTreeMap::new(),
            cfg: ResponderCfg::default(),
            attached: BTreeSet::new(),
        }
    }

    /// The same, at a time that is not before the last one.
    pub(super) fn at(&mut self, now: Instant) -> &mut Self {
        self.now = now;
        self
    }

    pub(super) fn fail_until(&mut self, until: Instant) {
        self.fails_until = until;
    }

    pub(super) fn fails(&self, now: Instant) -> bool {
        self.fails_until > now
    }

    /// Until when they answer.
    pub(super) fn lease_end(&self) -> Instant {
        Instant::from_nanos(self.cfg.lease_end)
    }

    /// Whether one is attached to the interface.
    pub(super) fn is_on(&self, ifindex: IfIndex) -> bool {
        self.attached.iter().any(|(on, _)| *on == ifindex)
    }

    /// The GID with which a program answers a datagram that arrives on `ingress`. `None` if the
    /// daemon's socket gets it.
    pub(super) fn answer(
        &mut self,
        ingress: IfIndex,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
    ) -> Option<Gid> {
        let &(_, hook) = self.attached.iter().find(|(ifindex, _)| *ifindex == ingress)?;
        let on = On(ingress);
        let gid = if to.is_ipv4() {
            let query = Ipv4Query::read_from_bytes(&ipv4(from, to, payload)).ok()?;
            self.reply_to(&on, &query)?.payload.gid
        } else {
            let query = Ipv6Query::read_from_bytes(&ipv6(from, to, payload)).ok()?;
            self.reply_to(&on, &query)?.payload.gid
        };
        let is_sent = match hook {
            Hook::Tcx | Hook::Clsact => true,
            Hook::XdpNative | Hook::XdpGeneric => self.knows_next_hop(ingress, from.ip()),
        };
        Gid::new(gid).filter(|_| is_sent)
    }

    fn reply_to<Q: QueryPacket>(&self, on: &On, query: &Q) -> Option<Q::Reply> {
        query
            .is_to_port(self.cfg.udp_port)
            .then(|| decide::answer(self, &self.cfg, on, query).ok())?
    }

    /// Whether XDP can send to `address` itself.
    fn knows_next_hop(&self, ifindex: IfIndex, address: IpAddr) -> bool {
        let route = self.route(ifindex, &octets(address)).filter(Route::is_here);
        let next_hop = match route.map(|route| route.gateway()) {
            None => return false,
            Some(None) => octets(address),
            Some(Some(gateway)) => octets(gateway),
        };
        self.neighbours.contains_key(&(next_hop, ifindex.get()))
    }

    /// The route with the longest prefix.
    fn route(&self, ifindex: IfIndex, address: &[u8; 16]) -> Option<Route> {
        let covers = |key: &RouteKey| {
            let RoutePrefix { ifindex: of, address: first } = key.prefix;
            of == ifindex.get() && is_in(address, &first, key.bits.saturating_sub(32))
        };
        let covering = self.routes.iter().filter(|(key, _)| covers(key));
        let longest = covering.max_by_key(|(key, _)| key.bits);
        longest.map(|(_, route)| *route)
    }

    fn call(&mut self) -> Result<(), Fault> {
        self.calls += 1;
        if self.fails_until > self.now && !self.calls.is_multiple_of(3) {
            return Err(Fault::new("no memory"));
        }
        Ok(())
    }

    /// Carries out a write of the daemon.
    pub(super) fn update(&mut self, update: &MapUpdate) -> Result<(), Fault> {
        self.call()?;
        match *update {
            MapUpdate::Address(entry) => {
                let key = (entry.key.address, entry.key.scope);
                let is_forgotten = self.bug == Some(Bug::StaleMap)
                    && self.addresses.contains_key(&key)
                    && self.calls.is_multiple_of(4);
                if !is_forgotten {
                    self.addresses.insert(key, entry);
                }
            }
            MapUpdate::NoAddress(key) => drop(self.addresses.remove(&(key.address, key.scope))),
            MapUpdate::Interface(ifindex, interface) => {
                self.interfaces.insert(ifindex, interface);
            }
            MapUpdate::NoInterface(ifindex) => drop(self.interfaces.remove(&ifindex)),
            MapUpdate::Allow(key) => self.allow.push(key),
            MapUpdate::NoAllow(key) => self.allow.retain(|held| *held != key),
            MapUpdate::Route(key, route) => {
                self.routes.retain(|(held, _)| *held != key);
                self.routes.push((key, route));
            }
            MapUpdate::NoRoute(key) => self.routes.retain(|(held, _)| *held != key),
            MapUpdate::Neighbour(key, _) => {
                self.neighbours.insert((key.address, key.ifindex), key);
            }
            MapUpdate::NoNeighbour(key) => {
                self.neighbours.remove(&(key.address, key.ifindex));
            }
            MapUpdate::Cfg(cfg) if self.bug == Some(Bug::EndlessLease) => {
                self.cfg = ResponderCfg { lease_end: u64::MAX, ..cfg };
            }
            MapUpdate::Cfg(cfg) => self.cfg = cfg,
        }
        Ok(())
    }

    pub(super) fn held(&self) -> MapElements {
        MapElements {
            addresses: self.addresses.values().map(|entry| entry.key).collect(),
            interfaces: self.interfaces.keys().copied().collect(),
            allow: self.allow.clone(),
            routes: self.routes.clone(),
            neighbours: self.neighbours.values().copied().collect(),
            cfg: self.cfg,
        }
    }

    /// Whether the map of addresses is equal to the view of the daemon.
    pub(super) fn has(&self, view: &LocalView) -> bool {
        let is_there = |owned: Owned| {
            let key = GidKey::new(owned.address, owned.scope.unwrap_or(owned.ifindex));
            let entry = self.addresses.get(&(key.address, key.scope));
            entry.is_some_and(|entry| Gid::new(entry.gid) == owned.gid)
        };
        view.owned().count() == self.addresses.len() && view.owned().all(is_there)
    }
}

impl Programs {
    /// Executes work of the daemon.
    pub(super) fn arrange(&mut self, work: Work) -> WorkResult {
        work.run(Ok(self.attached.clone()), |step| {
            match step {
                Step::Look(interface, hook) => {
                    return Ok(self.attached.contains(&(interface.ifindex, hook)));
                }
                Step::Attach(interface, hook) => {
                    self.call()?;
                    self.attached.insert((interface.ifindex, hook));
                }
                Step::Detach(ifindex, hook) => drop(self.attached.remove(&(ifindex, hook))),
                Step::Settle => {}
            }
            Ok(true)
        })
    }
}

impl Node for Programs {
    fn cfg(&self) -> ResponderCfg {
        self.cfg
    }

    fn is_leased(&self, cfg: &ResponderCfg) -> bool {
        cfg.lease_end > self.now.as_nanos()
    }

    fn interface(&self, ifindex: IfIndex) -> Option<Interface> {
        self.interfaces.get(&ifindex).copied()
    }

    fn allows(&self, address: &AllowPrefix) -> bool {
        self.allow.iter().any(|key| is_in(&address.address, &key.prefix.address, key.bits))
    }

    fn is_marked(&self, _: &GidKey) -> bool {
        true
    }

    fn is_ours(&self, key: &GidKey) -> bool {
        self.addresses.contains_key(&(key.address, key.scope))
    }

    fn is_edge(&self, ifindex: IfIndex, address: &[u8; 16]) -> bool {
        self.route(ifindex, address).is_some_and(|route| !route.is_here())
    }

    fn leads_to(&self, ifindex: IfIndex, address: &[u8; 16]) -> bool {
        self.route(ifindex, address).is_some_and(|route| route.is_here())
    }

    fn entry(&self, key: &GidKey) -> Option<GidEntry> {
        self.addresses.get(&(key.address, key.scope)).copied()
    }

    fn count(&self, _: Program, _: Reason) {}
}

/// An interface on which every packet is for this host, and has its checksum.
struct On(IfIndex);

impl Ingress for On {
    fn ifindex(&self) -> IfIndex {
        self.0
    }

    fn is_for_this_host(&self, _: &Interface) -> bool {
        true
    }

    fn is_checksum_partial(&self) -> bool {
        false
    }
}

/// Whether the first `bits` of `address` are those of `prefix`.
fn is_in(address: &[u8; 16], prefix: &[u8; 16], bits: u32) -> bool {
    let mask = !u128::MAX.checked_shr(bits).unwrap_or(0);
    u128::from_be_bytes(*address) & mask == u128::from_be_bytes(*prefix) & mask
}

const UDP: u8 = 17;

/// A datagram without a UDP checksum, which IPv4 allows.
fn ipv4(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, UDP, 0, 0];
    packet[2..4].copy_from_slice(&length(28 + payload.len()));
    for end in [from, to] {
        packet.extend(&octets(end.ip())[12..]);
    }
    let checksum = !sum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(udp(from, to, payload));
    packet
}

fn ipv6(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, UDP, 64];
    packet[4..6].copy_from_slice(&length(8 + payload.len()));
    for end in [from, to] {
        packet.extend(octets(end.ip()));
    }
    let mut datagram = udp(from, to, payload);
    // The pseudo-header has the addresses, the length and the protocol.
    let mut summed = packet[4..6].to_vec();
    summed.extend([0, UDP]);
    summed.extend(&packet[8..]);
    summed.extend(&datagram);
    let checksum = !sum(&summed);
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(datagram);
    packet
}

fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    datagram.extend(from.port().to_be_bytes());
    datagram.extend(to.port().to_be_bytes());
    datagram.extend(length(8 + payload.len()));
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}

/// The sum of 16-bit words in ones' complement (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or_default()
}
