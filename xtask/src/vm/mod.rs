// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm`: our programs in a virtual machine, on stock kernels of Debian.
//!
//! Needs neither root nor KVM. A scenario is a command that the guest runs, the modules it wants
//! loaded before, and programs of ours that it finds in its file system.

mod cpio;
mod image;
mod kernel;
mod libraries;
mod module;
mod qemu;
mod results;
mod rig;
mod run;
mod table;
mod tap;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Subcommand, ValueEnum};

use self::image::Program;
use self::kernel::Version;
use self::qemu::Processors;
use self::run::{Machines, Prepared};
use self::table::Table;
use crate::artifacts::Artifact;
use crate::workspace::Workspace;
use crate::{artifacts, checkpatch, tools};

/// Run our programs on stock kernels of Debian, or on yours, in a virtual machine
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    scenario: Scenario,
    /// Which kernel, may be repeated [default: all]
    #[arg(long = "kernel", value_name = "VERSION", global = true)]
    kernels: Vec<Version>,
    /// A kernel that you built yourself, in place of Debian's: where `make bzImage modules` was run
    #[arg(long, value_name = "DIRECTORY", global = true, conflicts_with = "kernels")]
    tree: Option<PathBuf>,
    /// When a guest that has not ended is killed [default: 300, 1800 for `responder`, a shell 12 hours]
    #[arg(long, value_name = "SECONDS", global = true)]
    deadline: Option<u64>,
}

/// Ten times what the longest scenario but one takes on a machine that has nothing else to do.
const DEADLINE: Duration = Duration::from_mins(5);
/// Nobody forgets a guest for ever.
const SHELL_DEADLINE: Duration = Duration::from_hours(12);

/// Of that one: daemons are started a few hundred times.
const LONG_DEADLINE: Duration = Duration::from_mins(30);

#[derive(Clone, Subcommand)]
enum Scenario {
    /// Boot, and show that the ways in and out of the guest work
    Hello,
    /// The kernel asks for addresses over NETLINK_RDMA, and takes our answers at once
    Ls {
        /// Let `ibarr` answer, and peers answer it
        #[arg(long, conflicts_with = "daemon")]
        ibarr: bool,
        /// One processor, and a clock that counts instructions: times and repetitions are claimed
        #[arg(long)]
        steady: bool,
        /// A statically linked daemon that answers, and its arguments [default: a small responder]
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "DAEMON")]
        daemon: Vec<String>,
    },
    /// OpenSM, IPoIB, librdmacm and the like, unchanged, on software HCAs
    Run {
        /// [default: all]
        scenario: Option<Fabric>,
    },
    /// The same network, and a shell in it
    Shell,
    /// The kernel module `ibtun` alone: what it promises, what it refuses, what does not hurt it
    Ibtun {
        /// How many random and mutated packets it is given
        #[arg(long, default_value_t = ODD_RECORDS)]
        records: u64,
    },
    /// The daemon through what is unkind to it: no RDMA yet, strangers, forgers, its own death
    Daemon,
    /// The BPF programs, accepted and at work between network namespaces
    Bpf,
    /// The daemon and its programs: started, killed, replaced, beside others, and all undone
    Responder {
        /// Only tests whose names hold this
        #[arg(default_value = "responder::")]
        tests: String,
        /// How often a daemon is replaced under load, for each kind of program
        #[arg(long, default_value_t = 50, value_name = "TIMES")]
        rounds: u32,
    },
    /// Run a statically linked program of yours, as root, with NETLINK_RDMA, veth, TUN and tc
    Exec {
        /// The program, which is in /bin there, and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
}

/// What is proved on a software fabric.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Fabric {
    /// all that is not ours works
    A,
    /// with ibarr, connections across a router
    B,
    /// how long addresses and routes take
    C,
    /// peers are answered in the kernel
    D,
    /// what may happen to a subnet while ibarr runs
    E,
    /// ibarr on a kernel without IPv6
    F,
}

