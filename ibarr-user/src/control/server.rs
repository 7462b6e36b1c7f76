// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon side of the control socket: reads requests and hands them to the engine.
//!
//! The server has its own thread, so that a user who connects again and again delays neither peers
//! nor requests of the kernel. It accepts every connection at once, because a full listen queue
//! would block root; a connection that finds no room in [`Connections`], or gives way, is told so and closed.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::FutureExt as _;
use ibarr_common::Instant;
use ibarr_proto::places::{Full, Room};
use ibarr_proto::retry::Repair;
use ibarr_proto::shares::User;
use nix::errno::Errno;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::access::{Access, GroupId};
use super::messages::{Failure, FailureKind, Request, Response};
use super::places::{CONTROL, Connections, Slot};
use super::run_dir::{self, RunDir};
use crate::causes::Fault;
use crate::sys::clock;
use crate::sys::peer::Peer;
use crate::transport::socket_file::{self, LOOK, PAUSE, SocketFile};
use crate::transport::{Counter, Counters};

/// A request of a user.
#[derive(Debug)]
pub(crate) struct Ask {
    pub request: Request,
    /// Whose share it uses.
    pub user: User,
    /// Receives the answer. Dropped without one only if the daemon ends.
    pub answer: oneshot::Sender<Response>,
    /// Receives each answer for an address as soon as it is there, if the request wants that. Has
    /// room for all of them. Or receives the events of a trace.
    pub each: Option<mpsc::Sender<Response>>,
}

/// State that the control socket shares with the engine.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    /// Which processes may change the daemon.
    pub access: Access,
    pub connections: Connections,
    /// Counters of the control socket.
    pub counters: Arc<Counters>,
    /// Why no program finds the control socket.
    pub closed: watch::Sender<Option<Fault>>,
}

impl Control {
    /// Without connections; there may be `connections`.
    pub(crate) fn new(access: Access, connections: usize) -> Self {
        let connections = Connections::new(Room { all: connections, ..CONTROL });
        Self { access, connections, counters: Arc::default(), closed: watch::Sender::default() }
    }
}

/// The longest request, in bytes. One with 256 IPv6 addresses has about 10 KB.
const MAX_REQUEST: u64 = 64 << 10;

/// A connection without a request for this long is closed, so that idle ones free their room.
const IDLE: Duration = Duration::from_secs(10);

const ALL_TAKEN: &str =
    "the connections to the control socket are all in use, and no user has more: try again later";

