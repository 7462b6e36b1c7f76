// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Checks our kernel module with the kernel's style checker, `scripts/checkpatch.pl` of the kernel's
//! sources in Debian's package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::workspace::Workspace;
use crate::{process, tools};

/// The directory that is checked.
const SOURCES: &str = "ibtun/module";

/// The only file that may compare the kernel's version. The rest is as the kernel itself would have it.
const OLD_KERNELS: &str = "kernels.h";

/// The script, and the files that it reads from its own directory.
const FILES: [&str; 3] = ["checkpatch.pl", "const_structs.checkpatch", "spelling.txt"];

/// Code in a wrong style without a licence, which the script must refuse.
const WRONG: &str = "void wrong ( void )\n{\n    if(1)return ;\n}\n";

/// Prints all findings, and fails if there are any.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let script = script(workspace)?;
    let wrong = script.with_file_name("wrong.c");
    fs::write(&wrong, WRONG).with_context(|| wrong.display().to_string())?;
    let outcome = checkpatch(&script, &[wrong]).stdout(Stdio::null()).status();
    // The script ends with 255 if perl cannot run it.
    ensure!(outcome?.code() == Some(1), "checkpatch.pl does not find the mistakes of a wrong file");
    let sources = sources(&workspace.root().join(SOURCES))?;
    let is_old: fn(&PathBuf) -> bool = |path| path.ends_with(OLD_KERNELS);
    let (old_kernels, others): (Vec<_>, Vec<_>) = sources.iter().cloned().partition(is_old);
    process::run(&mut checkpatch(&script, &others))?;
    let old_kernels = &mut checkpatch(&script, &old_kernels);
    process::run(old_kernels.arg("--ignore=LINUX_VERSION_CODE,CONSTANT_COMPARISON"))?;
    println!("checkpatch.pl --strict finds nothing in {} files", sources.len());
    Ok(())
}

fn checkpatch(script: &Path, sources: &[PathBuf]) -> Command {
    let mut command = Command::new("perl");
    command.arg(script).args(["--strict", "--no-tree", "--no-summary", "--terse", "--show-types"]);
    command.arg("--file").args(sources);
    command
}

/// The path of the script, which is unpacked once for each version of the sources.
fn script(workspace: &Workspace) -> Result<PathBuf> {
    tools::which("perl").context("checkpatch.pl is written in Perl: install perl")?;
    let unpacked = tools::unpacked(workspace, &tools::LINUX_SOURCE)?;
    let packed = unpacked.prefix.join("root/usr/src/linux-source-6.1.tar.xz");
    let version = unpacked.packages.iter().find_map(|name| name.strip_prefix("linux-source-6.1 "));
    let version = version.context("no linux-source-6.1 was unpacked")?;
    let directory = workspace.target().join(format!("checkpatch-{version}"));
    if !directory.exists() {
        // Unpack to another name and rename, so that an interrupted run leaves no incomplete directory.
        let aside = workspace.target().join("checkpatch.partial");
        fs::create_dir_all(&aside).with_context(|| aside.display().to_string())?;
        let mut tar = Command::new("tar");
        tar.env("PATH", tools::ensure(workspace, &[&tools::XZ])?.path()?);
        // Only the first occurrence of each file, so that tar stops after the last one.
        tar.args(["--extract", "--occurrence=1", "--strip-components=2", "--directory"]);
        tar.arg(&aside).arg("--file").arg(&packed);
        tar.args(FILES.map(|file| format!("linux-source-6.1/scripts/{file}")));
        process::output(&mut tar)?;
        fs::rename(&aside, &directory).with_context(|| directory.display().to_string())?;
    }
    Ok(directory.join(FILES[0]))
}

/// All C files below `directory`.
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
        bail!("{} has no C files", directory.display());
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
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(SOURCES);
        // One of them is in a directory.
        let headers = names(&module).into_iter().filter(|name| name == "ibtun.h").count();
        assert_eq!(headers, 2);
        assert!(names(&module).contains(&"device.c".into()));
        assert!(sources(Path::new(env!("CARGO_MANIFEST_DIR"))).is_err());
    }
}
