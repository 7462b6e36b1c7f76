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
use ibarr_fabric::{Crossing, Topology, pcap};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::calls::{Call, Calls};
use crate::capture;
use crate::decode::Decoded;

/// Clients at a time.
const MAX_TRACES: usize = 8;

/// How often the kernel is asked for calls, as it does not say that there are any.
const CALLS_EVERY: Duration = Duration::from_millis(20);

/// What may wait for a client, in bytes. Records without room are not shown, and counted.
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
    /// Write all for Wireshark, in the format pcapng: `ibfab trace --pcapng >FILE`
    #[arg(long, conflicts_with = "json")]
    pcapng: bool,
}

/// What a client is shown.
#[derive(Clone, Copy, Debug)]
enum Form {
    Text,
    Json,
    /// With the time of the machine's boot, since the epoch.
    Pcapng(Duration),
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
    /// Those of this turn, to be put in order.
    records: Vec<(Instant, Vec<u8>)>,
    waiting: Vec<u8>,
    /// Records that are not shown, for lack of room.
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    port: Option<PortId>,
    qp: Option<u32>,
    calls: bool,
    form: Form,
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
        let form = match (args.json, args.pcapng) {
            (true, _) => Form::Json,
            (_, true) => Form::Pcapng(capture::boot()?),
            _ => Form::Text,
        };
        Ok(Filter { port, qp: args.qp, calls: args.calls, form })
    }

    pub(crate) fn add(&mut self, stream: UnixStream, filter: Filter) {
        if stream.set_nonblocking(true).is_ok() {
            let waiting = match filter.form {
                Form::Pcapng(_) => pcap::header_with_text(),
                _ => Vec::new(),
            };
            self.all.push(Trace { stream, filter, records: Vec::new(), waiting, dropped: 0 });
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
                trace.add(crossing.at, trace.filter.packet(crossing, &name, direction, packet));
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

    fn call(self, call: &Call) -> Vec<u8> {
        let json = || serde_json::Value::Object(call.object());
        self.event(call.at, &call.to_string(), json)
    }

    fn mark(self, at: Instant, text: &str) -> Vec<u8> {
        // One line.
        let line = format!("-- {}", text.replace(char::is_control, " "));
        self.event(at, &line, || serde_json::json!({ "time": nanos(at), "mark": text }))
    }

    /// What is no packet.
    fn event(self, at: Instant, text: &str, json: impl FnOnce() -> serde_json::Value) -> Vec<u8> {
        match self.form {
            Form::Text => format!("{} {text}\n", seconds(at)).into_bytes(),
            Form::Json => format!("{}\n", json()).into_bytes(),
            Form::Pcapng(boot) => pcap::text(boot + at.since(Instant::BOOT), text),
        }
    }

    fn packet(
        self,
        crossing: &Crossing,
        port: &str,
        direction: Direction,
        packet: &Decoded,
    ) -> Vec<u8> {
        let at = crossing.at;
        let way = match direction {
            Direction::Sent => "sends",
            Direction::Received => "receives",
        };
        match self.form {
            Form::Text => format!("{} {port} {way} {packet}\n", seconds(at)).into_bytes(),
            Form::Json => {
                // Maps with keys that are no strings cannot be written; there are none.
                let line = Line { time: nanos(at), port, direction, packet };
                let line = serde_json::to_string(&line).unwrap_or_default();
                format!("{line}\n").into_bytes()
            }
            Form::Pcapng(boot) => {
                let time = boot + at.since(Instant::BOOT);
                pcap::packet_with_comment(time, &crossing.packet, &format!("{port} {way}"))
            }
        }
    }

    /// So many records before this time are not shown.
    fn gap(self, at: Instant, records: u64) -> Vec<u8> {
        let text = format!("{records} packets are not shown: the reader is too slow");
        match self.form {
            Form::Text => format!("{text}\n").into_bytes(),
            _ => self.event(at, &text, || serde_json::json!({ "dropped": records })),
        }
    }
}

fn nanos(at: Instant) -> u64 {
    u64::try_from(at.since(Instant::BOOT).as_nanos()).unwrap_or(u64::MAX)
}

/// Since the machine's boot.
fn seconds(at: Instant) -> String {
    let time = at.since(Instant::BOOT);
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

impl Trace {
    fn add(&mut self, at: Instant, record: Vec<u8>) {
        self.records.push((at, record));
    }

    /// Puts the records of this turn behind those that wait.
    fn sort(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        records.sort_by_key(|(at, _)| *at);
        for (at, record) in &records {
            self.push(*at, record);
        }
    }

    fn push(&mut self, at: Instant, record: &[u8]) {
        // Room for the record about a gap is left.
        if self.waiting.len() + record.len() > ROOM {
            self.dropped += 1;
            return;
        }
        if self.dropped > 0 {
            let gap = self.filter.gap(at, std::mem::take(&mut self.dropped));
            self.waiting.extend_from_slice(&gap);
        }
        self.waiting.extend_from_slice(record);
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
        TraceArgs { port: None, qp: None, calls: false, json: false, pcapng: false }
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
    fn trace_for_wireshark_has_packets_and_marks() {
        let topology: Topology = TOPOLOGY.parse().unwrap();
        let mut traces = Traces::default();
        let (own, mut client) = UnixStream::pair().unwrap();
        let args = TraceArgs { pcapng: true, port: Some("H2".to_owned()), ..args() };
        let filter = traces.admit(&topology, &args).unwrap();
        traces.add(own, filter);
        let packet = crossing(&topology, "H2", 1);
        traces.mark(packet.at + Duration::from_nanos(1), "here");
        traces.write(&topology, &packet);
        traces.flush();
        drop(traces);
        let mut written = Vec::new();
        std::io::Read::read_to_end(&mut client, &mut written).unwrap();
        let Form::Pcapng(boot) = filter.form else { panic!("{filter:?}") };
        let at = boot + packet.at.since(Instant::BOOT);
        let expected = [
            pcap::header_with_text(),
            pcap::packet_with_comment(at, &packet.packet, "H2/1 receives"),
            pcap::text(at + Duration::from_nanos(1), "-- here"),
        ];
        assert_eq!(written, expected.concat());
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
