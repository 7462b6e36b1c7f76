// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reads TOML tables of several files as one, and collects every mistake with its place; serde would stop
//! at the first.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::spelling::are_near;

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Source {
    /// Its path, for people.
    pub name: String,
    pub text: String,
}

/// A mistake in a configuration file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Mistake {
    /// Position of the file in the order of reading.
    #[serde(skip)]
    source: usize,
    /// Path of the file.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// Number of the character in the line, from 1.
    pub column: usize,
    /// Object, cause and remedy.
    pub message: String,
    pub text: String,
    /// The place in the line, in bytes.
    #[serde(skip)]
    pub place: Range<usize>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, message, .. } = self;
        write!(f, "{file}:{line}:{column}: {message}")
    }
}

/// Table, name and default of each key that had an effect in 1.0.0. Files still have them. 2.0.0 refuses
/// them, and this list ends.
pub(crate) const RETIRED: [(&str, &str, &str); 14] = [
    ("", "answer-gid", "\"interface\""),
    ("client", "refresh-rate", "500"),
    ("client", "resends", "[\"20ms\",\"60ms\",\"180ms\",\"500ms\",\"1200ms\"]"),
    ("client", "max-flights", "16384"),
    ("client", "max-waiters", "32768"),
    ("client", "sockets", "32"),
    ("client", "socket-lifetime", "\"60s\""),
    ("client", "socket-grace", "\"3s\""),
    ("client", "hop-idle", "\"60s\""),
    ("client", "probe-round", "\"500ms\""),
    ("client", "max-hops", "16384"),
    ("client", "negative-ttl", "\"1s\""),
    ("paths", "negative-ttl", "\"5s\""),
    ("paths", "inform", "false"),
];

/// The default of a key that has no effect any more.
pub(super) fn retired(table: &str, key: &str) -> Option<&'static str> {
    RETIRED.iter().find_map(|(of, name, before)| ((*of, *name) == (table, key)).then_some(*before))
}

/// Reads `sources` with `read`, which gets the root table. A key of a later file counts more than that of
/// an earlier one.
///
/// Also returns the keys that were changed from their default and have no effect any more.
///
/// # Errors
/// All mistakes in the files, ordered by file and line: wrong syntax, unknown keys, and those that `read`
/// found.
pub(super) fn read<T>(
    sources: &[Source],
    read: impl FnOnce(&mut Table<'_, '_>) -> T,
) -> Result<(T, Vec<String>), Vec<Mistake>> {
    let parsed: Vec<_> =
        sources.iter().map(|source| DeTable::parse_recoverable(&source.text)).collect();
    let mut found = Findings { sources, mistakes: Vec::new(), retired: Vec::new() };
    for (source, (_, errors)) in parsed.iter().enumerate() {
        for error in errors {
            let span = error.span().unwrap_or_default();
            found.add(&Position { source, span }, error.message().to_owned());
        }
    }
    let parts = parsed.iter().enumerate().map(|(source, (root, _))| Part {
        place: Position { source, span: 0..0 },
        table: root.get_ref(),
    });
    let value = Table::read("", &parts.collect::<Vec<_>>(), &mut found, read);
    if found.mistakes.is_empty() {
        return Ok((value, found.retired));
    }
    let place = |mistake: &Mistake| (mistake.source, mistake.line, mistake.column);
    found.mistakes.sort_by_key(place);
    found.mistakes.dedup();
    Err(found.mistakes)
}

/// The mistakes so far, and changed keys without effect.
struct Findings<'a> {
    sources: &'a [Source],
    mistakes: Vec<Mistake>,
    retired: Vec<String>,
}

impl Findings<'_> {
    /// The value as the file has it, without white space.
    fn text(&self, entry: &Entry<'_>) -> String {
        let source = self.sources.get(entry.source);
        let value = source.and_then(|source| source.text.get(entry.value.span()));
        value.unwrap_or_default().split_whitespace().collect()
    }

    fn add(&mut self, at: &Position, message: String) {
        let Some(Source { name, text }) = self.sources.get(at.source) else { return };
        let start = (0..=at.span.start.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
        let (before, rest) = text.split_at(start.unwrap_or_default());
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let end = rest.find('\n').map_or(text.len(), |at| before.len() + at);
        let until = at.span.end.clamp(before.len(), end);
        self.mistakes.push(Mistake {
            source: at.source,
            file: name.clone(),
            line: line_of(text, before.len()),
            column: before[begin..].chars().count() + 1,
            message,
            text: text[begin..end].to_owned(),
            place: before.len() - begin..until - begin,
        });
    }
}

/// A position in a file.
#[derive(Clone, Debug, Default)]
struct Position {
    source: usize,
    span: Range<usize>,
}

/// The keys of a table that one file has.
struct Part<'a> {
    place: Position,
    table: &'a DeTable<'a>,
}

/// The value of a key that one file has.
struct Entry<'a> {
    source: usize,
    key: Range<usize>,
    value: &'a Spanned<DeValue<'a>>,
}

