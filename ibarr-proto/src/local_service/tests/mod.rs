// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel's side as a whole; the test plays kernel and node. Long because it is the table of its
//! behaviour; each case stands alone.

mod crowd;
mod model;
mod nudges;
mod rig;

use std::time::Duration;

use ibarr_common::ib::PortNum;
use ibarr_common::wire::ls::{PathUse, ResolvePath};

use self::rig::{Rig, gid, ms, peer, request, unhex};
use super::*;

const ONE: &str = "10.2.0.1";
const TWO: &str = "10.2.0.2";
const THREE: &str = "10.2.0.3";

#[test]
fn answer_to_the_kernel_matches_the_recording_byte_for_byte() {
    // Recorded from Linux 6.1 with a responder whose answers it accepted; see the codec's golden
    // files.
    let mut rig = Rig::new();
    rig.datagram(&unhex("1c000000 02100100 0c000000 00000000 02000000 08000920 0a020001"));
    let gid = "fe80::2:c903:0:14".parse().unwrap();
    rig.finds(ONE, Outcome::Found { gid, source: Source::Cache });
    let Some(Transmit::Message(answer)) = rig.core.poll_transmit() else { panic!("no answer") };
    let bytes =
        unhex("24000000 02100000 0c000000 b4000000 14000400 fe800000 00000000 0002c903 00000014");
    assert_eq!(answer.as_ref(), bytes);
    rig.counted("requests 1, answered-cache 1");
}

#[test]
fn one_nudge_follows_all_answers() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.asks(2, TWO);
    rig.finds(TWO, peer(TWO));
    rig.finds(ONE, peer(ONE));
    rig.does("2 is fe80::2, 1 is fe80::1, nudge");
    rig.pass(ms(100));
    rig.does("");
    rig.counted("requests 2, answered-peer 2, nudges 1");
}

#[test]
fn repetition_of_a_waiting_request_is_absorbed() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.asks(1, ONE);
    rig.wants(ONE);
    rig.finds(ONE, peer(ONE));
    // Its answer is in transit.
    rig.asks(1, ONE);
    rig.does("1 is fe80::1, nudge");
    rig.counted("requests 1, answered-peer 1, duplicates-waiting 2, nudges 1");
}

#[test]
fn repeated_request_is_answered_from_memory_with_at_most_three_nudges() {
    let mut rig = Rig::new();
    rig.is_answered(1, ONE);
    for nudged in 1..=10 {
        rig.pass(ms(50));
        rig.asks(1, ONE);
        rig.wants("");
        if nudged > 1 {
            rig.does("");
            rig.pass(REPEAT_AFTER);
        }
        rig.does(if nudged < 3 { "1 is fe80::1, nudge" } else { "1 is fe80::1" });
        rig.tell(Input::Nudged(Nudged::Done));
    }
    rig.counted(
        "requests 1, answered-peer 1, duplicates-answered 10, answers-repeated 9, nudges 3",
    );
}

/// As when the daemon preempts the sending kernel.
#[test]
fn daemon_faster_than_the_kernel_delays_its_third_answer() {
    const WINDOW: Duration = Duration::from_micros(100);
    let mut rig = Rig::new();
    rig.is_answered(1, ONE);
    let mut sent_at = rig.now;
    rig.skips_follow_ups = false;
    loop {
        match rig.next().as_deref() {
            Some("nudge") => {
                rig.tell(Input::Nudged(Nudged::Done));
                sent_at = rig.now;
                rig.asks(1, ONE);
            }
            // The kernel has queued the request by now.
            Some(_) if rig.now >= sent_at + WINDOW => break,
            Some(_) => {}
            None => {
                let due = rig.core.poll_timeout().expect("it is not given up");
                rig.pass(due.since(rig.now));
            }
        }
    }
    assert_eq!(rig.core.counters().get(Counter::DuplicatesAnswered), 2);
}

#[test]
fn answer_is_remembered_for_a_second_despite_repetitions() {
    let mut rig = Rig::new();
    rig.is_answered(1, ONE);
    rig.pass(MEMORY.saturating_sub(ms(1)));
    rig.asks(1, ONE);
    rig.does("1 is fe80::1, nudge");
    rig.pass(ms(1));
    assert_eq!(rig.core.load(), Load::default());
    rig.asks(1, ONE);
    rig.wants(ONE);
}

