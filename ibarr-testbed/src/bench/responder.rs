// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench responder`: what an answer in the kernel costs, compared with a program that only sends the packet
//! back. `BPF_PROG_TEST_RUN` runs the programs, one frame a run; nanoseconds are the kernel's own account.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie};
use aya::programs::{Program, TestRunOptions};
use aya::sys::{Stats, enable_stats};
use aya::{Ebpf, TestRun as _};
use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::map::{
    self, GidEntry, GidKey, Interface, Origin, OwnBit, ResponderCfg, Route, RoutePrefix,
};
use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Version};
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use super::report::{Report, median};
use crate::interrupt::Interrupt;
use crate::lab::Store;

/// Measures the programs.
///
/// # Errors
/// The kernel refuses something (it takes root), or a query is not answered.
pub fn responder(_: &Store, _: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let _counts = enable_stats(Stats::RunTime).context("the kernel does not count (needs root)")?;
    let mut bench = load(ibarr_ebpf::BENCH_OBJECT)?;
    let [mut small, mut large] = [load(ibarr_ebpf::OBJECT)?, load(ibarr_ebpf::OBJECT)?];
    fill(&mut small, FEW)?;
    fill(&mut large, MANY)?;
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let (rounds, runs) = if quick { (3, 1_000) } else { (101, 10_000) };
    eprintln!("bench: {rounds} rounds of {runs} runs of each program …");
    let mut report = Report::new("responder", quick)?;
    for (hook, bounce, ours) in
        [("tc", "bounce_tc", "ip2gid_tc"), ("XDP", "bounce_xdp", "ip2gid_xdp")]
    {
        for ipv6 in [false, true] {
            let mut times = [const { Vec::new() }; 3];
            // One more, because the first warms the caches.
            for round in 0..=rounds {
                let programs =
                    [(&mut bench, bounce, FEW), (&mut small, ours, FEW), (&mut large, ours, MANY)];
                for ((object, program, entries), times) in programs.into_iter().zip(&mut times) {
                    interrupt.check()?;
                    let frames: Vec<_> = (0..runs)
                        .map(|_| {
                            let source = peer(rng.next_u32() % SOURCES, ipv6);
                            let entry = (rng.next_u32() % entries) & !1 | u32::from(ipv6);
                            frame(source, address(entry))
                        })
                        .collect::<Result<_>>()?;
                    let program = object.program_mut(program).context(program)?;
                    let nanos = run(program, &frames)?;
                    if round > 0 {
                        times.push(nanos);
                    }
                }
            }
            let family = if ipv6 { "IPv6" } else { "IPv4" };
            let [bounce, small, large] = &times;
            let of = |rounds: &[f64]| median(rounds.iter().copied());
            report.add(format!("{hook}, {family}: ns of a packet sent back"), of(bounce)?, None);
            for (entries, ours) in [(FEW, small), (MANY, large)] {
                let what = format!("{hook}, {family}: ns of an answer, any of {entries}");
                report.add(&what, of(ours)?, None);
                let ratio = median(ours.iter().zip(bounce).map(|(ours, bounce)| ours / bounce))?;
                let what = format!("{what}, to sending back");
                report.add(what, ratio, None);
            }
        }
    }
    Ok(report)
}

/// Numbers of addresses of a node, half of them of each family: more than most nodes have, and as many as the
/// map has room for.
const FEW: u32 = 1_000;
const MANY: u32 = 100_000;

fn load(object: &[u8]) -> Result<Ebpf> {
    let mut object = Ebpf::load(object).context("the kernel refuses an object")?;
    for (name, program) in object.programs_mut() {
        let loaded = match program {
            Program::SchedClassifier(program) => program.load(),
            Program::Xdp(program) => program.load(),
            _ => Ok(()),
        };
        loaded.with_context(|| name.to_owned())?;
    }
    Ok(object)
}

/// Runs a program on each frame. Returns nanoseconds a run.
fn run(program: &mut Program, frames: &[Vec<u8>]) -> Result<f64> {
    let before = program.info()?;
    for frame in frames {
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        let (result, wanted) = match program {
            Program::SchedClassifier(program) => (program.test_run(options)?, TC_ACT_REDIRECT),
            Program::Xdp(program) => (program.test_run(options)?, XDP_TX),
            _ => bail!("a program of another type"),
        };
        let action = result.return_value;
        ensure!(action == wanted, "a program says {action} instead of {wanted}");
    }
    let after = program.info()?;
    let counted = after.run_count() - before.run_count();
    ensure!(counted == frames.len() as u64, "{counted} of {} runs count", frames.len());
    let time = after.run_time().saturating_sub(before.run_time());
    Ok(time.as_secs_f64() * 1e9 / f64::from(u32::try_from(frames.len())?))
}

const TC_ACT_REDIRECT: u32 = 7;
const XDP_TX: u32 = 3;

/// Number of peers that ask.
const SOURCES: u32 = 100_000;

