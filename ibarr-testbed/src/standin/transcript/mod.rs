// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Transcripts: the steps that are done to a kernel and the kernel's reactions, as text, so that tests can
//! compare a real kernel and the stand-in with a recording.
//!
//! Values that differ from run to run are normalised: sequence numbers count from the first request of a
//! case, and interfaces and sockets have fixed numbers.

mod cases;
mod model;
#[cfg(test)]
mod tests;

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Result;

pub use self::cases::cases;
pub use self::model::Model;

/// The recording of Linux 6.1 and 6.12.
pub const RECORDED: &str = include_str!("../../../tests/data/ls-transcript.txt");

/// A case: some steps and their reactions.
#[derive(Clone, Debug)]
pub struct Case {
    /// The claim that it shows.
    pub name: &'static str,
    /// The steps. Each is done when the reactions to the one before have ended.
    pub steps: Vec<Step>,
}

/// A step that is done to a kernel.
#[derive(Clone, Debug)]
pub enum Step {
    /// Callers ask for an address, one after another.
    Ask {
        /// Number of callers.
        callers: u32,
        /// The address that they ask for.
        target: &'static str,
        /// The time-out of each caller.
        timeout: Duration,
    },
    /// The daemon sends this to the requests with these numbers.
    Say(Saying, RangeInclusive<u32>),
    /// A neighbour becomes valid.
    Neighbour,
    /// All neighbours that became valid are deleted.
    NoNeighbour,
    /// From now on there is a listener in the group, or none.
    Listener(bool),
    /// These reflexes follow the next request of the kernel, before the kernel does anything else.
    Reflex(&'static [Reflex]),
    /// Waits until every caller has an outcome.
    Wait,
}

/// An action while the kernel sends a request.
#[derive(Clone, Copy, Debug)]
pub enum Reflex {
    /// The daemon answers the request.
    Answer,
    /// A neighbour becomes valid.
    Neighbour,
}

/// A message of a daemon, right or wrong.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Saying {
    Answer,
    /// The answer with some other bytes. Its length field fits.
    Changed {
        /// The name of the change.
        name: &'static str,
        /// Type and flags of the netlink header.
        header: [u16; 2],
        /// All bytes after the header, in hexadecimal digits; `GID` stands for 16 bytes of GID.
        payload: &'static str,
    },
    /// The right answer twice in a datagram.
    Twice,
    /// The right answer, with a number that is larger by this.
    ToAnother(u32),
}

/// A reaction of a kernel to a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Heard {
    /// A message to the daemon.
    Message(Vec<u8>),
    /// The outcome of a caller. Callers count from 1.
    End(u32, Outcome),
}

impl Heard {
    /// Its place among the reactions to a step: messages by their number, then callers.
    pub fn place(&self) -> (bool, u32) {
        match self {
            Self::Message(bytes) => (false, word(bytes, 8)),
            Self::End(caller, _) => (true, *caller),
        }
    }
}

/// The result that a caller gets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Success: there is an answer.
    Answered,
    /// `-ETIMEDOUT`.
    TimedOut,
    /// `-EADDRNOTAVAIL`.
    NoListener,
}

/// A kernel or its stand-in.
pub trait Subject {
    /// Resets: there is no caller, a listener, and no valid neighbour.
    ///
    /// # Errors
    /// A socket fails; so for all methods.
    fn begin(&mut self) -> Result<()>;

    /// The index of the interface in requests, and the port id of the daemon's socket.
    fn numbers(&self) -> (u32, u32);

    /// `rdma_resolve_addr`, for the caller with the next number.
    ///
    /// # Errors
    /// See above.
    fn ask(&mut self, target: IpAddr, timeout: Duration) -> Result<()>;

    /// Gives the kernel a datagram.
    ///
    /// # Errors
    /// See above.
    fn say(&mut self, datagram: &[u8]) -> Result<()>;

    /// [`Step::Neighbour`], [`Step::NoNeighbour`].
    ///
    /// # Errors
    /// See above.
    fn neighbour(&mut self, valid: bool) -> Result<()>;

    /// [`Step::Listener`].
    ///
    /// # Errors
    /// See above.
    fn listen(&mut self, is_there: bool) -> Result<()>;

