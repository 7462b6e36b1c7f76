// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which connections are kept for the next daemon: those that have lived for a while. Most are closed after one request,
//! and to keep one costs more than that. **A connection that is not kept ends with a daemon that is killed**; at an
//! orderly end all are kept.

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use ibarr_common::Instant;

use super::ClientId;

/// A connection is kept when it is older than this and younger than twice this, so that many are kept together.
const AGE_TO_KEEP: Duration = Duration::from_millis(100);

/// Clients whose connections are not kept yet.
#[derive(Debug, Default)]
pub struct YoungClients {
    new: Vec<ClientId>,
    /// They are old enough when it is due.
    old: Vec<ClientId>,
    due: Option<Instant>,
}

impl YoungClients {
    /// Notes a new client.
    pub fn connected(&mut self, now: Instant, client: ClientId) {
        self.new.push(client);
        self.due.get_or_insert(now + AGE_TO_KEEP);
    }

    /// When some are old enough.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Those that are old enough, at most `most`; if there are more, they are due.
    pub fn take(&mut self, now: Instant, most: usize) -> Vec<ClientId> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let taken = self.old.split_off(self.old.len().saturating_sub(most));
        if self.old.is_empty() {
            self.old = mem::take(&mut self.new);
            self.due = (!self.old.is_empty()).then_some(now + AGE_TO_KEEP);
        }
        taken
    }

    /// All of them, at an orderly end.
    pub fn take_all(&mut self) -> Vec<ClientId> {
        let Self { new, old, .. } = mem::take(self);
        [old, new].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    #[test]
    fn connection_is_kept_once_and_only_when_it_is_old_enough() {
        let mut young = YoungClients::default();
        let at = |ages: u32| NOW + AGE_TO_KEEP * ages;
        (0..4).for_each(|id| young.connected(NOW, ClientId(id)));
        assert_eq!(young.poll_timeout(), Some(at(1)));
        assert_eq!(young.take(at(1), 3), []);
        young.connected(at(1), ClientId(4));
        assert_eq!(young.take(at(1) + AGE_TO_KEEP / 2, 3), []);
        assert_eq!(young.take(at(2), 3), [1, 2, 3].map(ClientId));
        assert_eq!(young.poll_timeout(), Some(at(2)), "one more");
        assert_eq!(young.take(at(2), 3), [ClientId(0)]);
        assert_eq!(young.take(at(3), 3), [ClientId(4)]);
        assert_eq!((young.poll_timeout(), young.take_all()), (None, vec![]));
        (5..7).for_each(|id| young.connected(at(4), ClientId(id)));
        assert_eq!(young.take_all(), [5, 6].map(ClientId));
        assert_eq!(young.poll_timeout(), None);
    }
}
