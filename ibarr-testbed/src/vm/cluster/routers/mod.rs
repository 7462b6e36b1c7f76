// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm routers`: each kind of router between two kernels, with one, two and three InfiniBand subnets, and each kind of
//! caller. docs/routers.md has the results as a table.

mod callers;
mod faults;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use self::callers::{BY_ADDRESS, Program, follow};
use self::faults::{each_way_has_its_router, lid_changes, router_fails};
use self::world::{Ip, Layout, World};
use super::storage::{Storage, export};
use super::{FIRST, R, link, other, there};
use crate::report::Report;
use crate::rig::{self, Place, Scheme, eventually, ip};

/// How long an answer of a peer may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// NFS takes a server for lost that does not answer for 15 s, instead of 60.
const SOON: &str = ",timeo=150";

const LAYOUTS: [Layout; 10] = [
    layout(Scheme::None, 1, Ip::One),
    layout(Scheme::None, 1, Ip::Two),
    layout(Scheme::Alias, 1, Ip::Two),
    layout(Scheme::Alias, 2, Ip::Two),
    layout(Scheme::Alias, 2, Ip::OneRouted),
    layout(Scheme::Alias, 3, Ip::Two),
    layout(Scheme::Flid, 1, Ip::Two),
    layout(Scheme::Flid, 2, Ip::Two),
    layout(Scheme::Flid, 2, Ip::OneRouted),
    layout(Scheme::Flid, 3, Ip::Two),
];

const fn layout(scheme: Scheme, subnets: u16, ip: Ip) -> Layout {
    Layout { scheme, subnets, ip, spare: false }
}

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    let linked =
        link(FIRST).and_then(|()| eventually(other::boot).map(drop)).and_then(|()| begin());
    if report.claim("the guests have a link, and storage", linked).is_some() {
        for layout in LAYOUTS {
            with(&mut report, layout, prove);
        }
        with(&mut report, Layout { spare: true, ..LAYOUTS[3] }, |report, world| {
            let claim = "the router in use fails, connections are made by the other one, and after its return";
            report.claim(claim, router_fails(world));
            let claim = "a LID changes: connections end, and new ones are made once `ibarr gid` has set the new alias";
            report.claim(claim, lid_changes(world));
        });
        with(&mut report, Layout { spare: true, ..LAYOUTS[7] }, |report, world| {
            let claim = "two routers: data goes there by one, and comes back by the other one";
            report.claim(claim, each_way_has_its_router(world));
            prove(report, world);
        });
    }
    // The other guest ends before it can answer.
    let _ = rig::run(Place::Other, &[there::END]);
    report.end()
}

/// What stays from one layout to the next.
fn begin() -> Result<()> {
    ip(Place::Here, "netns add r")?;
    ip(R, "link set lo up")?;
    rig::write(R, "/proc/sys/net/ipv4/ip_forward", "1")?;
    export()
}

fn with(report: &mut Report, layout: Layout, prove: impl FnOnce(&mut Report, &mut World)) {
    if let Some(mut world) = report.claim(&format!("{layout}: it stands"), World::up(layout)) {
        prove(report, &mut world);
        report.claim(&format!("{layout}: it ends"), world.down());
    }
}

fn prove(report: &mut Report, world: &mut World) {
    let layout = world.layout;
    let mut connected = Vec::new();
    for program in [Program::Rping, Program::Udaddy, Program::AfIb, Program::Acm] {
        let claim = format!("{layout}: {program} connects");
        if report.claim(&claim, program.connects(world)).is_some() {
            connected.push(program);
        }
    }
    let moving = layout.moving();
    let claim = format!("{layout}: they connect to an address that has moved to another port");
    // A round that has failed does not leave all as it was.
    let Some(failed) = report.claim(&claim, follow(world, moving)) else { return };
    for (program, failed) in BY_ADDRESS.into_iter().zip(failed) {
        if connected.contains(&program) {
            row(layout, program, failed);
        }
    }
    if connected.contains(&Program::AfIb) {
        row(layout, Program::AfIb, "");
    }
    for storage in [Storage::Nvme, Storage::Nfs] {
        let claim = format!(
            "{layout}: {storage}: writing goes on when the address moves, and no byte differs"
        );
        let Some(pause) = report.claim(&claim, storage.round(moving, SOON)) else { return };
        row(layout, storage, format_args!("{:.1} s", pause.as_secs_f64()));
    }
}

/// What the table has of a caller that connects, and what its address's move cost.
fn row(layout: Layout, caller: impl std::fmt::Display, cost: impl std::fmt::Display) {
    Report::figure(format_args!("{layout}; {caller}; {cost}"));
}
