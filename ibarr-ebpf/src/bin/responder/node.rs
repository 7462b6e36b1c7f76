// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The maps, and [`Node`] as they show it.

use core::cell::UnsafeCell;

use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, PerCpuArray};
use aya_ebpf::helpers::{bpf_jiffies64, bpf_ktime_get_boot_ns};
use aya_ebpf::macros::btf_map;
use ibarr_common::map::{
    Allow, AllowPrefix, Counters, GidEntry, GidKey, Interface, LearnedGid, Neighbour, NeighbourKey,
    OwnBit, Program, Reason, ResponderCfg, Route, RoutePrefix, max_entries,
};
use ibarr_common::{IfIndex, Instant};
use ibarr_ebpf::decide::Node;

/// `BPF_F_NO_PREALLOC`: entries take memory only when they are there.
const NO_PREALLOC: usize = 1;

#[btf_map(name = "gid_cache")]
static GID_CACHE: HashMap<GidKey, GidEntry, { max_entries::GID_CACHE }, NO_PREALLOC> =
    HashMap::new();

#[btf_map(name = "own_bits")]
static OWN_BITS: Array<u64, { max_entries::OWN_BITS }> = Array::new();

/// No program reads it. It is here so that it is created, typed and pinned like the others.
#[btf_map(name = "learned_gids")]
static LEARNED_GIDS: HashMap<GidKey, LearnedGid, { max_entries::LEARNED_GIDS }, NO_PREALLOC> =
    HashMap::new();

#[btf_map(name = "interfaces")]
static INTERFACES: Array<Interface, { max_entries::INTERFACES }> = Array::new();

#[btf_map(name = "far_interfaces")]
static FAR_INTERFACES: HashMap<u32, Interface, { max_entries::FAR_INTERFACES }, NO_PREALLOC> =
    HashMap::new();

#[btf_map(name = "allow")]
static ALLOW: LpmTrie<AllowPrefix, Allow, { max_entries::ALLOW }> = LpmTrie::new();

#[btf_map(name = "neighbours")]
static NEIGHBOURS: HashMap<NeighbourKey, Neighbour, { max_entries::NEIGHBOURS }, NO_PREALLOC> =
    HashMap::new();

#[btf_map(name = "routes")]
static ROUTES: LpmTrie<RoutePrefix, Route, { max_entries::ROUTES }> = LpmTrie::new();

#[btf_map(name = "responder_cfg")]
static RESPONDER_CFG: Array<ResponderCfg, { max_entries::RESPONDER_CFG }> = Array::new();

#[btf_map(name = "counters")]
static COUNTERS: PerCpuArray<Counters, { max_entries::COUNTERS }> = PerCpuArray::new();

/// What the clock said last: it costs as much as two look-ups, a tick is read like a variable.
///
/// Both fields together may be of two writers. Whoever reads that has read another end from the
/// map, unless the daemon has just renewed the lease.
struct Leased {
    /// An end of the lease,
    end: Word,
    /// and the tick of the kernel in which it was yet to come.
    tick: Word,
}

#[unsafe(no_mangle)]
static LEASED: Leased = Leased { end: Word::ZERO, tick: Word::ZERO };

/// Read and written as a whole by any CPU. Not an atomic: LLVM makes no BPF code of a relaxed one.
struct Word(UnsafeCell<u64>);

// SAFETY: the kernel's memory model knows no data races between whole words.
unsafe impl Sync for Word {}

impl Word {
    const ZERO: Self = Self(UnsafeCell::new(0));

    #[inline]
    fn read(&self) -> u64 {
        // SAFETY: aligned and alive. Volatile: others write to it.
        unsafe { self.0.get().read_volatile() }
    }

    #[inline]
    fn write(&self, value: u64) {
        // SAFETY: as above.
        unsafe { self.0.get().write_volatile(value) }
    }
}

/// This node, as the daemon describes it in the maps.
#[derive(Clone, Copy)]
pub(crate) struct Maps;

impl Node for Maps {
    #[inline]
    fn cfg(&self) -> ResponderCfg {
        RESPONDER_CFG.get(0).copied().unwrap_or_default()
    }

    #[inline]
    fn is_leased(&self, cfg: &ResponderCfg) -> bool {
        // SAFETY: the helper takes nothing and has no effect.
        let tick = unsafe { bpf_jiffies64() };
        if LEASED.tick.read() == tick && LEASED.end.read() == cfg.lease_end {
            return true;
        }
        let is_leased = self.reads_clock(cfg);
        if is_leased {
            LEASED.end.write(cfg.lease_end);
            LEASED.tick.write(tick);
        }
        is_leased
    }

