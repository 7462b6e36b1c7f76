// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Debian's `ib_acme`, and what it prints.

use anyhow::{Context as _, Result, ensure};

use crate::rig::{self, INTERFACES, Place};

/// The output of `ib_acme`.
#[derive(Debug)]
pub(super) struct Acme(pub(super) String);

impl Acme {
    pub(super) fn ask(options: &[&str]) -> Result<Self> {
        rig::run(Place::Here, &[&["ib_acme"], options].concat()).map(Self)
    }

    /// Checks that it shows one path, between two ports of the rig.
    pub(super) fn leads_to(&self, from: usize, to: usize) -> Result<()> {
        let [from, to] = [from, to].map(|port| INTERFACES[port]);
        let expected = [
            ("dgid", to.gid()?.to_string()),
            ("sgid", from.gid()?.to_string()),
            ("dlid", to.lid()?.to_string()),
            ("slid", from.lid()?.to_string()),
        ];
        for (field, value) in expected {
            let shown = self.all(field);
            ensure!(shown == [&value], "{field} is {shown:?}, not {value}: {}", self.0);
        }
        Ok(())
    }

    /// The values of a field, of all the paths that are shown.
    pub(super) fn all(&self, field: &str) -> Vec<&str> {
        let values = self.0.lines().filter_map(|line| line.trim().strip_prefix(field));
        values.filter_map(|value| value.strip_prefix(": ")).collect()
    }

    /// Checks that it shows these words.
    #[allow(dead_code)]
    pub(super) fn has(&self, words: &str) -> Result<()> {
        ensure!(self.0.contains(words), "no {words:?}: {}", self.0);
        Ok(())
    }

    #[allow(dead_code)]
    pub(super) fn number(&self, field: &str) -> Result<u64> {
        let value = self.all(field).first().copied().with_context(|| format!("no {field}"))?;
        Ok(value.parse()?)
    }
}
