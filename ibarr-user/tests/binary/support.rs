// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Starts and stops daemons for the tests.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::IoSliceMut;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use ibarr_user::transport::acm;
use nix::cmsg_space;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recv, recvmsg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, close};
use serde_json::Value;

/// Without the BPF responder: these tests never load programs into the machine's kernel.
pub(crate) const USER_SPACE: &str = "responder = \"user\"\n";

/// The program under test.
pub(crate) const IBARR: &str = env!("CARGO_BIN_EXE_ibarr");

/// Longer than anything here takes, so that a hang is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon of one test, killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    run_dir: PathBuf,
    notify: UnixDatagram,
    /// What systemd is asked to keep.
    kept: Mutex<Vec<Kept>>,
}

/// A descriptor that systemd keeps.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) name: String,
    /// Its number in this process.
    pub(crate) fd: RawFd,
}

impl Daemon {
    /// Starts a daemon with `config`, and waits until it is ready.
    pub(crate) fn start(dir: &TempDir, config: &str) -> Self {
        Self::spawn(daemon_command(dir), dir, config)
    }

    /// Like [`Daemon::start`], with a command other than [`daemon_command`].
    pub(crate) fn spawn(command: Command, dir: &TempDir, config: &str) -> Self {
        let (daemon, kept) = Self::spawn_under_systemd(command, dir, config);
        for kept in kept {
            close(kept.fd).unwrap();
        }
        daemon
    }

    /// Like [`Daemon::spawn`], without systemd.
    pub(crate) fn spawn_alone(mut command: Command, dir: &TempDir, config: &str) -> Self {
        dir.write("ibarr.toml", &format!("{USER_SPACE}{config}"));
        let child = command.spawn().unwrap();
        let (run_dir, notify) = (dir.0.clone(), UnixDatagram::unbound().unwrap());
        let daemon = Self { child, run_dir, notify, kept: Mutex::default() };
        daemon.until(|daemon| daemon.ask(&["status"]).status.success().then_some(()));
        daemon
    }

    /// Like [`Daemon::spawn`]; calls `meanwhile` before it waits.
    pub(crate) fn spawn_meanwhile(
        command: Command,
        dir: &TempDir,
        config: &str,
        meanwhile: impl FnOnce(Pid),
    ) -> Self {
        let daemon = Self::launch(command, dir, config);
        meanwhile(daemon.pid());
        daemon.notified("READY=1");
        daemon
    }

    /// Like [`Daemon::spawn`], under a stand-in for systemd. `KEPT` are this process's numbers of the
    /// sockets that systemd keeps for the next daemon.
    pub(crate) fn spawn_under_systemd(
        command: Command,
        dir: &TempDir,
        config: &str,
    ) -> (Self, Vec<Kept>) {
        let daemon = Self::launch(command, dir, config);
        daemon.notified("READY=1");
        let kept = std::mem::take(&mut *daemon.kept.lock().unwrap());
        (daemon, kept)
    }

    fn launch(mut command: Command, dir: &TempDir, config: &str) -> Self {
        dir.write("ibarr.toml", &format!("{USER_SPACE}{config}"));
        let socket = dir.path("notify.sock");
        drop(fs::remove_file(&socket));
        let notify = UnixDatagram::bind(&socket).unwrap();
        notify.set_read_timeout(Some(PATIENCE)).unwrap();
        let child = command.env("NOTIFY_SOCKET", &socket).spawn().unwrap();
        Self { child, run_dir: dir.0.clone(), notify, kept: Mutex::default() }
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> Output {
        ibarr(&[arguments, &["--run-dir", self.run_dir.to_str().unwrap()]].concat())
    }

    /// Repeats `ask` until it returns a value.
    pub(crate) fn until<T>(&self, ask: impl Fn(&Self) -> Option<T>) -> T {
        until(|| ask(self))
    }

    /// Waits until the daemon notifies systemd of `state`.
    pub(crate) fn notified(&self, state: &str) {
        while !self.notification().split(|&byte| byte == b'\n').any(|line| line == state.as_bytes())
        {
        }
    }

    /// Waits for a notification with a line that begins with `key`, and returns the rest of the line.
    pub(crate) fn told(&self, key: &str) -> String {
        loop {
            let message = String::from_utf8(self.notification()).unwrap();
            if let Some(value) = message.lines().find_map(|line| line.strip_prefix(key)) {
                return value.to_owned();
            }
        }
    }

    /// Waits until systemd is asked to keep so many descriptors of a name, and returns all.
    pub(crate) fn keeps(&self, name: &str, count: usize) -> Vec<Kept> {
        let has_name = |kept: &&Kept| kept.name == name;
        while self.kept.lock().unwrap().iter().filter(has_name).count() < count {
            self.notification();
        }
        std::mem::take(&mut *self.kept.lock().unwrap())
    }

    /// What systemd was asked to keep since the last call, once the daemon has ended.
    pub(crate) fn kept_at_the_end(&self) -> Vec<Kept> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        while recv(self.notify.as_raw_fd(), &mut [0], flags).is_ok() {
            self.notification();
        }
        std::mem::take(&mut *self.kept.lock().unwrap())
    }

