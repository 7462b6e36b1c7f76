// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! ip2gid: which GID has this IP address? Client and server of the protocol of
//! [`ibarr_common::wire::ip2gid`].
//!
//! [`client::Client`] asks peers and remembers their answers; [`server::Server`] answers peers from
//! the local view. They share only the codec.

mod prefixes;

pub mod client;
pub mod server;

use core::fmt;
use core::net::IpAddr;

use ibarr_common::IfIndex;
use ibarr_common::wire::ip2gid::{MsgId, Query, Version};

pub use prefixes::Prefixes;

/// Asks for the GID of `target`, optionally for datagrams that leave by `egress`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Question {
    target: IpAddr,
    egress: Option<IfIndex>,
}

impl Question {
    /// `None` if no interface can have `target`: unspecified, multicast, IPv4-mapped IPv6 and the
    /// limited broadcast address.
    ///
    /// With an `egress`, queries leave by the interface that a route lookup for it returns.
    pub fn new(target: IpAddr, egress: Option<IfIndex>) -> Option<Self> {
        // The codec decides which targets are legal.
        Query::new(Version::V1, MsgId(0), target).map(|_| Self { target, egress })
    }

    /// The address whose GID is asked for.
    pub fn target(&self) -> IpAddr {
        self.target
    }

    /// The interface that the caller's datagrams leave by.
    pub fn egress(&self) -> Option<IfIndex> {
        self.egress
    }

    /// The address family of the datagrams that carry it.
    pub fn family(&self) -> Family {
        Family::of(self.target)
    }
}

impl fmt::Display for Question {
    /// Prints the interface as in a scoped address: `fd00:2::5%4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)?;
        self.egress.map_or(Ok(()), |egress| write!(f, "%{egress}"))
    }
}

ibarr_common::words! {
    /// The version of IP.
    Family {
        /// IPv4.
        V4 = "IPv4",
        /// IPv6.
        V6 = "IPv6",
    }
}

impl Family {
    /// The family of `address`.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// Whether an address has a meaning only together with an interface.
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Makes [`counters!`](crate::counters!) for one side of the protocol, with the reasons for which
/// the codec refuses a datagram.
macro_rules! datagram_counters {
    (
        $(#[$of_enum:meta])*
        pub enum $name:ident {
            $($(#[doc = $doc:literal])+ $variant:ident = $kind:ident($text:literal),)+
        }
    ) => {
        $crate::counters! {
            $(#[$of_enum])*
            pub enum $name {
                $($(#[doc = $doc])+ $variant = $kind($text),)+
                /// Datagrams shorter than the lengths that they contain.
                MalformedTruncated = error("malformed-truncated"),
                /// Datagrams with bytes after the message.
                MalformedTrailingBytes = error("malformed-trailing-bytes"),
                /// Datagrams of an unsupported version.
                MalformedVersion = error("malformed-version"),
                /// Datagrams with the wrong number of TLVs for their message.
                MalformedTlvCount = error("malformed-tlv-count"),
                /// Datagrams with a TLV that their message does not have.
                MalformedTlvType = error("malformed-tlv-type"),
                /// Datagrams with a TLV of the wrong length for its type.
                MalformedTlvLength = error("malformed-tlv-length"),
                /// Datagrams about an address that no interface can have.
                MalformedTarget = error("malformed-target"),
                /// Datagrams with a GID that does not name a port.
                MalformedGid = error("malformed-gid"),
            }
        }

        impl From<::ibarr_common::wire::Error> for $name {
            fn from(error: ::ibarr_common::wire::Error) -> Self {
                use ::ibarr_common::wire::Error;
                match error {
                    Error::Truncated => Self::MalformedTruncated,
                    Error::TrailingBytes => Self::MalformedTrailingBytes,
                    Error::Version => Self::MalformedVersion,
                    Error::TlvCount => Self::MalformedTlvCount,
                    Error::TlvType => Self::MalformedTlvType,
                    Error::TlvLength => Self::MalformedTlvLength,
                    Error::Target => Self::MalformedTarget,
                    Error::Gid => Self::MalformedGid,
                }
            }
        }
    };
}
use datagram_counters;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_for_impossible_addresses_are_refused() {
        let question = |target: &str| Question::new(target.parse().unwrap(), IfIndex::new(4));
        assert_eq!(question("fd00:2::5").unwrap().to_string(), "fd00:2::5%4");
        for address in
            ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1", "::ffff:10.2.0.5"]
        {
            assert_eq!(question(address), None, "{address}");
        }
    }
}
