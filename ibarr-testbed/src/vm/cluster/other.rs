// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What runs in the other guest.

use std::convert::Infallible;
use std::thread;

use anyhow::{Context as _, Result, ensure};

use super::{B_PORT, FIRST, KEY, OTHER, STANDBY, TOPOLOGY, link, there};
use crate::OWN;
use crate::rig::{self, Ibarr, Place, Process, eventually, ip, spawn};

/// The name of the daemon, and the directory of its control socket.
const NAME: &str = "other";
pub(super) const RUN_DIR: &str = "/run/ibarr-other";

/// The command of the other guest.
pub(crate) fn other_guest() -> Result<()> {
    link(OTHER)?;
    there::serve()
}

/// Runs `ibarr` as its service until this program is killed.
pub(crate) fn service() -> Result<Infallible> {
    Ibarr::give_devices()?;
    let _ibarr = Ibarr::start_as_service(NAME, Place::Here, "", 1)?;
    println!("ready");
    loop {
        thread::park();
    }
}

/// The programs of the other guest, started from the first.
pub(super) struct Programs {
    join: Process,
    opensm: Process,
    daemon: Option<Process>,
    /// Which start of its kernel they belong to.
    boot: String,
}

impl Programs {
    /// The HCA and the subnet manager, when the guest is there.
    pub(super) fn start() -> Result<Self> {
        let boot = eventually(boot)?;
        let join = join(TOPOLOGY)?;
        let opensm = rig::opensm_at(Place::Other, B_PORT, &STANDBY)?;
        Ok(Self { join, opensm, daemon: None, boot })
    }

    pub(super) fn start_daemon(&mut self) -> Result<()> {
        self.daemon = Some(daemon()?);
        Ok(())
    }

    /// Resets the kernel, and waits until it is back, without its programs.
    pub(super) fn reset(&mut self) -> Result<()> {
        let reset = ["busybox", "sh", "-c", "echo b >/proc/sysrq-trigger"];
        let mut reset = spawn("other-reset", Place::Other, &reset)?;
        eventually(|| {
            ensure!(boot()? != self.boot, "the other kernel still runs");
            Ok(())
        })?;
        reset.kill()?;
        self.join.kill()?;
        self.opensm.kill()?;
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.kill())
    }

    /// The kernel has not started again without our doing.
    pub(super) fn has_not_restarted(&self) -> Result<()> {
        let now = boot()?;
        ensure!(now == self.boot, "it has started again");
        Ok(())
    }
}

/// Joins the fabric as B.
pub(super) fn join(topology: &str) -> Result<Process> {
    let fabric = format!("udp:{FIRST}:7471");
    spawn("other-ibfab", Place::Other, &["ibfab", "join", &fabric, topology, "B", "--key", KEY])
}

/// Starts `ibarr`, and waits until it is ready.
pub(super) fn daemon() -> Result<Process> {
    let daemon = spawn("other-ibarr", Place::Other, &[OWN, "service"])?;
    eventually(|| {
        let said = daemon.said()?;
        // The log has earlier daemons, too.
        let own = said.rsplit("$ ").next().unwrap_or_default();
        ensure!(own.lines().any(|line| line == "ready"), "{said}");
        Ok(())
    })?;
    Ok(daemon)
}

/// The identity of the kernel's start.
pub(super) fn boot() -> Result<String> {
    rig::run(Place::Other, &["busybox", "cat", "/proc/sys/kernel/random/boot_id"])
        .context("the other guest")
}

/// The interface of B, and its routes.
pub(super) fn network() -> Result<()> {
    rig::set_up(Place::Other, "ib0", ["10.2.0.1/24", "fd00:2::1/64"])?;
    rig::is_up(Place::Other, "ib0")?;
    ip(Place::Other, "route add 10.1.0.0/24 via 10.2.0.254")?;
    ip(Place::Other, "route add fd00:1::/64 via fd00:2::fe").map(drop)
}
