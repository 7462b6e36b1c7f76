// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The levels of proof, and the function of each.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::suite::{self, Count};
use super::{Bench, Level, Outcome, arm64, contrib};
use crate::artifacts::{self, Artifact};
use crate::ebpf::{self, Toolchain};
use crate::package::root::{DEBIAN_11, DEBIAN_12, Release};
use crate::privilege::Privilege;
use crate::systems::{self, How, Row};
use crate::tools::{Set, Toolbox};
use crate::workspace::Workspace;
use crate::{fuzz, instructions, package, process, sim, testbed, tidy, tools, vm};

/// The budgets are what CI took in the last days of November 2026 on two cores, without anything built before, and
/// some seconds more. `unit` has the build of the workspace, `vm-netlink` and `vm-responder` have that of the guests.
pub(super) const LEVELS: &[Level] = &[
    Level {
        name: "lint",
        what: "format, clippy, documentation, the project's rules",
        fast: true,
        budget: Duration::from_secs(75),
        run: lint,
    },
    Level {
        name: "unit",
        what: "unit, golden, property, driver and documentation tests",
        fast: true,
        budget: Duration::from_secs(320),
        run: unit,
    },
    Level {
        name: "ibtun",
        what: "the software InfiniBand, a workspace of its own: lint, unit, golden and property tests",
        fast: true,
        budget: Duration::from_secs(40),
        run: house,
    },
    Level {
        name: "sim",
        what: "300 simulated networks of 20 nodes, each for 10 minutes, and a subnet of 500",
        fast: false,
        budget: Duration::from_secs(235),
        run: simulation,
    },
    Level {
        name: "fuzz",
        what: "replay of the corpora, then each target for 3 s",
        fast: false,
        budget: Duration::from_secs(160),
        run: fuzzing,
    },
    Level {
        name: "bpf",
        what: "the prebuilt BPF objects are what their sources give",
        fast: false,
        budget: Duration::from_secs(70),
        run: bpf,
    },
    Level {
        name: "lab",
        what: "system tests in network namespaces (needs root)",
        fast: false,
        budget: Duration::from_secs(245),
        run: lab,
    },
    Level {
        name: "run",
        what: "`cargo xtask run --lab --once` (needs root)",
        fast: false,
        budget: Duration::from_secs(10),
        run: demo,
    },
    Level {
        name: "monitor",
        what: "`cargo xtask monitor`: alerts and dashboard with Prometheus (needs root)",
        fast: false,
        budget: Duration::from_mins(1),
        run: monitor,
    },
    Level {
        name: "opensm",
        what: "the daemon, stock OpenSM and diagnostics on a software fabric (needs root)",
        fast: false,
        budget: Duration::from_secs(25),
        run: opensm_on_fabric,
    },
    Level {
        name: "install",
        what: "the packages, the unit, the image and the playbook under systemd in a container (needs root)",
        fast: false,
        budget: Duration::from_secs(340),
        run: install,
    },
    Level {
        name: "instructions",
        what: "instructions of the packaged daemon for an answer are at most 5 % more than accepted (needs root)",
        fast: false,
        budget: Duration::from_secs(65),
        run: instructions,
    },
    Level {
        name: "vm-netlink",
        what: "Debian 12's kernel in QEMU: what it asks, and which answers it accepts",
        fast: false,
        budget: Duration::from_secs(200),
        run: virtual_machines,
    },
    Level {
        name: "vm-responder",
        what: "the BPF programs on Debian 12's kernel, and the daemon with them, from start to detach",
        fast: false,
        budget: Duration::from_secs(430),
        run: responder_in_vm,
    },
    Level {
        name: "vm-ibtun",
        what: "each sentence of the software HCAs' README that Debian 12's kernel can prove",
        fast: false,
        budget: Duration::from_secs(250),
        run: ibtun_in_vm,
    },
    Level {
        name: "vm-rdma",
        what: "the daemon beside OpenSM, IPoIB and librdmacm, on software HCAs and Debian 12's kernel",
        fast: false,
        budget: Duration::from_secs(400),
        run: rdma_in_vm,
    },
    Level {
        name: "vm-cluster",
        what: "two stock kernels, 6.1 and 6.12, with an HCA each on one fabric",
        fast: false,
        budget: Duration::from_secs(260),
        run: cluster_in_vm,
    },
    Level {
        name: "arm64",
        what: "the packages for 64-bit Arm, emulated: tests of formats and cores, and the daemon with its BPF programs \
               on Debian 12's kernel; before each release, and not part of `all`",
        fast: false,
        budget: Duration::from_mins(20),
        run: arm64,
    },
    Level {
        name: "checked",
        what: "software HCAs on a kernel with KASAN and lockdep, which is compiled once (needs root); before each \
               release, and not part of `all`",
        fast: false,
        budget: Duration::from_mins(45),
        run: checked,
    },
    Level {
        name: "install-11",
        what: "the Debian package under the oldest systemd that it accepts, Debian 11's, in a container (needs root); \
               before each release, and not part of `all`",
        fast: false,
        budget: Duration::from_mins(5),
        run: install_on_debian_11,
    },
    Level {
        name: "dkms",
        what: "apt installs ibtun-dkms and ibfab in a guest with Debian 12, and removes them; between, the commands of \
               ibtun's README (needs root); before each release, and not part of `all`",
        fast: false,
        budget: Duration::from_mins(10),
        run: installed_by_dkms,
    },
    Level {
        name: "nightly",
        what: "unused dependencies, 1200 more networks, the levels `vm-` on Debian 13's kernel, and the daemon and \
               software HCAs on Debian 11's and the newest; before each release, and not part of `all`",
        fast: false,
        budget: Duration::from_hours(1),
        run: nightly,
    },
];

