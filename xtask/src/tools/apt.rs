// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! apt with a state of its own: it uses the machine's archives and keys, but our package lists, our cache,
//! and our copy of the list of installed packages. It needs no privilege, takes no lock of the system, and
//! works if the system's package lists are empty.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::{Set, sources};
use crate::process;

pub(super) struct Apt {
    config: PathBuf,
    archives: PathBuf,
}

pub(super) struct Fetched {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) file: PathBuf,
}

/// The longest use of package lists, because old versions vanish from Debian's archives.
const LISTS_MAX_AGE: Duration = Duration::from_hours(1);

impl Apt {
    /// apt in a directory of `tools`, with fresh package lists. It fetches the packages of `set` even if the
    /// machine has them.
    pub(super) fn new(tools: &Path, set: &Set) -> Result<Self> {
        let Set { packages, suites, .. } = *set;
        let dir = &tools.join("apt");
        let archives = dir.join("cache/archives");
        for made in [dir.join("lists/partial"), archives.join("partial"), dir.join("empty")] {
            fs::create_dir_all(&made)
                .with_context(|| format!("{} cannot be made", made.display()))?;
        }
        let status = fs::read_to_string("/var/lib/dpkg/status")
            .context("/var/lib/dpkg/status, dpkg's list of packages, is unreadable")?;
        fs::write(dir.join("status"), installed(&status, packages))?;
        let sources = sources::of_this_machine(suites)?;
        fs::write(dir.join("debian.sources"), &sources)?;
        let foreign = foreign(packages);
        let config = dir.join("apt.conf");
        let system = process::output(Command::new("apt-config").arg("dump"))?;
        fs::write(&config, configuration(dir, &system, foreign)?)?;

        let apt = Self { config, archives };
        let lists = format!("{sources}{}", foreign.unwrap_or_default());
        let updated = dir.join("updated");
        let known = fs::read_to_string(&updated).unwrap_or_default();
        if known != lists || !is_fresh(&updated) {
            eprintln!("tools: reading Debian's package lists");
            process::output(&mut apt.get(&["update", "--error-on=any"]))?;
            fs::write(updated, lists)?;
        }
        Ok(apt)
    }

    /// Downloads the packages of `set` and those dependencies that the machine lacks. Prints each of them.
    pub(super) fn fetch(&self, set: &Set) -> Result<Vec<Fetched>> {
        let Set { name, packages, only, .. } = *set;
        // A plan leaves out what an interrupted run has left here.
        process::output(&mut self.get(&["clean"]))?;
        let install = ["install", "--yes", "--no-install-recommends"];
        let plan = process::output(self.get(&install).arg("--print-uris").args(packages))?;
        let is_kept = |package: &Planned<'_>| {
            only.is_empty() || only.iter().any(|begin| package.file.starts_with(begin))
        };
        let plan = plan.lines().filter_map(parse_uri).filter(is_kept).collect::<Vec<_>>();
        let libc = plan.iter().find(|package| package.name() == "libc6");
        // A set that names it starts its programs with it.
        if only.is_empty()
            && let Some(libc) = libc
        {
            bail!("it needs a newer C library ({}) than this system's", libc.version());
        }
        let size = plan.iter().map(|package| package.size).sum();
        eprintln!(
            "tools: {name}: fetching {} Debian package{}, {}",
            plan.len(),
            if plan.len() == 1 { "" } else { "s" },
            megabytes(size)
        );
        for package in &plan {
            let (name, version) = (package.name(), package.version());
            eprintln!("tools:   {name} {version}, {}", megabytes(package.size));
        }
        if only.is_empty() {
            process::output(self.get(&install).arg("--download-only").args(packages))?;
        } else {
            let mut download = self.get(&["download"]);
            download.current_dir(&self.archives);
            download.args(plan.iter().map(Planned::wanted));
            process::output(&mut download)?;
        }
        Ok(plan
            .iter()
            .map(|package| Fetched {
                name: package.name().to_owned(),
                version: package.version(),
                file: self.archives.join(package.file),
            })
            .collect())
    }

    fn get(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", &self.config).env("LC_ALL", "C").arg("--quiet").args(arguments);
        command
    }
}

/// The options with which apt reaches the archives of this machine.
pub(super) fn options() -> Result<String> {
    Ok(reaching(&process::output(Command::new("apt-config").arg("dump"))?))
}

/// The system's settings for reaching an archive (proxies, time-outs), without its hooks and extra
/// downloads.
fn reaching(system: &str) -> String {
    let acquire = system
        .lines()
        .filter(|line| line.starts_with("Acquire::"))
        .filter(|line| !line.starts_with("Acquire::IndexTargets"))
        .filter(|line| !line.starts_with("Acquire::Languages"))
        .collect::<Vec<_>>()
        .join("\n");
    format!(
        "{acquire}\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"3\";\n\
         APT::Sandbox::User \"root\";\n"
    )
}

