// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The control socket of a running fabric: a Unix socket that only its owner may open. A request is
//! the words of a command line, each ended by NUL. The answer is text up to the end of the stream;
//! its first byte says whether it is an error.

use std::fs;
use std::io::{Read as _, Write as _};
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

    /// Answers all waiting clients.
    pub(crate) fn serve(&self, mut answer: impl FnMut(&[String]) -> anyhow::Result<String>) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let words = read_words(&stream);
            let (kind, text) = match words.and_then(|words| answer(&words)) {
                Ok(text) => (OK, text),
                Err(error) => (ERROR, format!("{error:#}")),
            };
            // A client that does not read loses the answer.
            let _ = stream.write_all(&[&[kind], text.as_bytes()].concat());
        }
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

/// Sends a request to the fabric behind `path`.
pub(crate) fn ask(path: &Path, words: &[String]) -> anyhow::Result<String> {
    let mut stream = UnixStream::connect(path)
        .with_context(|| format!("cannot reach a fabric at {}: is it running?", path.display()))?;
    let request: String = words.iter().flat_map(|word| [word, "\0"]).collect();
    stream.write_all(request.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.as_bytes().first() {
        Some(&OK) => Ok(answer.split_off(1)),
        Some(_) => bail!("{}", answer.split_off(1)),
        None => bail!("the fabric did not answer: is it overloaded?"),
    }
}
