// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab trace`: tells clients of the control socket about each packet that a channel adapter or
//! router sends or receives, and if wanted about what programs call.

use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use ibarr_common::Instant;
use ibarr_fabric::topology::PortId;
use ibarr_fabric::wire::smp::NodeType;
use ibarr_fabric::{Crossing, Topology};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::calls::{Call, Calls};
use crate::decode::Decoded;

/// Clients at a time.
const MAX_TRACES: usize = 8;

/// How often the kernel is asked for calls, as it does not say that there are any.
const CALLS_EVERY: Duration = Duration::from_millis(20);

/// What may wait for a client, in bytes. Lines without room are not shown, and counted.
const ROOM: usize = 256 * 1024;

#[derive(Args, Clone, Debug)]
pub(crate) struct TraceArgs {
    /// Show only what this port sends or receives, be it a switch's [default: all that are not]
    #[arg(long, value_name = "NODE/NUMBER")]
    port: Option<String>,
    /// Show only packets to or from a queue pair of this number, or not from a known one
    #[arg(long, value_name = "NUMBER")]
    qp: Option<u32>,
    /// Show also what programs call, completions, retries and asynchronous events (needs tracefs)
    #[arg(long)]
    calls: bool,
    /// Show each packet as a JSON object
    #[arg(long)]
    json: bool,
}

/// All clients that watch.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    all: Vec<Trace>,
    /// While a client wants them.
    calls: Option<Calls>,
}

#[derive(Debug)]
struct Trace {
    stream: UnixStream,
    filter: Filter,
    /// Lines of this turn, to be put in order.
    lines: Vec<(Instant, String)>,
    waiting: Vec<u8>,
    /// Lines that are not shown, for lack of room.
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    port: Option<PortId>,
    qp: Option<u32>,
    calls: bool,
    json: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Sent,
    Received,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Nanoseconds since the machine's boot.
    time: u64,
    port: &'a str,
    direction: Direction,
    #[serde(flatten)]
    packet: &'a Decoded,
}

impl Traces {
    /// Checks a request.
    ///
    /// # Errors
    /// There is no such port, there are too many clients, or the kernel does not trace.
    pub(crate) fn admit(
        &mut self,
        topology: &Topology,
        args: &TraceArgs,
    ) -> anyhow::Result<Filter> {
        if self.all.len() >= MAX_TRACES {
            bail!("{MAX_TRACES} traces are running: end one of them");
        }
        let port = args.port.as_ref().map(|name| {
            let port = topology.find_port(name);
            port.with_context(|| format!("no port {name}: write it as NODE/NUMBER"))
        });
        let port = port.transpose()?;
        if args.calls && self.calls.is_none() {
            self.calls = Some(Calls::begin()?);
        }
        Ok(Filter { port, qp: args.qp, calls: args.calls, json: args.json })
    }

    pub(crate) fn add(&mut self, stream: UnixStream, filter: Filter) {
        if stream.set_nonblocking(true).is_ok() {
            let (lines, waiting) = Default::default();
            self.all.push(Trace { stream, filter, lines, waiting, dropped: 0 });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Tells all clients about a packet.
    pub(crate) fn write(&mut self, topology: &Topology, crossing: &Crossing) {
        // A packet that no client wants is not decoded.
        let mut decoded = None;
        let ends = [
            (topology.peer(crossing.port), Direction::Sent),
            (Some(crossing.port), Direction::Received),
        ];
        for (port, direction) in ends.iter().filter_map(|(port, way)| Some(((*port)?, *way))) {
            for trace in &mut self.all {
                if !trace.filter.wants_port(topology, port) {
                    continue;
                }
                let packet = decoded.get_or_insert_with(|| Decoded::parse(&crossing.packet));
                let Some(packet) = packet.as_ref().filter(|packet| trace.filter.wants(packet))
                else {
                    continue;
                };
                let name = topology.port_name(port);
                trace.add(crossing.at, trace.filter.line(crossing.at, &name, direction, packet));
            }
        }
    }

    /// Tells all clients what a user has to say.
    pub(crate) fn mark(&mut self, now: Instant, text: &str) {
        for trace in &mut self.all {
            trace.add(now, trace.filter.mark(now, text));
        }
    }

    /// When [`Traces::flush`] wants to be called again.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.calls.as_ref().map(|_| CALLS_EVERY)
    }

    /// Sends what the clients take, and forgets those that are gone. Calls that were made before this are read
    /// now, so they are in order with the packets of this turn, and no packet of the next turn is older.
    pub(crate) fn flush(&mut self) {
        for call in self.calls.as_mut().map(Calls::read).unwrap_or_default() {
            for trace in self.all.iter_mut().filter(|trace| trace.filter.wants_call(&call)) {
                trace.add(call.at, trace.filter.call(&call));
            }
        }
        self.all.iter_mut().for_each(Trace::sort);
        self.all.retain_mut(|trace| trace.flush().is_ok() && !trace.is_gone());
        if !self.all.iter().any(|trace| trace.filter.calls) {
            self.calls = None;
        }
    }

    /// The sockets that wait for their clients.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waiting = self.all.iter().filter(|trace| !trace.waiting.is_empty());
        waiting.map(|trace| trace.stream.as_fd())
    }
}

