// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Serves the clients of ACM.

use std::io::{self, ErrorKind};
use std::mem;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;

use ibarr_common::Instant;
use ibarr_common::wire::acm::MAX_REQUEST_LEN;
use ibarr_proto::acm::{ClientId, Input, NotNamed, Output, Transmit};
use ibarr_proto::node;
use tracing::{debug, info, warn};

use super::Engine;
use crate::config::{self, Serve};
use crate::process::Until;
use crate::sys::udp;
use crate::transport::acm::{
    self, Clients, Event, Files, Inherited, Kept, Listener, Listening, Made, Sent, Sources,
};
use crate::transport::names::Named;

/// The clients, and the sockets where they connect.
pub(super) struct Acm {
    clients: Clients,
    /// Until they are in use.
    inherited: Inherited,
    /// Sockets that systemd has made. They are read whatever the configuration says, because a client that
    /// connects would otherwise wait for ever. If nothing is to be served, the client is refused.
    kept: Vec<Listening>,
    has_inherited_socket: bool,
    inherited_port: Option<NonZeroU16>,
    /// The socket file of this process.
    made: Option<(Made, Listening)>,
    /// The TCP port of this process.
    tcp: Option<(NonZeroU16, Listening)>,
    files: Option<Files>,
    /// What is served now.
    served: config::Acm,
    why_not: Vec<String>,
    /// Port files that hide the service.
    hidden_by: Vec<Kept>,
    pub(super) sources: Sources,
}

impl Acm {
    pub(super) fn new(inherited: Inherited, clients: Clients) -> Self {
        Self {
            clients,
            inherited,
            kept: Vec::new(),
            has_inherited_socket: false,
            inherited_port: None,
            made: None,
            tcp: None,
            files: None,
            served: config::Acm::default(),
            why_not: Vec::new(),
            hidden_by: Vec::new(),
            sources: Sources::default(),
        }
    }

    /// Follows the configuration, except where an inherited socket takes its place.
    pub(super) fn serve(&mut self, wanted: &config::Acm) {
        let has_failed = !self.why_not.is_empty();
        self.why_not = self.inherit();
        let ours = self.inherited_port.or(self.tcp.as_ref().map(|(port, _)| *port));
        self.hidden_by = match (wanted.serve, wanted.socket.parent()) {
            (Serve::Off, _) | (_, None) => Vec::new(),
            (_, Some(dir)) => acm::remove_stale(dir, ours),
        };
        for kept in &self.hidden_by {
            warn!("acm: {kept}");
        }
        if self.served != *wanted || has_failed {
            let before = mem::replace(&mut self.served, wanted.clone());
            self.close_others(&before);
            if wanted.serve != Serve::Off {
                let made = [self.make_socket(), self.make_port(), self.make_files()];
                self.why_not.extend(made.into_iter().filter_map(Result::err));
            }
            if self.why_not.is_empty() {
                info!("serving ACM: {}", wanted.serve);
            }
        }
        for why in &self.why_not {
            warn!("acm: {why}");
        }
    }

    /// Listens at the inherited sockets, once. Returns why not.
    fn inherit(&mut self) -> Vec<String> {
        let mut refused = Vec::new();
        for fd in mem::take(&mut self.inherited.listeners) {
            match Listener::inherited(fd) {
                Ok(listener) => {
                    let port = listener.port();
                    self.inherited_port = self.inherited_port.or(port);
                    self.has_inherited_socket |= port.is_none();
                    self.kept.push(self.clients.listen(listener));
                }
                Err(error) => refused.push(format!("an inherited socket: {error}")),
            }
        }
        refused
    }

    /// Closes what the configuration does not want any more.
    fn close_others(&mut self, before: &config::Acm) {
        let wanted = &self.served;
        let is_off = wanted.serve == Serve::Off;
        let is_same_port = before.tcp_port == wanted.tcp_port;
        if is_off || !is_same_port || before.socket.parent() != wanted.socket.parent() {
            self.files = None;
        }
        if is_off || !is_same_port {
            self.tcp = None;
        }
        if is_off || before.socket != wanted.socket {
            self.made = None;
        }
    }

    fn make_socket(&mut self) -> Result<(), String> {
        if self.has_inherited_socket {
            return Ok(());
        }
        let config::Acm { serve, socket, .. } = &self.served;
        let mut make = || -> io::Result<()> {
            let made = if let Some(made) = self.made.take() {
                made
            } else {
                let (made, listener) = Made::bind(socket)?;
                (made, self.clients.listen(Listener::unix(listener)?))
            };
            let (made, _) = self.made.insert(made);
            made.show_to_librdmacm(*serve == Serve::Full)
        };
        make().map_err(|error| {
            let path = socket.display();
            format!(
                "{path}: {error}; ibarr-acm.socket makes it for the daemon, and ibacm must not run"
            )
        })
    }

    fn make_port(&mut self) -> Result<(), String> {
        let Some(port) = self.served.tcp_port else { return Ok(()) };
        if self.inherited_port.is_some() || self.tcp.is_some() {
            return Ok(());
        }
        let listener = Listener::loopback(port).map_err(|error| {
            let is_taken = error.kind() == ErrorKind::AddrInUse;
            let stop = format!("stop its holder (ss -ltnp sport = {port}), or ");
            let remedy = if is_taken { stop.as_str() } else { "" };
            format!("TCP port {port} of 127.0.0.1: {error}; {remedy}choose another tcp-port")
        })?;
        self.tcp = Some((port, self.clients.listen(listener)));
        Ok(())
    }

    /// The files that name the port. For an inherited socket, the unit makes them.
    fn make_files(&mut self) -> Result<(), String> {
        let (Some((port, _)), Some(dir)) = (&self.tcp, self.served.socket.parent()) else {
            return Ok(());
        };
        let mut make = || -> io::Result<()> {
            let files =
                if let Some(files) = self.files.take() { files } else { Files::write(dir, *port)? };
            let files = self.files.insert(files);
            files.show_to_librdmacm(self.served.serve == Serve::Full)
        };
        make().map_err(|error| {
            format!(
                "port files in {}: {error}; programs find the TCP port by them: remove those of \
                 another server, or let ibarr-acm.socket make port and files (ibarr.toml(5), tcp-port)",
                dir.display()
            )
        })
    }

    /// Why nothing is served, with the remedy.
    pub(super) fn warning(&self, wanted: Serve) -> Option<String> {
        let is_refusing = !self.kept.is_empty() && wanted == Serve::Off;
        let refusing = is_refusing.then(|| {
            "acm: programs that connect are refused: write serve = \"tools\" below [acm], or disable \
             ibarr-acm.socket"
                .to_owned()
        });
        let hidden = self.hidden_by.first().map(|kept| format!("acm: {kept}"));
        let why_not = self.why_not.first().map(|why| format!("acm: {why}"));
        why_not.or(refusing).or(hidden)
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
                let find = |target| udp::source_to(target).ok();
                let source = self.acm.sources.to(now, target, find);
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
