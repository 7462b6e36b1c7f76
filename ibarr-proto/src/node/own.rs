// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the ACM service asks of this node: the view knows its addresses, the paths its ports and endpoints.

use ibarr_common::Instant;
use ibarr_common::wire::sa::PathQuestion;

use super::Node;
use crate::acm::{Answer, Ask, ClientId, LocalEndpoint, Which};
use crate::local_view::LocalView;
use crate::paths::{Paths, PortName, Recalled, Search};

impl Node {
    /// The reply to a client's message, if it asks for a path by its own fields and memory has it. Otherwise nothing has
    /// happened, and the message is an [`acm::Input::Message`](crate::acm::Input::Message).
    pub fn answer_acm(&mut self, now: Instant, client: ClientId, bytes: &[u8]) -> Option<&[u8]> {
        let (request, known) = self.acm.direct(client, bytes)?;
        let (port, search) = self.paths.start(known, false, false)?.ok()?;
        let Search::Path(question) = search else { return None };
        let Recalled { outcome, .. } = self.recall_at_once(now, &port, question)?;
        self.acm.reply_directly(client, &request, port, outcome)
    }

    /// What memory has for a caller that is blocked.
    pub(super) fn recall_at_once(
        &mut self,
        now: Instant,
        port: &PortName,
        question: PathQuestion,
    ) -> Option<Recalled> {
        // A trace has each step.
        if self.trace.is_on() {
            return None;
        }
        let recalled = self.paths.recall_at_once(now, port, question)?;
        if recalled.has_news {
            self.now = now;
            self.note_change();
        }
        Some(recalled)
    }
}

/// `None` if it may be known in a moment.
pub(super) fn answer(ask: Ask, view: &LocalView, paths: &Paths) -> Option<Answer> {
    match ask {
        Ask::Source(source) => view.own(source).map(|(gid, pkey)| Answer::Source { gid, pkey }),
        Ask::Start { known, is_named, asks_sa } => {
            paths.start(known, is_named, asks_sa).map(Answer::Start)
        }
        Ask::Endpoint { which, addresses } => {
            let endpoint = match which {
                Which::Index { index, port } if view.is_synced() => paths.endpoint(index, port),
                Which::Index { .. } => return None,
                Which::Address(address) => {
                    let (gid, pkey) = view.own(address)?;
                    gid.and_then(|gid| paths.endpoint_of(gid, pkey))
                }
            };
            let found = endpoint.and_then(|endpoint| {
                let all = view.addresses_with(&endpoint.facts.gids);
                let all = all.filter(|(_, link)| endpoint.has_partition(link.pkey));
                let all = all.map(|(address, _)| address).take(addresses).collect();
                Some((
                    LocalEndpoint::new(endpoint.port, endpoint.facts.device, endpoint.pkey)?,
                    all,
                ))
            });
            Some(Answer::Endpoint(found))
        }
    }
}