impl Fabric {
    /// As the guest knows it.
    fn name(self) -> &'static str {
        match self {
            Self::A => "run-a",
            Self::B => "run-b",
            Self::C => "run-c",
            Self::D => "run-d",
            Self::E => "run-e",
            Self::F => "run-f",
        }
    }

    /// What `--help` says of it.
    fn about(self) -> String {
        let value = self.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help());
        help.map(ToString::to_string).unwrap_or_default()
    }
}

/// Tests of the BPF programs that are no guest's: two are about numbers, and a guest is slow; two
/// take room from a frame by more metadata than Linux 6.1 lets a test run have (`xdp_metalen_invalid`
/// in net/core/xdp.c).
const NOT_IN_A_GUEST: [&str; 4] = [
    "any_frame_gets_the_same_from_both",
    "a_million_updates",
    "xdp_uses_room_behind_the_frame_if_there_is_none_before_it",
    "xdp_passes_queries_without_room_for_the_reply",
];

/// Enough that each way through the parser is taken often; a million take some minutes.
const ODD_RECORDS: u64 = 50_000;

/// What `vm exec` loads: everything that one of our scenarios needs.
const ALL_MODULES: &[&str] = &["rdma_ucm", "ib_umad", "tun", "veth", "sch_ingress", "cls_bpf"];

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let versions = match (&args.scenario, &args.kernels[..]) {
        (Scenario::Shell, []) => &[Version::V6_1],
        (_, []) => Version::value_variants(),
        (_, named) => named,
    };
    let mut machines = match &args.tree {
        Some(tree) => Machines::of_tree(workspace, tree)?,
        None => Machines::fetch(workspace, versions)?,
    };
    let scenarios = match &args.scenario {
        Scenario::Run { scenario: None } => all_on_the_fabric(),
        one => vec![one.clone()],
    };
    let deadline = match (args.deadline, &args.scenario) {
        (Some(seconds), _) => Duration::from_secs(seconds),
        (None, Scenario::Responder { .. }) => LONG_DEADLINE,
        (None, Scenario::Shell) => SHELL_DEADLINE,
        (None, _) => DEADLINE,
    };
    let mut table = Table::default();
    for scenario in &scenarios {
        let prepared = prepare(workspace, scenario)?;
        if prepared.modules.contains(&module::NAME) {
            machines.build_module(workspace)?;
        }
        machines.run(&prepared, deadline, &mut table)?;
    }
    table.end().map(drop)
}

fn all_on_the_fabric() -> Vec<Scenario> {
    let all = Fabric::value_variants().iter();
    all.map(|&scenario| Scenario::Run { scenario: Some(scenario) }).collect()
}

/// What `test` proves here: every scenario that reports, on every kernel. Gives how many claims
/// hold.
///
/// # Errors
/// The first kind: this machine cannot run it, and why. The second: something failed.
pub(crate) fn prove(workspace: &Workspace) -> Result<Result<usize>> {
    let machines = Machines::fetch(workspace, Version::value_variants())?;
    let ls = |ibarr, steady| Scenario::Ls { ibarr, steady, daemon: Vec::new() };
    let scenarios =
        [Scenario::Hello, ls(false, false), ls(true, false), ls(true, true), Scenario::Daemon];
    Ok(prove_all(workspace, &machines, &scenarios, DEADLINE))
}

/// As [`prove`], for the BPF programs, on the oldest kernel.
pub(crate) fn prove_bpf(workspace: &Workspace) -> Result<Result<usize>> {
    let machines = Machines::fetch(workspace, &[Version::V6_1])?;
    Ok(prove_all(workspace, &machines, &[Scenario::Bpf], DEADLINE))
}

/// As [`prove`], for the life of the responder, on the oldest kernel, with fewer rounds.
pub(crate) fn prove_responder(workspace: &Workspace) -> Result<Result<usize>> {
    let machines = Machines::fetch(workspace, &[Version::V6_1])?;
    let scenario = Scenario::Responder { tests: "responder::".to_owned(), rounds: 4 };
    Ok(prove_all(workspace, &machines, &[scenario], LONG_DEADLINE))
}

