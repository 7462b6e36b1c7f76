// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Rules about single files, and about files that must agree.

use std::collections::HashSet;

use super::File;

const SPDX: &str = "SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause";

/// The most lines of a source file without a reason, with its unit tests.
const MAX_LINES: usize = 600;

/// In the head comment of a longer file, before its reason.
const LONG: &str = "long because";

/// The places with `unsafe` code, for memory and system calls. The rest of the tree has none.
const UNSAFE_PLACES: &[&str] = &[
    "ibarr-user/src/sys/",
    "ibarr-user/src/bpf/",
    "ibarr-ebpf/src/",
    "ibtun/fabric/src/bin/ibfab/sys.rs",
    "ibtun/proofs/src/sys.rs",
    "ibarr-testbed/src/vm/sys/",
];

/// Directories of developers' machines, which other machines do not have.
const MACHINE_DIRS: &[&str] =
    &[concat!("/", "work/"), concat!("/", "farm/"), concat!("/", "home/"), concat!("/", "root/")];

/// Programs must ask for the directory of temporary files; documents may name it.
const TEMPORARY_DIR: &str = concat!("/", "tmp/");

/// Prefixes of kernel functions, which documents name besides our tests.
const KERNEL: &[&str] = &["bpf_", "cma_", "ib_", "ipoib_", "rdma_", "smc_"];

/// The rules for a single file.
pub(super) fn check(file: &File) -> Vec<String> {
    [
        licence(file),
        length(file),
        machine_paths(file),
        hand_made_temporary_paths(file),
        unsafe_places(file),
        inherited_environment(file),
        ask_and_lookup(file),
        ignored_tests(file),
        lints(file),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn licence(file: &File) -> Option<String> {
    let has_licence = file.has_extension(&["rs", "c", "h", "sh", "py"])
        || matches!(
            file.name(),
            "Cargo.toml" | "clippy.toml" | "deny.toml" | "Kbuild" | "Makefile"
        )
        || file.text.starts_with("#!");
    let head = || file.text.lines().take(2);
    (has_licence && !head().any(|line| line.contains(SPDX)))
        .then(|| format!("{}: the first line is not `{SPDX}`", file.path))
}

fn length(file: &File) -> Option<String> {
    let is_source = file.has_extension(&["rs", "c", "h"]) && !file.is_test();
    let lines = file.text.lines().count();
    let is_comment = |line: &&str| line.is_empty() || line.starts_with("//") || line.contains('*');
    let mut head = file.text.lines().take_while(is_comment);
    (is_source && lines > MAX_LINES && !head.any(|line| line.to_lowercase().contains(LONG))).then(
        || {
            let path = &file.path;
            format!("{path}: {lines} lines: split it, or say `{LONG} …` in its head comment")
        },
    )
}

fn machine_paths(file: &File) -> Option<String> {
    file.find(|line| MACHINE_DIRS.iter().any(|dir| has_path(line, dir)))
        .map(|at| format!("{at}: a path of a developer's machine"))
}

fn hand_made_temporary_paths(file: &File) -> Option<String> {
    if file.has_extension(&["md"]) {
        return None;
    }
    file.find(|line| has_path(line, TEMPORARY_DIR))
        .map(|at| format!("{at}: a fixed temporary path: use std::env::temp_dir"))
}

fn unsafe_places(file: &File) -> Option<String> {
    if !file.has_extension(&["rs"])
        || UNSAFE_PLACES.iter().any(|place| file.path.starts_with(place))
    {
        return None;
    }
    file.find(|line| {
        let code = line.split("//").next().unwrap_or_default();
        let mut after = code.split("unsafe").skip(1);
        after.any(|rest| {
            let rest = rest.trim_start();
            rest.starts_with('(')
                || ["{", "fn ", "impl", "extern", "trait "].iter().any(|it| rest.starts_with(it))
        })
    })
    .map(|at| format!("{at}: unsafe code belongs in {}", UNSAFE_PLACES.join(", ")))
}

/// No test depends on what its caller has set: each program starts with an environment that the test knows.
fn inherited_environment(file: &File) -> Option<String> {
    if !file.has_extension(&["rs"]) || !file.path.contains("/tests/") {
        return None;
    }
    let mut after = file.text.split("Command::new(").skip(1);
    after.any(|rest| !rest.lines().take(2).any(|line| line.contains(".env_clear()"))).then(|| {
        format!(
            "{}: a test starts a program with its caller's environment: use `program`",
            file.path
        )
    })
}

/// `lookup` never uses the network: it stands in a core. What asks others is called `resolve`.
fn ask_and_lookup(file: &File) -> Option<String> {
    let is_core = ["ibarr-common/", "ibarr-proto/"].iter().any(|core| file.path.starts_with(core));
    if !file.has_extension(&["rs"]) || file.is_test() {
        return None;
    }
    // What a request is answered from without the network is looked up.
    let is_request = file.path == "ibarr-proto/src/requests.rs";
    file.find(|line| {
        line.contains(concat!("fn ", "lookup")) && !is_core
            || line.contains(concat!("fn ", "look_up"))
            || line.contains(concat!("struct ", "Lookup")) && is_core
            || line.trim_start().starts_with(concat!("Look", "Up")) && is_core && !is_request
    })
    .map(|at| format!("{at}: what may ask others is called `resolve`, or by what it asks for"))
}

fn ignored_tests(file: &File) -> Option<String> {
    if !file.has_extension(&["rs"]) {
        return None;
    }
    file.find(|line| line.trim_start().starts_with("#[ignore"))
        .map(|at| format!("{at}: an ignored test: give it a level, or remove it"))
}

fn lints(file: &File) -> Option<String> {
    let is_member = file.name() == "Cargo.toml"
        && file.text.contains("[package]")
        && !file.text.contains("[workspace]");
    let mut lines = file.text.lines().skip_while(|line| *line != "[lints]").skip(1);
    (is_member && lines.next() != Some("workspace = true"))
        .then(|| format!("{}: it does not inherit the lints: [lints], workspace = true", file.path))
}

/// Checks that relative links of Markdown files lead to files.
pub(super) fn links(files: &[File]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.has_extension(&["md"])) {
        // Every second part is a code block, which has no links.
        let prose = file.text.split("```").step_by(2);
        for rest in prose.flat_map(|text| text.split("](").skip(1)) {
            let Some((target, _)) = rest.split_once(')') else { continue };
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains(':') {
                continue;
            }
            let path = resolve(&file.path, target);
            let exists = files.iter().any(|other| {
                other
                    .path
                    .strip_prefix(&path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || path.is_empty())
            });
            if !exists {
                problems.push(format!("{}: a link to {target}, which does not exist", file.path));
            }
        }
    }
    problems
}

/// Checks that each file of ours that a document names by its path exists.
pub(super) fn paths(files: &[File]) -> Vec<String> {
    let folders: HashSet<&str> =
        files.iter().filter_map(|file| file.path.split_once('/')).map(|(top, _)| top).collect();
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.has_extension(&["md"])) {
        for name in file.text.split('`').skip(1).step_by(2) {
            let is_ours = name.split_once('/').is_some_and(|(top, _)| folders.contains(top));
            let is_file = name.rsplit('/').next().is_some_and(|file| file.contains('.'));
            let is_path = is_ours && is_file && !name.contains(['*', ' ']);
            let is_source = is_source(name) && !name.contains(['*', ' ', '{', ':']);
            let is_wrong = is_path && !files.iter().any(|other| other.path == name)
                || is_source && !files.iter().any(|other| is_called(other, name));
            if is_wrong {
                problems.push(format!("{}: it names `{name}`, which does not exist", file.path));
            }
        }
    }
    problems
}