impl Filter {
    fn wants_port(self, topology: &Topology, port: PortId) -> bool {
        match self.port {
            Some(wanted) => wanted == port,
            None => topology.node(port.node).is_some_and(|node| node.kind != NodeType::Switch),
        }
    }

    fn wants(self, packet: &Decoded) -> bool {
        self.qp.is_none_or(|qp| packet.qp == qp || packet.source_qp == Some(qp))
    }

    fn wants_call(self, call: &Call) -> bool {
        self.calls && self.qp.is_none_or(|qp| call.is_of_queue_pair(qp))
    }

    fn call(self, call: &Call) -> String {
        if self.json {
            serde_json::Value::Object(call.object()).to_string()
        } else {
            format!("{} {call}", seconds(call.at))
        }
    }

    fn mark(self, at: Instant, text: &str) -> String {
        if self.json {
            let time = u64::try_from(at.since(Instant::BOOT).as_nanos()).unwrap_or(u64::MAX);
            serde_json::json!({ "time": time, "mark": text }).to_string()
        } else {
            // One line.
            format!("{} -- {}", seconds(at), text.replace(char::is_control, " "))
        }
    }

    fn line(self, at: Instant, port: &str, direction: Direction, packet: &Decoded) -> String {
        let time = at.since(Instant::BOOT);
        if self.json {
            let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            // Maps with keys that are no strings cannot be written; there are none.
            serde_json::to_string(&Line { time, port, direction, packet }).unwrap_or_default()
        } else {
            let way = match direction {
                Direction::Sent => "sends",
                Direction::Received => "receives",
            };
            format!("{} {port} {way} {packet}", seconds(at))
        }
    }

    fn gap(self, packets: u64) -> String {
        if self.json {
            format!("{{\"dropped\":{packets}}}")
        } else {
            format!("{packets} packets are not shown: the reader is too slow")
        }
    }
}

