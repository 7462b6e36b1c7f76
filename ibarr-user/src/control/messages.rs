// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of the control socket, which `--json` prints unchanged. Each has `"v": 1`; within
//! version 1, fields are only added.

#![expect(missing_docs, reason = "the fields are named for what they hold")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::{IfIndex, Instant};
use ibarr_proto::paths::Partial;
use ibarr_proto::request::Freshness;
use ibarr_proto::trace::{Event, Filter};
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

pub use super::answers::*;
pub use super::commands::*;
pub use super::status::*;
pub use super::values::*;
use crate::config::{Mistake, Setting};
use crate::logging::Level;

/// The format version, in the field `v`.
pub const VERSION: u32 = 1;

/// A request to the daemon.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Request {
    /// Resolves addresses to GIDs, by the network where they are not known.
    Resolve {
        /// At most [`Request::MAX_ADDRESSES`].
        addresses: Vec<Target>,
        /// How long the caller waits: at most [`Request::MAX_TIMEOUT`],
        /// [`Request::TIMEOUT`] if absent.
        timeout_ms: Option<Millis>,
        /// Where the answers may come from.
        #[serde(default, skip_serializing_if = "is_default")]
        lookup: Freshness,
        /// Whether each answer also comes alone, as soon as it is there, as [`Body::Answer`].
        #[serde(default, skip_serializing_if = "is_default")]
        each: bool,
    },
    /// Finds the path to a GID, by the subnet administrator where it is not known.
    Path {
        /// The ends of the path.
        path: Partial,
    },
    Ports,
    /// One page of the path cache.
    Paths {
        /// End of the previous page; absent for the first page.
        after: Option<PathMark>,
    },
    /// The state of the daemon, and the reasons for what does not work.
    Status,
    /// One page of the client cache.
    Cache {
        /// End of the previous page; absent for the first page.
        after: Option<AddressMark>,
    },
    /// Forgets all cached addresses and paths (changes the daemon).
    Flush,
    Counters,
    Metrics {
        /// How they are written.
        #[serde(default, skip_serializing_if = "is_default")]
        form: MetricsForm,
    },
    /// Reads the configuration again (changes the daemon).
    Reload,
    /// The configuration that the daemon has read (shows files that others may not read).
    Config,
    /// Shows what happens to each request from now on (shows what others ask).
    Trace(TraceRequest),
    LogLevel {
        /// What to log from now on (changes the daemon); absent for a look.
        change: Option<LevelChange>,
    },
}

impl Request {
    /// The most addresses in one request.
    pub const MAX_ADDRESSES: usize = 256;

    /// The default time-out of a request for addresses: as long as a person at a terminal waits.
    pub const TIMEOUT: Duration = Duration::from_secs(3);

    /// How many events of a trace wait for a caller that does not read. Further ones are lost.
    pub const MAX_EVENTS: usize = 1024;

    /// The longest time-out of a request for addresses.
    pub const MAX_TIMEOUT: Duration = Duration::from_mins(1);

    /// Whether the request changes the daemon, or shows what others ask or its configuration, which needs a
    /// right.
    pub fn needs_right(&self) -> bool {
        match self {
            Self::Flush | Self::Reload | Self::Config | Self::Trace { .. } => true,
            Self::LogLevel { change } => change.is_some(),
            _ => false,
        }
    }
}

#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TraceRequest {
    /// Which events are wanted; absent for all.
    pub only: Option<Filter>,
    /// When it ends; absent: with the connection.
    pub for_ms: Option<Millis>,
    /// Whether the programs in the kernel report their packets, too (changes the programs).
    #[serde(default, skip_serializing_if = "is_default")]
    pub kernel: bool,
}

/// The form of the metrics.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricsForm {
    /// Prometheus' text format 0.0.4, which every scraper and node_exporter read.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// What to log from now on.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LevelChange {
    /// Absent for the level of the command line or the configuration.
    pub level: Option<Level>,
    /// Milliseconds until the level is again that of the command line or the configuration; absent for
    /// the life of the daemon.
    pub for_ms: Option<Millis>,
}

