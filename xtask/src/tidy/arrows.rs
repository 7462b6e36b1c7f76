// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which crate may depend on which, as the table of ARCHITECTURE.md says.

use serde_json::Value;

use super::File;

/// What one of our crates may depend on, as the last cell of its row in ARCHITECTURE.md says:
/// ``| `crate` | what it is | `ours`; tests: `ours`; others |``.
#[derive(Debug, Default, Eq, PartialEq)]
struct Arrows<'a> {
    from: &'a str,
    /// Without the `ibarr-` before them.
    ours: Vec<&'a str>,
    /// Our crates that its tests may use as well.
    tests: Vec<&'a str>,
    /// Other crates. `None`: any that the licence rules allow. Tests may use any, because they do not become
    /// part of the product.
    others: Option<Vec<&'a str>>,
}

/// Compares `cargo metadata` with ARCHITECTURE.md.
pub(super) fn check(metadata: &Value, files: &[File]) -> Vec<String> {
    let document = files.iter().find(|file| file.path == "ARCHITECTURE.md");
    let table: Vec<_> = document
        .into_iter()
        .flat_map(|file| file.text.lines().filter_map(Arrows::of_row))
        .collect();
    let mut problems = Vec::new();
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    // A package without a source is not from a registry, so it is ours.
    let own = || packages.iter().filter(|package| package["source"].is_null());
    let ours: Vec<&str> = own().filter_map(|package| package["name"].as_str()).collect();
    if ours.is_empty() {
        problems.push("`cargo metadata` lists no crate of ours".to_owned());
    }
    for package in own() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(arrows) = table.iter().find(|arrows| arrows.from == name) else {
            problems.push(format!("{name}: ARCHITECTURE.md does not say what it may depend on"));
            continue;
        };
        let dependencies = package["dependencies"].as_array().map(Vec::as_slice);
        for dependency in dependencies.unwrap_or_default() {
            let on = dependency["name"].as_str().unwrap_or_default();
            let is_for_tests = dependency["kind"] == "dev";
            if !arrows.allow(on, ours.contains(&on), is_for_tests) {
                let tests = if is_for_tests { "the tests of " } else { "" };
                problems.push(format!("{tests}{name} may not depend on {on}"));
            }
        }
    }
    problems
}

impl<'a> Arrows<'a> {
    fn of_row(row: &'a str) -> Option<Self> {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let &[name, what, allowed] = cells.as_slice() else { return None };
        let from = ticked(name).chain(ticked(what)).find(|name| !name.ends_with('/'))?;
        let mut arrows = Self { from, ..Self::default() };
        for part in allowed.split("; ") {
            if part.starts_with("tests: ") {
                arrows.tests = ticked(part).collect();
            } else if part.contains('`') {
                arrows.ours = ticked(part).collect();
            } else {
                arrows.others = Some(part.split(", ").filter(|name| *name != "none").collect());
            }
        }
        Some(arrows)
    }

    fn allow(&self, on: &str, is_ours: bool, is_for_tests: bool) -> bool {
        if is_ours {
            let name = on.trim_start_matches("ibarr-");
            self.ours.contains(&name) || is_for_tests && self.tests.contains(&name)
        } else {
            is_for_tests || self.others.as_ref().is_none_or(|others| others.contains(&on))
        }
    }
}

/// The names in backticks.
fn ticked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(metadata: &Value) -> Vec<String> {
        let text = "| crate | what it is | may depend on |
| `ibarr-common` | `x` | none; serde |
| `ibarr-proto` | x | `common`; crc |
| `ibarr-user` | x | `common`, `proto`; tests: `sim` |
| [`it/`](it/README.md) | x: `ibarr-sim` | none; none |
| `ibtun-guest` | x | none |
| `ibarr-testbed` | x | `common`; tests: `ibtun-guest` |";
        super::check(
            metadata,
            &[File { path: "ARCHITECTURE.md".to_owned(), text: text.to_owned() }],
        )
    }

    /// The problems if `from` depends on `on`, which is ours if `source` is null.
    fn problems(from: &str, on: &str, source: &Value, kind: &Value) -> Vec<String> {
        check(&json!({ "packages": [
            { "name": from, "source": null, "dependencies": [{ "name": on, "kind": kind }] },
            { "name": on, "source": source, "dependencies": [] },
        ]}))
    }

    #[test]
    fn arrow_against_the_design_is_found() {
        let null = Value::Null;
        assert!(problems("ibarr-user", "ibarr-proto", &null, &null).is_empty());
        assert_eq!(
            problems("ibarr-proto", "ibarr-user", &null, &null),
            ["ibarr-proto may not depend on ibarr-user"]
        );
        assert_eq!(problems("ibarr-sim", "ibarr-common", &null, &null).len(), 1);
        assert_eq!(problems("ibarr-sim", "serde", &json!("registry"), &null).len(), 1);
    }

    #[test]
    fn runtime_in_a_core_is_found() {
        let registry = json!("registry+https://github.com/rust-lang/crates.io-index");
        for kind in [Value::Null, json!("build")] {
            assert_eq!(
                problems("ibarr-proto", "tokio", &registry, &kind),
                ["ibarr-proto may not depend on tokio"]
            );
        }
        assert!(problems("ibarr-user", "tokio", &registry, &Value::Null).is_empty());
    }

    #[test]
    fn tests_may_use_more_but_not_everything() {
        let registry = json!("registry+https://github.com/rust-lang/crates.io-index");
        let (null, dev) = (Value::Null, json!("dev"));
        assert!(problems("ibarr-common", "proptest", &registry, &dev).is_empty());
        assert!(problems("ibarr-user", "ibarr-sim", &null, &dev).is_empty());
        assert_eq!(problems("ibarr-user", "ibarr-sim", &null, &null).len(), 1);
        assert!(problems("ibarr-testbed", "ibtun-guest", &null, &dev).is_empty());
        assert_eq!(problems("ibarr-user", "ibarr-testbed", &null, &dev).len(), 1);
    }

    #[test]
    fn unknown_crate_of_ours_is_found() {
        let metadata = json!({ "packages": [{ "name": "new", "source": null }] });
        assert_eq!(check(&metadata).len(), 1);
        assert_eq!(check(&json!({ "packages": [] })).len(), 1);
    }
}
