// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The control socket of a running fabric: a Unix socket that only its owner may open. A request is
//! the words of a command line, each ended by NUL. The answer is text up to the end of the stream;
//! its first byte says whether it is an error. A trace ends when the client closes the stream.

use std::fs;
use std::io::{ErrorKind, Read as _, Write};
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
            let words = read_words(&stream);
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

fn read_words(mut stream: &UnixStream) -> anyhow::Result<Vec<String>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    (&mut stream).take(MAX_REQUEST).read_to_string(&mut request)?;
    Ok(request.split_terminator('\0').map(str::to_owned).collect())
}

/// Sends a request to the fabric behind `path`, and writes the answer as it comes.
pub(crate) fn ask(path: &Path, words: &[String], to: &mut impl Write) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(path)
        .with_context(|| format!("cannot reach a fabric at {}: is it running?", path.display()))?;
    let request: String = words.iter().flat_map(|word| [word, "\0"]).collect();
    stream.write_all(request.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut kind = [0];
    if stream.read(&mut kind)? == 0 {
        bail!("the fabric did not answer: is it overloaded?");
    }
    if kind == [OK] {
        return match std::io::copy(&mut stream, to) {
            // What reads our output wants no more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            copied => Ok(copied.map(drop)?),
        };
    }
    let mut refusal = String::new();
    stream.read_to_string(&mut refusal)?;
    bail!("{refusal}")
}
