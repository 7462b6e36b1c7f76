// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Writes log lines to where the log goes. A thread does it, because a reader may stall; lines that
//! find no room meanwhile, or cannot be written, are dropped and counted, and the log reports the
//! number when writing works again.
//!
//! `tracing_appender::non_blocking` is not enough: it does not count lines whose write failed,
//! bounds lines and not bytes, and prints to standard output if its queue is full at the end.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

use super::record::{self, Record};

/// Bytes in the queue: the log of some minutes, or of a burst.
const ROOM: usize = 256 << 10;

/// The queue of log lines. Nothing here waits for the reader of the log.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Shared>);

/// What the queue holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Form {
    /// Text, each line with its end.
    #[default]
    Lines,
    Records,
}

impl Form {
    /// Number of lines or records.
    fn count(self, bytes: &[u8]) -> u64 {
        match self {
            Self::Lines => bytes.iter().map(|&byte| u64::from(byte == b'\n')).sum(),
            Self::Records => record::count(bytes),
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    form: Form,
    queue: Mutex<Queue>,
    /// The queue was filled; or it was emptied and written.
    changed: Condvar,
    dropped: AtomicU64,
    untold: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    lines: Vec<u8>,
    /// Lines dropped because there was no room, all newer than `lines`.
    lost: u64,
    is_writing: bool,
}

impl Log {
    /// Starts the thread that writes to `sink`. It ends with the process.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(form: Form, sink: impl Write + AsFd + Send + 'static) -> io::Result<Self> {
        let log = Self(Arc::new(Shared { form, ..Shared::default() }));
        let mut writer = Writer { log: log.clone(), sink, owed: 0, is_at_start: true };
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            loop {
                writer.write_next();
            }
        })?;
        Ok(log)
    }

    /// Lines dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Dropped lines that the log has not reported yet.
    pub fn untold(&self) -> u64 {
        self.0.untold.load(Ordering::Relaxed)
    }

    /// Waits until all is written, at most for `patience`.
    pub(crate) fn finish(&self, patience: Duration) {
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.is_empty();
        let waited = self.0.changed.wait_timeout_while(self.queue(), patience, is_busy);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Queues a message of the log itself. It may have several lines.
    pub(super) fn say(&self, level: Level, message: &str) {
        self.put(&self.form(level, message));
    }

    fn form(&self, level: Level, message: &str) -> Vec<u8> {
        match self.0.form {
            Form::Lines => format!("{level:>5} ibarr: {message}\n").into_bytes(),
            Form::Records => Record::of(level, message),
        }
    }

    /// Queues one or more complete lines or records.
    pub(super) fn put(&self, lines: &[u8]) {
        let mut queue = self.queue();
        // After a dropped line all later ones are dropped, too, until the thread has reported the
        // number in their place.
        if queue.lost > 0 || queue.lines.len() + lines.len() > ROOM {
            queue.lost += self.lose(lines);
        } else {
            queue.lines.extend_from_slice(lines);
        }
        drop(queue);
        self.0.changed.notify_all();
    }

    fn lose(&self, lines: &[u8]) -> u64 {
        let lost = self.0.form.count(lines);
        self.0.dropped.fetch_add(lost, Ordering::Relaxed);
        self.0.untold.fetch_add(lost, Ordering::Relaxed);
        lost
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.lost == 0
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Lines<'a>;

    fn make_writer(&'a self) -> Lines<'a> {
        Lines(self)
    }
}

/// Collects an event's lines, as `tracing_subscriber::fmt` writes them, and queues them at once.
#[derive(Debug)]
pub struct Lines<'a>(&'a Log);

impl Write for Lines<'_> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.0.put(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Writer<W> {
    log: Log,
    sink: W,
    /// Lines dropped before the next write.
    owed: u64,
    /// The last write ended with a complete line.
    is_at_start: bool,
}

impl<W: Write + AsFd> Writer<W> {
    /// Waits for lines, and writes or drops them.
    fn write_next(&mut self) {
        let mut queue = self.log.queue();
        queue.is_writing = false;
        self.log.0.changed.notify_all();
        let idle = self.log.0.changed.wait_while(queue, |queue| queue.is_empty());
        let mut queue = idle.unwrap_or_else(PoisonError::into_inner);
        queue.is_writing = true;
        let (lines, lost) = (std::mem::take(&mut queue.lines), std::mem::take(&mut queue.lost));
        drop(queue);
        let unwritten = if self.tell_lost() { self.write(&lines) } else { &lines };
        self.owed += self.log.lose(unwritten) + lost;
        self.tell_lost();
    }