/// The levels for which CI has no time.
const BEFORE_RELEASES: [&str; 5] = ["arm64", "checked", "dkms", "install-11", "nightly"];

/// Tests that run in guests alone: this machine's kernel may have no VRFs.
const NEED_VRFS: &[&str] = &["responder::vrf::"];

const GROUPS: [&str; 3] = ["all", "fast", "vm"];

/// The levels in `names`, in the order of the table; `vm` stands for all levels that begin with `vm-`.
pub(super) fn choose(names: &[String]) -> Result<Vec<&'static Level>> {
    for name in names {
        let is_known = LEVELS.iter().any(|level| level.name == name);
        if !is_known && !GROUPS.contains(&name.as_str()) {
            let known: Vec<_> =
                GROUPS.into_iter().chain(LEVELS.iter().map(|level| level.name)).collect();
            bail!("there is no level {name:?}, only {}", known.join(", "));
        }
    }
    let asked = |name: &str| names.iter().any(|asked| asked == name);
    let is_chosen = |level: &&Level| {
        let in_group = level.fast && asked("fast") || level.name.starts_with("vm-") && asked("vm");
        asked("all") && !BEFORE_RELEASES.contains(&level.name) || in_group || asked(level.name)
    };
    Ok(LEVELS.iter().filter(is_chosen).collect())
}

