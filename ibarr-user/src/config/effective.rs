// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The values in effect, and the origin of each, for administrators.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;
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
#[skip_serializing_none]
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Setting {
    /// Its name, after those of the enclosing table and a dot. For a `[[table]]` the name of the table.
    pub key: String,
    /// For a `[[table]]`, an object of its keys.
    pub value: serde_json::Value,
    /// The default of a key that a file has; a `[[table]]` has none.
    pub default: Option<serde_json::Value>,
    /// The file that has it; absent for a default.
    pub file: Option<String>,
    /// The line in that file, from 1.
    pub line: Option<usize>,
}

/// Every key in the order of the packaged file, then the `[[tables]]`. `sources` have no mistakes.
pub(crate) fn effective(sources: &[Source]) -> Vec<Setting> {
    let mut last = BTreeMap::new();
    for source in sources {
        for setting in values(&source.text, Some(&source.name)) {
            let values: &mut Vec<Setting> = last.entry(setting.key.clone()).or_default();
            // The elements of [[table]] belong together: all are of the file of the last.
            let is_here = |value: &Setting| value.file.as_deref() == Some(&source.name);
            if setting.value.is_object() && values.last().is_none_or(is_here) {
                values.push(setting);
            } else {
                *values = vec![setting];
            }
        }
    }
    last.retain(|key, _| {
        let (table, key) = split(key);
        retired(table, key).is_none()
    });
    let mut all = Vec::new();
    for default in values(&defaults(), None) {
        match last.remove(&default.key) {
            Some(mut set) => {
                for setting in &mut set {
                    setting.default = Some(default.value.clone());
                }
                all.extend(set);
            }
            None => all.push(default),
        }
    }
    all.extend(last.into_values().flatten());
    all
}

/// The table, empty at the top, and the name of a key there.
pub(crate) fn split(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or(("", key))
}

/// The keys of a file, in its order.
fn values(text: &str, name: Option<&str>) -> Vec<Setting> {
    let (root, _) = DeTable::parse_recoverable(text);
    let mut found = Vec::new();
    collect("", root.get_ref(), &mut found);
    found.sort_by_key(|Found(at, ..)| *at);
    // Each part of the text is read once: a file may have 10,000 tables.
    let (mut line, mut read) = (1, 0);
    let setting = |Found(at, key, value)| {
        line += line_of(&text[read..], at - read) - 1;
        read = at;
        let file = name.map(str::to_owned);
        Setting { key, value, default: None, line: file.as_ref().map(|_| line), file }
    };
    found.into_iter().map(setting).collect()
}

/// The place of a key or table in the text, its name and value.
struct Found(usize, String, serde_json::Value);

fn collect(within: &str, table: &DeTable<'_>, found: &mut Vec<Found>) {
    for (key, value) in table {
        let mut add = |at: usize, key: String, value: &DeValue<'_>| {
            found.push(Found(at, key, json(value)));
        };
        let key_name = key.get_ref().as_ref();
        match value.get_ref() {
            DeValue::Table(inner) => collect(&format!("{key_name}."), inner, found),
            DeValue::Array(elements) if elements.iter().any(|one| one.get_ref().is_table()) => {
                for element in elements {
                    add(element.span().start, key_name.to_owned(), element.get_ref());
                }
            }
            value => add(key.span().start, format!("{within}{key_name}"), value),
        }
    }
}

fn json(value: &DeValue<'_>) -> serde_json::Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(value) => (*value).into(),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).unwrap_or_default().into()
        }
        DeValue::Float(number) => number.as_str().into(),
        DeValue::Datetime(time) => time.to_string().into(),
        DeValue::Array(elements) => elements.iter().map(|one| json(one.get_ref())).collect(),
        DeValue::Table(table) => {
            let keys = table.iter();
            keys.map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect()
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
        let from = |key: &str| {
            let setting = all.iter().find(|one| one.key == key).unwrap();
            (setting.file.as_deref(), setting.line, setting.default.clone())
        };
        assert_eq!(from("lease"), (Some("b"), Some(1), Some("60s".into())));
        assert_eq!(from("client.max-cached"), (Some("a"), Some(3), Some(65_536.into())));
        assert_eq!(from("udp-port"), (None, None, None));
        let tables: Vec<_> = all.iter().filter(|one| one.key == "static-gid").collect();
        assert_eq!((tables[0].file.as_deref(), tables[0].line), (Some("b"), Some(2)));
        assert_eq!(tables[1].line, Some(5));
        assert_eq!(tables[1].value, serde_json::json!({"gid": "fe80::2", "ip": "10.2.0.6"}));
        let keys = all.iter().filter(|one| !one.value.is_object()).count();
        assert_eq!((keys, tables.len()), (28, 2));
    }
}
