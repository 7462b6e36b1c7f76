// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Messages of the kernel's RDMA netlink are written as they were read.

use ibarr_common::wire::ls::{Answer, Kind, Message, PortId, Request, Seq, SetTimeout, messages};

/// The codec of the local service writes each accepted message as one message, and reads that as the same.
/// No message is of two kinds, and a datagram has no more messages than room for headers.
///
/// # Panics
/// The claim does not hold for `datagram`.
pub fn ls_codec(datagram: &[u8]) {
    let mut count = 0;
    for message in messages(datagram) {
        count += 1;
        let Ok(message) = message else { continue };
        let (seq, port_id) = (message.seq(), message.port_id());
        let request = Request::parse(&message);
        if let Ok(request) = request {
            let emitted = request.emit(seq);
            assert_eq!(Request::parse(&only(emitted.as_ref(), seq)), Ok(request), "{request}");
        }
        let answer = Answer::parse(&message);
        if let Ok(answer) = answer {
            let emitted = answer.emit(seq, port_id);
            assert_eq!(Answer::parse(&only(emitted.as_ref(), seq)), Ok(answer), "{answer}");
        }
        let timeout = SetTimeout::parse(&message);
        if let Ok(timeout) = timeout {
            let emitted = timeout.emit(seq, PortId::KERNEL);
            assert_eq!(SetTimeout::parse(&only(emitted.as_ref(), seq)), Ok(timeout));
        }
        let verdict = message.errno();
        assert!(verdict.is_none() || message.kind() == Kind::Verdict);
        let things = [request.is_ok(), answer.is_ok(), timeout.is_ok(), verdict.is_some()];
        assert!(things.iter().filter(|is_it| **is_it).count() <= 1, "{things:?}");
    }
    assert!(count <= datagram.len().div_ceil(16));
}

fn only(datagram: &[u8], seq: Seq) -> Message<'_> {
    let mut messages = messages(datagram);
    let message = messages.next().expect("a message").expect("a whole one");
    assert_eq!(messages.next(), None);
    assert_eq!(message.seq(), seq);
    message
}
