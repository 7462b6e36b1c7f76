// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets on which peers' queries come.

use std::collections::BTreeSet;
use std::future::pending;
use std::mem;
use std::num::NonZeroU16;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ibarr_common::Instant;
use ibarr_proto::ip2gid::Family;
use ibarr_proto::ip2gid::server::Silence;
use ibarr_proto::local_view::InterfaceName;
use ibarr_proto::node::Node;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tracing::warn;

use super::{log, trace};
use crate::bpf::Responder;
use crate::causes::{Fault, fault};
use crate::control::messages::ServerStatus;
use crate::transport::Counters;
use crate::transport::inherited::Inherited;
use crate::transport::server::{self, Batch, Event, State, Vrf};

/// The sockets of the ip2gid port, and the queries that wait for an answer.
pub(super) struct Servers {
    port: NonZeroU16,
    sockets: Vec<Socket>,
    inherited: Inherited,
    /// Given to each socket.
    batches: mpsc::Sender<Event>,
    /// What the server could not judge yet.
    unjudged: Vec<Batch>,
    /// Datagrams dropped by sockets that are closed now.
    dropped_before: u64,
    counters: Arc<Counters>,
}

/// A socket, owned by its task.
struct Socket {
    family: Family,
    vrf: Option<InterfaceName>,
    state: watch::Receiver<State>,
    /// The generation of programs that guards it.
    guarded: Option<u32>,
    task: AbortHandle,
}

impl Servers {
    /// Serves `port`, by an inherited socket if there is one. Must be called within a runtime.
    pub(super) fn start(
        port: NonZeroU16,
        inherited: Inherited,
        batches: mpsc::Sender<Event>,
        counters: Arc<Counters>,
    ) -> Self {
        let (sockets, unjudged, dropped_before) = (Vec::new(), Vec::new(), 0);
        let mut this =
            Self { port, sockets, inherited, batches, unjudged, dropped_before, counters };
        this.open();
        this
    }

    /// Serves `port` from now on, and no other.
    pub(super) fn move_to(&mut self, port: NonZeroU16) {
        if port != self.port {
            self.port = port;
            let vrfs = self.sockets.iter().filter_map(|socket| socket.vrf).collect();
            for socket in self.sockets.drain(..) {
                self.dropped_before += u64::from(socket.state.borrow().dropped());
                socket.task.abort();
            }
            self.open();
            self.serve_in(&vrfs);
        }
    }

    /// From now on no socket is read: what comes waits for the next daemon if systemd holds the port.
    /// Returns the tasks, which end when they have sent the replies to what they had read.
    pub(super) fn finish(&mut self) -> Vec<AbortHandle> {
        let (serving, idle): (Vec<_>, Vec<_>) = self
            .sockets
            .drain(..)
            .partition(|socket| matches!(*socket.state.borrow(), State::Serving { .. }));
        for socket in idle {
            socket.task.abort();
        }
        serving.into_iter().map(|socket| socket.task).collect()
    }

    fn open(&mut self) {
        for warning in self.warnings() {
            warn!("{warning}");
        }
        for family in [Family::V4, Family::V6] {
            let inherited = self.inherited.socket(family, self.port.get());
            self.open_socket(family, inherited, None);
        }
    }

    fn open_socket(&mut self, family: Family, inherited: Option<OwnedFd>, vrf: Option<Vrf>) {
        let (sender, state) = watch::channel(State::Starting);
        let (batches, counters) = (self.batches.clone(), Arc::clone(&self.counters));
        let name = vrf.as_ref().map(|vrf| vrf.name);
        let port = self.port.get();
        let serve = server::serve(family, port, inherited, vrf, batches, sender, counters);
        let task = tokio::spawn(serve).abort_handle();
        self.sockets.push(Socket { family, vrf: name, state, guarded: None, task });
    }

    /// Serves also in these VRFs, and in no other.
    pub(super) fn serve_in(&mut self, vrfs: &BTreeSet<InterfaceName>) {
        for socket in
            self.sockets.extract_if(.., |socket| socket.vrf.is_some_and(|vrf| !vrfs.contains(&vrf)))
        {
            self.dropped_before += u64::from(socket.state.borrow().dropped());
            socket.task.abort();
        }
        for (&name, family) in vrfs.iter().flat_map(|vrf| [(vrf, Family::V4), (vrf, Family::V6)]) {
            let is = |socket: &&Socket, vrf| socket.family == family && socket.vrf == vrf;
            let outside = self.sockets.iter().find(|socket| is(socket, None));
            let is_open = self.sockets.iter().any(|socket| is(&socket, Some(name)));
            if let Some(outside) = outside.filter(|_| !is_open) {
                let outside = outside.state.clone();
                self.open_socket(family, None, Some(Vrf { name, outside }));
            }
        }
    }

