// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The modules of each folder depend on each other in one direction. Tests and documentation may refer
//! to any module, and a module to the one that it is a part of.

use std::collections::{BTreeMap, BTreeSet};

use super::File;

/// Finds a circle of modules in each folder.
pub(super) fn check(files: &[File]) -> Vec<String> {
    // The modules of each folder, each with those of the same folder that its code names.
    let mut folders: BTreeMap<Vec<&str>, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for file in files {
        let Some((name, path)) = file.path.split_once("/src/") else { continue };
        let Some(path) = path.strip_suffix(".rs").filter(|path| !path.contains("tests")) else {
            continue;
        };
        let mut at: Vec<_> = path.split('/').collect();
        if ["lib", "main", "mod"].contains(at.last().unwrap_or(&"")) {
            at.pop();
        }
        let folder = |path: &[_]| [&[name], path].concat();
        for depth in 0..at.len() {
            folders.entry(folder(&at[..depth])).or_default().entry(at[depth]).or_default();
        }
        for named in named_in(&file.text, &at) {
            let depth = at.iter().zip(&named).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (at.get(depth), named.get(depth)) {
                let folder = folders.entry(folder(&at[..depth])).or_default();
                folder.entry(from).or_default().insert(to);
            }
        }
    }
    let mut problems = Vec::new();
    for (folder, mut graph) in folders {
        // Other names are items of the folder's own module.
        let modules: BTreeSet<_> = graph.keys().copied().collect();
        for named in graph.values_mut() {
            named.retain(|named| modules.contains(named));
        }
        if let Some(circle) = circle(&graph) {
            let place = folder.join("/");
            problems.push(format!(
                "{place}: a circle of modules, {}: move what both need below them",
                circle.join(" → ")
            ));
        }
    }
    problems
}

/// The paths that begin with `crate`, `self` or `super` in the code of the module `at`.
fn named_in<'a>(text: &'a str, at: &[&'a str]) -> Vec<Vec<&'a str>> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for (start, _) in code.match_indices("::") {
        let before = &code[..start];
        let is_comment = before.rsplit('\n').next().is_some_and(|line| line.contains("//"));
        let first = before.len() - word_backwards(before);
        if is_comment || before[..first].ends_with("::") {
            continue;
        }
        let (root, rest) = (&before[first..], &code[start + 2..]);
        match root {
            "crate" => tree(rest, &[], &mut found),
            "self" => tree(rest, at, &mut found),
            "super" => tree(rest, at.split_last().map_or(&[], |(_, above)| above), &mut found),
            _ => rest,
        };
    }
    found
}

/// Reads a path or a tree of `use`, and returns what follows it.
fn tree<'a>(rest: &'a str, prefix: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let rest = rest.trim_start();
    if let Some(mut rest) = rest.strip_prefix('{') {
        loop {
            rest = tree(rest, prefix, found);
            // The name that `as` gives.
            let (_, after) = rest.split_at(rest.find([',', '}']).unwrap_or(rest.len()));
            let Some(next) = after.strip_prefix(',') else { return after.get(1..).unwrap_or("") };
            rest = next;
        }
    }
    let (word, rest) = rest.split_at(rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()));
    let mut path = prefix.to_vec();
    match word {
        "super" => drop(path.pop()),
        "self" | "" => {}
        _ => path.push(word),
    }
    if let Some(rest) = rest.strip_prefix("::") {
        return tree(rest, &path, found);
    }
    found.push(path);
    rest
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Length of the word at the end of `text`.
fn word_backwards(text: &str) -> usize {
    text.bytes().rev().take_while(|byte| is_of_word(char::from(*byte))).count()
}

/// The modules of a circle, the first one also at its end.
fn circle<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Option<Vec<&'a str>> {
    let mut left = graph.clone();
    // A module that names no remaining module is in no circle.
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
    fn circle_inside_a_folder_is_found() {
        let parent = ("a/mod.rs", "mod b;\nmod c;\nuse self::b::B;\n");
        let use_it = |text| [parent, ("a/b.rs", text), ("a/c/mod.rs", "use super::{b::B, X};\n")];
        assert!(check(&files(&use_it("use super::X;\nuse crate::a::{X, Y as c};\n"))).is_empty());
        for text in ["use super::{X, c};\n", "fn f() { crate::a::c::g() }\n"] {
            let told = "ibarr-x/a: a circle of modules, b → c → b: move what both need below them";
            assert_eq!(check(&files(&use_it(text))), [told]);
        }
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
