// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The port of an interface in sysfs.

use std::fs;

use anyhow::{Context as _, Result};
use ibarr_common::ib::Gid;

use super::Interface;

impl Interface {
    /// The content of a file in the port's directory.
    pub fn attribute(&self, name: &str) -> Result<String> {
        let file = format!("/sys/class/infiniband/{}/{name}", self.port);
        Ok(fs::read_to_string(&file).context(file)?.trim().to_owned())
    }

    /// The LID that the subnet manager gave it.
    pub fn lid(&self) -> Result<u16> {
        let text = self.attribute("lid")?;
        Ok(u16::from_str_radix(text.trim_start_matches("0x"), 16)?)
    }

    /// The first GID, which IPoIB uses.
    pub fn gid(&self) -> Result<Gid> {
        Ok(self.attribute("gids/0")?.parse()?)
    }
}
