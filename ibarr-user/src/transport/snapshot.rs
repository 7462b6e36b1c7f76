// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The file that keeps paths for the next daemon. It is read once, and replaced as a whole. A disk may hang, so a
//! thread does both.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use ibarr_proto::paths::snapshot::{Action, Encoder, KeptPath, KeptPort, Snapshot, Step, max_len};
use tokio::sync::mpsc;

use super::{Counter, Counters};
use crate::causes::{Fault, fault};
use crate::regular_file::{self, Link};
use crate::whole_file::WholeFile;

/// The sender of orders.
#[derive(Debug)]
pub(crate) struct Keeper {
    orders: mpsc::Sender<Order>,
}

/// An order for the thread.
#[derive(Debug)]
pub(crate) enum Order {
    /// Read the file, which may hold at most this many paths.
    Read(PathBuf, usize),
    /// Write a part of the file. The complete one is renamed to its final name; an unfinished one is discarded.
    Write(PathBuf, Action),
}

/// The outcome of an order.
#[derive(Debug)]
pub(crate) enum Event {
    /// The contents of the file, and its age.
    Read(Snapshot, Duration),
    /// The file cannot be used, for this reason.
    Refused(Fault),
    /// A new file is in place.
    Written,
    /// The old file is kept, for this reason.
    NotWritten(Fault),
    /// The last event: the sender of orders is gone.
    Ended,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(counters: Arc<Counters>) -> io::Result<(Self, mpsc::Receiver<Event>)> {
        let (orders, ordered) = mpsc::channel(super::SNAPSHOT_ORDERS);
        let (events, told) = mpsc::channel(super::SNAPSHOT_EVENTS);
        let thread = Thread { events, counters, begun: None };
        thread::Builder::new().name("snapshot".to_owned()).spawn(move || thread.run(ordered))?;
        Ok((Self { orders }, told))
    }

    /// Room for an order, if there is any.
    pub(crate) fn try_reserve(&self) -> Option<mpsc::Permit<'_, Order>> {
        self.orders.try_reserve().ok()
    }

    /// Sends an order when there is room.
    pub(crate) async fn order(&self, order: Order) {
        // Without the thread no snapshot is kept.
        drop(self.orders.send(order).await);
    }
}

struct Thread {
    events: mpsc::Sender<Event>,
    counters: Arc<Counters>,
    begun: Option<Begun>,
}

/// An unfinished file.
struct Begun {
    file: WholeFile,
    encoder: Encoder,
}

impl Thread {
    fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        while let Some(order) = orders.blocking_recv() {
            let event = match order {
                Order::Read(path, paths) => self.read(&path, paths),
                Order::Write(path, Action::Begin(ports)) => self.begin(&path, &ports),
                Order::Write(_, Action::Continue(Step::Paths(paths))) => self.add(&paths),
                Order::Write(_, Action::Continue(Step::Done)) => self.end(),
                Order::Write(_, Action::Continue(Step::Void)) => {
                    self.begun = None;
                    None
                }
            };
            // The engine is gone.
            if event.is_some_and(|event| self.events.blocking_send(event).is_err()) {
                return;
            }
        }
        drop(self.events.blocking_send(Event::Ended));
    }

    /// `None` if there is no file.
    fn read(&self, path: &Path, paths: usize) -> Option<Event> {
        let reason = match regular_file::read(path, Link::Refused, max_len(paths)) {
            Ok(bytes) => match Snapshot::parse(&bytes) {
                Ok(snapshot) => {
                    let age = now().saturating_sub(snapshot.begun_at);
                    return Some(Event::Read(snapshot, Duration::from_secs(age)));
                }
                Err(error) => error.into(),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                fault!("it holds more paths than paths.max-cached says")
            }
            Err(error) => error.into(),
        };
        self.counters.count(Counter::SnapshotRefused);
        Some(Event::Refused(fault!("{}: {reason}", path.display())))
    }

    fn begin(&mut self, path: &Path, ports: &[KeptPort]) -> Option<Event> {
        self.begun = None;
        match Begun::new(path, ports) {
            Ok(begun) => {
                self.begun = Some(begun);
                None
            }
            Err(error) => Some(self.not_written(path, &error)),
        }
    }

    fn add(&mut self, paths: &[KeptPath]) -> Option<Event> {
        let mut begun = self.begun.take()?;
        match begun.add(paths) {
            Ok(()) => {
                self.begun = Some(begun);
                None
            }
            Err(error) => Some(self.not_written(begun.file.place(), &error)),
        }
    }

    fn end(&mut self) -> Option<Event> {
        let begun = self.begun.take()?;
        let place = begun.file.place().to_owned();
        Some(match begun.end() {
            Ok(()) => {
                self.counters.count(Counter::SnapshotWritten);
                Event::Written
            }
            Err(error) => self.not_written(&place, &error),
        })
    }

    fn not_written(&self, path: &Path, error: &io::Error) -> Event {
        self.counters.count(Counter::SnapshotNotWritten);
        Event::NotWritten(fault!("{}: {error}", path.display()))
    }
}

