// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A stand-in for the kernel's RDMA core, limited to the local service.
//!
//! It parses answers with its own parser, as lenient as the kernel's, so that a mistake in the
//! daemon's codec is not read as it was meant.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::wire::ls::{Kind, PathUse, Request, ResolveIp, ResolvePath, Seq};
use thiserror::Error;

use crate::netlink::Message;

/// The kernel's RDMA core, as far as the local service is concerned
/// (drivers/infiniband/core/addr.c, sa_query.c and netlink.c of Linux 6.1 and later), as a state
/// machine.
///
/// One thing is simpler: requests that are woken together run together, while the kernel runs them
/// one after another on one thread.
#[derive(Debug)]
pub struct Kernel {
    window: Duration,
    confirms: bool,
    refuses: Option<i32>,
    has_listener: bool,
    /// `ib_nl_addr_request_seq`.
    ip_seq: u32,
    /// `ib_nl_sa_request_seq`.
    path_seq: u32,
    /// `req_list`, and requests that are about to join it.
    ips: Vec<Ip>,
    /// `ib_nl_request_list`.
    paths: VecDeque<Query>,
    /// `sa_local_svc_timeout_ms`.
    path_timeout: Duration,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

/// The initial state of a [`Kernel`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The time from the sending of a request until the kernel can accept its answer: some ten
    /// microseconds, measured.
    pub window: Duration,
    /// The sequence number of the last address request of any caller.
    pub ip_seq: u32,
    /// The sequence number of the last path request of any caller.
    pub path_seq: u32,
    /// The kernel follows each accepted message by an error with a positive number, as before 5.6,
    /// where handlers returned the length of the message.
    pub confirms: bool,
    /// The kernel refuses each message for the local service with this error number
    /// (`rdma_nl_rcv_msg`): `EINVAL` (22) from any network namespace but the first, `EPERM` (1)
    /// without CAP_NET_ADMIN. The sender can be in the group all the same.
    pub refuses: Option<i32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: Duration::from_micros(30),
            ip_seq: 0,
            path_seq: 0,
            confirms: false,
            refuses: None,
        }
    }
}

/// An input of the kernel.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A datagram of the daemon.
    Datagram(&'a [u8]),
    /// The neighbour with this address has changed, in any network namespace, and is valid now.
    Neighbour(IpAddr),
    /// Whether a process is in the group of the local service.
    Listener(bool),
}

/// A datagram for the daemon.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Transmit {
    /// The request in it, for [`Kernel::not_delivered`].
    request: Option<(Kind, Seq)>,
    pub bytes: Vec<u8>,
}

/// The outcome of a request. Address and path requests are numbered separately.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// An address request has ended.
    Ip(Seq, IpOutcome),
    /// A path request has ended, as far as the local service is concerned.
    Path(Seq, PathOutcome),
    /// An answer to an address request was lost, because no request could accept it. The kernel
    /// logs "Couldn't find request waiting for DGID", or nothing.
    AnswerLost(Seq),
}

/// The result that `rdma_resolve_ip` passes to its callback.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IpOutcome {
    /// The address has this GID; `by` is what made the caller notice.
    Resolved {
        /// The bytes of the daemon's answer; the kernel checks none of them.
        gid: [u8; 16],
        /// What woke the caller; an answer itself wakes no caller.
        by: Wake,
    },
    /// `-ETIMEDOUT`.
    TimedOut,
    /// `-EADDRNOTAVAIL`: no process was listening when the request was to be sent again.
    NoListener,
}

/// What makes the kernel look at an address request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wake {
    /// A change of the neighbour with this address.
    Neighbour(IpAddr),
    /// The time-out of the caller.
    TimeOut,
}

/// The outcome of a path request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PathOutcome {
    /// The kernel uses the paths with these flags, in the order of the answer.
    Resolved(Vec<u32>),
    /// `-EIO`: the answer has no path of the requested kind. The kernel does not ask the SA.
    Failed,
    /// The kernel asks the SA itself.
    AsksSa(Reason),
}

/// Why the kernel asks the SA itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// No process is listening, or none had room for the request.
    NoListener,
    /// The answer says so.
    Told,
    /// The answer is malformed.
    Unreadable,
    /// No answer came in time.
    Silence,
}

