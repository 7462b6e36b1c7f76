// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The RPM package. Its files are compared with the Debian package's, which the other tests install; its
//! scripts are not run here.

use std::collections::BTreeMap;
use std::env;
use std::process::Command;

/// By name: the mode, as `ls` writes it, and the owner.
type Files = BTreeMap<String, String>;

#[test]
fn rpm_has_the_files_of_the_debian_package() {
    let rpm = rpm(&[
        "--query",
        "--queryformat",
        "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME}\n]",
    ]);
    let mut rpm = files(&rpm, |line| {
        let (name, about) = line.split_once(' ').unwrap();
        (name, about.to_owned())
    });
    let deb =
        said(Command::new("dpkg-deb").arg("--contents").arg(env::var("IBARR_PACKAGE").unwrap()));
    let mut deb = files(&deb, |line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (mode, owner) = (words[0], words[1].replace('/', ":"));
        (words[5].trim_start_matches('.'), format!("{mode} {owner}"))
    });
    // Each system has its own place for licences, and Debian has a changelog of its own form.
    let is_own = |name: &String| {
        ["/LICENSES/", "/copyright", "/changelog.gz"].iter().any(|part| name.contains(part))
    };
    rpm.retain(|name, _| !is_own(name) && !name.ends_with("/etc/ibarr"));
    deb.retain(|name, _| !is_own(name) && !name.ends_with('/'));
    assert_eq!(rpm, deb);
}

#[test]
fn rpm_keeps_a_configuration_that_was_changed() {
    let flags = rpm(&["--query", "--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]"]);
    let configuration: Vec<_> = flags.lines().filter(|line| line.starts_with("/etc/")).collect();
    // c: configuration; n: a new version does not replace it.
    assert_eq!(configuration, ["/etc/ibarr ", "/etc/ibarr/ibarr.toml cn"]);
}

#[test]
fn rpm_needs_no_library_that_the_program_does_not() {
    let needed = rpm(&["--query", "--requires"]);
    let libraries: Vec<_> = needed.lines().filter(|line| line.contains(".so.")).collect();
    assert_eq!(libraries, ["libc.so.6(GLIBC_2.34)(64bit)", "libgcc_s.so.1()(64bit)"]);
}

#[test]
fn scripts_of_the_rpm_are_programs_of_the_shell() {
    for script in ["POSTIN", "PREUN", "POSTUN"] {
        let text = rpm(&["--query", "--queryformat", &format!("%{{{script}}}")]);
        assert!(text.contains("systemctl"), "{script}: {text}");
        said(Command::new("sh").args(["-n", "-c", &text]));
    }
}

fn files(text: &str, parse: impl Fn(&str) -> (&str, String)) -> Files {
    text.lines()
        .map(|line| {
            let (name, about) = parse(line);
            (name.to_owned(), about)
        })
        .collect()
}

fn rpm(query: &[&str]) -> String {
    let package = env::var("IBARR_RPM").expect("`cargo xtask test install` sets it");
    said(Command::new("rpm").args(query).arg("--package").arg(package))
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
