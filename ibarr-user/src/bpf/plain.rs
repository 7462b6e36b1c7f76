// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Lets aya write our values as their bytes.

#![expect(unsafe_code, reason = "aya asks for a promise that zerocopy has already checked")]

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A key or value of a map, as aya needs it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct MapValue<T>(pub(super) T);

// SAFETY: aya copies the bytes of a `Pod` into the kernel, and makes a `Pod` of bytes that the
// kernel wrote. The first requires that every byte is initialised, which `IntoBytes` (no padding)
// and `Immutable` (no interior mutability) guarantee; the second requires that any bytes are a
// valid value, which `FromBytes` guarantees. The wrapper is transparent, so what holds for `T`
// holds for it.
unsafe impl<T: FromBytes + IntoBytes + Immutable + Copy + 'static> aya::Pod for MapValue<T> {}
