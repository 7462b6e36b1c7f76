// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The package for RHEL and its relatives, made by rpmbuild.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{CONFIGURATION, Content, OF_THE_SITE, files, glibc, write};
use crate::process;
use crate::tools;

/// Makes the package in `target/package`.
pub(super) fn make(content: &Content<'_>) -> Result<PathBuf> {
    let checkout = content.workspace.root();
    let directory = &content.directory;
    let top = directory.join("rpm");
    if top.exists() {
        fs::remove_dir_all(&top)?;
    }
    let root = top.join("root");
    content.install(&root)?;
    content.licences(&root)?;
    // rpm replaces it if it is as a package has made it, and puts a new one beside an edited one.
    write(&root.join("etc/ibarr/ibarr.toml"), &fs::read(root.join(CONFIGURATION))?, 0o644)?;
    let zsh = root.join("usr/share/zsh");
    fs::rename(zsh.join("vendor-completions"), zsh.join("site-functions"))?;

    let template = fs::read_to_string(checkout.join("pkg/rpm/ibarr.spec"))?;
    let spec = template
        .replace("@VERSION@", &content.version)
        .replace("@MAINTAINER@", &content.maintainer)
        .replace("@HOMEPAGE@\n", &content.homepage("URL"))
        .replace("@DATE@", &content.date("+%a %b %d %Y")?)
        .replace("@GLIBC@", &glibc::needed(&fs::read(&content.ibarr)?)?.to_string())
        .replace("@ROOT@", root.to_str().context("the checkout's path is not UTF-8")?)
        .replace("@FILES@", &list(&root)?);
    let path = top.join("ibarr.spec");
    write(&path, spec.as_bytes(), 0o644)?;

    let toolbox = tools::ensure(content.workspace, &[&tools::RPM])?;
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.env("PATH", toolbox.path()?).env("SOURCE_DATE_EPOCH", &content.epoch);
    if let Some(root) = toolbox.root(&tools::RPM) {
        // Else it looks for its configuration in this machine's directories.
        rpmbuild.env("RPM_CONFIGDIR", root.join("usr/lib/rpm"));
    }
    for (name, value) in [
        ("_topdir", top.as_os_str()),
        ("_dbpath", top.join("db").as_os_str()),
        ("_build_id_links", "none".as_ref()),
        // The program is stripped, and the bytes are to be the same each time.
        ("__os_install_post", "%{nil}".as_ref()),
        ("debug_package", "%{nil}".as_ref()),
        ("_buildhost", "localhost".as_ref()),
        ("use_source_date_epoch_as_buildtime", "1".as_ref()),
        ("clamp_mtime_to_source_date_epoch", "1".as_ref()),
        // RHEL 9 reads both; one thread gives the same bytes each time.
        ("_binary_payload", "w6.xzdio".as_ref()),
    ] {
        let mut define = format!("{name} ");
        define.push_str(value.to_str().context("the checkout's path is not UTF-8")?);
        rpmbuild.arg("--define").arg(define);
    }
    let architecture = content.architecture.rust();
    rpmbuild.args(["--target", architecture, "--quiet", "-bb"]).arg(&path);
    process::output(&mut rpmbuild)?;
    let name = format!("ibarr-{}-1.{}.rpm", content.version, architecture);
    let package = directory.join(&name);
    fs::rename(top.join("RPMS").join(architecture).join(name), &package)?;
    Ok(package)
}

/// The lines of `%files`: each file with its mode, as root's.
fn list(root: &Path) -> Result<String> {
    let mut lines = vec!["%defattr(-,root,root,-)".to_owned()];
    lines.push("%dir /etc/ibarr".to_owned());
    lines.extend(OF_THE_SITE.map(|directory| format!("%dir /{directory}")));
    for file in files(root)? {
        let file = format!("/{}", file.to_str().context("a file's name is not UTF-8")?);
        let kind = match file.as_str() {
            "/etc/ibarr/ibarr.toml" => "%config(noreplace) ",
            _ if file.starts_with("/usr/share/doc/") => "%doc ",
            _ => "",
        };
        lines.push(format!("{kind}{file}"));
    }
    Ok(lines.join("\n"))
}
