// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The client side of the control socket, for the command line.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};

use super::messages::{Body, Failure, FailureKind, Request, Response};

/// Longer than the daemon takes for any request that does not set its own time.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The longest answer, in bytes: longer documents come in pages.
const MAX_DOCUMENT: u64 = 16 << 20;

/// A connection to the daemon, for one request after the other.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    patience: Duration,
}

impl Connection {
    /// Connects to the daemon of `run_dir`. `patience` bounds each step: to connect, to send a request, to wait for
    /// the next part of the answer. The time that the request itself allows is added.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub fn open(run_dir: &Path, patience: Duration) -> Result<Self, Failure> {
        let path = super::socket_path(run_dir);
        match connected(&path, patience) {
            Ok(stream) => Ok(Self { stream: BufReader::new(stream), path, patience }),
            Err(error) => Err(unreachable(&path, patience, &error)),
        }
    }

    /// Asks, and passes the parts that precede the answer to `each`.
    ///
    /// # Errors
    /// The daemon's refusal, or why it does not answer.
    pub fn ask(&mut self, request: &Request, mut each: impl FnMut(Body)) -> Result<Body, Failure> {
        let for_peers = match request {
            Request::Resolve { timeout_ms, .. } => Duration::from(timeout_ms.unwrap_or_default()),
            _ => Duration::ZERO,
        };
        let for_answer = self.patience.saturating_add(for_peers);
        let mut line = serde_json::to_string(request).unwrap_or_default();
        line.push('\n');
        let mut sent = self.stream.get_ref().set_read_timeout(Some(for_answer));
        if sent.is_ok() {
            sent = self.stream.get_mut().write_all(line.as_bytes());
        }
        loop {
            let line = next_line(&mut self.stream, std::mem::replace(&mut sent, Ok(())))
                .map_err(|error| unreachable(&self.path, self.patience, &error))?;
            let response: Response = serde_json::from_str(&line).map_err(|error| Failure {
                kind: FailureKind::Internal,
                message: format!(
                    "the daemon at {} speaks another version: {error}",
                    self.path.display()
                ),
            })?;
            match response.body {
                Body::Error { error, .. } => return Err(error),
                part @ Body::Answer { .. } => each(part),
                part @ (Body::Tracing { .. } | Body::Event { .. }) => {
                    // The next event may be hours away.
                    sent = self.stream.get_ref().set_read_timeout(None);
                    each(part);
                }
                body => return Ok(body),
            }
        }
    }
}

/// Asks the daemon of `run_dir` once, on a [`Connection`] of its own.
///
/// # Errors
/// The daemon's refusal, or why it cannot be reached.
pub fn ask(run_dir: &Path, request: &Request, patience: Duration) -> Result<Body, Failure> {
    Connection::open(run_dir, patience)?.ask(request, |_| ())
}

fn unreachable(path: &Path, patience: Duration, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "is it running? start it with systemctl start ibarr, or name its --run-dir"
        }
        ErrorKind::PermissionDenied => "the directory must be open to you",
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            return Failure {
                kind: FailureKind::Unreachable,
                message: format!(
                    "the daemon at {} did not answer within {}: give it longer (--daemon-timeout), or see \
                     its log",
                    path.display(),
                    humantime::format_duration(patience)
                ),
            };
        }
        _ => "see its log",
    };
    Failure {
        kind: FailureKind::Unreachable,
        message: format!("no daemon at {}: {error}; {remedy}", path.display()),
    }
}

/// Reads a line after a request was sent. A daemon without room for this connection answers before it reads the
/// request, which can then be sent no more.
fn next_line(stream: &mut impl BufRead, sent: io::Result<()>) -> io::Result<String> {
    match sent {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
        _ => {}
    }
    let mut line = String::new();
    let read = stream.take(MAX_DOCUMENT).read_line(&mut line);
    if !line.ends_with('\n') {
        sent.and(read)?;
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}

/// A listen queue may stay full for as long as the daemon lives, so connect(2) has a time-out.
fn connected(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let (family, kind) = (AddressFamily::Unix, SockType::Stream);
    let stream: OwnedFd = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    // Not 0, which means no time-out.
    let millis = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX).max(1);
    setsockopt(&stream, SendTimeout, &TimeVal::milliseconds(millis))?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(stream))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::socket::{Backlog, listen};

    use super::*;
    use crate::tests::ShortDir;

    #[test]
    fn connecting_to_a_full_listen_queue_times_out() {
        let dir = ShortDir::new();
        let listener = UnixListener::bind(super::super::socket_path(dir.path())).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        // The kernel accepts one connection; nothing reads from it.
        let patience = Duration::from_millis(10);
        let asked = [(); 3].map(|()| ask(dir.path(), &Request::Status, patience).unwrap_err());
        for failure in asked {
            assert_eq!(failure.kind, FailureKind::Unreachable);
            assert!(failure.message.contains("did not answer within 10ms"), "{}", failure.message);
        }
    }

    #[test]
    fn refusal_is_read_even_if_the_request_was_not() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"{\"v\":1,\"done\":\"x\"}\n").unwrap();
        drop(far);
        let (stream, path) = (BufReader::new(near), PathBuf::new());
        let mut connection = Connection { stream, path, patience: PATIENCE };
        let done = Body::Done { done: "x".to_owned() };
        assert_eq!(connection.ask(&Request::Status, |_| ()), Ok(done));
    }
}