    /// [`Step::Reflex`].
    ///
    /// # Errors
    /// See above.
    fn reflex(&mut self, reflexes: &'static [Reflex]) -> Result<()>;

    /// The reactions to a step, messages first. With `wait`, it waits for the outcome of every caller;
    /// otherwise it returns when nothing more can come without time passing. `expected` is their number in
    /// the recording.
    ///
    /// # Errors
    /// See above.
    fn heard(&mut self, wait: bool, expected: usize) -> Result<Vec<Heard>>;
}

/// The reactions to each step, and the whole transcript as text.
#[derive(Debug)]
pub struct Transcript {
    heard: Vec<usize>,
    text: String,
}

impl Case {
    /// Does the steps. `expected` is the recording, which says how many reactions to wait for.
    ///
    /// # Errors
    /// `subject` fails.
    pub fn run(
        &self,
        subject: &mut impl Subject,
        expected: Option<&Transcript>,
    ) -> Result<Transcript> {
        subject.begin()?;
        let mut names = Names { base: None, numbers: subject.numbers() };
        let mut transcript = Transcript { heard: Vec::new(), text: String::new() };
        writeln!(transcript.text, "case {}", self.name)?;
        for (at, step) in self.steps.iter().enumerate() {
            writeln!(transcript.text, "  {step}")?;
            match step {
                Step::Ask { callers, target, timeout } => {
                    for _ in 0..*callers {
                        subject.ask(target.parse()?, *timeout)?;
                    }
                }
                Step::Say(saying, numbers) => {
                    for number in numbers.clone() {
                        subject.say(&saying.datagram(names.seq(number), names.numbers.1))?;
                    }
                }
                Step::Neighbour => subject.neighbour(true)?,
                Step::NoNeighbour => subject.neighbour(false)?,
                Step::Listener(is_there) => subject.listen(*is_there)?,
                Step::Reflex(reflexes) => subject.reflex(reflexes)?,
                Step::Wait => {}
            }
            let expected = expected.and_then(|expected| expected.heard.get(at));
            let wait = matches!(step, Step::Wait);
            let heard = subject.heard(wait, expected.copied().unwrap_or_default())?;
            transcript.heard.push(heard.len());
            for line in names.lines(&heard) {
                writeln!(transcript.text, "    {line}")?;
            }
        }
        Ok(transcript)
    }

    /// Whether something is done to the kernel while it sends a request.
    pub fn has_reflex(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Reflex(_)))
    }

    /// Its part of the recording. Empty if it has none.
    pub fn recorded(&self) -> String {
        let begin = format!("case {}", self.name);
        let mut lines = RECORDED.lines().skip_while(|line| *line != begin);
        let first = lines.next();
        let rest = lines.take_while(|line| !line.starts_with("case "));
        first.into_iter().chain(rest).flat_map(|line| [line, "\n"]).collect()
    }
}

impl Transcript {
    /// The whole transcript.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Saying {
    /// The datagram of a daemon whose socket has this port id.
    pub fn datagram(self, seq: u32, port_id: u32) -> Vec<u8> {
        let message = |header: [u16; 2], seq: u32, payload: &str| {
            let mut bytes = vec![0; 4];
            bytes.extend(header.into_iter().flat_map(u16::to_ne_bytes));
            bytes.extend(seq.to_ne_bytes());
            bytes.extend(port_id.to_ne_bytes());
            bytes.extend(unhex(&payload.replace("GID", GID)));
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            bytes
        };
        let right = |seq: u32| message([IP_RESOLVE, 0], seq, "14000400 GID");
        match self {
            Self::Answer => right(seq),
            Self::Changed { header, payload, .. } => message(header, seq, payload),
            Self::Twice => [right(seq), right(seq)].concat(),
            Self::ToAnother(after) => right(seq.wrapping_add(after)),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask { callers: 1, target, timeout } => {
                write!(f, "a caller asks for {target} with {timeout:?}")
            }
            Self::Ask { callers, target, timeout } => {
                write!(f, "{callers} callers ask for {target} with {timeout:?}")
            }
            Self::Say(saying, numbers) => {
                let name = match saying {
                    Saying::Answer => "answer",
                    Saying::Changed { name, .. } => name,
                    Saying::Twice => "two answers in a datagram",
                    Saying::ToAnother(_) => "answer to another number",
                };
                write!(f, "the daemon says: {name}, to {}", range(numbers.clone()))
            }
            Self::Neighbour => f.write_str("a neighbour becomes valid"),
            Self::NoNeighbour => f.write_str("the neighbours are deleted"),
            Self::Listener(true) => f.write_str("a listener joins the group"),
            Self::Listener(false) => f.write_str("the last listener leaves the group"),
            Self::Reflex(reflexes) => {
                f.write_str("while the next request is being sent:")?;
                reflexes.iter().try_for_each(|reflex| match reflex {
                    Reflex::Answer => f.write_str(" answer"),
                    Reflex::Neighbour => f.write_str(" neighbour"),
                })
            }
            Self::Wait => f.write_str("time passes"),
        }
    }
}

