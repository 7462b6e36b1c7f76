// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The surroundings of a daemon's cores. The turn is the product's ([`ibarr_proto::turn`]); what it
//! reads and writes is simulated, with the time that each step takes. This file is long because each output of
//! the node has its arm here.

use std::mem;
use std::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::ls::{Emitted, PortId};
use ibarr_common::wire::sa::{Answer, Question as SaQuestion, Request};
use ibarr_proto::Fault;
use ibarr_proto::health::Cause;
use ibarr_proto::ip2gid::client::{self, Candidate, SocketEvent, SocketId, mirror};
use ibarr_proto::ip2gid::server::{Counter, Received, Silence};
use ibarr_proto::local_service::{self, Closed, Nudge, Nudged, Sender, Transmit};
use ibarr_proto::local_view::{self, Subject};
use ibarr_proto::node::{Input, Output, Room};
use ibarr_proto::request::{Outcome, UserRequest};
use ibarr_proto::requests::AddressRequest;
use ibarr_proto::responder::{Done, Kind, Mode, NotLoaded, Order};
use ibarr_proto::shares::User;
use ibarr_proto::turn::{self, Handled, Io, Limits, Read};
use ibarr_proto::{acm, node, paths, responder, sa};

use super::addresses::Packet;
use super::kernel_socket::{Message, ToDaemon};
use super::monitor::Monitor;
use super::network::IPOIB;
use super::path_claims::PathClaims;
use super::process::{Daemon, Inbox};
use super::subnet::{PORT, name};
use super::troubles::Trouble;
use super::{What, World};
use crate::bugs::{Bug, Core};
use crate::dice::{ms, us};
use crate::kernel;
use crate::record::{Entry, Fate};

/// Datagrams that the socket to the daemon holds, normally and in a trouble.
const ROOM: usize = 4096;
const LITTLE_ROOM: usize = 3;

impl World {
    /// Starts a daemon, which inherits the sockets that are still open.
    pub(super) fn launch(&mut self, id: usize) {
        let config = self.config(id);
        let paths = config.paths;
        let core = Core::new(self.now, config, self.dice.seed_core(), self.bug);
        let machine = &mut self.machines[id];
        machine.life += 1;
        machine.network.listener_starts();
        let paths = PathClaims::new(&paths);
        let monitor = Monitor::new(self.now, self.weather.config.paths.sa.patience);
        let mut daemon = Daemon::new(core, paths, monitor);
        daemon.inbox.extend(machine.kept.take().into_iter().flatten().map(Inbox::Query));
        machine.daemon = Some(Box::new(daemon));
        machine.kernel_socket.open();
        machine.kernel.handle_input(self.now, kernel::Input::Listener(true));
        self.port_changes(id);
        self.settle_kernel(id);
        self.wake(id);
    }

    /// Ends the daemon and its sockets; with `keeps_socket`, those to the kernel and to peers stay open.
    pub(super) fn kill(&mut self, id: usize, keeps_socket: bool) {
        let Some(daemon) = self.machines[id].daemon.take() else { return };
        self.claims.daemon_ends(self.now, id, &daemon);
        self.no_application_is_forgotten(id, &daemon);
        let machine = &mut self.machines[id];
        machine.life += 1;
        machine.kept = keeps_socket.then(Vec::new);
        if !keeps_socket {
            machine.kernel_socket.close();
            machine.kernel.handle_input(self.now, kernel::Input::Listener(false));
            self.settle_kernel(id);
        }
    }

    /// Schedules a turn of the daemon.
    pub(super) fn wake(&mut self, id: usize) {
        let machine = &mut self.machines[id];
        let Some(daemon) = &mut machine.daemon else { return };
        if daemon.schedule.wakes() {
            return;
        }
        let after = machine.pace.draw(self.now, &mut self.dice);
        let at = (self.now + after).max(machine.troubles.until(Trouble::Stalled));
        daemon.schedule.wake(at);
        self.at(at, What::Turn(id));
    }

    /// Queues an input for the daemon.
    pub(super) fn put(&mut self, id: usize, item: Inbox) {
        if let Some(daemon) = &mut self.machines[id].daemon {
            daemon.inbox.push_back(item);
            self.wake(id);
        }
    }

