// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The list of public names, `docs/dev/names.txt`, is made from the code, so that a diff shows a name that
//! vanishes, appears or changes.

use std::collections::BTreeSet;
use std::{env, fs};

use clap::{Arg, Command};

use crate::cli;
use crate::config::{Config, Error, RETIRED, Source, effective};
use crate::metrics::FAMILIES;

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dev/names.txt");

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
    let defaults = defaults.map(|it| format!("[{}] {} = {} (default)", it.table, it.key, it.value));
    names.extend(retired.chain(defaults));
    names.iter().map(|name| name.trim_start_matches("[]").trim_start().to_owned()).collect()
}

fn metrics() -> Vec<String> {
    let labels = FAMILIES.iter().flat_map(|family| {
        family.labels.iter().map(|(label, _)| format!("{}{{{label}}}", family.text))
    });
    let families = FAMILIES.iter().map(|family| format!("{} {:?}", family.text, family.kind));
    families.chain(labels).collect()
}

fn list() -> String {
    let mut of_command_line = Vec::new();
    command_line(&cli::command(), "", &mut of_command_line);
    let sections = [
        ("Command line", of_command_line),
        ("Configuration", configuration()),
        ("Metrics", metrics()),
    ];
    let mut list = String::from(
        "Names that others rely on, made from the code (`each_public_name_is_in_the_list`).\n",
    );
    for (title, mut names) in sections {
        names.sort();
        names.dedup();
        list += &format!("\n# {title}\n{}\n", names.join("\n"));
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
