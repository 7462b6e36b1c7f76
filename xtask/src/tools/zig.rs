// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Zig, which links programs for the C library of an older system, and cargo's command for it. Both come from PyPI as
//! programs, and pip compares their digests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process;
use crate::workspace::Workspace;

/// Requirements of pip, with the digests of the files for x86-64.
const REQUIREMENTS: &str = "\
cargo-zigbuild==0.24.1 --hash=sha256:238a1ab54a95053a4eadc34775c81f795a8ad75f80bfed63f3f445f518102375
ziglang==0.17.1 --hash=sha256:ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54
";

/// Where both are unpacked.
pub(crate) struct Zig {
    directory: PathBuf,
}

impl Zig {
    /// Fetches both if needed.
    ///
    /// # Errors
    /// The machine has no pip, or pip cannot fetch them.
    pub(crate) fn ensure(workspace: &Workspace) -> Result<Self> {
        let tools = workspace.target().join("tools");
        let directory = tools.join("zig");
        fs::create_dir_all(&tools)?;
        let lock = File::create(tools.join("zig.lock")).context("target/tools/zig.lock")?;
        lock.lock().context("target/tools/zig.lock cannot be locked")?;
        if fs::read_to_string(directory.join(STAMP)).is_ok_and(|stamp| stamp == REQUIREMENTS) {
            return Ok(Self { directory });
        }
        eprintln!("tools: fetching Zig from PyPI, 103 MB");
        // Unpack to another name and rename, so that an interrupted run leaves no incomplete directory.
        let aside = tools.join("zig.partial");
        super::remove_all(&aside)?;
        fs::create_dir_all(&aside)?;
        fs::write(aside.join(STAMP), REQUIREMENTS)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.args(["--no-deps", "--no-compile", "--require-hashes", "--only-binary=:all:"]);
        pip.arg("--target").arg(&aside).arg("--requirement").arg(aside.join(STAMP));
        process::output(&mut pip)
            .context("tools: Zig cannot be fetched (is python3-pip there?)")?;
        super::remove_all(&directory)?;
        fs::rename(&aside, &directory)?;
        Ok(Self { directory })
    }

    /// cargo with `arguments`, in `directory`. The first one is `zigbuild`.
    pub(crate) fn cargo(&self, directory: &Path, arguments: &[&str]) -> Command {
        let cache = self.directory.join("cache");
        let mut cargo = Command::new(self.directory.join("bin/cargo-zigbuild"));
        cargo.current_dir(directory).args(arguments);
        // A package is seldom built twice in a row.
        cargo.env("CARGO_INCREMENTAL", "0");
        cargo.env("CARGO_ZIGBUILD_ZIG_PATH", self.directory.join("ziglang/zig"));
        cargo.env("CARGO_ZIGBUILD_CACHE_DIR", cache.join("cargo-zigbuild"));
        cargo.env("ZIG_GLOBAL_CACHE_DIR", cache.join("zig"));
        cargo
    }
}

/// Written first, and renamed with the rest.
const STAMP: &str = "requirements.txt";
