// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A lab: nodes on one machine, each a network namespace with an ibarr daemon, with an IP router between
//! them if wanted.
//!
//! Invariant: the state file lists everything that belongs to the lab, before it is made. So `down` after
//! any crash leaves nothing behind, and touches nothing else.

pub mod netns;
pub mod userns;

mod daemon;
mod plan;
mod store;

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde::Serialize;
use serde_json::Value;

pub use daemon::Files;
pub use plan::{LabName, Node, NodeName, Plan, Subnet};
pub use store::{Daemon, Phase, Process, State, Store};

use crate::interrupt::Interrupt;
use crate::start::program;
use daemon::Starting;
use netns::Ip;
use store::Directory;

/// A lab that this process has locked: no other process can remove it.
#[derive(Debug)]
pub struct Lab {
    directory: Directory,
    state: State,
    children: Vec<Child>,
}

impl Lab {
    /// Makes a lab. When this returns, every daemon is ready.
    ///
    /// # Errors
    /// The lab cannot be made. Everything made so far is removed again.
    pub fn up(store: &Store, plan: Plan, ibarr: &Path, interrupt: &Interrupt) -> Result<Self> {
        ensure!(
            geteuid().is_root(),
            "a lab needs root for its namespaces: use sudo, or --userns, which works without BPF"
        );
        let ibarr = fs::canonicalize(ibarr)
            .with_context(|| format!("no daemon at {}: give --ibarr PATH", ibarr.display()))?;
        let directory = store.create(&plan.name)?;
        let ip = match Ip::find(directory.lock_file()?) {
            Ok(ip) => ip,
            Err(error) => {
                directory.remove()?;
                return Err(error);
            }
        };
        let taken = plan.namespaces().find(|namespace| netns::exists(namespace));
        if let Some(namespace) = taken {
            directory.remove()?;
            bail!(
                "namespace {namespace} exists and is not of a lab known here: remove it, or give another --name"
            );
        }
        let state = State::new(plan, ibarr, userns::is_inside());
        let mut lab = Self { directory, state, children: Vec::new() };
        match lab.build(&ip, interrupt) {
            Ok(()) => Ok(lab),
            Err(error) => {
                let name = lab.state.plan.name.clone();
                Err(match lab.down() {
                    Ok(()) => error,
                    Err(left) => error.context(format!(
                        "not everything could be removed ({left:#}): try `lab down --name {name}`"
                    )),
                })
            }
        }
    }

    /// Locks a lab. `None` if there is none of this name.
    ///
    /// # Errors
    /// Another process has locked it, or its state file is not ours.
    pub fn open(store: &Store, name: &LabName) -> Result<Option<Self>> {
        let Some(directory) = store.open(name)? else { return Ok(None) };
        let Some(state) = directory.state()? else {
            // `up` ended after it made the directory and before it wrote the state file.
            directory.remove()?;
            return Ok(None);
        };
        Ok(Some(Self { directory, state, children: Vec::new() }))
    }

    /// Removes the lab, with every process inside its namespaces.
    ///
    /// # Errors
    /// Something cannot be removed. Then the state file stays, for another attempt.
    pub fn down(mut self) -> Result<()> {
        let there: Vec<_> =
            self.state.plan.namespaces().filter(|namespace| netns::exists(namespace)).collect();
        end_processes(&there, &mut self.children)?;
        if !there.is_empty() {
            let lines: Vec<_> = there.iter().map(|name| format!("netns delete {name}")).collect();
            self.ip()?.batch(None, &lines)?;
        }
        unmount(&self.bpf())?;
        self.directory.remove()
    }

    /// iproute2's `ip`, which keeps the lab's lock open.
    ///
    /// # Errors
    /// `ip` is not found.
    pub fn ip(&self) -> Result<Ip> {
        Ip::find(self.directory.lock_file()?)
    }

    /// The content of its state file.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Its nodes and subnets.
    pub fn plan(&self) -> &Plan {
        &self.state.plan
    }

    /// The paths of a node's files.
    pub fn files(&self, node: &Node) -> Files {
        Files::of(self.directory.path(), node.name)
    }

    /// The directory for `--bpf-dir` of a node.
    pub fn bpf_dir(&self, node: &Node) -> PathBuf {
        self.bpf().join(node.name.to_string())
    }

