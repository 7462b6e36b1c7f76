// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The one task that calls the cores. Every event is an `Input`; what concerns a core is passed to it with the
//! time of the turn, then the outputs of the cores are drained. The cores decide what a peer, the
//! kernel or an administrator gets.

mod acm;
mod acm_sockets;
mod asks;
mod descriptions;
mod events;
mod health;
mod inputs;
mod kernel;
mod log;
mod metrics;
mod pages;
mod paths;
mod preload;
mod queries;
mod rdma;
mod reload;
mod report;
mod servers;
mod service;
mod snapshot;
mod summary;
mod trace;
mod users;

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream;
use ibarr_common::Instant;
use ibarr_proto::local_view;
use ibarr_proto::node::{self, Node, Output};
use ibarr_proto::responder;
use ibarr_proto::turn::{self, Handled, Io, Limits, Read};
use rand_chacha::ChaCha12Rng;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tracing::{error, info, warn};

use self::acm::Acm;
pub(crate) use self::descriptions::{Description, descriptions};
use self::events::DeviceEvents;
use self::inputs::{Input, Inputs};
use self::kernel::{Kernel, Nudges};
use self::preload::Preloads;
use self::queries::Queries;
use self::rdma::Rdma;
use self::reload::{Reloads, Settings};
use self::servers::Servers;
pub(crate) use self::service::Service;
use self::snapshot::Snapshots;
use self::users::Users;
use crate::bpf::Responder;
use crate::config::Config;
use crate::control::server::Ask;
use crate::logging::ids;
use crate::process::{Command, RunOptions, Signals};
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
    pub service: Service,
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
    node: Node,
    inputs: Inputs,
    timer: Timer,
    watch: rtnetlink::Watch,
    kernel: Kernel,
    queries: Queries,
    servers: Servers,
    responder: Responder,
    rdma: Rdma,
    acm: Acm,
    snapshots: Snapshots,
    users: Users,
    settings: Settings,
    service: Service,
}

