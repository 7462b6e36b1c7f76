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
    let (rounds, runs) = if quick { (3, 1_000) } else { (51, 10_000) };
    eprintln!("bench: {rounds} rounds of {runs} runs of each program …");
    let mut report = Report::new("responder", quick)?;
    for (hook, bounce, ours) in
        [("tc", "bounce_tc", "ip2gid_tc"), ("XDP", "bounce_xdp", "ip2gid_xdp")]
    {
        for ipv6 in [false, true] {
            let mut back = Vec::new();
            let mut times = [FEW, MANY].map(|entries| (entries, Step::ALL.map(|_| Vec::new())));
            // One more, because the first warms the caches.
            for round in 0..=rounds {
                let mut measure = |object: &mut Ebpf, program, entries, step: Step| {
                    interrupt.check()?;
                    let frames: Vec<_> = (0..runs)
                        .map(|_| step.frame(&mut rng, entries, ipv6))
                        .collect::<Result<_>>()?;
                    run(object.program_mut(program).context(program)?, step, &frames)
                };
                let nanos = measure(&mut bench, bounce, FEW, Step::Answered)?;
                if round > 0 {
                    back.push(nanos);
                }
                for (object, (entries, times)) in
                    [&mut small, &mut large].into_iter().zip(&mut times)
                {
                    for (step, times) in Step::ALL.into_iter().zip(times) {
                        let nanos = measure(object, ours, *entries, step)?;
                        if round > 0 {
                            times.push(nanos);
                        }
                    }
                }
            }
            let family = if ipv6 { "IPv6" } else { "IPv4" };
            let of = |rounds: &[f64]| median(rounds.iter().copied());
            report.add(format!("{hook}, {family}: ns of a packet sent back"), of(&back)?, None);
            for (entries, times) in &times {
                let what = format!("{hook}, {family}, of {entries}: ns of");
                for (step, times) in Step::ALL.into_iter().zip(times) {
                    report.add(format!("{what} {}", step.name()), of(times)?, None);
                }
                let [.., answered] = times;
                let ratio = median(answered.iter().zip(&back).map(|(ours, back)| ours / back))?;
                report.add(format!("{what} an answer, to sending back"), ratio, None);
            }
        }
    }
    Ok(report)
}

/// How far a program goes with a frame: the difference of two neighbours is what a step costs.
#[derive(Clone, Copy)]
enum Step {
    /// To another port: read, and the configuration.
    Port,
    /// From a group of hosts: lease, and interface.
    Link,
    /// For an address that the node lacks: headers, source, route, and a look-up in vain.
    Target,
    /// With a wrong checksum: the entry, and the sum.
    Checksum,
    Answered,
}

impl Step {
    const ALL: [Self; 5] = [Self::Port, Self::Link, Self::Target, Self::Checksum, Self::Answered];

    fn name(self) -> &'static str {
        match self {
            Self::Port => "a datagram to another port",
            Self::Link => "a query from a group of hosts",
            Self::Target => "a query for another node's address",
            Self::Checksum => "a query with a wrong checksum",
            Self::Answered => "an answer",
        }
    }

    /// A query from any peer for any of the `entries` addresses of one family.
    fn frame(self, rng: &mut ChaCha20Rng, entries: u32, ipv6: bool) -> Result<Vec<u8>> {
        let source = peer(rng.next_u32() % SOURCES, ipv6);
        let entry = (rng.next_u32() % entries) & !1 | u32::from(ipv6);
        let other = if matches!(self, Self::Target) { MANY } else { 0 };
        let mut frame = frame(source, address(entry + other))?;
        let udp = if ipv6 { 54 } else { 34 };
        match self {
            Self::Port => frame[udp + 3] ^= 1,
            Self::Link => frame[6] |= 1,
            // In the message number, so that the sum does not become 0, which stands for none.
            Self::Checksum => frame[udp + 12] ^= 1,
            Self::Target | Self::Answered => {}
        }
        Ok(frame)
    }
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
fn run(program: &mut Program, step: Step, frames: &[Vec<u8>]) -> Result<f64> {
    let before = program.info()?;
    for frame in frames {
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        let (result, wanted) = match program {
            Program::SchedClassifier(program) => {
                (program.test_run(options)?, [TC_ACT_UNSPEC, TC_ACT_REDIRECT])
            }
            Program::Xdp(program) => (program.test_run(options)?, [XDP_PASS, XDP_TX]),
            _ => bail!("a program of another type"),
        };
        let action = result.return_value;
        let wanted = wanted[usize::from(matches!(step, Step::Answered))];
        ensure!(action == wanted, "a program says {action} instead of {wanted}");
    }
    let after = program.info()?;
    let counted = after.run_count() - before.run_count();
    ensure!(counted == frames.len() as u64, "{counted} of {} runs count", frames.len());
    let time = after.run_time().saturating_sub(before.run_time());
    Ok(time.as_secs_f64() * 1e9 / f64::from(u32::try_from(frames.len())?))
}

const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_REDIRECT: u32 = 7;
const XDP_PASS: u32 = 2;
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
pub(super) fn frame(source: IpAddr, target: IpAddr) -> Result<Vec<u8>> {
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
