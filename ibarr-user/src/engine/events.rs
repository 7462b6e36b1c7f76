// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Events of ports: receives them, and passes them to the cores.

use std::collections::BTreeMap;
use std::path::Path;

use ibarr_common::Instant;
use ibarr_common::ib::DeviceName;
use ibarr_proto::node::{self, Node};
use ibarr_proto::paths::Input;
use ibarr_proto::sa::PortIndex;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::causes::{Fault, fault};
use crate::logging::ids;
use crate::transport::events::{Event, Events};
use crate::transport::ports::Dirs;

/// The devices whose events arrive, and why those of others do not.
#[derive(Debug)]
pub(super) struct DeviceEvents {
    /// `None` if `--sys-dir` shows other ports than libibverbs.
    events: Option<Events>,
    devices: BTreeMap<DeviceName, Result<(), Fault>>,
}

impl DeviceEvents {
    pub(super) fn new(dirs: &Dirs) -> (Self, mpsc::Receiver<Event>) {
        let (events, received) = Events::new(&dirs.sys);
        let events = (dirs.sys == Path::new("/sys")).then_some(events);
        (Self { events, devices: BTreeMap::new() }, received)
    }

    /// Why events of a device do not arrive.
    pub(super) fn why_not(&self, device: DeviceName) -> Option<Fault> {
        match self.devices.get(&device) {
            _ if self.events.is_none() => {
                Some(fault!("--sys-dir shows other ports than libibverbs"))
            }
            None => Some(fault!("the device is not open yet")),
            Some(heard) => heard.clone().err(),
        }
    }

    /// Whether it is known whether events of a device arrive.
    pub(super) fn is_known(&self, device: DeviceName) -> bool {
        self.events.is_none() || self.devices.contains_key(&device)
    }

    /// Why events of a device that was opened do not arrive.
    pub(super) fn failure(&self, device: DeviceName) -> Option<Fault> {
        self.devices.get(&device)?.clone().err()
    }

    /// Called when a device has a port, or a port of it has changed.
    pub(super) fn watch(
        &mut self,
        now: Instant,
        port: PortIndex,
        device: DeviceName,
        node: &mut Node,
    ) {
        if let Some(events) = &self.events
            && let Err(error) = events.watch(device)
        {
            self.devices.insert(device, Err(fault!("cannot start a thread: {error}")));
        }
        let heard = self.why_not(device).is_none();
        tell(node, now, Input::Hearing { port, heard });
    }

    /// Events of a device arrive now, or do not for this reason.
    pub(super) fn note(
        &mut self,
        now: Instant,
        device: DeviceName,
        heard: Result<(), Fault>,
        node: &mut Node,
    ) {
        match &heard {
            Ok(()) => debug!(%device, "receiving its events"),
            Err(reason) if self.devices.get(&device) == Some(&Ok(())) => {
                info!(%device, "events of its ports are no longer received: {reason}");
            }
            Err(_) if self.devices.values().any(|known| *known == heard) => {}
            Err(reason) => warn!(
                message_id = ids::EVENTS_NOT_HEARD,
                cause = %reason,
                %device,
                "events of its ports are not received, so a change of the subnet is noticed some \
                 seconds later: {reason}"
            ),
        }
        self.devices.insert(device, heard);
        let heard = self.why_not(device).is_none();
        let of_device = node.paths().ports().filter(|(_, name, ..)| name.device == device);
        let ports: Vec<_> = of_device.map(|(port, ..)| port).collect();
        for port in ports {
            tell(node, now, Input::Hearing { port, heard });
        }
    }
}

/// Passes an input to the core of paths.
pub(super) fn tell(node: &mut Node, now: Instant, input: Input<'_>) {
    node.handle_input(now, node::Input::Paths(input));
}
