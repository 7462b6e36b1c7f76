// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The one task that calls the cores. Every event is an `Input`; each is passed to a core with the
//! time of the turn, then the outputs of the cores are drained. The engine decides nothing itself:
//! the cores decide what a peer, the kernel or an administrator gets.

mod acm;
mod asks;
mod events;
mod inputs;
mod learned;
mod log;
mod nudges;
mod pages;
mod paths;
mod reload;
mod report;
mod servers;
mod snapshot;
mod summary;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{self, SocketEvent, SocketId};
use ibarr_proto::local_service::{self, Nudge, Sender};
use ibarr_proto::local_view::{self, Link};
use ibarr_proto::node::{self, Node, Output, Room};
use ibarr_proto::request::Outcome;
use ibarr_proto::resolver::{self, Event};
use ibarr_proto::shares::User;
use ibarr_proto::turn::{self, Handled, Io, Limits, Read};
use nix::errno::Errno;
use rand_chacha::ChaCha12Rng;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tracing::{debug, error, info};

use self::acm::Acm;
use self::asks::Asks;
use self::events::Hearing;
use self::inputs::{Input, Inputs};
use self::nudges::Nudges;
use self::pages::{Asked, Pages};
use self::paths::Rdma;
use self::reload::Reloads;
use self::servers::Servers;
use self::snapshot::Snapshots;
use crate::bpf::Responder;
use crate::config::Config;
use crate::control::messages::{Body, Failure, FailureKind, Request, Response};
use crate::control::server::{Ask, Control};
use crate::logging::{Levels, Log, ids};
use crate::process::{Command, RunOptions, Signals, Systemd, Until};
use crate::sys::clock;
use crate::sys::local_service::Received;
use crate::sys::timer::Timer;
use crate::transport::acm::{self as transport_acm, Clients};
use crate::transport::inherited::Inherited;
use crate::transport::local_service as ls;
use crate::transport::ports::Ports;
use crate::transport::queries::Sockets;
use crate::transport::rtnetlink::{self, Nudger, Place, RouteAnswer};
use crate::transport::server::Batch;
use crate::transport::snapshot::Keeper;
use crate::transport::umad::Umads;
use crate::transport::{self, Counters};

/// The parts of an engine.
#[derive(Debug)]
pub struct Setup {
    /// Arguments of the command line.
    pub options: RunOptions,
    /// Contents of the configuration files.
    pub config: Config,
    /// Random numbers for the cores.
    pub rng: ChaCha12Rng,
    /// An inherited socket to the kernel's RDMA core.
    pub local_service: Option<OwnedFd>,
    /// Inherited sockets of ACM.
    pub acm: transport_acm::Inherited,
    /// Inherited sockets of the ip2gid port.
    pub servers: Inherited,
    /// State shared with the control socket.
    pub control: Control,
    /// Notifications for systemd.
    pub systemd: Systemd,
    /// The log, whose lost lines `ibarr status` reports.
    pub log: Log,
    /// Which of its lines are written.
    pub levels: Levels,
}

/// The task that calls the cores, see the [module](self).
pub struct Engine {
    options: RunOptions,
    config: Config,
    started: Instant,
    node: Node<ChaCha12Rng>,
    asks: Asks,
    pages: Pages,
    sockets: Sockets,
    servers: Servers,
    responder: Responder,
    watch: rtnetlink::Watch,
    routes: rtnetlink::Routes,
    hearing: Hearing,
    rdma: Rdma,
    snapshots: Snapshots,
    local_service: ls::LocalService,
    nudges: Nudges,
    acm: Acm,
    timer: Timer,
    control: Control,
    systemd: Systemd,
    log: Log,
    levels: Levels,
    reloads: Reloads,
    /// Set by a signal.
    ends_at: Option<Instant>,
    inputs: Inputs,
    counters: Arc<Counters>,
}

/// Time for the last messages to the kernel after a signal.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The longest request has 160 bytes, and the kernel sends each in its own datagram. The buffer is
/// cleared before each read, so it is not much larger.
const REQUEST_BUFFER: usize = 1024;