#[test]
fn reused_number_with_another_question_is_another_request() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.asks(1, TWO);
    rig.wants(TWO);
    rig.finds(TWO, peer(TWO));
    rig.does("1 is fe80::2, nudge");
    // A request that has been answered has ended already.
    rig.asks(1, ONE);
    rig.wants(ONE);
    rig.counted("requests 3, answered-peer 1, superseded 1, nudges 1");
    assert_eq!(rig.dropped, [format!("{ONE} after 0ns: superseded")]);
}

#[test]
fn address_and_path_requests_may_share_a_number() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.datagram(path_request(1).as_ref());
    rig.wants(ONE);
    rig.does("1 asks the SA");
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1");
    rig.tell(Input::Drained);
    rig.does("nudge");
}

#[test]
fn failed_search_is_repeated_until_the_deadline_then_dropped() {
    let outcomes = [
        (Outcome::NotFound, "given-up-not-found"),
        (Outcome::TimedOut, "given-up-timed-out"),
        (Outcome::Unreachable, "given-up-unreachable"),
        (Outcome::Overloaded, "given-up-overloaded"),
    ];
    for (outcome, counted) in outcomes {
        let mut rig = Rig::new();
        rig.asks(1, ONE);
        let given_up_at = rig.now + DEADLINE;
        let mut tries = 0;
        while rig.now < given_up_at {
            rig.wants(ONE);
            rig.finds(ONE, outcome);
            // Repetitions do not make the next try earlier.
            rig.asks(1, ONE);
            rig.wants("");
            let due = rig.core.poll_timeout().unwrap();
            let age = DEADLINE.saturating_sub(given_up_at.since(rig.now));
            assert_eq!(due, rig.now + if age < LATELY { RETRY } else { 2 * RETRY });
            rig.pass(due.since(rig.now));
            tries += 1;
        }
        rig.wants("");
        rig.does("");
        assert_eq!(rig.core.load(), Load::default());
        rig.counted(&format!("requests 1, {counted} 1, duplicates-waiting {tries}"));
        assert_eq!(rig.dropped, [format!("{ONE} after 30s: {counted}")]);
    }
}

#[test]
fn unanswered_request_is_dropped_at_its_deadline() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.pass(DEADLINE.saturating_sub(ms(1)));
    rig.wants(ONE);
    rig.pass(ms(1));
    rig.wants("");
    rig.counted("requests 1, given-up-timed-out 1");
}

#[test]
fn answer_of_a_later_search_counts() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.finds(ONE, Outcome::Unreachable);
    rig.pass(RETRY);
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1, nudge");
    rig.counted("requests 1, answered-peer 1, nudges 1");
}

#[test]
fn malformed_path_request_is_answered() {
    let whole = path_request(7);
    let whole = whole.as_ref();
    let changed = |at: usize, byte: u8| {
        let mut changed = whole.to_vec();
        changed[at] = byte;
        changed
    };
    let cases = [
        (whole.to_vec(), "path-requests 1, paths-unknown 1"),
        (whole[..40].to_vec(), "paths-malformed 1, malformed-truncated 1"),
        (whole[..16].to_vec(), "paths-malformed 1, malformed-truncated 1"),
        // Lengths: of the message, none; of the message, too much; of the first attribute.
        (changed(0, 0), "paths-malformed 1, malformed-truncated 1"),
        (changed(1, 1), "paths-malformed 1, malformed-truncated 1"),
        (changed(84, 19), "paths-malformed 1, malformed-attribute-length 1"),
        (changed(84, 0), "paths-malformed 1, malformed-truncated 1"),
        // No such device, port or use of paths; another attribute that has to be understood.
        (changed(16, 0), "paths-malformed 1, malformed-value 1"),
        (changed(80, 0), "paths-malformed 1, malformed-value 1"),
        (changed(81, 9), "paths-malformed 1, malformed-value 1"),
        (changed(86, 30), "paths-malformed 1, malformed-attribute-mandatory 1"),
        // The DGID's type is changed to SGID.
        (changed(86, 5), "paths-malformed 1, malformed-attribute-repeated 1"),
    ];
    for (bytes, counted) in cases {
        let mut rig = Rig::new();
        rig.datagram(&bytes);
        rig.tell(Input::Drained);
        let Some(Transmit::Message(answer)) = rig.core.poll_transmit() else {
            panic!("no answer to {bytes:02x?}")
        };
        assert_eq!(answer.as_ref(), unhex("10000000 00100001 07000000 b4000000"), "{bytes:02x?}");
        // Path requests need no nudge.
        rig.does("");
        rig.counted(counted);
    }
}

