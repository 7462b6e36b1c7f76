// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The modules at the top of each crate depend on each other in one direction. Tests and documentation
//! may refer to any module.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Problems};

/// Its files are the parts of one `World`, which each changes.
const EXCEPT: &str = "ibarr-sim";

/// A crate's modules, each with those that its code names.
type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Finds a circle of modules in each crate.
pub(super) fn check(files: &[File]) -> Problems {
    let mut crates: BTreeMap<&str, Graph<'_>> = BTreeMap::new();
    for file in files {
        let Some((name, path)) = file.path.split_once("/src/") else { continue };
        let Some(path) = path.strip_suffix(".rs").filter(|path| !path.contains("tests")) else {
            continue;
        };
        let module = path.split('/').next().unwrap_or_default();
        if name.contains('/') || name == EXCEPT || ["lib", "main"].contains(&module) {
            continue;
        }
        let named = crates.entry(name).or_default().entry(module).or_default();
        named.extend(named_in(&file.text).filter(|named| *named != module));
    }
    let mut problems = Problems::new();
    for (name, graph) in &crates {
        if let Some(circle) = circle(graph) {
            problems.push(format!(
                "{name}: a circle of modules, {}: move what both need below them",
                circle.join(" → ")
            ));
        }
    }
    problems
}

/// The modules that the code of a file names by `crate::`.
fn named_in(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()
    })
}

/// The modules of a circle, the first one also at its end.
fn circle<'a>(graph: &Graph<'a>) -> Option<Vec<&'a str>> {
    let mut left = graph.clone();
    // What names no module that is left is in no circle.
    loop {
        let is_bottom =
            |named: &BTreeSet<&str>| !named.iter().any(|named| left.contains_key(named));
        let bottom: Vec<_> =
            left.iter().filter(|(_, named)| is_bottom(named)).map(|(module, _)| *module).collect();
        if bottom.is_empty() {
            break;
        }
        left.retain(|module, _| !bottom.contains(module));
    }
    let mut path = vec![*left.keys().next()?];
    loop {
        let next = *left.get(path.last()?)?.iter().find(|named| left.contains_key(*named))?;
        if let Some(start) = path.iter().position(|module| *module == next) {
            path.push(next);
            return Some(path.split_off(start));
        }
        path.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Vec<File> {
        let file = |(path, text): &(&str, &str)| File {
            path: format!("ibarr-x/src/{path}"),
            text: (*text).to_owned(),
        };
        texts.iter().map(file).collect()
    }

    #[test]
    fn circle_of_modules_is_found_and_named() {
        let straight =
            [("a/mod.rs", "use crate::b::B;\n"), ("b.rs", "use crate::c;\n"), ("c.rs", "")];
        assert!(check(&files(&straight)).is_empty());
        let circle = [
            ("a/mod.rs", "use crate::b::B;\n"),
            ("b.rs", "fn f() { crate::c::g() }\n"),
            ("c/d.rs", "use crate::b;\n"),
        ];
        assert_eq!(
            check(&files(&circle)),
            ["ibarr-x: a circle of modules, b → c → b: move what both need below them"]
        );
    }

    #[test]
    fn tests_and_documentation_may_name_any_module() {
        let text = "//! See [`crate::a`].\n\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n";
        assert!(check(&files(&[("a.rs", "use crate::b;\n"), ("b.rs", text)])).is_empty());
        assert!(
            check(&files(&[("a.rs", "use crate::b;\n"), ("b/tests.rs", "use crate::a;")]))
                .is_empty()
        );
    }
}
