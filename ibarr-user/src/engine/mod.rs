// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The one task that calls the cores. Every event is an `Input`; each is passed to a core with the
//! time of the turn, then the outputs of the cores are drained. The engine decides nothing itself:
//! the cores decide what a peer, the kernel or an administrator gets.

mod acm;
mod acm_sockets;
mod asks;
mod descriptions;
mod events;
mod health;
mod inputs;
mod kernel;
mod learned;
mod log;
mod metrics;
mod nudges;
mod pages;
mod paths;
mod preload;
mod queries;
mod reload;
mod report;
mod servers;
mod snapshot;
mod summary;
mod trace;
mod users;

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use ibarr_common::Instant;
use ibarr_proto::local_view;
use ibarr_proto::node::{self, Node, Output};
use ibarr_proto::turn::{self, Handled, Io, Limits, Read};
use rand_chacha::ChaCha12Rng;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tracing::{error, info, warn};

use self::acm::Acm;
pub(crate) use self::descriptions::{Description, descriptions};
use self::events::Hearing;
use self::inputs::{Input, Inputs};
use self::kernel::Kernel;
use self::nudges::Nudges;
use self::paths::Rdma;
use self::preload::Preloads;
use self::queries::Queries;
use self::reload::Reloads;
use self::servers::Servers;
use self::snapshot::Snapshots;
use self::trace::Tracers;
use self::users::Users;
use crate::bpf::Responder;
use crate::config::Config;
use crate::control::server::{Ask, Control};
use crate::logging::{Levels, Log, ids};
use crate::metrics::server::Server;
use crate::process::{Command, RunOptions, Signals, Systemd};
use crate::sys::clock;
use crate::sys::timer::Timer;
use crate::transport;
use crate::transport::acm as transport_acm;
use crate::transport::inherited;
use crate::transport::local_service as ls;
use crate::transport::names::Names;
use crate::transport::ports::Ports;
use crate::transport::queries::Sockets;
use crate::transport::rtnetlink::{self, Nudger};
use crate::transport::snapshot::Keeper;
use crate::transport::umad::Umads;

/// The parts of an engine.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Arguments of the command line.
    pub options: RunOptions,
    /// Contents of the configuration files.
    pub config: Config,
    /// Random numbers for the cores.
    pub rng: ChaCha12Rng,
    /// The sockets that are open already.
    pub inherited: Inherited,
    /// Finds the addresses of names, and may block.
    pub resolve: fn(&str) -> io::Result<Vec<IpAddr>>,
    /// State shared with the control socket.
    pub control: Control,
    pub systemd: Systemd,
    /// The log, whose lost lines `ibarr status` reports.
    pub log: Log,
    /// Which of its lines are written.
    pub levels: Levels,
    /// The thread that serves the metrics.
    pub metrics: Server,
}

/// Sockets that another process opened for the daemon.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// To the kernel's RDMA core.
    pub local_service: Option<OwnedFd>,
    pub acm: transport_acm::Inherited,
    /// Of the ip2gid port.
    pub servers: inherited::Inherited,
}

/// The task that calls the cores, see the [module](self).
pub(crate) struct Engine {
    options: RunOptions,
    config: Config,
    started: Instant,
    node: Node,
    users: Users,
    tracers: Tracers,
    queries: Queries,
    servers: Servers,
    responder: Responder,
    watch: rtnetlink::Watch,
    rdma: Rdma,
    snapshots: Snapshots,
    kernel: Kernel,
    acm: Acm,
    names: Names,
    preloads: Preloads,
    timer: Timer,
    control: Control,
    systemd: Systemd,
    log: Log,
    levels: Levels,
    reloads: Reloads,
    last_metrics: metrics::Last,
    metrics_server: Server,
    /// Set by a signal.
    ends_at: Option<Instant>,
    inputs: Inputs,
}