#[test]
fn malformed_address_request_is_only_counted() {
    let ip = |payload: &str| {
        let length = 16 + unhex(payload).len();
        unhex(&format!("{length:02x}000000 02100100 07000000 00000000 {payload}"))
    };
    let cases = [
        (ip(""), "malformed-truncated 1"),
        (ip("02000000"), "malformed-attribute-missing 1"),
        (ip("00000000 08000920 0a020001"), "malformed-value 1"),
        (ip("02000000 07000920 0a020001"), "malformed-attribute-length 1"),
        (ip("02000000 08000920 0a020001 08000920 0a020001"), "malformed-attribute-repeated 1"),
        (ip("02000000 08001e20 0a020001"), "malformed-attribute-mandatory 1"),
        (ip("02000000 08000920 00000000"), "malformed-target 1"),
        (ip("02000000 08000920 e0000001"), "malformed-target 1"),
        (unhex("1c000000 02100100 07"), "malformed-truncated 1"),
        (unhex("1c000000 02100100 07000000 00000000 0200"), "malformed-truncated 1"),
        (Vec::new(), ""),
    ];
    for (bytes, counted) in cases {
        let mut rig = Rig::new();
        rig.datagram(&bytes);
        rig.wants("");
        rig.does("");
        rig.counted(counted);
    }
}

#[test]
fn only_requests_of_the_kernel_count() {
    let mut rig = Rig::new();
    for message in [request(1, ONE), path_request(2)] {
        let bytes = message.as_ref();
        rig.tell(Input::Datagram { sender: Sender::Other, bytes, cut: false });
    }
    // An answer of another daemon, a request with an unknown operation, a message of netlink
    // itself.
    rig.datagram(Answer::Error.emit(Seq(3), PortId(9)).as_ref());
    rig.datagram(&unhex("10000000 03100100 04000000 00000000"));
    rig.datagram(&unhex("10000000 01100100 04000000 00000000"));
    rig.datagram(&unhex("10000000 03000000 05000000 00000000"));
    rig.wants("");
    rig.does("");
    rig.counted("not-from-kernel 2, not-a-request 2, unknown-operation 2");
}

#[test]
fn messages_of_a_datagram_count_up_to_the_first_malformed_one() {
    let mut rig = Rig::new();
    let mut bytes = [request(1, ONE).as_ref(), path_request(2).as_ref()].concat();
    bytes.extend(request(3, TWO).as_ref());
    bytes.extend(&path_request(4).as_ref()[..20]);
    rig.tell(Input::Datagram { sender: Sender::Kernel, bytes: &bytes, cut: true });
    rig.wants("10.2.0.1, 10.2.0.2");
    // The answers to address requests come later.
    rig.does("4 asks the SA, 2 asks the SA");
    rig.counted(
        "requests 2, path-requests 1, paths-unknown 1, paths-malformed 1, datagrams-cut 1, malformed-truncated 1",
    );
}

/// The kernel's verdict on the message with this number.
fn verdict(seq: u32, errno: i32) -> Vec<u8> {
    let mut bytes = unhex("24000000 02000000 03000000 b4000000");
    bytes[8..12].copy_from_slice(&seq.to_ne_bytes());
    bytes.extend(errno.to_ne_bytes());
    bytes.extend([0; 16]);
    bytes
}

#[test]
fn daemon_joins_when_the_kernel_has_accepted_a_message() {
    // 0, or the length of the message from kernels before 5.6.
    for errno in [0, 24] {
        let mut rig = Rig { core: LocalService::new(Config::default()), ..Rig::new() };
        rig.tell(Input::Opened { port_id: PortId(180), is_member: false });
        rig.does("timeout 3000");
        rig.pass(ms(10));
        rig.does("");
        rig.datagram(&verdict(0, errno));
        rig.tell(Input::Drained);
        rig.does("join, nudge");
        rig.tell(Input::Nudged(Nudged::Done));
        rig.datagram(&verdict(0, errno));
        rig.does("");
    }
}

