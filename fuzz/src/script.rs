// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How the bytes of an input become a history.

/// Any bytes, read as steps of a history. After the last byte, all further bytes are zero.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// The next bytes, at most `count`.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn choose<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let chosen = usize::from(self.byte());
        (!from.is_empty()).then(|| from[chosen % from.len()])
    }
}
