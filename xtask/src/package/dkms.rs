// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The packages of the software fabric for a Debian 12 in a guest, where apt installs them, and the module as make
//! installs it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::root::{self, DEBIAN_12};
use super::{Architecture, Content, fabric};
use crate::privilege::Privilege;
use crate::process;
use crate::tools;
use crate::workspace::Workspace;

/// What the packages need and recommend, as far as it is not in the root file system. DKMS signs with openssl.
const NEEDED: &str = "dkms openssl opensm rdmacm-utils ibverbs-providers";

/// The root file system with [`NEEDED`].
///
/// # Errors
/// The error says what the machine lacks.
pub(crate) fn ensure_root(workspace: &Workspace, privilege: Privilege) -> Result<PathBuf> {
    let root = root::ensure(workspace, privilege, &DEBIAN_12)?;
    root::probe(&root, privilege)?;
    root::ensure_with(workspace, privilege, &root, "dkms-root", NEEDED)
}

/// Makes both packages, lets make install the module from the sources in one, in `root`, and returns the packages'
/// directory.
///
/// # Errors
/// It was not made, or modprobe does not find it.
pub(crate) fn prove(workspace: &Workspace, privilege: Privilege, root: &Path) -> Result<PathBuf> {
    let content = Content::build(workspace, Architecture::own())?;
    let shared = content.directory.join("dkms");
    fs::create_dir_all(&shared)?;
    for package in fabric::make(&content)? {
        let name = package.file_name().context("a package has a name")?;
        fs::copy(&package, shared.join(name))?;
    }
    fs::write(shared.join("try.sh"), SCRIPT)?;
    let linux = tools::root(workspace, &tools::LINUX_6_1)?;
    let mut command = root::nspawn(&root::ensure(workspace, privilege, &DEBIAN_12)?, privilege)?;
    command.arg("--directory").arg(root);
    command.args([
        "--quiet",
        "--register=no",
        "--keep-unit",
        "--console=pipe",
        "--private-network",
    ]);
    for place in ["usr/src", "boot"] {
        let place_here = linux.join(place);
        for entry in fs::read_dir(&place_here).context(place)? {
            let file = entry?.path();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            command.arg(format!("--bind-ro={}:/{place}/{name}", file.display()));
        }
    }
    let programs = "usr/lib/linux-kbuild-6.1";
    command.arg(format!("--bind-ro={}:/{programs}", linux.join(programs).display()));
    command.arg(format!("--bind={}:/shared", shared.display()));
    command.args(["--setenv=DEBIAN_FRONTEND=noninteractive", "/bin/sh", "/shared/try.sh"]);
    let said = process::output(&mut command).context("the packages of the software fabric")?;
    ensure!(said.lines().any(|line| line == INSTALLED), "{said}");
    Ok(shared)
}

const INSTALLED: &str = "make has installed it";

/// In the place of the running kernel, which has no headers here, is that of the guests.
const SCRIPT: &str = r#"set -e
release=$(basename /boot/config-* | cut -d- -f2-)
# Of a run that failed.
rm -rf /module /lib/modules/$release
mkdir -p /lib/modules/$release
dpkg -x /shared/ibtun-dkms_*.deb /module
make -s -C /module/usr/src/ibtun-* modules install KERNEL_DIR=/usr/src/linux-headers-$release
modprobe -S $release --show-depends ibtun | grep /ibtun.ko
echo "make has installed it"
rm -rf /module /lib/modules/$release
"#;
