// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The asynchronous events of an RDMA device, by rdma-core's libibverbs, opened at run time.
//!
//! The kernel tells events of ports only to a process that has a verbs context, and a context is made
//! by the device's own provider library. So this takes libibverbs, as it is on every node that has
//! RDMA programs, and a daemon without it runs all the same.

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

/// Its soname, as programs that are linked against it have it.
const LIBRARY: &str = "libibverbs.so.1";

/// What is called of libibverbs. Never unloaded: providers may have threads of their own.
#[derive(Debug)]
pub struct Library {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void,
    free_device_list: unsafe extern "C" fn(*mut *mut c_void),
    get_device_name: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    open_device: unsafe extern "C" fn(*mut c_void) -> *mut ContextHead,
    close_device: unsafe extern "C" fn(*mut ContextHead) -> c_int,
    get_async_event: unsafe extern "C" fn(*mut ContextHead, *mut AsyncEvent) -> c_int,
    ack_async_event: unsafe extern "C" fn(*mut AsyncEvent),
}

/// Why there is no libibverbs.
#[derive(Debug, Error)]
#[error(
    "{LIBRARY} cannot be used: install rdma-core's libibverbs (package libibverbs1 or libibverbs)"
)]
pub struct NoLibrary(#[source] libloading::Error);

/// The beginning of `struct ibv_context` of infiniband/verbs.h, the same since libibverbs 1.1.
#[repr(C)]
struct ContextHead {
    device: *mut c_void,
    ops: [*mut c_void; 32],
    cmd_fd: c_int,
    async_fd: c_int,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::offset_of!(ContextHead, async_fd) == 268);

/// `struct ibv_async_event` of infiniband/verbs.h. Its first part is a union, of which an event of a
/// port sets an int.
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
    /// Opens libibverbs. May take as long as a disk does.
    ///
    /// # Errors
    /// If there is none, or one that is too old.
    pub fn open() -> Result<Self, NoLibrary> {
        // SAFETY: what libibverbs does when it is loaded is what each RDMA program has done at its
        // start, and needs nothing of us.
        let library = unsafe { libloading::Library::new(LIBRARY) }.map_err(NoLibrary)?;
        // It stays loaded, so its functions can be called for as long as this process lives.
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

    /// Opens a device. Takes as long as its driver does.
    ///
    /// # Errors
    /// `NotFound` if libibverbs knows no such device, or has no provider for it; what the kernel says.
    pub fn open_device(&self, name: DeviceName) -> io::Result<Context<'_>> {
        // SAFETY: a null pointer is allowed where the count would be put.
        let list = unsafe { (self.get_device_list)(std::ptr::null_mut()) };
        let list = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        let context = self.open_of(list, name);
        // SAFETY: it is the list that was made above, freed once. A device that was opened stays.
        unsafe { (self.free_device_list)(list.as_ptr()) };
        Ok(Context { library: self, head: context? })
    }

    fn open_of(
        &self,
        list: NonNull<*mut c_void>,
        name: DeviceName,
    ) -> io::Result<NonNull<ContextHead>> {
        for at in 0.. {
            // SAFETY: the list ends with a null pointer, at which this loop ends, too.
            let place = unsafe { list.add(at) };
            // SAFETY: the place is within the list, see above.
            let device = unsafe { place.read() };
            if device.is_null() {
                break;
            }
            // SAFETY: the device is one of a list that has not been freed.
            let known = unsafe { (self.get_device_name)(device) };
            // SAFETY: libibverbs gives the name of a device as a C string that lives as long as it.
            let known = unsafe { CStr::from_ptr(known) };
            if known.to_bytes() == name.as_str().as_bytes() {
                // SAFETY: the device is one of a list that has not been freed.
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

/// What happened to a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Happened {
    /// Something to a port of it.
    Port(PortNum, PortEvent),
    /// It is going (`IBV_EVENT_DEVICE_FATAL`), and waits for its contexts to be closed.
    Fatal,
    /// Something that is no matter of ours.
    Other,
}

/// An open device. Dropping it closes it.
pub struct Context<'a> {
    library: &'a Library,
    head: NonNull<ContextHead>,
}

impl Context<'_> {
    /// Waits for an event, but for no longer than `timeout`.
    ///
    /// # Errors
    /// If there will be no more.
    pub fn next(&mut self, timeout: Duration) -> io::Result<Option<Happened>> {
        // SAFETY: the head is a context of libibverbs, which is open.
        let raw = unsafe { (*self.head.as_ptr()).async_fd };
        // SAFETY: the descriptor is the context's, open as long as that is.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut event = MaybeUninit::<AsyncEvent>::zeroed();
        // SAFETY: the context is open, and the event is one that libibverbs may write. Nobody else
        // reads the descriptor, so it has an event, or fails; it does not wait.
        let status =
            unsafe { (self.library.get_async_event)(self.head.as_ptr(), event.as_mut_ptr()) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: libibverbs has written it, and each of its bit patterns is a value: integers, and a
        // union of an integer and a pointer.
        let mut event = unsafe { event.assume_init() };
        let event_type = event.event_type;
        // SAFETY: all bytes of the union were set, to zero above or by libibverbs.
        let port = unsafe { event.element.port_num };
        // SAFETY: the event is one that libibverbs gave, acknowledged once.
        unsafe { (self.library.ack_async_event)(&raw mut event) };
        Ok(Some(happened(event_type, port)))
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: the context is open, and nobody has it any more. Whether closing fails changes
        // nothing: it is gone all the same.
        unsafe { (self.library.close_device)(self.head.as_ptr()) };
    }
}

/// By the numbers of `enum ibv_event_type` of infiniband/verbs.h.
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
    fn events_of_ports_are_told_from_those_of_other_objects() {
        let port = PortNum::new(1).unwrap();
        assert_eq!(happened(17, 1), Happened::Port(port, PortEvent::ClientReregister));
        assert_eq!(happened(11, 1), Happened::Port(port, PortEvent::LidChange));
        assert_eq!(happened(8, 0), Happened::Fatal);
        // A queue pair's, whose union holds a pointer.
        assert_eq!(happened(1, 0x5555), Happened::Other);
        assert_eq!(happened(17, 0), Happened::Other);
        assert_eq!(happened(99, 1), Happened::Other);
    }
}