/// Time to write the last answers when the daemon ends.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// Why there is no control socket.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The directory cannot be used.
    #[error(transparent)]
    RunDir(#[from] run_dir::Error),
    /// The socket cannot be made.
    #[error("control socket {0}")]
    Socket(#[from] socket_file::Error),
    /// Another program removes it again and again.
    #[error("{0}: another program changes it again and again; it is made again after a while")]
    Paused(PathBuf),
}

/// The socket on which [`start`] answers.
#[derive(Debug)]
pub(crate) struct Listener {
    file: SocketFile,
    /// Released after the socket is removed.
    run_dir: RunDir,
    repair: Repair,
}

impl Listener {
    /// Listens in `run_dir`, and replaces the socket of a dead daemon.
    ///
    /// # Errors
    /// If another program has the name, or the socket cannot be made.
    pub(crate) fn bind(run_dir: RunDir) -> Result<Self, Error> {
        let file = SocketFile::bind(&super::socket_path(run_dir.path()))?;
        Ok(Self { file, run_dir, repair: Repair::default() })
    }

    /// Makes directory, lock and socket again if another program has removed them, and returns where clients are
    /// accepted from then on.
    fn look(&mut self, now: Instant) -> Result<Option<UnixListener>, Error> {
        if self.run_dir.is_there() {
            return Ok(self.file.look(now)?);
        }
        let path = self.run_dir.path();
        if self.repair.due(now) > now {
            return Err(Error::Paused(path.to_owned()));
        }
        warn!(
            "{}: another program has removed or replaced the run directory or its lock",
            path.display()
        );
        if self.run_dir.restore()? {
            self.file = SocketFile::bind(&super::socket_path(self.run_dir.path()))?;
        } else {
            self.file.look(now)?;
        }
        Ok(Some(self.file.listen()?))
    }
}

/// Serves on its own thread until the other end of `asks` is dropped.
///
/// # Errors
/// If the thread or its event loop cannot be started.
pub(crate) fn start(
    listener: Listener,
    asks: mpsc::Sender<Ask>,
    control: Control,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let socket = {
        let _context = runtime.enter();
        listener.file.listen().map_err(io::Error::other)?
    };
    let talks = JoinSet::new();
    let accepting = Accepting { listener, socket, talks, reserve: reserve(), asks, control };
    let serve = move || runtime.block_on(accepting.serve());
    thread::Builder::new().name("control".to_owned()).spawn(serve)
}

struct Accepting {
    listener: Listener,
    socket: UnixListener,
    talks: JoinSet<()>,
    /// Closed to accept a connection when no other descriptor is left.
    reserve: Option<File>,
    asks: mpsc::Sender<Ask>,
    control: Control,
}

impl Accepting {
    async fn serve(mut self) {
        let mut looks = tokio::time::interval(LOOK);
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.asks.closed() => break,
                _ = looks.tick() => {
                    self.look();
                    continue;
                }
                Some(_) = self.talks.join_next() => continue,
                accepted = self.socket.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if is_shortage(&error) && self.reserve.take().is_some() => {
                    // Without a free descriptor, the kernel does not even report an empty queue.
                    if let Some(Ok((stream, _))) = self.socket.accept().now_or_never() {
                        self.admit_short(stream);
                    }
                    self.reserve = reserve();
                }
                Err(error) => {
                    debug!(%error, "cannot accept a control connection");
                    tokio::time::sleep(PAUSE).await;
                    if self.reserve.is_none() {
                        self.reserve = reserve();
                    }
                }
            }
        }
        // The engine has given its last answers.
        let written = async { while self.talks.join_next().await.is_some() {} };
        drop(tokio::time::timeout(LAST_ANSWERS, written).await);
    }

    fn look(&mut self) {
        let looked = self.listener.look(clock::now()).map(|again| {
            if let Some(again) = again {
                self.control.counters.count(Counter::FileMadeAgain);
                self.socket = again;
            }
        });
        self.control.closed.send_replace(looked.err().map(Fault::from));
    }

    fn admit(&mut self, stream: UnixStream) {
        let Ok(peer) = Peer::of(stream.as_fd()) else { return };
        let (counter, message) = match self.control.connections.take(peer.user()) {
            Ok(place) => return self.seat(stream, peer, place),
            Err(Full::User) => {
                let Peer { uid, .. } = peer;
                let message = format!(
                    "user {uid} has {} connections to the control socket, the limit for one user: \
                     end some of them, or try again later",
                    CONTROL.of_user
                );
                (Counter::ControlUserFull, message)
            }
            Err(Full::All) => (Counter::ControlAllFull, ALL_TAKEN.to_owned()),
        };
        self.control.counters.count(counter);
        refuse(&stream, message);
    }

    /// The last descriptor is reserved for root.
    fn admit_short(&mut self, stream: UnixStream) {
        if Peer::of(stream.as_fd()).is_ok_and(Peer::is_root_or_us) {
            return self.admit(stream);
        }
        self.control.counters.count(Counter::ControlNoDescriptor);
        refuse(&stream, "the daemon has no descriptor left: raise its LimitNOFILE".to_owned());
    }

    fn seat(
        &mut self,
        mut stream: UnixStream,
        peer: Peer,
        (place, stays): (Slot, oneshot::Receiver<()>),
    ) {
        let Control { access, counters, .. } = self.control.clone();
        let asks = self.asks.clone();
        counters.count(Counter::ControlConnections);
        self.talks.spawn(async move {
            let ended = tokio::select! {
                ended = converse(&mut stream, peer, &access, &asks, &place) => ended,
                _ = stays => {
                    counters.count(Counter::ControlGaveWay);
                    return refuse(&stream, ALL_TAKEN.to_owned());
                }
            };
            if let Err(error) = ended {
                if error.kind() == ErrorKind::TimedOut {
                    counters.count(Counter::ControlTimedOut);
                }
                debug!(%error, "control connection ended");
            }
        });
    }
}

fn refuse(stream: &UnixStream, message: String) {
    let failure = Failure { kind: FailureKind::Overloaded, message };
    let Ok(mut json) = serde_json::to_vec(&Response::from(failure)) else { return };
    json.push(b'\n');
    // A new connection has room for it, unless its peer is gone.
    drop(stream.try_write(&json));
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

fn is_shortage(error: &io::Error) -> bool {
    let short = [Errno::EMFILE, Errno::ENFILE].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|errno| short.contains(&errno))
}

