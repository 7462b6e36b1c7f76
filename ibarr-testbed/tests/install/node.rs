// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A container that boots systemd, and its peer at the other end of a wire.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{MsgId, PORT, Query, Reply, Version};
use ibarr_testbed::start::program;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::{Machine, said};

/// The container's address, which it answers with [`GID`].
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(crate) const GID: &str = "fe80::2:c903:0:201";

pub(crate) struct Node {
    nspawn: Child,
    /// The container's init process.
    leader: String,
    /// A socket of the peer.
    peer: Option<UdpSocket>,
    machine: Machine,
    root: PathBuf,
    bpffs: PathBuf,
    /// Held by the only container: two cores are not enough to boot more at once.
    _turn: MutexGuard<'static, ()>,
}

impl Node {
    /// Boots a Debian 12, or the older one of `cargo xtask test install-11`. Its peer is in the network namespace of the
    /// calling thread.
    pub(crate) fn boot() -> Self {
        let older = env::var_os("IBARR_OLDER_ROOT").map(PathBuf::from);
        Self::boot_root(&older.unwrap_or_else(|| file("IBARR_DEBIAN_ROOT")), |_| Vec::new())
    }

    /// Boots a Debian 12 that also has podman and what Ansible needs. `prepare` gets the directory of its files and
    /// gives more options of systemd-nspawn.
    pub(crate) fn boot_for_deployment(prepare: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self::boot_root(&file("IBARR_DEPLOY_ROOT"), prepare)
    }

    fn boot_root(lower: &Path, prepare: impl FnOnce(&Path) -> Vec<String>) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let machine = Machine::new();
        let directory = machine.directory();
        mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let root = layer(lower, directory, "root");
        let bpffs = directory.join("bpffs");
        fs::create_dir(&bpffs).unwrap();
        // As systemd mounts it on hosts.
        mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), Some("mode=0700")).unwrap();
        fs::copy(file("IBARR_PACKAGE"), root.join("ibarr.deb")).unwrap();

        let options = prepare(directory);
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let nspawn = spawn(directory, &options);
        let leader = String::new();
        let mut node = Self { nspawn, leader, peer: None, machine, root, bpffs, _turn: turn };
        node.wait();
        node.wire();
        node
    }

    /// Shuts the container down and boots it again, with more options of systemd-nspawn.
    pub(crate) fn reboot(&mut self, options: &[&str]) {
        // With its namespace the wire would end some time later.
        host("ip link delete peer");
        self.run("systemctl poweroff");
        let end = Instant::now() + PATIENCE;
        while self.nspawn.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "the container does not end");
            thread::sleep(STEP);
        }
        self.nspawn = spawn(self.machine.directory(), options);
        self.wait();
        self.wire();
    }

    /// Waits until systemd has started everything.
    fn wait(&mut self) {
        let console = self.machine.directory().join("console");
        let console = || fs::read_to_string(&console).unwrap_or_default();
        let children = format!("/proc/{0}/task/{0}/children", self.nspawn.id());
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.nspawn.try_wait().unwrap() {
                panic!("systemd-nspawn ended: {status}\n{}", console());
            }
            let found = fs::read_to_string(&children).unwrap_or_default();
            if let Some(leader) = found.split_whitespace().next() {
                leader.clone_into(&mut self.leader);
                let state = self.run("systemctl is-system-running");
                let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
                if state == "running" || state == "degraded" {
                    return;
                }
            }
            assert!(Instant::now() < end, "systemd did not boot\n{}", console());
            thread::sleep(STEP);
        }
    }

    /// Boots, installs the package, and configures the container's address.
    pub(crate) fn installed() -> Self {
        let node = Self::boot();
        node.install();
        node
    }

    pub(crate) fn install(&self) {
        self.ok("dpkg --install /ibarr.deb");
        self.configure_address();
    }

    /// Configures the container's address.
    pub(crate) fn configure_address(&self) {
        let config = format!(
            "interfaces = [\"eth0\"]\n[[static-gid]]\nip = \"{ADDRESS}\"\ngid = \"{GID}\"\n"
        );
        self.configure(&config);
    }

    pub(crate) fn configure(&self, config: &str) {
        fs::write(self.path("/etc/ibarr/ibarr.toml"), config).unwrap();
    }

    /// Puts lines into a drop-in of the unit.
    pub(crate) fn limit(&self, lines: &str) {
        let drop_in = "/run/systemd/system/ibarr.service.d";
        self.ok(&format!(
            "mkdir -p {drop_in} && printf '[Service]\n{lines}\n' > {drop_in}/test.conf"
        ));
        self.ok("systemctl daemon-reload");
    }

    /// A path of the container that is on a file system which it has mounted itself.
    pub(crate) fn inner_path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.leader))
    }

    /// A path of the container.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The directory of the container's files.
    pub(crate) fn directory(&self) -> &Path {
        self.machine.directory()
    }

    /// The bpffs of the container.
    pub(crate) fn bpffs(&self) -> &Path {
        &self.bpffs
    }

    /// Runs a command line in the container, as root.
    pub(crate) fn run(&self, line: &str) -> Output {
        inside(&self.leader, &["sh", "-c", line]).output().unwrap()
    }

    /// The output of a command line that must succeed.
    pub(crate) fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}\n{}", said(&output), self.journal());
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// A property of a unit.
    pub(crate) fn show(&self, property: &str, unit: &str) -> String {
        self.ok(&format!("systemctl show --value --property={property} {unit}"))
    }

    /// Waits until `so` holds.
    pub(crate) fn until(&self, what: &str, mut so: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}\n{}", self.journal());
            thread::sleep(STEP);
        }
    }

    /// The log of the unit.
    pub(crate) fn journal(&self) -> String {
        // The journal may still have to read the last words of a daemon that has ended.
        let line = "journalctl --sync; journalctl --no-pager --output=cat --unit=ibarr --unit=ibarr.socket --unit='ibarr@*'";
        let output = self.run(line);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The GID that the peer is answered for [`ADDRESS`], or `None` if there is no answer in a second.
    pub(crate) fn ask(&self) -> Option<Gid> {
        let socket = self.peer.as_ref().unwrap();
        let query = Query::new(Version::V1, MsgId(7), IpAddr::V4(ADDRESS)).unwrap();
        socket.send_to(query.emit().as_ref(), (ADDRESS, PORT)).unwrap();
        self.answer()
    }

    /// A socket of the peer.
    pub(crate) fn peer(&self) -> &UdpSocket {
        self.peer.as_ref().unwrap()
    }

    /// Waits once more for the answer to the last query of [`ask`](Self::ask): its GID, or `None` if none
    /// comes in a second.
    pub(crate) fn answer(&self) -> Option<Gid> {
        let mut reply = [0; 64];
        let (len, from) = self.peer.as_ref().unwrap().recv_from(&mut reply).ok()?;
        assert_eq!(from, (ADDRESS, PORT).into());
        let reply = Reply::parse(&reply[..len]).unwrap();
        assert_eq!(reply.msg_id, MsgId(7));
        reply.gid
    }

    /// A counter of the daemon.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.ok("ibarr counters");
        let line = counters.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or("0");
        line.trim().parse().unwrap_or_else(|_| panic!("{name} in {counters}"))
    }

    /// Turns off the offloads that hide a frame from XDP: VLAN tags and checksums outside of it.
    pub(crate) fn send_whole_frames(&self) {
        host("ethtool -K peer tx off");
        host(&format!("nsenter --target {} --net -- ethtool -K eth0 rxvlan off", self.leader));
    }

    /// The output of a program of the machine that has the network of the container, or its error.
    pub(crate) fn with_its_network(&self, words: &[&str]) -> Result<String, String> {
        let mut command = program("nsenter");
        command.args(["--target", &self.leader, "--net", "--"]).args(words);
        let output = command.output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(said(&output))
        }
    }

    /// Puts a wire between the container and the calling thread's network namespace.
    fn wire(&mut self) {
        let leader = &self.leader;
        host(&format!("ip link add peer type veth peer name eth0 netns {leader}"));
        host(&format!("ip address add {PEER}/24 dev peer"));
        host("ip link set peer up");
        self.ok(&format!("ip address add {ADDRESS}/24 dev eth0 && ip link set eth0 up"));
        let peer = UdpSocket::bind((PEER, 0)).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        self.peer = Some(peer);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.journal());
        }
        // The container's processes end with its init process, and nspawn with them.
        if let Ok(leader) = self.leader.parse() {
            let _ = kill(Pid::from_raw(leader), Signal::SIGKILL);
        }
        let _ = self.nspawn.wait();
    }
}

