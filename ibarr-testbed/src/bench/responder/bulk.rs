// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the programs cost other traffic: a TCP stream to the node.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::programs::{SchedClassifier, TcAttachType, XdpMode};
use ibarr_proto::ip2gid::Family;
use serde::Serialize;

use super::super::process;
use super::wire::{Wire, attach, xdp};
use crate::lab::{Node, netns};

/// The program at the node's end.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Attached {
    Nothing,
    Tc,
    XdpNative,
    XdpGeneric,
}

impl Attached {
    pub(super) const ALL: [Self; 4] = [Self::Nothing, Self::Tc, Self::XdpNative, Self::XdpGeneric];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no program",
            Self::Tc => "tc",
            Self::XdpNative => "XDP native",
            Self::XdpGeneric => "XDP generic",
        }
    }
}

/// Streams to a node with the responder's programs. Their maps are empty, which is enough to pass
/// packets that are no queries.
pub(super) struct Streams<'a> {
    wire: &'a Wire,
    object: Ebpf,
}

impl<'a> Streams<'a> {
    pub(super) fn load(wire: &'a Wire) -> Result<Self> {
        let mut object = Ebpf::load(ibarr_ebpf::OBJECT).context("the responder's object")?;
        xdp(&mut object, "ip2gid_xdp")?.load()?;
        tc(&mut object)?.load()?;
        Ok(Self { wire, object })
    }

    /// Received bytes a second with the program `attached`.
    pub(super) fn measure(
        &mut self,
        attached: Attached,
        family: Family,
        time: Duration,
    ) -> Result<f64> {
        let (namespace, interface) = (&self.wire.node().namespace, Node::INTERFACE);
        let mut by_xdp = |mode| {
            attach(xdp(&mut self.object, "ip2gid_xdp")?, namespace, interface, mode).map(Some)
        };
        let _link = match attached {
            Attached::XdpNative => by_xdp(XdpMode::Driver)?,
            Attached::XdpGeneric => by_xdp(XdpMode::Skb)?,
            Attached::Nothing | Attached::Tc => None,
        };
        netns::inside(namespace, || {
            // Dropped inside the namespace, for programs without a link.
            let _link = match attached {
                Attached::Tc => {
                    // Before Linux 6.6. The qdisc ends with the lab.
                    let _ = aya::programs::tc::qdisc_add_clsact(interface);
                    let program = tc(&mut self.object)?;
                    let id = program.attach(interface, TcAttachType::Ingress)?;
                    Some(program.take_link(id)?)
                }
                _ => None,
            };
            stream(self.wire, family, time)
        })
    }
}

fn tc(object: &mut Ebpf) -> Result<&mut SchedClassifier> {
    Ok(object.program_mut("ip2gid_tc").context("no program ip2gid_tc")?.try_into()?)
}

/// A stream from the client to this namespace, the node's.
fn stream(wire: &Wire, family: Family, time: Duration) -> Result<f64> {
    let address = wire.address(family);
    let listener = TcpListener::bind((address, 0)).context("cannot listen")?;
    let to = listener.local_addr()?;
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            netns::inside(wire.hub(), || {
                process::pin(&[])?;
                let mut stream = TcpStream::connect(to).context("cannot connect")?;
                let bytes = vec![0; CHUNK];
                loop {
                    match stream.write(&bytes) {
                        Ok(_) => {}
                        Err(error) if is_over(error.kind()) => return Ok(()),
                        Err(error) => return Err(error).context("cannot send"),
                    }
                }
            })
        });
        let (mut stream, _) = listener.accept().context("no client connects")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut bytes = vec![0; CHUNK];
        let mut receive = |time: Duration| -> Result<f64> {
            let (start, mut received) = (Instant::now(), 0.0);
            while start.elapsed() < time {
                let read = stream.read(&mut bytes).context("nothing comes")?;
                received += f64::from(u32::try_from(read)?);
            }
            Ok(received / start.elapsed().as_secs_f64())
        };
        // The TCP window grows first.
        let rate = receive(time / 5).and_then(|_| receive(time));
        let _ = stream.shutdown(Shutdown::Both);
        drop(stream);
        let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let rate = rate?;
        sent.map(|()| rate)
    })
}

fn is_over(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

const CHUNK: usize = 1 << 17;
