// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm`: runs our programs in a virtual machine, on Debian's stock kernels.
//!
//! This needs neither root nor KVM. A scenario is a command that the guest runs, the modules to load before,
//! and our programs in the guest's file system.

pub(crate) mod arm64;
mod cpio;
mod fabric;
mod image;
mod kernel;
mod levels;
mod libraries;
mod module;
mod qemu;
mod readme;
mod results;
mod rig;
mod run;
mod table;
mod tap;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::{Subcommand, ValueEnum as _};

use self::fabric::Fabric;
use self::image::Program;
use self::kernel::{Pair, Version};
pub(crate) use self::levels::{
    prove, prove_both_ways, prove_checked, prove_cluster, prove_ends, prove_ibtun, prove_installed,
    prove_newer, prove_rdma, prove_responder,
};
use self::qemu::Processors;
use self::run::{Machines, Prepared};
use self::table::Table;
use crate::artifacts::Artifact;
use crate::workspace::Workspace;
use crate::{artifacts, routers, systems, tools};

/// Run our programs on Debian's stock kernels, or on your own, in a virtual machine
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    scenario: Scenario,
    /// The kernel; may be repeated [default: 6.1 and 6.12]
    #[arg(long = "kernel", value_name = "VERSION", global = true)]
    kernels: Vec<Version>,
    /// Your own kernel instead of Debian's: the directory in which `make bzImage modules` was run
    #[arg(long, value_name = "DIRECTORY", global = true, conflicts_with = "kernels")]
    tree: Option<PathBuf>,
    /// When a guest is killed if it has not ended [default: 900, 1800 for `responder`, 2700 for `routers`, 3 hours for `reload`, 12 hours for `shell`]
    #[arg(long, value_name = "SECONDS", global = true)]
    deadline: Option<u64>,
}

/// Several times the duration of the longest scenario except one: a busy machine takes three times as long
/// as an idle one.
const DEADLINE: Duration = Duration::from_mins(15);
/// A forgotten shell ends at this time.
const SHELL_DEADLINE: Duration = Duration::from_hours(12);

/// For the scenario that starts some hundred daemons.
const LONG_DEADLINE: Duration = Duration::from_mins(30);
/// For eleven layouts, one after the other.
const ROUTERS_DEADLINE: Duration = Duration::from_mins(45);

#[derive(Clone, Subcommand)]
enum Scenario {
    /// Boot, and show that input and output of the guest work
    Hello,
    /// The kernel asks for addresses over NETLINK_RDMA, and accepts our answers at once
    Ls {
        /// Use `ibarr`, with peers that answer it
        #[arg(long, conflicts_with = "daemon")]
        ibarr: bool,
        /// Use one processor and a clock that counts instructions, and claim times and repetitions
        #[arg(long)]
        steady: bool,
        /// A statically linked daemon that answers, and its arguments [default: a small responder]
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "DAEMON")]
        daemon: Vec<String>,
    },
    /// Stock OpenSM, IPoIB, librdmacm and ibacm, and ibarr, on software HCAs
    Run {
        /// [default: all]
        scenario: Option<Fabric>,
    },
    /// Two kernels with an HCA each, which a fabric joins
    Cluster(Pair),
    /// One fabric of 32 hosts, 16 in each of two kernels, which leave and join under load
    Hosts(Pair),
    /// NVMe and NFS over RDMA between two kernels, while the server's address moves to another port
    Storage(Pair),
    /// Each kind of router between two kernels, with each kind of caller
    Routers(Pair),
    /// What requests of ACM cost that memory answers, with ibarr and with ibacm: `bench acm`
    AcmSpeed,
    /// How long addresses and routes take, with ibarr, ibacm and the kernel alone: `run c`
    Timings,
    /// Bandwidth and latency of software HCAs and of Soft-RoCE, in turn
    RxeSpeed,
    /// A shell in the network of `run`
    Shell,
    /// The kernel module `ibtun` alone: what it promises and what it refuses
    Ibtun {
        /// How many random and mutated packets it gets
        #[arg(long, default_value_t = ODD_RECORDS)]
        records: u64,
    },
    /// HCAs end under load: `ibfab` is killed, and the module unloaded
    Reload {
        /// The number of rounds, each of which ends all HCAs
        #[arg(long, default_value_t = RELOADS)]
        rounds: u32,
        /// What is done, and in which order, depends on it [default: another each time]
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Failure modes: the daemon under faults
    Daemon,
    /// The tests of the BPF programs
    Bpf,
    /// The system tests of the daemon and its BPF programs
    Responder {
        /// Only tests whose names contain this
        #[arg(default_value = RESPONDER)]
        tests: String,
        /// How often a daemon is replaced under load, for each kind of program
        #[arg(long, default_value_t = 50, value_name = "TIMES")]
        rounds: u32,
        #[arg(skip)]
        half: Option<Half>,
    },
    /// Run your own statically linked program, as root, with NETLINK_RDMA, veth, TUN and tc
    Exec {
        /// The program, which is in the guest's /bin, and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
}

/// The tests of the daemon and its programs; those with a VRF run with them.
const RESPONDER: &str = "responder::";

/// A part of the tests of `responder`. They need a guest with one processor, and two such guests run at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Half {
    /// [`LONGEST`].
    First,
    /// All the others.
    Second,
}

