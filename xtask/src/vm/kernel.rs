// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Kernels, Debian's or your own: their images and modules.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _};

use super::module::{self, Headers};
use crate::tools::{self, Set};
use crate::workspace::Workspace;

/// A kernel that Debian has packages of.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Version {
    /// Debian 11's, the oldest on which programs answer
    #[value(name = "5.10")]
    V5_10,
    /// Debian 12's
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13's
    #[value(name = "6.12")]
    V6_12,
    /// That of Debian 13's backports
    #[value(name = "newest")]
    Newest,
}

/// Two guests at once.
#[derive(Clone, clap::Args)]
pub(super) struct Pair {
    /// The kernels of the two guests
    #[arg(
        long = "kernels",
        value_name = "VERSION,VERSION",
        value_delimiter = ',',
        default_value = "6.1,6.12"
    )]
    pub(super) pair: Vec<Version>,
}

impl Version {
    /// Those that every scenario runs on.
    pub(super) const ALL: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// Its name on the command line and in file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Newest => "newest",
        }
    }

    fn set(self) -> &'static Set {
        match self {
            Self::V5_10 => &tools::LINUX_5_10,
            Self::V6_1 => &tools::LINUX_6_1,
            Self::V6_12 => &tools::LINUX_6_12,
            Self::Newest => &tools::LINUX_NEWEST,
        }
    }
}

/// A kernel that can be booted, and the headers for its modules.
pub(super) struct Kernel {
    /// A part of the names of its files in `target/vm`.
    pub(super) name: &'static str,
    /// The output of `uname -r` in it.
    pub(super) release: String,
    /// The file that a boot loader loads.
    pub(super) image: PathBuf,
    /// `None` if its packages have none.
    headers: Option<Headers>,
    /// The directory of its modules.
    directory: PathBuf,
    /// Module files by name.
    modules: BTreeMap<String, PathBuf>,
    /// Modules that are part of the image.
    builtin: BTreeSet<String>,
}

/// A module to load.
pub(super) struct Module {
    pub(super) name: String,
    /// An ELF object, not compressed.
    pub(super) object: Vec<u8>,
    /// The names of modules that must be loaded before it.
    needs: Vec<String>,
}

impl Kernel {
    /// Fetches its package if needed.
    pub(super) fn fetch(workspace: &Workspace, version: Version) -> Result<Self> {
        Self::find(version.name(), &tools::root(workspace, version.set())?)
    }

    /// The kernel that was built in `tree`.
    pub(super) fn built(tree: &Path) -> Result<Self> {
        let tree = tree.canonicalize().with_context(|| tree.display().to_string())?;
        let missing =
            || format!("no kernel was built in {}: make bzImage modules there", tree.display());
        let read = |file| fs::read_to_string(tree.join(file)).with_context(missing);
        let image = tree.join("arch/x86/boot/bzImage");
        if !image.is_file() {
            bail!(missing());
        }
        // Some kernels name modules by `.ko` here, later ones by `.o`.
        let order = read("modules.order")?;
        let modules = order.lines().map(|line| tree.join(line).with_extension("ko"));
        Ok(Self {
            name: "tree",
            release: read("include/config/kernel.release")?.trim().to_owned(),
            image,
            builtin: builtin(&read("modules.builtin")?),
            modules: modules.filter_map(|file| Some((module_name(&file)?, file))).collect(),
            headers: Some(Headers { common: tree.clone(), flavour: tree.clone() }),
            directory: tree,
        })
    }

