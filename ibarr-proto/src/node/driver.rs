// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the driver alone wants of the cores: to answer peers, to look, to forget and to restore.

use core::time::Duration;

use ibarr_common::Instant;

use super::Node;
use crate::acm::{self, Acm};
use crate::counters::Counters;
use crate::health;
use crate::ip2gid::Question;
use crate::ip2gid::client::{Candidate, Client};
use crate::ip2gid::server::{self, Received, Server, Silence, Transmit};
use crate::local_service::{LocalService, Nudged};
use crate::local_view::LocalView;
use crate::paths::Paths;
use crate::paths::snapshot::{Restored, Snapshot};
use crate::request::Outcome;
use crate::responder::Responder;
use crate::shares;
use crate::trace::Trace;

impl Node {
    /// What is known of an address without asking a peer, however old it is.
    pub fn lookup(&self, now: Instant, question: Question) -> Option<Outcome> {
        self.view.lookup(question).or_else(|| self.client.lookup_any(now, question))
    }

    /// See [`Server::answer`].
    ///
    /// # Errors
    /// If there is no reply.
    pub fn answer(&mut self, received: &Received<'_>) -> Result<Transmit, Silence> {
        let reply = self.server.answer(&self.view, received)?;
        if let Some(question) = Question::new(reply.to.ip(), reply.egress) {
            let source = Some(reply.from);
            let peer = Candidate { source, ..question.into() };
            self.is_due_known = false;
            self.health.handle_input(self.now, health::Input::Sent(peer));
        }
        Ok(reply)
    }

    /// See [`Server::handle_sent`].
    pub fn handle_sent(&mut self, reply: &Transmit, errno: i32) -> server::Counter {
        self.server.handle_sent(reply, errno)
    }

    /// The trace, to which the driver reports what goes over the wire.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    /// Drops all answers of peers, and the addresses of names. Returns how many answers of peers that was.
    pub fn flush(&mut self) -> usize {
        self.note_change();
        self.acm.forget_names();
        self.client.flush()
    }

    /// Drops all answers of subnet administrators. Returns how many that was.
    pub fn flush_paths(&mut self) -> usize {
        self.note_change();
        self.paths.flush()
    }

    /// See [`Acm::set_hosts`].
    pub fn set_acm_hosts(&mut self, hosts: acm::Hosts) {
        self.note_change();
        self.acm.set_hosts(hosts);
    }

    /// See [`Paths::restore`].
    pub fn restore_paths(&mut self, now: Instant, snapshot: Snapshot, age: Duration) {
        self.note_change();
        self.paths.restore(now, snapshot, age);
    }

    /// See [`Paths::preload`].
    pub fn preload_paths(&mut self, now: Instant, listed: Snapshot) {
        self.note_change();
        self.paths.preload(now, listed);
    }

    /// See [`Paths::poll_restored`].
    pub fn poll_restored(&mut self) -> Option<Restored> {
        self.paths.poll_restored()
    }

    /// The outcome of a nudge for which the driver found no interface.
    pub fn nudge_without_place(&self) -> Nudged {
        Nudged::without_place(self.view.may_have_ipoib())
    }

    /// The local view.
    pub fn view(&self) -> &LocalView {
        &self.view
    }

    /// The server, which answers peers.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The client, which asks peers.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The paths, for which subnet administrators are asked.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// See [`Requests::users`](crate::requests::Requests::users).
    pub fn users(&self) -> [(shares::Kind, &Counters<shares::Counter>, (usize, usize)); 3] {
        self.requests.users()
    }

    /// The ACM service.
    pub fn acm(&self) -> &Acm {
        &self.acm
    }

    /// The rules of maps and programs.
    pub fn responder(&self) -> &Responder {
        &self.responder
    }

    /// The kernel's side.
    pub fn local_service(&self) -> &LocalService {
        &self.local_service
    }
}
