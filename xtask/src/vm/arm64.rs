// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A guest of 64-bit Arm: Debian's kernel, a shell, and the program of the package with its C library. A script
//! is its first process, and reports.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::LONG_DEADLINE;
use super::cpio::Archive;
use super::image::MODULES;
use super::kernel::Kernel;
use super::tap::Tap;
use crate::systems::{self, How, Row};
use crate::tools;
use crate::workspace::Workspace;

/// Its row in the table of systems.
pub(crate) const SYSTEM: &str = "64-bit Arm";

const SCRIPT: &[u8] = include_bytes!("arm64.sh");

const CONFIGURATION: &[u8] = b"interfaces = [\"eth*\"]
[[static-gid]]
ip = \"10.7.0.1\"
gid = \"fe80::2:c903:0:701\"
[[static-gid]]
ip = \"fd00:7::1\"
gid = \"fe80::2:c903:0:701\"
";

const GROUPS: &[u8] = b"root:x:0:\nibarr:x:64:\n";

/// The directory of the C library in its package.
const GLIBC: &str = "usr/aarch64-linux-gnu/lib";

/// Runs `ibarr`, a program of the package, in a guest. Returns how many claims hold.
pub(crate) fn prove(workspace: &Workspace, ibarr: &Path) -> Result<usize> {
    let toolbox = tools::ensure(workspace, &[&tools::QEMU_ARM])?;
    let path = toolbox.path()?;
    let kernel = Kernel::find("arm64", &tools::root(workspace, &tools::LINUX_ARM64)?)?;
    let directory = workspace.target().join("vm");
    fs::create_dir_all(&directory)?;
    let initramfs = directory.join("arm64.cpio");
    let mut archive = Archive::new(BufWriter::new(File::create(&initramfs)?));
    archive.device("/dev/console", 5, 1)?;
    archive.device("/dev/null", 1, 3)?;
    let modules = kernel.modules(&["veth", "sch_ingress", "cls_bpf", "rdma_cm"], &path)?;
    for (index, module) in modules.iter().enumerate() {
        archive.file(&format!("{MODULES}/{index:03}-{}.ko", module.name), &module.object)?;
    }
    let busybox = tools::root(workspace, &tools::BUSYBOX_ARM64)?.join("bin/busybox");
    archive.program("/bin/busybox", &fs::read(busybox)?)?;
    archive.program("/bin/ibarr", &fs::read(ibarr)?)?;
    let libraries = tools::root(workspace, &tools::GLIBC_ARM64)?.join(GLIBC);
    for name in ["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"]
    {
        archive.program(&format!("/lib/{name}"), &fs::read(libraries.join(name))?)?;
    }
    archive.program("/init", SCRIPT)?;
    archive.file("/ibarr.toml", CONFIGURATION)?;
    archive.file("/etc/group", GROUPS)?;
    archive.finish()?.flush()?;

    let mut qemu = Command::new("timeout");
    qemu.env("PATH", &path).args(["--foreground", "--kill-after=5"]);
    qemu.arg(LONG_DEADLINE.as_secs().to_string());
    qemu.args(["qemu-system-aarch64", "-nodefaults", "-no-user-config", "-no-reboot"]);
    // `max` has pointer authentication, which takes most of an emulator's time.
    qemu.args(["-machine", "virt", "-cpu", "cortex-a72", "-smp", "1", "-m", "1024"]);
    qemu.args(["-accel", "tcg", "-display", "none", "-monitor", "none", "-serial", "stdio"]);
    qemu.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&initramfs);
    qemu.args(["-append", "console=ttyAMA0 rdinit=/init panic=-1 loglevel=4"]);
    let mut guest = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let said = guest.stdout.take().context("qemu has a standard output")?;
    println!("vm: arm64 on Linux {}", kernel.release);
    let mut tap = Tap::default();
    for line in BufReader::new(said).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("  arm64: {}", line.trim_end());
        tap.line(line.trim_end());
    }
    let status = guest.wait()?;
    ensure!(status.success() && tap.is_success(), "vm arm64: {tap} (QEMU: {status})");
    let (how, system, what) = (How::Ran, SYSTEM.to_owned(), "guest".to_owned());
    let row =
        Row { system, how, what, passed: tap.passed(), of: tap.passed(), with: kernel.release };
    systems::record(workspace, &[row])?;
    Ok(tap.passed())
}
