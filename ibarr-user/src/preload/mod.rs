// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Files of the administrator from which the daemon knows GIDs and paths before it asks: those that ibacm reads.
//!
//! A file may be long and its disk slow, so a thread reads it. A bad line is named and skipped.

pub mod hosts;
pub mod routes;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ibarr_proto::acm::Hosts;
use ibarr_proto::paths::snapshot::{KeptPort, Snapshot};
use tokio::sync::mpsc;

use crate::causes::{Fault, fault};
use crate::regular_file::{self, Link};

#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The file of GIDs; `None` for none.
    pub hosts: Option<PathBuf>,
    /// The file of paths, and what it is read for.
    pub routes: Option<(PathBuf, Selection)>,
}

/// Which paths are wanted.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Selection {
    pub ports: Vec<KeptPort>,
    /// At most so many.
    pub most: usize,
    /// How long they are remembered, varied by up to a quarter.
    pub life: Duration,
}

#[derive(Debug)]
pub(crate) struct Loaded {
    /// The GIDs, if a file is configured.
    pub hosts: Option<Result<(Hosts, Report), Fault>>,
    /// The paths, if they were wanted.
    pub routes: Option<Result<(Snapshot, Report), Fault>>,
}

/// What was found in a file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Report {
    /// Path of the file.
    pub file: PathBuf,
    /// Number of entries in use.
    pub entries: usize,
    /// The first [`Self::MOST`] bad lines.
    pub mistakes: Vec<Mistake>,
    /// Number of all bad lines.
    pub bad_lines: u64,
    /// What is wrong with the file as a whole.
    pub notes: Vec<String>,
}

/// A line that is not used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    /// Its number, from 1.
    pub line: u64,
    /// Cause and remedy.
    pub reason: String,
}

impl Report {
    /// How many bad lines are named.
    pub const MOST: usize = 20;

    /// Of a file that was not read yet.
    pub fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), ..Self::default() }
    }

    fn add(&mut self, line: u64, reason: impl FnOnce() -> String) {
        self.bad_lines += 1;
        if self.mistakes.len() < Self::MOST {
            self.mistakes.push(Mistake { line, reason: reason() });
        }
    }

    /// What is wrong, each with its place.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let file = self.file.display();
        let of_line = move |it: &Mistake| format!("{file}:{}: {}", it.line, it.reason);
        let more = self.bad_lines.saturating_sub(self.mistakes.len() as u64);
        let more =
            (more > 0).then(|| format!("{}: {more} more lines are wrong", self.file.display()));
        let notes = self.notes.iter().map(|note| format!("{}: {note}", self.file.display()));
        self.mistakes.iter().map(of_line).chain(more).chain(notes)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} entries", self.file.display(), self.entries)
    }
}

/// Starts a thread that reads the files and sends what it has read.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start(order: Order, loaded: mpsc::Sender<Loaded>) -> io::Result<()> {
    let read = move || drop(loaded.blocking_send(load(order)));
    thread::Builder::new().name("preload".to_owned()).spawn(read).map(drop)
}

fn load(order: Order) -> Loaded {
    Loaded {
        hosts: order.hosts.map(|path| named(&path, hosts::read(&path))),
        routes: order.routes.map(|(path, wanted)| named(&path, routes::read(&path, &wanted))),
    }
}

fn named<T>(path: &Path, read: io::Result<(T, Report)>) -> Result<(T, Report), Fault> {
    read.map_err(|error| fault!("{}: {error}", path.display()))
}

fn open(path: &Path) -> io::Result<BufReader<File>> {
    Ok(BufReader::with_capacity(1 << 16, regular_file::open(path, Link::Followed)?))
}

/// The longest line that is read whole.
const MAX_LINE: usize = 1024;

/// Calls `each` with the number and the words of each line that has any. Of a longer line than [`MAX_LINE`] bytes
/// the rest is skipped.
fn lines(mut reader: impl BufRead, mut each: impl FnMut(u64, &str)) -> io::Result<()> {
    let mut line = Vec::with_capacity(MAX_LINE);
    for number in 1.. {
        line.clear();
        if reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.last() != Some(&b'\n') {
            reader.skip_until(b'\n')?;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if !text.is_empty() && !text.starts_with('#') {
            each(number, text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_line_takes_no_memory_and_later_lines_keep_their_number() {
        let long = "x".repeat(1 << 20);
        let text = format!("# comment\n\n one \n{long}\nlast");
        let mut read = Vec::new();
        lines(text.as_bytes(), |number, line| read.push((number, line.to_owned()))).unwrap();
        assert_eq!(read[0], (3, "one".to_owned()));
        assert_eq!((read[1].0, read[1].1.len()), (4, MAX_LINE));
        assert_eq!(read[2], (5, "last".to_owned()));
    }

    #[test]
    fn bad_lines_beyond_the_bound_are_counted_and_not_kept() {
        let mut report = Report::new(Path::new("f"));
        for line in 1..=100 {
            report.add(line, || "wrong".to_owned());
        }
        report.notes.push("no block".to_owned());
        let problems: Vec<_> = report.problems().collect();
        assert_eq!(problems.len(), Report::MOST + 2);
        assert_eq!(problems[19..], ["f:20: wrong", "f: 80 more lines are wrong", "f: no block"]);
    }

    #[test]
    fn file_that_cannot_be_read_is_named_with_the_cause() {
        let order = |path: &str| Order { hosts: Some(path.into()), routes: None };
        let why = |path| load(order(path)).hosts.unwrap().unwrap_err().to_string();
        assert!(why("/dev/zero").starts_with("/dev/zero: it is a device, not a regular file"));
        assert!(why("/nonexistent").starts_with("/nonexistent: No such file"));
    }
}