    pub(super) fn turn(&mut self, id: usize, at: Instant) {
        let Some(mut daemon) = self.machines[id].daemon.take() else { return };
        let is_due = daemon.schedule.take_due(at);
        if is_due {
            self.take_turn(id, &mut daemon);
        }
        if is_due {
            let at = daemon.core.poll_timeout().map(|at| at.max(self.now));
            daemon.schedule.set_timer(at.map(|at| at + self.machines[id].pace.turn()));
        }
        let timer = daemon.schedule.arm();
        let has_more = self.is_ready(id, &daemon) || !daemon.inbox.is_empty();
        self.machines[id].daemon = Some(daemon);
        if let Some(at) = timer {
            self.at(at, What::Turn(id));
        }
        if is_due && has_more {
            self.wake(id);
        }
    }

    /// Whether the socket to the kernel is readable or, if an answer waits for room, writable.
    fn is_ready(&self, id: usize, daemon: &Daemon) -> bool {
        let machine = &self.machines[id];
        match daemon.unsent {
            Some(_) => !machine.troubles.has(self.now, Trouble::Clogged),
            None => machine.kernel_socket.is_readable(),
        }
    }

    fn take_turn(&mut self, id: usize, daemon: &mut Daemon) {
        self.claims.counts.turns += 1;
        // The loop may poll its channels just before the kernel sends a request.
        let first = if self.is_ready(id, daemon) && self.dice.coin() {
            Task::Kernel
        } else {
            daemon.inbox.pop_front().map_or(Task::Nothing, Task::Item)
        };
        let (now, mut limits) = (self.now, limits(id));
        if self.bug == Some(Bug::EndlessRead) {
            limits.messages = usize::MAX;
        }
        let mut turn = Turn {
            world: self,
            id,
            daemon,
            inputs: 0,
            read: 0,
            messages: 0,
            has_drained: false,
            has_nudged: false,
            undrained: false,
            is_dealing: false,
            is_reading: false,
        };
        let is_due = turn.daemon.core.poll_timeout().is_some_and(|due| due <= now);
        let asks_on = turn::take(&mut turn, limits, now, first, is_due);
        let is_due =
            |turn: &mut Turn<'_>| turn.daemon.core.poll_timeout().is_some_and(|due| due <= now);
        // What is carried out may make something due; in a crowd, again and again.
        let is_calm = turn.has_drained && !turn.world.plan.crowds;
        if is_calm && is_due(&mut turn) {
            turn::drain(&mut turn, now);
        }
        let is_due = is_due(&mut turn);
        let claim = if turn.undrained {
            "a turn ends before all outputs of the cores are executed"
        } else if turn.inputs > limits.inputs {
            "a turn takes too many inputs"
        } else if asks_on != (turn.messages == limits.messages) && !turn.daemon.is_ending {
            "a turn does not say whether the kernel may ask on"
        } else if is_due && is_calm {
            "what is due stays so"
        } else if is_due && !turn.has_drained && turn.read > 0 {
            "a request makes something due at once"
        } else {
            return;
        };
        self.claims.breaks(now, [Some(id), None], claim.to_owned());
    }

