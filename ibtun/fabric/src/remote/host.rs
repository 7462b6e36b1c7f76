// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A host's end.

use std::collections::{BTreeMap, VecDeque};

use ibarr_common::Instant;
use ibarr_common::ib::PortNum;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _};

use super::datagram::Datagram;
use super::message::Sender;
use super::session::{Numbers, Session};
use super::{ALIVE, GONE, Key, Message, Refusal};

/// A host, which has the device of one node.
///
/// After each other call, the caller must call [`Host::poll_transmit`] and [`Host::poll_event`] until they return
/// nothing.
#[derive(Debug)]
pub struct Host {
    /// Name of its node.
    name: String,
    key: Option<Key>,
    rng: ChaCha20Rng,
    /// Its number of the session that it has or wants.
    number: u64,
    /// Since the fabric's challenge.
    session: Option<Session>,
    has_joined: bool,
    /// Whether the caller knows that the fabric is silent.
    is_lost: bool,
    /// When it last heard of the fabric in a session; at first, when it started.
    heard: Instant,
    /// When it next says that it is there.
    due: Instant,
    /// The latest capabilities by port, to be repeated.
    capabilities: BTreeMap<PortNum, u32>,
    events: VecDeque<Event>,
    out: VecDeque<Vec<u8>>,
}

/// A change that is worth a line in the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The fabric takes this for the host of its node.
    Joined,
    /// The fabric has been silent for [`GONE`]. The host tries to join until it answers.
    Lost,
}

impl Host {
    /// The host of the node with this name. `seed` must be secret, and another one in each run.
    pub fn new(name: String, key: Option<Key>, seed: [u8; 32], now: Instant) -> Self {
        let mut rng = ChaCha20Rng::from_seed(seed);
        let number = rng.next_u64();
        Self {
            name,
            key,
            rng,
            number,
            session: None,
            has_joined: false,
            is_lost: false,
            heard: now,
            due: now,
            capabilities: BTreeMap::new(),
            events: VecDeque::new(),
            out: VecDeque::new(),
        }
    }

    /// When [`Host::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Says that the host is there, or that it wants to join, if it is time to.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.due {
            return;
        }
        self.due = now + ALIVE;
        if now >= self.heard + GONE {
            if !self.is_lost {
                self.is_lost = true;
                self.events.push_back(Event::Lost);
            }
            if self.has_joined {
                self.has_joined = false;
                self.session = None;
                self.number = self.rng.next_u64();
            }
        }
        if self.has_joined {
            self.say(Message::Alive);
            self.repeat_capabilities();
        } else {
            let numbers = Numbers { host: self.number, fabric: 0 };
            let message = Message::Hello(&self.name);
            let datagram = Datagram { sender: Sender::Host, numbers, count: 0, message };
            self.out.push_back(datagram.emit(self.key.as_ref()));
        }
    }

    /// Handles a datagram of the fabric. What it says is for the device: a packet, or the state of a port.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn handle_datagram<'a>(
        &mut self,
        now: Instant,
        bytes: &'a [u8],
    ) -> Result<Option<Message<'a>>, Refusal> {
        let Datagram { numbers, count, message, .. } =
            Datagram::parse(bytes, Sender::Fabric, self.key.as_ref())?;
        if message == Message::Challenge {
            return self.challenged(numbers).map(|()| None);
        }
        let session = self.session.as_mut().filter(|session| session.numbers == numbers);
        if !session.ok_or(Refusal::Session)?.admit(count) {
            return Err(Refusal::Replayed);
        }
        self.heard = now;
        if !self.has_joined {
            (self.has_joined, self.is_lost) = (true, false);
            self.events.push_back(Event::Joined);
            self.repeat_capabilities();
        }
        Ok(Some(message))
    }

    /// The device sends a packet. It is lost if the host has not joined.
    pub fn write(&mut self, port: PortNum, packet: &[u8]) {
        if self.has_joined {
            self.say(Message::Packet { port, packet });
        }
    }

    /// The software behind a port has changed its capabilities.
    pub fn set_capabilities(&mut self, port: PortNum, mask: u32) {
        self.capabilities.insert(port, mask);
        if self.has_joined {
            self.say(Message::Capabilities { port, mask });
        }
    }

    /// The next event, if there was one.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next datagram for the fabric.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    fn challenged(&mut self, numbers: Numbers) -> Result<(), Refusal> {
        if self.has_joined || numbers.host != self.number {
            return Err(Refusal::Session);
        }
        // The fabric may have missed the join to a challenge that it repeats.
        if self.session.as_ref().is_none_or(|session| session.numbers != numbers) {
            self.session = Some(Session::new(numbers));
        }
        let name = std::mem::take(&mut self.name);
        self.say(Message::Join(&name));
        self.name = name;
        Ok(())
    }

    fn repeat_capabilities(&mut self) {
        for (port, mask) in self.capabilities.clone() {
            self.say(Message::Capabilities { port, mask });
        }
    }

    /// Sends a message in the session.
    fn say(&mut self, message: Message<'_>) {
        if let Some(session) = &mut self.session {
            let (count, numbers) = (session.next_count(), session.numbers);
            let datagram = Datagram { sender: Sender::Host, numbers, count, message };
            self.out.push_back(datagram.emit(self.key.as_ref()));
        }
    }
}
