// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Whether the claims on which sentences of `ibtun/README.md` rest have held in guests: `ibtun/docs/claims.txt` has
//! them before each sentence.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::workspace::Workspace;

const CLAIMS: &str = "ibtun/docs/claims.txt";
/// Begins a line that names a scenario and one of its claims.
const GUEST: &str = "vm ";

/// How many sentences rest on what.
#[derive(Debug, Default, Eq, PartialEq)]
struct Sentences {
    /// Claims of the scenarios that were run.
    proven: usize,
    /// Other levels and tests.
    elsewhere: usize,
    /// Nothing, and the list says why.
    unproven: usize,
    /// Nothing, because they claim nothing.
    describing: usize,
}

/// Checks the claims of `scenarios`, as the words of `vm`, that have been run. `said` has what the guest of a scenario
/// said.
pub(super) fn check(
    workspace: &Workspace,
    scenarios: &[&str],
    said: impl Fn(&str) -> Result<String>,
) -> Result<()> {
    let file = workspace.root().join(CLAIMS);
    let claims = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut held = Vec::new();
    for &scenario in scenarios {
        held.extend(
            said(scenario)?.lines().filter_map(claim).map(str::to_owned).map(|c| (scenario, c)),
        );
    }
    let sentences = read(&claims, scenarios, |scenario, claim| {
        held.iter().any(|(of, held)| *of == scenario && matches(claim, held))
    })?;
    println!(
        "ibtun/README.md: {} sentences hold here, {} rest on other levels, {} are unproven, {} describe",
        sentences.proven, sentences.elsewhere, sentences.unproven, sentences.describing
    );
    Ok(())
}

/// The claim of a line such as `ok 7 - RC: small messages arrive whole`.
fn claim(line: &str) -> Option<&str> {
    line.strip_prefix("ok ")?.split_once(" - ").map(|(_, claim)| claim)
}

fn read(
    list: &str,
    scenarios: &[&str],
    has_held: impl Fn(&str, &str) -> bool,
) -> Result<Sentences> {
    let mut sentences = Sentences::default();
    let (mut proofs, mut is_done) = (Vec::new(), false);
    for line in list.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if !line.starts_with(' ') {
            if is_done {
                proofs.clear();
            }
            is_done = false;
            proofs.push(line);
            continue;
        }
        is_done = true;
        let guests = proofs.iter().filter_map(|proof| proof.strip_prefix(GUEST)?.split_once(": "));
        let here: Vec<_> = guests.filter(|(scenario, _)| scenarios.contains(scenario)).collect();
        for (scenario, claim) in &here {
            ensure!(has_held(scenario, claim), "{CLAIMS}: `{scenario}` has not claimed: {claim}");
        }
        let has = |word: &str| proofs.iter().any(|proof| proof.starts_with(word));
        *match () {
            () if !here.is_empty() => &mut sentences.proven,
            () if has("unproven: ") => &mut sentences.unproven,
            () if has("describes") => &mut sentences.describing,
            () => &mut sentences.elsewhere,
        } += 1;
    }
    ensure!(sentences.proven > 0, "{CLAIMS} has no claim of {scenarios:?}");
    Ok(sentences)
}

/// Whether a claim is `pattern`, in which words in braces stand for anything, as in the source of the claim.
fn matches(pattern: &str, claim: &str) -> bool {
    let mut rest = claim;
    let mut is_first = true;
    for part in pattern.split('{') {
        let fixed =
            if is_first { part } else { part.split_once('}').map_or(part, |(_, after)| after) };
        let found = if is_first { rest.starts_with(fixed).then_some(0) } else { rest.find(fixed) };
        let Some(at) = found else { return false };
        rest = &rest[at + fixed.len()..];
        is_first = false;
    }
    rest.is_empty() || pattern.ends_with('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_with_numbers_is_the_pattern_of_its_source() {
        assert!(matches("{rounds} more rounds end", "20 more rounds end"));
        assert!(matches("{name}: {} of {} pass", "44.0: 68 of 170 pass"));
        assert!(matches("ends in {count}", "ends in 7"));
        assert!(!matches("{rounds} rounds end", "20 more rounds begin"));
        assert!(!matches("rounds", "rounds end"));
        assert!(!matches("a link", "no link"));
    }

    #[test]
    fn sentences_are_counted_by_what_proves_them() {
        let list = "# A list.\n\ndescribes\n    A.\nvm run h: c\nlevel lint\n    B.\n    C.\nunproven: why\n    D.\n\
                    test t\n    E.\nvm run o: d\n    F.\n";
        let sentences = read(list, &["run h"], |_, claim| claim == "c").expect("all hold");
        let expected = Sentences { proven: 2, elsewhere: 2, unproven: 1, describing: 1 };
        assert_eq!(sentences, expected);
    }

    #[test]
    fn claim_that_was_not_made_is_named() {
        let error =
            read("vm run h: gone\n    A.\n", &["run h"], |_, _| false).expect_err("not made");
        assert!(error.to_string().ends_with("`run h` has not claimed: gone"), "{error}");
        assert!(
            read("vm run o: x\n    A.\n", &["run h"], |_, _| true).is_err(),
            "nothing to check"
        );
    }
}
