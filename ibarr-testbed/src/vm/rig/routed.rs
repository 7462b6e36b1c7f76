// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The rig with a router of InfiniBand between its switches, so that its IP subnets are InfiniBand subnets, each with a
//! manager of its own.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::scheme::{Scheme, router_guids, router_lids, take_alias};
use super::{INTERFACES, Manager, Place, Process, Rig, TOPOLOGY};

/// Its programs run until it is dropped.
#[derive(Debug)]
pub(crate) struct Routed {
    managers: [Process; 2],
    fabric: Process,
}

const ROUTER: u16 = 1;

impl Routed {
    pub(crate) fn up(scheme: Scheme) -> Result<Self> {
        let topology = fs::read_to_string(TOPOLOGY).context(TOPOLOGY)?;
        fs::write(TOPOLOGY, with_router(&topology, scheme)?).context(TOPOLOGY)?;
        let fabric = Rig::fabric()?;
        let lids = &router_lids(router_guids(ROUTER), 2);
        let manager = |subnet, name, port| {
            let prefix = scheme.prefix(subnet);
            let (place, partition, others) = (Place::Here, "", "");
            Manager { name, place, port, prefix, lmc: 0, partition, others, lids }.start()
        };
        let managers = [manager(1, "1", "ibtun1/ports/1")?, manager(2, "2", "ibtun1/ports/2")?];
        Rig::ports_are_active()?;
        Rig::network()?;
        if scheme == Scheme::Alias {
            INTERFACES.iter().try_for_each(|one| take_alias(one.place, one.name))?;
        }
        Ok(Self { managers, fabric })
    }

    pub(crate) fn stands(mut self) -> Result<()> {
        self.managers.iter_mut().try_for_each(Process::check_alive)?;
        self.fabric.check_alive()
    }
}

/// The router takes the place of the cable between the switches. The second manager has a port of its own.
fn with_router(topology: &str, scheme: Scheme) -> Result<String> {
    let mut changed = topology.to_owned();
    for (old, new) in [
        ("[8] \"S2\"[8]\n", "[8] \"X\"[1]\n"),
        ("[2] \"N\"[2]\n", "[2] \"N\"[2]\n[7] \"SM\"[2]\n[8] \"X\"[2]\n"),
        ("Ca 1 \"SM\"\n", "Ca 2 \"SM\"\n"),
    ] {
        ensure!(changed.matches(old).count() == 1, "{TOPOLOGY} has another form: {topology}");
        changed = changed.replace(old, new);
    }
    Ok(changed + "\n" + &scheme.router("X", ROUTER, "\"S1\"[8]", "\"S2\"[8]"))
}
