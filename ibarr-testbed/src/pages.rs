// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The commands in the pages for users: which of them a test runs, and what they must print there.
//!
//! The first word after the fence of a block says what it is. `toml` is a configuration, which must have no mistakes.
//! `text` has no commands. `console` is a session: `$ ` begins a command, `# ` before a command a remark, and other lines
//! are what the command prints, in this order; it may print more. A command ends with status 0, or the page says `# exit status N`
//! behind it; one that prints nothing has `# prints nothing` there. A session that no test can run begins with a remark
//! that says what it needs: `# needs InfiniBand`. Any other block is a mistake. A span of code that begins with the name of
//! a program is a command, too; it has to end with status 0.

use std::fmt;

/// A block that a test can try.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Block {
    /// Commands, one after another.
    Session(Vec<Command>),
    /// A configuration, and the line that it begins at.
    Configuration(usize, String),
}

/// A command of a page, and what the page says of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command {
    /// Its line in the page.
    pub line: usize,
    /// What is typed, without the remark behind it.
    pub text: String,
    /// The exit status that it ends with.
    pub status: i32,
    /// Lines that it prints, among others; without any it prints nothing at all.
    pub output: Vec<String>,
}

/// Why a page cannot be read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    line: usize,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reason {
    NoMark,
    CommandInText,
    OutputWithoutCommand,
    NoOutput,
    OutputOfSilent,
    Unended,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, reason } = self;
        let reason = match reason {
            Reason::NoMark => "a block is console, toml or text (see ibarr-testbed/src/pages.rs)",
            Reason::CommandInText => "a text block has no commands: make it a console block",
            Reason::OutputWithoutCommand => {
                "a console block begins with `$ COMMAND` or `# needs WHAT`"
            }
            Reason::NoOutput => {
                "write a line that the command prints below it, or `# prints nothing` behind it"
            }
            Reason::OutputOfSilent => "a command that prints nothing has no line below it",
            Reason::Unended => "the block does not end",
        };
        write!(f, "line {line}: {reason}")
    }
}

/// The blocks of a page that a test can try, in their order.
///
/// # Errors
/// The first mistake of the page.
pub fn blocks(page: &str) -> Result<Vec<Block>, Mistake> {
    let mut blocks = Vec::new();
    let mut lines = (1..).zip(page.lines());
    while let Some((start, line)) = lines.next() {
        let Some(mark) = line.strip_prefix("```") else { continue };
        let mut inside = Vec::new();
        loop {
            match lines.next() {
                Some((_, "```")) => break,
                Some(line) => inside.push(line),
                None => return Err(Mistake { line: start, reason: Reason::Unended }),
            }
        }
        let is_command = |&(_, line): &(usize, &str)| line.starts_with("$ ");
        let needs = inside.first().is_some_and(|&(_, line)| line.starts_with("# needs "));
        match mark {
            "console" if needs => {}
            "console" => blocks.push(Block::Session(session(&inside)?)),
            "toml" => {
                let lines: Vec<_> = inside.iter().map(|&(_, line)| line).collect();
                blocks.push(Block::Configuration(start, lines.join("\n")));
            }
            "text" => {
                if let Some(&(line, _)) = inside.iter().find(|line| is_command(line)) {
                    return Err(Mistake { line, reason: Reason::CommandInText });
                }
            }
            _ => return Err(Mistake { line: start, reason: Reason::NoMark }),
        }
    }
    Ok(blocks)
}

