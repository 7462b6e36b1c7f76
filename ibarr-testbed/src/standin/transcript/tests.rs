// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Compares the stand-in with what kernels were recorded to say.

use super::*;

#[test]
fn the_stand_in_says_what_kernels_said() {
    for case in cases() {
        let said = case.run(&mut Model::default(), None).unwrap();
        assert_eq!(said.text(), case.recorded(), "{}", case.name);
    }
}

#[test]
fn the_recording_has_every_case_and_no_other() {
    let recorded = RECORDED.lines().filter(|line| line.starts_with("case "));
    let cases = cases();
    let cases = cases.iter().map(|case| format!("case {}", case.name));
    assert_eq!(recorded.collect::<Vec<_>>(), cases.collect::<Vec<_>>());
}

/// So a kernel that does the same in another order can be compared, by sorting what it does.
#[test]
fn recorded_reactions_to_a_step_are_sorted() {
    let mut last = None;
    for line in RECORDED.lines() {
        let Some(reaction) = line.strip_prefix("    ") else {
            last = None;
            continue;
        };
        let caller = reaction.strip_prefix("caller ");
        let number = caller.or(reaction.split_once("(number ").map(|(_, number)| number)).unwrap();
        let digits = number.split(|letter: char| !letter.is_ascii_digit()).next().unwrap();
        let place = (caller.is_some(), digits.parse::<u32>().unwrap());
        assert!(last < Some(place), "{line}");
        last = Some(place);
    }
}
