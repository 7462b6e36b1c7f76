// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A node with a daemon, and a client at the other end of its wire.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use aya::Ebpf;
use aya::programs::xdp::XdpLink;
use aya::programs::{Xdp, XdpMode};
use ibarr_common::wire::ip2gid::PORT;
use ibarr_proto::ip2gid::Family;
use nix::net::if_::if_nametoindex;
use serde::Serialize;

use super::super::load::{Latencies, Load};
use super::super::process::{self, Helper};
use super::flood::{Flood, Flooded};
use crate::interrupt::Interrupt;
use crate::lab::netns::{self, Ip};
use crate::lab::{Lab, LabName, Node, Plan, Store, Subnet, TemporaryLab};

/// The server that answers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Server {
    Xdp,
    Tc,
    User,
    Echo,
}

impl Server {
    pub(super) const ALL: [Self; 4] = [Self::Xdp, Self::Tc, Self::User, Self::Echo];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "XDP",
            Self::Tc => "tc",
            Self::User => "user space",
            Self::Echo => "UDP echo",
        }
    }

    /// The value of `responder`, and what the daemon's status then says.
    const fn responder(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Xdp => ("xdp", Some("xdp-native")),
            Self::Tc => ("tc", Some("tc")),
            Self::User | Self::Echo => ("user", None),
        }
    }

    const fn port(self, family: Family) -> u16 {
        match (self, family) {
            (Self::Echo, Family::V4) => PORT + 1,
            (Self::Echo, Family::V6) => PORT + 2,
            _ => PORT,
        }
    }
}

pub(super) struct Wire {
    lab: TemporaryLab,
    node: Node,
    /// Name of the client's end, in the namespace of the hub.
    client: String,
    /// The kernel's ksoftirqd threads.
    softirqs: Vec<u32>,
    server: Server,
    echoes: Vec<Helper>,
    /// The bench's object, with every XDP program loaded.
    bench: Ebpf,
    /// A program on the client's end, without which the node's end could not send by XDP.
    peer: Option<XdpLink>,
    _generator: XdpLink,
}

impl Wire {
    /// Makes a lab whose only node is connected to the client instead of its switch.
    pub(super) fn up(store: &Store, ibarr: &Path, interrupt: &Interrupt) -> Result<Self> {
        let name: LabName = format!("bench-{}", std::process::id()).parse()?;
        let lab = Lab::up(store, Plan::new(name, 1, false)?, ibarr, interrupt)?;
        let lab = TemporaryLab::new(lab);
        let node = lab.plan().nodes.first().context("a lab has nodes")?.clone();
        let client = node.name.to_string();
        let ip = Ip::find(fs::File::open("/dev/null")?)?;
        let (v4, v6) = node.subnet.gateway();
        let interface = Node::INTERFACE;
        let lines = [
            format!("link set {client} nomaster"),
            format!("link set {client} address {CLIENT_MAC}"),
            format!("address add {v4}/{} dev {client}", Subnet::IPV4_PREFIX),
            format!("address add {v6}/{} dev {client} nodad", Subnet::IPV6_PREFIX),
        ];
        ip.batch(Some(&lab.plan().hub), &lines)?;
        let lines = [
            format!("link set {interface} address {NODE_MAC}"),
            format!("neighbour replace {v4} lladdr {CLIENT_MAC} dev {interface} nud permanent"),
            format!("neighbour replace {v6} lladdr {CLIENT_MAC} dev {interface} nud permanent"),
            format!("route add default via {v4}"),
            format!("route add ::/0 via {v6}"),
        ];
        ip.batch(Some(&node.namespace), &lines)?;
        let softirqs = process::kernel_threads("ksoftirqd/")?;
        let mut bench = Ebpf::load(ibarr_ebpf::BENCH_OBJECT).context("the bench's object")?;
        for name in ["empty_xdp", "sink_xdp", "generate_xdp"] {
            xdp(&mut bench, name)?.load()?;
        }
        // Attach to the switch, which has no other use now. The kernel enters a program that is not
        // attached into its dispatcher before each run and removes it afterwards, which takes two grace
        // periods of RCU (`bpf_prog_test_run_xdp`).
        let switch = node.subnet.bridge();
        let program = xdp(&mut bench, "generate_xdp")?;
        let generator = attach(program, &lab.plan().hub, &switch, XdpMode::Skb)?;
        let (server, echoes, peer) = (Server::Tc, Vec::new(), None);
        Ok(Self { lab, node, client, softirqs, server, echoes, bench, peer, _generator: generator })
    }

