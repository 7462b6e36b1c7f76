// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! InfiniBand ports where there are none: `/dev/infiniband/umadN` and what sysfs shows of it, for the
//! directories that `ibarr run --dev-dir --sys-dir` are told. The daemon opens, registers, reads,
//! writes and polls as it does with the kernel's; behind the port is a [`Wire`]: a stand-in for a
//! subnet administrator ([`Administrator`]), or a fabric of `ibfab` with stock OpenSM on it
//! ([`OnFabric`]).
//!
//! [`device`] is what the kernel does, [`fuse`] how system calls get here, [`Port`] the thread between
//! the three. The files are mounted, so whoever makes ports has the right to: root, or root of a
//! user namespace on a machine that lets it open /dev/fuse. Processes see them that start later and
//! share the mount namespace, or got a copy of it. Where there is no FUSE a port can be [at a
//! socket](Port::at_socket) that the daemon connects to: of the device's system calls it then makes
//! none but reads and writes.

pub mod device;
pub mod fuse;

mod administrator;
mod door;
mod on_fabric;
pub(crate) mod sysfs;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::mad;
use ibarr_proto::paths::PortName;
use ibarr_user::sys::clock;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use administrator::Administrator;
pub use device::{Abilities, Device, FileId, Sent};
pub use on_fabric::OnFabric;
pub use sysfs::Shown;

use self::door::Door;

/// What a port is connected to. After each call the `poll_…` functions are called until they have
/// nothing more.
pub trait Wire: Send + 'static {
    /// The port sends.
    fn send(&mut self, now: Instant, sent: &Sent);

    /// Something came by a descriptor of [`Wire::fds`], or time has passed.
    fn handle_timeout(&mut self, now: Instant);

    /// When [`Wire::handle_timeout`] is to be called.
    fn poll_timeout(&self) -> Option<Instant>;

    /// A MAD for the port, and whose it is.
    fn poll_received(&mut self) -> Option<(Lid, [u8; mad::LEN])>;

    /// The port is not as it was.
    fn poll_state(&mut self) -> Option<Shown> {
        None
    }

    /// What is to be watched.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// Where ports are made. What they leave there is the caller's to remove.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Below `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// For `ibarr run --dev-dir`.
    pub fn dev(&self) -> PathBuf {
        self.0.join("dev")
    }

    /// For `ibarr run --sys-dir`.
    pub fn sys(&self) -> PathBuf {
        self.0.join("sys")
    }

    /// Where a device belongs; its directory is made.
    fn device(&self, umad: u32) -> io::Result<PathBuf> {
        let directory = self.dev().join(INFINIBAND);
        fs::create_dir_all(&directory)?;
        Ok(directory.join(format!("umad{umad}")))
    }

    /// What has been made in the place of devices, also by processes that are no more.
    ///
    /// # Errors
    /// It cannot be listed.
    pub fn devices(&self) -> io::Result<Vec<PathBuf>> {
        match fs::read_dir(self.dev().join(INFINIBAND)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            entries => entries?.map(|entry| Ok(entry?.path())).collect(),
        }
    }
}

/// A port, as long as this lives.
#[derive(Debug)]
pub struct Port {
    shared: Arc<Shared>,
    bell: UnixStream,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    directory: Directory,
    name: PortName,
    umad: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    /// What is shown while the device is there.
    state: Option<Shown>,
    is_gone: bool,
    is_over: bool,
}

impl Port {
    /// Makes the port `name` with the device `umadN`. It is shown once it has a state: `state`, or
    /// what the wire says.
    ///
    /// # Errors
    /// There is no FUSE, or no right to mount; a file cannot be written.
    pub fn new(
        directory: &Directory,
        name: PortName,
        umad: u32,
        abilities: Abilities,
        state: Option<Shown>,
        wire: impl Wire,
    ) -> Result<Self> {
        let door = Door::mount(&directory.device(umad)?)?;
        Self::behind(door, directory, name, umad, abilities, state, wire)
    }

    /// The same with a Unix socket in the device's place.
    ///
    /// # Errors
    /// The path is too long for a socket; a file cannot be written.
    pub fn at_socket(
        directory: &Directory,
        name: PortName,
        umad: u32,
        state: Option<Shown>,
        wire: impl Wire,
    ) -> Result<Self> {
        let door = Door::listen(&directory.device(umad)?)?;
        Self::behind(door, directory, name, umad, Abilities::default(), state, wire)
    }

