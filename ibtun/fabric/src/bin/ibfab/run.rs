// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab run`: the event loop between the devices of this machine and the fabric.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ibarr_common::Instant;
use ibarr_fabric::topology::{NodeId, PortId};
use ibarr_fabric::wire::smp::NodeType;
use ibarr_fabric::{Event, Fabric, Input, Topology};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::time::{ClockId, clock_gettime};

use crate::capture::Capture;
use crate::cli::RunArgs;
use crate::control::Control;
use crate::device::{BUFFER_LEN, Device, Record};
use crate::remote::Remote;
use crate::show::{self, Action};
use crate::simulator::Simulator;
use crate::sys;
use crate::trace::Traces;

pub(crate) fn run(args: &RunArgs, control: &Path) -> anyhow::Result<()> {
    let topology = read_topology(&args.topology)?;
    Engine::new(args, topology, Control::listen(control)?)?.run()
}

pub(crate) fn read_topology(path: &Path) -> anyhow::Result<Topology> {
    let name = path.display();
    let text = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    // Beside the file, wherever this is called.
    let folder = path.parent().unwrap_or(path);
    let topology = Topology::parse(&text, &mut |included| fs::read(folder.join(included)));
    topology.with_context(|| name.to_string())
}

/// The descriptors that stay the same, by their numbers in [`Engine::epoll`]: a device has its index.
const REMOTE: u64 = u64::MAX;
const CONTROL: u64 = u64::MAX - 1;

/// How many descriptors one turn handles. The others come first in the next one.
const READY: usize = 64;

/// The fabric, with all its connections.
struct Engine {
    fabric: Fabric,
    devices: Vec<(NodeId, Device)>,
    simulator: Option<Simulator>,
    remote: Option<Remote>,
    capture: Option<Capture>,
    traces: Traces,
    control: Control,
    epoll: Epoll,
    /// Of the last [`Engine::wait`]: the first `readable` of these.
    ready: [EpollEvent; READY],
    readable: usize,
    buffer: Vec<u8>,
}

impl Engine {
    fn new(args: &RunArgs, topology: Topology, control: Control) -> anyhow::Result<Self> {
        let now = boot_time()?;
        let simulator = args.umad2sim.as_deref().map(Simulator::listen).transpose()?;
        let listen = |at| Remote::listen(at, args.key.as_deref());
        let mut remote = args.listen.as_ref().map(listen).transpose()?;
        let capture = args.capture.as_deref().map(Capture::create).transpose()?;
        let mut fabric = Fabric::new(topology, args.seed);
        fabric.set_capture(capture.is_some());

        let (local, elsewhere) = chosen(&fabric, args)?;
        let mut devices = Vec::new();
        for &node in &local {
            let built = fabric.topology().node(node).filter(|_| simulator.is_none());
            if let Some(built) = built {
                let device = Device::create(&args.ibtun, built)?;
                eprintln!("ibfab: {} is {}", built.name, device.name());
                devices.push((node, device));
            }
        }
        if !devices.is_empty() {
            raise_priority();
        }
        for &node in &local {
            fabric.handle_input(now, Input::Attach(node));
        }
        if let Some(remote) = &mut remote {
            remote.admit(&mut fabric, now, &elsewhere);
        }
        let epoll = watch(&devices, remote.as_ref(), &control).context("cannot watch")?;
        Ok(Self {
            fabric,
            devices,
            simulator,
            remote,
            capture,
            traces: Traces::default(),
            control,
            epoll,
            ready: [EpollEvent::empty(); READY],
            readable: 0,
            buffer: vec![0; BUFFER_LEN],
        })
    }

    fn run(mut self) -> anyhow::Result<()> {
        loop {
            self.hand_out()?;
            self.wait()?;
            let now = boot_time()?;
            self.fabric.handle_timeout(now);
            self.take_in(now)?;
        }
    }

