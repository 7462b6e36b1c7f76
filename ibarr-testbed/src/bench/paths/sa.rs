// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon's port, and a stand-in for its subnet administrator. A Unix socket takes the place of the
//! umad device; a device of the kernel would be no faster.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant as Stopwatch};

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, Sl, SubnetPrefix};
use ibarr_common::wire::mad::{AttributeId, Header, Tid};
use ibarr_common::wire::sa::{Answer, Question, Request, Response};
use ibarr_common::wire::umad::{AgentId, Form, HeaderWire, MAX_LEN, PKeyIndex, Received, Send};
use ibarr_fabric::sa::{AddressedPort, ClientId, Route, StandIn, Subnet};
use ibarr_user::sys::umad::Opened;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv,
    send, socket,
};
use nix::unistd::{read, write};
use zerocopy::FromBytes;

use super::super::process::{self, Side};
use super::super::rounds::Round;
use super::{OWN, Place, ROUTER, SA, port};
use crate::lab::Files;
use crate::umad::{Shown, sysfs};

/// A subnet administrator that runs until the bench ends.
pub(super) struct Administrator {
    device: PathBuf,
    /// Number of path questions that have reached it.
    asked: Arc<AtomicU64>,
}

impl Administrator {
    /// Writes the port into the sysfs of the node's daemon, and answers on the device.
    pub(super) fn start(files: &Files, sgid: Gid) -> Result<Self> {
        let shown = Shown::active(OWN, sgid, SA);
        let infiniband = files.infiniband();
        sysfs::show(&infiniband.sys(), &port(), 0, &shown)
            .context("cannot write a port's sysfs")?;
        let device = infiniband.dev().join("infiniband/umad0");
        fs::create_dir_all(device.parent().context("a file is in a directory")?)?;
        let listener = seqpacket()?;
        bind(listener.as_raw_fd(), &UnixAddr::new(&device)?)
            .with_context(|| format!("cannot listen at {}", device.display()))?;
        listen(&listener, Backlog::new(1)?)?;

        let sa = Arc::new(Mutex::new(StandIn::new(subnet(sgid), SA, 1)));
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        thread::spawn(move || {
            while let Ok(socket) = accept(listener.as_raw_fd()) {
                let (sa, asked) = (Arc::clone(&sa), Arc::clone(&counted));
                // A connection ends when its client ends. The daemon and the bare client each open the
                // device once, so nothing is closed before the bench ends.
                thread::spawn(move || answer_all(socket, &sa, &asked));
            }
        });
        Ok(Self { device, asked })
    }

    /// The path of the socket that takes the place of the device.
    pub(super) fn device(&self) -> &Path {
        &self.device
    }

