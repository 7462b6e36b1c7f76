// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A port in a subnet that has nothing but a subnet administrator.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::mad;
use ibarr_sim::sa::{ClientId, StandIn};

use super::{Sent, Wire};

/// A [`StandIn`] behind a port. A test controls it by a clone, which shares it.
#[derive(Clone, Debug)]
pub struct Administrator {
    shared: Arc<Shared>,
    received: VecDeque<(Lid, [u8; mad::LEN])>,
}

#[derive(Debug)]
struct Shared {
    sa: Mutex<StandIn>,
    tamper: Mutex<fn(&mut [u8; mad::LEN])>,
}

impl Administrator {
    /// An administrator for one port, which answers all MADs of that port.
    pub fn new(sa: StandIn) -> Self {
        let shared = Shared { sa: Mutex::new(sa), tamper: Mutex::new(|_| {}) };
        Self { shared: Arc::new(shared), received: VecDeque::new() }
    }

    pub(crate) fn sa(&self) -> MutexGuard<'_, StandIn> {
        self.shared.sa.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes each answer from now on, on its way to the port.
    pub fn tamper(&self, change: fn(&mut [u8; mad::LEN])) {
        *self.shared.tamper.lock().unwrap_or_else(PoisonError::into_inner) = change;
    }

    fn collect(&mut self) {
        let mut sa = self.shared.sa.lock().unwrap_or_else(PoisonError::into_inner);
        let tamper = *self.shared.tamper.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(reply) = sa.poll_transmit() {
            let mut octets = *reply.mad.octets();
            tamper(&mut octets);
            self.received.push_back((reply.from, octets));
        }
    }
}

impl Wire for Administrator {
    fn send(&mut self, now: Instant, sent: &Sent) {
        self.sa().handle_input(now, ClientId(0), sent.to, &sent.mad);
        self.collect();
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.sa().handle_timeout(now);
        self.collect();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.sa().poll_timeout()
    }

    fn poll_received(&mut self) -> Option<(Lid, [u8; mad::LEN])> {
        self.received.pop_front()
    }
}