/// Replaces the numbers of a run.
struct Names {
    /// The first sequence number minus one.
    base: Option<u32>,
    numbers: (u32, u32),
}

impl Names {
    fn seq(&self, number: u32) -> u32 {
        self.base.unwrap_or_default().wrapping_add(number)
    }

    /// Consecutive reactions that differ only in their number become one line.
    fn lines(&mut self, heard: &[Heard]) -> Vec<String> {
        let mut lines: Vec<(String, u32, u32)> = Vec::new();
        for heard in heard {
            let (text, number) = match heard {
                Heard::Message(bytes) => self.message(bytes),
                Heard::End(caller, outcome) => {
                    let text = match outcome {
                        Outcome::Answered => "is answered",
                        Outcome::TimedOut => "hears ETIMEDOUT",
                        Outcome::NoListener => "hears EADDRNOTAVAIL",
                    };
                    (format!("caller # {text}"), *caller)
                }
            };
            match lines.last_mut() {
                Some((of, _, last)) if *of == text && last.checked_add(1) == Some(number) => {
                    *last = number;
                }
                _ => lines.push((text, number, number)),
            }
        }
        let line = |(text, first, last): (String, _, _)| text.replace('#', &range(first..=last));
        lines.into_iter().map(line).collect()
    }

    /// The message in words of four bytes, and its sequence number.
    fn message(&mut self, bytes: &[u8]) -> (String, u32) {
        let mut bytes = bytes.to_vec();
        let (ifindex, port_id) = self.numbers;
        let number = word(&bytes, 8);
        let base = *self.base.get_or_insert(number.wrapping_sub(1));
        let is_verdict = bytes.get(4..6) == Some(&[2, 0]);
        put(&mut bytes, 8, 0);
        replace(&mut bytes, 12, port_id, PORT_ID);
        if is_verdict {
            // An error quotes the message that it is about.
            replace(&mut bytes, 28, number, 0);
            replace(&mut bytes, 32, port_id, PORT_ID);
        } else {
            replace(&mut bytes, 16, ifindex, IFINDEX);
        }
        let mut text = "kernel:".to_owned();
        for (at, byte) in bytes.iter().enumerate() {
            let space = if at % 4 == 0 { " " } else { "" };
            // Writing to a String never fails.
            let _ = write!(text, "{space}{byte:02x}");
        }
        (text + " (number #)", number.wrapping_sub(base))
    }
}

fn range(numbers: RangeInclusive<u32>) -> String {
    let (first, last) = numbers.into_inner();
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
    word.copied().map(u32::from_ne_bytes).unwrap_or_default()
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(word) = bytes.get_mut(at..at + 4) {
        word.copy_from_slice(&value.to_ne_bytes());
    }
}

fn replace(bytes: &mut [u8], at: usize, old: u32, new: u32) {
    if bytes.len() >= at + 4 && word(bytes, at) == old {
        put(bytes, at, new);
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    let byte = |pair: &[u32]| pair.iter().fold(0, |byte: u32, digit| byte << 4 | digit);
    digits.chunks(2).map(|pair| byte(pair).to_le_bytes()[0]).collect()
}

const GID: &str = "fe800000 00000000 0002c903 00000201";
/// `RDMA_NL_LS_OP_IP_RESOLVE` of the client `RDMA_NL_LS`.
const IP_RESOLVE: u16 = 0x1002;
const IFINDEX: u32 = 2;
const PORT_ID: u32 = 180;
