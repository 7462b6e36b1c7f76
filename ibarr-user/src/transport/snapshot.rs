// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The file in which paths are kept for the next daemon. It is read once, and written beside its place
//! before it takes it. A disk may hang, so a thread does both.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use ibarr_proto::paths::snapshot::{Encoder, KeptPath, KeptPort, Snapshot, max_len};
use nix::libc;
use tokio::sync::mpsc;

use super::{Counter, Counters};
use crate::causes::chain;

/// Where orders go.
#[derive(Debug)]
pub struct Keeper {
    orders: mpsc::Sender<Order>,
}

/// What is to be done.
#[derive(Debug)]
pub enum Order {
    /// Read the file, which may hold so many paths.
    Read(PathBuf, usize),
    /// Begin to write it, in place of what was begun before.
    Begin(PathBuf, Vec<KeptPort>),
    /// Write these, too.
    Paths(Vec<KeptPath>),
    /// That was all of it: it takes its place.
    End,
    /// Leave the one there that is.
    Abandon,
}

/// What has been done.
#[derive(Debug)]
pub enum Event {
    /// There is one, begun so long ago.
    Read(Snapshot, Duration),
    /// The file is of no use, for this reason.
    Refused(String),
    /// A new one is in its place.
    Written,
    /// The one before is, for this reason.
    NotWritten(String),
    /// There will be no more: nobody is left to give orders.
    Ended,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there can be none.
    pub fn start(counters: Arc<Counters>) -> io::Result<(Self, mpsc::Receiver<Event>)> {
        let (orders, ordered) = mpsc::channel(super::SNAPSHOT_ORDERS);
        let (events, told) = mpsc::channel(super::SNAPSHOT_EVENTS);
        let thread = Thread { events, counters, begun: None };
        thread::Builder::new().name("snapshot".to_owned()).spawn(move || thread.run(ordered))?;
        Ok((Self { orders }, told))
    }

    /// Room for an order, if there is any.
    pub fn try_reserve(&self) -> Option<mpsc::Permit<'_, Order>> {
        self.orders.try_reserve().ok()
    }

    /// Gives an order when there is room.
    pub async fn order(&self, order: Order) {
        // Without the thread nothing is kept.
        drop(self.orders.send(order).await);
    }
}

struct Thread {
    events: mpsc::Sender<Event>,
    counters: Arc<Counters>,
    begun: Option<Begun>,
}

/// A file that is not in its place yet.
struct Begun {
    place: PathBuf,
    beside: PathBuf,
    file: File,
    encoder: Encoder,
}

impl Thread {
    fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        while let Some(order) = orders.blocking_recv() {
            let event = match order {
                Order::Read(path, paths) => self.read(&path, paths),
                Order::Begin(path, ports) => self.begin(&path, &ports),
                Order::Paths(paths) => self.add(&paths),
                Order::End => self.end(),
                Order::Abandon => {
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

    /// Nothing if there is no file.
    fn read(&self, path: &Path, paths: usize) -> Option<Event> {
        let reason = match read(path, max_len(paths)) {
            Ok(bytes) => match Snapshot::parse(&bytes) {
                Ok(snapshot) => {
                    let age = now().saturating_sub(snapshot.begun_at);
                    return Some(Event::Read(snapshot, Duration::from_secs(age)));
                }
                Err(error) => error.to_string(),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => chain(&error),
        };
        self.counters.count(Counter::SnapshotRefused);
        Some(Event::Refused(format!("{}: {reason}", path.display())))
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
            Err(error) => Some(self.not_written(&begun.place, &error)),
        }
    }

    fn end(&mut self) -> Option<Event> {
        let begun = self.begun.take()?;
        let place = begun.place.clone();
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
        Event::NotWritten(format!("{}: {error}", path.display()))
    }
}

impl Begun {
    fn new(place: &Path, ports: &[KeptPort]) -> io::Result<Self> {
        let mut beside = OsString::from(place);
        beside.push(".new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&beside)?;
        let (encoder, bytes) = Encoder::new(now(), ports);
        let (place, beside) = (place.to_owned(), beside.into());
        file.write_all(&bytes)?;
        Ok(Self { place, beside, file, encoder })
    }

    fn add(&mut self, paths: &[KeptPath]) -> io::Result<()> {
        self.file.write_all(&self.encoder.paths(paths))
    }

    /// Whoever reads has all of the old or all of the new one, also after a power cut.
    fn end(self) -> io::Result<()> {
        let Self { place, beside, mut file, encoder } = self;
        file.write_all(&encoder.finish())?;
        file.sync_all()?;
        fs::rename(beside, &place)?;
        File::open(place.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}

fn read(path: &Path, max_len: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let max_len = u64::try_from(max_len).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    file.take(max_len + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_len {
        let message = "it holds more paths than paths.max-cached says";
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