/// apt's configuration in `dir`.
fn configuration(dir: &Path, system: &str, foreign: Option<&str>) -> Result<String> {
    let foreign = foreign.map_or_else(String::new, |architecture| {
        format!("APT::Architectures:: \"{architecture}\";\n")
    });
    let dir = dir.to_str().context("the target directory's name is not UTF-8")?;
    let reaching = reaching(system);
    Ok(format!(
        "{reaching}{foreign}\
         APT::Get::Upgrade-By-Source-Package \"false\";\n\
         APT::Get::Assume-Yes \"true\";\n\
         Dir::State \"{dir}\";\n\
         Dir::State::status \"{dir}/status\";\n\
         Dir::Cache \"{dir}/cache\";\n\
         Dir::Log \"{dir}/empty\";\n\
         Dir::Etc::main \"{dir}/empty/none\";\n\
         Dir::Etc::parts \"{dir}/empty\";\n\
         Dir::Etc::preferences \"{dir}/empty/none\";\n\
         Dir::Etc::preferencesparts \"{dir}/empty\";\n\
         Dir::Etc::sourcelist \"{dir}/debian.sources\";\n\
         Dir::Etc::sourceparts \"{dir}/empty\";\n"
    ))
}

/// The architecture of `packages` (`package:architecture`) that is not this machine's, if there is one.
fn foreign<'a>(packages: &[&'a str]) -> Option<&'a str> {
    packages.iter().find_map(|package| Some(package.split_once(':')?.1))
}

/// dpkg's list of packages, reduced to the installed packages, their versions, and what they provide.
/// Without their dependencies, no broken dependency, conflict or upgrade of the system can come into the
/// plan. The `wanted` packages (`package` or `package/suite`) are left out, so that they are fetched.
fn installed(status: &str, wanted: &[&str]) -> String {
    const KEPT: [&str; 6] =
        ["Package:", "Status:", "Architecture:", "Multi-Arch:", "Version:", "Provides:"];
    let mut kept = String::new();
    for stanza in status.split("\n\n") {
        let is_installed = stanza.lines().any(|line| line == "Status: install ok installed");
        let name = stanza.lines().find_map(|line| line.strip_prefix("Package: "));
        let is_wanted =
            |name| wanted.iter().any(|wanted: &&str| wanted.split(['/', ':']).next() == Some(name));
        if !is_installed || name.is_none_or(is_wanted) {
            continue;
        }
        for line in stanza.lines().filter(|line| KEPT.iter().any(|key| line.starts_with(key))) {
            kept.push_str(line);
            kept.push('\n');
        }
        kept.push('\n');
    }
    kept
}

/// A line of `apt-get --print-uris`: `'URI' file size digest`.
#[derive(Debug, Eq, PartialEq)]
struct Planned<'a> {
    file: &'a str,
    size: u64,
}

fn parse_uri(line: &str) -> Option<Planned<'_>> {
    let (_, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    let mut fields = rest.split(' ');
    Some(Planned { file: fields.next()?, size: fields.next()?.parse().ok()? })
}

/// A package's file is `name_version_architecture.deb`, with `%3a` for a colon.
impl Planned<'_> {
    fn name(&self) -> &str {
        self.file.split('_').next().unwrap_or(self.file)
    }

    /// The package and its version, as apt takes them.
    fn wanted(&self) -> String {
        let architecture = self.file.rsplit('_').next().and_then(|end| end.strip_suffix(".deb"));
        format!("{}:{}={}", self.name(), architecture.unwrap_or("all"), self.version())
    }

    fn version(&self) -> String {
        self.file.split('_').nth(1).unwrap_or("?").replace("%3a", ":")
    }
}

fn is_fresh(stamp: &Path) -> bool {
    let modified = fs::metadata(stamp).and_then(|stamp| stamp.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < LISTS_MAX_AGE))
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_is_read_with_epochs() {
        let line = "'http://deb.debian.org/debian/pool/main/q/qemu/qemu_7.2_amd64.deb' \
                    qemu-system-x86_1%3a7.2+dfsg-7_amd64.deb 9148808 SHA256:00ff";
        let package = parse_uri(line).expect("a package");
        assert_eq!(package.name(), "qemu-system-x86");
        assert_eq!(package.version(), "1:7.2+dfsg-7");
        assert_eq!(package.wanted(), "qemu-system-x86:amd64=1:7.2+dfsg-7");
        assert_eq!(package.size, 9_148_808);
    }

    #[test]
    fn other_output_of_apt_is_no_plan() {
        for line in
            ["Reading package lists...", "", "'http://no.file", "'http://x/y.deb' y.deb many"]
        {
            assert_eq!(parse_uri(line), None, "{line}");
        }
    }

    #[test]
    fn installed_packages_lose_dependencies_and_wanted_ones_are_left_out() {
        let status = "Package: a\nStatus: install ok installed\nVersion: 1\nDepends: gone (>= 2)\n\
                      Provides: aa\nConflicts: c\nDescription: x\n y\n\
                      \nPackage: b\nStatus: deinstall ok config-files\nVersion: 1\n\
                      \nPackage: c\nStatus: install ok installed\nVersion: 1\n";
        let kept = installed(status, &["c/bookworm-backports"]);
        assert_eq!(kept, "Package: a\nStatus: install ok installed\nVersion: 1\nProvides: aa\n\n");
    }

    #[test]
    fn system_configuration_is_kept_only_for_reaching_the_archive() {
        let system = "APT::Update::Post-Invoke:: \"rm -f /var/cache/apt/archives/*.deb\";\n\
                      Acquire::http::Proxy \"http://proxy:3128\";\n\
                      Acquire::IndexTargets::deb::DEP-11::MetaKey \"x\";\n\
                      Acquire::Languages \"de\";\n";
        let own = configuration(Path::new("/t"), system, None).expect("a name in UTF-8");
        assert!(own.contains("Acquire::http::Proxy \"http://proxy:3128\";"));
        for foreign in ["Post-Invoke", "DEP-11", "\"de\""] {
            assert!(!own.contains(foreign), "{foreign}");
        }
    }
}
