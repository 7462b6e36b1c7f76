// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The files of a port in sysfs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ibarr_common::ib::{Gid, Lid, Sl};
use ibarr_proto::paths::PortName;

/// The logical state of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "the specification's words")]
pub enum PortState {
    Down,
    Initialize,
    Armed,
    Active,
}

/// The state of a port as a driver shows it. Without a LID, no subnet manager has configured it yet.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Shown {
    pub state: PortState,
    /// The LID of the port.
    pub lid: Option<Lid>,
    /// Number of low bits of the LID that the port ignores.
    pub lmc: u8,
    /// The LID of the subnet manager.
    pub sm_lid: Option<Lid>,
    /// The service level to the subnet manager.
    pub sm_sl: Sl,
    pub gids: Vec<Gid>,
    /// The P_Key table; 0 is no key.
    pub pkeys: Vec<u16>,
}

impl Shown {
    /// The state of an active port in the default partition.
    pub fn active(lid: Lid, gid: Gid, sm_lid: Lid) -> Self {
        Self {
            state: PortState::Active,
            lid: Some(lid),
            lmc: 0,
            sm_lid: Some(sm_lid),
            sm_sl: Sl::default(),
            gids: vec![gid],
            pkeys: vec![0xffff],
        }
    }
}

/// Writes the files of a port below `sys`.
pub(crate) fn show(sys: &Path, name: &PortName, umad: u32, shown: &Shown) -> io::Result<()> {
    let Shown { state, lid, lmc, sm_lid, sm_sl, gids, pkeys } = shown;
    let named = match state {
        PortState::Down => "1: DOWN",
        PortState::Initialize => "2: INIT",
        PortState::Armed => "3: ARMED",
        PortState::Active => "4: ACTIVE",
    };
    let hex = |lid: Option<Lid>| format!("{:#x}", lid.map_or(0, Lid::get));
    let port = port(sys, name);
    let write = |file: &str, text: &str| replace(&port.join(file), text);
    // As in a real sysfs, a reader may read between any two writes.
    for (index, gid) in gids.iter().enumerate() {
        let groups: Vec<_> = gid
            .octets()
            .chunks(2)
            .map(|group| format!("{:02x}{:02x}", group[0], group[1]))
            .collect();
        write(&format!("gids/{index}"), &groups.join(":"))?;
    }
    for (index, pkey) in pkeys.iter().enumerate() {
        write(&format!("pkeys/{index}"), &format!("{pkey:#06x}"))?;
    }
    write("link_layer", "InfiniBand")?;
    write("lid", &hex(*lid))?;
    write("lid_mask_count", &lmc.to_string())?;
    write("sm_lid", &hex(*sm_lid))?;
    write("sm_sl", &sm_sl.get().to_string())?;
    write("state", named)?;
    let umad = sys.join(format!("class/infiniband_mad/umad{umad}"));
    replace(&umad.join("ibdev"), name.device.as_str())?;
    replace(&umad.join("port"), &name.port.to_string())?;
    replace(&sys.join("class/infiniband_mad/abi_version"), "5")
}

/// Removes the files of a port.
pub(super) fn hide(sys: &Path, name: &PortName, umad: u32) -> io::Result<()> {
    let ignore_absence = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    let umad = sys.join(format!("class/infiniband_mad/umad{umad}"));
    ignore_absence(fs::remove_dir_all(umad))?;
    ignore_absence(fs::remove_dir_all(port(sys, name)))?;
    // The directory of a device is removed with its last port.
    for above in ["ports", ""] {
        let dir = sys.join("class/infiniband").join(name.device.as_str()).join(above);
        if fs::remove_dir(dir).is_err() {
            break;
        }
    }
    Ok(())
}

fn port(sys: &Path, name: &PortName) -> PathBuf {
    let device = sys.join("class/infiniband").join(name.device.as_str());
    device.join("ports").join(name.port.to_string())
}

/// Replaces a file at once, so that a reader never sees a part of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let new = path.with_extension("new");
    fs::write(&new, format!("{text}\n"))?;
    fs::rename(new, path)
}
