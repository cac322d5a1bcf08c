//! Errors of the AWS SDK as errors of the ports.

use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use shared::ports::Error;
use std::fmt::Debug;

/// The code of a conditional write whose condition did not hold.
pub(crate) const CONDITION: &str = "ConditionalCheckFailedException";
/// The code of a write that met a transaction on the same item.
pub(crate) const CONFLICT: &str = "TransactionConflictException";

/// An SDK error's whole chain as one message, because its own `Display` says only «service error».
pub(crate) fn unavailable<E, R>(what: &str, error: SdkError<E, R>) -> Error
where
    E: std::error::Error + 'static,
    R: Debug,
{
    Error::Unavailable { what: what.to_owned(), source: DisplayErrorContext(error).to_string().into() }
}

/// Whether a write was done. A code in `lost` means no, because somebody else wrote first.
pub(crate) fn is_done<T, E, R>(what: &str, answer: Result<T, SdkError<E, R>>, lost: &[&str]) -> Result<bool, Error>
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
    R: Debug,
{
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.code().is_some_and(|code| lost.contains(&code)) => Ok(false),
        Err(error) => Err(unavailable(what, error)),
    }
}
