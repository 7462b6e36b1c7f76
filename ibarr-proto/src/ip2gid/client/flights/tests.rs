// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The table of flights, beside a plain model of it.

use std::net::IpAddr;

use proptest::prelude::*;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

use super::*;
use crate::places::User;
use crate::request::UserRequest;

const LIMITS: Limits = Limits { flights: 4, waiters_per_flight: 3, waiters: 6 };

fn question(n: u8) -> Question {
    Question::new(IpAddr::from([10, 2, 0, n]), None).unwrap()
}

struct Row {
    id: FlightId,
    question: Question,
    msg_id: MsgId,
    /// In order of arrival.
    waiters: Vec<(Instant, RequestId)>,
}

proptest! {
    #[test]
    fn table_does_what_a_plain_list_does(seed: u64, ops: Vec<(u8, u8, u8)>) {
        let rng = &mut ChaCha12Rng::seed_from_u64(seed);
        let mut flights = Flights::new(LIMITS, &Seeded::new(rng));
        let mut model: Vec<Row> = Vec::new();
        let mut users = BTreeSet::new();
        let mut requests = 0;
        let mut now = Instant::BOOT;
        for (op, n, time) in ops {
            now += Duration::from_nanos(u64::from(time % 4));
            let count = model.len();
            let waiting: usize = model.iter().map(|row| row.waiters.len()).sum();
            let chosen = usize::from(n).checked_rem(count);
            match (op % 7, chosen) {
                (0, _) | (_, None) => {
                    let question = question(n);
                    if model.iter().any(|row| row.question == question) {
                        continue;
                    }
                    let started = flights.start(question, now, rng);
                    prop_assert_eq!(started.is_err(), count == LIMITS.flights);
                    if let Ok(id) = started {
                        let msg_id = flights.flight(id).unwrap().msg_id;
                        model.push(Row { id, question, msg_id, waiters: Vec::new() });
                    }
                }
                (1 | 2, Some(chosen)) => {
                    let row = &mut model[chosen];
                    requests += 1;
                    let request = RequestId::User(UserRequest::Control(requests));
                    let deadline = now + Duration::from_nanos(20);
                    let expected = if waiting == LIMITS.waiters {
                        Err(Full::Waiters)
                    } else if row.waiters.len() == LIMITS.waiters_per_flight {
                        Err(Full::WaitersOfFlight)
                    } else {
                        row.waiters.push((deadline, request));
                        Ok(())
                    };
                    let (id, question, asked_at) = (row.id, row.question, now);
                    let is_user = n.is_multiple_of(2);
                    let caller =
                        if is_user { Caller::Control(User(0)) } else { Caller::Kernel };
                    let waiting = Request {
                        id: request,
                        caller,
                        question,
                        asked_at,
                        deadline,
                        freshness: Freshness::Any,
                    };
                    if is_user && expected.is_ok() {
                        users.insert(request);
                    }
                    prop_assert_eq!(flights.wait(id, &waiting), expected);
                }
                (3, Some(_)) => {
                    let request = RequestId::User(UserRequest::Control(u64::from(n) % (requests + 1)));
                    let row = model
                        .iter_mut()
                        .find(|row| row.waiters.iter().any(|&(_, waiter)| waiter == request));
                    let expected = row.map(|row| {
                        row.waiters.retain(|&(_, waiter)| waiter != request);
                        row.id
                    });
                    prop_assert_eq!(flights.is_waiting(request), expected.is_some());
                    prop_assert_eq!(flights.cancel(request), expected);
                }
                (6, Some(chosen)) => {
                    let row = &mut model[chosen];
                    let of_users = |&(_, request): &_| users.contains(&request);
                    let (ended, rest) = row.waiters.iter().copied().partition(of_users);
                    row.waiters = rest;
                    let ended: Vec<_> = ended;
                    let ended: Vec<_> = ended.into_iter().map(|(_, request)| request).collect();
                    prop_assert_eq!(flights.take(row.id, |it| !it.caller.is_kernel()), ended);
                }
                (4, Some(chosen)) => {
                    let row = &mut model[chosen];
                    while let Some(expired) = flights.pop_expired(row.id, now) {
                        let (deadline, request) = row.waiters.remove(0);
                        prop_assert!(deadline <= now);
                        prop_assert_eq!(expired, request);
                    }
                    prop_assert!(row.waiters.iter().all(|&(deadline, _)| deadline > now));
                    flights.renew(row.id, now, rng);
                    let msg_id = flights.flight(row.id).unwrap().msg_id;
                    prop_assert_ne!(std::mem::replace(&mut row.msg_id, msg_id), msg_id);
                }
                (_, Some(chosen)) => {
                    let row = model.remove(chosen);
                    let ended = flights.end(row.id).unwrap();
                    prop_assert_eq!(ended.question, row.question);
                    prop_assert_eq!(ended.waiters.into_iter().collect::<Vec<_>>(), row.waiters);
                    prop_assert_eq!(flights.of_msg_id(row.msg_id), None);
                    prop_assert_eq!(flights.of_question(row.question), None);
                    prop_assert!(flights.end(row.id).is_none());
                }
            }
            prop_assert_eq!(flights.len(), model.len());
            prop_assert_eq!(flights.by_question.len(), model.len());
            prop_assert_eq!(flights.by_msg_id.len(), model.len());
            prop_assert_eq!(
                flights.waiters(),
                model.iter().map(|row| row.waiters.len()).sum::<usize>()
            );
            for row in &model {
                prop_assert_eq!(flights.of_question(row.question), Some(row.id));
                prop_assert_eq!(flights.of_msg_id(row.msg_id), Some(row.id));
            }
        }
    }
}

