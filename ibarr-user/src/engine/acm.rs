// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Serves the clients of ACM.

use std::io;
use std::mem;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ibarr_common::Instant;
use ibarr_common::wire::acm::MAX_REQUEST_LEN;
use ibarr_proto::acm::{ClientId, Input, Output, Transmit, YoungClients};
use ibarr_proto::node::{self, Node};
use ibarr_proto::shares::User;
use ibarr_proto::turn::Handled;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::acm_sockets::{AcmSockets, SocketState};
use super::preload::Preloads;
use crate::config;
use crate::process::{Systemd, Until};
use crate::sys::last_reply::LastReply;
use crate::sys::peer;
use crate::transport::acm::{self, Clients, Event, Inherited, Next, ReadResult, Ready};
use crate::transport::names::{Named, Names};
use crate::transport::rtnetlink::{Answer, RouteAnswer, Routes};

/// About so many clients are served in a turn, as many as other inputs are taken.
const MOST: usize = 64;

/// The clients, and the sockets where they connect.
pub(super) struct Acm {
    clients: Clients,
    /// What a look has found, empty between two turns.
    found: Vec<Next>,
    young: YoungClients,
    /// The file of the last reply, until systemd has it.
    last_reply: Option<OwnedFd>,
    /// Connections of the last daemon, until they are in use.
    inherited: Vec<OwnedFd>,
    pub(super) sockets: AcmSockets,
    names: Names,
    systemd: Systemd,
    pub(super) preloads: Preloads,
    /// Apart from those of [`Queries`](super::queries::Queries): no number of clients delays a query to a peer.
    routes: Routes,
}

impl Acm {
    /// # Errors
    /// If there is no thread, or no memory.
    pub(super) fn start(
        inherited: Inherited,
        events: mpsc::Sender<Event>,
        ready: Arc<Ready>,
        routes: Routes,
        names: Names,
        preloads: Preloads,
        systemd: Systemd,
    ) -> io::Result<(Self, mpsc::Receiver<SocketState>)> {
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
        let (sockets, served) = AcmSockets::start(listeners, Arc::clone(&ready), events.clone())?;
        let clients = Clients::new(events, ready, last);
        let found = Vec::new();
        let this = Self {
            clients,
            found,
            young: YoungClients::default(),
            last_reply,
            inherited,
            sockets,
            names,
            systemd,
            preloads,
            routes,
        };
        Ok((this, served))
    }

    /// Continues with the connections of the last daemon.
    pub(super) fn begin(&mut self, now: Instant, config: &config::Acm, node: &mut Node) {
        for fd in mem::take(&mut self.inherited) {
            if self.clients.settle(&fd) {
                // The engine serves no client yet, so this may block.
                let user = peer::user(fd.as_fd());
                self.admit(now, fd, user, true, node);
            }
        }
        self.sockets.serve(config);
    }

    fn admit(
        &mut self,
        now: Instant,
        stream: OwnedFd,
        user: User,
        is_shared: bool,
        node: &mut Node,
    ) -> Option<ClientId> {
        let client = self.clients.admit(stream, user, is_shared).ok()?;
        tell(node, now, Input::Connected { client, user });
        Some(client)
    }