impl Begun {
    fn new(place: &Path, ports: &[KeptPort]) -> io::Result<Self> {
        let mut file = WholeFile::begin(place, ".new", 0o600)?;
        let (encoder, bytes) = Encoder::new(now(), ports);
        file.write_all(&bytes)?;
        Ok(Self { file, encoder })
    }

    fn add(&mut self, paths: &[KeptPath]) -> io::Result<()> {
        self.file.write_all(&self.encoder.paths(paths))
    }

    fn end(self) -> io::Result<()> {
        let Self { mut file, encoder } = self;
        file.write_all(&encoder.finish())?;
        file.end()
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::tests::ShortDir;

    fn names(dir: &ShortDir) -> Vec<String> {
        let names = fs::read_dir(dir.path()).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        names.map(|entry| name(entry.unwrap())).collect()
    }

    /// The thread's event for each order.
    fn told(orders: Vec<Order>) -> Vec<Event> {
        let (sender, ordered) = mpsc::channel(8);
        let (events, mut told) = mpsc::channel(8);
        for order in orders {
            sender.try_send(order).unwrap();
        }
        drop(sender);
        Thread { events, counters: Arc::default(), begun: None }.run(ordered);
        std::iter::from_fn(|| told.try_recv().ok()).collect()
    }

    #[test]
    fn other_kind_of_file_is_refused_by_name_and_stays() {
        let dir = ShortDir::new();
        let path = dir.path().join("paths");
        let beside = dir.path().join("paths.new");
        for kind in ["FIFO", "symbolic link", "directory", "socket"] {
            match kind {
                "FIFO" => mkfifo(&path, Mode::S_IRWXU).unwrap(),
                "symbolic link" => symlink("/etc/passwd", &path).unwrap(),
                "directory" => fs::create_dir(&path).unwrap(),
                _ => drop(UnixListener::bind(&path).unwrap()),
            }
            let write = |action| Order::Write(path.clone(), action);
            let (begin, end) = (|| Action::Begin(vec![]), || Action::Continue(Step::Done));
            let orders = vec![Order::Read(path.clone(), 9), write(begin()), write(end())];
            let is_named = |reason: &Fault| {
                reason.to_string().contains(&format!("is a {kind}, not a regular"))
            };
            match told(orders).as_slice() {
                [Event::Refused(read), Event::NotWritten(written), Event::Ended] => {
                    assert!(is_named(read) && is_named(written), "{read}, {written}");
                }
                events => panic!("{kind}: {events:?}"),
            }
            fs::rename(&path, &beside).unwrap();
            match told(vec![write(begin()), write(end())]).as_slice() {
                [Event::NotWritten(reason), Event::Ended] => {
                    let named =
                        reason.to_string().contains(&format!("paths.new is a {kind}, not a"));
                    assert!(named, "{reason}");
                }
                events => panic!("{kind}: {events:?}"),
            }
            assert_eq!(names(&dir), ["paths.new"]);
            drop(fs::remove_file(&beside).or_else(|_| fs::remove_dir(&beside)));
        }
    }

    #[test]
    fn unfinished_file_is_removed() {
        let dir = ShortDir::new();
        let path = dir.path().join("paths");
        let begin = || Order::Write(path.clone(), Action::Begin(vec![]));
        let next = |step| Order::Write(path.clone(), Action::Continue(step));
        // Abandoned, begun again, and left unfinished when the daemon ends.
        let events = told(vec![begin(), next(Step::Void), begin(), begin()]);
        assert!(matches!(events.as_slice(), [Event::Ended]), "{events:?}");
        assert!(names(&dir).is_empty());
        // A file that a killed daemon has left is replaced.
        fs::write(dir.path().join("paths.new"), "cut off").unwrap();
        let events = told(vec![begin(), next(Step::Done)]);
        assert!(matches!(events.as_slice(), [Event::Written, Event::Ended]), "{events:?}");
        assert_eq!(names(&dir), ["paths"]);
    }
}
