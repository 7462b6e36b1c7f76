// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the daemon inherits for clients of ACM. A descriptor that is not what its name says is refused.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike as _, SockaddrStorage, getsockname, getsockopt, sockopt,
};

use crate::causes::{Fault, fault};
use crate::sys::last_reply::LastReply;
use crate::sys::udp::socket_addr;

/// The name of a socket where clients connect (`FileDescriptorName=`).
pub const NAME: &str = "acm";

/// The name of a connection, which the last daemon had (`FDNAME=`).
pub const CLIENT: &str = "acm-client";

/// The name of the file with the last daemon's last reply.
pub const LAST_REPLY: &str = "acm-reply";

/// What the process has inherited for ACM.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The sockets where clients connect.
    pub listeners: Vec<OwnedFd>,
    /// Connections of the last daemon.
    pub clients: Vec<OwnedFd>,
    /// How far it has come.
    pub last: Option<LastReply>,
}

impl Inherited {
    /// Adds a descriptor of one of the three names.
    ///
    /// # Errors
    /// Why it cannot be used, with the remedy.
    pub fn add(&mut self, name: &str, fd: OwnedFd) -> Result<(), Fault> {
        match name {
            NAME => {
                check(&fd, true)?;
                self.listeners.push(fd);
            }
            CLIENT => {
                check(&fd, false)?;
                self.clients.push(fd);
            }
            LAST_REPLY => {
                let last = LastReply::inherit(&fd);
                let last =
                    last.map_err(|error| fault!("no daemon of this version made it: {error}"))?;
                self.last = Some(last);
            }
            _ => {
                return Err(fault!(
                    "its name is unknown: write FileDescriptorName=ip2gid, acm, or ls for a \
                     socket to the kernel"
                ));
            }
        }
        Ok(())
    }
}

/// Only this machine may connect: a stream of the Unix or a loopback address, which listens or does not.
fn check(fd: &OwnedFd, must_listen: bool) -> Result<(), Fault> {
    const WRITE: &str =
        "write ListenStream=/run/ibacm-unix.sock or 127.0.0.1:6125 in ibarr-acm.socket";
    let name: nix::Result<SockaddrStorage> = getsockname(fd.as_raw_fd());
    let name = name.map_err(|error| fault!("it is not a socket ({error}): {WRITE}"))?;
    if getsockopt(fd, sockopt::SockType) != Ok(SockType::Stream) {
        return Err(fault!("it is not a stream socket: {WRITE}"));
    }
    if (getsockopt(fd, sockopt::AcceptConn) == Ok(true)) != must_listen {
        let what = if must_listen { "it does not listen" } else { "it is not a connection" };
        return Err(fault!("{what}: {WRITE}"));
    }
    match socket_addr(&name).map(|address| address.ip()) {
        Some(ip) if ip.is_loopback() => Ok(()),
        Some(ip) => Err(fault!("other machines could ask at {ip}: {WRITE}")),
        None if name.family() == Some(AddressFamily::Unix) => Ok(()),
        None => Err(fault!("it is neither Unix nor TCP: {WRITE}")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixListener, UnixStream};

    use nix::sys::socket::{SockFlag, socket};

    use super::*;
    use crate::tests::{ShortDir, on_own_network};

    fn refusal(name: &str, fd: impl Into<OwnedFd>) -> Option<String> {
        Inherited::default().add(name, fd.into()).err().map(|fault| fault.to_string())
    }

    fn socket_of(family: AddressFamily, of: SockType) -> OwnedFd {
        socket(family, of, SockFlag::SOCK_CLOEXEC, None).unwrap()
    }

    fn tcp(ip: impl Into<IpAddr>) -> TcpListener {
        TcpListener::bind((ip.into(), 0)).unwrap()
    }

    #[test]
    fn inherited_socket_that_other_machines_reach_is_refused() {
        assert_eq!(refusal(NAME, tcp(Ipv4Addr::LOCALHOST)), None);
        for ip in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            assert!(refusal(NAME, tcp(ip)).unwrap().contains("127.0.0.1:6125"));
        }
    }

    #[test]
    fn inherited_descriptor_of_another_kind_is_refused() {
        use AddressFamily::{Inet, Netlink, Unix};
        if !on_own_network(|| ()) {
            return;
        }
        let dir = ShortDir::new();
        let listener = || UnixListener::bind(dir.path().join("acm")).unwrap();
        let server = tcp(Ipv4Addr::LOCALHOST);
        let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        assert_eq!(refusal(CLIENT, client), None);
        assert_eq!(refusal(CLIENT, UnixStream::pair().unwrap().0), None);
        for (name, fd, reason) in [
            (NAME, UdpSocket::bind("127.0.0.1:0").unwrap().into(), "not a stream"),
            (NAME, socket_of(Unix, SockType::Datagram), "not a stream"),
            (NAME, socket_of(Unix, SockType::SeqPacket), "not a stream"),
            (NAME, socket_of(Netlink, SockType::Raw), "not a stream"),
            (NAME, socket_of(Unix, SockType::Stream), "does not listen"),
            (NAME, socket_of(Inet, SockType::Stream), "does not listen"),
            (NAME, UnixStream::pair().unwrap().0.into(), "does not listen"),
            (NAME, tempfile::tempfile().unwrap().into(), "not a socket"),
            (CLIENT, listener().into(), "not a connection"),
            (CLIENT, socket_of(Unix, SockType::Datagram), "not a stream"),
            (CLIENT, tempfile::tempfile().unwrap().into(), "not a socket"),
            (LAST_REPLY, tempfile::tempfile().unwrap().into(), "of this version"),
            ("acm-server", server.into(), "name is unknown"),
        ] {
            let refusal = refusal(name, fd);
            assert!(refusal.as_ref().is_some_and(|it| it.contains(reason)), "{name}: {refusal:?}");
        }
    }
}
