// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! One picture.

use super::super::super::chart::{Aim, Bar, Chart, Scale, svg};
use super::super::programs::Hook;
use super::super::wire::Server;
use super::{Answering, Program, Report};

impl Report {
    /// One picture of it.
    pub fn svg(&self) -> String {
        let charts = [
            self.programs_at(Hook::Tc, "tc"),
            self.programs_at(Hook::Xdp, "XDP"),
            self.parts_chart(),
            self.cpu(),
            self.rates(),
            self.latencies(),
            self.streams(),
        ];
        svg(&self.head.heading(), &charts)
    }

    fn programs_at(&self, hook: Hook, name: &str) -> Chart {
        let programs: Vec<_> = self.programs.iter().filter(|program| program.is_at(hook)).collect();
        let bounce = programs.iter().find(|program| program.name.starts_with("bounce"));
        Chart {
            title: format!("Nanoseconds a run, {name}"),
            note: "by the kernel's account, which counts itself: see the empty program \
                   (shorter is better)"
                .to_owned(),
            unit: "nanoseconds",
            scale: Scale::Linear,
            aim: bounce.map(|bounce| Aim {
                value: 2.0 * bounce.ns,
                label: "target: at most twice the bounce".to_owned(),
            }),
            bars: (programs.iter())
                .map(|program| Bar {
                    label: label(program),
                    value: program.ns,
                    is_ours: program.is_ours(),
                })
                .collect(),
        }
    }

    fn parts_chart(&self) -> Chart {
        let is_part = |saves: f64| saves > 0.0;
        Chart {
            title: "What the parts of the XDP program cost".to_owned(),
            note: "by taking them out, one at a time; one address is asked for".to_owned(),
            unit: "nanoseconds",
            scale: Scale::Linear,
            aim: None,
            bars: (self.parts.iter())
                .filter(|part| is_part(part.saves_ns))
                .map(|part| Bar {
                    label: format!("{}, {}", short_part(part.without), part.family),
                    value: part.saves_ns,
                    is_ours: true,
                })
                .collect(),
        }
    }

    fn cpu(&self) -> Chart {
        let user = self.servers.iter().filter(|server| server.server == Server::User);
        let least = user.map(|server| server.cpu_ns / 3.0).reduce(f64::min);
        Chart {
            title: "CPU time of an answer under a flood".to_owned(),
            note: "of the kernel and of the process, without the generator's (shorter is better)"
                .to_owned(),
            unit: "nanoseconds",
            scale: Scale::Linear,
            aim: least.map(|value| Aim {
                value,
                label: "target in the kernel: a third of user space".to_owned(),
            }),
            bars: self.bars(|server| server.cpu_ns),
        }
    }

    fn rates(&self) -> Chart {
        Chart {
            title: "Answers per CPU-second under a flood".to_owned(),
            note: "the same the other way round (longer is better)".to_owned(),
            unit: "answers",
            scale: Scale::Linear,
            aim: None,
            bars: self.bars(|server| server.answers_per_cpu_second),
        }
    }

    fn latencies(&self) -> Chart {
        let mut bars = Vec::new();
        for server in &self.servers {
            for (name, value) in [("p50", server.latency_us.p50), ("p99", server.latency_us.p99)] {
                let Some(value) = value else { continue };
                let label = format!("{name}, {}, {}", server.server.name(), server.family);
                bars.push(Bar { label, value, is_ours: server.server != Server::Echo });
            }
        }
        Chart {
            title: format!("Latency at {} queries a second", self.open_loop_per_second),
            note: "from the time a query was due to its answer (shorter is better)".to_owned(),
            unit: "microseconds, logarithmic",
            scale: Scale::Logarithmic,
            aim: None,
            bars,
        }
    }

    fn streams(&self) -> Chart {
        Chart {
            title: "A TCP stream to the node with the responder attached".to_owned(),
            note: "to the same without it (longer is better)".to_owned(),
            unit: "ratio",
            scale: Scale::Linear,
            aim: Some(Aim { value: 1.0, label: "no program".to_owned() }),
            bars: (self.bulk_tcp.iter())
                .map(|stream| Bar {
                    label: format!("{}, {}", stream.attached.name(), stream.family),
                    value: stream.to_none,
                    is_ours: stream.attached != super::Attached::Nothing,
                })
                .collect(),
        }
    }

    fn bars(&self, value: impl Fn(&Answering) -> f64) -> Vec<Bar> {
        let bar = |server: &Answering| Bar {
            label: format!("{}, {}", server.server.name(), server.family),
            value: value(server),
            is_ours: server.server != Server::Echo,
        };
        self.servers.iter().map(bar).collect()
    }
}

fn label(program: &Program) -> String {
    let name = program.name.split_once('_').map_or(program.name, |(name, _)| name);
    match (program.entries, program.scattered) {
        (None, _) => format!("{name}, {}", program.family),
        (Some(entries), false) => format!("{name}, {}, one of {entries}", program.family),
        (Some(entries), true) => format!("{name}, {}, any of {entries}", program.family),
    }
}

/// Up to the colon, as there is little room.
fn short_part(part: &str) -> &str {
    part.split_once(':').map_or(part, |(short, _)| short)
}
