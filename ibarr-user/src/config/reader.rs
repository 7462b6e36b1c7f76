// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reads TOML tables and collects every mistake with its line; serde would stop at the first.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A mistake in a configuration file.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Mistake {
    /// Line number, from 1.
    pub line: usize,
    /// Object, cause and remedy.
    pub what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// Reads `text` with `read`, which gets the root table.
///
/// # Errors
/// All mistakes in the file, ordered by line: wrong syntax, unknown keys, and those that `read`
/// found.
pub(super) fn read<T>(
    text: &str,
    read: impl FnOnce(&mut Table<'_>) -> T,
) -> Result<T, Vec<Mistake>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<_> = errors
        .iter()
        .map(|error| Mistake {
            line: line_of(text, error.span().unwrap_or_default()),
            what: error.message().to_owned(),
        })
        .collect();
    let value = Table::read(text, "", 0..0, root.get_ref(), &mut mistakes, read);
    if mistakes.is_empty() {
        return Ok(value);
    }
    mistakes.sort();
    mistakes.dedup();
    Err(mistakes)
}

/// A TOML table whose keys are taken once each; keys left over at its drop are unknown.
pub(super) struct Table<'a> {
    text: &'a str,
    /// Names of the enclosing tables, each followed by a dot.
    path: String,
    /// Where the table begins.
    span: Range<usize>,
    rest: BTreeMap<&'a str, (Range<usize>, &'a Spanned<DeValue<'a>>)>,
    known: Vec<&'static str>,
    mistakes: &'a mut Vec<Mistake>,
    /// Number of mistakes when this table began.
    mistakes_before: usize,
}

impl<'a> Table<'a> {
    fn read<T>(
        text: &'a str,
        path: &str,
        span: Range<usize>,
        table: &'a DeTable<'a>,
        mistakes: &'a mut Vec<Mistake>,
        read: impl FnOnce(&mut Table<'_>) -> T,
    ) -> T {
        let rest = table
            .iter()
            .map(|(key, value)| (key.get_ref().as_ref(), (key.span(), value)))
            .collect();
        let (path, known, mistakes_before) = (path.to_owned(), Vec::new(), mistakes.len());
        let mut table = Table { text, path, span, rest, known, mistakes, mistakes_before };
        let value = read(&mut table);
        table.report_unknown();
        value
    }

    /// The value of `key`, parsed by `parse`, or `default` if the key is absent or wrong.
    pub(super) fn value<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl FnOnce(Value<'_>) -> Result<T, String>,
    ) -> T {
        let Some(value) = self.take(key) else { return default };
        match parse(Value(value.get_ref())) {
            Ok(value) => value,
            Err(what) => {
                self.mistake(value.span(), key, &what);
                default
            }
        }
    }

    /// Like [`Table::value`] for each element of the array `key`; wrong elements are skipped.
    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        default: Vec<T>,
        parse: impl Fn(Value<'_>) -> Result<T, String>,
    ) -> Vec<T> {
        let Some(value) = self.take(key) else { return default };
        let Some(array) = value.get_ref().as_array() else {
            self.mistake(value.span(), key, "must be a list, like [\"…\", \"…\"]");
            return default;
        };
        let parsed = array.iter().filter_map(|element| match parse(Value(element.get_ref())) {
            Ok(value) => Some(value),
            Err(what) => {
                self.mistake(element.span(), key, &what);
                None
            }
        });
        parsed.collect()
    }

    /// The table `key`; an absent table is read as an empty one, so that defaults are defined once.
    pub(super) fn table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Table<'_>) -> T,
    ) -> T {
        let empty = DeTable::new();
        let (span, table) = match self.take(key) {
            None => (0..0, &empty),
            Some(value) => (
                value.span(),
                value.get_ref().as_table().unwrap_or_else(|| {
                    self.mistake(value.span(), key, &format!("must be a table: write [{key}]"));
                    &empty
                }),
            ),
        };
        let path = format!("{}{key}.", self.path);
        Table::read(self.text, &path, span, table, self.mistakes, read)
    }

    /// Each of the tables `[[key]]`.
    pub(super) fn tables<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&mut Table<'_>) -> T,
    ) -> Vec<T> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            self.mistake(value.span(), key, &format!("must be a list of tables: write [[{key}]]"));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for element in array {
            let Some(table) = element.get_ref().as_table() else {
                self.mistake(element.span(), key, &format!("must be a table: write [[{key}]]"));
                continue;
            };
            let path = format!("{}{key}.", self.path);
            tables.push(Table::read(self.text, &path, element.span(), table, self.mistakes, &read));
        }
        tables
    }

    /// Reports a mistake if the required `key` is absent.
    pub(super) fn require(&mut self, key: &'static str, example: &str) {
        if !self.rest.contains_key(key) {
            self.mistake(self.span.clone(), key, &format!("is missing: write {key} = {example}"));
        }
    }

    /// The checked value; or the default, after a mistake in the line where this table begins. No
    /// mistake is reported if single values were wrong before.
    pub(super) fn check<T: Default, E: fmt::Display>(&mut self, checked: Result<T, E>) -> T {
        checked.unwrap_or_else(|error| {
            if self.mistakes.len() == self.mistakes_before {
                let line = line_of(self.text, self.span.clone());
                self.mistakes.push(Mistake { line, what: error.to_string() });
            }
            T::default()
        })
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key);
        self.rest.remove(key).map(|(_, value)| value)
    }

    fn report_unknown(&mut self) {
        for (key, (span, _)) in std::mem::take(&mut self.rest) {
            let near = self.known.iter().find(|known| are_near(known, key));
            let remedy = match near {
                Some(known) => format!("did you mean {known:?}?"),
                None => format!("known here: {}", self.known.join(", ")),
            };
            self.mistake(span, key, &format!("is not a key of ibarr; {remedy}"));
        }
    }

    fn mistake(&mut self, at: Range<usize>, key: &str, what: &str) {
        let line = line_of(self.text, at);
        self.mistakes.push(Mistake { line, what: format!("{}{key} {what}", self.path) });
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

    /// A boolean.
    pub(super) fn switch(self) -> Result<bool, String> {
        self.0.as_bool().ok_or_else(|| "must be true or false, without quotes".to_owned())
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

fn line_of(text: &str, span: Range<usize>) -> usize {
    1 + text.bytes().take(span.start).filter(|&byte| byte == b'\n').count()
}

/// Whether `typed` could be a typing error for `known`: equal except for `_`, case and two letters.
fn are_near(known: &str, typed: &str) -> bool {
    let typed = typed.to_lowercase().replace('_', "-");
    edit_distance(known, &typed) <= 2
}

fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in b.chars().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[row.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        let read = read(text, |root| {
            root.value("udp-port", 4791, |value| value.number(1..=65_535));
            root.list("names", Vec::new(), |value| value.text("x").map(str::to_owned));
            root.table("cache", |cache| cache.value("size", 1, |value| value.number(1..=2)));
        });
        read.err().unwrap_or_default().iter().map(ToString::to_string).collect()
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