/// What stands in the running text and in the tables of a page as code, with the lines that it begins at.
pub fn spans(page: &str) -> Vec<(usize, String)> {
    let mut is_block = false;
    let text = page.lines().map(|line| {
        let is_fence = line.starts_with("```");
        is_block ^= is_fence;
        // A table writes `|` as `\|`.
        if is_block || is_fence { String::new() } else { line.replace("\\|", "|") }
    });
    let text = text.collect::<Vec<_>>().join("\n");
    let (mut line, mut spans) = (1, Vec::new());
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            spans.push((line, part.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        line += part.matches('\n').count();
    }
    spans
}

fn session(lines: &[(usize, &str)]) -> Result<Vec<Command>, Mistake> {
    let mut commands: Vec<(Command, bool)> = Vec::new();
    for (at, &(line, text)) in lines.iter().enumerate() {
        let mut rest = lines.iter().skip(at).map(|&(_, text)| text);
        let next = rest.find(|text| !text.starts_with("# "));
        let is_remark = text.starts_with("# ") && next.is_none_or(|next| next.starts_with("$ "));
        if let Some(text) = text.strip_prefix("$ ") {
            let (text, remark) = text.split_once(" # ").unwrap_or((text, ""));
            let status = remark.strip_prefix("exit status ").and_then(|status| status.parse().ok());
            let command = Command {
                line,
                text: text.trim_end().to_owned(),
                status: status.unwrap_or(0),
                output: Vec::new(),
            };
            commands.push((command, remark == "prints nothing"));
        } else if !is_remark && !text.is_empty() {
            let Some((command, is_silent)) = commands.last_mut() else {
                return Err(Mistake { line, reason: Reason::OutputWithoutCommand });
            };
            if *is_silent {
                return Err(Mistake { line, reason: Reason::OutputOfSilent });
            }
            command.output.push(text.to_owned());
        }
    }
    let untold =
        commands.iter().find(|(command, is_silent)| command.output.is_empty() && !is_silent);
    if let Some((Command { line, .. }, _)) = untold {
        return Err(Mistake { line: *line, reason: Reason::NoOutput });
    }
    Ok(commands.into_iter().map(|(command, _)| command).collect())
}

impl Command {
    /// The line of the page that `printed` does not have, if there is one.
    pub fn missing(&self, printed: &str) -> Option<&str> {
        let mut printed = printed.lines();
        let expected = self.output.iter().filter(|line| *line != "…");
        expected.map(String::as_str).find(|&expected| !printed.any(|line| is_like(expected, line)))
    }
}

/// Whether a printed line is the one of the page: numbers may differ, `…` stands for anything, and the width of a gap does
/// not count. Parts of an address are no numbers.
fn is_like(expected: &str, printed: &str) -> bool {
    let plain =
        |line: &str| line.split_whitespace().map(without_number).collect::<Vec<_>>().join(" ");
    let (expected, printed) = (plain(expected), plain(printed));
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// A word without its number: `2.51` and `12s,` are `0` and `0s,`.
fn without_number(word: &str) -> String {
    let digits = word.trim_end_matches(|c: char| c.is_alphabetic() || ",;:%)".contains(c));
    let number = digits.trim_start_matches('(');
    match number.parse::<f64>() {
        Ok(_) => format!("{}0{}", &digits[..digits.len() - number.len()], &word[digits.len()..]),
        Err(_) => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn command(line: usize, text: &str, status: i32, output: &[&str]) -> Command {
        let output = output.iter().map(|&line| line.to_owned()).collect();
        Command { line, text: text.to_owned(), status, output }
    }

    #[test]
    fn spans_are_those_outside_of_blocks() {
        let page = "`a`\n```text\n`b`\n```\n| `c \\| d` | `e\nf` |";
        let expected = [(1, "a"), (5, "c | d"), (5, "e f")];
        assert_eq!(spans(page), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn every_block_of_the_pages_is_marked() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let mut pages = vec![root.join("README.md")];
        pages.extend(fs::read_dir(root.join("docs")).unwrap().map(|page| page.unwrap().path()));
        pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
        assert!(pages.len() > 5, "{pages:?}");
        let mut mistakes = Vec::new();
        for page in pages {
            if let Err(mistake) = blocks(&fs::read_to_string(&page).unwrap()) {
                mistakes.push(format!("{}: {mistake}", page.display()));
            }
        }
        assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    }

    #[test]
    fn page_is_read_as_its_sessions_and_configurations() {
        let page = "Look:\n```console\n# all of it\n$ ibarr status --check # exit status 2\n# one\n…\n# remark\n\
            $ true # prints nothing\n```\n```toml\na = 1\nb = 2\n```\n```text\na picture\n```\n\
            ```console\n# needs InfiniBand\n$ ibstat\n```\n";
        let session = vec![
            command(4, "ibarr status --check", 2, &["# one", "…"]),
            command(8, "true", 0, &[]),
        ];
        let expected =
            vec![Block::Session(session), Block::Configuration(10, "a = 1\nb = 2".to_owned())];
        assert_eq!(blocks(page), Ok(expected));
    }

    #[test]
    fn block_that_no_test_would_try_is_a_mistake() {
        for (page, line, reason) in [
            ("```\n$ a\n```", 1, Reason::NoMark),
            ("```sh\n$ a\n```", 1, Reason::NoMark),
            ("```text\nx\n$ a\n```", 3, Reason::CommandInText),
            ("```console\na\n```", 2, Reason::OutputWithoutCommand),
            ("```console\n# a\nb\n```", 2, Reason::OutputWithoutCommand),
            ("```console\n$ a\n$ b # prints nothing\n```", 2, Reason::NoOutput),
            ("```console\n$ a # prints nothing\nb\n```", 3, Reason::OutputOfSilent),
            ("```console\n$ a\n", 1, Reason::Unended),
        ] {
            assert_eq!(blocks(page), Err(Mistake { line, reason }), "{page}");
        }
    }

    #[test]
    fn printed_line_may_differ_in_its_numbers_alone() {
        let like = [
            ("10.2.0.5  fe80::201  peer  2.51 ms", "10.2.0.5 fe80::201   peer 130.2 ms"),
            ("ibarr 1.0.0, pid 4321, up 2h 3m: ok", "ibarr 1.0.0, pid 7, up 1h 59m: ok"),
            ("ok … ib0", "ok responder ib0"),
            ("active …", "active (running)"),
        ];
        for (expected, printed) in like {
            assert!(is_like(expected, printed), "{expected}");
        }
        let unlike = [
            ("10.2.0.5  fe80::201", "10.2.0.5 fe80::202"),
            ("10.2.0.5  fe80::201", "10.2.0.6 fe80::201"),
            ("ok", "ok then"),
            ("ok … ib0", "ok responder ib1"),
        ];
        for (expected, printed) in unlike {
            assert!(!is_like(expected, printed), "{expected}");
        }
    }

    #[test]
    fn lines_must_come_in_the_order_of_the_page() {
        let command = command(1, "a", 0, &["one", "…", "three"]);
        assert_eq!(command.missing("zero\none\ntwo\nthree\n"), None);
        assert_eq!(command.missing("three\none\n"), Some("three"));
        assert_eq!(command.missing(""), Some("one"));
    }
}
