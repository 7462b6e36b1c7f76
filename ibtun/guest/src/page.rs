// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The commands of a document, and what it says that they print.

use anyhow::{Result, ensure};

/// Some text in a line, or lines if it is alone there.
const ANY: &str = "…";

/// A command of a document.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command<'a> {
    /// For a shell; may have several lines.
    pub text: String,
    /// The lines that it prints; `…` stands for text, or for lines. `None` if the document does not say.
    pub prints: Option<Vec<&'a str>>,
}

/// What is behind a heading, up to the next section.
pub fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let section = document.split_once(heading).unwrap_or_default().1;
    section.split("\n## ").next().unwrap_or_default()
}

/// The commands in the blocks of a document: each line of `sh`; each `- run: ` of `yaml`; and in `console` each line
/// that begins with `# `, with the lines behind it that begin with `> `.
pub fn commands(document: &str) -> Vec<Command<'_>> {
    let mut commands = Vec::new();
    let mut block = None;
    for line in document.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            block = block.is_none().then_some(kind);
            continue;
        }
        let last: Option<&mut Command<'_>> = commands.last_mut();
        match (block, last) {
            (Some("sh"), _) => commands.push(Command { text: line.to_owned(), prints: None }),
            (Some("yaml"), _) => {
                let run = line.split_once("- run: ").map(|(_, text)| text.to_owned());
                commands.extend(run.map(|text| Command { text, prints: None }));
            }
            (Some("console"), last) => {
                if let Some(text) = line.strip_prefix("# ") {
                    commands.push(Command { text: text.to_owned(), prints: Some(Vec::new()) });
                } else if let Some(command) = last {
                    match (line.strip_prefix("> "), &mut command.prints) {
                        (Some(more), _) => command.text.extend(["\n", more]),
                        (None, Some(prints)) => prints.push(line),
                        (None, None) => {}
                    }
                }
            }
            _ => {}
        }
    }
    commands
}

impl Command<'_> {
    /// Fails if the command said something else than the document says.
    pub fn said(&self, said: &str) -> Result<()> {
        let lines: Vec<_> = said.lines().map(str::trim_end).collect();
        let fits = self.prints.as_ref().is_none_or(|prints| fit(prints, &lines));
        ensure!(fits, "it prints:\n{said}");
        Ok(())
    }
}

fn fit(expected: &[&str], lines: &[&str]) -> bool {
    match (expected, lines) {
        ([ANY, rest @ ..], _) => (0..=lines.len()).any(|skipped| fit(rest, &lines[skipped..])),
        ([], []) => true,
        ([first, rest @ ..], [line, lines @ ..]) => fits(first, line) && fit(rest, lines),
        _ => false,
    }
}

/// Whether a line begins, goes on and ends with the parts between the marks.
fn fits(expected: &str, line: &str) -> bool {
    match expected.split_once(ANY) {
        None => expected == line,
        Some((begin, rest)) => line.strip_prefix(begin).is_some_and(|line| {
            line.char_indices()
                .map(|(at, _)| at)
                .chain([line.len()])
                .any(|at| fits(rest, &line[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_with_what_they_print() {
        let page = "Text.\n```sh\none\n```\n# Heading\n```console\n# cat > f <<E\n> x\n> E\n# f | g\n1 …\n…\n```\n\
                    ```yaml\n# no\n  - run: two\n```\n";
        let command = |text: &str, prints| Command { text: text.to_owned(), prints };
        assert_eq!(
            commands(page),
            [
                command("one", None),
                command("cat > f <<E\nx\nE", Some(Vec::new())),
                command("f | g", Some(vec!["1 …", "…"])),
                command("two", None),
            ]
        );
    }

    #[test]
    fn marks_stand_for_text_and_for_lines() {
        let fits = |prints: &str, said: &str| {
            let prints = Some(prints.lines().collect());
            Command { text: String::new(), prints }.said(said).is_ok()
        };
        assert!(fits("a … c\n…\nd", "a b b c  \nx\ny\nd\n"));
        assert!(fits("…\nd", "d\n"));
        assert!(fits("a…", "a\n"));
        assert!(fits("", ""));
        for (prints, said) in
            [("a", "b"), ("a", "a\nb"), ("a\nb", "a"), ("a…c", "abcd"), ("…\nd", "c")]
        {
            assert!(!fits(prints, said), "{prints:?} {said:?}");
        }
    }
}
