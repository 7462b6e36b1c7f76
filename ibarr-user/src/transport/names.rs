// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The addresses of names, as the system's resolver says (getaddrinfo(3), nsswitch.conf).
//!
//! The resolver may take as long as its slowest server, or for ever. So each name has a thread of its own, and nothing
//! but this name waits for it. The core bounds them.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::{io, thread};

use ibarr_common::wire::acm::Name;
use tokio::sync::mpsc;
use tracing::debug;

/// Looks names up, see the [module](self).
#[derive(Debug)]
pub(crate) struct Names {
    named: mpsc::Sender<Named>,
    resolve: fn(&str) -> io::Result<Vec<IpAddr>>,
}

/// The addresses of a name.
#[derive(Debug)]
pub(crate) struct Named {
    pub name: Name,
    /// Its addresses, in the resolver's order; none if it knows none.
    pub addresses: Vec<IpAddr>,
}

/// Asks the system's resolver.
///
/// # Errors
/// Those of getaddrinfo(3).
pub(crate) fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

impl Names {
    /// Looks names up by `resolve`.
    pub(crate) fn new(
        resolve: fn(&str) -> io::Result<Vec<IpAddr>>,
    ) -> (Self, mpsc::Receiver<Named>) {
        let (named, answers) = mpsc::channel(super::NAMES);
        (Self { named, resolve }, answers)
    }

    /// Asks for a name without waiting. [`Named`] follows.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn ask(&self, name: Name) -> io::Result<()> {
        let (named, resolve) = (self.named.clone(), self.resolve);
        let ask = move || {
            let addresses = resolve(name.as_str()).unwrap_or_else(|error| {
                debug!(?name, %error, "the system's resolver knows no address");
                Vec::new()
            });
            // The engine may have ended.
            let _ = named.blocking_send(Named { name, addresses });
        };
        thread::Builder::new().name("names".to_owned()).spawn(ask).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc as std_mpsc};

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
        let (names, mut answers) = Names::new(stand_in);
        for n in 0..20 {
            names.ask(name(&format!("hang{n}"))).unwrap();
        }
        for (other, addresses) in [("node5", vec![ADDRESS]), ("nobody", vec![])] {
            names.ask(name(other)).unwrap();
            let answer = answers.blocking_recv().unwrap();
            assert_eq!((answer.name, answer.addresses), (name(other), addresses));
        }
        drop(release);
        for _ in 0..20 {
            assert_eq!(answers.blocking_recv().unwrap().addresses, [ADDRESS]);
        }
    }

    #[test]
    fn resolver_of_the_system_reads_numbers_without_a_network() {
        assert_eq!(resolve("10.2.0.5").unwrap(), [ADDRESS]);
        assert!(resolve("").is_err());
    }
}
