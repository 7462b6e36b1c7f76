// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! One turn of the loop around a [`Node`](crate::node::Node): what is read, how much of it, and when
//! the cores' outputs are carried out. The daemon's loop and the simulation call it, so the order
//! that a simulation proves is the order that runs.
//!
//! Each request of the kernel is dealt with before the next one is read, because its caller is blocked,
//! whatever else is queued. Other inputs share one reading of the clock and one drain, which makes
//! a burst cheap.

use ibarr_common::Instant;

use crate::node::Output;

/// What a turn reads from and writes to. A `T` is something that happened.
pub trait Io<T> {
    /// The next input, if it is there already.
    fn next_input(&mut self) -> Option<T>;

    /// Hands `input` to a core.
    fn handle(&mut self, now: Instant, input: T) -> Handled;

    /// Hands the next message of the socket to the kernel to the node: also that the socket is empty, or
    /// gone.
    fn read_kernel(&mut self, now: Instant) -> Read;

    /// The node's [`handle_timeout`](crate::node::Node::handle_timeout).
    fn handle_timeout(&mut self, now: Instant);

    /// The node's [`poll`](crate::node::Node::poll), with the room that there is.
    fn poll(&mut self, now: Instant) -> Option<Output>;

    /// Does what a core has decided.
    fn carry_out(&mut self, now: Instant, output: Output);

    /// Everything has been carried out: time for what is not the node's.
    fn settle(&mut self, now: Instant);
}

/// What became of an input.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Handled {
    /// The cores may have something to say.
    Changed,
    /// The cores have nothing to say: the server answers a peer's query at once, and counts.
    Unchanged,
    /// The socket to the kernel can be read.
    KernelAsks,
}

/// What was read of the socket to the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Read {
    /// A message. There may be more.
    Message,
    /// There is no more, or no socket.
    Nothing,
}

/// How much a turn takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Inputs after the first. Enough to make a burst cheap, few enough that no answer waits for more
    /// than about 100 µs.
    pub inputs: usize,
    /// Messages of the kernel: more than a burst has in practice.
    pub messages: usize,
    /// Times that many messages, when the daemon ends: more than the socket's buffer holds.
    pub last_reads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { inputs: 64, messages: 256, last_reads: 128 }
    }
}

/// Takes a turn that begins with `first`; `is_due` if a core's time has come. Returns whether the
/// kernel may have more to ask: then other tasks of the thread go before the next turn.
pub fn take<T, I: Io<T>>(io: &mut I, limits: Limits, now: Instant, first: T, is_due: bool) -> bool {
    let (mut has_changed, mut asks_on) = (is_due, false);
    let mut next = Some(first);
    for more in (0..=limits.inputs).rev() {
        let Some(input) = next else { break };
        match io.handle(now, input) {
            Handled::Changed => has_changed = true,
            Handled::Unchanged => {}
            Handled::KernelAsks => {
                has_changed = true;
                asks_on = read(io, limits, now) == Read::Message;
            }
        }
        next = if more > 0 { io.next_input() } else { None };
    }
    if has_changed {
        drain(io, now);
    }
    asks_on
}

/// Does what is due, carries out what the cores have to say, then lets the driver settle the rest.
pub fn drain<T, I: Io<T>>(io: &mut I, now: Instant) {
    io.handle_timeout(now);
    carry_out(io, now);
    io.settle(now);
}

/// Reads what the kernel has asked by now, before the daemon ends, and answers what is known.
pub fn read_to_end<T, I: Io<T>>(io: &mut I, limits: Limits, now: Instant) {
    // Bounded, because the kernel may ask faster than we read.
    for _ in 0..limits.last_reads {
        if read(io, limits, now) == Read::Nothing {
            return;
        }
    }
}

fn read<T, I: Io<T>>(io: &mut I, limits: Limits, now: Instant) -> Read {
    for _ in 0..limits.messages {
        let read = io.read_kernel(now);
        if read == Read::Nothing {
            return read;
        }
        carry_out(io, now);
    }
    Read::Message
}

fn carry_out<T, I: Io<T>>(io: &mut I, now: Instant) {
    while let Some(output) = io.poll(now) {
        io.carry_out(now, output);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1);

    /// Writes down what is called.
    #[derive(Default)]
    struct Recorder {
        inputs: Vec<Handled>,
        messages: usize,
        outputs: usize,
        calls: String,
    }

    impl Io<Handled> for Recorder {
        fn next_input(&mut self) -> Option<Handled> {
            self.inputs.pop()
        }

        fn handle(&mut self, _: Instant, input: Handled) -> Handled {
            self.calls.push('h');
            input
        }

        fn read_kernel(&mut self, _: Instant) -> Read {
            if self.messages == 0 {
                self.calls.push('e');
                return Read::Nothing;
            }
            self.messages -= 1;
            self.outputs += 1;
            self.calls.push('r');
            Read::Message
        }

        fn handle_timeout(&mut self, _: Instant) {
            self.calls.push('t');
        }

        fn poll(&mut self, _: Instant) -> Option<Output> {
            self.outputs = self.outputs.checked_sub(1)?;
            Some(Output::Changed(crate::local_view::Event::NotServed(ibarr_common::IfIndex::MIN)))
        }

        fn carry_out(&mut self, _: Instant, _: Output) {
            self.calls.push('c');
        }

        fn settle(&mut self, _: Instant) {
            self.calls.push('s');
        }
    }

    #[test]
    fn each_request_of_the_kernel_is_dealt_with_before_the_next() {
        let mut io =
            Recorder { messages: 3, inputs: vec![Handled::Changed], ..Recorder::default() };
        assert!(!take(&mut io, Limits::default(), NOW, Handled::KernelAsks, false));
        assert_eq!(io.calls, "hrcrcrcehts");
    }

    #[test]
    fn kernel_that_never_stops_asking_ends_its_turn_at_the_limit() {
        let mut io = Recorder { messages: 5, ..Recorder::default() };
        let limits = Limits { messages: 2, ..Limits::default() };
        assert!(take(&mut io, limits, NOW, Handled::KernelAsks, false));
        assert_eq!(io.calls, "hrcrcts");
        io.calls.clear();
        read_to_end(&mut io, Limits { last_reads: 1, ..limits }, NOW);
        assert_eq!(io.calls, "rcrc");
    }

    #[test]
    fn turn_of_peers_queries_alone_is_not_drained_unless_a_core_is_due() {
        let mut io = Recorder { inputs: vec![Handled::Unchanged; 70], ..Recorder::default() };
        take(&mut io, Limits::default(), NOW, Handled::Unchanged, false);
        assert_eq!(io.calls, "h".repeat(65));
        io.calls.clear();
        take(&mut io, Limits::default(), NOW, Handled::Unchanged, true);
        assert_eq!(io.calls, "h".repeat(7) + "ts");
    }
}
