//! Receipt handles: which receive of which message.

use std::fmt;

use super::error::Error;

/// `run-row-receives` in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// Random per opening of the store: receive counts are stored lazily, so that without it a
    /// receipt from before a crash could pass for one from after it.
    pub run: u32,
    pub row: i64,
    pub receives: u32,
}

impl Receipt {
    /// AWS answers a handle it did not issue with `ReceiptHandleIsInvalid`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut parts = text.split('-');
        let parsed = (|| {
            let run = u32::from_str_radix(parts.next()?, 16).ok()?;
            let row = i64::from_str_radix(parts.next()?, 16).ok()?;
            let receives = u32::from_str_radix(parts.next()?, 16).ok()?;
            parts.next().is_none().then_some(Self { run, row, receives })
        })();
        parsed.ok_or_else(Error::receipt_handle)
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:x}-{:x}", self.run, self.row, self.receives)
    }
}
