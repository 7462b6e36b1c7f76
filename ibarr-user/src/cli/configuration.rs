// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The configuration, checked and shown without a daemon.

use std::io;
use std::path::{Path, PathBuf};

use annotate_snippets::renderer::DEFAULT_TERM_WIDTH;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::exit::Exit;
use super::{ask, place, print};
use crate::causes::Fault;
use crate::config::{self, Absent, Config, Effective, Error, Mistake, Source};
use crate::control::messages::{Body, Failure, FailureKind, Setting};

/// Reports every mistake in `file`, in standard input if it is `-`, or in the configuration.
pub(super) fn validate(file: Option<PathBuf>, json: bool) -> Exit {
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
    let warnings = config.warnings().map(|warning| format!("\nwarning: {warning}"));
    let names: Vec<_> = sources.into_iter().map(|source| source.name).collect();
    let names = if names.is_empty() { "defaults".to_owned() } else { names.join(", ") };
    let done = format!("{names}: no mistakes{}", warnings.collect::<String>());
    ask::show(Body::Done { done }, json)
}

/// Prints every key, its value, and where that comes from. The text is a configuration again.
pub(super) fn show((file, absent): (PathBuf, Absent), json: bool) -> Exit {
    let sources = config::gather(&file, absent)
        .and_then(|sources: Vec<Source>| Config::read(&sources).map(|_| sources));
    let effective = match sources {
        Ok(sources) => config::effective(&sources),
        Err(error) => return refuse(&error, json),
    };
    if json {
        let config = effective.iter().filter_map(setting).collect();
        print::json(&Body::Config { config }.into());
        return Exit::Ok;
    }
    let mut table = "";
    for Effective { table: of, key, value, from } in &effective {
        let from = match from {
            Some((file, line)) => format!("{file}:{line}"),
            None => "default".to_owned(),
        };
        if key.is_empty() {
            print::line(&format!("\n[[{of}]]  # {from}\n{}", value.trim_end()));
            continue;
        }
        if table != of {
            print::line(&format!("\n[{of}]"));
            table = of;
        }
        print::line(&format!("{key} = {value}  # {from}"));
    }
    Exit::Ok
}

fn setting(effective: &Effective) -> Option<Setting> {
    let Effective { table, key, value, from } = effective;
    let name = [table.as_str(), key].map(str::to_owned).into_iter().filter(|name| !name.is_empty());
    let parsed: toml::Table = match key.as_str() {
        "" => toml::from_str(value).ok()?,
        key => toml::from_str(&format!("{key} = {value}")).ok()?,
    };
    let parsed = serde_json::to_value(parsed).ok()?;
    Some(Setting {
        key: name.collect::<Vec<_>>().join("."),
        value: parsed.get(key).cloned().unwrap_or(parsed),
        file: from.as_ref().map(|(file, _)| file.clone()),
        line: from.as_ref().map(|(_, line)| *line),
    })
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
