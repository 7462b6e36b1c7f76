// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The command line: parses arguments, asks the daemon or runs it, and prints.

mod ask;
mod configuration;
mod counters;
mod doctor;
mod exit;
mod fleet;
mod gid;
mod import;
mod kernel;
mod metrics;
mod ping;
mod print;
mod resolve;
mod source;
mod status;
mod table;
mod targets;
mod times;
mod top;
mod trace;
mod verify;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};
use ibarr_common::ib::{Gid, PKey};
use ibarr_proto::paths::{PKeyNumber, Partial, PortName};

use self::counters::CountersArgs;
use self::fleet::FleetArgs;
use self::gid::GidArgs;
use self::metrics::{ExporterArgs, MetricsArgs};
use self::ping::PingArgs;
use self::resolve::ResolveArgs;
use self::top::TopArgs;
use self::trace::TraceArgs;
use crate::bpf;
use crate::causes::Fault;
use crate::config::Absent;
use crate::control::client::{Connection, PATIENCE};
use crate::control::messages::{Body, Failure, FailureKind, LevelChange, Millis, Request};
use crate::daemon;
use crate::logging::{self, Level, Sink};
use crate::process::{self, RunOptions};
use crate::transport::ports::Dirs;
use crate::units;
pub use exit::Exit;

/// Path of the configuration file; without the file, the defaults apply.
const CONFIG: &str = "/etc/ibarr/ibarr.toml";