    /// Makes both ends accept frames from XDP programs, and starts the echo, until the lab ends.
    pub(super) fn tune(&mut self) -> Result<()> {
        let echo = |family: Family| {
            let port = Server::Echo.port(family).to_string();
            let mut arguments = ["bench", "echo", "--style", "daemon", "--port", &port].to_vec();
            arguments.extend((family == Family::V6).then_some("--ipv6"));
            let arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
            Helper::start(&self.node.namespace, &arguments)
        };
        self.echoes = vec![echo(Family::V4)?, echo(Family::V6)?];
        let interface = Node::INTERFACE;
        // A veth accepts frames if it has a program or merges packets. XDP does not see a VLAN tag
        // outside the frame, nor that a checksum is still missing.
        run(&self.node.namespace, &format!("ethtool -K {interface} gro on rxvlan off"))?;
        run(self.hub(), &format!("ethtool -K {} gro on tx off", self.client))?;
        process::pin(&self.echoes.iter().map(Helper::pid).collect::<Vec<_>>())
    }

    /// Restarts the daemon.
    pub(super) fn serve(&mut self, server: Server, interrupt: &Interrupt) -> Result<()> {
        // The daemon refuses XDP if the other end would not receive its replies.
        if self.peer.is_none() {
            self.put_on_client("empty_xdp")?;
        }
        let (responder, said) = server.responder();
        let path = self.lab.files(&self.node).config();
        let config = fs::read_to_string(&path).context("no configuration")?;
        let rest: Vec<_> =
            config.lines().filter(|line| !line.starts_with("responder = ")).collect();
        let config = format!("responder = \"{responder}\"\n{}\n", rest.join("\n"));
        fs::write(&path, config).context("cannot write a configuration")?;
        self.lab.restart(self.node.name, interrupt)?;
        self.server = server;
        process::pin(&[self.daemon()?])?;
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let output = self.lab.ibarr(&self.node, &["status", "--json"])?;
            let status: serde_json::Value =
                serde_json::from_slice(&output.stdout).context("no status")?;
            let interfaces = status["status"]["interfaces"].as_array().context("no interfaces")?;
            let interface = interfaces.iter().find(|one| one["name"] == Node::INTERFACE);
            let interface = interface.context("no interface")?;
            let is_busy = status["status"].to_string().contains("being loaded");
            let is_attached = match (said, interface["responder"].as_str()) {
                (None, None) => !is_busy,
                (Some("tc"), Some(hook)) => hook == "tcx" || hook == "clsact",
                (said, found) => said == found,
            };
            if is_attached {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{} does not serve: {status}", server.name());
            interrupt.sleep(Duration::from_millis(10))?;
        }
    }

