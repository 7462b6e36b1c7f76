// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Asynchronous events of RDMA devices. Each device has its own thread, which opens it, waits for
//! events, and closes it at once when the device is removed: a driver cannot be unloaded while a
//! process has the device open.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use ibarr_common::ib::DeviceName;
use ibarr_proto::paths::{PortEvent, PortName};
use tokio::sync::mpsc;

use super::ports::{OF_OTHERS, Poke};
use crate::causes::{Fault, fault};
use crate::sys::verbs::{Context, Happened, Library, NoLibrary};

/// A message of a thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// An event of a port.
    Happened(PortName, PortEvent),
    /// Events of a device arrive from now on.
    Heard(DeviceName),
    /// Events of a device do not arrive, for this reason.
    Deaf(DeviceName, Fault),
}

#[derive(Debug)]
pub(crate) struct Events {
    shared: Arc<Shared>,
}

struct Shared {
    /// Path of `class/infiniband` in sysfs.
    class: PathBuf,
    source: Box<dyn Source>,
    /// Devices that have a thread.
    watched: Mutex<BTreeSet<DeviceName>>,
    events: mpsc::Sender<Event>,
    /// How long to wait before a lost device is opened again.
    pause: Duration,
    /// Wakes pausing threads when the daemon ends.
    end: Poke,
}

/// libibverbs, or a fake in tests.
trait Source: Send + Sync {
    /// An error with `is_final` applies to every device, at any time.
    fn open(&self, device: DeviceName) -> Result<Box<dyn Listen + '_>, Refusal>;
}

trait Listen {
    /// Waits for an event; `None` after a while.
    fn next(&mut self) -> io::Result<Option<Happened>>;
}

struct Refusal {
    reason: Fault,
    is_final: bool,
}

/// A device that is being removed is still visible for a moment. A process that opens it then
/// delays the removal.
const PAUSE: Duration = Duration::from_secs(2);

/// How often a thread checks whether the device or the daemon is gone.
const LOOK: Duration = Duration::from_secs(1);

impl Events {
    /// No events arrive before [`Self::watch`]. `sys` is the mount point of sysfs.
    pub(crate) fn new(sys: &Path) -> (Self, mpsc::Receiver<Event>) {
        Self::of(sys, Box::new(Verbs::default()), PAUSE)
    }

    fn of(sys: &Path, source: Box<dyn Source>, pause: Duration) -> (Self, mpsc::Receiver<Event>) {
        let (events, received) = mpsc::channel(super::EVENTS);
        let class = sys.join("class/infiniband");
        let watched = Mutex::default();
        let end = Poke::default();
        let shared = Arc::new(Shared { class, source, watched, events, pause, end });
        (Self { shared }, received)
    }

    /// Starts to wait for events of a device, until the device is removed.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn watch(&self, device: DeviceName) -> io::Result<()> {
        let mut watched = self.shared.watched();
        if watched.contains(&device) {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let name = format!("events {device}").chars().take(15).collect();
        thread::Builder::new().name(name).spawn(move || shared.device(device))?;
        watched.insert(device);
        Ok(())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.end.end();
    }
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, BTreeSet<DeviceName>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self, device: DeviceName) {
        loop {
            let reason = match self.source.open(device) {
                Ok(mut open) => {
                    if self.events.blocking_send(Event::Heard(device)).is_err() {
                        return;
                    }
                    let Some(reason) = self.listen(device, &mut *open) else { return };
                    Refusal { reason, is_final: false }
                }
                Err(refusal) => refusal,
            };
            let deaf = Event::Deaf(device, reason.reason);
            if self.events.blocking_send(deaf).is_err() || reason.is_final {
                return;
            }
            if !self.end.wait(&mut 0, self.pause) {
                return;
            }
            // The engine takes this lock, too, so it is not held while sysfs is asked.
            self.watched().remove(&device);
            if !self.is_there(device) || !self.watched().insert(device) {
                return;
            }
        }
    }

    /// Passes on events until the device is lost, and returns the reason; `None` if the engine is
    /// gone.
    fn listen(&self, device: DeviceName, open: &mut dyn Listen) -> Option<Fault> {
        loop {
            let event = match open.next() {
                Ok(Some(Happened::Port(port, event))) => {
                    Event::Happened(PortName { device, port }, event)
                }
                Ok(Some(Happened::Fatal)) => return Some(fault!("the device is being removed")),
                Ok(_) if self.events.is_closed() => return None,
                Ok(_) if !self.is_there(device) => return Some(fault!("the device is gone")),
                Ok(_) => continue,
                Err(error) => return Some(fault!("the device was lost: {error}")),
            };
            self.events.blocking_send(event).ok()?;
        }
    }

    fn is_there(&self, device: DeviceName) -> bool {
        self.class.join(device.as_str()).exists()
    }
}

/// libibverbs, loaded when the first device is opened.
#[derive(Default)]
struct Verbs(OnceLock<Result<Library, NoLibrary>>);

