// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The loaded BPF objects and their maps.

use std::net::IpAddr;
use std::{env, fs};

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapInfo, PerCpuArray};
use aya::programs::{SchedClassifier, SocketFilter, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader, TestRun as _};
use ibarr_common::IfIndex;
use ibarr_common::ib::{Gid, IpoibHwAddr};
use ibarr_common::map::{
    self, Allow, AllowPrefix, Counters, GidEntry, GidKey, Interface, Neighbour, NeighbourKey,
    Origin, OwnBit, Program, Reason, ResponderCfg, Route, RoutePrefix,
};
use ibarr_common::wire::ip2gid::PORT;

pub(crate) struct Programs {
    ebpf: Ebpf,
}

/// The verdict of a program, and the frame after its run.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) action: u32,
    pub(crate) frame: Vec<u8>,
}

/// `TC_ACT_UNSPEC`.
pub(crate) const TC_NEXT: u32 = u32::MAX;
/// `TC_ACT_REDIRECT`, what `bpf_redirect` and `bpf_redirect_neigh` return.
pub(crate) const TC_REDIRECT: u32 = 7;
/// `XDP_PASS`.
pub(crate) const XDP_PASS: u32 = 2;
/// `XDP_TX`.
pub(crate) const XDP_TX: u32 = 3;

impl Programs {
    /// The responder's object for links with headers of `link_header` bytes.
    pub(crate) fn load(link_header: u32) -> Self {
        Self::load_object(link_header, &object("IBARR_BPF_OBJECT", ibarr_ebpf::OBJECT))
    }

