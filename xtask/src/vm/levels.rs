// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The levels of `test` that run in guests.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::fabric::Fabric;
use super::kernel::{Pair, Version};
use super::run::Machines;
use super::{
    DEADLINE, Half, LONG_DEADLINE, ODD_RECORDS, RESPONDER, ROUTERS_DEADLINE, Scenario, Table,
    all_on_the_fabric, image, module, prepare, prove_all, readme,
};
use crate::workspace::Workspace;
use crate::{checkpatch, tools};

/// Runs the scenarios of the level `vm-netlink` of `test` on the oldest kernel. Returns how many claims hold.
///
/// # Errors
/// The outer error: this machine cannot run it, and why. The inner error: something failed.
pub(crate) fn prove(workspace: &Workspace) -> Result<Result<usize>> {
    let mut machines = Machines::fetch(workspace, &[Version::V6_1])?;
    Ok(prove_all(workspace, &mut machines, &netlink(), DEADLINE, Some("vm-netlink")))
}

/// Like [`prove`], for the responder and its programs, with fewer rounds.
pub(crate) fn prove_responder(workspace: &Workspace) -> Result<Result<usize>> {
    let mut machines = Machines::fetch(workspace, &[Version::V6_1])?;
    Ok(prove_all(workspace, &mut machines, &responder(2), LONG_DEADLINE, Some("vm-responder")))
}

/// What the README of the software HCAs says, on the oldest kernel.
pub(crate) fn prove_ibtun(workspace: &Workspace) -> Result<Result<usize>> {
    let mut machines = with_fabric(workspace, &[Version::V6_1])?;
    let fabric = [Fabric::A, Fabric::H, Fabric::I, Fabric::Tutorial];
    let alone = Scenario::Ibtun { records: ODD_RECORDS };
    let scenarios: Vec<_> = on_the_fabric(&fabric).into_iter().chain([alone]).collect();
    let of_readme = ["ibtun", "run a", "run h", "run i", "run tutorial"];
    let mut prove = || {
        checkpatch::check(workspace)?;
        let level = Some("vm-ibtun");
        let held = prove_all(workspace, &mut machines, &scenarios, DEADLINE, level)?;
        readme::check(workspace, &of_readme, |scenario| machines.said(scenario, Version::V6_1))?;
        Ok(held)
    };
    Ok(prove())
}

/// Like [`prove`], for scenarios on software HCAs with `ibarr`.
pub(crate) fn prove_rdma(workspace: &Workspace) -> Result<Result<usize>> {
    let mut machines = with_fabric(workspace, &[Version::V6_1])?;
    // The longest first, so that no guest runs alone at the end. There is no time in CI for the others.
    let fabric = [
        Fabric::K,
        Fabric::B,
        Fabric::D,
        Fabric::E,
        Fabric::F,
        Fabric::G,
        Fabric::J,
        Fabric::L,
        Fabric::N,
    ];
    let scenarios = on_the_fabric(&fabric);
    Ok(prove_all(workspace, &mut machines, &scenarios, DEADLINE, Some("vm-rdma")))
}

fn on_the_fabric(scenarios: &[Fabric]) -> Vec<Scenario> {
    scenarios.iter().map(|&scenario| Scenario::Run { scenario: Some(scenario) }).collect()
}

/// All of these, on the kernels that they leave out, and what CI has no time for.
pub(crate) fn prove_newer(workspace: &Workspace) -> Result<Result<usize>> {
    for set in [&tools::UCX, &tools::PYVERBS_13] {
        tools::root(workspace, set)?;
    }
    let mut machines = with_fabric(workspace, &[Version::V6_12])?;
    let reload = Scenario::Reload { rounds: 200, seed: None };
    let fabric = [reload, Scenario::Ibtun { records: ODD_RECORDS }];
    let fabric = fabric.into_iter().chain(all_on_the_fabric());
    let scenarios: Vec<_> = netlink().into_iter().chain(responder(4)).chain(fabric).collect();
    Ok(prove_all(workspace, &mut machines, &scenarios, LONG_DEADLINE, Some("nightly")))
}

/// What a node needs first, and the software HCAs beneath, on the oldest kernel with answers in the kernel and on the
/// newest.
pub(crate) fn prove_ends(workspace: &Workspace) -> Result<Result<usize>> {
    let mut machines = with_fabric(workspace, &[Version::V5_10, Version::Newest])?;
    let fabric = [Fabric::A, Fabric::B, Fabric::D, Fabric::G, Fabric::N, Fabric::Q];
    let scenarios: Vec<_> = responder(4).into_iter().chain(on_the_fabric(&fabric)).collect();
    Ok(prove_all(workspace, &mut machines, &scenarios, LONG_DEADLINE, None))
}

