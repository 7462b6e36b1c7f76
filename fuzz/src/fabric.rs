// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The software fabric under hosts and subnet managers that do anything.

use std::collections::BTreeMap;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Lid, PKey, Qpn, Sl};
use ibarr_common::wire::mad::{AttributeId, Method, Tid};
use ibarr_fabric::topology::{NodeId, PortId};
use ibarr_fabric::wire::packet::{self, Datagram, GrhWire, Packet};
use ibarr_fabric::wire::smp::Smp;
use ibarr_fabric::{Event, Fabric, Fault, Input, LinkFault, MAX_QUEUED, Topology};

use crate::script::Script;

/// The fabric with any behaviour of hosts and subnet manager, which `script` encodes. Its output is
/// well-formed packets, for each port no more than its queue holds. Every packet in flight ends, and time
/// goes forward. The same history gives the same bytes.
///
/// # Panics
/// The claim does not hold for `script`.
pub fn fabric(script: &[u8]) {
    assert_eq!(run(script), run(script), "the same history gave another fabric");
}

/// Two switches with two cables between them, so that packets can go in circles; a router; and three
/// hosts, one of them with both ports on one switch.
const TOPOLOGY: &str = "Switch 6 \"A\"\n[1] \"H1\"[1]\n[2] \"H1\"[2]\n[3] \"B\"[3]\n[4] \"B\"[4]\n\
    [5] \"R\"[1]\n\nSwitch 6 \"B\"\n[1] \"H2\"[1]\n[2] \"H3\"[1]\n[5] \"R\"[2]\n\n\
    Ca 2 \"H1\"\n\nCa 1 \"H2\"\n\nCa 1 \"H3\"\n\nRt 2 \"R\"\n";
const PORTS: [&str; 8] = ["H1/1", "H1/2", "H2/1", "H3/1", "A/3", "A/4", "B/1", "R/1"];
const ATTRIBUTES: [u16; 13] =
    [0x02, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x20, 0xff];

fn run(script: &[u8]) -> Vec<Vec<u8>> {
    let mut script = Script(script);
    let topology: Topology = TOPOLOGY.parse().expect("a topology");
    let ports = PORTS.map(|name| topology.find_port(name).expect("a port"));
    let mut fabric = Fabric::new(topology, u64::from(script.byte()));
    let mut now = Instant::from_nanos(1);
    for port in ports.iter().take(4) {
        fabric.handle_input(now, Input::Attach(port.node));
    }
    let mut heard = Vec::new();
    // Enough steps; a longer script shows nothing new.
    for _ in 0..256 {
        if script.0.is_empty() {
            break;
        }
        let port = ports[usize::from(script.byte() % 8)];
        match script.byte() % 10 {
            0 => {
                let len = usize::from(script.byte());
                let packet = script.bytes(len).to_vec();
                fabric.handle_input(now, Input::Packet { port, packet: &packet });
            }
            1..=4 => {
                let packet = script.management();
                fabric.handle_input(now, Input::Packet { port, packet: &packet });
            }
            5 | 6 => {
                let packet = script.datagram();
                fabric.handle_input(now, Input::Packet { port, packet: &packet });
            }
            7 => fabric.handle_input(now, Input::Fault(script.fault(port))),
            8 => fabric.handle_input(now, script.host(port.node, port)),
            _ => {
                now += Duration::from_millis(u64::from(script.byte()));
                fabric.handle_timeout(now);
            }
        }
        drain(&mut fabric, &mut heard);
    }
    // No packet is in flight for ever.
    for step in 0.. {
        let Some(due) = fabric.poll_timeout() else { break };
        assert!(due > now, "a timer is due but was not handled");
        assert!(step < 1_000_000, "the fabric does not come to rest");
        now = due;
        fabric.handle_timeout(now);
        drain(&mut fabric, &mut heard);
    }
    heard
}

fn drain(fabric: &mut Fabric, heard: &mut Vec<Vec<u8>>) {
    while let Some(Event::Port { port, config, reregister }) = fabric.poll_event() {
        heard.push(format!("{port:?} {config:?} {reregister}").into_bytes());
    }
    let mut queued = BTreeMap::new();
    while let Some((port, packet)) = fabric.poll_transmit() {
        *queued.entry(port).or_insert(0) += 1;
        Packet::parse(&packet).expect("a packet");
        heard.push(packet);
    }
    assert!(queued.values().all(|count| *count <= MAX_QUEUED), "{queued:?}");
}

