//! SQS's errors, in the shape its SDKs parse.
//!
//! An SDK reads the code from the header `x-amzn-query-error` (a remnant of the old XML protocol)
//! and matches it against the service model; `__type` alone would leave every error unmodelled.

use crate::answer::Answer;
use crate::store::WriteError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub(crate) struct Error {
    status: u16,
    /// The shape's name, as in `com.amazonaws.sqs#QueueDoesNotExist`.
    kind: &'static str,
    /// The code in the header and in the entries of a batch.
    pub code: &'static str,
    pub message: String,
}

/// Errors whose code has the prefix of AWS's oldest errors.
macro_rules! prefixed {
    ($kind:literal, $message:expr) => {
        Error::sender($kind, concat!("AWS.SimpleQueueService.", $kind), $message)
    };
}

impl Error {
    fn sender(kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status: 400, kind, code, message: message.into() }
    }

    /// An error whose code is its kind.
    fn plain(kind: &'static str, message: impl Into<String>) -> Self {
        Self::sender(kind, kind, message)
    }

    pub fn no_queue() -> Self {
        let code = "AWS.SimpleQueueService.NonExistentQueue";
        Self::sender("QueueDoesNotExist", code, "The specified queue does not exist.")
    }

    pub fn queue_exists(attribute: &str) -> Self {
        let why = format!("A queue already exists with the same name and a different value for attribute {attribute}");
        Self::sender("QueueNameExists", "QueueAlreadyExists", why)
    }

    pub fn attribute_name(name: &str) -> Self {
        Self::plain("InvalidAttributeName", format!("Unknown Attribute {name}."))
    }

    pub fn attribute_value(name: &str, reason: &str) -> Self {
        Self::plain("InvalidAttributeValue", format!("Invalid value for the parameter {name}. Reason: {reason}"))
    }

    pub fn parameter(name: &str, reason: impl std::fmt::Display) -> Self {
        Self::plain("InvalidParameterValue", format!("Value for parameter {name} is invalid. Reason: {reason}"))
    }

    pub fn missing(name: &str) -> Self {
        Self::plain("MissingParameter", format!("The request must contain the parameter {name}."))
    }

    pub fn contents(reason: String) -> Self {
        Self::plain("InvalidMessageContents", reason)
    }

    pub fn receipt_handle() -> Self {
        Self::plain("ReceiptHandleIsInvalid", "The input receipt handle is not a valid receipt handle.")
    }

    pub fn receipt_of_other_queue() -> Self {
        Self::plain("ReceiptHandleIsInvalid", "The receipt handle is not valid for this queue.")
    }

    pub fn hidden_too_long() -> Self {
        let most = super::VISIBILITY_MAX_S;
        let why = format!("Total VisibilityTimeout for the message is beyond the limit [{most} seconds]");
        Self::parameter("VisibilityTimeout", why)
    }

    pub fn not_in_flight() -> Self {
        prefixed!(
            "MessageNotInflight",
            "The message referred to is not in flight, or is in flight under a newer receipt."
        )
    }

    pub fn no_consumer() -> Self {
        let why = "The consumer that the request names is not connected: open GET /consumers/NAME first.";
        Self { status: 503, ..Self::plain("ServiceUnavailable", why) }
    }

    pub fn over_limit() -> Self {
        Self::plain("OverLimit", format!("The queue has {} messages in flight already.", super::IN_FLIGHT_MAX))
    }

    pub fn unsupported(what: &str) -> Self {
        prefixed!("UnsupportedOperation", what)
    }

    pub fn batch_empty() -> Self {
        prefixed!("EmptyBatchRequest", "There should be at least one entry in the request.")
    }

    pub fn batch_too_large(count: usize) -> Self {
        prefixed!(
            "TooManyEntriesInBatchRequest",
            format!("Maximum number of entries per request are 10. You have sent {count}.")
        )
    }

    pub fn batch_id() -> Self {
        prefixed!(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long."
        )
    }

    pub fn batch_id_repeated(id: &str) -> Self {
        prefixed!("BatchEntryIdsNotDistinct", format!("Id {id} repeated."))
    }

    pub fn batch_too_long(bytes: usize) -> Self {
        let most = super::MESSAGE_MAX_BYTES;
        prefixed!(
            "BatchRequestTooLong",
            format!("Batch requests cannot be longer than {most} bytes. You have sent {bytes} bytes.")
        )
    }

    pub fn no_resource(message: &str) -> Self {
        Self { status: 404, ..Self::plain("ResourceNotFoundException", message) }
    }

    pub fn malformed(error: &serde_json::Error) -> Self {
        Self::plain("SerializationException", format!("the request is not what the operation takes: {error}"))
    }

    pub fn not_offered(name: &str) -> Self {
        let offered = super::OPERATIONS.join(", ");
        Self::unsupported(&format!("{name} is not offered by this endpoint, which knows {offered}."))
    }

    pub fn throttled() -> Self {
        Self::plain("RequestThrottled", "The request was throttled.")
    }

    pub fn internal(message: &str) -> Self {
        Self { status: 500, ..Self::plain("InternalFailure", message) }
    }

    pub fn is_sender_fault(&self) -> bool {
        self.status < 500
    }

    pub fn into_answer(self) -> Answer {
        let fault = if self.is_sender_fault() { "Sender" } else { "Receiver" };
        let kind = format!("com.amazonaws.sqs#{}", self.kind);
        let mut answer = Answer::error(self.status, &kind, &self.message);
        answer.query_error = Some(format!("{};{fault}", self.code));
        answer
    }
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        Self::internal(&error.to_string())
    }
}
