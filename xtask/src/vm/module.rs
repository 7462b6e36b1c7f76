// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Builds our kernel module `ibtun` for a kernel.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::workspace::Workspace;
use crate::{package, process, tools};

pub(super) const NAME: &str = "ibtun";

/// The kernels for which sparse checks the sources, which are the same for all.
const CHECKED: &str = "6.1.";
/// What sparse takes for an error. The kernel's own headers have arrays of structures of variable size.
const WARNINGS: &str = "-D__CHECK_ENDIAN__ -Wsparse-error -Wno-flexible-array-array";
/// A number as a null pointer, which sparse must refuse.
const WRONG: &str = "int *wrong(void);\nint *wrong(void)\n{\n\treturn 0;\n}\n";

/// The headers for modules of a kernel.
pub(super) struct Headers {
    /// The common headers of all its flavours.
    pub(super) common: PathBuf,
    /// The headers of this flavour.
    pub(super) flavour: PathBuf,
}

/// Builds the module in `target`, from a copy of the sources, because the kernel's build system writes
/// beside them. Unchanged files are not built again.
pub(super) fn build(workspace: &Workspace, headers: &Headers, release: &str) -> Result<PathBuf> {
    let compiler = compiler()?;
    let directory = workspace.target().join("vm").join(format!("{NAME}-{release}"));
    // Only what is published: the module has to build from that.
    let (from, files) = package::module_files(workspace)?;
    for file in files {
        copy(&from.join(&file), &directory.join(&file))?;
    }
    let mut make = Command::new("make");
    // xtask may run inside another make.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.arg("--silent").arg("-C").arg(&directory);
    // Debian's own Makefile has paths of an installed system.
    make.arg(format!("KERNEL_DIR={}", headers.common.display()));
    make.arg(format!("O={}", headers.flavour.display()));
    // BTF needs the kernel's image, which is not here, and debug information would fill the guest.
    make.args(["modules", "W=1", "KCFLAGS=-g0 -Werror", "CONFIG_DEBUG_INFO_BTF_MODULES="]);
    // An option of gcc 14, with which newer kernels are compiled; without it, make takes the older one.
    make.arg("CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=");
    make.arg(format!("CC={compiler}"));
    if release.starts_with(CHECKED) {
        let path = sparse(workspace)?;
        make.env("PATH", path).args(["C=1", "CHECK=sparse"]).arg(format!("CF={WARNINGS}"));
    }
    process::output(&mut make)
        .with_context(|| format!("{NAME} for Linux {release} cannot be built"))?;
    Ok(directory.join(format!("{NAME}.ko")))
}

/// The PATH on which sparse is, after a proof that it finds something.
fn sparse(workspace: &Workspace) -> Result<OsString> {
    let path = tools::ensure(workspace, &[&tools::SPARSE])?.path()?;
    let wrong = workspace.target().join("vm/wrong.c");
    fs::write(&wrong, WRONG).with_context(|| wrong.display().to_string())?;
    let mut command = Command::new("sparse");
    command.env("PATH", &path).args(WARNINGS.split(' ')).arg(&wrong).stderr(Stdio::null());
    ensure!(
        command.status()?.code() == Some(1),
        "sparse does not find the mistake of a wrong file"
    );
    Ok(path)
}

impl Headers {
    /// Finds the headers of Debian's packages in `directory`.
    pub(super) fn find(directory: &Path, release: &str) -> Result<Self> {
        let flavour = directory.join(format!("linux-headers-{release}"));
        let entries = fs::read_dir(directory)
            .with_context(|| format!("{} is unreadable", directory.display()))?;
        for entry in entries {
            let common = entry?.path();
            let name = common.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("linux-headers-") && name.ends_with("-common") {
                return Ok(Self { common, flavour });
            }
        }
        bail!("{} has no linux-headers-…-common", directory.display())
    }
}

/// The compiler of Debian's kernels, or the most similar one of this machine.
///
/// # Errors
/// The machine has no gcc or no make.
pub(super) fn compiler() -> Result<&'static str> {
    let missing = || format!("{NAME} is compiled with make and gcc: install both");
    tools::which("make").with_context(missing)?;
    ["gcc-12", "gcc"].into_iter().find(|name| tools::which(name).is_some()).with_context(missing)
}

/// Makes a file equal to another, unless it is.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let content = fs::read(from).with_context(|| from.display().to_string())?;
    if fs::read(to).ok().as_deref() != Some(&content) {
        let parent = to.parent().context("a file in a directory")?;
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(to, content))
            .with_context(|| format!("{} cannot be written", to.display()))?;
    }
    Ok(())
}
