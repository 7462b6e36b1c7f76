// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab run`: the loop between the devices of this machine and the fabric.

use std::fs;
use std::os::fd::AsFd as _;
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
use crate::device::{BUFFER_LEN, Device, Record};

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let path = args.topology.display();
    let text = fs::read_to_string(&args.topology).with_context(|| format!("cannot read {path}"))?;
    let topology: Topology = text.parse().with_context(|| path.to_string())?;
    let mut devices = Vec::new();
    for node in chosen(&topology, &args.devices)? {
        if let Some(built) = topology.node(node) {
            let device = Device::create(&args.ibtun, built)?;
            eprintln!("ibfab: {} is {}", built.name, device.name());
            devices.push((node, device));
        }
    }
    let mut fabric = Fabric::new(topology, args.seed);
    let now = boot_time()?;
    for (node, _) in &devices {
        fabric.handle_input(now, Input::Attach(*node));
    }
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        hand_out(&mut fabric, &mut devices)?;
        wait(&fabric, &devices)?;
        let now = boot_time()?;
        fabric.handle_timeout(now);
        for (node, device) in &mut devices {
            if let Some(records) = device.read(&mut buffer)? {
                for record in records {
                    fabric.handle_input(now, input(*node, &record));
                }
            }
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

/// What the fabric has for the devices.
fn hand_out(fabric: &mut Fabric, devices: &mut [(NodeId, Device)]) -> anyhow::Result<()> {
    while let Some(Event::Port { port, config, reregister }) = fabric.poll_event() {
        if let Some((_, device)) = devices.iter().find(|(node, _)| *node == port.node) {
            device.configure(port.number, &config, reregister)?;
        }
    }
    while let Some((port, packet)) = fabric.poll_transmit() {
        if let Some((_, device)) = devices.iter_mut().find(|(node, _)| *node == port.node) {
            device.write(port.number, &packet)?;
        }
    }
    Ok(())
}

/// Sleeps until a device has something, or the fabric is due.
fn wait(fabric: &Fabric, devices: &[(NodeId, Device)]) -> anyhow::Result<()> {
    let timeout = match fabric.poll_timeout() {
        None => PollTimeout::NONE,
        Some(due) => {
            // Rounded up, so that it is due when we wake.
            let left = due.since(boot_time()?) + Duration::from_micros(999);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        }
    };
    let mut fds: Vec<_> =
        devices.iter().map(|(_, device)| PollFd::new(device.as_fd(), PollFlags::POLLIN)).collect();
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait"),
    }
}

fn boot_time() -> anyhow::Result<Instant> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).context("CLOCK_BOOTTIME")?;
    let nanos = u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX);
    Ok(Instant::from_nanos(nanos))
}
