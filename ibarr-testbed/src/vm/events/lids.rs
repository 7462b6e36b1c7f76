// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Has OpenSM give a port another LID.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::rig::{Interface, eventually};

/// The file in which OpenSM keeps the LIDs that it has given.
const LIDS: &str = "/var/cache/opensm/guid2lid";

/// Makes the next OpenSM give a port another LID.
pub(super) fn give(interface: Interface, lid: u16) -> Result<u16> {
    let guid = format!("0x{:016x}", interface.gid()?.guid().get());
    let table = fs::read_to_string(LIDS).context(LIDS)?;
    let line = |line: &str| {
        if line.starts_with(&guid) {
            format!("{guid} 0x{lid:04x} 0x{lid:04x}\n")
        } else {
            format!("{line}\n")
        }
    };
    ensure!(table.contains(&guid), "no {guid} in {table}");
    fs::write(LIDS, table.lines().map(line).collect::<String>()).context(LIDS)?;
    Ok(lid)
}

pub(super) fn has(interface: Interface, lid: u16) -> Result<()> {
    eventually(|| {
        let has = interface.lid()?;
        ensure!(has == lid, "{} has LID {has}, not {lid}", interface.name);
        Ok(())
    })
}
