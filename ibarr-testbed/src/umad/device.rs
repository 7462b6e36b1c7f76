// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A Unix socket in place of `/dev/infiniband/umadN`. A daemon connects to it where it would open a device
//! and register its agent, and then reads and writes what it would at drivers/infiniband/core/user_mad.c.
//!
//! **The stand-in is no kinder than the kernel.** It gives an answer only to the connection that asked, owns
//! the upper half of a transaction id, closes a connection whose message the kernel would refuse, and returns
//! 24 bytes of an unanswered MAD. It sends nothing twice, whatever `retries` says.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::mad::{self, Class, Header, Tid};
use ibarr_common::wire::umad::{AgentId, HeaderWire, MAX_LEN, Received};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use zerocopy::FromBytes as _;

/// The device of a port, and its connections.
#[derive(Debug)]
pub(super) struct Device {
    /// By the upper half of their transaction ids.
    open: BTreeMap<u32, Arc<UnixStream>>,
    /// Connections whose loss the daemon was not told.
    dead: Vec<Arc<UnixStream>>,
    next: u32,
    /// MADs that wait for an answer, by their whole transaction id.
    waiting: BTreeMap<Tid, Waiting>,
    is_gone: bool,
}

/// A MAD that leaves the port.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Sent {
    pub to: Lid,
    /// The destination queue pair.
    pub qpn: u32,
    /// The bytes of the MAD.
    pub mad: [u8; mad::LEN],
}

/// What a daemon notices when a device vanishes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Loss {
    /// Reads and writes fail, as since Linux 5.12.
    Told,
    /// Only writes fail; reads never end.
    OnlyToWriters,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    class: Class,
    until: Instant,
    /// The header that is returned if there is no answer.
    header: [u8; MAD_HEADER],
}

/// Bytes of the common MAD header.
const MAD_HEADER: usize = 24;
/// The agent of every connection.
const AGENT: AgentId = AgentId(0);

pub(super) fn listen_at(path: &Path) -> Result<UnixListener> {
    // A port before this one may have left its socket.
    let _ = fs::remove_file(path);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .context("cannot make a socket")?;
    // The Rust type is a stream; the kernel's socket has packets.
    bind(listener.as_raw_fd(), &UnixAddr::new(path)?)
        .and_then(|()| listen(&listener, Backlog::new(8)?))
        .with_context(|| format!("cannot listen at {}", path.display()))?;
    Ok(listener.into())
}

impl Device {
    pub(super) fn new() -> Self {
        let (open, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { open, dead: Vec::new(), next: 0, waiting, is_gone: false }
    }

    /// Takes a new connection. Closes it while the device is gone.
    pub(super) fn open(&mut self, socket: UnixStream) -> Result<()> {
        socket.set_nonblocking(true)?;
        if !self.is_gone {
            self.next += 1;
            self.open.insert(self.next, Arc::new(socket));
        }
        Ok(())
    }

    /// The connections to watch for messages.
    pub(super) fn sockets(&self) -> Vec<Arc<UnixStream>> {
        self.open.values().cloned().collect()
    }

    /// Reads what was written, and closes connections that have ended.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Sent> {
        let (mut sent, mut buffer) = (Vec::new(), [0; MAX_LEN + 1]);
        let waiting = &mut self.waiting;
        self.open.retain(|&high, socket| {
            loop {
                let written = match (&**socket).read(&mut buffer) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                    Ok(len @ 1..) => {
                        buffer.get(..len).and_then(|bytes| write(waiting, high, now, bytes))
                    }
                    Ok(0) | Err(_) => None,
                };
                match written {
                    Some(mad) => sent.push(mad),
                    None => break,
                }
            }
            waiting.retain(|tid, _| upper_half(*tid) != high);
            false
        });
        sent
    }

    /// The port receives a MAD. It is dropped if it is no answer to a sent MAD.
    pub(super) fn receive(&mut self, from: Lid, mad: &[u8; mad::LEN]) {
        let Ok((header, _)) = Header::parse(mad) else { return };
        let received = Received::Mad { agent: AGENT, from: Some(from), mad };
        let bytes = received.emit(mad);
        let asked = |waiting: &Waiting| waiting.class == header.class;
        if header.method.is_response() && self.waiting.get(&header.tid).is_some_and(asked) {
            self.waiting.remove(&header.tid);
            if let Some(socket) = self.open.get(&upper_half(header.tid)) {
                give(socket, bytes.as_ref());
            }
        }
    }

    /// Returns MADs whose time-out is over.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for (tid, waiting) in self.waiting.extract_if(.., |_, waiting| waiting.until <= now) {
            let unanswered = Received::Unanswered { agent: AGENT, tid };
            if let Some(socket) = self.open.get(&upper_half(tid)) {
                give(socket, unanswered.emit(&waiting.header).as_ref());
            }
        }
    }

    /// The time at which [`Device::handle_timeout`] must be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.until).min()
    }

    /// Makes the device vanish.
    pub(super) fn lose(&mut self, loss: Loss) {
        self.is_gone = true;
        self.waiting.clear();
        for socket in std::mem::take(&mut self.open).into_values() {
            // It fails only if the daemon has closed the connection.
            let _ = socket.shutdown(match loss {
                Loss::Told => Shutdown::Both,
                Loss::OnlyToWriters => Shutdown::Read,
            });
            self.dead.push(socket);
        }
    }

    /// Makes the device come back. Its former connections stay dead.
    pub(super) fn come_back(&mut self) {
        self.is_gone = false;
    }

    /// Makes all connections read `bytes`, which no kernel would give.
    pub(super) fn forge(&self, bytes: &[u8]) {
        self.open.values().for_each(|socket| give(socket, bytes));
    }

    pub(super) fn connections(&self) -> usize {
        self.open.len()
    }
}

