// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The archives to fetch from: those of the machine's own configuration that have its distribution (for
//! instance a local mirror), without third parties.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// A line of `sources.list`, or a stanza of `*.sources` for one URI and suite.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Source {
    uri: String,
    suite: String,
    components: String,
    signed_by: Option<String>,
}

/// Debian's own archives, for suites that the machine's configuration lacks.
const DEBIAN: &str = "http://deb.debian.org/debian";
const DEBIAN_SECURITY: &str = "http://deb.debian.org/debian-security";
const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The text of a `.sources` file: the machine's release with its updates, and `suites`.
pub(super) fn of_this_machine(suites: &[&str]) -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let field = |key: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.map(|value| value.trim_matches('"').to_owned())
    };
    let codename = field("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")?;
    let configured = configured(Path::new("/etc/apt"))?;
    let is_debian = field("ID").is_some_and(|id| id == "debian");
    Ok(select(&configured, &codename, is_debian, suites).iter().map(Source::stanza).collect())
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
    let end = if suite.ends_with("-security") { "/debian-security" } else { "/debian" };
    let mirror = configured.iter().find(|source| source.uri.trim_end_matches('/').ends_with(end));
    let uri = if suite.ends_with("-security") { DEBIAN_SECURITY } else { DEBIAN };
    Source {
        uri: mirror.map_or(uri, |mirror| &mirror.uri).to_owned(),
        suite: suite.to_owned(),
        components: "main".to_owned(),
        signed_by: Some(
            mirror.and_then(|mirror| mirror.signed_by.clone()).unwrap_or(DEBIAN_KEYRING.to_owned()),
        ),
    }
}

impl Source {
    fn stanza(&self) -> String {
        let Self { uri, suite, components, signed_by } = self;
        let signed_by =
            signed_by.as_ref().map(|file| format!("Signed-By: {file}\n")).unwrap_or_default();
        format!("Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: {components}\n{signed_by}\n")
    }
}

/// All sources of binary packages in the configuration in `etc`, usually `/etc/apt`.
fn configured(etc: &Path) -> Result<Vec<Source>> {
    let mut files = vec![etc.join("sources.list")];
    if let Ok(entries) = fs::read_dir(etc.join("sources.list.d")) {
        for entry in entries {
            files.push(entry?.path());
        }
    }
    files.sort();
    let mut sources = Vec::new();
    for file in &files {
        // A file that only root may read has a secret, so it is no public archive.
        let Ok(text) = fs::read_to_string(file) else { continue };
        match extension(file) {
            "list" => sources.extend(text.lines().filter_map(parse_line)),
            "sources" => sources.extend(text.split("\n\n").flat_map(parse_stanza)),
            _ => {}
        }
    }
    Ok(sources)
}

fn extension(file: &Path) -> &str {
    file.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// `deb [signed-by=… arch=…] URI suite component…`
fn parse_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?;
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut fields = rest.split_whitespace();
    Some(Source {
        uri: fields.next()?.to_owned(),
        suite: fields.next()?.to_owned(),
        components: fields.collect::<Vec<_>>().join(" "),
        signed_by: options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map(str::to_owned),
    })
}

/// A deb822 stanza; it may name several URIs and suites.
fn parse_stanza(stanza: &str) -> Vec<Source> {
    let field = |key: &str| {
        stanza.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(key).then(|| value.trim())
        })
    };
    let has_packages =
        field("Types").is_some_and(|types| types.split(' ').any(|kind| kind == "deb"));
    if !has_packages || field("Enabled") == Some("no") {
        return Vec::new();
    }
    let (Some(uris), Some(suites)) = (field("URIs"), field("Suites")) else { return Vec::new() };
    let uris = uris.split_whitespace();
    uris.flat_map(|uri| suites.split_whitespace().map(move |suite| (uri, suite)))
        .map(|(uri, suite)| Source {
            uri: uri.to_owned(),
            suite: suite.to_owned(),
            components: field("Components").unwrap_or_default().to_owned(),
            // A key inside the stanza (`Signed-By:` without a value) cannot be copied.
            signed_by: field("Signed-By").filter(|file| !file.is_empty()).map(str::to_owned),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "Types: deb\n\
        # a comment: with a colon\n\
        URIs: http://mirror/debian\n\
        Suites: bookworm bookworm-updates\n\
        Components: main\n\
        Signed-By: /keys/debian.gpg\n";

    fn source(uri: &str, suite: &str) -> Source {
        Source {
            uri: uri.to_owned(),
            suite: suite.to_owned(),
            components: "main".to_owned(),
            signed_by: Some("/keys/debian.gpg".to_owned()),
        }
    }

    #[test]
    fn both_formats_are_read() {
        let expected = [
            source("http://mirror/debian", "bookworm"),
            source("http://mirror/debian", "bookworm-updates"),
        ];
        assert_eq!(parse_stanza(DEB822), expected);
        let line =
            "deb [arch=amd64 signed-by=/keys/debian.gpg] http://mirror/debian bookworm main # x";
        assert_eq!(parse_line(line), Some(source("http://mirror/debian", "bookworm")));
    }

    #[test]
    fn source_packages_and_disabled_entries_are_skipped() {
        assert_eq!(parse_line("deb-src http://mirror/debian bookworm main"), None);
        assert_eq!(parse_line("# deb http://mirror/debian bookworm main"), None);
        assert!(parse_stanza(&format!("Enabled: no\n{DEB822}")).is_empty());
        assert!(parse_stanza(&DEB822.replace("Types: deb", "Types: deb-src")).is_empty());
    }

    #[test]
    fn third_parties_are_left_out() {
        let third = Source { uri: "https://deb.other".into(), ..source("", "nodistro") };
        let own = source("http://mirror/debian", "bookworm");
        assert_eq!(select(&[third, own.clone()], "bookworm", true, &[]), [own]);
    }

    #[test]
    fn extra_suite_comes_from_the_same_mirror() {
        let own = source("http://mirror/debian", "bookworm");
        let itself = select(std::slice::from_ref(&own), "bookworm", true, &["bookworm"]);
        assert_eq!(itself, std::slice::from_ref(&own));
        let backports = source("http://mirror/debian", "bookworm-backports");
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
