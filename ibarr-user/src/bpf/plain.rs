// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

#![expect(unsafe_code, reason = "aya asks for a promise that zerocopy has already checked")]

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A key or value of a map, as aya wants it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct MapValue<T>(pub(super) T);

// SAFETY: aya copies the bytes of a `Pod` into the kernel, and makes one of bytes that the kernel
// wrote. The first needs every byte to be initialised, which is `IntoBytes` (no padding) and
// `Immutable` (none changes meanwhile); the second needs any bytes to be a value, which is
// `FromBytes`. The wrapper is transparent, so that what holds for `T` holds for it.
unsafe impl<T: FromBytes + IntoBytes + Immutable + Copy + 'static> aya::Pod for MapValue<T> {}
