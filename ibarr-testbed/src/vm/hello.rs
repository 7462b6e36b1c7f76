// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm hello`: checks what every other scenario needs.

use std::env;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use crate::report::Report;

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Ok(version) = fs::read_to_string("/proc/version") {
        Report::note(version);
    }
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    Report::note(format_args!("hello after {} s", uptime.split(' ').next().unwrap_or("?")));
    report.claim("the modules asked for are loaded", modules_are_loaded());
    report.claim("the kernel's types can be read", has("/sys/kernel/btf/vmlinux"));
    report.claim("BPF objects can be pinned", bpffs_is_mounted());
    report.claim("temporary files can be written", can_write());
    report.end()
}

fn modules_are_loaded() -> Result<()> {
    let loaded = fs::read_to_string("/proc/modules")?;
    ensure!(loaded.lines().any(|line| line.starts_with("tun ")), "no tun among:\n{loaded}");
    has("/dev/net/tun")
}

fn bpffs_is_mounted() -> Result<()> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    ensure!(mounts.contains(" /sys/fs/bpf bpf "), "not among:\n{mounts}");
    Ok(())
}

fn can_write() -> Result<()> {
    let file = env::temp_dir().join("hello");
    fs::write(&file, "hello")?;
    ensure!(fs::read(&file)? == b"hello", "it does not hold what was written");
    Ok(())
}

fn has(path: &str) -> Result<()> {
    fs::metadata(path).with_context(|| path.to_owned()).map(drop)
}
