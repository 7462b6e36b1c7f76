// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Questions of users that the SA is asked each time, because nothing is remembered for them. The SA client
//! bounds them as all others: its window, and the rank of users.

use alloc::collections::BTreeMap;

use ibarr_common::Instant;
use ibarr_common::ib::{FlowLabel, Gid, Mtu, PacketLifeTime, Rate, Sl, SubnetPrefix};
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::{PathQuery, PathQuestion, Question};

use super::{Answered, Counter, Event, Outcome, Paths, PortName, Request, Search, Source};
use crate::request::{Caller, RequestId};
use crate::sa::{self, QuestionId};

/// 2048 bytes and 10 Gbit/s: `min_mtu` and `min_rate` of ibacm.
const LEAST_MTU: Mtu = Mtu::from_low_bits(4);
const LEAST_RATE: Rate = Rate::from_low_bits(3);

/// Requests for which the SA is being asked.
#[derive(Debug, Default)]
pub(super) struct Direct(BTreeMap<QuestionId, (RequestId, PathQuery)>);

impl Direct {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// An answer from memory.
pub(crate) struct Recalled {
    pub(crate) outcome: Outcome,
    /// What the kernel is told, if it asks.
    pub(crate) is_left_to_kernel: bool,
    /// The SA is asked, to refresh the path, or something is due at another time.
    pub(crate) has_news: bool,
}

impl Paths {
    pub(super) fn ask_directly(&mut self, request: &Request, query: PathQuery) {
        let &Request { id, port, deadline, .. } = request;
        self.counters.count(Counter::Requests);
        let (index, can_ask) = match self.ports.by_name(&port) {
            Some((index, port)) => (index, port.can_ask()),
            None => return self.push(id, Outcome::UnknownPort, false),
        };
        if !can_ask {
            return self.push(id, Outcome::NoSa, false);
        }
        if self.waiting.len() + self.direct.len() >= self.config.max_waiters {
            return self.push(id, Outcome::Overloaded, false);
        }
        let question_id = self.next_id();
        self.direct.0.insert(question_id, (id, query));
        let question = Question::Known(query);
        self.ask_sa(question_id, index, question, request.rank(), deadline);
    }

    /// The answer to a user's request that costs its share nothing. A client of ACM gets also the path of a port to
    /// itself.
    pub(super) fn remembered(&mut self, request: Request) {
        let Request { id, caller, port, question, .. } = request;
        let outcome = match question {
            Search::Path(question) => self.lookup(&port, question).or_else(|| {
                matches!(caller, Caller::Acm(_)).then(|| self.loopback(&port, &question))?
            }),
            Search::Known(_) => None,
        };
        self.events.push_back(outcome.map_or(Event::NotRemembered(request), |outcome| {
            Event::Answered(Answered { id, outcome, is_left_to_kernel: false })
        }));
    }

    /// What [`Input::Recall`](super::Input::Recall) finds, without an event; `None` if it finds nothing, or makes the
    /// path from a port to itself. A caller that [keeps](super::cache::Key::is_kept) its answers finds nothing, because
    /// its question tells that they may be wrong.
    pub(crate) fn recall_at_once(
        &mut self,
        now: Instant,
        port: &PortName,
        question: PathQuestion,
    ) -> Option<Recalled> {
        if !question.reversible {
            return None;
        }
        self.advance(now);
        let before = (self.next_question, self.canaries_set);
        let outcome = self.lookup(port, question)?;
        let has_news = (self.next_question, self.canaries_set) != before;
        if has_news {
            self.settle();
        }
        let is_left_to_kernel = self.falls_back(None, &outcome);
        Some(Recalled { outcome, is_left_to_kernel, has_news })
    }

    /// The path from a port to itself, as ibacm makes it: an SA need not be asked. The MTU is one that ibacm
    /// requires of every port, because that of the link is not known.
    fn loopback(&self, port: &PortName, question: &PathQuestion) -> Option<Outcome> {
        let PathQuestion { dgid, sgid, reversible, pkey, tclass, .. } = *question;
        let (_, port) = self.ports.by_name(port)?;
        let facts = port.facts().filter(|facts| facts.is_active)?;
        let own = |gid: Gid| facts.gids.iter().find(|own| own.guid() == gid.guid());
        let (own_dgid, lid) = (own(dgid)?, facts.lid?);
        if own_dgid != dgid && dgid.subnet_prefix() != SubnetPrefix::DEFAULT {
            return None;
        }
        let fields = Fields {
            dgid,
            sgid: own(sgid).map(|_| sgid)?,
            dlid: lid,
            slid: lid,
            flow_label: FlowLabel::default(),
            hop_limit: 0,
            tclass: tclass.unwrap_or(0),
            reversible,
            pkey: facts.partition(pkey)?,
            sl: Sl::default(),
            mtu: LEAST_MTU,
            rate: facts.rate.unwrap_or(LEAST_RATE),
            life_time: PacketLifeTime::from_low_bits(0),
        };
        Some(Outcome::Found { record: fields.emit(), source: Source::Cache })
    }

    /// Passes the answer to such a question on.
    pub(super) fn land_direct(&mut self, id: QuestionId, outcome: sa::Outcome) {
        let Some((id, query)) = self.direct.0.remove(&id) else { return };
        let is_it = |record: &_| Fields::parse(record).is_ok() && query.has_ends_of(record);
        let outcome = self.as_the_sa_says(outcome, is_it);
        self.push(id, outcome, false);
    }
}