    fn take(&mut self, id: usize, daemon: &mut Daemon, item: &Inbox) {
        let now = self.now;
        let input = match item {
            Inbox::Opened => {
                daemon.kernel.starts();
                let opened = local_service::Input::Opened { port_id: PORT_ID, is_member: true };
                Input::LocalService(opened)
            }
            Inbox::View(input) => {
                daemon.core.handle_input(now, Input::View(*input));
                for packet in mem::take(&mut daemon.unjudged) {
                    self.answer(id, daemon, &packet);
                }
                return;
            }
            &Inbox::Route(candidate, route) => {
                Input::Client(client::Input::Route { candidate, route })
            }
            Inbox::Refused(query) => return self.hear_refusal(id, daemon, query),
            Inbox::Reply { socket, packet } => {
                return self.receive_reply(id, daemon, *socket, packet);
            }
            Inbox::Nudged(nudged) => Input::LocalService(local_service::Input::Nudged(*nudged)),
            Inbox::MapsOpened => {
                daemon.has_maps = true;
                daemon.core.handle_input(now, responder::Input::Opened);
                let opened = mirror::Input::Opened(&self.machines[id].learned);
                return daemon.core.handle_input(now, opened);
            }
            Inbox::MapRead => {
                let read = mirror::Input::Read(&self.machines[id].learned);
                return daemon.core.handle_input(now, read);
            }
            Inbox::Executed(done) => {
                let done = responder::Input::Done(done.clone());
                return daemon.core.handle_input(now, done);
            }
            Inbox::Stop => {
                daemon.core.handle_input(now, Input::Acm(acm::Input::Stop));
                daemon.core.handle_input(now, Input::LocalService(local_service::Input::Stop));
                let node = daemon.core.node();
                let waiting = (node.acm().load().1, node.local_service().load().waiting);
                if waiting != (0, 0) {
                    let text =
                        format!("{waiting:?} clients and callers wait for a daemon that ends");
                    self.claims.breaks(now, [Some(id), None], text);
                }
                return;
            }
            Inbox::Ask(question) => {
                self.application_asks(id, daemon, *question);
                let (id, deadline) = daemon.asked.ask(now, question.target());
                Input::Resolve(AddressRequest::of_user(id, User(0), *question, deadline))
            }
            Inbox::Misbehave => return self.applications_misbehave(id, daemon),
            Inbox::Named(name, found) => return self.name_is_known(daemon, *name, found),
            Inbox::Crowd(until) => return self.user_asks(id, daemon, *until),
            Inbox::Reload => {
                // The new configuration differs from the old one.
                let mut config = self.config(id);
                if self.dice.coin() {
                    config.client = self.weather.short_lived.clone();
                }
                return daemon.core.reconfigure(now, config);
            }
            Inbox::Flush => return daemon.core.flush(),
            Inbox::Query(packet) => return self.answer(id, daemon, packet),
            Inbox::Port(facts) => {
                // A port without an SA may go, too.
                if daemon.paths.port_changed(now, facts.as_ref()) || facts.is_none() {
                    daemon.monitor.forgets_sa(facts.is_some());
                }
                let port = PORT;
                Input::Paths(match facts.clone() {
                    Some(facts) => paths::Input::Port { port, name: name(), facts },
                    None => paths::Input::PortGone { port },
                })
            }
            Inbox::Mad(from, asked, answer) => return daemon.hear_mad(now, *from, asked, answer),
        };
        daemon.core.handle_input(now, input);
    }

    fn answer(&mut self, id: usize, daemon: &mut Daemon, packet: &Packet) {
        let (to, payload) = (packet.to.ip(), packet.payload.as_ref());
        let received = Received { from: packet.from, to, ingress: IPOIB, is_local: false, payload };
        match daemon.core.answer(&received) {
            Ok(reply) => self.reply(id, reply.from, reply.to, reply.payload, None),
            Err(Silence::Counted(Counter::DestinationNotOurs)) => self.check_silence(id, to),
            Err(Silence::Counted(_)) => {}
            Err(Silence::NotYet) => daemon.unjudged.push(*packet),
        }
    }

    fn hear_refusal(&mut self, id: usize, daemon: &mut Daemon, query: &Packet) {
        let Some(socket) = daemon.sockets.at(query.from.port()) else { return };
        let before = daemon.counted(client::Counter::Refusals);
        let input = client::Input::Refused { socket, to: query.to, quoted: query.payload.as_ref() };
        daemon.core.handle_input(self.now, Input::Client(input));
        if daemon.counted(client::Counter::Refusals) > before {
            self.claims.words.refused(self.now, id, query.to.ip());
        }
    }

    fn receive_reply(&mut self, id: usize, daemon: &mut Daemon, socket: SocketId, packet: &Packet) {
        let before = daemon.counted(client::Counter::Replies);
        let Packet { from, payload, .. } = *packet;
        let input =
            client::Input::Datagram { socket, from, ingress: IPOIB, payload: payload.as_ref() };
        daemon.core.handle_input(self.now, Input::Client(input));
        if daemon.counted(client::Counter::Replies) > before {
            self.word_is_taken(id, &payload);
        }
    }

