//! SQS's errors, in the shape its SDKs parse.
//!
//! An SDK reads the code from the header `x-amzn-query-error` (a remnant of the old XML protocol)
//! and matches it against the service model; `__type` alone would leave every error unmodelled.

use crate::answer::Answer;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub(crate) struct Error {
    status: u16,
    /// The shape's name, as in `com.amazonaws.sqs#QueueDoesNotExist`.
    kind: &'static str,
    /// As in the header and in the entries of a batch.
    pub code: &'static str,
    pub message: String,
}

impl Error {
    fn sender(kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status: 400, kind, code, message: message.into() }
    }

    pub fn no_queue() -> Self {
        Self::sender(
            "QueueDoesNotExist",
            "AWS.SimpleQueueService.NonExistentQueue",
            "The specified queue does not exist.",
        )
    }

    pub fn queue_exists(attribute: &str) -> Self {
        Self::sender(
            "QueueNameExists",
            "QueueAlreadyExists",
            format!(
                "A queue already exists with the same name and a different value for attribute \
                 {attribute}"
            ),
        )
    }

    pub fn attribute_name(name: &str) -> Self {
        Self::sender("InvalidAttributeName", "InvalidAttributeName", format!("Unknown Attribute {name}."))
    }

    pub fn attribute_value(name: &str, reason: &str) -> Self {
        Self::sender(
            "InvalidAttributeValue",
            "InvalidAttributeValue",
            format!("Invalid value for the parameter {name}. Reason: {reason}"),
        )
    }

    pub fn parameter(name: &str, reason: impl std::fmt::Display) -> Self {
        Self::sender(
            "InvalidParameterValue",
            "InvalidParameterValue",
            format!("Value for parameter {name} is invalid. Reason: {reason}"),
        )
    }

    pub fn missing(name: &str) -> Self {
        Self::sender("MissingParameter", "MissingParameter", format!("The request must contain the parameter {name}."))
    }

    pub fn contents(reason: impl std::fmt::Display) -> Self {
        Self::sender("InvalidMessageContents", "InvalidMessageContents", reason.to_string())
    }

    pub fn receipt_handle() -> Self {
        Self::sender(
            "ReceiptHandleIsInvalid",
            "ReceiptHandleIsInvalid",
            "The input receipt handle is not a valid receipt handle.",
        )
    }

    pub fn not_in_flight() -> Self {
        Self::sender(
            "MessageNotInflight",
            "AWS.SimpleQueueService.MessageNotInflight",
            "The message referred to is not in flight, or is in flight under a newer receipt.",
        )
    }

    pub fn over_limit() -> Self {
        Self::sender(
            "OverLimit",
            "OverLimit",
            format!("The queue has {} messages in flight already.", super::IN_FLIGHT_MAX),
        )
    }

    pub fn unsupported(what: &str) -> Self {
        Self::sender("UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", what)
    }

    pub fn batch(problem: BatchProblem) -> Self {
        use BatchProblem::*;
        match problem {
            Empty => Self::sender(
                "EmptyBatchRequest",
                "AWS.SimpleQueueService.EmptyBatchRequest",
                "There should be at least one entry in the request.",
            ),
            TooMany(count) => Self::sender(
                "TooManyEntriesInBatchRequest",
                "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
                format!("Maximum number of entries per request are 10. You have sent {count}."),
            ),
            IdRepeated(id) => Self::sender(
                "BatchEntryIdsNotDistinct",
                "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
                format!("Id {id} repeated."),
            ),
            Id => Self::sender(
                "InvalidBatchEntryId",
                "AWS.SimpleQueueService.InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and \
                 underscores. It can be at most 80 letters long.",
            ),
            TooLong(bytes) => Self::sender(
                "BatchRequestTooLong",
                "AWS.SimpleQueueService.BatchRequestTooLong",
                format!(
                    "Batch requests cannot be longer than {} bytes. You have sent {bytes} bytes.",
                    super::MESSAGE_MAX_BYTES
                ),
            ),
        }
    }

    pub fn no_resource(message: &str) -> Self {
        let mut error = Self::sender("ResourceNotFoundException", "ResourceNotFoundException", message);
        error.status = 404;
        error
    }

    pub fn malformed(error: &serde_json::Error) -> Self {
        Self::sender(
            "SerializationException",
            "SerializationException",
            format!("the request is not what the operation takes: {error}"),
        )
    }

    pub fn not_offered(name: &str) -> Self {
        let offered = super::OPERATIONS.join(", ");
        Self::unsupported(&format!("{name} is not offered by this endpoint, which knows {offered}."))
    }

    pub fn throttled() -> Self {
        Self::sender("RequestThrottled", "RequestThrottled", "The request was throttled.")
    }

    pub fn internal(message: &str) -> Self {
        Self { status: 500, kind: "InternalFailure", code: "InternalFailure", message: message.into() }
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

/// What is wrong with a batch as a whole.
pub(crate) enum BatchProblem {
    Empty,
    TooMany(usize),
    IdRepeated(String),
    Id,
    TooLong(usize),
}
