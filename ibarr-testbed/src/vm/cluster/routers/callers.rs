// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that connect from the first guest to the other one.

use std::fmt;

use anyhow::{Context as _, Result, ensure};

use super::super::moving::Moving;
use super::World;
use super::world::gids;
use crate::acm::SERVE;
use crate::rig::{self, Place, Process, eventually, pair, rping, spawn};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Program {
    Rping,
    Udaddy,
    /// `ucmatose` between two GIDs, without an address.
    AfIb,
    /// `ucmatose`, for which librdmacm asks `ibarr` by ACM.
    Acm,
}

/// Those that connect to an address, and so follow it.
pub(super) const BY_ADDRESS: [Program; 3] = [Program::Rping, Program::Udaddy, Program::Acm];

/// A connection that takes longer is given up, in seconds.
const LIMIT: &str = "10";
/// So many attempts may fail after the address has moved.
const ATTEMPTS: usize = 20;

impl Program {
    pub(super) fn connects(self, world: &World) -> Result<()> {
        let far = world.layout.far();
        match self {
            Self::Rping => rping(Place::Other, far),
            Self::Udaddy => pair("udaddy", Place::Other, far),
            Self::AfIb => by_gids(),
            Self::Acm => by_acm(world, || pair("ucmatose", Place::Other, far)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rping => "rping",
            Self::Udaddy => "udaddy",
            Self::AfIb | Self::Acm => "ucmatose",
        }
    }

    /// A server at all addresses of the other guest, which starts again for each client.
    pub(super) fn serve(self) -> Result<Process> {
        let server = if self == Self::Rping { "rping -s -C 1" } else { self.name() };
        let again = format!("while :; do {server} || busybox sleep 1; done");
        spawn(&format!("{self}-serves"), Place::Other, &["busybox", "sh", "-c", &again])
    }

    pub(super) fn attempt(self, address: &str) -> Result<()> {
        let words = ["busybox", "timeout", LIMIT, self.name()];
        let more = match self {
            Self::Rping => &["-c", "-C", "1", "-a", address][..],
            _ => &["-s", address],
        };
        rig::run(Place::Here, &[&words[..], more].concat()).map(drop)
    }

    /// How many attempts fail until one connects.
    pub(super) fn failures(self, world: &World, address: &str) -> Result<usize> {
        let try_all = || {
            let mut last = Ok(());
            for failed in 0..=ATTEMPTS {
                last = self.attempt(address);
                if last.is_ok() {
                    return Ok(failed);
                }
            }
            last.map(|()| ATTEMPTS)
        };
        if self == Self::Acm { by_acm(world, try_all) } else { try_all() }
    }
}

/// The address moves to another port. How many attempts of each program fail until one connects again.
pub(super) fn follow(world: &World, moving: Moving) -> Result<[usize; BY_ADDRESS.len()]> {
    let servers = BY_ADDRESS.map(Program::serve);
    let mut servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    moving.begins()?;
    for program in BY_ADDRESS {
        eventually(|| program.attempt(moving.address)).with_context(|| program.to_string())?;
    }
    moving.moves()?;
    let mut failed = [0; BY_ADDRESS.len()];
    for (failed, program) in failed.iter_mut().zip(BY_ADDRESS) {
        *failed = program.failures(world, moving.address)?;
    }
    servers.iter_mut().try_for_each(Process::kill)?;
    moving.ends()?;
    Ok(failed)
}

fn by_gids() -> Result<()> {
    let [ours, theirs] = gids()?.map(|gid| gid.to_string());
    let words = ["ucmatose", "-f", "gid", "-b", &theirs];
    let server = spawn("gid-server", Place::Other, &words)?;
    let words = ["ucmatose", "-f", "gid", "-b", &ours, "-s", &theirs];
    // rdma-resource(8) does not list identifiers with GIDs. A client that comes too early is rejected.
    let said = eventually(|| rig::run(Place::Here, &words));
    let said = said.with_context(|| server.said().unwrap_or_default())?;
    ensure!(said.contains("return status 0"), "{said}");
    let status = server.wait(rig::PATIENCE)?;
    ensure!(status.success(), "the server: {status}");
    Ok(())
}

/// `ibarr` serves ACM meanwhile, and is asked.
fn by_acm<T>(world: &World, connect: impl FnOnce() -> Result<T>) -> Result<T> {
    let here = &world.here;
    here.reconfigure(SERVE)?;
    let before = here.count("acm.requests")?;
    let connected = connect()?;
    ensure!(here.count("acm.requests")? > before, "librdmacm does not ask");
    here.reconfigure("")?;
    Ok(connected)
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rping => "rping",
            Self::Udaddy => "udaddy",
            Self::AfIb => "AF_IB",
            Self::Acm => "ACM",
        })
    }
}
