// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Conditions under which the kernel is nudged.

use std::time::Duration;

use super::super::*;
use super::rig::{Rig, ms, peer, request};
use super::{ONE, TWO};

#[test]
fn nudges_are_a_millisecond_apart_and_never_two_at_a_time() {
    let mut rig = Rig::new();
    let give = |rig: &mut Rig, seq| {
        rig.asks(seq, ONE);
        rig.finds(ONE, peer(ONE));
        rig.next().unwrap()
    };
    give(&mut rig, 1);
    rig.does("nudge");
    give(&mut rig, 2);
    rig.pass(ms(10));
    rig.does("");
    rig.tell(Input::Nudged(Nudged::Done));
    rig.does("nudge");
    rig.tell(Input::Nudged(Nudged::Done));

    // Both answers come within a millisecond of that nudge; one nudge covers both.
    give(&mut rig, 3);
    give(&mut rig, 4);
    assert_eq!(rig.core.poll_timeout(), Some(rig.now + NUDGE_INTERVAL));
    rig.pass(NUDGE_INTERVAL.saturating_sub(Duration::from_nanos(1)));
    rig.does("");
    rig.pass(Duration::from_nanos(1));
    rig.does("nudge");
}

#[test]
fn nudge_for_a_single_caller_ignores_the_interval() {
    const APART: Duration = Duration::from_micros(100);
    let mut rig = Rig::new();
    (1..=100).for_each(|seq| {
        rig.pass(APART);
        rig.is_answered(seq, ONE);
    });
    rig.counted("requests 100, answered-peer 100, nudges 100");
}

/// As on Linux 6.12 with one processor: the nudge wakes the caller, which asks for the next address
/// before the daemon knows that the nudge has ended.
#[test]
fn caller_that_asks_again_during_its_nudge_does_not_wait() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1, nudge");
    (2..=100).for_each(|seq| {
        rig.pass(Duration::from_micros(300));
        rig.asks(seq, ONE);
        // Before or after the end of the nudge.
        if seq % 2 == 0 {
            rig.finds(ONE, peer(ONE));
            rig.does(&format!("{seq} is fe80::1"));
            rig.tell(Input::Nudged(Nudged::Done));
            rig.does("nudge");
        } else {
            rig.tell(Input::Nudged(Nudged::Done));
            rig.finds(ONE, peer(ONE));
            rig.does(&format!("{seq} is fe80::1, nudge"));
        }
    });
    rig.tell(Input::Nudged(Nudged::Done));
    rig.counted("requests 100, answered-peer 100, nudges 100");
}

/// In each case a nudge would make the kernel repeat requests of others, or requests that an
/// earlier nudge caused.
#[test]
fn nudge_for_several_callers_waits_for_quiet() {
    waits_for_quiet("two at once", |rig| {
        rig.tell(Input::Nudged(Nudged::Done));
        (2..=3).for_each(|seq| rig.asks(seq, ONE));
        (2..=3).for_each(|_| rig.finds(ONE, peer(ONE)));
        rig.does("2 is fe80::1, 3 is fe80::1");
    });
    waits_for_quiet("a repetition", |rig| {
        rig.tell(Input::Nudged(Nudged::Done));
        rig.asks(1, ONE);
        rig.does("1 is fe80::1");
    });
    waits_for_quiet("another waits", |rig| {
        rig.tell(Input::Nudged(Nudged::Done));
        rig.asks(2, TWO);
        rig.asks(3, ONE);
        rig.finds(ONE, peer(ONE));
        rig.does("3 is fe80::1");
    });
    waits_for_quiet("two asked during a nudge", |rig| {
        (2..=3).for_each(|seq| {
            rig.asks(seq, ONE);
            rig.finds(ONE, peer(ONE));
        });
        rig.tell(Input::Nudged(Nudged::Done));
        rig.does("2 is fe80::1, 3 is fe80::1");
    });
    waits_for_quiet("the nudge found another", |rig| {
        // The request was sent just before the nudge, and read after it.
        rig.asks(2, TWO);
        rig.asks(2, TWO);
        rig.tell(Input::Nudged(Nudged::Done));
        rig.finds(TWO, peer(TWO));
        rig.does("2 is fe80::2");
    });
    waits_for_quiet("another has asked since the answer", |rig| {
        rig.asks(2, ONE);
        rig.finds(ONE, peer(ONE));
        rig.does("2 is fe80::1");
        rig.asks(3, TWO);
        rig.tell(Input::Nudged(Nudged::Done));
    });
}

#[track_caller]
fn waits_for_quiet(name: &str, asked: impl Fn(&mut Rig)) {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1, nudge");
    rig.pass(Duration::from_micros(100));
    asked(&mut rig);
    assert_eq!(rig.core.poll_timeout(), Some(rig.now + NUDGE_QUIET), "{name}");
    rig.pass(NUDGE_QUIET);
    rig.does("nudge");
}

#[test]
fn nudge_waits_for_a_pause_but_not_forever() {
    const APART: Duration = Duration::from_micros(500);
    let mut rig = Rig::new();
    rig.is_answered(1, ONE);
    rig.pass(APART);
    let begun = rig.now;
    // The second of these does not come alone.
    rig.asks(2, TWO);
    let mut seq = 3;
    while rig.now < begun + NUDGE_WITHIN {
        rig.asks(seq, ONE);
        rig.finds(ONE, peer(ONE));
        rig.does(&format!("{seq} is fe80::1"));
        rig.pass(APART);
        seq += 1;
    }
    rig.does("nudge");
}

