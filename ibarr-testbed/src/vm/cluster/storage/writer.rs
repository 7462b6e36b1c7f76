// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A program that writes to storage. It is a process of its own: a process that starts another one closes its files
//! there, and NFS writes back what is left in them before the other one begins.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::libc::O_SYNC;

use super::nvme;
use crate::OWN;
use crate::rig::{PATIENCE, Place, Process, eventually, spawn};

/// Its command, before the path of what it writes to.
pub(crate) const NAME: &str = "storage-writer";

/// What is written again and again: less than a RAM disk of 16 MiB.
const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 32;

/// Once this file is there, the writer ends, if it has stored each block.
const END: &str = "/run/storage-end";
/// A longer time without a stored block is a pause.
const PAUSE: Duration = Duration::from_secs(1);

/// What it has written.
const WRITTEN: &str = "/run/storage-written";

/// Writes blocks, each with other contents, over and over, each when the last one is stored. It says after how many
/// milliseconds each is stored.
pub(crate) fn run(path: &str) -> Result<()> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false).custom_flags(O_SYNC);
    let mut file = options.open(path).with_context(|| path.to_owned())?;
    let began = Instant::now();
    let mut content = vec![0; BLOCK * BLOCKS];
    for number in 1_usize.. {
        let at = number % BLOCKS * BLOCK;
        let block = &mut content[at..][..BLOCK];
        // Other than those of earlier writers, too.
        let word = number << 32 | usize::try_from(process::id())?;
        block.chunks_exact_mut(8).for_each(|place| place.copy_from_slice(&word.to_be_bytes()));
        file.seek(SeekFrom::Start(at.try_into()?))?;
        file.write_all(block)?;
        println!("{}", began.elapsed().as_millis());
        if number >= BLOCKS && Path::new(END).exists() {
            break;
        }
    }
    Ok(fs::write(WRITTEN, &content)?)
}

/// A writer that runs here.
pub(super) struct Writer {
    process: Process,
    path: &'static str,
}

impl Writer {
    pub(super) fn begin(path: &'static str) -> Result<Self> {
        Ok(Self { process: spawn(NAME, Place::Here, &[OWN, NAME, path])?, path })
    }

    /// Waits until it has stored so many blocks more.
    pub(super) fn stores(&self, more: usize) -> Result<()> {
        let before = self.stored()?.len();
        eventually(|| {
            let now = self.stored()?.len();
            ensure!(now >= before + more, "{now} blocks are stored, {before} before");
            Ok(())
        })
    }

    /// Ends it, and returns how long its pauses were. Both ends must have what it has written last to each place.
    pub(super) fn end(self, server: &str) -> Result<Duration> {
        let stored = self.stored()?;
        let gaps =
            stored.windows(2).map(|two| Duration::from_millis(two[1].saturating_sub(two[0])));
        let pause = gaps.filter(|gap| *gap > PAUSE).sum();
        fs::write(END, "")?;
        let Self { process, path } = self;
        let status = process.wait(PATIENCE)?;
        fs::remove_file(END)?;
        ensure!(status.success(), "the writer: {status}");
        let wanted = nvme::sum(Place::Here, WRITTEN, BLOCK * BLOCKS)?;
        let stored = nvme::sum(Place::Other, server, BLOCK * BLOCKS)?;
        ensure!(stored == wanted, "the server has other bytes");
        let read = nvme::sum(Place::Here, path, BLOCK * BLOCKS)?;
        ensure!(read == wanted, "other bytes are read back");
        Ok(pause)
    }

    /// When its blocks were stored, in milliseconds.
    fn stored(&self) -> Result<Vec<u64>> {
        let said = self.process.said()?;
        // The log has earlier writers, too.
        let own = said.rsplit("$ ").next().unwrap_or_default();
        Ok(own.lines().filter_map(|line| line.parse().ok()).collect())
    }
}