impl Engine {
    /// Opens sockets and starts tasks and threads. Must be called within a runtime.
    ///
    /// # Errors
    /// If rtnetlink fails: without it there are no addresses and no routes.
    pub fn start(setup: Setup) -> io::Result<Self> {
        let Setup {
            options,
            config,
            rng,
            local_service,
            acm,
            servers,
            control,
            systemd,
            log,
            levels,
        } = setup;
        let counters = Arc::clone(&control.counters);
        let mut inputs = Inputs::default();
        let (watch, view) = rtnetlink::Watch::start(&counters)?;
        inputs.hear(view, Input::View);
        let (routes, answers) = rtnetlink::Routes::start(Arc::clone(&counters))?;
        inputs.hear(answers, Input::Route);
        let (ports, events) = Ports::start(options.dirs.clone())?;
        inputs.hear(events, Input::Port);
        let (hearing, events) = Hearing::new(&options.dirs);
        inputs.hear(events, Input::Event);
        let (mad_sender, mads) = mpsc::channel(transport::MADS);
        inputs.hear(mads, Input::Mad);
        let (keeper, events) = Keeper::start(Arc::clone(&counters))?;
        inputs.hear(events, Input::Snapshot);
        let (loaded_sender, loaded) = mpsc::channel(1);
        inputs.hear(loaded, |loaded| Input::Loaded(Box::new(loaded)));
        let (nudger, outcomes) = Nudger::start()?;
        inputs.hear(outcomes, Input::Nudged);
        let (responder, progress) =
            Responder::start(options.bpf(), config.responder.clone(), config.allow.clone())?;
        inputs.hear(progress, Input::Responder);
        let (batches, queries) = mpsc::channel(transport::BATCHES);
        inputs.hear(queries, Input::Queries);
        let (heard_sender, heard) = mpsc::channel(transport::DATAGRAMS);
        inputs.hear(heard, Input::Heard);
        let (acm_sender, clients) = mpsc::channel(transport::ACM_EVENTS);
        inputs.hear(clients, Input::Acm);
        let now = clock::now();
        let mut engine = Self {
            acm: Acm::new(acm, Clients::new(acm_sender)),
            started: now,
            node: Node::new(options.node(&config), rng),
            asks: Asks::default(),
            pages: Pages::default(),
            sockets: Sockets::new(heard_sender, Arc::clone(&counters)),
            servers: Servers::start(
                config.client.settings().udp_port,
                servers,
                batches,
                Arc::clone(&counters),
            ),
            responder,
            watch,
            routes,
            hearing,
            rdma: Rdma::new(ports, Umads::new(mad_sender, Arc::clone(&counters))),
            snapshots: Snapshots::new(
                now,
                keeper,
                config.snapshot.clone(),
                config.paths.max_cached,
            ),
            local_service: ls::LocalService::start(local_service, Arc::clone(&counters)),
            nudges: Nudges::new(nudger),
            timer: Timer::new()?,
            control,
            systemd,
            log,
            levels,
            reloads: Reloads::new(loaded_sender),
            ends_at: None,
            inputs,
            counters,
            options,
            config,
        };
        engine.start_acm(now);
        if let Some(opened) = engine.local_service.opening() {
            engine.serve_kernel(now, opened);
        }
        Ok(engine)
    }

    /// Runs until a signal ends it. It is ready when the node's addresses are known, and each
    /// server socket and the BPF responder work or have reported why not.
    pub async fn run(mut self, asks: mpsc::Receiver<Ask>, signals: Signals) {
        self.inputs.hear(asks, Input::Ask);
        self.inputs.heed(signals);
        let mut was_ready = false;
        turn::drain(&mut self, clock::now());
        while !self.has_ended() {
            let due = self.poll_timeout();
            let input = self.next(due).await;
            let now = clock::now();
            let is_due = due.is_some_and(|due| due <= now);
            if turn::take(&mut self, Limits::default(), now, input, is_due) {
                // Servers and other tasks run on this thread.
                yield_now().await;
            }
            if !was_ready && self.is_ready() {
                was_ready = true;
                info!(message_id = ids::READY, "ready");
                self.systemd.ready();
            }
        }
        self.answer_last().await;
        Box::pin(self.keep_paths_at_end()).await;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = [
            self.node.poll_timeout(),
            self.responder.poll_timeout(),
            self.snapshots.poll_timeout(),
            self.pages.poll_timeout(),
            self.systemd.poll_timeout(),
            self.levels.poll_timeout(),
            self.ends_at,
        ];
        due.into_iter().flatten().min()
    }

