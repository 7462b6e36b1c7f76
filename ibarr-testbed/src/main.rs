// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The `ibarr-testbed` command; `cargo xtask lab`, `run` and `bench` start it.

#![forbid(unsafe_code)]

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use ibarr_common::ib::Gid;
use ibarr_testbed::interrupt::Interrupt;
use ibarr_testbed::lab::{self, Lab, LabName, Phase, Plan, Status, Store, userns};
use ibarr_testbed::{bench, crowd, demo, monitor};

/// Labs, demonstration and benches of ibarr on one machine
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Place {
    /// Work as an ordinary user, inside a user namespace: no BPF
    #[arg(long, global = true)]
    userns: bool,
    /// Where labs keep their files [default: /run/ibarr-lab, or below $XDG_RUNTIME_DIR or $TMPDIR]
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Nodes in network namespaces, each with an ibarr
    #[command(subcommand)]
    Lab(LabCommand),
    /// Measure costs, with ratios first
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Make two nodes resolve each other across a router, and show every byte
    Demo {
        /// End after the first round
        #[arg(long)]
        once: bool,
        /// Name of the lab
        #[arg(long, default_value = "demo")]
        name: LabName,
        #[command(flatten)]
        ibarr: Ibarr,
    },
    /// Make Prometheus scrape four nodes through a storm, and check the alerts and the dashboard
    Monitor {
        /// Directory with prometheus/ibarr.rules.yml and grafana/ibarr.json
        #[arg(long, value_name = "DIR")]
        contrib: PathBuf,
        /// Name of the lab
        #[arg(long, default_value = "monitor")]
        name: LabName,
        #[command(flatten)]
        ibarr: Ibarr,
    },
    /// Open as many connections to a control socket as one user can
    #[command(hide = true)]
    Crowd {
        #[arg(long)]
        socket: PathBuf,
        #[arg(long)]
        connections: usize,
        /// The text to send on each connection
        #[arg(long)]
        text: String,
        /// Ask again after each answer
        #[arg(long)]
        again: bool,
    },
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Costs of answering peers, compared with a UDP echo server, and look-ups in the client's cache
    Ip2gid(Measurement),
    /// Costs of the kernel's address requests with known answers, compared with an echo server
    Resolve(Measurement),
    /// Costs of path requests: from the cache and from a subnet administrator
    Paths(Measurement),
    /// Requests of ACM a second with 1, 100 and 10,000 clients, compared with servers that only send back
    AcmRate(Measurement),
    /// Costs of an answer in the kernel, compared with a program that only sends back
    Responder(Measurement),
    /// Costs of addresses that come and go, compared with `ip monitor`
    Addresses(Measurement),
    /// Instructions of the daemon for an answer from memory, by callgrind
    Instructions {
        /// Only the loads whose figures are the same in each run, which `cargo xtask test instructions` compares
        #[arg(long)]
        steady: bool,
        /// Count the system calls instead, by strace
        #[arg(long, conflicts_with = "steady")]
        system_calls: bool,
        #[command(flatten)]
        how: Measurement,
    },
    /// Time of `ibarr fleet` to look at 10,000 nodes through losses
    Fleet(Measurement),
    /// Time and memory to know a fabric from files
    Preload(Measurement),
    /// CPU time of a node for an answer to a peer, to that of the calls of the C ibarr
    Answers(Measurement),
    /// A server for comparison, with the system calls of the C ibarr
    #[command(hide = true)]
    LikeC {
        #[arg(long)]
        gid: Gid,
    },
    /// An echo server for comparison
    #[command(hide = true)]
    Echo {
        #[arg(long)]
        port: u16,
    },
    /// An echo server for the datagrams of the socket on standard input
    #[command(hide = true)]
    LsEcho,
    /// A server for comparison, with the daemon's own code
    #[command(hide = true)]
    AcmEcho {
        #[arg(long)]
        socket: PathBuf,
    },
    /// A server for comparison, with the fewest system calls
    #[command(hide = true)]
    AcmPlain {
        #[arg(long)]
        socket: PathBuf,
    },
    /// Clients of one user
    #[command(hide = true)]
    AcmClients {
        #[arg(long)]
        socket: PathBuf,
        #[arg(long)]
        clients: usize,
        #[arg(long)]
        user: u32,
        #[arg(long)]
        asks: Option<usize>,
        #[arg(long)]
        endpoint: bool,
    },
}

#[derive(Args)]
struct Measurement {
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run for seconds instead of minutes: only shows that the bench works
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    ibarr: Ibarr,
}

