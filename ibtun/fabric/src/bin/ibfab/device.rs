// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A channel adapter of this machine: a descriptor of `/dev/ibtun`, and the records that pass
//! through it.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use ibarr_common::ib::{Lid, PKey, PortNum};
use ibarr_fabric::PortConfig;
use ibarr_fabric::ibtun::{self, CAPABILITIES, PACKET, VERSION};
use ibarr_fabric::topology::Node;
use ibarr_fabric::wire::packet;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::sys;

/// The channel adapter exists until this is dropped.
#[derive(Debug)]
pub(crate) struct Device {
    file: File,
    name: String,
    /// A sum of [`ibtun::Behaviour`]s.
    behaviours: u32,
    /// Records to be written, see [`Device::flush`].
    unwritten: VecDeque<Unwritten>,
}

/// A record for the kernel.
#[derive(Debug)]
struct Unwritten {
    header: ibtun::Record,
    packet: Vec<u8>,
}

/// A record from the kernel.
#[derive(Debug)]
pub(crate) enum Record<'a> {
    /// The kernel sends a packet.
    Packet { port: PortNum, packet: &'a [u8] },
    /// The software behind a port has changed its capabilities.
    Capabilities { port: PortNum, mask: u32 },
}

/// Size of a read buffer in bytes: some twenty of the largest records.
pub(crate) const BUFFER_LEN: usize = 96 * 1024;

/// How many records one system call writes: two parts each, and Linux takes 1024 (`UIO_MAXIOV`).
const MAX_UNWRITTEN: usize = 512;

impl Device {
    /// Makes a channel adapter for `node`.
    pub(crate) fn create(path: &Path, node: &Node) -> anyhow::Result<Self> {
        let name = &node.name;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
            .with_context(|| format!("cannot open {}: load ibtun.ko first", path.display()))?;
        if usize::from(node.port_count()) > ibtun::MAX_PORTS {
            bail!("{name} has more than {} ports: a device cannot", ibtun::MAX_PORTS);
        }
        let mut create = ibtun::Create {
            version: VERSION.into(),
            ports: node.port_count(),
            mtu: 0,
            pkeys: 32,
            guids: 32,
            reserved: 0,
            queue: 0,
            node_guid: node.guid.get().to_be_bytes(),
            system_image_guid: node.system_image_guid.get().to_be_bytes(),
            port_guid: [[0; 8]; ibtun::MAX_PORTS],
            node_desc: [0; 64],
            name: [0; 64],
        };
        let guids = node.port_numbers().filter_map(|number| node.port_guid(number));
        create
            .port_guid
            .iter_mut()
            .zip(guids)
            .for_each(|(to, guid)| *to = guid.get().to_be_bytes());
        // The text must end with a NUL.
        let description = node.description.bytes().take(63);
        create.node_desc.iter_mut().zip(description).for_each(|(to, from)| *to = from);
        sys::create(file.as_fd(), &mut create)
            .map_err(|errno| refusal(errno, create.version))
            .with_context(|| format!("cannot make a device of {name}"))?;
        let device = create.name.split(|&byte| byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(device).into_owned();
        Ok(Self { file, name, behaviours: 0, unwritten: VecDeque::new() })
    }

    /// The kernel's name of the device.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the available records, at most `buffer`. `None` if there are none at present.
    pub(crate) fn read<'a>(&mut self, buffer: &'a mut [u8]) -> anyhow::Result<Option<Records<'a>>> {
        match self.file.read(buffer) {
            Ok(len) => Ok(Some(Records(buffer.get(..len).unwrap_or_default()))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{}: cannot read", self.name)),
        }
    }

    /// Delivers a packet to a port, with the next [`Device::flush`] at the latest.
    pub(crate) fn write(&mut self, port: PortNum, packet: Vec<u8>) -> anyhow::Result<()> {
        self.unwritten.push_back(Unwritten { header: header(port, PACKET, packet.len()), packet });
        if self.unwritten.len() < MAX_UNWRITTEN { Ok(()) } else { self.flush() }
    }