    /// Waits for the next input. The kernel's requests come first, because callers are blocked;
    /// each turn takes other inputs, too, so that none starves.
    async fn next(&mut self, due: Option<Instant>) -> Input {
        if let Err(error) = self.timer.set(due) {
            error!(%error, "the timer cannot be set");
        }
        tokio::select! {
            biased;
            event = self.local_service.next() => Input::LocalService(event),
            Some(input) = self.inputs.next() => input,
            _ = self.timer.expired() => Input::Timeout,
            () = self.servers.next_start() => Input::Timeout,
        }
    }

    fn serve_kernel(&mut self, now: Instant, event: ls::Event) -> Handled {
        match event {
            ls::Event::Opened { port_id, is_member } => {
                let opened = local_service::Input::Opened { port_id, is_member };
                self.tell_local_service(now, opened);
                self.keep_local_service();
            }
            ls::Event::Writable => self.local_service.flush(),
            ls::Event::Readable => return Handled::KernelAsks,
        }
        Handled::Changed
    }

    /// While no daemon runs, the kernel's requests wait in the socket: without it, the kernel would refuse its
    /// callers at once (`ib_nl_fetch_ha`).
    fn keep_local_service(&self) {
        match self.local_service.copy() {
            Some(Ok(copy)) => self.systemd.keep(ls::NAME, copy, Until::Stop),
            Some(Err(error)) => {
                error!(%error, "local service: the socket cannot be kept for the next daemon");
            }
            None => {}
        }
    }

    /// Answers the kernel's requests whose answer is known already, then restores the kernel's
    /// time-out. A second signal ends at once.
    fn end(&mut self, now: Instant) {
        let ends_at = if self.ends_at.is_some() { now } else { now + LAST_WORDS };
        self.ends_at = Some(ends_at);
        turn::read_to_end(self, Limits::default(), now);
        self.tell_local_service(now, local_service::Input::Stop);
        self.stop_acm(now);
        self.node.give_back(now, ends_at);
    }

    fn has_ended(&self) -> bool {
        self.ends_at.is_some_and(|ends_at| {
            let is_done = self.local_service.has_room()
                && self.node.local_service().is_idle()
                && !self.node.paths().is_giving_back();
            is_done || ends_at <= clock::now()
        })
    }

    fn tell_client(&mut self, now: Instant, input: client::Input<'_>) {
        self.node.handle_input(now, resolver::Input::Client(input));
    }

    fn tell_local_service(&mut self, now: Instant, input: local_service::Input<'_>) {
        self.node.handle_input(now, resolver::Input::LocalService(input));
    }

