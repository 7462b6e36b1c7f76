// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The code of `ip2gid_guard`: a socket filter that drops datagrams which the ip2gid server would
//! drop, so that they do not wake it. When it runs, the kernel has checked the headers and the
//! checksum, and the data begins with the UDP header (`net/ipv4/udp.c`, `udp_queue_rcv_one_skb`).

use core::mem::{MaybeUninit, offset_of};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya_ebpf::bindings::{__sk_buff, bpf_hdr_start_off};
use aya_ebpf::helpers::{bpf_skb_load_bytes, bpf_skb_load_bytes_relative};
use aya_ebpf::programs::SkBuffContext;
use ibarr_common::IfIndex;
use ibarr_common::map::{Program, Reason};
use ibarr_common::wire::ip2gid::{HeaderWire, Ipv4QueryWire, Ipv6QueryWire, MAX_LEN, can_ask};
use ibarr_ebpf::decide::{Datagram, Node as _, Source, guard};
use ibarr_ebpf::packet::{
    Aligned, Ipv4Header, Ipv4Query, Ipv6Header, Ipv6Query, QueryPacket, QueryPayload, UdpHeader,
    key_of_ipv4, key_of_ipv6,
};
use zerocopy::FromBytes;

use crate::log;
use crate::node::Maps;

/// Returns how many bytes of the datagram the kernel keeps.
#[inline]
pub(crate) fn judge(ctx: &SkBuffContext) -> i64 {
    let received = Received { ctx };
    match guard(&Maps, &received) {
        Ok(()) => {
            received.note(Reason::Answered);
            KEEP
        }
        Err(reason) => {
            received.note(reason);
            DROP
        }
    }
}

/// More than any datagram has.
const KEEP: i64 = 0xffff_ffff;
const DROP: i64 = 0;

struct Received<'a> {
    ctx: &'a SkBuffContext,
}

impl Datagram for Received<'_> {
    #[inline]
    fn is_query(&self) -> bool {
        const HEADER: usize = size_of::<UdpHeader>();
        const IPV4: usize = HEADER + size_of::<Ipv4QueryWire>();
        const IPV6: usize = HEADER + size_of::<Ipv6QueryWire>();
        let is_plain = match self.skb().len as usize {
            IPV4 => self.carries_query::<Ipv4QueryWire>(),
            IPV6 => self.carries_query::<Ipv6QueryWire>(),
            _ => false,
        };
        is_plain || self.has_further_tlvs()
    }

    // Always: a function of its own would have this result in its BTF, which the kernel refuses.
    #[inline(always)]
    fn source(&self) -> Option<Source> {
        const IPV4: u32 = Ipv4Query::ETHERTYPE.to_be() as u32;
        const IPV6: u32 = Ipv6Query::ETHERTYPE.to_be() as u32;
        let port = self.read::<UdpHeader>(0)?.0.source_port.get();
        match self.skb().protocol {
            IPV4 => {
                let Aligned(address) = self.read_ip(offset_of!(Ipv4Header, source))?;
                let can_ask = can_ask(IpAddr::V4(Ipv4Addr::from_octets(address)), port);
                Some(Source { key: key_of_ipv4(address), can_ask })
            }
            IPV6 => {
                let Aligned(address) = self.read_ip(offset_of!(Ipv6Header, source))?;
                let can_ask = can_ask(IpAddr::V6(Ipv6Addr::from_octets(address)), port);
                let ingress = IfIndex::new(self.skb().ifindex)?;
                Some(Source { key: key_of_ipv6(address, ingress), can_ask })
            }
            _ => None,
        }
    }

    #[inline]
    fn is_local(&self) -> bool {
        // `LOOPBACK_IFINDEX` of include/net/flow.h.
        self.skb().ifindex == 1
    }

    #[inline]
    fn is_to_its_source(&self) -> bool {
        const IPV4: u32 = Ipv4Query::ETHERTYPE.to_be() as u32;
        const IPV6: u32 = Ipv6Query::ETHERTYPE.to_be() as u32;
        // The destination follows the source in both headers.
        match self.skb().protocol {
            IPV4 => self
                .read_ip::<[[u8; 4]; 2]>(offset_of!(Ipv4Header, source))
                .is_some_and(|Aligned([source, destination])| source == destination),
            IPV6 => self
                .read_ip::<[[u8; 16]; 2]>(offset_of!(Ipv6Header, source))
                .is_some_and(|Aligned([source, destination])| source == destination),
            _ => false,
        }
    }
}