/// A MAD that is written to the device. `None` if the kernel refuses it.
fn write(
    waiting: &mut BTreeMap<Tid, Waiting>,
    high: u32,
    now: Instant,
    bytes: &[u8],
) -> Option<Sent> {
    let (wire, octets) = HeaderWire::read_from_prefix(bytes).ok()?;
    let mut mad: [u8; mad::LEN] = octets.try_into().ok()?;
    let to = Lid::new(wire.lid.get()).filter(|_| wire.agent.get() == AGENT.0)?;
    let (header, _) = Header::parse(&mad).ok()?;
    if !header.method.is_response() {
        mad[8..12].copy_from_slice(&high.to_be_bytes());
        let tid = Tid::new(u64::from(high) << 32 | u64::from(header.tid.transaction().0));
        if waiting.contains_key(&tid) {
            return None;
        }
        let times = wire.retries.get().saturating_add(1);
        let time = Duration::from_millis(wire.timeout_ms.get().into()) * times;
        // Without a time-out the kernel does not match an answer.
        if time > Duration::ZERO {
            let mut returned = [0; MAD_HEADER];
            returned.copy_from_slice(&mad[..MAD_HEADER]);
            let (class, until) = (header.class, now + time);
            waiting.insert(tid, Waiting { class, until, header: returned });
        }
    }
    Some(Sent { to, qpn: wire.qpn.get(), mad })
}

/// A daemon that does not read loses further messages.
fn give(socket: &UnixStream, bytes: &[u8]) {
    let _ = (&*socket).write(bytes);
}

