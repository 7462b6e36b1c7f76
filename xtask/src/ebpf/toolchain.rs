// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A Rust compiler with a `core` for BPF, and `bpf-linker` with the same LLVM.
//!
//! Debian builds `core` for `bpfel-unknown-none` with the compiler for its browsers, so neither nightly nor
//! `rust-src` is needed. The linker comes from crates.io and is compiled once.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process;
use crate::tools::{self, Unpacked};
use crate::workspace::Workspace;

/// Debian's packages of the compiler.
const RUST: tools::Set = tools::Set {
    name: "rust-bpf",
    purpose: "Rust compiler for the BPF programs",
    programs: &[],
    packages: &["libstd-rust-web-dev-bpf", "rustc-web"],
    suites: &[],
    only: &[],
};

/// The linker must be able to read the output of the LLVM of [`RUST`].
const LINKER_VERSION: &str = "0.13.0";
const LINKER_LLVM: &str = "llvm-22";

/// The compiler and linker of the objects.
pub(crate) struct Toolchain {
    pub(super) rustc: PathBuf,
    /// The directory of `bpf-linker`.
    pub(super) linker_dir: PathBuf,
    /// The versions that an object's bytes depend on, one a line.
    pub(super) versions: Vec<String>,
}

impl Toolchain {
    /// Fetches and builds what is missing.
    pub(crate) fn ensure(workspace: &Workspace) -> Result<Self> {
        let rust = tools::unpacked(workspace, &RUST)?;
        let rustc = rust.prefix.join("bin/rustc");
        let linker_dir = linker(workspace, &rust)?;
        let mut versions: Vec<String> = rust
            .packages
            .iter()
            .filter(|line| line.contains("rust") || line.contains("LLVM") || line.contains("llvm"))
            .cloned()
            .collect();
        versions.push(format!("bpf-linker {LINKER_VERSION}"));
        versions.push(process::output(Command::new(&rustc).arg("-V"))?.trim_end().to_owned());
        Ok(Self { rustc, linker_dir, versions })
    }
}

/// The directory of `bpf-linker`, which is compiled first if needed.
fn linker(workspace: &Workspace, rust: &Unpacked) -> Result<PathBuf> {
    let root = workspace.target().join("tools/bpf-linker");
    let stamp = root.join("version");
    let wanted = format!("{LINKER_VERSION} {LINKER_LLVM}\n");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(root.join("bin"));
    }
    let libraries = rust.prefix.join("root/usr/lib/x86_64-linux-gnu");
    let llvm = root.join("llvm");
    link_llvm(&libraries, &llvm.join("lib"))?;
    eprintln!("ebpf: compiling bpf-linker {LINKER_VERSION}, once");
    let mut install = workspace.cargo(&[
        "install",
        "--quiet",
        "bpf-linker",
        "--version",
        LINKER_VERSION,
        "--locked",
        "--no-default-features",
        "--features",
        LINKER_LLVM,
        "--force",
    ]);
    install
        .arg("--root")
        .arg(&root)
        .env("LLVM_PREFIX", &llvm)
        .env("CARGO_PROFILE_RELEASE_STRIP", "true");
    process::run(&mut install)?;
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(root.join("bin"))
}

/// Makes links in `dir` with the names that the linker and its build script look for.
fn link_llvm(libraries: &Path, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(libraries).with_context(|| libraries.display().to_string())? {
        let file = entry?.file_name();
        let name = file.to_string_lossy();
        if name.starts_with("libLLVM.so.") {
            for alias in [name.as_ref(), "libLLVM.so"] {
                let alias = dir.join(alias);
                let _ = fs::remove_file(&alias);
                symlink(libraries.join(&file), &alias)?;
            }
            return Ok(());
        }
    }
    anyhow::bail!("{} holds no libLLVM.so.*", libraries.display())
}
