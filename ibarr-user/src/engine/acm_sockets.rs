// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets where clients of ACM connect, and the files that lead there. A thread makes and removes them: their
//! file system may hang, and so may the program that has them. It makes again what others remove.

use std::io::{self, ErrorKind};
use std::mem;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_proto::retry::Repair;
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::causes::{Fault, fault};
use crate::config::{self, Serve};
use crate::sys::clock;
use crate::transport::acm::{self, Event, Files, Listener, Listening, Ready, SocketFiles, listen};
use crate::transport::socket_file::{self, LOOK};

/// How long the daemon waits at its end until the files are removed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The engine's end of the thread. Dropping it closes the sockets and removes the files.
pub(super) struct AcmSockets {
    /// `None` at the end.
    orders: Option<Sender<config::Acm>>,
    ended: Receiver<()>,
    is_busy: bool,
    is_outdated: bool,
    last: SocketState,
}

/// What has become of an order.
#[derive(Clone, Default)]
pub(super) struct SocketState {
    /// Whether this answers an order. Otherwise other programs have removed or replaced a file.
    is_answer: bool,
    /// Whether a socket has been made again.
    pub(super) made_again: bool,
    why_not: Vec<Fault>,
    /// Port files that hide the service.
    hidden_by: Vec<Fault>,
    is_inherited: bool,
}

impl AcmSockets {
    /// Starts the thread. Must be called within a runtime.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        inherited: Vec<OwnedFd>,
        ready: Arc<Ready>,
        events: mpsc::Sender<Event>,
    ) -> io::Result<(Self, mpsc::Receiver<SocketState>)> {
        let (orders, ordered) = channel();
        let (answers, served) = mpsc::channel(1);
        let (ending, ended) = channel();
        let runtime = Handle::current();
        thread::Builder::new().name("acm".to_owned()).spawn(move || {
            let _context = runtime.enter();
            let _ending = ending;
            let mut sockets = Sockets::new(inherited, ready, events);
            loop {
                let served = match sockets.next(&ordered) {
                    Ok(wanted) => Some(sockets.follow(clock::now(), wanted)),
                    Err(RecvTimeoutError::Timeout) => sockets.look(clock::now()),
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if served.is_some_and(|served| answers.blocking_send(served).is_err()) {
                    break;
                }
            }
        })?;
        let last = SocketState::default();
        Ok((Self { orders: Some(orders), ended, is_busy: false, is_outdated: false, last }, served))
    }

    /// Follows the configuration, except where an inherited socket takes its place. One order waits at most.
    pub(super) fn serve(&mut self, wanted: &config::Acm) {
        self.is_outdated = self.is_busy;
        if !mem::replace(&mut self.is_busy, true)
            && let Some(orders) = &self.orders
        {
            // The thread ends only after this.
            let _ = orders.send(wanted.clone());
        }
    }

    pub(super) fn handle_served(&mut self, served: SocketState, wanted: &config::Acm) {
        self.is_busy &= !served.is_answer;
        self.last = served;
        if self.is_outdated && !self.is_busy {
            self.serve(wanted);
        }
    }

    /// Has the thread close the sockets, for good.
    pub(super) fn close(&mut self) {
        self.orders = None;
    }

    /// The last order has been carried out.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_busy
    }

    /// Why nothing is served, with the remedy.
    pub(super) fn warning(&self, wanted: Serve) -> Option<Fault> {
        let SocketState { why_not, hidden_by, is_inherited, .. } = &self.last;
        let refusing = (*is_inherited && wanted == Serve::Off).then(|| {
            fault!(
                "acm: programs that connect are refused: write serve = \"tools\" below [acm], or \
                 disable ibarr-acm.socket"
            )
        });
        let [why_not, hidden] = [why_not, hidden_by]
            .map(|reasons| reasons.first().map(|reason| fault!("acm: {reason}")));
        why_not.or(refusing).or(hidden)
    }
}

impl Drop for AcmSockets {
    fn drop(&mut self) {
        self.close();
        // No message comes: the channel is closed when the thread ends.
        let _ = self.ended.recv_timeout(PATIENCE);
    }
}

struct Sockets {
    ready: Arc<Ready>,
    events: mpsc::Sender<Event>,
    /// Why inherited sockets are not in use.
    refused: Vec<Fault>,
    /// Sockets that systemd has made. They are read whatever the configuration says, because a client that
    /// connects would otherwise wait for ever. If nothing is to be served, the client is refused.
    kept: Vec<Listening>,
    has_inherited_socket: bool,
    inherited_port: Option<NonZeroU16>,
    /// The socket file of this process.
    made: Option<(SocketFiles, Listening)>,
    /// The TCP port of this process.
    tcp: Option<(NonZeroU16, Listening)>,
    files: Option<Files>,
    /// Of the port files.
    repair: Repair,
    /// What is served now.
    served: config::Acm,
    last: SocketState,
}

impl Sockets {
    /// Listens at the inherited sockets.
    fn new(inherited: Vec<OwnedFd>, ready: Arc<Ready>, events: mpsc::Sender<Event>) -> Self {
        let mut this = Self {
            ready,
            events,
            refused: Vec::new(),
            kept: Vec::new(),
            has_inherited_socket: false,
            inherited_port: None,
            made: None,
            tcp: None,
            files: None,
            repair: Repair::default(),
            served: config::Acm::default(),
            last: SocketState::default(),
        };
        for fd in inherited {
            let opened = Listener::inherited(fd).and_then(|listener| {
                let port = listener.port();
                Ok((port, listen(listener, &this.ready, &this.events)?))
            });
            match opened {
                Ok((port, listening)) => {
                    this.inherited_port = this.inherited_port.or(port);
                    this.has_inherited_socket |= port.is_none();
                    this.kept.push(listening);
                }
                Err(error) => this.refused.push(fault!("an inherited socket: {error}")),
            }
        }
        this.last.is_inherited = !this.kept.is_empty();
        this
    }

