// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Trace events of the module ibtun (`ibtun/module/trace.h`): what programs call, and what becomes of
//! it. The kernel keeps them in a ring of its own for us, and writes them as text.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ibarr_common::Instant;
use nix::fcntl::OFlag;
use serde_json::{Map, Value};

const TRACING: &str = "/sys/kernel/tracing";
const INSTANCE: &str = "/sys/kernel/tracing/instances/ibfab";

/// What the kernel calls a program whose name it does not know.
const NO_NAME: &str = "<...>";

/// Bytes that are read at a time.
const BATCH: usize = 64 * 1024;

/// The kernel traces until this is dropped.
#[derive(Debug)]
pub(crate) struct Calls {
    /// `None` while the ring is removed: an open one cannot be.
    pipe: Option<File>,
    /// The beginning of a line whose end was not read yet.
    rest: Vec<u8>,
}

/// What one line of the kernel says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Call {
    pub(crate) at: Instant,
    /// What ran: the program that calls, or a thread of the kernel.
    program: String,
    process: u32,
    /// Its name without `ibtun_`.
    event: String,
    /// Name and value, in order.
    words: Vec<(String, String)>,
}

impl Calls {
    pub(crate) fn begin() -> anyhow::Result<Self> {
        match fs::create_dir(INSTANCE) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("{TRACING} is empty: `mount -t tracefs tracefs {TRACING}`")
            }
            // One that was killed left it.
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).context(INSTANCE);
            }
            _ => {}
        }
        let mut calls = Self { pipe: None, rest: Vec::new() };
        // The clock of packets.
        for (file, text) in [("trace_clock", "boot"), ("trace", ""), ("events/ibtun/enable", "1")] {
            let file = format!("{INSTANCE}/{file}");
            fs::write(&file, text).context(file)?;
        }
        let file = format!("{INSTANCE}/trace_pipe");
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        calls.pipe = Some(options.open(&file).context(file)?);
        Ok(calls)
    }

    /// What has happened since the last call, at most [`BATCH`] bytes of it.
    pub(crate) fn read(&mut self) -> Vec<Call> {
        let mut buffer = [0; 4096];
        while let Some(pipe) = &mut self.pipe
            && self.rest.len() < BATCH
        {
            // There is no more now, or for good.
            let Ok(length @ 1..) = pipe.read(&mut buffer) else { break };
            self.rest.extend_from_slice(buffer.get(..length).unwrap_or_default());
        }
        let end = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..end).collect();
        // A line that never ends is none of the kernel's.
        if self.rest.len() >= BATCH {
            self.rest.clear();
        }
        let mut calls: Vec<_> =
            String::from_utf8_lossy(&lines).lines().filter_map(Call::parse).collect();
        // The kernel learns names of programs from its scheduler, sometimes too late.
        for call in calls.iter_mut().filter(|call| call.program == NO_NAME) {
            if let Ok(name) = fs::read_to_string(format!("/proc/{}/comm", call.process)) {
                name.trim_end().clone_into(&mut call.program);
            }
        }
        calls
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = fs::write(format!("{INSTANCE}/events/ibtun/enable"), "0");
        let _ = fs::remove_dir(INSTANCE);
    }
}

impl Call {
    /// Reads a line such as `  ping-17  [001] d..1.  12.000345: ibtun_call: device=ibtun0 qp=3`.
    fn parse(line: &str) -> Option<Self> {
        let (head, words) = line.split_once(": ibtun_")?;
        let (event, words) = words.split_once(": ")?;
        let (thread, rest) = head.split_once(" [")?;
        let (program, process) = thread.trim().rsplit_once('-')?;
        let (seconds, micros) = rest.rsplit_once(' ')?.1.split_once('.')?;
        let at = Duration::new(seconds.parse().ok()?, 0)
            + Duration::from_micros(micros.get(..6)?.parse().ok()?);
        let words = words.split(' ').filter_map(|word| word.split_once('='));
        Some(Self {
            at: Instant::BOOT + at,
            program: program.to_owned(),
            process: process.trim().parse().ok()?,
            event: event.to_owned(),
            words: words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        })
    }

    pub(crate) fn is_of_queue_pair(&self, number: u32) -> bool {
        self.words.iter().any(|(name, value)| name == "qp" && value.parse() == Ok(number))
    }

    /// As a JSON object.
    pub(crate) fn object(&self) -> Map<String, Value> {
        let time = u64::try_from(self.at.since(Instant::BOOT).as_nanos()).unwrap_or(u64::MAX);
        let words = self.words.iter().map(|(name, value)| {
            let number = value.parse::<i64>().map(Value::from);
            (name.clone(), number.unwrap_or_else(|_| value.as_str().into()))
        });
        let mut object: Map<_, _> = words.collect();
        object.insert("time".to_owned(), time.into());
        object.insert("event".to_owned(), self.event.as_str().into());
        object.insert("program".to_owned(), self.program.as_str().into());
        object.insert("process".to_owned(), self.process.into());
        object
    }
}

impl fmt::Display for Call {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}[{}] {}", self.program, self.process, self.event)?;
        self.words.iter().try_for_each(|(name, value)| write!(to, " {name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_the_kernel_is_read() {
        let line = "   my-prog a-17      [001] d..1.    12.000345: ibtun_call: device=ibtun0 \
                    call=post_send qp=19 wr_id=7 result=-22";
        let call = Call::parse(line).unwrap();
        assert_eq!(
            call.to_string(),
            "my-prog a[17] call device=ibtun0 call=post_send qp=19 wr_id=7 result=-22"
        );
        assert!(call.is_of_queue_pair(19) && !call.is_of_queue_pair(7));
        let object = Value::Object(call.object());
        assert_eq!(object["time"], 12_000_345_000_u64);
        assert_eq!(object["result"], -22);
        assert_eq!(object["call"], "post_send");
        for line in ["", "CPU:1 [LOST 5 EVENTS]", "a-1 [0] . x: ibtun_call: a=b"] {
            assert_eq!(Call::parse(line), None, "{line}");
        }
    }
}