impl Entry<'_> {
    fn place(&self) -> Position {
        self.place_of(self.value)
    }

    fn place_of(&self, element: &Spanned<DeValue<'_>>) -> Position {
        Position { source: self.source, span: element.span() }
    }
}

/// A TOML table whose keys are taken once each; keys left over at the end are unknown.
pub(super) struct Table<'a, 'b> {
    /// Names of the enclosing tables, each followed by a dot.
    path: String,
    /// Where the table begins, in the last file that has it.
    place: Position,
    rest: BTreeMap<&'a str, Vec<Entry<'a>>>,
    known: Vec<&'static str>,
    found: &'a mut Findings<'b>,
    /// Number of mistakes when this table began.
    mistakes_before: usize,
}

impl<'a, 'b> Table<'a, 'b> {
    /// The names of the files.
    pub(super) fn files(&self) -> Vec<String> {
        self.found.sources.iter().map(|source| source.name.clone()).collect()
    }

    fn read<T>(
        path: &str,
        parts: &[Part<'a>],
        found: &'a mut Findings<'b>,
        read: impl FnOnce(&mut Table<'_, 'b>) -> T,
    ) -> T {
        let place = parts.last().map(|part| part.place.clone()).unwrap_or_default();
        let mut rest = BTreeMap::<_, Vec<_>>::new();
        for part in parts {
            for (key, value) in part.table {
                let entry = Entry { source: part.place.source, key: key.span(), value };
                rest.entry(key.get_ref().as_ref()).or_default().push(entry);
            }
        }
        let (path, known, mistakes_before) = (path.to_owned(), Vec::new(), found.mistakes.len());
        let mut table = Table { path, place, rest, known, found, mistakes_before };
        let value = read(&mut table);
        table.report_unknown();
        value
    }

    /// The last value of `key`, parsed by `parse`, or `default` if the key is absent or wrong.
    pub(super) fn value<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl Fn(Value<'_>) -> Result<T, String>,
    ) -> T {
        let mut result = default;
        for entry in self.take(key) {
            match parse(Value(entry.value.get_ref())) {
                Ok(value) => result = value,
                Err(what) => self.mistake(&entry.place(), key, &what),
            }
        }
        result
    }

    /// Like [`Table::value`] for each element of the array `key`; wrong elements are skipped.
    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        default: Vec<T>,
        parse: impl Fn(Value<'_>) -> Result<T, String>,
    ) -> Vec<T> {
        let mut result = default;
        for entry in self.take(key) {
            let Some(array) = entry.value.get_ref().as_array() else {
                self.mistake(&entry.place(), key, "must be a list, like [\"…\", \"…\"]");
                continue;
            };
            result = Vec::new();
            for element in array {
                match parse(Value(element.get_ref())) {
                    Ok(value) => result.push(value),
                    Err(what) => self.mistake(&entry.place_of(element), key, &what),
                }
            }
        }
        result
    }

    /// The table `key`, with the keys of all files. An absent table is read as an empty one, so that
    /// defaults are defined once.
    pub(super) fn table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Table<'_, 'b>) -> T,
    ) -> T {
        let mut parts = Vec::new();
        for entry in self.take(key) {
            match entry.value.get_ref().as_table() {
                Some(table) => parts.push(Part { place: entry.place(), table }),
                None => {
                    self.mistake(&entry.place(), key, &format!("must be a table: write [{key}]"));
                }
            }
        }
        let path = format!("{}{key}.", self.path);
        Table::read(&path, &parts, self.found, read)
    }

    /// Each of the tables `[[key]]` of the last file that has one.
    pub(super) fn tables<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut Table<'_, 'b>, &[T]) -> T,
    ) -> Vec<T> {
        let mut tables = Vec::new();
        let path = format!("{}{key}.", self.path);
        for entry in self.take(key) {
            let Some(array) = entry.value.get_ref().as_array() else {
                let what = format!("must be a list of tables: write [[{key}]]");
                self.mistake(&entry.place(), key, &what);
                continue;
            };
            tables.clear();
            for element in array {
                let place = entry.place_of(element);
                let Some(table) = element.get_ref().as_table() else {
                    self.mistake(&place, key, &format!("must be a table: write [[{key}]]"));
                    continue;
                };
                let part = [Part { place, table }];
                let one = Table::read(&path, &part, self.found, |table| read(table, &tables));
                tables.push(one);
            }
        }
        tables
    }

    /// Reports a mistake if the required `key` is absent.
    pub(super) fn require(&mut self, key: &'static str, example: &str) {
        if !self.rest.contains_key(key) {
            self.mistake(&self.place.clone(), key, &format!("is missing: write {key} = {example}"));
        }
    }

    /// The checked value; or the default, after a mistake in the line where this table begins. No
    /// mistake is reported if single values were wrong before.
    pub(super) fn check<T: Default, E: fmt::Display>(&mut self, checked: Result<T, E>) -> T {
        checked.unwrap_or_else(|error| {
            if self.found.mistakes.len() == self.mistakes_before {
                self.found.add(&self.place, error.to_string());
            }
            T::default()
        })
    }

    fn take(&mut self, key: &'static str) -> Vec<Entry<'a>> {
        self.known.push(key);
        self.rest.remove(key).unwrap_or_default()
    }

    fn report_unknown(&mut self) {
        for (key, entries) in std::mem::take(&mut self.rest) {
            if let Some(before) = retired(self.path.trim_end_matches('.'), key) {
                if entries.iter().any(|entry| self.found.text(entry) != before) {
                    self.found.retired.push(format!("{}{key}", self.path));
                }
                continue;
            }
            let near = self.known.iter().find(|known| are_near(known, key));
            let remedy = match near {
                Some(known) => format!("did you mean {known:?}?"),
                None => format!("known here: {}", self.known.join(", ")),
            };
            for Entry { source, key: span, .. } in entries {
                let what = format!("is not a key of ibarr; {remedy}");
                self.mistake(&Position { source, span }, key, &what);
            }
        }
    }

    fn mistake(&mut self, at: &Position, key: &str, what: &str) {
        self.found.add(at, format!("{}{key} {what}", self.path));
    }
}