#[test]
fn msg_id_in_flight_is_not_reused() {
    /// Returns 7 three times, then 8.
    struct Repetitive(u32);

    impl rand_core::TryRng for Repetitive {
        type Error = std::convert::Infallible;

        fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
            self.0 += 1;
            Ok(if self.0 <= 3 { 7 } else { 8 })
        }

        fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
            self.try_next_u32().map(u64::from)
        }

        fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
            bytes.fill(7);
            Ok(())
        }
    }

    impl rand_core::TryCryptoRng for Repetitive {}

    let hasher = Seeded::new(&mut ChaCha12Rng::seed_from_u64(1));
    let mut flights = Flights::new(LIMITS, &hasher);
    let rng = &mut Repetitive(0);
    let msg_ids = [1, 2].map(|n| {
        let id = flights.start(question(n), Instant::BOOT, rng).unwrap();
        flights.flight(id).unwrap().msg_id
    });
    assert_eq!(msg_ids, [MsgId(7), MsgId(8)]);
}

#[test]
fn resend_waits_for_schedule_and_doubled_round_trip() {
    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
    let schedule =
        Schedule::new(const { &[ms(20), ms(60), ms(180)] }, crate::retry::Jitter::default());
    let socket = SocketId::closed_for_tests();
    let pauses = |timeout, factor| {
        let mut flight = Flight::new(question(1), MsgId(7), Instant::BOOT + ms(3000));
        [(); 4].map(|()| {
            flight.sent_from(Instant::BOOT, socket, 0);
            flight.pause(&schedule, Expected { timeout: ms(timeout), factor })
        })
    };
    assert_eq!(pauses(0, 1), [20, 40, 120, 1000].map(ms));
    assert_eq!(pauses(5, 1), [20, 40, 120, 1000].map(ms));
    assert_eq!(pauses(50, 1), [50, 100, 200, 1000].map(ms));
    assert_eq!(pauses(150, 1), [150, 300, 500, 1000].map(ms));
    assert_eq!(pauses(700, 1), [700, 700, 700, 1000].map(ms));
    assert_eq!(pauses(50, 4), [200, 400, 500, 1000].map(ms));
    assert_eq!(pauses(0, 8), [160, 320, 960, 1000].map(ms));
}

#[test]
fn reply_identifies_its_send_unless_the_socket_was_used_twice() {
    let (socket, now) = (SocketId::closed_for_tests(), Instant::BOOT);
    let mut flight = Flight::new(question(1), MsgId(7), now);
    assert_eq!(flight.send(socket), None);
    flight.sent_from(now, socket, 0);
    let mut send = Send { socket, at: now, way: 0, is_repeated: false };
    assert_eq!(flight.send(socket), Some(&send));
    flight.sent_from(now + Duration::from_secs(1), socket, 0);
    send.is_repeated = true;
    assert_eq!(flight.send(socket), Some(&send));
}
