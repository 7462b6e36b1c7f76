// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What is done to a kernel, and what it says to that, as text: so that a real kernel and its
//! stand-in can be held against each other, and both against a recording.
//!
//! What differs from run to run is made the same: numbers count from the first request of a case,
//! interfaces and sockets have fixed ones.

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

/// What Linux 6.1 and 6.12 said.
pub const RECORDED: &str = include_str!("../../../tests/data/ls-transcript.txt");

/// A history.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it shows.
    pub name: &'static str,
    /// What is done, each when what came of the one before is over.
    pub steps: Vec<Step>,
}

/// What is done to a kernel.
#[derive(Clone, Debug)]
pub enum Step {
    /// So many callers ask for the address, one after another, each with so much time.
    Ask {
        /// How many.
        callers: u32,
        /// For what.
        target: &'static str,
        /// How long they wait.
        timeout: Duration,
    },
    /// The daemon says this to the requests of these numbers.
    Say(Saying, RangeInclusive<u32>),
    /// A neighbour becomes valid.
    Neighbour,
    /// The neighbours that did are deleted.
    NoNeighbour,
    /// From now on somebody is on the group, or nobody.
    Listener(bool),
    /// The next request of the kernel is followed by this before the kernel does anything else.
    Reflex(&'static [Reflex]),
    /// Time passes until every caller has an outcome.
    Wait,
}

/// What is done from within the sending of a request.
#[derive(Clone, Copy, Debug)]
pub enum Reflex {
    /// It is answered.
    Answer,
    /// A neighbour becomes valid.
    Neighbour,
}

/// What a daemon says, rightly or wrongly.
#[derive(Clone, Copy, Debug)]
pub enum Saying {
    /// The right answer.
    Answer,
    /// The answer with other bytes in places; its length is what it then is.
    Changed {
        /// What is wrong.
        name: &'static str,
        /// Type and flags.
        header: [u16; 2],
        /// Everything after the header, in hexadecimal digits; `GID` stands for 16 bytes of GID.
        payload: &'static str,
    },
    /// Two of the right answer in a datagram.
    Twice,
    /// The right answer, but to the request of this number after.
    ToAnother(u32),
}

/// What a kernel says to a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Heard {
    /// To the daemon.
    Message(Vec<u8>),
    /// To a caller; they count from 1.
    End(u32, Outcome),
}

/// What a caller is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// There is an answer.
    Answered,
    /// `-ETIMEDOUT`.
    TimedOut,
    /// `-EADDRNOTAVAIL`.
    NoListener,
}

/// A kernel, or what stands in for one.
pub trait Subject {
    /// Begins anew: nobody asks, somebody listens, no neighbour is valid.
    ///
    /// # Errors
    /// All of these have those of their sockets.
    fn begin(&mut self) -> Result<()>;

    /// The number of the interface that requests leave by, and that of the daemon's socket.
    fn numbers(&self) -> (u32, u32);

    /// `rdma_resolve_addr`, for the caller of the next number.
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

    /// What has come of a step, messages first. Without `wait` until nothing more can come of it as
    /// long as no time passes; it is expected to be this much.
    ///
    /// # Errors
    /// See above.
    fn heard(&mut self, wait: bool, expected: usize) -> Result<Vec<Heard>>;
}

/// What came of each step, and the whole of it as text.
#[derive(Debug)]
pub struct Transcript {
    heard: Vec<usize>,
    text: String,
}

impl Case {
    /// Does the steps. `expected` is what is known to come of them, so that it can be waited for.
    ///
    /// # Errors
    /// Those of `subject`.
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

    /// Its part of the recording; nothing if it has none.
    pub fn recorded(&self) -> String {
        let begin = format!("case {}", self.name);
        let mut lines = RECORDED.lines().skip_while(|line| *line != begin);
        let first = lines.next();
        let rest = lines.take_while(|line| !line.starts_with("case "));
        first.into_iter().chain(rest).flat_map(|line| [line, "\n"]).collect()
    }
}

impl Transcript {
    /// All of it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Saying {
    /// What a daemon sends, whose socket has this number.
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
            Self::Listener(true) => f.write_str("somebody joins the group"),
            Self::Listener(false) => f.write_str("nobody is on the group any more"),
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

/// What replaces the numbers of one run.
struct Names {
    /// The first number, less one.
    base: Option<u32>,
    numbers: (u32, u32),
}

impl Names {
    fn seq(&self, number: u32) -> u32 {
        self.base.unwrap_or_default().wrapping_add(number)
    }

    /// Consecutive ones that differ in nothing but their number are one line.
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

    /// In words of four bytes, and the number it is about.
    fn message(&mut self, bytes: &[u8]) -> (String, u32) {
        let mut bytes = bytes.to_vec();
        let (ifindex, port_id) = self.numbers;
        let number = word(&bytes, 8);
        let base = *self.base.get_or_insert(number.wrapping_sub(1));
        let is_verdict = bytes.get(4..6) == Some(&[2, 0]);
        put(&mut bytes, 8, 0);
        replace(&mut bytes, 12, port_id, PORT_ID);
        if is_verdict {
            // Quotes what it is about.
            replace(&mut bytes, 28, number, 0);
            replace(&mut bytes, 32, port_id, PORT_ID);
        } else {
            replace(&mut bytes, 16, ifindex, IFINDEX);
        }
        let mut text = "kernel:".to_owned();
        for (at, byte) in bytes.iter().enumerate() {
            let space = if at % 4 == 0 { " " } else { "" };
            // A `String` takes everything.
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
