// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The client's cache, full: time of a look-up, memory of an entry.

use std::fs;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant as Stopwatch};

use anyhow::{Context, Result, ensure};
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::Query;
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{Client, Config, Event, Input, RequestId, Route, Settings};
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Entries of the caches that are compared.
pub(super) const SMALL: u32 = 1_000;
/// See [`SMALL`].
pub(super) const LARGE: u32 = 100_000;

/// What caches cost.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Costs {
    /// Median time of looking up what is there, at [`SMALL`], in nanoseconds: that of the round
    /// which was least disturbed.
    pub(super) small_lookup_ns: f64,
    /// The same at [`LARGE`].
    pub(super) large_lookup_ns: f64,
    /// Growth of the resident process for each entry, at [`LARGE`].
    pub(super) bytes_per_entry: f64,
}

impl Costs {
    /// The least of both: what disturbs only ever adds.
    pub(super) fn less_disturbed(self, other: Self) -> Self {
        Self {
            small_lookup_ns: self.small_lookup_ns.min(other.small_lookup_ns),
            large_lookup_ns: self.large_lookup_ns.min(other.large_lookup_ns),
            bytes_per_entry: self.bytes_per_entry.min(other.bytes_per_entry),
        }
    }
}

/// Fills caches in this process, through queries and replies as they come from the network, and
/// measures.
///
/// # Errors
/// The client does not remember what it was told.
pub fn measure() -> Result<Costs> {
    let mut rng = ChaCha20Rng::seed_from_u64(SEED);
    let mut small = Filled::new(SMALL, &mut rng)?;
    let mut large = Filled::new(LARGE, &mut rng)?;
    // In turn, so that what disturbs disturbs both.
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (cache, best) in [&mut small, &mut large].into_iter().zip(&mut best) {
            *best = best.min(cache.median_lookup_ns()?);
        }
    }
    let [small_lookup_ns, large_lookup_ns] = best;
    Ok(Costs { small_lookup_ns, large_lookup_ns, bytes_per_entry: large.bytes_per_entry })
}

/// A client that remembers many answers.
struct Filled {
    client: Client<ChaCha20Rng>,
    /// All its questions, again and again, in another order than they were asked in: memory must
    /// not be read ahead.
    questions: std::iter::Cycle<std::vec::IntoIter<Question>>,
    bytes_per_entry: f64,
}

impl Filled {
    fn new(entries: u32, rng: &mut ChaCha20Rng) -> Result<Self> {
        let mut questions: Vec<Question> = (0..entries)
            .map(|entry| Question::new(target(entry), None).context("a target nobody can own"))
            .collect::<Result<_>>()?;
        let room = NonZeroUsize::new(questions.len()).context("no entries")?;
        let settings = Settings {
            max_cached: room,
            cache_ttl: Duration::from_hours(24),
            ..Settings::default()
        };
        let before = resident_bytes()?;
        let mut client = Client::new(Config::new(settings)?, ChaCha20Rng::from_rng(rng));
        for &question in &questions {
            answer(&mut client, question)?;
        }
        let grown = u32::try_from(resident_bytes()?.saturating_sub(before))?;
        let remembered = client.entries().count();
        ensure!(remembered == questions.len(), "{remembered} of {entries} answers are remembered");

        for at in (1..questions.len()).rev() {
            let other = rng.next_u64() % (u64::try_from(at)? + 1);
            questions.swap(at, usize::try_from(other)?);
        }
        let bytes_per_entry = f64::from(grown) / f64::from(entries);
        Ok(Self { client, questions: questions.into_iter().cycle(), bytes_per_entry })
    }

    fn median_lookup_ns(&mut self) -> Result<f64> {
        let mut times = Vec::with_capacity(GROUPS);
        for _ in 0..GROUPS {
            let group: Vec<Question> = self.questions.by_ref().take(GROUP).collect();
            let start = Stopwatch::now();
            for &question in &group {
                let found = black_box(self.client.lookup(LATER, question));
                ensure!(found.is_some(), "{question} is forgotten");
            }
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let median = times.get(GROUPS / 2).context("no look-ups")?;
        Ok(median.as_secs_f64() * 1e9 / f64::from(u32::try_from(GROUP)?))
    }
}

/// Lets `client` ask `question`, and its peer answer.
fn answer(client: &mut Client<ChaCha20Rng>, question: Question) -> Result<()> {
    client.handle_input(START, Input::Resolve { id: RequestId(0), question });
    let gateway = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 254));
    let ifindex = IfIndex::new(4).context("4 is not 0")?;
    while let Some(question) = client.poll_route() {
        let route = Some(Route { ifindex, next_hop: gateway });
        client.handle_input(START, Input::Route { question, route });
    }
    let mut is_answered = false;
    loop {
        while let Some(event) = client.poll_event() {
            match event {
                Event::OpenSocket { socket } => {
                    client.handle_input(START, Input::SocketOpened { socket });
                }
                Event::Answered { .. } => is_answered = true,
                Event::CloseSocket { .. } => {}
            }
        }
        let Some(query) = client.poll_transmit() else { break };
        let gid = Gid::new([0xfe; 16]).context("a legal GID")?;
        let reply = Query::parse(query.payload.as_ref())?.reply(Some(gid)).emit();
        let payload = reply.as_ref();
        let input =
            Input::Datagram { socket: query.socket, from: query.to, ingress: ifindex, payload };
        client.handle_input(START, input);
    }
    ensure!(is_answered, "{question} is not answered");
    Ok(())
}

/// Addresses as a cluster has them: all of a /15 before the next.
fn target(entry: u32) -> IpAddr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 4, 0, 1).to_bits() + entry).into()
}

fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read own status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("no VmRSS in /proc/self/status")? * 1024)
}

/// Look-ups timed together: a clock takes about as long as one.
const GROUP: usize = 16;
/// A round's, some milliseconds of them: the median is not moved by an interrupt.
const GROUPS: usize = 2_000;
const ROUNDS: usize = 100;

const SEED: u64 = 1;
const START: Instant = Instant::from_nanos(1_000_000_000);
const LATER: Instant = Instant::from_nanos(2_000_000_000);