/// Since the machine's boot.
fn seconds(at: Instant) -> String {
    let time = at.since(Instant::BOOT);
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

impl Trace {
    fn add(&mut self, at: Instant, line: String) {
        self.lines.push((at, line));
    }

    /// Puts the lines of this turn behind those that wait.
    fn sort(&mut self) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.sort_by_key(|(at, _)| *at);
        for (_, line) in &lines {
            self.push(line);
        }
    }

    fn push(&mut self, line: &str) {
        // Room for the line about a gap is left.
        if self.waiting.len() + line.len() > ROOM {
            self.dropped += 1;
            return;
        }
        if self.dropped > 0 {
            let gap = self.filter.gap(std::mem::take(&mut self.dropped));
            self.waiting.extend_from_slice(gap.as_bytes());
            self.waiting.push(b'\n');
        }
        self.waiting.extend_from_slice(line.as_bytes());
        self.waiting.push(b'\n');
    }

    fn flush(&mut self) -> std::io::Result<()> {
        while !self.waiting.is_empty() {
            match self.stream.write(&self.waiting) {
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The client has closed its socket. That it will send nothing more is not enough: it says so
    /// after its request.
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;

    const TOPOLOGY: &str =
        "Switch 2 \"S\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nCa 1 \"H1\"\n\nCa 1 \"H2\"\n";

    fn crossing(topology: &Topology, port: &str, psn: u8) -> Crossing {
        let head = [0, 2, 0, 3, 0, 6, 0, 5, 4, 0x40, 255, 255, 0, 0, 0, 18, 0, 0, 0];
        let port = topology.find_port(port).unwrap();
        let at = Instant::from_nanos(1_000_002_000);
        Crossing { at, port, packet: [&head[..], &[psn]].concat() }
    }

    fn args() -> TraceArgs {
        TraceArgs { port: None, qp: None, calls: false, json: false }
    }

    fn lines(stream: UnixStream) -> Vec<String> {
        stream.set_nonblocking(true).unwrap();
        BufReader::new(stream).lines().map_while(Result::ok).collect()
    }

    #[test]
    fn packet_is_shown_where_it_is_sent_and_received() {
        let topology: Topology = TOPOLOGY.parse().unwrap();
        let mut traces = Traces::default();
        let mut clients = Vec::new();
        for args in [
            args(),
            TraceArgs { port: Some("S/2".to_owned()), ..args() },
            TraceArgs { qp: Some(19), ..args() },
            TraceArgs { json: true, port: Some("H2".to_owned()), qp: Some(18), ..args() },
        ] {
            let (own, client) = UnixStream::pair().unwrap();
            let filter = traces.admit(&topology, &args).unwrap();
            traces.add(own, filter);
            clients.push(client);
        }
        traces.write(&topology, &crossing(&topology, "S/1", 1));
        traces.write(&topology, &crossing(&topology, "H2", 1));
        traces.flush();
        let shown: Vec<_> = clients.into_iter().map(lines).collect();
        let text = "LID 5→3 RC SEND Only QP 18 PSN 1, 0 bytes";
        let sent = format!("1.000002 H1/1 sends {text}");
        assert_eq!(shown[0], [sent, format!("1.000002 H2/1 receives {text}")]);
        assert_eq!(shown[1], [format!("1.000002 S/2 sends {text}")]);
        assert!(shown[2].is_empty());
        assert_eq!(
            shown[3],
            [
                r#"{"time":1000002000,"port":"H2/1","direction":"received","slid":5,"dlid":3,"opcode":"RC SEND Only","qp":18,"psn":1,"ack_request":false,"payload":0}"#
            ]
        );
    }

    #[test]
    fn slow_reader_is_told_how_many_packets_it_missed() {
        let topology: Topology = TOPOLOGY.parse().unwrap();
        let mut traces = Traces::default();
        let (own, client) = UnixStream::pair().unwrap();
        let filter = traces.admit(&topology, &args()).unwrap();
        traces.add(own, filter);
        let mut sent = 0;
        while traces.all[0].dropped < 1000 {
            traces.write(&topology, &crossing(&topology, "H2", 1));
            traces.flush();
            assert!(traces.all[0].waiting.len() <= ROOM);
            sent += 1;
        }
        let client = BufReader::new(client);
        let mut shown = 0;
        for line in client.lines() {
            let line = line.unwrap();
            if line.ends_with("packets are not shown: the reader is too slow") {
                assert_eq!(line.split(' ').next(), Some("1000"));
                break;
            }
            shown += 1;
            traces.flush();
            if traces.fds().next().is_none() && traces.all[0].dropped > 0 {
                traces.write(&topology, &crossing(&topology, "H2", 1));
                traces.flush();
            }
        }
        assert_eq!(shown + 1000, sent);
    }

    #[test]
    fn clients_are_limited_and_forgotten_when_they_close() {
        let topology: Topology = TOPOLOGY.parse().unwrap();
        let mut traces = Traces::default();
        let mut clients = Vec::new();
        for _ in 0..MAX_TRACES {
            let (own, client) = UnixStream::pair().unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let filter = traces.admit(&topology, &args()).unwrap();
            traces.add(own, filter);
            clients.push(client);
        }
        traces.flush();
        assert!(traces.admit(&topology, &args()).is_err());
        clients.pop();
        traces.flush();
        assert!(traces.admit(&topology, &args()).is_ok());
    }
}