    /// Number of path questions so far.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

/// The port that asks, and a route to everywhere else. Each path has one record.
fn subnet(sgid: Gid) -> Subnet {
    let mut subnet = Subnet::new(SubnetPrefix::DEFAULT);
    let port = AddressedPort { lid: OWN, pkeys: vec![PKey::DEFAULT] };
    subnet.ports.insert(sgid.guid(), port);
    subnet.routes.push(Route { prefix: None, lid: ROUTER, hop_limit: 255 });
    subnet
}

fn answer_all(socket: RawFd, sa: &Mutex<StandIn>, asked: &AtomicU64) -> Result<()> {
    process::pin_thread(Side::Load)?;
    let mut buffer = [0; MAX_LEN];
    loop {
        let len = recv(socket, &mut buffer, MsgFlags::empty())?;
        let message = buffer.get(..len).unwrap_or_default();
        let Ok((header, mad)) = HeaderWire::read_from_prefix(message) else { bail!("too short") };
        let to = Lid::new(header.lid.get()).context("no LID")?;
        if Header::parse(mad)?.0.attribute == AttributeId::PATH_RECORD {
            asked.fetch_add(1, Ordering::Relaxed);
        }
        let agent = AgentId(header.agent.get());
        let mut sa = sa.lock().unwrap_or_else(PoisonError::into_inner);
        sa.handle_input(Instant::BOOT, ClientId(0), to, mad);
        while let Some(reply) = sa.poll_transmit() {
            let mad = reply.mad.octets();
            let from = Some(reply.from);
            let answer = Received::Mad { agent, from, mad }.emit(Form::WithPKey, mad);
            send(socket, answer.as_ref(), MsgFlags::MSG_NOSIGNAL)?;
        }
    }
}

/// A minimal client of the subnet administrator: a write and a read for each question, without a
/// runtime, a clock or a resend.
pub(super) struct Bare {
    fd: OwnedFd,
    agent: AgentId,
    form: Form,
    place: Place,
    next: u32,
}

impl Bare {
    pub(super) fn open(device: &Path, place: Place) -> Result<Self> {
        let opened = Opened::open(device).with_context(|| device.display().to_string())?;
        let (fd, agent, form) = opened.into_parts();
        // A socket blocks, and so does the kernel's device, but the FUSE device does not.
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?) - OFlag::O_NONBLOCK;
        fcntl(&fd, FcntlArg::F_SETFL(flags))?;
        Ok(Self { fd, agent, form, place, next: 1 })
    }

    /// Keeps `outstanding` questions in flight for `time`, on the CPU of servers.
    pub(super) fn round(&mut self, outstanding: u32, time: Duration) -> Result<Round> {
        thread::scope(|scope| {
            let round = scope.spawn(|| {
                process::pin_thread(Side::Server)?;
                self.closed_loop(outstanding, time)
            });
            round.join().map_err(|_| anyhow::anyhow!("the bare client panicked"))?
        })
    }

    fn closed_loop(&mut self, outstanding: u32, time: Duration) -> Result<Round> {
        let cpu = process::own_cpu_time()?;
        let start = Stopwatch::now();
        let mut waiting = BTreeSet::new();
        for _ in 0..outstanding {
            waiting.insert(self.ask()?);
        }
        let mut answers = 0_u32;
        let mut buffer = [0; MAX_LEN];
        while !waiting.is_empty() {
            let len = self.read(&mut buffer)?;
            let message = buffer.get(..len).unwrap_or_default();
            let Received::Mad { mad, .. } = Received::parse(self.form, message)? else {
                bail!("the administrator is silent");
            };
            let response = Response::parse(mad)?;
            // The upper half belongs to the kernel.
            let number = response.tid.transaction().0;
            let is_path = matches!(response.answer, Answer::Path(_));
            ensure!(waiting.remove(&number) && is_path, "a wrong answer to {number}");
            answers += 1;
            if start.elapsed() < time {
                waiting.insert(self.ask()?);
            }
        }
        let wall = start.elapsed();
        let cpu = process::own_cpu_time()?.saturating_sub(cpu);
        Ok(Round { answers: answers.into(), wall, cpu })
    }

    fn ask(&mut self) -> Result<u32> {
        let number = self.next;
        self.next += 1;
        let question = Question::Path(self.place.question(number));
        let message = Send {
            agent: self.agent,
            to: self.place.sa,
            sl: Sl::default(),
            pkey_index: PKeyIndex(0),
            timeout: Some(Duration::from_secs(1)),
            mad: Request { tid: Tid::new(number.into()), question }.emit(),
        };
        write(&self.fd, message.emit(self.form).as_ref()).context("cannot ask")?;
        Ok(number)
    }

    fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match read(&self.fd, buffer) {
                Err(Errno::EAGAIN) => {
                    let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
                    ensure!(poll(&mut fds, PATIENCE)? > 0, "the administrator is silent");
                }
                read => return read.context("cannot read an answer"),
            }
        }
    }
}

/// Milliseconds.
const PATIENCE: u16 = 5_000;

fn seqpacket() -> Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
        .context("cannot make a socket")
}
