// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs in the other guest. This program waits there for commands over TCP, and runs them. Here it
//! stands for each of them: its output and its status are those of the command, and if it is killed, the
//! command is.
//!
//! A request is the command's words, each with a NUL behind it, and one more NUL. The answer is the output,
//! then a NUL and the status.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use nix::unistd::Pid;

/// A command that ends the other guest.
pub(crate) const END: &str = "end";

/// Where the other guest listens.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(super::OTHER), 7472);

/// The other guest ends when it has had no command for so long: then the first one has died.
const SILENCE: Duration = Duration::from_mins(4);

/// How long a command has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// The status of a command that could not be run, and of one whose end is not known.
const NOT_RUN: u8 = 127;
const LOST: u8 = 125;

/// Runs the commands of the first guest, until it says that this one ends.
pub(super) fn serve() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, ADDRESS.port()))?;
    let (begun, begins) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let begun = begun.clone();
            thread::spawn(move || {
                let outcome = stream.context("accept").and_then(|stream| execute(stream, &begun));
                if let Err(error) = outcome {
                    eprintln!("ibarr-guest: {error:#}");
                }
            });
        }
    });
    loop {
        let ends: bool = begins.recv_timeout(SILENCE).context("no command from the first guest")?;
        if ends {
            return Ok(());
        }
    }
}

/// Runs one command. Reports before whether it ends the guest.
fn execute(mut stream: TcpStream, begun: &mpsc::Sender<bool>) -> Result<()> {
    let words = words(&mut stream)?;
    let ends = words == [END];
    begun.send(ends)?;
    if ends {
        return Ok(());
    }
    let status = match start(&words, &stream) {
        Ok(child) => end_of(child, &stream)?,
        Err(error) => {
            write!(stream, "{error:#}")?;
            NOT_RUN
        }
    };
    Ok(stream.write_all(&[0, status])?)
}

fn words(stream: &mut TcpStream) -> Result<Vec<String>> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(&[0, 0]) {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        bytes.extend(byte);
    }
    bytes.truncate(bytes.len() - 2);
    let words = bytes.split(|&byte| byte == 0).map(|word| String::from_utf8(word.to_vec()));
    Ok(words.collect::<Result<_, _>>()?)
}

/// In a process group of its own, so that the programs that it starts end with it.
fn start(words: &[String], stream: &TcpStream) -> Result<Child> {
    let [program, arguments @ ..] = words else { unreachable!("split gives at least one") };
    let output = OwnedFd::from(stream.try_clone()?);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    command.process_group(0).spawn().with_context(|| format!("{program} cannot be started"))
}

/// Waits for the end of a command, and ends it when its request is given up.
fn end_of(mut child: Child, stream: &TcpStream) -> Result<u8> {
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let mut ended = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(code(status));
        }
        match ended {
            None if is_closed(stream) => {
                killpg(group, Signal::SIGTERM)?;
                ended = Some(Instant::now());
            }
            Some(since) if Instant::now().duration_since(since) > GRACE => {
                killpg(group, Signal::SIGKILL)?;
                ended = None;
            }
            _ => {}
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the other side has closed the connection.
fn is_closed(stream: &TcpStream) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    !matches!(recv(stream.as_raw_fd(), &mut [0], flags), Err(Errno::EAGAIN))
}

/// As a shell gives it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_RUN)
}

/// Stands for a command of the other guest.
pub(crate) fn stand_for(words: &[String]) -> ExitCode {
    match command(words) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("the other guest: {error:#}");
            ExitCode::from(LOST)
        }
    }
}

fn command(words: &[String]) -> Result<u8> {
    let mut stream = TcpStream::connect_timeout(&ADDRESS, Duration::from_secs(5))?;
    // If the kernel is reset, the command ends: in the middle of sending, and while it waits.
    setsockopt(&stream, sockopt::TcpUserTimeout, &10_000)?;
    setsockopt(&stream, sockopt::KeepAlive, &true)?;
    setsockopt(&stream, sockopt::TcpKeepIdle, &2)?;
    setsockopt(&stream, sockopt::TcpKeepInterval, &2)?;
    let request: Vec<u8> =
        words.iter().flat_map(|word| word.bytes().chain([0])).chain([0]).collect();
    stream.write_all(&request)?;
    let (mut buffer, mut kept) = (vec![0; 64 * 1024], Vec::new());
    loop {
        let length = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        kept.extend_from_slice(&buffer[..length]);
        // They may be the last ones: a NUL, and the status.
        let held = match kept[..] {
            [.., 0, _] => 2,
            [.., 0] => 1,
            _ => 0,
        };
        let output = kept.len() - held;
        io::stdout().write_all(&kept[..output])?;
        io::stdout().flush()?;
        kept.drain(..output);
    }
    ensure!(kept.len() == 2 && kept[0] == 0, "it has gone in the middle of the command");
    Ok(kept[1])
}
