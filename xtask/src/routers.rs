// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What `vm routers` saw. Runs write it to `target/routers.txt`; `systems` takes it into `xtask/routers.txt`, and makes
//! the table of docs/routers.md from that.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::page::with_table;
use crate::workspace::Workspace;

/// Relative to the top of the checkout.
pub(crate) const RESULTS: &str = "xtask/routers.txt";
pub(crate) const PAGE: &str = "docs/routers.md";
/// Relative to the target directory.
const OF_RUNS: &str = "routers.txt";

/// As the guest calls them, and their columns.
const CALLERS: [(&str, &str); 6] = [
    ("rping", "rping"),
    ("udaddy", "udaddy"),
    ("AF_IB", "AF_IB"),
    ("ACM", "ACM"),
    ("NVMe over RDMA", "NVMe"),
    ("NFS over RDMA", "NFS"),
];

/// Keeps the figures of a run on these kernels, each of which is of a claim that holds: router; InfiniBand subnets; IP
/// subnets; caller; cost.
pub(crate) fn record(workspace: &Workspace, kernels: &str, figures: &[String]) -> Result<()> {
    let new: Vec<_> = figures.iter().map(|figure| format!("{kernels}; {figure}\n")).collect();
    let file = workspace.target().join(OF_RUNS);
    let text = merge(&read(&file)?, &new.concat());
    fs::write(&file, text).with_context(|| file.display().to_string())
}

/// Takes the results of this checkout's runs into the file and the page.
pub(crate) fn accept(workspace: &Workspace) -> Result<()> {
    let file = workspace.root().join(RESULTS);
    let text = merge(&read(&file)?, &read(&workspace.target().join(OF_RUNS))?);
    fs::write(&file, &text).with_context(|| file.display().to_string())?;
    let page = workspace.root().join(PAGE);
    let with_table = with_table(&fs::read_to_string(&page)?, &table(&text));
    fs::write(&page, with_table.context(PAGE)?).context(PAGE)
}

/// What is wrong with the table of the page.
pub(crate) fn check(page: &str, results: &str) -> Option<String> {
    let made = with_table(page, &table(results));
    let is_same = made.as_deref() == Some(page);
    (!is_same).then(|| format!("{PAGE}: its table differs from {RESULTS}: cargo xtask systems"))
}

fn read(file: &Path) -> Result<String> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| file.display().to_string()),
    }
}

/// A line replaces the earlier one of the same kernels, layout and caller, in its place.
fn merge(old: &str, new: &str) -> String {
    let what = |line: &str| line.rsplit_once("; ").map_or("", |(what, _)| what).to_owned();
    let mut lines: Vec<&str> = old.lines().collect();
    for line in new.lines() {
        match lines.iter_mut().find(|old| what(old) == what(line)) {
            Some(old) => *old = line,
            None => lines.push(line),
        }
    }
    lines.sort_by_key(|line| line.split("; ").next().map(str::to_owned));
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

/// Each cell has what each pair of kernels saw.
fn table(results: &str) -> String {
    let lines: Vec<Vec<&str>> = results.lines().map(|line| line.split("; ").collect()).collect();
    let lines: Vec<_> = lines.iter().filter(|fields| fields.len() == 6).collect();
    let mut rows: Vec<&[&str]> = Vec::new();
    for line in &lines {
        let row = &line[1..4];
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let columns = CALLERS.map(|(_, column)| format!(" {column} |")).concat();
    let rule = "---|".repeat(CALLERS.len());
    let mut table =
        format!("| router | InfiniBand subnets | IP subnets |{columns}\n|---|---|---|{rule}\n");
    for row in rows {
        let cells = CALLERS.map(|(caller, _)| {
            let of = lines.iter().filter(|line| line[1..4] == *row && line[4] == caller);
            match &of.map(|line| line[5]).collect::<Vec<_>>()[..] {
                [] => " |".to_owned(),
                ["", ..] => " yes |".to_owned(),
                costs => format!(" yes; {} |", costs.join(", ")),
            }
        });
        table.extend(["| ", &row.join(" | "), " |", &cells.concat(), "\n"]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = "6.1, 6.12; alias GIDs; 2; two; rping; 1\n\
        6.1, 6.12; alias GIDs; 2; two; AF_IB; \n\
        6.1, 6.12; FLID; 2; two; NFS over RDMA; 16.0 s\n\
        6.12, 6.1; alias GIDs; 2; two; rping; 0\n";

    #[test]
    fn each_cell_has_what_each_pair_of_kernels_saw() {
        let table = table(RESULTS);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines[2], "| alias GIDs | 2 | two | yes; 1, 0 | | yes | | | |");
        assert_eq!(lines[3], "| FLID | 2 | two | | | | | | yes; 16.0 s |");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn result_replaces_the_earlier_one_of_the_same() {
        let new = "6.12, 6.1; alias GIDs; 2; two; rping; 2\n";
        let merged = merge(RESULTS, new);
        assert!(
            merged.ends_with(new)
                && merged.starts_with("6.1, 6.12; alias GIDs; 2; two; rping; 1\n")
        );
        assert_eq!(merged.lines().count(), 4);
    }

    #[test]
    fn page_whose_table_differs_from_the_results_is_found() {
        let page = format!("a\n{}{}b\n", crate::page::BEGIN, crate::page::END);
        let made = with_table(&page, &table(RESULTS)).expect("a place");
        assert_eq!(check(&made, RESULTS), None);
        assert!(check(&made, &RESULTS.replace("rping; 1", "rping; 3")).is_some());
        assert!(check("no place", RESULTS).is_some());
    }
}
