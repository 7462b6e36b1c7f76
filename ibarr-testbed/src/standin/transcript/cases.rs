// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The histories.

use std::time::Duration;

use super::{Case, Reflex, Saying, Step};
use Step::{Ask, Listener, Neighbour, NoNeighbour, Reflex as While, Say, Wait};

/// The cases. Each begins with a listener in the group.
pub fn cases() -> Vec<Case> {
    [histories(), odd_answers(), time_outs()].concat()
}

fn histories() -> Vec<Case> {
    vec![
        case("an answer takes effect at the next neighbour, IPv4", [ask(1), ANSWER, Neighbour]),
        case("an answer takes effect at the next neighbour, IPv6", [ASK_V6, ANSWER, Neighbour]),
        case(
            "without a neighbour an answer takes effect at the time-out",
            [ASK_BRIEFLY, ANSWER, Wait],
        ),
        case(
            "without an answer the request is sent again at the time-out, in vain",
            [ASK_BRIEFLY, Wait, ANSWER],
        ),
        case(
            "an answer to the last request comes too late",
            [ASK_BRIEFLY, While(&[Reflex::Answer]), Wait],
        ),
        case(
            "a deleted neighbour wakes no caller",
            [ask(1), Neighbour, ANSWER, NoNeighbour, Neighbour],
        ),
        case(
            "each new neighbour sends all unanswered requests again",
            [
                ask(3),
                Neighbour,
                Say(Saying::Answer, 2..=2),
                Neighbour,
                Neighbour,
                Say(Saying::Answer, 1..=3),
                Neighbour,
            ],
        ),
        case("the second answer counts as the first", [ask(1), ANSWER, ANSWER, Neighbour, ANSWER]),
        case("200 at once", [ask(200), Say(Saying::Answer, 1..=200), Neighbour]),
        case(
            "200 at once, half of them answered before a neighbour",
            [
                ask(200),
                Say(Saying::Answer, 1..=100),
                Neighbour,
                Say(Saying::Answer, 101..=200),
                Neighbour,
            ],
        ),
        case(
            "an answer is lost before the request is queued",
            [While(&[Reflex::Answer]), ask(1), Neighbour, ANSWER, Neighbour],
        ),
        case(
            "a neighbour is lost before the request is queued, and so is the answer",
            [While(&[Reflex::Answer, Reflex::Neighbour]), ask(1), Neighbour, ANSWER, Neighbour],
        ),
        case(
            "an answer is lost while the request is sent again",
            [ask(1), While(&[Reflex::Answer]), Neighbour, Neighbour, ANSWER, Neighbour],
        ),
        case(
            "a neighbour is lost while the request is sent again, and so is the answer",
            [
                ask(1),
                While(&[Reflex::Answer, Reflex::Neighbour]),
                Neighbour,
                Neighbour,
                ANSWER,
                Neighbour,
            ],
        ),
        case(
            "without a listener a caller is refused, and uses a number",
            [ask(1), Listener(false), ask(1), Listener(true), ask(1)],
        ),
        case(
            "without a listener a waiting request fails when it would be sent again",
            [ask(2), ANSWER, Listener(false), Neighbour],
        ),
        case(
            "without a listener a waiting request fails at its time-out",
            [ASK_BRIEFLY, Listener(false), Wait],
        ),
    ]
}

