// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Events of ports: receives them, and passes them to the cores.

use std::collections::BTreeMap;
use std::path::Path;

use ibarr_common::Instant;
use ibarr_common::ib::DeviceName;
use ibarr_proto::paths::Input;
use ibarr_proto::sa::PortIndex;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::Engine;
use crate::logging::ids;
use crate::transport::events::{Event, Events};
use crate::transport::ports::Dirs;

/// The devices whose events arrive, and why those of others do not.
#[derive(Debug)]
pub(super) struct Hearing {
    /// `None` if `--sys-dir` shows other ports than libibverbs.
    events: Option<Events>,
    devices: BTreeMap<DeviceName, Result<(), String>>,
}

impl Hearing {
    pub(super) fn new(dirs: &Dirs) -> (Self, mpsc::Receiver<Event>) {
        let (events, received) = Events::new(&dirs.sys);
        let events = (dirs.sys == Path::new("/sys")).then_some(events);
        (Self { events, devices: BTreeMap::new() }, received)
    }

    /// Why events of a device do not arrive.
    pub(super) fn why_not(&self, device: DeviceName) -> Option<&str> {
        match self.devices.get(&device) {
            _ if self.events.is_none() => Some("--sys-dir shows other ports than libibverbs"),
            None => Some("the device is not open yet"),
            Some(Ok(())) => None,
            Some(Err(reason)) => Some(reason),
        }
    }

    /// Why events of a device that was opened do not arrive.
    pub(super) fn failure(&self, device: DeviceName) -> Option<&str> {
        self.devices.get(&device)?.as_ref().err().map(String::as_str)
    }
}

impl Engine {
    pub(super) fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Happened(name, event) => {
                info!(port = %name, %event, "the kernel reported an event");
                // Read the new state of the port at once.
                self.rdma.look();
                if let Some(port) = self.rdma.index(name) {
                    self.tell_paths(now, Input::Happened { port, event });
                }
            }
            Event::Heard(device) => {
                debug!(%device, "receiving its events");
                self.rdma.hearing.devices.insert(device, Ok(()));
                self.tell_hearing(now, device);
            }
            Event::Deaf(device, reason) => {
                if self.rdma.hearing.devices.get(&device) == Some(&Ok(())) {
                    info!(%device, "events of its ports are no longer received: {reason}");
                } else if !self
                    .rdma
                    .hearing
                    .devices
                    .values()
                    .any(|known| *known == Err(reason.clone()))
                {
                    warn!(
                        message_id = ids::EVENTS_NOT_HEARD,
                        cause = reason,
                        %device,
                        "events of its ports are not received, so a change of the subnet is noticed \
                         some seconds later: {reason}"
                    );
                }
                self.rdma.hearing.devices.insert(device, Err(reason));
                self.tell_hearing(now, device);
            }
        }
    }

    /// Called when a device has a port, or a port of it has changed.
    pub(super) fn hear_events_of(&mut self, now: Instant, port: PortIndex, device: DeviceName) {
        if let Some(events) = &self.rdma.hearing.events
            && let Err(error) = events.watch(device)
        {
            let reason = format!("cannot start a thread: {error}");
            self.rdma.hearing.devices.insert(device, Err(reason));
        }
        let heard = self.rdma.hearing.why_not(device).is_none();
        self.tell_paths(now, Input::Hearing { port, heard });
    }

    fn tell_hearing(&mut self, now: Instant, device: DeviceName) {
        let heard = self.rdma.hearing.why_not(device).is_none();
        let of_device = self.node.paths().ports().filter(|(_, name, ..)| name.device == device);
        let ports: Vec<_> = of_device.map(|(port, ..)| port).collect();
        for port in ports {
            self.tell_paths(now, Input::Hearing { port, heard });
        }
    }
}
