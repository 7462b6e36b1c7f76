// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Makes a configuration from ibacm's, and says of each line what became of it.

mod options;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::{ask, print};
use crate::causes::escaped;
use crate::control::messages::{Became, Body, Failure, FailureKind, Imported, ImportedLine};
use crate::regular_file::{self, Link, MOST};
use options::Options;

/// Prints the configuration, or writes it to `output`, which must not exist yet.
pub(super) fn import(dir: &Path, output: Option<&Path>, json: bool) -> Exit {
    let import = match Import::read(dir) {
        Ok(import) => import,
        Err(failure) => return ask::fail(failure, json),
    };
    let text = import.text(dir);
    if let Some(file) = output
        && let Err(error) = write_new(file, &text)
    {
        return ask::fail(not_written(file, &error), json);
    }
    let is_bad = |line: &ImportedLine| matches!(line.became, Became::Unknown | Became::Malformed);
    let exit = if import.lines.iter().any(is_bad) { Exit::Negative } else { Exit::Ok };
    if json {
        let import = Imported { config: text, lines: import.lines };
        print::json(&Body::Import { import }.into());
    } else if output.is_some() {
        import.lines.iter().for_each(|line| print::line(&said(line)));
    } else {
        print::write(text.as_bytes());
    }
    exit
}

/// What was made of the files.
#[derive(Debug, Default)]
struct Import {
    lines: Vec<ImportedLine>,
    settings: Settings,
}

/// Values in TOML, by table and key. The table `""` comes first.
#[derive(Debug, Default)]
struct Settings(BTreeMap<&'static str, BTreeMap<&'static str, String>>);

impl Import {
    fn read(dir: &Path) -> Result<Self, Failure> {
        let [opts, addr] = ["ibacm_opts.cfg", "ibacm_addr.cfg"].map(|name| dir.join(name));
        let (of_opts, of_addr) = (read(&opts)?, read(&addr)?);
        if of_opts.is_none() && of_addr.is_none() {
            let message = format!(
                "{}: neither ibacm_opts.cfg nor ibacm_addr.cfg is there; name the directory that has \
                 them",
                dir.display()
            );
            return Err(Failure { kind: FailureKind::Config, message });
        }
        let mut this = Self::default();
        let options = Options::parse(dir, of_opts.as_deref().unwrap_or_default());
        for (number, line) in numbered(of_opts.as_deref().unwrap_or_default()) {
            let (became, what) = options.verdict(number, line, &mut this.settings);
            this.add(&opts, number, line, became, what);
        }
        options.defaults(&mut this.settings);
        for file in options.data_files() {
            this.lines.extend(file);
        }
        for (number, line) in numbered(of_addr.as_deref().unwrap_or_default()) {
            let (became, what) = options::address(line);
            this.add(&addr, number, line, became, what);
        }
        Ok(this)
    }

    fn add(&mut self, file: &Path, number: u64, line: &str, became: Became, what: String) {
        let (file, text) = (file.display().to_string(), line.to_owned());
        self.lines.push(ImportedLine { file, line: Some(number), text, became, what });
    }

    /// The configuration. Its comments say what became of each line.
    fn text(&self, dir: &Path) -> String {
        let from = format!("Made from the configuration of ibacm in {}.", dir.display());
        let lines = [from].into_iter().chain(self.lines.iter().map(said));
        let comment = |line: String| format!("# {}", escaped(&line, |_| true));
        let mut text: Vec<_> = lines.map(comment).collect();
        for (table, keys) in &self.settings.0 {
            text.push(String::new());
            text.extend((!table.is_empty()).then(|| format!("[{table}]")));
            text.extend(keys.iter().map(|(key, value)| format!("{key} = {value}")));
        }
        text.join("\n") + "\n"
    }
}

/// The lines that say something, with their numbers.
fn numbered(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn said(line: &ImportedLine) -> String {
    let ImportedLine { file, line, text, became, what } = line;
    let line = line.map_or(String::new(), |line| format!(":{line}"));
    let text = if text.is_empty() { String::new() } else { format!(" {text}:") };
    format!("{file}{line}:{text} {became}: {what}")
}

/// `None` if there is no such file.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    match regular_file::read(path, Link::Followed, MOST) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let kind = match error.kind() {
                ErrorKind::PermissionDenied => FailureKind::Permission,
                _ => FailureKind::Config,
            };
            Err(Failure { kind, message: format!("{}: cannot be read: {error}", path.display()) })
        }
    }
}

