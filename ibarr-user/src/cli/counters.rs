// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr counters`: the daemon's counters by name, and what each counts.

use std::collections::BTreeMap;

use clap::Args;

use super::{Daemon, Exit, ask, print};
use crate::control::messages::{Body, Failure, FailureKind, Request};
use crate::engine::{Description, descriptions};

#[derive(Args, Debug)]
pub(super) struct CountersArgs {
    /// Only counters whose name begins so, or matches if there is a * (any text) or ? (one letter)
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Show counters that are 0 as well; with --json they are always there
    #[arg(short, long)]
    all: bool,
    /// Show what each counter counts instead: works without the daemon
    #[arg(long)]
    describe: bool,
    #[command(flatten)]
    daemon: Daemon,
}

pub(super) fn run(args: &CountersArgs) -> Exit {
    let json = args.daemon.json;
    if args.describe {
        let mut descriptions: BTreeMap<_, _> = descriptions().collect();
        descriptions.retain(|name, _| is_wanted(args, name));
        if descriptions.is_empty() {
            return ask::fail(unknown(args), json);
        }
        let text = |(name, description): (_, Description)| (name, description.text.to_owned());
        let descriptions = descriptions.into_iter().map(text);
        return ask::show(Body::Descriptions { descriptions: descriptions.collect() }, json);
    }
    let mut counters = match args.daemon.ask(&Request::Counters) {
        Ok(Body::Counters { counters }) => counters,
        other => return ask::fail(ask::unexpected(other), json),
    };
    counters.retain(|name, _| is_wanted(args, name));
    if counters.is_empty() {
        return ask::fail(unknown(args), json);
    }
    let count = counters.len();
    if !args.all && !json {
        counters.retain(|_, value| *value > 0);
    }
    if counters.is_empty() {
        print::line(&format!("all {count} counters are 0 (--all shows them)"));
        return Exit::Ok;
    }
    ask::show(Body::Counters { counters }, json)
}

fn is_wanted(args: &CountersArgs, name: &str) -> bool {
    args.names.is_empty() || args.names.iter().any(|wanted| fits(wanted, name))
}

fn unknown(args: &CountersArgs) -> Failure {
    let names = args.names.join(", ");
    let message = format!("{names}: no counter has such a name; see ibarr counters --describe");
    Failure { kind: FailureKind::Absent, message }
}

fn fits(wanted: &str, name: &str) -> bool {
    if wanted.contains(['*', '?']) {
        matches(wanted.as_bytes(), name.as_bytes())
    } else {
        name.starts_with(wanted)
    }
}

/// Takes each star for as few bytes as possible first: the pattern's stars bound the depth.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=name.len()).any(|taken| matches(rest, &name[taken..])),
        (Some((b'?', pattern)), Some((_, name))) => matches(pattern, name),
        (Some((byte, pattern)), Some((of_name, name))) => byte == of_name && matches(pattern, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_a_prefix_or_a_pattern() {
        for (wanted, name, fit) in [
            ("sa.", "sa.queries", true),
            ("sa.", "ip2gid.sa.", false),
            ("*.queries", "sa.queries", true),
            ("*.queries", "sa.queries.x", false),
            ("s?.q*", "sa.queries", true),
            ("s?", "sa.queries", false),
            ("*", "", true),
            ("bpf.*.no-*", "bpf.tc.no-room", true),
        ] {
            assert_eq!(fits(wanted, name), fit, "{wanted} {name}");
        }
    }

    #[test]
    fn every_description_is_a_sentence_of_its_own() {
        let all: Vec<_> = descriptions().collect();
        let names: std::collections::BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), all.len());
        for (name, Description { text, .. }) in all {
            assert!(
                text.ends_with('.') && text.len() > 10 && !text.contains("[`"),
                "{name}: {text}"
            );
            assert_eq!(text.trim(), text, "{name}");
        }
    }
}
