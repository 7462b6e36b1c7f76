// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Requests for a path by its own fields that memory answers at once. They are most of those of a crowd, so they enter
//! no table and no queue. Reply and counters are those of the same request as an input.

use ibarr_common::wire::acm::{self as wire, Reply, Request, Status};
use ibarr_common::wire::ls::PathUse;
use ibarr_common::wire::sa::PathQuery;

use super::{Acm, ClientId, Counter};
use crate::paths::{self, Outcome, PortName};

impl Acm {
    /// The request in a client's message, and what it knows of the path; `None` if it needs more than a look into memory.
    pub(crate) fn direct(&self, client: ClientId, bytes: &[u8]) -> Option<(Request, PathQuery)> {
        let is_idle = self.clients.get(&client)?.waits_for.is_none();
        if !is_idle || self.halves.contains(client) {
            return None;
        }
        let request = Request::parse(bytes).ok()?;
        let wire::Ask::Resolve(resolve) = request.ask else { return None };
        let has_ends = resolve.source().is_some() || resolve.destination().is_some();
        let known = PathQuery::known(resolve.path().filter(|_| !has_ends && !resolve.asks_sa())?);
        let has_end = known.dgid().is_some() || known.dlid().is_some();
        has_end.then_some((request, known))
    }

    /// The reply to such a request. `None` for an outcome that memory does not have.
    pub(crate) fn reply_directly(
        &mut self,
        client: ClientId,
        request: &Request,
        port: PortName,
        outcome: Outcome,
    ) -> Option<&[u8]> {
        let (reply, counter) = match outcome {
            Outcome::Found { record, .. } => {
                let paths = paths::records(PathUse::All, record);
                (Reply::Paths(paths, None), Counter::PathFromMemory)
            }
            Outcome::NoRecord { .. } => (Reply::Refused(Status::NoData), Counter::NoData),
            _ => return None,
        };
        self.places.touch(client);
        let of_port = self.by_port.entry(port).or_default();
        for counters in [&mut self.counters, of_port] {
            counters.count(Counter::Requests);
            counters.count(counter);
        }
        self.direct_reply.resize(reply.length(), 0);
        reply.emit(request, &mut self.direct_reply)
    }
}