    fn open(&mut self, socket: SocketId) -> client::Input<'static> {
        match self.sockets.open(socket, socket.family()) {
            Ok(()) => client::Input::SocketOpened { socket },
            Err(error) => {
                debug!(%socket, %error, "query socket not opened");
                self.counters.count(transport::Counter::SocketNotOpened);
                client::Input::SocketFailed { socket }
            }
        }
    }

    /// Answers the queries that are read already.
    async fn answer_last(&mut self) {
        let tasks = self.servers.finish();
        let end = clock::now() + LAST_WORDS;
        while tasks.iter().any(|task| !task.is_finished()) && clock::now() < end {
            while let Some(input) = self.inputs.poll() {
                if let Input::Queries(batch) = input {
                    self.answer(batch);
                }
            }
            yield_now().await;
        }
    }

    fn answer(&mut self, batch: Batch) {
        let reply = |query: &transport::server::Query| {
            let received = query.received();
            log::peer_asks(received.from, received.payload);
            let transmit = self.node.answer(&received)?;
            log::peer_is_answered(transmit.to, transmit.payload.as_ref());
            Some(transmit)
        };
        let replies = batch.queries.iter().filter_map(reply).collect();
        // The socket may have been closed meanwhile.
        drop(batch.replies.send(replies));
    }

    /// The answer to a request that needs no network.
    fn tell(&mut self, now: Instant, request: &Request) -> Response {
        match request {
            Request::Status => Body::Status { status: Box::new(self.status(now)) }.into(),
            Request::Counters => Body::Counters { counters: self.counts() }.into(),
            Request::Ports => Body::Ports { ports: self.port_status(now) }.into(),
            Request::Flush => {
                let (forgotten, paths) = (self.node.flush(), self.node.flush_paths());
                info!(forgotten, paths, "flushed the caches");
                Body::Done { done: format!("{forgotten} addresses and {paths} paths forgotten") }
                    .into()
            }
            Request::LogLevel { change } => self.log_level(now, change.as_ref()),
            Request::Resolve { .. }
            | Request::Path { .. }
            | Request::Cache { .. }
            | Request::Paths { .. }
            | Request::Reload => {
                let message = "this request is answered elsewhere".to_owned();
                Failure { kind: FailureKind::Internal, message }.into()
            }
        }
    }

    fn is_ready(&self) -> bool {
        self.node.view().confirmed_at().is_some()
            && self.servers.have_started()
            && self.responder.is_settled()
    }
}

impl Io<Input> for Engine {
    fn next_input(&mut self) -> Option<Input> {
        self.inputs.poll()
    }

    fn handle(&mut self, now: Instant, input: Input) -> Handled {
        match input {
            Input::View(input) => {
                // A link that appears or disappears may belong to a port.
                if let local_view::Input::Link(_) | local_view::Input::LinkGone(_) = input {
                    self.rdma.look();
                }
                self.node.handle_input(now, node::Input::View(input));
                if self.node.view().is_synced() {
                    for batch in self.servers.take_deferred() {
                        self.answer(batch);
                    }
                }
            }
            Input::Port(event) => self.handle_port(now, event),
            Input::Event(event) => self.handle_event(now, event),
            Input::Mad(event) => self.handle_mad(now, &event),
            Input::Snapshot(event) => self.handle_snapshot(now, event),
            Input::Route(RouteAnswer { question, route }) => {
                self.tell_client(now, client::Input::Route { question, route: route.ok() });
            }
            // At most one from each socket, which reads nothing more before it gets its replies.
            Input::Queries(batch) => {
                if self.node.view().is_synced() {
                    self.answer(batch);
                } else {
                    self.servers.defer(batch);
                }
                return Handled::Unchanged;
            }
            Input::Heard(heard) => {
                log::peer_answers(&heard);
                self.tell_client(now, heard.input());
            }
            Input::LocalService(event) => return self.serve_kernel(now, event),
            Input::Nudged(outcome) => {
                let nudged = self.nudges.note(outcome, self.node.nudge_without_place());
                self.tell_local_service(now, local_service::Input::Nudged(nudged));
            }
            Input::Responder(progress) => self.responder.handle_progress(now, progress),
            Input::Acm(event) => self.handle_acm(now, event),
            Input::Ask(Ask { request, uid, answer }) => match request {
                Request::Resolve { addresses, timeout_ms } => {
                    let timeout = timeout_ms.map_or(Request::TIMEOUT, Duration::from);
                    let deadline = now + timeout;
                    let user = User(uid);
                    for (id, address) in self.asks.add(now, addresses, answer) {
                        match Question::new(address, None) {
                            Some(question) => {
                                let input =
                                    resolver::Input::Resolve { user, id, question, deadline };
                                self.node.handle_input(now, input);
                            }
                            None => self.asks.answered(now, id, Outcome::NotFound),
                        }
                    }
                }
                Request::Cache { after } => self.pages.ask(Asked::Addresses(after), answer),
                Request::Paths { after } => self.pages.ask(Asked::Paths(after), answer),
                Request::Path { path } => self.ask_path(now, User(uid), &path, answer),
                Request::Reload => self.reload(now, Some(answer)),
                // The caller may have disconnected.
                request => drop(answer.send(self.tell(now, &request))),
            },
            Input::Loaded(loaded) => self.handle_loaded(now, *loaded),
            Input::Command(Command::Reload) => self.reload(now, None),
            Input::Command(Command::End) => self.end(now),
            Input::Timeout => {}
        }
        Handled::Changed
    }