    fn carry_out(&mut self, id: usize, daemon: &mut Daemon, output: Output) {
        let (now, life) = (self.now, self.machines[id].life);
        match output {
            Output::View(local_view::Request::Leave(_)) => {
                self.machines[id].network.tell_neighbours(false);
            }
            Output::View(local_view::Request::Links) => {
                let at = self.machines[id].network.last_delivery().max(now + us(10));
                self.at(at, What::ListLinks(id, life));
            }
            Output::View(local_view::Request::Dump(subject)) => {
                let network = &mut self.machines[id].network;
                let at = network.last_delivery().max(now + us(10));
                let (started, what) = match subject {
                    Subject::Node => return self.at(at, What::DumpStarts(id, life)),
                    Subject::Routes => {
                        (local_view::Input::RoutesStarted, What::DumpRoutes(id, life))
                    }
                    Subject::Neighbours => {
                        network.tell_neighbours(true);
                        (local_view::Input::NeighboursStarted, What::DumpNeighbours(id, life))
                    }
                };
                daemon.core.handle_input(now, Input::View(started));
                self.at(at, what);
            }
            Output::Changed(_) | Output::Responder(responder::Output::Event(_)) => {}
            Output::Responder(responder::Output::Map(update)) => {
                let Some(programs) = &mut self.machines[id].programs else { return };
                let done = responder::Input::MapDone(programs.at(now).update(&update));
                daemon.core.handle_input(now, done);
            }
            Output::Responder(responder::Output::Keys) => {
                let Some(programs) = &self.machines[id].programs else { return };
                daemon.core.handle_input(now, responder::Input::Keys(Ok(programs.held())));
            }
            Output::Responder(responder::Output::Close) => daemon.has_maps = false,
            Output::Mirror(output) => self.mirror(id, daemon, output),
            Output::Responder(responder::Output::Program(order)) => {
                let most = if order == Order::Open { ms(50) } else { ms(5) };
                let at = now + self.dice.within(us(100)..most);
                self.at(at, What::Executed(id, life));
                if daemon.order.replace(order).is_some() {
                    let text = "the thread gets an order before it has executed the last";
                    self.claims.breaks(now, [Some(id), None], text.to_owned());
                }
            }
            Output::Acm(output) => self.serve_application(id, daemon, output),
            Output::Answered { id: request, outcome } => {
                self.told(id, daemon, request, outcome);
            }
            Output::PathAnswered { id: request, outcome } => {
                self.user_path_told(id, daemon, request, &outcome);
            }
            Output::Sa(transmit) => self.ask_administrator(id, daemon, &transmit),
            Output::Client(client::Output::Socket(SocketEvent::Open(socket))) => {
                let fails = self.machines[id].troubles.has(now, Trouble::NoSockets);
                let input = if fails {
                    client::Input::SocketFailed { socket }
                } else {
                    daemon.sockets.open(&mut self.dice, socket);
                    client::Input::SocketOpened { socket }
                };
                daemon.core.handle_input(now, Input::Client(input));
            }
            Output::Client(client::Output::Socket(SocketEvent::Close(socket))) => {
                daemon.sockets.close(socket);
            }
            Output::Client(client::Output::Route(candidate)) => {
                let at = now + self.dice.within(us(10)..us(80));
                self.at(at, What::Route(id, life, candidate));
            }
            // No interface of the simulation has neighbour entries with a GID.
            Output::Client(client::Output::Neighbour(question, _)) => {
                let input = client::Input::Neighbour { question, gid: None };
                daemon.core.handle_input(now, Input::Client(input));
            }
            Output::Client(client::Output::Query(transmit)) => self.query(id, daemon, &transmit),
            Output::LocalService(Transmit::Message(message)) => {
                self.tell_kernel(id, daemon, &message);
            }
            Output::LocalService(Transmit::Open | Transmit::Join) => {
                unreachable!("every daemon is in the group, and its socket is made again at once")
            }
            Output::LocalService(Transmit::Leave(_)) => self.leaves(id, daemon),
            Output::LocalService(Transmit::Nudge(nudge)) => {
                self.claims.nudges(now, id, daemon);
                let most = if self.dice.once_in(16) { ms(5) } else { us(120) };
                let at = now + self.dice.within(us(20)..most);
                self.at(at, What::Nudge(id, life, nudge, daemon.kernel.read()));
            }
        }
    }

