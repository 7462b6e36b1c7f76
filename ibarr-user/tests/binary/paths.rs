// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon between a kernel that asks for paths and a subnet administrator that knows them. The
//! test plays both: the kernel by an inherited socket, the SA by a socket in place of a umad
//! device, below a sysfs that the test has written. Both speak the kernel's formats.

use std::fs;
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Guid, Lid, PKey, PathRecord, ServiceId, SubnetPrefix};
use ibarr_common::wire::ls::{Answer, PathUse, Request, ResolvePath, Seq, messages};
use ibarr_common::wire::sa::PathQuestion;
use ibarr_common::wire::umad::{AgentId, HeaderWire, Received};

use ibarr_proto::paths::snapshot::{Encoder, KeptPath, Snapshot};
use ibarr_sim::sa::{AddressedPort, ClientId, Route, StandIn, Subnet};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv,
    send, socket,
};
use zerocopy::FromBytes;

use crate::kernel::{Kernel, command, pair};
use crate::support::{Daemon, TempDir, json};

const PREFIX: SubnetPrefix = SubnetPrefix::new(0xfec0_0000_0001_0001);

/// A port of this node, and its SA behind a socket in place of a umad device.
pub(crate) struct Port {
    dir: PathBuf,
    sa: Arc<Mutex<StandIn>>,
}

