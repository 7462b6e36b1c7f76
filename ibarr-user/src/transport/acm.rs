// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The clients of ACM, at a Unix socket where they look for ibacm.
//!
//! A request stays in the socket until its reply is written: a daemon that takes over the connection finds it.
//! What a socket has no room for is written by a task, so that a client that reads late delays nothing else.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ibarr_common::wire::acm::{MAX_REQUEST_LEN, length};
use ibarr_proto::acm::ClientId;
use ibarr_proto::shares::User;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::debug;

use crate::sys::fd;
use crate::sys::peer::Peer;

/// The name of an inherited socket where clients connect (`FileDescriptorName=`).
pub const NAME: &str = "acm";

/// The name of an inherited connection, which the last daemon had (`FDNAME=`).
pub const CLIENT: &str = "acm-client";

/// Where librdmacm looks, a link beside the socket.
const FOR_LIBRDMACM: &str = "ibacm.sock";

/// How long a client may take to read a reply for which its socket has no room. With the usual size of 208 kB
/// that needs several replies that it has not read.
const READING: Duration = Duration::from_secs(2);

/// How many bytes of replies may wait for room in all sockets. A client above that loses its connection.
const WAITING: usize = 4 << 20;

/// Pause after an error of accept(2).
const PAUSE: Duration = Duration::from_millis(100);

/// What the process has inherited.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The socket where clients connect.
    pub listener: Option<OwnedFd>,
    /// Connections of the last daemon.
    pub clients: Vec<OwnedFd>,
}

/// An input of the engine.
#[derive(Debug)]
pub enum Event {
    /// A client has connected.
    Connected(OwnedFd),
    /// A client has sent bytes, or closes its connection; see [`Clients::next`].
    Ready(Ready),
    /// A client has read the reply for which its socket had no room, see [`Clients::taken`].
    Taken(ClientId),
    /// It has not.
    NotTaken(ClientId),
}

/// The part of a reply for which a socket has no room.
#[derive(Debug)]
struct Rest {
    bytes: Vec<u8>,
    /// Its part of [`WAITING`].
    _room: OwnedSemaphorePermit,
}

/// What the kernel says of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The client.
    pub client: ClientId,
    /// No bytes follow those that are there.
    is_over: bool,
    /// Both directions are closed, so no reply can be read.
    is_gone: bool,
}

/// What a client has sent.
#[derive(Debug, Eq, PartialEq)]
pub enum Sent<'a> {
    /// No message yet, or its reply to the last one is still due.
    Nothing,
    /// A message, which stays in the socket until its reply; or bytes that are none, all that are there.
    Message(&'a [u8]),
    /// The client has left.
    Gone,
}

/// The connected clients. One task waits for all of them: thousands are idle, and each costs an entry of a table.
#[derive(Debug)]
pub struct Clients {
    events: mpsc::Sender<Event>,
    by_id: HashMap<ClientId, Client>,
    next: u64,
    watched: Arc<Epoll>,
    /// For the rests of replies.
    room: Arc<Semaphore>,
    reading: Duration,
    /// The task that accepts connections.
    accepting: Option<AbortHandle>,
}

#[derive(Debug)]
struct Client {
    stream: OwnedFd,
    /// The message whose reply is due, or is being written.
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    len: usize,
    /// There may be more to read after the reply.
    is_more: bool,
}

