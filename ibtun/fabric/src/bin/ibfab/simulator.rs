// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Serves user-space programs without the kernel's InfiniBand stack: OpenSM and other programs that
//! use libibumad connect here if `libumad2sim.so` is preloaded. They take this for ibsim
//! ([`ibsim`]).

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::Context as _;
use ibarr_common::Instant;
use ibarr_common::ib::{PKey, Qpn, Sl};
use ibarr_common::wire::mad;
use ibarr_fabric::ibsim::{self, ClientInfo, Control, abstract_name, lid, lid_field};
use ibarr_fabric::topology::PortId;
use ibarr_fabric::wire::packet::{Datagram, GSI_QKEY, MAX_LEN, Packet};
use ibarr_fabric::wire::smp::{NODE_INFO, P_KEY_TABLE, PORT_INFO, PortInfoWire};
use ibarr_fabric::{Fabric, Input};
use zerocopy::{FromBytes, IntoBytes};

/// The server for ibsim's clients.
#[derive(Debug)]
pub(crate) struct Simulator {
    name: String,
    control: UnixDatagram,
    clients: Vec<Option<Client>>,
    /// Ports of clients that have disconnected.
    left: Vec<PortId>,
}

#[derive(Debug)]
struct Client {
    socket: UnixDatagram,
    port: PortId,
    is_manager: bool,
}

/// Limit of clients. The number of a client has to fit the upper 16 bits of a transaction id.
const MAX_CLIENTS: usize = 256;

impl Simulator {
    /// Serves clients whose `IBSIM_SOCKNAME` is `name`.
    pub(crate) fn listen(name: &str) -> anyhow::Result<Self> {
        let control = bind(name, ibsim::CONTROL)
            .with_context(|| format!("cannot serve as {name}: is there another?"))?;
        Ok(Self { name: name.to_owned(), control, clients: Vec::new(), left: Vec::new() })
    }