async fn converse(
    stream: &mut UnixStream,
    peer: Peer,
    access: &Access,
    asks: &mpsc::Sender<Ask>,
    place: &Slot,
) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut read).take(MAX_REQUEST);
        let request = bounded.read_until(b'\n', &mut line);
        let length = tokio::select! {
            biased;
            length = tokio::time::timeout(IDLE, request) => length,
            () = asks.closed() => return Ok(()),
        };
        let length = length.map_err(|_| ErrorKind::TimedOut)??;
        if length == 0 {
            return Ok(());
        }
        let complete = line.last() == Some(&b'\n');
        place.touch();
        let socket = read.get_ref().as_ref().as_fd();
        let allowed = |request: Request| {
            if request.needs_right() && !access.may_change(socket, peer) {
                return Err(forbidden(&access.group()));
            }
            Ok(request)
        };
        let response = match parse(&line, complete).and_then(allowed) {
            Err(error) => error.into(),
            Ok(request) => answer(request, peer.user(), asks, &mut read, &mut write).await?,
        };
        write_line(&mut write, &response).await?;
        if !complete {
            return Ok(());
        }
    }
}

fn parse(line: &[u8], complete: bool) -> Result<Request, Failure> {
    let usage = |message| Failure { kind: FailureKind::Usage, message };
    if !complete {
        return Err(usage(format!("a request is one line of at most {MAX_REQUEST} bytes")));
    }
    let request: Request =
        serde_json::from_slice(line).map_err(|error| usage(format!("no such request: {error}")))?;
    if let Request::Resolve { addresses, timeout_ms, .. } = &request {
        if addresses.len() > Request::MAX_ADDRESSES {
            let (many, most) = (addresses.len(), Request::MAX_ADDRESSES);
            return Err(usage(format!("{many} addresses in one request, at most {most}")));
        }
        let timeout = Duration::from(timeout_ms.unwrap_or_default());
        if timeout > Request::MAX_TIMEOUT {
            let most = Request::MAX_TIMEOUT;
            return Err(usage(format!("a time-out of {timeout:?}, at most {most:?}")));
        }
    }
    Ok(request)
}

fn forbidden(group: &GroupId) -> Failure {
    let name = super::GROUP;
    let what = "may change or trace the daemon, or see its configuration";
    let message = match group {
        GroupId::Is(_) => format!("only root and group {name} {what}"),
        unknown => format!("only root {what}: group {name}: {unknown}"),
    };
    Failure { kind: FailureKind::Permission, message }
}

/// The answer of the engine. The parts that come before it are written. A trace ends when its caller
/// disconnects.
async fn answer(
    request: Request,
    user: User,
    asks: &mpsc::Sender<Ask>,
    read: &mut BufReader<ReadHalf<'_>>,
    write: &mut WriteHalf<'_>,
) -> io::Result<Response> {
    let (answer, answered) = oneshot::channel();
    let is_trace = matches!(request, Request::Trace { .. });
    let (each, mut parts) = match request {
        Request::Resolve { each: true, .. } => {
            let (each, parts) = mpsc::channel(Request::MAX_ADDRESSES);
            (Some(each), Some(parts))
        }
        Request::Trace { .. } => {
            let (each, parts) = mpsc::channel(Request::MAX_EVENTS);
            (Some(each), Some(parts))
        }
        _ => (None, None),
    };
    let ending =
        || Failure { kind: FailureKind::Unreachable, message: "the daemon is ending".to_owned() };
    if asks.send(Ask { request, user, answer, each }).await.is_err() {
        return Ok(ending().into());
    }
    // The engine drops its end with the last part.
    if let Some(parts) = &mut parts {
        loop {
            let part = tokio::select! {
                biased;
                part = parts.recv() => part,
                // The caller has sent all that it has to say, so anything means that it is done.
                _ = read.fill_buf(), if is_trace => return Err(ErrorKind::UnexpectedEof.into()),
            };
            match part {
                Some(part) => write_line(write, &part).await?,
                None => break,
            }
        }
    }
    Ok(answered.await.unwrap_or_else(|_| ending().into()))
}

