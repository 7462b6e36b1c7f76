// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Debian packages, made by dpkg-deb. cargo-deb would have to be compiled on each new machine; the tools
//! of `target/tools` need dpkg-deb anyway.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Content, compress, files, glibc, make_dir, write};
use crate::process;

/// A package whose files are laid out.
pub(super) struct About<'a> {
    pub(super) name: &'a str,
    /// The directory of `control` and the scripts, in which `@VERSION@` and the like are replaced.
    pub(super) templates: &'a str,
    /// Scripts that dpkg runs.
    pub(super) scripts: &'a [&'a str],
    /// The program, whose C library the package depends on. Without one it is for all architectures.
    pub(super) program: Option<&'a Path>,
}

/// Makes the package of the daemon in `target/package`.
pub(super) fn make(content: &Content<'_>) -> Result<PathBuf> {
    let root = begin(content, "ibarr")?;
    content.install(&root)?;
    let about = About {
        name: "ibarr",
        templates: "pkg/deb",
        scripts: &["preinst", "postinst", "prerm", "postrm"],
        program: Some(&content.ibarr),
    };
    end(content, &root, &about)
}

/// An empty directory for the files of a package.
pub(super) fn begin(content: &Content<'_>, name: &str) -> Result<PathBuf> {
    let root = content.directory.join("deb").join(name);
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    make_dir(&root)?;
    Ok(root)
}

/// Makes a package of the files below `root`.
pub(super) fn end(content: &Content<'_>, root: &Path, about: &About<'_>) -> Result<PathBuf> {
    let checkout = content.workspace.root();
    let doc = root.join("usr/share/doc").join(about.name);
    write(&doc.join("copyright"), &fs::read(checkout.join("pkg/deb/copyright"))?, 0o644)?;
    let changelog = doc.join("changelog");
    let date = content.date("--rfc-email")?;
    let entry = format!(
        "{} ({}) unstable; urgency=medium\n\n  * CHANGELOG.md has the changes.\n\n -- {}  {date}\n",
        about.name, content.version, content.maintainer
    );
    write(&changelog, entry.as_bytes(), 0o644)?;
    compress(&changelog)?;

    let (architecture, glibc) = match about.program {
        Some(program) => {
            let glibc = glibc::needed(&fs::read(program)?)?.to_string();
            (content.architecture.debian().to_owned(), glibc)
        }
        None => ("all".to_owned(), String::new()),
    };
    let size = kibibytes(root)?.to_string();
    let filled = |name: &str| -> Result<String> {
        let path = checkout.join(about.templates).join(name);
        let template = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(template
            .replace("@VERSION@", &content.version)
            .replace("@MAINTAINER@", &content.maintainer)
            .replace("@HOMEPAGE@\n", &content.homepage("Homepage"))
            .replace("@ARCHITECTURE@", &architecture)
            .replace("@SIZE@", &size)
            .replace("@GLIBC@", &glibc))
    };
    let sums = sums(root)?;
    let directory = root.join("DEBIAN");
    write(&directory.join("control"), filled("control")?.as_bytes(), 0o644)?;
    write(&directory.join("md5sums"), sums.as_bytes(), 0o644)?;
    for script in about.scripts {
        write(&directory.join(script), filled(script)?.as_bytes(), 0o755)?;
    }

    let file = format!("{}_{}_{architecture}.deb", about.name, content.version);
    let package = content.directory.join(file);
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", &content.epoch);
    build.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]).arg(root);
    process::output(build.arg(&package))?;
    Ok(package)
}

/// Digests of all files, ordered by name.
fn sums(root: &Path) -> Result<String> {
    let mut names = files(root)?;
    names.retain(|name| !root.join(name).is_symlink());
    process::output(Command::new("md5sum").current_dir(root).args(&names))
}

fn kibibytes(root: &Path) -> Result<u64> {
    let mut total = 0;
    for file in files(root)? {
        total += fs::symlink_metadata(root.join(file))?.len().div_ceil(1024);
    }
    Ok(total)
}
