// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Debian 12's kernel, compiled so that it checks its own memory (KASAN) and locks (lockdep): Debian has none.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::root::{self, DEBIAN_12};
use crate::privilege::Privilege;
use crate::process;
use crate::tools;
use crate::workspace::Workspace;

/// What a kernel is compiled with.
const NEEDED: &str = "gcc make flex bison bc libelf-dev libssl-dev xz-utils patch perl";

const CONFIGURATION: &str = include_str!("../vm/debug.config");
/// Without it lockdep reports rdmavt at the first connection, and then checks nothing more.
const PATCH: &str = "ibtun/upstream/0001-rdmavt-take-r_lock-before-s_lock.patch";

/// The directory in which it was compiled. That takes half an hour, and a build that was interrupted goes on.
///
/// # Errors
/// The error says what the machine lacks, or what the compiler said.
pub(crate) fn ensure_checked(workspace: &Workspace, privilege: Privilege) -> Result<PathBuf> {
    let directory = workspace.target().join("tools/linux-checked");
    let tree = directory.join("tree");
    let patch = workspace.root().join(PATCH);
    let source = tools::root(workspace, &tools::LINUX_SOURCE)?;
    let source = source.join("usr/src/linux-source-6.1.tar.xz");
    let written = fs::metadata(&source).and_then(|data| data.modified()).context("the source")?;
    let sources = format!("{written:?}\n{}", fs::read_to_string(&patch)?);
    let made_of = format!("{sources}{CONFIGURATION}");
    // Written last.
    let stamp = directory.join("made-of.txt");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == made_of) {
        return Ok(tree);
    }
    let base = root::ensure(workspace, privilege, &DEBIAN_12)?;
    root::probe(&base, privilege)?;
    let compilers = root::ensure_with(workspace, privilege, &base, "kernel-root", NEEDED)?;
    let begun = directory.join("begun.txt");
    if fs::read_to_string(&begun).is_ok_and(|text| text != sources) {
        process::run(privilege.command("rm".as_ref(), &[]).arg("-rf").arg(&directory))?;
    }
    fs::create_dir_all(&tree)?;
    fs::write(begun, &sources)?;
    fs::write(directory.join("debug.config"), CONFIGURATION)?;
    fs::write(directory.join("make.sh"), SCRIPT)?;
    eprintln!("tools: compiling a kernel that checks itself, which takes half an hour");
    let mut command = root::nspawn(&base, privilege)?;
    command.arg("--directory").arg(compilers);
    command.args(["--quiet", "--register=no", "--keep-unit", "--console=pipe"]);
    command.arg("--private-network");
    // At its own place, as it names itself in what it makes.
    command.arg(format!("--bind={}", directory.display()));
    command.arg(format!("--bind-ro={}:/source.tar.xz", source.display()));
    command.arg(format!("--bind-ro={}:/locks.patch", patch.display()));
    command.arg("/bin/sh").arg(directory.join("make.sh")).arg(&directory);
    process::output(&mut command).context("the kernel that checks itself")?;
    fs::write(&stamp, made_of)?;
    Ok(tree)
}

const SCRIPT: &str = r"set -e
cd $1/tree
if ! [ -e ../unpacked ]; then
    tar xf /source.tar.xz --strip-components=1
    patch -sp1 < /locks.patch
    touch ../unpacked
fi
make -s x86_64_defconfig
scripts/kconfig/merge_config.sh .config ../debug.config > ../merged.txt
make -s -j$(nproc) bzImage modules
";
