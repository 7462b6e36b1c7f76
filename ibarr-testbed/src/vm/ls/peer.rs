// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! All peers behind the gateway, at the other end of the TUN device: a thread that answers ip2gid queries.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{PORT, Query};

/// Number of queries answered so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Answered(Arc<AtomicUsize>);

impl Answered {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Starts a thread that answers the queries from `device` with `gid`.
pub(super) fn spawn(mut device: File, gid: Gid) -> io::Result<Answered> {
    let answered = Answered::default();
    let counter = answered.clone();
    thread::Builder::new().name("peer".to_owned()).spawn(move || {
        let mut packet = [0; 2048];
        while let Ok(length) = device.read(&mut packet) {
            let Some(reply) = reply(&packet[..length], gid) else { continue };
            if device.write_all(&reply).is_ok() {
                counter.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(answered)
}

/// The IP packet that answers the query in `packet`, if it has one.
fn reply(packet: &[u8], gid: Gid) -> Option<Vec<u8>> {
    const UDP: u8 = 17;
    let (addresses, udp) = match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&UDP) => {
            let header = usize::from(packet[0] & 0x0f) * 4;
            (packet.get(12..20)?, packet.get(header..)?)
        }
        6 if packet.get(6) == Some(&UDP) => (packet.get(8..40)?, packet.get(40..)?),
        _ => return None,
    };
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    if udp.get(2..4)? != PORT.to_be_bytes() {
        return None;
    }
    let payload = Query::parse(udp.get(8..)?).ok()?.reply(Some(gid)).emit();

    let length = u16::try_from(8 + payload.as_ref().len()).ok()?;
    let ports = [&udp[2..4], &udp[..2]].concat();
    let mut udp = [&ports[..], &length.to_be_bytes(), &[0, 0], payload.as_ref()].concat();
    let pseudo = [destination, source, &length.to_be_bytes(), &[0, UDP]].concat();
    let sum = checksum(&[pseudo, udp.clone()].concat());
    // 0 would mean that there is no checksum.
    udp[6..8].copy_from_slice(&if sum == 0 { u16::MAX } else { sum }.to_be_bytes());

    let mut reply = if source.len() == 4 {
        let total = (20 + length).to_be_bytes();
        let mut header = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, UDP, 0, 0];
        header.extend([destination, source].concat());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    } else {
        let length = length.to_be_bytes();
        [&[0x60, 0, 0, 0, length[0], length[1], UDP, 64], destination, source].concat()
    };
    reply.extend(udp);
    Some(reply)
}

/// The Internet checksum (RFC 1071). Each part of `bytes` except the last has an even length.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}
