// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What each counter of `ibarr counters` counts: the doc lines of the counters, by the names under
//! which `counts` in `report.rs` lists them.

use ibarr_common::map::{Program, Reason};
use ibarr_proto::counters::Counter;
use ibarr_proto::ip2gid::{client, server};
use ibarr_proto::{acm, local_service, local_view, paths, responder, sa, shares};

use crate::{bpf, transport};

/// What a counter counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Description {
    /// In a sentence or more.
    pub text: &'static str,
    /// Whether it counts what went wrong, was dropped, or was left to others.
    pub is_error: bool,
}

pub(crate) fn descriptions() -> impl Iterator<Item = (String, Description)> {
    let of_users = shares::Kind::ALL.into_iter().flat_map(|kind| {
        of::<shares::Counter>().map(move |(name, text)| (format!("users.{kind}.{name}"), text))
    });
    let of_programs = Program::ALL.into_iter().flat_map(|program| {
        Reason::ALL.into_iter().map(move |reason| {
            let (text, is_error) = (reason.describe(), reason != Reason::Answered);
            let name = format!("bpf.{}", bpf::counter_name(program, reason));
            (name, Description { text, is_error })
        })
    });
    under::<server::Counter>("ip2gid.server")
        .chain(under::<client::Counter>("ip2gid.client"))
        .chain(under::<local_service::Counter>("local-service"))
        .chain(under::<paths::Counter>("paths"))
        .chain(under::<sa::Counter>("sa"))
        .chain(under::<acm::Counter>("acm"))
        .chain(of_users)
        .chain(under::<local_view::Counter>("local-view"))
        .chain(under::<responder::Counter>("responder"))
        .chain(of_programs)
        .chain(of::<transport::Counter>())
        .chain(of::<Other>())
}

ibarr_proto::counters! {
    /// Counters that are kept elsewhere than in [`ibarr_proto::counters::Counters`].
    pub enum Other {
        /// Lines of the log that were lost: its place was full, closed, or read too slowly.
        LogDropped = error("log.dropped"),
        /// Queries of peers that the kernel dropped at the server sockets, because there was no room or
        /// they were damaged.
        QueryDropped = error("transport.query-dropped"),
        /// Replies of peers that the kernel dropped at the query sockets, because there was no room.
        ReplyNotReceived = error("transport.reply-not-received"),
    }
}

fn under<C: Counter>(prefix: &'static str) -> impl Iterator<Item = (String, Description)> {
    of::<C>().map(move |(name, description)| (format!("{prefix}.{name}"), description))
}

fn of<C: Counter>() -> impl Iterator<Item = (String, Description)> {
    let describe = |counter: &C| {
        let (text, is_error) = (counter.describe(), counter.is_error());
        (counter.to_string(), Description { text, is_error })
    };
    C::ALL.iter().map(describe)
}
