// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Serves the clients of ACM.

use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use ibarr_common::Instant;
use ibarr_common::wire::acm::MAX_REQUEST_LEN;
use ibarr_proto::acm::{ClientId, Input, Output, Transmit};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::node;
use ibarr_proto::shares::User;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::Engine;
use super::acm_sockets::{AcmSockets, Served};
use crate::process::Until;
use crate::sys::last_reply::LastReply;
use crate::sys::peer;
use crate::transport::Counter;
use crate::transport::acm::{self, Clients, Event, Inherited, Sent, Sources};
use crate::transport::names::Named;
use crate::transport::rtnetlink::{Answer, RouteAnswer, Routes};

/// The clients, and the sockets where they connect.
pub(super) struct Acm {
    clients: Clients,
    /// The file of the last reply, until systemd has it.
    last_reply: Option<OwnedFd>,
    /// Connections of the last daemon, until they are in use.
    inherited: Vec<OwnedFd>,
    pub(super) sockets: AcmSockets,
    pub(super) sources: Sources,
    /// Apart from those of [`Queries`](super::queries::Queries): no number of clients delays a query to a peer.
    routes: Routes,
}

impl Acm {
    /// # Errors
    /// If there is no thread, or no memory.
    pub(super) fn start(
        inherited: Inherited,
        events: mpsc::Sender<Event>,
        ready: mpsc::UnboundedSender<ClientId>,
        routes: Routes,
    ) -> io::Result<(Self, mpsc::Receiver<Served>)> {
        let Inherited { listeners, clients: inherited, last } = inherited;
        let (last, last_reply) = match last {
            Some(last) => (last, None),
            None => match LastReply::create() {
                Ok((last, file)) => (last, Some(file)),
                Err(error) => {
                    warn!(%error, "acm: a client may lose its answer if the daemon is killed");
                    (LastReply::alone()?, None)
                }
            },
        };
        let (sockets, served) = AcmSockets::start(listeners, events.clone())?;
        let (clients, sources) = (Clients::new(events, ready, last), Sources::default());
        Ok((Self { clients, last_reply, inherited, sockets, sources, routes }, served))
    }
}

impl Engine {
    /// Continues with the connections of the last daemon.
    pub(super) fn start_acm(&mut self, now: Instant) {
        for fd in mem::take(&mut self.acm.inherited) {
            if self.acm.clients.settle(&fd) {
                // The engine serves no client yet, so this may block.
                let user = peer::user(fd.as_fd());
                self.admit(now, fd, user);
            }
        }
        self.acm.sockets.serve(&self.config.acm);
    }

    fn admit(&mut self, now: Instant, stream: OwnedFd, user: User) -> Option<ClientId> {
        let client = self.acm.clients.admit(stream, user).ok()?;
        self.tell_acm(now, Input::Connected { client, user });
        Some(client)
    }

    pub(super) fn handle_acm_served(&mut self, served: Served) {
        if served.made_again {
            self.control.counters.count(Counter::FileMadeAgain);
        }
        self.acm.sockets.handle_served(served, &self.config.acm);
    }

    pub(super) fn handle_acm(&mut self, now: Instant, event: Event) {
        match event {
            Event::Connected(stream, _) if self.ends_at.is_some() && self.systemd.is_there() => {
                self.systemd.keep(acm::CLIENT, stream, Until::HangUp);
            }
            Event::Connected(stream, user) => {
                if let Some(client) = self.admit(now, stream, user)
                    && let Some(copy) = self.acm.clients.copy(client)
                {
                    // Before the first client that may get a reply.
                    if let Some(file) = self.acm.last_reply.take() {
                        self.systemd.keep(acm::LAST_REPLY, file, Until::Stop);
                    }
                    self.systemd.keep(acm::CLIENT, copy, Until::HangUp);
                }
            }
            Event::Ready(client) => {
                match self.acm.clients.next(client, &mut [0; MAX_REQUEST_LEN]) {
                    Sent::Nothing => {}
                    Sent::Part => self.tell_acm(now, Input::Part { client }),
                    Sent::Message(bytes) => self.tell_acm(now, Input::Message { client, bytes }),
                    Sent::Gone => {
                        self.acm.clients.close(client);
                        self.tell_acm(now, Input::Gone { client });
                    }
                }
            }
            Event::Taken(client) => self.acm.clients.taken(client),
            Event::NotTaken(client) => self.acm_has_no_room(now, client),
        }
    }

    pub(super) fn answer_acm(&mut self, now: Instant, output: Output) {
        match output {
            Output::Route { id, target } => {
                if let source @ Some(_) = self.acm.sources.to(now, target) {
                    self.tell_acm(now, Input::Source { lookup: id, source });
                } else if self.acm.sources.wait(target, id)
                    && !Question::new(target, None)
                        .is_some_and(|it| self.acm.routes.route(it.into()))
                {
                    self.tell_source(now, target, None);
                }
            }
            Output::LookUp(name) => {
                if let Err(error) = self.names.ask(name) {
                    warn!(%error, "cannot start a thread for the system's resolver");
                    self.tell_acm(now, Input::Addresses { name, addresses: &[] });
                }
            }
            Output::Reply(Transmit { client, bytes }) => {
                if !self.acm.clients.reply(client, &bytes) {
                    self.acm_has_no_room(now, client);
                }
            }
            Output::Close(client) => self.acm.clients.close(client),
        }
    }

    pub(super) fn handle_source(&mut self, now: Instant, answer: &Answer) {
        if let Answer::Route(RouteAnswer { candidate, source, .. }) = answer {
            self.tell_source(now, candidate.question.target(), *source);
        }
    }

    fn tell_source(&mut self, now: Instant, target: IpAddr, source: Option<IpAddr>) {
        for lookup in self.acm.sources.answered(now, target, source) {
            self.tell_acm(now, Input::Source { lookup, source });
        }
    }

    pub(super) fn handle_named(&mut self, now: Instant, named: &Named) {
        let Named { name, addresses } = named;
        self.tell_acm(now, Input::Addresses { name: *name, addresses });
    }

    /// A client does not read its replies.
    fn acm_has_no_room(&mut self, now: Instant, client: ClientId) {
        debug!(?client, "a client of ACM does not take its reply");
        self.acm.clients.close(client);
        self.tell_acm(now, Input::NotTaken { client });
    }

    /// Leaves the clients to the next daemon. Without systemd, which keeps their connections, none comes in time: those
    /// that wait are told so, rather than that their connection has ended.
    pub(super) fn stop_acm(&mut self, now: Instant) {
        self.acm.sockets.close();
        if self.systemd.is_there() {
            self.acm.clients.leave();
        } else {
            self.tell_acm(now, Input::Stop);
        }
    }

    fn tell_acm(&mut self, now: Instant, input: Input<'_>) {
        self.node.handle_input(now, node::Input::Acm(input));
    }
}