/// Leaves no file behind that is not whole.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // The first error counts.
        drop(fs::remove_file(path));
    }
    written
}

pub(super) fn not_written(path: &Path, error: &io::Error) -> Failure {
    let (kind, remedy) = match error.kind() {
        ErrorKind::AlreadyExists => (FailureKind::Usage, "; move it away, or name another file"),
        ErrorKind::PermissionDenied => (FailureKind::Permission, ""),
        _ => (FailureKind::Internal, ""),
    };
    Failure { kind, message: format!("{}: cannot be written: {error}{remedy}", path.display()) }
}

/// A file that the configuration names.
fn absolute(dir: &Path, path: &str) -> PathBuf {
    let path = dir.join(path);
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::config::{Config, Serve, Source};

    /// A directory with files of ibacm.
    struct Dir(TempDir);

    impl Dir {
        fn new(files: &[(&str, &str)]) -> Self {
            let dir = TempDir::new().unwrap();
            for (file, text) in files {
                fs::write(dir.path().join(file), text).unwrap();
            }
            Self(dir)
        }

        fn import(&self) -> (Config, String, Vec<(Option<u64>, Became)>) {
            let import = Import::read(self.0.path()).unwrap();
            let text = import.text(self.0.path());
            let source = Source { name: "made".to_owned(), text: text.clone() };
            let config = Config::read(&[source]).unwrap();
            (config, text, import.lines.iter().map(|line| (line.line, line.became)).collect())
        }
    }

    #[test]
    fn every_line_of_the_recorded_default_is_understood() {
        let recorded = include_str!("../../tests/data/ibacm_opts.cfg");
        let dir = Dir::new(&[("ibacm_opts.cfg", recorded)]);
        let (config, text, lines) = dir.import();
        assert_eq!(lines.len(), 22, "{text}");
        let is_right = |became: &Became| {
            matches!(became, Became::Carried | Became::Default | Became::Needless)
        };
        assert!(lines.iter().all(|(_, became)| is_right(became)), "{text}");
        assert_eq!(config.acm.serve, Serve::Full);
        assert_eq!((config.acm.hosts, config.acm.routes), (None, None));
        assert!(text.contains("server_mode unix: default: "), "{text}");
    }

    #[test]
    fn every_option_is_answered_for_and_the_last_of_several_counts() {
        let opts = "\
LOG_FILE /var/log/acm.log
log_level 2
umad_debug_level 1
lock_file /run/x.pid
server_port 7125
server_mode open
acme_plus_kernel_only no
acme_plus_kernel_only yes
timeout 3000
retries 3
sa_depth 4
support_ips_in_addr_cfg 1
provider_lib_path /usr/lib/ibacm
provider ibacmp default
provider dsap 0xfe80000000000000
addr_prot acm
addr_timeout -1
route_prot acm
route_timeout 30
loopback_prot none
resolve_depth 2
send_depth 2
recv_depth 512
min_mtu 4096
min_rate 100
route_preload opensm_full_v1
route_data_file routes \"x
addr_preload acm_hosts
addr_data_file hosts
sa_deepth 3
retries many
timeout
";
        let hosts = "10.2.0.5 fe80::5\nbroken\n";
        let addr = "# comment\nnode1 mlx5_0 1 default\n10.1.0.1 mlx5_0 1 0xffff\nnode1 mlx5_0\n";
        let files = [("ibacm_opts.cfg", opts), ("hosts", hosts), ("ibacm_addr.cfg", addr)];
        let dir = Dir::new(&files);
        let (config, text, lines) = dir.import();
        assert_eq!(config.acm.serve, Serve::Tools);
        assert_eq!(config.acm.tcp_port.map(NonZeroU16::get), Some(7125));
        assert_eq!(config.acm.hosts, Some(dir.0.path().join("hosts")));
        assert_eq!(config.acm.routes, Some(dir.0.path().join("routes")));
        assert_eq!(config.paths.ttl, std::time::Duration::from_mins(30));
        assert_eq!(config.log_level.to_string(), "trace");
        let of = |became| {
            let lines = lines.iter().filter(|line| line.1 == became);
            lines.map(|line| line.0).collect::<Vec<_>>()
        };
        let some = |lines: &[u64]| lines.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(of(Became::Carried), some(&[2, 5, 8, 19, 26, 27, 28, 29]), "{text}");
        assert_eq!(of(Became::Lost), some(&[6, 12, 15, 18, 20, 3]), "{text}");
        assert_eq!(of(Became::Unknown), some(&[30]), "{text}");
        // Two of the options, a line of each of the other files, and the file that is missing.
        let malformed = [Some(31), Some(32), Some(2), None, Some(4)];
        assert_eq!(of(Became::Malformed), malformed, "{text}");
        assert!(
            text.contains("acme_plus_kernel_only no: not needed: line 8 overrules it"),
            "{text}"
        );
        assert!(text.contains("hosts:2: malformed: write a name or an address"), "{text}");
    }

    #[test]
    fn file_that_is_there_is_not_overwritten() {
        let dir = Dir::new(&[("ibacm_opts.cfg", "timeout 1\n"), ("old", "old")]);
        let (old, new) = (dir.0.path().join("old"), dir.0.path().join("new"));
        assert_eq!(import(dir.0.path(), Some(&old), true), FailureKind::Usage.into());
        assert_eq!(fs::read_to_string(old).unwrap(), "old");
        assert_eq!(import(dir.0.path(), Some(&new), true), Exit::Ok);
        assert!(fs::read_to_string(new).unwrap().contains("serve = \"full\""));
        assert_eq!(import(&dir.0.path().join("missing"), None, true), FailureKind::Config.into());
    }

    proptest! {
        /// Options that ibacm knows with any values, and any bytes.
        #[test]
        fn no_file_of_ibacm_gives_a_configuration_that_is_refused(
            lines in proptest::collection::vec((0..NAMES.len(), r#"[a-z0-9./\\"'=\[\]#\x00-\x1f\x7f\u{80}-\u{ff} -]{0,12}"#), 0..9),
            known in proptest::collection::vec((0..NAMES.len(), 0..VALUES.len()), 0..9),
            bytes: Vec<u8>,
        ) {
            let random = lines.iter().map(|(name, value)| format!("{} {value}\n", NAMES[*name]));
            let known = known.iter().map(|(name, value)| format!("{} {}\n", NAMES[*name], VALUES[*value]));
            let opts = random.chain(known).collect::<String>();
            for bytes in [opts.as_bytes(), &bytes] {
                let dir = Dir::new(&[("ibacm_addr.cfg", &opts)]);
                fs::write(dir.0.path().join("ibacm_opts.cfg"), bytes).unwrap();
                dir.import();
            }
        }
    }

    const NAMES: [&str; 9] = [
        "log_level",
        "server_mode",
        "server_port",
        "acme_plus_kernel_only",
        "route_timeout",
        "route_preload",
        "route_data_file",
        "addr_preload",
        "addr_data_file",
    ];
    const VALUES: [&str; 12] = [
        "open",
        "loop",
        "acm_hosts",
        "opensm_full_v1",
        "/",
        ".../",
        "..",
        "-1",
        "0",
        "65536",
        "9223372036854775807",
        "yes",
    ];

    #[test]
    fn value_that_is_refused_is_left_out_and_named() {
        let dir = Dir::new(&[("ibacm_opts.cfg", "addr_preload acm_hosts\naddr_data_file .../\n")]);
        let (config, text, lines) = dir.import();
        assert_eq!(config.acm.hosts, None);
        assert_eq!(lines[..2], [(Some(1), Became::Malformed), (Some(2), Became::Malformed)]);
        assert!(text.contains(".../: malformed: left out: [acm] hosts = \""), "{text}");
    }

    #[test]
    fn line_with_control_characters_stays_a_comment() {
        let opts = "log_file x\u{b}\rserve = 1\ntimeout \u{1b}[2J\n";
        let dir = Dir::new(&[("ibacm_opts.cfg", opts)]);
        let (_, text, _) = dir.import();
        assert!(!text.contains('\u{1b}') && !text.contains('\r'), "{text}");
    }
}
