// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Where an end of the protocol is.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Origin or destination of a datagram, written `udp:ADDRESS:PORT` or `unix:PATH`.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Address {
    Udp(SocketAddr),
    Unix(PathBuf),
}

/// It is not an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("write udp:ADDRESS:PORT or unix:PATH, like udp:192.0.2.1:7471")]
pub struct AddressError;

impl Address {
    /// Whether only programs of this machine can send there.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Udp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.split_once(':') {
            Some(("udp", address)) => address.parse().map(Self::Udp).map_err(|_| AddressError),
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            _ => Err(AddressError),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_unix_sockets_are_local() {
        for (text, is_local) in [
            ("udp:127.0.0.1:7471", true),
            ("udp:127.9.9.9:0", true),
            ("udp:[::1]:7471", true),
            ("unix:/run/fabric", true),
            ("udp:0.0.0.0:7471", false),
            ("udp:[::]:7471", false),
            ("udp:192.0.2.1:7471", false),
            ("udp:[::ffff:192.0.2.1]:7471", false),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.is_local(), is_local, "{text}");
            assert_eq!(address.to_string(), text);
        }
        for text in ["", "udp", "udp:", "udp:192.0.2.1", "udp:host:1", "unix:", "tcp:127.0.0.1:1"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError), "{text}");
        }
    }
}
