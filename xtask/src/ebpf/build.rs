// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Compiles and strips the BPF objects. This file is among the sources that determine their bytes.

use std::env;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use object::build::elf::{Builder, SectionData};

use super::inputs::SOURCES;
use super::toolchain::Toolchain;
use crate::process;
use crate::workspace::Workspace;

/// A prebuilt object.
pub(super) struct Object {
    /// Name of its file under `ibarr-ebpf/prebuilt`.
    pub(super) file: &'static str,
    /// The binary of `ibarr-ebpf` that is compiled to it.
    binary: &'static str,
}

pub(super) const OBJECTS: [Object; 3] = [
    Object { file: "responder.bpf.o", binary: "responder" },
    Object { file: "bench.bpf.o", binary: "bench" },
    Object { file: "logging.bpf.o", binary: "logging" },
];

const TARGET: &str = "bpfel-unknown-none";

/// Compiles all of [`OBJECTS`], and returns their bytes in order.
pub(super) fn build(workspace: &Workspace, toolchain: &Toolchain) -> Result<Vec<Vec<u8>>> {
    let target = workspace.target().join("bpf");
    let cargo_home = env::var("CARGO_HOME")
        .or_else(|_| env::var("HOME").map(|home| format!("{home}/.cargo")))
        .context("neither CARGO_HOME nor HOME is set")?;
    let root = workspace.root().to_str().context("the checkout's path is not UTF-8")?;
    let flags = [
        // The architecture for kernel probes, which the programs do not have.
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
        // Linux 5.1 and later, so all kernels that we support.
        "-Ctarget-cpu=v3".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("--remap-path-prefix={root}=/ibarr"),
        format!("--remap-path-prefix={cargo_home}=/cargo"),
    ];
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(
        std::iter::once(toolchain.linker_dir.clone()).chain(env::split_paths(&path)),
    )?;
    let mut cargo = workspace.cargo(&[
        "build",
        "--quiet",
        "--locked",
        "--package=ibarr-ebpf",
        "--bins",
        "--release",
        "--target",
        TARGET,
        "--target-dir",
    ]);
    cargo
        .arg(&target)
        .env("PATH", path)
        .env("RUSTC", &toolchain.rustc)
        // aya-ebpf writes a few lines of BPF assembly, which is not stable yet.
        .env("RUSTC_BOOTSTRAP", "aya_ebpf")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        // The types of maps are read from the debug information.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "full")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        // The BPF linker does this.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        // Incremental builds give other code, and a developer may have switched them on.
        .env("CARGO_INCREMENTAL", "0")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTFLAGS");
    process::run(&mut cargo)?;

    let dir = target.join(TARGET).join("release");
    OBJECTS.iter().map(|object| stripped(&dir.join(object.binary))).collect()
}

/// The object without DWARF. Type and line information for the kernel (BTF) stays.
fn stripped(path: &Path) -> Result<Vec<u8>> {
    let whole = fs::read(path).with_context(|| path.display().to_string())?;
    let mut elf = Builder::read(whole.as_slice())?;
    // LLVM keeps names of sections and symbols in one table; the writer needs two.
    let names = elf.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    for section in &mut elf.sections {
        let name = section.name.as_slice();
        if name.starts_with(b".debug_") || name.starts_with(b".rel.debug_") {
            section.delete = true;
        }
    }
    elf.delete_orphans();
    elf.delete_unused_versions();
    let mut bytes = Vec::new();
    elf.write(&mut bytes)?;
    check_sources(&bytes).with_context(|| path.display().to_string())?;
    Ok(bytes)
}

/// Checks that the digest covers each of our files that the line information mentions.
fn check_sources(object: &[u8]) -> Result<()> {
    const OURS: &[u8] = b"/ibarr/";
    let mentions = object.split(|byte| *byte == 0).filter_map(|text| text.strip_prefix(OURS));
    for path in mentions.filter_map(|path| std::str::from_utf8(path).ok()) {
        let is_covered = SOURCES.iter().any(|source| {
            path.strip_prefix(source).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        if !is_covered && Path::new(path).extension().is_some_and(|kind| kind == "rs") {
            bail!("{path} goes into the object: list it in xtask/src/ebpf/inputs.rs");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_that_the_digest_does_not_cover_is_found() {
        check_sources(b"\0/ibarr/ibarr-ebpf/src/decide.rs\0").expect("covered");
        check_sources(b"\0/ibarr/ibarr-common/src/map/gid.rs\0").expect("covered");
        check_sources(b"\0/ibarr/ibarr-common/src/mapping.rs\0").expect_err("another file");
        check_sources(b"\0/ibarr/ibarr-proto/src/lib.rs\0").expect_err("another crate");
    }
}
