// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets where clients of ACM connect, and the files that lead there. A thread makes and removes them: their
//! file system may hang, and so may the program that has them.

use std::io::{self, ErrorKind};
use std::mem;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::config::{self, Serve};
use crate::transport::acm::{self, Event, Files, Kept, Listener, Listening, Made, listen};

/// How long the daemon waits at its end until the files are removed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The engine's end of the thread. Dropping it closes the sockets and removes the files.
pub(super) struct AcmSockets {
    /// `None` at the end.
    orders: Option<Sender<config::Acm>>,
    ended: Receiver<()>,
    is_busy: bool,
    is_outdated: bool,
    last: Served,
}

/// What has become of an order.
#[derive(Default)]
pub(super) struct Served {
    why_not: Vec<String>,
    /// Port files that hide the service.
    hidden_by: Vec<Kept>,
    is_inherited: bool,
}

impl AcmSockets {
    /// Starts the thread. Must be called within a runtime.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        inherited: Vec<OwnedFd>,
        events: mpsc::Sender<Event>,
    ) -> io::Result<(Self, mpsc::Receiver<Served>)> {
        let (orders, ordered) = channel();
        let (answers, served) = mpsc::channel(1);
        let (ending, ended) = channel();
        let runtime = Handle::current();
        thread::Builder::new().name("acm".to_owned()).spawn(move || {
            let _context = runtime.enter();
            let _ending = ending;
            let mut sockets = Sockets::new(inherited, events);
            for wanted in ordered {
                if answers.blocking_send(sockets.serve(&wanted)).is_err() {
                    break;
                }
            }
        })?;
        let last = Served::default();
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

    pub(super) fn handle_served(&mut self, served: Served, wanted: &config::Acm) {
        self.is_busy = false;
        self.last = served;
        if self.is_outdated {
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
    pub(super) fn warning(&self, wanted: Serve) -> Option<String> {
        let Served { why_not, hidden_by, is_inherited } = &self.last;
        let refusing = (*is_inherited && wanted == Serve::Off).then(|| {
            "acm: programs that connect are refused: write serve = \"tools\" below [acm], or disable \
             ibarr-acm.socket"
                .to_owned()
        });
        let hidden = hidden_by.first().map(|kept| format!("acm: {kept}"));
        let why_not = why_not.first().map(|why| format!("acm: {why}"));
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

/// The thread's part.
struct Sockets {
    events: mpsc::Sender<Event>,
    /// Until they are in use.
    inherited: Vec<OwnedFd>,
    /// Sockets that systemd has made. They are read whatever the configuration says, because a client that
    /// connects would otherwise wait for ever. If nothing is to be served, the client is refused.
    kept: Vec<Listening>,
    has_inherited_socket: bool,
    inherited_port: Option<NonZeroU16>,
    /// The socket file of this process.
    made: Option<(Made, Listening)>,
    /// The TCP port of this process.
    tcp: Option<(NonZeroU16, Listening)>,
    files: Option<Files>,
    /// What is served now.
    served: config::Acm,
    has_failed: bool,
}

impl Sockets {
    fn new(inherited: Vec<OwnedFd>, events: mpsc::Sender<Event>) -> Self {
        Self {
            events,
            inherited,
            kept: Vec::new(),
            has_inherited_socket: false,
            inherited_port: None,
            made: None,
            tcp: None,
            files: None,
            served: config::Acm::default(),
            has_failed: false,
        }
    }

    fn serve(&mut self, wanted: &config::Acm) -> Served {
        let mut why_not = self.inherit();
        let ours = self.inherited_port.or(self.tcp.as_ref().map(|(port, _)| *port));
        let hidden_by = match (wanted.serve, wanted.socket.parent()) {
            (Serve::Off, _) | (_, None) => Vec::new(),
            (_, Some(dir)) => acm::remove_stale(dir, ours),
        };
        for kept in &hidden_by {
            warn!("acm: {kept}");
        }
        if self.served != *wanted || self.has_failed {
            let before = mem::replace(&mut self.served, wanted.clone());
            self.close_others(&before);
            if wanted.serve != Serve::Off {
                let made = [self.make_socket(), self.make_port(), self.make_files()];
                why_not.extend(made.into_iter().filter_map(Result::err));
            }
            if why_not.is_empty() {
                info!("serving ACM: {}", wanted.serve);
            }
        }
        for why in &why_not {
            warn!("acm: {why}");
        }
        self.has_failed = !why_not.is_empty();
        Served { why_not, hidden_by, is_inherited: !self.kept.is_empty() }
    }

    /// Listens at the inherited sockets, once. Returns why not.
    fn inherit(&mut self) -> Vec<String> {
        let mut refused = Vec::new();
        for fd in mem::take(&mut self.inherited) {
            match Listener::inherited(fd) {
                Ok(listener) => {
                    let port = listener.port();
                    self.inherited_port = self.inherited_port.or(port);
                    self.has_inherited_socket |= port.is_none();
                    self.kept.push(listen(listener, self.events.clone()));
                }
                Err(error) => refused.push(format!("an inherited socket: {error}")),
            }
        }
        refused
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

    fn make_socket(&mut self) -> Result<(), String> {
        if self.has_inherited_socket {
            return Ok(());
        }
        let config::Acm { serve, socket, .. } = &self.served;
        let mut make = || -> io::Result<()> {
            let made = if let Some(made) = self.made.take() {
                made
            } else {
                let (made, listener) = Made::bind(socket)?;
                (made, listen(Listener::unix(listener)?, self.events.clone()))
            };
            let (made, _) = self.made.insert(made);
            made.show_to_librdmacm(*serve == Serve::Full)
        };
        make().map_err(|error| {
            let path = socket.display();
            format!(
                "{path}: {error}; ibarr-acm.socket makes it for the daemon, and ibacm must not run"
            )
        })
    }

    fn make_port(&mut self) -> Result<(), String> {
        let Some(port) = self.served.tcp_port else { return Ok(()) };
        if self.inherited_port.is_some() || self.tcp.is_some() {
            return Ok(());
        }
        let listener = Listener::loopback(port).map_err(|error| {
            let is_taken = error.kind() == ErrorKind::AddrInUse;
            let stop = format!("stop its holder (ss -ltnp sport = {port}), or ");
            let remedy = if is_taken { stop.as_str() } else { "" };
            format!("TCP port {port} of 127.0.0.1: {error}; {remedy}choose another tcp-port")
        })?;
        self.tcp = Some((port, listen(listener, self.events.clone())));
        Ok(())
    }

    /// The files that name the port. For an inherited socket, the unit makes them.
    fn make_files(&mut self) -> Result<(), String> {
        let (Some((port, _)), Some(dir)) = (&self.tcp, self.served.socket.parent()) else {
            return Ok(());
        };
        let mut make = || -> io::Result<()> {
            let files =
                if let Some(files) = self.files.take() { files } else { Files::write(dir, *port)? };
            let files = self.files.insert(files);
            files.show_to_librdmacm(self.served.serve == Serve::Full)
        };
        make().map_err(|error| {
            format!(
                "port files in {}: {error}; programs find the TCP port by them: remove those of \
                 another server, or let ibarr-acm.socket make port and files (ibarr.toml(5), tcp-port)",
                dir.display()
            )
        })
    }
}
