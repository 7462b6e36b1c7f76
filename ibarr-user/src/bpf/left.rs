// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What daemons have left in a directory of pins, whether a daemon runs or not.

use std::path::{Path, PathBuf};
use std::{fs, io};

use ibarr_common::map::ABI_VERSION;
use ibarr_proto::ip2gid::client::mirror::Element;
use ibarr_proto::responder::Hook;

use super::error::Error;
use super::hooks;
use super::learned::Mirror;
use super::maps::{Contents, Maps};
use super::pins::{self, Pins};

/// The contents of all maps.
#[derive(Clone, Debug)]
pub(crate) struct PinnedMaps {
    /// What the programs read.
    pub maps: Contents,
    /// Answers of peers, in the order of their questions.
    pub learned: Vec<Element>,
}

/// The contents of the maps in `dir`; `None` if there are none.
///
/// # Errors
/// If the maps cannot be read.
pub(crate) fn read(dir: &Path) -> Result<Option<PinnedMaps>, Error> {
    let layout = pins::layout(dir, ABI_VERSION);
    match fs::symlink_metadata(&layout) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(pins::Error::Io(layout, error).into()),
        Ok(_) => {
            let is_here = dir.join(pins::namespace()?).exists();
            let maps = Maps::open(&layout)?.contents(is_here)?;
            Ok(Some(PinnedMaps { maps, learned: Mirror::open(&layout)?.elements()? }))
        }
    }
}

/// The result of [`detach`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Detached {
    /// Something of ours was removed.
    pub was_there: bool,
    /// Entries that are not ours, and stay.
    pub left: Vec<PathBuf>,
}

/// Detaches and removes what daemons have left in `dir`, and nothing else.
///
/// # Errors
/// If a daemon uses the directory, it is not ours, or something cannot be removed. Another attempt
/// continues from there.
pub(crate) fn detach(dir: &Path) -> Result<Detached, Error> {
    let Some(pins) = Pins::open_existing(dir)? else { return Ok(Detached::default()) };
    let has_filters = pins.hooks()?.iter().any(|(_, hook)| *hook == Hook::Clsact);
    if has_filters && pins.is_elsewhere(&pins::namespace()?)? {
        return Err(Error::Elsewhere(dir.to_owned()));
    }
    Ok(Detached { was_there: true, left: take_down(pins)? })
}

/// Detaches all, and removes the pins.
pub(super) fn take_down(pins: Pins) -> Result<Vec<PathBuf>, Error> {
    for (ifindex, hook) in pins.hooks()? {
        hooks::detach(&pins, ifindex, hook)?;
    }
    for ifindex in pins.qdiscs()? {
        hooks::detach_qdisc(&pins, ifindex)?;
    }
    Ok(pins.remove()?)
}
