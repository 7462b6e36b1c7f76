// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The cache of paths, filled by MADs as from a subnet administrator. A look-up is a whole request: the
//! daemon's work from the kernel's question to the answer.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, PathRecord, PortNum, ServiceId};
use ibarr_common::wire::sa::{Answer, PathQuestion, Question, Request as SaRequest};
use ibarr_common::wire::umad::PKeyIndex;
use ibarr_proto::paths::{
    self as core, Config, Event, Input, Outcome, PortFacts, PortName, Request, RequestId, Source,
};
use ibarr_proto::request::{Caller, Freshness, UserRequest};
use ibarr_proto::sa::{self, PortIndex};
use rand_chacha::ChaCha12Rng;

use super::Memory;

/// A core that remembers many paths.
pub(super) struct Paths {
    core: core::Paths,
    port: PortName,
    sgid: Gid,
}

impl Memory for Paths {
    type Question = u32;

    fn question(number: u32) -> Result<u32> {
        Ok(number)
    }

    fn filled(questions: &[u32], rng: ChaCha12Rng) -> Result<Self> {
        let config = Config {
            sa: sa::Config { start_spread: Duration::ZERO, ..sa::Config::default() },
            qos: core::Qos::Off,
            ttl: Duration::from_hours(24),
            max_cached: questions.len(),
            ..Config::default()
        };
        let port = PortNum::new(1).context("ports count from 1")?;
        let port = PortName { device: "mlx5_0".parse()?, port };
        let mut this = Self { core: core::Paths::new(config, rng), port, sgid: gid(u32::MAX) };
        let lid = |lid| Lid::new(lid);
        let facts = PortFacts {
            is_active: true,
            has_umad: true,
            lid: lid(8),
            sm_lid: lid(1),
            gids: [this.sgid].into(),
            pkeys: vec![(PKeyIndex(0), PKey::DEFAULT)],
            ..PortFacts::default()
        };
        this.core.handle_input(START, Input::Port { port: PORT, name: port, facts });
        for &number in questions {
            this.ask(number)?;
        }
        Ok(this)
    }

    fn len(&self) -> usize {
        self.core.load().cached
    }

    fn knows(&mut self, number: u32) -> bool {
        let request = self.request(number);
        self.core.handle_input(LATER, Input::Resolve(request));
        let Some(Event::Answered(answered)) = self.core.poll_event() else { return false };
        matches!(answered.outcome, Outcome::Found { source: Source::Cache, .. })
    }
}

impl Paths {
    /// A request as from rdma_cm, each time for another service.
    fn request(&self, number: u32) -> Request {
        let question = PathQuestion {
            dgid: gid(number),
            sgid: self.sgid,
            reversible: true,
            pkey: Some(PKey::DEFAULT),
            tclass: None,
            service_id: Some(ServiceId::new(0x0106_0000 + u64::from(number))),
            qos_class: None,
        };
        let deadline = LATER + Duration::from_secs(1);
        Request {
            id: RequestId::User(UserRequest::Control(0)),
            port: self.port,
            question: question.into(),
            caller: Caller::Kernel,
            freshness: Freshness::Any,
            deadline,
        }
    }

    fn ask(&mut self, number: u32) -> Result<()> {
        let request = self.request(number);
        self.core.handle_input(START, Input::Resolve(request));
        self.core.handle_timeout(START);
        while let Some(transmit) = self.core.poll_transmit() {
            let asked = SaRequest::parse(transmit.mad.as_ref())?;
            let Question::Path(question) = asked.question else { bail!("a path is asked for") };
            let mad = asked.answer(Answer::Path(record(&question))).emit();
            let from = Some(transmit.sa.lid);
            self.core.handle_input(START, Input::Mad { port: PORT, from, mad: mad.as_ref() });
        }
        ensure!(self.core.poll_event().is_some(), "path {number} is not answered");
        Ok(())
    }
}

fn record(question: &PathQuestion) -> PathRecord {
    let mut octets = [0; PathRecord::LEN];
    octets[8..24].copy_from_slice(&question.dgid.octets());
    octets[24..40].copy_from_slice(&question.sgid.octets());
    octets[40..44].copy_from_slice(&[0, 1, 0, 8]);
    octets[49..52].copy_from_slice(&[0x80, 0xff, 0xff]);
    PathRecord::from_octets(octets)
}

/// GIDs with consecutive GUIDs, as a vendor assigns them.
fn gid(number: u32) -> Gid {
    let guid = 0x0002_c903_0000_0000 + u128::from(number);
    Gid::new((0xfe80_u128 << 112 | guid).to_be_bytes()).expect("a port's")
}

const PORT: PortIndex = PortIndex(0);
const START: Instant = Instant::from_nanos(1_000_000_000);
const LATER: Instant = Instant::from_nanos(2_000_000_000);
