// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Messages of ACM are written as they were read.

use ibarr_common::ib::PathRecord;
use ibarr_common::wire::acm::{
    Ask, HEADER_LEN, MAX_REQUEST_LEN, Of, Reply, Request, Resolve, Tid, length,
};

/// The ACM codec writes each request and each reply that it reads so that it is read as the same. A message
/// has the length that its first bytes name.
///
/// # Panics
/// The claim does not hold for `bytes`.
pub fn acm_codec(bytes: &[u8]) {
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(length(bytes), Ok(Some(bytes.len())));
        let mut out = [0; MAX_REQUEST_LEN];
        let emitted = request.emit(&mut out);
        assert_eq!(length(emitted), Ok(Some(emitted.len())));
        assert_eq!(Request::parse(emitted), Ok(request));
    }
    if let Ok((tid, reply)) = Reply::parse(bytes) {
        let mut out = vec![0; bytes.len()];
        let emitted = asks(tid).into_iter().find_map(|ask| {
            let written = reply.emit(&ask, &mut out)?.to_vec();
            // A refusal fits each request, and has the opcode of one.
            (written[1] & 0x0f == bytes[1] & 0x0f).then_some(written)
        });
        let emitted = emitted.expect("room for as many bytes as were read");
        assert!(emitted.len() >= HEADER_LEN);
        assert_eq!(Reply::parse(&emitted), Ok((tid, reply)));
    }
}

/// A request of each kind.
fn asks(tid: Tid) -> [Request; 3] {
    let resolve = Resolve::along(PathRecord::from_octets([0; PathRecord::LEN]));
    let asks =
        [Ask::Resolve(resolve), Ask::Counters(Of::Service), Ask::Endpoint { index: 1, port: 1 }];
    asks.map(|ask| Request { tid, ask })
}