impl Clients {
    /// Without clients. What they do goes to `events`. Must be called within a runtime.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(events: mpsc::Sender<Event>) -> io::Result<Self> {
        let watched = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        let watch = fd::watch(watched.0.try_clone()?, Interest::READABLE)?;
        tokio::spawn(tell(watch, Arc::clone(&watched), events.clone()));
        let room = Arc::new(Semaphore::new(WAITING));
        let by_id = HashMap::new();
        Ok(Self { events, by_id, next: 0, watched, room, reading: READING, accepting: None })
    }

    /// Accepts connections. Must be called within a runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub fn listen(&mut self, listener: StdUnixListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let accepting = tokio::spawn(accept(listener, self.events.clone()));
        self.accepting = Some(accepting.abort_handle());
        Ok(())
    }

    /// Waits for a new client's messages. `None` if its user is not known, because it has left already.
    pub fn admit(&mut self, stream: OwnedFd) -> Option<(ClientId, User)> {
        let user = User(Peer::of(stream.as_fd()).ok()?.uid);
        let client = ClientId(self.next);
        self.next += 1;
        self.watched.add(&stream, interest(client)).ok()?;
        self.by_id.insert(client, Client { stream, asked: None });
        Some((client, user))
    }

    /// A second descriptor of a connection, for the next daemon.
    pub fn copy(&self, client: ClientId) -> Option<OwnedFd> {
        self.by_id.get(&client)?.stream.try_clone().ok()
    }

    /// The next message of a client, whose reply is due then.
    pub fn next<'a>(&mut self, ready: Ready, buffer: &'a mut [u8; MAX_REQUEST_LEN]) -> Sent<'a> {
        let Some(client) = self.by_id.get_mut(&ready.client) else { return Sent::Nothing };
        if ready.is_gone {
            return Sent::Gone;
        }
        if let Some(asked) = &mut client.asked {
            asked.is_more = true;
            return Sent::Nothing;
        }
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let there = match recv(client.stream.as_raw_fd(), buffer, flags) {
            Ok(len @ 1..) => buffer.get(..len).unwrap_or_default(),
            Err(Errno::EAGAIN) => return Sent::Nothing,
            Ok(0) | Err(_) => return Sent::Gone,
        };
        let len = match length(there) {
            Ok(Some(len)) if len <= there.len() => len,
            Ok(_) => return if ready.is_over { Sent::Gone } else { Sent::Nothing },
            Err(_) => there.len(),
        };
        client.asked = Some(Asked { len, is_more: ready.is_over || there.len() > len });
        Sent::Message(there.get(..len).unwrap_or_default())
    }

    /// Removes a client's request from its socket and writes the reply, or has a task write what has no room.
    /// Returns whether that worked.
    pub fn reply(&mut self, id: ClientId, bytes: &[u8]) -> bool {
        let Some(client) = self.by_id.get_mut(&id) else { return true };
        let Some(Asked { len, is_more }) = client.asked.take() else { return true };
        let fd = client.stream.as_raw_fd();
        let mut request = [0; MAX_REQUEST_LEN];
        let read = request.get_mut(..len).map(|request| recv(fd, request, MsgFlags::MSG_DONTWAIT));
        if read != Some(Ok(len)) {
            return false;
        }
        let sent = match send(fd, bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::EAGAIN) => 0,
            Err(_) => return false,
        };
        match bytes.get(sent..) {
            Some(rest @ [_, ..]) => self.write_later(id, rest).is_some(),
            // The kernel tells only of new bytes, unless it is asked again.
            _ => !is_more || self.watched.modify(&client.stream, &mut interest(id)).is_ok(),
        }
    }

    /// `None` if there is no room for it.
    fn write_later(&mut self, id: ClientId, rest: &[u8]) -> Option<()> {
        let client = self.by_id.get_mut(&id)?;
        let len = u32::try_from(rest.len()).ok()?;
        let room = Arc::clone(&self.room).try_acquire_many_owned(len).ok()?;
        let stream = StdUnixStream::from(client.stream.try_clone().ok()?);
        stream.set_nonblocking(true).ok()?;
        let stream = UnixStream::from_std(stream).ok()?;
        client.asked = Some(Asked { len: 0, is_more: true });
        let rest = Rest { bytes: rest.to_vec(), _room: room };
        let (events, reading) = (self.events.clone(), self.reading);
        tokio::spawn(async move {
            let written = timeout(reading, write(&stream, &rest.bytes)).await;
            drop((stream, rest));
            let event = if let Ok(Ok(())) = written { Event::Taken } else { Event::NotTaken };
            // The engine may have ended.
            let _ = events.send(event(id)).await;
        });
        Some(())
    }

    /// Reads the client's next message. Returns whether that works.
    pub fn taken(&mut self, id: ClientId) -> bool {
        let Some(client) = self.by_id.get_mut(&id) else { return true };
        client.asked = None;
        self.watched.modify(&client.stream, &mut interest(id)).is_ok()
    }

    /// Closes a connection, although systemd may have it, too.
    pub fn close(&mut self, client: ClientId) {
        if let Some(Client { stream, .. }) = self.by_id.remove(&client) {
            // systemd's copy would keep it watched. The client may have closed it already.
            let _ = self.watched.delete(&stream);
            let _ = shutdown(stream.as_raw_fd(), Shutdown::Both);
        }
    }

    /// Accepts no more connections.
    pub fn stop_listening(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }
}

