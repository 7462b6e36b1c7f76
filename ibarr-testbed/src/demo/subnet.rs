// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The InfiniBand of the demonstration: two ports of the node that asks, each in a subnet of its own. A
//! stand-in for the subnet administrator answers in each subnet as OpenSM does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, PortNum};
use ibarr_common::wire::mad;
use ibarr_common::wire::path_record::PathRecordWire;
use ibarr_common::wire::sa::{Answer, PathQuestion, Question, Request, Response};
use ibarr_proto::paths::PortName;
use ibarr_sim::sa::{AddressedPort, Route, StandIn, Subnet};
use ibarr_user::sys::clock;

use crate::interrupt::Interrupt;
use crate::lab::{Lab, Node};
use crate::umad::{Administrator, Directory, Port, Sent, Shown, Wire};

/// The ports. They vanish when this is dropped.
pub(super) struct Ports {
    /// The port in the other node's subnet.
    pub(super) near: Connected,
    /// The port in a subnet whose ports have floating LIDs.
    pub(super) floating: Connected,
}

/// A port, and its MADs to and from its subnet administrator.
pub(super) struct Connected {
    pub(super) name: PortName,
    pub(super) gid: Gid,
    mads: Mads,
    _port: Port,
}

/// The LIDs are the same in both subnets.
pub(super) const SA: Lid = Lid::new(1).expect("a LID");
pub(super) const ROUTER: Lid = Lid::new(4).expect("a LID");
pub(super) const ASKER: Lid = Lid::new(5).expect("a LID");
pub(super) const OWNER: Lid = Lid::new(6).expect("a LID");

/// Hop limit of a routed path.
pub(super) const HOP_LIMIT: u8 = 255;

/// The GID of the asker's second port: floating LID 1, subnet 1.
const FLOATING: &str = "fec0:0:1:1:2:c903:0:102";

impl Ports {
    /// Makes the ports for the next daemon of `asker`.
    ///
    /// # Errors
    /// A device's socket cannot be made.
    pub(super) fn make(lab: &Lab, (asker, owner): (&Node, &Node)) -> Result<Self> {
        let directory = lab.files(asker).infiniband();
        let (near, floating) = (asker.gid()?, FLOATING.parse::<Gid>()?);
        let mut shared = subnet(near);
        shared.ports.insert(owner.gid()?.guid(), port(OWNER));
        Ok(Self {
            near: Connected::new(&directory, 1, near, &shared)?,
            floating: Connected::new(&directory, 2, floating, &subnet(floating))?,
        })
    }

    /// Waits until the daemon knows what the subnet administrators can do, so that all later questions are
    /// about paths.
    ///
    /// # Errors
    /// The daemon does not find the ports in time.
    pub(super) fn wait(&self, lab: &Lab, asker: &Node, interrupt: &Interrupt) -> Result<()> {
        let administrators = [&self.near, &self.floating].len();
        for _ in 0..READY_WITHIN.as_millis() / LOOK_EVERY.as_millis() {
            if lab.ask(asker, &["counters"])?["counters"]["sa.answered"] == administrators {
                return Ok(());
            }
            interrupt.sleep(LOOK_EVERY)?;
        }
        bail!("{}: its daemon does not find its InfiniBand ports; see ibarr ports", asker.name)
    }
}

impl Connected {
    fn new(directory: &Directory, number: u8, gid: Gid, subnet: &Subnet) -> Result<Self> {
        let port = PortNum::new(number).context("ports count from 1")?;
        let name = PortName { device: "mlx5_0".parse()?, port };
        let shown = Some(Shown::active(ASKER, gid, SA));
        let mads = Mads::default();
        let administrator = Administrator::new(StandIn::new(subnet.clone(), SA, 1));
        let wire = Tapped { administrator, mads: mads.clone() };
        let port = Port::new(directory, name, u32::from(number) - 1, shown, wire)?;
        Ok(Self { name, gid, mads, _port: port })
    }

    /// The MADs since the last call.
    pub(super) fn take_said(&self) -> Vec<Said> {
        std::mem::take(&mut *self.mads.lock())
    }
}

/// A subnet of one port, and a router to everywhere else.
fn subnet(gid: Gid) -> Subnet {
    let mut subnet = Subnet::new(gid.subnet_prefix());
    subnet.ports.insert(gid.guid(), port(ASKER));
    subnet.routes.push(Route { prefix: None, lid: ROUTER, hop_limit: HOP_LIMIT });
    subnet
}

fn port(lid: Lid) -> AddressedPort {
    AddressedPort { lid, pkeys: vec![PKey::DEFAULT] }
}

/// A MAD that passed between the port and its subnet administrator.
pub(super) struct Said {
    pub(super) at: Instant,
    pub(super) by_port: bool,
    pub(super) mad: [u8; mad::LEN],
}

impl Said {
    /// The GID to which this MAD asks for a path, if any.
    pub(super) fn asks_for(&self) -> Option<Gid> {
        match Request::parse(&self.mad).ok()?.question {
            Question::Path(path) | Question::Paths(path, _) => Some(path.dgid),
            Question::Known(query) => query.dgid(),
            Question::ClassPortInfo => None,
        }
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (question, answer) = (Request::parse(&self.mad), Response::parse(&self.mad));
        match (question.map(|it| it.question), answer.map(|it| it.answer)) {
            (Ok(Question::Path(PathQuestion { sgid, dgid, .. })), _) => {
                write!(f, "Get PathRecord: from {sgid} to {dgid}?")
            }
            (_, Ok(Answer::Path(record))) => {
                let PathRecordWire { slid, dlid, .. } = record.into();
                write!(f, "GetResp PathRecord: from LID {slid} to LID {dlid}")
            }
            (_, Ok(Answer::Refused(refusal))) => write!(f, "GetResp: {refusal}"),
            _ => f.write_str("not about a path"),
        }
    }
}

#[derive(Clone, Default)]
struct Mads(Arc<Mutex<Vec<Said>>>);

impl Mads {
    fn lock(&self) -> MutexGuard<'_, Vec<Said>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, by_port: bool, mad: [u8; mad::LEN]) {
        let mut said = self.lock();
        // The lab may stay up for hours.
        if said.len() < MAX_SAID {
            said.push(Said { at: clock::now(), by_port, mad });
        }
    }
}

/// An administrator whose MADs are recorded.
struct Tapped {
    administrator: Administrator,
    mads: Mads,
}

impl Wire for Tapped {
    fn send(&mut self, now: Instant, sent: &Sent) {
        self.mads.note(true, sent.mad);
        self.administrator.send(now, sent);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.administrator.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.administrator.poll_timeout()
    }

    fn poll_received(&mut self) -> Option<(Lid, [u8; mad::LEN])> {
        let (from, mad) = self.administrator.poll_received()?;
        self.mads.note(false, mad);
        Some((from, mad))
    }
}

const MAX_SAID: usize = 1000;
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