/// About half of the time of `responder`.
const LONGEST: [&str; 3] = ["responder::life::", "responder::others::", "responder::takeover::"];

impl Scenario {
    /// Whether it is all that its name says, so that its result counts for a system.
    fn is_whole(&self) -> bool {
        match self {
            Self::Responder { tests, .. } => tests == RESPONDER,
            Self::Ls { daemon, .. } => daemon.is_empty(),
            Self::Shell | Self::Exec { .. } | Self::AcmSpeed | Self::RxeSpeed => false,
            _ => true,
        }
    }

    /// The names of its guests, and their kernels.
    fn in_two_guests(&self) -> Option<([&'static str; 2], &Pair)> {
        match self {
            Self::Cluster(pair) => Some((["cluster", "cluster-other"], pair)),
            Self::Hosts(pair) => Some((["hosts", "hosts-other"], pair)),
            Self::Storage(pair) => Some((["storage", "storage-other"], pair)),
            Self::Routers(pair) => Some((["routers", "routers-other"], pair)),
            _ => None,
        }
    }

    /// The guest's own program.
    fn program(&self) -> &'static str {
        match self {
            Self::Run { scenario: Some(scenario) } if scenario.proves_ibtun() => "ibtun-proofs",
            Self::RxeSpeed | Self::Ibtun { .. } | Self::Reload { .. } => "ibtun-proofs",
            _ => "ibarr-guest",
        }
    }
}

/// Tests of the BPF programs that do not run in a guest. Two need very many runs, and a guest is slow. Two
/// need more metadata in a test run than Linux 6.1 allows (`xdp_metalen_invalid` in net/core/xdp.c).
const NOT_IN_A_GUEST: [&str; 4] = [
    "any_frame_gets_the_same_from_both",
    "a_million_updates",
    "xdp_uses_room_behind_the_frame_if_there_is_none_before_it",
    "xdp_passes_queries_without_room_for_the_reply",
];

/// Enough to reach each branch of the parser often; a million take some minutes.
const ODD_RECORDS: u64 = 50_000;

/// They take more than an hour.
const RELOADS: u32 = 1000;

/// Twice what so many rounds take, or more.
const RELOAD_DEADLINE: Duration = Duration::from_hours(3);

/// The modules of `vm exec`: all that our scenarios need.
const ALL_MODULES: &[&str] = &["rdma_ucm", "ib_umad", "tun", "veth", "sch_ingress", "cls_bpf"];

/// Further modules of both guests of `cluster`: their link, and storage.
const CLUSTER_MODULES: &[&str] = &["virtio_net", "brd", "nvme_rdma", "nvmet_rdma"];

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let versions = match (args.scenario.in_two_guests(), &args.scenario, &args.kernels[..]) {
        (Some((_, Pair { pair })), _, named) => match &pair[..] {
            two @ [_, _] if named.is_empty() => two,
            _ => bail!("vm: two guests need --kernels with two versions"),
        },
        (None, Scenario::Shell, []) => &[Version::V6_1],
        (None, _, []) => &Version::ALL,
        (None, _, named) => named,
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
        (None, Scenario::Routers(_)) => ROUTERS_DEADLINE,
        (None, Scenario::Reload { .. }) => RELOAD_DEADLINE,
        (None, Scenario::Shell) => SHELL_DEADLINE,
        (None, _) => DEADLINE,
    };
    prove_all(workspace, &mut machines, &scenarios, deadline, None).map(drop)
}

/// `bench acm`: in guests, because ibacm needs an HCA.
pub(crate) fn bench_acm(workspace: &Workspace) -> Result<()> {
    let scenario = Scenario::AcmSpeed;
    run(workspace, &Args { scenario, kernels: Vec::new(), tree: None, deadline: None })
}

/// The longest first, so that no guest runs alone at the end.
fn all_on_the_fabric() -> Vec<Scenario> {
    let mut all = Fabric::value_variants().to_vec();
    all.sort_by_key(|scenario| ![Fabric::K, Fabric::M].contains(scenario));
    all.into_iter().map(|scenario| Scenario::Run { scenario: Some(scenario) }).collect()
}

