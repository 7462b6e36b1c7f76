// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The five commands of `ibtun/README.md` in a Debian 12 without the module: apt installs both packages, and DKMS
//! compiles the module for the kernel that runs.
//!
//! The host shares its root file system, the kernel's package and ours. What is written stays in memory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibtun_guest::page;
use nix::mount::{MsFlags, mount};
use nix::unistd::{chdir, chroot};

use crate::report::Report;
use crate::rig::{Place, RESULTS, spawn};

const README: &str = include_str!("../../README.md");

/// What the host shares, by its tag, and where it is.
const SHARES: [(&str, &str); 3] =
    [("root", "/run/base"), ("linux", "/run/linux"), ("packages", "/run/root/packages")];
const ROOT: &str = "/run/root";

/// What both packages leave on the system while they are installed.
const FILES: [&str; 3] =
    ["/usr/sbin/ibfab", "/var/lib/dkms/ibtun", "/usr/share/man/man8/ibfab.8.gz"];

const APT: (&str, &str) = ("/etc/apt/apt.conf.d/yes", "APT::Get::Assume-Yes \"true\";\n");

/// A compiler is slow in a guest.
const PATIENCE: Duration = Duration::from_mins(20);

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if report.claim("the guest is a Debian 12 with its kernel's headers", debian()).is_none() {
        return report.end();
    }
    for command in page::commands(page::section(README, "in five commands\n")) {
        report.claim(&format!("README: {}", command.text), typed(&command.text));
    }
    report.claim("the module is the one that DKMS has made and signed", is_of_dkms());
    let purge = "modprobe -r ibtun && apt purge ibtun-dkms ibfab";
    report.claim("apt removes both packages", typed(purge));
    report.claim("nothing is left of them", nothing_is_left());
    report.end()
}

fn debian() -> Result<()> {
    let [(_, base), (_, linux), packages] = SHARES;
    for (tag, place) in [("root", base), ("linux", linux)] {
        share(tag, place)?;
    }
    // usr/src and boot are the kernel's. Its modules lie where the base has a link.
    overlay(&format!("{base}:{linux}"), "system", ROOT)?;
    let release = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    let modules = format!("lib/modules/{release}");
    overlay(&format!("{linux}/{modules}"), "modules", &format!("{ROOT}/usr/{modules}"))?;
    for (kind, place) in [
        ("proc", "proc"),
        ("sysfs", "sys"),
        ("devtmpfs", "dev"),
        ("devpts", "dev/pts"),
        ("tmpfs", "run"),
        ("tmpfs", "tmp"),
    ] {
        attach(kind, &format!("{ROOT}/{place}"), kind, None)?;
    }
    share(packages.0, packages.1)?;
    chroot(ROOT).and_then(|()| chdir("/packages")).context(ROOT)?;
    fs::create_dir_all(RESULTS).context(RESULTS)?;
    // As udev makes it.
    symlink("/proc/self/fd", "/dev/fd").context("/dev/fd")?;
    // What a user types when apt asks.
    fs::write(APT.0, APT.1).context(APT.0)?;
    typed("depmod && ip link set lo up").map(drop)
}

fn share(tag: &str, place: &str) -> Result<()> {
    attach(tag, place, "9p", Some("trans=virtio,version=9p2000.L,cache=loose,ro"))
}

/// Mounts `lower`, and what is written on top of it.
fn overlay(lower: &str, name: &str, place: &str) -> Result<()> {
    let [upper, work] = ["upper", "work"].map(|part| format!("/run/{name}/{part}"));
    for directory in [&upper, &work] {
        fs::create_dir_all(directory).with_context(|| directory.clone())?;
    }
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    attach("overlay", place, "overlay", Some(&options))
}

fn attach(what: &str, place: &str, kind: &str, options: Option<&str>) -> Result<()> {
    fs::create_dir_all(place).with_context(|| place.to_owned())?;
    let flags = if kind == "9p" { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    mount(Some(what), place, Some(kind), flags, options.map(OsStr::new))
        .with_context(|| format!("{what} cannot be mounted at {place}"))
}

/// Types a command in the directory of the packages.
fn typed(command: &str) -> Result<String> {
    const NAME: &str = "typed";
    const SHELL: &str = "export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive";
    let script = format!("{SHELL}; unset LD_LIBRARY_PATH; {command}");
    let file = format!("{RESULTS}/{NAME}.log");
    let status = spawn(NAME, Place::Here, &["sh", "-c", &script])?.wait(PATIENCE)?;
    let said = fs::read_to_string(&file).context(file.clone())?;
    fs::remove_file(&file).context(file)?;
    ensure!(status.success(), "{status}: {said}");
    Ok(said)
}

fn is_of_dkms() -> Result<()> {
    let said = typed("modinfo -n ibtun && modinfo -F signer ibtun && dkms status")?;
    for part in ["/updates/dkms/ibtun.ko", "DKMS module signing key", ": installed"] {
        ensure!(said.contains(part), "no {part:?}: {said}");
    }
    for file in FILES {
        ensure!(Path::new(file).exists(), "{file} is missing");
    }
    Ok(())
}

fn nothing_is_left() -> Result<()> {
    for file in FILES.into_iter().chain(["/sys/module/ibtun", "/sys/class/infiniband/ibtun0"]) {
        ensure!(!Path::new(file).exists(), "{file} is left");
    }
    let left = typed("find / -xdev -name '*ibtun*' | grep -v -e ^/packages -e ^/proc || true")?;
    let left: Vec<_> = left.lines().filter(|line| line.starts_with('/')).collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
