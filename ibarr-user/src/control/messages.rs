// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of the control socket, which `--json` prints as they are. `"v": 1` stands in each;
//! within version 1 fields are only added.
//!
//! long because it is the whole of that format, which is read as one document.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use super::path_messages::{
    CachedPath, LastEvent, PathAnswer, PathHops, PathRequest, PathStatus, PortStatus, Probing,
};

/// What stands in `v`.
pub const VERSION: u32 = 1;

/// What is asked of the daemon.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Request {
    /// The GID of each address, over the network where it is not known.
    Resolve {
        /// At most [`Request::MAX_ADDRESSES`].
        addresses: Vec<IpAddr>,
        /// How long the caller waits: at most [`Request::MAX_TIMEOUT`], [`Request::TIMEOUT`] if it does
        /// not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
    /// The path to a GID, from the subnet administrator where it is not known.
    Path {
        /// Which.
        path: PathRequest,
    },
    /// Every InfiniBand port.
    Ports,
    /// A page of the paths that the cache holds.
    Paths {
        /// Where the page before has ended; absent for the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<PathMark>,
    },
    /// What the daemon is doing, and what it is not and why.
    Status,
    /// A page of the addresses that the client cache holds.
    Cache {
        /// Where the page before has ended; absent for the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<AddressMark>,
    },
    /// Forgets every cached address and path (changes the daemon).
    Flush,
    /// Every counter.
    Counters,
    /// Reads the configuration again (changes the daemon).
    Reload,
}

impl Request {
    /// Addresses that one request may name.
    pub const MAX_ADDRESSES: usize = 256;

    /// How long a request for addresses waits for peers: as long as a person at a terminal does.
    pub const TIMEOUT: Duration = Duration::from_secs(3);

    /// How long such a request can wait at most.
    pub const MAX_TIMEOUT: Duration = Duration::from_mins(1);

    /// Whether it changes the daemon, which not everyone may.
    pub fn changes(&self) -> bool {
        matches!(self, Self::Flush | Self::Reload)
    }
}

/// Where a page of [`Request::Cache`] ends, for the daemon that has made it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AddressMark {
    /// Which daemon.
    pub daemon: u64,
    /// When the last entry expires.
    pub expires_at: u64,
    /// Its address.
    pub ip: IpAddr,
    /// Its interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifindex: Option<u32>,
}

/// Where a page of [`Request::Paths`] ends, for the daemon that has made it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathMark {
    /// Which daemon.
    pub daemon: u64,
    /// The place after the last entry.
    pub place: u32,
}

/// What the daemon answers: `"v": 1` and the fields of one of these.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Response {
    /// [`VERSION`].
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
        Body::Error { error }.into()
    }
}

/// The document that answers a [`Request`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Body {
    /// To any request.
    Error {
        /// What went wrong.
        error: Failure,
    },
    /// To [`Request::Resolve`], in the order of the addresses.
    Answers {
        /// One for each address.
        answers: Vec<Answer>,
    },
    /// To [`Request::Cache`].
    Cache {
        /// In no order. The command prints all pages as one document, in the order of addresses.
        entries: Vec<CacheEntry>,
        /// What to ask for the next page with; absent in the last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<AddressMark>,
    },
    /// To [`Request::Path`].
    Path {
        /// See [`PathAnswer`].
        path: Box<PathAnswer>,
    },
    /// To [`Request::Ports`].
    Ports {
        /// In the order in which they appeared.
        ports: Vec<PortStatus>,
    },
    /// To [`Request::Paths`].
    Paths {
        /// In no order. The command prints all pages as one document.
        paths: Vec<CachedPath>,
        /// What to ask for the next page with; absent in the last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<PathMark>,
    },
    /// To [`Request::Counters`].
    Counters {
        /// By name; those that never counted are there with 0.
        counters: BTreeMap<String, u64>,
    },
    /// To [`Request::Status`].
    Status {
        /// See [`Status`].
        status: Box<Status>,
    },
    /// What the kernel answers; read from its maps, without the daemon.
    Kernel {
        /// See [`KernelMaps`].
        kernel: KernelMaps,
    },
    /// To [`Request::Flush`] and [`Request::Reload`].
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

/// Kinds of [`Failure`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The request makes no sense.
    Usage,
    /// No daemon answers.
    Unreachable,
    /// A fault of ours.
    Internal,
    /// Somebody else has what was asked for; later it may be free.
    Busy,
    /// Not allowed.
    Permission,
    /// The configuration has mistakes.
    Config,
    /// The daemon has as many connections as it may have.
    Overloaded,
}