/// Checks that each of our sources that a comment names exists. A comment may leave out the first folders.
pub(super) fn paths_in_comments(files: &[File]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.has_extension(&["rs", "c", "h"])) {
        let comments = file
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("//").or_else(|| Some(line.split_once(" //")?.1)));
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        for name in comments.flat_map(|text| text.split(|c| !is_path(c))) {
            let name = name.trim_end_matches('.').trim_start_matches("../");
            if is_source(name) && !files.iter().any(|other| is_called(other, name)) {
                problems.push(format!("{}: it names `{name}`, which does not exist", file.path));
            }
        }
    }
    problems
}

/// Whether `name` is the path of a Rust source, perhaps without its first folders.
fn is_source(name: &str) -> bool {
    name.strip_suffix(".rs").is_some_and(|path| path.contains('/'))
}

/// Whether `name` is the file's path, perhaps without its first folders.
fn is_called(file: &File, name: &str) -> bool {
    let before = file.path.strip_suffix(name);
    before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// Checks that each function that a document names is in the tree. This is for names of at least four
/// words: tests, which documents name as proof.
pub(super) fn proofs(files: &[File]) -> Vec<String> {
    let functions: HashSet<&str> = (files.iter())
        .filter(|file| file.has_extension(&["rs"]))
        .flat_map(|file| file.text.split("fn ").skip(1))
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        .collect();
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.has_extension(&["md"])) {
        for name in file.text.split('`').skip(1).step_by(2) {
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let is_proof = name.matches('_').count() >= 3
                && name.chars().all(is_name)
                && !KERNEL.iter().any(|kernel| name.starts_with(kernel));
            if is_proof && !functions.contains(name) {
                problems.push(format!("{}: it names `{name}`, which does not exist", file.path));
            }
        }
    }
    problems
}

