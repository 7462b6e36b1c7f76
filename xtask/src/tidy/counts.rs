// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Numbers that shall fall: what is left of habits that the rules in CONTRIBUTING.md forbid, and the words of
//! the documents. Each has a row in the budget.

use super::File;

/// What is counted: its name in the budget, its unit, and the count of one file.
struct Rule(&'static str, &'static str, fn(&File) -> usize);

/// The places that move bytes and decide nothing.
const DRIVER: [&str; 3] =
    ["ibarr-user/src/engine/", "ibarr-user/src/transport/", "ibarr-user/src/bpf/"];

/// The modules of `ibarr-proto` that the engine needs.
const FOR_THE_ENGINE: [&str; 2] = ["node", "turn"];

const CORES: [&str; 10] = [
    "acm",
    "health",
    "ip2gid",
    "local_service",
    "local_view",
    "paths",
    "requests",
    "responder",
    "sa",
    "trace",
];

/// The cores themselves, and what is lent in their place.
const STATES: [&str; 12] = [
    "Acm",
    "Client",
    "Health",
    "Local",
    "LocalService",
    "LocalView",
    "Paths",
    "Requests",
    "Responder",
    "Sa",
    "Server",
    "Trace",
];

/// What a core calls its modules of types.
const MODULES: [&str; 7] = ["as", "client", "neighbours", "routing", "rules", "self", "server"];

const RULES: [Rule; 11] = [
    Rule("type-aliases", "type aliases", |file| code(file).filter(|line| is_alias(line)).count()),
    Rule("is-that-acts", "functions called is_ that act", |file| {
        let before = code(file).filter_map(|line| line.split_once("&mut self"));
        before.filter(|(name, _)| !file.is_test() && name.contains("fn is_")).count()
    }),
    Rule("short-docs", "documentations of two or three words", short_docs),
    Rule("README.md", "words", |file| words_of("README.md", file)),
    Rule("ARCHITECTURE.md", "words", |file| words_of("ARCHITECTURE.md", file)),
    Rule("documents", "words", |file| if file.has_extension(&["md"]) { words(file) } else { 0 }),
    Rule("engine-of-proto", "names of ibarr_proto besides node and turn", cores_in_engine),
    Rule("core-reaches", "functions and states that one core uses of another", core_reaches),
    Rule("driver-durations", "constants of a duration in engine, transport and bpf", |file| {
        in_driver(file, |line| line.contains("const ") && line.contains(": Duration ="))
    }),
    Rule("driver-retries", "lines about retries in engine, transport and bpf", |file| {
        in_driver(file, |line| ["RETRY", "retry_at", "Repair"].iter().any(|it| line.contains(it)))
    }),
    Rule("driver-outcomes", "lines about outcomes in engine, transport and bpf", |file| {
        in_driver(file, |line| line.contains("Outcome::"))
    }),
];

/// Each name, its unit, and the number of all files together.
pub(super) fn all(files: &[File]) -> impl Iterator<Item = (&'static str, &'static str, usize)> {
    RULES.iter().map(|&Rule(name, unit, rule)| (name, unit, files.iter().map(rule).sum()))
}

/// The lines of a Rust source that are not comments and not in `mod tests`.
fn code(file: &File) -> impl Iterator<Item = &str> {
    let text = if file.has_extension(&["rs"]) { &file.text[..] } else { "" };
    let lines = text.lines().take_while(|line| *line != "mod tests {");
    lines.filter(|line| !line.trim_start().starts_with("//"))
}

fn in_driver(file: &File, is_it: impl Fn(&str) -> bool) -> usize {
    if file.is_test() || !DRIVER.iter().any(|place| file.path.starts_with(place)) {
        return 0;
    }
    code(file).filter(|line| is_it(line)).count()
}

fn cores_in_engine(file: &File) -> usize {
    if file.is_test() || !file.path.starts_with(DRIVER[0]) {
        return 0;
    }
    let named = code(file).flat_map(|line| line.split("ibarr_proto::").skip(1));
    named.filter(|rest| !FOR_THE_ENGINE.iter().any(|module| rest.starts_with(module))).count()
}

