// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use core::ops::Sub;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Who counts: the index in the map of counters.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Program {
    /// tc ingress.
    Tc = 0,
    /// XDP.
    Xdp = 1,
    /// The socket filter on the daemon's own sockets.
    Guard = 2,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tc, Self::Xdp, Self::Guard];

    /// Index in the map of counters.
    pub const fn index(self) -> u32 {
        self as u32
    }
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $field:ident $variant:ident;)+) => {
        /// What became of a packet that may be a query. Packets that cannot be one by their
        /// protocol, length or port are not counted.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[repr(u32)]
        pub enum Reason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Reason {
            /// All of them, in the order of [`Counters`].
            pub const ALL: [Self; [$(Self::$variant),+].len()] = [$(Self::$variant),+];

            /// The name of its counter.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($field),)+
                }
            }
        }

        /// Packets by what became of them, of one program on one CPU.
        #[derive(
            Clone, Copy, Debug, Default, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq,
        )]
        #[repr(C)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl Counters {
            /// How many there were for `reason`.
            pub const fn of(&self, reason: Reason) -> u64 {
                match reason {
                    $(Reason::$variant => self.$field,)+
                }
            }
        }
    };
}

reasons! {
    /// Answered (tc, XDP), or passed to user space (guard).
    answered Answered;
    /// The daemon's lease is over.
    lease_over LeaseOver;
    /// The interface is not one to answer on.
    interface_off InterfaceOff;
    /// Not addressed to this host at the link layer.
    other_host OtherHost;
    /// In a VLAN.
    vlan Vlan;
    /// An IP header with options, of a fragment, or broken.
    ip_header IpHeader;
    /// A UDP header that does not fit the datagram.
    udp_header UdpHeader;
    /// The UDP checksum is wrong, or absent over IPv6, or not yet filled in.
    checksum Checksum;
    /// Not a query.
    malformed Malformed;
    /// Asks for another address than it is sent to.
    destination Destination;
    /// From a source that no one may ask from: not unicast, loopback, ours, port 0.
    source Source;
    /// From a source that `allow` does not hold.
    not_allowed NotAllowed;
    /// The address is not in the GID cache.
    unknown Unknown;
    /// The entry was being replaced.
    replaced Replaced;
    /// The way back leaves by another interface, or is not known.
    no_route NoRoute;
    /// The kernel could not make room for the reply.
    no_room NoRoom;
}

impl Counters {
    /// The sum over CPUs.
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

    /// What was counted since `earlier`.
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