/// `-EADDRNOTAVAIL`.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("no process is in the group of the local service")]
pub struct NoListener;

impl Kernel {
    /// A kernel without a listener.
    pub fn new(Config { window, ip_seq, path_seq, confirms, refuses }: Config) -> Self {
        Self {
            window,
            has_listener: false,
            ip_seq,
            path_seq,
            confirms,
            refuses,
            ips: Vec::new(),
            paths: VecDeque::new(),
            path_timeout: DEFAULT_TIMEOUT,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Changes the time from the sending of a request until the kernel can accept its answer,
    /// because the kernel may be preempted meanwhile.
    pub fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    /// Starts a request for the GID of an address, for a caller that waits for `timeout`.
    ///
    /// Sends the request before it is queued (`rdma_resolve_ip`: `addr_resolve`, then `queue_req`).
    ///
    /// # Errors
    /// If no process is listening (`ib_nl_fetch_ha`).
    pub fn resolve_ip(
        &mut self,
        now: Instant,
        request: ResolveIp,
        timeout: Duration,
    ) -> Result<Seq, NoListener> {
        self.handle_timeout(now);
        let seq = self.count_ip();
        if !self.has_listener {
            return Err(NoListener);
        }
        let state = State::Sending { until: now + self.window };
        self.ips.push(Ip { seq, request, deadline: now + timeout, state });
        self.transmits.push_back(Transmit::request(&Request::ResolveIp(request), seq));
        Ok(seq)
    }

    /// Takes a sequence number, as every address request does, even one for a directly connected
    /// destination or for RoCE, which is not sent.
    pub fn count_ip(&mut self) -> Seq {
        self.ip_seq = self.ip_seq.wrapping_add(1);
        Seq(self.ip_seq)
    }

    /// Starts a request for a path (`send_mad`, `ib_nl_make_request`, under one lock, so that no
    /// answer is too early). Returns `None`, without taking a sequence number, if no process is
    /// listening; the kernel then asks the SA.
    pub fn resolve_path(&mut self, now: Instant, request: ResolvePath) -> Option<Seq> {
        self.handle_timeout(now);
        if !self.has_listener {
            return None;
        }
        self.path_seq = self.path_seq.wrapping_add(1);
        let seq = Seq(self.path_seq);
        let deadline = now + self.path_timeout;
        self.paths.push_back(Query { seq, path_use: request.path_use, deadline });
        self.transmits.push_back(Transmit::request(&Request::ResolvePath(request), seq));
        Some(seq)
    }

    /// Notes that no socket had room for `transmit`. The kernel handles this for path requests
    /// (`ib_nl_send_msg`), and ignores it for address requests (`ib_nl_ip_send_msg`).
    pub fn not_delivered(&mut self, transmit: &Transmit) {
        if let Some((Kind::ResolvePath, seq)) = transmit.request
            && self.take_path(seq).is_some()
        {
            self.path_ends(seq, PathOutcome::AsksSa(Reason::NoListener));
        }
    }

    /// Takes an input.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        self.handle_timeout(now);
        match input {
            Input::Listener(is_there) => self.has_listener = is_there,
            // `netevent_callback`: all queued requests run at once. If a request is running
            // already, this moves it back to its deadline (`process_one_req`, `set_timeout`).
            Input::Neighbour(address) => self
                .run(now, Wake::Neighbour(address), |ip| matches!(ip.state, State::Queued { .. })),
            Input::Datagram(mut rest) => {
                while let Some(message) = Message::take(&mut rest) {
                    let errno = match self.receive(now, &message) {
                        0 if self.confirms && message.kind >> 10 == CLIENT_LS => -message.len(),
                        errno => errno,
                    };
                    let verdict = message.verdict(errno);
                    self.transmits.extend(verdict.map(|bytes| Transmit { request: None, bytes }));
                }
            }
        }
    }

    /// Executes what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let events = &mut self.events;
        self.ips.retain_mut(|ip| {
            let (State::Sending { until } | State::Running { until }) = ip.state else {
                return true;
            };
            if until > now {
                return true;
            }
            // `process_one_req`: too late for an answer to the message that was just sent.
            let is_over = matches!(ip.state, State::Running { .. }) && ip.deadline <= until;
            if is_over {
                events.push_back(Event::Ip(ip.seq, IpOutcome::TimedOut));
            }
            ip.state = State::Queued { gid: None };
            !is_over
        });
        self.run(now, Wake::TimeOut, |ip| {
            matches!(ip.state, State::Queued { .. }) && ip.deadline <= now
        });
        // `ib_nl_request_timeout`
        while let Some(path) = self.paths.pop_front_if(|path| path.deadline <= now) {
            self.path_ends(path.seq, PathOutcome::AsksSa(Reason::Silence));
        }
    }