impl Port {
    pub(crate) fn new(dir: &TempDir) -> Self {
        let mut subnet = Subnet::new(PREFIX);
        for (guid, lid) in [(0x10_0009, 8), (0x10_0001, 1), (0x10_0003, 2)] {
            let port = AddressedPort { lid: lid_of(lid), pkeys: vec![PKey::DEFAULT] };
            subnet.ports.insert(Guid::new(guid), port);
        }
        subnet.routes.push(Route { prefix: None, lid: lid_of(4), hop_limit: 255 });
        let sa = Arc::new(Mutex::new(StandIn::new(subnet, lid_of(1), 1)));
        let this = Self { dir: dir.0.clone(), sa };
        for (file, text) in [
            ("class/infiniband/mlx5_0/node_guid", "0000:0000:0010:0009"),
            ("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand"),
            ("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
            ("class/infiniband/mlx5_0/ports/1/lid", "0x8"),
            ("class/infiniband/mlx5_0/ports/1/lid_mask_count", "0"),
            ("class/infiniband/mlx5_0/ports/1/sm_lid", "0x1"),
            ("class/infiniband/mlx5_0/ports/1/sm_sl", "0"),
            ("class/infiniband/mlx5_0/ports/1/gids/0", "fec0:0000:0001:0001:0000:0000:0010:0009"),
            ("class/infiniband/mlx5_0/ports/1/pkeys/0", "0xffff"),
            ("class/infiniband_mad/umad0/ibdev", "mlx5_0"),
            ("class/infiniband_mad/umad0/port", "1"),
        ] {
            this.write(file, text);
        }
        this.serve();
        this
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.join("sys").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// Serves every connection to the device, each by a thread that ends with it.
    fn serve(&self) {
        let path = self.dir.join("dev/infiniband/umad0");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop(fs::remove_file(&path));
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let sa = Arc::clone(&self.sa);
        thread::spawn(move || {
            while let Ok(fd) = accept(listener.as_raw_fd()) {
                answer_all(fd, &sa);
                nix::unistd::close(fd).unwrap();
            }
        });
    }

    /// While this lives, the SA is silent.
    pub(crate) fn hold(&self) -> MutexGuard<'_, StandIn> {
        self.sa.lock().unwrap()
    }

    /// From now on the SA answers nothing, or all.
    pub(crate) fn fall_silent(&self, silent: bool) {
        self.sa.lock().unwrap().behaviour_mut().silent = silent;
    }

    pub(crate) fn asked(&self) -> u64 {
        self.sa.lock().unwrap().counts().asked
    }
}

fn answer_all(fd: i32, sa: &Mutex<StandIn>) {
    let mut buffer = [0; 512];
    while let Ok(len @ 1..) = recv(fd, &mut buffer, MsgFlags::empty()) {
        let (header, mad) = HeaderWire::read_from_prefix(&buffer[..len]).unwrap();
        assert_eq!((header.qpn.get(), header.qkey.get()), (1, 0x8001_0000));
        assert_eq!((mad.len(), header.retries.get()), (256, 0));
        let mut sa = sa.lock().unwrap();
        sa.handle_input(Instant::BOOT, ClientId(0), lid_of(header.lid.get()), mad);
        while let Some(reply) = sa.poll_transmit() {
            // The kernel owns the upper half of the transaction id.
            let mut mad = *reply.mad.octets();
            mad[8..12].copy_from_slice(&[0xab; 4]);
            let received = Received::Mad {
                agent: AgentId(header.agent.get()),
                from: Some(reply.from),
                mad: &mad,
            };
            let bytes = received.emit(&mad);
            if send(fd, bytes.as_ref(), MsgFlags::MSG_NOSIGNAL).is_err() {
                // The daemon was killed.
                return;
            }
        }
    }
}

pub(crate) fn lid_of(lid: u16) -> Lid {
    Lid::new(lid).unwrap()
}

pub(crate) fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

/// The request of rdma_cm for a connection over IPv4.
pub(crate) fn request(dgid: &str, service: u64) -> ResolvePath {
    ResolvePath {
        device: "mlx5_0".parse().unwrap(),
        port: ibarr_common::ib::PortNum::new(1).unwrap(),
        path_use: PathUse::All,
        service_id: Some(ServiceId::new(0x0106_0000 + service)),
        dgid: gid(dgid),
        sgid: gid("fec0:0:1:1::10:9"),
        tclass: None,
        pkey: Some(PKey::DEFAULT),
        qos_class: None,
    }
}

pub(crate) const LOCAL: &str = "fec0:0:1:1::10:1";
pub(crate) const FOREIGN: &str = "fec0:0:22:2::beef:1";
pub(crate) const UNKNOWN: &str = "fec0:0:1:1::dead";

pub(crate) fn start(dir: &TempDir, config: &str) -> (Daemon, Kernel) {
    let (kernel, inherited): (Kernel, OwnedFd) = pair();
    let daemon = Daemon::spawn(command(dir, inherited), dir, config);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    daemon.until(|daemon| {
        let ports = json(&daemon.ask(&["ports", "--json"]));
        let port = ports["ports"].get(0)?;
        port["blocked"].is_null().then_some(())
    });
    (daemon, kernel)
}

/// Waits until the SA has said what it can do, which a daemon asks by itself. After that, each question is one
/// that a test causes.
pub(crate) fn await_capabilities(daemon: &Daemon) {
    daemon.until(|daemon| (counter(daemon, "sa.answered") > 0).then_some(()));
}

/// The answer: flags, DLID and SLID of each path; `None` if the kernel is told to ask the SA
/// itself.
pub(crate) fn ask(kernel: &Kernel, seq: u32, request: ResolvePath) -> Option<Vec<(u32, u16, u16)>> {
    kernel.send_bytes(Request::ResolvePath(request).emit(Seq(seq)).as_ref());
    let bytes = kernel.receive();
    let message = messages(&bytes).next().unwrap().unwrap();
    assert_eq!(message.seq(), Seq(seq));
    match Answer::parse(&message).unwrap() {
        Answer::Error => None,
        Answer::Paths(paths) => Some(
            paths
                .as_slice()
                .iter()
                .map(|path| (path.flags.bits(), lid(path.record, 40), lid(path.record, 42)))
                .collect(),
        ),
        Answer::Gid(gid) => panic!("{gid}"),
    }
}

fn lid(record: PathRecord, at: usize) -> u16 {
    let octets = record.octets();
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

#[test]
fn kernel_gets_paths_and_the_sa_gets_each_question_once() {
    let dir = TempDir::new("paths-all");
    let port = Port::new(&dir);
    let (daemon, kernel) = start(&dir, "");
    await_capabilities(&daemon);
    assert_eq!(ask(&kernel, 1, request(LOCAL, 1)), Some(vec![(0x2b, 1, 8)]));
    assert_eq!(
        ask(&kernel, 2, request(FOREIGN, 1)),
        Some(vec![(0x2b, 4, 8), (0x12, 1, 0xffff), (0x0a, 0x22, 8)])
    );
    assert_eq!(ask(&kernel, 3, request(UNKNOWN, 1)), Some(vec![]), "no path is final");
    let other = ResolvePath { device: "mlx5_01".parse().unwrap(), ..request(LOCAL, 1) };
    assert_eq!(ask(&kernel, 4, other), None);
    // The path does not depend on the service: a thousand connections to each destination.
    let asked = port.asked();
    for n in 0..1_000 {
        assert!(ask(&kernel, 5 + n, request(LOCAL, n.into())).is_some());
        assert!(ask(&kernel, 5 + n, request(FOREIGN, n.into())).is_some());
    }
    assert_eq!(port.asked(), asked);
    let counters = json(&daemon.ask(&["counters", "--json"]))["counters"].clone();
    assert_eq!(counters["local-service.path-requests"], 2_004);
    assert_eq!(counters["local-service.paths-answered"], 2_002);
    assert_eq!(counters["local-service.paths-none"], 1);
    assert_eq!(counters["local-service.paths-unknown"], 1);
    assert_eq!(counters["paths.found-cache"], 2_000);
    let status = json(&daemon.ask(&["status", "--json"]))["status"].clone();
    let told = serde_json::json!({
        "sa-queries": asked, "avoided": 2_000, "left-to-kernel": { "unknown-port": 1 }
    });
    assert_eq!(status["path-requests"], told);
}

#[test]
fn commands_show_ports_and_paths_and_ask_for_one() {
    let dir = TempDir::new("paths-shown");
    let _port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, "");
    let output = daemon.ask(&["path", LOCAL]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("fec0:0:1:1::10:9 to fec0:0:1:1::10:1 by mlx5_0/1 ("), "{text}");
    assert!(text.contains("LID 8 to 1, SL 0, P_Key 0xffff, MTU 2048, 10 Gbit/s"), "{text}");
    let path = json(&daemon.ask(&["path", FOREIGN, "--json"]))["path"].clone();
    assert_eq!((&path["status"], &path["source"]), (&"found".into(), &"sa".into()));
    assert_eq!(path["chosen"], "only");
    for (arguments, source) in
        [(&["path", LOCAL, "--json"][..], "cache"), (&["path", LOCAL, "--fresh", "--json"], "sa")]
    {
        assert_eq!(json(&daemon.ask(arguments))["path"]["source"], source);
    }
    assert_eq!((&path["hops"]["hop-limit"], &path["hops"]["dlid"]), (&255.into(), &4.into()));
    let path = daemon.ask(&["path", UNKNOWN]);
    assert_eq!(path.status.code(), Some(1));
    let output = daemon.ask(&["path", LOCAL, "--port", "mlx5_1/1"]);
    assert_eq!(output.status.code(), Some(66));
    assert!(text.contains(" by mlx5_0/1 (the only port)\n"), "{text}");

    let port = json(&daemon.ask(&["ports", "--json"]))["ports"][0].clone();
    assert_eq!((&port["port"], &port["lid"]), (&"mlx5_0/1".into(), &8.into()));
    assert_eq!(port["gids"][0], "fec0:0:1:1::10:9");
    let entries = json(&daemon.ask(&["cache", "--paths", "--json"]))["paths"].clone();
    assert_eq!(entries.as_array().unwrap().len(), 3);
    assert_eq!(json(&daemon.ask(&["status", "--json"]))["status"]["cached-paths"], 3);
    let done = json(&daemon.ask(&["cache", "--flush", "--json"]))["done"].clone();
    assert_eq!(done, "0 addresses and 3 paths forgotten");
}

#[test]
fn silent_sa_blocks_no_caller_and_a_busy_one_is_asked_again() {
    let dir = TempDir::new("paths-silent");
    let port = Port::new(&dir);
    let (mut daemon, kernel) = start(&dir, "");
    port.sa.lock().unwrap().behaviour_mut().busy = 1;
    assert_eq!(ask(&kernel, 1, request(LOCAL, 1)), Some(vec![(0x2b, 1, 8)]));
    port.sa.lock().unwrap().behaviour_mut().silent = true;
    assert_eq!(ask(&kernel, 2, request(LOCAL, 1)), Some(vec![(0x2b, 1, 8)]), "remembered");
    // A caller that waits when the daemon ends is told to ask the SA, before the time-out is
    // restored.
    kernel.send_bytes(Request::ResolvePath(request(UNKNOWN, 1)).emit(Seq(3)).as_ref());
    daemon.until(|daemon| {
        let counters = json(&daemon.ask(&["counters", "--json"]));
        (counters["counters"]["local-service.path-requests"] == 3).then_some(())
    });
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    kernel.expect("18000000 01100500 00000000", "08000200 d0070000");
    kernel.expect("10000000 00100001 03000000", "");
}

#[test]
fn known_silence_leaves_one_request_to_the_kernel_and_others_wait() {
    let dir = TempDir::new("paths-known-silent");
    let port = Port::new(&dir);
    let (mut daemon, kernel) = start(&dir, "[paths]\nfallback-interval = \"1h\"\n");
    let probing = |daemon: &Daemon| {
        json(&daemon.ask(&["ports", "--json"]))["ports"][0]["probing"]["because"].clone()
    };
    assert_eq!(ask(&kernel, 1, request(LOCAL, 1)), Some(vec![(0x2b, 1, 8)]));
    assert!(probing(&daemon).is_null());
    port.sa.lock().unwrap().behaviour_mut().silent = true;
    assert_eq!(ask(&kernel, 2, request(UNKNOWN, 1)), None, "the kernel may ask");
    daemon.until(|daemon| (probing(daemon) == "silent").then_some(()));
    let ports = String::from_utf8(daemon.ask(&["ports"]).stdout).unwrap();
    assert!(ports.contains("silent for ") && ports.contains(", probing"), "{ports:?}");
    // The next one fails at its deadline.
    assert_eq!(ask(&kernel, 3, request("fec0:0:22:2::dead:1", 1)), Some(vec![]), "no path");
    let answered = |name| counter(&daemon, name);
    assert_eq!((answered("sa.at-once"), answered("local-service.paths-spared")), (0, 1));
    // A user does not wait.
    let at_once = json(&daemon.ask(&["path", "fec0:0:22:2::dead:2", "--json"]));
    assert_eq!((&at_once["path"]["status"], answered("sa.at-once")), (&"silent".into(), 1));
    // Another one waits until the SA is back.
    let request = Request::ResolvePath(request("fec0:0:22:2::dead:ff", 1)).emit(Seq(4));
    kernel.send_bytes(request.as_ref());
    daemon.until(|daemon| (counter(daemon, "local-service.path-requests") == 4).then_some(()));
    port.sa.lock().unwrap().behaviour_mut().silent = false;
    let bytes = kernel.receive();
    let message = messages(&bytes).next().unwrap().unwrap();
    assert_eq!(message.seq(), Seq(4));
    assert!(
        matches!(Answer::parse(&message), Ok(Answer::Paths(paths)) if !paths.as_slice().is_empty())
    );
    daemon.until(|daemon| probing(daemon).is_null().then_some(()));
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
}

/// Asks for many paths.
fn ask_for_many(kernel: &Kernel, seq: u32) {
    for n in 0..MANY {
        let path = ask(kernel, seq + n, request(&format!("fec0:0:22:2::{n:x}"), 1));
        assert!(path.is_some_and(|path| path.len() == 3), "{n}");
    }
}

const MANY: u32 = 200;

fn counter(daemon: &Daemon, name: &str) -> u64 {
    json(&daemon.ask(&["counters", "--json"]))["counters"][name].as_u64().unwrap()
}

#[test]
fn next_daemon_uses_kept_paths_unless_the_port_has_changed() {
    let dir = TempDir::new("paths-kept");
    let port = Port::new(&dir);
    let file = dir.path("kept");
    // Without refreshes, whose number grows on a slow machine.
    let config = format!("[paths]\nrepeat-rate = 0\nsnapshot = \"{}\"\n", file.display());
    let (mut daemon, kernel) = start(&dir, &config);
    ask_for_many(&kernel, 1);
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    assert_eq!(fs::metadata(&file).unwrap().len(), 24 + 92 + u64::from(MANY) * 116 + 8);

    let asked = port.asked();
    let (mut daemon, kernel) = start(&dir, &config);
    daemon.until(|daemon| (counter(daemon, "paths.restored") == u64::from(MANY)).then_some(()));
    ask_for_many(&kernel, 1);
    assert_eq!(counter(&daemon, "paths.found-doubted"), u64::from(MANY));
    // Only the SA's capabilities are asked for again.
    assert!(port.asked() <= asked + 1, "{} questions", port.asked() - asked);
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));

    port.write("class/infiniband/mlx5_0/ports/1/sm_lid", "0x2");
    port.sa.lock().unwrap().move_to(Lid::new(2));
    let asked = port.asked();
    let (mut daemon, kernel) = start(&dir, &config);
    daemon.until(|daemon| (counter(daemon, "paths.not-restored") == u64::from(MANY)).then_some(()));
    ask_for_many(&kernel, 1);
    assert!(port.asked() >= asked + u64::from(MANY));
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));

    let mut bytes = fs::read(&file).unwrap();
    bytes[1_000] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (mut daemon, _kernel) = start(&dir, &config);
    daemon.until(|daemon| (counter(daemon, "snapshot.refused") == 1).then_some(()));
    assert_eq!(counter(&daemon, "paths.restored"), 0);
    // A failed write leaves the old snapshot in place.
    fs::create_dir(dir.path("kept.new")).unwrap();
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    assert_eq!(fs::read(&file).unwrap(), bytes);
}

