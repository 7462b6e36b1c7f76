// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Servers that send each request of ACM back: what the machine allows without decisions. One moves messages with
//! the daemon's own code. The other is the least that keeps a request in its socket until the reply: four kinds
//! of system calls, and no runtime.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::Permissions;
use std::future::poll_fn;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use ibarr_common::wire::acm::MAX_REQUEST_LEN;
use ibarr_user::sys::descriptors::raise_limit;
use ibarr_user::sys::last_reply::LastReply;
use ibarr_user::transport::acm::{Clients, Event, Listener, Next, ReadResult, Ready, listen};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, recv, send};
use tokio::sync::mpsc;

use super::echo::say_ready;

/// Serves at `socket` with the daemon's own code, until killed.
///
/// # Errors
/// The socket is taken.
pub fn serve(socket: &Path) -> Result<()> {
    raise_limit()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(runtime.spawn(echo(bind(socket)?)))?
}

async fn echo(listener: UnixListener) -> Result<()> {
    let (sender, mut events) = mpsc::channel(64);
    let ready = Ready::new()?;
    let mut looks = ready.looks()?;
    let mut clients = Clients::new(sender.clone(), Arc::clone(&ready), LastReply::alone()?);
    let _listening = listen(Listener::inherited(listener.into())?, &ready, &sender)?;
    say_ready()?;
    let (mut buffer, mut found) = ([0; MAX_REQUEST_LEN], Vec::new());
    loop {
        tokio::select! {
            () = poll_fn(|context| looks.poll(context)) => {
                if clients.look(&mut found) {
                    clients.look_again();
                }
            }
            event = events.recv() => match event {
                Some(Event::Taken(client)) => clients.taken(client),
                Some(Event::NotTaken(client)) => clients.close(client),
                Some(Event::Connected(..) | Event::Ready) | None => bail!("no such event"),
            },
        }
        for next in found.drain(..) {
            match next {
                Next::Connected(stream, user) => drop(clients.admit(stream, user, false)),
                Next::Ready(client) => match clients.next(client, &mut buffer) {
                    ReadResult::Nothing | ReadResult::Part => {}
                    ReadResult::Message(bytes) => {
                        let reply = bytes.to_vec();
                        clients.reply(client, &reply);
                    }
                    ReadResult::Gone => clients.close(client),
                },
            }
        }
    }
}

/// Serves at `socket` with the fewest system calls, until killed.
///
/// # Errors
/// The socket is taken, or a system call fails.
pub fn plain(socket: &Path) -> Result<Infallible> {
    const LISTENER: u64 = u64::MAX;
    raise_limit()?;
    let listener = bind(socket)?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let mut clients: HashMap<u64, UnixStream> = HashMap::new();
    // As many as the runtime of the daemon asks for.
    let mut events = [EpollEvent::empty(); 1024];
    let (mut peeked, mut bytes) = ([0; MAX_REQUEST_LEN], [0; MAX_REQUEST_LEN]);
    say_ready()?;
    loop {
        let count = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in events.get(..count).unwrap_or_default() {
            let number = event.data();
            if number == LISTENER {
                let (stream, _) = listener.accept()?;
                let number = u64::try_from(stream.as_raw_fd())?;
                epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
                clients.insert(number, stream);
                continue;
            }
            let Some(client) = clients.get(&number) else { continue };
            let fd = client.as_raw_fd();
            let len = recv(fd, &mut peeked, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)?;
            let Some(request) = bytes.get_mut(..len).filter(|_| len > 0) else {
                clients.remove(&number);
                continue;
            };
            recv(fd, request, MsgFlags::MSG_DONTWAIT)?;
            send(fd, request, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)?;
        }
    }
}

fn bind(socket: &Path) -> Result<UnixListener> {
    // The server before this one has left it.
    drop(std::fs::remove_file(socket));
    let bind = || -> std::io::Result<_> {
        let listener = UnixListener::bind(socket)?;
        // The clients are other users.
        std::fs::set_permissions(socket, Permissions::from_mode(0o666))?;
        Ok(listener)
    };
    bind().with_context(|| socket.display().to_string())
}