    /// When [`Self::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ips = self.ips.iter().map(|ip| match ip.state {
            State::Sending { until } | State::Running { until } => until,
            State::Queued { .. } => ip.deadline,
        });
        ips.chain(self.paths.iter().map(|path| path.deadline)).min()
    }

    /// The next datagram for the daemon.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next outcome of a request.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The daemon's time for an answer about a path.
    pub fn path_timeout(&self) -> Duration {
        self.path_timeout
    }

    /// `process_one_req`, for each request that is `due`: a request with an answer ends, one
    /// without is sent again with its old number; even at the deadline, when the answer will be too
    /// late.
    fn run(&mut self, now: Instant, by: Wake, due: impl Fn(&Ip) -> bool) {
        let (window, has_listener) = (self.window, self.has_listener);
        let (events, transmits) = (&mut self.events, &mut self.transmits);
        self.ips.retain_mut(|ip| {
            if !due(ip) {
                return true;
            }
            let outcome = match ip.state {
                State::Queued { gid: Some(gid) } => IpOutcome::Resolved { gid, by },
                _ if has_listener => {
                    let request = Request::ResolveIp(ip.request);
                    transmits.push_back(Transmit::request(&request, ip.seq));
                    ip.state = State::Running { until: now + window };
                    return true;
                }
                _ if ip.deadline <= now => IpOutcome::TimedOut,
                _ => IpOutcome::NoListener,
            };
            events.push_back(Event::Ip(ip.seq, outcome));
            false
        });
    }

    /// `rdma_nl_rcv_msg`; returns its error number.
    fn receive(&mut self, now: Instant, message: &Message<'_>) -> i32 {
        if let Some(errno) = self.refuses.filter(|_| message.kind >> 10 == CLIENT_LS) {
            return errno;
        }
        match message.kind {
            RESOLVE | IP_RESOLVE if message.is_request() => EPERM,
            RESOLVE => {
                self.hear_path(message);
                0
            }
            IP_RESOLVE => {
                self.hear_ip(message);
                0
            }
            SET_TIMEOUT if !message.is_request() => EPERM,
            SET_TIMEOUT => {
                self.set_timeout(now, message);
                0
            }
            _ if message.is_control() => 0,
            // Without the request flag, the kernel accepts only messages of the local service.
            other if message.is_request() || other >> 10 == CLIENT_LS => EINVAL,
            _ => 0,
        }
    }

    /// `ib_nl_handle_ip_res_resp`, `ib_nl_process_ip_rsep`: there is no negative answer, and an
    /// answer does not wake the caller.
    fn hear_ip(&mut self, message: &Message<'_>) {
        let is_exact = |kind, len| kind != DGID || len == 16;
        let dgid =
            if message.has_error() { None } else { message.parse(DGID, is_exact).ok().flatten() };
        let Some(&dgid) = dgid.and_then(<[u8]>::first_chunk::<16>) else { return };
        let seq = Seq(message.seq);
        match self.ips.iter_mut().find(|ip| ip.seq == seq).map(|ip| &mut ip.state) {
            Some(State::Queued { gid }) => *gid = Some(dgid),
            // Not queued yet; or removed from the queue, and overwritten when sending again
            // returns.
            Some(State::Sending { .. } | State::Running { .. }) | None => {
                self.events.push_back(Event::AnswerLost(seq));
            }
        }
    }

    /// `ib_nl_handle_resolve_resp`
    fn hear_path(&mut self, message: &Message<'_>) {
        let Some(path) = self.take_path(Seq(message.seq)) else { return };
        let outcome = if message.has_error() {
            PathOutcome::AsksSa(Reason::Told)
        } else if message.parse(PATH_RECORD, path_policy).is_err() {
            PathOutcome::AsksSa(Reason::Unreadable)
        } else {
            // `ib_nl_process_good_resolve_rsp`
            let mask = match path.path_use {
                PathUse::All => PRIMARY,
                PathUse::Gmp => PRIMARY | GMP | BIDIRECTIONAL,
                PathUse::Unidirectional => PRIMARY | OUTBOUND,
            };
            let records = message.attributes().filter(|(kind, _)| *kind == PATH_RECORD);
            let flags = records.filter_map(|(_, record)| record.first_chunk::<4>());
            let flags = flags.map(|flags| u32::from_ne_bytes(*flags));
            let taken: Vec<_> =
                flags.filter(|flags| flags & mask == mask).take(MAX_PATHS).collect();
            match taken.as_slice() {
                [] => PathOutcome::Failed,
                _ => PathOutcome::Resolved(taken),
            }
        };
        self.path_ends(path.seq, outcome);
    }

    /// `ib_nl_handle_set_timeout`: pending requests get the difference, too.
    fn set_timeout(&mut self, now: Instant, message: &Message<'_>) {
        let value = message.parse(TIMEOUT, path_policy).ok().flatten();
        let Some(millis) = value.and_then(<[u8]>::first_chunk::<4>) else { return };
        let timeout = Duration::from_millis(u32::from_ne_bytes(*millis).into());
        let timeout = timeout.clamp(MIN_TIMEOUT, MAX_TIMEOUT);
        for path in &mut self.paths {
            let nanos = (path.deadline + timeout).since(Instant::BOOT + self.path_timeout);
            path.deadline = Instant::BOOT + nanos;
        }
        self.path_timeout = timeout;
        self.handle_timeout(now);
    }

    fn take_path(&mut self, seq: Seq) -> Option<Query> {
        let at = self.paths.iter().position(|path| path.seq == seq)?;
        self.paths.remove(at)
    }

    fn path_ends(&mut self, seq: Seq, outcome: PathOutcome) {
        self.events.push_back(Event::Path(seq, outcome));
    }
}

