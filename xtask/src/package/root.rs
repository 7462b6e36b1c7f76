// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Root file systems of Debian with systemd, in which packages are tried.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::privilege::Privilege;
use crate::process;
use crate::tools;
use crate::workspace::Workspace;

/// A release of Debian.
pub(crate) struct Release {
    suite: &'static str,
    pub(crate) name: &'static str,
    pub(crate) systemd: &'static str,
    /// Below `target/tools`.
    directory: &'static str,
    /// Whether /bin and /usr/bin, one directory on installed systems, are two without a hook.
    needs_merge: bool,
}

/// With systemd 252 as RHEL 9 has it.
pub(crate) const DEBIAN_12: Release = Release {
    suite: "bookworm",
    name: "Debian 12",
    systemd: "systemd 252",
    directory: "debian-root",
    needs_merge: false,
};

/// With the oldest systemd that the packages accept.
pub(crate) const DEBIAN_11: Release = Release {
    suite: "bullseye",
    name: "Debian 11",
    systemd: "systemd 247",
    directory: "debian-11-root",
    needs_merge: true,
};

/// Packages besides the essential ones. systemd-container boots the root file system that it is in.
const PACKAGES: &str = "systemd,systemd-sysv,systemd-container,dbus,udev,iproute2";

/// The directory of the root file system of a release, which is made if needed. It is root's, and no test writes in
/// it.
///
/// # Errors
/// The error says what the machine lacks.
pub(crate) fn ensure(
    workspace: &Workspace,
    privilege: Privilege,
    release: &Release,
) -> Result<PathBuf> {
    let Release { suite, name, directory, needs_merge, .. } = *release;
    let directory = workspace.target().join("tools").join(directory);
    let root = directory.join("root");
    // Written last.
    let stamp = directory.join("packages.txt");
    if fs::read_to_string(&stamp).is_ok_and(|packages| packages == PACKAGES) {
        return Ok(root);
    }
    let toolbox = tools::ensure(workspace, &[&tools::MMDEBSTRAP])?;
    fs::create_dir_all(&directory)?;
    let archive = tools::archive(&directory, suite)?;
    if root.exists() {
        let remove = &mut privilege.command("rm".as_ref(), &[]);
        process::run(remove.arg("-rf").arg(&root))?;
    }
    eprintln!("tools: making a root file system of {name}, 220 MB");
    let path = toolbox.path()?;
    let mut command = privilege.command("mmdebstrap".as_ref(), &[("PATH", &path)]);
    command.args(["--quiet", "--mode=root", "--variant=minbase"]);
    if needs_merge {
        let prefix = toolbox.root(&tools::MMDEBSTRAP).unwrap_or_else(|| "/".into());
        let hook = prefix.join("usr/share/mmdebstrap/hooks/merged-usr/setup00.sh");
        command.arg(format!("--setup-hook={}", hook.display()));
    }
    command.arg(format!("--include={PACKAGES}"));
    command.arg(format!("--aptopt={}", archive.options.display()));
    // An interrupted run is begun again, so nothing has to reach the disk at once.
    command.args(["--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=force-unsafe-io"]);
    command.args([suite.as_ref(), root.as_os_str(), archive.sources.as_os_str()]);
    process::output(&mut command)
        .with_context(|| format!("tools: a root file system of {name} cannot be made"))?;
    fs::write(&stamp, PACKAGES)?;
    Ok(root)
}

/// What a fleet is deployed with: an engine for containers, Ansible with what it needs on a node, and dnf.
const OF_DEPLOYMENT: &str =
    "podman crun ansible-core openssh-server python3-apt dnf rpm gpg gpg-agent";

/// The directory of another root file system: a copy of `root` with [`OF_DEPLOYMENT`]. It is made if needed.
///
/// # Errors
/// The error says what the machine lacks.
pub(crate) fn ensure_for_deployment(
    workspace: &Workspace,
    privilege: Privilege,
    root: &Path,
) -> Result<PathBuf> {
    ensure_with(workspace, privilege, root, "deploy-root", OF_DEPLOYMENT)
}

/// The same with other packages, in the directory `name` of the tools.
pub(super) fn ensure_with(
    workspace: &Workspace,
    privilege: Privilege,
    root: &Path,
    name: &str,
    packages: &str,
) -> Result<PathBuf> {
    let directory = workspace.target().join("tools").join(name);
    let copy = directory.join("root");
    let made_of = format!("{PACKAGES} {packages}");
    // Written last.
    let stamp = directory.join("packages.txt");
    if fs::read_to_string(&stamp).is_ok_and(|packages| packages == made_of) {
        return Ok(copy);
    }
    fs::create_dir_all(&directory)?;
    process::run(privilege.command("rm".as_ref(), &[]).arg("-rf").arg(&copy))?;
    eprintln!("tools: adding {packages} to a copy of it, 300 to 400 MB");
    process::run(privilege.command("cp".as_ref(), &[]).arg("-a").args([root, &copy]))?;
    let mut install = nspawn(root, privilege)?;
    install.arg("--directory").arg(&copy).args(["--quiet", "--register=no", "--keep-unit"]);
    install.args(["--console=pipe", "--setenv=DEBIAN_FRONTEND=noninteractive", "/bin/sh", "-c"]);
    install.arg(format!(
        "apt-get -q update && apt-get -qy install --no-install-recommends \
         -o Dpkg::Options::=--force-unsafe-io {packages} && rm -rf /var/lib/apt/lists/*"
    ));
    process::output(&mut install)
        .with_context(|| format!("tools: {packages} cannot be installed"))?;
    fs::write(&stamp, made_of)?;
    Ok(copy)
}

/// Checks that this machine can start a container of `root`.
///
/// # Errors
/// The error has what systemd-nspawn said.
pub(crate) fn probe(root: &Path, privilege: Privilege) -> Result<()> {
    let mut command = nspawn(root, privilege)?;
    command.arg("--directory").arg(root).args(["--quiet", "--read-only", "--register=no"]);
    command.args(["--keep-unit", "--private-network", "--console=pipe", "/bin/true"]);
    process::output(&mut command).map(drop).context("systemd-nspawn does not work here")
}

/// The systemd-nspawn of `root`.
pub(super) fn nspawn(root: &Path, privilege: Privilege) -> Result<Command> {
    // Its own libraries: the machine may have none. The tests do the same.
    let mut command = privilege.command(&root.join("lib64/ld-linux-x86-64.so.2"), &[]);
    let libraries = ["usr/lib/x86_64-linux-gnu/systemd", "usr/lib/x86_64-linux-gnu"];
    let libraries = env::join_paths(libraries.map(|name| root.join(name)))?;
    command.arg("--library-path").arg(libraries).arg(root.join("usr/bin/systemd-nspawn"));
    Ok(command)
}
