// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of the package: all that administrators read, and the files of `contrib`, in the same places
//! as in the checkout. So links between them hold.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};

use super::{compress, files, write};

/// Where they are in the package.
pub(super) const PLACE: &str = "usr/share/doc/ibarr";

/// Documents at the top of the checkout.
const TOP: [&str; 2] = ["README.md", "SECURITY.md"];

/// Lays them out below `root`. The changelog is compressed, as Debian wants it.
pub(super) fn install(checkout: &Path, root: &Path) -> Result<()> {
    let place = root.join(PLACE);
    let documents = list(checkout)?;
    for path in &documents {
        let content = fs::read(checkout.join(path)).with_context(|| path.display().to_string())?;
        let content = match path.extension() {
            Some(extension) if extension == "md" => {
                let text = String::from_utf8(content)
                    .with_context(|| format!("{} is not UTF-8", path.display()))?;
                linked(path, &text, &documents).into_bytes()
            }
            _ => content,
        };
        write(&place.join(path), &content, 0o644)?;
    }
    let changelog = place.join("CHANGELOG.md");
    write(&changelog, &fs::read(checkout.join("CHANGELOG.md"))?, 0o644)?;
    compress(&changelog)
}

/// Their paths, which begin in the checkout: those at the top, each page of `docs`, and all of `contrib`. Pages
/// for developers are in the folders of `docs`, and man pages have a place of their own.
fn list(checkout: &Path) -> Result<BTreeSet<PathBuf>> {
    let below = |folder: &str| -> Result<Vec<PathBuf>> {
        let files = files(&checkout.join(folder))?;
        Ok(files.into_iter().map(|file| Path::new(folder).join(file)).collect())
    };
    let pages = below("docs")?.into_iter().filter(|path| path.parent() == Some(Path::new("docs")));
    let contrib = below("contrib")?.into_iter().filter(|path| !is_hidden(path));
    Ok(TOP.iter().map(PathBuf::from).chain(pages).chain(contrib).collect())
}

fn is_hidden(path: &Path) -> bool {
    path.iter().any(|part| part.as_encoded_bytes().starts_with(b"."))
}

/// The `text` of the document at `path`, in which only links to other `documents` are left: the words of the
/// others stay, without a link.
fn linked(path: &Path, text: &str, documents: &BTreeSet<PathBuf>) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (Some(start), Some(end)) = (before.rfind('['), after.find(')')) else {
            result.extend([before, "]("]);
            rest = after;
            continue;
        };
        let (target, words) = (&after[..end], &before[start + 1..]);
        let holds = target.contains(':') || target.starts_with('#') || {
            let file = resolve(path, target.split('#').next().unwrap_or_default());
            documents.iter().any(|document| document.starts_with(&file))
        };
        result.push_str(&before[..start]);
        if holds {
            result.extend(["[", words, "](", target, ")"]);
        } else {
            result.push_str(words);
        }
        rest = &after[end + 1..];
    }
    result + rest
}

/// The path in the checkout of `target`, to which the document at `path` has a link.
fn resolve(path: &Path, target: &str) -> PathBuf {
    let mut result = path.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(result.pop()),
            Component::Normal(part) => result.push(part),
            _ => {}
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_to_a_file_outside_the_package_becomes_words() {
        let documents = ["docs/a.md", "contrib/x/y.yml", "README.md"].map(PathBuf::from).into();
        let text = "[A](a.md#top), [c](../contrib), [s](../CONTRIBUTING.md) [w](https://a.b/) [h](#here) ](";
        let expected = "[A](a.md#top), [c](../contrib), s [w](https://a.b/) [h](#here) ](";
        assert_eq!(linked(Path::new("docs/b.md"), text, &documents), expected);
    }
}