    /// Attaches the loaded guard to each socket that does not have it yet.
    pub(super) fn guard(&mut self, generation: u32, responder: &mut Responder) {
        let generation = Some(generation);
        for socket in self.sockets.iter_mut().filter(|socket| socket.guarded != generation) {
            if let State::Serving { socket: fd, .. } = &*socket.state.borrow() {
                responder.guard(fd.as_fd());
                socket.guarded = generation;
            }
        }
    }

    /// Whether each socket serves or has reported why not.
    pub(super) fn have_started(&self) -> bool {
        self.sockets.iter().all(Socket::has_started)
    }

    /// Waits until another socket has started.
    pub(super) async fn next_start(&mut self) {
        match self.sockets.iter_mut().find(|socket| !socket.has_started()) {
            // The state changes once per attempt. When it closes, the task has ended, which the
            // engine survives.
            Some(socket) => drop(socket.state.changed().await),
            None => pending().await,
        }
    }

    /// How many datagrams the kernel has dropped at the sockets, because there was no room or they were
    /// damaged. Drops by the guard have their own counters.
    pub(super) fn dropped(&self, responder: &Responder) -> u64 {
        let of = |socket: &Socket| u64::from(socket.state.borrow().dropped());
        let dropped = self.dropped_before + self.sockets.iter().map(of).sum::<u64>();
        dropped.saturating_sub(responder.dropped_by_guard())
    }

    /// Which inherited sockets are not used, with reason and remedy.
    pub(super) fn warnings(&self) -> impl Iterator<Item = Fault> {
        self.inherited.warnings(self.port.get())
    }

    pub(super) fn status(&self) -> Vec<ServerStatus> {
        let status = |socket: &Socket| {
            let (family, blocked, receive_buffer) = socket.shown();
            let family = family.to_string().to_lowercase();
            let blocked = blocked.map(|fault| fault.to_string());
            let vrf = socket.vrf.map(|vrf| vrf.to_string());
            ServerStatus { family, port: self.port, vrf, blocked, receive_buffer }
        };
        self.sockets.iter().map(status).collect()
    }

    /// For each socket why it does not serve, or how many bytes it holds.
    pub(super) fn states(&self) -> impl Iterator<Item = (Family, Option<Fault>, Option<usize>)> {
        self.sockets.iter().map(Socket::shown)
    }

    /// Has peers' queries answered, each batch at once: nothing changes meanwhile. A socket reads nothing
    /// more before it gets the replies to its batch.
    pub(super) fn handle(&mut self, now: Instant, event: Event, node: &mut Node) {
        match event {
            Event::Queries(batch) => self.unjudged.extend(answer(now, batch, node)),
            Event::Sent(replies) => {
                for (reply, errno) in &replies {
                    let counter = node.handle_sent(reply, *errno);
                    if *errno != 0 {
                        trace::not_sent(node, now, reply, counter);
                    }
                }
            }
        }
    }

    /// The view may have changed: offers the queries again that the server could not judge.
    pub(super) fn offer_again(&mut self, now: Instant, node: &mut Node) {
        let offered = mem::take(&mut self.unjudged).into_iter();
        self.unjudged = offered.filter_map(|batch| answer(now, batch, node)).collect();
    }
}

/// Returns the batch if its queries cannot be judged yet.
fn answer(now: Instant, batch: Batch, node: &mut Node) -> Option<Batch> {
    let mut replies = Vec::with_capacity(batch.queries.len());
    for query in &batch.queries {
        let received = query.received();
        let answer = node.answer(&received);
        if answer == Err(Silence::NotYet) {
            return Some(batch);
        }
        log::peer_asks(received.from, received.payload);
        trace::peer(node, now, &received, &answer);
        let Ok(transmit) = answer else { continue };
        log::peer_is_answered(transmit.to, transmit.payload.as_ref());
        replies.push(transmit);
    }
    // The socket may have been closed meanwhile.
    drop(batch.replies.send(replies));
    None
}

impl Socket {
    fn shown(&self) -> (Family, Option<Fault>, Option<usize>) {
        let (blocked, holds) = match &*self.state.borrow() {
            State::Serving { holds, .. } => (None, Some(*holds)),
            State::Starting => (Some(fault!("starting")), None),
            State::Blocked(reason) => (Some(reason.clone()), None),
        };
        (self.family, blocked, holds)
    }

    fn has_started(&self) -> bool {
        !matches!(*self.state.borrow(), State::Starting)
    }
}
