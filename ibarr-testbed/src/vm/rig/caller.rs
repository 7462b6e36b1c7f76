// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An application that resolves: the calls of librdmacm to the kernel, and nothing else.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::path_record::Fields;

use crate::sys::rdma_cm::{Channel, EventKind, Id};

/// See the [module](self). Its identifiers end when it is dropped.
#[derive(Debug)]
pub(crate) struct Caller {
    channel: Channel,
    /// Time-out of its requests.
    timeout: Duration,
}

/// An arbitrary port number.
const PORT: u16 = 7471;
/// How long we wait, on a machine with other work. A caller with a longer time-out never ends by its
/// time-out.
const PATIENCE: Duration = Duration::from_secs(30);

impl Caller {
    /// A caller whose time-out is longer than we wait.
    pub(crate) fn patient() -> Result<Self> {
        Self::new(2 * PATIENCE)
    }

    pub(crate) fn new(timeout: Duration) -> Result<Self> {
        Ok(Self { channel: Channel::open().context("no connection manager")?, timeout })
    }

    /// Begins to resolve an address.
    pub(crate) fn start(&self, target: &str) -> Result<Id> {
        let target: IpAddr = target.parse()?;
        let id = self.channel.create_id().context("no identifier")?;
        self.channel.resolve_addr(id, SocketAddr::new(target, PORT), self.timeout)?;
        Ok(id)
    }

    /// `rdma_resolve_addr`, and how long it took.
    pub(crate) fn address(&self, target: &str) -> Result<(Id, Duration)> {
        let began = Instant::now();
        let id = self.start(target)?;
        let (ended, status) = self.end(EventKind::AddrResolved, EventKind::AddrError)?;
        let took = began.elapsed();
        ensure!(ended == id && status == 0, "{target} is not resolved: {status}");
        Ok((id, took))
    }

    /// Calls `rdma_resolve_addr` so many times without a pause, and returns how long each took.
    pub(crate) fn back_to_back(&self, target: &str, times: usize) -> Result<Vec<Duration>> {
        let target = SocketAddr::new(target.parse()?, PORT);
        let ids: io::Result<Vec<_>> = (0..times).map(|_| self.channel.create_id()).collect();
        let mut took = Vec::with_capacity(times);
        for id in ids? {
            let began = Instant::now();
            self.channel.resolve_addr(id, target, self.timeout)?;
            let (ended, status) = self.end(EventKind::AddrResolved, EventKind::AddrError)?;
            took.push(began.elapsed());
            ensure!(ended == id && status == 0, "{target} is not resolved: {status}");
        }
        Ok(took)
    }

    /// `rdma_resolve_route`, and how long it took.
    pub(crate) fn route(&self, id: Id) -> Result<Duration> {
        let began = Instant::now();
        let status = self.route_status(id)?;
        let took = began.elapsed();
        ensure!(status == 0, "there is no route: {status}");
        Ok(took)
    }

    /// The status of `rdma_resolve_route`: 0, or a negative error number.
    pub(crate) fn route_status(&self, id: Id) -> Result<i32> {
        self.channel.resolve_route(id, self.timeout)?;
        let (ended, status) = self.end(EventKind::RouteResolved, EventKind::RouteError)?;
        ensure!(ended == id, "another route has ended");
        Ok(status)
    }

    /// The path that the kernel then uses.
    pub(crate) fn path(&self, id: Id) -> Result<Fields> {
        let record = self.channel.path(id)?.context("the kernel has no path")?;
        Ok(Fields::parse(&PathRecord::from_octets(record))?)
    }

    /// Resolves the address and the route, and returns the path.
    pub(crate) fn path_to(&self, target: &str) -> Result<Fields> {
        let (id, _) = self.address(target)?;
        self.route(id)?;
        self.path(id)
    }

    /// The next request that ends, and its status.
    pub(crate) fn end(&self, good: EventKind, bad: EventKind) -> Result<(Id, i32)> {
        let event = self.channel.event(PATIENCE)?.context("nothing has ended")?;
        ensure!(event.kind == good || event.kind == bad, "{event:?}");
        Ok((event.id, event.status))
    }
}
