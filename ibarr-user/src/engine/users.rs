// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Requests of the control socket.

use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::ip2gid::{self, Question};
use ibarr_proto::node;
use ibarr_proto::request::{Freshness, Outcome, UserRequest};
use ibarr_proto::requests::AddressRequest;
use ibarr_proto::shares::User;
use tracing::info;

use super::asks::Asks;
use super::health::Input;
use super::pages::{Page, Pages};
use super::paths::PathAsks;
use super::trace::Tracers;
use super::{Engine, log};
use crate::control::messages::{Body, Failure, FailureKind, Request, Response, Target};
use crate::control::server::Ask;

/// Requests without an answer yet.
#[derive(Default)]
pub(super) struct Users {
    pub(super) addresses: Asks,
    pub(super) paths: PathAsks,
    pub(super) pages: Pages,
    pub(super) tracers: Tracers,
}

impl Engine {
    pub(super) fn handle_ask(&mut self, now: Instant, ask: Ask) {
        let Ask { request, user, answer, each } = ask;
        let response: Response = match request {
            Request::Resolve { addresses, timeout_ms, lookup, each: _ } => {
                let deadline = now + timeout_ms.map_or(Request::TIMEOUT, Duration::from);
                let targets: Vec<_> = addresses.into_iter().collect();
                if let Err(failure) = self.check_scopes(&targets) {
                    return drop(answer.send(failure.into()));
                }
                let requests = self.users.addresses.add(now, targets, answer, each);
                return self.ask_addresses(now, user, requests, lookup, deadline);
            }
            Request::Path { path } => {
                return self.users.paths.ask(now, user, &path, answer, &mut self.node);
            }
            Request::Cache { after } => {
                return self.users.pages.ask(Page::Addresses(after), answer);
            }
            Request::Paths { after } => return self.users.pages.ask(Page::Paths(after), answer),
            Request::Reload => return self.reload(now, Some(answer)),
            Request::Config => {
                Body::Config { config: self.settings.config.settings.clone() }.into()
            }
            Request::Status => {
                self.node.handle_input(now, node::Input::Health(Input::Asked));
                self.assess(now);
                Body::Status { status: Box::new(self.status(now)) }.into()
            }
            Request::Metrics { form } => Body::Metrics { metrics: self.metrics(now, form) }.into(),
            Request::Counters => Body::Counters { counters: self.counts() }.into(),
            Request::Ports => Body::Ports { ports: self.rdma.status(now, &self.node) }.into(),
            Request::Flush => {
                let (forgotten, paths) = (self.node.flush(), self.node.flush_paths());
                info!(forgotten, paths, "flushed the caches");
                Body::Done { done: format!("{forgotten} addresses and {paths} paths forgotten") }
                    .into()
            }
            Request::Trace(request) => {
                let trace = self.node.trace();
                return self.users.tracers.begin(now, user, request, each, answer, trace);
            }
            Request::LogLevel { change } => {
                log::level(now, change.as_ref(), &mut self.service.levels)
            }
        };
        // The caller may have disconnected.
        drop(answer.send(response));
    }

    /// Refuses a link-local address without its interface: each link has such an address.
    fn check_scopes(&self, targets: &[Target]) -> Result<(), Failure> {
        let lacks_scope = |it: &&Target| it.scope.is_none() && ip2gid::is_link_local(it.ip);
        let Some(Target { ip, .. }) = targets.iter().find(lacks_scope) else { return Ok(()) };
        let links = self.node.view().interfaces();
        let choices: Vec<_> = links.map(|link| format!("{ip}%{}", link.name)).collect();
        let choices = choices.join(", ");
        let message = format!("{ip}: each link has this address, so name the interface: {choices}");
        Err(Failure { kind: FailureKind::Usage, message })
    }

    fn ask_addresses(
        &mut self,
        now: Instant,
        user: User,
        requests: Vec<(UserRequest, Target)>,
        freshness: Freshness,
        deadline: Instant,
    ) {
        for (id, Target { ip, scope }) in requests {
            let Some(question) = Question::new(ip, scope) else {
                self.users.addresses.answered(now, id, Some(Outcome::NotFound));
                continue;
            };
            if freshness == Freshness::Memory {
                let remembered = self.node.lookup(now, question);
                self.users.addresses.answered(now, id, remembered);
                continue;
            }
            let request = AddressRequest::of_user(id, user, question, deadline);
            self.node.handle_input(now, node::Input::Resolve(request.with(freshness)));
        }
    }
}
