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

/// What a cache of one size costs.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Cost {
    /// Half of the look-ups of entries that are there take at most this long.
    pub lookup_p50_ns: f64,
    /// Growth of the process, resident set, for each entry.
    pub bytes_per_entry: f64,
}

/// Fills a cache of this process with `entries` answers, through queries and replies as they come
/// from the network, and measures. For the memory, a new process each time.
///
/// # Errors
/// The client does not remember what it was told.
pub fn measure(entries: u32) -> Result<Cost> {
    let mut rng = ChaCha20Rng::seed_from_u64(SEED);
    let questions: Vec<Question> = (0..entries)
        .map(|entry| Question::new(target(entry), None).context("a target nobody can own"))
        .collect::<Result<_>>()?;
    // In another order than they came in, or memory would be read ahead.
    let mut asked = questions.clone();
    for at in (1..asked.len()).rev() {
        let other = rng.next_u64() % (u64::try_from(at)? + 1);
        asked.swap(at, usize::try_from(other)?);
    }

    let room = NonZeroUsize::new(questions.len()).context("no entries")?;
    let settings =
        Settings { max_cached: room, cache_ttl: Duration::from_hours(24), ..Settings::default() };
    let before = resident_bytes()?;
    let mut client = Client::new(Config::new(settings)?, rng);
    for &question in &questions {
        answer(&mut client, question)?;
    }
    let grown = resident_bytes()?.saturating_sub(before);
    let remembered = client.entries().count();
    ensure!(remembered == questions.len(), "{remembered} of {entries} answers are remembered");

    let mut times = Vec::new();
    let mut all = asked.iter().cycle();
    for _ in 0..GROUPS {
        let group: Vec<Question> = all.by_ref().take(GROUP).copied().collect();
        let start = Stopwatch::now();
        for &question in &group {
            ensure!(black_box(client.lookup(LATER, question)).is_some(), "{question} is forgotten");
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median = times.get(GROUPS / 2).context("no look-ups")?;
    Ok(Cost {
        lookup_p50_ns: median.as_secs_f64() * 1e9 / f64::from(u32::try_from(GROUP)?),
        bytes_per_entry: f64::from(u32::try_from(grown)?) / f64::from(entries),
    })
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
const GROUPS: usize = 50_000;

const SEED: u64 = 1;
const START: Instant = Instant::from_nanos(1_000_000_000);
const LATER: Instant = Instant::from_nanos(2_000_000_000);
