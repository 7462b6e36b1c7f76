// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Users' requests for a path.

use std::collections::HashMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::path_record::Fields;
use ibarr_proto::node::{self, Node};
use ibarr_proto::paths::{self, CompleteQuestion, Outcome, Partial, Paths};
use ibarr_proto::request::{Freshness, UserRequest};
use ibarr_proto::shares::User;
use tokio::sync::oneshot;

use crate::control::messages::{
    Body, CachedPath, Elapsed, Failure, FailureKind, PathAnswer, PathHops, Response,
};

/// Users' requests for a path without an answer yet.
#[derive(Default)]
pub(super) struct PathAsks {
    last: u64,
    pending: HashMap<UserRequest, Pending>,
}

#[derive(Debug)]
struct Pending {
    at: Instant,
    chosen: CompleteQuestion,
    to: oneshot::Sender<Response>,
}

/// Longer than the kernel waits for the daemon: people are more patient.
const DEADLINE: Duration = Duration::from_secs(5);

impl PathAsks {
    /// Starts a request of a user; the node's answer completes it.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        user: User,
        request: &Partial,
        to: oneshot::Sender<Response>,
        node: &mut Node,
    ) {
        let chosen = match node.paths().chosen(request) {
            Ok(chosen) => chosen,
            Err(incomplete) => {
                let message = incomplete.to_string();
                // The caller may have disconnected.
                return drop(to.send(Failure { kind: FailureKind::Absent, message }.into()));
            }
        };
        self.last += 1;
        let id = UserRequest::Control(self.last);
        let CompleteQuestion { port, question, .. } = chosen;
        self.pending.insert(id, Pending { at: now, chosen, to });
        let deadline = now + DEADLINE;
        let freshness = if request.fresh { Freshness::Fresh } else { Freshness::Any };
        let request = paths::Request::of_user(id, user, port, question, deadline);
        node.handle_input(now, node::Input::ResolvePath(paths::Request { freshness, ..request }));
    }

    pub(super) fn answered(
        &mut self,
        now: Instant,
        id: UserRequest,
        outcome: Outcome,
        paths: &Paths,
    ) {
        let Some(Pending { at, chosen, to }) = self.pending.remove(&id) else { return };
        let ms = Elapsed(now.since(at));
        let path = Box::new(answer(&chosen, outcome, ms, paths));
        // The caller may have disconnected.
        drop(to.send(Body::Path { path }.into()));
    }
}

pub(super) fn cached_path(now: Instant, entry: &paths::Cached) -> CachedPath {
    CachedPath {
        port: entry.port,
        sgid: entry.question.sgid,
        dgid: entry.question.dgid,
        pkey: entry.question.pkey,
        tclass: entry.question.tclass,
        hops: entry.record.as_ref().and_then(hops),
        others: entry.others.iter().filter_map(hops).collect(),
        doubted: entry.is_doubted,
        expires_in_ms: entry.expires_at.since(now).into(),
    }
}

fn answer(chosen: &CompleteQuestion, outcome: Outcome, ms: Elapsed, paths: &Paths) -> PathAnswer {
    let CompleteQuestion { port, question, why } = *chosen;
    let (status, record, source, refusal) = outcome.parts();
    let all = if record.is_some() { paths.several(&port, question) } else { Vec::new() };
    let others = all.iter().filter(|other| record.as_ref() != Some(other));
    PathAnswer {
        port,
        chosen: Some(why),
        sgid: question.sgid,
        dgid: question.dgid,
        status,
        source,
        refusal: refusal.map(|refusal| refusal.to_string()),
        hops: record.as_ref().and_then(hops),
        others: others.filter_map(hops).collect(),
        ms,
    }
}

fn hops(record: &PathRecord) -> Option<PathHops> {
    let fields = Fields::parse(record).ok()?;
    let (mtu, half_gigabits) = (fields.mtu.bytes(), fields.rate.half_gigabits());
    Some(PathHops {
        slid: fields.slid,
        dlid: fields.dlid,
        hop_limit: fields.hop_limit,
        flow_label: fields.flow_label,
        tclass: fields.tclass,
        sl: fields.sl,
        mtu,
        mtu_code: mtu.is_none().then_some(fields.mtu.get()),
        gbit_s: half_gigabits.map(|half| f64::from(half) / 2.0),
        rate_code: half_gigabits.is_none().then_some(fields.rate.get()),
        pkey: fields.pkey,
        reversible: fields.reversible,
    })
}
