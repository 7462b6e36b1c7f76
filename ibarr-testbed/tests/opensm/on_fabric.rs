// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A port of a channel adapter in the fabric of an `ibfab run --umad2sim`, beside OpenSM and other
//! programs.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid};
use ibarr_common::wire::mad::{self, Header};
use ibarr_fabric::ibsim::{self, ClientInfo, Control, Datagram};
use ibarr_fabric::wire::smp::{self, NodeInfoWire, PortInfoWire};
use ibarr_testbed::umad::{PortState, Sent, Shown, Wire};
use ibarr_user::sys::clock;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// See the module.
#[derive(Debug)]
pub(crate) struct OnFabric {
    control: UnixDatagram,
    mads: UnixDatagram,
    client: u32,
    guid: u64,
    look_at: Instant,
    /// The PortInfo of the last look, as far as it has arrived.
    info: Option<PortInfoWire>,
    shown: Option<Shown>,
    changed: Option<Shown>,
    received: VecDeque<(Lid, [u8; mad::LEN])>,
}

/// How often to look: the fabric does not announce that a subnet manager has changed a port.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl OnFabric {
    /// Connects as the host of `node` to the fabric that is served as `name`.
    pub(crate) fn connect(name: &str, node: &str) -> Result<Self> {
        let id = own_number();
        let address = |end: &str| SocketAddr::from_abstract_name(ibsim::abstract_name(name, end));
        let control = UnixDatagram::bind_addr(&address(&format!("ctl{id}"))?)?;
        control
            .connect_addr(&address(ibsim::CONTROL)?)
            .with_context(|| format!("no fabric is served as {name}"))?;
        control.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mads = UnixDatagram::bind_addr(&address(&ibsim::client_name(id))?)?;
        let mut info = ClientInfo { id, qp: 0, is_manager: 0, node: [0; 32] };
        info.node.iter_mut().zip(node.bytes().take(31)).for_each(|(to, from)| *to = from);
        let answer = ask(&control, 0, ibsim::CONNECT, info.as_bytes())
            .with_context(|| format!("the fabric refuses a client on {node}"))?;
        let client = answer.client;
        mads.connect_addr(&address(&ibsim::server_name(client))?)?;
        let answer = ask(&control, client, ibsim::GET_NODEINFO, &[])?;
        let (node, _) = NodeInfoWire::read_from_prefix(&answer.data)
            .map_err(|_| anyhow::anyhow!("NodeInfo is truncated"))?;
        control.set_nonblocking(true)?;
        mads.set_nonblocking(true)?;
        Ok(Self {
            control,
            mads,
            client,
            guid: node.port_guid.get(),
            look_at: clock::now(),
            info: None,
            shown: None,
            changed: None,
            received: VecDeque::new(),
        })
    }

    fn take_mads(&mut self) {
        let mut datagram = Datagram::new_zeroed();
        while let Ok(len) = self.mads.recv(datagram.as_mut_bytes()) {
            // The device, and not the wire, returns unanswered MADs at their time-out.
            if len != size_of::<Datagram>() || datagram.status.get() != 0 {
                continue;
            }
            let Some(from) = ibsim::lid(datagram.slid) else { continue };
            let mut mad = datagram.mad;
            // Remove the number of the client, which a kernel would not see. A request of another
            // client keeps that client's number.
            if Header::parse(&mad).is_ok_and(|(header, _)| header.method.is_response()) {
                mad.iter_mut().skip(8).take(2).for_each(|byte| *byte = 0);
            }
            self.received.push_back((from, mad));
        }
    }

    fn take_answers(&mut self) {
        let mut control = Control::new_zeroed();
        while matches!(self.control.recv(control.as_mut_bytes()), Ok(80)) {
            match control.kind {
                ibsim::GET_PORTINFO => {
                    self.info =
                        PortInfoWire::read_from_prefix(&control.data).ok().map(|(it, _)| it);
                }
                ibsim::GET_PKEYS => {
                    let Some(info) = self.info.take() else { continue };
                    let shown = Some(shown(&info, self.guid, &control.data));
                    if self.shown != shown {
                        self.changed.clone_from(&shown);
                        self.shown = shown;
                    }
                }
                _ => {}
            }
        }
    }

    fn look(&self) {
        for kind in [ibsim::GET_PORTINFO, ibsim::GET_PKEYS] {
            let control =
                Control { magic: ibsim::MAGIC, client: self.client, kind, len: 64, data: [0; 64] };
            // If the fabric has ended, the port stays as it was.
            let _ = self.control.send(control.as_bytes());
        }
    }
}

impl Wire for OnFabric {
    fn send(&mut self, _: Instant, sent: &Sent) {
        let datagram = Datagram {
            dlid: ibsim::lid_field(Some(sent.to)),
            slid: ibsim::lid_field(None),
            dqp: sent.qpn.into(),
            sqp: sent.qpn.into(),
            status: 0.into(),
            padding: 0,
            length: (mad::LEN as u64).into(),
            mad: sent.mad,
        };
        match self.mads.send(datagram.as_bytes()) {
            // A MAD without room is lost, as on a wire.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => eprintln!("fabric: {error}"),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.take_mads();
        self.take_answers();
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            self.look();
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.look_at)
    }

    fn poll_received(&mut self) -> Option<(Lid, [u8; mad::LEN])> {
        self.received.pop_front()
    }

    fn poll_state(&mut self) -> Option<Shown> {
        self.changed.take()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.mads.as_fd(), self.control.as_fd()]
    }
}

fn ask(control: &UnixDatagram, client: u32, kind: u32, data: &[u8]) -> Result<Control> {
    let len = u32::try_from(data.len())?;
    let mut message = Control { magic: ibsim::MAGIC, client, kind, len, data: [0; 64] };
    message.data.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    control.send(message.as_bytes())?;
    control.recv(message.as_mut_bytes())?;
    ensure!(message.kind == kind, "refused");
    Ok(message)
}

fn shown(info: &PortInfoWire, guid: u64, pkeys: &[u8]) -> Shown {
    let own = u128::from(info.gid_prefix.get()) << 64 | u128::from(guid);
    let own = Gid::new(own.to_be_bytes());
    Shown {
        state: match info.state() {
            smp::PortState::Down => PortState::Down,
            smp::PortState::Initialize => PortState::Initialize,
            smp::PortState::Armed => PortState::Armed,
            smp::PortState::Active => PortState::Active,
        },
        lid: info.lid(),
        lmc: info.lmc(),
        sm_lid: info.sm_lid(),
        sm_sl: info.sm_sl(),
        gids: own.into_iter().collect(),
        pkeys: pkeys.chunks_exact(2).map(|key| u16::from_be_bytes([key[0], key[1]])).collect(),
    }
}

/// A number that identifies this client. Other programs use their process id.
fn own_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    std::process::id() << 8 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xff
}