/// Otherwise every caller would wait for it until its time-out.
#[test]
fn daemon_whose_message_is_refused_never_joins() {
    for errno in [-1, -22] {
        let mut rig = Rig { core: LocalService::new(Config::default()), ..Rig::new() };
        rig.tell(Input::Opened { port_id: PortId(180), is_member: false });
        rig.does("timeout 3000");
        rig.datagram(&verdict(0, errno));
        rig.does(&format!("leave for {errno}"));
        rig.tell(Input::Closed(Closed::Refused));
        assert_eq!(rig.core.refusal(), Some(errno));
        rig.pass(ms(59_999));
        rig.does("");
        rig.pass(ms(1));
        rig.does("open");
        rig.tell(Input::Opened { port_id: PortId(180), is_member: false });
        rig.does("timeout 3000");
        rig.datagram(&verdict(0, 0));
        rig.tell(Input::Drained);
        rig.does("join, nudge");
        assert_eq!(rig.core.refusal(), None);
    }
}

#[test]
fn lost_verdict_is_asked_for_again() {
    let mut rig = Rig { core: LocalService::new(Config::default()), ..Rig::new() };
    rig.tell(Input::Opened { port_id: PortId(180), is_member: false });
    rig.does("timeout 3000");
    rig.tell(Input::Overrun);
    rig.next();
    rig.datagram(&verdict(0, 0));
    assert!(std::iter::from_fn(|| rig.next()).any(|done| done == "join"));
}

#[test]
fn member_leaves_when_an_answer_is_refused() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1, nudge");
    rig.asks(2, TWO);
    rig.datagram(&verdict(1, -1));
    rig.wants("");
    rig.does("leave for -1");
    assert_eq!((rig.core.refusal(), rig.core.load()), (Some(-1), Load::default()));
    rig.tell(Input::Closed(Closed::Refused));
    // Messages that the socket still holds are ignored.
    rig.datagram(&verdict(1, -1));
    rig.does("");
    rig.datagram(&unhex("10000000 02000000 03000000 b4000000"));
    rig.counted(
        "requests 2, answered-peer 1, abandoned 1, nudges 1, refusals 2, malformed-truncated 1",
    );
    rig.tell(Input::Opened { port_id: PortId(180), is_member: true });
    assert_eq!(rig.core.refusal(), None);
}

/// Found by the fuzzer: a daemon that had left kept a request that it could not answer.
#[test]
fn request_after_a_refusal_in_one_datagram_is_dropped() {
    let mut rig = Rig::new();
    rig.datagram(&[&verdict(1, -1), request(2, TWO).as_ref()].concat());
    rig.wants("");
    rig.does("leave for -1");
    assert_eq!(rig.core.load(), Load::default());
    rig.counted("refusals 1");
}

#[test]
fn full_table_drops_the_oldest_answer_but_no_waiting_request() {
    let limits = Limits { requests: 3, ..Limits::default() };
    let mut rig = Rig::with(Config::default(), limits);
    rig.is_answered(1, ONE);
    rig.pass(ms(10));
    rig.is_answered(2, ONE);
    rig.asks(3, TWO);
    // The oldest answer is dropped, then the other, then there is none left.
    rig.asks(4, TWO);
    rig.asks(5, TWO);
    rig.asks(6, TWO);
    assert_eq!(rig.core.load(), Load { waiting: 3, held: 3, paths: 0 });
    rig.counted("requests 6, answered-peer 2, requests-full 1, memory-evicted 2, nudges 2");
    rig.asks(2, ONE);
    rig.wants("10.2.0.2, 10.2.0.2, 10.2.0.2");
    // A request that was dropped is accepted when there is room.
    rig.finds(TWO, peer(TWO));
    rig.next().unwrap();
    rig.asks(6, TWO);
    rig.wants("10.2.0.2, 10.2.0.2, 10.2.0.2");
}

#[test]
fn full_table_drops_requests_that_the_kernel_stopped_repeating() {
    let limits = Limits { requests: 2, ..Limits::default() };
    let mut rig = Rig::with(Config::default(), limits);
    rig.asks(1, ONE);
    rig.asks(2, TWO);
    rig.pass(LATELY.saturating_sub(ms(1)));
    // A nudge has made the kernel repeat the requests that still wait.
    rig.asks(1, ONE);
    rig.asks(3, THREE);
    rig.wants("10.2.0.1, 10.2.0.2");
    rig.pass(ms(1));
    rig.asks(3, THREE);
    rig.wants("10.2.0.1, 10.2.0.3");
    rig.asks(4, TWO);
    rig.wants("10.2.0.1, 10.2.0.3");
    rig.counted("requests 5, requests-full 3, duplicates-waiting 1");
}