async fn write_line(write: &mut WriteHalf<'_>, response: &Response) -> io::Result<()> {
    let mut json = serde_json::to_vec(response)?;
    json.push(b'\n');
    match tokio::time::timeout(IDLE, write.write_all(&json)).await {
        Err(_) => Err(ErrorKind::TimedOut.into()),
        Ok(written) => written,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ibarr_proto::request::Freshness;

    use super::*;
    use crate::control::messages::{Body, Target};

    /// Who runs no tests.
    const OTHER: Peer = Peer { uid: 3_999_999_999, gid: 3_999_999_999 };

    /// The answers to `lines` from `peer`, where the engine grants every request.
    async fn told(peer: Peer, access: &Access, lines: &[&str]) -> Vec<Response> {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let (place, _stays) = Connections::new(CONTROL).take(peer.user()).unwrap();
        let (asks, mut asked) = mpsc::channel::<Ask>(1);
        let engine = tokio::spawn(async move {
            while let Some(Ask { answer, .. }) = asked.recv().await {
                answer.send(Body::Done { done: "done".to_owned() }.into()).unwrap();
            }
        });
        near.write_all(lines.concat().as_bytes()).await.unwrap();
        near.shutdown().await.unwrap();
        converse(&mut far, peer, access, &asks, &place).await.unwrap();
        drop((asks, far));
        engine.await.unwrap();
        let mut answers = String::new();
        near.read_to_string(&mut answers).await.unwrap();
        answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    const READ: &str = "{\"ask\":\"status\"}\n";
    const CHANGE: &str = "{\"ask\":\"reload\"}\n";
    const TRACE: &str = "{\"ask\":\"trace\"}\n";

    fn is_forbidden(response: &Response) -> bool {
        let Body::Error { error, .. } = &response.body else { return false };
        error.kind == FailureKind::Permission
    }

    #[tokio::test(flavor = "current_thread")]
    async fn hanging_user_database_delays_no_request() {
        let (answer, answers) = std::sync::mpsc::channel();
        let access = Access::start(move || answers.recv().unwrap_or(Ok(None))).unwrap();
        let member = Peer { gid: 123, ..OTHER };
        let responses = told(member, &access, &[READ, CHANGE, READ]).await;
        let forbidden: Vec<_> = responses.iter().map(is_forbidden).collect();
        assert_eq!(forbidden, [false, true, false]);
        answer.send(Ok(Some(123))).unwrap();
        access.known().await;
        assert!(!told(member, &access, &[CHANGE]).await.iter().any(is_forbidden));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn peer_without_the_right_to_change_may_read() {
        let access = Access::start(|| Ok(Some(123))).unwrap();
        access.known().await;
        let responses = told(OTHER, &access, &[READ, CHANGE, TRACE]).await;
        let forbidden: Vec<_> = responses.iter().map(is_forbidden).collect();
        assert_eq!(forbidden, [false, true, true]);
    }

    #[test]
    fn malformed_request_is_refused_as_usage() {
        let resolve = |addresses, timeout: Option<u64>| {
            let timeout_ms = timeout.map(|ms| Duration::from_millis(ms).into());
            let target = Target::from(IpAddr::from([10, 0, 0, 1]));
            let addresses = vec![target; addresses];
            let (lookup, each) = (Freshness::Any, false);
            serde_json::to_vec(&Request::Resolve { addresses, timeout_ms, lookup, each }).unwrap()
        };
        assert!(parse(&resolve(256, Some(60_000)), true).is_ok());
        let (many, long) = (resolve(257, None), resolve(1, Some(60_001)));
        for line in [&b"\n"[..], b"{}\n", b"{\"ask\":\"explode\"}\n", b"\xff\n", &many, &long] {
            assert_eq!(parse(line, true).unwrap_err().kind, FailureKind::Usage);
        }
        assert_eq!(parse(b"{", false).unwrap_err().kind, FailureKind::Usage);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn connection_carries_many_requests_and_ends_with_its_peer() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let (place, _stays) = Connections::new(CONTROL).take(OTHER.user()).unwrap();
        let (asks, mut asked) = mpsc::channel::<Ask>(1);
        let server = tokio::spawn(async move {
            let access = Access::start(|| Ok(None)).unwrap();
            converse(&mut far, OTHER, &access, &asks, &place).await
        });
        let engine = tokio::spawn(async move {
            let mut requests = Vec::new();
            while let Some(Ask { request, answer, .. }) = asked.recv().await {
                requests.push(request);
                answer.send(Body::Done { done: "done".to_owned() }.into()).unwrap();
            }
            requests
        });
        near.write_all(b"{\"ask\":\"status\"}\nnonsense\n{\"ask\":\"cache\"}\n").await.unwrap();
        near.shutdown().await.unwrap();
        let mut answers = String::new();
        near.read_to_string(&mut answers).await.unwrap();
        let answers: Vec<_> = answers.lines().collect();
        assert_eq!(answers.len(), 3);
        assert_eq!(answers[0], "{\"v\":1,\"done\":\"done\"}");
        assert!(answers[1].contains("\"kind\":\"usage\""));
        server.await.unwrap().unwrap();
        assert_eq!(engine.await.unwrap(), [Request::Status, Request::Cache { after: None }]);
    }
}
