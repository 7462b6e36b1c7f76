// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm ls`: the kernel asks for addresses, and accepts our answers at once.
//!
//! There is no HCA. When the kernel has a GID, it looks for a device with the GID of the source, finds
//! none, and returns -ENODEV: here that is success. Without an answer it returns -ETIMEDOUT.

pub(crate) mod daemon;
mod network;
mod peer;
pub(crate) mod responder;
mod service;
pub(crate) mod socket;
mod transcript;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::wire::ls::{Answer, Kind, Request, ResolveIp, Seq, messages};
use nix::errno::Errno;

use self::network::{FAR_V4, FAR_V6, NEAR, Network};
use self::socket::Socket;
use crate::report::Report;
use crate::rtnetlink::Rtnetlink;
use crate::sys::rdma_cm::{Channel, Event, EventKind, Id};

pub(crate) use self::service::Clock;

/// Time-out of the caller of `rdma_resolve_addr`. An attempt that ended sooner did not end by it.
const CALLER_TIMEOUT: Duration = Duration::from_mins(1);
/// How long we wait for something that must come at once, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(10);

const NUDGES: u32 = 100;
const BETWEEN_NUDGES: Duration = Duration::from_millis(100);

/// The kernel's status when it has a GID, see above.
const TAKEN: i32 = -(Errno::ENODEV as i32);
const TIMED_OUT: i32 = -(Errno::ETIMEDOUT as i32);

/// Recordings from other machines; requests must have the same bytes.
const RECORDED_V4: &str =
    include_str!("../../../../ibarr-common/tests/golden/ls-ip-resolve-ipv4-request.hex");
const RECORDED_V6: &str =
    include_str!("../../../../ibarr-common/tests/golden/ls-ip-resolve-ipv6-request.hex");

/// `responder` is the command of a daemon that answers. If it `is_ours`, the scenario tests the kernel,
/// and not the daemon.
pub(crate) fn run(responder: &[String], is_ours: bool, clock: Clock) -> ExitCode {
    let mut report = Report::default();
    let bench = Bench::new();
    if let Some(bench) = report.claim("a gateway is behind an interface of InfiniBand type", bench)
    {
        bench.protocol(&mut report);
        // This part switches off one of two processors.
        if is_ours && clock == Clock::Real {
            transcript::prove(bench.network.ifindex, &mut report);
        }
        service::prove(responder, clock, &mut report);
        let answered = bench.network.answered.get();
        Report::note(format_args!(
            "ip2gid queries answered by the TUN device's thread: {answered}"
        ));
    }
    report.end()
}

struct Bench {
    rtnetlink: Rtnetlink,
    network: Network,
}

impl Bench {
    fn new() -> Result<Self> {
        let rtnetlink = Rtnetlink::open()?;
        let network = Network::up(&rtnetlink)?;
        Ok(Self { rtnetlink, network })
    }

    /// The protocol between kernel and responder, step by step.
    fn protocol(&self, report: &mut Report) {
        report.claim("without a listener IPv4 is refused at once", is_refused(FAR_V4));
        report.claim("without a listener IPv6 is refused at once", is_refused(FAR_V6));
        let Some(socket) = report.claim("we can listen", Socket::open()) else { return };
        let mut claim = |claim: &str, proof: Result<()>| {
            // Messages that are left over from one claim are not read by the next.
            report.claim(claim, proof.and_then(|()| socket.drain()));
        };
        claim(
            "an IPv4 request has the recorded bytes, and its answer is accepted",
            self.request_is_as_recorded(&socket, FAR_V4, RECORDED_V4),
        );
        claim(
            "an IPv6 request has the recorded bytes, and its answer is accepted",
            self.request_is_as_recorded(&socket, FAR_V6, RECORDED_V6),
        );
        claim("the kernel does not ask for a neighbour", Self::neighbour_is_not_asked_for(&socket));
    }

    fn request_is_as_recorded(&self, socket: &Socket, target: &str, recorded: &str) -> Result<()> {
        let attempt = Attempt::start(target, CALLER_TIMEOUT)?;
        let (seq, bytes) = request(socket)?;
        Report::note(format_args!("request {}", Hex(&bytes)));
        let Some(Ok(message)) = messages(&bytes).next() else { bail!("no message") };
        let expected = Request::ResolveIp(ResolveIp {
            ifindex: self.network.ifindex,
            target: target.parse()?,
        });
        let read = Request::parse(&message)?;
        ensure!(read == expected, "we read {read}");
        ensure!(expected.emit(seq).as_ref() == bytes, "we would write {:?}", expected.emit(seq));
        let recorded = renumbered(recorded, seq, self.network.ifindex)?;
        ensure!(bytes == recorded, "the recording has {}", Hex(&recorded));
        self.conclude(&attempt, socket, seq)
    }

