// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clients whose ends the tests have, too.

use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream as StdUnixStream};

use super::*;
use crate::tests::ShortDir;

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
    looks: Looks,
    found: VecDeque<Next>,
}

fn clients() -> (Clients, Events) {
    let (events, others) = mpsc::channel(8);
    let ready = Ready::new().unwrap();
    let looks = ready.looks().unwrap();
    let clients = Clients::new(events, ready, LastReply::alone().unwrap());
    (clients, Events { others, looks, found: VecDeque::new() })
}

fn look(clients: &mut Clients, events: &mut Events) {
    let mut found = Vec::new();
    if clients.look(&mut found) {
        clients.look_again();
    }
    events.found.extend(found);
}

/// The message of the next client that is ready, and the length of that.
fn read(clients: &mut Clients, events: &mut Events) -> Option<(ClientId, usize)> {
    let Next::Ready(client) = events.found.pop_front()? else { return None };
    match clients.next(client, &mut [0; MAX_REQUEST_LEN]) {
        ReadResult::Message(bytes) => Some((client, bytes.len())),
        _ => None,
    }
}

/// The next client with a message, and the length of that.
async fn next(clients: &mut Clients, events: &mut Events) -> (ClientId, usize) {
    loop {
        while !events.found.is_empty() {
            if let Some(next) = read(clients, events) {
                return next;
            }
        }
        tokio::select! {
            () = poll_fn(|context| events.looks.poll(context)) => look(clients, events),
            event = events.others.recv() => match event {
                Some(Event::Taken(client)) => clients.taken(client),
                other => panic!("{other:?}"),
            },
        }
    }
}

/// Looks until nothing is ready, lets clients in and answers them. Returns the order: `c` for a connection that is
/// let in, `a` for an answer.
fn serve(clients: &mut Clients, mut answered: impl FnMut(ClientId)) -> String {
    let (mut found, mut order) = (Vec::new(), String::new());
    let mut buffer = [0; MAX_REQUEST_LEN];
    while clients.look(&mut found) || !found.is_empty() {
        for next in found.drain(..) {
            match next {
                Next::Connected(stream, user) => {
                    clients.admit(stream, user, false).unwrap();
                    order.push('c');
                }
                Next::Ready(client) => {
                    let next = clients.next(client, &mut buffer);
                    assert!(matches!(next, ReadResult::Message(_)), "{next:?}");
                    assert!(clients.reply(client, &[9; 16]));
                    order.push('a');
                    answered(client);
                }
            }
        }
    }
    order
}

#[tokio::test]
async fn client_that_waits_is_served_before_the_next_is_let_in() {
    let dir = ShortDir::new();
    let path = dir.path().join("acm");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (mut clients, _received) = clients();
    let open = clients.ready.open(listener).unwrap();
    let visit = || {
        let mut stream = StdUnixStream::connect(&path).unwrap();
        stream.write_all(&REQUEST).unwrap();
        stream
    };
    let mut visitors: Vec<_> = (0..200).map(|_| visit()).collect();
    assert_eq!(serve(&mut clients, |_| {}), "ca".repeat(200));
    // One more is let in among clients that ask again and again.
    let newcomer = visit();
    for visitor in &mut visitors {
        visitor.write_all(&REQUEST).unwrap();
    }
    let mut answers = 0;
    let order = serve(&mut clients, |client| {
        answers += 1;
        if let Some(visitor) = visitors.get_mut(usize::try_from(client.0).unwrap())
            && answers < 2000
        {
            visitor.write_all(&REQUEST).unwrap();
        }
    });
    assert!(order.find('c').unwrap() <= 200 + BATCH, "{order}");
    // Nothing listens any more.
    drop((open, newcomer));
    assert!(StdUnixStream::connect(&path).is_err());
}

#[tokio::test]
async fn requests_that_were_sent_together_are_answered_one_by_one() {
    let (mut clients, _received) = clients();
    let (here, mut there) = connection();
    clients.admit(here, USER, false).unwrap();
    there.write_all(&REQUEST.repeat(100)).unwrap();
    assert_eq!(serve(&mut clients, |_| {}), "a".repeat(100));
}

#[tokio::test]
async fn longest_reply_is_one_write_into_a_socket_of_the_usual_size() {
    let (mut clients, mut received) = clients();
    let (here, mut there) = connection();
    clients.admit(here, USER, false).unwrap();
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
async fn reply_without_room_goes_on_later_and_delays_no_other_client() {
    let (mut clients, mut received) = clients();
    let (small, mut slow) = connection();
    setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
    clients.admit(small, USER, false).unwrap();
    slow.write_all(&REQUEST).unwrap();
    let (client, _) = next(&mut clients, &mut received).await;
    let reply: Vec<_> = (0..LONGEST).map(|at| u8::try_from(at % 251).unwrap()).collect();
    assert!(clients.reply(client, &reply));
    assert_eq!(clients.full.taken(), 1, "a rest waits");
    let (here, mut other) = connection();
    clients.admit(here, USER, false).unwrap();
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
async fn client_with_a_part_of_its_reply_loses_its_connection() {
    let (mut clients, mut received) = clients();
    let (small, mut slow) = connection();
    setsockopt(&small, sockopt::SndBuf, &4096).unwrap();
    let copies = [(); 2].map(|()| small.try_clone().unwrap());
    clients.admit(small, USER, false).unwrap();
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
            clients.admit(small, User(user), false).unwrap();
            slow.write_all(&REQUEST).unwrap();
            // Those that have given way are ready, too.
            let client = loop {
                match read(&mut clients, &mut received) {
                    Some((client, _)) => break client,
                    None => look(&mut clients, &mut received),
                }
            };
            let has_room = clients.reply(client, &vec![7; LONGEST]);
            // The tasks begin to write in this order.
            tokio::task::yield_now().await;
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
    clients.admit(small, USER, false).unwrap();
    slow.write_all(&REQUEST).unwrap();
    let (client, _) = next(&mut clients, &mut received).await;
    assert!(clients.reply(client, &vec![7; LONGEST]));
    let Some(Event::NotTaken(other)) = received.others.recv().await else { panic!() };
    clients.close(other);
    assert_eq!((other, clients.full.taken()), (client, 0));
}
