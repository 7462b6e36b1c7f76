// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The addresses of names, as the system's resolver says (getaddrinfo(3), nsswitch.conf).
//!
//! The resolver may take as long as its slowest server, or for ever. So it has threads of its own, and nothing but
//! these names waits for it.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ibarr_common::Instant;
use ibarr_common::wire::acm::Name;
use ibarr_proto::acm::NotNamed;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::sys::clock;

/// How many names are looked up at once.
pub const THREADS: usize = 4;

/// Looks names up, see the [module](self).
#[derive(Debug)]
pub struct Names {
    asked: mpsc::Sender<Asked>,
    /// Until the first name is asked for.
    waiting: Option<Threads>,
}

/// The addresses of a name.
#[derive(Debug)]
pub struct Named {
    /// The name.
    pub name: Name,
    /// Its addresses, in the resolver's order.
    pub addresses: Result<Vec<IpAddr>, NotNamed>,
}

#[derive(Debug)]
struct Asked {
    name: Name,
    deadline: Instant,
}

/// What the threads share.
#[derive(Clone, Debug)]
struct Threads {
    asked: Arc<Mutex<mpsc::Receiver<Asked>>>,
    named: mpsc::Sender<Named>,
    look_up: LookUp,
}

/// Finds the addresses of a name, and may block.
pub type LookUp = fn(&str) -> io::Result<Vec<IpAddr>>;

/// Asks the system's resolver.
///
/// # Errors
/// Those of getaddrinfo(3).
pub fn look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

impl Names {
    /// The threads start with the first name, because few nodes serve ACM.
    pub fn new(look_up: LookUp) -> (Self, mpsc::Receiver<Named>) {
        let (asked, asks) = mpsc::channel(super::NAMES);
        let (named, answers) = mpsc::channel(super::NAMES);
        let waiting = Threads { asked: Arc::new(Mutex::new(asks)), named, look_up };
        (Self { asked, waiting: Some(waiting) }, answers)
    }

    /// Asks for a name without waiting. Returns whether [`Named`] follows: otherwise there are no threads, or the
    /// queue is full.
    pub fn ask(&mut self, name: Name, deadline: Instant) -> bool {
        if let Some(threads) = self.waiting.take() {
            threads.start();
        }
        self.asked.try_send(Asked { name, deadline }).is_ok()
    }
}

impl Threads {
    fn start(self) {
        for _ in 0..THREADS {
            let this = self.clone();
            let started = thread::Builder::new().name("names".to_owned()).spawn(move || this.run());
            if let Err(error) = started {
                // The others do its work. Without any, the channel is closed.
                warn!(%error, "cannot start a thread for the system's resolver");
            }
        }
    }

    fn run(&self) {
        while let Some(Asked { name, deadline }) = self.next() {
            let addresses = if clock::now() < deadline {
                (self.look_up)(name.as_str()).map_err(|error| {
                    debug!(?name, %error, "the system's resolver knows no address");
                    NotNamed::Unknown
                })
            } else {
                Err(NotNamed::Late)
            };
            if self.named.blocking_send(Named { name, addresses }).is_err() {
                return;
            }
        }
    }

    /// One thread waits for the queue, the others for that thread.
    fn next(&self) -> Option<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as std_mpsc;
    use std::time::Duration;

    use super::*;

    /// What releases the look-ups of names that begin with `hang`.
    static HELD: Mutex<Option<std_mpsc::Receiver<()>>> = Mutex::new(None);

    fn stand_in(name: &str) -> io::Result<Vec<IpAddr>> {
        if name.starts_with("hang") {
            // Until the sender is dropped.
            HELD.lock().unwrap().as_ref().unwrap().recv().unwrap_err();
        }
        if name == "nobody" { Err(io::Error::other("no such name")) } else { Ok(vec![ADDRESS]) }
    }

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 5));

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn hanging_resolver_delays_neither_other_names_nor_the_caller() {
        let (release, held) = std_mpsc::channel();
        *HELD.lock().unwrap() = Some(held);
        let (mut names, mut answers) = Names::new(stand_in);
        let soon = clock::now() + Duration::from_hours(1);
        for n in 1..THREADS {
            assert!(names.ask(name(&format!("hang{n}")), soon));
        }
        // One thread is left for the others.
        for other in ["node5", "nobody"] {
            assert!(names.ask(name(other), soon));
            let answer = answers.blocking_recv().unwrap();
            let expected =
                if other == "node5" { Ok(vec![ADDRESS]) } else { Err(NotNamed::Unknown) };
            assert_eq!((answer.name, answer.addresses), (name(other), expected));
        }
        // When all hang, the queue is bounded, and asking never waits.
        let queued = (0..2 * crate::transport::NAMES).filter(|_| names.ask(name("hang"), soon));
        let queued = queued.count();
        assert!(
            (crate::transport::NAMES..=crate::transport::NAMES + 1).contains(&queued),
            "{queued}"
        );
        drop(release);
        for _ in 0..queued + THREADS - 1 {
            assert_eq!(answers.blocking_recv().unwrap().addresses, Ok(vec![ADDRESS]));
        }
    }

    #[test]
    fn name_without_a_waiting_client_is_not_looked_up() {
        fn never(_: &str) -> io::Result<Vec<IpAddr>> {
            panic!("it is too late")
        }
        let (mut names, mut answers) = Names::new(never);
        assert!(names.ask(name("node5"), Instant::BOOT));
        assert_eq!(answers.blocking_recv().unwrap().addresses, Err(NotNamed::Late));
    }

    #[test]
    fn resolver_of_the_system_reads_numbers_without_a_network() {
        assert_eq!(look_up("10.2.0.5").unwrap(), [ADDRESS]);
        assert!(look_up("").is_err());
    }
}