/// Otherwise each request would be treated as part of a crowd for as long as a dead target is asked
/// for.
#[test]
fn request_of_a_gone_caller_delays_no_nudge() {
    for (time, is_alone) in [(LATELY.saturating_sub(ms(1)), false), (LATELY, true)] {
        let mut rig = Rig::new();
        rig.asks(1, ONE);
        rig.pass(time);
        rig.is_answered(2, TWO);
        rig.asks(3, THREE);
        rig.finds(THREE, peer(THREE));
        let does = if is_alone { "3 is fe80::3, nudge" } else { "3 is fe80::3" };
        rig.does(does);
    }
}

#[test]
fn answer_that_waits_for_room_is_not_dropped_for_others() {
    let limits = Limits { requests: 1, ..Limits::default() };
    let mut rig = Rig::with(Config::default(), limits);
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    rig.asks(2, TWO);
    rig.wants("");
    rig.does("1 is fe80::1, nudge");
    rig.counted("requests 2, answered-peer 1, requests-full 1, nudges 1");
}

#[test]
fn errors_that_wait_for_room_are_bounded() {
    let limits = Limits { paths: 2, ..Limits::default() };
    let mut rig = Rig::with(Config::default(), limits);
    for seq in 1..=4 {
        rig.datagram(path_request(seq).as_ref());
    }
    rig.does("1 asks the SA, 2 asks the SA");
    rig.datagram(path_request(5).as_ref());
    rig.does("5 asks the SA");
    rig.counted("path-requests 5, paths-unknown 5, paths-full 2");
}

#[test]
fn answer_without_room_until_the_deadline_is_dropped() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.pass(ms(100));
    rig.finds(ONE, peer(ONE));
    rig.pass(DEADLINE.saturating_sub(ms(101)));
    assert_eq!(rig.core.load().held, 1);
    rig.pass(ms(1));
    rig.does("");
    assert_eq!(rig.core.load(), Load::default());
    rig.counted("requests 1, answered-peer 1, answers-late 1");
}

#[test]
fn without_nudges_each_answer_is_repeated_once() {
    let config = Config { nudge: false, ..Config::default() };
    let mut rig = Rig::with(config, Limits::default());
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1");
    assert_eq!(rig.core.poll_timeout(), Some(rig.now + REPEAT_AFTER));
    rig.pass(REPEAT_AFTER);
    rig.does("1 is fe80::1");
    rig.pass(ms(1000));
    rig.does("");
    rig.tell(Input::Overrun);
    rig.does("");
    rig.counted("requests 1, answered-peer 1, answers-repeated 1, overruns 1");
}

#[test]
fn while_nudges_fail_each_answer_is_repeated_once() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    rig.does("1 is fe80::1, nudge");
    rig.tell(Input::Nudged(Nudged::Failed));
    assert!(rig.core.nudges.failed());
    rig.pass(ms(10));
    rig.asks(2, ONE);
    rig.finds(ONE, peer(ONE));
    rig.does("2 is fe80::1, nudge");
    rig.tell(Input::Nudged(Nudged::Done));
    assert!(!rig.core.nudges.failed());
    rig.pass(REPEAT_AFTER);
    rig.does("2 is fe80::1, nudge");
    rig.tell(Input::Nudged(Nudged::Done));
    rig.pass(ms(10));
    rig.is_answered(3, ONE);
    rig.pass(REPEAT_AFTER);
    rig.does("");
    rig.counted("requests 3, answered-peer 3, answers-repeated 1, nudges 4, nudges-failed 1");
}