    /// Answers and nudges until the attempt has ended.
    ///
    /// Once is not enough. The kernel sends a request, first and again, before it notes that it
    /// waits (`rdma_resolve_ip` and `process_one_req` of drivers/infiniband/core/addr.c). Answers and
    /// nudges between these two steps are lost.
    fn conclude(&self, attempt: &Attempt, socket: &Socket, seq: Seq) -> Result<()> {
        for _ in 0..NUDGES {
            socket.send(good_answer(socket, seq)?.as_ref())?;
            self.rtnetlink.nudge()?;
            if let Some(event) = attempt.channel.event(BETWEEN_NUDGES)? {
                return attempt.is_end(event, TAKEN);
            }
        }
        bail!("the attempt has not ended after {NUDGES} answers and nudges");
    }

    fn neighbour_is_not_asked_for(socket: &Socket) -> Result<()> {
        let attempt = Attempt::start(NEAR, Duration::from_millis(100))?;
        // The status does not matter: a TUN device may have no neighbours.
        attempt.channel.event(PATIENCE)?.context("the attempt has not ended")?;
        let asked = socket.receive(Duration::ZERO)?;
        ensure!(asked.is_none(), "the kernel asked: {}", Hex(&asked.unwrap_or_default()));
        Ok(())
    }
}

/// A call of `rdma_resolve_addr`, which ends when this is dropped.
struct Attempt {
    channel: Channel,
    id: Id,
}

impl Attempt {
    fn start(target: &str, timeout: Duration) -> Result<Self> {
        let channel = Channel::open().context("no connection manager")?;
        let id = start(&channel, target, timeout)?;
        Ok(Self { channel, id })
    }

    fn ends(&self, status: i32) -> Result<()> {
        let event = self.channel.event(PATIENCE)?.context("the attempt has not ended")?;
        self.is_end(event, status)
    }

    fn is_end(&self, event: Event, status: i32) -> Result<()> {
        ensure!(event.id == self.id, "another attempt ended: {event:?}");
        ensure!(event.kind == EventKind::AddrError && event.status == status, "{event:?}");
        Ok(())
    }
}

/// A call of `rdma_resolve_addr`, from its beginning to its end.
pub(crate) fn resolve(target: &str) -> Result<Event> {
    let attempt = Attempt::start(target, CALLER_TIMEOUT)?;
    attempt.channel.event(PATIENCE)?.context("the attempt has not ended")
}

fn start(channel: &Channel, target: &str, timeout: Duration) -> Result<Id> {
    const PORT: u16 = 7471;
    let target: IpAddr = target.parse()?;
    let id = channel.create_id().context("no identifier")?;
    channel.resolve_addr(id, SocketAddr::new(target, PORT), timeout)?;
    Ok(id)
}

fn is_refused(target: &str) -> Result<()> {
    match Attempt::start(target, CALLER_TIMEOUT) {
        Ok(_) => bail!("the attempt began"),
        Err(error) => ensure!(
            errno(&error) == Some(Errno::EADDRNOTAVAIL),
            error.context("refused, but not with EADDRNOTAVAIL")
        ),
    }
    Ok(())
}

/// The next request, and its number.
fn request(socket: &Socket) -> Result<(Seq, Vec<u8>)> {
    let bytes = socket.receive(PATIENCE)?.context("the kernel did not ask")?;
    let message = messages(&bytes).next().context("an empty datagram")??;
    ensure!(message.kind() == Kind::ResolveIp && message.is_request(), "{}", Hex(&bytes));
    Ok((message.seq(), bytes))
}

fn good_answer(socket: &Socket, seq: Seq) -> Result<impl AsRef<[u8]>> {
    let gid: Gid = responder::GID.parse()?;
    Ok(Answer::Gid(gid).emit(seq, socket.port_id()))
}

/// A recorded request with the sequence number and interface index of this run.
fn renumbered(recorded: &str, seq: Seq, ifindex: IfIndex) -> Result<Vec<u8>> {
    let digits: String = recorded
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.split_whitespace())
        .collect();
    let mut bytes = (0..digits.len() / 2)
        .map(|at| Ok(u8::from_str_radix(&digits[2 * at..2 * at + 2], 16)?))
        .collect::<Result<Vec<u8>>>()?;
    bytes[8..12].copy_from_slice(&seq.0.to_ne_bytes());
    bytes[16..20].copy_from_slice(&ifindex.get().to_ne_bytes());
    Ok(bytes)
}

fn errno(error: &anyhow::Error) -> Option<Errno> {
    let error: &std::io::Error = error.downcast_ref()?;
    Some(Errno::from_raw(error.raw_os_error()?))
}

/// Displays bytes as hexadecimal words of four bytes.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.0.chunks(4).enumerate() {
            f.write_str(if index == 0 { "" } else { " " })?;
            word.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}
