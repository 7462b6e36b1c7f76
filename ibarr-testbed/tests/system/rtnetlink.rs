// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The local view and the routes of a real kernel, through the real transport. Long because each case
//! is a story of what `ip` changes and what the view then says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::Route;
use ibarr_proto::ip2gid::server::Local;
use ibarr_proto::local_view::neighbours::{Selection, State};
use ibarr_proto::local_view::routing::{MAX_ROUTES, NoWayBack, Via, WayBack};
use ibarr_proto::local_view::{
    self, Dad, Event, HwAddr, Input, Interface, InterfaceFilter, LocalView, NotServed, Owned,
    Request, StaticGid, StaticGids, Subject,
};
use ibarr_testbed::start::program;
use ibarr_user::sys::clock;
use ibarr_user::transport::rtnetlink::{Answer, Config, NoRoute, Routes, Watch};
use ibarr_user::transport::{Counter, Counters};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, sendto, socket,
};
use nix::unistd::gettid;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::machine::Machine;
use crate::tun::{self, Tun};

/// A machine and the daemon's parts that follow it. They run only in [`Node::until`].
struct Node {
    machine: Machine,
    runtime: Runtime,
    config: local_view::Config,
    view: LocalView,
    watch: Watch,
    inputs: mpsc::Receiver<Input>,
    counters: Arc<Counters>,
    /// Whether the view gets each dump when it asks for it. Otherwise it gets one after each failure.
    rereads: bool,
    /// Dumps that the view has asked for and not got.
    held: BTreeSet<Subject>,
    /// Dumps that have failed, or events were lost.
    failed: BTreeSet<Subject>,
    /// The addresses according to the view's events.
    told: BTreeMap<(IpAddr, Option<IfIndex>), Owned>,
}

impl Node {
    /// A node with the static GID fe80::N for each address `10.1.0.N` and `fd00::N` of `served`.
    fn new(served: &[&str]) -> Self {
        Self::with(&[], served, Config::default())
    }