    /// Runs the lab's `ibarr` as a client of the daemon on `node`.
    ///
    /// # Errors
    /// The program cannot be started. Its failures are in the output.
    pub fn ibarr(&self, node: &Node, arguments: &[&str]) -> Result<Output> {
        let mut command = program(&self.state.ibarr);
        command.args(arguments).arg("--run-dir").arg(self.files(node).run_dir());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = netns::spawn(&node.namespace, &mut command)?;
        child.wait_with_output().context("cannot wait for ibarr")
    }

    /// The answer of the daemon on `node`, as a JSON document.
    ///
    /// # Errors
    /// The daemon cannot be asked, or the answer is a failure.
    pub fn ask(&self, node: &Node, arguments: &[&str]) -> Result<Value> {
        let output = self.ibarr(node, &[arguments, &["--json"]].concat())?;
        let said = || format!("{}: ibarr {}: {output:?}", node.name, arguments.join(" "));
        ensure!(output.status.success(), said());
        serde_json::from_slice(&output.stdout).with_context(said)
    }

    /// Ends the daemon of a node and starts another. Returns how long the start took.
    ///
    /// # Errors
    /// There is no such node, or its daemon does not end or start.
    pub fn restart(&mut self, name: NodeName, interrupt: &Interrupt) -> Result<Duration> {
        self.restart_with(name, None, interrupt)
    }

    /// Like [`Self::restart`]. The new daemon inherits `local_service` as its socket to the kernel's local
    /// service.
    ///
    /// # Errors
    /// Those of [`Self::restart`].
    pub fn restart_with(
        &mut self,
        name: NodeName,
        local_service: Option<OwnedFd>,
        interrupt: &Interrupt,
    ) -> Result<Duration> {
        let node = self.state.plan.nodes.iter().find(|node| node.name == name);
        let node = node.with_context(|| format!("no node {name}"))?.clone();
        self.end(name, interrupt)?;
        let daemon = Starting::spawn(
            &node,
            self.files(&node),
            &self.state.ibarr,
            &self.bpf(),
            local_service,
        )?;
        self.remember(name, daemon.pid())?;
        let (child, took) = daemon.wait_ready(Instant::now() + READY_WITHIN, interrupt)?;
        self.children.push(child);
        Ok(took)
    }

    /// Ends the daemon of a node, if it has one.
    ///
    /// # Errors
    /// It does not end.
    pub fn end(&mut self, name: NodeName, interrupt: &Interrupt) -> Result<()> {
        if let Some(at) = self.state.daemons.iter().position(|daemon| daemon.node == name) {
            let Daemon { process, .. } = self.state.daemons.remove(at);
            let _ = kill(Pid::from_raw(process.pid.try_into()?), Signal::SIGTERM);
            let deadline = Instant::now() + END_WITHIN;
            while process.is_running() {
                ensure!(Instant::now() < deadline, "{name}: ibarr does not end at SIGTERM");
                interrupt.sleep(Duration::from_millis(2))?;
                self.children.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
            }
        }
        Ok(())
    }

    /// The bpffs with a directory for each node's pins.
    fn bpf(&self) -> PathBuf {
        self.directory.path().join("bpf")
    }

    /// Writes a daemon's process id to the state file. In a user namespace it is the only way to find the
    /// namespace again.
    fn remember(&mut self, node: NodeName, pid: u32) -> Result<()> {
        // If the daemon has ended already, `wait_ready` reports that, with its log.
        let process = Process::of(pid);
        self.state.daemons.extend(process.map(|process| Daemon { node, process }));
        self.directory.write(&self.state)
    }

    fn build(&mut self, ip: &Ip, interrupt: &Interrupt) -> Result<()> {
        self.directory.write(&self.state)?;
        mount_bpffs(&self.bpf())?;
        build_network(ip, &self.state.plan)?;
        interrupt.check()?;

        let mut starting = Vec::new();
        for node in self.state.plan.nodes.clone() {
            let files = self.files(&node);
            files.create(&node)?;
            let daemon = Starting::spawn(&node, files, &self.state.ibarr, &self.bpf(), None)?;
            self.remember(node.name, daemon.pid())?;
            starting.push(daemon);
        }
        let deadline = Instant::now() + READY_WITHIN;
        for daemon in starting {
            self.children.push(daemon.wait_ready(deadline, interrupt)?.0);
        }
        self.state.phase = Phase::Up;
        self.directory.write(&self.state)
    }
}