    /// A message that the kernel seems to have refused makes the daemon close its socket. It is open again at once,
    /// as for a daemon that is started then.
    fn leaves(&mut self, id: usize, daemon: &mut Daemon) {
        let now = self.now;
        let closed = local_service::Input::Closed(Closed::Refused);
        daemon.core.handle_input(now, Input::LocalService(closed));
        let load = daemon.core.node().local_service().load();
        if load != local_service::Load::default() {
            let text = format!("without a socket, requests are held: {load:?}");
            self.claims.breaks(now, [Some(id), None], text);
        }
        (daemon.unsent, daemon.was_refused) = (None, true);
        daemon.paths.closed();
        let machine = &mut self.machines[id];
        for is_there in [false, true] {
            machine.kernel.handle_input(now, kernel::Input::Listener(is_there));
        }
        machine.kernel_socket.close();
        machine.kernel_socket.open();
        machine.troubles.disturb(now);
        self.settle_kernel(id);
        // The driver says so before it reads the socket.
        self.take(id, daemon, &Inbox::Opened);
    }

    fn told(&mut self, id: usize, daemon: &mut Daemon, request: UserRequest, outcome: Outcome) {
        if self.user_told(id, daemon, request, &outcome) {
            return;
        }
        let Some((target, deadline)) = daemon.asked.end(request) else {
            return self.claims.breaks(
                self.now,
                [Some(id), None],
                format!("{request:?} is answered but not pending"),
            );
        };
        let text = match outcome {
            Outcome::Found { gid, .. } => {
                self.check_age(id, target, gid, self.now);
                "found"
            }
            Outcome::NotFound => "not found",
            Outcome::TimedOut => "timed out",
            Outcome::Refused => "refused",
            Outcome::Unreachable => "unreachable",
            Outcome::Overloaded => "overloaded",
        };
        self.note(id, &Entry::Told { target, outcome: text });
        if outcome == Outcome::Overloaded {
            let text = format!("a user with few requests is refused {target}");
            self.claims.breaks(self.now, [Some(id), None], text);
        }
        // A daemon that does not run cannot answer.
        let late = self.now.since(deadline.max(self.machines[id].troubles.end()));
        if late > ms(100) {
            let text = format!("a user gets the answer for {target} {late:?} late");
            self.claims.breaks(self.now, [Some(id), None], text);
        }
    }

    fn query(&mut self, id: usize, daemon: &Daemon, transmit: &client::Transmit) {
        let Some(port) = daemon.sockets.port(transmit.socket) else {
            let text = format!("a query leaves from {}, which is not open", transmit.socket);
            return self.claims.breaks(self.now, [Some(id), None], text);
        };
        let from = (self.machines[id].source(transmit.to.ip()), port).into();
        self.claims.counts.queries += 1;
        self.claims.words.queried(self.now, id, &transmit.payload);
        self.send(id, Packet { from, to: transmit.to, payload: transmit.payload });
    }

    fn tell_kernel(&mut self, id: usize, daemon: &mut Daemon, message: &Emitted) {
        let machine = &mut self.machines[id];
        if machine.troubles.has(self.now, Trouble::Clogged) {
            daemon.unsent = Some(*message);
            let at = machine.troubles.until(Trouble::Clogged);
            return self.at(at, What::Looks(id));
        }
        let bytes = message.as_ref();
        self.note(id, &Entry::Daemon { bytes });
        self.check_message(id, daemon, bytes);
        self.machines[id].kernel.handle_input(self.now, kernel::Input::Datagram(bytes));
        self.settle_kernel(id);
    }

    /// The configuration of a machine. A machine whose kernel runs no programs wants none.
    fn config(&self, id: usize) -> node::Config {
        let mut config = self.weather.config.clone();
        if self.machines[id].programs.is_none() {
            config.responder.mode = Mode::User;
        }
        config
    }

    fn mirror(&mut self, id: usize, daemon: &mut Daemon, output: mirror::Output) {
        let machine = &mut self.machines[id];
        let fails = machine.programs.as_ref().is_some_and(|programs| programs.fails(self.now));
        match output {
            _ if !daemon.has_maps => daemon.core.handle_input(self.now, mirror::Input::Closed),
            _ if fails => daemon.core.handle_input(self.now, mirror::Input::Failed),
            mirror::Output::Put(element) => {
                machine.learned.retain(|held| held.key != element.key);
                machine.learned.push(element);
            }
            mirror::Output::Remove(key) => machine.learned.retain(|held| held.key != key),
            mirror::Output::Read => self.put(id, Inbox::MapRead),
        }
    }