impl Source for Verbs {
    fn open(&self, device: DeviceName) -> Result<Box<dyn Listen + '_>, Refusal> {
        let library = self.0.get_or_init(Library::open).as_ref();
        let library = library.map_err(|error| Refusal { reason: error.into(), is_final: true })?;
        match library.open_device(device) {
            Ok(context) => Ok(Box::new(context)),
            Err(error) => Err(Refusal { reason: why_not(&error), is_final: false }),
        }
    }
}

impl Listen for Context<'_> {
    fn next(&mut self) -> io::Result<Option<Happened>> {
        Context::next(self, LOOK)
    }
}

fn why_not(error: &io::Error) -> Fault {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSYS | libc::ENOENT) => ": load the module ib_uverbs",
        Some(libc::EACCES) => ": let the daemon read and write /dev/infiniband/uverbs*",
        Some(libc::EPERM) => OF_OTHERS,
        _ => "",
    };
    fault!("libibverbs cannot open it: {error}{remedy}")
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("class", &self.class).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc as std_mpsc;

    use ibarr_common::ib::PortNum;

    use super::*;

    /// Fake devices: each one that is opened plays the next script.
    struct Fake {
        scripts: Mutex<Vec<Result<std_mpsc::Receiver<Happened>, bool>>>,
        closed: std_mpsc::Sender<()>,
    }

    struct Open<'a>(std_mpsc::Receiver<Happened>, &'a std_mpsc::Sender<()>);

    impl Source for Fake {
        fn open(&self, _device: DeviceName) -> Result<Box<dyn Listen + '_>, Refusal> {
            match self.scripts.lock().unwrap().remove(0) {
                Ok(events) => Ok(Box::new(Open(events, &self.closed))),
                Err(is_final) => Err(Refusal { reason: fault!("no"), is_final }),
            }
        }
    }

    impl Listen for Open<'_> {
        fn next(&mut self) -> io::Result<Option<Happened>> {
            self.0.recv().map(Some).map_err(io::Error::other)
        }
    }

    impl Drop for Open<'_> {
        fn drop(&mut self) {
            self.1.send(()).unwrap();
        }
    }

    fn device() -> DeviceName {
        "mlx5_0".parse().unwrap()
    }

    fn is_watched(events: &Events) -> bool {
        events.shared.watched.lock().unwrap().contains(&device())
    }

    #[test]
    fn device_under_removal_is_closed_at_once_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        fs::create_dir_all(sys.join("class/infiniband/mlx5_0")).unwrap();
        let (first, one) = std_mpsc::channel();
        let (second, two) = std_mpsc::channel();
        let (closed, ends) = std_mpsc::channel();
        let fake = Fake { scripts: Mutex::new(vec![Ok(one), Err(false), Ok(two)]), closed };
        let (events, mut heard) = Events::of(sys, Box::new(fake), Duration::ZERO);
        events.watch(device()).unwrap();
        events.watch(device()).unwrap();
        let mut next = || heard.blocking_recv().unwrap();
        assert_eq!(next(), Event::Heard(device()));
        let port = PortName { device: device(), port: PortNum::new(1).unwrap() };
        first.send(Happened::Port(port.port, PortEvent::ClientReregister)).unwrap();
        assert_eq!(next(), Event::Happened(port, PortEvent::ClientReregister));
        first.send(Happened::Other).unwrap();
        first.send(Happened::Fatal).unwrap();
        ends.recv().unwrap();
        assert_eq!(next(), Event::Deaf(device(), fault!("the device is being removed")));
        assert_eq!(next(), Event::Deaf(device(), fault!("no")));
        assert_eq!(next(), Event::Heard(device()));
        // The device is removed without an event.
        fs::remove_dir_all(sys).unwrap();
        second.send(Happened::Other).unwrap();
        ends.recv().unwrap();
        assert_eq!(next(), Event::Deaf(device(), fault!("the device is gone")));
        while is_watched(&events) {
            thread::yield_now();
        }
    }

    #[test]
    fn thread_waiting_to_reopen_a_device_ends_with_the_daemon() {
        let (closed, _ends) = std_mpsc::channel();
        let fake = Fake { scripts: Mutex::new(vec![Err(false)]), closed };
        let pause = Duration::from_hours(1);
        let (events, mut heard) = Events::of(Path::new("/nowhere"), Box::new(fake), pause);
        events.watch(device()).unwrap();
        assert_eq!(heard.blocking_recv(), Some(Event::Deaf(device(), fault!("no"))));
        drop(events);
        assert_eq!(heard.blocking_recv(), None);
    }

    #[test]
    fn missing_library_is_reported_once_and_not_retried() {
        let (closed, _ends) = std_mpsc::channel();
        let fake = Fake { scripts: Mutex::new(vec![Err(true)]), closed };
        let (events, mut heard) = Events::of(Path::new("/nowhere"), Box::new(fake), Duration::ZERO);
        events.watch(device()).unwrap();
        assert_eq!(heard.blocking_recv(), Some(Event::Deaf(device(), fault!("no"))));
        events.watch(device()).unwrap();
        assert!(is_watched(&events));
        drop(events);
        assert_eq!(heard.blocking_recv(), None);
    }
}