#[test]
fn nudge_is_repeated_three_times_after_the_last_answer() {
    let mut rig = Rig { skips_follow_ups: false, ..Rig::new() };
    let nudged_after = |rig: &mut Rig, pause: Duration| {
        assert_eq!(rig.core.poll_timeout(), Some(rig.now + pause));
        rig.pass(pause);
        rig.does("nudge");
        rig.tell(Input::Nudged(Nudged::Done));
    };
    rig.is_answered(1, ONE);
    let [first, second, _] = FOLLOW_UPS;
    nudged_after(&mut rig, first);
    nudged_after(&mut rig, second);
    // The pauses start again.
    rig.pass(ms(1));
    rig.is_answered(2, ONE);
    for pause in FOLLOW_UPS {
        nudged_after(&mut rig, pause);
    }
    rig.pass(ms(1000));
    rig.does("");
    assert_eq!(rig.core.counters().get(Counter::Nudges), 3);
    assert_eq!(rig.core.counters().get(Counter::NudgesRepeated), 3 + 2 + 3);
}

#[test]
fn nudge_waits_for_the_rest_of_a_burst_but_not_forever() {
    let mut rig = Rig::new();
    rig.datagram(request(1, ONE).as_ref());
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1");
    rig.pass(ms(1));
    rig.datagram(request(2, TWO).as_ref());
    rig.finds(TWO, peer(TWO));
    rig.does("2 is fe80::2");
    rig.tell(Input::Drained);
    rig.does("nudge");
    rig.tell(Input::Nudged(Nudged::Done));

    rig.pass(ms(10));
    let begun = rig.now;
    let mut seq = 3;
    while rig.now < begun + NUDGE_BEHIND {
        rig.datagram(request(seq, ONE).as_ref());
        rig.finds(ONE, peer(ONE));
        rig.does(&format!("{seq} is fe80::1"));
        rig.pass(ms(1));
        seq += 1;
    }
    rig.does("nudge anyway");
}

#[test]
fn nudge_postponed_by_requests_follows_their_answers() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1, nudge");
    rig.tell(Input::Nudged(Nudged::Postponed));
    rig.pass(Duration::from_micros(100));
    rig.asks(2, TWO);
    rig.finds(TWO, peer(TWO));
    rig.does("2 is fe80::2");
    assert_eq!(rig.core.poll_timeout(), Some(rig.now + NUDGE_QUIET));
    rig.pass(NUDGE_QUIET);
    rig.does("nudge");
    rig.tell(Input::Nudged(Nudged::Done));
    rig.pass(ms(1000));
    rig.does("");
    rig.counted("requests 2, answered-peer 2, nudges 2, nudges-postponed 1");
}

#[test]
fn nudge_is_postponed_but_not_forever() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1, nudge");
    let begun = rig.now;
    while rig.now < begun + NUDGE_BEHIND.saturating_sub(NUDGE_INTERVAL) {
        rig.tell(Input::Nudged(Nudged::Postponed));
        rig.does("");
        rig.pass(NUDGE_INTERVAL);
        rig.does("nudge");
    }
    rig.tell(Input::Nudged(Nudged::Postponed));
    rig.pass(NUDGE_INTERVAL);
    rig.does("nudge anyway");
}

#[test]
fn postponed_repetition_of_a_nudge_is_made_later() {
    let mut rig = Rig { skips_follow_ups: false, ..Rig::new() };
    rig.is_answered(1, ONE);
    for pause in FOLLOW_UPS {
        rig.pass(pause);
        rig.does("nudge");
        rig.tell(Input::Nudged(Nudged::Postponed));
        rig.pass(NUDGE_INTERVAL);
        rig.does("nudge");
        rig.tell(Input::Nudged(Nudged::Done));
    }
    rig.pass(ms(1000));
    rig.does("");
}

/// Also with a kernel that never accepts an answer, and repeats everything at each nudge.
#[test]
fn nudges_end_even_if_no_answer_is_accepted() {
    const REQUESTS: u32 = 20;
    let mut rig = Rig::new();
    let ask_all = |rig: &mut Rig| (1..=REQUESTS).for_each(|seq| rig.asks(seq, ONE));
    ask_all(&mut rig);
    (0..REQUESTS).for_each(|_| rig.finds(ONE, peer(ONE)));
    rig.skips_follow_ups = false;
    let most = MAX_NUDGES * (1 + u8::try_from(FOLLOW_UPS.len()).unwrap());
    let mut nudges = 0;
    loop {
        while let Some(done) = rig.next() {
            if done == "nudge" {
                nudges += 1;
                assert!(nudges <= most, "they feed themselves");
                rig.tell(Input::Nudged(Nudged::Done));
                ask_all(&mut rig);
            }
        }
        let Some(due) = rig.core.poll_timeout() else { break };
        rig.pass(due.since(rig.now));
    }
    // Each repeated request comes with a nudge or with its repetition.
    assert!((MAX_NUDGES..=most).contains(&nudges));
    assert_eq!(rig.core.load(), Load::default());
}