/// Software HCAs on the kernel in `tree`, which checks itself. The rest would take too long for its own deadlines.
pub(crate) fn prove_checked(workspace: &Workspace, tree: &Path) -> Result<Result<usize>> {
    fetch_for_fabric(workspace)?;
    let mut machines = Machines::of_tree(workspace, tree)?;
    let more =
        [Scenario::Reload { rounds: 20, seed: None }, Scenario::Ibtun { records: ODD_RECORDS }];
    let fabric = on_the_fabric(&[Fabric::A, Fabric::H, Fabric::I]);
    let scenarios: Vec<_> = fabric.into_iter().chain(more).collect();
    Ok(prove_all(workspace, &mut machines, &scenarios, ROUTERS_DEADLINE, Some("checked")))
}

/// Debian 12 in the directory `root`, on whose kernel apt installs the packages in `packages`.
pub(crate) fn prove_installed(
    workspace: &Workspace,
    root: &Path,
    packages: &Path,
) -> Result<Result<usize>> {
    let machines = with_fabric(workspace, &[Version::V6_1])?;
    let linux = tools::root(workspace, &tools::LINUX_6_1)?;
    let prove = || {
        let mut prepared = prepare(workspace, &Scenario::Ibtun { records: 0 })?;
        prepared.name = "installed";
        prepared.modules = &["virtio_pci", "9pnet_virtio", "9p", "overlay"];
        prepared.command = [image::INIT, "installed"].map(str::to_owned).to_vec();
        let shares = [("root", root), ("linux", &linux), ("packages", packages)];
        prepared.shares = shares.map(|(tag, path)| (tag, path.to_owned())).to_vec();
        let mut table = Table::default();
        machines.run(&[prepared], LONG_DEADLINE, &mut table)?;
        table.end()
    };
    Ok(prove())
}

/// Like [`prove`], for two guests at once, with different kernels.
pub(crate) fn prove_cluster(workspace: &Workspace) -> Result<Result<usize>> {
    let cluster = |pair| Scenario::Cluster(Pair { pair });
    prove_pair(
        workspace,
        [Version::V6_1, Version::V6_12],
        cluster,
        LONG_DEADLINE,
        Some("vm-cluster"),
    )
}

/// Storage, routers and many hosts between two kernels, each of which is the client once.
pub(crate) fn prove_both_ways(workspace: &Workspace) -> Result<Result<usize>> {
    tools::root(workspace, &tools::NFS)?;
    let storage = |pair| Scenario::Storage(Pair { pair });
    let routers = |pair| Scenario::Routers(Pair { pair });
    let hosts = |pair| Scenario::Hosts(Pair { pair });
    let mut held = Ok(0);
    for (scenario, deadline) in [
        (storage as fn(_) -> _, LONG_DEADLINE),
        (routers, ROUTERS_DEADLINE),
        (hosts, LONG_DEADLINE),
    ] {
        for pair in [[Version::V6_1, Version::V6_12], [Version::V6_12, Version::V6_1]] {
            let more = prove_pair(workspace, pair, scenario, deadline, None)?;
            held = held.and_then(|held| Ok(held + more?));
        }
    }
    Ok(held)
}

fn prove_pair(
    workspace: &Workspace,
    pair: [Version; 2],
    scenario: impl Fn(Vec<Version>) -> Scenario,
    deadline: Duration,
    level: Option<&str>,
) -> Result<Result<usize>> {
    let mut machines = with_fabric(workspace, &pair)?;
    let scenarios = [scenario(pair.to_vec())];
    Ok(prove_all(workspace, &mut machines, &scenarios, deadline, level))
}

fn netlink() -> [Scenario; 5] {
    let ls = |ibarr, steady| Scenario::Ls { ibarr, steady, daemon: Vec::new() };
    [Scenario::Hello, ls(false, false), ls(true, false), ls(true, true), Scenario::Daemon]
}

fn responder(rounds: u32) -> [Scenario; 3] {
    let half = |half| {
        let tests = RESPONDER.to_owned();
        Scenario::Responder { tests, rounds, half: Some(half) }
    };
    [half(Half::First), half(Half::Second), Scenario::Bpf]
}

/// Machines, and what scenarios on the software fabric need besides.
fn with_fabric(workspace: &Workspace, versions: &[Version]) -> Result<Machines> {
    fetch_for_fabric(workspace)?;
    Machines::fetch(workspace, versions)
}

fn fetch_for_fabric(workspace: &Workspace) -> Result<()> {
    module::compiler()?;
    let sets = [
        &tools::RDMA,
        &tools::BPFTOOL,
        &tools::PERFTEST,
        &tools::PYVERBS,
        &tools::LINUX_SOURCE,
        &tools::SPARSE,
    ];
    for set in sets {
        tools::root(workspace, set)?;
    }
    Ok(())
}
