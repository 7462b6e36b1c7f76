// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! IPoIB's paths: it looks one up for each next hop, and holds three datagrams meanwhile.

use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::ls::Seq;

use super::addresses::Packet;
use crate::dice::ms;

#[derive(Debug)]
pub(super) struct Ipoib {
    paths: Vec<(IpAddr, Path)>,
    /// When a path last failed, or was found after a long look-up.
    slow_at: Instant,
}

#[derive(Debug)]
enum Path {
    Searching { request: Option<Seq>, since: Instant, queued: Vec<Packet> },
    Open,
}

/// What happens to a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    Open,
    Queued,
    Full,
    /// The path has to be looked up first.
    Unknown,
}

/// `IPOIB_MAX_PATH_REC_QUEUE`
const QUEUED: usize = 3;

/// Datagrams wait while a path is looked up; a shorter time does not matter.
const SLOW: Duration = ms(20);

impl Ipoib {
    pub(super) fn new(now: Instant) -> Self {
        Self { paths: Vec::new(), slow_at: now }
    }

    /// The way of a datagram, which is queued here if there is room.
    pub(super) fn queue(&mut self, next_hop: IpAddr, packet: Packet) -> Way {
        match self.paths.iter_mut().find(|(hop, _)| *hop == next_hop) {
            Some((_, Path::Open)) => Way::Open,
            Some((_, Path::Searching { queued, .. })) if queued.len() < QUEUED => {
                queued.push(packet);
                Way::Queued
            }
            Some(_) => Way::Full,
            None => Way::Unknown,
        }
    }

    /// Looks up a path by a request to the local service, or to the SA itself.
    pub(super) fn seek(
        &mut self,
        now: Instant,
        next_hop: IpAddr,
        request: Option<Seq>,
        packet: Packet,
    ) {
        let path = Path::Searching { request, since: now, queued: vec![packet] };
        self.paths.push((next_hop, path));
    }

    /// The next hop whose path the request asks for.
    pub(super) fn sought_by(&self, seq: Seq) -> Option<IpAddr> {
        let is_sought =
            |path: &Path| matches!(path, Path::Searching { request, .. } if *request == Some(seq));
        self.paths.iter().find(|(_, path)| is_sought(path)).map(|&(next_hop, _)| next_hop)
    }

    /// Opens the path, and returns the queued datagrams. `None` if it was not being looked up.
    pub(super) fn open(&mut self, now: Instant, next_hop: IpAddr) -> Option<Vec<Packet>> {
        let (_, path) = self.paths.iter_mut().find(|(hop, _)| *hop == next_hop)?;
        let Path::Searching { queued, since, .. } = std::mem::replace(path, Path::Open) else {
            return None;
        };
        if now.since(since) > SLOW {
            self.slow_at = now;
        }
        Some(queued)
    }

    /// Gives up a path until the next datagram, and returns the queued ones.
    pub(super) fn fail(&mut self, now: Instant, next_hop: IpAddr) -> Vec<Packet> {
        self.slow_at = now;
        let at = self.paths.iter().position(|(hop, _)| *hop == next_hop);
        match at.map(|at| self.paths.swap_remove(at)) {
            Some((_, Path::Searching { queued, .. })) => queued,
            _ => Vec::new(),
        }
    }

    /// Forgets the open paths, and returns their next hops.
    pub(super) fn forget(&mut self) -> Vec<IpAddr> {
        let is_open = |(_, path): &mut (IpAddr, Path)| matches!(path, Path::Open);
        self.paths.extract_if(.., is_open).map(|(next_hop, _)| next_hop).collect()
    }

    /// The next hops of the open paths.
    pub(super) fn open_hops(&self) -> impl Iterator<Item = IpAddr> {
        self.paths.iter().filter(|(_, path)| matches!(path, Path::Open)).map(|&(hop, _)| hop)
    }

    /// The number of paths that are being looked up.
    pub(super) fn sought(&self) -> usize {
        self.paths.len() - self.open_hops().count()
    }

    /// Since when paths have been found at once.
    pub(super) fn quick_since(&self, now: Instant) -> Instant {
        let is_slow =
            |path: &Path| matches!(path, Path::Searching { since, .. } if now.since(*since) > SLOW);
        if self.paths.iter().any(|(_, path)| is_slow(path)) { now } else { self.slow_at }
    }
}
