// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `cargo xtask vm rxe-speed`: bandwidth and latency of RC between two software HCAs, through the fabric, and between
//! two devices of Soft-RoCE (`rdma_rxe`), over a veth pair; then of both inside one device. perftest measures in
//! turn. At last it makes 10,000 connections.

use std::collections::HashMap;
use std::fs;
use std::process::{ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::init::{self, LATER};
use crate::report::Report;
use crate::rig::{self, PATIENCE, Place, Rig, cpu_time};
use crate::wire::{self, End, OTHER, OURS, SAME};

/// Each program with each device in turn, so often.
const ROUNDS: usize = 3;

/// The first and the second device of Soft-RoCE, and their addresses. Their first GID is of the link, the second
/// of the address.
const RXE: [End<'static>; 2] = [End("rxe0", "1"), End("rxe1", "1")];
const VETH: [&str; 2] = ["v0", "v1"];
const ADDRESS: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// Programs, options, and whether they measure bandwidth. With `-e` they sleep until there is a completion.
/// Programs that write cannot.
const PROGRAMS: [(&str, &[&str], bool); 6] = [
    ("ib_send_bw", &["-e", "-s", "65536", "-n", "300"], true),
    ("ib_write_bw", &["-s", "65536", "-n", "300"], true),
    ("ib_read_bw", &["-e", "-s", "65536", "-n", "300"], true),
    ("ib_send_lat", &["-e", "-n", "500"], false),
    ("ib_write_lat", &["-n", "500"], false),
    ("ib_read_lat", &["-e", "-n", "500"], false),
];

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Pair {
    /// Two HCAs, through the fabric.
    Wire,
    /// Two devices of Soft-RoCE, over a veth pair.
    Veth,
    /// Two ports of one HCA, inside the kernel.
    Inside,
    /// One device of Soft-RoCE, inside the kernel.
    Same,
}

impl Pair {
    const ALL: [Self; 4] = [Self::Wire, Self::Veth, Self::Inside, Self::Same];

    fn ends(self) -> [End<'static>; 2] {
        match self {
            Self::Wire => [OTHER, OURS],
            Self::Veth => [RXE[1], RXE[0]],
            Self::Inside => [SAME, OURS],
            Self::Same => [RXE[0], RXE[0]],
        }
    }

    /// perftest posts a request for each event of a completion queue, also when the queue is empty, and fails then.
    /// rdmavt makes two events of one when completions come fast (`send_complete` in its cq.c).
    fn measure_again(self, program: &str, options: &[&str]) -> Result<f64> {
        const ATTEMPTS: usize = 5;
        let mut outcome = self.measure(program, options);
        for _ in 1..ATTEMPTS {
            let Err(error) = &outcome else { break };
            Report::note(format!(
                "again: {}",
                error.to_string().lines().last().unwrap_or_default()
            ));
            outcome = self.measure(program, options);
        }
        outcome
    }

    /// MB/s, or microseconds.
    fn measure(self, program: &str, options: &[&str]) -> Result<f64> {
        let gid: &[&str] = if matches!(self, Self::Veth | Self::Same) { &["-x", "1"] } else { &[] };
        let options = [&["-m", "4096"], options, gid].concat();
        let said = wire::measure(program, self.ends(), &options)?;
        let figures = said.lines().skip_while(|line| !line.contains("#bytes")).nth(1);
        let figures: Vec<_> = figures.with_context(|| said.clone())?.split_whitespace().collect();
        // #bytes #iterations peak average rate, and #bytes #iterations min max typical average ...
        let column = if program.ends_with("_bw") { 3 } else { 4 };
        let figure: f64 = figures.get(column).with_context(|| said.clone())?.parse()?;
        // perftest measures how fast the processor's clock runs, and may not succeed.
        ensure!(figure > 0.0 && figure.is_finite(), "{said}");
        Ok(figure)
    }
}

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up_without_capture()) {
        if report.claim("there are two devices of Soft-RoCE", soft_roce()).is_some() {
            measure(&mut report, &rig);
        }
        report.claim("10,000 connections between two HCAs send, each", many());
        drop(rig);
    }
    report.end()
}

