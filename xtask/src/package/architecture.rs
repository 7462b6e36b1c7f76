// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The architectures of packages, and cargo for them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use object::Endianness;
use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::FileHeader as _;

use super::glibc;
use crate::tools;
use crate::workspace::Workspace;

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    pub(crate) fn own() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 }
    }

    /// That of an ELF file.
    pub(super) fn of(program: &[u8]) -> Result<Self> {
        let header = FileHeader64::<Endianness>::parse(program)?;
        match header.e_machine(header.endian()?) {
            EM_X86_64 => Ok(Self::Amd64),
            EM_AARCH64 => Ok(Self::Arm64),
            other => bail!("a program for machine {other}, for which there are no packages"),
        }
    }

    /// Its name in Debian.
    pub(super) fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Its name for rustc, rpm and the kernel.
    pub(super) fn rust(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }
}

/// cargo for an architecture, with Zig as linker.
pub(crate) struct Builder {
    zig: tools::Zig,
    /// With the C library's version behind it, as cargo-zigbuild takes it.
    target: String,
    target_directory: PathBuf,
    /// The compiler, if not this machine's.
    rustc: Option<PathBuf>,
}

impl Builder {
    /// Fetches what is missing: Zig, and for another architecture a compiler with its standard library.
    pub(crate) fn ensure(workspace: &Workspace, architecture: Architecture) -> Result<Self> {
        let rustc = match (Architecture::own(), architecture) {
            (Architecture::Amd64, Architecture::Arm64) => {
                Some(tools::unpacked(workspace, &tools::RUST_ARM64)?.prefix.join("bin/rustc"))
            }
            (Architecture::Arm64, Architecture::Amd64) => {
                bail!("package: make packages for amd64 on a machine of that architecture")
            }
            _ => None,
        };
        Ok(Self {
            zig: tools::Zig::ensure(workspace)?,
            target: format!("{}-unknown-linux-gnu.{}", architecture.rust(), glibc::OLDEST),
            target_directory: workspace.target().join("package"),
            rustc,
        })
    }

    /// cargo with `arguments`, in `directory`. The first one is `zigbuild` or `test`.
    pub(crate) fn cargo(&self, directory: &Path, arguments: &[&str]) -> Command {
        let mut cargo = self.zig.cargo(directory, arguments);
        cargo.args(["--target", &self.target, "--target-dir"]).arg(&self.target_directory);
        if let Some(rustc) = &self.rustc {
            cargo.env("RUSTC", rustc);
        }
        cargo
    }
}
