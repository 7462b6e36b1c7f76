// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The commands in the running text and the tables of pages, and those of the manual: clap understands them. Their sessions
//! run in a container (`commands_of_the_pages_do_what_the_pages_show`).

use std::fs;
use std::path::Path;

use clap::Command;
use clap::error::ErrorKind;
use ibarr_user::cli::command;

/// What stands for a value in a command.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("IP", "10.2.0.5"),
    ("PEER", "10.2.0.5"),
    ("NODE", "10.2.0.5"),
    ("FILE", "file"),
    ("…", "10.2.0.5"),
];

#[test]
fn commands_in_the_text_of_pages_are_understood() {
    let (mut tried, mut mistakes) = (0, Vec::new());
    for (page, text) in pages() {
        for span in spans(&without_blocks(&text), "`") {
            let Some(words) = command_of(&span) else { continue };
            tried += 1;
            mistakes.extend(mistake(words).map(|mistake| format!("{page}: `{span}`: {mistake}")));
        }
    }
    assert!(tried > 30, "only {tried} commands");
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn commands_of_the_manual_have_the_options_that_it_shows() {
    let (mut tried, mut mistakes) = (0, Vec::new());
    for (page, has_terms) in
        [("ibarr.8.md", true), ("ibarr.toml.5.md", false), ("ibarr-ip2gid.7.md", false)]
    {
        let text = fs::read_to_string(root().join("docs/man").join(page)).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let terms = lines.windows(2).filter(|pair| pair[1].starts_with(":   ")).map(|pair| pair[0]);
        let synopsis = lines.iter().copied().filter(|line| line.ends_with('\\'));
        for term in terms.chain(synopsis).filter(|_| has_terms) {
            let words: Vec<_> = spans(term, "**").collect();
            let is_command = |word: &str| word.starts_with(|it: char| it.is_ascii_lowercase());
            let Some(first) = words.first().filter(|word| is_command(word)) else { continue };
            let name = command_of(first).unwrap_or(first);
            tried += 1;
            let all = words[1..].iter().map(String::as_str);
            let all = name.split(' ').chain(all).filter(|word| !word.is_empty());
            mistakes.extend(unknown(all).map(|word| format!("{page}: {term}: {word}")));
        }
        // Commands in its text.
        for span in spans(&text.replace('\n', " "), "**") {
            if let Some(words) = command_of(&span) {
                mistakes.extend(mistake(words).map(|it| format!("{page}: {span}: {it}")));
            }
        }
    }
    assert!(tried > 25, "only {tried} commands");
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn unknown_commands_options_and_values_are_found() {
    for wrong in ["statuss", "status --chek", "resolve --timeout soon 10.2.0.5", "ports 10.2.0.5"] {
        assert!(mistake(wrong).is_some(), "{wrong}");
    }
    for right in ["", "status", "resolve", "doctor --peer IP", "doctor --peer", "--version"] {
        assert_eq!(mistake(right), None, "{right}");
    }
    assert_eq!(unknown(["status", "--check", "--chek"].into_iter()), Some("--chek".to_owned()));
    assert_eq!(unknown(["statuss"].into_iter()), Some("statuss".to_owned()));
}

/// Why clap does not understand the words after `ibarr`. A command may be named without its arguments, and an option
/// at the end without its value.
fn mistake(words: &str) -> Option<String> {
    let typed = words.split_whitespace().map(|word| {
        let known = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
        known.map_or(word, |(_, value)| value)
    });
    let error = command().try_get_matches_from(["ibarr"].into_iter().chain(typed)).err()?;
    let is_fine = match error.kind() {
        ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            true
        }
        ErrorKind::InvalidValue => {
            words.split(' ').next_back().is_some_and(|it| it.starts_with('-'))
        }
        _ => false,
    };
    (!is_fine).then(|| error.to_string())
}

/// The first of `words` that is no command, or no option of the command before it.
fn unknown<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut ibarr = command();
    ibarr.build();
    let mut command = &ibarr;
    for word in words.flat_map(str::split_whitespace) {
        let is_known = if let Some(long) = word.strip_prefix("--") {
            has(command, |option| {
                option.get_long_and_visible_aliases().is_some_and(|all| all.contains(&long))
            })
        } else if let Some(short) = word.strip_prefix('-') {
            short.is_empty()
                || has(command, |option| {
                    option.get_short().is_some_and(|it| short == it.to_string())
                })
        } else if let Some(found) = command.find_subcommand(word) {
            command = found;
            true
        } else {
            false
        };
        if !is_known {
            return Some(word.to_owned());
        }
    }
    None
}

fn has(command: &Command, is_it: impl Fn(&clap::Arg) -> bool) -> bool {
    command.get_arguments().any(is_it)
}

/// What follows `ibarr`, if a command begins with it.
fn command_of(text: &str) -> Option<&str> {
    let text = text.strip_prefix("sudo ").unwrap_or(text);
    let rest = text.strip_prefix("ibarr")?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim())
}

/// The texts between two marks, each on one line.
fn spans(text: &str, mark: &str) -> impl Iterator<Item = String> {
    let all = text.split(mark).skip(1).step_by(2);
    all.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A page without its blocks of code.
fn without_blocks(text: &str) -> String {
    text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// The names and texts of the pages for users.
fn pages() -> Vec<(String, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let top = ["README.md", "SECURITY.md", "CHANGELOG.md"].map(|name| root().join(name));
    let read = |path: &Path| (path.display().to_string(), fs::read_to_string(path).unwrap());
    docs.chain(top).map(|path| read(&path)).collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
