// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tools that a machine lacks, unpacked from Debian packages into `target/tools`.
//!
//! This does not touch the system and needs no root: apt resolves and downloads with a state of its own
//! (see [`apt`]), and the packages are only unpacked. Small wrappers in `target/tools/<set>/bin` start
//! their programs with the libraries beside them.

mod apt;
mod sets;
mod sources;
mod zig;

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use self::apt::{Apt, Fetched};
use self::sets::SETS;
pub(crate) use self::sets::{
    BPFTOOL, BUSYBOX_ARM64, ETHTOOL, GLIBC_ARM64, IPROUTE2, LIBFUZZER, LINUX_5_10, LINUX_6_1,
    LINUX_6_12, LINUX_ARM64, LINUX_NEWEST, LINUX_SOURCE, LOWDOWN, MMDEBSTRAP, NFS, NFTABLES,
    NODE_EXPORTER, OPENSM, PERFTEST, PROMETHEUS, PYVERBS, PYVERBS_13, QEMU, QEMU_ARM, QEMU_USER,
    RDMA, REPOSITORY, RPM, RUST_ARM64, SPARSE, STRACE, TMUX, UCX, VALGRIND, XZ,
};
pub(crate) use self::zig::Zig;
use crate::process;
use crate::workspace::Workspace;

/// Packages that are unpacked together.
pub(crate) struct Set {
    /// Its name on the command line and under `target/tools`.
    pub(crate) name: &'static str,
    /// Its purpose, for `cargo xtask tools`.
    pub(crate) purpose: &'static str,
    /// If the machine has all of these programs, xtask uses them and unpacks nothing. If the list is empty,
    /// the packages are always unpacked.
    pub(crate) programs: &'static [&'static str],
    /// Debian packages. Dependencies that the machine lacks come with them.
    pub(crate) packages: &'static [&'static str],
    /// Suites besides those of the machine's own release, such as
    /// `bookworm-backports`. A package is taken from them only as `package/suite`, or if no
    /// other suite has it.
    pub(crate) suites: &'static [&'static str],
    /// How the names of those packages begin that are unpacked, if not all are: another release's kernel needs
    /// no compiler of that release here.
    pub(crate) only: &'static [&'static str],
}

/// List or fetch the tools that other commands use
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sets to fetch [default: list them all]
    names: Vec<String>,
    /// Fetch a set even if the machine has its programs
    #[arg(long, requires = "names")]
    private: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.names.is_empty() {
        return list(workspace);
    }
    let store = Store::new(workspace);
    let sets = args.names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
    for set in sets {
        match set.on_this_machine() {
            Some(programs) if !args.private => println!("{}: {}", set.name, join(&programs)),
            _ => println!("{}: {}", set.name, store.ensure(set)?.display()),
        }
    }
    Ok(())
}

/// Programs that [`ensure`] found or fetched.
pub(crate) struct Toolbox {
    /// The directories of fetched sets.
    prefixes: Vec<PathBuf>,
}

impl Toolbox {
    /// A PATH for them: the fetched sets, the caller's own PATH, and the `sbin` directories, which Debian
    /// leaves out of ordinary users' PATH.
    pub(crate) fn path(&self) -> Result<OsString> {
        let own = env::var_os("PATH").unwrap_or_default();
        let bins = self.prefixes.iter().map(|prefix| prefix.join("bin"));
        let path = bins.chain(env::split_paths(&own)).chain(admin_paths());
        env::join_paths(path).context("a directory name holds a colon")
    }

    /// The root directory of the unpacked `set`, unless the machine itself has its programs.
    pub(crate) fn root(&self, set: &Set) -> Option<PathBuf> {
        let prefix = self.prefixes.iter().find(|prefix| prefix.ends_with(set.name))?;
        Some(prefix.join("root"))
    }
}

/// Makes sure that the programs of `sets` can run.
///
/// # Errors
/// The error names the set, why it cannot be fetched, and what to install instead.
pub(crate) fn ensure(workspace: &Workspace, sets: &[&Set]) -> Result<Toolbox> {
    let store = Store::new(workspace);
    let mut prefixes = Vec::new();
    for set in sets {
        if set.on_this_machine().is_none() {
            prefixes.push(store.ensure(set)?);
        }
    }
    Ok(Toolbox { prefixes })
}

/// The directory of the unpacked packages of `set`, for files that are no programs.
///
/// # Errors
/// As for [`ensure`].
pub(crate) fn root(workspace: &Workspace, set: &Set) -> Result<PathBuf> {
    Ok(Store::new(workspace).ensure(set)?.join("root"))
}