/// The socket that this process has made. Dropping it removes the socket and the link.
#[derive(Debug)]
pub struct Made {
    path: PathBuf,
    link: PathBuf,
}

impl Made {
    /// Makes the socket, if no process serves it.
    ///
    /// # Errors
    /// If another process serves it, or it cannot be made.
    pub fn bind(path: &Path) -> io::Result<(Self, StdUnixListener)> {
        match fs::symlink_metadata(path) {
            Ok(file) if !file.file_type().is_socket() => {
                return Err(io::Error::new(ErrorKind::AlreadyExists, "a file that is no socket"));
            }
            Ok(_) if StdUnixStream::connect(path).is_ok() => {
                return Err(ErrorKind::AddrInUse.into());
            }
            Ok(_) => fs::remove_file(path)?,
            Err(_) => {}
        }
        let listener = StdUnixListener::bind(path)?;
        let this = Self { path: path.to_owned(), link: path.with_file_name(FOR_LIBRDMACM) };
        // Any user may ask.
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        Ok((this, listener))
    }

    /// Makes the link, or removes it.
    ///
    /// # Errors
    /// If another file has its name.
    pub fn show_to_librdmacm(&self, is_shown: bool) -> io::Result<()> {
        match (is_shown, self.is_linked()) {
            (true, false) => symlink(&self.path, &self.link),
            (false, true) => fs::remove_file(&self.link),
            _ => Ok(()),
        }
    }

    fn is_linked(&self) -> bool {
        fs::read_link(&self.link).is_ok_and(|target| target == self.path)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // At worst a dead socket stays, which the next start replaces.
        drop(self.show_to_librdmacm(false));
        drop(fs::remove_file(&self.path));
    }
}

