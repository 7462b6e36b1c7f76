// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A user that opens as many connections to a control socket as it can.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{io, thread};

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Counts of the crowd's connections.
#[derive(Debug, Default)]
pub struct Crowd {
    connections: AtomicU64,
    answers: AtomicU64,
}

/// Makes `connections` to `socket`, a file or a TCP address and port, sends `text` on each, with its number for `%` and NUL for `@`, and prints `ready`.
/// Holds them until standard input ends. With `again`, each waits for its answer instead, and then asks
/// on a new connection.
///
/// # Errors
/// A connection cannot be made.
pub fn press(socket: &Path, connections: usize, text: &str, again: bool) -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let crowd = Crowd::default();
    if again {
        return crowd.ask(socket, connections, text);
    }
    let held = (0..connections).map(|number| crowd.connect(socket, &numbered(text, number)));
    let held = held.collect::<io::Result<Vec<_>>>().context("not all connections were made")?;
    until_told()?;
    drop(held);
    Ok(())
}

impl Crowd {
    fn connect(&self, socket: &Path, text: &str) -> io::Result<File> {
        let address = socket.to_str().and_then(|text| text.parse::<SocketAddr>().ok());
        let mut stream = File::from(match address {
            Some(address) => OwnedFd::from(TcpStream::connect(address)?),
            None => UnixStream::connect(socket)?.into(),
        });
        self.connections.fetch_add(1, Ordering::Relaxed);
        match stream.write_all(text.as_bytes()) {
            // The daemon has closed it already.
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                Ok(stream)
            }
            sent => sent.map(|()| stream),
        }
    }

    fn ask(&self, socket: &Path, connections: usize, text: &str) -> Result<()> {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..connections {
                let text = numbered(text, number);
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let mut answer = Vec::new();
                        let asked = self.connect(socket, &text);
                        // It may be closed after the answer.
                        drop(asked.and_then(|s| BufReader::new(s).read_until(b'\n', &mut answer)));
                        if !answer.is_empty() {
                            self.answers.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let told = until_told();
            is_over.store(true, Ordering::Relaxed);
            told
        })?;
        let [answers, connections] =
            [&self.answers, &self.connections].map(|count| count.load(Ordering::Relaxed));
        println!("{answers} of {connections} answered");
        Ok(())
    }
}

fn numbered(text: &str, number: usize) -> String {
    text.replace('%', &number.to_string()).replace('@', "\0")
}

fn until_told() -> Result<()> {
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).context("no standard input")?;
    Ok(())
}