    /// At the end of a turn, programs that answer know all that the view says.
    fn check_maps(&mut self, id: usize, daemon: &Daemon) {
        let node = daemon.core.node();
        let is_leased = daemon.has_maps && node.responder().lease_end() > self.now;
        if let Some(programs) = &self.machines[id].programs
            && is_leased
            && !programs.has(node.view())
        {
            let text = "a turn ends, and a program may answer from an old map".to_owned();
            self.claims.breaks(self.now, [Some(id), None], text);
        }
    }

    /// The thread that loads and attaches programs executes its order.
    pub(super) fn execute(&mut self, id: usize, life: u32) {
        let machine = &mut self.machines[id];
        let daemon = machine.daemon.as_mut().filter(|_| machine.life == life);
        let Some(order) = daemon.and_then(|daemon| daemon.order.take()) else { return };
        let done = match (order, &mut machine.programs) {
            (Order::Open, Some(programs)) if programs.fails(self.now) => {
                let fault = Fault::new("pins of another daemon");
                Done::Opened(Err(NotLoaded { fault, kind: Kind::Taken }))
            }
            (Order::Open, _) => {
                self.put(id, Inbox::MapsOpened);
                Done::Opened(Ok(None))
            }
            (Order::Arrange(work), Some(programs)) => {
                Done::Arranged(programs.at(self.now).arrange(work))
            }
            (Order::Arrange(_), None) => unreachable!("no maps, no lease, no work"),
            (Order::Close, _) => Done::Closed,
            (Order::Report(_), _) => Done::Reporting(Ok(())),
        };
        self.put(id, Inbox::Executed(done));
    }

    pub(super) fn route_said(&mut self, id: usize, life: u32, candidate: Candidate) {
        if self.machines[id].life == life {
            let route = self.machines[id].route(candidate);
            self.put(id, Inbox::Route(candidate, route));
        }
    }

    /// The nudging thread runs now; `read` is the number of datagrams read from the socket when the
    /// nudge was ordered.
    pub(super) fn nudge_done(&mut self, id: usize, life: u32, nudge: Nudge, read: u64) {
        let machine = &mut self.machines[id];
        let daemon = machine.daemon.as_mut().filter(|_| machine.life == life);
        let is_asking = daemon.as_ref().is_some_and(|daemon| {
            machine.kernel_socket.is_readable() || daemon.kernel.read() > read
        });
        let nudged = if nudge == Nudge::IfQuiet && is_asking {
            Nudged::Postponed
        } else if machine.troubles.has(self.now, Trouble::NudgesFail) {
            Nudged::Failed
        } else {
            Nudged::Done
        };
        if let Some(daemon) = daemon {
            daemon.kernel.nudges(nudged);
            if nudged != Nudged::Postponed {
                daemon.monitor.nudges(nudged);
            }
        }
        if nudged == Nudged::Done {
            self.note(id, &Entry::Neighbour { by_us: true });
            self.neighbour(id, DOCUMENTATION);
        }
        if self.machines[id].life == life {
            self.put(id, Inbox::Nudged(nudged));
        }
    }

    pub(super) fn neighbour(&mut self, id: usize, address: IpAddr) {
        let machine = &mut self.machines[id];
        if machine.daemon.is_none() {
            machine.troubles.neighbour_changes();
        }
        let input = kernel::Input::Neighbour(address);
        self.draw_window(id);
        self.machines[id].kernel.handle_input(self.now, input);
        self.settle_kernel(id);
    }

    /// Draws the time until the kernel can accept the answer to its next request. It is rarely
    /// long; never where there are no nudges, because then each answer is sent only twice.
    pub(super) fn draw_window(&mut self, id: usize) {
        let window = if self.machines[id].pace.is_eager() {
            us(400)..us(500)
        } else if self.weather.config.local_service.nudge && self.dice.once_in(100) {
            us(20)..ms(5)
        } else {
            us(2)..us(20)
        };
        let window = self.dice.within(window);
        self.machines[id].kernel.set_window(window);
    }

    pub(super) fn kernel_timeout(&mut self, id: usize, at: Instant) {
        let machine = &mut self.machines[id];
        if machine.kernel_alarm.rings(at) {
            machine.kernel.handle_timeout(self.now);
            self.settle_kernel(id);
        }
    }

