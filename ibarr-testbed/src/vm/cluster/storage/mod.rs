// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm storage`: a client writes to storage of the other kernel, whose port loses its link and whose address moves to
//! its second port.
//!
//! The same is done with `ibarr`, with an `ibarr` that always asks, as the C original does, and inside an IP subnet,
//! where the kernel resolves alone. What was written is compared with what the server has.

mod nfs;
mod nvme;
pub(crate) mod writer;

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use self::writer::Writer;
use super::moving::Moving;
use super::{B_SECOND, Cluster, FAR, FIRST, R, link, other, there};
use crate::report::Report;
use crate::rig::{self, Place, Who, eventually, ip};

const ACROSS: Moving = Moving { address: "10.2.0.50", learns: (R, "ib2"), is_on_alias: false };
const INSIDE: Moving =
    Moving { address: "10.1.0.50", learns: (Place::Here, "ib0"), is_on_alias: false };

/// How many blocks are written before the link fails, and after storage is back: so few that those of the pause are
/// not written again.
const ENOUGH: usize = 10;
pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    let linked = link(FIRST).and_then(|()| eventually(other::boot).map(drop));
    report.claim("the guests have a link", linked);
    if let Some(mut cluster) = report.claim("the cluster stands", Cluster::up()) {
        prove(&mut report, &mut cluster);
        report.claim("the other kernel has not started again", cluster.is_the_same());
    }
    // The other guest ends before it can answer.
    let _ = rig::run(Place::Other, &[there::END]);
    report.end()
}

fn prove(report: &mut Report, cluster: &mut Cluster) {
    report.claim("ibarr of the package runs on both kernels", cluster.start_daemons());
    report.claim("the server has two ports in its IP subnet", second_port());
    report.claim("it exports a disk and a directory", export());
    for who in Who::ALL {
        report.claim(&format!("{who} is the one who resolves"), cluster.resolves(who));
        for storage in [Storage::Nvme, Storage::Nfs] {
            let claim = format!("{storage}, {who}: writing goes on, and no byte differs");
            // A round that has failed does not leave all as it was.
            let Some(pause) = report.claim(&claim, storage.round(address_of(who), "")) else {
                return;
            };
            Report::figure(format_args!(
                "{storage}, {who}: a pause of {:.1} s",
                pause.as_secs_f64()
            ));
        }
    }
}

/// The same without a fault, by NVMe at an address that stays.
pub(super) fn disk() -> Result<()> {
    nvme::listen()?;
    let writer = Writer::begin(nvme::connect(FAR[0])?)?;
    writer.stores(ENOUGH)?;
    writer.end(nvme::DISK)?;
    nvme::disconnect()?;
    nvme::remove()
}

/// Inside an IP subnet the kernel resolves alone.
fn address_of(who: Who) -> Moving {
    if who == Who::KernelAlone { INSIDE } else { ACROSS }
}

impl Cluster {
    fn resolves(&mut self, who: Who) -> Result<()> {
        match who {
            Who::Ibarr => Ok(()),
            Who::AlwaysAsks => {
                let here = self.here.as_ref().context("no daemon here")?;
                here.reconfigure(who.config())
            }
            Who::KernelAlone => {
                let here = self.here.take().context("no daemon here")?;
                here.stop()?;
                one_subnet()
            }
        }
    }
}

/// Both interfaces of the server are in one IP subnet, and each has a way back to the client.
fn second_port() -> Result<()> {
    rig::is_active(Place::Other, B_SECOND)?;
    // Each interface answers for its own addresses, and one without carrier has no routes.
    for setting in ["arp_ignore", "ignore_routes_with_linkdown"] {
        rig::write(Place::Other, &format!("/proc/sys/net/ipv4/conf/all/{setting}"), "1")?;
    }
    rig::set_up(Place::Other, "ib1", ["10.2.0.3/24", "fd00:2::3/64"])?;
    rig::is_up(Place::Other, "ib1")?;
    ip(Place::Other, "route append 10.1.0.0/24 via 10.2.0.254 dev ib1 metric 200").map(drop)
}

/// Moves the server into the client's IP subnet.
fn one_subnet() -> Result<()> {
    for (name, address) in [("ib0", "10.1.0.3"), ("ib1", "10.1.0.4")] {
        ip(Place::Other, &format!("address flush dev {name}"))?;
        ip(Place::Other, &format!("address add {address}/24 dev {name}"))?;
    }
    Ok(())
}

/// The other guest exports a disk and a directory, at all its addresses.
pub(super) fn export() -> Result<()> {
    nvme::listen().and_then(|()| nfs::export())
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Storage {
    Nvme,
    Nfs,
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvme => "NVMe over RDMA",
            Self::Nfs => "NFS over RDMA",
        })
    }
}

impl Storage {
    /// How long the pauses are of a client that writes while the address moves. NFS is mounted with further options.
    /// Afterwards all is as before.
    pub(super) fn round(self, moving: Moving, of_nfs: &str) -> Result<Duration> {
        moving.begins()?;
        let (client, server) = match self {
            Self::Nvme => (nvme::connect(moving.address)?, nvme::DISK),
            Self::Nfs => (nfs::mount(moving.address, of_nfs)?, nfs::FILE),
        };
        let writer = Writer::begin(client)?;
        let goes_on = writer
            .stores(ENOUGH)
            .and_then(|()| moving.moves())
            .and_then(|()| writer.stores(ENOUGH));
        if goes_on.is_err() && self == Self::Nfs {
            // A process that waits for its storage cannot be killed.
            nfs::give_up()?;
        }
        goes_on?;
        let pause = writer.end(server)?;
        match self {
            Self::Nvme => nvme::disconnect()?,
            Self::Nfs => nfs::unmount()?,
        }
        moving.ends()?;
        Ok(pause)
    }
}