/// The end of a page of [`Request::Cache`], meaningful only to the daemon that made it.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AddressMark {
    /// Start of the daemon, in nanoseconds of its clock.
    pub daemon: Instant,
    /// Expiry of the last entry, in nanoseconds of the daemon's clock.
    pub expires_at: Instant,
    /// Address of the last entry.
    pub ip: IpAddr,
    /// Interface index of the last entry.
    pub ifindex: Option<IfIndex>,
}

/// The end of a page of [`Request::Paths`], meaningful only to the daemon that made it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathMark {
    /// Start of the daemon, in nanoseconds of its clock.
    pub daemon: Instant,
    /// Index after the last entry.
    pub place: u32,
}

/// An answer of the daemon: `"v": 1` and the fields of one [`Body`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Response {
    /// Always [`VERSION`].
    pub v: u32,
    /// The document, or the error.
    #[serde(flatten)]
    pub body: Body,
}

impl From<Body> for Response {
    fn from(body: Body) -> Self {
        Self { v: VERSION, body }
    }
}

impl From<Failure> for Response {
    fn from(error: Failure) -> Self {
        Body::Error { error, mistakes: Vec::new() }.into()
    }
}

/// The document that answers a [`Request`].
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged, rename_all_fields = "kebab-case")]
pub enum Body {
    /// The request failed (any request).
    Error {
        error: Failure,
        /// Each mistake, if the command has checked the configuration.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mistakes: Vec<Mistake>,
    },
    /// Precedes the answer to a [`Request::Resolve`] with `each`; also a line of
    /// `ibarr resolve --json-lines`.
    Answer {
        /// The outcome for one address.
        answer: Box<Resolved>,
        /// Its place in the request, from 0.
        place: usize,
    },
    /// The document of `ibarr resolve`; the command makes it of many requests.
    Resolved {
        /// One for each address, in the order of the command line.
        answers: Vec<Resolved>,
        /// The host names without an address.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unknown_names: Vec<UnknownName>,
        summary: Summary,
    },
    /// A line of `ibarr resolve --json-lines`.
    UnknownName {
        /// A host name without an address.
        unknown_name: UnknownName,
    },
    /// The last line of `ibarr resolve --json-lines`.
    Summary {
        summary: Summary,
    },
    /// The document of `ibarr ping`; the command makes it of many requests.
    Ping {
        ping: Pinged,
    },
    /// The document of `ibarr fleet`; the command asks the nodes itself, and the daemon only what it remembers.
    Fleet {
        fleet: Fleet,
    },
    /// Answers [`Request::Resolve`], in the order of the addresses.
    Answers {
        /// One for each address.
        answers: Vec<Answer>,
    },
    Cache {
        /// Unordered. The command prints all pages as one document, ordered by address.
        entries: Vec<CacheEntry>,
        /// Mark for requesting the next page; absent in the last page.
        next: Option<AddressMark>,
    },
    Path {
        /// The outcome, with the path if there is one.
        path: Box<PathAnswer>,
    },
    Ports {
        /// Ordered by the time of their appearance.
        ports: Vec<PortStatus>,
    },
    Paths {
        /// Unordered. The command prints all pages as one document.
        paths: Vec<CachedPath>,
        /// Mark for requesting the next page; absent in the last page.
        next: Option<PathMark>,
    },
    Counters {
        /// Values by name; unused counters are included with 0.
        counters: BTreeMap<String, u64>,
    },
    /// What each counter counts; the command knows that without the daemon.
    Descriptions {
        /// Texts by name.
        descriptions: BTreeMap<String, String>,
    },
    Metrics {
        metrics: String,
    },
    /// The document of `ibarr top`; the command makes it of two requests for status and counters.
    Top {
        /// What happened between the two.
        top: Box<Top>,
    },
    Status {
        /// State of the whole daemon.
        status: Box<Status>,
    },
    /// Answers [`Request::Config`]. Without it the command reads the files itself.
    Config {
        config: Vec<Setting>,
    },
    /// What was made of ibacm's configuration; the command reads that itself, without the daemon.
    Import {
        /// The configuration, and what became of each line.
        import: Imported,
    },
    /// Contents of the BPF maps; the command reads them itself, without the daemon.
    Kernel {
        /// All maps of the responder.
        kernel: KernelMaps,
    },
    /// What `ibarr doctor` has found; the command examines the machine itself.
    Checks {
        /// In the order in which a connection needs them.
        checks: Vec<Check>,
    },
    /// The document of `ibarr gid`, which asks the daemon only what peers are told.
    Gid {
        gid: Box<InterfaceGid>,
    },
    /// Answers [`Request::LogLevel`].
    Log {
        /// What is logged now.
        log: LogStatus,
    },
    /// Precedes the events of [`Request::Trace`].
    Tracing {
        tracing: Tracing,
    },
    /// An event of [`Request::Trace`].
    Event {
        event: Box<Event>,
    },
    /// Answers [`Request::Trace`], at its end.
    Traced {
        /// Why it has ended.
        traced: Traced,
    },
    /// Answers [`Request::Flush`] and [`Request::Reload`].
    Done {
        /// What was done, for people.
        done: String,
    },
}

