// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab run`: the loop between the devices of this machine and the fabric.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ibarr_common::Instant;
use ibarr_common::wire::smp::NodeType;
use ibarr_fabric::topology::{NodeId, PortId};
use ibarr_fabric::{Event, Fabric, Input, Topology};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

use crate::cli::RunArgs;
use crate::control::Control;
use crate::device::{BUFFER_LEN, Device, Record};
use crate::show;
use crate::simulator::Simulator;

pub(crate) fn run(args: &RunArgs, control: &Path) -> anyhow::Result<()> {
    let path = args.topology.display();
    let text = fs::read_to_string(&args.topology).with_context(|| format!("cannot read {path}"))?;
    let topology: Topology = text.parse().with_context(|| path.to_string())?;
    Engine::new(args, topology, Control::listen(control)?)?.run()
}

/// The fabric, and all that it is connected to.
struct Engine {
    fabric: Fabric,
    devices: Vec<(NodeId, Device)>,
    simulator: Option<Simulator>,
    control: Control,
    buffer: Vec<u8>,
}

impl Engine {
    fn new(args: &RunArgs, topology: Topology, control: Control) -> anyhow::Result<Self> {
        let simulator = args.umad2sim.as_deref().map(Simulator::listen).transpose()?;
        let chosen = chosen(&topology, &args.devices)?;
        let mut devices = Vec::new();
        for &node in chosen.iter().filter(|_| simulator.is_none()) {
            if let Some(built) = topology.node(node) {
                let device = Device::create(&args.ibtun, built)?;
                eprintln!("ibfab: {} is {}", built.name, device.name());
                devices.push((node, device));
            }
        }
        let mut fabric = Fabric::new(topology, args.seed);
        let now = boot_time()?;
        for node in chosen {
            fabric.handle_input(now, Input::Attach(node));
        }
        Ok(Self { fabric, devices, simulator, control, buffer: vec![0; BUFFER_LEN] })
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
        for (node, device) in &mut self.devices {
            if let Some(records) = device.read(&mut self.buffer)? {
                for record in records {
                    self.fabric.handle_input(now, input(*node, &record));
                }
            }
        }
        if let Some(simulator) = &mut self.simulator {
            simulator.read(&mut self.fabric, now);
        }
        self.control.serve(|words| {
            let (text, fault) = show::answer(&mut self.fabric, words)?;
            if let Some(fault) = fault {
                self.fabric.handle_input(now, Input::Fault(fault));
            }
            Ok(text)
        });
        Ok(())
    }

    /// What the fabric has for the devices.
    fn hand_out(&mut self) -> anyhow::Result<()> {
        while let Some(Event::Port { port, config, reregister }) = self.fabric.poll_event() {
            if let Some((_, device)) = self.devices.iter().find(|(node, _)| *node == port.node) {
                device.configure(port.number, &config, reregister)?;
            }
        }
        while let Some((port, packet)) = self.fabric.poll_transmit() {
            let device = self.devices.iter_mut().find(|(node, _)| *node == port.node);
            if let Some((_, device)) = device {
                device.write(port.number, &packet)?;
            } else if let Some(simulator) = &mut self.simulator {
                simulator.write(port, &packet);
            }
        }
        Ok(())
    }

    /// Sleeps until somebody has something, or the fabric is due.
    fn wait(&self) -> anyhow::Result<()> {
        let timeout = match self.fabric.poll_timeout() {
            None => PollTimeout::NONE,
            Some(due) => {
                // Rounded up, so that it is due when we wake.
                let left = due.since(boot_time()?) + Duration::from_micros(999);
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            }
        };
        let devices = self.devices.iter().map(|(_, device)| device.as_fd());
        let simulator = self.simulator.iter().flat_map(Simulator::fds);
        let control = std::iter::once(self.control.as_fd());
        let mut fds: Vec<_> = devices
            .chain(simulator)
            .chain(control)
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait"),
        }
    }
}

/// The channel adapters that are to become devices.
fn chosen(topology: &Topology, names: &[String]) -> anyhow::Result<Vec<NodeId>> {
    let is_adapter =
        |node| topology.node(node).is_some_and(|node| node.kind == NodeType::ChannelAdapter);
    if names.is_empty() {
        return Ok(topology.nodes().map(|(node, _)| node).filter(|&id| is_adapter(id)).collect());
    }
    names
        .iter()
        .map(|name| match topology.find(name) {
            Some(node) if is_adapter(node) => Ok(node),
            Some(_) => bail!("{name} is no channel adapter: name one that is"),
            None => bail!("the topology has no node {name}"),
        })
        .collect()
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

fn boot_time() -> anyhow::Result<Instant> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).context("CLOCK_BOOTTIME")?;
    let nanos = u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX);
    Ok(Instant::from_nanos(nanos))
}
