// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The records of the journal's own protocol, and their queue.

use std::fmt::{Debug, Write as _};

use tracing::Level;
use tracing::field::{Field, Visit};

use super::MESSAGE_ID;

/// A longer text is cut, as journald cuts the lines of standard error (`LineMax=`, journald.conf(5)).
const LONGEST: usize = 48 << 10;
/// Shown instead of the path of the program (`argv[0]`).
const IDENTIFIER: &str = "ibarr";

/// A datagram behind its length, as the queue holds it.
#[derive(Debug)]
pub(super) struct Record {
    bytes: Vec<u8>,
    message: String,
}

impl Record {
    pub(super) fn new(level: Level) -> Self {
        let mut record = Self { bytes: vec![0; LENGTH], message: String::new() };
        let priority = match level {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            Level::DEBUG | Level::TRACE => "7",
        };
        record.put("PRIORITY", priority);
        record.put("SYSLOG_IDENTIFIER", IDENTIFIER);
        record
    }

    /// A record of a message alone.
    pub(super) fn of(level: Level, message: &str) -> Vec<u8> {
        Self::new(level).finish_with(message)
    }

    pub(super) fn finish_with(mut self, message: &str) -> Vec<u8> {
        self.message.push_str(message);
        self.finish()
    }

    pub(super) fn put(&mut self, key: &str, value: &str) {
        let value = &value[..value.floor_char_boundary(LONGEST)];
        self.bytes.extend_from_slice(key.as_bytes());
        if value.contains('\n') {
            let length = value.len() as u64;
            self.bytes.push(b'\n');
            self.bytes.extend_from_slice(&length.to_le_bytes());
        } else {
            self.bytes.push(b'=');
        }
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(b'\n');
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let message = std::mem::take(&mut self.message);
        self.put("MESSAGE", message.trim_end());
        let length = u32::try_from(self.bytes.len() - LENGTH).unwrap_or(u32::MAX);
        self.bytes[..LENGTH].copy_from_slice(&length.to_le_bytes());
        self.bytes
    }
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            MESSAGE_ID => self.put("MESSAGE_ID", value),
            _ => self.record_debug(field, &format_args!("{value}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        let name = field.name();
        if name == "message" {
            self.message.insert_str(0, &value);
            return;
        }
        self.put(&format!("IBARR_{}", name.to_uppercase().replace('.', "_")), &value);
        if super::is_shown(name) {
            // Writing to a string does not fail.
            let _ = write!(self.message, " {name}={value}");
        }
    }
}

pub(super) const LENGTH: usize = size_of::<u32>();

/// The first record in `bytes`, and the rest.
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// Number of records in `bytes`.
pub(super) fn count(mut bytes: &[u8]) -> u64 {
    let mut records = 0;
    while let Some((_, rest)) = split(bytes) {
        bytes = rest;
        records += 1;
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_two_characters() {
        let record = Record::of(Level::INFO, &"ü".repeat(LONGEST));
        let (sent, rest) = split(&record).unwrap();
        assert!(rest.is_empty() && std::str::from_utf8(sent).is_ok());
        assert_eq!(sent.len(), "PRIORITY=6\nSYSLOG_IDENTIFIER=ibarr\nMESSAGE=\n".len() + LONGEST);
    }
}
