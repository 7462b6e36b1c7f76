// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Queries as fast as a program in the kernel answers them: the kernel makes the frames (`BPF_PROG_TEST_RUN` with
//! `BPF_F_TEST_XDP_LIVE_FRAMES`) at the other end of the node's wire, and counts the replies there.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, PerCpuArray};
use aya::programs::xdp::XdpLinkId;
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;

use crate::interrupt::Interrupt;
use crate::lab::{Node, netns};

/// The other end of a node's wire, until this is dropped.
pub(super) struct Wire {
    programs: Ebpf,
    passes: XdpLinkId,
    namespace: String,
    index: u32,
}

impl Wire {
    /// Lets everything pass there. A veth receives only so what XDP sends (ibarr-user/src/bpf/xdp.rs).
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses the program.
    pub(super) fn new(namespace: &str, interface: &str) -> Result<Self> {
        let mut programs = EbpfLoader::new().load(ibarr_ebpf::BENCH_OBJECT)?;
        let (index, passes) = netns::inside(namespace, || {
            let index = if_nametoindex(interface)?;
            Ok((
                index,
                load(&mut programs, "empty_xdp")?.attach_to_if_index(index, XdpMode::Driver)?,
            ))
        })?;
        Ok(Self { programs, passes, namespace: namespace.to_owned(), index })
    }

    /// Lets nothing pass any more, and sends queries of `client` for the address of `node`.
    ///
    /// # Errors
    /// The kernel refuses a program.
    pub(super) fn flood(mut self, node: &Node, client: &Node) -> Result<Flood> {
        let [target, source] = [node, client].map(|it| it.addresses[0]);
        let mut frame = super::responder::frame(source, target)?;
        frame[..6].copy_from_slice(&hardware_address(&node.namespace)?);
        frame[6..12].copy_from_slice(&hardware_address(&client.namespace)?);
        let frame: [u8; QUERY_LEN] = frame.try_into().ok().context("a query of another length")?;
        let map = self.programs.map_mut("frame").context("no map frame")?;
        Array::<_, [u8; QUERY_LEN]>::try_from(map)?.set(0, frame, 0)?;

        let passes: &mut Xdp =
            self.programs.program_mut("empty_xdp").context("loaded")?.try_into()?;
        let link = passes.take_link(self.passes)?;
        load(&mut self.programs, "receive_xdp")?.attach_to_link(link)?;
        load(&mut self.programs, "send_xdp")?;
        let Self { programs, namespace, index, .. } = self;
        Ok(Flood { programs, namespace, index, node: node.namespace.clone() })
    }
}

/// A client in the kernel.
pub(super) struct Flood {
    programs: Ebpf,
    namespace: String,
    index: u32,
    node: String,
}

impl Flood {
    /// Sends queries for `time`. Counts those that arrive at the node, and returns how long it took.
    ///
    /// # Errors
    /// The kernel refuses to send, or nearly all queries that arrive have no reply.
    pub(super) fn load(
        &mut self,
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<(u64, Duration)> {
        let begin = Instant::now();
        let before = [arrived(&self.node)?, received(&self.programs)?];
        netns::inside(&self.namespace, || {
            while begin.elapsed() < time {
                interrupt.check()?;
                send(&mut self.programs, self.index)?;
            }
            Ok(())
        })?;
        let wall = begin.elapsed();
        interrupt.sleep(LATE)?;
        let after = [arrived(&self.node)?, received(&self.programs)?];
        let [queries, replies] = [0, 1].map(|at| after[at] - before[at]);
        // A veth has room for 256 frames. What the kernel cannot take from it in time is lost, on both ways.
        ensure!(replies > queries / 10, "{replies} replies to {queries} queries");
        Ok((queries, wall))
    }
}

/// Queries of one call: to begin one takes the kernel milliseconds.
const CALL: u32 = 100_000;

const LATE: Duration = Duration::from_millis(5);

/// Length of a query over IPv4 in an Ethernet frame, as in ibarr-ebpf/src/bin/bench/traffic.rs.
const QUERY_LEN: usize = 62;

fn load<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program: &mut Xdp = programs.program_mut(name).context("no such program")?.try_into()?;
    program.load()?;
    Ok(program)
}

/// Has the kernel send the queries by the interface.
fn send(programs: &mut Ebpf, index: u32) -> Result<()> {
    let sender: &mut Xdp = programs.program_mut("send_xdp").context("loaded")?.try_into()?;
    let frame = [0; QUERY_LEN];
    // `struct xdp_md`: begin and end of the data, metadata, interface and queue of arrival, interface of departure.
    let context = [0, u32::try_from(QUERY_LEN)?, 0, index, 0, 0].map(u32::to_ne_bytes).concat();
    let mut options = TestRunOptions::new();
    options.data_in = Some(&frame);
    options.ctx_in = Some(&context);
    options.repeat = CALL;
    options.attrs = TestRunAttrs::new().xdp_live_frames(BATCH);
    sender.test_run(options).context("the kernel sends nothing")?;
    Ok(())
}

const BATCH: u32 = 64;

fn received(programs: &Ebpf) -> Result<u64> {
    let map = programs.map("received").context("no map received")?;
    Ok(PerCpuArray::<_, u64>::try_from(map)?.get(&0, 0)?.iter().sum())
}

/// Frames that the node has received.
fn arrived(namespace: &str) -> Result<u64> {
    netns::inside(namespace, || {
        let all = fs::read_to_string("/proc/thread-self/net/dev")?;
        let line = all.lines().find_map(|line| {
            let (name, counters) = line.trim_start().split_once(':')?;
            (name == Node::INTERFACE).then_some(counters)
        });
        let frames = line.and_then(|counters| counters.split_whitespace().nth(1));
        frames.and_then(|it| it.parse().ok()).context("no counter of frames")
    })
}

fn hardware_address(namespace: &str) -> Result<[u8; 6]> {
    netns::inside(namespace, || {
        let mut all = getifaddrs().context("no interfaces")?;
        let address = all.find_map(|it| {
            (it.interface_name == Node::INTERFACE).then_some(it.address?.as_link_addr()?.addr()?)
        });
        address.with_context(|| format!("{namespace}: no hardware address"))
    })
}