    /// With `is_ending`, new clients are left to the next daemon.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        event: Event,
        node: &mut Node,
        is_ending: bool,
    ) -> Handled {
        match event {
            Event::Ready => return self.serve(now, node, is_ending),
            Event::Connected(stream, user) => self.connected(now, stream, user, node, is_ending),
            Event::Taken(client) => self.clients.taken(client),
            Event::NotTaken(client) => self.not_taken(now, client, node),
        }
        Handled::Asked
    }

    /// Serves those that are ready, as many as a turn has room for.
    fn serve(&mut self, now: Instant, node: &mut Node, is_ending: bool) -> Handled {
        let (mut served, mut found) = (0, mem::take(&mut self.found));
        let (mut is_more, mut buffer) = (true, [0; MAX_REQUEST_LEN]);
        while is_more && served < MOST {
            is_more = self.clients.look(&mut found);
            served += found.len().max(1);
            for next in found.drain(..) {
                match next {
                    Next::Connected(stream, user) => {
                        self.connected(now, stream, user, node, is_ending);
                    }
                    Next::Ready(client) => self.read(now, client, &mut buffer, node),
                }
            }
        }
        self.found = found;
        if is_more {
            self.clients.look_again();
            return Handled::Full;
        }
        Handled::Asked
    }

    fn connected(
        &mut self,
        now: Instant,
        stream: OwnedFd,
        user: User,
        node: &mut Node,
        is_ending: bool,
    ) {
        if is_ending && self.systemd.is_there() {
            self.keep(vec![stream]);
        } else if let Some(client) = self.admit(now, stream, user, false, node)
            && self.systemd.is_there()
        {
            self.young.connected(now, client);
        }
    }

    /// When to call [`Self::keep_old`] next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.young.poll_timeout()
    }

    /// Has systemd keep the connections that are old enough. Early calls do nothing.
    pub(super) fn keep_old(&mut self, now: Instant) {
        let old = self.young.take(now, Systemd::AT_ONCE);
        self.keep_copies(&old);
    }

    fn keep_copies(&mut self, clients: &[ClientId]) {
        let copies = clients.iter().filter_map(|client| self.clients.copy(*client)).collect();
        self.keep(copies);
    }

    fn keep(&mut self, connections: Vec<OwnedFd>) {
        if connections.is_empty() {
            return;
        }
        // Before the first connection of a client that may have a reply.
        if let Some(file) = self.last_reply.take() {
            self.systemd.keep(acm::LAST_REPLY, vec![file], Until::Stop);
        }
        self.systemd.keep(acm::CLIENT, connections, Until::HangUp);
    }

    fn read(
        &mut self,
        now: Instant,
        client: ClientId,
        buffer: &mut [u8; MAX_REQUEST_LEN],
        node: &mut Node,
    ) {
        match self.clients.next(client, buffer) {
            ReadResult::Nothing => {}
            ReadResult::Part => tell(node, now, Input::Part { client }),
            ReadResult::Message(bytes) => match node.answer_acm(now, client, bytes) {
                Some(reply) if self.clients.reply(client, reply) => {}
                Some(_) => self.not_taken(now, client, node),
                None => tell(node, now, Input::Message { client, bytes }),
            },
            ReadResult::Gone => {
                self.clients.close(client);
                tell(node, now, Input::Gone { client });
            }
        }
    }

    pub(super) fn carry_out(&mut self, now: Instant, output: Output, node: &mut Node) {
        match output {
            Output::Route(target) => {
                if !self.routes.route(target.into()) {
                    tell(node, now, Input::Source { target, source: None });
                }
            }
            Output::Resolve(name) => {
                if let Err(error) = self.names.ask(name) {
                    warn!(%error, "cannot start a thread for the system's resolver");
                    tell(node, now, Input::Addresses { name, addresses: &[] });
                }
            }
            Output::Reply(Transmit { client, bytes }) => {
                if !self.clients.reply(client, &bytes) {
                    self.not_taken(now, client, node);
                }
            }
            Output::Close(client) => self.clients.close(client),
        }
    }

    /// A client does not read its replies.
    fn not_taken(&mut self, now: Instant, client: ClientId, node: &mut Node) {
        debug!(?client, "a client of ACM does not take its reply");
        self.clients.close(client);
        tell(node, now, Input::NotTaken { client });
    }

    /// Leaves the clients to the next daemon. Without systemd, which keeps their connections, none comes in time: those
    /// that wait are told so, rather than that their connection has ended.
    pub(super) fn stop(&mut self, now: Instant, node: &mut Node) {
        self.sockets.close();
        if self.systemd.is_there() {
            for clients in self.young.take_all().chunks(Systemd::AT_ONCE) {
                self.keep_copies(clients);
            }
            self.clients.leave();
        } else {
            tell(node, now, Input::Stop);
        }
    }
}

pub(super) fn handle_source(now: Instant, answer: &Answer, node: &mut Node) {
    if let Answer::Route(RouteAnswer { candidate, source, .. }) = *answer {
        tell(node, now, Input::Source { target: candidate.question, source });
    }
}

pub(super) fn handle_named(now: Instant, named: &Named, node: &mut Node) {
    let Named { name, addresses } = named;
    tell(node, now, Input::Addresses { name: *name, addresses });
}

fn tell(node: &mut Node, now: Instant, input: Input<'_>) {
    node.handle_input(now, node::Input::Acm(input));
}