/// Time for the last messages to the kernel after a signal.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Engine {
    /// Opens sockets and starts tasks and threads. Must be called within a runtime.
    ///
    /// # Errors
    /// If rtnetlink fails: without it there are no addresses and no routes.
    pub(crate) fn start(setup: Setup) -> io::Result<Self> {
        let Setup { options, config, service, .. } = setup;
        let Inherited { local_service, acm, servers } = setup.inherited;
        let counters = Arc::clone(&service.control.counters);
        let mut inputs = Inputs::default();
        let (watch, view) = rtnetlink::Watch::start(rtnetlink::Config::default(), &counters)?;
        inputs.add(view, Input::View);
        let (routes, answers) = rtnetlink::Routes::start(Arc::clone(&counters))?;
        inputs.add(answers, Input::Route);
        let (ports, events) = Ports::start(options.dirs.clone())?;
        inputs.add(events, Input::Port);
        let (device_events, events) = DeviceEvents::new(&options.dirs);
        inputs.add(events, Input::Event);
        let (mad_sender, mads) = mpsc::channel(transport::MADS);
        inputs.add(mads, Input::Mad);
        let (keeper, events) = Keeper::start(Arc::clone(&counters))?;
        inputs.add(events, Input::Snapshot);
        let (loaded_sender, loaded) = mpsc::channel(1);
        inputs.add(loaded, |loaded| Input::Loaded(Box::new(loaded)));
        let (nudger, outcomes) = Nudger::start()?;
        inputs.add(outcomes, Input::Nudged);
        let (responder, progress, packets) = Responder::start(options.bpf())?;
        inputs.add(progress, Input::Responder);
        inputs.add(packets, Input::Packets);
        let (batches, queries) = mpsc::channel(transport::BATCHES);
        inputs.add(queries, Input::Server);
        let (incoming_sender, incoming) = mpsc::channel(transport::DATAGRAMS);
        inputs.add(incoming, Input::Incoming);
        let (acm_sender, clients) = mpsc::channel(transport::ACM_EVENTS);
        inputs.add(clients, Input::Acm);
        let ready = transport_acm::Ready::new()?;
        let mut looks = ready.looks()?;
        inputs.add_stream(stream::poll_fn(move |context| {
            looks.poll(context).map(|()| Some(Input::Acm(transport_acm::Event::Ready)))
        }));
        let (sources, answers) = rtnetlink::Routes::start(Arc::clone(&counters))?;
        inputs.add(answers, Input::Source);
        let (names, answers) = Names::new(setup.resolve);
        inputs.add(answers, Input::Named);
        let (preloaded, files) = mpsc::channel(1);
        inputs.add(files, |loaded| Input::Preloaded(Box::new(loaded)));
        let preloads = Preloads::new(preloaded);
        let (acm, served) =
            Acm::start(acm, acm_sender, ready, sources, names, preloads, service.systemd.clone())?;
        inputs.add(served, Input::AcmServed);
        let udp_port = config.client.settings().udp_port;
        let now = clock::now();
        let snapshots =
            Snapshots::new(now, keeper, config.snapshot.clone(), config.paths.max_cached);
        let socket =
            ls::LocalService::start(options.local_service, local_service, Arc::clone(&counters));
        let mut engine = Self {
            node: Node::new(options.node(&config), setup.rng),
            inputs,
            timer: Timer::new()?,
            watch,
            kernel: Kernel {
                socket,
                nudges: Nudges::new(nudger),
                systemd: service.systemd.clone(),
            },
            queries: Queries::new(Sockets::new(incoming_sender, Arc::clone(&counters)), routes),
            servers: Servers::start(udp_port, servers, batches, Arc::clone(&counters)),
            responder,
            rdma: Rdma {
                ports,
                umads: Umads::new(mad_sender, counters),
                device_events,
                unread: None,
            },
            acm,
            snapshots,
            users: Users::default(),
            settings: Settings { options, config, reloads: Reloads::new(loaded_sender) },
            service,
        };
        let Self { node, kernel, acm, settings, rdma, .. } = &mut engine;
        rdma.umads.with_tables(settings.config.paths.has_spread());
        settings.config.outdated().into_iter().for_each(|warning| warn!("{warning}"));
        node.handle_input(now, node::Input::Health(health::Input::Start));
        acm.begin(now, &settings.config.acm, node);
        kernel.tell_state(now, node);
        acm.preloads.configure(&settings.config.acm);
        acm.preloads.start(now, &settings.config.paths, node);
        Ok(engine)
    }

    /// Runs until a signal ends it. It answers from the start, and is ready when its
    /// [health](ibarr_proto::health::Health::is_ready) is known.
    pub(crate) async fn run(mut self, asks: mpsc::Receiver<Ask>, signals: Signals) {
        self.inputs.add(asks, Input::Ask);
        self.inputs.add_signals(signals);
        let mut was_ready = false;
        turn::drain(&mut self, clock::now());
        while !self.has_ended() {
            let due = self.poll_timeout();
            let input = self.next(due).await;
            let mut now = clock::now();
            let is_due = due.is_some_and(|due| due <= now);
            if is_due {
                // Sockets are read first: a query whose answer is in one of them is not repeated.
                yield_now().await;
                now = clock::now();
            }
            if turn::take(&mut self, Limits::default(), now, input, is_due) {
                // Servers and other tasks run on this thread.
                yield_now().await;
            }
            if !was_ready && self.node.health().is_ready() {
                was_ready = true;
                info!(message_id = ids::READY, "ready");
                for (subsystem, why) in self.node.health().unknown() {
                    warn!(%subsystem, "not known yet: {why}");
                }
                self.service.systemd.ready(summary::of(&self.status(now)));
            }
        }
        self.answer_last().await;
        let Self { node, inputs, snapshots, .. } = self;
        Box::pin(snapshots.keep_at_end(node.paths(), inputs)).await;
    }

    fn poll_timeout(&mut self) -> Option<Instant> {
        let due = [
            self.node.poll_timeout(),
            self.snapshots.poll_timeout(),
            self.users.pages.poll_timeout(),
            self.users.tracers.poll_timeout(),
            self.service.poll_timeout(),
            self.acm.poll_timeout(),
        ];
        due.into_iter().flatten().min()
    }

    /// Waits for the next input. The kernel's requests come first, because callers are blocked;
    /// each turn takes other inputs, too, so that none starves.
    async fn next(&mut self, due: Option<Instant>) -> Input {
        if let Err(error) = self.timer.set(due) {
            error!(%error, "the timer cannot be set");
        }
        let Self { kernel, inputs, timer, servers, .. } = self;
        let mut start = pin!(servers.next_start());
        poll_fn(|context| {
            if let Poll::Ready(event) = kernel.socket.poll_event(context) {
                return Poll::Ready(Input::LocalService(event));
            }
            if let Poll::Ready(input) = inputs.poll_next(context) {
                return Poll::Ready(input);
            }
            let is_due = timer.poll_expired(context).is_ready();
            let is_due = is_due || start.as_mut().poll(context).is_ready();
            if is_due { Poll::Ready(Input::Timeout) } else { Poll::Pending }
        })
        .await
    }

    /// Answers the kernel's requests whose answer is known already, then restores the kernel's
    /// time-out. A second signal ends at once.
    fn end(&mut self, now: Instant) {
        let ends_at = if self.service.ends_at.is_some() { now } else { now + LAST_WORDS };
        self.service.ends_at = Some(ends_at);
        turn::read_to_end(self, Limits::default(), now);
        let Self { node, acm, users, responder, .. } = self;
        kernel::stop(now, node);
        acm.stop(now, node);
        users.tracers.end_all(now, node, responder);
    }

    fn has_ended(&self) -> bool {
        self.service.ends_at.is_some_and(|ends_at| {
            let is_done = self.kernel.socket.has_room()
                && self.node.local_service().is_idle()
                && !self.node.responder().is_reporting();
            is_done || ends_at <= clock::now()
        })
    }

    fn are_programs_settled(&self) -> bool {
        let Self { node, responder, .. } = self;
        node.responder().is_settled() && responder.is_settled() && !node.client().inherits()
    }

    /// Answers the queries that are read already.
    async fn answer_last(&mut self) {
        let tasks = self.servers.finish();
        let end = clock::now() + LAST_WORDS;
        while tasks.iter().any(|task| !task.is_finished()) && clock::now() < end {
            while let Some(input) = self.inputs.poll() {
                if let Input::Server(event) = input {
                    self.servers.handle(clock::now(), event, &mut self.node);
                }
            }
            yield_now().await;
        }
    }

    /// Has the health assessed if that is due.
    fn assess(&mut self, now: Instant) {
        if !self.node.health().is_due(now) {
            return;
        }
        let unsettled = health::unsettled(self);
        let Self { node, queries, servers, responder, settings, service, .. } = self;
        let facts = [
            health::configuration(settings),
            health::kernel(&self.kernel, settings),
            health::peers(servers, settings, node),
            health::devices(&self.rdma, node),
            health::control(service),
            health::Input::Snapshot(self.snapshots.warning()),
            health::acm(&self.acm, settings),
        ];
        let counted = health::counted(service, queries, servers, responder);
        for input in facts.into_iter().chain(counted).chain(unsettled) {
            node.handle_input(now, node::Input::Health(input));
        }
        node.assess(now);
        while let Some(event) = node.poll_health() {
            health::log(&event);
        }
    }
}

