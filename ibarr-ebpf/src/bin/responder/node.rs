// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The maps, and the implementation of [`Node`] on top of them.

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

/// `BPF_F_NO_PREALLOC`: an entry takes memory only while it exists.
const NO_PREALLOC: usize = 1;

#[btf_map(name = "gid_cache")]
static GID_CACHE: HashMap<GidKey, GidEntry, { max_entries::GID_CACHE }, NO_PREALLOC> =
    HashMap::new();

#[btf_map(name = "own_bits")]
static OWN_BITS: Array<u64, { max_entries::OWN_BITS }> = Array::new();

/// No program reads this map. It is declared here so that the loader creates, types and pins it
/// like the others.
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

/// The last result of the clock. The clock costs as much as two look-ups; the tick is read like a
/// variable.
///
/// The two fields may come from different writers. Then `end` differs from the end in the map,
/// unless the daemon has just renewed the lease.
struct Leased {
    /// An end of the lease.
    end: Word,
    /// A tick of the kernel before that end.
    tick: Word,
}

#[unsafe(no_mangle)]
static LEASED: Leased = Leased { end: Word::ZERO, tick: Word::ZERO };

/// A word that any CPU reads and writes as a whole. It is not an atomic, because LLVM cannot
/// compile a relaxed one for BPF.
struct Word(UnsafeCell<u64>);

// SAFETY: accesses to whole words are no data race in the kernel's memory model.
unsafe impl Sync for Word {}

impl Word {
    const ZERO: Self = Self(UnsafeCell::new(0));

    #[inline]
    fn read(&self) -> u64 {
        // SAFETY: aligned and alive. Volatile: other CPUs write to it.
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
        // SAFETY: the helper takes no arguments and has no effect.
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

    #[inline]
    fn is_marked(&self, source: &GidKey) -> bool {
        let bit = OwnBit::of(source);
        OWN_BITS.get(bit.word()).is_none_or(|word| word & bit.mask() != 0)
    }

    #[inline]
    fn is_ours(&self, key: &GidKey) -> bool {
        GID_CACHE.get_ptr(key).is_some()
    }

    #[inline]
    fn is_edge(&self, ifindex: IfIndex, address: &[u8; 16]) -> bool {
        route(ifindex, *address).is_some_and(|route| !route.is_here())
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
        // program ends. Volatile, because another CPU may write to it meanwhile: each word is read
        // once, and `GidEntry::is_of` checks that they belong together.
        let words = unsafe { element.read_volatile() };
        Some(zerocopy::transmute!(words))
    }

    #[inline]
    fn count(&self, program: Program, reason: Reason) {
        let Some(counters) = COUNTERS.get_ptr_mut(program.index()) else { return };
        let index = reason as usize;
        if index < Reason::ALL.len() {
            // SAFETY: `Counters` has one `u64` for each reason.
            let counter = unsafe { counters.cast::<u64>().add(index) };
            // SAFETY: inside the element of this CPU, which nothing else writes meanwhile.
            unsafe { *counter += 1 };
        }
    }
}

impl Maps {
    /// [`Node::is_leased`] with the precision of the clock.
    #[inline]
    pub(crate) fn reads_clock(self, cfg: &ResponderCfg) -> bool {
        // SAFETY: the helper takes no arguments and has no effect.
        cfg.is_leased(Instant::from_nanos(unsafe { bpf_ktime_get_boot_ns() }))
    }
}

/// The next hop for `destination` on `ifindex`, if the daemon has entered one.
#[inline]
pub(crate) fn next_hop(ifindex: IfIndex, destination: [u8; 16]) -> Option<Neighbour> {
    let route = route(ifindex, destination)?;
    let address = if *route == Route::ON_LINK { destination } else { route.next_hop };
    let key = NeighbourKey { address, ifindex: ifindex.get() };
    const WORDS: usize = size_of::<Neighbour>() / size_of::<u64>();
    let element = NEIGHBOURS.get_ptr(&key)?.cast::<[u64; WORDS]>();
    // SAFETY: as for an entry of the GID cache; `Neighbour::is_of` checks that the words belong
    // together.
    let neighbour: Neighbour = zerocopy::transmute!(unsafe { element.read_volatile() });
    neighbour.is_of(&key).then_some(neighbour)
}

#[inline]
fn route(ifindex: IfIndex, destination: [u8; 16]) -> Option<&'static Route> {
    let prefix = RoutePrefix { ifindex: ifindex.get(), address: destination };
    ROUTES.get(&Key::new(RoutePrefix::BITS, prefix))
}