/// What became of one address.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Answer {
    /// The address asked for.
    pub ip: IpAddr,
    /// What is known.
    pub status: AnswerStatus,
    /// Its GID, if found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<String>,
    /// Who said so, if found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<AnswerSource>,
    /// Milliseconds from request to answer, within the daemon.
    pub ms: f64,
}

/// Outcomes of resolving an address.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerStatus {
    /// It has a GID.
    Found,
    /// Its host says that it is not its own, or it is ours and has no GID.
    NotFound,
    /// Its host did not answer in time.
    TimedOut,
    /// Its host says that nothing listens for queries there, or a firewall rejects them.
    Refused,
    /// No route leads there.
    Unreachable,
    /// Too much is being asked already.
    Overloaded,
}

impl AnswerStatus {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::NotFound => "not-found",
            Self::TimedOut => "timed-out",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Overloaded => "overloaded",
        }
    }
}

/// Who knew a GID.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerSource {
    /// The address is ours.
    Local,
    /// The cache.
    Cache,
    /// The peer, now.
    Peer,
}

impl AnswerSource {
    /// As it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Cache => "cache",
            Self::Peer => "peer",
        }
    }
}

/// One entry of the client cache.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CacheEntry {
    /// The address.
    pub ip: IpAddr,
    /// Name of the interface it was asked for on; absent if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Its GID; absent in a negative entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<String>,
    /// Milliseconds until it is forgotten.
    pub expires_in_ms: u64,
}

/// What `ibarr cache --kernel` shows.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelMaps {
    /// Milliseconds until the programs stop answering, if nothing renews the lease.
    pub lease_ends_in_ms: u64,
    /// Whether only sources that `allow` names are answered.
    pub restricted: bool,
    /// Interfaces on which programs may answer.
    pub interfaces: Vec<KernelInterface>,
    /// Addresses of this node.
    pub entries: Vec<KernelEntry>,
    /// Where interfaces lead to.
    pub routes: Vec<KernelRoute>,
    /// Next hops, where a program has to know them.
    pub neighbours: Vec<KernelNeighbour>,
    /// What peers have answered, kept for the next daemon.
    pub learned: Vec<KernelLearned>,
}

/// What a peer has answered.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelLearned {
    /// The address asked for.
    pub ip: IpAddr,
    /// Index of the interface that it was asked for by; absent if that was left to routing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ifindex: Option<u32>,
    /// Its GID.
    pub gid: String,
    /// Milliseconds until it is forgotten.
    pub expires_in_ms: u64,
    /// The address that the answer came from, if that is still known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
}

/// An interface on which programs may answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelInterface {
    /// Its index.
    pub ifindex: u32,
    /// Its name, if it is in this network namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether those who ask over IPv4 are answered.
    pub ipv4: bool,
    /// Whether those who ask over IPv6 are answered.
    pub ipv6: bool,
    /// Of these families, only the sources that the interface leads to.
    pub only_routed: Vec<String>,
}

/// Where an interface leads to; a longer prefix overrules a shorter one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelRoute {
    /// Index of the interface.
    pub ifindex: u32,
    /// The prefix.
    pub to: String,
    /// The gateway; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
    /// Whether the prefix is led to by another interface.
    pub elsewhere: bool,
}

/// A next hop of an interface.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelNeighbour {
    /// Index of the interface.
    pub ifindex: u32,
    /// Its address.
    pub ip: IpAddr,
    /// Its hardware address.
    pub hwaddr: String,
}

/// An address of this node, as programs know it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelEntry {
    /// The address.
    pub ip: IpAddr,
    /// Index of the interface that a link-local address means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<u32>,
    /// What is answered; absent if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<String>,
    /// Index of the interface that has the address.
    pub ifindex: u32,
    /// `local` or `static`: who says which GID it has.
    pub origin: String,
}

/// What `ibarr status` shows.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// Of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since when it runs.
    pub uptime_s: u64,
    /// The file it was configured from; absent if it runs on defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The last reload, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_reload: Option<FailedReload>,
    /// The servers of the ip2gid port.
    pub servers: Vec<ServerStatus>,
    /// How the kernel is answered.
    pub local_service: LocalServiceStatus,
    /// The responder in the kernel.
    pub responder: ResponderStatus,
    /// Every InfiniBand port.
    #[serde(default)]
    pub ports: Vec<PortStatus>,
    /// Entries of the path cache now.
    #[serde(default)]
    pub cached_paths: usize,
    /// What the path cache is good for, since the start.
    #[serde(default)]
    pub path_requests: PathRequests,
    /// Every interface that was considered.
    pub interfaces: Vec<InterfaceStatus>,
    /// Questions that wait for a peer now.
    pub pending: usize,
    /// Entries of the client cache now.
    pub cached: usize,
    /// Who uses the control socket.
    #[serde(default)]
    pub control: ControlStatus,
    /// What users ask, of addresses and of paths.
    #[serde(default)]
    pub users: Vec<UsersStatus>,
    /// What is amiss and how to mend it; empty if all is well.
    pub warnings: Vec<String>,
}