/// How long anything may take in a container.
const PATIENCE: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(50);

/// Boots the container whose files are in `directory`.
fn spawn(directory: &Path, options: &[&str]) -> Child {
    let mut nspawn = nspawn(&file("IBARR_DEBIAN_ROOT"));
    nspawn.arg("--directory").arg(directory.join("root"));
    nspawn.arg(format!("--bind={}:/sys/fs/bpf", directory.join("bpffs").display()));
    nspawn.args([
        "--quiet",
        "--machine=ibarr-test",
        "--register=no",
        "--keep-unit",
        "--private-network",
        "--system-call-filter=bpf perf_event_open",
        "--capability=CAP_BPF,CAP_PERFMON,CAP_NET_ADMIN,CAP_SYS_ADMIN",
        "--console=pipe",
    ]);
    nspawn.args(options).args(["--boot", "systemd.unit=multi-user.target"]);
    let console = fs::File::create(directory.join("console")).unwrap();
    nspawn.stdin(Stdio::null()).stdout(console.try_clone().unwrap()).stderr(console);
    nspawn.spawn().unwrap()
}

/// Mounts the root file system `lower` below `directory`, where writes leave it as it is.
pub(crate) fn layer(lower: &Path, directory: &Path, name: &str) -> PathBuf {
    let [root, upper, work] =
        ["", ".upper", ".work"].map(|end| directory.join(format!("{name}{end}")));
    for directory in [&root, &upper, &work] {
        fs::create_dir(directory).unwrap();
    }
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let layers = Some(layers.as_str());
    mount(Some("overlay"), &root, Some("overlay"), MsFlags::empty(), layers).unwrap();
    root
}

/// `systemd-nspawn` of the root file system, with its own libraries: the machine may have none.
fn nspawn(root: &Path) -> Command {
    let libraries = ["usr/lib/x86_64-linux-gnu/systemd", "usr/lib/x86_64-linux-gnu"];
    let libraries = env::join_paths(libraries.map(|name| root.join(name))).unwrap();
    let mut command = program(root.join("lib64/ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(libraries).arg(root.join("usr/bin/systemd-nspawn"));
    command
}

/// A command in all namespaces of the container.
fn inside(leader: &str, words: &[&str]) -> Command {
    let mut command = program("nsenter");
    command.args(["--target", leader, "--all", "--root", "--wd", "--"]).args(words);
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
    command.stdin(Stdio::null());
    command
}

/// Runs a program of the machine in the calling thread's network namespace.
fn host(line: &str) {
    let mut words = line.split(' ');
    let output = program(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", said(&output));
}

/// The path in an environment variable, which `cargo xtask test` sets.
pub(crate) fn file(variable: &str) -> PathBuf {
    let value = env::var_os(variable);
    value.unwrap_or_else(|| panic!("{variable} is not set: run `cargo xtask test install`")).into()
}
