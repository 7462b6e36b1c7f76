// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The list of public names, `docs/dev/names.txt`, is made from the code, so that a diff shows a name that
//! vanishes, appears or changes.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use clap::{Arg, Command};
use ibarr_common::map;
use ibarr_proto::responder::Hook;

use crate::config::{Config, Error, RETIRED, Source, effective, split};
use crate::control::messages;
use crate::logging::ids;
use crate::metrics::FAMILIES;
use crate::{bpf, cli};

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dev/names.txt");

/// The sources in a directory, without tests.
fn sources(directory: &Path) -> String {
    let mut entries: Vec<_> =
        fs::read_dir(directory).unwrap().map(|it| it.unwrap().path()).collect();
    entries.sort();
    let text = entries.into_iter().map(|path| {
        if path.file_stem().is_some_and(|name| name == "tests") {
            String::new()
        } else if path.is_dir() {
            sources(&path)
        } else {
            fs::read_to_string(path).unwrap().split("\nmod tests {").next().unwrap().to_owned()
        }
    });
    text.collect()
}

/// What stands between `before` and the next `"` or line.
fn after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = String> + 'a {
    text.split(before).skip(1).map(|rest| rest.split(['"', '\n']).next().unwrap().to_owned())
}

fn command_line(command: &Command, before: &str, names: &mut Vec<String>) {
    let path = format!("{before}{}", command.get_name());
    names.push(path.clone());
    for argument in command.get_arguments() {
        names.extend(of_argument(argument).into_iter().map(|name| format!("{path} {name}")));
    }
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        command_line(command, &format!("{path} "), names);
    }
}

fn of_argument(argument: &Arg) -> Vec<String> {
    let longs = argument.get_long_and_visible_aliases().unwrap_or_default();
    let shorts = [
        argument.get_short().into_iter().collect(),
        argument.get_all_short_aliases().unwrap_or_default(),
    ];
    let mut names: Vec<_> = longs.iter().map(|name| format!("--{name}")).collect();
    names.extend(shorts.concat().iter().map(|name| format!("-{name}")));
    names.extend(argument.is_positional().then(|| format!("<{}>", argument.get_id())));
    let name = names[0].clone();
    names.extend(argument.get_env().map(|variable| format!("{name}, or {}", variable.display())));
    let takes_values = argument.get_action().takes_values();
    let values = argument.get_possible_values().into_iter().filter(|_| takes_values);
    names.extend(values.map(|value| format!("{name} {}", value.get_name())));
    names
}

/// The mistakes in a configuration.
fn mistakes(text: &str) -> Vec<String> {
    match Config::read(&[Source { name: String::new(), text: text.to_owned() }]) {
        Err(Error::Mistakes { mistakes }) => mistakes.into_iter().map(|it| it.message).collect(),
        other => panic!("{other:?}"),
    }
}

/// The keys that are allowed beside one that is not, or nothing if `header` begins no table.
fn keys(header: &str) -> Vec<String> {
    let mistakes = mistakes(&format!("{header}\n\"???????????\" = 0\n"));
    let known = mistakes.iter().find_map(|it| Some(it.split_once("known here: ")?.1));
    known.map(|known| known.split(", ").map(str::to_owned).collect()).unwrap_or_default()
}

fn configuration() -> Vec<String> {
    let root = keys("");
    let tables = root.iter().flat_map(|key| [format!("[{key}]"), format!("[[{key}]]")]);
    let mut names = Vec::new();
    for header in tables.chain([String::new()]) {
        for key in keys(&header) {
            let wrong = mistakes(&format!("{header}\n{key} = \"?\"\n"));
            let words = wrong.iter().filter_map(|it| Some(it.split_once("it can be ")?.1));
            let words = words.flat_map(|words| words.split('"').skip(1).step_by(2));
            names.extend(words.map(|word| format!("{header} {key} = {word:?}")));
            names.push(format!("{header} {key}"));
        }
    }
    let retired =
        RETIRED.iter().map(|(table, key, value)| format!("[{table}] {key} = {value} (retired)"));
    let defaults = effective(&[]).into_iter();
    let defaults = defaults.map(|it| {
        let (table, key) = split(&it.key);
        format!("[{table}] {key} = {} (default)", it.value)
    });
    names.extend(retired.chain(defaults));
    names.iter().map(|name| name.trim_start_matches("[]").trim_start().to_owned()).collect()
}

/// The fields of an event in the journal, from what stands behind `warn!(`.
fn fields(event: &str) -> impl Iterator<Item = String> {
    let fields = event.split(',').map(str::trim_start).take_while(|field| !field.starts_with('"'));
    let names =
        fields.map(|field| field.trim_start_matches(['%', '?']).split(" = ").next().unwrap());
    names.filter(|name| *name != "message_id").map(|name| {
        let is_name = |character: char| character.is_ascii_lowercase() || "_.".contains(character);
        assert!(name.chars().all(is_name), "{name} is no field of an event");
        format!("IBARR_{}", name.to_uppercase().replace('.', "_"))
    })
}

fn journal(sources: &str) -> Vec<String> {
    let levels = ["trace!(", "debug!(", "info!(", "warn!(", "error!("];
    let events = levels.iter().flat_map(|level| sources.split(level).skip(1));
    let ids = ids::ALL.iter().map(|id| format!("MESSAGE_ID={id}"));
    events.flat_map(fields).chain(after(sources, ".put(\"")).chain(ids).collect()
}

fn metrics() -> Vec<String> {
    let labels = FAMILIES.iter().flat_map(|family| {
        family.labels.iter().map(|(label, _)| format!("{}{{{label}}}", family.text))
    });
    let families = FAMILIES.iter().map(|family| format!("{} {:?}", family.text, family.kind));
    families.chain(labels).collect()
}

/// Files, directories, maps, programs, notifications: what constants name.
fn objects(sources: &str) -> Vec<String> {
    let constants = after(sources, ": &str = \"").chain(after(sources, "run_dir.join(\""));
    let names =
        constants.filter(|name| !name.contains([' ', '\\']) && name.contains(char::is_alphabetic));
    let pins = Hook::ALL.map(|hook| format!("links/{}-*", bpf::pin_prefix(hook)));
    names.chain(pins).chain([format!("v{}", map::ABI_VERSION)]).collect()
}

fn list() -> String {
    let mut of_command_line = Vec::new();
    command_line(&cli::command(), "", &mut of_command_line);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = sources(&root.join("src"));
    let maps = sources(&root.join("../ibarr-common/src/map"));
    let sections = [
        ("Command line", of_command_line),
        ("Configuration", configuration()),
        ("Journal", journal(&own)),
        ("Metrics", metrics()),
        ("Documents", messages::names()),
        ("Files, maps, programs", objects(&(own + &maps))),
    ];
    let mut list = String::from(
        "Names that others rely on, made from the code (`each_public_name_is_in_the_list`).\n",
    );
    for (title, mut names) in sections {
        names.sort();
        names.dedup();
        list.extend(["\n# ", title, "\n", &names.join("\n"), "\n"]);
    }
    list
}

#[test]
fn each_public_name_is_in_the_list() {
    const COMMAND: &str = "IBARR_WRITE_DOCS=1 cargo test -p ibarr-user each_public_name";
    if env::var_os("IBARR_WRITE_DOCS").is_some() {
        fs::write(LIST, list()).unwrap();
    }
    let (listed, list) = (fs::read_to_string(LIST).unwrap(), list());
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let differences = &lines(&listed) ^ &lines(&list);
    assert!(listed == list, "the list lacks or has too much: {differences:#?}; {COMMAND}");
}
