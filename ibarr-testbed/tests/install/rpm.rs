// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The RPM package. Its files are compared with the Debian package's, which the other tests install; its
//! scripts are not run here.

use ibarr_testbed::start::program;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::machine::Machine;

#[test]
fn installed_rpm_has_the_files_of_the_debian_package() {
    let machine = Machine::new();
    let [rpm_root, deb_root] = ["rpm", "deb"].map(|name| machine.directory().join(name));
    fs::create_dir(&rpm_root).unwrap();
    let mut install = command(&machine, "rpm");
    // Without its scripts, and without the packages that RHEL would have.
    install.arg("--root").arg(&rpm_root).args(["--install", "--nodeps", "--noscripts"]);
    said(install.arg(package("IBARR_RPM")));
    said(program("dpkg-deb").arg("--extract").arg(package("IBARR_PACKAGE")).arg(&deb_root));
    let mut deb = files(&deb_root);
    // Each system has its own place for licences and zsh, and Debian has a changelog of its own form.
    deb.retain(|name, _| !name.ends_with("/copyright") && !name.ends_with("/changelog.gz"));
    let zsh = deb.remove("usr/share/zsh/vendor-completions/_ibarr").unwrap();
    deb.insert("usr/share/zsh/site-functions/_ibarr".to_owned(), zsh);
    let mut rpm = files(&rpm_root);
    rpm.retain(|name, _| !name.contains("/LICENSES/") && !name.contains("/db/"));
    // postinst makes it on Debian.
    let file = rpm.remove("etc/ibarr/ibarr.toml").unwrap();
    assert_eq!(file, deb["usr/share/ibarr/ibarr.toml"]);
    assert_eq!(rpm.keys().collect::<Vec<_>>(), deb.keys().collect::<Vec<_>>());
    assert!(rpm == deb, "contents, modes or owners differ");
    assert!(rpm.contains_key("usr/sbin/ibarr"));
}

#[test]
fn rpm_keeps_a_configuration_that_was_changed() {
    let flags = rpm(&["--query", "--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]"]);
    let configuration: Vec<_> = flags.lines().filter(|line| line.starts_with("/etc/")).collect();
    // c: configuration; n: a new version does not replace it.
    assert_eq!(
        configuration,
        ["/etc/ibarr ", "/etc/ibarr/ibarr.d ", "/etc/ibarr/ibarr.toml cn", "/etc/ibarr/netns "]
    );
}

#[test]
fn rpm_needs_no_library_that_the_program_does_not() {
    let needed = rpm(&["--query", "--requires"]);
    let libraries: Vec<_> = needed.lines().filter(|line| line.contains(".so.")).collect();
    assert_eq!(libraries, ["libc.so.6(GLIBC_2.28)(64bit)"]);
}

#[test]
fn scripts_of_the_rpm_are_programs_of_the_shell() {
    for script in ["POSTIN", "PREUN", "POSTUN"] {
        let text = rpm(&["--query", "--queryformat", &format!("%{{{script}}}")]);
        assert!(text.contains("systemctl"), "{script}: {text}");
        said(program("sh").args(["-n", "-c", &text]));
    }
}

/// libibverbs.so.1, which the daemon opens at run time, is in packages of these names.
#[test]
fn packages_recommend_the_library_of_events() {
    let deb =
        said(program("dpkg-deb").arg("--field").arg(package("IBARR_PACKAGE")).arg("Recommends"));
    assert!(deb.trim().split(", ").any(|name| name == "libibverbs1"), "{deb}");
    let rpm = rpm(&["--query", "--recommends"]);
    assert!(rpm.lines().any(|name| name == "libibverbs"), "{rpm}");
}

/// Mode and owner, and the content, of each file below `root`.
fn files(root: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let mut files = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            if about.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                let about = format!("{:o} {}:{}", about.mode(), about.uid(), about.gid());
                files.insert(name, (about, fs::read(path).unwrap()));
            }
        }
    }
    files
}

fn rpm(query: &[&str]) -> String {
    said(command(&Machine::new(), "rpm").args(query).arg("--package").arg(package("IBARR_RPM")))
}

/// rpm, or another program of it, with a database in a directory of the test.
pub(crate) fn command(machine: &Machine, name: &str) -> Command {
    let mut command = program(name);
    command.envs(env::var_os("RPM_CONFIGDIR").map(|found| ("RPM_CONFIGDIR", found)));
    command.arg("--dbpath").arg(machine.directory().join("db"));
    command
}

fn package(variable: &str) -> OsString {
    env::var_os(variable).expect("`cargo xtask test install` sets it")
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