/// As [`prove`], for software HCAs and what runs on them, on the oldest kernel.
pub(crate) fn prove_rdma(workspace: &Workspace) -> Result<Result<usize>> {
    module::compiler()?;
    let mut machines = Machines::fetch(workspace, &[Version::V6_1])?;
    for set in [&tools::RDMA, &tools::BPFTOOL, &tools::LINUX_SOURCE] {
        tools::root(workspace, set)?;
    }
    let mut scenarios = vec![Scenario::Ibtun { records: ODD_RECORDS }];
    scenarios.extend(all_on_the_fabric());
    let built = checkpatch::check(workspace).and_then(|()| machines.build_module(workspace));
    Ok(built.and_then(|()| prove_all(workspace, &machines, &scenarios, DEADLINE)))
}

/// Runs all, also where one fails. Gives how many claims hold.
fn prove_all(
    workspace: &Workspace,
    machines: &Machines,
    scenarios: &[Scenario],
    deadline: Duration,
) -> Result<usize> {
    let mut table = Table::default();
    for scenario in scenarios {
        machines.run(&prepare(workspace, scenario)?, deadline, &mut table)?;
    }
    table.end()
}

fn prepare(workspace: &Workspace, scenario: &Scenario) -> Result<Prepared> {
    // All that any scenario has, so that cargo builds what they share once.
    let mut wanted = vec!["--package", "ibarr-testbed", "--bin", "ibarr-guest"];
    wanted.extend(["--package", "ibarr-user", "--bin", "ibarr"]);
    wanted.extend(["--package", "ibarr-fabric", "--bin", "ibfab"]);
    let mut built = image::build(workspace, "build", &wanted)?;
    if let Scenario::Run { scenario: Some(Fabric::C) } = scenario {
        // What it is timed beside is compiled for speed, too.
        let ibarr = ["--release", "--package", "ibarr-user", "--bin", "ibarr"];
        built.splice(..0, image::build(workspace, "build", &ibarr)?);
    }
    let program = |path: &str, name| image::ours(path, artifacts::binary(&built, name)?);
    let mut prepared = Prepared {
        name: "hello",
        about: String::new(),
        modules: &["tun"],
        later: &[],
        programs: vec![program(image::INIT, "ibarr-guest")?],
        files: &[],
        command: vec![image::INIT.to_owned()],
        processors: Processors::Two,
        kernel_arguments: "",
        results: false,
        is_interactive: false,
        reports: true,
    };
    match scenario {
        Scenario::Hello => prepared.command.push("hello".to_owned()),
        Scenario::Ls { ibarr, steady, daemon } => {
            let ibarr = ibarr.then(|| program("/bin/ibarr", "ibarr")).transpose()?;
            prepare_ls(ibarr, *steady, daemon, &mut prepared)?;
        }
        Scenario::Run { scenario } => {
            let scenario = scenario.context("`run` names one scenario by now")?;
            prepare_run(workspace, scenario, &built, &mut prepared)?;
        }
        Scenario::Shell => {
            rig::prepare(workspace, "shell", &built, &mut prepared)?;
            prepared.is_interactive = true;
            prepared.reports = false;
        }
        Scenario::Ibtun { records } => {
            prepared.name = "ibtun";
            prepared.modules = &["ib_umad", "ib_uverbs", "ib_ipoib", "rdma_ucm", module::NAME];
            prepared.command.extend(["ibtun".to_owned(), records.to_string()]);
        }
        Scenario::Daemon => {
            prepared.name = "daemon";
            prepared.later = &["rdma_ucm"];
            prepared.programs.push(program("/bin/ibarr", "ibarr")?);
            prepared.command.push("daemon".to_owned());
        }
        Scenario::Bpf => {
            prepared.name = "bpf";
            prepared.modules = &["veth", "sch_ingress", "cls_bpf"];
            prepared.programs.push(image::ours("/bin/bpf", &tests(workspace, "bpf")?)?);
            let iproute2 = tools::root(workspace, &tools::IPROUTE2)?;
            prepared.programs.extend(libraries::program(&iproute2, "ip")?);
            prepared.command = vec!["/bin/bpf".to_owned()];
            for test in NOT_IN_A_GUEST {
                prepared.command.extend(["--skip", test].map(str::to_owned));
            }
        }
        Scenario::Responder { tests: filter, rounds } => {
            prepared.name = "responder";
            prepared.processors = Processors::One;
            prepared.modules = &["veth", "sch_ingress", "cls_bpf"];
            prepared.programs.push(image::ours("/bin/system", &tests(workspace, "system")?)?);
            prepared.programs.push(program("/bin/ibarr", "ibarr")?);
            let tools = [
                (&tools::IPROUTE2, "ip"),
                (&tools::IPROUTE2, "tc"),
                (&tools::BPFTOOL, "bpftool"),
                (&tools::ETHTOOL, "ethtool"),
            ];
            for (set, name) in tools {
                let root = tools::root(workspace, set)?;
                prepared.programs.extend(libraries::program(&root, name)?);
            }
            prepared.programs.extend(libraries::program(Path::new("/"), "setpriv")?);
            let rounds = format!("IBARR_TEST_ROUNDS={rounds}");
            let command = ["IBARR_UNDER_TEST=ibarr", &rounds, "/bin/system", filter];
            prepared.command = command.map(str::to_owned).to_vec();
        }
        Scenario::Exec { command } => {
            prepared.name = "exec";
            prepared.modules = ALL_MODULES;
            prepared.command = foreign(command, &mut prepared.programs)?;
            prepared.reports = false;
        }
    }
    // Programs share libraries.
    prepared.programs.sort_by(|a, b| a.path.cmp(&b.path));
    prepared.programs.dedup_by(|a, b| a.path == b.path);
    Ok(prepared)
}

