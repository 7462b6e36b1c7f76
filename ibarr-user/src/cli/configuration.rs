// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The configuration, checked and shown: that of the files, or that of the daemon.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use annotate_snippets::renderer::DEFAULT_TERM_WIDTH;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, User, eaccess, geteuid, initgroups, setegid, seteuid};

use super::exit::Exit;
use super::{CONFIG, Daemon, ask, place, print};
use crate::causes::Fault;
use crate::config::{self, Absent, Config, Error, Mistake, Serve, Setting};
use crate::control::messages::{Body, Failure, FailureKind, Request};
use crate::regular_file::{self, Link};
use crate::units::SERVICE;

/// Reports every mistake in `file`, in standard input if it is `-`, or in the configuration, and what the daemon will
/// not find. The configuration itself, and the files that it names, are read with the rights of the daemon.
pub(super) fn validate(file: Option<PathBuf>, json: bool) -> Exit {
    let is_in_force = file.as_deref().is_none_or(|file| file == Path::new(CONFIG));
    let mut note = None;
    if is_in_force {
        match become_the_daemon() {
            Ok(said) => note = said,
            Err(failure) => return ask::fail(failure, json),
        }
    }
    let sources = if file.as_deref() == Some(Path::new("-")) {
        config::read_from(io::stdin(), Path::new("standard input")).map(|source| vec![source])
    } else {
        let (file, absent) = place(file);
        config::gather(&file, absent)
    };
    let checked = sources.and_then(|sources| Ok((Config::read(&sources)?, sources)));
    let (config, sources) = match checked {
        Ok(checked) => checked,
        Err(error) => return refuse(&error, json),
    };
    if !is_in_force {
        match become_the_daemon() {
            Ok(said) => note = said,
            Err(failure) => return ask::fail(failure, json),
        }
    }
    let warnings = config.warnings().chain(unusable(&config));
    let warnings = warnings.map(|warning| format!("\nwarning: {warning}"));
    let note = note.map(|note| format!("\nnote: {note}"));
    let names: Vec<_> = sources.into_iter().map(|source| source.name).collect();
    let names = if names.is_empty() { "defaults".to_owned() } else { names.join(", ") };
    let done = format!("{names}: no mistakes{}", warnings.chain(note).collect::<String>());
    ask::show(Body::Done { done }, json)
}

/// Takes the rights of the daemon's user, if this is root. Returns why they could not be taken.
fn become_the_daemon() -> Result<Option<String>, Failure> {
    let shown = ask::of_service(SERVICE, "LoadState,User");
    let Some(name) = user_of_daemon(shown.as_deref()) else { return Ok(None) };
    let become_it = || {
        // getpwnam(3) may report a missing user as an error, as it does without /etc/passwd.
        let user = match User::from_name(name) {
            Err(Errno::ENOENT | Errno::ESRCH) => None,
            found => found?,
        };
        let Some(user) = user else {
            return Ok(Some(format!(
                "there is no user {name}, so files were read with the rights of the caller"
            )));
        };
        if geteuid() == user.uid {
            return Ok(None);
        }
        if !geteuid().is_root() {
            return Ok(Some(format!(
                "files were read with the rights of the caller; root reads them with those of user {name}"
            )));
        }
        let c_name = CString::new(name).map_err(|_| Errno::EINVAL)?;
        initgroups(&c_name, user.gid)?;
        setegid(user.gid)?;
        seteuid(user.uid)?;
        Ok(None)
    };
    become_it().map_err(|error: Errno| Failure {
        kind: FailureKind::Internal,
        message: format!("cannot read with the rights of user {name}: {error}"),
    })
}

/// The daemon's user: that of the unit, if systemd has shown one, else that which the package makes. `None` if the unit
/// has no user, so that the daemon is root.
fn user_of_daemon(shown: Option<&str>) -> Option<&str> {
    const OF_PACKAGE: &str = "ibarr";
    let shown = shown.unwrap_or_default();
    let is_loaded = shown.lines().any(|line| line == "LoadState=loaded");
    let user = shown.lines().find_map(|line| line.strip_prefix("User="));
    let user = if is_loaded { user.unwrap_or_default() } else { OF_PACKAGE };
    Some(user).filter(|user| !user.is_empty())
}