    fn read_kernel(&mut self, now: Instant) -> Read {
        let mut buffer = [0; REQUEST_BUFFER];
        let (input, read) = match self.local_service.receive(&mut buffer) {
            Received::Datagram { len, from_kernel } => {
                let sender = if from_kernel { Sender::Kernel } else { Sender::Other };
                let (bytes, cut) = (buffer.get(..len).unwrap_or(&buffer), len > REQUEST_BUFFER);
                log::kernel_asks(bytes);
                (local_service::Input::Datagram { sender, bytes, cut }, Read::Message)
            }
            Received::Overrun => (local_service::Input::Overrun, Read::Message),
            Received::Drained => (local_service::Input::Drained, Read::Nothing),
            Received::Closed => (local_service::Input::Closed, Read::Nothing),
        };
        self.tell_local_service(now, input);
        read
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node.handle_timeout(now);
    }

    fn poll(&mut self, _: Instant) -> Option<Output> {
        self.node.poll(Room { local_service: self.local_service.has_room() })
    }

    fn carry_out(&mut self, now: Instant, output: Output) {
        match output {
            Output::View(request) => self.watch.ask(request),
            Output::Changed(event) => {
                report::log(&event);
                self.responder.handle_fact(&event);
            }
            Output::Resolver(Event::Answered { id, outcome }) => {
                self.asks.answered(now, id, outcome);
            }
            Output::Resolver(Event::PathAnswered { id, outcome }) => {
                self.path_answered(now, id, outcome);
            }
            Output::Acm(output) => self.answer_acm(now, output),
            Output::Sa(transmit) => self.send_mad(now, &transmit),
            Output::Resolver(Event::Socket(SocketEvent::Open(socket))) => {
                let input = self.open(socket);
                self.tell_client(now, input);
            }
            Output::Resolver(Event::Socket(SocketEvent::Close(socket))) => {
                self.sockets.close(socket);
            }
            Output::Route(question) => {
                if !self.routes.lookup(question) {
                    self.tell_client(now, client::Input::Route { question, route: None });
                }
            }
            Output::Query(transmit) => {
                log::peer_is_asked(transmit.to, transmit.payload.as_ref());
                self.sockets.send(&transmit);
            }
            Output::LocalService(local_service::Transmit::Message(message)) => {
                log::kernel_is_answered(message.as_ref());
                self.local_service.send(message.as_ref());
            }
            Output::LocalService(local_service::Transmit::Join) => {
                if self.local_service.join() {
                    self.keep_local_service();
                } else {
                    self.tell_local_service(now, local_service::Input::Closed);
                }
            }
            Output::LocalService(local_service::Transmit::Leave(errno)) => {
                self.local_service.leave(Errno::from_raw(-errno));
                self.tell_local_service(now, local_service::Input::Closed);
            }
            Output::LocalService(local_service::Transmit::Nudge(nudge)) => {
                let place = |link: &Link| Place { ifindex: link.ifindex, hwaddr: link.hwaddr };
                let fallback = self.node.view().first_ipoib().map(place);
                let quiet = self.local_service.quiet();
                self.nudges.nudge(fallback, quiet.filter(|_| nudge == Nudge::IfQuiet));
            }
        }
    }

    fn settle(&mut self, now: Instant) {
        self.tell_restored();
        self.keep_paths(now);
        self.make_page(now);
        self.mirror_cache(now);
        self.responder.handle_timeout(now, self.node.view());
        self.servers.guard(&mut self.responder);
        self.responder.go_on();
        self.end_reload();
        self.levels.handle_timeout(now);
        if self.systemd.beats(now) {
            self.systemd.alive(summary::of(&self.status(now)));
        }
    }
}