/// Checks that CI runs the command of README.md.
pub(super) fn test_command(files: &[File]) -> Vec<String> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map(|file| &file.text);
    let (Some(readme), Some(ci)) = (text("README.md"), text(".ci/run")) else {
        return vec!["README.md or .ci/run is missing".to_owned()];
    };
    let commands: Vec<_> = ci
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("set "))
        .collect();
    match commands.as_slice() {
        [command] if readme.lines().any(|line| Some(line) == typed(command)) => Vec::new(),
        _ => vec![format!(".ci/run runs {commands:?}, but README.md has another command")],
    }
}

/// `command` as in README.md, without CI's variable.
fn typed(command: &str) -> Option<&str> {
    command.strip_prefix("CI=true ")
}

/// The path of `target`, to which the file at `from` links.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether `line` has a path that begins with `dir`.
fn has_path(line: &str, dir: &str) -> bool {
    line.match_indices(dir).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !"._-/}$".contains(before))
    })
}

impl File {
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(super) fn has_extension(&self, extensions: &[&str]) -> bool {
        self.name().rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
    }

    pub(super) fn is_test(&self) -> bool {
        self.name() == "tests.rs" || self.path.split('/').any(|part| part == "tests")
    }

    /// `path:line` of the first line that `is_it`.
    fn find(&self, is_it: impl Fn(&str) -> bool) -> Option<String> {
        let at = self.text.lines().position(is_it)?;
        Some(format!("{}:{}", self.path, at + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn missing_licence_is_found() {
        assert!(licence(&file("a/src/b.rs", "//! Text.\n")).is_some());
        assert!(licence(&file("a/Cargo.toml", "[package]\n")).is_some());
        assert!(licence(&file(".ci/run", "#!/bin/sh\necho\n")).is_some());
        assert!(licence(&file("a/src/b.rs", &format!("// {SPDX}\n"))).is_none());
        assert!(licence(&file(".ci/run", &format!("#!/bin/sh\n# {SPDX}\n"))).is_none());
        assert!(licence(&file("README.md", "# ibarr\n")).is_none());
    }

    #[test]
    fn long_file_without_a_reason_is_found() {
        let body = "fn f() {}\n".repeat(MAX_LINES);
        assert!(length(&file("a/src/b.rs", &format!("//! Text.\n{body}"))).is_some());
        assert!(length(&file("a/src/b.rs", &body)).is_none());
        let argued = format!("//! Text.\n//!\n//! Long because it is one table.\n\n{body}");
        assert!(length(&file("a/src/b.rs", &argued)).is_none());
        let late = format!("{body}\n// long because\n");
        assert!(length(&file("a/src/b.rs", &late)).is_some());
        assert!(length(&file("a/tests/b.rs", &format!("//! Text.\n{body}"))).is_none());
    }

    #[test]
    fn path_of_a_machine_is_found() {
        for dir in MACHINE_DIRS {
            let found = machine_paths(&file("docs/a.md", &format!("text\nsee `{dir}x`\n")));
            assert_eq!(found, Some("docs/a.md:2: a path of a developer's machine".to_owned()));
            assert!(machine_paths(&file("a.md", &format!("target{dir}x"))).is_none());
        }
    }

    #[test]
    fn temporary_path_is_found_only_in_code() {
        let text = format!("let path = \"{TEMPORARY_DIR}x\";\n");
        assert!(hand_made_temporary_paths(&file("a.rs", &text)).is_some());
        assert!(hand_made_temporary_paths(&file("a.md", &text)).is_none());
    }

    #[test]
    fn unsafe_code_out_of_its_places_is_found() {
        for code in ["{ f() }", "fn f() {}", "impl A for B {}", "extern \"C\" {}", "(no_mangle)"] {
            let code = format!("    {} {code}\n", concat!("un", "safe"));
            assert!(unsafe_places(&file("ibarr-proto/src/a.rs", &code)).is_some(), "{code}");
            assert!(unsafe_places(&file("ibarr-user/src/sys/a.rs", &code)).is_none());
        }
        let word = "#![forbid(unsafe_code)] // no unsafe { here }\n";
        assert!(unsafe_places(&file("ibarr-proto/src/lib.rs", word)).is_none());
    }

    #[test]
    fn program_with_the_environment_of_a_tests_caller_is_found() {
        let start = "let mut command = Command::new(name);\n";
        let cleared = format!("{start}command.env_clear();\n");
        assert!(inherited_environment(&file("a/tests/b.rs", start)).is_some());
        assert!(inherited_environment(&file("a/tests/b.rs", &cleared)).is_none());
        assert!(inherited_environment(&file("a/tests/b.rs", &(cleared + start))).is_some());
        assert!(inherited_environment(&file("a/src/b.rs", start)).is_none());
    }

    #[test]
    fn network_behind_a_lookup_is_found() {
        for (path, name, is_found) in [
            ("ibarr-proto/src/a.rs", "lookup", false),
            ("ibarr-proto/src/a.rs", "look_up", true),
            ("ibarr-user/src/a.rs", "lookup", true),
            ("ibarr-user/src/tests.rs", "lookup", false),
        ] {
            let text = format!("    {} {name}(&self) {{}}\n", "fn");
            assert_eq!(ask_and_lookup(&file(path, &text)).is_some(), is_found, "{path}: {name}");
        }
        for (path, is_found) in
            [("ibarr-proto/src/acm/types.rs", true), ("ibarr-proto/src/requests.rs", false)]
        {
            let text = format!("    {}(Name),\n", concat!("Look", "Up"));
            assert_eq!(ask_and_lookup(&file(path, &text)).is_some(), is_found, "{path}");
        }
    }

    #[test]
    fn ignored_test_is_found() {
        let text = format!("#[test]\n#[{} = \"slow\"]\nfn f() {{}}\n", "ignore");
        assert!(ignored_tests(&file("a.rs", &text)).is_some());
        assert!(ignored_tests(&file("a.rs", "#[test]\nfn f() {}\n")).is_none());
    }

    #[test]
    fn manifest_without_the_lints_is_found() {
        let package = "[package]\nname = \"a\"\n";
        assert!(lints(&file("a/Cargo.toml", package)).is_some());
        assert!(lints(&file("a/Cargo.toml", &format!("{package}[lints]\n"))).is_some());
        let inherits = format!("{package}\n[lints]\nworkspace = true\n");
        assert!(lints(&file("a/Cargo.toml", &inherits)).is_none());
        assert!(lints(&file("Cargo.toml", "[workspace]\n")).is_none());
    }

    #[test]
    fn dead_link_is_found() {
        let files = [
            file("README.md", "[a](docs/a.md#part) [web](https://example.org/) [top](#top)"),
            file("docs/a.md", "[readme](../README.md) [source](../xtask/) [gone](b.md)"),
            file("xtask/Cargo.toml", ""),
        ];
        assert_eq!(links(&files), ["docs/a.md: a link to b.md, which does not exist"]);
    }

    #[test]
    fn block_of_code_has_no_links() {
        let text = "```\n[1](100001)  \"S1\"[1]\n```\n[gone](b.md)\n";
        let problems = links(&[file("a.md", text)]);
        assert_eq!(problems, ["a.md: a link to b.md, which does not exist"]);
    }

    #[test]
    fn path_that_only_a_document_has_is_found() {
        let text = "`a/src/lib.rs` `src/lib.rs` `a/src/gone.rs` `a/*.rs` `proto/x.rs` `gone.rs`";
        let files = [file("a.md", text), file("a/src/lib.rs", "")];
        let gone = ["a/src/gone.rs", "proto/x.rs"];
        let expected = gone.map(|name| format!("a.md: it names `{name}`, which does not exist"));
        assert_eq!(paths(&files), expected);
    }

    #[test]
    fn path_that_only_a_comment_has_is_found() {
        let text =
            "//! c/gone.rs, src/b.rs, net/xdp.c.\nlet path = \"x/y.rs\"; /\u{2f} a/src/gone.rs\n";
        let files = [file("a/src/a.rs", text), file("a/src/b.rs", "")];
        let gone = |name| format!("a/src/a.rs: it names `{name}`, which does not exist");
        assert_eq!(paths_in_comments(&files), [gone("c/gone.rs"), gone("a/src/gone.rs")]);
    }

    #[test]
    fn test_name_that_only_a_document_has_is_found() {
        let files = [
            file("a.md", "`it_is_what_it_says` `it_was_never_so` `a_b_c` `bpf_l4_csum_replace`"),
            file("a.rs", "#[test]\nfn it_is_what_it_says() {}\n"),
        ];
        assert_eq!(proofs(&files), ["a.md: it names `it_was_never_so`, which does not exist"]);
    }

    #[test]
    fn ci_that_differs_from_the_readme_is_found() {
        let readme = || file("README.md", "```\ncargo xtask test\n```\n");
        let ci = |commands: &str| file(".ci/run", &format!("#!/bin/sh\n# x\nset -eu\n{commands}"));
        assert!(test_command(&[readme(), ci("CI=true cargo xtask test\n")]).is_empty());
        assert_eq!(test_command(&[readme(), ci("CI=true cargo xtask test fast\n")]).len(), 1);
        assert_eq!(
            test_command(&[readme(), ci("apt install x\nCI=true cargo xtask test\n")]).len(),
            1
        );
        assert_eq!(test_command(&[readme(), ci("cargo xtask test\n")]).len(), 1);
        assert_eq!(test_command(&[readme()]).len(), 1);
    }
}
