// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use ibarr_common::wire::ip2gid::{Query, Reply};

/// The ip2gid codec writes each accepted payload with the same bytes, but with zero in reserved ones, and
/// reads that as the same message. No payload is both query and reply.
///
/// # Panics
/// The claim does not hold for `payload`.
pub fn ip2gid_codec(payload: &[u8]) {
    let query = Query::parse(payload);
    if let Ok(query) = query {
        let emitted = query.emit();
        assert_eq!(emitted.as_ref(), without_reserved(payload), "{query}");
        assert_eq!(Query::parse(emitted.as_ref()), Ok(query));
    }
    let reply = Reply::parse(payload);
    if let Ok(reply) = reply {
        let emitted = reply.emit();
        assert_eq!(emitted.as_ref(), without_reserved(payload), "{reply}");
        assert_eq!(Reply::parse(emitted.as_ref()), Ok(reply));
    }
    assert!(query.is_err() || reply.is_err());
}

/// `payload` with zero in bytes 1..=3 and 10..=11.
fn without_reserved(payload: &[u8]) -> Vec<u8> {
    let is_reserved = |index| matches!(index, 1..=3 | 10..=11);
    payload
        .iter()
        .enumerate()
        .map(|(index, &byte)| if is_reserved(index) { 0 } else { byte })
        .collect()
}