    /// Executes the outputs of the kernel.
    pub(super) fn settle_kernel(&mut self, id: usize) {
        loop {
            if let Some(transmit) = self.machines[id].kernel.poll_transmit() {
                self.ask_daemon(id, &transmit);
            } else if let Some(event) = self.machines[id].kernel.poll_event() {
                self.note(id, &Entry::Ended(&event));
                match event {
                    kernel::Event::Ip(seq, outcome) => self.call_ends(id, seq, outcome),
                    kernel::Event::Path(seq, outcome) => self.path_outcome(id, seq, &outcome),
                    kernel::Event::AnswerLost(_) => self.claims.counts.answers_lost += 1,
                }
            } else {
                break;
            }
        }
        let machine = &mut self.machines[id];
        let next = machine.kernel.poll_timeout();
        if let Some(at) = machine.kernel_alarm.set(self.now, next) {
            self.at(at, What::Kernel(id));
        }
    }

    fn ask_daemon(&mut self, id: usize, transmit: &kernel::Transmit) {
        let machine = &mut self.machines[id];
        let is_squeezed = machine.troubles.has(self.now, Trouble::Squeezed);
        let room = if is_squeezed { LITTLE_ROOM } else { ROOM };
        let bytes = transmit.bytes.clone();
        let datagram = ToDaemon { at: self.now, bytes, from_kernel: true, cut: false };
        let fits = machine.kernel_socket.take(datagram, room);
        if !fits {
            machine.troubles.disturb(self.now);
            machine.kernel.not_delivered(transmit);
            self.may_notice(id, Cause::RequestsLost, self.now);
            self.claims.counts.overruns += 1;
        }
        let fate = if fits { Fate::Arrives } else { Fate::Lost };
        self.note(id, &Entry::Kernel { bytes: &transmit.bytes, fate });
        self.wake(id);
    }
}

/// The I/O of one turn of a daemon.
#[expect(clippy::struct_excessive_bools, reason = "each is what one claim has to know")]
struct Turn<'a> {
    world: &'a mut World,
    id: usize,
    daemon: &'a mut Daemon,
    /// Inputs after the first one, attempts to read a message of the kernel, and messages so far.
    inputs: usize,
    read: usize,
    messages: usize,
    /// The cores have done what is due.
    has_drained: bool,
    /// The kernel has been nudged since the last input.
    has_nudged: bool,
    /// A core got an input, and its outputs may not have been taken yet.
    undrained: bool,
    /// The last message of the kernel may not have been handled yet.
    is_dealing: bool,
    is_reading: bool,
}

/// Every other node has limits so small that it reaches them.
fn limits(id: usize) -> Limits {
    let limits = Limits::default();
    if id.is_multiple_of(2) { limits } else { Limits { inputs: 2, messages: 2, ..limits } }
}

/// An entry of the turn's queue.
#[expect(clippy::large_enum_variant, reason = "it is handled at once, and not kept")]
enum Task {
    Item(Inbox),
    /// The socket to the kernel is readable or writable.
    Kernel,
    Nothing,
}

