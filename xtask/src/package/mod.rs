// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `package`: packages of the daemon, and of the software fabric, for this machine's architecture or for 64-bit Arm. Their
//! programs run with the C library of RHEL 8. The same commit and compiler give the same bytes.

mod architecture;
mod deb;
pub(crate) mod dkms;
mod documents;
mod fabric;
mod glibc;
pub(crate) mod kernel;
mod libraries;
pub(crate) mod repository;
pub(crate) mod root;
mod rpm;
mod tar;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;

pub(crate) use self::architecture::{Architecture, Builder};
pub(crate) use self::fabric::module_files;
use crate::artifacts;
use crate::process;
use crate::tools;
use crate::workspace::{Workspace, cargo};

/// Make a package of the daemon; for Debian also of the software fabric
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Format of the package
    format: Format,
    /// Architecture of its programs [default: this machine's]
    #[arg(long)]
    arch: Option<Architecture>,
    /// Make it once more, in a clone of the checkout, and compare the bytes
    #[arg(long)]
    reproduce: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// For Debian 11 and later, and Ubuntu 22.04 and later
    Deb,
    /// For RHEL 9 and later, and its relatives
    Rpm,
    /// The same files as an archive, for other systems
    Tar,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let architecture = args.arch.unwrap_or_else(Architecture::own);
    let content = Content::build(workspace, architecture)?;
    let packages = match args.format {
        Format::Deb => debs(&content)?,
        Format::Rpm => vec![rpm::make(&content)?],
        Format::Tar => vec![tar::make(&content)?],
    };
    libraries::compare(&content)?;
    for package in &packages {
        println!("{}", package.display());
    }
    if args.reproduce {
        reproduce(&content, args.format, &packages)?;
    }
    packages.iter().try_for_each(|package| match args.format {
        Format::Deb => lint(workspace, "lintian", &["--fail-on", "error", "--allow-root"], package),
        Format::Rpm => lint(workspace, "rpmlint", &["--config", "pkg/rpm/rpmlint.toml"], package),
        Format::Tar => Ok(()),
    })
}

/// The daemon, and the software fabric with its module.
fn debs(content: &Content<'_>) -> Result<Vec<PathBuf>> {
    let mut packages = vec![deb::make(content)?];
    packages.extend(fabric::make(content)?);
    Ok(packages)
}

/// Makes the packages in a clone, where nothing has been built, and compares them.
fn reproduce(content: &Content<'_>, format: Format, packages: &[PathBuf]) -> Result<()> {
    let workspace = content.workspace;
    let clone = workspace.target().join("package/clone");
    if clone.exists() {
        fs::remove_dir_all(&clone)?;
    }
    let git = &mut Command::new("git");
    process::run(git.args(["clone", "--quiet"]).arg(workspace.root()).arg(&clone))?;
    let name = format.to_possible_value().context("a format has a name")?;
    let mut make = cargo(&clone, &["xtask", "package", name.get_name()]);
    make.args(["--arch", content.architecture.debian()]);
    process::run(make.env("CARGO_TARGET_DIR", clone.join("target")))?;
    for package in packages {
        let again = clone.join("target/package").join(package.file_name().context("a file")?);
        ensure!(
            fs::read(package)? == fs::read(&again)?,
            "{} differs from {} (are all changes committed?)",
            package.display(),
            again.display()
        );
    }
    println!("what the clone makes has the same bytes");
    Ok(())
}

/// Runs the distribution's own checker on a package, if this machine has it.
fn lint(workspace: &Workspace, tool: &str, options: &[&str], package: &Path) -> Result<()> {
    let Some(program) = tools::which(tool) else {
        eprintln!("package: {tool} is not installed, so it has not looked at the package");
        return Ok(());
    };
    process::run(Command::new(program).current_dir(workspace.root()).args(options).arg(package))
}

/// The packages that tests install.
pub(crate) struct Packages {
    pub(crate) deb: PathBuf,
    pub(crate) rpm: PathBuf,
    /// The signed repositories of both.
    pub(crate) repository: PathBuf,
}