    /// Sends queries for `time`, as fast as they are answered.
    pub(super) fn flood(
        &mut self,
        family: Family,
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<Flooded> {
        self.put_on_client("sink_xdp")?;
        let flooded = self.flood_sink(family, time, interrupt)?;
        self.put_on_client("empty_xdp")?;
        Ok(flooded)
    }

    /// Like [`Self::flood`], if there is a sink at the client's end already. Makes no change that the
    /// daemon would hear of.
    pub(super) fn flood_sink(
        &mut self,
        family: Family,
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<Flooded> {
        let before = self.used_by_server()?;
        let mut flooded = self.generate(family, time, interrupt)?;
        flooded.cpu += self.used_by_server()?.saturating_sub(before);
        Ok(flooded)
    }

    /// Like [`Self::flood`], but all frames are dropped when they arrive at the node, which must not
    /// answer by XDP. So the CPU time is the generator's, and a dropped frame counts as answered.
    pub(super) fn generator(
        &mut self,
        family: Family,
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<Flooded> {
        let _sink = attach(
            xdp(&mut self.bench, "sink_xdp")?,
            &self.node.namespace,
            Node::INTERFACE,
            XdpMode::Driver,
        )?;
        self.generate(family, time, interrupt)
    }

    /// Replaces the program at the client's end.
    pub(super) fn put_on_client(&mut self, name: &str) -> Result<()> {
        // Drop the link of the other program first, because it detaches.
        self.peer = None;
        let program = xdp(&mut self.bench, name)?;
        self.peer = Some(attach(program, &self.lab.plan().hub, &self.client, XdpMode::Driver)?);
        Ok(())
    }

    fn generate(
        &mut self,
        family: Family,
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<Flooded> {
        let (target, port) = (self.address(family), self.server.port(family));
        let (bench, client) = (&mut self.bench, &self.client);
        let flooded = netns::inside(&self.lab.plan().hub, || {
            Flood::new(bench, client, target, port)?.run(time, interrupt)
        })?;
        ensure!(flooded.answers > 0, "{} answers nothing", self.server.name());
        Ok(flooded)
    }

    /// Sends queries from sockets at a fixed rate.
    pub(super) fn open_loop(&self, family: Family, rate: u32, time: Duration) -> Result<Latencies> {
        let target = self.address(family);
        let ending = match (self.server, target) {
            (Server::Echo, IpAddr::V4(target)) => target.octets().to_vec(),
            (Server::Echo, IpAddr::V6(target)) => target.octets().to_vec(),
            _ => self.node.gid()?.octets().to_vec(),
        };
        let load =
            Load::new(self.hub(), SocketAddr::new(target, self.server.port(family)), &ending)?;
        load.open_loop(rate, time)
    }

    /// CPU time and context switches of the daemon alone, so far.
    pub(super) fn daemon_use(&self) -> Result<(Duration, u64)> {
        let pid = self.daemon()?;
        Ok((process::cpu_time(pid)?, process::context_switches(pid)?))
    }

    pub(super) fn down(self) -> Result<()> {
        drop(self.echoes);
        drop(self.peer);
        self.lab.down()
    }

    /// The namespace of the client.
    pub(super) fn hub(&self) -> &str {
        &self.lab.plan().hub
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// CPU time of the process that answers, and of the ksoftirqd threads.
    fn used_by_server(&self) -> Result<Duration> {
        let server = match self.server {
            Server::Echo => self.echoes.iter().map(Helper::pid).collect(),
            _ => vec![self.daemon()?],
        };
        let pids = server.iter().chain(&self.softirqs);
        pids.map(|&pid| process::cpu_time(pid)).sum()
    }

    fn daemon(&self) -> Result<u32> {
        let daemons = &self.lab.state().daemons;
        let daemon = daemons.iter().find(|daemon| daemon.node == self.node.name);
        Ok(daemon.context("the daemon was started")?.process.pid)
    }

    pub(super) fn address(&self, family: Family) -> IpAddr {
        let [v4, v6] = self.node.addresses;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }
}

/// Runs a line of shell in a namespace.
fn run(namespace: &str, line: &str) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = netns::spawn(namespace, &mut shell)?.wait_with_output()?;
    if !output.status.success() {
        bail!("`{line}`: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A program of an object.
pub(super) fn xdp<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = object.program_mut(name).with_context(|| format!("no program {name}"))?;
    Ok(program.try_into()?)
}

/// Attaches a loaded program until the link is dropped.
pub(super) fn attach(
    program: &mut Xdp,
    namespace: &str,
    interface: &str,
    mode: XdpMode,
) -> Result<XdpLink> {
    netns::inside(namespace, || {
        let id = program.attach_to_if_index(if_nametoindex(interface)?, mode)?;
        Ok(program.take_link(id)?)
    })
}

/// Time for the daemon to load its programs.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Also in the frames of [`Flood`].
pub(super) const NODE_MAC: &str = "02:00:00:00:00:05";
const CLIENT_MAC: &str = "02:00:00:00:00:09";