#[test]
fn document_of_many_paths_is_complete_and_not_kept_for_slow_readers() {
    const PATHS: u32 = 10_000;
    let dir = TempDir::new("paths-pages");
    let _port = Port::new(&dir);
    let file = dir.path("kept");
    let config = format!("[paths]\nsnapshot = \"{}\"\n", file.display());
    let (mut daemon, kernel) = start(&dir, &config);
    assert!(ask(&kernel, 1, request(LOCAL, 1)).is_some());
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    // The many paths are that one, for other services.
    let kept = Snapshot::parse(&fs::read(&file).unwrap()).unwrap();
    let one = kept.paths[0];
    let of_service = |service| {
        let service_id = Some(ServiceId::new(service));
        KeptPath { question: PathQuestion { service_id, ..one.question }, ..one }
    };
    let many: Vec<_> = (0..u64::from(PATHS)).map(of_service).collect();
    let (mut encoder, mut bytes) = Encoder::new(kept.begun_at, &kept.ports);
    bytes.extend(encoder.paths(&many));
    bytes.extend(encoder.finish());
    fs::write(&file, bytes).unwrap();

    let (daemon, _kernel) = start(&dir, &config);
    daemon.until(|daemon| (counter(daemon, "paths.restored") == u64::from(PATHS)).then_some(()));
    let before = most_memory(&daemon);
    // These readers request page after page, and read none.
    let slow: Vec<_> = (0..8)
        .map(|_| {
            let mut reader = UnixStream::connect(dir.path("control.sock")).unwrap();
            reader.write_all("{\"ask\":\"paths\"}\n".repeat(1000).as_bytes()).unwrap();
            reader
        })
        .collect();
    let document = json(&daemon.ask(&["cache", "--paths", "--json"]));
    assert_eq!(document["v"], 1);
    assert_eq!(document["paths"].as_array().unwrap().len(), PATHS as usize);
    let table = daemon.ask(&["cache", "--paths"]);
    assert_eq!(table.stdout.split_inclusive(|&byte| byte == b'\n').count(), PATHS as usize);
    let grown = most_memory(&daemon) - before;
    assert!(grown < 4 << 10, "{grown} KiB more");
    drop(slow);
}