/// An error as a document.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Failure {
    /// For programs; decides the exit code.
    pub kind: FailureKind,
    /// For people: object, cause, remedy.
    pub message: String,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The request is malformed.
    Usage,
    Unreachable,
    /// An internal error of ibarr.
    Internal,
    /// Another process holds the object of the request; a later attempt may succeed.
    Busy,
    /// The user lacks the right.
    Permission,
    /// The configuration has mistakes.
    Config,
    /// The daemon has reached its limit of connections.
    Overloaded,
    /// The request names something that this machine does not have, such as a port.
    Absent,
}

#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LogStatus {
    /// The level in force.
    pub level: Level,
    /// Milliseconds until the usual level is in force again; absent if it is, or if no end is set.
    pub ends_in_ms: Option<Millis>,
}

/// The trace has begun.
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tracing {
    /// The daemon's clock at its beginning, in nanoseconds.
    pub at: Instant,
    /// Which events follow; absent for all.
    pub only: Option<Filter>,
    /// When it ends by itself; absent if it does not.
    pub for_ms: Option<Millis>,
}

/// The trace has ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Traced {
    /// Why.
    pub ended: TraceEnd,
    /// How many events were shown.
    pub events: u64,
    /// How many were lost.
    pub lost: u64,
}

ibarr_common::words! {
    /// Why a trace has ended.
    TraceEnd {
        /// Its time was over.
        Time = "time",
        /// The command was interrupted.
        Interrupted = "interrupted",
        /// The daemon ends.
        Daemon = "daemon",
    }
}

