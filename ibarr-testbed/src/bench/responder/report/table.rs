// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The report as tables.

use std::fmt::{self, Display, Formatter};

use super::super::super::head::Target;
use super::super::super::head::short;
use super::super::super::report::float;
use super::super::wire::Server;
use super::{Program, Report};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        self.programs(f)?;
        self.servers(f)?;
        self.daemon(f)?;
        self.bulk(f)
    }
}

impl Report {
    fn programs(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<12}{:<6}{:<22}{:>8}{:>8}{:>11}{:>8}{:>12}   target",
            "program", "", "node", "ns", "net", "to bounce", "net", "to rewrite"
        )?;
        for program in &self.programs {
            let Program { name, family, ns, net_ns, .. } = program;
            let node = program.node();
            write!(f, "{name:<12}{family:<6}{node:<22}{ns:>8.1}{net_ns:>8.1}")?;
            let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
            match program.to_bounce {
                Some(to_bounce) => writeln!(
                    f,
                    "{to_bounce:>11.2}{:>8}{:>12}   {}",
                    ratio(program.net_to_bounce),
                    ratio(program.net_to_rewrite),
                    Target::AtMost(2.0).held_against(to_bounce)
                )?,
                None => writeln!(f)?,
            }
        }
        writeln!(
            f,
            "  Medians; {} runs of each, each on a frame from another peer. Net: without the time of\n  \
             an empty program, and so are the two ratios behind it. bounce checks\n  \
             nothing, swaps addresses and ports, and sends back; rewrite sends as many bytes as a\n  \
             reply has. `any`: each query is for another address of the node, and comes from memory.",
            self.runs
        )
    }

    fn servers(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<12}{:<6}{:>8}{:>14}{:>12}{:>9}{:>9}{:>9}{:>9}{:>6}   target",
            "server",
            "",
            "CPU ns",
            "answers/CPU-s",
            "to user",
            "p50 µs",
            "p90",
            "p99",
            "p99.9",
            "lost"
        )?;
        for server in &self.servers {
            let to_user = server.cpu_to_user_space;
            write!(
                f,
                "{:<12}{:<6}{:>8.0}{:>14}{:>12}",
                server.server.name(),
                server.family,
                server.cpu_ns,
                short(server.answers_per_cpu_second),
                to_user.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            )?;
            let late = &server.latency_us;
            for value in [late.p50, late.p90, late.p99, late.p999] {
                write!(f, "{:>9}", value.map_or("-".to_owned(), short))?;
            }
            write!(f, "{:>6}", late.lost)?;
            match to_user.filter(|_| matches!(server.server, Server::Tc | Server::Xdp)) {
                Some(ratio) => writeln!(f, "   {}", Target::AtMost(0.33).held_against(ratio))?,
                None => writeln!(f)?,
            }
        }
        writeln!(
            f,
            "  CPU time of an answer under a flood, of kernel and process, without that of the\n  \
             generator. Latencies from sockets at {}/s, from the time a query was due.",
            self.open_loop_per_second
        )
    }

    fn daemon(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<36}{:>12}{:>10}{:>12}{:>10}   target",
            "the daemon while the kernel answers", "CPU ms", "idle", "switches", "idle"
        )?;
        for daemon in &self.daemon {
            let name = format!("{} by {}", short(float(daemon.answers)), daemon.responder.name());
            let (switches, idle) = (daemon.context_switches, daemon.idle_context_switches);
            writeln!(
                f,
                "{name:<36}{:>12.2}{:>10.2}{switches:>12}{idle:>10}   {}",
                daemon.cpu_ms,
                daemon.idle_cpu_ms,
                Target::AtMost((float(idle) + daemon.seconds).ceil()).held_against(float(switches))
            )?;
        }
        writeln!(
            f,
            "  The target is as many switches as without queries, give or take one a second."
        )
    }

    fn bulk(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<30}{:>10}{:>10}", "TCP to the node with", "Gbit/s", "to none")?;
        for stream in &self.bulk_tcp {
            let name = format!("{}, {}", stream.attached.name(), stream.family);
            writeln!(f, "{name:<30}{:>10.2}{:>10.2}", stream.gigabits_per_second, stream.to_none)?;
        }
        Ok(())
    }
}

impl Program {
    /// The targets of the queries.
    fn node(&self) -> String {
        let Some(entries) = self.entries else { return String::new() };
        let which = if self.scattered { "any" } else { "one" };
        format!("{which} of {entries}")
    }
}
