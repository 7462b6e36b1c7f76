// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! InfiniBand ports without hardware: a socket in place of `/dev/infiniband/umadN`, and the files of the port
//! in sysfs, in the directories of `ibarr run --dev-dir --sys-dir`. Behind the port is a [`Wire`]: a stand-in for
//! a subnet administrator ([`Administrator`]), or, in the tests with stock OpenSM, a fabric of `ibfab`.
//!
//! The daemon connects to the socket, and then reads and writes as at a device. It opens and registers only at
//! a real device: that is proven in virtual machines (`vm run e`).

mod administrator;
mod device;
pub(crate) mod sysfs;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
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
pub use device::{Loss, Sent};
pub use sysfs::{PortState, Shown};

use self::device::Device;

/// The thing that a port is connected to. After each call, the `poll_…` functions are called until they
/// return `None`.
pub trait Wire: Send + 'static {
    /// The port sends a MAD.
    fn send(&mut self, now: Instant, sent: &Sent);

    /// A descriptor of [`Wire::fds`] is readable, or the time of [`Wire::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant);

    /// The time at which [`Wire::handle_timeout`] must be called.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The next MAD for the port, and the LID of its sender.
    fn poll_received(&mut self) -> Option<(Lid, [u8; mad::LEN])>;

    /// The new state of the port, if it has changed.
    fn poll_state(&mut self) -> Option<Shown> {
        None
    }

    /// The descriptors to watch.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// The directory in which ports are made. The caller removes it.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// A directory for ports at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The value for `ibarr run --dev-dir`.
    pub fn dev(&self) -> PathBuf {
        self.0.join("dev")
    }

    /// The value for `ibarr run --sys-dir`.
    pub fn sys(&self) -> PathBuf {
        self.0.join("sys")
    }

    /// The path of a device. Its directory is made.
    fn device(&self, umad: u32) -> io::Result<PathBuf> {
        let directory = self.dev().join("infiniband");
        fs::create_dir_all(&directory)?;
        Ok(directory.join(format!("umad{umad}")))
    }
}

/// A port. It vanishes when this is dropped.
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
    /// The state that sysfs shows while the device exists.
    state: Option<Shown>,
    is_gone: bool,
    is_over: bool,
}

impl Port {
    /// Makes the port `name` with the device `umadN`. sysfs shows it as soon as it has a state: `state`, or
    /// the first state of the wire.
    ///
    /// # Errors
    /// The path is too long for a socket, or a file cannot be written.
    pub fn new(
        directory: &Directory,
        name: PortName,
        umad: u32,
        state: Option<Shown>,
        wire: impl Wire,
    ) -> Result<Self> {
        let listener = device::listen_at(&directory.device(umad)?)?;
        let (bell, alarm) = UnixStream::pair().context("cannot make a pair of sockets")?;
        bell.set_nonblocking(true)?;
        alarm.set_nonblocking(true)?;
        let inner = Inner { device: Device::new(), state: None, is_gone: false, is_over: false };
        let inner = Mutex::new(inner);
        let shared = Arc::new(Shared { directory: directory.clone(), name, umad, inner });
        if let Some(state) = state {
            shared.lock().show(&shared, state)?;
        }
        let serving =
            Serving { shared: Arc::clone(&shared), listener, wire: Box::new(wire), alarm };
        let thread = thread::Builder::new().name(format!("umad{umad}"));
        let thread = thread.spawn(move || serving.run()).context("cannot start a thread")?;
        Ok(Self { shared, bell, thread: Some(thread) })
    }

    /// Changes the state that sysfs shows.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn show(&self, state: Shown) -> Result<()> {
        self.shared.lock().show(&self.shared, state)
    }

    /// Makes the device vanish, as when its driver resets it or is unloaded.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn unplug(&self, loss: Loss) -> Result<()> {
        let mut inner = self.shared.lock();
        inner.is_gone = true;
        // As in the kernel: first the device fails, then its files vanish.
        inner.device.lose(loss);
        sysfs::hide(&self.shared.directory.sys(), &self.shared.name, self.shared.umad)?;
        drop(inner);
        self.wake();
        Ok(())
    }

    /// Makes the device come back.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn plug(&self) -> Result<()> {
        let mut inner = self.shared.lock();
        inner.is_gone = false;
        inner.device.come_back();
        match inner.state.take() {
            Some(state) => inner.show(&self.shared, state),
            None => Ok(()),
        }
    }

    /// Makes all connections to the device read `bytes`, which no kernel would give.
    pub fn forge(&self, bytes: &[u8]) {
        self.shared.lock().device.forge(bytes);
    }

    /// Number of connections to the device.
    pub fn connections(&self) -> usize {
        self.shared.lock().device.connections()
    }

    fn wake(&self) {
        // If there is no room for a byte, enough bytes wait already.
        let _ = (&self.bell).write(&[0]);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
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

/// The state of a port's thread.
struct Serving {
    shared: Arc<Shared>,
    listener: UnixListener,
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
        // A connection that cannot be accepted is closed already.
        while let Ok((socket, _)) = self.listener.accept() {
            device.open(socket)?;
        }
        device.take(now).iter().for_each(|sent| self.wire.send(now, sent));
        device.handle_timeout(now);
        self.wire.handle_timeout(now);
        while let Some((from, mad)) = self.wire.poll_received() {
            device.receive(from, &mad);
        }
        if let Some(state) = self.wire.poll_state() {
            inner.show(&self.shared, state)?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let (due, sockets) = {
            let device = &self.shared.lock().device;
            ([device.poll_timeout(), self.wire.poll_timeout()], device.sockets())
        };
        let timeout = match due.into_iter().flatten().min() {
            None => PollTimeout::NONE,
            Some(due) => {
                // Round up, so that the time has come when we wake.
                let millis = due.since(clock::now()).as_nanos().div_ceil(1_000_000);
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
        };
        let own = [self.listener.as_fd(), self.alarm.as_fd()];
        let fds = own.into_iter().chain(sockets.iter().map(AsFd::as_fd)).chain(self.wire.fds());
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait"),
        }
    }
}