impl Received<'_> {
    #[inline]
    fn note(&self, reason: Reason) {
        Maps.count(Program::Guard, reason);
        if log::IS_ON {
            self.log(reason);
        }
    }

    /// The address that is asked for, if the length is that of a query, otherwise `::`.
    #[inline(never)]
    fn log(&self, reason: Reason) {
        const HEADER: usize = size_of::<UdpHeader>();
        const IPV4: usize = HEADER + size_of::<Ipv4QueryWire>();
        const IPV6: usize = HEADER + size_of::<Ipv6QueryWire>();
        let source = self.source().map_or([0; 16], |source| source.key.address);
        let target = match self.skb().len as usize {
            IPV4 => self
                .read(HEADER + offset_of!(Ipv4QueryWire, target))
                .map(|Aligned(target)| key_of_ipv4(target).address),
            IPV6 => {
                self.read(HEADER + offset_of!(Ipv6QueryWire, target)).map(|Aligned(target)| target)
            }
            _ => None,
        };
        let target = target.unwrap_or([0; 16]);
        log::packet(Program::Guard, self.skb().ifindex, source, target, reason);
    }

    /// A datagram that cannot be read counts as a query: the server decides.
    #[inline]
    fn carries_query<P: QueryPayload>(&self) -> bool {
        self.read::<P>(size_of::<UdpHeader>()).is_none_or(|Aligned(payload)| payload.is_query())
    }

    /// Whether it is a message with several TLVs, which only the server reads.
    #[inline]
    fn has_further_tlvs(&self) -> bool {
        const HEADER: usize = size_of::<UdpHeader>();
        self.skb().len as usize <= HEADER + MAX_LEN
            && self
                .read::<HeaderWire>(HEADER)
                .is_some_and(|Aligned(header)| header.version <= 1 && header.num_tlvs.get() > 1)
    }

    /// Reads a value `offset` bytes after the start of the UDP header.
    #[inline(always)]
    fn read<T: FromBytes>(&self, offset: usize) -> Option<Aligned<T>> {
        let mut value = MaybeUninit::<Aligned<T>>::uninit();
        // SAFETY: the helper writes exactly the bytes of a `T`.
        let result = unsafe {
            bpf_skb_load_bytes(
                self.ctx.skb.skb.cast(),
                offset as u32,
                value.as_mut_ptr().cast(),
                size_of::<T>() as u32,
            )
        };
        // SAFETY: on success the helper has written all of it, and any bytes are a `T`.
        (result == 0).then(|| unsafe { value.assume_init() })
    }

    /// Reads a value `offset` bytes after the start of the IP header.
    #[inline(always)]
    fn read_ip<T: FromBytes>(&self, offset: usize) -> Option<Aligned<T>> {
        let mut value = MaybeUninit::<Aligned<T>>::uninit();
        // SAFETY: the helper writes exactly the bytes of a `T`.
        let result = unsafe {
            bpf_skb_load_bytes_relative(
                self.ctx.skb.skb.cast(),
                offset as u32,
                value.as_mut_ptr().cast(),
                size_of::<T>() as u32,
                bpf_hdr_start_off::BPF_HDR_START_NET,
            )
        };
        // SAFETY: on success the helper has written all of it, and any bytes are a `T`.
        (result == 0).then(|| unsafe { value.assume_init() })
    }

    #[inline]
    fn skb(&self) -> &__sk_buff {
        // SAFETY: the kernel's context outlives the program. The verifier rewrites reads of its
        // fields; nothing writes to it while the reference is held.
        unsafe { &*self.ctx.skb.skb }
    }
}