impl Transmit {
    fn request(request: &Request, seq: Seq) -> Self {
        let bytes = request.emit(seq).as_ref().to_vec();
        Self { request: Some((request.kind(), seq)), bytes }
    }
}

/// `struct addr_req`
#[derive(Debug)]
struct Ip {
    seq: Seq,
    request: ResolveIp,
    deadline: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Sent for the first time; queued after `until`.
    Sending { until: Instant },
    /// Queued.
    Queued { gid: Option<[u8; 16]> },
    /// Sent again; an answer before `until` is overwritten.
    Running { until: Instant },
}

/// `struct ib_sa_query`
#[derive(Debug)]
struct Query {
    seq: Seq,
    path_use: PathUse,
    deadline: Instant,
}

/// `ib_nl_policy` of sa_query.c: binary attributes have a maximum length, numbers a minimum length.
fn path_policy(kind: u16, len: usize) -> bool {
    match kind {
        PATH_RECORD => len <= 72,
        DGID | 5 => len <= 16,
        TIMEOUT => len >= 4,
        3 => len >= 8,
        6 => len >= 1,
        7 | 8 => len >= 2,
        _ => true,
    }
}

/// `RDMA_NL_LS`, and its operations as message types.
const CLIENT_LS: u16 = 4;
pub(crate) const RESOLVE: u16 = 0x1000;
pub(crate) const SET_TIMEOUT: u16 = 0x1001;
pub(crate) const IP_RESOLVE: u16 = 0x1002;

/// Error numbers of include/uapi/asm-generic/errno-base.h.
const EPERM: i32 = 1;
const EINVAL: i32 = 22;

/// `LS_NLA_TYPE_…`
const PATH_RECORD: u16 = 1;
const TIMEOUT: u16 = 2;
const DGID: u16 = 4;

/// `IB_PATH_…`
const GMP: u32 = 0x01;
const PRIMARY: u32 = 0x02;
const OUTBOUND: u32 = 0x08;
const BIDIRECTIONAL: u32 = 0x28;

/// `RDMA_PRIMARY_PATH_MAX_REC_NUM`
const MAX_PATHS: usize = 3;

/// `IB_SA_LOCAL_SVC_TIMEOUT_…`
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
const MIN_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_TIMEOUT: Duration = Duration::from_secs(200);

#[cfg(test)]
mod tests;