/// Makes the packages, and shows that each one made again has the same bytes.
pub(crate) fn prove(workspace: &Workspace) -> Result<Packages> {
    let content = Content::build(workspace, Architecture::own())?;
    let (debs, rpms) = all_twice(&content)?;
    let repository = repository::prove(&content, &[&debs[..], &rpms].concat())?;
    let first = |packages: Vec<PathBuf>| packages.into_iter().next().context("a package");
    Ok(Packages { deb: first(debs)?, rpm: first(rpms)?, repository })
}

/// Does the same for another architecture, without repositories. Returns the daemon, unpacked from its package.
pub(crate) fn prove_other(workspace: &Workspace, architecture: Architecture) -> Result<PathBuf> {
    let content = Content::build(workspace, architecture)?;
    let (debs, _) = all_twice(&content)?;
    let package = debs.first().context("a package")?;
    let field = &mut Command::new("dpkg-deb");
    let said = process::output(field.arg("--field").arg(package).arg("Architecture"))?;
    ensure!(said.trim() == architecture.debian(), "{} is for {said}", package.display());
    let unpacked = content.directory.join("unpacked");
    process::run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&unpacked))?;
    Ok(unpacked.join("usr/sbin/ibarr"))
}

/// Makes all packages, the archive too, and each one again. Returns those for Debian and for RHEL.
fn all_twice(content: &Content<'_>) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    libraries::compare(content)?;
    let twice = |make: fn(&Content<'_>) -> Result<Vec<PathBuf>>| {
        let packages = make(content)?;
        let read = || packages.iter().map(fs::read).collect::<Result<Vec<_>, _>>();
        let first = read()?;
        make(content)?;
        ensure!(read()? == first, "one of {packages:?} made again differs");
        anyhow::Ok(packages)
    };
    twice(|content| Ok(vec![tar::make(content)?]))?;
    Ok((twice(debs)?, twice(|content| Ok(vec![rpm::make(content)?]))?))
}

/// Builds the program as the packages have it.
pub(crate) fn program(workspace: &Workspace) -> Result<PathBuf> {
    Ok(Content::build(workspace, Architecture::own())?.ibarr)
}

/// Makes the Debian package of the daemon.
pub(crate) fn deb(workspace: &Workspace) -> Result<PathBuf> {
    deb::make(&Content::build(workspace, Architecture::own())?)
}

/// Files of the checkout, their places in the package, and their modes.
const FILES: &[(&str, &str, u32)] = &[
    ("pkg/ibarr.service", "usr/lib/systemd/system/ibarr.service", 0o644),
    ("pkg/ibarr@.service", "usr/lib/systemd/system/ibarr@.service", 0o644),
    ("pkg/ibarr.socket", "usr/lib/systemd/system/ibarr.socket", 0o644),
    ("pkg/ibarr-acm.socket", "usr/lib/systemd/system/ibarr-acm.socket", 0o644),
    ("pkg/ibarr-port.service", "usr/lib/systemd/system/ibarr-port.service", 0o644),
    ("pkg/ibarr-exporter.service", "usr/lib/systemd/system/ibarr-exporter.service", 0o644),
    ("pkg/ibarr-metrics.service", "usr/lib/systemd/system/ibarr-metrics.service", 0o644),
    ("pkg/ibarr-metrics.timer", "usr/lib/systemd/system/ibarr-metrics.timer", 0o644),
    ("pkg/ibarr.sysusers", "usr/lib/sysusers.d/ibarr.conf", 0o644),
    ("pkg/ibarr.tmpfiles", "usr/lib/tmpfiles.d/ibarr.conf", 0o644),
    ("pkg/90-ibarr.rules", "usr/lib/udev/rules.d/90-ibarr.rules", 0o644),
    ("pkg/ibarr.catalog", "usr/lib/systemd/catalog/ibarr.catalog", 0o644),
    ("pkg/firewalld.xml", "usr/lib/firewalld/services/ibarr.xml", 0o644),
    ("pkg/ibarr.toml", CONFIGURATION, 0o644),
];