fn measure(report: &mut Report, rig: &Rig) {
    let mut samples: HashMap<(&str, Pair), Vec<f64>> = HashMap::new();
    let used = || -> Result<_> {
        let packets = OURS.count("tx_packets")? + OURS.count("rx_packets")?;
        Ok((cpu_time(rig.fabric.id())?, packets))
    };
    for (program, options, _) in PROGRAMS {
        let before = used();
        for round in 1..=ROUNDS {
            for pair in Pair::ALL {
                let claim = format!("{program}: {pair:?} ({round} of {ROUNDS})");
                let figure = report.claim(&claim, pair.measure_again(program, options));
                samples.entry((program, pair)).or_default().extend(figure);
            }
        }
        let took = before.and_then(|(time, packets)| {
            let (now, all) = used()?;
            Ok(now.saturating_sub(time) / u32::try_from(all - packets)?.max(1))
        });
        if let Some(took) = report.claim("the fabric's time is known", took) {
            Report::figure(format!("{program}: ibfab takes {took:?} for a packet"));
        }
    }
    report.claim("nothing was lost on the fabric", wire::nothing_lost());
    let median = |program, pair| {
        let mut samples = samples.get(&(program, pair)).cloned().unwrap_or_default();
        samples.sort_by(f64::total_cmp);
        samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
    };
    for (program, _, is_bandwidth) in PROGRAMS {
        for [ours, theirs] in [[Pair::Wire, Pair::Veth], [Pair::Inside, Pair::Same]] {
            let [a, b] = [ours, theirs].map(|pair| median(program, pair));
            // A latency may be 1.5 times that of Soft-RoCE.
            let (ratio, unit, aim) =
                if is_bandwidth { (a / b, "MB/s", 1.0) } else { (b / a, "µs", 0.67) };
            let verdict = if ratio >= aim { "met" } else { "missed" };
            Report::figure(format!(
                "{program}: {ours:?} to Soft-RoCE {theirs:?}: {ratio:.2} as good ({a:.1} and {b:.1} {unit}); the aim \
                 is at least {aim}: {verdict}"
            ));
        }
    }
}

/// One program with many connections, and the memory that a queue pair takes of the kernel: in its caches, and by
/// pages of its own.
fn many() -> Result<()> {
    const CONNECTIONS: &str = "10000";
    let memory = || -> Result<u64> {
        let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let sum = ["Slab:", "VmallocUsed:", "Percpu:"].map(|name| -> Result<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.context(name)?.trim().trim_end_matches(" kB").parse()?)
        });
        sum.into_iter().sum::<Result<u64>>().map(|kilobytes| kilobytes * 1024)
    };
    let pairs = || -> Result<u64> {
        [OURS, OTHER].iter().map(|end| wire::queue_pairs(end.0)).sum::<Result<u64>>()
    };
    let (memory_before, before) = (memory()?, pairs()?);
    let options = ["-F", "-q", CONNECTIONS, "-s", "64", "-n", "5", "-t", "5"];
    let (server, words) = wire::start("ib_write_bw", OTHER, OURS, &options)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let client = rig::spawn("ib_write_bw-many", Place::Here, &words)?;
    let wanted = 2 * CONNECTIONS.parse::<u64>()?;
    let is_made = || -> Result<bool> {
        // To count them takes time.
        thread::sleep(Duration::from_secs(1));
        Ok(pairs()?.saturating_sub(before) >= wanted)
    };
    let began = Instant::now();
    while !is_made()? {
        ensure!(began.elapsed() < PATIENCE, "few queue pairs: {}", client.said()?);
    }
    let bytes = memory()?.saturating_sub(memory_before) / wanted;
    // Of each queue pair, rdmavt waits for all processors before it destroys it.
    let ended = [client.wait(10 * PATIENCE)?, server.wait(10 * PATIENCE)?];
    ensure!(ended.iter().all(ExitStatus::success), "{ended:?}");
    Report::figure(format!("{wanted} queue pairs: {bytes} bytes of the kernel for each"));
    Ok(())
}

/// Two devices in this namespace, where Soft-RoCE has its socket. All packets between their addresses cross the
/// veth pair, although both addresses are this machine's.
fn soft_roce() -> Result<()> {
    init::load(LATER)?;
    fs::write("/etc/libibverbs.d/rxe.driver", "driver rxe\n").context("rxe.driver")?;
    let ip = |arguments: &str| rig::ip(Place::Here, arguments).map(drop);
    ip("link add v0 mtu 4300 type veth peer name v1 mtu 4300")?;
    for (index, veth) in VETH.into_iter().enumerate() {
        let address = ADDRESS[index];
        for (file, value) in [("accept_local", "1"), ("rp_filter", "0")] {
            rig::write(Place::Here, &format!("/proc/sys/net/ipv4/conf/{veth}/{file}"), value)?;
        }
        ip(&format!("address add {address}/32 dev {veth}"))?;
        ip(&format!("link set {veth} up"))?;
    }
    // Packets that we send take these tables before the one of our own addresses.
    ip("rule add pref 20 lookup local")?;
    ip("rule del pref 0")?;
    for (index, veth) in VETH.into_iter().enumerate() {
        let [from, to] = [ADDRESS[index], ADDRESS[1 - index]];
        let table = 100 + index;
        ip(&format!("route add {to} dev {veth} table {table}"))?;
        ip(&format!("rule add pref 10 iif lo from {from} to {to} lookup {table}"))?;
        let file = format!("/sys/class/net/{}/address", VETH[1 - index]);
        let hardware = fs::read_to_string(&file).context(file)?;
        ip(&format!("neighbour replace {to} lladdr {} dev {veth} nud permanent", hardware.trim()))?;
    }
    for (End(device, _), veth) in RXE.iter().zip(VETH) {
        rig::run(Place::Here, &["rdma", "link", "add", device, "type", "rxe", "netdev", veth])?;
    }
    rig::eventually(|| {
        for End(device, port) in RXE {
            let file = format!("/sys/class/infiniband/{device}/ports/{port}/state");
            let state = fs::read_to_string(&file).context(file)?;
            ensure!(state.trim() == "4: ACTIVE", "{device} is {state}");
        }
        Ok(())
    })
}