impl Script<'_> {
    /// One of few LIDs, so that packets meet.
    fn lid(&mut self) -> Lid {
        let lid = match self.byte() {
            byte @ 0..=15 => u16::from(byte % 8 + 1),
            byte @ 16..=31 => 0xc000 | u16::from(byte % 4),
            _ => u16::MAX,
        };
        Lid::new(lid).expect("not 0")
    }

    /// A subnet management packet, most often with an existing route.
    fn management(&mut self) -> Vec<u8> {
        let kind = self.byte();
        let method = Method::new([0x01, 0x02, 0x02, 0x07, 0x81][usize::from(kind % 5)]);
        let attribute = ATTRIBUTES[usize::from(self.byte()) % ATTRIBUTES.len()];
        let attribute = AttributeId::new(attribute);
        let hops = usize::from(self.byte() % 5);
        let path = self.bytes(hops).iter().map(|port| port % 7).collect::<Vec<_>>();
        let mut smp = if kind & 0x80 == 0 {
            Smp::directed(method, attribute, &path).expect("a short path")
        } else {
            Smp::lid_routed(method, attribute)
        };
        smp.set_modifier(u32::from_be_bytes([
            self.byte() & 0x10,
            self.byte() % 8,
            self.byte() & 0x03,
            self.byte() % 8,
        ]));
        smp.set_tid(Tid::new(u64::from(self.byte() % 4)));
        smp.set_hop_pointer(self.byte() % 4);
        if kind & 0x40 != 0 {
            smp.answer(ibarr_common::wire::mad::Status::OK);
        }
        let len = usize::from(self.byte() % 65);
        let data = self.bytes(len);
        smp.data_mut()[..data.len()].copy_from_slice(data);
        let slid = Some(self.lid()).filter(|lid| lid.is_unicast());
        let dlid = if smp.is_directed() { Lid::PERMISSIVE } else { self.lid() };
        emit(&self.headers(slid, dlid, Qpn::SMI), smp.as_bytes())
    }

    fn datagram(&mut self) -> Vec<u8> {
        let kind = self.byte();
        let (slid, dlid) = (Some(self.lid()).filter(|lid| lid.is_unicast()), self.lid());
        let to = if kind & 1 == 0 { Qpn::GSI } else { Qpn::MULTICAST };
        let mut headers = self.headers(slid, dlid, to);
        if kind & 2 != 0 {
            let prefix = [0xfe, 0x80, 0, 0, 0, 0, 0, kind >> 6];
            let number = [0, 0, 0, 0, 0, 0x10, 0, self.byte() % 16];
            let mut gid = [0; 16];
            gid[..8].copy_from_slice(&prefix);
            gid[8..].copy_from_slice(&number);
            headers.grh = Some(GrhWire::new(gid, gid, self.byte()));
        }
        let len = usize::from(self.byte());
        let payload = self.bytes(len);
        emit(&headers, payload)
    }

    fn headers(&mut self, slid: Option<Lid>, dlid: Lid, destination: Qpn) -> Datagram {
        let odd = self.byte();
        let pkey = if odd & 1 == 0 { PKey::DEFAULT } else { PKey::new(1).expect("a partition") };
        let management = (destination == Qpn::SMI) != (odd > 250);
        Datagram {
            vl: if management { 15 } else { 0 },
            sl: Sl::default(),
            dlid,
            slid,
            grh: None,
            pkey,
            destination,
            qkey: 0,
            source: destination,
        }
    }

    fn fault(&mut self, port: PortId) -> Fault {
        let down = self.byte() & 1 == 0;
        match self.byte() % 4 {
            0 => Fault::Link {
                port,
                fault: LinkFault {
                    loss: u32::from(self.byte()) * 4_000,
                    duplication: u32::from(self.byte()) * 4_000,
                    delay: Duration::from_millis(u64::from(self.byte())),
                    jitter: Duration::from_millis(u64::from(self.byte())),
                },
            },
            1 => Fault::Cable { port, down },
            2 => Fault::Node { node: port.node, down },
            _ => Fault::Manager { port, cut: down },
        }
    }

    fn host(&mut self, node: NodeId, port: PortId) -> Input<'static> {
        match self.byte() % 3 {
            0 => Input::Attach(node),
            1 => Input::Detach(node),
            _ => Input::Capabilities { port, mask: u32::from(self.byte()) },
        }
    }
}

fn emit(headers: &Datagram, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; packet::MAX_LEN];
    let len = headers.emit(payload, &mut packet).expect("it fits");
    packet.truncate(len);
    packet
}
