// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A daemon and peers in two namespaces, with the interfaces between them.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::maps::{Map, MapData, MapInfo, PerCpuArray, loaded_maps};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{
    ProgramError, ProgramInfo, SchedClassifier, TcAttachType, Xdp, XdpMode, loaded_programs,
};
use aya::{Ebpf, EbpfLoader};
use ibarr_common::map::{self, Program, Reason};
use ibarr_testbed::lab::netns;
use ibarr_testbed::start::program;
use nix::mount::{MsFlags, mount};
use nix::net::if_::if_nametoindex;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use crate::machine::{Machine, ibarr, said};

/// The namespace of the daemon.
pub(crate) const NODE: &str = "node";
/// The namespace of the peers.
pub(crate) const PEER: &str = "peer";
pub(crate) const V4: &str = "10.7.0.1";
pub(crate) const V6: &str = "fd00:7::1";
pub(crate) const GID: &str = "fe80::2:c903:0:701";

/// Longer than anything here takes; a hang fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node with a daemon, and a peer at the other end of its wire.
pub(crate) struct Rig {
    pub(crate) machine: Machine,
    bpf_dir: PathBuf,
    daemon: Option<Child>,
}

impl Rig {
    /// A rig without a daemon. Node and peer each have eth0.
    pub(crate) fn new() -> Self {
        let machine = Machine::new();
        let bpffs = machine.directory().join("bpffs");
        let rig = Self { machine, bpf_dir: bpffs.join("ibarr"), daemon: None };
        fs::create_dir_all(rig.run_dir()).unwrap();
        fs::create_dir(&bpffs).unwrap();
        mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
        for namespace in [NODE, PEER] {
            ip(&format!("netns add {namespace}"));
            let settings = ["all", "default"].map(|of| format!("ipv6/conf/{of}/accept_dad"));
            let settings = settings.each_ref().map(|name| (name.as_str(), "0"));
            netns::set(namespace, &settings).unwrap();
            ip(&format!("-netns {namespace} link set lo up"));
        }
        plug("eth0");
        rig
    }

    /// Writes the configuration: `extra` and the keys of every rig.
    pub(crate) fn configure(&self, extra: &str) {
        let mut config = format!("{extra}\ninterfaces = [\"eth*\"]\n");
        for ip in [V4, V6, "10.7.0.9"] {
            config += "[[static-gid]]\n";
            config += &[("ip", ip), ("gid", GID)]
                .map(|(key, value)| format!("{key} = \"{value}\"\n"))
                .concat();
        }
        fs::write(self.machine.directory().join("ibarr.toml"), config).unwrap();
    }

    /// Starts a daemon with `extra` configuration, and waits until it is ready.
    pub(crate) fn start(&mut self, extra: &str) {
        self.configure(extra);
        self.restart();
    }

    /// Starts a daemon with the current configuration.
    pub(crate) fn restart(&mut self) {
        self.spawn(program(ibarr()));
    }

    /// Starts a daemon by another command, which gets the daemon's arguments.
    pub(crate) fn spawn(&mut self, command: Command) {
        self.launch(command).wait(self);
        self.eventually("programs are attached, or known not to be", || self.knows_itself());
    }

    /// Whether the daemon knows of each of its parts whether it works. A busy machine loads programs for longer than
    /// a daemon waits for them before it is ready.
    fn knows_itself(&self) -> bool {
        let run_dir = self.run_dir();
        let output = ibarr_on_node(&format!("status --json --run-dir {}", run_dir.display()));
        let said = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        said["status"].is_object() && said["status"].get("unknown").is_none()
    }

    /// Like [`spawn`](Self::spawn), without waiting until the daemon is ready.
    pub(crate) fn launch(&mut self, mut command: Command) -> Launched {
        assert!(self.daemon.is_none(), "a daemon runs already");
        let directory = self.machine.directory();
        let socket = directory.join("notify.sock");
        let _ = fs::remove_file(&socket);
        let notify = UnixDatagram::bind(&socket).unwrap();
        notify.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let log = fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        command.arg("run").arg("--config").arg(directory.join("ibarr.toml"));
        command.arg("--run-dir").arg(self.run_dir()).arg("--bpf-dir").arg(self.bpf_dir());
        command.env("NOTIFY_SOCKET", &socket).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.daemon = Some(netns::spawn(NODE, &mut command).unwrap());
        Launched { notify }
    }

