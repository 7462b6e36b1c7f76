// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The allowed licences and sources of dependencies. `deny.toml` has the same for cargo-deny, which also
//! checks advisories.

use serde_json::Value;

use super::{File, Problems};

const OURS: &str = "GPL-2.0-only OR BSD-2-Clause";

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Allowed licences of dependencies, by SPDX identifier.
const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    // libFuzzer, only in fuzz/.
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Compares the packages of `cargo metadata` with the lists.
pub(super) fn check(metadata: &Value) -> Problems {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().filter_map(problem).collect()
}

/// Checks that `deny.toml` allows the licences of [`ALLOWED`] and our own.
pub(super) fn deny_toml(files: &[File]) -> Problems {
    let deny = files.iter().find(|file| file.path == "deny.toml");
    let list = deny.and_then(|file| file.text.split_once("\nallow = [")?.1.split_once(']'));
    let Some((list, _)) = list else {
        return vec!["deny.toml: it has no list of allowed licences".to_owned()];
    };
    let mut listed: Vec<_> = list.split('"').skip(1).step_by(2).collect();
    let mut expected = [ALLOWED, &["GPL-2.0-only"]].concat();
    listed.sort_unstable();
    expected.sort_unstable();
    if listed == expected {
        Problems::new()
    } else {
        vec!["deny.toml: its licences are not those of xtask/src/tidy/licences.rs".to_owned()]
    }
}

fn problem(package: &Value) -> Option<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let licence = package["license"].as_str().unwrap_or_default();
    match package["source"].as_str() {
        None if licence == OURS => None,
        None => Some(format!("{name}: its licence is not {OURS:?}: inherit it from the workspace")),
        Some(CRATES_IO) if is_allowed(licence) => None,
        Some(CRATES_IO) => Some(format!("{name}: its licence, {licence:?}, is not on our list")),
        Some(source) => Some(format!("{name} comes from {source}: only crates.io is allowed")),
    }
}

/// Whether licences of [`ALLOWED`] satisfy an SPDX expression. False if the expression cannot be parsed.
fn is_allowed(expression: &str) -> bool {
    // `MIT/Apache-2.0` is an old form of OR.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = Words { words: spaced.split_whitespace().collect() };
    words.any().is_some_and(|allowed| allowed && words.words.is_empty())
}

/// A recursive descent: OR binds less than AND, AND less than WITH. `None` is a syntax error.
struct Words<'a> {
    words: Vec<&'a str>,
}

impl Words<'_> {
    fn any(&mut self) -> Option<bool> {
        let mut allowed = self.all()?;
        while self.take("OR") {
            allowed |= self.all()?;
        }
        Some(allowed)
    }

    fn all(&mut self) -> Option<bool> {
        let mut allowed = self.one()?;
        while self.take("AND") {
            allowed &= self.one()?;
        }
        Some(allowed)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let allowed = self.any()?;
            return self.take(")").then_some(allowed);
        }
        let mut licence = self.next()?.to_owned();
        if self.take("WITH") {
            licence = format!("{licence} WITH {}", self.next()?);
        }
        Some(ALLOWED.contains(&licence.as_str()))
    }

    fn take(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        if is_next {
            self.words.remove(0);
        }
        is_next
    }

    fn next(&mut self) -> Option<&str> {
        (!self.words.is_empty()).then(|| self.words.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_does() {
        for allowed in [
            "MIT",
            "MIT OR GPL-3.0-only",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "Unlicense/MIT",
            "MIT AND (GPL-3.0-only OR ISC)",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "GPL-3.0-only OR MIT AND GPL-3.0-only",
            "MIT WITH Other-exception",
            "(MIT",
            "MIT)",
            "MIT Apache-2.0",
            "OR",
        ] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn foreign_licence_source_and_own_licence_are_found() {
        let package = |source: Value, licence: Value| json!({ "packages": [{ "name": "it", "source": source, "license": licence }] });
        assert!(check(&package(json!(CRATES_IO), json!("MIT"))).is_empty());
        assert_eq!(check(&package(json!(CRATES_IO), json!("AGPL-3.0-only"))).len(), 1);
        assert_eq!(check(&package(json!(CRATES_IO), Value::Null)).len(), 1);
        assert_eq!(check(&package(json!("git+https://example.org/it"), json!("MIT"))).len(), 1);
        assert!(check(&package(Value::Null, json!(OURS))).is_empty());
        assert_eq!(check(&package(Value::Null, json!("MIT"))).len(), 1);
    }

    #[test]
    fn deny_toml_that_allows_something_else_is_found() {
        let deny = |list: &str| {
            let text = format!("[licenses]\nallow = [{list}]\n[bans]\n");
            [File { path: "deny.toml".to_owned(), text }]
        };
        let list = [ALLOWED, &["GPL-2.0-only"]].concat().join("\",\n    \"");
        assert!(deny_toml(&deny(&format!("\n    \"{list}\",\n"))).is_empty());
        assert_eq!(deny_toml(&deny(&format!("\"{list}\", \"AGPL-3.0-only\""))).len(), 1);
        assert_eq!(deny_toml(&deny("\"MIT\"")).len(), 1);
        assert_eq!(deny_toml(&[]).len(), 1);
    }
}