    fn notification(&self) -> Vec<u8> {
        let mut message = [0; 4096];
        let mut parts = [IoSliceMut::new(&mut message)];
        let mut control = cmsg_space!([RawFd; 253]);
        let (fd, flags) = (self.notify.as_raw_fd(), MsgFlags::empty());
        let received = recvmsg::<()>(fd, &mut parts, Some(&mut control), flags).unwrap();
        let descriptors = received.cmsgs().unwrap().filter_map(|control| match control {
            ControlMessageOwned::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let kept: Vec<_> = descriptors.flatten().collect();
        let len = received.bytes;
        let message = &message[..len];
        if !kept.is_empty() {
            let name = match message {
                b"FDSTORE=1\nFDNAME=ls\nFDPOLL=0\n" => "ls",
                b"FDSTORE=1\nFDNAME=acm-reply\nFDPOLL=0\n" => acm::LAST_REPLY,
                b"FDSTORE=1\nFDNAME=acm-client\n" => acm::CLIENT,
                _ => panic!("{}", message.escape_ascii()),
            };
            let kept = kept.into_iter().map(|fd| Kept { name: name.to_owned(), fd });
            self.kept.lock().unwrap().extend(kept);
        }
        message.to_vec()
    }

    /// Stops the process, and waits until it has stopped: it reads nothing that is sent later.
    pub(crate) fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        let stopped = WaitStatus::Stopped(self.pid(), Signal::SIGSTOP);
        assert_eq!(waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)), Ok(stopped));
    }

    pub(crate) fn end(&mut self, signal: Signal) -> Option<i32> {
        kill(self.pid(), signal).unwrap();
        self.child.wait().unwrap().code()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Repeats `ask` until it returns a value.
pub(crate) fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    until_ok(|| ask().ok_or("no value in time"))
}

/// Repeats `ask` until it succeeds. The last error is the message of the panic.
pub(crate) fn until_ok<T, E: Display>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let begun = Instant::now();
    loop {
        match ask() {
            Ok(something) => return something,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A command for `program`, with nothing of this process's environment but the places of programs: no test depends on
/// what its caller has set.
pub(crate) fn program(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

pub(crate) fn daemon_command(dir: &TempDir) -> Command {
    let mut command = program(IBARR);
    command.args(["run", "-l", "3", "--config"]).arg(dir.path("ibarr.toml"));
    command.arg("--run-dir").arg(&dir.0).arg("--bpf-dir").arg(dir.path("bpf"));
    // No ports of this machine.
    command.arg("--sys-dir").arg(dir.path("sys")).arg("--dev-dir").arg(dir.path("dev"));
    command.stdin(Stdio::null());
    command
}

pub(crate) fn ibarr(arguments: &[&str]) -> Output {
    program(IBARR).args(arguments).output().unwrap()
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A UDP port that is free in both families, though another process may take it.
pub(crate) fn free_port() -> u16 {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    socket.local_addr().unwrap().port()
}

/// A free TCP port of 127.0.0.1, below the ports that the kernel gives to clients. The port of a
/// client stays taken for a minute after the client has closed, and a test has thousands of clients.
pub(crate) fn free_tcp_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    let mut ports = (0..1000).map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed));
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    ports.find(is_free).expect("a free TCP port")
}

/// A directory of one test, removed when dropped.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Sets the flag when it is dropped, also by a panic: the threads that wait for it end.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