/// Peak memory of the daemon, in KiB.
fn most_memory(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn device_that_comes_back_is_opened_again_and_a_moved_sm_followed() {
    let dir = TempDir::new("paths-back");
    let port = Port::new(&dir);
    let (daemon, kernel) = start(&dir, "");
    assert_eq!(ask(&kernel, 1, request(LOCAL, 1)), Some(vec![(0x2b, 1, 8)]));
    fs::remove_dir_all(dir.path("sys/class/infiniband/mlx5_0")).unwrap();
    daemon.until(|daemon| {
        let ports = json(&daemon.ask(&["ports", "--json"]));
        ports["ports"].as_array().unwrap().is_empty().then_some(())
    });
    assert_eq!(ask(&kernel, 2, request(LOCAL, 1)), None);
    port.sa.lock().unwrap().move_to(Lid::new(2));
    let back = Port::new(&dir);
    back.sa.lock().unwrap().move_to(Lid::new(2));
    back.write("class/infiniband/mlx5_0/ports/1/sm_lid", "0x2");
    daemon.until(|daemon| {
        let ports = json(&daemon.ask(&["ports", "--json"]));
        (ports["ports"].get(0)?["sm-lid"] == 2).then_some(())
    });
    assert_eq!(ask(&kernel, 3, request(FOREIGN, 1)).unwrap().len(), 3);
    assert!(back.sa.lock().unwrap().counts().answered > 0);
}