impl Io<Task> for Turn<'_> {
    fn next_input(&mut self) -> Option<Task> {
        let item = self.daemon.inbox.pop_front()?;
        self.inputs += 1;
        Some(Task::Item(item))
    }

    fn handle(&mut self, now: Instant, task: Task) -> Handled {
        let id = self.id;
        match task {
            Task::Nothing => {}
            Task::Item(item @ Inbox::Query(_)) => {
                self.world.take(id, self.daemon, &item);
                return Handled::Unchanged;
            }
            Task::Item(item) => {
                if let Inbox::Stop = item {
                    self.daemon.is_ending = true;
                    turn::read_to_end(self, limits(id), now);
                }
                self.world.take(id, self.daemon, &item);
            }
            Task::Kernel => match self.daemon.unsent.take() {
                Some(message) => self.world.tell_kernel(id, self.daemon, &message),
                None => return Handled::KernelAsks,
            },
        }
        self.undrained = true;
        Handled::Changed
    }

    fn read_kernel(&mut self, now: Instant) -> Read {
        (self.undrained, self.has_nudged) = (true, false);
        if mem::replace(&mut self.is_dealing, true) {
            let text = "a request is read before the previous one is handled".to_owned();
            self.world.claims.breaks(now, [Some(self.id), None], text);
        }
        self.read += 1;
        if self.read > limits(self.id).messages && !self.daemon.is_ending {
            let text = format!("a turn reads {} messages of the kernel", self.read);
            self.world.claims.breaks(now, [Some(self.id), None], text);
        }
        self.is_reading = true;
        let message = self.world.machines[self.id].kernel_socket.read();
        let input = match &message {
            Some(Message::Datagram(ToDaemon { at, bytes, from_kernel, cut })) => {
                self.daemon.kernel.reads(now, bytes, *from_kernel);
                if *from_kernel {
                    self.daemon.paths.requested(now, *at, bytes);
                }
                let sender = if *from_kernel { Sender::Kernel } else { Sender::Other };
                local_service::Input::Datagram { sender, bytes, cut: *cut }
            }
            Some(Message::Overrun) => {
                self.daemon.kernel.overrun(now);
                local_service::Input::Overrun
            }
            None => {
                (self.is_reading, self.is_dealing) = (false, false);
                local_service::Input::Drained
            }
        };
        self.daemon.core.handle_input(now, Input::LocalService(input));
        self.messages += usize::from(message.is_some());
        if message.is_some() { Read::Message } else { Read::Nothing }
    }

    fn handle_timeout(&mut self, now: Instant) {
        (self.is_reading, self.has_drained, self.has_nudged) = (false, true, false);
        self.daemon.core.handle_timeout(now);
    }

    fn poll(&mut self, now: Instant) -> Option<Output> {
        let turns = self.world.claims.counts.turns;
        match self.world.bug {
            Some(Bug::LateDrain) if self.is_reading && turns > 32_768 => return None,
            Some(Bug::ForgottenDrain) if !self.is_reading && turns.is_multiple_of(32_768) => {
                return None;
            }
            _ => {}
        }
        let room = Room { local_service: self.daemon.unsent.is_none() };
        let output = self.daemon.core.poll(now, room);
        self.undrained = output.is_some();
        self.is_dealing &= self.undrained;
        output
    }

    fn carry_out(&mut self, now: Instant, output: Output) {
        let (is_answer, is_nudge) = match &output {
            Output::LocalService(Transmit::Message(_)) => (true, false),
            Output::LocalService(Transmit::Nudge(_)) => (false, true),
            _ => (false, false),
        };
        if is_answer && self.has_nudged {
            let text = "a nudge comes before an answer that waits".to_owned();
            self.world.claims.breaks(now, [Some(self.id), None], text);
        }
        self.has_nudged |= is_nudge;
        self.world.carry_out(self.id, self.daemon, output);
    }

    fn settle(&mut self, now: Instant) {
        let Self { world, id, daemon, .. } = self;
        if daemon.is_ending && daemon.is_idle() {
            let life = world.machines[*id].life;
            world.at(now, What::Ends(*id, life));
        }
        world.check_applications(*id, daemon);
        world.check_maps(*id, daemon);
        world.assess(*id, daemon);
        world.check_bounds(*id, daemon);
    }
}

/// The address of the daemon's nudges.
const DOCUMENTATION: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7));

const PORT_ID: PortId = PortId(180);

impl Daemon {
    fn counted(&self, counter: client::Counter) -> u64 {
        self.core.node().client().counters().get(counter)
    }

    fn hear_mad(&mut self, now: Instant, from: Lid, request: &Request, answer: &Answer) {
        let taken = |daemon: &Self| {
            let counters = daemon.core.node().paths().client().counters();
            let taken = [sa::Counter::Answered, sa::Counter::NoRecord];
            taken.map(|counter| counters.get(counter)).iter().sum::<u64>()
        };
        let (before, unasked) = (taken(self), self.unasked());
        let mad = request.answer(*answer).emit();
        let input = paths::Input::Mad { port: PORT, from: Some(from), mad: mad.as_ref() };
        self.core.handle_input(now, Input::Paths(input));
        self.hears(now, from, answer, unasked);
        if let SaQuestion::Path(question) = &request.question {
            let is_taken = taken(self) > before;
            self.paths.received(now, question, answer, is_taken);
        }
    }
}