fn odd_answers() -> Vec<Case> {
    vec![
        odd("wrong answer: no attribute", changed("no attribute", [0x1002, 0], "")),
        odd("wrong answer: error", changed("error", [0x1002, 0x0100], "14000400 GID")),
        odd("wrong answer: error alone", changed("error alone", [0x1002, 0x0100], "")),
        odd("wrong answer: 8 bytes", changed("8 bytes", [0x1002, 0], "0c000400 fe80000000000000")),
        odd("wrong answer: 15 bytes", changed("15 bytes", [0x1002, 0], FIFTEEN)),
        odd("wrong answer: 17 bytes", changed("17 bytes", [0x1002, 0], "15000400 GID 00000000")),
        odd("wrong answer: mandatory bit", changed("mandatory", [0x1002, 0], "14000420 GID")),
        odd("wrong answer: another type", changed("type 5", [0x1002, 0], "14000500 GID")),
        odd(
            "wrong answer: family header",
            changed("with the interface", [0x1002, 0], "02000000 14000400 GID"),
        ),
        odd("wrong answer: cut", changed("cut attribute", [0x1002, 0], "14000400 fe800000")),
        odd("wrong answer: another number", Saying::ToAnother(1000)),
        odd("wrong answer: to a path request", changed("path", [0x1000, 0], "14000400 GID")),
        odd("wrong answer: a request", changed("request", [0x1002, 1], "14000400 GID")),
        odd("wrong answer: a request with ACK", changed("request", [0x1002, 5], "14000400 GID")),
        odd("wrong answer: another operation", changed("op 3", [0x1003, 0], "14000400 GID")),
        odd("wrong answer: an operation asked for", changed("op 3", [0x1003, 1], "")),
        odd("wrong answer: another client", changed("client 31", [0x7c02, 0], "14000400 GID")),
        odd("wrong answer: a client asked for", changed("client 31", [0x7c02, 1], "")),
        odd("odd answer: nested bit", changed("nested", [0x1002, 0], "14000480 GID")),
        odd("odd answer: byte order bit", changed("byte order", [0x1002, 0], "14000440 GID")),
        odd("odd answer: ACK", changed("ACK", [0x1002, 4], "14000400 GID")),
        odd("odd answer: twice in a datagram", Saying::Twice),
        odd("odd answer: two GIDs", changed("two GIDs", [0x1002, 0], "14000400 GID 14000400 GID")),
        odd(
            "odd answer: an unknown attribute before it",
            changed("type 30 first", [0x1002, 0], "08001e00 00000000 14000400 GID"),
        ),
        odd(
            "odd answer: bytes behind it",
            changed("bytes behind", [0x1002, 0], "14000400 GID 00000000"),
        ),
    ]
}

fn time_outs() -> Vec<Case> {
    vec![
        odd("time-out: set", changed("time-out", [0x1001, 1], "08000200 d0070000")),
        odd("time-out: set with ACK", changed("time-out", [0x1001, 5], "08000200 d0070000")),
        odd("time-out: not as a request", changed("time-out", [0x1001, 0], "08000200 d0070000")),
        odd("time-out: without one", changed("time-out", [0x1001, 5], "")),
        odd("time-out: of two bytes", changed("time-out", [0x1001, 5], "06000200 d0070000")),
    ]
}

fn case<const N: usize>(name: &'static str, steps: [Step; N]) -> Case {
    Case { name, steps: steps.into() }
}

/// If the kernel accepts this as an answer, the next neighbour ends the request. If not, the next
/// neighbour makes the kernel send the request again.
fn odd(name: &'static str, saying: Saying) -> Case {
    case(name, [ask(1), Say(saying, 1..=1), Neighbour, ANSWER, Neighbour])
}

fn ask(callers: u32) -> Step {
    Ask { callers, target: "10.2.0.5", timeout: LONG }
}

fn changed(name: &'static str, header: [u16; 2], payload: &'static str) -> Saying {
    Saying::Changed { name, header, payload }
}

const ANSWER: Step = Say(Saying::Answer, 1..=1);
const ASK_V6: Step = Ask { callers: 1, target: "fd00:2::5", timeout: LONG };
const ASK_BRIEFLY: Step =
    Ask { callers: 1, target: "10.2.0.5", timeout: Duration::from_millis(500) };

/// Longer than any case takes.
const LONG: Duration = Duration::from_mins(1);
const FIFTEEN: &str = "13000400 fe800000 00000000 0002c903 000002";