/// A reload that changed nothing, because the file has mistakes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FailedReload {
    /// Seconds since then.
    pub ago_s: u64,
    /// The mistakes, one a line.
    pub message: String,
}

/// Who uses the control socket.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ControlStatus {
    /// Connections now.
    pub connections: usize,
    /// Connections that were refused, because their user or all users had too many, or for want of
    /// descriptors.
    pub refused: u64,
    /// What is known of group `ibarr`, whose members may change the daemon.
    pub group: String,
}

/// What all users together ask, besides the kernel.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct UsersStatus {
    /// `addresses` or `paths`.
    pub what: String,
    /// Requests that are being looked for.
    pub under_way: usize,
    /// Requests that wait because their user, or all users, have their share under way.
    pub waiting: usize,
    /// Requests that waited in vain, since the start.
    pub refused: u64,
}

/// Who had to ask a subnet administrator, and who had not.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathRequests {
    /// MADs that subnet administrators were sent, repetitions included.
    pub sa_queries: u64,
    /// Requests for paths, the kernel's and others', that were answered from the cache or with the
    /// answer to a question that was under way already.
    pub avoided: u64,
    /// Requests that the kernel was told to ask the subnet administrator about itself, by the reason.
    pub left_to_kernel: BTreeMap<String, u64>,
}

/// The socket to the kernel's RDMA core.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LocalServiceStatus {
    /// `open`, `inherited` or `closed`.
    pub state: String,
    /// Why the kernel does not ask us; absent if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Address requests that wait for an answer now.
    pub waiting: usize,
    /// `on`, `off` or `failing`.
    pub nudges: String,
    /// The interface that the last nudge was made on; absent if none was, or it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nudge_interface: Option<String>,
    /// Others who hear the kernel's requests.
    pub listeners: Vec<ListenerStatus>,
}

/// A process that hears the kernel's requests.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ListenerStatus {
    /// The process; absent if it cannot be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name.
    pub name: String,
}

/// One server socket.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServerStatus {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// UDP port.
    pub port: u16,
    /// Why it does not serve; absent if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Bytes that the kernel holds of queries while the daemon is busy; absent if it does not serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<usize>,
}

/// The responder in the kernel.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ResponderStatus {
    /// Milliseconds until its programs stop answering, if nothing renews the lease.
    pub lease_ends_in_ms: u64,
    /// Why it answers nothing; absent if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Why it may end before its lease does, with the daemon; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_early: Option<String>,
}

/// One network interface.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// The GID that its addresses are answered with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<String>,
    /// What answers peers who ask by it, before or instead of the daemon: `tcx`, `clsact`,
    /// `xdp-native`, `xdp-generic`; absent if nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responder: Option<String>,
    /// Why the daemon answers here, and to whom; absent if it does not, or if nobody shall be
    /// answered here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_user_space: Option<String>,
    /// Addresses that are answered, each with its GID.
    pub addresses: BTreeMap<IpAddr, String>,
    /// Why none is answered; absent if some are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_served: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_read_back_as_what_they_were() {
        let answers = vec![Answer {
            ip: "10.2.0.5".parse().unwrap(),
            status: AnswerStatus::Found,
            gid: Some("fe80::2:c903:0:201".to_owned()),
            source: Some(AnswerSource::Peer),
            ms: 1.25,
        }];
        let failure = Failure { kind: FailureKind::Permission, message: "no".to_owned() };
        let bodies = [
            Body::Answers { answers },
            Body::Cache { entries: Vec::new(), next: None },
            Body::Counters { counters: BTreeMap::from([("a".to_owned(), 1)]) },
            Body::Done { done: "flushed 3 entries".to_owned() },
            Body::Error { error: failure },
        ];
        for body in bodies {
            let response = Response::from(body);
            let json = serde_json::to_string(&response).unwrap();
            assert!(json.starts_with("{\"v\":1,"), "{json}");
            assert_eq!(serde_json::from_str::<Response>(&json).unwrap(), response);
        }
    }

    #[test]
    fn a_request_is_what_the_manual_shows() {
        let json = "{\"ask\":\"resolve\",\"addresses\":[\"10.2.0.5\",\"fd00:2::5\"]}";
        let request: Request = serde_json::from_str(json).unwrap();
        let addresses = vec!["10.2.0.5".parse().unwrap(), "fd00:2::5".parse().unwrap()];
        assert_eq!(request, Request::Resolve { addresses, timeout_ms: None });
        assert_eq!(serde_json::to_string(&request).unwrap(), json);
    }
}