    fn take_in(&mut self, now: Instant) -> anyhow::Result<()> {
        let (mut is_remote, mut is_control) = (false, false);
        for event in self.ready.iter().take(self.readable) {
            match event.data() {
                REMOTE => is_remote = true,
                CONTROL => is_control = true,
                index => {
                    let index = usize::try_from(index).unwrap_or(usize::MAX);
                    let Some((node, device)) = self.devices.get_mut(index) else { continue };
                    for record in device.read(&mut self.buffer)?.into_iter().flatten() {
                        self.fabric.handle_input(now, input(*node, &record));
                    }
                }
            }
        }
        if let Some(simulator) = &mut self.simulator {
            simulator.read(&mut self.fabric, now);
        }
        if let Some(remote) = &mut self.remote {
            if is_remote {
                remote.read(&mut self.fabric, now);
            }
            remote.handle_timeout(&mut self.fabric, now);
        }
        if is_control {
            self.serve(now);
        }
        Ok(())
    }

    /// Does what clients of the control socket ask.
    fn serve(&mut self, now: Instant) {
        let Self { fabric, devices, remote, traces, control, .. } = self;
        while let Some((stream, filter)) = control.serve(|words| {
            let (text, action) = show::answer(fabric, remote.as_ref(), devices, words)?;
            let mut filter = None;
            match action {
                Some(Action::Fault(fault)) => fabric.handle_input(now, Input::Fault(fault)),
                Some(Action::Device { name, faults }) => {
                    let device = find(devices, &name)?;
                    faults.iter().try_for_each(|fault| device.fault(fault))?;
                }
                Some(Action::Behave { name, behaviour, on }) => {
                    find(devices, &name)?.behave(behaviour, on)?;
                }
                Some(Action::Trace(args)) => {
                    filter = Some(traces.admit(fabric.topology(), &args)?);
                }
                Some(Action::Mark(text)) => traces.mark(now, &text),
                None => {}
            }
            Ok((text, filter))
        }) {
            traces.add(stream, filter);
        }
    }

    /// Delivers the fabric's outputs.
    fn hand_out(&mut self) -> anyhow::Result<()> {
        while let Some(Event::Port { port, config, reregister }) = self.fabric.poll_event() {
            if let Some((_, device)) = self.devices.iter().find(|(node, _)| *node == port.node) {
                device.configure(port.number, &config, reregister)?;
            } else if let Some(remote) = &mut self.remote {
                remote.configure(port, &config, reregister);
            }
        }
        while let Some((port, packet)) = self.fabric.poll_transmit() {
            let device = self.devices.iter_mut().find(|(node, _)| *node == port.node);
            let remote = self.remote.as_mut().filter(|remote| remote.may_have(port.node));
            if let Some((_, device)) = device {
                device.write(port.number, packet)?;
            } else if let Some(remote) = remote {
                remote.write(port, &packet);
            } else if let Some(simulator) = &mut self.simulator {
                simulator.write(&mut self.fabric, boot_time()?, port, &packet);
            }
        }
        self.devices.iter_mut().try_for_each(|(_, device)| device.flush())?;
        while let Some(crossing) = self.fabric.poll_capture() {
            if let Some(capture) = &mut self.capture {
                capture.write(&crossing)?;
            }
            self.traces.write(self.fabric.topology(), &crossing);
        }
        self.capture.as_mut().map_or(Ok(()), Capture::flush)?;
        self.traces.flush();
        self.fabric.set_capture(self.capture.is_some() || !self.traces.is_empty());
        Ok(())
    }

    /// Sleeps until a descriptor is readable or a timer is due.
    fn wait(&mut self) -> anyhow::Result<()> {
        let remote = self.remote.as_ref().and_then(Remote::poll_timeout);
        let traces = self.traces.timeout().map(|wait| boot_time().map(|now| now + wait));
        let traces = traces.transpose()?;
        let due = self.fabric.poll_timeout().into_iter().chain(remote).chain(traces).min();
        let timeout = match due {
            None => PollTimeout::NONE,
            Some(due) => {
                // Rounded up, so that the timer is due after the sleep.
                let left = due.since(boot_time()?) + Duration::from_micros(999);
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            }
        };
        // Those that come and go.
        let simulator = self.simulator.iter().flat_map(Simulator::fds);
        let mut fds: Vec<_> = simulator
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .chain(self.traces.fds().map(|fd| PollFd::new(fd, PollFlags::POLLOUT)))
            .collect();
        let ready = if fds.is_empty() {
            self.epoll.wait(&mut self.ready, timeout)
        } else {
            fds.push(PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN));
            poll(&mut fds, timeout)
                .and_then(|_| self.epoll.wait(&mut self.ready, PollTimeout::ZERO))
        };
        self.readable = match ready {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error).context("cannot wait"),
        };
        Ok(())
    }
}

