// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which clients of ACM have sent something, and where new ones connect: one epoll instance for all of them.
//!
//! The kernel lists what is ready in the order in which it became so, and puts a socket where clients connect last
//! again after each look. One client is let in each time, so **each client whose request is there is served before the
//! next one is let in**, and none waits for more than one request of each other.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use ibarr_proto::acm::ClientId;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::debug;

use crate::sys::fd;
use crate::transport::socket_file::PAUSE;

/// How many a look finds at most.
pub(super) const BATCH: usize = 64;

/// The numbers of listeners begin here.
const LISTENERS: u64 = 1 << 63;

/// Shared by the engine, which looks, and the thread that makes the sockets where clients connect.
pub struct Ready {
    epoll: Epoll,
    listeners: Mutex<BTreeMap<u64, UnixListener>>,
    /// There may be something of which the kernel does not tell again.
    again: AtomicBool,
    engine: AtomicWaker,
}

/// A socket where clients connect, until this is dropped.
#[derive(Debug)]
pub struct Open(Arc<Ready>, u64);

/// Tells when to look.
#[derive(Debug)]
pub struct Looks {
    ready: Arc<Ready>,
    /// The same epoll instance, registered with the runtime.
    epoll: AsyncFd<OwnedFd>,
}

impl Looks {
    /// Ready each time that something may be found.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.ready.engine.register(context.waker());
        let is_again = self.ready.again.swap(false, Ordering::Relaxed);
        match self.epoll.poll_read_ready(context) {
            // The look comes later, so that nothing is missed.
            Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
            _ if is_again => {}
            _ => return Poll::Pending,
        }
        Poll::Ready(())
    }
}

/// What is ready.
pub(super) enum Found {
    Client(ClientId, EpollFlags),
    Connection(OwnedFd),
}

impl Ready {
    /// Without clients.
    ///
    /// # Errors
    /// Errors of epoll_create1(2).
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            listeners: Mutex::default(),
            again: AtomicBool::new(false),
            engine: AtomicWaker::new(),
        }))
    }

    /// Tells when to look. Must be called within a runtime.
    ///
    /// # Errors
    /// Errors of dup(2) and epoll_ctl(2).
    pub fn looks(self: &Arc<Self>) -> io::Result<Looks> {
        let epoll = fd::watch(self.epoll.0.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Looks { ready: Arc::clone(self), epoll })
    }

    /// Has the engine look, although the kernel may have nothing new.
    pub(super) fn look_again(&self) {
        self.again.store(true, Ordering::Relaxed);
        self.engine.wake();
    }

    /// Watches a client. What it has sent already counts.
    pub(super) fn add(&self, client: ClientId, stream: &OwnedFd) -> io::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        Ok(self.epoll.add(stream, EpollEvent::new(flags, client.0))?)
    }

    /// Ends that for a client whose connection others have, too. Without them, the end of the descriptor is enough.
    pub(super) fn remove(&self, stream: &OwnedFd) {
        // It is there.
        let _ = self.epoll.delete(stream);
    }

    /// Lets clients in that connect at a non-blocking socket.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2).
    pub(super) fn open(self: &Arc<Self>, listener: UnixListener) -> io::Result<Open> {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let number = listeners.last_key_value().map_or(LISTENERS, |(last, _)| last + 1);
        self.epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        listeners.insert(number, listener);
        Ok(Open(Arc::clone(self), number))
    }

    /// Looks once. Returns whether there may be more.
    pub(super) fn look(self: &Arc<Self>, mut found: impl FnMut(Found)) -> bool {
        let mut events = [EpollEvent::empty(); BATCH];
        // Only a signal makes it fail.
        let Ok(count) = self.epoll.wait(&mut events, EpollTimeout::ZERO) else { return true };
        let events = events.get(..count).unwrap_or_default();
        let is_listener = |event: &&EpollEvent| event.data() >= LISTENERS;
        for client in events.iter().filter(|event| !is_listener(event)) {
            found(Found::Client(ClientId(client.data()), client.events()));
        }
        let mut is_more = count == BATCH;
        for listener in events.iter().filter(is_listener) {
            is_more = true;
            found(Found::Connection(match self.accept(listener.data()) {
                Some(stream) => stream,
                None => continue,
            }));
        }
        is_more
    }

    fn accept(self: &Arc<Self>, number: u64) -> Option<OwnedFd> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = listeners.get(&number)?;
        match listener.accept() {
            Ok((stream, _)) => return Some(stream.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                debug!(%error, "cannot accept a client of ACM");
                self.remove_for_a_while(number, listener);
            }
        }
        None
    }

    /// It would be ready again at once.
    fn remove_for_a_while(self: &Arc<Self>, number: u64, listener: &UnixListener) {
        let _ = self.epoll.delete(listener);
        let this = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(PAUSE).await;
            let listeners = this.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(listener) = listeners.get(&number) {
                let _ = this.epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, number));
            }
        });
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut listeners = self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        // systemd may have the socket, too, so the end of the descriptor is not enough.
        if let Some(listener) = listeners.remove(&self.1) {
            let _ = self.0.epoll.delete(&listener);
        }
    }
}