    /// The sockets to poll.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let clients = self.clients.iter().flatten().map(|client| client.socket.as_fd());
        std::iter::once(self.control.as_fd()).chain(clients)
    }

    /// Handles all received datagrams.
    pub(crate) fn read(&mut self, fabric: &mut Fabric, now: Instant) {
        // One byte more than the longest datagram, so that a longer one is recognized.
        let mut buffer = [0; size_of::<ibsim::Datagram>() + 1];
        while let Ok((len, from)) = self.control.recv_from(&mut buffer) {
            let control = buffer.get(..len).and_then(|bytes| Control::read_from_bytes(bytes).ok());
            let Some(mut control) = control.filter(|control| control.magic == ibsim::MAGIC) else {
                continue;
            };
            if self.serve(fabric, now, &mut control).is_none() {
                control.kind = ibsim::ERROR;
            }
            // A client that has gone misses the answer.
            let _ = self.control.send_to_addr(control.as_bytes(), &from);
        }
        for id in 0..self.clients.len() {
            self.read_client(fabric, now, id, &mut buffer);
        }
        self.settle(fabric, now);
    }

    /// Clears the IsSM bit of ports whose subnet manager has died.
    fn settle(&mut self, fabric: &mut Fabric, now: Instant) {
        for port in std::mem::take(&mut self.left) {
            let mut clients = self.clients.iter().flatten();
            if !clients.any(|client| client.port == port && client.is_manager) {
                fabric.handle_input(now, Input::Capabilities { port, mask: 0 });
            }
        }
    }

    fn read_client(&mut self, fabric: &mut Fabric, now: Instant, id: usize, buffer: &mut [u8]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        while let Some(Client { socket, port, .. }) = client {
            match socket.recv(buffer) {
                Ok(len) => {
                    let bytes = buffer.get(..len).unwrap_or_default();
                    if let Ok(request) = ibsim::Datagram::read_from_bytes(bytes)
                        && let Some(packet) = packet(fabric, *port, id, &request)
                    {
                        fabric.handle_input(now, Input::Packet { port: *port, packet: &packet });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.left.push(*port);
                    *client = None;
                }
            }
        }
    }

    /// Delivers a packet that arrived at a port: an answer to the client that asked, a request to
    /// the manager.
    pub(crate) fn write(&mut self, fabric: &mut Fabric, now: Instant, port: PortId, packet: &[u8]) {
        let Ok(packet) = Packet::parse(packet) else { return };
        let Ok((header, _)) = mad::Header::parse(packet.payload) else { return };
        let by_tid = usize::try_from(header.tid.get() >> 48).ok();
        let is_response = header.method.is_response();
        if !is_response {
            let is_manager = |client: &Option<Client>| {
                client.as_ref().is_some_and(|client| client.port == port && client.is_manager)
            };
            while let Some(manager) = self.clients.iter().position(is_manager) {
                if self.hand(manager, &packet, 0) {
                    return self.settle(fabric, now);
                }
            }
        }
        // Clients have no time-outs of their own, so a client whose request found no receiver gets
        // an error.
        let status = if is_response { 0 } else { ETIMEDOUT };
        if let Some(client) = by_tid {
            self.hand(client, &packet, status);
        }
        self.settle(fabric, now);
    }

    /// `false` if the client is gone.
    fn hand(&mut self, id: usize, packet: &Packet<'_>, status: u32) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        let Some(Client { socket, port, .. }) = client else { return false };
        let mut mad = [0; mad::LEN];
        mad.iter_mut().zip(packet.payload).for_each(|(to, from)| *to = *from);
        let datagram = ibsim::Datagram {
            dlid: lid_field(Some(packet.dlid)),
            slid: lid_field(packet.slid),
            dqp: packet.destination.get().into(),
            sqp: packet.source.map_or(0, Qpn::get).into(),
            status: status.into(),
            padding: 0,
            length: (mad::LEN as u64).into(),
            mad,
        };
        match socket.send(datagram.as_bytes()) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                self.left.push(*port);
                *client = None;
                false
            }
            _ => true,
        }
    }

    /// `None` if the request is refused.
    fn serve(&mut self, fabric: &mut Fabric, now: Instant, control: &mut Control) -> Option<()> {
        if control.kind == ibsim::CONNECT {
            return self.connect(fabric, control);
        }
        let id = usize::try_from(control.client).ok()?;
        let client = self.clients.get_mut(id)?;
        let port = client.as_ref()?.port;
        match control.kind {
            ibsim::DISCONNECT => {
                self.left.push(port);
                *client = None;
            }
            ibsim::GET_VENDOR => control.data.fill(0),
            ibsim::GET_NODEINFO => control.data = fabric.attribute(port, NODE_INFO, 0)?,
            ibsim::GET_PORTINFO => {
                let [number, ..] = control.data;
                control.data = fabric.attribute(port, PORT_INFO, number.into())?;
            }
            ibsim::GET_PKEYS => control.data = fabric.attribute(port, P_KEY_TABLE, 0)?,
            ibsim::SET_ISSM => {
                let is_manager = control.data.iter().take(4).any(|&byte| byte != 0);
                client.as_mut()?.is_manager = is_manager;
                let mask = if is_manager { PortInfoWire::IS_SM } else { 0 };
                fabric.handle_input(now, Input::Capabilities { port, mask });
            }
            _ => return None,
        }
        Some(())
    }

    fn connect(&mut self, fabric: &Fabric, control: &mut Control) -> Option<()> {
        let (mut info, _) = ClientInfo::read_from_prefix(&control.data).ok()?;
        let name = info.node.split(|&byte| byte == 0).next()?;
        let name = std::str::from_utf8(name).ok()?;
        let topology = fabric.topology();
        // Without a name, the first port that can be used.
        let port = match name {
            "" => topology.nodes().find_map(|(_, node)| topology.find_port(&node.name))?,
            name => topology.find_port(name)?,
        };
        let free = self.clients.iter().position(Option::is_none);
        let id = free.unwrap_or(self.clients.len());
        if id >= MAX_CLIENTS {
            return None;
        }
        let number = u32::try_from(id).ok()?;
        let socket = bind(&self.name, &ibsim::server_name(number)).ok()?;
        socket.connect_addr(&address(&self.name, &ibsim::client_name(info.id)).ok()?).ok()?;
        let client = Some(Client { socket, port, is_manager: info.is_manager != 0 });
        match self.clients.get_mut(id) {
            Some(slot) => *slot = client,
            None => self.clients.push(client),
        }
        info.id = number;
        info.node.fill(0);
        let node = &topology.node(port.node)?.name;
        info.node.iter_mut().zip(node.bytes().take(31)).for_each(|(to, from)| *to = from);
        control.client = number;
        control.data.iter_mut().zip(info.as_bytes()).for_each(|(to, from)| *to = *from);
        Some(())
    }
}

/// The packet of a client's request. `None` if there is no such packet.
fn packet(fabric: &Fabric, port: PortId, id: usize, request: &ibsim::Datagram) -> Option<Vec<u8>> {
    let mut mad = request.mad;
    let (header, _) = mad::Header::parse(&mad).ok()?;
    if !header.method.is_response() {
        // The client's number in the transaction id routes the answer, as in ibsim.
        let id = u16::try_from(id).ok()?.to_be_bytes();
        mad.iter_mut().skip(8).zip(id).for_each(|(to, from)| *to = from);
    }
    let destination = Qpn::new(request.dqp.get())?;
    let is_smp = destination == Qpn::SMI;
    let own = fabric.port_config(port)?.lid;
    let datagram = Datagram {
        vl: if is_smp { 15 } else { 0 },
        sl: Sl::default(),
        dlid: lid(request.dlid)?,
        slid: lid(request.slid).or(own),
        grh: None,
        pkey: PKey::DEFAULT,
        destination,
        qkey: if is_smp { 0 } else { GSI_QKEY },
        source: Qpn::new(request.sqp.get())?,
    };
    let mut bytes = vec![0; MAX_LEN];
    let len = datagram.emit(&mad, &mut bytes)?;
    bytes.truncate(len);
    Some(bytes)
}

fn bind(name: &str, end: &str) -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind_addr(&address(name, end)?)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn address(name: &str, end: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(abstract_name(name, end))
}

/// The kernel's error for a request without an answer.
const ETIMEDOUT: u32 = 110;