#[derive(Subcommand)]
enum LabCommand {
    /// Make a lab and leave it up
    Up {
        /// Number of nodes: n1, n2, …
        #[arg(long, default_value_t = 2, value_name = "N")]
        nodes: u8,
        /// Split the nodes between two subnets, with an IP router (r) between them
        #[arg(long)]
        router: bool,
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        ibarr: Ibarr,
    },
    /// Run a command on a node, or on the router (r)
    Exec {
        #[command(flatten)]
        name: Name,
        /// n1, n2, … or r
        node: String,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Show a lab's nodes and whether their daemons run
    Status {
        #[command(flatten)]
        name: Name,
        /// As one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Remove a lab and everything in it, also a half-made lab
    Down {
        #[command(flatten)]
        name: Name,
    },
    /// List the labs
    List,
}

#[derive(Args)]
struct Name {
    /// Name of the lab
    #[arg(long, default_value = "lab")]
    name: LabName,
}

#[derive(Args)]
struct Ibarr {
    /// The daemon [default: `ibarr` beside this program, or on PATH]
    #[arg(long, value_name = "PATH")]
    ibarr: Option<PathBuf>,
}

impl Ibarr {
    fn find(self) -> Result<PathBuf> {
        if let Some(path) = self.ibarr {
            return Ok(path);
        }
        let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
        let path = env::var_os("PATH").unwrap_or_default();
        beside
            .into_iter()
            .chain(env::split_paths(&path))
            .map(|directory| directory.join("ibarr"))
            .find(|ibarr| ibarr.is_file())
            .context("no `ibarr` beside this program or on PATH: `cargo build -p ibarr-user`, or give --ibarr PATH")
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ibarr-testbed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(Cli { place, command }: Cli) -> Result<ExitCode> {
    let store = match &place.state_dir {
        Some(path) => Store::at(path)?,
        None => Store::of_caller(),
    };
    match command {
        Command::Lab(command) => run_lab(&store, place.userns, command),
        Command::Bench(command) => run_bench(&store, place.userns, command),
        Command::Demo { once, name, ibarr } => {
            enter_userns(place.userns)?;
            let interrupt = Interrupt::watch()?;
            demo::run(&store, &name, &ibarr.find()?, once, &interrupt, &mut io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Monitor { contrib, name, ibarr } => {
            enter_userns(place.userns)?;
            let (ibarr, interrupt) = (ibarr.find()?, Interrupt::watch()?);
            monitor::run(&store, &name, &ibarr, &contrib, &interrupt, &mut io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Crowd { socket, connections, text, again } => {
            crowd::press(&socket, connections, &text, again)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn enter_userns(wanted: bool) -> Result<()> {
    if wanted {
        userns::enter()?;
        eprintln!("{}", userns::LACKS);
    }
    Ok(())
}

fn run_bench(store: &Store, userns: bool, command: BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Ip2gid(how) => how.take(store, userns, bench::ip2gid)?,
        BenchCommand::Resolve(how) => how.take(store, userns, bench::resolve)?,
        BenchCommand::Paths(how) => how.take(store, userns, bench::paths)?,
        BenchCommand::Responder(how) => how.take(store, false, bench::responder)?,
        BenchCommand::Answers(how) => how.take(store, false, bench::answers)?,
        BenchCommand::LikeC { gid } => match bench::like_c::serve(gid)? {},
        BenchCommand::Addresses(how) => how.take(store, false, bench::addresses)?,
        BenchCommand::Instructions { steady, system_calls, how } => {
            let what = match (steady, system_calls) {
                (true, _) => bench::Counted::Steady,
                (_, true) => bench::Counted::SystemCalls,
                _ => bench::Counted::Instructions,
            };
            how.take(store, userns, |store, ibarr, quick, interrupt| {
                bench::instructions(store, ibarr, quick, what, interrupt)
            })?;
        }
        BenchCommand::Fleet(how) => how.take(store, userns, bench::fleet)?,
        BenchCommand::Preload(how) => how.take(store, false, bench::preload)?,
        BenchCommand::AcmRate(how) => how.take(store, userns, bench::acm)?,
        BenchCommand::AcmEcho { socket } => bench::acm_echo::serve(&socket)?,
        BenchCommand::AcmPlain { socket } => match bench::acm_echo::plain(&socket)? {},
        BenchCommand::AcmClients { socket, clients, user, asks, endpoint } => {
            let what = if endpoint { bench::What::Endpoint } else { bench::What::Path };
            bench::acm_clients(&socket, clients, user, what, asks)?;
        }
        BenchCommand::Echo { port } => bench::echo::serve(port)?,
        BenchCommand::LsEcho => {
            let socket = io::stdin().as_fd().try_clone_to_owned().context("no standard input")?;
            bench::echo_local_service(&socket)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Measurement {
    /// Measures, and prints or writes the figures.
    fn take(
        self,
        store: &Store,
        userns: bool,
        measure: impl Fn(&Store, &Path, bool, &Interrupt) -> Result<bench::Report>,
    ) -> Result<()> {
        enter_userns(userns)?;
        let report = measure(store, &self.ibarr.find()?, self.quick, &Interrupt::watch()?)?;
        print!("{report}");
        if let Some(path) = &self.json {
            fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

fn run_lab(store: &Store, userns: bool, command: LabCommand) -> Result<ExitCode> {
    match command {
        LabCommand::Up { nodes, router, name: Name { name }, ibarr } => {
            enter_userns(userns)?;
            let plan = Plan::new(name.clone(), nodes, router)?;
            let lab = Lab::up(store, plan, &ibarr.find()?, &Interrupt::watch()?)?;
            drop(lab);
            print!("{}", Status::of(store, &name)?);
        }
        LabCommand::Exec { name: Name { name }, node, command } => {
            userns::join(store, &name)?;
            match lab::exec(store, &name, &node, &command)? {}
        }
        LabCommand::Status { name: Name { name }, json } => {
            let status = Status::of(store, &name)?;
            if json {
                println!("{}", serde_json::to_string_pretty(&status)?);
            } else {
                print!("{status}");
            }
            let sound = status.phase == Phase::Up && status.nodes.iter().all(|node| node.running);
            return Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        LabCommand::Down { name: Name { name } } => {
            if !userns::is_gone(store, &name) {
                userns::join(store, &name)?;
            }
            let _uninterrupted = Interrupt::watch()?;
            match Lab::open(store, &name)? {
                Some(lab) => lab.down()?,
                None => eprintln!("no lab {name}: nothing to remove"),
            }
        }
        LabCommand::List => {
            for name in store.names()? {
                println!("{name}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
