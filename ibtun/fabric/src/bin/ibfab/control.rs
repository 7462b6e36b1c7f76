// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The control socket of a running fabric: a Unix socket that only its owner may open. A request is
//! the words of a command line, each ended by NUL. The answer is text up to the end of the stream;
//! its first byte says whether it is an error. A trace ends when the client closes the stream.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};

/// The fabric's end of the control socket.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

/// Longest request, in bytes.
const MAX_REQUEST: u64 = 4096;

/// Time-out of a client. The fabric stands still while it waits, so it is short.
const PATIENCE: Duration = Duration::from_millis(100);

/// How often a client sends its request. The fabric does nothing of one that comes too late, and hangs up.
const ATTEMPTS: usize = 20;

const OK: u8 = b'+';
const ERROR: u8 = b'-';

impl Control {
    /// Replaces the socket of a dead fabric, but not of a running one.
    pub(crate) fn listen(path: &Path) -> anyhow::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            bail!("{} belongs to a running fabric: name another", path.display());
        }
        if path.exists() {
            fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let listener =
            UnixListener::bind(path).with_context(|| format!("cannot make {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot protect {}", path.display()))?;
        listener.set_nonblocking(true).context("cannot watch the control socket")?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers waiting clients, up to the first whose answer has a `T`. Its stream stays open.
    pub(crate) fn serve<T>(
        &self,
        mut answer: impl FnMut(&[String]) -> anyhow::Result<(String, Option<T>)>,
    ) -> Option<(UnixStream, T)> {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let words = match read_words(&stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                words => words.map_err(anyhow::Error::from),
            };
            let (kind, text, more) = match words.and_then(|words| answer(&words)) {
                Ok((text, more)) => (OK, text, more),
                Err(error) => (ERROR, format!("{error:#}"), None),
            };
            // A client that does not read loses the answer.
            let _ = stream.write_all(&[&[kind], text.as_bytes()].concat());
            if let Some(more) = more {
                return Some((stream, more));
            }
        }
        None
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn read_words(mut stream: &UnixStream) -> io::Result<Vec<String>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    (&mut stream).take(MAX_REQUEST).read_to_string(&mut request)?;
    Ok(request.split_terminator('\0').map(str::to_owned).collect())
}

/// Sends a request to the fabric behind `path`, and writes the answer as it comes.
pub(crate) fn ask(path: &Path, words: &[String], to: &mut impl Write) -> anyhow::Result<()> {
    let request: String = words.iter().flat_map(|word| [word, "\0"]).collect();
    let mut taken = None;
    for _ in 0..ATTEMPTS {
        let stream = UnixStream::connect(path).with_context(|| {
            format!("cannot reach a fabric at {}: is it running?", path.display())
        })?;
        taken = send(stream, &request)?;
        if taken.is_some() {
            break;
        }
    }
    let Some((mut stream, kind)) = taken else {
        bail!("the fabric did not answer: is it overloaded?");
    };
    if kind == OK {
        return match io::copy(&mut stream, to) {
            // What reads our output wants no more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            copied => Ok(copied.map(drop)?),
        };
    }
    let mut refusal = String::new();
    stream.read_to_string(&mut refusal)?;
    bail!("{refusal}")
}

/// The first byte of the answer, if the request came in time.
fn send(mut stream: UnixStream, request: &str) -> io::Result<Option<(UnixStream, u8)>> {
    let mut kind = [0];
    let mut sent = || {
        stream.write_all(request.as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        stream.read_exact(&mut kind)
    };
    match sent() {
        Ok(()) => Ok(Some((stream, kind[0]))),
        Err(error) => match error.kind() {
            ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::UnexpectedEof => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn request_that_the_fabric_hangs_up_on_is_sent_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let fabric = thread::spawn(move || {
            for _ in 0..3 {
                drop(listener.accept().unwrap());
            }
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            stream.read_to_string(&mut request).unwrap();
            stream.write_all(b"+done").unwrap();
            request
        });
        let mut said = Vec::new();
        ask(&path, &["fault".to_owned(), "B".to_owned()], &mut said).unwrap();
        assert_eq!(said, b"done");
        assert_eq!(fabric.join().unwrap(), "fault\0B\0");
    }

    #[test]
    fn late_request_is_not_answered() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let control = Control::listen(&path).unwrap();
        let mut late = UnixStream::connect(&path).unwrap();
        late.write_all(b"fault\0").unwrap();
        control.serve(|_| -> anyhow::Result<(String, Option<()>)> { panic!("it is not whole") });
        assert_eq!(late.read(&mut [0]).unwrap(), 0);
    }
}
