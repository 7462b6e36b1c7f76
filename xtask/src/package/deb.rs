// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The Debian package, made by dpkg-deb. cargo-deb would have to be compiled on each new machine; the tools
//! of `target/tools` need dpkg-deb anyway.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Content, compress, files, glibc, write};
use crate::process;

/// Scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Files below `etc`, which dpkg replaces only if the administrator has not changed them.
const CONFFILES: &str = "/etc/ibarr/ibarr.toml\n";

/// Makes the package in `target/package`.
pub(super) fn make(content: &Content<'_>) -> Result<PathBuf> {
    let checkout = content.workspace.root();
    let directory = content.workspace.target().join("package");
    let root = directory.join("deb");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    content.install(&root)?;
    let doc = root.join("usr/share/doc/ibarr");
    write(&doc.join("copyright"), &fs::read(checkout.join("pkg/deb/copyright"))?, 0o644)?;

    let changelog = doc.join("changelog");
    let date = content.date("--rfc-email")?;
    let entry = format!(
        "ibarr ({}) unstable; urgency=medium\n\n  * CHANGELOG.md has the changes.\n\n -- {}  {date}\n",
        content.version, content.maintainer
    );
    write(&changelog, entry.as_bytes(), 0o644)?;
    compress(&changelog)?;

    let architecture = process::output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let template = fs::read_to_string(checkout.join("pkg/deb/control"))?;
    let control = template
        .replace("@VERSION@", &content.version)
        .replace("@MAINTAINER@", &content.maintainer)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@SIZE@", &kibibytes(&root)?.to_string())
        .replace("@GLIBC@", &glibc::needed(&fs::read(&content.ibarr)?)?.to_string());
    let sums = sums(&root)?;
    let about = root.join("DEBIAN");
    write(&about.join("control"), control.as_bytes(), 0o644)?;
    write(&about.join("conffiles"), CONFFILES.as_bytes(), 0o644)?;
    write(&about.join("md5sums"), sums.as_bytes(), 0o644)?;
    for script in SCRIPTS {
        let source = checkout.join("pkg/deb").join(script);
        write(&about.join(script), &fs::read(&source)?, 0o755)?;
    }

    let package = directory.join(format!("ibarr_{}_{architecture}.deb", content.version));
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", &content.epoch);
    build.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]).arg(&root);
    process::output(build.arg(&package))?;
    Ok(package)
}

/// Digests of all files but the configuration, ordered by name.
fn sums(root: &Path) -> Result<String> {
    let mut names = files(root)?;
    names.retain(|name| !name.starts_with("etc"));
    process::output(Command::new("md5sum").current_dir(root).args(&names))
}

fn kibibytes(root: &Path) -> Result<u64> {
    let mut total = 0;
    for file in files(root)? {
        total += fs::metadata(root.join(file))?.len().div_ceil(1024);
    }
    Ok(total)
}