    /// The kernel whose package was unpacked in `root`.
    pub(super) fn find(name: &'static str, root: &Path) -> Result<Self> {
        // Newer packages have both below /usr/lib/modules.
        let places = ["lib/modules", "usr/lib/modules"].map(|place| root.join(place));
        let parent = places.into_iter().find(|place| place.is_dir());
        let parent = parent.with_context(|| format!("{} has no modules", root.display()))?;
        let releases = names(&parent)?;
        let [release] = &releases[..] else {
            bail!("{} should hold one kernel's modules, not {releases:?}", parent.display());
        };
        let directory = parent.join(release);
        let mut modules = BTreeMap::new();
        collect(&directory, &mut modules)?;
        let list = directory.join("modules.builtin");
        let list = fs::read_to_string(&list)
            .with_context(|| format!("{} is unreadable", list.display()))?;
        let images =
            [root.join("boot").join(format!("vmlinuz-{release}")), directory.join("vmlinuz")];
        let image = images.into_iter().find(|image| image.is_file());
        let sources = root.join("usr/src");
        Ok(Self {
            name,
            image: image.with_context(|| format!("{} has no image", root.display()))?,
            headers: sources.is_dir().then(|| Headers::find(&sources, release)).transpose()?,
            release: release.clone(),
            builtin: builtin(&list),
            directory,
            modules,
        })
    }

    /// Builds our own module for it, and adds that to its modules, unless it has one.
    pub(super) fn build_module(&mut self, workspace: &Workspace) -> Result<()> {
        if self.modules.contains_key(module::NAME) {
            return Ok(());
        }
        let headers = self.headers.as_ref();
        let headers = headers.with_context(|| format!("no headers of Linux {}", self.release))?;
        let file = module::build(workspace, headers, &self.release)?;
        self.modules.insert(module::NAME.to_owned(), file);
        Ok(())
    }

    /// The modules `wanted` and their dependencies, in an order in which they can be loaded. Modules that
    /// are built into the kernel are left out.
    pub(super) fn modules(&self, wanted: &[&str], path: &OsStr) -> Result<Vec<Module>> {
        let mut ordered = Vec::new();
        for name in wanted {
            order(name, &mut ordered, &mut BTreeSet::new(), &mut |name| self.module(name, path))?;
        }
        Ok(ordered)
    }

    /// A module. `None` if it is built in.
    fn module(&self, name: &str, path: &OsStr) -> Result<Option<Module>> {
        if self.builtin.contains(name) {
            return Ok(None);
        }
        let file = self.modules.get(name).with_context(|| {
            format!("kernel {} has no module {name} in {}", self.release, self.directory.display())
        })?;
        let object = unpacked(file, path)?;
        let needs = needs(&object).with_context(|| file.display().to_string())?;
        Ok(Some(Module { name: name.to_owned(), object, needs }))
    }
}

/// The names in a `modules.builtin`.
fn builtin(list: &str) -> BTreeSet<String> {
    list.lines().filter_map(|line| module_name(Path::new(line))).collect()
}

/// Appends the module `name` to `ordered`, behind its dependencies. `within` has the modules that lead to
/// this one.
fn order(
    name: &str,
    ordered: &mut Vec<Module>,
    within: &mut BTreeSet<String>,
    find: &mut dyn FnMut(&str) -> Result<Option<Module>>,
) -> Result<()> {
    if ordered.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let Some(module) = find(name)? else { return Ok(()) };
    if !within.insert(name.to_owned()) {
        bail!("module {name} needs itself");
    }
    for needed in &module.needs {
        order(needed, ordered, within, find)?;
    }
    within.remove(name);
    ordered.push(module);
    Ok(())
}

/// Reads a module, which Debian compresses since 6.12. `path` is the PATH for `xz`.
fn unpacked(file: &Path, path: &OsStr) -> Result<Vec<u8>> {
    let content = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => {
            let output = Command::new("xz")
                .env("PATH", path)
                .args(["--decompress", "--stdout"])
                .arg(file)
                .stderr(Stdio::inherit())
                .output()
                .context("xz cannot be run")?;
            if !output.status.success() {
                bail!("xz could not unpack {}: {}", file.display(), output.status);
            }
            output.stdout
        }
        _ => fs::read(file).with_context(|| format!("{} is unreadable", file.display()))?,
    };
    Ok(content)
}

/// The dependencies that `object` lists. depmod finds the same by resolving symbols, when it writes
/// `modules.dep` at the installation of a kernel.
fn needs(object: &[u8]) -> Result<Vec<String>> {
    let elf: ElfFile64<'_> = ElfFile64::parse(object).context("not an ELF object")?;
    let section = elf.section_by_name(".modinfo").context("no .modinfo, so not a module")?;
    let info = section.data()?;
    let depends = info.split(|&byte| byte == 0).find_map(|line| line.strip_prefix(b"depends="));
    let depends = std::str::from_utf8(depends.unwrap_or_default())?;
    Ok(depends.split(',').filter(|name| !name.is_empty()).map(normal).collect())
}

