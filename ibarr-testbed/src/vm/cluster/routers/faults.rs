// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A router fails, or a LID changes.

use std::time::Instant;

use anyhow::{Result, ensure};
use ibarr_common::ib::{Gid, Lid};

use super::super::moving::take_alias;
use super::World;
use super::callers::Program;
use super::world::{SPARE, flid};
use crate::report::Report;
use crate::rig::{self, Caller, Connection, Place, eventually, rping};

/// One of two routers fails, the one in use, and returns.
pub(super) fn router_fails(world: &World) -> Result<()> {
    let far = world.layout.far();
    let mut server = Program::Rping.serve()?;
    eventually(|| Program::Rping.attempt(far))?;
    let used = router(far)?;
    let name = if used.get() == flid(2) { "X1" } else { SPARE };
    node(name, "off")?;
    let began = Instant::now();
    let failed = Program::Rping.failures(world, far)?;
    Report::figure(format_args!(
        "{name} failed: {failed} attempts failed in {:.1} s",
        began.elapsed().as_secs_f64()
    ));
    ensure!(router(far)? != used, "{name} is still in use");
    node(name, "on")?;
    // The manager may choose either now.
    let failed = Program::Rping.failures(world, far)?;
    ensure!(failed == 0, "{failed} attempts failed after the return of {name}");
    server.kill()
}

/// A's manager gives it another LID while it is connected, so its alias leads nowhere. It takes its new one.
pub(super) fn lid_changes(world: &mut World) -> Result<()> {
    const OTHER: u16 = 0x77;
    let far = world.layout.far();
    let [old, _] = world.gids()?;
    let connection = Connection::open(0, Place::Other, far)?;
    world.gives_lid(OTHER)?;
    connection.breaks()?;
    take_alias(Place::Here, "ib0")?;
    let [new, _] = world.gids()?;
    ensure!(new != old && ends_in(new, OTHER), "A has {new}");
    eventually(|| rping(Place::Other, far))
}

fn ends_in(gid: Gid, lid: u16) -> bool {
    gid.octets().ends_with(&lid.to_be_bytes())
}

fn router(far: &str) -> Result<Lid> {
    Ok(Caller::patient()?.path_to(far)?.dlid)
}

fn node(name: &str, state: &str) -> Result<()> {
    rig::run(Place::Here, &["ibfab", "fault", "node", name, state]).map(drop)
}