/// Also if more requests wait than the socket holds, and a nudge makes the kernel repeat them all.
#[test]
fn losses_caused_by_a_nudge_cause_no_further_nudge() {
    let mut rig = Rig::new();
    rig.skips_follow_ups = false;
    let (start, mut nudges) = (rig.now, 0);
    rig.tell(Input::Overrun);
    while rig.now < start + Duration::from_secs(1) {
        match rig.next().as_deref() {
            Some("nudge") => {
                nudges += 1;
                rig.tell(Input::Nudged(Nudged::Done));
                rig.tell(Input::Overrun);
            }
            Some(other) => panic!("{other}"),
            None => {
                let due = rig.core.poll_timeout().expect("what is lost is asked for again");
                rig.pass(due.since(rig.now));
            }
        }
    }
    assert!((4..=12).contains(&nudges), "{nudges}");
}

#[test]
fn nudge_recovers_lost_requests_once_the_socket_is_empty() {
    let mut rig = Rig::new();
    rig.tell(Input::Overrun);
    rig.datagram(request(1, ONE).as_ref());
    rig.does("");
    rig.tell(Input::Drained);
    rig.does("nudge");
    rig.counted("requests 1, nudges 1, overruns 1");
}

#[test]
fn stop_sends_known_answers_and_restores_the_time_out() {
    let timeout = Timeout::from_millis(500).unwrap();
    let config = Config { timeout, ..Config::default() };
    let mut rig = Rig { core: LocalService::new(config), ..Rig::new() };
    rig.tell(Input::Opened { port_id: PortId(180), is_member: true });
    rig.does("timeout 500, nudge");
    rig.tell(Input::Nudged(Nudged::Done));
    rig.asks(1, ONE);
    rig.asks(2, TWO);
    rig.finds(TWO, peer(TWO));
    rig.tell(Input::Stop);
    assert!(!rig.core.is_idle());
    rig.wants("");
    // Sooner than a millisecond after the last nudge.
    rig.does("timeout 2000, 2 is fe80::2, nudge anyway");
    assert!(!rig.core.is_idle());
    rig.tell(Input::Nudged(Nudged::Done));
    assert!(rig.core.is_idle());
    rig.counted("requests 2, answered-peer 1, abandoned 1, nudges 1");
}

#[test]
fn stand_in_for_the_kernel_is_not_opened_again() {
    for (why, stops) in [(Closed::ForGood, false), (Closed::Failed, true)] {
        let mut rig = Rig::new();
        rig.tell(Input::Closed(why));
        if stops {
            rig.tell(Input::Stop);
        }
        assert_eq!(rig.core.poll_timeout(), None);
        rig.pass(ms(3_600_000));
        rig.does("");
    }
}

#[test]
fn lost_socket_drops_all_requests() {
    let mut rig = Rig::new();
    rig.is_answered(1, ONE);
    rig.asks(2, TWO);
    rig.asks(3, ONE);
    rig.finds(ONE, peer(ONE));
    rig.datagram(path_request(4).as_ref());
    rig.tell(Input::Closed(Closed::Failed));
    rig.wants("");
    rig.does("");
    assert_eq!(rig.core.load(), Load::default());
    assert!(rig.core.is_idle());
    for _ in 0..2 {
        rig.pass(ms(4_999));
        rig.does("");
        rig.pass(ms(1));
        rig.does("open");
        assert_eq!(rig.core.poll_timeout(), None);
        rig.tell(Input::Closed(Closed::Failed));
    }
    rig.tell(Input::Opened { port_id: PortId(180), is_member: true });
    rig.does("timeout 3000, nudge");
}

#[test]
fn configuration_takes_effect_at_once() {
    let mut rig = Rig::new();
    rig.asks(1, ONE);
    rig.finds(ONE, peer(ONE));
    assert_eq!(rig.next(), Some(format!("1 is {}", gid(ONE))));
    let timeout = Timeout::from_millis(300).unwrap();
    rig.core.reconfigure(Config { nudge: false, timeout, ..Config::default() });
    rig.does("timeout 300");
    rig.core.reconfigure(Config { timeout, ..Config::default() });
    rig.does("");
}

fn path_request(seq: u32) -> Emitted {
    let gid = |text: &str| text.parse().unwrap();
    let request = ResolvePath {
        device: "mlx5_0".parse().unwrap(),
        port: PortNum::new(1).unwrap(),
        path_use: PathUse::All,
        service_id: None,
        dgid: gid("fe80::2:c903:0:201"),
        sgid: gid("fe80::2:c903:0:101"),
        tclass: None,
        pkey: None,
        qos_class: None,
    };
    Request::ResolvePath(request).emit(Seq(seq))
}
