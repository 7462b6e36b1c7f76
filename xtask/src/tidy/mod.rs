// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `tidy`: the project's rules that neither rustc nor clippy knows. Each check is a function of its input,
//! and has a test in which it fails.

mod arrows;
mod counts;
mod house;
mod licences;
mod modules;
mod text;
mod walks;
mod weight;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::workspace::{self, Workspace};
use crate::{routers, systems};

pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let files = tracked_files(workspace.root())?;
    let mut problems = Vec::new();

    // Without packages for other systems, which are in none of our builds.
    let host = workspace::host_triple()?;
    let platform = ["--filter-platform", &host];
    let allowed = licences::allowed(&files)?;
    for root in [workspace.root(), &workspace.house()] {
        let metadata = workspace::metadata(root, &platform)?;
        problems.extend(arrows::check(&metadata, &files));
        problems.extend(licences::check(&metadata, &allowed));
    }
    let fuzz = workspace::metadata(&workspace.root().join("fuzz"), &platform)?;
    problems.extend(arrows::check(&fuzz, &files));
    problems.extend(licences::check(&fuzz, &allowed));

    for file in &files {
        problems.extend(text::check(file));
    }
    problems.extend(modules::check(&files));
    problems.extend(text::links(&files));
    problems.extend(text::paths(&files));
    problems.extend(text::paths_in_comments(&files));
    problems.extend(text::proofs(&files));
    problems.extend(text::test_command(&files));
    problems.extend(tables_of_results(&files));
    problems.extend(house::check(&files));
    problems.extend(walks::check(&files));
    problems.extend(weight::check(&files));
    problems.extend(weight::check_commit(workspace.root())?);

    if !problems.is_empty() {
        for problem in &problems {
            eprintln!("tidy: {problem}");
        }
        bail!("tidy: {} found", problems.len());
    }
    eprintln!("tidy: {} files are in order", files.len());
    Ok(())
}

/// Checks that the tables of systems and of routers are those of the results.
fn tables_of_results(files: &[File]) -> Vec<String> {
    let text = |path| files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
    let results = text(systems::RESULTS).unwrap_or_default();
    let pages = systems::PAGES.iter();
    let of_systems = pages.filter_map(|page| page.check(text(page.name)?, results));
    let seen = text(routers::RESULTS).unwrap_or_default();
    of_systems.chain(text(routers::PAGE).and_then(|page| routers::check(page, seen))).collect()
}

/// A text file of the project.
struct File {
    /// Relative to the top of the checkout.
    path: String,
    text: String,
}

/// The text files that git tracks, and new ones that it does not ignore.
fn tracked_files(root: &Path) -> Result<Vec<File>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = process::output(&mut git)?;
    let mut files = Vec::new();
    for path in listed.split_terminator('\0') {
        match fs::read_to_string(root.join(path)) {
            Ok(text) => files.push(File { path: path.to_owned(), text }),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {}
            // The file is deleted, but not yet committed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(path.to_owned()),
        }
    }
    Ok(files)
}