/// How to reach the archive of a Debian suite.
pub(crate) struct Archive {
    /// A `.sources` file: the suite and its security updates.
    pub(crate) sources: PathBuf,
    /// A file of apt's options.
    pub(crate) options: PathBuf,
}

/// Writes the files of the archive of `suite` into `directory`.
pub(crate) fn archive(directory: &Path, suite: &str) -> Result<Archive> {
    let archive =
        Archive { sources: directory.join("debian.sources"), options: directory.join("apt.conf") };
    fs::write(&archive.sources, sources::of_suite(suite))?;
    fs::write(&archive.options, apt::options()?)?;
    Ok(archive)
}

pub(crate) struct Unpacked {
    /// Its directory: `bin/` has its programs, `root/` its packages.
    pub(crate) prefix: PathBuf,
    /// Name and version of each package in it.
    pub(crate) packages: Vec<String>,
}

/// Makes sure that `set` is unpacked, whether or not the machine has its programs.
///
/// # Errors
/// As for [`ensure`].
pub(crate) fn unpacked(workspace: &Workspace, set: &Set) -> Result<Unpacked> {
    let prefix = Store::new(workspace).ensure(set)?;
    let stamp = fs::read_to_string(prefix.join(STAMP))?;
    Ok(Unpacked { prefix, packages: stamp.lines().skip(1).map(str::to_owned).collect() })
}

fn list(workspace: &Workspace) -> Result<()> {
    let store = Store::new(workspace);
    for set in SETS {
        let place = match set.on_this_machine() {
            Some(programs) => join(&programs),
            None if store.has(set)? => store.prefix(set).display().to_string(),
            None => "not here yet".to_owned(),
        };
        println!("{:<10} {} ({place})", set.name, set.purpose);
    }
    Ok(())
}

fn find(name: &str) -> Result<&'static Set> {
    SETS.iter().copied().find(|set| set.name == name).with_context(|| {
        let names: Vec<_> = SETS.iter().map(|set| set.name).collect();
        format!("there is no set of tools {name:?}, only {}", names.join(", "))
    })
}

impl Set {
    /// The paths of the machine's own programs, if it has all of them.
    fn on_this_machine(&self) -> Option<Vec<PathBuf>> {
        if self.programs.is_empty() {
            return None;
        }
        self.programs.iter().map(|program| which(program)).collect()
    }

    /// The first line of [`STAMP`], which changes with the set.
    fn fingerprint(&self) -> String {
        format!("# {} from {}", self.packages.join(" "), self.suites.join(" ")).trim_end().into()
    }
}

/// `target/tools`.
struct Store {
    root: PathBuf,
}

/// The file that lists the packages of a prefix. A prefix without it, or with that of another set, does
/// not count.
const STAMP: &str = "packages.txt";

impl Store {
    fn new(workspace: &Workspace) -> Self {
        Self { root: workspace.target().join("tools") }
    }

    fn prefix(&self, set: &Set) -> PathBuf {
        self.root.join(set.name)
    }

    fn has(&self, set: &Set) -> Result<bool> {
        let stamp = self.prefix(set).join(STAMP);
        match fs::read_to_string(&stamp) {
            Ok(text) => Ok(text.lines().next() == Some(&set.fingerprint())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("{} is unreadable", stamp.display())),
        }
    }

    /// The prefix of `set`, which is unpacked first if needed: `bin/` has its programs, `root/` its packages.
    fn ensure(&self, set: &Set) -> Result<PathBuf> {
        let prefix = self.prefix(set);
        if self.has(set)? {
            return Ok(prefix);
        }
        fs::create_dir_all(&self.root)
            .with_context(|| format!("{} cannot be made", self.root.display()))?;
        let lock = File::create(self.root.join("lock")).context("target/tools/lock")?;
        lock.lock().context("target/tools/lock cannot be locked")?;
        // Another xtask may have unpacked it while we waited for the lock.
        if !self.has(set)? {
            self.unpack(set, &prefix).with_context(|| {
                let packages = set.packages.join(" ");
                format!(
                    "tools: {} cannot be fetched; to go on without, install: {packages}",
                    set.name
                )
            })?;
        }
        Ok(prefix)
    }