/// The configuration as the package has it. Each format has its own way to put it into `etc/ibarr`.
const CONFIGURATION: &str = "usr/share/ibarr/ibarr.toml";

/// For the site's own files: those of the daemon, and those of other network namespaces' daemons.
const OF_THE_SITE: [&str; 2] = ["etc/ibarr/ibarr.d", "etc/ibarr/netns"];

/// Names of the C original, and what they lead to.
const LINKS: &[(&str, &str)] = &[
    ("usr/bin/ibarr", "../sbin/ibarr"),
    ("usr/lib/systemd/system/ip2gid.service", "ibarr.service"),
];

/// Man pages: Markdown, and name and section of the page.
const PAGES: &[(&str, &str, u8)] = &[
    ("docs/man/ibarr.8.md", "ibarr", 8),
    ("docs/man/ibarr.toml.5.md", "ibarr.toml", 5),
    ("docs/man/ibarr-ip2gid.7.md", "ibarr-ip2gid", 7),
];

/// Files of the example `command_line`, and their places. Its other files are man pages of section 8.
const COMPLETIONS: &[(&str, &str)] = &[
    ("ibarr.bash", "usr/share/bash-completion/completions/ibarr"),
    ("_ibarr", "usr/share/zsh/vendor-completions/_ibarr"),
    ("ibarr.fish", "usr/share/fish/vendor_completions.d/ibarr.fish"),
];

/// The content of a package in every format.
struct Content<'a> {
    workspace: &'a Workspace,
    /// Where packages are made.
    directory: PathBuf,
    version: String,
    architecture: Architecture,
    /// The daemon, stripped.
    ibarr: PathBuf,
    /// The software fabric, stripped.
    ibfab: PathBuf,
    /// Time of the commit, in seconds, as the time of all files.
    epoch: String,
    /// Name and address of the packager.
    maintainer: String,
    /// Address of the project's page, which it does not have itself: the packager names one.
    homepage: Option<String>,
}

impl<'a> Content<'a> {
    fn build(workspace: &'a Workspace, architecture: Architecture) -> Result<Self> {
        let builder = Builder::ensure(workspace, architecture)?;
        let release = |directory: &Path, package: &str, name: &str| -> Result<PathBuf> {
            let mut cargo = builder.cargo(directory, &["zigbuild", "--locked", "--release"]);
            cargo.args(["--package", package, "--bin", name]);
            cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
            cargo.env("CARGO_ENCODED_RUSTFLAGS", remaps(workspace)?);
            cargo.env("RUSTC_WRAPPER", workspace.root().join("xtask/src/package/rustc.sh"));
            Ok(artifacts::binary(&artifacts::from(&mut cargo)?, name)?.to_owned())
        };
        let commit = |field: &str| {
            let mut git = Command::new("git");
            git.current_dir(workspace.root()).args(["log", "-1", &format!("--format={field}")]);
            process::output(&mut git).map(|said| said.trim().to_owned())
        };
        let debian = |name| env::var(name).ok();
        Ok(Self {
            workspace,
            directory: workspace.target().join("package"),
            version: version(workspace)?,
            architecture,
            ibarr: release(workspace.root(), "ibarr-user", "ibarr")?,
            ibfab: release(&workspace.house(), "ibarr-fabric", "ibfab")?,
            epoch: match env::var("SOURCE_DATE_EPOCH") {
                Ok(epoch) => epoch,
                Err(_) => {
                    commit("%ct").context("set SOURCE_DATE_EPOCH where there is no git history")?
                }
            },
            maintainer: match (debian("DEBFULLNAME"), debian("DEBEMAIL")) {
                (Some(name), Some(address)) => format!("{name} <{address}>"),
                _ => commit("%an <%ae>")
                    .context("set DEBFULLNAME and DEBEMAIL where there is no git history")?,
            },
            homepage: env::var("IBARR_HOMEPAGE").ok(),
        })
    }

