//! Receipt handles, which identify one receive of one message.

use std::fmt;

use super::error::Error;

/// `run-queue-row-receives` in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// A random number for each opening of the store. Receive counts are stored lazily, so without it a receipt from
    /// before a crash could be mistaken for one from after the crash.
    pub run: u32,
    /// The queue that it was received from.
    pub queue: i64,
    pub row: i64,
    pub receives: u32,
}

impl Receipt {
    /// AWS answers a handle it did not issue with `ReceiptHandleIsInvalid`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut parts = text.split('-');
        let parsed = (|| {
            let run = u32::from_str_radix(parts.next()?, 16).ok()?;
            let queue = i64::from_str_radix(parts.next()?, 16).ok()?;
            let row = i64::from_str_radix(parts.next()?, 16).ok()?;
            let receives = u32::from_str_radix(parts.next()?, 16).ok()?;
            parts.next().is_none().then_some(Self { run, queue, row, receives })
        })();
        parsed.ok_or_else(Error::receipt_handle)
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:x}-{:x}-{:x}", self.run, self.queue, self.row, self.receives)
    }
}
