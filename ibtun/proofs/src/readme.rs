// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Each sentence of `ibtun/README.md` stands in `ibtun/docs/claims.txt`, behind what proves it, or behind the word
//! that it describes. So a sentence cannot come, go or change unnoticed, and neither can its proof.

use std::fs;
use std::path::{Path, PathBuf};

use ibtun_guest::page;

const README: &str = include_str!("../../README.md");
const CLAIMS: &str = include_str!("../../docs/claims.txt");

/// Where claims of scenarios, and names of tests, are looked for.
const SOURCES: [&str; 6] = [
    "guest/src",
    "proofs/src",
    "fabric/src",
    "fabric/tests",
    "../ibarr-testbed/src/vm",
    "../xtask/src",
];

#[test]
fn each_sentence_of_the_readme_has_its_claim() {
    let listed: Vec<_> = CLAIMS.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let there = sentences(README);
    for sentence in &there {
        assert!(listed.contains(&&**sentence), "not in docs/claims.txt: {sentence}");
    }
    for sentence in &listed {
        assert!(there.iter().any(|one| one == sentence), "not in README.md: {sentence}");
    }
}

#[test]
fn each_claim_is_one_of_the_tree() {
    let mut sources = Vec::new();
    let house = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for folder in SOURCES {
        collect(&house.join(folder), &mut sources);
    }
    let is_there = |text: &str| sources.iter().any(|source| source.contains(text));
    let typed = page::commands(README);
    let proofs = CLAIMS.lines().filter(|line| !line.starts_with([' ', '#']) && !line.is_empty());
    for proof in proofs {
        let holds = match proof.split_once(' ') {
            None => proof == "describes",
            Some(("test", name)) => is_there(&format!("fn {name}(")),
            Some(("level", name)) => is_there(&format!("name: \"{name}\"")),
            Some(("typed", text)) => typed.iter().any(|command| command.text == text),
            Some(("vm", claim)) => {
                claim.split_once(": ").is_some_and(|(_, claim)| is_there(&format!("{claim}\"")))
            }
            Some((kind, reason)) => kind == "unproven:" && !reason.is_empty(),
        };
        assert!(holds, "nowhere: {proof}");
    }
}

/// No command is without a scenario: they type these two sections.
#[test]
fn each_command_of_the_readme_is_typed() {
    let headings = ["in five commands\n", "## Two hosts, in five minutes\n"];
    let typed = headings.map(|heading| page::commands(page::section(README, heading)).len());
    assert_eq!(page::commands(README).len(), typed.iter().sum::<usize>());
    assert!(typed.iter().all(|&count| count > 0));
}

fn collect(folder: &Path, sources: &mut Vec<String>) {
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(fs::read_to_string(path).unwrap());
        }
    }
}

/// The sentences of a document: those of its paragraphs and lists, and each row of a table below its head. Headings
/// and blocks have none.
fn sentences(document: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut paragraph = String::new();
    let mut in_block = false;
    let lines: Vec<_> = document.lines().collect();
    // A blank line ends the last paragraph.
    for (line, next) in lines.iter().copied().chain([""]).zip(lines.iter().skip(1).chain(&["", ""]))
    {
        let is_fence = line.starts_with("```");
        let is_row = line.starts_with('|');
        let item = line
            .strip_prefix("* ")
            .or_else(|| line.split_once(". ").filter(is_number).map(|(_, text)| text));
        let begins = is_fence || is_row || line.is_empty() || line.starts_with('#');
        if begins || item.is_some() {
            split(&paragraph, &mut sentences);
            paragraph.clear();
        }
        in_block ^= is_fence;
        let is_head = next.starts_with("|--");
        if is_row && !is_head && line.contains(char::is_alphabetic) {
            sentences.push(line.to_owned());
        } else if !begins && !in_block {
            let gap = if paragraph.is_empty() { "" } else { " " };
            paragraph = format!("{paragraph}{gap}{}", item.unwrap_or(line).trim());
        }
    }
    sentences
}

fn is_number(item: &(&str, &str)) -> bool {
    item.0.parse::<u8>().is_ok()
}

/// A sentence ends with a full stop, perhaps some marks, and a blank before what may begin one.
fn split(paragraph: &str, sentences: &mut Vec<String>) {
    let mut begin = 0;
    for (at, _) in paragraph.match_indices(' ') {
        let (before, after) = (&paragraph[begin..at], &paragraph[at + 1..]);
        let ends = before.trim_end_matches(['*', ')', '`']).ends_with(['.', '?']);
        let next = after.chars().next().is_some_and(|first| {
            first.is_ascii_uppercase() || ['`', '[', '*', '('].contains(&first)
        });
        if ends && next {
            sentences.push(before.to_owned());
            begin = at + 1;
        }
    }
    if !paragraph.is_empty() {
        sentences.push(paragraph[begin..].to_owned());
    }
}

#[test]
fn document_is_split_into_sentences_and_rows() {
    let document = "# Heading. It is none.\n\nOne (see [x](y.md)). **Two\nlines.** `Three` is 4.5.\n\
                    | Head | |\n|---|---|\n| a | B. C |\n```text\nNo. None.\n```\n* Four?\n1. Five\n   more. Six\n";
    let expected = [
        "One (see [x](y.md)).",
        "**Two lines.**",
        "`Three` is 4.5.",
        "| a | B. C |",
        "Four?",
        "Five more.",
        "Six",
    ];
    assert_eq!(sentences(document), expected);
}