    /// The next order; a time-out if it is time to look at the files.
    fn next(&self, orders: &Receiver<config::Acm>) -> Result<config::Acm, RecvTimeoutError> {
        match self.served.serve {
            Serve::Off => Ok(orders.recv()?),
            _ => orders.recv_timeout(LOOK),
        }
    }

    fn follow(&mut self, now: Instant, wanted: config::Acm) -> SocketState {
        let ours = self.inherited_port.or(self.tcp.as_ref().map(|(port, _)| *port));
        let kept = match (wanted.serve, wanted.socket.parent()) {
            (Serve::Off, _) | (_, None) => Vec::new(),
            (_, Some(dir)) => acm::remove_stale(dir, ours),
        };
        self.last.hidden_by = kept.into_iter().map(Fault::from).collect();
        for kept in &self.last.hidden_by {
            warn!("acm: {kept}");
        }
        let before = mem::replace(&mut self.served, wanted);
        let is_new = before != self.served;
        self.close_others(&before);
        self.make(now, is_new);
        SocketState { is_answer: true, ..self.last.clone() }
    }

    /// Makes again what others have removed, and tries again what has failed. Returns what is new.
    fn look(&mut self, now: Instant) -> Option<SocketState> {
        let has_changed = self.make(now, false) || self.last.made_again;
        has_changed.then(|| self.last.clone())
    }

    /// Makes what is not there. Returns whether the reasons why something cannot be made have changed.
    fn make(&mut self, now: Instant, is_new: bool) -> bool {
        let mut why_not = self.refused.clone();
        self.last.made_again = false;
        if self.served.serve != Serve::Off {
            let made = [self.make_socket(now), self.make_port(), self.make_files(now)];
            why_not.extend(made.into_iter().filter_map(Result::err));
        }
        let has_changed = self.last.why_not != why_not;
        if is_new || has_changed {
            if why_not.is_empty() {
                info!("serving ACM: {}", self.served.serve);
            }
            for why in &why_not {
                warn!("acm: {why}");
            }
        }
        self.last.why_not = why_not;
        has_changed
    }

    /// Closes what the configuration does not want any more.
    fn close_others(&mut self, before: &config::Acm) {
        let wanted = &self.served;
        let is_off = wanted.serve == Serve::Off;
        let is_same_port = before.tcp_port == wanted.tcp_port;
        if is_off || !is_same_port || before.socket.parent() != wanted.socket.parent() {
            self.files = None;
        }
        if is_off || !is_same_port {
            self.tcp = None;
        }
        if is_off || before.socket != wanted.socket {
            self.made = None;
        }
    }

    fn make_socket(&mut self, now: Instant) -> Result<(), Fault> {
        if self.has_inherited_socket {
            return Ok(());
        }
        let advice = "ibarr-acm.socket makes it for the daemon, and ibacm must not run";
        let why_not = |error: socket_file::Error| fault!("{}; {advice}", Fault::from(error));
        let listening = |at: UnixListener| {
            let listener = at.into_std().map(Listener::Unix);
            listener.and_then(|it| listen(it, &self.ready, &self.events)).map_err(|error| {
                fault!("{}: cannot be watched: {error}; {advice}", self.served.socket.display())
            })
        };
        let (made, accepting) = match &mut self.made {
            Some(made) => made,
            none => {
                let made = SocketFiles::bind(&self.served.socket).map_err(why_not)?;
                let at = made.file.listen().map_err(why_not)?;
                none.insert((made, listening(at)?))
            }
        };
        if let Some(again) = made.file.look(now).map_err(why_not)? {
            self.last.made_again = true;
            *accepting = listening(again)?;
        }
        let shown = made.link.show(now, self.served.serve == Serve::Full);
        shown.map_err(|error| fault!("{error}; {advice}"))
    }

    fn make_port(&mut self) -> Result<(), Fault> {
        let Some(port) = self.served.tcp_port else { return Ok(()) };
        if self.inherited_port.is_some() || self.tcp.is_some() {
            return Ok(());
        }
        let listener = Listener::loopback(port).map_err(|error| {
            let is_taken = error.kind() == ErrorKind::AddrInUse;
            let stop = format!("stop its holder (ss -ltnp sport = {port}), or ");
            let remedy = if is_taken { stop.as_str() } else { "" };
            fault!("TCP port {port} of 127.0.0.1: {error}; {remedy}choose another tcp-port")
        })?;
        let listening = listen(listener, &self.ready, &self.events);
        let listening = listening.map_err(|error| fault!("TCP port {port}: {error}"))?;
        self.tcp = Some((port, listening));
        Ok(())
    }

    /// The files that name the port. For an inherited socket, the unit makes them.
    fn make_files(&mut self, now: Instant) -> Result<(), Fault> {
        let (Some((port, _)), Some(dir)) = (&self.tcp, self.served.socket.parent()) else {
            return Ok(());
        };
        let mut make = || -> io::Result<()> {
            let files = match self.files.take() {
                Some(files) if files.is_ours() || self.repair.due(now) > now => files,
                _ => Files::write(dir, *port)?,
            };
            let files = self.files.insert(files);
            files.link.show(now, self.served.serve == Serve::Full)
        };
        make().map_err(|error| {
            fault!(
                "port files in {}: {error}; programs find the TCP port by them: remove those of \
                 another server, or let ibarr-acm.socket make port and files (ibarr.toml(5), tcp-port)",
                dir.display()
            )
        })
    }
}
