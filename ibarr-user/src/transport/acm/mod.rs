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

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ibarr_common::wire::acm::{MAX_REQUEST_LEN, length};
use ibarr_proto::acm::ClientId;
use ibarr_proto::places::{Places, Room};
use ibarr_proto::shares::User;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, Shutdown, getsockopt, recv, send, setsockopt, shutdown, sockopt};
use nix::sys::stat::fstat;
use nix::sys::time::{TimeVal, TimeValLike as _};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::debug;

pub use self::inherited::{CLIENT, Inherited, LAST_REPLY, NAME};
pub use self::listening::{FOR_LIBRDMACM, Listener, SocketFiles};
pub(crate) use self::ports::{Files, remove_stale};
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
    /// A client has connected.
    Connected(OwnedFd, User),
    /// A client has sent bytes, or closes its connection; see [`Clients::next`].
    Ready(ClientId),
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

/// The connected clients. No task waits for one: thousands are idle, and each costs an entry of a table. The
/// runtime's own epoll instance tells which of them are ready.
#[derive(Debug)]
pub struct Clients {
    events: mpsc::Sender<Event>,
    by_id: BTreeMap<ClientId, Client>,
    next: u64,
    ready: mpsc::UnboundedSender<ClientId>,
    last: LastReply,
    /// Those that have no room for their reply.
    full: Places<ClientId>,
    reading: Duration,
}

/// A socket where clients are accepted, until this is dropped.
#[derive(Debug)]
pub struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Client {
    stream: AsyncFd<OwnedFd>,
    user: User,
    /// Of the socket.
    inode: u64,
    tells: Arc<Tells>,
    /// The message whose reply is due, or is being written.
    asked: Option<Unanswered>,
}

#[derive(Clone, Copy, Debug)]
struct Unanswered {
    len: usize,
    /// There may be more to read after the reply.
    is_more: bool,
}

/// Tells the engine that a client is ready. It waits in the channel at most once, so the clients bound the channel.
#[derive(Debug)]
struct Tells {
    client: ClientId,
    ready: mpsc::UnboundedSender<ClientId>,
    has_told: AtomicBool,
}

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.has_told.swap(true, Ordering::Relaxed) {
            // The engine may have ended.
            let _ = self.ready.send(self.client);
        }
    }
}

impl Client {
    /// Has the runtime tell of the next bytes. Returns whether none follow those that are there.
    fn watch(&self) -> bool {
        self.tells.has_told.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.tells));
        let mut context = Context::from_waker(&waker);
        while let Poll::Ready(Ok(mut guard)) = self.stream.poll_read_ready(&mut context) {
            if guard.ready().is_read_closed() {
                return true;
            }
            guard.clear_ready();
        }
        false
    }

    /// Both directions are closed, so no reply can be read.
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
        poll(&mut fds, PollTimeout::ZERO).is_err()
            || fds[0].revents().is_some_and(|there| there.intersects(gone))
    }
}

impl Clients {
    /// Without clients. Those that have sent bytes go to `ready`, what else they do to `events`.
    pub fn new(
        events: mpsc::Sender<Event>,
        ready: mpsc::UnboundedSender<ClientId>,
        last: LastReply,
    ) -> Self {
        let full = Places::new(WAITING);
        let by_id = BTreeMap::new();
        Self { events, by_id, next: 0, ready, last, full, reading: READING }
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

    /// Waits for a new client's messages.
    ///
    /// # Errors
    /// If the runtime cannot watch it.
    pub fn admit(&mut self, stream: OwnedFd, user: User) -> io::Result<ClientId> {
        let inode = fstat(&stream)?.st_ino;
        let id = ClientId(self.next);
        self.next += 1;
        let stream = fd::watch(stream, Interest::READABLE)?;
        let ready = self.ready.clone();
        let tells = Arc::new(Tells { client: id, ready, has_told: AtomicBool::new(false) });
        let client = Client { stream, user, inode, tells, asked: None };
        if client.watch() {
            client.tells.wake_by_ref();
        }
        self.by_id.insert(id, client);
        Ok(id)
    }

    /// A second descriptor of a connection, for the next daemon.
    pub fn copy(&self, client: ClientId) -> Option<OwnedFd> {
        self.by_id.get(&client)?.stream.get_ref().try_clone().ok()
    }

    /// The next message of a client, whose reply is due then.
    pub fn next<'a>(
        &mut self,
        id: ClientId,
        buffer: &'a mut [u8; MAX_REQUEST_LEN],
    ) -> ReadResult<'a> {
        let Some(client) = self.by_id.get_mut(&id) else { return ReadResult::Nothing };
        // First, because the runtime tells only of bytes that come later.
        let is_over = client.watch();
        if is_over && client.is_gone() {
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
            Ok(_) => return if is_over { ReadResult::Gone } else { ReadResult::Part },
            Err(_) => there.len(),
        };
        client.asked = Some(Unanswered { len, is_more: is_over || there.len() > len });
        ReadResult::Message(there.get(..len).unwrap_or_default())
    }

    /// Writes the reply, or has a task write what has no room, and removes the client's request from its socket.
    /// Returns whether that worked.
    pub fn reply(&mut self, id: ClientId, bytes: &[u8]) -> bool {
        let Some(client) = self.by_id.get_mut(&id) else { return true };
        let Some(Unanswered { len, is_more }) = client.asked.take() else { return true };
        let stream = client.stream.get_ref();
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
            client.tells.wake_by_ref();
        }
        true
    }

    /// `None` if there is no room for it.
    fn write_later(&mut self, id: ClientId, rest: &[u8]) -> Option<()> {
        let client = self.by_id.get_mut(&id)?;
        let stream = client.stream.get_ref().try_clone().ok()?;
        let stream = fd::watch(stream, Interest::WRITABLE).ok()?;
        client.asked = Some(Unanswered { len: 0, is_more: true });
        if let Some(gone) = self.full.take(client.user, id).ok()? {
            self.by_id.get(&gone).inspect(|gone| hang_up(gone.stream.get_ref()));
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
            mark_half_a_reply(client.stream.get_ref(), false);
            client.tells.wake_by_ref();
        }
    }

    /// Leaves all clients, and what they have asked, to the next daemon, which inherits their connections.
    pub fn leave(&mut self) {
        self.by_id.clear();
    }

    /// Closes the connection.
    pub fn close(&mut self, client: ClientId) {
        self.full.leave(client);
        if let Some(Client { stream, .. }) = self.by_id.remove(&client) {
            hang_up(stream.get_ref());
        }
    }
}

