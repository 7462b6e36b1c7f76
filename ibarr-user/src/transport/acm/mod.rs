// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The clients of ACM, at the sockets where they look for ibacm.
//!
//! A request stays in the socket until its reply is written: a daemon that takes over the connection finds it, and
//! by [`LastReply`] what became of the reply that its predecessor was writing.
//! What a socket has no room for is written by a task, so that a client that reads late delays nothing else. Its
//! socket is marked meanwhile, because that rest is lost with the daemon.

mod inherited;
mod listening;
mod ports;
mod ready;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ibarr_common::wire::acm::{MAX_REQUEST_LEN, length};
use ibarr_proto::acm::ClientId;
use ibarr_proto::places::{Places, Room};
use ibarr_proto::shares::User;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{MsgFlags, Shutdown, getsockopt, recv, send, setsockopt, shutdown, sockopt};
use nix::sys::stat::fstat;
use nix::sys::time::{TimeVal, TimeValLike as _};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::debug;

pub use self::inherited::{CLIENT, Inherited, LAST_REPLY, NAME};
pub use self::listening::{FOR_LIBRDMACM, Listener, SocketFiles};
pub(crate) use self::ports::{Files, remove_stale};
use self::ready::{BATCH, Found};
pub use self::ready::{Looks, Open, Ready};
use crate::sys::fd;
use crate::sys::last_reply::{LastReply, NextStep};
use crate::sys::peer;
use crate::transport::socket_file::PAUSE;

/// How long a client may take to read a reply for which its socket has no room. With the usual size of 208 kB
/// that needs several replies that it has not read.
const READING: Duration = Duration::from_secs(2);

/// How many replies, of 64 KiB at most, may wait for room in their sockets. A client above that, or one that gives
/// way, loses its connection.
const WAITING: Room = Room { all: 64, of_user: 16 };

/// An input of the engine.
#[derive(Debug)]
pub enum Event {
    /// A client has connected, at a TCP port.
    Connected(OwnedFd, User),
    /// Clients connect, or have sent bytes, or close their connections; see [`Clients::look`].
    Ready,
    /// A client has read the reply for which its socket had no room, see [`Clients::taken`].
    Taken(ClientId),
    /// It has not.
    NotTaken(ClientId),
}

/// What a client has sent.
#[derive(Debug, Eq, PartialEq)]
pub enum ReadResult<'a> {
    /// Nothing yet, or its reply to the last message is still due.
    Nothing,
    /// A part of a message.
    Part,
    /// A message, which stays in the socket until its reply; or bytes that are none, all that are there.
    Message(&'a [u8]),
    /// The client has left.
    Gone,
}

/// What a look has found.
#[derive(Debug)]
pub enum Next {
    /// A client has connected.
    Connected(OwnedFd, User),
    /// A client has sent bytes, or closes its connection; see [`Clients::next`].
    Ready(ClientId),
}

/// The connected clients. No task waits for one: thousands are idle, and each costs an entry of a table.
#[derive(Debug)]
pub struct Clients {
    events: mpsc::Sender<Event>,
    by_id: BTreeMap<ClientId, Client>,
    next: u64,
    ready: Arc<Ready>,
    /// Clients that have sent more than one request.
    again: VecDeque<ClientId>,
    last: LastReply,
    /// Those that have no room for their reply.
    full: Places<ClientId>,
    reading: Duration,
}

/// A socket where clients are accepted, until this is dropped.
#[derive(Debug)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Listening {
    Unix(Open),
    Tcp(Accepting),
}

/// A task that accepts clients, until this is dropped.
#[derive(Debug)]
pub struct Accepting(AbortHandle);

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Client {
    stream: OwnedFd,
    user: User,
    /// Of the socket.
    inode: u64,
    /// The message whose reply is due, or is being written.
    asked: Option<Unanswered>,
    /// It sends no more.
    is_over: bool,
    /// Both directions are closed, so no reply can be read.
    is_gone: bool,
    /// systemd or a task has the connection, too.
    is_shared: bool,
}

#[derive(Clone, Copy, Debug)]
struct Unanswered {
    len: usize,
    /// There may be more to read after the reply.
    is_more: bool,
}

impl Clients {
    /// Without clients. Late replies go to `events`.
    pub fn new(events: mpsc::Sender<Event>, ready: Arc<Ready>, last: LastReply) -> Self {
        let full = Places::new(WAITING);
        let (by_id, again) = (BTreeMap::new(), VecDeque::new());
        Self { events, by_id, next: 0, ready, again, last, full, reading: READING }
    }

