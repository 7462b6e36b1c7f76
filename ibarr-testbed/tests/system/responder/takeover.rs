// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A daemon replaces another without a lost query.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap};
use aya::programs::links::FdLink;
use aya::programs::tc::{NlOptions, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{SchedClassifier, TcAttachType, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, Pod};
use ibarr_common::IfIndex;
use ibarr_common::map::{self, GidEntry, GidKey, Interface, Origin, Program, Reason, ResponderCfg};
use ibarr_common::wire::ip2gid::PORT;
use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;
use nix::net::if_::if_nametoindex;
use nix::sys::signal::Signal;
use zerocopy::IntoBytes;

use super::rig::{self, *};
use crate::frame::hex;
use crate::machine::ibarr;

#[test]
fn daemons_killed_and_started_under_load_lose_no_query() {
    for (responder, hook) in kinds() {
        let mut rig = Rig::new();
        rig.start(&format!("responder = \"{responder}\""));
        let link = link_id(&rig);
        let loads = [load(V4), load(V6)];
        // 100 rounds for both kinds.
        for round in 0..rounds(50) {
            rig.end(if round % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
            rig.restart();
        }
        for load in loads {
            load.end_without_loss(1000);
        }
        // The link was updated, and never made anew.
        assert_eq!(link_id(&rig), link);
        assert_eq!(link.is_some(), hook == "tcx");
        assert_eq!(our_filters(), usize::from(hook == "clsact"));
    }
}

/// Except when a qdisc is added to an interface for the first time: then the kernel drops packets that
/// are being sent.
#[test]
fn another_kind_of_program_under_load_loses_no_query() {
    let mut rig = Rig::new();
    let _peers_program = prepare_for_xdp();
    rig.start("responder = \"clsact\"");
    let load = load(V4);
    let [tc, clsact, xdp, generic] = all_kinds();
    // Each kind follows each other kind.
    let first = [tc, xdp, tc, generic, clsact, xdp];
    let second = [clsact, generic, xdp, generic, tc, clsact];
    for (round, (mode, hook)) in [first, second].as_flattened().iter().enumerate() {
        rig.configure(&format!("responder = \"{mode}\""));
        if round % 3 == 0 {
            rig.end(Signal::SIGTERM);
            rig.restart();
        } else {
            rig.asked("reload");
        }
        assert_eq!(rig.status_of("eth0")["responder"], *hook);
        assert_eq!(our_filters(), usize::from(*hook == "clsact"));
        assert_eq!(tcx_programs().len(), usize::from(*hook == "tcx"));
        let link = tool("ip", &format!("-netns {NODE} -details link show dev eth0"));
        assert_eq!(link.contains("prog/xdp"), hook.starts_with("xdp"), "{link}");
        let asked = load.asked();
        rig.eventually("queries while it is attached", || load.asked() > asked + 20);
    }
    load.end_without_loss(1000);
}

/// The removal may come while the daemon reads the map of the one before it, fills it, loads programs or
/// attaches them.
#[test]
fn address_removed_during_a_takeover_is_not_answered_afterwards() {
    const ADDRESS: &str = "10.7.0.9";
    for (responder, _) in kinds() {
        let mut rig = Rig::new();
        let began = Instant::now();
        rig.start(&format!("responder = \"{responder}\""));
        let whole = began.elapsed();
        pin_neighbour(ADDRESS);
        let mut asker = socket(ADDRESS);
        let rounds = rounds(12);
        for round in 0..rounds {
            ip(&format!("-netns {NODE} address add {ADDRESS}/24 dev eth0"));
            rig.eventually("it is answered", || asker.ask(Duration::from_millis(20)));
            rig.end(Signal::SIGKILL);
            let launched = rig.launch(program(ibarr()));
            // Times that are spread evenly over a start.
            std::thread::sleep(whole * round / rounds);
            ip(&format!("-netns {NODE} address delete {ADDRESS}/24 dev eth0"));
            launched.wait(&mut rig);
            rig.eventually("the daemon knows", || {
                rig.status_of("eth0")["addresses"].get(ADDRESS).is_none()
            });
            let unknown = || rig.count(Program::Tc, Reason::Unknown);
            let (answered, before) = (rig.answered_in_kernel(), unknown());
            assert!(
                !asker.ask(Duration::from_millis(5)),
                "removed after {round}/{rounds} of the start time"
            );
            rig.eventually("it has come", || unknown() == before + 1);
            assert_eq!(rig.answered_in_kernel(), answered);
        }
    }
}

/// Pins of an older layout answer, as if an older ibarr had left them: with a map of another size, in
/// another directory. The programs are attached as in every layout.
#[test]
fn another_layout_is_replaced_under_load_without_a_lost_query() {
    for (responder, hook) in all_kinds() {
        let mut rig = Rig::new();
        let _peers_program = prepare_for_xdp();
        let old = OldLayout::leave_behind(&rig, hook);
        let load = load(V4);
        socket(V4).ask_all(100);
        rig.start(&format!("responder = \"{responder}\""));
        socket(V4).ask_all(100);
        load.end_without_loss(200);

        assert_eq!(link_id(&rig), old.link, "the link is the old one, with another program");
        let root = rig.bpf_dir();
        assert!(!root.join("v0").exists());
        let names = tree(&root.join(format!("v{}", map::ABI_VERSION)));
        assert_eq!(names.len(), map::NAMES.len(), "{names:?}");
        let program = if hook.starts_with("xdp") { Program::Xdp } else { Program::Tc };
        assert!(rig.count(program, Reason::Answered) >= 100);
        assert_eq!(tcx_programs().len(), usize::from(hook == "tcx"));
        assert_eq!(our_filters(), usize::from(hook == "clsact"));
    }
}

/// A daemon that cannot fill its maps leaves the programs of the old layout attached.
#[test]
fn a_layout_that_cannot_be_filled_leaves_the_old_one_in_place() {
    for (responder, hook) in all_kinds() {
        let mut rig = Rig::new();
        let _peers_program = prepare_for_xdp();
        let old = OldLayout::leave_behind(&rig, hook);
        let before = tree(&rig.bpffs());
        let broken = rig.machine.directory().join("broken.o");
        std::fs::write(&broken, b"no object").unwrap();
        rig.configure(&format!("responder = \"{responder}\""));
        let mut command = program(ibarr());
        command.env("IBARR_BPF_OBJECT", &broken);
        rig.spawn(command);
        assert_eq!(tree(&rig.bpffs()), before);
        assert_eq!(link_id(&rig), old.link);
        let status = rig.status_of("eth0");
        assert!(status["in-user-space"].as_str().unwrap().contains("BPF programs"), "{status}");
        let by_daemon = rig.answered_by_daemon();
        socket(V4).ask_all(100);
        assert_eq!(rig.answered_by_daemon(), by_daemon, "the old programs answer");
    }
}

struct OldLayout {
    /// The id of the link, if there is one.
    link: Option<u32>,
}

impl OldLayout {
    /// Loads the programs with other maps, and leaves the parts that outlive a daemon: maps, and programs at
    /// `hook`.
    fn leave_behind(rig: &Rig, hook: &str) -> Self {
        let root = rig.bpf_dir();
        let (layout, links) = (root.join("v0"), root.join("links"));
        let mut for_root = DirBuilder::new();
        for_root.mode(0o700).recursive(true).create(&layout).unwrap();
        for_root.create(&links).unwrap();
        let mut loader = EbpfLoader::new();
        loader.map_max_entries(map::GID_CACHE, 77);
        for name in map::NAMES {
            loader.map_pin_path(name, layout.join(name));
        }
        let mut ebpf = loader.load(ibarr_ebpf::OBJECT).unwrap();
        let ifindex = netns::inside(NODE, || {
            if hook.starts_with("xdp") {
                let program: &mut Xdp = ebpf.program_mut("ip2gid_xdp").unwrap().try_into()?;
                program.load()?;
                let ifindex = if_nametoindex("eth0")?;
                let is_native = hook == "xdp-native";
                let mode = if is_native { XdpMode::Driver } else { XdpMode::Skb };
                let link = program.attach_to_if_index(ifindex, mode)?;
                let link = FdLink::try_from(program.take_link(link)?)?;
                link.pin(links.join(format!("{hook}-{ifindex}")))?;
                return Ok(ifindex);
            }
            let program = ebpf.program_mut("ip2gid_tc").unwrap();
            let program: &mut SchedClassifier = program.try_into()?;
            program.load()?;
            let ifindex = if_nametoindex("eth0")?;
            if hook == "tcx" {
                let link = program.attach("eth0", TcAttachType::Ingress)?;
                let link = FdLink::try_from(program.take_link(link)?)?;
                link.pin(links.join(format!("tc-{ifindex}")))?;
            } else {
                qdisc_add_clsact("eth0")?;
                let (priority, handle) = (4791, 0x4791.into());
                let options = NlOptions { priority, handle, classid: None };
                let options = TcAttachOptions::Netlink(options);
                let link = program.attach_with_options("eth0", TcAttachType::Ingress, options)?;
                std::mem::forget(program.take_link(link)?);
                for mark in ["clsact", "qdisc"] {
                    std::fs::create_dir(links.join(format!("{mark}-{ifindex}")))?;
                }
            }
            Ok(ifindex)
        })
        .unwrap();

        let ifindex = IfIndex::new(ifindex).unwrap();
        let key = GidKey::new(V4.parse().unwrap(), ifindex);
        let entry = GidEntry::new(key, GID.parse().ok(), Some(ifindex), Origin::Static);
        let map = ebpf.map_mut(map::GID_CACHE).unwrap();
        let mut map: HashMap<_, [u8; 20], [u8; 56]> = map.try_into().unwrap();
        map.insert(bytes::<20>(&key), bytes::<56>(&entry), 0).unwrap();
        let mut hwaddr = [0; 20];
        hwaddr[..6].copy_from_slice(&hex(&rig::hwaddr(NODE, "eth0")));
        let interface = Interface { switches: Interface::ANSWER_IPV4, hwaddr };
        set(&mut ebpf, map::INTERFACES, ifindex.get(), bytes::<24>(&interface));
        let cfg = ResponderCfg { lease_end: u64::MAX, udp_port: PORT, ..ResponderCfg::default() };
        set(&mut ebpf, map::RESPONDER_CFG, 0, bytes::<16>(&cfg));
        Self { link: link_id(rig) }
    }
}

fn set<V: Pod>(ebpf: &mut Ebpf, name: &str, index: u32, value: V) {
    let mut map: Array<_, V> = ebpf.map_mut(name).unwrap().try_into().unwrap();
    map.set(index, value, 0).unwrap();
}

fn bytes<const N: usize>(value: &(impl IntoBytes + zerocopy::Immutable)) -> [u8; N] {
    value.as_bytes().try_into().unwrap()
}

/// Number of our filters on the node's eth0.
fn our_filters() -> usize {
    let filters = tool("tc", &format!("-netns {NODE} filter show dev eth0 ingress"));
    filters.matches("ip2gid_tc direct-action").count()
}
