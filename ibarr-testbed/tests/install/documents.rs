// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The documents of the Debian package lead to files that it has. The package is only unpacked here.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use ibarr_testbed::start::program;

use crate::machine::{Machine, said};

const DOCUMENTS: &str = "usr/share/doc/ibarr";

/// The files of the package, without their directory's path, and that directory.
fn unpacked(machine: &Machine) -> (PathBuf, Vec<String>) {
    let root = machine.directory().join("package");
    let package = env::var_os("IBARR_PACKAGE").expect("`cargo xtask test install` sets it");
    let output = program("dpkg-deb").arg("--extract").arg(package).arg(&root).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let output = program("find").arg(&root).args(["-mindepth", "1", "-printf", "%P\n"]).output();
    let names = String::from_utf8(output.unwrap().stdout).unwrap();
    (root, names.lines().map(str::to_owned).collect())
}

fn is(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|it| it == extension)
}

#[test]
fn each_page_for_administrators_is_in_the_package() {
    let (_, names) = unpacked(&Machine::new());
    let pages = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let pages: Vec<_> = pages.filter(|page| is(page, "md")).collect();
    assert!(pages.len() > 6, "{pages:?}");
    let others = ["contrib/prometheus/ibarr.rules.yml", "contrib/grafana/ibarr.json"];
    let pages = pages.iter().map(|page| format!("docs/{page}"));
    for file in pages.chain(others.map(str::to_owned)) {
        assert!(names.contains(&format!("{DOCUMENTS}/{file}")), "{file} is not in {names:#?}");
    }
}

#[test]
fn links_between_packaged_documents_lead_to_packaged_files() {
    let machine = Machine::new();
    let (root, names) = unpacked(&machine);
    let mut count = 0;
    for name in names.iter().filter(|name| is(name, "md")) {
        let path = root.join(name);
        let text = fs::read_to_string(&path).unwrap();
        // Every second part is a code block, which has no links.
        for link in text.split("```").step_by(2).flat_map(|prose| prose.split("](").skip(1)) {
            let target = link.split([')', '#']).next().unwrap();
            if !target.is_empty() && !target.contains(':') {
                let file = path.with_file_name(target);
                assert!(file.exists(), "{name}: {target}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count} links");
}

#[test]
fn each_file_that_a_man_page_names_is_in_the_package() {
    let machine = Machine::new();
    let (root, names) = unpacked(&machine);
    let mut found = Vec::new();
    for page in names.iter().filter(|name| name.starts_with("usr/share/man/") && is(name, "gz")) {
        let output = program("gzip").args(["-dc"]).arg(root.join(page)).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // Words keep their underscores.
        assert!(!page.ends_with("ibarr.8.gz") || text.contains("IBARR_BPF_OBJECT"), "{page}");
        let fonts = ["\\fB", "\\fI", "\\fR", "\\fP"];
        let text = fonts.iter().fold(text, |text, font| text.replace(font, " ")).replace('\\', "");
        let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
        let words = text.split(|c| !is_of_path(c));
        let is_ours =
            |word: &&str| ["/usr/", "docs/", "contrib/"].iter().any(|it| word.starts_with(it));
        let paths = words.filter(is_ours).map(|word| word.trim_matches(['/', '.']).to_owned());
        found.extend(paths.map(|path| (page, path)));
    }
    assert!(found.len() > 3, "{found:?}");
    for (page, path) in found {
        assert!(names.contains(&path), "{page} names {path}");
    }
}
