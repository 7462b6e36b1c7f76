// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `repository`: signed repositories of packages, for apt and dnf.
//!
//! The same packages, key and commit give the same bytes if signatures of the key do not depend on chance:
//! those of Ed25519 and RSA do not, those of DSA do. All times are that of the commit; signatures have that of
//! the key if it is later, because no signature may be older than its key.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};

use super::{Architecture, Content, debs, files, make_dir, rpm, write};
use crate::process;
use crate::tools::{self, Toolbox};
use crate::workspace::{Workspace, cargo};

/// Make signed repositories of the packages, for apt and dnf
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of the secret key, as `gpg --export-secret-keys` writes it, without a passphrase
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Directory that is made, for a web server [default: target/package/repository]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let content = Content::build(workspace, Architecture::own())?;
    let mut packages = debs(&content)?;
    packages.push(rpm::make(&content)?);
    let default = || content.directory.join("repository");
    let output = args.output.clone().unwrap_or_else(default);
    make(&content, &packages, &args.key, &output)?;
    println!("{}", output.display());
    Ok(())
}

/// Makes the repositories for the tests with a key of its own: by the command line, which makes the packages again, and
/// of `packages`. Compares their bytes.
pub(super) fn prove(content: &Content<'_>, packages: &[PathBuf]) -> Result<PathBuf> {
    let keyring = Keyring::new(content)?;
    let key = content.directory.join("repository.key");
    keyring.generate(&key)?;
    let [first, second] = ["repository", "repository-again"].map(|it| content.directory.join(it));
    let mut command = cargo(content.workspace.root(), &["xtask", "repository", "--key"]);
    let said = process::output(command.arg(&key))?;
    ensure!(said.trim() == first.display().to_string(), "`repository` says {said:?}");
    make(content, packages, &key, &second)?;
    let all = files(&first)?;
    ensure!(all == files(&second)?, "a repository made again has other files");
    for file in all {
        let same = fs::read(first.join(&file))? == fs::read(second.join(&file))?;
        ensure!(same, "{} made again differs", file.display());
    }
    Ok(first)
}

/// The suite and the component of the apt repository.
const SUITE: &str = "stable";
const COMPONENT: &str = "main";

/// The public key, beside both repositories.
const PUBLIC_KEY: &str = "ibarr.asc";

fn make(content: &Content<'_>, packages: &[PathBuf], key: &Path, output: &Path) -> Result<()> {
    if output.exists() {
        fs::remove_dir_all(output)?;
    }
    make_dir(output)?;
    let mut keyring = Keyring::new(content)?;
    keyring.import(key, content.epoch.parse().context("the time of the commit")?)?;
    write(&output.join(PUBLIC_KEY), &keyring.public_key()?, 0o644)?;
    let is = |package: &&PathBuf, kind: &str| package.extension().is_some_and(|it| it == kind);
    let (apt, dnf) = (output.join("apt"), output.join("dnf"));
    for package in packages.iter().filter(|package| is(package, "deb")) {
        copy(package, &apt.join("pool"))?;
    }
    for_apt(content, &keyring, &apt)?;
    for package in packages.iter().filter(|package| is(package, "rpm")) {
        let copy = copy(package, &dnf)?;
        keyring.sign_package(&copy)?;
        // The list has the times of the files.
        let epoch = Duration::from_secs(content.epoch.parse().context("the time of the commit")?);
        File::options().write(true).open(&copy)?.set_modified(SystemTime::UNIX_EPOCH + epoch)?;
    }
    for_dnf(content, &keyring, &dnf)
}

fn copy(package: &Path, directory: &Path) -> Result<PathBuf> {
    let to = directory.join(package.file_name().context("a package is a file")?);
    write(&to, &fs::read(package)?, 0o644)?;
    Ok(to)
}

/// Lists the packages of `pool`, and signs the list.
fn for_apt(content: &Content<'_>, keyring: &Keyring, apt: &Path) -> Result<()> {
    let path = keyring.toolbox.path()?;
    let archive = |arguments: &[&str]| {
        let mut command = Command::new("apt-ftparchive");
        command.env("PATH", &path).current_dir(apt).args(arguments);
        process::output(&mut command)
    };
    let own = process::output(Command::new("dpkg").arg("--print-architecture"))?;
    let own = own.trim();
    let dists = apt.join("dists").join(SUITE);
    let list = archive(&["packages", "pool"])?;
    let directory = dists.join(COMPONENT).join(format!("binary-{own}"));
    write(&directory.join("Packages"), list.as_bytes(), 0o644)?;
    let options = [
        format!("Date={}", content.date("+%a, %d %b %Y %H:%M:%S UTC")?),
        "Origin=ibarr".to_owned(),
        "Label=ibarr".to_owned(),
        format!("Suite={SUITE}"),
        format!("Codename={SUITE}"),
        format!("Components={COMPONENT}"),
        format!("Architectures={own}"),
    ];
    let options = options.map(|option| format!("APT::FTPArchive::Release::{option}"));
    let mut arguments: Vec<_> = options.iter().flat_map(|option| ["-o", option]).collect();
    let directory = format!("dists/{SUITE}");
    arguments.extend(["release", &directory]);
    let release = dists.join("Release");
    let text = archive(&arguments)?;
    write(&release, text.as_bytes(), 0o644)?;
    keyring.sign(&release, &["--clearsign"], &dists.join("InRelease"))?;
    keyring.sign(&release, &["--armor", "--detach-sign"], &dists.join("Release.gpg"))
}

