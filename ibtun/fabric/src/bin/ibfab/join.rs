// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab join`: the device of a host whose fabric runs elsewhere.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::Context as _;
use ibarr_common::Instant;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::cli::JoinArgs;
use crate::device::{BUFFER_LEN, Device, Record};
use crate::remote::{Address, HELLO, MAX_DATAGRAM, Message, Socket, parse_address};
use crate::run::{boot_time, read_topology};

pub(crate) fn run(args: &JoinArgs) -> anyhow::Result<()> {
    let topology = read_topology(&args.topology)?;
    let node = topology.find(&args.node).and_then(|node| topology.node(node));
    let node = node.with_context(|| format!("the topology has no node {}", args.node))?;
    let fabric = parse_address(&args.fabric)?;
    let own = match (&args.bind, &fabric) {
        (Some(own), _) => own.clone(),
        (None, Address::Udp(address)) if address.is_ipv6() => "udp:[::]:0".to_owned(),
        (None, Address::Udp(_)) => "udp:0.0.0.0:0".to_owned(),
        (None, Address::Unix(path)) => format!("unix:{}.{}", path.display(), node.name),
    };
    let socket = Socket::bind(&own).with_context(|| format!("cannot use {own}"))?;
    let device = Device::create(&args.ibtun, node)?;
    eprintln!("ibfab: {} is {}", node.name, device.name());
    let capabilities = BTreeMap::new();
    let due = boot_time()?;
    Host { name: node.name.clone(), fabric, socket, device, capabilities, due }.run()
}

struct Host {
    name: String,
    fabric: Address,
    socket: Socket,
    device: Device,
    /// The latest capability records by port, to be repeated.
    capabilities: BTreeMap<u8, Vec<u8>>,
    /// When the next hello is due.
    due: Instant,
}

impl Host {
    fn run(mut self) -> anyhow::Result<()> {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let now = boot_time()?;
            if now >= self.due {
                self.due = now + HELLO;
                self.socket.send(&Message::Hello(&self.name).emit(), &self.fabric);
                for message in self.capabilities.values() {
                    self.socket.send(message, &self.fabric);
                }
            }
            let left = self.due.since(now) + Duration::from_micros(999);
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [self.socket.as_fd(), self.device.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("cannot wait"),
            }
            self.take_from_device(&mut buffer)?;
            self.take_from_fabric()?;
        }
    }

    fn take_from_device(&mut self, buffer: &mut [u8]) -> anyhow::Result<()> {
        let Some(records) = self.device.read(buffer)? else { return Ok(()) };
        for record in records {
            let message = match record {
                Record::Packet { port, packet } => Message::Packet { port, packet }.emit(),
                Record::Capabilities { port, mask } => {
                    let message = Message::Capabilities { port, mask }.emit();
                    self.capabilities.insert(port.get(), message.clone());
                    message
                }
            };
            self.socket.send(&message, &self.fabric);
        }
        Ok(())
    }

    fn take_from_fabric(&mut self) -> anyhow::Result<()> {
        let mut buffer = [0; MAX_DATAGRAM + 1];
        while let Some((len, from)) = self.socket.receive(&mut buffer) {
            if from != self.fabric {
                continue;
            }
            match buffer.get(..len).and_then(Message::parse) {
                Some(Message::Packet { port, packet }) => self.device.write(port, packet)?,
                Some(Message::Config { port, config, reregister }) => {
                    // Packets before it were for the port as it was.
                    self.device.flush()?;
                    self.device.configure(port, &config, reregister)?;
                }
                _ => {}
            }
        }
        self.device.flush()
    }
}
