//! The services, and how a request names one.

/// The services that are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// Amazon SQS.
    Sqs,
    /// Amazon DynamoDB.
    DynamoDb,
    /// Amazon EventBridge: event buses, and PutEvents.
    EventBridge,
}

impl Service {
    const ALL: [Self; 3] = [Self::Sqs, Self::DynamoDb, Self::EventBridge];

    /// What `x-amz-target` begins with, before the dot.
    pub fn target_prefix(self) -> &'static str {
        match self {
            Self::Sqs => "AmazonSQS",
            Self::DynamoDb => "DynamoDB_20120810",
            Self::EventBridge => "AWSEvents",
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Sqs | Self::DynamoDb => "application/x-amz-json-1.0",
            Self::EventBridge => "application/x-amz-json-1.1",
        }
    }

    /// Larger bodies are refused unread. DynamoDB: 16 MB as in AWS. SQS and EventBridge: 1 MiB of
    /// content, escaped (six bytes for one) and with names around it.
    pub(crate) fn body_max_bytes(self) -> usize {
        match self {
            Self::DynamoDb => 16 * 1024 * 1024,
            Self::Sqs | Self::EventBridge => 8 * 1024 * 1024,
        }
    }
}

/// The service and operation of `x-amz-target`.
pub(crate) fn target(header: Option<&str>) -> Option<(Service, &str)> {
    let (prefix, operation) = header?.split_once('.')?;
    let service = Service::ALL.into_iter().find(|it| it.target_prefix() == prefix)?;
    Some((service, operation))
}
