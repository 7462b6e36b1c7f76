// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The allowed licences and sources of dependencies. The list of licences is that of `deny.toml`, for
//! cargo-deny, which also checks advisories.

use anyhow::{Context as _, Result};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use super::File;

const OURS: &str = "GPL-2.0-only OR BSD-2-Clause";

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Allowed licences of dependencies, by SPDX identifier.
pub(super) fn allowed(files: &[File]) -> Result<Vec<&str>> {
    let deny =
        files.iter().find(|file| file.path == "deny.toml").context("there is no deny.toml")?;
    let list = deny.text.split_once("\nallow = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.context("deny.toml has no list of allowed licences")?;
    Ok(list.split('"').skip(1).step_by(2).collect())
}

/// Compares the packages of `cargo metadata` with the list.
pub(super) fn check(metadata: &Value, allowed: &[&str]) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().filter_map(|package| problem(package, allowed)).collect()
}

fn problem(package: &Value, allowed: &[&str]) -> Option<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let licence = package["license"].as_str().unwrap_or_default();
    match package["source"].as_str() {
        None if licence == OURS => None,
        None => Some(format!("{name}: its licence is not {OURS:?}: inherit it from the workspace")),
        Some(CRATES_IO) if is_met(licence, allowed) => None,
        Some(CRATES_IO) => Some(format!("{name}: its licence, {licence:?}, is not in deny.toml")),
        Some(source) => Some(format!("{name} comes from {source}: only crates.io is allowed")),
    }
}

/// Whether the licences in `allowed` satisfy an SPDX expression. False if the expression cannot be parsed.
fn is_met(expression: &str, allowed: &[&str]) -> bool {
    // `MIT/Apache-2.0` is an old form of OR.
    let mode = ParseMode { allow_slash_as_or_operator: true, ..ParseMode::STRICT };
    let expression = Expression::parse_mode(expression, mode);
    expression.is_ok_and(|expression| {
        expression.evaluate(|licence| allowed.contains(&licence.to_string().as_str()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIST: [&str; 2] = ["MIT", "Apache-2.0 WITH LLVM-exception"];

    #[test]
    fn one_allowed_alternative_is_enough_and_each_part_is_needed() {
        for met in ["MIT", "GPL-3.0-only OR MIT", "Unlicense/MIT", "Apache-2.0 WITH LLVM-exception"]
        {
            assert!(is_met(met, &LIST), "{met}");
        }
        for refused in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "Apache-2.0", "MIT ISC", "(MIT"]
        {
            assert!(!is_met(refused, &LIST), "{refused}");
        }
    }

    #[test]
    fn foreign_licence_source_and_own_licence_are_found() {
        let problems = |source: Value, licence: Value| {
            let package = json!({ "name": "it", "source": source, "license": licence });
            check(&json!({ "packages": [package] }), &LIST).len()
        };
        assert_eq!(problems(json!(CRATES_IO), json!("MIT")), 0);
        assert_eq!(problems(json!(CRATES_IO), json!("AGPL-3.0-only")), 1);
        assert_eq!(problems(json!(CRATES_IO), Value::Null), 1);
        assert_eq!(problems(json!("git+https://example.org/it"), json!("MIT")), 1);
        assert_eq!(problems(Value::Null, json!(OURS)), 0);
        assert_eq!(problems(Value::Null, json!("MIT")), 1);
    }

    #[test]
    fn list_is_that_of_deny_toml() {
        let deny = |text: &str| [File { path: "deny.toml".to_owned(), text: text.to_owned() }];
        let file = deny("[licenses]\nallow = [\n    \"MIT\",\n    \"ISC\",\n]\n[bans]\n");
        assert_eq!(allowed(&file).expect("a list"), ["MIT", "ISC"]);
        assert!(allowed(&deny("[bans]\n")).is_err());
        assert!(allowed(&[]).is_err());
    }
}
