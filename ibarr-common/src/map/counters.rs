// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the programs count, and how the daemon names it.

use core::ops::Sub;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

crate::words! {
    /// The program that counts; its number is the index in the map of counters.
    Program {
        /// The tc ingress program.
        Tc = "tc",
        /// The XDP program.
        Xdp = "xdp",
        /// The filter on the daemon's own sockets.
        Guard = "guard",
    }
}

impl Program {
    /// The index in the map of counters.
    pub const fn index(self) -> u32 {
        self as u32
    }
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $field:ident $variant:ident;)+) => {
        /// Result for a packet that may be a query. Packets whose protocol, length or port rules
        /// that out are not counted.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[repr(u32)]
        pub enum Reason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Reason {
            /// Every reason, in the order of the fields of [`Counters`].
            pub const ALL: [Self; [$(Self::$variant),+].len()] = [$(Self::$variant),+];

            /// The name of the counter in [`Counters`].
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($field),)+
                }
            }

            /// What it counts, for people: its doc lines.
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),+).trim_ascii_start(),)+
                }
            }
        }

        /// Packets by result, of one program on one CPU.
        #[derive(
            Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq,
        )]
        #[repr(C)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl Counters {
            /// The number of packets with the result `reason`.
            pub const fn of(&self, reason: Reason) -> u64 {
                match reason {
                    $(Reason::$variant => self.$field,)+
                }
            }
        }
    };
}

reasons! {
    /// Queries answered (tc, xdp), or passed to the daemon (guard).
    answered Answered;
    /// Queries passed on because the daemon's lease had ended.
    lease_over LeaseOver;
    /// Queries passed on because answering is off on their interface.
    interface_off InterfaceOff;
    /// Queries that were not addressed to this host at the link layer.
    other_host OtherHost;
    /// Queries with a VLAN tag.
    vlan Vlan;
    /// Queries whose IP header has options, is of a fragment, or is malformed.
    ip_header IpHeader;
    /// Queries whose UDP header does not fit the datagram.
    udp_header UdpHeader;
    /// Queries whose UDP checksum is wrong, missing over IPv6, or not yet filled in.
    checksum Checksum;
    /// Datagrams to the port that are no legal query.
    malformed Malformed;
    /// Queries for another address than their destination.
    destination Destination;
    /// Queries whose source cannot ask: not unicast, loopback, one of this node's addresses, or port 0.
    source Source;
    /// Queries whose source is not in `allow`.
    not_allowed NotAllowed;
    /// Queries for an address that is not in the GID cache.
    unknown Unknown;
    /// Queries that found their entry while it was being replaced.
    replaced Replaced;
    /// Queries whose route back leaves by another interface, or is not known to the program.
    no_route NoRoute;
    /// Queries for whose reply the kernel had no room.
    no_room NoRoom;
}

impl Counters {
    /// The sum over all CPUs.
    #[must_use]
    pub fn sum<'a>(per_cpu: impl IntoIterator<Item = &'a Self>) -> Self {
        per_cpu.into_iter().fold(Self::default(), |sum, one| sum.combine(*one, u64::wrapping_add))
    }

    fn combine(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let mut words: [u64; Reason::ALL.len()] = zerocopy::transmute!(self);
        let others: [u64; Reason::ALL.len()] = zerocopy::transmute!(other);
        for (word, other) in words.iter_mut().zip(others) {
            *word = combine(*word, other);
        }
        zerocopy::transmute!(words)
    }
}

impl Sub for Counters {
    type Output = Self;

    /// The difference since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        self.combine(earlier, u64::wrapping_sub)
    }
}

const _: () = assert!(size_of::<Counters>() == 8 * Reason::ALL.len());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_the_counter_at_its_index() {
        let words: [u64; Reason::ALL.len()] = core::array::from_fn(|index| index as u64 + 1);
        let counters: Counters = zerocopy::transmute!(words);
        for reason in Reason::ALL {
            assert_eq!(counters.of(reason), u64::from(reason as u32) + 1, "{reason:?}");
        }
        assert_eq!(Counters::sum([&counters, &counters]).of(Reason::LeaseOver), 4);
        assert_eq!(Counters::sum([&counters, &counters]) - counters, counters);
    }
}