    /// Lays out all files below `root`.
    fn install(&self, root: &Path) -> Result<()> {
        let checkout = self.workspace.root();
        write(&root.join("usr/sbin/ibarr"), &fs::read(&self.ibarr)?, 0o755)?;
        for (from, to, mode) in FILES {
            let content = fs::read(checkout.join(from)).with_context(|| (*from).to_owned())?;
            write(&root.join(to), &content, *mode)?;
        }
        OF_THE_SITE.iter().try_for_each(|directory| make_dir(&root.join(directory)))?;
        for (link, target) in LINKS {
            let link = root.join(link);
            make_dir(link.parent().context("a link in a directory")?)?;
            symlink(target, &link).with_context(|| link.display().to_string())?;
        }
        self.install_pages(root, PAGES)?;
        self.install_command_line(root)?;
        documents::install(checkout, root)
    }

    /// Makes man pages, which are those of [`PAGES`] or of another package.
    fn install_pages(&self, root: &Path, pages: &[(&str, &str, u8)]) -> Result<()> {
        let tools = tools::ensure(self.workspace, &[&tools::LOWDOWN])?.path()?;
        for (from, name, section) in pages {
            let page = page(&self.workspace.root().join(from), &tools, &self.version)?;
            let to = root.join(format!("usr/share/man/man{section}/{name}.{section}"));
            write(&to, page.as_bytes(), 0o644)?;
            compress(&to)?;
        }
        Ok(())
    }

    /// Completions, and a man page for each command.
    fn install_command_line(&self, root: &Path) -> Result<()> {
        let example = ["build", "--locked", "-p", "ibarr-user", "--example", "command_line"];
        let built = artifacts::build(self.workspace, &example)?;
        let directory = self.workspace.target().join("package/command-line");
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        let program = artifacts::binary(&built, "command_line")?;
        process::run(Command::new(program).arg(&directory))?;
        for file in files(&directory)? {
            let content = fs::read(directory.join(&file))?;
            let completion = COMPLETIONS.iter().find(|(from, _)| Path::new(from) == file);
            if let Some((_, to)) = completion {
                write(&root.join(to), &content, 0o644)?;
            } else {
                let to = root.join("usr/share/man/man8").join(&file);
                write(&to, &content, 0o644)?;
                compress(&to)?;
            }
        }
        Ok(())
    }

    /// The time of all files, as date(1) writes it by `format`.
    fn date(&self, format: &str) -> Result<String> {
        let mut date = Command::new("date");
        date.env("LC_ALL", "C").args(["--utc", "--date", &format!("@{}", self.epoch), format]);
        Ok(process::output(&mut date)?.trim().to_owned())
    }

    /// A line `KEY: homepage` for the packager's page, if there is one.
    fn homepage(&self, key: &str) -> String {
        self.homepage.as_ref().map_or(String::new(), |page| format!("{key}: {page}\n"))
    }

    /// The licences' texts, for packages of systems that have none of their own.
    fn licences(&self, root: &Path) -> Result<()> {
        for licence in fs::read_dir(self.workspace.root().join("LICENSES"))? {
            let licence = licence?;
            let to = root.join(documents::PLACE).join("LICENSES").join(licence.file_name());
            write(&to, &fs::read(licence.path())?, 0o644)?;
        }
        Ok(())
    }
}

/// The files below `root`, ordered by name, as paths that begin there.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else {
                files.push(entry.path().strip_prefix(root)?.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Replaces the directories of this machine in the program, which other machines do not have.
fn remaps(workspace: &Workspace) -> Result<OsString> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let mut flags = OsString::from("--remap-path-prefix=");
    flags.push(workspace.root());
    flags.push("=ibarr\u{1f}--remap-path-prefix=");
    flags.push(home.context("neither CARGO_HOME nor HOME is set")?);
    flags.push("=cargo");
    Ok(flags)
}

