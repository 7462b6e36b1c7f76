// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The Debian packages of the software fabric: `ibfab`, and the sources of its kernel module, which DKMS
//! builds for each kernel.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::deb::{self, About};
use super::{Content, compress, files, write};
use crate::workspace::Workspace;

const MODULE: &str = "ibtun";

/// The directory of both, and that of the module's sources.
const HOUSE: &str = "ibtun";
const SOURCES: &str = "ibtun/module";

/// Makes both packages in `target/package`.
pub(super) fn make(content: &Content<'_>) -> Result<[PathBuf; 2]> {
    Ok([module(content)?, program(content)?])
}

/// The module's sources: their directory, and their paths that begin there.
pub(crate) fn module_files(workspace: &Workspace) -> Result<(PathBuf, Vec<PathBuf>)> {
    let directory = workspace.root().join(SOURCES);
    let files = files(&directory)?;
    Ok((directory, files))
}

fn module(content: &Content<'_>) -> Result<PathBuf> {
    let name = "ibtun-dkms";
    let root = deb::begin(content, name)?;
    let sources = root.join(format!("usr/src/{MODULE}-{}", content.version));
    let (from, files) = module_files(content.workspace)?;
    for file in files {
        write(&sources.join(&file), &fs::read(from.join(&file))?, 0o644)?;
    }
    let doc = root.join("usr/share/doc").join(name);
    let house = content.workspace.root().join(HOUSE);
    for document in ["README.md", "CHANGELOG.md"] {
        write(&doc.join(document), &read(&house.join(document))?, 0o644)?;
    }
    compress(&doc.join("CHANGELOG.md"))?;
    let about = About {
        name,
        templates: &format!("ibtun/pkg/{name}"),
        scripts: &["postinst", "prerm"],
        program: None,
    };
    deb::end(content, &root, &about)
}

fn program(content: &Content<'_>) -> Result<PathBuf> {
    let name = "ibfab";
    let checkout = content.workspace.root();
    let root = deb::begin(content, name)?;
    write(&root.join("usr/sbin/ibfab"), &fs::read(&content.ibfab)?, 0o755)?;
    let doc = root.join("usr/share/doc").join(name);
    for (from, to) in [
        ("ibtun/fabric/README.md", "fabric.md"),
        ("ibtun/fabric/laptop.topo", "examples/laptop.topo"),
    ] {
        write(&doc.join(to), &read(&checkout.join(from))?, 0o644)?;
    }
    content.install_pages(&root, &[("ibtun/fabric/man/ibfab.8.md", name, 8)])?;
    let about = About {
        name,
        templates: &format!("ibtun/pkg/{name}"),
        scripts: &[],
        program: Some(&content.ibfab),
    };
    deb::end(content, &root, &about)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::{Architecture, version};
    use super::*;
    use crate::process;

    fn workspace() -> Workspace {
        Workspace::find().expect("a checkout")
    }

    #[test]
    fn dkms_builds_this_version_of_the_module() {
        let workspace = workspace();
        let conf = workspace.root().join(SOURCES).join("dkms.conf");
        // dkms reads it in a shell.
        let show = format!(
            ". {}; echo $PACKAGE_NAME $PACKAGE_VERSION ${{BUILT_MODULE_NAME[0]}} $AUTOINSTALL",
            conf.display()
        );
        let said = process::output(Command::new("bash").args(["-c", &show])).expect("bash");
        let version = version(&workspace).expect("a version");
        assert_eq!(said.trim(), format!("ibtun {version} ibtun yes"));
    }

    #[test]
    fn package_of_the_module_has_sources_and_no_program() {
        let workspace = workspace();
        let directory = tempfile::tempdir().expect("a directory");
        let content = Content {
            workspace: &workspace,
            directory: directory.path().to_owned(),
            version: version(&workspace).expect("a version"),
            architecture: Architecture::own(),
            ibarr: PathBuf::new(),
            ibfab: PathBuf::new(),
            epoch: "1700000000".to_owned(),
            maintainer: "A <a@example.org>".to_owned(),
            homepage: Some("https://example.org/ibarr".to_owned()),
        };
        let package = module(&content).expect("a package");
        let dpkg = |option: &str| {
            process::output(Command::new("dpkg-deb").arg(option).arg(&package)).expect("dpkg-deb")
        };
        let sources = format!("./usr/src/ibtun-{}", content.version);
        let contents = dpkg("--contents");
        let has = |file: &str| contents.lines().any(|line| line.ends_with(file));
        for file in ["Kbuild", "Makefile", "dkms.conf", "fault.c", "include/uapi/rdma/ibtun.h"] {
            assert!(has(&format!("{sources}/{file}")), "no {file} in {contents}");
        }
        assert!(has("./usr/share/doc/ibtun-dkms/copyright"), "{contents}");
        let is_open = |line: &str| line.starts_with("drwxr-xr-x") || line.starts_with("-rw-r--r--");
        assert!(contents.lines().all(is_open), "{contents}");
        assert!(!contents.contains("upstream") && !contents.contains(".ko"), "{contents}");
        let about = dpkg("--field");
        for field in [
            "Package: ibtun-dkms",
            "Architecture: all",
            "Depends: dkms (>= 2.8)",
            "Homepage: https://example.org/ibarr",
        ] {
            assert!(about.lines().any(|line| line == field), "no {field} in {about}");
        }
        assert!(!about.contains('@') || about.contains("<a@example.org>"), "{about}");
    }
}
