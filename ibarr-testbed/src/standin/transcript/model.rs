// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Plays the recorded cases to the stand-in of the kernel.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ibarr_common::wire::ls::{ResolveIp, Seq};
use ibarr_common::{IfIndex, Instant};

use super::{Heard, Outcome, Reflex, Saying, Subject};
use crate::standin::{Config, Event, Input, IpOutcome, Kernel, NoListener, Transmit};

/// The stand-in, with a virtual clock.
#[derive(Debug)]
pub struct Model {
    kernel: Kernel,
    now: Instant,
    callers: u32,
    /// The requests that wait, and their callers.
    asked: Vec<(Seq, u32)>,
    reflexes: &'static [Reflex],
    messages: Vec<Heard>,
    ends: Vec<Heard>,
}

/// The time between steps, longer than the stand-in takes to send a request.
const STEP: Duration = Duration::from_millis(1);
const IFINDEX: IfIndex = IfIndex::MIN;
const PORT_ID: u32 = 7;

impl Default for Model {
    fn default() -> Self {
        Self {
            kernel: Kernel::new(Config::default()),
            now: Instant::from_nanos(1_000_000_000),
            callers: 0,
            asked: Vec::new(),
            reflexes: &[],
            messages: Vec::new(),
            ends: Vec::new(),
        }
    }
}

impl Model {
    fn input(&mut self, input: Input<'_>) {
        self.kernel.handle_input(self.now, input);
        self.transmit();
    }

    /// Handles messages of the kernel at once, while the kernel still sends.
    fn transmit(&mut self) {
        while let Some(Transmit { bytes, .. }) = self.kernel.poll_transmit() {
            for reflex in std::mem::take(&mut self.reflexes) {
                let answer = Saying::Answer.datagram(super::word(&bytes, 8), PORT_ID);
                match reflex {
                    Reflex::Answer => self.kernel.handle_input(self.now, Input::Datagram(&answer)),
                    Reflex::Neighbour => self.kernel.handle_input(self.now, NEIGHBOUR),
                }
            }
            self.messages.push(Heard::Message(bytes));
        }
        while let Some(event) = self.kernel.poll_event() {
            let Event::Ip(seq, outcome) = event else { continue };
            let outcome = match outcome {
                IpOutcome::Resolved { .. } => Outcome::Answered,
                IpOutcome::TimedOut => Outcome::TimedOut,
                IpOutcome::NoListener => Outcome::NoListener,
            };
            if let Some(at) = self.asked.iter().position(|(asked, _)| *asked == seq) {
                let (_, caller) = self.asked.remove(at);
                self.ends.push(Heard::End(caller, outcome));
            }
        }
    }

    fn pass(&mut self, until: Instant) {
        self.now = until;
        self.kernel.handle_timeout(self.now);
        self.transmit();
    }
}

impl Subject for Model {
    fn begin(&mut self) -> Result<()> {
        *self = Self::default();
        self.input(Input::Listener(true));
        Ok(())
    }

    fn numbers(&self) -> (u32, u32) {
        (IFINDEX.get(), PORT_ID)
    }

    fn ask(&mut self, target: IpAddr, timeout: Duration) -> Result<()> {
        self.callers += 1;
        let request = ResolveIp { ifindex: IFINDEX, target };
        match self.kernel.resolve_ip(self.now, request, timeout) {
            Ok(seq) => self.asked.push((seq, self.callers)),
            Err(NoListener) => self.ends.push(Heard::End(self.callers, Outcome::NoListener)),
        }
        self.transmit();
        Ok(())
    }

    fn say(&mut self, datagram: &[u8]) -> Result<()> {
        self.input(Input::Datagram(datagram));
        Ok(())
    }

    /// The kernel's RDMA core also hears of a deleted neighbour, but then it is not valid any more.
    fn neighbour(&mut self, valid: bool) -> Result<()> {
        if valid {
            self.input(NEIGHBOUR);
        }
        Ok(())
    }

    fn listen(&mut self, is_there: bool) -> Result<()> {
        self.input(Input::Listener(is_there));
        Ok(())
    }

    fn reflex(&mut self, reflexes: &'static [Reflex]) -> Result<()> {
        self.reflexes = reflexes;
        Ok(())
    }

    fn heard(&mut self, wait: bool, _expected: usize) -> Result<Vec<Heard>> {
        self.pass(self.now + STEP);
        while wait && !self.asked.is_empty() {
            let next = self.kernel.poll_timeout().context("a request that never ends")?;
            self.pass(next);
        }
        self.messages.append(&mut self.ends);
        Ok(std::mem::take(&mut self.messages))
    }
}

const NEIGHBOUR: Input<'_> = Input::Neighbour(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
