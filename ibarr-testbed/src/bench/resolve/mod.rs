// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench resolve`: what the kernel's questions cost the daemon, where it knows the answers.
//!
//! The bench has the kernel's end of the daemon's inherited socket, and of that of a process that
//! gives back what it is given: as little as anything can do that answers. Both are loaded in turn.

mod report;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{Request, ResolveIp, Seq};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, recv, send, setsockopt, socketpair, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

pub use self::report::Report;
use super::Round;
use super::process::{self, Helper};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Node, Plan, Store, TemporaryLab, netns};

/// Measures in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or an answer is wrong.
pub fn resolve(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let name: LabName = format!("bench-{}", std::process::id()).parse()?;
    let lab = Lab::up(store, Plan::new(name, 2, true)?, ibarr, interrupt)?;
    let mut lab = TemporaryLab::new(lab);
    let (rounds, round) =
        if quick { (3, Duration::from_millis(200)) } else { (11, Duration::from_secs(1)) };

    let servers = Servers::start(&mut lab, interrupt)?;
    eprintln!("bench: {rounds} rounds of {round:?} a server and family …");
    let mut costs = [const { Vec::new() }; CASES.len()];
    // One more: the first warms caches, the daemon's among them.
    for turn in 0..=rounds {
        for (case, costs) in CASES.iter().zip(&mut costs) {
            let cost = servers.round(*case, round, interrupt)?;
            if turn > 0 {
                costs.push(cost);
            }
        }
    }
    drop(servers);
    lab.down()?;
    Report::new(quick, &costs)
}

/// Gives back each datagram of `socket` until that is closed.
///
/// # Errors
/// The socket fails.
pub fn echo(socket: &OwnedFd) -> Result<()> {
    super::echo::say_ready()?;
    let mut datagram = [0; LONGEST];
    loop {
        let len = recv(socket.as_raw_fd(), &mut datagram, MsgFlags::empty())?;
        if len == 0 {
            return Ok(());
        }
        let datagram = datagram.get(..len).context("a datagram longer than any request")?;
        send(socket.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL)?;
    }
}

/// Who answers, and of which family the addresses are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Case {
    is_ours: bool,
    ipv6: bool,
}

/// In the order of the reports; the first is held against the second, the third against the fourth.
const CASES: [Case; 4] = [
    Case { is_ours: true, ipv6: false },
    Case { is_ours: false, ipv6: false },
    Case { is_ours: true, ipv6: true },
    Case { is_ours: false, ipv6: true },
];

/// Requests under way.
const OUTSTANDING: u32 = 16;

/// The longest message here is a request for an IPv6 address, of 40 bytes.
const LONGEST: usize = 64;

struct Servers {
    ibarr: Server,
    echo: Server,
    _echo: Helper,
    ifindex: IfIndex,
    /// Whose addresses are asked for.
    target: Node,
}

/// The other end of a server's socket.
struct Server {
    pid: u32,
    socket: OwnedFd,
}

impl Servers {
    fn start(lab: &mut Lab, interrupt: &Interrupt) -> Result<Self> {
        let [asker, target] = lab.plan().nodes.as_slice() else { bail!("a lab of two nodes") };
        let (asker, target) = (asker.clone(), target.clone());
        let (socket, inherited) = pair()?;
        lab.restart_with(asker.name, Some(inherited), interrupt)?;
        let daemon = lab.state().daemons.iter().find(|daemon| daemon.node == asker.name);
        let pid = daemon.context("the daemon was started")?.process.pid;
        let ibarr = Server { pid, socket };
        // What it has said of its time-out.
        ibarr.hear()?;

        let (socket, inherited) = pair()?;
        let arguments = ["bench", "ls-echo"].map(str::to_owned);
        let helper = Helper::start_with(&asker.namespace, &arguments, inherited)?;
        let echo = Server { pid: helper.pid(), socket };
        process::pin(&[ibarr.pid, echo.pid])?;

        let ifindex = netns::inside(&asker.namespace, || Ok(if_nametoindex(Node::INTERFACE)?))?;
        let ifindex = IfIndex::new(ifindex).context("a network device without a number")?;
        Ok(Self { ibarr, echo, _echo: helper, ifindex, target })
    }

    /// Keeps [`OUTSTANDING`] requests under way for `time`.
    fn round(&self, case: Case, time: Duration, interrupt: &Interrupt) -> Result<Round> {
        interrupt.check()?;
        let server = if case.is_ours { &self.ibarr } else { &self.echo };
        let [ipv4, ipv6] = self.target.addresses;
        let target = if case.ipv6 { ipv6 } else { ipv4 };
        let request = Request::ResolveIp(ResolveIp { ifindex: self.ifindex, target });
        let request = |seq: u32| request.emit(Seq(seq));
        // An echo ends as the request did.
        let ending = match (case.is_ours, target) {
            (true, _) => self.target.gid()?.octets().to_vec(),
            (false, std::net::IpAddr::V4(address)) => address.octets().to_vec(),
            (false, std::net::IpAddr::V6(address)) => address.octets().to_vec(),
        };

        let cpu = process::cpu_time(server.pid)?;
        let start = Instant::now();
        // No number is used twice while the daemon remembers it.
        let first = FIRST_SEQ.fetch_add(u32::MAX / 1000, std::sync::atomic::Ordering::Relaxed);
        for seq in first..first + OUTSTANDING {
            server.say(request(seq).as_ref())?;
        }
        let (mut next, mut answered) = (first + OUTSTANDING, first);
        while answered < next {
            let (datagram, len) = server.hear()?;
            let answer = datagram.get(..len).unwrap_or_default();
            let seq = answer.get(8..12).and_then(<[u8]>::first_chunk::<4>);
            let seq = seq.copied().map(u32::from_ne_bytes);
            ensure!(
                seq == Some(answered) && answer.ends_with(&ending),
                "a wrong answer to {answered}: {answer:02x?}"
            );
            answered += 1;
            if start.elapsed() < time {
                server.say(request(next).as_ref())?;
                next += 1;
            }
        }
        let wall = start.elapsed();
        let cpu = process::cpu_time(server.pid)?.saturating_sub(cpu);
        ensure!(!cpu.is_zero(), "a server answers without using a CPU");
        Ok(Round { answers: f64::from(answered - first), wall, cpu })
    }
}

static FIRST_SEQ: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);

impl Server {
    fn say(&self, datagram: &[u8]) -> Result<()> {
        send(self.fd().as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL)
            .context("a server is gone")?;
        Ok(())
    }

    fn hear(&self) -> Result<([u8; LONGEST], usize)> {
        let mut datagram = [0; LONGEST];
        match recv(self.fd().as_raw_fd(), &mut datagram, MsgFlags::empty()) {
            Ok(0) => bail!("a server is gone"),
            Ok(len) => Ok((datagram, len)),
            Err(Errno::EAGAIN) => bail!("a server is silent"),
            Err(error) => Err(error).context("cannot hear a server"),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Our end, which waits for five seconds at most, and theirs.
fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
        .context("cannot make a pair of sockets")?;
    setsockopt(&ours, sockopt::ReceiveTimeout, &TimeVal::seconds(5))?;
    Ok((ours, theirs))
}
