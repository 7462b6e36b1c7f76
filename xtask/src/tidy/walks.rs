// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Each event that the node passes from one core to another stands in a walk of ARCHITECTURE.md.

use std::collections::BTreeSet;

use super::File;

const NODE: &str = "ibarr-proto/src/node/mod.rs";

/// Compares the arms of `Node::route` with the document.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map(|file| &file.text[..]);
    let (Some(node), Some(document)) = (text(NODE), text("ARCHITECTURE.md")) else {
        return vec![format!("{NODE} or ARCHITECTURE.md is missing")];
    };
    let arms = arms(node);
    if arms.is_empty() {
        return vec![format!("{NODE}: no event is passed on")];
    }
    let missing = arms.into_iter().filter(|arm| !document.contains(&format!("`{arm}`")));
    missing
        .map(|arm| format!("ARCHITECTURE.md: no walk names the event `{arm}` of {NODE}"))
        .collect()
}

/// The names of the events in patterns: `requests::Event::AskPeer(request) =>`.
fn arms(node: &str) -> BTreeSet<&str> {
    let events = ["::Event::", "PortChange::"];
    let lines = node.lines().filter(|line| line.contains("=>"));
    let names = lines.flat_map(|line| events.map(|event| line.split_once(event)));
    let names = names.flatten().filter_map(|(_, rest)| {
        rest.split(|c: char| !c.is_alphanumeric()).next().filter(|name| !name.is_empty())
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_that_no_walk_names_is_found() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let node =
            "requests::Event::AskPeer(request) => {}\nEvent::Ports(PortChange::Facts) => {\n";
        let files = |document| [file(NODE, node), file("ARCHITECTURE.md", document)];
        assert_eq!(check(&files("`AskPeer`, then `Facts`")), [""; 0]);
        let missing = format!("ARCHITECTURE.md: no walk names the event `Facts` of {NODE}");
        assert_eq!(check(&files("`AskPeer`, then Facts")), [missing]);
        let silent = [file(NODE, ""), file("ARCHITECTURE.md", "")];
        assert_eq!(check(&silent), [format!("{NODE}: no event is passed on")]);
    }
}