    fn behind(
        door: Door,
        directory: &Directory,
        name: PortName,
        umad: u32,
        abilities: Abilities,
        state: Option<Shown>,
        wire: impl Wire,
    ) -> Result<Self> {
        let (bell, alarm) = UnixStream::pair().context("cannot make a pair of sockets")?;
        bell.set_nonblocking(true)?;
        alarm.set_nonblocking(true)?;
        let device = Device::new(abilities);
        let inner = Mutex::new(Inner { device, state: None, is_gone: false, is_over: false });
        let shared = Arc::new(Shared { directory: directory.clone(), name, umad, inner });
        if let Some(state) = state {
            shared.lock().show(&shared, state)?;
        }
        let serving = Serving { shared: Arc::clone(&shared), door, wire: Box::new(wire), alarm };
        let thread = thread::Builder::new().name(format!("umad{umad}"));
        let thread = thread.spawn(move || serving.run()).context("cannot start a thread")?;
        Ok(Self { shared, bell, thread: Some(thread) })
    }

    /// Changes what sysfs shows.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn show(&self, state: Shown) -> Result<()> {
        self.shared.lock().show(&self.shared, state)
    }

    /// The device goes, as when its driver resets it or is unloaded.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn unplug(&self) -> Result<()> {
        let mut inner = self.shared.lock();
        inner.is_gone = true;
        // As in the kernel: first nobody can use it, then nobody can see it.
        inner.device.set_gone(true);
        sysfs::hide(&self.shared.directory.sys(), &self.shared.name, self.shared.umad)?;
        drop(inner);
        self.wake();
        Ok(())
    }

    /// It comes back.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn plug(&self) -> Result<()> {
        let mut inner = self.shared.lock();
        inner.is_gone = false;
        inner.device.set_gone(false);
        match inner.state.take() {
            Some(state) => inner.show(&self.shared, state),
            None => Ok(()),
        }
    }

    /// Has whoever has the device open read `bytes`, which no kernel would give.
    pub fn forge(&self, bytes: &[u8]) {
        self.shared.lock().device.forge(bytes);
        self.wake();
    }

    /// Asks the device something.
    pub fn device<T>(&self, ask: impl FnOnce(&Device) -> T) -> T {
        ask(&self.shared.lock().device)
    }

    fn wake(&self) {
        // If there is no room for a byte, enough of them wait.
        let _ = (&self.bell).write(&[0]);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
        let shared = &self.shared;
        let _ = sysfs::hide(&shared.directory.sys(), &shared.name, shared.umad);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn show(&mut self, shared: &Shared, state: Shown) -> Result<()> {
        if !self.is_gone {
            let sys = shared.directory.sys();
            sysfs::show(&sys, &shared.name, shared.umad, &state)
                .with_context(|| format!("cannot write below {}", sys.display()))?;
        }
        self.state = Some(state);
        Ok(())
    }
}

/// What the thread of a port has.
struct Serving {
    shared: Arc<Shared>,
    door: Door,
    wire: Box<dyn Wire>,
    alarm: UnixStream,
}

impl Serving {
    fn run(mut self) {
        let name = self.shared.name;
        while !self.shared.lock().is_over {
            if let Err(error) = self.turn() {
                eprintln!("port {name}: {error:#}");
                return;
            }
        }
    }

    fn turn(&mut self) -> Result<()> {
        self.wait()?;
        let mut buffer = [0; 64];
        while matches!(self.alarm.read(&mut buffer), Ok(1..)) {}
        let now = clock::now();
        let mut inner = self.shared.lock();
        let device = &mut inner.device;
        self.door.serve(now, device)?;
        device.handle_timeout(now);
        while let Some(sent) = device.poll_transmit() {
            self.wire.send(now, &sent);
        }
        self.wire.handle_timeout(now);
        while let Some((from, mad)) = self.wire.poll_received() {
            device.receive(from, &mad);
        }
        self.door.deliver(device)?;
        if let Some(state) = self.wire.poll_state() {
            inner.show(&self.shared, state)?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let due = [self.shared.lock().device.poll_timeout(), self.wire.poll_timeout()];
        let timeout = match due.into_iter().flatten().min() {
            None => PollTimeout::NONE,
            Some(due) => {
                // Rounded up, so that it is due when we wake.
                let millis = due.since(clock::now()).as_nanos().div_ceil(1_000_000);
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
        };
        let fds = self.door.fds().chain([self.alarm.as_fd()]).chain(self.wire.fds());
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait"),
        }
    }
}

/// Below a `--dev-dir`.
const INFINIBAND: &str = "infiniband";
