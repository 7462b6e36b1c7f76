// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Two workspaces have one target directory. So that what both need is compiled once, and held to the same
//! rules, that of the software InfiniBand repeats versions, profiles and lints of the daemon's.

use super::File;

const HOUSE: &str = "ibtun/Cargo.toml";

/// The tables that it repeats, by the beginnings of their names.
const SAME: [&str; 4] =
    ["workspace.lints.", "profile.release]", "profile.dev]", "profile.dev.package.\"*\"]"];

/// Compares the manifests and the lock files of both.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map(|file| &file.text[..]);
    let all = ["Cargo.toml", HOUSE, "Cargo.lock", "ibtun/Cargo.lock"].map(text);
    let [Some(root), Some(house), Some(root_lock), Some(house_lock)] = all else {
        return vec![format!("Cargo.toml, {HOUSE} or a lock file is missing")];
    };
    let theirs: Vec<_> = tables(house).collect();
    let tables = tables(root).filter(|table| !theirs.contains(table));
    let differ = tables
        .filter_map(|table| Some(format!("{HOUSE}: not as in Cargo.toml: {}", table.first()?)));
    let versions: Vec<_> = packages(root_lock).collect();
    let others = packages(house_lock).filter(|package| !versions.contains(package));
    let others = others.map(|(name, version)| {
        format!("ibtun/Cargo.lock: {name} {version} is not in Cargo.lock: `cargo update --precise` in ibtun/")
    });
    differ.chain(others).collect()
}

/// The tables to compare, each with its name first, without comments.
fn tables(manifest: &str) -> impl Iterator<Item = Vec<&str>> {
    let tables =
        manifest.split("\n[").filter(|text| SAME.iter().any(|name| text.starts_with(name)));
    tables.map(|text| {
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
    })
}

/// Name and version of each package from a registry.
fn packages(lock: &str) -> impl Iterator<Item = (&str, &str)> {
    let entries = lock.split("\n\n").filter(|entry| entry.contains("\nsource = "));
    entries.filter_map(|entry| Some((field(entry, "name = ")?, field(entry, "version = ")?)))
}

fn field<'a>(entry: &'a str, key: &str) -> Option<&'a str> {
    entry.lines().find_map(|line| line.strip_prefix(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(manifest: &str, version: &str) -> [File; 4] {
        let file = |path: &str, text: String| File { path: path.to_owned(), text };
        let root = "[workspace]\n\n[workspace.lints.rust]\na = 1\n\n[profile.dev]\n# Why.\nb = 2\n";
        let lock = |version| {
            let entry = |name, source| {
                format!("[[package]]\nname = {name}\nversion = {version}\n{source}\n")
            };
            format!("{}\n{}", entry("ours", ""), entry("c", "source = it\n"))
        };
        [
            file("Cargo.toml", root.to_owned()),
            file(HOUSE, manifest.to_owned()),
            file("Cargo.lock", lock("1")),
            file("ibtun/Cargo.lock", lock(version)),
        ]
    }

    #[test]
    fn other_version_profile_or_lint_is_found() {
        let same =
            "x\n[profile.dev]\nb = 2\n[workspace.lints.rust]\n# Text.\na = 1\n[profile.sim]\n";
        assert!(check(&files(same, "1")).is_empty());
        let found = check(&files(same, "2"));
        assert!(matches!(&found[..], [only] if only.contains("c 2 is not")), "{found:?}");
        assert_eq!(check(&files("x\n[profile.dev]\nb = 3\n", "1")).len(), 2);
        assert_eq!(check(&files(same, "1")[1..]).len(), 1);
    }
}