/// Lists the packages in the directory, and signs the list.
fn for_dnf(content: &Content<'_>, keyring: &Keyring, dnf: &Path) -> Result<()> {
    let mut createrepo = Command::new("createrepo_c");
    createrepo.env("PATH", keyring.toolbox.path()?);
    createrepo.args(["--quiet", "--no-database", "--set-timestamp-to-revision"]);
    createrepo.args(["--revision", &content.epoch, "--workers", "1"]).arg(dnf);
    process::output(&mut createrepo)?;
    let list = dnf.join("repodata/repomd.xml");
    keyring.sign(&list, &["--armor", "--detach-sign"], &dnf.join("repodata/repomd.xml.asc"))
}

/// A directory of gpg with one key. Its agent ends with it.
struct Keyring {
    toolbox: Toolbox,
    /// Its path is short, because the agent has a socket in it.
    home: tempfile::TempDir,
    /// Fingerprint of the key; empty before there is one.
    key: String,
    /// The time that signatures have, in seconds.
    time: u64,
}

impl Keyring {
    fn new(content: &Content<'_>) -> Result<Self> {
        Ok(Self {
            toolbox: tools::ensure(content.workspace, &[&tools::REPOSITORY, &tools::RPM])?,
            home: tempfile::tempdir().context("a directory for gpg")?,
            key: String::new(),
            time: 0,
        })
    }

    fn gpg(&self) -> Result<Command> {
        let mut gpg = self.command("gpg")?;
        gpg.args(["--batch", "--quiet", "--no-tty"]);
        gpg.args(["--pinentry-mode", "loopback", "--passphrase", ""]);
        gpg.arg("--agent-program").arg(self.program("gpg-agent")?);
        Ok(gpg)
    }

    fn command(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(self.program(name)?);
        command.env("PATH", self.toolbox.path()?).env("GNUPGHOME", self.home.path());
        Ok(command)
    }

    fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.toolbox.path()?;
        let mut programs = std::env::split_paths(&path).map(|directory| directory.join(name));
        programs.find(|program| program.is_file()).with_context(|| format!("{name} is not there"))
    }

    /// Makes a key for tests, and writes it to `file`.
    fn generate(&self, file: &Path) -> Result<()> {
        let kind =
            ["--quick-generate-key", "test <test@ibarr.example>", "rsa2048", "sign", "never"];
        process::output(self.gpg()?.args(kind))?;
        let key = process::output(self.gpg()?.args(["--armor", "--export-secret-keys"]))?;
        write(file, key.as_bytes(), 0o600)
    }

    /// Takes the key of a `file`, to sign at the time `epoch`.
    fn import(&mut self, file: &Path, epoch: u64) -> Result<()> {
        process::output(self.gpg()?.arg("--import").arg(file))?;
        let list = process::output(self.gpg()?.args(["--with-colons", "--list-secret-keys"]))?;
        let field = |record: &str, index: usize| {
            let mut lines = list.lines().map(|line| line.split(':'));
            let line = lines.find(|line| line.clone().next() == Some(record));
            let field = line.and_then(|mut line| line.nth(index));
            field.with_context(|| format!("{} has no secret key", file.display()))
        };
        field("fpr", 9)?.clone_into(&mut self.key);
        let made: u64 = field("sec", 5)?.parse().context("the time of the key")?;
        self.time = epoch.max(made);
        Ok(())
    }

    /// Options of a signature. The clock stands still meanwhile.
    fn options(&self) -> [String; 4] {
        let time = format!("{}!", self.time);
        ["--faked-system-time".to_owned(), time, "--digest-algo".to_owned(), "SHA256".to_owned()]
    }

    fn public_key(&self) -> Result<Vec<u8>> {
        Ok(process::output(self.gpg()?.args(["--armor", "--export"]))?.into_bytes())
    }

    fn sign(&self, file: &Path, how: &[&str], signature: &Path) -> Result<()> {
        let mut gpg = self.gpg()?;
        gpg.args(self.options()).args(how).arg("--output").arg(signature).arg(file);
        process::output(&mut gpg)?;
        ensure!(signature.is_file(), "gpg wrote no {}", signature.display());
        Ok(())
    }

    /// Puts a signature into an RPM.
    fn sign_package(&self, package: &Path) -> Result<()> {
        let mut rpm = self.command("rpmsign")?;
        if let Some(root) = self.toolbox.root(&tools::RPM) {
            rpm.env("RPM_CONFIGDIR", root.join("usr/lib/rpm"));
        }
        let agent = self.program("gpg-agent")?;
        let extra = format!("{} --agent-program {}", self.options().join(" "), agent.display());
        let gpg = self.program("gpg")?;
        for (name, value) in [
            ("_gpg_name", self.key.as_str()),
            ("__gpg", gpg.to_str().context("the path of gpg is not UTF-8")?),
            ("_gpg_sign_cmd_extra_args", &extra),
        ] {
            rpm.arg("--define").arg(format!("{name} {value}"));
        }
        process::output(rpm.arg("--addsign").arg(package)).map(drop)
    }
}

impl Drop for Keyring {
    fn drop(&mut self) {
        if let Ok(mut gpgconf) = self.command("gpgconf") {
            // The agent ends by itself, too, once its directory is gone.
            drop(gpgconf.args(["--kill", "gpg-agent"]).stderr(Stdio::null()).status());
        }
    }
}