    /// Finds some of those that connect or have sent something, in the order in which they are to be served: before
    /// another one is let in, and before the next look. Returns whether there may be more.
    pub fn look(&mut self, found: &mut Vec<Next>) -> bool {
        let again = self.again.drain(..self.again.len().min(BATCH));
        found.extend(again.map(Next::Ready));
        let by_id = &mut self.by_id;
        let is_more = self.ready.look(|each| match each {
            Found::Client(id, flags) => {
                let (over, gone) = (EpollFlags::EPOLLRDHUP, EpollFlags::EPOLLHUP);
                if flags.intersects(over | gone | EpollFlags::EPOLLERR)
                    && let Some(client) = by_id.get_mut(&id)
                {
                    client.is_over = true;
                    client.is_gone = flags.intersects(gone | EpollFlags::EPOLLERR);
                }
                found.push(Next::Ready(id));
            }
            Found::Connection(stream) => {
                let user = peer::user(stream.as_fd());
                found.push(Next::Connected(stream, user));
            }
        });
        is_more || !self.again.is_empty()
    }

    /// Has the engine look again.
    pub fn look_again(&self) {
        self.ready.look_again();
    }

    /// Ends what a killed daemon has begun for its client. Returns whether that can go on; otherwise it is closed.
    pub fn settle(&self, stream: &OwnedFd) -> bool {
        let left = fstat(stream).map(|file| self.last.left(file.st_ino));
        let can_go_on = match left {
            _ if has_half_a_reply(stream) => false,
            Ok(NextStep::Nothing) => true,
            Ok(NextStep::Request) => self.last.take(stream.as_fd()).is_ok(),
            Ok(NextStep::Rest) | Err(_) => false,
        };
        if !can_go_on {
            hang_up(stream);
        }
        can_go_on
    }

    /// Waits for a new client's messages. `is_shared` if systemd has the connection, too.
    ///
    /// # Errors
    /// If the kernel cannot watch it.
    pub fn admit(&mut self, stream: OwnedFd, user: User, is_shared: bool) -> io::Result<ClientId> {
        let inode = fstat(&stream)?.st_ino;
        let id = ClientId(self.next);
        self.ready.add(id, &stream)?;
        self.next += 1;
        let (is_over, is_gone, asked) = (false, false, None);
        let client = Client { stream, user, inode, asked, is_over, is_gone, is_shared };
        self.by_id.insert(id, client);
        Ok(id)
    }

    /// A second descriptor of a connection, for the next daemon.
    pub fn copy(&mut self, client: ClientId) -> Option<OwnedFd> {
        let client = self.by_id.get_mut(&client)?;
        let copy = client.stream.try_clone().ok()?;
        client.is_shared = true;
        Some(copy)
    }

