// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Long documents, one page at a time. Nothing is kept between two pages: the caller asks for the
//! next with the mark of the last.

use std::collections::VecDeque;

use ibarr_common::Instant;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::Cursor;
use ibarr_proto::node::Node;
use tokio::sync::oneshot;

use super::trace::name_of;
use crate::control::messages::{
    AddressMark, Body, CacheEntry, Failure, FailureKind, PathMark, Response,
};

/// Pages that were requested and not made yet: one is made per turn, in the order of the requests.
/// A connection waits for one at most, and each user has a share of the connections.
#[derive(Debug, Default)]
pub(super) struct Pages(VecDeque<(Page, oneshot::Sender<Response>)>);

/// The document, and the mark at which the page begins.
#[derive(Debug)]
pub(super) enum Page {
    Addresses(Option<AddressMark>),
    Paths(Option<PathMark>),
}

/// Entries of a page, which take some hundred microseconds of a turn.
pub(super) const PAGE: usize = 64;

impl Pages {
    pub(super) fn ask(&mut self, asked: Page, to: oneshot::Sender<Response>) {
        self.0.push_back((asked, to));
    }

    /// Now, if there is a page to make.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (!self.0.is_empty()).then_some(Instant::BOOT)
    }

    /// The next request whose caller is still connected.
    fn next(&mut self) -> Option<(Page, oneshot::Sender<Response>)> {
        while let Some((asked, to)) = self.0.pop_front() {
            if !to.is_closed() {
                return Some((asked, to));
            }
        }
        None
    }

    /// Makes a page, if one was requested.
    pub(super) fn make(&mut self, now: Instant, started: Instant, node: &Node) {
        let Some((asked, to)) = self.next() else { return };
        let page = match asked {
            Page::Addresses(after) => page_of_addresses(now, after, started, node),
            Page::Paths(after) => page_of_paths(now, after, started, node),
        };
        // The connection may be closed.
        drop(to.send(page.map_or_else(Response::from, Response::from)));
    }
}

fn page_of_addresses(
    now: Instant,
    after: Option<AddressMark>,
    started: Instant,
    node: &Node,
) -> Result<Body, Failure> {
    let after = match after {
        None => None,
        Some(AddressMark { daemon, expires_at, ip, ifindex }) => {
            is_ours(daemon, started)?;
            let question = Question::new(ip, ifindex);
            let question = question.ok_or_else(no_mark)?;
            Some(Cursor { expires_at, question })
        }
    };
    let (page, next) = node.client().page(after, PAGE);
    let entries = page.into_iter().map(|(question, cached)| CacheEntry {
        ip: question.target(),
        interface: question.egress().map(|egress| name_of(node, egress)),
        gid: cached.gid,
        expires_in_ms: cached.expires_at.since(now).into(),
    });
    let mark = |Cursor { expires_at, question }| AddressMark {
        daemon: started,
        expires_at,
        ip: question.target(),
        ifindex: question.egress(),
    };
    Ok(Body::Cache { entries: entries.collect(), next: next.map(mark) })
}

fn page_of_paths(
    now: Instant,
    after: Option<PathMark>,
    started: Instant,
    node: &Node,
) -> Result<Body, Failure> {
    let from = match after {
        None => 0,
        Some(PathMark { daemon, place }) => {
            is_ours(daemon, started)?;
            place
        }
    };
    let (page, next) = node.paths().page(from, PAGE);
    let paths = page.into_iter().map(|cached| super::paths::cached_path(now, &cached));
    let mark = |place| PathMark { daemon: started, place };
    Ok(Body::Paths { paths: paths.collect(), next: next.map(mark) })
}

/// A mark names its daemon by its start time.
fn is_ours(daemon: Instant, started: Instant) -> Result<(), Failure> {
    if daemon == started {
        return Ok(());
    }
    let message = "the daemon was restarted meanwhile: ask again".to_owned();
    Err(Failure { kind: FailureKind::Busy, message })
}

fn no_mark() -> Failure {
    let message = "no page begins there: give the mark of the previous page".to_owned();
    Failure { kind: FailureKind::Usage, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_a_turn_is_made_for_connected_readers() {
        let mut pages = Pages::default();
        assert_eq!(pages.poll_timeout(), None);
        let mut readers = Vec::new();
        for _ in 0..3 {
            let (to, reader) = oneshot::channel();
            pages.ask(Page::Paths(None), to);
            readers.push(reader);
        }
        drop(readers.remove(1));
        assert_eq!(pages.poll_timeout(), Some(Instant::BOOT));
        assert!(pages.next().is_some() && pages.next().is_some());
        assert!(pages.next().is_none());
        assert_eq!(pages.poll_timeout(), None);
    }
}
