// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Datagrams that come from the kernel's socket, and that no kernel sends: the daemon bears them, answers no request
//! in them more often than it came, and none wrongly.

use std::net::{IpAddr, Ipv4Addr};

use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{Request, ResolveIp, Seq};

use super::World;
use super::kernel_socket::ToDaemon;
use super::network::IPOIB;
use crate::record::Entry;

/// The lowest byte of a number that no request of the kernel has here, at its place in a message.
const FOREIGN: (usize, u8) = if cfg!(target_endian = "little") { (11, 0x40) } else { (8, 0x40) };
const HEADER: usize = 16;

impl World {
    pub(super) fn garble(&mut self, id: usize) {
        self.note(id, &Entry::Weather("garbled requests", None));
        self.machines[id].troubles.disturb(self.now);
        for _ in 0..=self.dice.below(8) {
            let mut bytes = Vec::new();
            for _ in 0..=self.dice.below(3) {
                bytes.extend(self.odd_message(id));
                self.claims.asked_for(self.now, id);
            }
            if self.dice.once_in(4) && !bytes.is_empty() {
                let at = self.dice.below(bytes.len());
                bytes[at] = self.dice.byte();
            }
            renumber(&mut bytes);
            let cut = self.dice.once_in(8);
            let datagram = ToDaemon { at: self.now, bytes, from_kernel: true, cut };
            self.machines[id].kernel_socket.take(datagram, usize::MAX);
        }
        self.wake(id);
    }

    fn odd_message(&mut self, id: usize) -> Vec<u8> {
        // Few, so that histories repeat them.
        let seq = Seq(u32::try_from(self.dice.below(4)).unwrap_or_default());
        let multicast = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1));
        let request = match self.dice.below(8) {
            0 => return self.dice.bytes(64),
            // A verdict on a message of the daemon: a length, a type, and perhaps an error number.
            1 => {
                let errno = if self.dice.coin() { -1_i32 } else { 36 };
                let words = [20_u32, 2, seq.0, 0].map(u32::to_ne_bytes);
                let mut verdict = [&words.concat()[..], &errno.to_ne_bytes()].concat();
                verdict[0] -= if self.dice.once_in(4) { 4 } else { 0 };
                return verdict;
            }
            2 => Request::ResolvePath(self.path_question(id, self.machines[id].home[0])),
            3 => Request::ResolveIp(ResolveIp { ifindex: IPOIB, target: multicast }),
            _ => {
                let ifindex = if self.dice.coin() { IPOIB } else { IfIndex::MIN };
                Request::ResolveIp(ResolveIp { ifindex, target: self.any_target(id) })
            }
        };
        request.emit(seq).as_ref().to_vec()
    }
}

/// Gives each message a number that is not the kernel's, as its own requests are checked by their numbers.
fn renumber(bytes: &mut [u8]) {
    let (mut at, (place, byte)) = (0, FOREIGN);
    while let Some(header) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<HEADER>) {
        header[place] = byte;
        let length = u32::from_ne_bytes(header[..4].try_into().unwrap_or_default());
        let length = usize::try_from(length).unwrap_or_default();
        at += length.max(HEADER).next_multiple_of(4);
    }
}