    /// The next message of a client, whose reply is due then.
    pub fn next<'a>(
        &mut self,
        id: ClientId,
        buffer: &'a mut [u8; MAX_REQUEST_LEN],
    ) -> ReadResult<'a> {
        let Some(client) = self.by_id.get_mut(&id) else { return ReadResult::Nothing };
        if client.is_gone {
            return ReadResult::Gone;
        }
        if let Some(asked) = &mut client.asked {
            asked.is_more = true;
            return ReadResult::Nothing;
        }
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let there = match recv(client.stream.as_raw_fd(), buffer, flags) {
            Ok(len @ 1..) => buffer.get(..len).unwrap_or_default(),
            Err(Errno::EAGAIN) => return ReadResult::Nothing,
            Ok(0) | Err(_) => return ReadResult::Gone,
        };
        let len = match length(there) {
            Ok(Some(len)) if len <= there.len() => len,
            Ok(_) => return if client.is_over { ReadResult::Gone } else { ReadResult::Part },
            Err(_) => there.len(),
        };
        // The kernel tells only of bytes that come later.
        let is_more = client.is_over || there.len() > len || there.len() == MAX_REQUEST_LEN;
        client.asked = Some(Unanswered { len, is_more });
        ReadResult::Message(there.get(..len).unwrap_or_default())
    }

    /// Writes the reply, or has a task write what has no room, and removes the client's request from its socket.
    /// Returns whether that worked.
    pub fn reply(&mut self, id: ClientId, bytes: &[u8]) -> bool {
        let Some(client) = self.by_id.get_mut(&id) else { return true };
        let Some(Unanswered { len, is_more }) = client.asked.take() else { return true };
        let stream = &client.stream;
        let sent = match self.last.send(stream.as_fd(), client.inode, len, bytes) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return false,
        };
        let rest = bytes.get(sent..).unwrap_or_default();
        // In this order: until it is marked, the last reply says that it is a part.
        let is_marked = rest.is_empty() || mark_half_a_reply(stream, true);
        if !is_marked || self.last.take(stream.as_fd()).is_err() {
            return false;
        }
        if !rest.is_empty() {
            return self.write_later(id, rest).is_some();
        }
        if is_more {
            self.read_again(id);
        }
        true
    }

    fn read_again(&mut self, id: ClientId) {
        self.again.push_back(id);
        self.ready.look_again();
    }

    /// `None` if there is no room for it.
    fn write_later(&mut self, id: ClientId, rest: &[u8]) -> Option<()> {
        let client = self.by_id.get_mut(&id)?;
        let stream = client.stream.try_clone().ok()?;
        let stream = fd::watch(stream, Interest::WRITABLE).ok()?;
        client.is_shared = true;
        client.asked = Some(Unanswered { len: 0, is_more: true });
        if let Some(gone) = self.full.take(client.user, id).ok()? {
            self.by_id.get(&gone).inspect(|gone| hang_up(&gone.stream));
        }
        let (events, reading, rest) = (self.events.clone(), self.reading, rest.to_vec());
        tokio::spawn(async move {
            let written = timeout(reading, write(&stream, &rest)).await;
            drop((stream, rest));
            let event = if let Ok(Ok(())) = written { Event::Taken } else { Event::NotTaken };
            // The engine may have ended.
            let _ = events.send(event(id)).await;
        });
        Some(())
    }

    /// Reads the client's next message.
    pub fn taken(&mut self, id: ClientId) {
        self.full.leave(id);
        if let Some(client) = self.by_id.get_mut(&id) {
            client.asked = None;
            mark_half_a_reply(&client.stream, false);
            self.read_again(id);
        }
    }

    /// Leaves all clients, and what they have asked, to the next daemon, which inherits their connections.
    pub fn leave(&mut self) {
        self.by_id.clear();
    }

    /// Closes the connection.
    pub fn close(&mut self, client: ClientId) {
        self.full.leave(client);
        if let Some(Client { stream, is_shared: true, .. }) = self.by_id.remove(&client) {
            hang_up(&stream);
            self.ready.remove(&stream);
        }
    }
}

/// Closes a connection, although systemd and a task may have it, too.
fn hang_up(stream: &OwnedFd) {
    // The client may have closed it already.
    let _ = shutdown(stream.as_raw_fd(), Shutdown::Both);
}

/// Accepts connections. Must be called within a runtime.
///
/// # Errors
/// If the kernel cannot watch the socket.
pub fn listen(
    listener: Listener,
    ready: &Arc<Ready>,
    events: &mpsc::Sender<Event>,
) -> io::Result<Listening> {
    match listener {
        Listener::Unix(listener) => ready.open(listener).map(Listening::Unix),
        Listener::Tcp(listener) => {
            let task = tokio::spawn(accept(listener, events.clone()));
            Ok(Listening::Tcp(Accepting(task.abort_handle())))
        }
    }
}

/// Notes at a socket that its client has a part of a reply. The time-out for sending has no other meaning there,
/// because nothing waits in send(2), and the next daemon inherits it with the socket.
fn mark_half_a_reply(stream: &OwnedFd, has_part: bool) -> bool {
    setsockopt(stream, sockopt::SendTimeout, &TimeVal::seconds(has_part.into())).is_ok()
}

fn has_half_a_reply(stream: &OwnedFd) -> bool {
    getsockopt(stream, sockopt::SendTimeout).is_ok_and(|time| time.num_seconds() != 0)
}

/// A task, because it may block to find the user. Meanwhile the engine serves clients that wait.
async fn accept(listener: TcpListener, events: mpsc::Sender<Event>) {
    loop {
        let accepted = listener.accept().await.and_then(|(stream, _)| {
            // The end of a long reply does not wait until its start is acknowledged.
            stream.set_nodelay(true)?;
            Ok(OwnedFd::from(stream.into_std()?))
        });
        match accepted {
            Ok(stream) => {
                let find = move || (peer::user(stream.as_fd()), stream);
                let Ok((user, stream)) = spawn_blocking(find).await else { continue };
                if events.send(Event::Connected(stream, user)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                debug!(%error, "cannot accept a client of ACM");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn write(stream: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    while !bytes.is_empty() {
        let written = stream
            .async_io(Interest::WRITABLE, |stream| Ok(send(stream.as_raw_fd(), bytes, flags)?));
        bytes = bytes.get(written.await?..).unwrap_or_default();
    }
    Ok(())
}