#[cfg(test)]
pub(crate) use self::tests::names;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Display;

    use ibarr_common::map::Program;
    use ibarr_proto::ip2gid::Family;
    use ibarr_proto::ip2gid::client::survey::Speaks;
    use ibarr_proto::local_service::Nudged;
    use ibarr_proto::trace::{Caller, Step, Verdict};
    use ibarr_proto::{health, paths, request, shares};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::bpf::Hook;
    use crate::engine::descriptions;
    use crate::transport::local_service::SocketState;

    fn documents() -> impl Iterator<Item = &'static str> {
        let golden = include_str!("../../tests/golden/control.jsonl");
        golden.lines().filter(|line| !line.starts_with('#'))
    }

    #[test]
    fn golden_documents_are_read_and_written_alike() {
        let (mut requests, mut responses) = (0, 0);
        for line in documents() {
            let written = if line.starts_with("{\"ask\"") {
                requests += 1;
                let request: Request = serde_json::from_str(line).unwrap();
                serde_json::to_string(&request)
            } else {
                responses += 1;
                let response: Response = serde_json::from_str(line).unwrap();
                serde_json::to_string(&response)
            };
            assert_eq!(written.unwrap(), line);
        }
        assert_eq!((requests, responses), (28, 159));
    }

    /// Each text in a document, after the place where it stands, and each field.
    fn collect(place: &str, value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::String(text) => {
                found.insert(format!("{place} {text}"));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(place, value, found)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    found.insert(format!("{place}.{name}"));
                    collect(&format!("{place}.{name}"), value, found);
                }
            }
            _ => {}
        }
    }

    fn found() -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for line in documents() {
            collect("", &serde_json::from_str(line).unwrap(), &mut found);
        }
        found
    }

    /// Each word of each type, and each field, except keys that are data.
    pub(crate) fn names() -> Vec<String> {
        let data = [".counters.", ".descriptions.", ".status.interfaces.addresses.", ".gid.told."];
        let is_field = |name: &String| {
            !name.contains(' ') && !data.iter().any(|object| name.starts_with(object))
        };
        found().into_iter().filter(is_field).chain(words()).collect()
    }

    fn at<W: Display>(place: &str, words: impl IntoIterator<Item = W>) -> Vec<String> {
        words.into_iter().map(|word| format!("{place} {word}")).collect()
    }

    /// The variants of an enumeration without `ALL`: serde lists them when it refuses another one.
    fn variants<T: DeserializeOwned>(unknown: Value) -> Vec<String> {
        let error = serde_json::from_value::<T>(unknown).err().unwrap().to_string();
        let names: Vec<_> = error.split('`').skip(3).step_by(2).map(str::to_owned).collect();
        assert!(names.len() > 1, "{error}");
        names
    }

    /// Each word of each type, after a place where documents have it.
    fn words() -> Vec<String> {
        [
            at(".ask", variants::<Request>(json!({ "ask": "?" }))),
            // The first word is the default, which is not written.
            at(".lookup", &Freshness::ALL[1..]),
            at(".form", &variants::<MetricsForm>(json!("?"))[1..]),
            at(".only", variants::<Filter>(json!("?"))),
            at(".error.kind", variants::<FailureKind>(json!("?"))),
            at(".answers.status", request::Status::ALL),
            at(".answers.source", request::Source::ALL),
            at(".summary.answers", request::Status::ALL),
            at(".answer.mismatches.with", MismatchWith::ALL),
            at(".fleet.nodes.speaks", Speaks::ALL),
            at(".path.status", paths::Status::ALL),
            at(".path.source", paths::Source::ALL),
            at(".path.chosen", paths::Choice::ALL),
            at(".ports.probing.because", Silence::ALL),
            at(".ports.last-event.event", paths::PortEvent::ALL),
            at(".status.health.state", health::State::ALL),
            at(".status.health.reasons.state", health::State::ALL),
            at(".status.health.reasons.cause", health::Cause::ALL),
            at(".status.local-service.state", SocketState::ALL),
            at(".status.local-service.nudges", NudgeState::ALL),
            at(".status.interfaces.responder", Hook::ALL),
            at(".status.users.what", shares::Kind::ALL),
            at(".top.requests.what", RequestKind::ALL),
            at(".top.answers.by", Answerer::ALL),
            at(".counters", descriptions().map(|(name, _)| name)),
            at(".import.lines.became", Became::ALL),
            at(".kernel.interfaces.only-routed", Family::ALL),
            at(".checks.state", CheckState::ALL),
            at(".event.step", variants::<Step>(json!({ "step": "?" }))),
            at(".event.by", variants::<Caller>(json!({ "by": "?" }))),
            at(".event.source", request::Source::ALL),
            at(".event.status", paths::Status::ALL),
            at(".event.source", paths::Source::ALL),
            at(".event.outcome", Nudged::ALL),
            at(".event.program", Program::ALL),
            at(".event.verdict", Verdict::ALL),
            at(".traced.ended", TraceEnd::ALL),
        ]
        .concat()
    }

    #[test]
    fn each_word_of_each_type_is_in_a_golden_document() {
        let found = found();
        let is_there =
            |word: &String| found.contains(word) || found.contains(&word.replacen(' ', ".", 1));
        let missing: Vec<_> = words().into_iter().filter(|word| !is_there(word)).collect();
        assert!(missing.is_empty(), "no golden document has {missing:#?}");
    }

    #[test]
    fn unknown_word_is_refused_with_the_known_ones() {
        let request = r#"{"ask":"resolve","addresses":[],"lookup":"disk"}"#;
        let error = serde_json::from_str::<Request>(request).unwrap_err().to_string();
        assert!(error.contains(r#"disk: not one of "any" "memory" "peer""#), "{error}");
    }
}