    fn unpack(&self, set: &Set, prefix: &Path) -> Result<()> {
        if which("apt-get").is_none() || which("dpkg-deb").is_none() {
            bail!("this system has no apt-get and dpkg-deb");
        }
        let apt = Apt::new(&self.root, set)?;
        let fetched = apt.fetch(set)?;

        // Unpack to another name and rename, so that an interrupted run leaves no incomplete prefix.
        let aside = self.root.join(format!("{}.partial", set.name));
        remove_all(&aside)?;
        let root = aside.join("root");
        fs::create_dir_all(&root)?;
        for package in &fetched {
            process::run(Command::new("dpkg-deb").arg("-x").arg(&package.file).arg(&root))?;
        }
        write_wrappers(&root, &aside.join("bin"))?;
        write_starters(&root)?;
        write_stamp(&aside.join(STAMP), set, &fetched)?;
        remove_all(prefix)?;
        fs::rename(&aside, prefix)?;
        for package in &fetched {
            fs::remove_file(&package.file)?;
        }
        Ok(())
    }
}

fn write_stamp(path: &Path, set: &Set, fetched: &[Fetched]) -> Result<()> {
    let mut stamp = File::create(path)?;
    writeln!(stamp, "{}", set.fingerprint())?;
    for Fetched { name, version, .. } in fetched {
        writeln!(stamp, "{name} {version}")?;
    }
    Ok(())
}

/// Writes a shell script in `bin` for each program under `root`. The scripts find their prefix by their
/// own path, so a checkout can be moved.
fn write_wrappers(root: &Path, bin: &Path) -> Result<()> {
    fs::create_dir_all(bin)?;
    let libraries = library_dirs(root)?
        .iter()
        .map(|dir| format!("$prefix/root/{dir}"))
        .collect::<Vec<_>>()
        .join(":");
    let valgrind = "usr/libexec/valgrind";
    let mut variables = String::new();
    if root.join(valgrind).exists() {
        variables = format!("export VALGRIND_LIB=\"$prefix/root/{valgrind}\"\n");
    }
    for dir in ["usr/bin", "usr/sbin", "bin", "sbin"] {
        let Ok(entries) = fs::read_dir(root.join(dir)) else { continue };
        for entry in entries {
            let entry = entry?;
            // `/sbin/ip -> /bin/ip` leads out of the prefix; its target has a wrapper as well.
            if fs::read_link(entry.path()).is_ok_and(|target| target.is_absolute()) {
                continue;
            }
            let name = entry.file_name();
            let name = name.to_str().context("a program's name is not UTF-8")?;
            let script = format!(
                "#!/bin/sh\n\
                 prefix=\"${{0%/*}}/..\"\n\
                 LD_LIBRARY_PATH=\"{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"\n\
                 export LD_LIBRARY_PATH\n\
                 {variables}\
                 exec \"$prefix/root/{dir}/{name}\" \"$@\"\n"
            );
            let path = bin.join(name);
            fs::write(&path, script)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// Where a C library is unpacked, if it is newer than this machine's.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Replaces each program of a kernel's build system under `root` by a script that starts it with the C library
/// under `root`, if there is one. make names these programs by their paths, and so does one of them another.
fn write_starters(root: &Path) -> Result<()> {
    if !root.join(LIBRARIES).join(LOADER).exists() {
        return Ok(());
    }
    // Directories below `root`, each with the way back.
    let mut directories = vec![(root.join("usr/lib"), "../..".to_owned())];
    while let Some((directory, back)) = directories.pop() {
        let is_top = directory.ends_with("usr/lib");
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let (path, kind, name) = (entry.path(), entry.file_type()?, entry.file_name());
            if is_top && !name.as_encoded_bytes().starts_with(b"linux-kbuild-") {
                continue;
            }
            if kind.is_dir() {
                directories.push((path, format!("{back}/..")));
            } else if kind.is_file() && fs::read(&path)?.starts_with(b"\x7fELF") {
                let mut program = path.clone().into_os_string();
                program.push(".elf");
                fs::rename(&path, &program)?;
                let script = format!(
                    "#!/bin/sh\n\
                     libraries=\"${{0%/*}}/{back}/{LIBRARIES}\"\n\
                     exec \"$libraries/{LOADER}\" --library-path \"$libraries\" --argv0 \"$0\" \"$0.elf\" \"$@\"\n"
                );
                fs::write(&path, script)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            }
        }
    }
    Ok(())
}

/// The library directories under `root`, relative to it.
fn library_dirs(root: &Path) -> Result<Vec<String>> {
    let mut dirs = Vec::new();
    for dir in ["usr/lib", "lib"] {
        let Ok(entries) = fs::read_dir(root.join(dir)) else { continue };
        dirs.push(dir.to_owned());
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().context("a library's name is not UTF-8")?;
            // A multiarch directory, such as x86_64-linux-gnu.
            if entry.file_type()?.is_dir() && name.contains("-linux-gnu") {
                dirs.push(format!("{dir}/{name}"));
            }
        }
    }
    Ok(dirs)
}

/// The machine's program `name`, on PATH or in an `sbin` directory.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(admin_paths()).map(|dir| dir.join(name)).find(|file| {
        fs::metadata(file).is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
    })
}