/// A lab that is removed when this is dropped.
#[derive(Debug)]
pub struct TemporaryLab(Option<Lab>);

impl TemporaryLab {
    /// Takes over a lab.
    pub fn new(lab: Lab) -> Self {
        Self(Some(lab))
    }

    /// Removes it now.
    ///
    /// # Errors
    /// Those of [`Lab::down`].
    pub fn down(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), Lab::down)
    }
}

impl std::ops::Deref for TemporaryLab {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        self.0.as_ref().expect("only `down`, which consumes, and `drop` take it")
    }
}

impl std::ops::DerefMut for TemporaryLab {
    fn deref_mut(&mut self) -> &mut Lab {
        self.0.as_mut().expect("only `down`, which consumes, and `drop` take it")
    }
}

impl Drop for TemporaryLab {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(Lab::down) {
            eprintln!("the lab is not removed: {error:#}");
        }
    }
}

/// Becomes `command` on a node of a lab, with the lab's `ibarr` first on `$PATH` and the node's
/// directories in `$IBARR_RUN_DIR` and `$IBARR_BPF_DIR`.
///
/// # Errors
/// There is no such lab or node, or the command cannot be run.
pub fn exec(store: &Store, name: &LabName, node: &str, command: &[String]) -> Result<Infallible> {
    let (directory, state) = store.read(name)?;
    let namespace = state.plan.namespace_of(node)?;
    let (program, arguments) = command.split_first().context("no command given")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let beside = state.ibarr.parent().map(Path::to_path_buf);
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(beside.into_iter().chain(env::split_paths(&path)))
        .context("a directory of PATH has a colon in it")?;
    command.env("PATH", path);
    if let Ok(node) = state.plan.node(node) {
        command.env("IBARR_RUN_DIR", Files::of(&directory, node.name).run_dir());
        command.env("IBARR_BPF_DIR", directory.join("bpf").join(node.name.to_string()));
    }
    netns::exec(namespace, &mut command)
}

/// The output of `lab status`.
#[derive(Debug, Serialize)]
pub struct Status {
    v: u32,
    name: LabName,
    /// Whether `up` has finished.
    pub phase: Phase,
    router: bool,
    user_namespace: bool,
    directory: PathBuf,
    ibarr: PathBuf,
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<NodeStatus>,
}

/// A node in the output of `lab status`.
#[derive(Debug, Serialize)]
pub struct NodeStatus {
    name: NodeName,
    namespace: String,
    addresses: [std::net::IpAddr; 2],
    gid: String,
    run_dir: PathBuf,
    log: PathBuf,
    pid: Option<u32>,
    /// Whether the daemon that `up` started still runs.
    pub running: bool,
}

impl Status {
    /// The status of the lab `name`.
    ///
    /// # Errors
    /// There is no such lab.
    pub fn of(store: &Store, name: &LabName) -> Result<Self> {
        let (directory, state) = store.read(name)?;
        let nodes = state.plan.nodes.iter().map(|node| {
            let files = Files::of(&directory, node.name);
            let daemon = state.daemons.iter().find(|daemon| daemon.node == node.name);
            NodeStatus {
                name: node.name,
                namespace: node.namespace.clone(),
                addresses: node.addresses,
                gid: node.gid.clone(),
                run_dir: files.run_dir(),
                log: files.log(),
                pid: daemon.map(|daemon| daemon.process.pid),
                running: daemon.is_some_and(|daemon| daemon.process.is_running()),
            }
        });
        Ok(Self {
            v: 1,
            name: name.clone(),
            phase: state.phase,
            router: state.plan.has_router(),
            user_namespace: state.user_namespace,
            nodes: nodes.collect(),
            directory,
            ibarr: state.ibarr,
        })
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hub = if self.router { "two subnets, a router between them" } else { "one subnet" };
        let phase = match self.phase {
            Phase::Building => " (half made: `lab down` removes it)",
            Phase::Up => "",
        };
        writeln!(f, "lab {}: {hub}{phase}, files in {}", self.name, self.directory.display())?;
        writeln!(f, "{:<5}{:<15}{:<15}{:<22}daemon", "node", "IPv4", "IPv6", "GID")?;
        for node in &self.nodes {
            let [v4, v6] = node.addresses.map(|address| address.to_string());
            write!(f, "{:<5}{v4:<15}{v6:<15}{:<22}", node.name.to_string(), node.gid)?;
            match node.pid {
                Some(pid) if node.running => writeln!(f, "running, pid {pid}")?,
                Some(_) => writeln!(f, "ENDED, see {}", node.log.display())?,
                None => writeln!(f, "not started")?,
            }
        }
        Ok(())
    }
}