/// Runs all, also after a failure. Returns how many claims hold. Results are recorded for the `level`, or for each
/// scenario.
fn prove_all(
    workspace: &Workspace,
    machines: &mut Machines,
    scenarios: &[Scenario],
    deadline: Duration,
    level: Option<&str>,
) -> Result<usize> {
    let prepared = scenarios.iter().map(|scenario| prepare(workspace, scenario));
    let mut prepared = prepared.collect::<Result<Vec<_>>>()?;
    if prepared.iter().any(|scenario| scenario.modules.contains(&module::NAME)) {
        machines.build_module(workspace)?;
    }
    let mut table = Table::default();
    if let [scenario] = scenarios
        && let Some(([_, name], _)) = scenario.in_two_guests()
    {
        let mut other = prepare(workspace, scenario)?;
        other.name = name;
        other.reports = false;
        other.command = [image::INIT, "other-guest"].map(str::to_owned).to_vec();
        prepared.push(other);
        machines.run_both(&prepared, deadline, &mut table)?;
    } else {
        machines.run(&prepared, deadline, &mut table)?;
    }
    if scenarios.iter().all(Scenario::is_whole) {
        systems::record(workspace, &table.rows(level, |kernel| machines.release(kernel)))?;
    }
    if let [Scenario::Routers(_)] = scenarios {
        table.figures().try_for_each(|(on, seen)| routers::record(workspace, on, seen))?;
    }
    table.end()
}

fn prepare(workspace: &Workspace, scenario: &Scenario) -> Result<Prepared> {
    // All programs of all scenarios, so that cargo builds shared parts once.
    let mut wanted = vec!["--package", "ibarr-testbed", "--example", "ibarr-guest"];
    wanted.extend(["--package", "ibarr-user", "--bin", "ibarr"]);
    let mut built = image::build(|arguments| workspace.cargo(arguments), "build", &wanted)?;
    let wanted = ["--bin", "ibfab", "--bin", "ibtun-proofs"];
    built.extend(image::build(|arguments| workspace.house_cargo(arguments), "build", &wanted)?);
    let program = |path: &str, name| image::ours(path, artifacts::binary(&built, name)?);
    let mut prepared = Prepared {
        name: "hello",
        about: String::new(),
        modules: &["tun"],
        later: &[],
        programs: vec![program(image::INIT, scenario.program())?],
        files: &[],
        command: vec![image::INIT.to_owned()],
        shares: Vec::new(),
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
        Scenario::Timings => prepare_run(workspace, Fabric::C, &built, &mut prepared)?,
        Scenario::Cluster(_) | Scenario::Hosts(_) | Scenario::Storage(_) | Scenario::Routers(_) => {
            let named = scenario.in_two_guests().context("two guests")?;
            let ([name, _], _) = named;
            rig::prepare(workspace, name, &built, &mut prepared)?;
            rig::with_package(workspace, &mut prepared)?;
            prepared.later = CLUSTER_MODULES;
            let more = match scenario {
                Scenario::Storage(_) | Scenario::Routers(_) => rig::with_nfs,
                _ => rig::with_perftest,
            };
            more(workspace, &mut prepared)?;
            prepared.processors = Processors::One;
        }
        Scenario::AcmSpeed | Scenario::RxeSpeed => {
            prepare_speed(workspace, scenario, &built, &mut prepared)?;
        }
        Scenario::Shell => {
            rig::prepare(workspace, "shell", &built, &mut prepared)?;
            prepared.programs.push(program("/bin/ibarr", "ibarr")?);
            prepared.is_interactive = true;
            prepared.reports = false;
        }
        Scenario::Ibtun { records } => {
            prepared.name = "ibtun";
            prepared.modules = &["ib_umad", "ib_uverbs", "ib_ipoib", "rdma_ucm", module::NAME];
            prepared.command.extend(["ibtun".to_owned(), records.to_string()]);
        }
        Scenario::Reload { rounds, seed } => {
            rig::prepare(workspace, "reload", &built, &mut prepared)?;
            rig::with_diagnostics(workspace, &mut prepared)?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            let seed = seed.unwrap_or(now);
            prepared.command.extend([rounds.to_string(), seed.to_string()]);
            // The log keeps all warnings.
            prepared.kernel_arguments = "log_buf_len=16M";
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
        Scenario::Responder { tests, rounds, half } => {
            prepared.programs.push(program("/bin/ibarr", "ibarr")?);
            prepare_responder(workspace, tests, *rounds, *half, &mut prepared)?;
        }
        Scenario::Exec { command } => {
            prepared.name = "exec";
            prepared.modules = ALL_MODULES;
            prepared.command = foreign(command, &mut prepared.programs)?;
            prepared.reports = false;
        }
    }
    // Several programs have the same libraries.
    prepared.programs.sort_by(|a, b| a.path.cmp(&b.path));
    prepared.programs.dedup_by(|a, b| a.path == b.path);
    Ok(prepared)
}

/// The system tests of the daemon and its BPF programs.
fn prepare_responder(
    workspace: &Workspace,
    filter: &str,
    rounds: u32,
    half: Option<Half>,
    prepared: &mut Prepared,
) -> Result<()> {
    prepared.name = match half {
        None => "responder",
        Some(Half::First) => "responder-1",
        Some(Half::Second) => "responder-2",
    };
    prepared.processors = Processors::One;
    prepared.modules = &["veth", "vrf", "sch_ingress", "cls_bpf"];
    prepared.programs.push(image::ours("/bin/system", &tests(workspace, "system")?)?);
    let tools = [
        (&tools::IPROUTE2, "ip"),
        (&tools::IPROUTE2, "tc"),
        (&tools::BPFTOOL, "bpftool"),
        (&tools::ETHTOOL, "ethtool"),
        (&tools::STRACE, "strace"),
    ];
    for (set, name) in tools {
        let root = tools::root(workspace, set)?;
        prepared.programs.extend(libraries::program(&root, name)?);
    }
    // Each Debian has these: their packages are essential.
    for name in ["setpriv", "unshare", "nsenter", "mount", "umount"] {
        prepared.programs.extend(libraries::program(Path::new("/"), name)?);
    }
    let rounds = format!("IBARR_TEST_ROUNDS={rounds}");
    let mut command = vec!["IBARR_UNDER_TEST=ibarr", &rounds, "/bin/system"];
    let chosen = [filter];
    command.extend(if half == Some(Half::First) { &LONGEST[..] } else { &chosen });
    if half == Some(Half::Second) {
        command.extend(LONGEST.iter().flat_map(|tests| ["--skip", tests]));
    }
    prepared.command = command.into_iter().map(str::to_owned).collect();
    Ok(())
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
        _ if scenario.proves_ibtun() => Processors::Two,
        // Its times must not depend on other work of the machine.
        Fabric::C => Processors::CountedAlone,
        // These attach the responder.
        _ => Processors::One,
    };
    match scenario {
        Fabric::B | Fabric::C | Fabric::E | Fabric::R | Fabric::S => {
            rig::with_package(workspace, prepared)?;
        }
        Fabric::H => rig::with_perftest(workspace, prepared)?,
        Fabric::I => {
            rig::with_pyverbs(workspace, prepared)?;
            rig::with_diagnostics(workspace, prepared)?;
        }
        Fabric::O => {
            rig::with_ucx(workspace, prepared)?;
            rig::with_pyverbs_13(workspace, prepared)?;
        }
        // Each Debian has these.
        Fabric::Tutorial => {
            for name in ["dash", "setpriv"] {
                prepared.programs.extend(libraries::program(Path::new("/"), name)?);
            }
        }
        _ if scenario.proves_ibtun() => {}
        _ => prepared.programs.push(image::ours("/bin/ibarr", artifacts::binary(built, "ibarr")?)?),
    }
    match scenario {
        Fabric::J => prepared.later = &["bonding"],
        Fabric::F => prepared.kernel_arguments = "ipv6.disable=1",
        _ => {}
    }
    Ok(())
}

