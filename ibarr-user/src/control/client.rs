// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The side of the command line.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::messages::{Body, Failure, FailureKind, Request, Response};

/// Longer than the daemon takes for anything that is not given more time by the request.
const PATIENCE: Duration = Duration::from_secs(30);

/// No document is longer: a full cache of 65,536 entries is about 10 MB.
const MAX_DOCUMENT: u64 = 256 << 20;

/// Asks the daemon of `run_dir`, and waits for its answer.
///
/// # Errors
/// What the daemon refused, or that there is none.
pub fn ask(run_dir: &Path, request: &Request) -> Result<Body, Failure> {
    let path = super::socket_path(run_dir);
    let unreachable = |error: &std::io::Error| {
        let remedy = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "is it running? start it with systemctl start ibarr, or name its --run-dir"
            }
            ErrorKind::PermissionDenied => "the directory must be open to you",
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "it did not answer in 30 s",
            _ => "see its log",
        };
        Failure {
            kind: FailureKind::Unreachable,
            message: format!("no daemon at {}: {error}; {remedy}", path.display()),
        }
    };
    let line = exchange(&path, request).map_err(|error| unreachable(&error))?;
    let response: Response = serde_json::from_str(&line).map_err(|error| Failure {
        kind: FailureKind::Internal,
        message: format!("the daemon at {} speaks another version: {error}", path.display()),
    })?;
    match response.body {
        Body::Error { error } => Err(error),
        body => Ok(body),
    }
}

fn exchange(path: &Path, request: &Request) -> std::io::Result<String> {
    let timeout = match request {
        Request::Resolve { timeout_ms, .. } => Duration::from_millis(timeout_ms.unwrap_or(0)),
        _ => Duration::ZERO,
    };
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE + timeout))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    line.clear();
    BufReader::new(stream).take(MAX_DOCUMENT).read_line(&mut line)?;
    if line.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}