/// Fills the maps as the daemon would.
fn fill(responder: &mut Ebpf, entries: u32) -> Result<()> {
    let map = responder.map_mut(map::GID_CACHE).context(map::GID_CACHE)?;
    let mut gids: HashMap<_, [u8; size_of::<GidKey>()], [u8; size_of::<GidEntry>()]> =
        map.try_into()?;
    for number in 0..entries {
        let key = GidKey::new(address(number), IfIndex::MIN);
        let gid = Gid::new((0xfe80 << 112 | u128::from(number + 1)).to_be_bytes());
        let entry = GidEntry::new(key, gid, Some(IfIndex::MIN), Origin::Local);
        let key: [u8; size_of::<GidKey>()] = zerocopy::transmute!(key);
        let entry: [u8; size_of::<GidEntry>()] = zerocopy::transmute!(entry);
        gids.insert(key, entry, 0)?;
    }
    let map = responder.map_mut(map::OWN_BITS).context(map::OWN_BITS)?;
    let mut own_bits: Array<_, u64> = map.try_into()?;
    for number in 0..entries {
        let bit = OwnBit::of(&GidKey::new(address(number), IfIndex::MIN));
        let word = own_bits.get(&bit.word(), 0)?;
        own_bits.set(bit.word(), word | bit.mask(), 0)?;
    }
    let map = responder.map_mut(map::INTERFACES).context(map::INTERFACES)?;
    let mut interfaces: Array<_, [u8; size_of::<Interface>()]> = map.try_into()?;
    let switches = Interface::ANSWER_IPV4 | Interface::ANSWER_IPV6;
    let interface = Interface { switches, hwaddr: [0; 20] };
    let interface: [u8; size_of::<Interface>()] = zerocopy::transmute!(interface);
    interfaces.set(IfIndex::MIN.get(), interface, 0)?;
    let map = responder.map_mut(map::ROUTES).context(map::ROUTES)?;
    let mut routes: LpmTrie<_, [u8; size_of::<RoutePrefix>()], [u8; size_of::<Route>()]> =
        map.try_into()?;
    let on_link: [u8; size_of::<Route>()] = zerocopy::transmute!(Route::ON_LINK);
    for (ipv6, bits) in [(false, 24), (true, 120)] {
        for subnet in 0..=SOURCES / 256 {
            let (bits, prefix) = RoutePrefix::new(IfIndex::MIN, peer(256 * subnet, ipv6), bits);
            let key = Key::new(bits, zerocopy::transmute!(prefix));
            routes.insert(&key, on_link, 0)?;
        }
    }
    let map = responder.map_mut(map::RESPONDER_CFG).context(map::RESPONDER_CFG)?;
    let mut cfg: Array<_, [u8; size_of::<ResponderCfg>()]> = map.try_into()?;
    let forever = ResponderCfg { lease_end: u64::MAX, udp_port: PORT, ..ResponderCfg::default() };
    let forever: [u8; size_of::<ResponderCfg>()] = zerocopy::transmute!(forever);
    Ok(cfg.set(0, forever, 0)?)
}

/// An address of the node. Even numbers are IPv4, odd ones IPv6.
fn address(number: u32) -> IpAddr {
    match number % 2 {
        0 => Ipv4Addr::from_bits(Ipv4Addr::new(10, 4, 0, 1).to_bits() + number).into(),
        _ => Ipv6Addr::from_bits(0xfd << 120 | 4 << 64 | u128::from(number)).into(),
    }
}

/// The address of a peer that asks.
fn peer(number: u32, ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::from_bits(0xfd << 120 | 9 << 64 | u128::from(number)).into()
    } else {
        Ipv4Addr::from_bits(Ipv4Addr::new(10, 64, 0, 1).to_bits() + number).into()
    }
}

/// A query from `source` for `target`, in an Ethernet frame to `lo`.
fn frame(source: IpAddr, target: IpAddr) -> Result<Vec<u8>> {
    let query = Query::new(Version::V1, MsgId(7), target).context("no node can have it")?.emit();
    let payload = query.as_ref();
    let length = u16::try_from(8 + payload.len())?.to_be_bytes();
    let ports = [40_000, PORT].map(u16::to_be_bytes).concat();
    let mut udp = [&ports[..], &length, &[0; 2], payload].concat();
    let (mut ip, addresses, ethertype) = match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let total = u16::try_from(20 + udp.len())?.to_be_bytes();
            let addresses = [source.octets(), target.octets()].concat();
            let fixed = [0x7f, 0xff, 0x40, 0, 64, UDP, 0, 0];
            ([&[0x45, 0][..], &total, &fixed, &addresses].concat(), addresses, [8, 0])
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let addresses = [source.octets(), target.octets()].concat();
            let ip = [&[0x60, 0, 0, 0][..], &length, &[UDP, 64], &addresses].concat();
            (ip, addresses, [0x86, 0xdd])
        }
        _ => bail!("{source} and {target} are of two families"),
    };
    let sum = checksum(&[&addresses, &[0, UDP], &length, &udp]);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    if source.is_ipv4() {
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    Ok([&[0; 12][..], &ethertype, &ip, &udp].concat())
}

/// RFC 1071; never 0, which stands for no checksum.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let sum = words.fold(0u16, |sum, word| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes([word[0], word[1]]));
        sum + u16::from(carry)
    });
    if sum == 0xffff { 0xffff } else { !sum }
}

const UDP: u8 = 17;
