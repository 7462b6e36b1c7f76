// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which crate may depend on which. ARCHITECTURE.md says why.

use serde_json::Value;

/// The crates that one of our crates may depend on.
struct Arrows {
    from: &'static str,
    ours: &'static [&'static str],
    /// Our crates that its tests may use as well.
    tests: &'static [&'static str],
    /// Other crates. `None`: any that the licence rules allow.
    others: Option<&'static [&'static str]>,
}

/// Tests may use any other crate, because it does not become part of the product.
const ARROWS: &[Arrows] = &[
    Arrows {
        from: "ibarr-common",
        ours: &[],
        tests: &[],
        others: Some(&["serde_core", "zerocopy"]),
    },
    Arrows { from: "ibarr-ebpf", ours: &["ibarr-common"], tests: &[], others: None },
    Arrows {
        from: "ibarr-proto",
        ours: &["ibarr-common"],
        tests: &[],
        others: Some(&[
            "crc",
            "foldhash",
            "hashbrown",
            "ipnet",
            "rand_chacha",
            "rand_core",
            "serde",
            "serde_with_macros",
            "siphasher",
            "thiserror",
        ]),
    },
    Arrows {
        from: "ibarr-no-std",
        ours: &["ibarr-common", "ibarr-proto"],
        tests: &[],
        others: Some(&[]),
    },
    Arrows {
        from: "ibarr-sim",
        ours: &["ibarr-common", "ibarr-ebpf", "ibarr-proto"],
        tests: &[],
        others: Some(&["clap", "ipnet", "rand_chacha", "rand_core", "thiserror", "zerocopy"]),
    },
    Arrows { from: "ibarr-fabric", ours: &["ibarr-common"], tests: &[], others: None },
    Arrows {
        from: "ibarr-user",
        ours: &["ibarr-common", "ibarr-ebpf", "ibarr-proto"],
        tests: &["ibarr-sim"],
        others: None,
    },
    Arrows {
        from: "ibarr-testbed",
        ours: &["ibarr-common", "ibarr-ebpf", "ibarr-proto", "ibarr-sim", "ibarr-user"],
        tests: &["ibarr-fabric"],
        others: None,
    },
    Arrows {
        from: "xtask",
        ours: &[],
        tests: &[],
        others: Some(&["anyhow", "clap", "cpio", "object", "serde_json", "spdx"]),
    },
];

/// Compares `cargo metadata` with [`ARROWS`].
pub(super) fn check(metadata: &Value) -> Vec<String> {
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
        let Some(arrows) = ARROWS.iter().find(|arrows| arrows.from == name) else {
            problems.push(format!(
                "{name}: say in xtask/src/tidy/arrows.rs and ARCHITECTURE.md what it may depend on"
            ));
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

impl Arrows {
    fn allow(&self, on: &str, is_ours: bool, is_for_tests: bool) -> bool {
        if is_ours {
            self.ours.contains(&on) || is_for_tests && self.tests.contains(&on)
        } else {
            is_for_tests || self.others.is_none_or(|others| others.contains(&on))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        assert_eq!(problems("xtask", "ibarr-common", &null, &null).len(), 1);
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
        assert_eq!(problems("ibarr-user", "ibarr-testbed", &null, &dev).len(), 1);
    }

    #[test]
    fn unknown_crate_of_ours_is_found() {
        let metadata = json!({ "packages": [{ "name": "new", "source": null }] });
        assert_eq!(check(&metadata).len(), 1);
        assert_eq!(check(&json!({ "packages": [] })).len(), 1);
    }
}