/// A TOML value with checks of its type.
#[derive(Clone, Copy)]
pub(super) struct Value<'a>(&'a DeValue<'a>);

impl<'a> Value<'a> {
    /// The text, or a mistake that shows `example`.
    pub(super) fn text(self, example: &str) -> Result<&'a str, String> {
        self.0.as_str().ok_or_else(|| format!("must be a text, like {example:?}"))
    }

    /// The text, parsed as a `T`.
    pub(super) fn parse<T>(self, example: &str) -> Result<T, String>
    where
        T: std::str::FromStr,
        T::Err: fmt::Display,
    {
        let text = self.text(example)?;
        text.parse()
            .map_err(|error| format!("{text:?} is wrong: {error}; write it like {example:?}"))
    }

    /// One of the words `all`, or a mistake that shows `example` or them.
    pub(super) fn word<T>(self, example: T, all: &[T]) -> Result<T, String>
    where
        T: Copy + fmt::Display,
    {
        let text = self.text(&example.to_string())?;
        all.iter().copied().find(|word| word.to_string() == text).ok_or_else(|| {
            let all = all.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
            let (others, last) = all.rsplit_once(", ").unwrap_or(("nothing", &all));
            format!("is {text:?}; it can be {others} or {last}")
        })
    }

    /// A whole number within `range`.
    pub(super) fn number<T>(self, range: std::ops::RangeInclusive<T>) -> Result<T, String>
    where
        T: TryFrom<i64> + PartialOrd + fmt::Display,
    {
        let number = self
            .0
            .as_integer()
            .and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok());
        number
            .and_then(|number| T::try_from(number).ok())
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                format!("must be a whole number from {} to {}", range.start(), range.end())
            })
    }
}

/// Number of the line that has the byte `at`, from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count()
}

pub(super) fn switch(value: Value<'_>) -> Result<bool, String> {
    value.0.as_bool().ok_or_else(|| "must be true or false, without quotes".to_owned())
}

/// A file's absolute path. An empty text means no file.
pub(super) fn file(value: Value<'_>) -> Result<Option<PathBuf>, String> {
    match value.text("/var/lib/ibarr/paths")? {
        "" => Ok(None),
        path if path.starts_with('/') && !path.ends_with('/') => Ok(Some(path.into())),
        path => Err(format!("is {path:?}; write a file's path, from / on, or \"\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        let source = Source { name: String::new(), text: text.to_owned() };
        let read = read(&[source], |root| {
            root.value("udp-port", 4791, |value| value.number(1..=65_535));
            root.list("names", Vec::new(), |value| value.text("x").map(str::to_owned));
            root.table("cache", |cache| cache.value("size", 1, |value| value.number(1..=2)));
        });
        let mistakes = read.err().unwrap_or_default();
        mistakes.iter().map(|one| format!("line {}: {}", one.line, one.message)).collect()
    }

    #[test]
    fn every_mistake_is_found_in_one_pass_with_its_line() {
        let text = "udp_port = 1\nudp-port = 70000\nnames = [1, \"a\"]\n\n[cache]\nsize = 3\n[x]\n";
        assert_eq!(
            mistakes(text),
            [
                "line 1: udp_port is not a key of ibarr; did you mean \"udp-port\"?",
                "line 2: udp-port must be a whole number from 1 to 65535",
                "line 3: names must be a text, like \"x\"",
                "line 6: cache.size must be a whole number from 1 to 2",
                "line 7: x is not a key of ibarr; known here: udp-port, names, cache",
            ]
        );
    }

    #[test]
    fn broken_syntax_is_a_mistake_with_its_line() {
        let found = mistakes("udp-port = 1\nnames = [\n");
        assert!(found[0].starts_with("line 2: "), "{found:?}");
        assert!(!mistakes("a = = 1").is_empty());
        assert!(!mistakes("udp-port = 1\nudp-port = 1").is_empty());
    }

    #[test]
    fn correct_text_has_no_mistakes() {
        assert_eq!(mistakes("udp-port = 0x12b7\n[cache]\nsize = 2"), [""; 0]);
    }
}
