// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A program in a namespace of the lab, which ends when this is dropped.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::lab::netns;

#[derive(Debug)]
pub(super) struct Process(Child);

impl Process {
    /// Starts it. What it says goes to the file `log`.
    ///
    /// # Errors
    /// There is no such program.
    pub(super) fn start(namespace: &str, mut command: Command, log: &Path) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(log)?);
        let child = netns::spawn(namespace, &mut command)
            .context("start this through `cargo xtask monitor`, which fetches its tools")?;
        Ok(Self(child))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
