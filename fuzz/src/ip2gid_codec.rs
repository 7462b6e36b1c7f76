// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Payloads of ip2gid are written as they were read.

use ibarr_common::wire::ip2gid::{Query, Reply, TLV_GID, TLV_IPV4, TLV_IPV6};

/// The ip2gid codec writes each accepted payload with the same bytes, but with zero in reserved ones and
/// without TLVs of unknown types, and reads that as the same message. No payload is both query and reply.
///
/// # Panics
/// The claim does not hold for `payload`.
pub fn ip2gid_codec(payload: &[u8]) {
    let query = Query::parse(payload);
    if let Ok(query) = query {
        let emitted = query.emit();
        assert_eq!(emitted.as_ref(), plain(payload), "{query}");
        assert_eq!(Query::parse(emitted.as_ref()), Ok(query));
    }
    let reply = Reply::parse(payload);
    if let Ok(reply) = reply {
        let emitted = reply.emit();
        assert_eq!(emitted.as_ref(), plain(payload), "{reply}");
        assert_eq!(Reply::parse(emitted.as_ref()), Ok(reply));
    }
    assert!(query.is_err() || reply.is_err());
}

/// An accepted `payload` with zero in bytes 1..=3 and 10..=11, and without TLVs of unknown types.
fn plain(payload: &[u8]) -> Vec<u8> {
    let (header, mut tlvs) = payload.split_at(12);
    let mut plain = [&[header[0], 0, 0, 0], &header[4..8], &[0; 4]].concat();
    while let [kind_0, kind_1, length_0, length_1, ..] = *tlvs {
        let (tlv, rest) = tlvs.split_at(u16::from_be_bytes([length_0, length_1]).into());
        if [TLV_IPV4, TLV_IPV6, TLV_GID].contains(&u16::from_be_bytes([kind_0, kind_1])) {
            plain.extend(tlv);
            plain[9] += 1;
        }
        tlvs = rest;
    }
    plain
}