/// A scenario on the software fabric.
fn prepare_run(
    workspace: &Workspace,
    scenario: Fabric,
    built: &[Artifact],
    prepared: &mut Prepared,
) -> Result<()> {
    rig::prepare(workspace, scenario.name(), built, prepared)?;
    prepared.about = scenario.about();
    prepared.processors = match scenario {
        Fabric::A => Processors::Two,
        // What it measures is not to depend on what the machine does besides.
        Fabric::C => Processors::Counted,
        // They attach the responder.
        _ => Processors::One,
    };
    match scenario {
        Fabric::E => rig::with_libraries(workspace, prepared)?,
        Fabric::F => prepared.kernel_arguments = "ipv6.disable=1",
        _ => {}
    }
    Ok(())
}

/// With `ibarr`, a daemon of this machine, or a small responder of ours.
fn prepare_ls(
    ibarr: Option<Program>,
    steady: bool,
    daemon: &[String],
    prepared: &mut Prepared,
) -> Result<()> {
    prepared.name = match (&ibarr, steady) {
        (Some(_), true) => "ls-ibarr-steady",
        (Some(_), false) => "ls-ibarr",
        (None, true) => "ls-steady",
        (None, false) => "ls",
    };
    prepared.modules = &["rdma_ucm", "tun"];
    prepared.command.push("ls".to_owned());
    if steady {
        prepared.processors = Processors::Counted;
        prepared.command.push("--steady".to_owned());
    }
    if let Some(ibarr) = ibarr {
        prepared.programs.push(ibarr);
        prepared.command.extend(["/bin/ibarr", "run"].map(str::to_owned));
    }
    prepared.command.extend(foreign(daemon, &mut prepared.programs)?);
    Ok(())
}

/// Builds the tests of the test bed that are called `name`.
fn tests(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let arguments = ["--no-run", "--package", "ibarr-testbed", "--test", name];
    let built = image::build(workspace, "test", &arguments)?;
    let is_it = |artifact: &Artifact| artifact.is_test && artifact.target == name;
    let tests = built.into_iter().find(is_it);
    Ok(tests.with_context(|| format!("this checkout has no tests called {name}"))?.executable)
}

/// Adds a program of this machine to `programs`; gives the same command in the guest.
fn foreign(command: &[String], programs: &mut Vec<Program>) -> Result<Vec<String>> {
    let [program, arguments @ ..] = command else { return Ok(Vec::new()) };
    let executable = Path::new(program);
    let name = executable.file_name().and_then(|name| name.to_str());
    let path = format!("/bin/{}", name.with_context(|| format!("{program:?} names no file"))?);
    programs.push(image::ours(&path, executable)?);
    Ok([path].into_iter().chain(arguments.iter().cloned()).collect())
}
