// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The archives to fetch from: those of the machine's own configuration that have its distribution (for
//! instance a local mirror), without third parties.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process;

/// A component of a suite in an archive.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Source {
    uri: String,
    suite: String,
    component: String,
}

/// Debian's own archives, for suites that the machine's configuration lacks.
const DEBIAN: &str = "http://deb.debian.org/debian/";
const DEBIAN_SECURITY: &str = "http://deb.debian.org/debian-security/";
/// Debian's keys. Another distribution may not trust them by default.
const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The text of a `.sources` file: the machine's release with its updates, and `suites`.
pub(super) fn of_this_machine(suites: &[&str]) -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let field = |key: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.map(|value| value.trim_matches('"').to_owned())
    };
    let codename = field("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")?;
    let is_debian = field("ID").is_some_and(|id| id == "debian");
    let selected = select(&configured(), &codename, is_debian, suites);
    Ok(selected.iter().map(Source::to_string).collect())
}

/// All sources of binary packages in apt's configuration.
fn configured() -> Vec<Source> {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let targets = ["indextargets", "--format", format, "Created-By: Packages"];
    // apt fails on a file that only root may read. Then Debian's own archives are used.
    let configured = process::output(Command::new("apt-get").args(targets)).unwrap_or_default();
    configured.lines().filter_map(parse).collect()
}

/// A line as apt-get prints it in our format.
fn parse(line: &str) -> Option<Source> {
    let mut fields = line.split(' ').map(str::to_owned);
    Some(Source { uri: fields.next()?, suite: fields.next()?, component: fields.next()? })
}

/// The text of a `.sources` file: the main component of `suite`, and its security updates.
pub(super) fn of_suite(suite: &str) -> String {
    let configured = configured();
    let suites = [suite.to_owned(), format!("{suite}-security")];
    let sources = suites.iter().map(|suite| {
        let is_it = |source: &&Source| source.suite == *suite && source.component == "main";
        let found = configured.iter().find(is_it).cloned();
        found.unwrap_or_else(|| debian(suite, &configured)).to_string()
    });
    sources.collect()
}

fn select(configured: &[Source], codename: &str, is_debian: bool, extra: &[&str]) -> Vec<Source> {
    let own = ["", "-updates", "-security"].map(|suffix| format!("{codename}{suffix}"));
    let mut selected = Vec::new();
    let more = extra.iter().copied().filter(|suite| !own.iter().any(|own| own == suite));
    for suite in own.iter().map(String::as_str).chain(more) {
        let found = configured.iter().filter(|source| source.suite == suite);
        let before = selected.len();
        selected.extend(found.cloned());
        // Do not add `-updates` and `-security` to a machine without them.
        let needed = suite == codename || extra.contains(&suite);
        if selected.len() == before && needed && (is_debian || extra.contains(&suite)) {
            selected.push(debian(suite, configured));
        }
    }
    selected
}

/// `suite` from the machine's mirror of Debian, or from Debian itself.
fn debian(suite: &str, configured: &[Source]) -> Source {
    let (end, uri) = if suite.ends_with("-security") {
        ("/debian-security/", DEBIAN_SECURITY)
    } else {
        ("/debian/", DEBIAN)
    };
    let mirror = configured.iter().find(|source| source.uri.ends_with(end));
    let uri = mirror.map_or(uri, |mirror| &mirror.uri).to_owned();
    Source { uri, suite: suite.to_owned(), component: "main".to_owned() }
}

/// As a stanza of a `.sources` file.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uri, suite, component } = self;
        writeln!(f, "Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: {component}")?;
        if uri.contains("/debian") && Path::new(DEBIAN_KEYRING).exists() {
            writeln!(f, "Signed-By: {DEBIAN_KEYRING}")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(uri: &str, suite: &str) -> Source {
        parse(&format!("{uri} {suite} main")).expect("three words")
    }

    #[test]
    fn third_parties_are_left_out() {
        let third = source("https://deb.other", "nodistro");
        let own = source("http://mirror/debian/", "bookworm");
        assert_eq!(select(&[third, own.clone()], "bookworm", true, &[]), [own]);
    }

    #[test]
    fn extra_suite_comes_from_the_same_mirror() {
        let own = source("http://mirror/debian/", "bookworm");
        let itself = select(std::slice::from_ref(&own), "bookworm", true, &["bookworm"]);
        assert_eq!(itself, std::slice::from_ref(&own));
        let backports = source("http://mirror/debian/", "bookworm-backports");
        let selected =
            select(std::slice::from_ref(&own), "bookworm", true, &["bookworm-backports"]);
        assert_eq!(selected, [own, backports]);
    }

    #[test]
    fn unconfigured_release_comes_from_debian() {
        let selected = select(&[], "trixie", true, &["bookworm-security"]);
        let uris: Vec<_> = selected.iter().map(|source| source.uri.as_str()).collect();
        assert_eq!(uris, [DEBIAN, DEBIAN_SECURITY]);
        assert!(select(&[], "noble", false, &[]).is_empty());
    }
}