    /// Delivers all packets. One system call for many packets costs less than one for each, and the kernel takes
    /// them from where they are.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        while !self.unwritten.is_empty() {
            let parts = self.unwritten.iter().flat_map(|Unwritten { header, packet }| {
                [IoSlice::new(header.as_bytes()), IoSlice::new(packet)]
            });
            let parts: Vec<_> = parts.collect();
            let mut written = match self.file.write_vectored(&parts) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                written => written.with_context(|| format!("{}: cannot write", self.name))?,
            };
            if written == 0 {
                bail!("{}: it takes nothing", self.name);
            }
            // The kernel takes whole records, perhaps not all.
            while let Some(Unwritten { header, packet }) = self.unwritten.front()
                && let Some(left) = written.checked_sub(header.as_bytes().len() + packet.len())
            {
                written = left;
                self.unwritten.pop_front();
            }
        }
        Ok(())
    }

    /// Sets the state that a subnet manager has given a port.
    pub(crate) fn configure(
        &self,
        port: PortNum,
        config: &PortConfig,
        reregister: bool,
    ) -> anyhow::Result<()> {
        let fd = self.file.as_fd();
        let number = port.get();
        sys::set_guids(fd, &guids(number, config))
            .and_then(|()| sys::set_pkeys(fd, &pkeys(number, config)))
            .and_then(|()| sys::set_port(fd, &port_info(number, config)))
            .and_then(|()| if reregister { sys::reregister(fd, number) } else { Ok(()) })
            .with_context(|| format!("{}: cannot set port {port} to {config:?}", self.name))
    }

    /// Breaks a queue pair.
    pub(crate) fn fault(&self, fault: &ibtun::Fault) -> anyhow::Result<()> {
        let qp = format!("queue pair {} of {}", fault.qpn, self.name);
        sys::fault(self.file.as_fd(), fault).map_err(|errno| match errno {
            Errno::ENOENT => {
                anyhow!("no {qp}, or no such queue of it: `rdma resource show qp` lists them")
            }
            Errno::EALREADY => anyhow!("{qp} is in error already"),
            Errno::EOPNOTSUPP => anyhow!("{qp} has no connection that crosses the fabric"),
            errno => anyhow!("{qp}: {errno}"),
        })
    }

    /// Whether it behaves so.
    pub(crate) fn behaves(&self, behaviour: ibtun::Behaviour) -> bool {
        self.behaviours & behaviour as u32 != 0
    }

    /// Makes it behave so, or no longer.
    pub(crate) fn behave(&mut self, behaviour: ibtun::Behaviour, on: bool) -> anyhow::Result<()> {
        let bit = behaviour as u32;
        let behaviours = if on { self.behaviours | bit } else { self.behaviours & !bit };
        let set = ibtun::Behaviours { on: behaviours, reserved: 0 };
        sys::set_behaviour(self.file.as_fd(), set).map_err(|errno| match errno {
            Errno::ENOTTY => anyhow!("{}: the module ibtun is too old for this", self.name),
            Errno::EOPNOTSUPP => anyhow!("{}: the kernel has no trace events", self.name),
            errno => anyhow!("{}: {errno}", self.name),
        })?;
        self.behaviours = behaviours;
        Ok(())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Why the module makes no device. It then says which version it speaks, unless it is too old to.
fn refusal(errno: Errno, module: u32) -> anyhow::Error {
    let own = u32::from(VERSION);
    match errno {
        Errno::EPERM => anyhow!("root is needed"),
        Errno::EPROTONOSUPPORT if module > own => anyhow!(
            "the module ibtun speaks version {module}, and this ibfab {own}: install the ibfab of \
             the module's release"
        ),
        Errno::EPROTONOSUPPORT => {
            let module = if module < own {
                format!("version {module}")
            } else {
                "another version".to_owned()
            };
            anyhow!(
                "the module ibtun speaks {module}, and ibfab needs {own}: install the module of \
                 this ibfab's release, then `modprobe -r ibtun` and `modprobe ibtun`"
            )
        }
        errno => anyhow!("{errno}"),
    }
}

fn port_info(port: u8, config: &PortConfig) -> ibtun::Port {
    ibtun::Port {
        port,
        state: config.state.get(),
        phys_state: config.physical_state.get(),
        mtu: config.mtu,
        lmc: config.lmc,
        sm_sl: config.sm_sl.get(),
        subnet_timeout: config.subnet_timeout,
        width: config.width,
        speed: config.speed.into(),
        lid: config.lid.map_or(0, Lid::get),
        sm_lid: config.sm_lid.map_or(0, Lid::get),
        reserved: 0,
        cap_mask: config.capability_mask,
        reserved2: 0,
        gid_prefix: config.gid_prefix.get().to_be_bytes(),
    }
}

fn pkeys(port: u8, config: &PortConfig) -> ibtun::PKeys {
    let mut pkey = [0; ibtun::MAX_PKEYS];
    let filled = pkey.iter_mut().zip(&config.pkeys);
    let count = filled.map(|(to, from)| *to = from.map_or(0, PKey::get)).count();
    let count = u16::try_from(count).unwrap_or(u16::MAX);
    ibtun::PKeys { port, reserved: 0, count, reserved2: 0, pkey }
}

fn guids(port: u8, config: &PortConfig) -> ibtun::Guids {
    let mut guid = [[0; 8]; ibtun::MAX_GUIDS];
    let filled = guid.iter_mut().zip(&config.guids);
    let count = filled.map(|(to, from)| *to = from.get().to_be_bytes()).count();
    let count = u16::try_from(count).unwrap_or(u16::MAX);
    ibtun::Guids { port, reserved: 0, count, reserved2: 0, guid }
}

/// The header of a record whose body has `len` bytes.
fn header(port: PortNum, kind: u8, len: usize) -> ibtun::Record {
    let length = size_of::<ibtun::Record>() + len;
    ibtun::Record {
        version: VERSION,
        kind,
        port: port.get(),
        reserved: 0,
        // A body has at most `packet::MAX_LEN` bytes.
        length: u32::try_from(length).unwrap_or(u32::MAX),
        time: 0,
    }
}

/// Iterates over records; ends at the first that is malformed.
#[derive(Debug)]
pub(crate) struct Records<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            let (header, _) = ibtun::Record::read_from_prefix(self.0).ok()?;
            let length =
                usize::try_from(header.length).ok().filter(|_| header.version == VERSION)?;
            let body = self.0.get(size_of::<ibtun::Record>()..length)?;
            self.0 = self.0.get(length..)?;
            let port = PortNum::new(header.port)?;
            match header.kind {
                PACKET if body.len() <= packet::MAX_LEN => {
                    return Some(Record::Packet { port, packet: body });
                }
                CAPABILITIES => {
                    let (mask, _) = u32::read_from_prefix(body).ok()?;
                    return Some(Record::Capabilities { port, mask });
                }
                // A record of a later version.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_of_another_version_is_named() {
        let own = u32::from(VERSION);
        for (module, expected) in [
            (
                own - 1,
                format!("speaks version {}, and ibfab needs {own}: install the module", own - 1),
            ),
            (own, format!("speaks another version, and ibfab needs {own}: install the module")),
            (
                own + 1,
                format!("speaks version {}, and this ibfab {own}: install the ibfab", own + 1),
            ),
        ] {
            let said = refusal(Errno::EPROTONOSUPPORT, module).to_string();
            assert!(said.contains(&expected), "{said}");
        }
        assert_eq!(refusal(Errno::EPERM, own).to_string(), "root is needed");
        assert!(refusal(Errno::EINVAL, own).to_string().contains("EINVAL"));
    }

    #[test]
    fn record_of_another_version_ends_the_records() {
        let body = b"packet";
        let header = header(PortNum::new(1).unwrap(), PACKET, body.len());
        let mut bytes = [header.as_bytes(), body].concat();
        assert_eq!(Records(&bytes).count(), 1);
        bytes[0] = VERSION + 1;
        assert_eq!(Records(&bytes).count(), 0);
    }
}