    #[inline]
    fn interface(&self, ifindex: IfIndex) -> Option<Interface> {
        const WORDS: usize = size_of::<Interface>() / 8;
        let index = ifindex.get();
        let near = INTERFACES.get_ptr(index);
        let element = near.or_else(|| FAR_INTERFACES.get_ptr(index))?.cast::<[u64; WORDS]>();
        // SAFETY: the kernel keeps the element's memory, which it aligns to 8 bytes, until the
        // program ends. Volatile: the daemon may write to it meanwhile, see `Interface`.
        let words = unsafe { element.read_volatile() };
        Some(zerocopy::transmute!(words))
    }

    #[inline]
    fn allows(&self, address: &AllowPrefix) -> bool {
        ALLOW.get(&Key::new(AllowPrefix::BITS, *address)).is_some()
    }

    /// Hardly ever goes on to the cache: see [`OwnBit`].
    #[inline]
    fn is_ours(&self, key: &GidKey) -> bool {
        let bit = OwnBit::of(key);
        let is_set = |word: &u64| word & bit.mask() != 0;
        OWN_BITS.get(bit.word()).is_none_or(is_set) && self.has_entry(key)
    }

    #[inline]
    fn leads_to(&self, ifindex: IfIndex, address: &[u8; 16]) -> bool {
        route(ifindex, *address).is_some_and(Route::is_here)
    }

    #[inline]
    fn entry(&self, key: &GidKey) -> Option<GidEntry> {
        const WORDS: usize = size_of::<GidEntry>() / 8;
        let element = GID_CACHE.get_ptr(key)?.cast::<[u64; WORDS]>();
        // SAFETY: the kernel keeps the element's memory, which it aligns to 8 bytes, until the
        // program ends. Another CPU may write to it meanwhile, hence volatile: each word is read
        // once, and `GidEntry::is_of` judges what they are together.
        let words = unsafe { element.read_volatile() };
        Some(zerocopy::transmute!(words))
    }

    #[inline]
    fn count(&self, program: Program, reason: Reason) {
        let Some(counters) = COUNTERS.get_ptr_mut(program.index()) else { return };
        let index = reason as usize;
        if index < Reason::ALL.len() {
            // SAFETY: `Counters` is as many `u64` as there are reasons.
            let counter = unsafe { counters.cast::<u64>().add(index) };
            // SAFETY: inside the element of this CPU, which nothing else writes meanwhile.
            unsafe { *counter += 1 };
        }
    }
}

impl Maps {
    /// [`Node::is_leased`], to the nanosecond.
    #[inline]
    pub(crate) fn reads_clock(self, cfg: &ResponderCfg) -> bool {
        // SAFETY: the helper takes nothing and has no effect.
        cfg.is_leased(Instant::from_nanos(unsafe { bpf_ktime_get_boot_ns() }))
    }

    #[inline]
    pub(crate) fn has_entry(self, key: &GidKey) -> bool {
        GID_CACHE.get_ptr(key).is_some()
    }
}

/// Where a packet for `destination` goes from `ifindex`, if the daemon has written that down.
#[inline]
pub(crate) fn next_hop(ifindex: IfIndex, destination: [u8; 16]) -> Option<Neighbour> {
    let route = route(ifindex, destination)?;
    let address = if *route == Route::ON_LINK { destination } else { route.next_hop };
    let key = NeighbourKey { address, ifindex: ifindex.get() };
    const WORDS: usize = size_of::<Neighbour>() / size_of::<u64>();
    let element = NEIGHBOURS.get_ptr(&key)?.cast::<[u64; WORDS]>();
    // SAFETY: as for an entry of the GID cache; `Neighbour::is_of` judges what the words are together.
    let neighbour: Neighbour = zerocopy::transmute!(unsafe { element.read_volatile() });
    neighbour.is_of(&key).then_some(neighbour)
}

/// Whether `address` leads elsewhere than its neighbours on the interface do, though all that is
/// routed leaves by it: it is the first or the last of a subnet of IPv4. The last two bits of these
/// are alike, so half of all others cost no look-up.
#[inline]
pub(crate) fn is_edge(ifindex: IfIndex, address: [u8; 16]) -> bool {
    let are_alike = matches!(address[15] & 3, 0 | 3);
    are_alike && route(ifindex, address).is_some_and(|route| !route.is_here())
}

#[inline]
fn route(ifindex: IfIndex, destination: [u8; 16]) -> Option<&'static Route> {
    let prefix = RoutePrefix { ifindex: ifindex.get(), address: destination };
    ROUTES.get(&Key::new(RoutePrefix::BITS, prefix))
}
