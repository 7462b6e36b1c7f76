// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `run`, `lab` and `bench`: build the daemon and the test bed, and start them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::against;
use crate::artifacts::{self, Artifact};
use crate::instructions;
use crate::package;
use crate::pictures;
use crate::privilege::Privilege;
use crate::tools::{self, Set, Toolbox};
use crate::vm;
use crate::workspace::Workspace;

/// Run ibarr on this machine's IPoIB interfaces, or show it in a lab of namespaces
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Show the lab, also on a machine with IPoIB
    #[arg(long)]
    lab: bool,
    /// End after the first round of resolutions
    #[arg(long)]
    once: bool,
    /// Do not use sudo: use a user namespace, in which only the daemon answers
    #[arg(long)]
    no_sudo: bool,
}

/// Network namespaces, each with an ibarr: up, exec, status, list, down
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct LabArgs {
    /// Do not use sudo: make the lab in a user namespace
    #[arg(long)]
    no_sudo: bool,
    /// Passed to `ibarr-testbed lab`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Measure costs, on a release build
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct BenchArgs {
    /// Load the daemon of this commit in turn with that of this tree, and print ratios
    #[arg(long, value_name = "COMMIT")]
    against: Option<String>,
    /// Also write the ratios to this file, as a document; before the bench's name
    #[arg(long, value_name = "FILE", requires = "against")]
    json: Option<PathBuf>,
    /// Count instructions as `cargo xtask test instructions` does, and accept the figures: xtask/instructions.txt
    #[arg(long, conflicts_with_all = ["against", "arguments"])]
    accept: bool,
    /// Measure what docs/bench.md shows, take the results into docs/bench, and draw its pictures
    #[arg(long, conflicts_with_all = ["against", "arguments", "accept"])]
    record: bool,
    /// Draw the pictures of docs/bench.md from the results in docs/bench
    #[arg(long, conflicts_with_all = ["against", "arguments", "accept", "record"])]
    pictures: bool,
    /// Passed to `ibarr-testbed bench`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The packages of the binaries. They are always built together, so that shared dependencies have the same
/// features each time, and nothing is built twice.
const PACKAGES: [&str; 4] = ["--package", "ibarr-user", "--package", "ibarr-testbed"];

pub(crate) fn run(workspace: &Workspace, args: &RunArgs) -> Result<()> {
    let privilege = Privilege::find(args.no_sudo)?;
    let interfaces = ipoib_interfaces(Path::new("/sys/class/net"))?;
    if !args.lab && !interfaces.is_empty() {
        if args.once {
            bail!("--once is for the lab: add --lab");
        }
        let daemon = package::program(workspace)?;
        eprintln!(
            "run: ibarr serves {} until you press Ctrl-C (--lab for a lab; to install it: \
             `cargo xtask package`, docs/install.md)",
            interfaces.join(", ")
        );
        let toolbox = tools::ensure(workspace, &[])?;
        return replace(privilege, &daemon, &["run".into()], &toolbox);
    }
    let built = build(workspace, Profile::Dev)?;
    if !args.lab {
        eprintln!("run: this machine has no IPoIB interface: here is a lab of namespaces instead");
    }
    let mut arguments = vec!["demo".into()];
    arguments.extend(args.once.then(|| "--once".into()));
    start(&built, privilege, &arguments, &tools::ensure(workspace, LAB)?)
}

pub(crate) fn lab(workspace: &Workspace, args: &LabArgs) -> Result<()> {
    let built = build(workspace, Profile::Dev)?;
    let privilege = Privilege::find(args.no_sudo)?;
    let toolbox = tools::ensure(workspace, LAB)?;
    start(&built, privilege, &with_command("lab", &args.arguments), &toolbox)
}

pub(crate) fn bench(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    if let [only] = &args.arguments[..]
        && only == "acm"
    {
        return vm::bench_acm(workspace);
    }
    if args.pictures {
        return pictures::draw(workspace);
    }
    if args.accept {
        let built = build(workspace, Profile::Dev)?;
        let toolbox = tools::ensure(workspace, COUNTED)?;
        let testbed = artifacts::binary(&built, "ibarr-testbed")?;
        return instructions::accept(workspace, testbed, Privilege::find(false)?, &toolbox);
    }
    let built = build(workspace, Profile::Release)?;
    let is_counted = args.arguments.first().is_none_or(|bench| bench == "instructions");
    let toolbox = tools::ensure(workspace, if is_counted { COUNTED } else { LAB })?;
    if args.record {
        let testbed = artifacts::binary(&built, "ibarr-testbed")?;
        pictures::record(workspace, testbed, &tools::ensure(workspace, COUNTED)?)?;
        return pictures::draw(workspace);
    }
    if let Some(commit) = &args.against {
        let testbed = artifacts::binary(&built, "ibarr-testbed")?;
        let ratios = against::run(workspace, commit, &args.arguments, testbed, &toolbox)?;
        return args.json.as_deref().map_or(Ok(()), |file| against::write(file, commit, &ratios));
    }
    let arguments = with_command("bench", &args.arguments);
    start(&built, Privilege::find(false)?, &arguments, &toolbox)
}

pub(crate) fn monitor(workspace: &Workspace) -> Result<()> {
    let built = build(workspace, Profile::Dev)?;
    let toolbox = tools::ensure(workspace, MONITOR)?;
    let program = artifacts::binary(&built, "ibarr-testbed")?;
    replace(Privilege::find(false)?, program, &monitor_arguments(workspace), &toolbox)
}

/// The tools of a lab.
const LAB: &[&Set] = &[&tools::IPROUTE2, &tools::BPFTOOL, &tools::ETHTOOL];

/// The tools of `bench instructions`.
pub(crate) const COUNTED: &[&Set] =
    &[&tools::IPROUTE2, &tools::BPFTOOL, &tools::ETHTOOL, &tools::VALGRIND, &tools::STRACE];

/// The tools of `ibarr-testbed monitor`.
pub(crate) const MONITOR: &[&Set] = &[
    &tools::IPROUTE2,
    &tools::BPFTOOL,
    &tools::ETHTOOL,
    &tools::PROMETHEUS,
    &tools::NODE_EXPORTER,
];

/// The command `monitor` of the test bed, with the files of this workspace.
pub(crate) fn monitor_arguments(workspace: &Workspace) -> Vec<OsString> {
    let contrib = workspace.root().join("contrib");
    vec!["monitor".into(), "--contrib".into(), contrib.into()]
}

#[derive(Clone, Copy)]
enum Profile {
    Dev,
    Release,
}

fn build(workspace: &Workspace, profile: Profile) -> Result<Vec<Artifact>> {
    let mut arguments = vec!["build", "--locked"];
    arguments.extend(PACKAGES);
    if let Profile::Release = profile {
        arguments.push("--release");
    }
    artifacts::build(workspace, &arguments)
}

/// Becomes `ibarr-testbed` with `arguments`. That program finds `ibarr` in its own directory, and says what
/// is missing without root.
fn start(
    built: &[Artifact],
    privilege: Privilege,
    arguments: &[OsString],
    toolbox: &Toolbox,
) -> Result<()> {
    let userns = (privilege == Privilege::Unprivileged).then(|| OsString::from("--userns"));
    let arguments: Vec<_> = userns.iter().chain(arguments).cloned().collect();
    let program = artifacts::binary(built, "ibarr-testbed")?;
    replace(privilege, program, &arguments, toolbox)
}

/// Replaces this process, so that signals, terminal and exit code are the program's own.
fn replace(
    privilege: Privilege,
    program: &Path,
    arguments: &[OsString],
    toolbox: &Toolbox,
) -> Result<()> {
    if privilege == Privilege::Sudo {
        eprintln!("xtask: starting {} as root through sudo", program.display());
    }
    let path = toolbox.path()?;
    let variables = [("PATH", path.as_os_str())];
    let error = privilege.command(program, &variables).args(arguments).exec();
    Err(error).with_context(|| format!("{} cannot be run", program.display()))
}

fn with_command(command: &str, arguments: &[OsString]) -> Vec<OsString> {
    [command.into()].into_iter().chain(arguments.iter().cloned()).collect()
}

/// The network devices of type InfiniBand (`ARPHRD_INFINIBAND`) under `class`, `/sys/class/net`.
fn ipoib_interfaces(class: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(class).with_context(|| class.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        // `bonding_masters` is a file in this directory, and a device may vanish meanwhile.
        let kind = fs::read_to_string(entry.path().join("type")).unwrap_or_default();
        if kind.trim() == "32" {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_of_type_infiniband_count() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let class = dir.path();
        for (name, kind) in [("lo", "772\n"), ("ib1", "32\n"), ("eth0", "1\n"), ("ib0", "32\n")] {
            fs::create_dir_all(class.join(name)).expect("temporary directory");
            fs::write(class.join(name).join("type"), kind).expect("writable");
        }
        fs::write(class.join("bonding_masters"), "bond0\n").expect("writable");
        assert_eq!(ipoib_interfaces(class).expect("readable"), ["ib0", "ib1"]);
    }
}
