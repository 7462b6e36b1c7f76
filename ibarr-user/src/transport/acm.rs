// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The clients of ACM, at a Unix socket where they look for ibacm.
//!
//! A request stays in the socket until its reply is written: a daemon that takes over the connection finds it.
//! What a socket has no room for is written by the client's own task, so that a client that reads late delays
//! nothing else.

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
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::debug;

use crate::sys::peer::Peer;

/// The name of an inherited socket where clients connect (`FileDescriptorName=`).
pub const NAME: &str = "acm";

/// The name of an inherited connection, which the daemon before had (`FDNAME=`).
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
    /// Where clients connect.
    pub door: Option<OwnedFd>,
    /// Connections of the daemon before.
    pub clients: Vec<OwnedFd>,
}

/// An input of the engine.
#[derive(Debug)]
pub enum Event {
    /// Somebody has connected.
    Connected(UnixStream),
    /// A client has sent a message, whose reply is due.
    Message {
        /// The client.
        client: ClientId,
        /// The bytes.
        bytes: Vec<u8>,
        /// To be used after the reply: the client's next message is read.
        go_on: GoOn,
    },
    /// A client has closed its connection, or has sent what is no message.
    Gone(ClientId),
    /// A client has not read its reply.
    NotTaken(ClientId),
}

/// Hands the rest of a reply to the client's task.
pub type GoOn = oneshot::Sender<Rest>;

/// The part of a reply for which a socket has no room.
#[derive(Debug)]
pub struct Rest {
    bytes: Vec<u8>,
    /// Its part of [`WAITING`].
    _room: Option<OwnedSemaphorePermit>,
}

/// The connected clients.
#[derive(Debug)]
pub struct Clients {
    events: mpsc::Sender<Event>,
    by_id: HashMap<ClientId, Client>,
    next: u64,
    /// For the rests of replies.
    room: Arc<Semaphore>,
    reading: Duration,
    door: Option<AbortHandle>,
}

#[derive(Debug)]
struct Client {
    stream: Arc<UnixStream>,
    reader: AbortHandle,
    /// Length of the message whose reply is due.
    asked: Option<(usize, GoOn)>,
}

impl Clients {
    /// Without clients. What they do goes to `events`.
    pub fn new(events: mpsc::Sender<Event>) -> Self {
        Self {
            events,
            by_id: HashMap::new(),
            next: 0,
            room: Arc::new(Semaphore::new(WAITING)),
            reading: READING,
            door: None,
        }
    }

