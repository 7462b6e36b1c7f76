// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The packages of the software fabric in Debian 12, as apt installs and removes them: DKMS compiles and signs the
//! module for the kernel of the guests.

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

/// Installs the packages in `root`, removes them, and returns their directory. Between, make installs the module from its
/// sources.
///
/// # Errors
/// It was not made, not signed, or something is left.
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
    for line in ["signer: DKMS module signing key", "nothing is left", "make has installed it"] {
        ensure!(said.lines().any(|said| said == line), "no {line:?} in what they say: {said}");
    }
    Ok(shared)
}

/// DKMS builds for the newest kernel in /boot, as the running one has no headers here.
const SCRIPT: &str = r#"set -e
release=$(basename /boot/config-* | cut -d- -f2-)
# Of a run that failed.
dpkg --purge ibtun-dkms ibfab
rm -rf /module /lib/modules/$release
mkdir -p /lib/modules/$release
ln -sfn /usr/src/linux-headers-$release /lib/modules/$release/build
apt-get install -qy /shared/*.deb
dkms status ibtun | grep ": installed"
ibfab --version
object=/lib/modules/$release/updates/dkms/ibtun.ko
echo "signer: $(modinfo -F signer $object)"
cp $object /shared/
test -s /usr/share/man/man8/ibfab.8.gz
cp -r /usr/src/ibtun-* /module
apt-get purge -qy ibtun-dkms ibfab
for left in $object /usr/sbin/ibfab /usr/src/ibtun-* /var/lib/dkms/ibtun; do
    if [ -e "$left" ]; then echo "$left is left"; exit 1; fi
done
echo "nothing is left"
make -s -C /module modules install KERNEL_DIR=/usr/src/linux-headers-$release
modprobe -S $release --show-depends ibtun | grep /ibtun.ko
echo "make has installed it"
rm -rf /module /lib/modules/$release
"#;
