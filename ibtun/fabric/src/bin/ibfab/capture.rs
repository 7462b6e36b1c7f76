// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab run --capture`: writes the packets that cross links to a file for Wireshark.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use ibarr_common::Instant;
use ibarr_fabric::{Crossing, pcap};

use crate::run::boot_time;

/// The time of the machine's boot, since the epoch. It relates the fabric's clock to the time of day.
pub(crate) fn boot() -> anyhow::Result<Duration> {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(since_epoch.saturating_sub(boot_time()?.since(Instant::BOOT)))
}

/// An open capture file.
#[derive(Debug)]
pub(crate) struct Capture {
    file: BufWriter<File>,
    /// Time of the machine's boot, since the epoch.
    boot: Duration,
}

impl Capture {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut this = Self { file: BufWriter::new(file), boot: boot()? };
        this.file.write_all(&pcap::file_header()).context("cannot write the capture")?;
        Ok(this)
    }

    /// Writes a packet that has crossed a link.
    pub(crate) fn write(&mut self, crossing: &Crossing) -> anyhow::Result<()> {
        let since_epoch = self.boot + crossing.at.since(Instant::BOOT);
        let record = pcap::record(since_epoch, &crossing.packet);
        self.file.write_all(&record).context("cannot write the capture")
    }

    /// Lets readers see what was written.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        self.file.flush().context("cannot write the capture")
    }
}
