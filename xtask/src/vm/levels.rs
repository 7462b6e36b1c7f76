// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The levels of `test` that run in guests.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::fabric::Fabric;
use super::kernel::{Pair, Version};
use super::run::Machines;
use super::{
    DEADLINE, Half, LONG_DEADLINE, ODD_RECORDS, RESPONDER, ROUTERS_DEADLINE, Scenario,
    all_on_the_fabric, module, prove_all,
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

/// Like [`prove`], for software HCAs and the scenarios on them.
pub(crate) fn prove_rdma(workspace: &Workspace) -> Result<Result<usize>> {
    let mut machines = with_fabric(workspace, &[Version::V6_1])?;
    let mut scenarios = all_on_the_fabric();
    // There is no time for them in CI.
    let is_later = |scenario: &Scenario| {
        let Scenario::Run { scenario: Some(scenario) } = scenario else { return false };
        [Fabric::C, Fabric::M, Fabric::O, Fabric::P, Fabric::Q, Fabric::R, Fabric::S]
            .contains(scenario)
    };
    scenarios.retain(|scenario| !is_later(scenario));
    scenarios.insert(0, Scenario::Ibtun { records: ODD_RECORDS });
    let style = checkpatch::check(workspace);
    let level = Some("vm-rdma");
    Ok(style.and_then(|()| prove_all(workspace, &mut machines, &scenarios, DEADLINE, level)))
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
    let fabric = fabric.map(|scenario| Scenario::Run { scenario: Some(scenario) });
    let scenarios: Vec<_> = responder(4).into_iter().chain(fabric).collect();
    Ok(prove_all(workspace, &mut machines, &scenarios, LONG_DEADLINE, None))
}

/// The tutorial of the software fabric on the oldest kernel, with a module that was built elsewhere.
pub(crate) fn prove_tutorial(workspace: &Workspace, object: &Path) -> Result<Result<usize>> {
    let mut machines = with_fabric(workspace, &[Version::V6_1])?;
    machines.with_module(object);
    let scenarios = [Scenario::Run { scenario: Some(Fabric::Tutorial) }];
    Ok(prove_all(workspace, &mut machines, &scenarios, DEADLINE, None))
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

/// Storage and routers between two kernels, each of which is the client once.
pub(crate) fn prove_both_ways(workspace: &Workspace) -> Result<Result<usize>> {
    tools::root(workspace, &tools::NFS)?;
    let storage = |pair| Scenario::Storage(Pair { pair });
    let routers = |pair| Scenario::Routers(Pair { pair });
    let mut held = Ok(0);
    for (scenario, deadline) in
        [(storage as fn(_) -> _, LONG_DEADLINE), (routers, ROUTERS_DEADLINE)]
    {
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
    Machines::fetch(workspace, versions)
}