/// Closes a connection, although systemd and a task may have it, too.
fn hang_up(stream: &OwnedFd) {
    // The client may have closed it already.
    let _ = shutdown(stream.as_raw_fd(), Shutdown::Both);
}

/// Accepts connections. Must be called within a runtime.
pub fn listen(listener: Listener, events: mpsc::Sender<Event>) -> Listening {
    Listening(tokio::spawn(accept(listener, events)).abort_handle())
}

/// Notes at a socket that its client has a part of a reply. The time-out for sending has no other meaning there,
/// because nothing waits in send(2), and the next daemon inherits it with the socket.
fn mark_half_a_reply(stream: &OwnedFd, has_part: bool) -> bool {
    setsockopt(stream, sockopt::SendTimeout, &TimeVal::seconds(has_part.into())).is_ok()
}

fn has_half_a_reply(stream: &OwnedFd) -> bool {
    getsockopt(stream, sockopt::SendTimeout).is_ok_and(|time| time.num_seconds() != 0)
}

async fn accept(listener: Listener, events: mpsc::Sender<Event>) {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let find = |stream: OwnedFd| (peer::user(stream.as_fd()), stream);
                let (user, stream) = match listener.port() {
                    None => find(stream),
                    // It may block.
                    Some(_) => match spawn_blocking(move || find(stream)).await {
                        Ok(found) => found,
                        Err(_) => continue,
                    },
                };
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream as StdUnixStream;

    use super::*;

    const USER: User = User(1);

    /// The longest reply.
    const LONGEST: usize = u16::MAX as usize;

    /// A request for an endpoint.
    const REQUEST: [u8; 16] = [1, 3, 0, 1, 1, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0];

    /// The service's end of a new connection, and the client's end.
    fn connection() -> (OwnedFd, StdUnixStream) {
        let (here, there) = StdUnixStream::pair().unwrap();
        (here.into(), there)
    }

    struct Events {
        others: mpsc::Receiver<Event>,
        ready: mpsc::UnboundedReceiver<ClientId>,
    }

    fn clients() -> (Clients, Events) {
        let (events, others) = mpsc::channel(8);
        let (sender, ready) = mpsc::unbounded_channel();
        let last = LastReply::alone().unwrap();
        (Clients::new(events, sender, last), Events { others, ready })
    }

    /// The next client with a message, and the length of that.
    async fn next(clients: &mut Clients, events: &mut Events) -> (ClientId, usize) {
        loop {
            tokio::select! {
                Some(client) = events.ready.recv() => {
                    if let ReadResult::Message(bytes) = clients.next(client, &mut [0; MAX_REQUEST_LEN]) {
                        return (client, bytes.len());
                    }
                }
                event = events.others.recv() => match event {
                    Some(Event::Taken(client)) => clients.taken(client),
                    other => panic!("{other:?}"),
                },
            }
        }
    }

    #[tokio::test]
    async fn client_that_is_ready_waits_in_the_queue_once() {
        let (mut clients, mut received) = clients();
        let (here, mut there) = connection();
        clients.admit(here, USER).unwrap();
        there.write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        assert!(clients.reply(client, &[9; 16]));
        there.write_all(&REQUEST).unwrap();
        while received.ready.is_empty() {
            tokio::task::yield_now().await;
        }
        (0..3).for_each(|_| clients.taken(client));
        assert_eq!(received.ready.len(), 1);
        // It is told of again after that.
        next(&mut clients, &mut received).await;
        clients.taken(client);
        assert_eq!(received.ready.len(), 1);
    }

    #[tokio::test]
    async fn longest_reply_is_one_write_into_a_socket_of_the_usual_size() {
        let (mut clients, mut received) = clients();
        let (here, mut there) = connection();
        clients.admit(here, USER).unwrap();
        for _ in 0..3 {
            there.write_all(&REQUEST).unwrap();
            let (client, _) = next(&mut clients, &mut received).await;
            assert!(clients.reply(client, &vec![7; LONGEST]));
            assert_eq!(clients.full.taken(), 0, "no rest");
            let mut reply = vec![0; LONGEST];
            there.read_exact(&mut reply).unwrap();
        }
    }

    #[tokio::test]
    async fn reply_without_room_goes_on_when_its_client_reads_and_others_are_served_meanwhile() {
        let (mut clients, mut received) = clients();
        let (small, mut slow) = connection();
        setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
        clients.admit(small, USER).unwrap();
        slow.write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        let reply: Vec<_> = (0..LONGEST).map(|at| u8::try_from(at % 251).unwrap()).collect();
        assert!(clients.reply(client, &reply));
        assert_eq!(clients.full.taken(), 1, "a rest waits");
        let (here, mut other) = connection();
        clients.admit(here, USER).unwrap();
        other.write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        assert!(clients.reply(client, &[9; 16]));
        other.read_exact(&mut [0; 16]).unwrap();
        // Another thread reads, because this one runs the client's task.
        let reading = spawn_blocking(move || {
            let mut read = vec![0; LONGEST];
            slow.read_exact(&mut read).unwrap();
            slow.write_all(&REQUEST).unwrap();
            (read, slow)
        });
        // The next request is read after the reply.
        let (_, len) = next(&mut clients, &mut received).await;
        assert_eq!((len, clients.full.taken()), (REQUEST.len(), 0));
        assert!(reading.await.unwrap().0 == reply);
    }

    #[tokio::test]
    async fn client_with_a_part_of_its_reply_loses_its_connection_to_the_next_daemon() {
        let (mut clients, mut received) = clients();
        let (small, mut slow) = connection();
        setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
        let copies = [(); 2].map(|()| small.try_clone().unwrap());
        clients.admit(small, USER).unwrap();
        slow.write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        assert!(clients.settle(&copies[0]), "nothing was written yet");
        assert!(clients.reply(client, &vec![7; LONGEST]));
        let (part, mut whole) = (slow.try_clone().unwrap(), vec![0; LONGEST]);
        // The next daemon finds the mark at the socket: its last reply may be another client's.
        assert!(has_half_a_reply(&copies[0]));
        let reading = spawn_blocking(move || slow.read_exact(&mut whole).unwrap());
        let Some(Event::Taken(client)) = received.others.recv().await else { panic!() };
        reading.await.unwrap();
        clients.taken(client);
        assert!(clients.settle(&copies[0]));
        part.try_clone().unwrap().write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        assert!(clients.reply(client, &vec![7; LONGEST]));
        assert!(!clients.settle(&copies[1]));
        let mut rest = Vec::new();
        assert!((&part).read_to_end(&mut rest).unwrap() < LONGEST, "a part, and then the end");
    }

    #[tokio::test]
    async fn users_with_full_sockets_leave_room_for_a_newcomer_and_root() {
        let (mut clients, mut received) = clients();
        let mut kept = Vec::new();
        let mut held = [0; 7];
        for user in [1, 2, 3, 4, 5, 6, 0] {
            for _ in 0..WAITING.of_user + 2 {
                let (small, mut slow) = connection();
                setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
                clients.admit(small, User(user)).unwrap();
                slow.write_all(&REQUEST).unwrap();
                // Those that have given way are ready, too.
                let client = loop {
                    let client = received.ready.recv().await.unwrap();
                    if let ReadResult::Message(_) = clients.next(client, &mut [0; MAX_REQUEST_LEN])
                    {
                        break client;
                    }
                };
                let has_room = clients.reply(client, &vec![7; LONGEST]);
                held[usize::try_from(user).unwrap()] += usize::from(has_room);
                kept.push((client, slow));
            }
        }
        assert_eq!(held[1], WAITING.of_user);
        assert!(held.iter().all(|held| *held > 0), "{held:?}");
        assert_eq!(clients.full.taken(), WAITING.all);
        // The first have given way.
        let Some(Event::NotTaken(gone)) = received.others.recv().await else { panic!() };
        assert!(kept[..WAITING.of_user].iter().any(|(client, _)| *client == gone));
        for (client, _) in &kept {
            clients.close(*client);
        }
        assert_eq!(clients.full.taken(), 0);
    }

    #[tokio::test]
    async fn client_that_never_reads_its_reply_loses_its_connection() {
        let (mut clients, mut received) = clients();
        clients.reading = Duration::ZERO;
        let (small, mut slow) = connection();
        setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
        clients.admit(small, USER).unwrap();
        slow.write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        assert!(clients.reply(client, &vec![7; LONGEST]));
        let Some(Event::NotTaken(other)) = received.others.recv().await else { panic!() };
        clients.close(other);
        assert_eq!((other, clients.full.taken()), (client, 0));
    }
}