    fn with(interfaces: &[&str], served: &[&str], config: Config) -> Self {
        let machine = Machine::new();
        let static_gids =
            served.iter().map(|address| StaticGid { ip: ip(address), gid: gid(address) });
        let view = local_view::Config {
            interfaces: InterfaceFilter::new(interfaces).unwrap(),
            static_gids: StaticGids::new(static_gids).unwrap(),
            ..local_view::Config::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let counters = Arc::<Counters>::default();
        let started = {
            let _within = runtime.enter();
            Watch::start(config, &counters).unwrap()
        };
        let (watch, inputs) = started;
        let told = BTreeMap::new();
        let config = view.clone();
        let view = LocalView::new(view);
        let (held, failed) = (BTreeSet::new(), BTreeSet::new());
        let rereads = true;
        let mut node = Self {
            machine,
            runtime,
            config,
            view,
            watch,
            inputs,
            counters,
            rereads,
            held,
            failed,
            told,
        };
        node.until("a first dump", LocalView::is_synced);
        node
    }

    /// Runs until `reached` is true of the view, and checks the view's events.
    fn until(&mut self, what: &str, reached: impl Fn(&LocalView) -> bool) {
        if !self.reaches(PATIENCE, reached) {
            let interfaces: Vec<_> = self.view.interfaces().collect();
            panic!("never came: {what}; counters: {:?}; view: {interfaces:#?}", self.counters);
        }
    }

    fn reaches(&mut self, patience: Duration, reached: impl Fn(&LocalView) -> bool) -> bool {
        let Self { runtime, view, watch, inputs, rereads, held, failed, told, .. } = self;
        let run = async {
            loop {
                view.handle_timeout(clock::now());
                while let Some(request) = view.poll_transmit() {
                    match request {
                        Request::Dump(subject) if !*rereads && !failed.remove(&subject) => {
                            held.insert(subject);
                        }
                        Request::Links if !*rereads => drop(held.insert(Subject::Node)),
                        request => watch.ask(request),
                    }
                }
                while let Some(event) = view.poll_event() {
                    hear(told, event);
                }
                if inputs.is_empty() && reached(view) {
                    return;
                }
                let due = view.poll_timeout().unwrap().since(clock::now());
                if let Ok(input) = tokio::time::timeout(due, inputs.recv()).await {
                    let input = input.expect("the transport goes on");
                    if let Input::DumpFailed(subject) = input {
                        if held.remove(&subject) {
                            watch.ask(Request::Dump(subject));
                        } else {
                            failed.insert(subject);
                        }
                    }
                    view.handle_input(clock::now(), input);
                }
            }
        };
        let run = async { tokio::time::timeout(patience, run).await };
        let reached = runtime.block_on(run).is_ok();
        let told: Vec<_> = told.values().copied().collect();
        assert_eq!(told, view.owned().collect::<Vec<_>>(), "the events disagree with the view");
        reached
    }

    /// Runs until exactly these addresses are answered.
    fn answers(&mut self, expected: &[&str]) {
        let expected: Vec<_> = expected.iter().map(|address| (ip(address), gid(address))).collect();
        self.until(&format!("{expected:?}"), |view| answered(view) == expected);
    }

    fn goes_on_for(&mut self, time: Duration) {
        self.reaches(time, |_| false);
    }

    /// Compares the view with that of a fresh daemon until they agree, because the kernel's duplicate
    /// address detection goes on meanwhile.
    fn is_as_new(&mut self) {
        let deadline = clock::now() + PATIENCE;
        loop {
            let fresh = Self::start_another(&self.runtime, &self.config);
            if self.reaches(Duration::from_millis(500), |view| facts(view) == facts(&fresh)) {
                return;
            }
            assert!(
                clock::now() < deadline,
                "{:#?}\ndiffers from the view of a fresh start:\n{:#?}",
                facts(&self.view),
                facts(&fresh)
            );
        }
    }

    fn start_another(runtime: &Runtime, config: &local_view::Config) -> LocalView {
        let mut view = LocalView::new(config.clone());
        runtime.block_on(async {
            let (watch, mut inputs) = Watch::start(Config::default(), &Arc::default()).unwrap();
            for subject in [Subject::Node, Subject::Routes] {
                watch.ask(Request::Dump(subject));
            }
            while !view.is_synced() {
                let input = inputs.recv().await.unwrap();
                if let Input::DumpFailed(subject) = input {
                    watch.ask(Request::Dump(subject));
                }
                view.handle_input(clock::now(), input);
            }
        });
        view
    }

    fn interface(&self, name: &str) -> Interface {
        let mut interfaces = self.view.interfaces();
        interfaces.find(|interface| interface.name.to_string() == name).expect(name)
    }
}

fn hear(told: &mut BTreeMap<(IpAddr, Option<IfIndex>), Owned>, event: Event) {
    match event {
        Event::Added(owned) => assert_eq!(told.insert((owned.address, owned.scope), owned), None),
        Event::Changed(owned) => {
            let before = told.insert((owned.address, owned.scope), owned);
            assert!(before.is_some(), "changed, but never added: {owned:?}");
        }
        Event::Removed(owned) => {
            assert_eq!(told.remove(&(owned.address, owned.scope)), Some(owned));
        }
        Event::Served(_)
        | Event::NotServed(_)
        | Event::Route(_)
        | Event::NoRoute(..)
        | Event::Neighbour(_)
        | Event::NoNeighbour(..) => {}
    }
}

fn answered(view: &LocalView) -> Vec<(IpAddr, Gid)> {
    view.owned().filter_map(|owned| Some((owned.address, owned.gid?))).collect()
}

fn facts(view: &LocalView) -> (Vec<Owned>, Vec<Interface>) {
    (view.owned().collect(), view.interfaces().collect())
}

/// Long enough for the kernel: duplicate address detection takes up to two seconds.
const PATIENCE: Duration = Duration::from_secs(20);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The GID with the address's last 16 bits.
fn gid(address: &str) -> Gid {
    let last = match ip(address) {
        IpAddr::V4(v4) => u16::from(v4.octets()[3]),
        IpAddr::V6(v6) => v6.segments()[7],
    };
    format!("fe80::{last:x}").parse().unwrap()
}

/// Runs ip(8) with each line in this thread's namespaces.
fn run(lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let output = program("ip").args(line.split(' ')).output().expect("ip(8) is there");
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Like [`run`], but fast.
fn run_batch(machine: &Machine, lines: &str) {
    let file = machine.directory().join("batch");
    fs::write(&file, lines).unwrap();
    let status = program("ip").arg("-batch").arg(&file).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "ip -batch: {status}");
}

fn ifindex(name: &str) -> IfIndex {
    IfIndex::new(if_nametoindex(name).unwrap()).unwrap()
}

#[test]
fn address_is_answered_exactly_while_it_exists() {
    let mut node = Node::new(&["10.1.0.1", "10.1.0.2", "fd00::1"]);
    node.answers(&[]);
    run("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         addr add 10.1.0.1/24 dev v0");
    node.answers(&["10.1.0.1"]);
    // Added again with another prefix and with a peer: the address exists until the last is removed.
    run("addr add 10.1.0.1/32 dev v0
         addr add 10.1.0.1 peer 10.1.0.9 dev v0
         addr add 10.1.0.2/24 dev v0
         addr add fd00::1/64 dev v0 nodad");
    node.answers(&["10.1.0.1", "10.1.0.2", "fd00::1"]);
    run("addr del 10.1.0.1/24 dev v0
         addr del 10.1.0.1/32 dev v0
         addr del fd00::1/64 dev v0");
    node.until("one of three is left", |view| !view.is_ours(ip("fd00::1")));
    assert!(node.view.is_ours(ip("10.1.0.1")));
    run("addr del 10.1.0.1 peer 10.1.0.9 dev v0");
    node.until("none is left", |view| !view.is_ours(ip("10.1.0.1")));
    run("link set v0 down");
    node.answers(&[]);
    run("link set v0 up");
    node.is_as_new();
    run("link del v1");
    node.answers(&[]);
    node.is_as_new();
}

#[test]
fn renamed_interface_is_matched_against_the_filter_again() {
    let mut node = Node::with(&["serve*"], &[], Config::default());
    run("link add v0 type veth peer name v1");
    node.until("v0", |view| view.interfaces().count() == 3);
    assert_eq!(node.interface("v0").gid, Err(NotServed::NotSelected));
    assert_eq!(node.view.unmatched_patterns().count(), 1);
    run("link set v0 name serve0");
    node.until("the new name", |view| view.unmatched_patterns().count() == 0);
    assert_eq!(node.interface("serve0").gid, Err(NotServed::NotIpoib));
    run("link set serve0 name v2");
    node.until("the name is gone", |view| view.unmatched_patterns().count() == 1);
}

#[test]
fn interface_that_moves_to_another_namespace_takes_its_addresses() {
    let mut node = Node::new(&["10.1.0.1", "fd00::1"]);
    run("link add v0 type veth peer name v1
         link set v1 up
         link set v0 up
         addr add 10.1.0.1/24 dev v0
         addr add fd00::1/64 dev v0 nodad
         netns add away");
    node.answers(&["10.1.0.1", "fd00::1"]);
    run("link set v0 netns away");
    node.answers(&[]);
    run(&format!("-n away link set v0 netns {}", gettid()));
    node.until("it is back", |view| view.interfaces().count() == 3);
    run("link set v0 up
         addr add 10.1.0.1/24 dev v0");
    node.answers(&["10.1.0.1"]);
    node.is_as_new();
}

#[test]
fn reused_interface_index_has_none_of_the_old_addresses() {
    let mut node = Node::new(&["10.1.0.1", "10.1.0.2"]);
    run("link add v0 index 77 type veth peer name v1
         link set v1 up
         link set v0 up
         addr add 10.1.0.1/24 dev v0");
    node.answers(&["10.1.0.1"]);
    run("link del v0
         link add w0 index 77 type veth peer name w1
         link set w1 up
         link set w0 up
         addr add 10.1.0.2/24 dev w0");
    node.answers(&["10.1.0.2"]);
    assert_eq!(node.interface("w0").ifindex, IfIndex::new(77).unwrap());
    node.is_as_new();
}

#[test]
fn address_is_ours_only_after_duplicate_detection_succeeded() {
    let mut node = Node::new(&["fd00::1", "fd00::2"]);
    run("netns add peer
         link add v0 type veth peer name v1 netns peer
         -n peer link set v1 up
         link set v0 up
         -n peer addr add fd00::2/64 dev v1 nodad
         addr add fd00::1/64 dev v0
         addr add fd00::2/64 dev v0");
    let dad = |view: &LocalView, address: &str| {
        let addresses: Vec<_> =
            view.interfaces().flat_map(|interface| interface.addresses).collect();
        addresses.iter().find(|status| status.address == ip(address)).map(|status| status.dad)
    };
    node.until("tentative", |view| dad(view, "fd00::1") == Some(Dad::Tentative));
    assert!(!node.view.is_ours(ip("fd00::1")));
    node.until("duplicate", |view| dad(view, "fd00::2") == Some(Dad::Failed));
    node.answers(&["fd00::1"]);
    assert!(!node.view.is_ours(ip("fd00::2")));
}

#[test]
fn link_local_address_is_different_on_each_interface() {
    let mut node = Node::new(&["fe80::1"]);
    run("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         addr add fe80::1/64 dev v0 nodad
         addr add fe80::1/64 dev v1 nodad");
    node.answers(&["fe80::1", "fe80::1"]);
    let (v0, v1) = (ifindex("v0"), ifindex("v1"));
    run("addr del fe80::1/64 dev v0");
    node.answers(&["fe80::1"]);
    assert_eq!(node.view.gid_of(ip("fe80::1"), v0), None);
    assert_eq!(node.view.gid_of(ip("fe80::1"), v1), Some(gid("fe80::1")));
}

/// Nearest to IPoIB on a kernel without InfiniBand: an interface of its type, without a hardware address.
#[test]
fn infiniband_interface_without_hardware_address_serves_only_static_gids() {
    let mut node = Node::new(&["10.1.0.1"]);
    let tun = Tun::open("ib0", tun::INFINIBAND).unwrap();
    run("addr add 10.1.0.1/24 dev ib0
         addr add 10.1.0.2/24 dev ib0");
    node.until("ib0", |view| view.interfaces().any(|interface| interface.addresses.len() == 2));
    // The default filter selects it, so its state is the reason.
    assert_eq!(node.interface("ib0").gid, Err(NotServed::Down));
    run("link set ib0 up");
    node.answers(&["10.1.0.1"]);
    assert_eq!(node.interface("ib0").gid, Err(NotServed::NoGid));
    assert!(node.view.is_ours(ip("10.1.0.2")));
    drop(tun);
    node.answers(&[]);
    assert!(!node.view.is_ours(ip("10.1.0.2")));
}

#[test]
fn neighbour_events_are_received_only_while_they_are_wanted() {
    let is_heard = || {
        let sockets = fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
        let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Sockets in `RTMGRP_NEIGH`.
        fields.filter(|f| f.get(1) == Some(&"0") && f.get(3) == Some(&"00000004")).count() == 1
    };
    let mut node = Node::with(&[], &["10.1.0.1"], Config { receive_buffer: 1 });
    let tun = Tun::open("ib0", tun::INFINIBAND).unwrap();
    run("link set ib0 up
         link add v0 type veth peer name v1
         link set v0 up
         addr add 10.1.0.1/24 dev ib0");
    node.answers(&["10.1.0.1"]);
    node.until("ib0 is served", |view| view.served().next().is_some());
    assert!(!is_heard());
    let neighbours = Selection { on: Vec::new(), otherwise: true };
    let config = local_view::Config { neighbours, ..node.config.clone() };
    node.view.reconfigure(config);
    let dumps = |view: &LocalView| view.counters().get(local_view::Counter::NeighbourDumpsDone);
    node.until("the first dump", |view| dumps(view) == 1);
    assert!(is_heard());
    // A loss causes a dump at once.
    let mut batch = String::new();
    for n in 0..2000 {
        let (a, b) = (n / 250, n % 250);
        writeln!(batch, "neigh replace 10.9.{a}.{b} lladdr 02:00:00:00:00:09 dev v0").unwrap();
    }
    run_batch(&node.machine, &batch);
    node.until("another dump", |view| dumps(view) > 1);
    assert!(node.counters.get(Counter::RtnetlinkOverrun) > 0);
    drop(tun);
    node.until("no socket is in the group", |view| view.served().next().is_none() && !is_heard());
}

/// The smallest buffer that the kernel allows, and thousands of changes that are not read.
#[test]
fn lost_events_are_made_up_for_by_a_dump() {
    let mut node = Node::with(&[], &["10.1.0.1", "10.1.0.2"], Config { receive_buffer: 1 });
    run("link add v0 type veth peer name v1
         link set v1 up
         link set v0 up
         addr add 10.1.0.1/24 dev v0");
    node.answers(&["10.1.0.1"]);
    node.rereads = false;
    for round in 0..3 {
        let before = node.counters.get(Counter::RtnetlinkOverrun);
        // The first change has room in the buffer, but its removal has not.
        let mut batch = String::from("addr add 10.99.0.1/32 dev v0\n");
        for n in 0..2000 {
            let (a, b) = (n / 250, n % 250);
            writeln!(batch, "addr add 10.{}.{a}.{b}/32 dev v0", 10 + round).unwrap();
            if n % 3 == 0 {
                writeln!(batch, "addr del 10.{}.{a}.{b}/32 dev v0", 10 + round).unwrap();
            }
        }
        batch.push_str("addr del 10.99.0.1/32 dev v0\n");
        let (old, new) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        writeln!(batch, "addr del 10.1.0.{old}/24 dev v0").unwrap();
        writeln!(batch, "addr add 10.1.0.{new}/24 dev v0").unwrap();
        run_batch(&node.machine, &batch);
        node.answers(&[&format!("10.1.0.{new}")]);
        assert!(node.counters.get(Counter::RtnetlinkOverrun) > before, "nothing was lost");
        node.is_as_new();
    }
}

/// The buffer overflows again and again while the events are read.
#[test]
fn view_is_right_after_changes_during_reads() {
    let mut node = Node::with(&["*"], &["10.1.0.1"], Config { receive_buffer: 4096 });
    node.rereads = false;
    let mut batch = String::new();
    for n in 0..1500 {
        let (a, b) = (n / 250, n % 250);
        let add = |batch: &mut String, line: &str| writeln!(batch, "{line}").unwrap();
        if n % 50 == 0 {
            add(&mut batch, &format!("link add v{n} type veth peer name w{n}"));
            add(&mut batch, &format!("link set v{n} up"));
        }
        add(&mut batch, &format!("addr add 10.9.{a}.{b}/32 dev v{}", n - n % 50));
        if n % 100 == 99 {
            add(&mut batch, &format!("link del v{}", n - n % 50));
        }
    }
    writeln!(batch, "addr add 10.1.0.1/24 dev v0").unwrap();
    let file = node.machine.directory().join("changes");
    fs::write(&file, batch).unwrap();
    let mut changes = program("ip").arg("-batch").arg(file).spawn().unwrap();
    node.answers(&["10.1.0.1"]);
    assert!(changes.wait().unwrap().success());
    node.is_as_new();
    assert!(node.counters.get(Counter::RtnetlinkEvent) > 0);
}

/// The kernel sends a dump in pieces, the next one when we read. While the engine reads nothing, the
/// transport does not read, so links certainly change between two pieces.
#[test]
fn dump_is_repeated_if_links_change_during_it() {
    let mut node = Node::new(&[]);
    let mut pairs = String::new();
    for n in 0..300 {
        writeln!(pairs, "link add v{n} type veth peer name w{n}").unwrap();
    }
    run_batch(&node.machine, &pairs);
    node.until("600 links", |view| view.interfaces().count() == 601);
    // With each event that is read, the kernel continues the dump behind it.
    node.goes_on_for(Duration::from_secs(1));
    node.rereads = false;
    let interrupted = node.counters.get(Counter::RtnetlinkDumpInterrupted);
    let started = node.counters.get(Counter::RtnetlinkDump);
    node.watch.ask(Request::Dump(Subject::Node));
    let blocked = async {
        while node.inputs.len() < node.inputs.max_capacity() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    node.runtime.block_on(async { tokio::time::timeout(PATIENCE, blocked).await }).unwrap();
    run("link del v7
         link add late type veth peer name later");
    node.until("the end of it", |view| {
        view.interfaces().any(|interface| interface.name.to_string() == "later")
            && !view.interfaces().any(|interface| interface.name.to_string() == "v7")
    });
    let counters = Arc::clone(&node.counters);
    node.until("a whole dump", |_| counters.get(Counter::RtnetlinkDump) > started);
    assert!(node.counters.get(Counter::RtnetlinkDumpInterrupted) > interrupted);
    node.is_as_new();
}

#[test]
fn message_of_another_process_is_not_taken_for_the_kernels() {
    let mut node = Node::new(&["10.1.0.1"]);
    run("link add v0 type veth peer name v1
         link set v0 up
         addr add 10.1.0.1/24 dev v0");
    node.answers(&["10.1.0.1"]);
    // A well-formed RTM_DELLINK of v0.
    let mut forged = Vec::new();
    forged.extend(32_u32.to_ne_bytes());
    forged.extend(17_u16.to_ne_bytes());
    forged.extend([0; 10]);
    forged.extend([0, 0, 1, 0]);
    forged.extend(ifindex("v0").get().to_ne_bytes());
    forged.extend([0; 8]);
    let liar = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )
    .unwrap();
    let to = NetlinkAddr::new(listening_portid(), 0);
    sendto(liar.as_raw_fd(), &forged, &to, MsgFlags::empty()).unwrap();
    let counters = Arc::clone(&node.counters);
    run("link set v1 up");
    node.until("the forged message was counted", |_| counters.get(Counter::RtnetlinkForeign) == 1);
    node.is_as_new();
    node.answers(&["10.1.0.1"]);
}

/// The port id of the socket in this namespace that is in the groups of links and addresses.
fn listening_portid() -> u32 {
    let sockets = fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
    let portids: Vec<u32> = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(1) == Some(&"0") && fields.get(3) == Some(&"00000111"))
        .map(|fields| fields[2].parse().unwrap())
        .collect();
    let [portid] = portids.as_slice() else { panic!("{sockets}") };
    *portid
}

#[test]
fn route_lookup_gives_the_next_hop_or_the_reason_for_none() {
    let mut node = Node::new(&[]);
    run("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         link set lo up
         addr add 10.1.0.1/24 dev v0
         addr add fd00::1/64 dev v0 nodad
         route add 10.3.0.0/16 via 10.1.0.254
         route add 10.4.0.0/16 via inet6 fe80::254 dev v0
         route add unreachable 10.5.0.0/16
         route add blackhole 10.6.0.0/16
         route add 10.8.0.0/16 nexthop via 10.1.0.8 nexthop via 10.1.0.9
         -6 route add fd00:3::/64 via fd00::254
         -6 route add prohibit fd00:6::/64
         rule add ipproto udp blackhole
         rule add uidrange 1-4294967294 blackhole
         -6 rule add ipproto udp blackhole");
    node.until("v0 is up", |view| view.is_ours(ip("fd00::1")));
    let v0 = ifindex("v0");
    let way = |next_hop| Ok(Route { ifindex: v0, next_hop: ip(next_hop) });
    let cases = [
        ("10.1.0.9", None, way("10.1.0.9")),
        ("10.3.0.1", None, way("10.1.0.254")),
        ("10.3.0.1", Some(v0), way("10.1.0.254")),
        ("10.4.0.1", None, way("fe80::254")),
        ("10.1.0.1", None, Err(NoRoute::Local)),
        ("10.1.0.255", None, Err(NoRoute::NotUnicast)),
        ("10.5.0.1", None, Err(NoRoute::Unreachable)),
        ("10.6.0.1", None, Err(NoRoute::Forbidden)),
        ("192.0.2.1", None, Err(NoRoute::Unreachable)),
        // Linux then assumes that it is on the link.
        ("192.0.2.1", Some(v0), Err(NoRoute::Unreachable)),
        ("fd00::9", None, way("fd00::9")),
        ("fd00:3::1", None, way("fd00::254")),
        ("fd00:6::1", None, Err(NoRoute::Forbidden)),
        ("2001:db8::1", None, Err(NoRoute::Unreachable)),
        ("fe80::9", Some(v0), way("fe80::9")),
    ];
    let (_watch, mut answers, counters) = node.runtime.block_on(async {
        let counters = Arc::<Counters>::default();
        let (routes, answers) = Routes::start(Arc::clone(&counters)).unwrap();
        // Ask all at once, each many times.
        for _ in 0..100 {
            for (target, egress, _) in cases {
                routes.route(Question::new(ip(target), egress).unwrap().into());
            }
        }
        (routes, answers, counters)
    });
    for _ in 0..100 {
        for (target, egress, expected) in cases {
            let answer = async { tokio::time::timeout(PATIENCE, answers.recv()).await };
            let Answer::Route(answer) = node.runtime.block_on(answer).unwrap().unwrap() else {
                panic!("no neighbour was asked for")
            };
            let asked = Question::new(ip(target), egress).unwrap().into();
            assert_eq!((answer.candidate, answer.route), (asked, expected), "{asked}");
        }
    }
    let (found, not_found) =
        (counters.get(Counter::RouteFound), counters.get(Counter::RouteNotFound));
    assert_eq!((found, not_found), (700, 800));
}

#[test]
fn kernel_tells_one_neighbour_by_its_address() {
    let node = Node::new(&[]);
    run("link add v0 type veth peer name w0
         link set w0 up
         link set v0 up
         addr add 10.1.0.1/24 dev v0
         addr add fd00::1/64 dev v0 nodad
         neigh add 10.1.0.2 dev v0 lladdr 02:00:00:00:00:02 nud permanent
         neigh add fd00::2 dev v0 lladdr 02:00:00:00:00:03 nud stale");
    let ifindex = IfIndex::new(if_nametoindex("v0").unwrap()).unwrap();
    let hwaddr = |last| HwAddr::new(&[2, 0, 0, 0, 0, last]);
    let cases = [
        ("10.1.0.2", Some((State::Permanent, hwaddr(2)))),
        ("fd00::2", Some((State::Stale, hwaddr(3)))),
        ("10.1.0.9", None),
    ];
    node.runtime.block_on(async {
        let (routes, mut answers) = Routes::start(Arc::default()).unwrap();
        for (target, expected) in cases {
            let next_hop = ip(target);
            let question = Question::new(next_hop, None).unwrap();
            assert!(routes.neighbour(question, Route { ifindex, next_hop }));
            let answer = tokio::time::timeout(PATIENCE, answers.recv()).await.unwrap().unwrap();
            let Answer::Neighbour { question: of, entry } = answer else { panic!("{answer:?}") };
            assert_eq!((of, entry.map(|it| it.address)), (question, expected.map(|_| next_hop)));
            assert_eq!(entry.map(|it| (it.state, Some(it.hwaddr))), expected, "{target}");
            // Ethernet has no GIDs.
            assert_eq!(entry.and_then(|it| it.gid()), None);
        }
    });
}

/// Which IPv4 sources v0 may answer.
fn way_back(view: &LocalView) -> Option<WayBack> {
    view.served().find(|served| served.name.as_bytes() == b"v0").map(|served| served.ipv4)
}

/// Whether a route by v0 covers `prefix`, such as `10.1.0.0/24`.
fn leads_to(view: &LocalView, prefix: &str) -> bool {
    let v0 = view.served().find(|served| served.name.as_bytes() == b"v0").map(|s| s.ifindex);
    let mut routes = view.routes_back();
    routes.any(|route| {
        let is_it = Some(route.ifindex) == v0 && route.prefix.to_string() == prefix;
        is_it && route.via != Via::Elsewhere
    })
}

#[test]
fn routes_decide_which_sources_an_interface_answers() {
    let mut node = Node::with(&["v0"], &[], Config::default());
    run("link add v0 type veth peer name w0
         link add v1 type veth peer name w1
         link set w0 up
         link set w1 up
         link set v0 up
         link set v1 up
         addr add 10.1.0.1/24 dev v0
         addr add 10.9.0.1/24 dev v1");
    node.until("the own subnet", |view| leads_to(view, "10.1.0.0/24"));
    assert_eq!(way_back(&node.view), Some(WayBack::Routed));
    run("route add 10.2.0.0/16 via 10.1.0.254
         route add default via 10.9.0.254");
    node.until("a gateway", |view| leads_to(view, "10.2.0.0/16"));
    assert_eq!(way_back(&node.view), Some(WayBack::Routed));
    // Another route with a lower metric, and another one for a part of it.
    run("route add 10.2.0.0/16 via 10.9.0.254 metric 1
         route replace 10.2.0.0/16 via 10.1.0.254 metric 2
         route del 10.2.0.0/16 via 10.1.0.254 metric 0");
    node.until("the lower metric", |view| !leads_to(view, "10.2.0.0/16"));
    run("route del 10.2.0.0/16 via 10.9.0.254
         route add 10.2.3.0/24 via 10.9.0.254");
    node.until("what is left", |view| {
        leads_to(view, "10.2.0.0/16")
            && view.routes_back().any(|route| {
                route.prefix.to_string() == "10.2.3.0/24" && route.via == Via::Elsewhere
            })
    });
    // The kernel removes IPv4 routes with their interface, without an event.
    run("link set v1 down");
    node.until("the routes of the other interface are removed", |view| {
        !view.routes_back().any(|route| route.prefix.to_string() == "10.2.3.0/24")
    });
    run("route add default via 10.1.0.254");
    node.until("the default route", |view| way_back(view) == Some(WayBack::All));
    run("rule add pref 77 from 10.1.0.1 lookup 77");
    let rule = Some(WayBack::None(NoWayBack::Rule(77)));
    node.until("a policy rule", |view| way_back(view) == rule);
    run("rule del pref 77
         rule add pref 78 fwmark 7 lookup 77");
    node.until("a rule that no reply matches", |view| way_back(view) == Some(WayBack::All));
}

#[test]
fn change_of_any_table_rule_or_nexthop_is_noticed() {
    let mut node = Node::with(&["v0"], &[], Config::default());
    // Without link-local addresses nothing changes by itself.
    run("link add v0 type veth peer name w0
         link set v0 addrgenmode none
         link set w0 addrgenmode none
         link set w0 up
         link set v0 up
         addr add 10.1.0.1/24 dev v0
         addr add fd00:1::1/64 dev v0 nodad
         nexthop add id 7 via 10.1.0.254 dev v0
         route add 10.3.0.0/16 nhid 7 table 300");
    node.until("the own subnet", |view| leads_to(view, "10.1.0.0/24"));
    fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").unwrap();
    for change in [
        "route add 10.2.0.0/16 via 10.1.0.254 table 300",
        "route replace 10.2.0.0/16 via 10.1.0.253 table 300",
        "route del 10.2.0.0/16 table 300",
        "-6 route add fd00:2::/64 via fd00:1::9 table 300",
        "rule add ipproto udp dport 4791 lookup 300",
        "-6 rule add uidrange 1-2 lookup 300",
        "nexthop replace id 7 via 10.1.0.253 dev v0",
        "nexthop del id 7",
    ] {
        node.goes_on_for(Duration::from_millis(50));
        run(change);
        let change_comes = async {
            while node.inputs.recv().await.expect("the watch goes on") != Input::RoutesChanged {}
        };
        let heard =
            node.runtime.block_on(async { tokio::time::timeout(PATIENCE, change_comes).await });
        assert!(heard.is_ok(), "{change}");
    }
}

#[test]
fn machine_with_too_many_routes_is_left_alone() {
    let mut node = Node::with(&["v0"], &[], Config::default());
    run("link add v0 type veth peer name w0
         link set w0 up
         link set v0 up
         addr add 10.1.0.1/24 dev v0
         route add default via 10.1.0.254");
    node.until("the default route", |view| way_back(view) == Some(WayBack::All));
    // More than the daemon reads.
    let count = 5 * MAX_ROUTES;
    let routes: String = (0..count).fold(String::new(), |mut text, n| {
        writeln!(text, "route add 11.{}.{}.0/24 via 10.1.0.254", n / 256, n % 256).unwrap();
        text
    });
    run_batch(&node.machine, &routes);
    let too_many = Some(WayBack::None(NoWayBack::TooMany));
    node.until("too many routes", |view| way_back(view) == too_many);
    // Addresses are followed as before, but changes of routes are not heard.
    node.goes_on_for(Duration::from_millis(100));
    let heard = node.counters.get(Counter::RtnetlinkEvent);
    let few: String =
        routes.lines().take(100).map(|line| line.replace(" add ", " del ") + "\n").collect();
    run_batch(&node.machine, &few);
    run("addr add 10.1.0.2/24 dev v0");
    node.until("an address", |view| view.is_ours(ip("10.1.0.2")));
    assert_eq!(node.counters.get(Counter::RtnetlinkEvent), heard + 1);
    assert_eq!(way_back(&node.view), too_many);
}