/// So a turn asks only those descriptors that have something to read.
fn watch(
    devices: &[(NodeId, Device)],
    remote: Option<&Remote>,
    control: &Control,
) -> nix::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let devices = (0_u64..).zip(devices.iter().map(|(_, device)| device.as_fd()));
    let remote = remote.map(|remote| (REMOTE, remote.as_fd()));
    for (data, fd) in devices.chain(remote).chain([(CONTROL, control.as_fd())]) {
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data))?;
    }
    Ok(epoll)
}

fn find<'a>(devices: &'a mut [(NodeId, Device)], name: &str) -> anyhow::Result<&'a mut Device> {
    let mut devices = devices.iter_mut().map(|(_, device)| device);
    devices.find(|device| device.name() == name).with_context(|| format!("no device {name}"))
}

fn adapters(fabric: &Fabric) -> Vec<NodeId> {
    let nodes = fabric.topology().nodes();
    nodes.filter(|(_, node)| node.kind == NodeType::ChannelAdapter).map(|(id, _)| id).collect()
}

/// The channel adapters whose hosts are here, and those whose hosts may join.
fn chosen(fabric: &Fabric, args: &RunArgs) -> anyhow::Result<(Vec<NodeId>, Vec<NodeId>)> {
    let others = |than: &[NodeId]| {
        let mut nodes = adapters(fabric);
        nodes.retain(|node| !than.contains(node));
        nodes
    };
    let (devices, hosts) = (named(fabric, &args.devices)?, named(fabric, &args.hosts)?);
    let is_simulated = args.umad2sim.is_some();
    if is_simulated && args.listen.is_some() && hosts.is_empty() {
        bail!("all nodes are those of --umad2sim: name those whose hosts may join by --host");
    }
    if let Some(node) = devices.iter().find(|node| hosts.contains(node)) {
        let name = fabric.topology().node(*node).map_or("?", |node| &node.name);
        bail!("{name} is a device of this machine: name it by --device or --host, not by both");
    }
    Ok(if args.listen.is_none() {
        (if devices.is_empty() { others(&[]) } else { devices }, Vec::new())
    } else if is_simulated {
        (others(&hosts), hosts)
    } else if hosts.is_empty() {
        let hosts = others(&devices);
        (devices, hosts)
    } else {
        (devices, hosts)
    })
}

fn named(fabric: &Fabric, names: &[String]) -> anyhow::Result<Vec<NodeId>> {
    let adapters = adapters(fabric);
    let node = |name: &String| match fabric.topology().find(name) {
        Some(node) if adapters.contains(&node) => Ok(node),
        Some(_) => bail!("{name} is not a channel adapter: name one"),
        None => bail!("the topology has no node {name}"),
    };
    names.iter().map(node).collect()
}

fn input<'a>(node: NodeId, record: &Record<'a>) -> Input<'a> {
    match *record {
        Record::Packet { port: number, packet } => {
            Input::Packet { port: PortId { node, number }, packet }
        }
        Record::Capabilities { port: number, mask } => {
            Input::Capabilities { port: PortId { node, number }, mask }
        }
    }
}

/// Without the right to it, all works, but slower.
pub(crate) fn raise_priority() {
    if let Err(errno) = sys::raise_priority() {
        eprintln!("ibfab: its packets wait for other programs: it has no higher priority: {errno}");
    }
}

pub(crate) fn boot_time() -> anyhow::Result<Instant> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).context("CLOCK_BOOTTIME")?;
    let nanos = u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX);
    Ok(Instant::from_nanos(nanos))
}
