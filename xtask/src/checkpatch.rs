// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Holds our kernel module to the kernel's own idea of style: `scripts/checkpatch.pl` of its
//! sources, as Debian packs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::workspace::Workspace;
use crate::{process, tools};

/// What is held to it.
const SOURCES: &str = "ibtun";

/// The script, and what it reads from beside itself.
const FILES: [&str; 3] = ["checkpatch.pl", "const_structs.checkpatch", "spelling.txt"];

/// Nobody's style, without a licence.
const WRONG: &str = "void wrong ( void )\n{\n    if(1)return ;\n}\n";

/// Fails at the first thing that it does not like, having printed all of them.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let script = script(workspace)?;
    let wrong = script.with_file_name("wrong.c");
    fs::write(&wrong, WRONG).with_context(|| wrong.display().to_string())?;
    let outcome = checkpatch(&script, &[wrong]).stdout(Stdio::null()).status();
    // It ends with 255 where perl cannot run it.
    ensure!(outcome?.code() == Some(1), "checkpatch.pl does not see what is wrong");
    let sources = sources(&workspace.root().join(SOURCES))?;
    process::run(&mut checkpatch(&script, &sources))?;
    println!("checkpatch.pl --strict finds nothing in {} files", sources.len());
    Ok(())
}

fn checkpatch(script: &Path, sources: &[PathBuf]) -> Command {
    let mut command = Command::new("perl");
    command.arg(script).args(["--strict", "--no-tree", "--no-summary", "--terse", "--show-types"]);
    command.arg("--file").args(sources);
    command
}

/// Where the script is, unpacked once for each version of the sources.
fn script(workspace: &Workspace) -> Result<PathBuf> {
    tools::which("perl").context("checkpatch.pl is written in Perl: install perl")?;
    let unpacked = tools::unpacked(workspace, &tools::LINUX_SOURCE)?;
    let packed = unpacked.prefix.join("root/usr/src/linux-source-6.1.tar.xz");
    let version = unpacked.packages.iter().find_map(|name| name.strip_prefix("linux-source-6.1 "));
    let version = version.context("no linux-source-6.1 was unpacked")?;
    let directory = workspace.target().join(format!("checkpatch-{version}"));
    if !directory.exists() {
        // Made aside and renamed, so that a cut leaves nothing that looks whole.
        let aside = workspace.target().join("checkpatch.partial");
        fs::create_dir_all(&aside).with_context(|| aside.display().to_string())?;
        let mut tar = Command::new("tar");
        tar.env("PATH", tools::ensure(workspace, &[&tools::XZ])?.path()?);
        // Of each file the first, so that what is behind the last is not decompressed.
        tar.args(["--extract", "--occurrence=1", "--strip-components=2", "--directory"]);
        tar.arg(&aside).arg("--file").arg(&packed);
        tar.args(FILES.map(|file| format!("linux-source-6.1/scripts/{file}")));
        process::output(&mut tar)?;
        fs::rename(&aside, &directory).with_context(|| directory.display().to_string())?;
    }
    Ok(directory.join(FILES[0]))
}

/// All C below `directory`.
fn sources(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "c" || extension == "h")
            {
                sources.push(path);
            }
        }
    }
    if sources.is_empty() {
        bail!("{} has no C in it", directory.display());
    }
    sources.sort();
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn headers_in_directories_are_sources() {
        let names = |directory: &Path| {
            let sources = sources(directory).expect("readable");
            let names = sources.iter().filter_map(|path| path.file_name());
            names.map(OsStr::to_owned).collect::<Vec<_>>()
        };
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ibtun");
        assert_eq!(
            names(&module),
            ["device.c", "hca.c", "ibtun.h", "ibtun.h", "port.c", "receive.c", "send.c"]
        );
        assert!(sources(Path::new(env!("CARGO_MANIFEST_DIR"))).is_err());
    }
}