    /// Like [`load`](Self::load), for a kernel on which `bpf_xdp_adjust_tail` always fails.
    pub(crate) fn load_without_tailroom(link_header: u32) -> Self {
        const CALL_ADJUST_TAIL: [u8; 8] = [0x85, 0, 0, 0, 65, 0, 0, 0];
        const RETURN_MINUS_1: [u8; 8] = [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let mut object = object("IBARR_BPF_OBJECT", ibarr_ebpf::OBJECT);
        for instruction in object.chunks_exact_mut(8) {
            if instruction == CALL_ADJUST_TAIL {
                instruction.copy_from_slice(&RETURN_MINUS_1);
            }
        }
        Self::load_object(link_header, &object)
    }

    fn load_object(link_header: u32, object: &[u8]) -> Self {
        let ebpf = EbpfLoader::new()
            .override_global("LINK_HEADER_LEN", &link_header, true)
            .load(object)
            .expect("the object loads: system tests need root");
        Self { ebpf }
    }

    /// The object with the programs for comparison.
    pub(crate) fn bench() -> Ebpf {
        Ebpf::load(&object("IBARR_BPF_BENCH_OBJECT", ibarr_ebpf::BENCH_OBJECT))
            .expect("the object loads: system tests need root")
    }

    pub(crate) fn tc(&mut self) -> &mut SchedClassifier {
        let program = self.ebpf.program_mut("ip2gid_tc").expect("in the object");
        let program: &mut SchedClassifier = program.try_into().expect("of this type");
        if program.fd().is_err() {
            program.load().unwrap_or_else(|error| panic!("ip2gid_tc: {error:?}"));
        }
        program
    }

    pub(crate) fn xdp(&mut self) -> &mut Xdp {
        let program = self.ebpf.program_mut("ip2gid_xdp").expect("in the object");
        let program: &mut Xdp = program.try_into().expect("of this type");
        if program.fd().is_err() {
            program.load().unwrap_or_else(|error| panic!("ip2gid_xdp: {error:?}"));
        }
        program
    }

    pub(crate) fn guard(&mut self) -> &mut SocketFilter {
        let program = self.ebpf.program_mut("ip2gid_guard").expect("in the object");
        let program: &mut SocketFilter = program.try_into().expect("of this type");
        if program.fd().is_err() {
            program.load().unwrap_or_else(|error| panic!("ip2gid_guard: {error:?}"));
        }
        program
    }

    /// Runs `ip2gid_tc` on a frame that came in by `lo`.
    pub(crate) fn run_tc(&mut self, frame: &[u8]) -> Verdict {
        let mut out = vec![0; 2048];
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.data_out = Some(&mut out);
        let result = self.tc().test_run(options).expect("the kernel takes the frame");
        out.truncate(result.data_size_out as usize);
        Verdict { action: result.return_value, frame: out }
    }

    /// Runs `ip2gid_xdp` on a frame that came in by `lo`.
    pub(crate) fn run_xdp(&mut self, frame: &[u8]) -> Verdict {
        let mut out = vec![0; 2048];
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.data_out = Some(&mut out);
        let result = self.xdp().test_run(options).expect("the kernel takes the frame");
        out.truncate(result.data_size_out as usize);
        Verdict { action: result.return_value, frame: out }
    }

    /// Like [`run_xdp`](Self::run_xdp), for a frame without room before it.
    pub(crate) fn run_xdp_without_headroom(&mut self, frame: &[u8]) -> Verdict {
        // The kernel uses 40 of 256 bytes; 212 more look like metadata of another program.
        const METADATA: usize = 212;
        let data_in = [&[0; METADATA], frame].concat();
        // `struct xdp_md`: where the frame begins and ends.
        let [begin, end] = [METADATA, data_in.len()].map(|at| u32::try_from(at).unwrap());
        let ctx = [begin, end, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
        let mut out = vec![0; 2048];
        let mut options = TestRunOptions::new();
        options.data_in = Some(&data_in);
        options.ctx_in = Some(&ctx);
        options.data_out = Some(&mut out);
        let result = self.xdp().test_run(options).expect("the kernel takes frame and metadata");
        out.truncate(result.data_size_out as usize);
        Verdict { action: result.return_value, frame: out.split_off(METADATA) }
    }

    /// Sets a lease until `end` nanoseconds since boot.
    pub(crate) fn lease_until(&mut self, end: u64, switches: u32) {
        let cfg = ResponderCfg { lease_end: end, switches, udp_port: PORT, reserved: 0 };
        self.configure(cfg);
    }

    pub(crate) fn configure(&mut self, cfg: ResponderCfg) {
        let mut map: Array<_, [u8; size_of::<ResponderCfg>()]> = self.map(map::RESPONDER_CFG);
        let cfg: [u8; size_of::<ResponderCfg>()] = zerocopy::transmute!(cfg);
        map.set(0, cfg, 0).expect("writable");
    }

    pub(crate) fn put_interface(&mut self, ifindex: IfIndex, interface: Interface) {
        let mut map: Array<_, [u8; size_of::<Interface>()]> = self.map(map::INTERFACES);
        let interface: [u8; size_of::<Interface>()] = zerocopy::transmute!(interface);
        map.set(ifindex.get(), interface, 0).expect("a small index");
    }

    pub(crate) fn put_gid(&mut self, address: IpAddr, interface: IfIndex, gid: Option<Gid>) {
        let key = GidKey::new(address, interface);
        let entry = GidEntry::new(key, gid, Some(interface), Origin::Local);
        self.put_entry(key, entry);
    }

    fn mark(&mut self, address: &GidKey) {
        let bit = OwnBit::of(address);
        let mut own_bits: Array<_, u64> = self.map(map::OWN_BITS);
        let word = own_bits.get(&bit.word(), 0).expect("readable");
        own_bits.set(bit.word(), word | bit.mask(), 0).expect("writable");
    }

    pub(crate) fn put_entry(&mut self, key: GidKey, entry: GidEntry) {
        self.mark(&key);
        let key: [u8; size_of::<GidKey>()] = zerocopy::transmute!(key);
        let entry: [u8; size_of::<GidEntry>()] = zerocopy::transmute!(entry);
        self.gid_cache().insert(key, entry, 0).expect("writable");
    }

    pub(crate) fn gid_cache(
        &mut self,
    ) -> HashMap<&mut MapData, [u8; size_of::<GidKey>()], [u8; size_of::<GidEntry>()]> {
        self.map(map::GID_CACHE)
    }

    pub(crate) fn allow(&mut self, address: IpAddr, bits: u8) {
        let (bits, prefix) = AllowPrefix::new(address, bits);
        let mut map: LpmTrie<_, [u8; size_of::<AllowPrefix>()], u32> = self.map(map::ALLOW);
        let Allow { allowed } = Allow { allowed: 1 };
        map.insert(&Key::new(bits, zerocopy::transmute!(prefix)), allowed, 0).expect("writable");
    }

    pub(crate) fn put_neighbour(&mut self, ifindex: IfIndex, address: IpAddr, hwaddr: [u8; 20]) {
        let key = NeighbourKey::new(address, ifindex);
        let hwaddr = IpoibHwAddr::parse(&hwaddr).expect("a port's");
        self.put_as_neighbour(key, Neighbour::new(&key, hwaddr));
    }

    /// Writes a neighbour under a key that may belong to another one.
    pub(crate) fn put_as_neighbour(&mut self, key: NeighbourKey, neighbour: Neighbour) {
        let key: [u8; size_of::<NeighbourKey>()] = zerocopy::transmute!(key);
        let neighbour: [u8; size_of::<Neighbour>()] = zerocopy::transmute!(neighbour);
        let mut map: HashMap<_, [u8; size_of::<NeighbourKey>()], [u8; size_of::<Neighbour>()]> =
            self.map(map::NEIGHBOURS);
        map.insert(key, neighbour, 0).expect("writable");
    }

    pub(crate) fn put_route(&mut self, ifindex: IfIndex, prefix: IpAddr, bits: u8, route: Route) {
        if bits == 32 && prefix.is_ipv4() && !route.is_here() {
            self.mark(&GidKey::new(prefix, ifindex));
        }
        let (bits, prefix) = RoutePrefix::new(ifindex, prefix, bits);
        let mut map: LpmTrie<_, [u8; size_of::<RoutePrefix>()], [u8; size_of::<Route>()]> =
            self.map(map::ROUTES);
        let key = Key::new(bits, zerocopy::transmute!(prefix));
        let route: [u8; size_of::<Route>()] = zerocopy::transmute!(route);
        map.insert(&key, route, 0).expect("writable");
    }

    pub(crate) fn counters(&mut self, program: Program) -> Counters {
        let map: PerCpuArray<_, [u64; Reason::ALL.len()]> = self.map(map::COUNTERS);
        let per_cpu = map.get(&program.index(), 0).expect("readable");
        let per_cpu: Vec<Counters> =
            per_cpu.iter().map(|words| zerocopy::transmute!(*words)).collect();
        Counters::sum(&per_cpu)
    }

    pub(crate) fn map_info(&self, name: &str) -> MapInfo {
        let map = self.ebpf.map(name).unwrap_or_else(|| panic!("no map {name}"));
        let data = match map {
            Map::Array(data) | Map::HashMap(data) | Map::LpmTrie(data) | Map::PerCpuArray(data) => {
                data
            }
            other => panic!("{name} is {other:?}"),
        };
        data.info().expect("readable")
    }

    fn map<'a, M: TryFrom<&'a mut Map>>(&'a mut self, name: &str) -> M {
        let map = self.ebpf.map_mut(name).unwrap_or_else(|| panic!("no map {name}"));
        M::try_from(map).unwrap_or_else(|_| panic!("{name} is of another type"))
    }
}

/// The object that the environment variable names, otherwise `built_in`.
fn object(variable: &str, built_in: &[u8]) -> Vec<u8> {
    match env::var_os(variable) {
        Some(path) => fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        None => built_in.to_vec(),
    }
}

/// The counters that are not zero.
pub(crate) fn nonzero(counters: &Counters) -> Vec<(&'static str, u64)> {
    Reason::ALL
        .iter()
        .map(|&reason| (reason.name(), counters.of(reason)))
        .filter(|&(_, count)| count != 0)
        .collect()
}

const _: () = assert!(size_of::<Allow>() == size_of::<u32>());
