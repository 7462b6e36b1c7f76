// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Asynchronous events of an RDMA device, by rdma-core's libibverbs, loaded at run time.
//!
//! The kernel reports port events only to a process that has a verbs context, and only the device's
//! provider library can make a context. So this module uses libibverbs, which every node with RDMA
//! programs has. A daemon without it works without events.

#![expect(unsafe_code, reason = "libibverbs is a C library, opened at run time")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Duration;

use ibarr_common::ib::{DeviceName, PortNum};
use ibarr_proto::paths::PortEvent;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use thiserror::Error;

/// The soname that programs link against.
const LIBRARY: &str = "libibverbs.so.1";

/// The functions of libibverbs that we call. The library is never unloaded: providers may have
/// threads.
#[derive(Debug)]
pub(crate) struct Library {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void,
    free_device_list: unsafe extern "C" fn(*mut *mut c_void),
    get_device_name: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    open_device: unsafe extern "C" fn(*mut c_void) -> *mut ContextHead,
    close_device: unsafe extern "C" fn(*mut ContextHead) -> c_int,
    get_async_event: unsafe extern "C" fn(*mut ContextHead, *mut AsyncEvent) -> c_int,
    ack_async_event: unsafe extern "C" fn(*mut AsyncEvent),
}

/// libibverbs could not be loaded.
#[derive(Debug, Error)]
#[error(
    "{LIBRARY} cannot be used: install rdma-core's libibverbs (package libibverbs1 or libibverbs)"
)]
pub(crate) struct NoLibrary(#[source] libloading::Error);

/// The beginning of `struct ibv_context` of infiniband/verbs.h, unchanged since libibverbs 1.1.
#[repr(C)]
struct ContextHead {
    device: *mut c_void,
    ops: [*mut c_void; 32],
    cmd_fd: c_int,
    async_fd: c_int,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::offset_of!(ContextHead, async_fd) == 268);

/// `struct ibv_async_event` of infiniband/verbs.h. Its first part is a union; for a port event it
/// holds an int.
#[repr(C)]
struct AsyncEvent {
    element: Element,
    event_type: c_int,
}

#[repr(C)]
union Element {
    port_num: c_int,
    object: *mut c_void,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<AsyncEvent>() == 16);

impl Library {
    /// Loads libibverbs. May block on disk access.
    ///
    /// # Errors
    /// If the library is missing or too old.
    pub(crate) fn open() -> Result<Self, NoLibrary> {
        // SAFETY: loading libibverbs runs the same initializers as in every RDMA program, which
        // have no preconditions.
        let library = unsafe { libloading::Library::new(LIBRARY) }.map_err(NoLibrary)?;
        // The library stays loaded, so its functions are valid for the life of this process.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        Ok(Self {
            // SAFETY: the type is that of infiniband/verbs.h.
            get_device_list: *unsafe { library.get(b"ibv_get_device_list\0") }
                .map_err(NoLibrary)?,
            // SAFETY: the type is that of infiniband/verbs.h.
            free_device_list: *unsafe { library.get(b"ibv_free_device_list\0") }
                .map_err(NoLibrary)?,
            // SAFETY: the type is that of infiniband/verbs.h.
            get_device_name: *unsafe { library.get(b"ibv_get_device_name\0") }
                .map_err(NoLibrary)?,
            // SAFETY: the type is that of infiniband/verbs.h.
            open_device: *unsafe { library.get(b"ibv_open_device\0") }.map_err(NoLibrary)?,
            // SAFETY: the type is that of infiniband/verbs.h.
            close_device: *unsafe { library.get(b"ibv_close_device\0") }.map_err(NoLibrary)?,
            // SAFETY: the type is that of infiniband/verbs.h.
            get_async_event: *unsafe { library.get(b"ibv_get_async_event\0") }
                .map_err(NoLibrary)?,
            // SAFETY: the type is that of infiniband/verbs.h.
            ack_async_event: *unsafe { library.get(b"ibv_ack_async_event\0") }
                .map_err(NoLibrary)?,
        })
    }

    /// Opens a device. Blocks for as long as its driver does.
    ///
    /// # Errors
    /// `NotFound` if libibverbs knows no such device, or has no provider for it; errors of the
    /// kernel.
    pub(crate) fn open_device(&self, name: DeviceName) -> io::Result<Context<'_>> {
        // SAFETY: a null pointer is allowed in place of the pointer to the count.
        let list = unsafe { (self.get_device_list)(std::ptr::null_mut()) };
        let list = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        let context = self.open_of(list, name);
        // SAFETY: the list was made above, and is freed once. An open device outlives it.
        unsafe { (self.free_device_list)(list.as_ptr()) };
        Ok(Context { library: self, head: context? })
    }

    fn open_of(
        &self,
        list: NonNull<*mut c_void>,
        name: DeviceName,
    ) -> io::Result<NonNull<ContextHead>> {
        for at in 0.. {
            // SAFETY: the list ends with a null pointer, where this loop ends, too.
            let place = unsafe { list.add(at) };
            // SAFETY: the place is within the list, see above.
            let device = unsafe { place.read() };
            if device.is_null() {
                break;
            }
            // SAFETY: the device is in a list that has not been freed.
            let known = unsafe { (self.get_device_name)(device) };
            // SAFETY: libibverbs returns the name as a C string that lives as long as the device.
            let known = unsafe { CStr::from_ptr(known) };
            if known.to_bytes() == name.as_str().as_bytes() {
                // SAFETY: the device is in a list that has not been freed.
                let context = unsafe { (self.open_device)(device) };
                return NonNull::new(context).ok_or_else(io::Error::last_os_error);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "libibverbs has no driver for it: install rdma-core's providers (package \
             ibverbs-providers or libibverbs)",
        ))
    }
}