    /// Accepts connections. Must be called within a runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub fn listen(&mut self, listener: StdUnixListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let accepting = tokio::spawn(accept(listener, self.events.clone()));
        self.door = Some(accepting.abort_handle());
        Ok(())
    }

    /// Reads a new client's messages. `None` if its user is not known, because it has left already.
    pub fn admit(&mut self, stream: UnixStream) -> Option<(ClientId, User)> {
        let user = User(Peer::of(stream.as_fd()).ok()?.uid);
        let client = ClientId(self.next);
        self.next += 1;
        let stream = Arc::new(stream);
        let reader =
            tokio::spawn(read(client, Arc::clone(&stream), self.events.clone(), self.reading));
        let reader = reader.abort_handle();
        self.by_id.insert(client, Client { stream, reader, asked: None });
        Some((client, user))
    }

    /// A second descriptor of a connection, for the next daemon.
    pub fn copy(&self, client: ClientId) -> Option<OwnedFd> {
        self.by_id.get(&client)?.stream.as_fd().try_clone_to_owned().ok()
    }

    /// Notes that a client waits. Returns whether it is still connected.
    pub fn asked(&mut self, client: ClientId, len: usize, go_on: GoOn) -> bool {
        let known = self.by_id.get_mut(&client);
        known.is_some_and(|client| client.asked.replace((len, go_on)).is_none())
    }

    /// Removes a client's request from its socket and writes the reply, or has its task write what has no room.
    /// Returns whether that worked.
    pub fn reply(&mut self, client: ClientId, bytes: &[u8]) -> bool {
        let Some(client) = self.by_id.get_mut(&client) else { return true };
        let Some((len, go_on)) = client.asked.take() else { return true };
        let fd = client.stream.as_raw_fd();
        let mut request = [0; MAX_REQUEST_LEN];
        let read = request.get_mut(..len).map(|request| recv(fd, request, MsgFlags::MSG_DONTWAIT));
        let is_read = read == Some(Ok(len));
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        if !is_read {
            return false;
        }
        let sent = match send(fd, bytes, flags) {
            Ok(sent) => sent,
            Err(Errno::EAGAIN) => 0,
            Err(_) => return false,
        };
        let bytes = bytes.get(sent..).unwrap_or_default().to_vec();
        let room = match u32::try_from(bytes.len()) {
            Ok(0) => None,
            Ok(len) => match Arc::clone(&self.room).try_acquire_many_owned(len) {
                Ok(room) => Some(room),
                Err(_) => return false,
            },
            Err(_) => return false,
        };
        // The reader ends only with its client.
        let _ = go_on.send(Rest { bytes, _room: room });
        true
    }

    /// Closes a connection, although systemd may have it, too.
    pub fn close(&mut self, client: ClientId) {
        if let Some(Client { reader, stream, .. }) = self.by_id.remove(&client) {
            // The client may have done so already.
            let _ = shutdown(stream.as_raw_fd(), Shutdown::Both);
            reader.abort();
        }
    }

    /// Accepts nobody any more.
    pub fn shut_door(&mut self) {
        if let Some(door) = self.door.take() {
            door.abort();
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
    /// Makes the socket, if nobody serves it.
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

/// Takes over a connection.
///
/// # Errors
/// If the runtime cannot watch it, because it is no Unix socket.
pub fn inherit(fd: OwnedFd) -> io::Result<UnixStream> {
    let stream = StdUnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn accept(listener: UnixListener, events: mpsc::Sender<Event>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if events.send(Event::Connected(stream)).await.is_err() {
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

/// Hands on one message after the other.
async fn read(
    client: ClientId,
    stream: Arc<UnixStream>,
    events: mpsc::Sender<Event>,
    reading: Duration,
) {
    while let Some(bytes) = message(&stream).await {
        let (go_on, goes_on) = oneshot::channel();
        if events.send(Event::Message { client, bytes, go_on }).await.is_err() {
            return;
        }
        let Ok(rest) = goes_on.await else { break };
        if !matches!(timeout(reading, write(&stream, &rest.bytes)).await, Ok(Ok(()))) {
            // The engine may have ended.
            let _ = events.send(Event::NotTaken(client)).await;
            return;
        }
    }
    // The engine may have ended.
    let _ = events.send(Event::Gone(client)).await;
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

/// The next message, which stays in the socket. `None` if there will be none.
async fn message(stream: &UnixStream) -> Option<Vec<u8>> {
    loop {
        let ready = stream.ready(Interest::READABLE).await.ok()?;
        // Without a whole message this waits for more bytes, because it says that there are none.
        let peeked =
            stream.try_io(Interest::READABLE, || peek(stream)?.ok_or(ErrorKind::WouldBlock.into()));
        match peeked {
            Ok(bytes) => return Some(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock && !ready.is_read_closed() => {}
            Err(_) => return None,
        }
    }
}

/// A whole message, if there is one.
fn peek(stream: &UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = [0; MAX_REQUEST_LEN];
    let len = recv(stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)?;
    let there = buffer.get(..len).unwrap_or_default();
    if there.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    match length(there) {
        Ok(Some(wanted)) => Ok(there.get(..wanted).map(<[u8]>::to_vec)),
        Ok(None) => Ok(None),
        Err(_) => Err(ErrorKind::InvalidData.into()),
    }
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
    fn connection() -> (UnixStream, StdUnixStream) {
        let (here, there) = StdUnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        (UnixStream::from_std(here).unwrap(), there)
    }

    async fn next(events: &mut mpsc::Receiver<Event>) -> (ClientId, usize, GoOn) {
        loop {
            match events.recv().await.unwrap() {
                Event::Message { client, bytes, go_on } => return (client, bytes.len(), go_on),
                // Of a client whose reply was not sent.
                Event::Gone(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn longest_reply_is_one_write_into_a_socket_of_the_usual_size() {
        let (events, mut received) = mpsc::channel(8);
        let mut clients = Clients::new(events);
        let (here, mut there) = connection();
        clients.admit(here).unwrap();
        for _ in 0..3 {
            there.write_all(&REQUEST).unwrap();
            let (client, len, go_on) = next(&mut received).await;
            assert!(clients.asked(client, len, go_on));
            assert!(clients.reply(client, &vec![7; LONGEST]));
            assert_eq!(clients.room.available_permits(), WAITING, "no rest");
            let mut reply = vec![0; LONGEST];
            there.read_exact(&mut reply).unwrap();
        }
    }

    #[tokio::test]
    async fn reply_without_room_goes_on_when_its_client_reads_and_others_are_served_meanwhile() {
        let (events, mut received) = mpsc::channel(8);
        let mut clients = Clients::new(events);
        let (small, mut slow) = connection();
        setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
        clients.admit(small).unwrap();
        slow.write_all(&REQUEST).unwrap();
        let (client, len, go_on) = next(&mut received).await;
        assert!(clients.asked(client, len, go_on));
        let reply: Vec<_> = (0..LONGEST).map(|at| u8::try_from(at % 251).unwrap()).collect();
        assert!(clients.reply(client, &reply));
        assert!(clients.room.available_permits() < WAITING, "a rest waits");
        let (here, mut other) = connection();
        clients.admit(here).unwrap();
        other.write_all(&REQUEST).unwrap();
        let (client, len, go_on) = next(&mut received).await;
        assert!(clients.asked(client, len, go_on) && clients.reply(client, &[9; 16]));
        other.read_exact(&mut [0; 16]).unwrap();
        // Another thread reads, because this one runs the client's task.
        let reading = tokio::task::spawn_blocking(move || {
            let mut read = vec![0; LONGEST];
            slow.read_exact(&mut read).unwrap();
            slow.write_all(&REQUEST).unwrap();
            (read, slow)
        });
        // The next request is read after the reply.
        let (_, len, _) = next(&mut received).await;
        assert_eq!((len, clients.room.available_permits()), (REQUEST.len(), WAITING));
        assert!(reading.await.unwrap().0 == reply);
    }

    #[tokio::test]
    async fn rests_of_all_replies_are_bounded() {
        let (events, mut received) = mpsc::channel(8);
        let mut clients = Clients::new(events);
        let mut kept = Vec::new();
        let (mut held, mut refused) = (0, 0);
        for _ in 0..WAITING / LONGEST + 10 {
            let (small, mut slow) = connection();
            setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
            clients.admit(small).unwrap();
            slow.write_all(&REQUEST).unwrap();
            let (client, len, go_on) = next(&mut received).await;
            assert!(clients.asked(client, len, go_on));
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
        let mut clients = Clients::new(events);
        clients.reading = Duration::ZERO;
        let (small, mut slow) = connection();
        setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
        clients.admit(small).unwrap();
        slow.write_all(&REQUEST).unwrap();
        let (client, len, go_on) = next(&mut received).await;
        assert!(clients.asked(client, len, go_on) && clients.reply(client, &vec![7; LONGEST]));
        let Some(Event::NotTaken(other)) = received.recv().await else { panic!() };
        assert_eq!((other, clients.room.available_permits()), (client, WAITING));
    }
}
