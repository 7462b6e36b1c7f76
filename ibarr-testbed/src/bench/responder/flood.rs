// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queries from the kernel: frames that an XDP program writes and sends
//! (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18), and another one that takes the answers.
//!
//! The sending thread does all of the kernel's work for its frames until a process is woken: the veth's
//! poll at the other end, the responder, the way back, the sink. So its CPU time is the kernel's share of
//! the answers plus the generator's. A run against a sink alone measures the generator's part.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, PerCpuArray};
use aya::programs::{TestRunAttrs, TestRunOptions};
use aya::{Ebpf, TestRun as _};
use nix::net::if_::if_nametoindex;

use super::super::process;
use super::frame;
use super::wire::xdp;
use crate::interrupt::Interrupt;

pub(super) struct Flood<'a> {
    object: &'a mut Ebpf,
    frame: Vec<u8>,
    context: Vec<u8>,
}

impl<'a> Flood<'a> {
    /// Sends by `interface`. The `sink_xdp` of `object` must be attached where the answers arrive.
    pub(super) fn new(
        object: &'a mut Ebpf,
        interface: &str,
        target: IpAddr,
        port: u16,
    ) -> Result<Self> {
        let source: IpAddr = match target {
            IpAddr::V4(_) => [10, 64, 0, 0].into(),
            IpAddr::V6(_) => [0xfd00, 64, 0, 0, 0, 0, 0, 0].into(),
        };
        let frame = frame::query_on_wire(source, target, port, NODE, CLIENT)?;
        let words: Vec<u16> =
            frame.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
        let mut template = [0; 48];
        template.get_mut(..words.len()).context("a query is shorter")?.copy_from_slice(&words);
        let map = object.map_mut("templates").context("no templates")?;
        let mut templates: Array<_, [u16; 48]> = map.try_into()?;
        templates.set(u32::from(target.is_ipv6()), template, 0)?;
        // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [0, u32::try_from(frame.len())?, 0, if_nametoindex(interface)?, 0, 0];
        let context = context.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        Ok(Self { object, frame, context })
    }

    /// Keeps up to [`WINDOW`] queries in flight for `time`.
    pub(super) fn run(&mut self, time: Duration, interrupt: &Interrupt) -> Result<Flooded> {
        let start = Instant::now();
        let first = self.sunk()?;
        let mut flooded = Flooded::default();
        // Queries that are not waited for any more count as lost.
        let (mut lost, mut last_answer) = (0, start);
        while start.elapsed() < time {
            let now = self.sunk()? - first;
            if now > flooded.answers {
                (flooded.answers, last_answer) = (now, Instant::now());
            } else if last_answer.elapsed() > LOST_AFTER {
                interrupt.check()?;
                let silent = flooded.answers == 0 && start.elapsed() > SILENT_AFTER;
                ensure!(!silent, "no query is answered");
                lost = flooded.sent.saturating_sub(flooded.answers);
                last_answer = Instant::now();
            }
            if flooded.sent.saturating_sub(flooded.answers + lost) <= WINDOW - BURST {
                let before = process::own_cpu_time()?;
                self.send(BURST)?;
                flooded.cpu += process::own_cpu_time()?.saturating_sub(before);
                flooded.sent += BURST;
            } else {
                thread::yield_now();
            }
        }
        // Late answers must not be counted in the next round.
        thread::sleep(LOST_AFTER);
        flooded.answers = self.sunk()? - first;
        flooded.wall = start.elapsed();
        Ok(flooded)
    }

    fn send(&mut self, frames: u64) -> Result<()> {
        let program = xdp(self.object, "generate_xdp")?;
        let mut options = TestRunOptions::new();
        options.data_in = Some(&self.frame);
        options.ctx_in = Some(&self.context);
        options.repeat = u32::try_from(frames)?;
        options.attrs = TestRunAttrs::new().xdp_live_frames(0);
        program.test_run(options).context("no live frames (Linux 5.18)")?;
        Ok(())
    }

    fn sunk(&self) -> Result<u64> {
        let map = self.object.map("sunk").context("no sink")?;
        let sunk: PerCpuArray<_, u64> = map.try_into()?;
        Ok(sunk.get(&0, 0)?.iter().sum())
    }
}

/// The result of a flood.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flooded {
    pub(super) sent: u64,
    pub(super) answers: u64,
    pub(super) wall: Duration,
    /// CPU time of the kernel in the sender's thread. The caller adds the server's own.
    pub(super) cpu: Duration,
}

/// A veth takes no more than 256 frames at a time.
const WINDOW: u64 = 192;
const BURST: u64 = 96;

/// How long the flood waits for an answer.
const LOST_AFTER: Duration = Duration::from_millis(20);

/// A server that is silent for so long will not answer at all.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// Hardware addresses of the two ends.
const NODE: [u8; 6] = [2, 0, 0, 0, 0, 5];
const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 9];
