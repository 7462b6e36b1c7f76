// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs of Debian packages in a guest, with their libraries.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _};

use super::image::Program;
use crate::process;

/// The directory of libraries in the guest. `ibtun/guest/src/init.rs` has the same.
const DIRECTORY: &str = "/lib64";

/// The program `name` of the packages unpacked in `root`, and its libraries. Libraries that are not in
/// `root` come from the machine, because packages that it has are not unpacked.
pub(super) fn program(root: &Path, name: &str) -> Result<Vec<Program>> {
    let candidates = ["usr/sbin", "usr/bin", "sbin", "bin"].map(|dir| root.join(dir).join(name));
    // `/sbin/ip -> /bin/ip` leads out of the packages.
    let executable = candidates.into_iter().find(|path| path.is_file() && !path.is_symlink());
    let executable =
        executable.with_context(|| format!("{} has no program {name}", root.display()))?;
    linked(root, name, &executable)
}

/// A program that is called `name` in the guest, and its libraries, as in [`program`].
pub(super) fn linked(root: &Path, name: &str, executable: &Path) -> Result<Vec<Program>> {
    let content = fs::read(executable).with_context(|| executable.display().to_string())?;
    let loader = interpreter(&content).with_context(|| executable.display().to_string())?;
    let mut programs = needed(root, &loader, executable)?;
    programs.push(Program { path: format!("/bin/{name}"), executable: executable.to_owned() });
    programs.push(Program { path: loader.clone(), executable: loader.into() });
    Ok(programs)
}

/// A library of the packages unpacked in `root` that a program loads by its name, and the further
/// libraries that it needs. It is in the same `place` there and in the guest.
pub(super) fn plugin(root: &Path, place: &str) -> Result<Vec<Program>> {
    const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
    let executable = root.join(place.trim_start_matches('/'));
    let mut programs = needed(root, LOADER, &executable)?;
    programs.push(Program { path: place.to_owned(), executable });
    Ok(programs)
}

/// The files of a directory of the packages unpacked in `root`, and the libraries that they need. It is in
/// the same `place` there and in the guest. Links, and names that `leave_out` is true of, are left out.
pub(super) fn directory(
    root: &Path,
    place: &str,
    leave_out: &dyn Fn(&str) -> bool,
) -> Result<Vec<Program>> {
    let directory = root.join(place.trim_start_matches('/'));
    let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
    let mut programs = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().context("a file's name is not UTF-8")?;
        let place = format!("{place}/{name}");
        let kind = entry.file_type()?;
        if leave_out(name) || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            programs.extend(self::directory(root, &place, leave_out)?);
        } else if entry.path().extension() == Some(OsStr::new("so")) {
            programs.extend(plugin(root, &place)?);
        } else {
            programs.push(Program { path: place, executable: entry.path() });
        }
    }
    Ok(programs)
}

/// The files of a directory of the packages unpacked in `root`, as they are, in the same place below the directory
/// `other` of the guest: what belongs to another C library than the guest's. Names that `leave_out` is true of are
/// left out.
pub(super) fn tree(
    root: &Path,
    place: &str,
    other: &str,
    leave_out: &dyn Fn(&str) -> bool,
) -> Result<Vec<Program>> {
    let directory = root.join(place.trim_start_matches('/'));
    let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
    let mut programs = Vec::new();
    for entry in entries {
        let executable = entry?.path();
        let name = executable.file_name().and_then(OsStr::to_str);
        let name = name.context("a file's name is not UTF-8")?;
        let place = format!("{place}/{name}");
        if leave_out(name) {
            continue;
        }
        if executable.is_dir() {
            programs.extend(tree(root, &place, other, leave_out)?);
        } else if executable.is_file() {
            programs.push(Program { path: format!("{other}{place}"), executable });
        }
    }
    Ok(programs)
}

/// The libraries of a program or library.
fn needed(root: &Path, loader: &str, executable: &Path) -> Result<Vec<Program>> {
    let own = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|dir| root.join(dir));
    let path = std::env::join_paths(own).context("a directory name holds a colon")?;
    let listed = list(loader, executable, &path)?;
    let mut programs = Vec::new();
    for library in libraries(&listed)? {
        let file = library.file_name().and_then(OsStr::to_str).context("a library's name")?;
        programs.push(Program { path: format!("{DIRECTORY}/{file}"), executable: library });
    }
    Ok(programs)
}

/// The loader that a program names.
fn interpreter(program: &[u8]) -> Result<String> {
    let elf: ElfFile64<'_> = ElfFile64::parse(program).context("not a program")?;
    let section = elf.section_by_name(".interp").context("it needs no libraries")?;
    let path = String::from_utf8(section.data()?.to_vec())?;
    Ok(path.trim_end_matches('\0').to_owned())
}

/// The output of ldd.
fn list(loader: &str, program: &Path, library_path: &OsStr) -> Result<String> {
    let mut command = Command::new(loader);
    command.env("LD_LIBRARY_PATH", library_path).arg("--list").arg(program);
    process::output(&mut command)
}

/// The files in ldd's list, without the loader and the kernel's own library.
fn libraries(listed: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for line in listed.lines() {
        let Some((name, place)) = line.trim().split_once(" => ") else { continue };
        if place.starts_with("not found") {
            bail!("library {name} is neither among its packages nor on this machine");
        }
        files.push(place.split(" (0x").next().unwrap_or(place).into());
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_without_the_loader() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibbpf.so.1 => /t/a b/libbpf.so.1 (0x00007f85)\n\
                      \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f84)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f86)\n";
        let files = libraries(listed).expect("all there");
        let expected = ["/t/a b/libbpf.so.1", "/lib/x86_64-linux-gnu/libc.so.6"].map(PathBuf::from);
        assert_eq!(files, expected);
    }

    #[test]
    fn library_that_is_nowhere_is_an_error() {
        let error = libraries("\tlibelf.so.1 => not found\n").expect_err("not found").to_string();
        assert!(error.contains("libelf.so.1"), "{error}");
    }
}