/// Time for a daemon to start, on a loaded machine. It needs less than a second otherwise.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Time for processes to end after SIGTERM, and again after SIGKILL.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Mounts a bpffs. If the kernel refuses, as in a user namespace, only the daemons answer.
fn mount_bpffs(path: &Path) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
    // Mount it outside of the daemons' mount namespaces, because it would end with them.
    let _ = mount(Some("ibarr-lab"), path, Some("bpf"), MsFlags::empty(), Some("mode=0700"));
    Ok(())
}

fn unmount(path: &Path) -> Result<()> {
    match umount2(path, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot unmount {}", path.display())),
    }
}

fn build_network(ip: &Ip, plan: &Plan) -> Result<()> {
    let namespaces: Vec<_> = plan.namespaces().map(|name| format!("netns add {name}")).collect();
    ip.batch(None, &namespaces)?;

    let router = plan.has_router();
    netns::set(&plan.hub, &settings(router))?;
    let mut hub = vec!["link set lo up".to_owned()];
    for subnet in &plan.subnets {
        let bridge = subnet.bridge();
        hub.push(format!("link add {bridge} type bridge stp_state 0 mcast_snooping 0"));
        hub.push(format!("link set {bridge} up"));
        if router {
            let (v4, v6) = subnet.gateway();
            hub.push(format!("address add {v4}/{} dev {bridge}", Subnet::IPV4_PREFIX));
            hub.push(format!("address add {v6}/{} dev {bridge} nodad", Subnet::IPV6_PREFIX));
        }
    }
    for Node { name, namespace, subnet, .. } in &plan.nodes {
        netns::set(namespace, &settings(false))?;
        let interface = Node::INTERFACE;
        hub.push(format!("link add {name} type veth peer name {interface} netns {namespace}"));
        hub.push(format!("link set {name} master {} up", subnet.bridge()));
    }
    ip.batch(Some(&plan.hub), &hub)?;

    for Node { namespace, subnet, addresses: [v4, v6], .. } in &plan.nodes {
        let interface = Node::INTERFACE;
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("link set {interface} up"),
            format!("address add {v4}/{} dev {interface}", Subnet::IPV4_PREFIX),
            format!("address add {v6}/{} dev {interface} nodad", Subnet::IPV6_PREFIX),
        ];
        if router {
            let (v4, v6) = subnet.gateway();
            lines.push(format!("route add default via {v4}"));
            lines.push(format!("route add ::/0 via {v6}"));
        }
        ip.batch(Some(namespace), &lines)?;
    }
    Ok(())
}

/// Settings that a new namespace may inherit from the machine, and duplicate address detection, which
/// would delay every start by a second.
fn settings(forwarding: bool) -> [(&'static str, &'static str); 9] {
    let forwarding = if forwarding { "1" } else { "0" };
    [
        ("ipv4/conf/all/forwarding", forwarding),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv6/conf/all/disable_ipv6", "0"),
        ("ipv6/conf/default/disable_ipv6", "0"),
        ("ipv6/conf/all/forwarding", forwarding),
        ("ipv6/conf/all/accept_dad", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
    ]
}

/// Ends all processes inside `namespaces`, first by SIGTERM, then by SIGKILL.
fn end_processes(namespaces: &[&str], children: &mut Vec<Child>) -> Result<()> {
    let mut inside = Vec::new();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let deadline = Instant::now() + END_WITHIN;
        let mut told = Vec::new();
        loop {
            inside.clear();
            for namespace in namespaces {
                inside.extend(netns::processes(namespace)?);
            }
            // `lab down` may run inside the lab.
            inside.retain(|&pid| pid != Pid::this());
            children.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
            if inside.is_empty() && children.is_empty() {
                return Ok(());
            }
            // A process that starts meanwhile gets the signal in the next turn.
            for &pid in inside.iter().filter(|pid| !told.contains(*pid)) {
                let _ = kill(pid, signal);
            }
            told.clone_from(&inside);
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    bail!("processes {inside:?} do not end")
}