/// What the daemon cannot use of the files and directories that the configuration names.
fn unusable(config: &Config) -> impl Iterator<Item = String> {
    let acm = [("hosts", &config.acm.hosts), ("routes", &config.acm.routes)];
    let lists = acm.into_iter().filter(|_| config.acm.serve != Serve::Off);
    let lists = lists.filter_map(|(key, file)| {
        let file = file.as_deref()?;
        let error = regular_file::open(file, Link::Followed).err()?;
        Some(format!("[acm] {key}: the daemon cannot read {}: {error}", file.display()))
    });
    let snapshot = config.snapshot.as_deref().and_then(|file| {
        let directory = file.parent()?;
        let may = AccessFlags::W_OK | AccessFlags::X_OK;
        let error = eaccess(directory, may).err()?;
        let (file, directory) = (file.display(), directory.display());
        Some(format!("[paths] snapshot: the daemon cannot write {file}: {directory}: {error}"))
    });
    lists.chain(snapshot)
}

/// Prints every key, its value, and where that comes from: as the files have it or, without `file`, as the
/// daemon has read them. The text is a configuration again.
pub(super) fn show(file: Option<(PathBuf, Absent)>, only_changed: bool, daemon: &Daemon) -> Exit {
    let mut config = match file {
        Some((file, absent)) => {
            let sources = config::gather(&file, absent);
            match sources.and_then(|sources| Config::read(&sources)) {
                Ok(config) => config.settings,
                Err(error) => return refuse(&error, daemon.json),
            }
        }
        None => match daemon.ask(&Request::Config) {
            Ok(Body::Config { config }) => config,
            other => return ask::fail(ask::unexpected(other), daemon.json),
        },
    };
    config.retain(|setting| !only_changed || setting.file.is_some());
    if daemon.json {
        print::json(&Body::Config { config }.into());
    } else {
        text(&config);
    }
    Exit::Ok
}

/// As TOML: each key with its origin.
fn text(config: &[Setting]) {
    let mut table = "";
    for Setting { key, value, default, file, line: number } in config {
        let mut from = match (file, number) {
            (Some(file), Some(number)) => format!("{file}:{number}"),
            _ => "default".to_owned(),
        };
        if let Some(default) = default.as_ref().filter(|default| *default != value) {
            from = format!("{from}, default {default}");
        }
        if let Some(keys) = value.as_object() {
            print::line(&format!("\n[[{key}]]  # {from}"));
            for (key, value) in keys {
                print::line(&format!("{key} = {value}"));
            }
            continue;
        }
        let (of, key) = config::split(key);
        if table != of {
            print::line(&format!("\n[{of}]"));
            table = of;
        }
        print::line(&format!("{key} = {value}  # {from}"));
    }
    if config.is_empty() {
        print::line("# every key has its default");
    }
}

fn refuse(error: &Error, json: bool) -> Exit {
    let mistakes = match error {
        Error::Mistakes { mistakes } => mistakes.as_slice(),
        Error::Read { .. } => &[],
    };
    let failure = Failure { kind: FailureKind::Config, message: Fault::from(error).to_string() };
    let exit = failure.kind.into();
    if json {
        print::json(&Body::Error { error: failure, mistakes: mistakes.to_vec() }.into());
    } else if mistakes.is_empty() {
        print::error_line(&failure.message);
    } else {
        for mistake in mistakes {
            print::error_text(&excerpt(mistake));
        }
    }
    exit
}

/// The mistake and the line that has it.
fn excerpt(mistake: &Mistake) -> String {
    let Mistake { line, text, place, .. } = mistake;
    let annotation = AnnotationKind::Primary.span(place.clone());
    let snippet = Snippet::source(text).line_start(*line).annotation(annotation);
    let report = [Level::ERROR.no_name().primary_title("").element(snippet)];
    let shown = Renderer::plain().term_width(DEFAULT_TERM_WIDTH).render(&report);
    let shown = shown.lines().filter(|line| !line.trim().is_empty());
    let lines = [mistake.to_string()].into_iter().chain(shown.map(str::to_owned));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_judged_as_the_user_of_the_unit_or_package() {
        for (shown, user) in [
            (None, Some("ibarr")),
            (Some("LoadState=not-found\nUser=\n"), Some("ibarr")),
            (Some("LoadState=loaded\nUser=other\n"), Some("other")),
            (Some("User=other\nLoadState=loaded\n"), Some("other")),
            (Some("LoadState=loaded\nUser=\n"), None),
        ] {
            assert_eq!(user_of_daemon(shown), user, "{shown:?}");
        }
    }
}
