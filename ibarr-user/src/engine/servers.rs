// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets on which peers' queries come.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use ibarr_proto::ip2gid::Family;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::warn;

use super::Engine;
use crate::transport;
use crate::transport::server::State;

/// A socket of the ip2gid port, owned by its task.
pub(super) struct ServerSocket {
    pub(super) family: Family,
    pub(super) state: watch::Receiver<State>,
    /// The generation of programs that guards it.
    guarded: Option<u32>,
    task: AbortHandle,
}

impl Engine {
    /// Serves the configured port, and no other.
    pub(super) fn start_servers(&mut self) {
        for server in self.servers.drain(..) {
            self.dropped_before += u64::from(server.state.borrow().dropped());
            server.task.abort();
        }
        let port = self.config.client.settings().udp_port.get();
        for warning in self.inherited.warnings(port) {
            warn!("{warning}");
        }
        for family in [Family::V4, Family::V6] {
            let (sender, state) = watch::channel(State::Starting);
            let batches = self.batches.clone();
            let counters = Arc::clone(&self.counters);
            let inherited = self.inherited.socket(family, port);
            let serve =
                transport::server::serve(family, port, inherited, batches, sender, counters);
            let task = tokio::spawn(serve).abort_handle();
            self.servers.push(ServerSocket { family, state, guarded: None, task });
        }
    }

    pub(super) fn guard_servers(&mut self) {
        let generation = Some(self.responder.generation());
        for server in self.servers.iter_mut().filter(|server| server.guarded != generation) {
            if let State::Serving { socket, .. } = &*server.state.borrow() {
                self.responder.guard(socket.as_fd());
                server.guarded = generation;
            }
        }
    }
}

impl ServerSocket {
    pub(super) fn has_started(&self) -> bool {
        !matches!(*self.state.borrow(), State::Starting)
    }
}