/// Time for the last messages to the kernel after a signal.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Engine {
    /// Opens sockets and starts tasks and threads. Must be called within a runtime.
    ///
    /// # Errors
    /// If rtnetlink fails: without it there are no addresses and no routes.
    pub(crate) fn start(setup: Setup) -> io::Result<Self> {
        let Setup { options, config, control, .. } = setup;
        let Inherited { local_service, acm, servers } = setup.inherited;
        let counters = Arc::clone(&control.counters);
        let mut inputs = Inputs::default();
        let (watch, view) = rtnetlink::Watch::start(rtnetlink::Config::default(), &counters)?;
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
        let (responder, progress, packets) =
            Responder::start(options.bpf(), config.responder.clone())?;
        inputs.hear(progress, Input::Responder);
        inputs.hear(packets, Input::Packets);
        let (batches, queries) = mpsc::channel(transport::BATCHES);
        inputs.hear(queries, Input::Server);
        let (heard_sender, heard) = mpsc::channel(transport::DATAGRAMS);
        inputs.hear(heard, Input::Heard);
        let (acm_sender, clients) = mpsc::channel(transport::ACM_EVENTS);
        inputs.hear(clients, Input::Acm);
        let (ready_sender, mut ready) = mpsc::unbounded_channel();
        let ready = stream::poll_fn(move |context| ready.poll_recv(context));
        inputs.follow(ready.map(|client| Input::Acm(transport_acm::Event::Ready(client))));
        let (sources, answers) = rtnetlink::Routes::start(Arc::clone(&counters))?;
        inputs.hear(answers, Input::Source);
        let (acm, served) = Acm::start(acm, acm_sender, ready_sender, sources)?;
        inputs.hear(served, Input::AcmServed);
        let (names, answers) = Names::new(setup.resolve);
        inputs.hear(answers, Input::Named);
        let (preloaded, files) = mpsc::channel(1);
        inputs.hear(files, |loaded| Input::Preloaded(Box::new(loaded)));
        let udp_port = config.client.settings().udp_port;
        let now = clock::now();
        let mut engine = Self {
            acm,
            names,
            preloads: Preloads::new(preloaded),
            started: now,
            node: Node::new(options.node(&config), setup.rng),
            users: Users::default(),
            tracers: Tracers::default(),
            queries: Queries::new(Sockets::new(heard_sender, Arc::clone(&counters)), routes),
            servers: Servers::start(udp_port, servers, batches, Arc::clone(&counters)),
            responder,
            watch,
            rdma: Rdma::new(ports, Umads::new(mad_sender, Arc::clone(&counters)), hearing),
            snapshots: Snapshots::new(
                now,
                keeper,
                config.snapshot.clone(),
                config.paths.max_cached,
            ),
            kernel: Kernel::new(
                ls::LocalService::start(local_service, counters),
                Nudges::new(nudger),
            ),
            timer: Timer::new()?,
            control,
            systemd: setup.systemd,
            log: setup.log,
            levels: setup.levels,
            reloads: Reloads::new(loaded_sender),
            last_metrics: metrics::Last::default(),
            metrics_server: setup.metrics,
            ends_at: None,
            inputs,
            options,
            config,
        };
        engine.config.outdated().into_iter().for_each(|warning| warn!("{warning}"));
        engine.node.handle_input(now, node::Input::Health(ibarr_proto::health::Input::Start));
        engine.start_acm(now);
        engine.start_kernel(now);
        engine.preloads.configure(&engine.config.acm);
        engine.preload(now);
        Ok(engine)
    }

    /// Runs until a signal ends it. It is ready when the node's addresses are known, and each
    /// server socket, the BPF responder and the sockets of ACM work or have reported why not.
    pub(crate) async fn run(mut self, asks: mpsc::Receiver<Ask>, signals: Signals) {
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
                self.systemd.ready(summary::of(&self.status(now)));
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
            self.users.pages.poll_timeout(),
            self.tracers.poll_timeout(),
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
            event = self.kernel.next() => Input::LocalService(event),
            Some(input) = self.inputs.next() => input,
            _ = self.timer.expired() => Input::Timeout,
            () = self.servers.next_start() => Input::Timeout,
        }
    }

    /// Answers the kernel's requests whose answer is known already, then restores the kernel's
    /// time-out. A second signal ends at once.
    fn end(&mut self, now: Instant) {
        let ends_at = if self.ends_at.is_some() { now } else { now + LAST_WORDS };
        self.ends_at = Some(ends_at);
        turn::read_to_end(self, Limits::default(), now);
        self.stop_kernel(now);
        self.stop_acm(now);
        self.end_traces(now);
    }

    fn has_ended(&self) -> bool {
        self.ends_at.is_some_and(|ends_at| {
            let is_done = self.kernel.socket().has_room()
                && self.node.local_service().is_idle()
                && !self.responder.is_reporting();
            is_done || ends_at <= clock::now()
        })
    }

    fn is_ready(&self) -> bool {
        self.node.view().confirmed_at().is_some()
            && self.servers.have_started()
            && self.responder.is_settled(self.node.responder())
            && self.acm.sockets.is_settled()
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
                self.acm.sources.forget();
                self.node.handle_input(now, node::Input::View(input));
                self.answer_early(now);
            }
            Input::Port(event) => self.handle_port(now, event),
            Input::Event(event) => self.handle_event(now, event),
            Input::Mad(event) => self.handle_mad(now, &event),
            Input::Snapshot(event) => self.handle_snapshot(now, event),
            Input::Route(answer) => self.handle_route(now, answer),
            Input::Source(answer) => self.handle_source(now, &answer),
            Input::Server(event) => {
                self.handle_server(now, event);
                return Handled::Unchanged;
            }
            Input::Heard(heard) => self.handle_heard(now, &heard),
            Input::LocalService(event) => return self.handle_kernel(now, event),
            Input::Nudged(outcome) => self.handle_nudged(now, outcome),
            Input::Responder(progress) => {
                if let Some(input) = self.responder.handle_progress(now, progress) {
                    self.node.handle_input(now, input);
                }
            }
            Input::Packets(packets) => self.trace_packets(&packets),
            Input::Acm(event) => self.handle_acm(now, event),
            Input::AcmServed(served) => self.handle_acm_served(served),
            Input::Named(named) => self.handle_named(now, &named),
            Input::Preloaded(loaded) => {
                self.handle_preloaded(now, *loaded);
                self.preload(now);
            }
            Input::Ask(ask) => self.handle_ask(now, ask),
            Input::Loaded(loaded) => self.handle_loaded(now, *loaded),
            Input::Command(Command::Reload) => self.reload(now, None),
            Input::Command(Command::End) => self.end(now),
            Input::Timeout => {}
        }
        Handled::Changed
    }

    fn read_kernel(&mut self, now: Instant) -> Read {
        self.read_kernel_socket(now)
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node.handle_timeout(now);
    }

    fn poll(&mut self, _: Instant) -> Option<Output> {
        self.node.poll(self.kernel.room())
    }

    fn carry_out(&mut self, now: Instant, output: Output) {
        match output {
            Output::View(request) => self.watch.ask(request),
            Output::Changed(event) => {
                report::log(&event);
                if let local_view::Event::Served(_) | local_view::Event::NotServed(_) = event {
                    let served = self.node.view().served();
                    self.servers.serve_in(&served.filter_map(|served| served.vrf).collect());
                }
            }
            Output::Responder(output) => {
                if let Some(input) = self.responder.carry_out(output) {
                    self.node.handle_input(now, input);
                }
            }
            Output::Answered { id, outcome } => {
                self.users.addresses.answered(now, id, Some(outcome));
            }
            Output::PathAnswered { id, outcome } => self.path_answered(now, id, outcome),
            Output::Acm(output) => self.answer_acm(now, output),
            Output::Sa(transmit) => self.send_mad(now, &transmit),
            Output::Client(output) => self.carry_out_query(now, output),
            Output::LocalService(transmit) => self.tell_kernel(now, &transmit),
        }
    }

    fn settle(&mut self, now: Instant) {
        self.tell_restored();
        self.keep_paths(now);
        self.make_page(now);
        self.mirror_cache(now);
        self.responder.handle_timeout(now);
        self.show_trace(now);
        self.responder.report_packets(self.tracers.want_packets());
        self.servers.guard(&mut self.responder);
        self.responder.go_on();
        self.end_reload(now);
        self.levels.handle_timeout(now);
        self.assess(now);
        if self.systemd.beats(now) {
            self.systemd.alive(summary::of(&self.status(now)));
        }
    }
}