fn upper_half(tid: Tid) -> u32 {
    u32::try_from(tid.get() >> 32).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use ibarr_common::ib::Sl;
    use ibarr_common::wire::mad::Transaction;
    use ibarr_common::wire::sa::{Question, Request};
    use ibarr_common::wire::umad::{HEADER_LEN, PKeyIndex, Send};
    use nix::sys::socket::socketpair;

    use super::*;

    fn message(transaction: u32) -> Vec<u8> {
        let question = Question::ClassPortInfo;
        let mad = Request { tid: Transaction(transaction).into(), question }.emit();
        let send = Send {
            agent: AGENT,
            to: Lid::new(1).unwrap(),
            sl: Sl::default(),
            pkey_index: PKeyIndex(0),
            timeout: Duration::from_millis(100),
            mad,
        };
        send.emit().as_ref().to_vec()
    }

    fn connect(device: &mut Device) -> UnixStream {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, daemons) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        device.open(ours.into()).unwrap();
        daemons.into()
    }

    /// The next message, or the kind of the error.
    fn read(mut socket: &UnixStream) -> Result<Vec<u8>, ErrorKind> {
        let mut buffer = vec![0; MAX_LEN];
        let len = socket.read(&mut buffer).map_err(|error| error.kind())?;
        buffer.truncate(len);
        Ok(buffer)
    }

    const START: Instant = Instant::from_nanos(1_000_000_000);
    const NOTHING: Result<Vec<u8>, ErrorKind> = Err(ErrorKind::WouldBlock);

    #[test]
    fn answer_goes_only_to_the_connection_that_asked() {
        let mut device = Device::new();
        let [daemon, other] = [connect(&mut device), connect(&mut device)];
        give(&daemon, &message(7));
        let sent = device.take(START).remove(0);
        assert_eq!((sent.to.get(), sent.qpn), (1, 1));
        assert_eq!(sent.mad[8..16], [0, 0, 0, 1, 0, 0, 0, 7]);
        let mut right = sent.mad;
        right[3] = 0x81;
        // No other transaction, no other class, no request and no repetition is delivered.
        for (at, value) in [(15, 8), (11, 2), (1, 4), (3, 1)] {
            let mut wrong = right;
            wrong[at] = value;
            device.receive(sent.to, &wrong);
        }
        assert_eq!(read(&daemon), NOTHING);
        device.receive(sent.to, &right);
        device.receive(sent.to, &right);
        let bytes = read(&daemon).unwrap();
        let mad = Received::Mad { agent: AGENT, from: Some(sent.to), mad: &right };
        assert_eq!(Received::parse(&bytes), Ok(mad));
        assert_eq!([read(&daemon), read(&other)], [NOTHING; 2]);
    }

    #[test]
    fn unanswered_mad_comes_back_without_its_data() {
        let mut device = Device::new();
        let daemon = connect(&mut device);
        give(&daemon, &message(7));
        device.take(START);
        assert_eq!(device.poll_timeout(), Some(START + Duration::from_millis(100)));
        device.handle_timeout(START + Duration::from_millis(99));
        assert_eq!(read(&daemon), NOTHING);
        device.handle_timeout(START + Duration::from_millis(100));
        let bytes = read(&daemon).unwrap();
        assert_eq!(bytes.len(), HEADER_LEN + 24);
        let unanswered = Received::Unanswered { agent: AGENT, tid: Tid::new(1 << 32 | 7) };
        assert_eq!(Received::parse(&bytes), Ok(unanswered));
        assert_eq!(device.poll_timeout(), None);
    }

    #[test]
    fn connection_ends_after_a_message_that_the_kernel_refuses() {
        let good = message(7);
        let mut of_agent_1 = good.clone();
        of_agent_1[..4].copy_from_slice(&1_u32.to_ne_bytes());
        for bad in [&good[..319], &[&good[..], &[0]].concat(), &of_agent_1, &good] {
            let mut device = Device::new();
            let daemon = connect(&mut device);
            give(&daemon, &good);
            assert_eq!(device.take(START).len(), 1);
            // At last a transaction twice.
            give(&daemon, bad);
            assert!(device.take(START).is_empty());
            assert_eq!(read(&daemon), Ok(Vec::new()));
            assert_eq!((device.connections(), device.poll_timeout()), (0, None));
        }
    }

    #[test]
    fn loss_is_told_to_readers_or_only_to_writers() {
        for loss in [Loss::Told, Loss::OnlyToWriters] {
            let mut device = Device::new();
            let daemon = connect(&mut device);
            device.lose(loss);
            let ended = if loss == Loss::Told { Ok(Vec::new()) } else { NOTHING };
            assert_eq!(read(&daemon), ended);
            assert_eq!((&daemon).write(&[0]).unwrap_err().kind(), ErrorKind::BrokenPipe);
            assert_eq!(read(&connect(&mut device)), Ok(Vec::new()), "it cannot be opened");
            device.come_back();
            assert_eq!(device.connections(), 0, "a dead connection stays dead");
            assert_eq!(read(&connect(&mut device)), NOTHING);
        }
    }
}