fn version(workspace: &Workspace) -> Result<String> {
    let metadata = crate::workspace::metadata(workspace.root(), &["--no-deps"])?;
    let packages = metadata["packages"].as_array().context("`cargo metadata` names no package")?;
    let ours = packages.iter().find(|package| package["name"] == "ibarr-user");
    let version = ours.and_then(|package| package["version"].as_str());
    Ok(version.context("`cargo metadata` names no version of ibarr-user")?.to_owned())
}

/// A man page from Markdown. Its first line is `% NAME(SECTION) | source | manual`.
fn page(markdown: &Path, path: &OsString, version: &str) -> Result<String> {
    let text = fs::read_to_string(markdown).with_context(|| markdown.display().to_string())?;
    let (title, _) = text.split_once('\n').context("an empty man page")?;
    let heading = heading(title, version)
        .with_context(|| format!("{}: not a title: {title}", markdown.display()))?;
    // Underscores belong to words, and are no emphasis.
    let mut escaped = tempfile::NamedTempFile::new()?;
    escaped.write_all(text.replace("\\_", "_").replace('_', "\\_").as_bytes())?;
    let mut lowdown = Command::new("lowdown");
    lowdown.env("PATH", path).args(["-Tman", "--out-no-smarty"]).arg(escaped.path());
    let roff = process::output(&mut lowdown)?;
    // The title comes out as the first paragraph.
    let (_, body) = roff.split_once(".SH\n").context("a man page without sections")?;
    // In examples the backslash has stayed.
    let body = body.replace("\n.SH\n", "\n.SH ").replace("\\e_", "_");
    Ok(format!("{heading}\n.SH {body}"))
}

/// The roff line of a title.
fn heading(title: &str, version: &str) -> Option<String> {
    let mut fields = title.strip_prefix("% ")?.split(" | ");
    let (name, section) = fields.next()?.strip_suffix(')')?.split_once('(')?;
    let (source, manual) = (fields.next()?, fields.next()?);
    Some(format!(r#".TH "{name}" "{section}" "" "{source} {version}" "{manual}""#))
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let parent = path.parent().context("a file in a directory")?;
    make_dir(parent)
        .and_then(|()| fs::write(path, content))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// Makes a directory of a package, which all users may read whatever the umask is.
fn make_dir(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), make_dir)?;
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Replaces a file by a compressed one, without name and time inside.
fn compress(path: &Path) -> Result<()> {
    process::run(Command::new("gzip").args(["-9", "-n", "-f"]).arg(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_of_a_page_becomes_its_roff_heading() {
        let title = "% IBARR(8) | ibarr | System administration";
        let expected = r#".TH "IBARR" "8" "" "ibarr 1.0.0" "System administration""#;
        assert_eq!(heading(title, "1.0.0").as_deref(), Some(expected));
        assert_eq!(heading("# NAME", "1.0.0"), None);
    }

    /// What a daemon of another network namespace does otherwise than the machine's own, or not at all.
    const OF_THE_NAMESPACE: [&str; 14] = [
        "Also",
        "AssertPathExists",
        "Before",
        "BindPaths",
        "Description",
        "ExecReload",
        "ExecStart",
        "ExecStartPre",
        "NetworkNamespacePath",
        "RuntimeDirectory",
        "Sockets",
        "StateDirectory",
        "WantedBy",
        "Wants=remote-fs-pre.target",
    ];

    #[test]
    fn unit_of_a_namespace_is_otherwise_that_of_the_machine() {
        let checkout = Workspace::find().expect("a checkout");
        let settings = |unit: &str| {
            let text = fs::read_to_string(checkout.root().join("pkg").join(unit)).expect(unit);
            let is_shared = |line: &&str| {
                let key = line.split('=').next().unwrap_or_default();
                let is_other = OF_THE_NAMESPACE.iter().any(|other| *other == key || other == line);
                !line.is_empty() && !line.starts_with('#') && !is_other
            };
            text.lines().filter(is_shared).map(str::to_owned).collect::<Vec<_>>()
        };
        let shared = settings("ibarr.service");
        assert!(shared.len() > 40, "{shared:?}");
        assert_eq!(settings("ibarr@.service"), shared);
    }
}