async fn accept(listener: UnixListener, events: mpsc::Sender<Event>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // It stays non-blocking, and leaves the runtime.
                let Ok(stream) = stream.into_std() else { continue };
                if events.send(Event::Connected(stream.into())).await.is_err() {
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

/// Tells which clients have sent something. While the engine is busy, the rest waits in the kernel, in turns.
async fn tell(watch: AsyncFd<OwnedFd>, watched: Arc<Epoll>, events: mpsc::Sender<Event>) {
    let mut ready = [EpollEvent::empty(); 64];
    loop {
        let Ok(mut guard) = watch.readable().await else { return };
        let count = match watched.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(error) => {
                debug!(%error, "cannot wait for clients of ACM");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if count < ready.len() {
            guard.clear_ready();
        }
        for event in ready.iter().take(count) {
            let flags = event.events();
            let is_gone = flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
            let is_over = is_gone || flags.contains(EpollFlags::EPOLLRDHUP);
            let client = ClientId(event.data());
            if events.send(Event::Ready(Ready { client, is_over, is_gone })).await.is_err() {
                return;
            }
        }
    }
}

async fn write(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Each arrival of bytes is told once, so that a request that stays in its socket is not told again and again.
fn interest(client: ClientId) -> EpollEvent {
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
    EpollEvent::new(flags, client.0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;

    /// The longest reply.
    const LONGEST: usize = u16::MAX as usize;

    /// A request for an endpoint.
    const REQUEST: [u8; 16] = [1, 3, 0, 1, 1, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0];

    /// The service's end of a new connection, and the client's end.
    fn connection() -> (OwnedFd, StdUnixStream) {
        let (here, there) = StdUnixStream::pair().unwrap();
        (here.into(), there)
    }

    /// The next client with a message, and the length of that.
    async fn next(clients: &mut Clients, events: &mut mpsc::Receiver<Event>) -> (ClientId, usize) {
        loop {
            match events.recv().await.unwrap() {
                Event::Ready(ready) => {
                    if let Sent::Message(bytes) = clients.next(ready, &mut [0; MAX_REQUEST_LEN]) {
                        return (ready.client, bytes.len());
                    }
                }
                Event::Taken(client) => assert!(clients.taken(client)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn longest_reply_is_one_write_into_a_socket_of_the_usual_size() {
        let (events, mut received) = mpsc::channel(8);
        let mut clients = Clients::new(events).unwrap();
        let (here, mut there) = connection();
        clients.admit(here).unwrap();
        for _ in 0..3 {
            there.write_all(&REQUEST).unwrap();
            let (client, _) = next(&mut clients, &mut received).await;
            assert!(clients.reply(client, &vec![7; LONGEST]));
            assert_eq!(clients.room.available_permits(), WAITING, "no rest");
            let mut reply = vec![0; LONGEST];
            there.read_exact(&mut reply).unwrap();
        }
    }

    #[tokio::test]
    async fn reply_without_room_goes_on_when_its_client_reads_and_others_are_served_meanwhile() {
        let (events, mut received) = mpsc::channel(8);
        let mut clients = Clients::new(events).unwrap();
        let (small, mut slow) = connection();
        setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
        clients.admit(small).unwrap();
        slow.write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        let reply: Vec<_> = (0..LONGEST).map(|at| u8::try_from(at % 251).unwrap()).collect();
        assert!(clients.reply(client, &reply));
        assert!(clients.room.available_permits() < WAITING, "a rest waits");
        let (here, mut other) = connection();
        clients.admit(here).unwrap();
        other.write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        assert!(clients.reply(client, &[9; 16]));
        other.read_exact(&mut [0; 16]).unwrap();
        // Another thread reads, because this one runs the client's task.
        let reading = tokio::task::spawn_blocking(move || {
            let mut read = vec![0; LONGEST];
            slow.read_exact(&mut read).unwrap();
            slow.write_all(&REQUEST).unwrap();
            (read, slow)
        });
        // The next request is read after the reply.
        let (_, len) = next(&mut clients, &mut received).await;
        assert_eq!((len, clients.room.available_permits()), (REQUEST.len(), WAITING));
        assert!(reading.await.unwrap().0 == reply);
    }

    #[tokio::test]
    async fn rests_of_all_replies_are_bounded() {
        let (events, mut received) = mpsc::channel(8);
        let mut clients = Clients::new(events).unwrap();
        let mut kept = Vec::new();
        let (mut held, mut refused) = (0, 0);
        for _ in 0..WAITING / LONGEST + 10 {
            let (small, mut slow) = connection();
            setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
            clients.admit(small).unwrap();
            slow.write_all(&REQUEST).unwrap();
            let (client, _) = next(&mut clients, &mut received).await;
            let has_room = clients.reply(client, &vec![7; LONGEST]);
            (held, refused) = (held + usize::from(has_room), refused + usize::from(!has_room));
            kept.push(slow);
        }
        assert!(held > 0 && refused > 0, "{held} {refused}");
        assert!(clients.room.available_permits() < LONGEST);
    }

    #[tokio::test]
    async fn client_that_never_reads_its_reply_loses_its_connection() {
        let (events, mut received) = mpsc::channel(8);
        let mut clients = Clients::new(events).unwrap();
        clients.reading = Duration::ZERO;
        let (small, mut slow) = connection();
        setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
        clients.admit(small).unwrap();
        slow.write_all(&REQUEST).unwrap();
        let (client, _) = next(&mut clients, &mut received).await;
        assert!(clients.reply(client, &vec![7; LONGEST]));
        let Some(Event::NotTaken(other)) = received.recv().await else { panic!() };
        assert_eq!((other, clients.room.available_permits()), (client, WAITING));
    }
}
