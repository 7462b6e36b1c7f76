// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The nodes of the lab: each has an InfiniBand port, a stand-in for its subnet administrator and one for
//! its kernel, which asks for the addresses of the other nodes and for the paths there.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ibarr_common::IfIndex;
use ibarr_common::ib::{Gid, Lid, PKey, PortNum, ServiceId};
use ibarr_common::wire::ls::{PathUse, ResolveIp, ResolvePath};
use ibarr_proto::paths::PortName;
use ibarr_sim::sa::{AddressedPort, StandIn as Sa, Subnet};
use nix::net::if_::if_nametoindex;

use super::process::Process;
use crate::interrupt::Interrupt;
use crate::lab::{Lab, Node, netns};
use crate::standin::{Config, StandIn};
use crate::start::program;
use crate::umad::{Administrator, Port, Shown};

/// A node under load.
pub(super) struct Loaded {
    pub(super) node: Node,
    pub(super) administrator: Administrator,
    /// The content of its configuration.
    pub(super) config: String,
    /// Where its exporter serves its metrics.
    pub(super) metrics: SocketAddr,
    _exporter: Process,
    _port: Port,
    load: Load,
}

/// Besides the GIDs of the lab. Times are short, because the scenario lasts a minute.
const CONFIG: &str = "
[client]
cache-ttl = \"2s\"
deadline = \"2s\"
[paths]
cache-ttl = \"10s\"
fallback-interval = \"1s\"
";

/// The port of the exporters.
const METRICS: u16 = 9792;

impl Loaded {
    /// Starts the daemons of all nodes again, with ports and load, and an exporter beside each.
    ///
    /// # Errors
    /// A daemon does not start, or a port cannot be made.
    pub(super) fn all(lab: &mut Lab, ibarr: &Path, interrupt: &Interrupt) -> Result<Vec<Self>> {
        let nodes = lab.plan().nodes.clone();
        let subnet = subnet(&nodes)?;
        let mut loaded = Vec::new();
        for node in &nodes {
            let files = lab.files(node);
            let gids = fs::read_to_string(files.config())?;
            let config = format!("{gids}{CONFIG}");
            fs::write(files.config(), &config)?;
            let name = PortName { device: "mlx5_0".parse()?, port: PORT };
            let shown = Shown::active(subnet.ports[&node.gid()?.guid()].lid, node.gid()?, SA);
            let administrator = Administrator::new(Sa::new(subnet.clone(), SA, 1));
            let wire = administrator.clone();
            let port = Port::new(&files.infiniband(), name, 0, Some(shown), wire)?;
            let kernel = StandIn::attach(lab, node.name, Config::default(), interrupt)?;
            let [address, _] = node.addresses;
            let metrics = SocketAddr::new(address, METRICS);
            let exporter = exporter(node, metrics, ibarr, &files.run_dir())?;
            let load = Load::start(kernel, node, &nodes)?;
            let node = node.clone();
            loaded.push(Self {
                node,
                administrator,
                config,
                metrics,
                _exporter: exporter,
                _port: port,
                load,
            });
        }
        Ok(loaded)
    }

    /// Ends the load.
    ///
    /// # Errors
    /// The daemon could not be asked.
    pub(super) fn end(self) -> Result<()> {
        self.load.end()
    }
}

const SA: Lid = Lid::new(1).expect("a LID");
const PORT: PortNum = PortNum::new(1).expect("ports count from 1");

/// One subnet with all nodes.
fn subnet(nodes: &[Node]) -> Result<Subnet> {
    let first = nodes.first().context("a lab without nodes")?.gid()?;
    let mut subnet = Subnet::new(first.subnet_prefix());
    for (node, lid) in nodes.iter().zip(5..) {
        let lid = Lid::new(lid).context("a LID")?;
        let port = AddressedPort { lid, pkeys: vec![PKey::DEFAULT] };
        subnet.ports.insert(node.gid()?.guid(), port);
    }
    Ok(subnet)
}

/// `ibarr exporter`, which gives up on a daemon sooner than Prometheus on it.
fn exporter(node: &Node, at: SocketAddr, ibarr: &Path, run_dir: &Path) -> Result<Process> {
    let mut command = program(ibarr);
    command.args(["exporter", "--daemon-timeout", "500ms", "--listen", &at.to_string()]);
    command.arg("--run-dir").arg(run_dir);
    Process::start(&node.namespace, command, &run_dir.join("exporter.log"))
}

/// A kernel that asks all the time.
struct Load {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

/// The time between two requests of a node.
const PACE: Duration = Duration::from_millis(40);

/// The time that callers wait for an address.
const PATIENCE: Duration = Duration::from_secs(2);

impl Load {
    fn start(kernel: StandIn, node: &Node, nodes: &[Node]) -> Result<Self> {
        let ifindex = netns::inside(&node.namespace, || Ok(if_nametoindex(Node::INTERFACE)?))?;
        let ifindex = IfIndex::new(ifindex).context("a network device without a number")?;
        let others = nodes.iter().filter(|other| other.name != node.name);
        let mut targets = Vec::new();
        for other in others {
            let gid = other.gid()?;
            targets.extend(other.addresses.map(|address| (address, gid)));
        }
        let (is_over, sgid) = (Arc::new(AtomicBool::new(false)), node.gid()?);
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || ask(kernel, ifindex, sgid, &targets, &over));
        Ok(Self { is_over, thread })
    }

    fn end(self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Asks for one target after the other, for an address and for a path.
fn ask(
    mut kernel: StandIn,
    ifindex: IfIndex,
    sgid: Gid,
    targets: &[(IpAddr, Gid)],
    is_over: &AtomicBool,
) -> Result<()> {
    let device = "mlx5_0".parse()?;
    for &(target, dgid) in targets.iter().cycle() {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let path = ResolvePath {
            device,
            port: PORT,
            path_use: PathUse::All,
            service_id: Some(ServiceId::new(0x0106_0000)),
            dgid,
            sgid,
            tclass: None,
            pkey: Some(PKey::DEFAULT),
            qos_class: None,
        };
        // A daemon that is stopped or restarts may not listen.
        let _ = kernel.resolve_ip(ResolveIp { ifindex, target }, PATIENCE)?;
        let _ = kernel.resolve_path(path)?;
        let next = Instant::now() + PACE;
        while let Some(rest) = next.checked_duration_since(Instant::now()) {
            kernel.next_event(rest, &Interrupt::never())?;
        }
        kernel.take_said();
    }
    Ok(())
}