impl Io<Input> for Engine {
    fn next_input(&mut self) -> Option<Input> {
        self.inputs.poll()
    }

    fn handle(&mut self, now: Instant, input: Input) -> Handled {
        let Self { node, kernel, acm, service, .. } = self;
        match input {
            Input::View(input) => {
                // A link that appears or disappears may belong to a port.
                if let local_view::Input::Link(_) | local_view::Input::LinkGone(_) = input {
                    self.rdma.ports.look();
                }
                node.handle_input(now, node::Input::View(input));
                self.servers.offer_again(now, node);
            }
            Input::Port(event) => {
                self.rdma.handle_port(now, event, node);
                acm.preloads.start(now, &self.settings.config.paths, node);
            }
            Input::Event(event) => self.rdma.handle_event(now, event, node),
            Input::Mad(event) => self.rdma.handle_mad(now, &event, node),
            Input::Snapshot(event) => self.snapshots.handle(now, event, node),
            Input::Route(answer) => queries::handle_route(now, answer, node),
            Input::Source(answer) => acm::handle_source(now, &answer, node),
            Input::Server(event) => {
                self.servers.handle(now, event, node);
                // A turn of queries alone does not settle.
                self.users.tracers.pass_on(now, node, &self.responder);
                return Handled::Unchanged;
            }
            Input::Incoming(incoming) => queries::handle_incoming(now, &incoming, node),
            Input::LocalService(event) => return kernel.handle(event),
            Input::Nudged(outcome) => kernel.handle_nudged(now, outcome, node),
            Input::Responder(progress) => self.responder.handle_progress(now, progress, node),
            Input::Packets(packets) => self.users.tracers.add_packets(&packets, node),
            Input::Acm(event) => return acm.handle(now, event, node, service.ends_at.is_some()),
            Input::AcmServed(served) => {
                if served.made_again {
                    service.control.counters.count(transport::Counter::FileMadeAgain);
                }
                acm.sockets.handle_served(served, &self.settings.config.acm);
            }
            Input::Named(named) => acm::handle_named(now, &named, node),
            Input::Preloaded(loaded) => {
                acm.preloads.handle(now, *loaded, node);
                acm.preloads.start(now, &self.settings.config.paths, node);
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
        self.kernel.read(now, &mut self.node)
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node.handle_timeout(now);
    }

    fn poll(&mut self, _: Instant) -> Option<Output> {
        self.node.poll(self.kernel.room())
    }

    fn carry_out(&mut self, now: Instant, output: Output) {
        let Self { node, kernel, queries, users, .. } = self;
        match output {
            Output::View(request) => self.watch.ask(request),
            Output::Changed(event) => {
                report::log(node, &event);
                if let local_view::Event::Served(_) | local_view::Event::NotServed(_) = event {
                    let served = node.view().served();
                    self.servers.serve_in(&served.filter_map(|served| served.vrf).collect());
                }
            }
            Output::Responder(output) => {
                if let Some(input) = self.responder.carry_out(output) {
                    node.handle_input(now, input);
                }
            }
            Output::Answered { id, outcome } => users.addresses.answered(now, id, Some(outcome)),
            Output::PathAnswered { id, outcome } => {
                users.paths.answered(now, id, outcome, node.paths());
            }
            Output::Acm(output) => self.acm.carry_out(now, output, node),
            Output::Sa(transmit) => self.rdma.send(now, &transmit, node),
            Output::Client(output) => queries.carry_out(now, output, node),
            Output::Mirror(output) => {
                if let Some(input) = self.responder.mirror(output) {
                    node.handle_input(now, input);
                }
            }
            Output::LocalService(transmit) => kernel.carry_out(now, &transmit, node),
        }
    }

    fn settle(&mut self, now: Instant) {
        let Self { node, acm, responder, users, service, .. } = self;
        acm.keep_old(now);
        snapshot::tell_restored(node);
        self.snapshots.keep(now, node.paths());
        users.pages.make(now, service.started, node);
        users.tracers.pass_on(now, node, responder);
        node.handle_input(now, responder::Input::Report(users.tracers.want_packets()));
        self.servers.guard(node.responder().generation(), responder);
        service.levels.handle_timeout(now);
        self.end_reload(now);
        self.assess(now);
        if self.service.systemd.take_watchdog_due(now) {
            self.service.systemd.feed_watchdog(summary::of(&self.status(now)));
        }
    }
}
