// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The client side of the control socket, for the command line.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};

use super::messages::{Body, Failure, FailureKind, Request, Response};

/// Longer than the daemon takes for any request that does not set its own time.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The longest answer, in bytes: longer documents come in pages.
const MAX_DOCUMENT: u64 = 16 << 20;

/// Asks the daemon of `run_dir`, and waits for its answer. `patience` bounds each step: to connect,
/// to send the request, to wait for the next part of the answer. The time that the request itself
/// allows is added.
///
/// # Errors
/// The daemon's refusal, or why it cannot be reached.
pub fn ask(run_dir: &Path, request: &Request, patience: Duration) -> Result<Body, Failure> {
    let path = super::socket_path(run_dir);
    let unreachable = |error: &std::io::Error| {
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
    };
    let for_peers = match request {
        Request::Resolve { timeout_ms, .. } => Duration::from(timeout_ms.unwrap_or_default()),
        _ => Duration::ZERO,
    };
    let line = connected(&path, patience, patience.saturating_add(for_peers))
        .and_then(|stream| exchange(stream, request))
        .map_err(|error| unreachable(&error))?;
    let response: Response = serde_json::from_str(&line).map_err(|error| Failure {
        kind: FailureKind::Internal,
        message: format!("the daemon at {} speaks another version: {error}", path.display()),
    })?;
    match response.body {
        Body::Error { error, .. } => Err(error),
        body => Ok(body),
    }
}

fn exchange(mut stream: UnixStream, request: &Request) -> std::io::Result<String> {
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    let sent = stream.write_all(line.as_bytes());
    if let Err(error) = &sent
        && error.kind() != ErrorKind::BrokenPipe
    {
        return sent.map(|()| line);
    }
    line.clear();
    // A daemon without room for this connection answers before it reads the request.
    let read = BufReader::new(stream).take(MAX_DOCUMENT).read_line(&mut line);
    if !line.ends_with('\n') {
        sent.and(read)?;
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}

/// A listen queue may stay full for as long as the daemon lives, so connect(2) has a time-out.
fn connected(path: &Path, patience: Duration, for_answer: Duration) -> std::io::Result<UnixStream> {
    let (family, kind) = (AddressFamily::Unix, SockType::Stream);
    let stream: OwnedFd = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    // Not 0, which means no time-out.
    let millis = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX).max(1);
    setsockopt(&stream, SendTimeout, &TimeVal::milliseconds(millis))?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(stream);
    stream.set_read_timeout(Some(for_answer))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::socket::{Backlog, listen};

    use super::*;

    #[test]
    fn connecting_to_a_full_listen_queue_times_out() {
        let dir = std::env::temp_dir().join(format!("ibarr-client-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let listener = UnixListener::bind(super::super::socket_path(&dir)).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        // The kernel accepts one connection; nothing reads from it.
        let patience = Duration::from_millis(10);
        let asked = [(); 3].map(|()| ask(&dir, &Request::Status, patience).unwrap_err());
        std::fs::remove_dir_all(&dir).unwrap();
        for failure in asked {
            assert_eq!(failure.kind, FailureKind::Unreachable);
            assert!(failure.message.contains("did not answer within 10ms"), "{}", failure.message);
        }
    }

    #[test]
    fn refusal_is_read_even_if_the_request_was_not() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"{\"v\":1}\n").unwrap();
        drop(far);
        assert_eq!(exchange(near, &Request::Status).unwrap(), "{\"v\":1}\n");
    }
}
