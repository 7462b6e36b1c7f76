// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The journal's own protocol (systemd's documentation, "Native Journal Protocol"): each event is one
//! datagram of fields.
//!
//! `tracing-journald` can only send an event while it is being recorded, and discards the error of the send:
//! on a thread of its own it would get events rebuilt from copies, and lost ones could still not be counted
//! (`journal_that_reads_nothing_stops_no_event`). It also has one prefix for all fields, so `MESSAGE_ID` and
//! `IBARR_GID` exclude each other, and `journalctl` would show a message without its fields.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::ids;
use super::record::{LENGTH, Record, split};
use super::writer::Log;

/// The socket of journald, held by systemd while journald starts anew.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Whether standard error leads to the journal: `JOURNAL_STREAM` also reaches processes whose standard
/// error leads elsewhere.
pub(super) fn has_stderr() -> bool {
    let stderr = io::stderr().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    let named = std::env::var("JOURNAL_STREAM");
    stderr.is_ok_and(|stderr| named == Ok(format!("{}:{}", stderr.dev(), stderr.ino())))
}

/// Encodes events and queues them.
pub(super) struct Journal(pub(super) Log);

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let meta = event.metadata();
        let mut record = Record::new(*meta.level());
        event.record(&mut record);
        record.put("TARGET", meta.target());
        if let (Some(file), Some(line)) = (meta.file(), meta.line()) {
            record.put("CODE_FILE", file);
            record.put("CODE_LINE", &line.to_string());
        }
        self.0.put(&record.finish());
    }
}

/// Sends one record with each write.
#[derive(Debug)]
pub(super) struct Socket(UnixDatagram);

impl Socket {
    pub(super) fn open() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(SOCKET)?;
        Ok(Self(socket))
    }

    /// Sends the reason for which the daemon does not run.
    pub(super) fn fail(mut self, message: &str) -> io::Result<()> {
        let mut record = Record::new(Level::ERROR);
        record.put("MESSAGE_ID", ids::NOT_STARTED);
        record.put("IBARR_CAUSE", message);
        self.write_all(&record.finish_with(message))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((record, _)) = split(bytes) else { return Ok(0) };
        if self.0.send(record)? == record.len() { Ok(LENGTH + record.len()) } else { Ok(0) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing::Dispatch;
    use tracing::{info, subscriber, warn};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::registry;

    use super::super::writer::Form;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Logs to the returned socket what `events` does.
    fn logged(events: impl FnOnce()) -> (Log, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        let log = Log::start(Form::Records, Socket(ours)).unwrap();
        // A test that sets a level makes tracing ask all dispatchers what they want; if there is only one, tracing asks
        // that of the thread instead, which has none, and drops the events of this one (`Rebuilder::JustOne`).
        let _second = Dispatch::new(registry());
        subscriber::with_default(registry().with(Journal(log.clone())), events);
        (log, theirs)
    }

    fn next(socket: &UnixDatagram) -> String {
        let mut datagram = [0; 4096];
        let len = socket.recv(&mut datagram).unwrap();
        String::from_utf8(datagram[..len].to_vec()).unwrap()
    }

    #[test]
    fn event_has_its_fields_message_id_and_priority() {
        let reason = "no umad device";
        let (_, socket) = logged(|| {
            warn!(message_id = ids::SA_NOT_ASKED, cause = reason, port = %"mlx5_0/1", "not asked: {reason}");
            info!(count = 2, "two\nlines");
        });
        let first = next(&socket);
        for field in [
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=ibarr",
            "MESSAGE_ID=8514e33c0d15200a5722eb44ab6eb227",
            "IBARR_CAUSE=no umad device",
            "IBARR_PORT=mlx5_0/1",
            "MESSAGE=not asked: no umad device port=mlx5_0/1",
            "CODE_FILE=ibarr-user/src/logging/journal.rs",
        ] {
            assert!(first.lines().any(|line| line == field), "{field} in {first}");
        }
        let second = next(&socket);
        let message = "two\nlines count=2";
        assert!(second.starts_with("PRIORITY=6\n"));
        assert!(
            second.ends_with(&format!("\nMESSAGE\n\u{11}\0\0\0\0\0\0\0{message}\n")),
            "{second:?}"
        );
    }

    #[test]
    fn journal_that_reads_nothing_stops_no_event() {
        let many = 20_000;
        let (log, socket) = logged(|| {
            for n in 0..many {
                info!(n, "an event");
            }
        });
        let lost = log.dropped();
        assert!(lost > 0, "the queue and the socket hold fewer events");
        // The events that find no room before the thread first runs are reported on their own.
        let (mut read, mut told) = (0, 0);
        while read + told < many {
            let datagram = next(&socket);
            match datagram.split_once("\nMESSAGE=").unwrap().1.split_once(" lines lost") {
                Some((count, _)) => told += count.parse::<u64>().unwrap(),
                None => read += 1,
            }
        }
        assert_eq!((read, told), (many - lost, lost));
        log.finish(PATIENCE);
        assert_eq!(log.untold(), 0);
    }
}
