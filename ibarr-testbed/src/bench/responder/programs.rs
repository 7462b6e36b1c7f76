// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The responder's programs, and the programs that they are compared with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie};
use aya::programs::{ProgramInfo, SchedClassifier, TestRunOptions, TestRunResult, Xdp};
use aya::sys::{Stats, enable_stats};
use aya::{Ebpf, TestRun as _};
use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::map::{
    self, GidEntry, GidKey, Interface, Origin, OwnBit, ResponderCfg, Route, RoutePrefix,
};
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use super::costs::Case;
use super::frame;

/// The hook of a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Hook {
    Tc,
    Xdp,
}

/// The maps of a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Maps {
    /// No maps: the programs for comparison need none.
    Bench,
    /// Maps of a node with more addresses than most nodes have.
    Small,
    /// Maps of a node with as many addresses as the map has room for.
    Large,
}

impl Maps {
    /// Number of addresses, half of them of each family.
    pub(super) const fn entries(self) -> u32 {
        match self {
            Self::Bench | Self::Small => 1_000,
            Self::Large => 100_000,
        }
    }
}

pub(super) struct Programs {
    bench: Ebpf,
    small: Ebpf,
    large: Ebpf,
    rng: ChaCha20Rng,
    /// The kernel counts while this is open.
    _stats: OwnedFd,
}

impl Programs {
    /// Loads the programs, and fills their maps.
    pub(super) fn load() -> Result<Self> {
        let stats =
            enable_stats(Stats::RunTime).context("the kernel does not count (needs root)")?;
        let load = |object: &[u8]| {
            let mut object = Ebpf::load(object).context("the kernel refuses an object")?;
            for (name, program) in object.programs_mut() {
                let loaded = match program {
                    aya::programs::Program::SchedClassifier(program) => program.load(),
                    aya::programs::Program::Xdp(program) => program.load(),
                    _ => Ok(()),
                };
                loaded.with_context(|| name.to_owned())?;
            }
            Ok::<_, anyhow::Error>(object)
        };
        let ours = |maps: Maps| {
            let mut object = load(ibarr_ebpf::OBJECT)?;
            fill(&mut object, maps.entries())?;
            Ok::<_, anyhow::Error>(object)
        };
        Ok(Self {
            bench: load(ibarr_ebpf::BENCH_OBJECT)?,
            small: ours(Maps::Small)?,
            large: ours(Maps::Large)?,
            rng: ChaCha20Rng::seed_from_u64(1),
            _stats: stats,
        })
    }

    /// Runs a program so many times, each on another frame. Returns nanoseconds a run.
    pub(super) fn run(&mut self, case: &Case, runs: u32) -> Result<f64> {
        let mut frames = Vec::new();
        for _ in 0..runs {
            let source = self.rng.next_u32() % SOURCES;
            let entry = self.rng.next_u32() % case.maps.entries();
            let entry = if case.scattered { entry } else { 0 };
            let entry = entry & !1 | u32::from(case.ipv6);
            frames.push(frame::query(peer(source, case.ipv6), address(entry))?);
        }
        let object = match case.maps {
            Maps::Bench => &mut self.bench,
            Maps::Small => &mut self.small,
            Maps::Large => &mut self.large,
        };
        let program = object.program_mut(case.program).context(case.program)?;
        let done = |result: TestRunResult| {
            let (action, wanted) = (result.return_value, case.action());
            ensure!(action == wanted, "{} says {action} instead of {wanted}", case.program);
            Ok(())
        };
        let (before, after) = match case.hook {
            Hook::Tc => {
                let program: &mut SchedClassifier = program.try_into()?;
                let before = program.info()?;
                for frame in &frames {
                    done(program.test_run(on(frame))?)?;
                }
                (before, program.info()?)
            }
            Hook::Xdp => {
                let program: &mut Xdp = program.try_into()?;
                let before = program.info()?;
                for frame in &frames {
                    done(program.test_run(on(frame))?)?;
                }
                (before, program.info()?)
            }
        };
        let count = |info: &ProgramInfo| info.run_count();
        let counted = count(&after) - count(&before);
        ensure!(counted == u64::from(runs), "{counted} of {runs} runs of {} count", case.program);
        let time = after.run_time().saturating_sub(before.run_time());
        Ok(time.as_secs_f64() * 1e9 / f64::from(runs))
    }
}

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
    let forever = ResponderCfg { lease_end: u64::MAX, switches: 0, reserved: 0 };
    let forever: [u8; size_of::<ResponderCfg>()] = zerocopy::transmute!(forever);
    Ok(cfg.set(0, forever, 0)?)
}

fn on(frame: &[u8]) -> TestRunOptions<'_> {
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options
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