    pub(crate) fn end(&mut self, signal: Signal) {
        self.signal(signal);
        self.daemon.take().unwrap().wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon").id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().try_into().unwrap());
        kill(pid, signal).unwrap();
        if signal == Signal::SIGSTOP {
            let stopped = WaitStatus::Stopped(pid, signal);
            assert_eq!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)), Ok(stopped));
        }
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.machine.directory().join("run")
    }

    pub(crate) fn bpffs(&self) -> PathBuf {
        self.machine.directory().join("bpffs")
    }

    pub(crate) fn bpf_dir(&self) -> &Path {
        &self.bpf_dir
    }

    /// Moves the pins to another directory than [`bpffs`](Self::bpffs).
    pub(crate) fn move_bpf_dir(&mut self, to: PathBuf) {
        self.bpf_dir = to;
    }

    /// The pins and files of attached programs.
    pub(crate) fn hooks(&self) -> Vec<PathBuf> {
        let mut hooks = tree(&self.bpf_dir().join("links"));
        // This file stays for the next program on the interface, or until `ibarr detach`.
        hooks.retain(|path| !path.to_str().unwrap().contains("/qdisc-"));
        hooks
    }

    fn log_file(&self) -> PathBuf {
        self.machine.directory().join("log")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// The JSON answer of a command.
    pub(crate) fn asked(&self, words: &str) -> Value {
        let output =
            ibarr_on_node(&format!("{words} --json --run-dir {}", self.run_dir().display()));
        assert!(output.status.success(), "{words}: {}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn detach(&self) -> Output {
        ibarr_on_node(&format!("detach --bpf-dir {}", self.bpf_dir().display()))
    }

    /// The entry of an interface in `ibarr status`.
    pub(crate) fn status_of(&self, interface: &str) -> Value {
        let status = self.asked("status");
        let interfaces = status["status"]["interfaces"].as_array().unwrap();
        let found = interfaces.iter().find(|found| found["name"] == interface);
        found.unwrap_or_else(|| panic!("no {interface}: {status}")).clone()
    }

    /// A counter of a program, read from its map.
    pub(crate) fn count(&self, program: Program, reason: Reason) -> u64 {
        let path = self.bpf_dir().join(format!("v{}", map::ABI_VERSION)).join(map::COUNTERS);
        let counters = MapData::from_pin(&path).unwrap();
        let counters: PerCpuArray<_, [u64; Reason::ALL.len()]> =
            Map::PerCpuArray(counters).try_into().unwrap();
        let per_cpu = counters.get(&program.index(), 0).unwrap();
        per_cpu.iter().map(|counters| counters[reason as usize]).sum()
    }

    /// Number of answers of the daemon's own server.
    pub(crate) fn answered_by_daemon(&self) -> u64 {
        self.asked("counters")["counters"]["ip2gid.server.answered"].as_u64().unwrap()
    }

    /// Waits until the daemon has counted this many answers. It counts a reply after it has sent it, so the
    /// peer may have it before.
    pub(crate) fn until_answered_by_daemon(&self, number: u64) {
        self.eventually("the daemon has answered", || self.answered_by_daemon() == number);
    }

    pub(crate) fn answered_in_kernel(&self) -> u64 {
        self.count(Program::Tc, Reason::Answered)
    }

    /// Whether the kernel, and not the daemon, answers a query of the peer.
    pub(crate) fn asks_the_kernel(&self) -> bool {
        let before = self.answered_in_kernel();
        socket(V4).ask(Duration::from_secs(1)) && self.answered_in_kernel() > before
    }

    /// The ids of the pinned maps.
    pub(crate) fn map_ids(&self) -> Vec<u32> {
        let id = |name| {
            MapInfo::from_pin(self.bpf_dir().join(format!("v{}", map::ABI_VERSION)).join(name))
                .unwrap()
                .id()
        };
        map::NAMES.map(id).to_vec()
    }

    /// Waits until neighbour discovery and similar traffic are over.
    pub(crate) fn quiet(&self) {
        let mut last = String::new();
        self.eventually("no packet for 300 ms", || {
            std::thread::sleep(Duration::from_millis(300));
            let links = tool("ip", &format!("-netns {NODE} -json -stats link show dev eth0"));
            let links: Value = serde_json::from_str(&links).unwrap();
            let now = links[0]["stats64"]["rx"]["packets"].to_string();
            std::mem::replace(&mut last, now.clone()) == now
        });
    }

    /// Waits until `so` returns true.
    pub(crate) fn eventually(&self, what: &str, mut so: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so() {
            assert!(
                Instant::now() < deadline,
                "timed out waiting for: {what}; the log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A daemon that is not ready yet.
pub(crate) struct Launched {
    notify: UnixDatagram,
}

impl Launched {
    pub(crate) fn wait(self, rig: &mut Rig) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready() {
            let ended = rig.daemon.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{ended:?}: {}", rig.log());
        }
    }

    /// Whether it says that it is ready, now or within a moment.
    pub(crate) fn is_ready(&self) -> bool {
        let mut message = [0; 256];
        match self.notify.recv(&mut message) {
            Ok(len) => message[..len].split(|&byte| byte == b'\n').any(|line| line == b"READY=1"),
            Err(error) if is_over(&error) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        // The mount ends with the thread, and with it all pins.
    }
}

/// Runs `ip` with words.
pub(crate) fn ip(words: &str) {
    tool("ip", words);
}

/// Runs a tool with words, and returns its output.
pub(crate) fn tool(name: &str, words: &str) -> String {
    let output = program(name).args(words.split_whitespace()).output();
    let output =
        output.unwrap_or_else(|error| panic!("{name}: {error}; cargo xtask test fetches it"));
    assert!(output.status.success(), "{name} {words}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `ibarr` on the node.
pub(crate) fn ibarr_on_node(words: &str) -> Output {
    let mut command = program(ibarr());
    command.args(words.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = netns::spawn(NODE, &mut command).unwrap();
    child.wait_with_output().unwrap()
}

/// Programs at tcx ingress of the node's eth0, by name.
pub(crate) fn tcx_programs() -> Vec<String> {
    let name = |program: &ProgramInfo| program.name_as_str().unwrap_or("?").to_owned();
    let programs = netns::inside(NODE, || Ok(query_tcx("eth0")?));
    programs.unwrap_or_default().iter().map(name).collect()
}

/// Whether this kernel has tcx (Linux 6.6).
pub(crate) fn has_tcx() -> bool {
    query_tcx("lo").is_ok()
}

fn query_tcx(interface: &str) -> Result<Vec<ProgramInfo>, ProgramError> {
    Ok(SchedClassifier::query_tcx(interface, TcAttachType::Ingress)?.1)
}

/// The values of `responder` for tc, and the hook that each gives on this kernel.
pub(crate) fn kinds() -> [(&'static str, &'static str); 2] {
    let auto = if has_tcx() { "tcx" } else { "clsact" };
    [("tc", auto), ("clsact", "clsact")]
}

/// The [`kinds`] and XDP, for a wire that [`prepare_for_xdp`] has prepared.
pub(crate) fn all_kinds() -> [(&'static str, &'static str); 4] {
    let [tc, clsact] = kinds();
    [tc, clsact, ("xdp", "xdp-native"), ("xdp-generic", "xdp-generic")]
}

/// Number of rounds: `usual`, or `IBARR_TEST_ROUNDS` for a slow machine.
pub(crate) fn rounds(usual: u32) -> u32 {
    let rounds = std::env::var("IBARR_TEST_ROUNDS").ok();
    rounds.map_or(usual, |rounds| rounds.parse().expect("IBARR_TEST_ROUNDS is a number"))
}

/// Whether the kernel has neither these maps nor programs that use them any more.
pub(crate) fn none_left(maps: &[u32]) -> bool {
    let maps_left = loaded_maps().any(|map| map.is_ok_and(|map| maps.contains(&map.id())));
    let uses = |program: &ProgramInfo| {
        let used = program.map_ids().ok().flatten().unwrap_or_default();
        used.iter().any(|id| maps.contains(id))
    };
    !maps_left && !loaded_programs().any(|program| program.is_ok_and(|program| uses(&program)))
}

/// Makes the peer's neighbour entry of `address` permanent.
pub(crate) fn pin_neighbour(address: &str) {
    pin_neighbour_in(NODE, address);
}

/// Like [`pin_neighbour`], if eth0 is in another namespace.
pub(crate) fn pin_neighbour_in(namespace: &str, address: &str) {
    let hwaddr = hwaddr(namespace, "eth0");
    ip(&format!("-netns {PEER} neigh replace {address} lladdr {hwaddr} dev eth0 nud permanent"));
}

/// The hardware address of an interface, as `ip` writes it.
pub(crate) fn hwaddr(namespace: &str, interface: &str) -> String {
    let links = tool("ip", &format!("-netns {namespace} -json link show dev {interface}"));
    let links: Value = serde_json::from_str(&links).unwrap();
    links[0]["address"].as_str().unwrap().to_owned()
}

/// A socket of the peer.
pub(crate) fn socket(target: &str) -> Asker {
    let target: IpAddr = target.parse().unwrap();
    asker(if target.is_ipv4() { "0.0.0.0" } else { "::" }, target)
}

/// A socket of the peer with one of its addresses.
pub(crate) fn socket_from(source: &str, target: &str) -> Asker {
    asker(source, target.parse().unwrap())
}

fn asker(source: &str, target: IpAddr) -> Asker {
    let source = SocketAddr::new(source.parse().unwrap(), 0);
    let socket = netns::inside(PEER, || Ok(UdpSocket::bind(source)?)).unwrap();
    Asker { socket, server: (target, map_port()).into(), target, next: 1 }
}

/// Asks without a pause until the result is ended.
pub(crate) fn load(target: &str) -> Load {
    let mut asker = socket(target);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let queries = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&queries);
    let thread = std::thread::spawn(move || {
        let mut tally = Tally::default();
        while !stopped.load(Ordering::Relaxed) {
            tally.asked += 1;
            told.store(tally.asked, Ordering::Relaxed);
            tally.lost += u64::from(!asker.ask(Duration::from_secs(1)));
            // A few thousand queries a second, which leave a processor for the daemon.
            std::thread::sleep(Duration::from_micros(100));
        }
        tally
    });
    Load { stop, queries, thread }
}

/// Makes the wire: an interface of the node, with addresses, and the peer's eth0.
pub(crate) fn plug(interface: &str) {
    plug_with(interface, "");
}

/// Like [`plug`], with more words for the node's end.
pub(crate) fn plug_with(interface: &str, words: &str) {
    ip(&format!("link add {interface} {words} netns {NODE} type veth peer name eth0 netns {PEER}"));
    for (namespace, interface, host) in [(PEER, "eth0", 2), (NODE, interface, 1)] {
        ip(&format!("-netns {namespace} link set {interface} up"));
        ip(&format!("-netns {namespace} address add 10.7.0.{host}/24 dev {interface}"));
        let v6 = format!("fd00:7::{host}/64 dev {interface} nodad");
        ip(&format!("-netns {namespace} address add {v6}"));
    }
    for (namespace, interface) in [(PEER, "eth0"), (NODE, interface)] {
        // Both ends must be up, and the kernel takes a moment to notice.
        let deadline = Instant::now() + PATIENCE;
        let show = format!("-netns {namespace} link show dev {interface}");
        while !tool("ip", &show).contains("state UP") {
            assert!(Instant::now() < deadline, "{interface} is not up in {namespace}");
        }
    }
}

/// Prepares the wire for XDP: a program that passes everything is at the peer's end, until the result is
/// dropped.
pub(crate) fn prepare_for_xdp() -> Ebpf {
    prepare_for_generic_xdp();
    // A veth accepts frames of XDP only if it has a program, too.
    gives_way(PEER)
}

/// Prepares the wire for XDP in the stack, which needs less.
pub(crate) fn prepare_for_generic_xdp() {
    tool("ip", &format!("netns exec {NODE} ethtool -K eth0 rxvlan off"));
    // XDP cannot tell a missing checksum from a wrong one.
    tool("ip", &format!("netns exec {PEER} ethtool -K eth0 tx off"));
}

/// Attaches an XDP program that passes everything to eth0, until the result is dropped.
pub(crate) fn gives_way(namespace: &str) -> Ebpf {
    let mut ebpf = EbpfLoader::new().load(ibarr_ebpf::BENCH_OBJECT).unwrap();
    netns::inside(namespace, || {
        let program: &mut Xdp = ebpf.program_mut("empty_xdp").unwrap().try_into()?;
        program.load()?;
        program.attach_to_if_index(if_nametoindex("eth0")?, XdpMode::Driver)?;
        Ok(())
    })
    .unwrap();
    ebpf
}

/// The id of the link of our program, if it is attached by one.
pub(crate) fn link_id(rig: &Rig) -> Option<u32> {
    let hooks = rig.hooks();
    let pin = hooks.iter().find(|path| !path.is_dir())?;
    Some(FdLink::from(PinnedLink::from_pin(pin).unwrap()).info().unwrap().id())
}

/// A socket that asks for one address.
pub(crate) struct Asker {
    socket: UdpSocket,
    server: SocketAddr,
    target: IpAddr,
    next: u32,
}

impl Asker {
    /// Asks once, and returns whether there is an answer. A wrong answer fails the test.
    pub(crate) fn ask(&mut self, patience: Duration) -> bool {
        let id = self.next.to_be_bytes();
        self.next += 1;
        let address = match self.target {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let kind = if address.len() == 4 { 1 } else { 2 };
        let len = u8::try_from(4 + address.len()).unwrap();
        let query = [&[1, 0, 0, 0][..], &id, &[0, 1, 0, 0, 0, kind, 0, len], &address].concat();
        self.send(&query);
        let gid = GID.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let reply = [&[1, 0, 0, 0][..], &id, &[0, 1, 0, 0, 0, 0x10, 0, 20], &gid].concat();
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some((answer, from)) = self.receive(left) else { return false };
            // A late answer to an earlier query.
            let is_late = answer.get(4..8) < Some(&id[..]);
            if !is_late {
                assert_eq!((answer, from), (reply, self.server));
                return true;
            }
        }
    }

    /// The address from which it asks.
    pub(crate) fn source(&self) -> IpAddr {
        self.socket.connect(self.server).unwrap();
        self.socket.local_addr().unwrap().ip()
    }

    /// Asks the same at another port.
    pub(crate) fn at(self, port: u16) -> Self {
        Self { server: (self.target, port).into(), ..self }
    }

    pub(crate) fn send(&self, payload: &[u8]) {
        // Sending may fail before the peer's interface is up.
        let _ = self.socket.send_to(payload, self.server);
    }

    pub(crate) fn receive(&self, patience: Duration) -> Option<(Vec<u8>, SocketAddr)> {
        let mut buffer = [0; 128];
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Zero would mean no time-out.
            self.socket.set_read_timeout(Some(left.max(Duration::from_micros(1)))).unwrap();
            match self.socket.recv_from(&mut buffer) {
                Ok((len, from)) => return Some((buffer[..len].to_vec(), from)),
                Err(error) if is_over(&error) && left.is_zero() => return None,
                Err(error) if is_over(&error) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Asks so many times. Each query must be answered.
    pub(crate) fn ask_all(&mut self, times: u32) {
        for at in 0..times {
            assert!(self.ask(Duration::from_secs(1)), "no answer to query {at} of {times}");
        }
    }
}

/// A peer that asks without a pause.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    queries: Arc<AtomicU64>,
    thread: JoinHandle<Tally>,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) asked: u64,
    pub(crate) lost: u64,
}

impl Load {
    /// Number of queries so far.
    pub(crate) fn asked(&self) -> u64 {
        self.queries.load(Ordering::Relaxed)
    }

    pub(crate) fn end(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    /// Ends it after at least `least` queries, none of which may be lost.
    pub(crate) fn end_without_loss(self, least: u64) {
        while self.asked() < least && !self.thread.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let tally = self.end();
        assert_eq!(tally.lost, 0, "{tally:?}");
        assert!(tally.asked >= least, "{tally:?}");
    }
}

/// Whether the time-out is over, or a signal of another test has interrupted the wait.
fn is_over(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The paths of all files below a directory.
pub(crate) fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else { return found };
    for entry in entries {
        let path = entry.unwrap().path();
        found.extend(tree(&path));
        found.push(path);
    }
    found.sort();
    found
}

const fn map_port() -> u16 {
    ibarr_common::wire::ip2gid::PORT
}
