// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's end of its socket to the daemon.

use std::collections::VecDeque;

use ibarr_common::Instant;

#[derive(Debug, Default)]
pub(super) struct KernelSocket {
    is_open: bool,
    held: VecDeque<ToDaemon>,
    overrun: bool,
}

#[derive(Debug)]
pub(super) struct ToDaemon {
    pub(super) at: Instant,
    pub(super) bytes: Vec<u8>,
    pub(super) from_kernel: bool,
    /// There was more than fits into the buffer for it.
    pub(super) cut: bool,
}

/// What the daemon reads.
pub(super) enum Message {
    Datagram(ToDaemon),
    /// Datagrams have been lost.
    Overrun,
}

impl KernelSocket {
    /// A daemon opens the socket, or inherits it with all that it holds.
    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    pub(super) fn close(&mut self) {
        *self = Self::default();
    }

    /// Takes a datagram, if the socket is open and holds fewer than `room`.
    pub(super) fn take(&mut self, datagram: ToDaemon, room: usize) -> bool {
        let fits = self.is_open && self.held.len() < room;
        if fits {
            self.held.push_back(datagram);
        } else {
            self.overrun |= self.is_open;
        }
        fits
    }

    pub(super) fn read(&mut self) -> Option<Message> {
        if std::mem::take(&mut self.overrun) {
            return Some(Message::Overrun);
        }
        self.held.pop_front().map(Message::Datagram)
    }

    pub(super) fn is_readable(&self) -> bool {
        self.overrun || !self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}