fn admin_paths() -> impl Iterator<Item = PathBuf> {
    ["/usr/local/sbin", "/usr/sbin", "/sbin"].into_iter().map(PathBuf::from)
}

fn remove_all(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", dir.display()))
        }
        _ => Ok(()),
    }
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_names_are_distinct() {
        for (index, set) in SETS.iter().enumerate() {
            assert!(SETS.iter().skip(index + 1).all(|other| other.name != set.name));
            assert!(!set.packages.is_empty());
        }
    }

    #[test]
    fn unknown_set_is_an_error_that_lists_the_known_ones() {
        let error = find("iproute").err().expect("no such set").to_string();
        assert!(error.contains("iproute2"), "{error}");
    }

    #[test]
    fn prefix_of_another_definition_does_not_count() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store { root: dir.path().to_owned() };
        let prefix = store.prefix(&IPROUTE2);
        fs::create_dir_all(&prefix).expect("temporary directory");
        assert!(!store.has(&IPROUTE2).expect("readable"));
        write_stamp(&prefix.join(STAMP), &BPFTOOL, &[]).expect("writable");
        assert!(!store.has(&IPROUTE2).expect("readable"));
        write_stamp(&prefix.join(STAMP), &IPROUTE2, &[]).expect("writable");
        assert!(store.has(&IPROUTE2).expect("readable"));
    }

    #[test]
    fn wrapper_runs_its_program_with_its_libraries_from_any_place() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let dir = dir.path();
        let (before, after) = (dir.join("before"), dir.join("after"));
        let program = before.join("root/usr/sbin/show");
        fs::create_dir_all(before.join("root/usr/sbin")).expect("temporary directory");
        fs::create_dir_all(before.join("root/usr/lib/x86_64-linux-gnu"))
            .expect("temporary directory");
        fs::write(&program, "#!/bin/sh\necho \"$LD_LIBRARY_PATH $1\"\n").expect("writable");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("writable");
        write_wrappers(&before.join("root"), &before.join("bin")).expect("writable");
        fs::rename(&before, &after).expect("same file system");

        let said = process::output(Command::new(after.join("bin/show")).arg("a b")).expect("runs");
        let root = after.join("bin/../root");
        assert!(said.contains(&format!("{}/usr/lib/x86_64-linux-gnu", root.display())), "{said}");
        assert!(said.ends_with(" a b\n"), "{said}");
    }

    #[test]
    fn program_of_kbuild_starts_with_the_library_beside_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = dir.path();
        let scripts = root.join("usr/lib/linux-kbuild-7/scripts");
        let headers = root.join("usr/src/headers");
        for made in [&scripts, &headers, &root.join(LIBRARIES)] {
            fs::create_dir_all(made).expect("temporary directory");
        }
        // The headers' packages have such links.
        std::os::unix::fs::symlink("../../lib/linux-kbuild-7/scripts", headers.join("scripts"))
            .expect("a link");
        for text in ["link.sh", "fixdep"] {
            let content: &[u8] = if text == "fixdep" { b"\x7fELF" } else { b"#!/bin/sh\n" };
            fs::write(scripts.join(text), content).expect("writable");
        }
        write_starters(root).expect("there is no library");
        assert_eq!(fs::read(scripts.join("fixdep")).expect("readable"), b"\x7fELF");

        let loader = root.join(LIBRARIES).join(LOADER);
        fs::write(&loader, "#!/bin/sh\necho \"$@\"\n").expect("writable");
        fs::set_permissions(&loader, fs::Permissions::from_mode(0o755)).expect("writable");
        write_starters(root).expect("written");
        assert_eq!(fs::read(scripts.join("link.sh")).expect("readable"), b"#!/bin/sh\n");
        let named = headers.join("scripts/fixdep");
        let said = process::output(Command::new(&named).arg("a b")).expect("runs");
        let named = named.display();
        assert!(said.ends_with(&format!("--argv0 {named} {named}.elf a b\n")), "{said}");
    }
}
