// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The values in effect, and the origin of each, as TOML for administrators.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::reader::{Source, line_of, retired};

/// The file that is packaged: every key with its default, behind a `#`.
const PACKAGED: &str = include_str!("../../../pkg/ibarr.toml");

/// The packaged file with its keys in effect. A space behind the `#` makes a line a comment or an example.
pub(super) fn defaults() -> String {
    let is_key = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase());
    let lines = PACKAGED.lines().map(|line| {
        let key = line.strip_prefix('#').filter(is_key);
        format!("{}\n", key.unwrap_or(line))
    });
    lines.collect()
}

/// A key that is in effect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Effective {
    /// The enclosing table; empty at the top.
    pub table: String,
    /// Its name there. In a `[[table]]` it is empty, and the value is the whole table.
    pub key: String,
    /// Its value, as it is written.
    pub value: String,
    /// The file and the line; `None` for a default.
    pub from: Option<(String, usize)>,
}

/// Every key in the order of the packaged file, then the `[[tables]]`. `sources` have no mistakes.
pub(crate) fn effective(sources: &[Source]) -> Vec<Effective> {
    let mut last = BTreeMap::new();
    for source in sources {
        for effective in values(&source.text, Some(&source.name)) {
            let (table, key) = (effective.table.clone(), effective.key.clone());
            let values: &mut Vec<Effective> = last.entry((table, key)).or_default();
            // The elements of [[table]] belong together.
            let is_here =
                |value: &Effective| value.from.as_ref().is_some_and(|it| it.0 == source.name);
            if effective.key.is_empty() && values.iter().all(is_here) {
                values.push(effective);
            } else {
                *values = vec![effective];
            }
        }
    }
    last.retain(|(table, key), _| retired(table, key).is_none());
    let mut all = Vec::new();
    for default in values(&defaults(), None) {
        let of = (default.table.clone(), default.key.clone());
        all.extend(last.remove(&of).unwrap_or_else(|| vec![default]));
    }
    all.extend(last.into_values().flatten());
    all
}

/// The keys of a file, in its order.
fn values(text: &str, name: Option<&str>) -> Vec<Effective> {
    let (root, _) = DeTable::parse_recoverable(text);
    let mut found = Vec::new();
    collect(text, name, "", root.get_ref(), &mut found);
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, effective)| effective).collect()
}

fn collect(
    text: &str,
    name: Option<&str>,
    within: &str,
    table: &DeTable<'_>,
    found: &mut Vec<(usize, Effective)>,
) {
    for (key, value) in table {
        let mut add = |at: usize, table: &str, key: &str, value: String| {
            let from = name.map(|name| (name.to_owned(), line_of(text, at)));
            let (table, key) = (table.to_owned(), key.to_owned());
            found.push((at, Effective { table, key, value, from }));
        };
        let key_name = key.get_ref().as_ref();
        match value.get_ref() {
            DeValue::Table(inner) => collect(text, name, key_name, inner, found),
            DeValue::Array(elements) if elements.iter().any(|one| one.get_ref().is_table()) => {
                for element in elements {
                    let Some(inner) = element.get_ref().as_table() else { continue };
                    let lines = inner.iter().map(|(key, value)| {
                        format!("{} = {}\n", key.get_ref(), &text[value.span()])
                    });
                    add(element.span().start, key_name, "", lines.collect());
                }
            }
            _ => add(key.span().start, within, key_name, text[value.span()].to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Error};
    use super::*;

    fn source(name: &str, text: &str) -> Source {
        Source { name: name.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn wrong_value_of_every_key_is_a_mistake_in_its_line() {
        fn key(line: &str) -> Option<&str> {
            let (key, _) = line.split_once(" = ")?;
            (!line.starts_with('#')).then_some(key)
        }
        let wrong = |line: &str| key(line).map_or(line.to_owned(), |key| format!("{key} = {{}}"));
        let defaults = defaults();
        let text = defaults.lines().map(wrong).collect::<Vec<_>>().join("\n");
        let Err(Error::Mistakes { mistakes }) = Config::read(&[source("a", &text)]) else {
            panic!("wrong values are accepted")
        };
        let keys = defaults.lines().zip(1..).filter(|(line, _)| key(line).is_some());
        let expected: Vec<usize> = keys.map(|(_, number)| number).collect();
        assert_eq!(mistakes.iter().map(|mistake| mistake.line).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_in_effect_is_a_configuration_that_names_its_files() {
        let tables = "[[static-gid]]\nip = \"10.2.0.5\"\ngid = \"fe80::1\"\n\
                      [[static-gid]]\nip = \"10.2.0.6\"\ngid = \"fe80::2\"\n";
        let sources = [
            source(
                "a",
                &format!("lease = \"10s\"\n[client]\nmax-cached = 3\nrefresh-rate = 9\n{tables}"),
            ),
            source("b", &format!("lease = \"20s\"\n{tables}")),
        ];
        let all = effective(&sources);
        let from = |key: &str| all.iter().find(|one| one.key == key).unwrap().from.clone();
        assert_eq!(from("lease"), Some(("b".to_owned(), 1)));
        assert_eq!(from("max-cached"), Some(("a".to_owned(), 3)));
        assert_eq!(from("udp-port"), None);
        let tables: Vec<_> = all.iter().filter(|one| one.table == "static-gid").collect();
        assert_eq!(tables[0].from, Some(("b".to_owned(), 2)));
        assert_eq!(tables[1].value, "gid = \"fe80::2\"\nip = \"10.2.0.6\"\n");
        let keys = all.iter().filter(|one| !one.key.is_empty()).count();
        assert_eq!((keys, tables.len()), (28, 2));
    }
}