pub(super) fn help() -> String {
    let lines = LEVELS.iter().map(|level| {
        let fast = if level.fast { " (fast)" } else { "" };
        format!("  {:<12} {}{fast}", level.name, level.what)
    });
    format!("Levels:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn lint(bench: &Bench<'_>) -> Result<Outcome> {
    let fuzz = |arguments: &[&str]| process::run(&mut fuzz::cargo(bench.workspace, arguments));
    let prove = ["check", "--locked", "--package=ibarr-no-std", "--features=prove"];
    let more = [
        process::run(&mut bench.workspace.cargo(&prove)),
        fuzz(&["fmt", "--check"]),
        fuzz(&["clippy", "--locked", "--all-targets", "--", "-Dwarnings"]),
        tidy::check(bench.workspace),
    ];
    let checks = rustc_lints(|arguments| bench.workspace.cargo(arguments));
    all_pass(checks.into_iter().chain(more))?;
    Ok(Outcome::Passed(Count::default()))
}

/// Format, clippy and documentation of a workspace.
fn rustc_lints(cargo: impl Fn(&[&str]) -> Command) -> [Result<()>; 3] {
    let clippy = ["clippy", "--locked", "--workspace", "--all-targets", "--", "-Dwarnings"];
    let doc = ["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"];
    [
        process::run(&mut cargo(&["fmt", "--all", "--check"])),
        process::run(&mut cargo(&clippy)),
        process::run(cargo(&doc).env("RUSTDOCFLAGS", "-Dwarnings")),
    ]
}

fn all_pass(checks: impl Iterator<Item = Result<()>>) -> Result<()> {
    let failed: Vec<_> =
        checks.filter_map(|check| check.err().map(|error| error.to_string())).collect();
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(())
}

fn house(bench: &Bench<'_>) -> Result<Outcome> {
    let cargo = |arguments: &[&str]| bench.workspace.house_cargo(arguments);
    all_pass(rustc_lints(cargo).into_iter())?;
    let tests = bench.house()?.iter().filter(|artifact| artifact.is_test);
    let mut count = suite::run(bench.workspace, tests, Privilege::Unprivileged, &[], &[])?;
    count += suite::run_command("documentation", &mut cargo(&DOC_TESTS))?;
    Ok(Outcome::Passed(count))
}

const DOC_TESTS: [&str; 4] = ["test", "--locked", "--workspace", "--doc"];

/// Checks that every dependency is used, by cargo-machete, which is compiled once.
fn unused_dependencies(workspace: &Workspace) -> Result<()> {
    let root = workspace.target().join("tools/cargo-machete");
    let install = ["install", "--quiet", "--debug", "--locked", "cargo-machete@0.9.2", "--root"];
    process::run(workspace.cargo(&install).arg(&root))?;
    process::run(Command::new(root.join("bin/cargo-machete")).arg(workspace.root()))
}

fn unit(bench: &Bench<'_>) -> Result<Outcome> {
    let tests = bench.built()?.iter().filter(|artifact| artifact.is_test && !is_system(artifact));
    // The tests of the daemon's binary make their own namespace, as any user.
    let toolbox = match toolbox(bench, &[&tools::IPROUTE2, &tools::TMUX]) {
        Ok(toolbox) => toolbox,
        Err(lack) => return Ok(lack),
    };
    let path = toolbox.path()?;
    let variables = [("PATH", path.as_os_str())];
    let mut count = suite::run(bench.workspace, tests, Privilege::Unprivileged, &variables, &[])?;
    count += suite::run_command("documentation", &mut bench.workspace.cargo(&DOC_TESTS))?;
    Ok(Outcome::Passed(count))
}

fn simulation(bench: &Bench<'_>) -> Result<Outcome> {
    sim::prove(bench.workspace)?;
    Ok(Outcome::Passed(Count::default()))
}

fn opensm_on_fabric(bench: &Bench<'_>) -> Result<Outcome> {
    if bench.privilege == Privilege::Unprivileged {
        return Ok(Outcome::NotRun(NO_ROOT.to_owned()));
    }
    let root = match tools::root(bench.workspace, &tools::OPENSM) {
        Ok(root) => root,
        Err(error) => return Ok(Outcome::NotRun(format!("{error:#}"))),
    };
    let ibarr = artifacts::binary(bench.built()?, "ibarr")?.as_os_str();
    let ibfab = artifacts::binary(bench.house()?, "ibfab")?.as_os_str();
    let variables = [
        ("IBARR_UNDER_TEST", ibarr),
        ("IBFAB_UNDER_TEST", ibfab),
        ("IBARR_OPENSM_ROOT", root.as_os_str()),
    ];
    let tests = bench.built()?.iter().filter(|artifact| is_with_opensm(artifact));
    Ok(Outcome::Passed(suite::run(bench.workspace, tests, bench.privilege, &variables, &[])?))
}

fn fuzzing(bench: &Bench<'_>) -> Result<Outcome> {
    let count = suite::run_command("corpora", &mut fuzz::replay(bench.workspace))?;
    let toolbox = match toolbox(bench, &[&tools::LIBFUZZER]) {
        Ok(toolbox) => toolbox,
        Err(lack) => return Ok(lack),
    };
    fuzz::smoke(bench.workspace, &toolbox, Duration::from_secs(3))?;
    Ok(Outcome::Passed(count))
}

fn bpf(bench: &Bench<'_>) -> Result<Outcome> {
    let toolchain = match Toolchain::ensure(bench.workspace) {
        Ok(toolchain) => toolchain,
        Err(error) => return Ok(Outcome::NotRun(format!("{error:#}"))),
    };
    ebpf::check(bench.workspace, &toolchain)?;
    Ok(Outcome::Passed(Count::default()))
}

fn lab(bench: &Bench<'_>) -> Result<Outcome> {
    let is_here = |artifact: &&Artifact| {
        is_system(artifact) && !is_with_opensm(artifact) && !is_of_package(artifact)
    };
    let tests: Vec<_> = bench.built()?.iter().filter(is_here).collect();
    let toolbox = match root_and_tools(bench) {
        Ok(toolbox) => toolbox,
        Err(lack) => return Ok(lack),
    };
    // Without this variable the tests would build the daemon, as root.
    let ibarr = artifacts::binary(bench.built()?, "ibarr")?.as_os_str();
    let path = toolbox.path()?;
    let variables = [("PATH", path.as_os_str()), ("IBARR_UNDER_TEST", ibarr)];
    let tests = tests.into_iter();
    Ok(Outcome::Passed(suite::run(bench.workspace, tests, bench.privilege, &variables, NEED_VRFS)?))
}

fn demo(bench: &Bench<'_>) -> Result<Outcome> {
    let testbed = artifacts::binary(bench.built()?, "ibarr-testbed")?;
    let toolbox = match root_and_tools(bench) {
        Ok(toolbox) => toolbox,
        Err(lack) => return Ok(lack),
    };
    let path = toolbox.path()?;
    let mut command = bench.privilege.command(testbed, &[("PATH", &path)]);
    process::run(command.args(["demo", "--once"]))?;
    Ok(Outcome::Passed(Count::default()))
}

fn monitor(bench: &Bench<'_>) -> Result<Outcome> {
    if bench.privilege == Privilege::Unprivileged {
        return Ok(Outcome::NotRun(NO_ROOT.to_owned()));
    }
    let toolbox = match toolbox(bench, testbed::MONITOR) {
        Ok(toolbox) => toolbox,
        Err(lack) => return Ok(lack),
    };
    let program = artifacts::binary(bench.built()?, "ibarr-testbed")?;
    let path = toolbox.path()?;
    let mut command = bench.privilege.command(program, &[("PATH", &path)]);
    process::run(command.args(testbed::monitor_arguments(bench.workspace)))?;
    Ok(Outcome::Passed(Count::default()))
}

fn install(bench: &Bench<'_>) -> Result<Outcome> {
    if bench.privilege == Privilege::Unprivileged {
        return Ok(Outcome::NotRun(NO_ROOT.to_owned()));
    }
    let root = package::root::ensure(bench.workspace, bench.privilege, &DEBIAN_12);
    let usable = root.and_then(|root| {
        package::root::probe(&root, bench.privilege)?;
        let more = package::root::ensure_for_deployment(bench.workspace, bench.privilege, &root)?;
        Ok((root, more, contrib::checkers(bench.workspace)?))
    });
    let (root, deploy_root, checkers) = match usable {
        Ok(roots) => roots,
        Err(error) => return Ok(Outcome::NotRun(format!("{error:#}"))),
    };
    let sets = [&tools::IPROUTE2, &tools::BPFTOOL, &tools::ETHTOOL, &tools::RPM];
    let toolbox = match toolbox(bench, &sets) {
        Ok(toolbox) => toolbox,
        Err(lack) => return Ok(lack),
    };
    contrib::check(bench.workspace, &checkers)?;
    let packages = package::prove(bench.workspace)?;
    let path = toolbox.path()?;
    let rpm = toolbox.root(&tools::RPM).unwrap_or_else(|| "/".into()).join("usr/lib/rpm");
    let variables = [
        ("PATH", path.as_os_str()),
        ("IBARR_PACKAGE", packages.deb.as_os_str()),
        ("IBARR_RPM", packages.rpm.as_os_str()),
        ("IBARR_REPOSITORY", packages.repository.as_os_str()),
        ("RPM_CONFIGDIR", rpm.as_os_str()),
        ("IBARR_DEBIAN_ROOT", root.as_os_str()),
        ("IBARR_DEPLOY_ROOT", deploy_root.as_os_str()),
    ];
    let tests = bench.built()?.iter().filter(|artifact| is_of_package(artifact));
    let count = suite::run(bench.workspace, tests, bench.privilege, &variables, &[])?;
    installed(bench, "install", &DEBIAN_12, count)
}

/// After `install`, which has built the daemon of the packages.
fn instructions(bench: &Bench<'_>) -> Result<Outcome> {
    if bench.privilege == Privilege::Unprivileged {
        return Ok(Outcome::NotRun(NO_ROOT.to_owned()));
    }
    let toolbox = match toolbox(bench, testbed::COUNTED) {
        Ok(toolbox) => toolbox,
        Err(lack) => return Ok(lack),
    };
    let testbed = artifacts::binary(bench.built()?, "ibarr-testbed")?;
    let passed = instructions::check(bench.workspace, testbed, bench.privilege, &toolbox)?;
    Ok(Outcome::Passed(Count { passed, ignored: 0 }))
}

/// Tests of the package that need no newer systemd, and no other package: of the service, its sockets and its faults.
const ON_ANY_SYSTEMD: [&str; 5] = ["health::", "package::", "service::", "socket::", "upgrade::"];

/// Tests among them that ask systemd 247 for what it cannot do.
const NOT_ON_247: [&str; 1] = ["exposure_of_each_unit_is_at_most_what_was_reached"];

fn install_on_debian_11(bench: &Bench<'_>) -> Result<Outcome> {
    if bench.privilege == Privilege::Unprivileged {
        return Ok(Outcome::NotRun(NO_ROOT.to_owned()));
    }
    let root = |release| package::root::ensure(bench.workspace, bench.privilege, release);
    let roots = root(&DEBIAN_12).and_then(|newer| Ok((newer, root(&DEBIAN_11)?)));
    let toolbox = toolbox(bench, &[&tools::IPROUTE2, &tools::BPFTOOL, &tools::ETHTOOL]);
    let ((newer, older), toolbox) = match (roots, toolbox) {
        (Ok(roots), Ok(toolbox)) => (roots, toolbox),
        (Err(error), _) => return Ok(Outcome::NotRun(format!("{error:#}"))),
        (_, Err(lack)) => return Ok(lack),
    };
    let package = package::deb(bench.workspace)?;
    let path = toolbox.path()?;
    let variables = [
        ("PATH", path.as_os_str()),
        ("IBARR_PACKAGE", package.as_os_str()),
        ("IBARR_DEBIAN_ROOT", newer.as_os_str()),
        ("IBARR_OLDER_ROOT", older.as_os_str()),
    ];
    let test = bench.built()?.iter().find(|artifact| is_of_package(artifact));
    let test = test.context("this checkout has no tests of its package")?;
    let mut command = bench.privilege.command(&test.executable, &variables);
    command.args(ON_ANY_SYSTEMD).args(NOT_ON_247.iter().flat_map(|test| ["--skip", test]));
    command.current_dir(&test.package);
    let count = suite::run_command("the package on Debian 11", &mut command)?;
    installed(bench, "install-11", &DEBIAN_11, count)
}

fn installed_by_dkms(bench: &Bench<'_>) -> Result<Outcome> {
    if bench.privilege == Privilege::Unprivileged {
        return Ok(Outcome::NotRun(NO_ROOT.to_owned()));
    }
    let root = match package::dkms::ensure_root(bench.workspace, bench.privilege) {
        Ok(root) => root,
        Err(error) => return Ok(Outcome::NotRun(format!("{error:#}"))),
    };
    let packages = package::dkms::prove(bench.workspace, bench.privilege, &root)?;
    proved(vm::prove_installed(bench.workspace, &root, &packages))
}

fn checked(bench: &Bench<'_>) -> Result<Outcome> {
    if bench.privilege == Privilege::Unprivileged {
        return Ok(Outcome::NotRun(NO_ROOT.to_owned()));
    }
    let tree = package::kernel::ensure_checked(bench.workspace, bench.privilege)?;
    proved(vm::prove_checked(bench.workspace, &tree))
}

/// Records what passed on a release of Debian.
fn installed(bench: &Bench<'_>, level: &str, release: &Release, count: Count) -> Result<Outcome> {
    let passed = usize::try_from(count.passed)?;
    let (how, system, what) = (How::Ran, release.name.to_owned(), level.to_owned());
    let row = Row { system, how, what, passed, of: passed, with: release.systemd.to_owned() };
    systems::record(bench.workspace, &[row])?;
    Ok(Outcome::Passed(count))
}

fn virtual_machines(bench: &Bench<'_>) -> Result<Outcome> {
    proved(vm::prove(bench.workspace))
}

fn responder_in_vm(bench: &Bench<'_>) -> Result<Outcome> {
    proved(vm::prove_responder(bench.workspace))
}

fn ibtun_in_vm(bench: &Bench<'_>) -> Result<Outcome> {
    proved(vm::prove_ibtun(bench.workspace))
}

fn rdma_in_vm(bench: &Bench<'_>) -> Result<Outcome> {
    proved(vm::prove_rdma(bench.workspace))
}

fn cluster_in_vm(bench: &Bench<'_>) -> Result<Outcome> {
    proved(vm::prove_cluster(bench.workspace))
}

fn nightly(bench: &Bench<'_>) -> Result<Outcome> {
    unused_dependencies(bench.workspace)?;
    sim::prove_more(bench.workspace)?;
    let all = || {
        let newer = vm::prove_newer(bench.workspace)?;
        let ends = vm::prove_ends(bench.workspace)?;
        let both_ways = vm::prove_both_ways(bench.workspace)?;
        Ok(newer.and_then(|held| Ok(held + ends? + both_ways?)))
    };
    proved(all())
}

fn arm64(bench: &Bench<'_>) -> Result<Outcome> {
    arm64::prove(bench.workspace).map(Outcome::Passed)
}

/// The outcome of guests, or why none can run.
fn proved(proof: Result<Result<usize>>) -> Result<Outcome> {
    let proof = match proof {
        Ok(proof) => proof,
        Err(lack) => return Ok(Outcome::NotRun(format!("{lack:#}"))),
    };
    let passed = u32::try_from(proof?).context("fewer claims than that")?;
    Ok(Outcome::Passed(Count { passed, ignored: 0 }))
}

/// The integration tests of the test bed make namespaces and need root.
fn is_system(artifact: &Artifact) -> bool {
    artifact.is_integration_test && artifact.package.ends_with("ibarr-testbed")
}

/// The tests with OpenSM are a level of their own.
fn is_with_opensm(artifact: &Artifact) -> bool {
    is_system(artifact) && artifact.target == "opensm"
}

/// The tests of the package are a level of their own.
fn is_of_package(artifact: &Artifact) -> bool {
    is_system(artifact) && artifact.target == "install"
}

const NO_ROOT: &str = "it needs root, and sudo is missing or not wanted";

/// The tools of the lab, or why it cannot run here.
fn root_and_tools(bench: &Bench<'_>) -> Result<Toolbox, Outcome> {
    if bench.privilege == Privilege::Unprivileged {
        return Err(Outcome::NotRun(NO_ROOT.to_owned()));
    }
    let of_network = [&tools::IPROUTE2, &tools::ETHTOOL, &tools::NFTABLES];
    toolbox(bench, &[&of_network[..], &[&tools::BPFTOOL, &tools::STRACE]].concat())
}

/// The programs of `sets`, or why they cannot be fetched.
fn toolbox(bench: &Bench<'_>, sets: &[&Set]) -> Result<Toolbox, Outcome> {
    tools::ensure(bench.workspace, sets).map_err(|error| Outcome::NotRun(format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: &[&str]) -> Vec<&'static str> {
        let asked: Vec<_> = asked.iter().map(|&name| name.to_owned()).collect();
        choose(&asked).expect("known levels").iter().map(|level| level.name).collect()
    }

    #[test]
    fn fast_and_all_stand_for_levels() {
        assert_eq!(names(&["fast"]), ["lint", "unit", "ibtun"]);
        assert_eq!(names(&["all"]).len(), LEVELS.len() - BEFORE_RELEASES.len());
        assert_eq!(names(&["nightly"]), ["nightly"]);
        assert_eq!(names(&["lab", "fast"]), ["lint", "unit", "ibtun", "lab"]);
        let in_guests = ["vm-netlink", "vm-responder", "vm-ibtun", "vm-rdma", "vm-cluster"];
        assert_eq!(names(&["vm"]), in_guests);
    }

    #[test]
    fn unknown_level_is_an_error_that_lists_the_known_ones() {
        let error = choose(&["units".to_owned()]).err().expect("no such level").to_string();
        assert!(error.contains("unit, "), "{error}");
    }
}