fn collect(directory: &Path, modules: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for name in names(directory)? {
        let path = directory.join(name);
        if path.is_dir() {
            collect(&path, modules)?;
        } else if let Some(name) = module_name(&path) {
            modules.insert(name, path);
        }
    }
    Ok(())
}

/// Makes `snd_hda` of `…/snd-hda.ko.xz`.
fn module_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    Some(normal(name.strip_suffix(".xz").unwrap_or(name).strip_suffix(".ko")?))
}

/// A module's name with `_` for `-`, which the kernel regards as the same.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("{} is unreadable", directory.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_files_are_recognised_by_their_names() {
        let name = |file| module_name(Path::new(file));
        assert_eq!(name("kernel/net/cls_bpf.ko").as_deref(), Some("cls_bpf"));
        assert_eq!(name("sch-ingress.ko.xz").as_deref(), Some("sch_ingress"));
        assert_eq!(name("modules.order"), None);
        assert_eq!(name("tun.xz"), None);
    }

    #[test]
    fn modules_come_once_and_behind_their_dependencies() {
        let table = [("ucm", vec!["cm", "core"]), ("cm", vec!["core"]), ("core", vec!["crc"])];
        let mut find = |name: &str| {
            // `crc` is built in.
            let needs = table.iter().find(|(known, _)| *known == name);
            Ok(needs.map(|(_, needs)| Module {
                name: name.to_owned(),
                object: Vec::new(),
                needs: needs.iter().copied().map(str::to_owned).collect(),
            }))
        };
        let mut ordered = Vec::new();
        for name in ["ucm", "core"] {
            order(name, &mut ordered, &mut BTreeSet::new(), &mut find).expect("an order");
        }
        let names: Vec<_> = ordered.iter().map(|module| &module.name[..]).collect();
        assert_eq!(names, ["core", "cm", "ucm"]);
    }

    #[test]
    fn modules_that_need_each_other_are_an_error() {
        let mut find = |name: &str| {
            let needs = vec![if name == "a" { "b" } else { "a" }.to_owned()];
            Ok(Some(Module { name: name.to_owned(), object: Vec::new(), needs }))
        };
        let error = order("a", &mut Vec::new(), &mut BTreeSet::new(), &mut find);
        assert_eq!(error.expect_err("a circle").to_string(), "module a needs itself");
    }

    #[test]
    fn a_tree_has_the_kernel_that_was_built_in_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let tree = dir.path();
        let write = |file: &str, text: &str| {
            let file = tree.join(file);
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(file, text).expect("written");
        };
        write("include/config/kernel.release", "6.1.2-mine\n");
        write("modules.order", "net/sched/cls_bpf.ko\ndrivers/net/snd-tun.o\n");
        write("modules.builtin", "kernel/fs/fuse/fuse.ko\n");
        let error = Kernel::built(tree).err().expect("no image yet").to_string();
        assert!(error.contains("make bzImage modules"), "{error}");
        write("arch/x86/boot/bzImage", "");
        let kernel = Kernel::built(tree);
        let path = tree.canonicalize().expect("it is there");
        let kernel = kernel.expect("a kernel");
        assert_eq!(kernel.release, "6.1.2-mine");
        assert_eq!(kernel.modules["cls_bpf"], path.join("net/sched/cls_bpf.ko"));
        assert_eq!(kernel.modules["snd_tun"], path.join("drivers/net/snd-tun.ko"));
        assert!(kernel.builtin.contains("fuse"));
    }

    #[test]
    fn file_that_is_no_module_is_an_error() {
        assert!(needs(b"\x7fELF").is_err());
        let own = fs::read(std::env::current_exe().expect("a path")).expect("readable");
        let error = needs(&own).expect_err("this program is no module").to_string();
        assert!(error.contains(".modinfo"), "{error}");
    }
}