/// Resolves InfiniBand addresses and routes: answers the kernel and the peers' ibarr.
#[derive(Debug, Parser)]
#[command(
    name = "ibarr",
    version,
    disable_version_flag = true,
    args_conflicts_with_subcommands = true,
    after_help = EXIT_CODES
)]
struct Cli {
    /// Print version
    #[arg(short, short_alias = 'V', long, action = ArgAction::Version)]
    version: (),
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

const EXIT_CODES: &str = "Without a command, ibarr runs as the daemon.

Exit status: 0 all answered, 1 some address has no GID, no path leads there, something contradicts it, or a
line of ibacm was not understood, 2 doctor has found a failure, 64 wrong usage, 66 this machine lacks what was named, 69 no daemon, or an interface has not taken
its GID, 70 internal error, 74 standard output cannot be written, 75 another
daemon has the directory, 77 not allowed, 78 mistakes in the configuration.
ibarr status --check exits as a plug-in of Nagios does: 0 all works, 1 degraded, 2 failed, 3 not known, or
the daemon cannot be asked.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run as the daemon
    Run(RunArgs),
    /// Ask the daemon for the GID of each address or host
    Resolve(ResolveArgs),
    /// Ask a peer again and again, past the daemon's memory
    Ping(PingArgs),
    /// Ask many nodes at the same time, past the daemon's memory, and compare their answers
    Fleet(FleetArgs),
    /// Ask the daemon which path leads to a GID
    Path {
        /// Destination GID
        dgid: Gid,
        /// Source GID, instead of the port's first
        #[arg(long, value_name = "GID")]
        sgid: Option<Gid>,
        /// Port, like mlx5_0/1, instead of the first that has a subnet administrator
        #[arg(long, value_name = "DEVICE/N")]
        port: Option<PortName>,
        /// Partition key, like 0x8001, instead of the port's first
        #[arg(long, value_name = "KEY")]
        pkey: Option<PKey>,
        /// Ask the subnet administrator, even if the daemon remembers its answer
        #[arg(long)]
        fresh: bool,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Show the InfiniBand ports, and whether their subnet administrators can be asked
    Ports(Daemon),
    /// Show what works, what does not work since when and why, and what to do
    Status {
        /// Print one line as a plug-in of Nagios, and exit with 0 if all works, 1 if something is
        /// degraded, 2 if something has failed, 3 if it is not known or the daemon cannot be asked
        #[arg(long, conflicts_with_all = ["watch", "all"])]
        check: bool,
        /// Check again for at most this long, like 10s, until all works
        #[arg(long, value_name = "TIME", requires = "check", value_parser = patience)]
        wait: Option<Duration>,
        /// Cause that does not count, like port-down; may be given several times
        #[arg(long, value_name = "CAUSE", requires = "check")]
        accept: Vec<String>,
        /// Print it again and again, every 2 seconds or as often as said, until it is interrupted
        #[arg(
            long,
            value_name = "SECONDS",
            num_args = 0..=1,
            default_missing_value = "2",
            value_parser = clap::value_parser!(u16).range(1..)
        )]
        watch: Option<u16>,
        /// Show all that is known, however many lines it has
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Show the addresses that the daemon has learned
    Cache {
        /// Forget all addresses and paths instead (root and group ibarr)
        #[arg(long)]
        flush: bool,
        /// Show the learned paths instead
        #[arg(long, conflicts_with_all = ["flush", "kernel"])]
        paths: bool,
        /// Show the responder's maps in the kernel instead: works without the daemon (needs root)
        #[arg(long, conflicts_with = "flush")]
        kernel: bool,
        /// Directory of the maps
        #[arg(long, value_name = "DIR", env = "IBARR_BPF_DIR", default_value = bpf::BPF_DIR)]
        bpf_dir: PathBuf,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Examine what a connection needs, in the order in which it needs it, and say what to do
    Doctor {
        /// Also examine the way to this address, host name or GID; %IF stands for an interface
        #[arg(long, value_name = "IP|NAME|GID")]
        peer: Option<doctor::Peer>,
        /// Also write all that a report of a fault needs to this file, which must not exist, without names and
        /// addresses
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
        /// Directory of the maps and links, if no daemon can be asked for it
        #[arg(long, value_name = "DIR", env = "IBARR_BPF_DIR", default_value = bpf::BPF_DIR)]
        bpf_dir: PathBuf,
        /// Directory where sysfs is mounted
        #[arg(long, value_name = "DIR", env = "IBARR_SYS_DIR", default_value = "/sys")]
        sys_dir: PathBuf,
        /// Directory of device files, such as infiniband/umad0
        #[arg(long, value_name = "DIR", env = "IBARR_DEV_DIR", default_value = "/dev")]
        dev_dir: PathBuf,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Show which GID an IPoIB interface has and which routers need, or give it another one (needs root)
    Gid(GidArgs),
    /// Show what happens to each request from now on (root and group ibarr)
    Trace(TraceArgs),
    /// Show the daemon's counters that are not 0
    Counters(CountersArgs),
    /// Watch what the daemon does: rates, memory, peers, subnet administrators, errors
    Top(TopArgs),
    /// Show the metrics, as Prometheus reads them
    Metrics(MetricsArgs),
    /// Serve the metrics to other machines, as a process without rights
    Exporter(ExporterArgs),
    /// Stop answering in the kernel and remove all that daemons have left there (needs root; no
    /// daemon may be running)
    Detach {
        /// Directory of the maps and links
        #[arg(long, value_name = "DIR", env = "IBARR_BPF_DIR", default_value = bpf::BPF_DIR)]
        bpf_dir: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Make the daemon read its configuration again (root and group ibarr)
    Reload(Daemon),
    /// Show what the daemon logs, or set it (root and group ibarr)
    LogLevel {
        /// What to log: 0 all, 1 info, 2 warnings, 3 errors, or a filter like ibarr=debug
        level: Option<Level>,
        /// How long to log it, like 5m, instead of until the daemon ends
        #[arg(long = "for", value_name = "TIME", requires = "level", value_parser = patience)]
        time: Option<Duration>,
        /// Log what the command line or the configuration says
        #[arg(long, conflicts_with = "level")]
        reset: bool,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Show every key of the configuration, and where its value comes from
    Config {
        /// Configuration file, with the directory beside it (ibarr.d for ibarr.toml) [default:
        /// /etc/ibarr/ibarr.toml]
        file: Option<PathBuf>,
        /// Show only what files set, and not the defaults
        #[arg(long)]
        changed: bool,
        /// Ask the daemon for the configuration that it runs with (root and group ibarr)
        #[arg(long, conflicts_with = "file")]
        running: bool,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Make a configuration from that of ibacm, and say what became of each line
    ImportIbacm {
        /// Directory of ibacm_opts.cfg and ibacm_addr.cfg
        #[arg(default_value = "/etc/rdma")]
        dir: PathBuf,
        /// Write the configuration to this file, which must not exist, instead of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Check the configuration for mistakes
    Validate {
        /// Configuration file, with the directory beside it (ibarr.d for ibarr.toml), or - for standard input
        /// [default: /etc/ibarr/ibarr.toml]
        file: Option<PathBuf>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
struct RunArgs {
    /// Configuration file; one with a minus before it, like -/etc/x.toml, may be absent [default:
    /// -/etc/ibarr/ibarr.toml]
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    config: Option<PathBuf>,
    /// Do not answer the kernel's requests, as in another network namespace than the machine's first, from which the
    /// kernel takes no answers
    #[arg(long)]
    no_local_service: bool,
    /// What to log: 0 all, 1 info, 2 warnings, 3 errors, or a filter like ibarr=debug [default: as configured, or 1]
    #[arg(short, long = "log", visible_alias = "level", value_name = "LEVEL")]
    level: Option<Level>,
    /// Where the log goes
    #[arg(long, value_enum, value_name = "PLACE", default_value_t)]
    log_to: Sink,
    /// Directory of the control socket
    #[arg(long, value_name = "DIR", env = "IBARR_RUN_DIR", default_value = units::RUN_DIR)]
    run_dir: PathBuf,
    /// Directory on a bpffs of the maps and links that outlive the daemon
    #[arg(long, value_name = "DIR", env = "IBARR_BPF_DIR", default_value = bpf::BPF_DIR)]
    bpf_dir: PathBuf,
    /// Directory where sysfs is mounted
    #[arg(long, value_name = "DIR", env = "IBARR_SYS_DIR", default_value = "/sys")]
    sys_dir: PathBuf,
    /// Directory of device files, such as infiniband/umad0
    #[arg(long, value_name = "DIR", env = "IBARR_DEV_DIR", default_value = "/dev")]
    dev_dir: PathBuf,
    /// BPF object to load instead of the built-in one
    #[arg(long, value_name = "FILE", env = "IBARR_BPF_OBJECT", hide = true)]
    bpf_object: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct Daemon {
    /// Directory of the daemon's control socket
    #[arg(long, value_name = "DIR", env = "IBARR_RUN_DIR", default_value = units::RUN_DIR)]
    run_dir: PathBuf,
    /// How long to wait for the daemon to answer, like 5s [default: 30s, and 1500ms for status]
    #[arg(long = "daemon-timeout", value_name = "TIME", value_parser = patience)]
    patience: Option<Duration>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Daemon {
    fn patience(&self) -> Duration {
        self.patience.unwrap_or(PATIENCE)
    }

    fn connect(&self) -> Result<Connection, Failure> {
        let connection = Connection::open(&self.run_dir, self.patience());
        connection.map_err(|failure| ask::with_reason(failure, self))
    }

    fn ask(&self, request: &Request) -> Result<Body, Failure> {
        self.connect()?.ask(request, |_| ())
    }
}

/// The command line as clap knows it, for completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print::end(refuse(&error)).into(),
    };
    let command = cli.command.unwrap_or(Command::Run(cli.run));
    if !matches!(command, Command::Run(_)) {
        process::release_hangups();
    }
    let exit = match command {
        Command::Run(args) => run(args),
        Command::Resolve(args) => resolve::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Path { dgid, sgid, port, pkey, fresh, daemon } => {
            let path = Partial { dgid, sgid, port, pkey: pkey.map(PKeyNumber), fresh };
            ask::ask(&daemon, &Request::Path { path })
        }
        Command::Ports(daemon) => ask::ask(&daemon, &Request::Ports),
        Command::Status { check: true, wait, accept, daemon, .. } => {
            status::check(&daemon, wait, &accept)
        }
        Command::Status { watch: Some(seconds), all, daemon, .. } => {
            status::watch(&daemon, Duration::from_secs(seconds.into()), all)
        }
        Command::Status { all, daemon, .. } => status::show(&daemon, all),
        Command::Cache { kernel: true, bpf_dir, daemon, .. } => kernel::show(&bpf_dir, daemon.json),
        Command::Cache { paths: true, daemon, .. } => ask::paths(&daemon),
        Command::Cache { flush: false, daemon, .. } => ask::addresses(&daemon),
        Command::Cache { flush: true, daemon, .. } => ask::ask(&daemon, &Request::Flush),
        Command::Doctor { peer, report, bpf_dir, sys_dir, dev_dir, daemon } => {
            let dirs = Dirs { sys: sys_dir, dev: dev_dir };
            doctor::examine(&daemon, &dirs, &bpf_dir, peer, report.as_deref())
        }
        Command::Gid(args) => gid::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Metrics(args) => metrics::metrics(&args),
        Command::Exporter(args) => metrics::serve(args),
        Command::Counters(args) => counters::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Reload(daemon) => ask::ask(&daemon, &Request::Reload),
        Command::LogLevel { level, time, reset, daemon } => {
            let for_ms = time.map(Millis::from);
            let change = (reset || level.is_some()).then_some(LevelChange { level, for_ms });
            ask::ask(&daemon, &Request::LogLevel { change })
        }
        Command::Detach { bpf_dir, json } => kernel::detach(&bpf_dir, json),
        Command::Config { file, changed, running, daemon } => {
            let file = (!running).then(|| place(file));
            configuration::show(file, changed, &daemon)
        }
        Command::ImportIbacm { dir, output, json } => import::import(&dir, output.as_deref(), json),
        Command::Validate { file, json } => configuration::validate(file, json),
    };
    print::end(exit).into()
}

/// The file that a user names has to exist.
fn place(file: Option<PathBuf>) -> (PathBuf, Absent) {
    file.map_or_else(|| (CONFIG.into(), Absent::Allowed), |file| (file, Absent::Refused))
}

/// The same, but it may be absent if a minus is before it, as systemd.exec(5) has it.
fn as_in_a_unit(file: Option<PathBuf>) -> (PathBuf, Absent) {
    let (file, absent) = place(file);
    match file.as_os_str().as_bytes().strip_prefix(b"-") {
        Some(path) => (OsStr::from_bytes(path).into(), Absent::Allowed),
        None => (file, absent),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let is_fit = Duration::from_millis(1) <= timeout && timeout <= Request::MAX_TIMEOUT;
    if is_fit { Ok(timeout) } else { Err("must be from 1ms to 60s".to_owned()) }
}

fn patience(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let longest = Duration::from_hours(24);
    let is_sensible = !time.is_zero() && time <= longest;
    is_sensible.then_some(time).ok_or_else(|| "between 1ms and 1day".to_owned())
}

fn run(args: RunArgs) -> Exit {
    let (config, absent) = as_in_a_unit(args.config);
    let options = RunOptions {
        config,
        absent,
        local_service: !args.no_local_service,
        run_dir: args.run_dir,
        bpf_dir: args.bpf_dir,
        dirs: Dirs { sys: args.sys_dir, dev: args.dev_dir },
        bpf_object: args.bpf_object,
        level: args.level,
        log_to: args.log_to,
        descriptors: process::Budget::take(),
    };
    match daemon::run(&options) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            let message = Fault::from(&error).to_string();
            process::report_failure(&message);
            if !logging::report_failure(&message) {
                print::error_line(&message);
            }
            Exit::from(error.kind())
        }
    }
}

/// clap exits with 2 on wrong usage, which sysexits(3) does not define. Errors are JSON if `--json`
/// was given.
fn refuse(error: &clap::Error) -> Exit {
    let help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if help {
        print::note(error.print());
        return Exit::Ok;
    }
    let is_json = |argument: &OsString| argument == "--json" || argument == "--json-lines";
    if std::env::args_os().any(|argument| is_json(&argument)) {
        print::json(&Failure { kind: FailureKind::Usage, message: error.to_string() }.into());
    } else {
        drop(error.print());
    }
    FailureKind::Usage.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn manual_names_every_command_and_every_option() {
        let manual = include_str!("../../../docs/man/ibarr.8.md");
        let mut ibarr = command();
        ibarr.build();
        let is_shown = |argument: &&clap::Arg| !argument.is_hide_set();
        for command in ibarr.get_subcommands().filter(|command| command.get_name() != "help") {
            let name = command.get_name();
            assert!(manual.contains(&format!("\n**{name}**")), "{name} is not in ibarr.8.md");
            for option in command.get_arguments().filter(is_shown).filter_map(clap::Arg::get_long) {
                let is_there = manual.contains(&format!("--{option}**")) || option == "help";
                assert!(is_there, "--{option} of {name} is not in ibarr.8.md");
            }
        }
    }

    #[test]
    fn without_a_command_ibarr_runs_as_the_daemon() {
        let cli = Cli::try_parse_from(["ibarr", "-l", "3", "--config", "x.toml"]).unwrap();
        assert!(cli.command.is_none());
        assert_eq!(cli.run.config, Some("x.toml".into()));
    }

    #[test]
    fn configuration_may_be_absent_by_default_or_after_a_minus() {
        let place = |words: &[&str]| {
            let cli = Cli::try_parse_from([&["ibarr", "run"], words].concat()).unwrap();
            let Some(Command::Run(args)) = cli.command else { panic!("{words:?}") };
            as_in_a_unit(args.config)
        };
        assert_eq!(place(&[]), (CONFIG.into(), Absent::Allowed));
        assert_eq!(place(&["--config", "x.toml"]), ("x.toml".into(), Absent::Refused));
        for words in [&["--config=-/etc/x.toml"][..], &["--config", "-/etc/x.toml"]] {
            assert_eq!(place(words), ("/etc/x.toml".into(), Absent::Allowed));
        }
    }

    #[test]
    fn options_of_the_c_original_are_understood() {
        for option in ["-l", "--log", "--level"] {
            let cli = Cli::try_parse_from(["ibarr", option, "0"]).unwrap();
            assert_eq!(cli.run.level, Some("0".parse().unwrap()), "{option}");
        }
        for (option, kind) in [
            ("-v", ErrorKind::DisplayVersion),
            ("--version", ErrorKind::DisplayVersion),
            ("-h", ErrorKind::DisplayHelp),
            ("--help", ErrorKind::DisplayHelp),
        ] {
            assert_eq!(Cli::try_parse_from(["ibarr", option]).unwrap_err().kind(), kind);
        }
    }

    #[test]
    fn command_without_its_argument_is_refused() {
        for command in ["resolve", "ping", "fleet", "path"] {
            assert!(Cli::try_parse_from(["ibarr", command]).is_err(), "{command}");
        }
    }
}
