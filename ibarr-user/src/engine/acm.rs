// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Serves the clients of ACM.

use std::os::fd::OwnedFd;
use std::{io, mem};

use ibarr_common::Instant;
use ibarr_common::wire::acm::MAX_REQUEST_LEN;
use ibarr_proto::acm::{ClientId, Input, NotNamed, Output, Transmit};
use ibarr_proto::node;
use tracing::{debug, info, warn};

use super::Engine;
use crate::config::{self, Serve};
use crate::process::Until;
use crate::sys::udp;
use crate::transport::acm::{self, Clients, Event, Inherited, Made, Sent};
use crate::transport::acm_ports::{self, Kept};
use crate::transport::names::Named;

/// The clients, and the socket where they connect.
pub(super) struct Acm {
    clients: Clients,
    /// Until they are in use.
    inherited: Inherited,
    is_inherited: bool,
    made: Option<Made>,
    /// What is served now.
    served: config::Acm,
    why_not: Option<String>,
    /// Port files that hide the service.
    hidden_by: Vec<Kept>,
}

impl Acm {
    pub(super) fn new(inherited: Inherited, clients: Clients) -> Self {
        let is_inherited = inherited.listener.is_some();
        let served = config::Acm::default();
        Self {
            clients,
            inherited,
            is_inherited,
            made: None,
            served,
            why_not: None,
            hidden_by: Vec::new(),
        }
    }

    /// Follows the configuration. An inherited socket is always read, because a client that connects to it would
    /// otherwise wait for ever. If nothing is to be served, the client is refused.
    pub(super) fn serve(&mut self, wanted: &config::Acm) {
        if let Some(listener) = self.inherited.listener.take() {
            let listening = self.clients.listen(listener.into());
            self.why_not =
                listening.err().map(|error| format!("acm: the inherited socket: {error}"));
        }
        self.hidden_by = match (wanted.serve, wanted.socket.parent()) {
            (Serve::Off, _) | (_, None) => Vec::new(),
            (_, Some(dir)) => acm_ports::remove_stale(dir),
        };
        for kept in &self.hidden_by {
            warn!("acm: {kept}");
        }
        if self.is_inherited || (self.served == *wanted && self.why_not.is_none()) {
            return;
        }
        let before = mem::replace(&mut self.served, wanted.clone());
        if wanted.serve == Serve::Off || before.socket != wanted.socket {
            self.clients.stop_listening();
            self.made = None;
        }
        let path = wanted.socket.display();
        self.why_not = self.make().err().map(|error| {
            format!("acm: {path}: {error}; ibarr-acm.socket makes it for the daemon, and ibacm must not run")
        });
        if let Some(why) = &self.why_not {
            warn!("{why}");
        } else {
            info!(%path, "serving ACM: {}", wanted.serve);
        }
    }

    fn make(&mut self) -> io::Result<()> {
        let config::Acm { serve, socket, .. } = &self.served;
        if *serve == Serve::Off {
            return Ok(());
        }
        let made = if let Some(made) = self.made.take() {
            made
        } else {
            let (made, listener) = Made::bind(socket)?;
            self.clients.listen(listener)?;
            made
        };
        self.made.insert(made).show_to_librdmacm(*serve == Serve::Full)
    }

    /// Why nothing is served, with the remedy.
    pub(super) fn warning(&self, wanted: Serve) -> Option<String> {
        let is_refusing = self.is_inherited && wanted == Serve::Off;
        let refusing = is_refusing.then(|| {
            "acm: programs that connect are refused: write serve = \"tools\" below [acm], or disable \
             ibarr-acm.socket"
                .to_owned()
        });
        let hidden = self.hidden_by.first().map(|kept| format!("acm: {kept}"));
        self.why_not.clone().or(refusing).or(hidden)
    }
}

impl Engine {
    /// Continues with the connections of the last daemon.
    pub(super) fn start_acm(&mut self, now: Instant) {
        for fd in mem::take(&mut self.acm.inherited.clients) {
            self.admit(now, fd);
        }
        self.acm.serve(&self.config.acm);
    }

    fn admit(&mut self, now: Instant, stream: OwnedFd) -> Option<ClientId> {
        let (client, user) = self.acm.clients.admit(stream)?;
        self.tell_acm(now, Input::Connected { client, user });
        Some(client)
    }

    pub(super) fn handle_acm(&mut self, now: Instant, event: Event) {
        match event {
            Event::Connected(stream) => {
                if let Some(client) = self.admit(now, stream)
                    && let Some(copy) = self.acm.clients.copy(client)
                {
                    self.systemd.keep(acm::CLIENT, copy, Until::HangUp);
                }
            }
            Event::Ready(client) => {
                match self.acm.clients.next(client, &mut [0; MAX_REQUEST_LEN]) {
                    Sent::Nothing => {}
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
                let source = udp::source_to(target).ok();
                self.tell_acm(now, Input::Source { lookup: id, source });
            }
            Output::LookUp { name, deadline } => {
                if !self.names.ask(name, deadline) {
                    let addresses = Err(NotNamed::Unknown);
                    self.tell_acm(now, Input::Addresses { name, addresses });
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

    pub(super) fn handle_named(&mut self, now: Instant, named: &Named) {
        let Named { name, addresses } = named;
        let addresses = addresses.as_deref().map_err(|error| *error);
        self.tell_acm(now, Input::Addresses { name: *name, addresses });
    }

    /// A client does not read its replies.
    fn acm_has_no_room(&mut self, now: Instant, client: ClientId) {
        debug!(?client, "a client of ACM does not take its reply");
        self.acm.clients.close(client);
        self.tell_acm(now, Input::NotTaken { client });
    }

    /// Answers all waiting clients.
    pub(super) fn stop_acm(&mut self, now: Instant) {
        self.tell_acm(now, Input::Stop);
    }

    fn tell_acm(&mut self, now: Instant, input: Input<'_>) {
        self.node.handle_input(now, node::Input::Acm(input));
    }
}
