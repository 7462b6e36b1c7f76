// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Several routers, one of which fails, and a LID that changes.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::{Gid, Lid};

use super::World;
use super::callers::Program;
use super::world::{SPARE, gids};
use crate::report::Report;
use crate::rig::{self, Caller, Connection, Place, eventually, flid, rping, spawn, take_alias};

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
    // Its manager may choose either now, also before that of the other subnet has configured the router's port there.
    let failed = Program::Rping.failures(world, far)?;
    Report::figure(format_args!("{name} returned: {failed} attempts failed"));
    server.kill()
}

/// A's manager gives it another LID while it is connected, so its alias leads nowhere. It takes its new one.
pub(super) fn lid_changes(world: &mut World) -> Result<()> {
    const OTHER: u16 = 0x77;
    let far = world.layout.far();
    let [old, _] = gids()?;
    let connection = Connection::open(0, Place::Other, far)?;
    world.gives_lid(OTHER)?;
    connection.breaks()?;
    take_alias(Place::Here, "ib0")?;
    let [new, _] = gids()?;
    ensure!(new != old && ends_in(new, OTHER), "A has {new}");
    eventually(|| rping(Place::Other, far))
}

/// Data of a connection goes to the other subnet by one router, and comes back by the other one.
pub(super) fn each_way_has_its_router(world: &World) -> Result<()> {
    const ROUNDS: u64 = 200;
    let (far, rounds) = (world.layout.far(), ROUNDS.to_string());
    let server = spawn("rounds", Place::Other, &["rping", "-s", "-C", &rounds])?;
    rig::is_listening(&server)?;
    let before = [sent("X1")?, sent(SPARE)?];
    let client = ["rping", "-c", "-C", &rounds, "-a", far];
    rig::run(Place::Here, &client).with_context(|| server.said().unwrap_or_default())?;
    let [there, back] = [("X1", before[0]), (SPARE, before[1])]
        .map(|(name, before)| sent(name).map(|now| [now[0] - before[0], now[1] - before[1]]));
    let ([back_by_x1, there_by_x1], [back_by_spare, there_by_spare]) = (there?, back?);
    Report::figure(format_args!(
        "{ROUNDS} rounds of rping: there {there_by_x1} and {there_by_spare}, back {back_by_x1} and {back_by_spare} packets"
    ));
    // Connection management goes by the router that the manager names.
    let is_data = |packets| packets > ROUNDS;
    let ways = [there_by_x1, there_by_spare, back_by_x1, back_by_spare].map(is_data);
    ensure!(ways == [true, false, false, true], "{ways:?}");
    Ok(())
}

/// What the ports of a router have sent: into the first subnet, and into the second one.
fn sent(router: &str) -> Result<[u64; 2]> {
    let shown = rig::run(Place::Here, &["ibfab", "show", router])?;
    let port = |number| {
        let is_it = |line: &&str| line.starts_with(&format!("{router}/{number} "));
        let sent = shown.lines().find(is_it).and_then(|line| line.split_whitespace().nth(4));
        sent.with_context(|| shown.clone())?.parse().context("a count")
    };
    Ok([port(1)?, port(2)?])
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