/// Where a core names another's function, or the state that is lent to it. `node` may.
fn core_reaches(file: &File) -> usize {
    let Some(path) = file.path.strip_prefix("ibarr-proto/src/").filter(|_| !file.is_test()) else {
        return 0;
    };
    let own = path.split(['/', '.']).next().unwrap_or_default();
    let text = code(file).collect::<Vec<_>>().join("\n");
    let uses = text.split("use crate::").skip(1).filter_map(|rest| rest.split_once(';'));
    let of_others = uses.filter_map(|(path, _)| path.split_once("::"));
    let of_others =
        of_others.filter(|(core, _)| own != "node" && *core != own && CORES.contains(core));
    let names = of_others.flat_map(|(_, names)| names.split(['{', '}', ',', ' ', '\n']));
    let last = names.filter_map(|name| name.rsplit("::").next());
    let is_function = |name: &str| name.starts_with(|first: char| first.is_ascii_lowercase());
    last.filter(|name| STATES.contains(name) || is_function(name) && !MODULES.contains(name))
        .count()
}

/// Associated types stand deeper.
fn is_alias(line: &str) -> bool {
    let line = line.strip_prefix("pub").unwrap_or(line);
    let line = line.strip_prefix("(crate)").or(line.strip_prefix("(super)")).unwrap_or(line);
    line.strip_prefix(' ').unwrap_or(line).starts_with("type ")
}

fn short_docs(file: &File) -> usize {
    let lines = if file.has_extension(&["rs"]) { file.text.lines() } else { "".lines() };
    let lines: Vec<_> = lines.map(|line| line.trim_start().strip_prefix("///")).collect();
    let texts = lines.split(Option::is_none).filter(|text| text.len() == 1).flatten().flatten();
    texts.filter(|text| (2..=3).contains(&text.split_whitespace().count())).count()
}

fn words_of(path: &str, file: &File) -> usize {
    if file.path == path { words(file) } else { 0 }
}

fn words(file: &File) -> usize {
    file.text.split_whitespace().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        let all = all(std::slice::from_ref(&file));
        all.filter(|count| count.2 > 0).map(|(name, _, count)| (name, count)).collect()
    }

    #[test]
    fn each_rule_counts_what_it_names() {
        let aliases = "type A = u8;\npub type B = u8;\npub(crate) type C = u8;\n    type D = u8;\n";
        assert_eq!(counts("a/src/b.rs", aliases), [("type-aliases", 3)]);
        assert_eq!(counts("a/src/b.rs", "fn is_a(&mut self)\n"), [("is-that-acts", 1)]);
        let docs = "/// One.\n\n/// The port.\na\n    /// The other port.\nb\n/// The port of\n/// a node.\n";
        assert_eq!(counts("a/src/b.rs", docs), [("short-docs", 2)]);
        assert_eq!(counts("README.md", "two words\n"), [("README.md", 2), ("documents", 2)]);
        assert_eq!(counts("docs/a.md", "two words\n"), [("documents", 2)]);
        let engine = "use ibarr_proto::node::Node;\nuse ibarr_proto::sa;\n// ibarr_proto::acm\n";
        assert_eq!(counts("ibarr-user/src/engine/a.rs", engine), [("engine-of-proto", 1)]);
        assert!(counts("ibarr-user/src/engine/tests.rs", engine).is_empty());
        let core = "use crate::paths::{self, Paths};\nuse crate::ip2gid::is_link_local;\n";
        assert_eq!(counts("ibarr-proto/src/acm/a.rs", core), [("core-reaches", 2)]);
        assert_eq!(counts("ibarr-proto/src/paths/a.rs", core), [("core-reaches", 1)]);
        assert!(counts("ibarr-proto/src/node.rs", core).is_empty());
        let driver = "const RETRY: Duration = LONG;\nmatch x { Outcome::A => 1, _ => 2 }\n";
        let found = [("driver-durations", 1), ("driver-retries", 1), ("driver-outcomes", 1)];
        assert_eq!(counts("ibarr-user/src/bpf/a.rs", driver), found);
        assert!(counts("ibarr-user/src/cli/a.rs", driver).is_empty());
        assert!(counts("ibarr-user/src/bpf/a.rs", &format!("mod tests {{\n{driver}")).is_empty());
    }
}
