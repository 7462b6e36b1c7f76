// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab join`: the device of a host whose fabric runs elsewhere.

use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::Context as _;
use ibarr_fabric::remote::{Address, Event, Host, MAX_DATAGRAM, Message, Refusals};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::cli::JoinArgs;
use crate::device::{BUFFER_LEN, Device, Record};
use crate::run::{boot_time, raise_priority, read_topology};
use crate::socket::{Socket, check_local, read_key, refuse, seed};

pub(crate) fn run(args: &JoinArgs) -> anyhow::Result<()> {
    let topology = read_topology(&args.topology)?;
    let node = topology.find(&args.node).and_then(|node| topology.node(node));
    let node = node.with_context(|| format!("the topology has no node {}", args.node))?;
    let key = args.key.as_deref().map(read_key).transpose()?;
    check_local(&args.fabric, key.as_ref())
        .with_context(|| format!("cannot join at {}", args.fabric))?;
    let own = match &args.bind {
        Some(own) => own.clone(),
        None => own_address(&args.fabric, &node.name)?,
    };
    let socket = Socket::bind(&own, key.as_ref()).with_context(|| format!("cannot use {own}"))?;
    let device = Device::create(&args.ibtun, node)?;
    eprintln!("ibfab: {} is {}", node.name, device.name());
    raise_priority();
    let host = Host::new(node.name.clone(), key, seed()?, boot_time()?);
    let fabric = args.fabric.clone();
    Joined { host, fabric, socket, device, refusals: Refusals::default() }.run()
}

/// The address of a host that was told none: any that the fabric can be reached from.
fn own_address(fabric: &Address, name: &str) -> anyhow::Result<Address> {
    let text = match fabric {
        Address::Udp(address) if address.ip().is_loopback() => format!("udp:{}", {
            let mut own = *address;
            own.set_port(0);
            own
        }),
        Address::Udp(address) if address.is_ipv6() => "udp:[::]:0".to_owned(),
        Address::Udp(_) => "udp:0.0.0.0:0".to_owned(),
        Address::Unix(path) => format!("unix:{}.{name}", path.display()),
    };
    Ok(text.parse()?)
}

struct Joined {
    host: Host,
    fabric: Address,
    socket: Socket,
    device: Device,
    refusals: Refusals,
}

impl Joined {
    fn run(mut self) -> anyhow::Result<()> {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let now = boot_time()?;
            self.host.handle_timeout(now);
            self.hand_out();
            let left = self.host.poll_timeout().since(now) + Duration::from_micros(999);
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
            match record {
                Record::Packet { port, packet } => self.host.write(port, packet),
                Record::Capabilities { port, mask } => self.host.set_capabilities(port, mask),
            }
            self.hand_out();
        }
        Ok(())
    }

    fn take_from_fabric(&mut self) -> anyhow::Result<()> {
        let now = boot_time()?;
        let mut buffer = [0; MAX_DATAGRAM + 1];
        while let Some((datagram, from)) = self.socket.receive(&mut buffer) {
            if from != self.fabric {
                continue;
            }
            match self.host.handle_datagram(now, datagram) {
                Ok(Some(Message::Packet { port, packet })) => {
                    self.device.write(port, packet.to_vec())?;
                }
                Ok(Some(Message::Config { port, config, reregister })) => {
                    // Packets before it were for the port as it was.
                    self.device.flush()?;
                    self.device.configure(port, &config, reregister)?;
                }
                Ok(_) => {}
                Err(refusal) => refuse(&mut self.refusals, refusal, &from),
            }
            self.hand_out();
        }
        self.device.flush()
    }

    fn hand_out(&mut self) {
        while let Some(datagram) = self.host.poll_transmit() {
            self.socket.send(&datagram, &self.fabric);
        }
        while let Some(event) = self.host.poll_event() {
            let fabric = &self.fabric;
            match event {
                Event::Joined => eprintln!("ibfab: joined the fabric at {fabric}"),
                Event::Lost => eprintln!(
                    "ibfab: the fabric at {fabric} does not answer: does it run there, listen, \
                     and have the same version and key? `ibfab show` there says what it refuses"
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_address_is_local_if_that_of_the_fabric_is() {
        for (fabric, own) in [
            ("udp:127.0.0.1:7471", "udp:127.0.0.1:0"),
            ("udp:[::1]:7471", "udp:[::1]:0"),
            ("udp:192.0.2.1:7471", "udp:0.0.0.0:0"),
            ("udp:[2001:db8::1]:7471", "udp:[::]:0"),
            ("unix:/run/fabric", "unix:/run/fabric.H1"),
        ] {
            assert_eq!(own_address(&fabric.parse().unwrap(), "H1").unwrap().to_string(), own);
        }
    }
}
