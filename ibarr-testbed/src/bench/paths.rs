// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench paths`: what path requests cost the daemon, with answers from its cache and from a subnet
//! administrator.
//!
//! The bench asks as the kernel does for rdma_cm. A socket takes the place of the port's umad device, and a
//! stand-in for the subnet administrator answers there.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use ibarr_common::ib::{Gid, Lid, PKey, PortNum, ServiceId, SubnetPrefix};
use ibarr_common::wire::ls::{Answer, PathUse, Request, ResolvePath, Seq, messages};
use ibarr_proto::paths::PortName;
use ibarr_sim::sa::{AddressedPort, Route, StandIn, Subnet};

use super::local_service::Server;
use super::report::{Report, Target};
use super::{cache, process};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, Node, Store};
use crate::umad::{Administrator, Port, Shown};

/// Measures in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or an answer is wrong.
pub fn paths(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let mut lab = super::lab(store, 1, false, ibarr, interrupt)?;
    let [node] = lab.plan().nodes.as_slice() else { bail!("a lab of one node") };
    let node = node.clone();
    let shown = Shown::active(OWN, SGID, SA);
    let wire = Administrator::new(StandIn::new(subnet(), SA, 1));
    let port = Port::new(&lab.files(&node).infiniband(), name(), 0, Some(shown), wire)?;
    let daemon = Server::daemon(&mut lab, node.name, interrupt)?;
    let (echo, helper) = Server::echo(&node.namespace)?;
    process::pin(&[daemon.pid(), echo.pid()])?;
    wait_for_port(&lab, &node, interrupt)?;

    let [cached, echoed, uncached] = super::in_turn(quick, interrupt, |index, time| {
        let is_near = |seq, answer: &[u8]| is_path_to(answer, near(seq));
        match index {
            0 => {
                // The daemon has forgotten these destinations.
                daemon.closed_loop(DESTINATIONS, Duration::ZERO, remembered, is_near)?;
                daemon.closed_loop(OUTSTANDING, time, remembered, is_near)
            }
            1 => {
                let is_right = |seq, answer: &[u8]| remembered(seq).as_ref() == answer;
                echo.closed_loop(OUTSTANDING, time, remembered, is_right)
            }
            _ => {
                let request = |seq| request(seq, far(seq), 0);
                let is_right = |seq, answer: &[u8]| is_path_to(answer, far(seq));
                let round = daemon.closed_loop(OUTSTANDING_SA, time, request, is_right)?;
                lab.ask(&node, &["cache", "--flush"])?;
                Ok(round)
            }
        }
    })?;
    drop((echo, helper, daemon, port));
    lab.down()?;

    let mut report = Report::new("paths", quick)?;
    report.compare("from the cache", &cached, &echoed, Some(Target::AtLeast(0.3)))?;
    report.compare("from the stand-in", &uncached, &echoed, None)?;
    cache::paths(quick, &mut report)?;
    Ok(report)
}

/// Requests in flight for remembered paths.
const OUTSTANDING: u32 = 16;
/// Requests in flight for other paths: as many as the daemon asks the subnet administrator at once.
const OUTSTANDING_SA: u32 = 64;

/// Processes, each with a service of its own.
const PROCESSES: u32 = 1_000;
/// Destinations that each process asks for.
const DESTINATIONS: u32 = 1_000;

/// A request of another process each time, for one of the common destinations.
pub(super) fn remembered(seq: Seq) -> impl AsRef<[u8]> {
    request(seq, near(seq), seq.0 / DESTINATIONS % PROCESSES)
}

/// A request as from rdma_cm, with the service port of `process`.
fn request(seq: Seq, dgid: Gid, process: u32) -> impl AsRef<[u8]> + use<> {
    let PortName { device, port } = name();
    let path = ResolvePath {
        device,
        port,
        path_use: PathUse::All,
        service_id: Some(ServiceId::new(0x0106_0000 + u64::from(process))),
        dgid,
        sgid: SGID,
        tclass: None,
        pkey: Some(PKey::DEFAULT),
        qos_class: None,
    };
    Request::ResolvePath(path).emit(seq)
}

pub(super) fn is_path_to(answer: &[u8], dgid: Gid) -> bool {
    let Some(Ok(message)) = messages(answer).next() else { return false };
    let Ok(Answer::Paths(paths)) = Answer::parse(&message) else { return false };
    let [path] = paths.as_slice() else { return false };
    path.record.octets().get(8..24) == Some(&dgid.octets())
}

/// Waits until the daemon can ask the subnet administrator, and knows whether that supports quality of
/// service.
pub(super) fn wait_for_port(lab: &Lab, node: &Node, interrupt: &Interrupt) -> Result<()> {
    for _ in 0..READY_WITHIN.as_millis() / LOOK_EVERY.as_millis() {
        let counters = lab.ask(node, &["counters"])?;
        if counters["counters"]["sa.answered"] == 1 {
            return Ok(());
        }
        interrupt.sleep(LOOK_EVERY)?;
    }
    bail!("{}: the daemon does not find its port; see ibarr ports", node.name)
}

/// A subnet of one port. Every destination is behind a router, so their number is not bounded.
pub(super) fn subnet() -> Subnet {
    let mut subnet = Subnet::new(SubnetPrefix::DEFAULT);
    let port = AddressedPort { lid: OWN, pkeys: vec![PKey::DEFAULT] };
    subnet.ports.insert(SGID.guid(), port);
    subnet.routes.push(Route { prefix: None, lid: ROUTER, hop_limit: 255 });
    subnet
}

/// The GID of the port that asks.
pub(super) const SGID: Gid = gid_of(0xfe80 << 48, 9);

/// One of the common destinations.
pub(super) fn near(Seq(seq): Seq) -> Gid {
    gid_of(0x2001_0db8_0000_0001, (seq % DESTINATIONS).into())
}

/// A destination that is asked for once.
fn far(Seq(seq): Seq) -> Gid {
    gid_of(0x2001_0db8_0000_0002, seq.into())
}

const fn gid_of(prefix: u64, number: u64) -> Gid {
    let guid = 0x0002_c903_0000_0000 + number;
    Gid::new(((prefix as u128) << 64 | guid as u128).to_be_bytes()).expect("a port's")
}

pub(super) fn name() -> PortName {
    let port = PortNum::new(1).expect("ports count from 1");
    PortName { device: "mlx5_0".parse().expect("a device's name"), port }
}

pub(super) const OWN: Lid = Lid::new(8).expect("a LID");
pub(super) const SA: Lid = Lid::new(1).expect("a LID");
const ROUTER: Lid = Lid::new(4).expect("a LID");

const READY_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
