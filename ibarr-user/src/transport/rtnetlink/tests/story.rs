// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A session and its output; the tests play the kernel.

use super::*;

pub(super) const PORTID: u32 = 4711;

pub(super) struct Story {
    pub(super) session: Session,
    pub(super) said: Vec<Input>,
    counters: Arc<Counters>,
    pub(super) seq: u32,
}

impl Story {
    pub(super) fn about(subject: Subject) -> Self {
        let counters = Arc::<Counters>::default();
        let session = Session::new(subject, PORTID, Arc::clone(&counters));
        Self { session, counters, said: Vec::new(), seq: 0 }
    }

    /// The session sends a dump request of this type. Returns what follows the header.
    pub(super) fn asks_by(&mut self, kind: u16) -> Vec<u8> {
        let request = self.session.poll_transmit(&mut self.said).expect("no request");
        let frames: Vec<_> = frames(&request).collect();
        let [Ok(frame)] = frames.as_slice() else { panic!("{frames:?}") };
        // NLM_F_REQUEST | NLM_F_DUMP
        assert_eq!((frame.kind, frame.flags.bits()), (kind, 0x301));
        assert_ne!(frame.seq, self.seq, "a sequence number was used twice");
        self.seq = frame.seq;
        request[16..].to_vec()
    }

    /// The kernel sends these messages in one datagram.
    pub(super) fn hears(&mut self, messages: &[Message]) -> &mut Self {
        let datagram: Vec<u8> = messages.iter().flat_map(Message::bytes).collect();
        self.session.handle_datagram(&datagram, &mut self.said);
        self
    }

    /// The kernel answers the last request with these messages.
    pub(super) fn answers(&mut self, messages: &[Message]) -> &mut Self {
        let stamp = |message: &Message| message.clone().answering(self.seq, PORTID);
        let messages: Vec<_> = messages.iter().map(stamp).collect();
        self.hears(&messages)
    }

    pub(super) fn says(&mut self, expected: &[Input]) -> &mut Self {
        assert_eq!(self.said, expected);
        self.said.clear();
        self
    }

    pub(super) fn counted(&self, counter: Counter) -> u64 {
        self.counters.get(counter)
    }
}

pub(super) fn done() -> Message {
    Message::new(3, &0_i32.to_ne_bytes())
}