/// A comparison, on a clock that does not depend on other work of the machine.
fn prepare_speed(
    workspace: &Workspace,
    scenario: &Scenario,
    built: &[Artifact],
    prepared: &mut Prepared,
) -> Result<()> {
    if matches!(scenario, Scenario::AcmSpeed) {
        rig::prepare(workspace, "acm-speed", built, prepared)?;
        rig::with_package(workspace, prepared)?;
    } else {
        rig::prepare(workspace, "rxe-speed", built, prepared)?;
        rig::with_perftest(workspace, prepared)?;
        rig::with_soft_roce(workspace, prepared)?;
    }
    prepared.processors = Processors::CountedAlone;
    Ok(())
}

/// The scenario `ls` with `ibarr`, another daemon of this machine, or our small responder.
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

/// Builds the tests `name` of the test bed.
fn tests(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let arguments = ["--no-run", "--package", "ibarr-testbed", "--test", name];
    let built = image::build(|arguments| workspace.cargo(arguments), "test", &arguments)?;
    let is_it = |artifact: &Artifact| artifact.is_test && artifact.target == name;
    let tests = built.into_iter().find(is_it);
    Ok(tests.with_context(|| format!("this checkout has no tests called {name}"))?.executable)
}

/// Adds a program of this machine to `programs`, and returns its command in the guest.
fn foreign(command: &[String], programs: &mut Vec<Program>) -> Result<Vec<String>> {
    let [program, arguments @ ..] = command else { return Ok(Vec::new()) };
    let executable = Path::new(program);
    let name = executable.file_name().and_then(|name| name.to_str());
    let path = format!("/bin/{}", name.with_context(|| format!("{program:?} names no file"))?);
    programs.push(image::ours(&path, executable)?);
    Ok([path].into_iter().chain(arguments.iter().cloned()).collect())
}
