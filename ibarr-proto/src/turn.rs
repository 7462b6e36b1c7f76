// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! One turn of the loop around a [`Node`](crate::node::Node): the order of reads, their number, and
//! the time when the outputs of the cores are carried out. The daemon's loop and the simulation
//! both call it, so that the simulation proves the order that the daemon executes.
//!
//! Each request of the kernel is handled before the next one is read, because its caller is
//! blocked, whatever else is queued. Other inputs share one reading of the clock and one drain,
//! which makes a burst cheap.
//!
//! **A request makes nothing due at once**, so a turn of requests alone need not look at time-outs: it would find none.
//! If a core breaks this, the next turn follows at once.

use ibarr_common::Instant;

use crate::node::Output;

/// The driver's side of a turn. A `T` is an input.
pub trait Io<T> {
    /// The next input, if one is ready.
    fn next_input(&mut self) -> Option<T>;

    /// Passes `input` to a core.
    fn handle(&mut self, now: Instant, input: T) -> Handled;

    /// Reads the next message from the kernel's socket and passes it to the node; the node also
    /// learns that the socket is empty or gone.
    fn read_kernel(&mut self, now: Instant) -> Read;

    /// Calls the node's [`handle_timeout`](crate::node::Node::handle_timeout).
    fn handle_timeout(&mut self, now: Instant);

    /// Calls the node's [`poll`](crate::node::Node::poll) with the current room.
    fn poll(&mut self, now: Instant) -> Option<Output>;

    /// Carries out an output.
    fn carry_out(&mut self, now: Instant, output: Output);

    /// Everything is carried out: the driver does its own work.
    fn settle(&mut self, now: Instant);
}

/// The effect of an input.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Handled {
    /// The cores may have outputs, and something may be due at once.
    Changed,
    /// A caller asks: the cores may have outputs.
    Asked,
    /// As many callers have asked as a turn has room for, and more may wait: the turn ends.
    Full,
    /// The cores have no outputs: the server answers a peer's query at once, and counts it.
    Unchanged,
    /// The socket to the kernel is readable.
    KernelAsks,
}

/// The result of a read of the socket to the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Read {
    /// A message was read. There may be more.
    Message,
    /// There are no more messages, or there is no socket.
    Nothing,
}

/// The bounds of a turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Inputs after the first. Enough to make a burst cheap, and so few that no answer waits for
    /// more than about 100 µs.
    pub inputs: usize,
    /// Messages of the kernel: more than a burst has in practice.
    pub messages: usize,
    /// How many times `messages` may be read when the daemon ends: more than the socket's buffer
    /// holds.
    pub last_reads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { inputs: 64, messages: 256, last_reads: 128 }
    }
}

/// Takes a turn that begins with `first`; `is_due` if a core has a time-out that is due. Returns
/// whether the kernel or a crowd may have more requests: then other tasks of the thread run before the
/// next turn.
pub fn take<T, I: Io<T>>(io: &mut I, limits: Limits, now: Instant, first: T, is_due: bool) -> bool {
    let (mut is_due, mut has_asked, mut asks_on) = (is_due, false, false);
    let mut next = Some(first);
    for more in (0..=limits.inputs).rev() {
        let Some(input) = next else { break };
        match io.handle(now, input) {
            Handled::Changed => is_due = true,
            Handled::Asked => has_asked = true,
            Handled::Full => {
                (has_asked, asks_on) = (true, true);
                break;
            }
            Handled::Unchanged => {}
            Handled::KernelAsks => {
                has_asked = true;
                asks_on = read(io, limits, now) == Read::Message;
            }
        }
        next = if more > 0 { io.next_input() } else { None };
    }
    if is_due {
        drain(io, now);
    } else if has_asked {
        carry_out(io, now);
        io.settle(now);
    }
    asks_on
}

/// Performs all actions that are due, carries out the outputs, then lets the driver do its own
/// work.
pub fn drain<T, I: Io<T>>(io: &mut I, now: Instant) {
    io.handle_timeout(now);
    carry_out(io, now);
    io.settle(now);
}

/// Reads the remaining requests of the kernel before the daemon ends, and answers those with a
/// known answer.
pub fn read_to_end<T, I: Io<T>>(io: &mut I, limits: Limits, now: Instant) {
    // Bounded, because the kernel may ask faster than the daemon reads.
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
    fn each_kernel_request_is_handled_before_the_next() {
        let mut io =
            Recorder { messages: 3, inputs: vec![Handled::Changed], ..Recorder::default() };
        assert!(!take(&mut io, Limits::default(), NOW, Handled::KernelAsks, false));
        assert_eq!(io.calls, "hrcrcrcehts");
        io = Recorder { messages: 1, inputs: vec![Handled::Asked], ..Recorder::default() };
        take(&mut io, Limits::default(), NOW, Handled::KernelAsks, false);
        assert_eq!(io.calls, "hrcehs", "requests make nothing due");
        io = Recorder { inputs: vec![Handled::Asked; 3], ..Recorder::default() };
        assert!(take(&mut io, Limits::default(), NOW, Handled::Full, false));
        assert_eq!(io.calls, "hs", "no further input");
    }

    #[test]
    fn endless_kernel_requests_end_the_turn_at_the_limit() {
        let mut io = Recorder { messages: 5, ..Recorder::default() };
        let limits = Limits { messages: 2, ..Limits::default() };
        assert!(take(&mut io, limits, NOW, Handled::KernelAsks, false));
        assert_eq!(io.calls, "hrcrcs");
        io.calls.clear();
        read_to_end(&mut io, Limits { last_reads: 1, ..limits }, NOW);
        assert_eq!(io.calls, "rcrc");
    }

    #[test]
    fn turn_of_peer_queries_is_drained_only_if_a_core_is_due() {
        let mut io = Recorder { inputs: vec![Handled::Unchanged; 70], ..Recorder::default() };
        take(&mut io, Limits::default(), NOW, Handled::Unchanged, false);
        assert_eq!(io.calls, "h".repeat(65));
        io.calls.clear();
        take(&mut io, Limits::default(), NOW, Handled::Unchanged, true);
        assert_eq!(io.calls, "h".repeat(7) + "ts");
    }
}