/// An event of a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Happened {
    /// An event of one of its ports.
    Port(PortNum, PortEvent),
    /// The device is being removed (`IBV_EVENT_DEVICE_FATAL`), and waits until its contexts are
    /// closed.
    Fatal,
    /// An event that the daemon ignores.
    Other,
}

/// An open device. Dropping it closes it.
pub(crate) struct Context<'a> {
    library: &'a Library,
    head: NonNull<ContextHead>,
}

impl Context<'_> {
    /// Waits for an event, at most for `timeout`.
    ///
    /// # Errors
    /// If no further events will come.
    pub(crate) fn next(&mut self, timeout: Duration) -> io::Result<Option<Happened>> {
        // SAFETY: the head is an open context of libibverbs.
        let raw = unsafe { (*self.head.as_ptr()).async_fd };
        // SAFETY: the descriptor belongs to the context, and is open as long as the context.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut event = MaybeUninit::<AsyncEvent>::zeroed();
        // SAFETY: the context is open, and the event may be written by libibverbs. Nothing else
        // reads the descriptor, so an event is ready, or the call fails; it does not block.
        let status =
            unsafe { (self.library.get_async_event)(self.head.as_ptr(), event.as_mut_ptr()) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: libibverbs has written the event, and each of its bit patterns is valid:
        // integers, and a union of an integer and a pointer.
        let mut event = unsafe { event.assume_init() };
        let event_type = event.event_type;
        // SAFETY: all bytes of the union were set, to zero above or by libibverbs.
        let port = unsafe { event.element.port_num };
        // SAFETY: libibverbs returned this event, and it is acknowledged once.
        unsafe { (self.library.ack_async_event)(&raw mut event) };
        Ok(Some(happened(event_type, port)))
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: the context is open, and nothing else has it. The context is gone even if closing
        // fails.
        unsafe { (self.library.close_device)(self.head.as_ptr()) };
    }
}

/// Translates the numbers of `enum ibv_event_type` of infiniband/verbs.h.
fn happened(event_type: c_int, port: c_int) -> Happened {
    let event = match event_type {
        8 => return Happened::Fatal,
        9 => PortEvent::Active,
        10 => PortEvent::Error,
        11 => PortEvent::LidChange,
        12 => PortEvent::PKeyChange,
        13 => PortEvent::SmChange,
        17 => PortEvent::ClientReregister,
        18 => PortEvent::GidChange,
        _ => return Happened::Other,
    };
    let port = u8::try_from(port).ok().and_then(PortNum::new);
    port.map_or(Happened::Other, |port| Happened::Port(port, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_of_ports_name_a_port() {
        let port = PortNum::new(1).unwrap();
        assert_eq!(happened(17, 1), Happened::Port(port, PortEvent::ClientReregister));
        assert_eq!(happened(11, 1), Happened::Port(port, PortEvent::LidChange));
        assert_eq!(happened(8, 0), Happened::Fatal);
        // An event of a queue pair, whose union holds a pointer.
        assert_eq!(happened(1, 0x5555), Happened::Other);
        assert_eq!(happened(17, 0), Happened::Other);
        assert_eq!(happened(99, 1), Happened::Other);
    }
}