    /// Reports dropped lines; returns whether the log is complete except for reported losses.
    fn tell_lost(&mut self) -> bool {
        if self.owed == 0 {
            return true;
        }
        let owed = self.owed;
        let mut note =
            self.log.form(Level::WARN, &format!("{owed} lines lost: their reader took no more"));
        if !self.is_at_start {
            note.insert(0, b'\n');
        }
        let is_said = self.write(&note).is_empty();
        if is_said {
            self.owed = 0;
            self.log.0.untold.fetch_sub(owed, Ordering::Relaxed);
        }
        is_said
    }

    /// Returns the part that could not be written.
    fn write<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while !bytes.is_empty() {
            match self.sink.write(bytes) {
                Ok(count @ 1..) => {
                    let (written, rest) = bytes.split_at(count);
                    // A record ends like a line.
                    self.is_at_start = written.ends_with(b"\n");
                    bytes = rest;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process may have made the descriptor non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut fds = [PollFd::new(self.sink.as_fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut fds, PollTimeout::NONE);
                }
                Ok(_) | Err(_) => break,
            }
        }
        bytes
    }
}

/// Standard output or error without the lock of [`std::io::Stdout`] or [`std::io::Stderr`], which the
/// thread would hold while a reader stalls.
#[derive(Debug)]
pub(super) enum Standard {
    Output,
    Error,
}

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(self.as_fd(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Standard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // They live as long as the process; using them takes no lock.
        static STDOUT: LazyLock<io::Stdout> = LazyLock::new(io::stdout);
        static STDERR: LazyLock<io::Stderr> = LazyLock::new(io::stderr);
        match self {
            Self::Output => STDOUT.as_fd(),
            Self::Error => STDERR.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, PipeReader, Read, pipe};

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    const LINE: &str = "a line that is as long as most of them";

    /// Makes the thread stall, then queues lines until one is dropped; returns how many were
    /// queued.
    fn fill(log: &Log) -> u64 {
        let line = format!("{LINE}\n");
        log.put(line.repeat(ROOM / line.len()).as_bytes());
        while !log.queue().is_empty() {
            thread::yield_now();
        }
        let mut put = ROOM / line.len();
        while log.dropped() == 0 {
            log.put(line.as_bytes());
            put += 1;
        }
        put.try_into().unwrap()
    }

    fn lines(reader: PipeReader, count: u64) -> (u64, Vec<String>) {
        let mut seen = 0;
        let mut others = Vec::new();
        for line in BufReader::new(reader).lines() {
            let line = line.unwrap();
            if line == LINE {
                seen += 1;
            } else {
                others.push(line);
            }
            if seen + u64::try_from(others.len()).unwrap() == count {
                break;
            }
        }
        (seen, others)
    }

    #[test]
    fn stalled_reader_blocks_nothing_and_gets_the_number_of_lost_lines() {
        for is_blocking in [true, false] {
            let (reader, writer) = pipe().unwrap();
            if !is_blocking {
                fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
            }
            let log = Log::start(Form::Lines, writer).unwrap();
            let put = fill(&log);
            log.finish(Duration::from_millis(1));
            for _ in 0..9 {
                log.put(b"dropped\n");
            }
            assert_eq!((log.dropped(), log.untold()), (10, 10));
            let (seen, others) = lines(reader, put);
            assert_eq!(seen, put - 1);
            assert_eq!(others, [" WARN ibarr: 10 lines lost: their reader took no more"]);
            log.finish(PATIENCE);
            assert_eq!((log.dropped(), log.untold()), (10, 0));
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let log = Log::start(Form::Lines, full).unwrap();
        log.put(b"one\ntwo\n");
        log.put(b"three\n");
        log.finish(PATIENCE);
        assert_eq!((log.dropped(), log.untold()), (3, 3));
    }

    #[test]
    fn reader_that_closes_standard_error_blocks_nothing() {
        let (mut reader, writer) = pipe().unwrap();
        let log = Log::start(Form::Lines, writer).unwrap();
        log.put(b"heard\n");
        let mut heard = [0; 6];
        reader.read_exact(&mut heard).unwrap();
        drop(reader);
        log.put(b"unheard\n");
        log.finish(PATIENCE);
        assert_eq!((&heard, log.dropped()), (b"heard\n", 1));
    }
}
