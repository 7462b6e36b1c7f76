// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reads what the programs report about packets, while `ibarr trace --kernel` runs.
//!
//! The programs write lines by `aya-log` into a ring of fixed size. A thread reads them, so that a
//! flood of packets takes no time of the engine. If thread or engine is too slow, the ring is full,
//! and reports are lost; the programs count all of them, and the difference is shown.

use std::error::Error as StdError;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use aya_log::EbpfLogger;
use ibarr_common::map::{Program, Reason};
use ibarr_common::{IfIndex, Instant};
use log::{Log, Metadata, Record};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;

use super::error::Error;

/// What the thread has read at once.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    /// In the order of the ring, at most `BATCH`.
    pub seen: Vec<HandledPacket>,
    /// How many reports were lost before these.
    pub lost: u64,
}

/// A packet that a program has handled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct HandledPacket {
    /// When.
    pub at: Instant,
    /// The address that it asks for; `::` if it is no query.
    pub target: IpAddr,
    pub by: Program,
    /// The interface that the packet arrived on.
    pub ifindex: Option<IfIndex>,
    pub from: IpAddr,
    /// The result, as the program counts it.
    pub reason: Reason,
}

/// The most reports in a batch. Further ones are lost.
const BATCH: usize = 1024;

/// Batches that wait for the engine.
pub(super) const BATCHES: usize = 2;

/// How long the thread goes on after the programs are unloaded, in milliseconds.
const PATIENCE: u8 = 100;

/// The map in which the programs count their reports.
const LOGGED: &str = "logged";

/// A thread that reads reports until this is dropped.
pub(super) struct Reader {
    _alive: Arc<()>,
}

impl Reader {
    /// Reads reports that go to the sink.
    pub(super) fn start(
        reports: Vec<Reports>,
        sink: Sink,
        packets: mpsc::Sender<Packets>,
    ) -> Result<Self, Error> {
        let reader = Arc::new(());
        let alive = Arc::downgrade(&reader);
        thread::Builder::new()
            .name("bpf-packets".to_owned())
            .spawn(move || read(reports, &sink, &alive, &packets))
            .map_err(|error| Error::Load(error.into()))?;
        Ok(Self { _alive: reader })
    }
}

/// The reports of one instance of the programs.
pub(super) struct Reports {
    lines: EbpfLogger<Sink>,
    logged: PerCpuArray<MapData, u64>,
}

impl Reports {
    /// Must be called before programs are loaded.
    pub(super) fn take(
        ebpf: &mut Ebpf,
        sink: Sink,
    ) -> Result<Self, Box<dyn StdError + Send + Sync>> {
        let logged = ebpf.take_map(LOGGED).ok_or("BPF object: has no map `logged`")?;
        let lines = EbpfLogger::init_with_logger(ebpf, sink)?;
        Ok(Self { lines, logged: logged.try_into()? })
    }

    fn written(&self) -> u64 {
        self.logged.get(&0, 0).map_or(0, |per_cpu| per_cpu.iter().sum())
    }
}

fn read(mut reports: Vec<Reports>, sink: &Sink, alive: &Weak<()>, packets: &mpsc::Sender<Packets>) {
    let mut losses = Losses::default();
    while alive.strong_count() > 0 {
        let mut ready: Vec<_> =
            reports.iter().map(|of| PollFd::new(of.lines.as_fd(), PollFlags::POLLIN)).collect();
        // A signal or an error means: look now.
        let _ = poll(&mut ready, PollTimeout::from(PATIENCE));
        drop(ready);
        for of in &mut reports {
            of.lines.flush();
        }
        let seen = sink.take();
        let written = reports.iter().map(Reports::written).sum();
        let lost = losses.note(seen.len() as u64, written);
        let is_empty = seen.is_empty() && lost == 0;
        if !is_empty && packets.blocking_send(Packets { seen, lost }).is_err() {
            return;
        }
    }
}

/// Counts the reports that were written, and not read. `aya-log` does not tell which: reports that are
/// written while the ring is read hide as many losses, until [`PATIENCE`] passes without one.
#[derive(Debug, Default)]
struct Losses {
    read: u64,
    /// How many were written when all before them had been read.
    written: u64,
    lost: u64,
}

impl Losses {
    /// How many more are lost, after `read` were read and now `written` are written in all. The last
    /// ones may still be in the ring, so they are missed only in the next call.
    fn note(&mut self, read: u64, written: u64) -> u64 {
        self.read += read;
        let missed = self.written.saturating_sub(self.read).saturating_sub(self.lost);
        self.lost += missed;
        self.written = written;
        missed
    }
}

/// Collects the lines of the programs.
#[derive(Clone, Default)]
pub(super) struct Sink(Arc<Mutex<Vec<HandledPacket>>>);

impl Sink {
    fn take(&self) -> Vec<HandledPacket> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Log for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < BATCH {
            seen.extend(parse(&record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// A line of `ibarr-ebpf/src/bin/logging/log.rs`.
fn parse(line: &str) -> Option<HandledPacket> {
    let mut words = line.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let at = Instant::from_nanos(number()?);
    let program = u32::try_from(number()?).ok()?;
    let ifindex = IfIndex::new(u32::try_from(number()?).ok()?);
    let mut address = || Some(words.next()?.parse::<Ipv6Addr>().ok()?.to_canonical());
    let (from, target) = (address()?, address()?);
    let reason: usize = words.next()?.parse().ok()?;
    let by = Program::ALL.into_iter().find(|by| by.index() == program)?;
    let reason = *Reason::ALL.get(reason)?;
    Some(HandledPacket { at, target, by, ifindex, from, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_program_is_the_packet_it_reports() {
        let line = "1000000007 2 5 ::ffff:10.7.0.2 fd00:7::1 11";
        let (at, target) = (Instant::from_nanos(1_000_000_007), "fd00:7::1".parse().unwrap());
        let from = "10.7.0.2".parse().unwrap();
        let (by, ifindex, reason) = (Program::Guard, IfIndex::new(5), Reason::NotAllowed);
        assert_eq!(parse(line), Some(HandledPacket { at, target, by, ifindex, from, reason }));
    }

    #[test]
    fn line_that_no_program_writes_is_no_packet() {
        for line in ["", "1 0 5 ::1 ::1", "1 9 5 ::1 ::1 0", "1 0 5 ::1 ::1 99", "x 0 5 ::1 ::1 0"]
        {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn full_batch_loses_further_lines() {
        let sink = Sink::default();
        for _ in 0..BATCH + 3 {
            let line = format_args!("1 0 5 ::1 ::1 0");
            sink.log(&Record::builder().args(line).build());
        }
        assert_eq!(sink.take().len(), BATCH);
        assert_eq!(sink.take(), []);
    }

    #[test]
    fn report_is_lost_when_later_ones_were_read_without_it() {
        let mut losses = Losses::default();
        // Ten were written after the last look into the ring.
        assert_eq!(losses.note(0, 10), 0);
        assert_eq!(losses.note(7, 12), 3);
        assert_eq!(losses.note(2, 12), 0);
        assert_eq!(losses.note(0, 12), 0);
    }

    #[test]
    fn losses_that_newer_reports_hide_are_counted_when_these_end() {
        let mut losses = Losses::default();
        assert_eq!(losses.note(0, 10), 0);
        // Three of the ten are lost, and five newer ones were read with the others.
        assert_eq!(losses.note(12, 15), 0);
        assert_eq!(losses.note(0, 15), 3);
        assert_eq!(losses.note(0, 15), 0);
    }
}
