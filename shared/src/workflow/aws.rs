//! A step that is a signed call to AWS: a Lambda function, or an action of another service.
//!
//! The table below says how an action is called; the agent that calls URLs makes the call, signed by its own role.

use super::http::{self, Meaning};
use crate::expression::Mapping;
use serde::{Deserialize, Serialize};

/// The action of a step that invokes a function.
pub const INVOKE: &str = "lambda:Invoke";

/// A signed call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Aws {
    /// Service and action as IAM names them, such as `dynamodb:PutItem`.
    pub action: String,
    /// The function to invoke, if that is the action: a name or an ARN, either with or without a version or an alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Whether the function gets the usual envelope, because the file maps nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub envelope: bool,
    /// What is kept of the answer, from `answer`, `status` and `header`; `None` keeps all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Mapping>,
    /// Errors that mean that the call is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
    /// Errors after which the same call may succeed later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transient: Vec<String>,
    /// Errors after which it cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permanent: Vec<String>,
}

/// A service, and how to call its actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// As in a workflow file. The prefix of its actions in IAM, except for `sesv2` and `bedrock-runtime`.
    pub name: &'static str,
    /// The first part of its endpoint's name.
    pub host: &'static str,
    /// Its name in a signature.
    pub signed_as: &'static str,
    /// How a call looks.
    pub protocol: Protocol,
    /// The known actions; for REST: action, method and path, separated by `;`.
    actions: &'static str,
}

/// How a call looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A POST with JSON of this version. A header names the action, with this prefix.
    Json(&'static str, &'static str),
    /// A POST with a form, for this version of the API; the answer is XML.
    Query(&'static str),
    /// Method and path depend on the action; the rest is JSON, or the query of a GET or DELETE.
    Rest,
    /// As `Rest`, but the body is an object of S3 and the rest are headers; errors are XML.
    S3,
}

const fn json(name: &'static str, version: &'static str, target: &'static str, actions: &'static str) -> Service {
    Service { name, host: name, signed_as: name, protocol: Protocol::Json(version, target), actions }
}

const fn query(
    name: &'static str,
    host: &'static str,
    signed_as: &'static str,
    version: &'static str,
    actions: &'static str,
) -> Service {
    Service { name, host, signed_as, protocol: Protocol::Query(version), actions }
}

const fn rest(name: &'static str, host: &'static str, signed_as: &'static str, actions: &'static str) -> Service {
    Service { name, host, signed_as, protocol: Protocol::Rest, actions }
}

/// The services and actions that a workflow file may name. Actions that read secrets are left out, because outputs are
/// recorded. So are actions that may fail in part and say so only in XML or in a status per part. Source: the models
/// that AWS publishes for its SDKs.
#[rustfmt::skip]
pub const SERVICES: &[Service] = &[
    json("athena", "1.1", "AmazonAthena", "GetQueryExecution GetQueryResults StartQueryExecution StopQueryExecution"),
    rest("batch", "batch", "batch", "CancelJob POST /v1/canceljob;DescribeJobs POST /v1/describejobs;SubmitJob POST /v1/submitjob;TerminateJob POST /v1/terminatejob"),
    rest("bedrock-runtime", "bedrock-runtime", "bedrock", "Converse POST /model/{modelId}/converse"),
    query("cloudwatch", "monitoring", "monitoring", "2010-08-01", "PutMetricData SetAlarmState"),
    json("codebuild", "1.1", "CodeBuild_20161006", "BatchGetBuilds StartBuild StopBuild"),
    json("comprehend", "1.1", "Comprehend_20171127", "DetectDominantLanguage DetectEntities DetectKeyPhrases DetectSentiment"),
    json("dynamodb", "1.0", "DynamoDB_20120810", "BatchGetItem BatchWriteItem DeleteItem ExecuteStatement GetItem PutItem Query Scan TransactGetItems TransactWriteItems UpdateItem"),
    json("ecs", "1.1", "AmazonEC2ContainerServiceV20141113", "DescribeTasks RunTask StopTask UpdateService"),
    json("elasticmapreduce", "1.1", "ElasticMapReduce", "AddJobFlowSteps DescribeCluster DescribeStep RunJobFlow TerminateJobFlows"),
    json("events", "1.1", "AWSEvents", "PutEvents"),
    json("firehose", "1.1", "Firehose_20150804", "PutRecord PutRecordBatch"),
    json("glue", "1.1", "AWSGlue", "BatchStopJobRun GetCrawler GetJobRun GetWorkflowRun StartCrawler StartJobRun StartWorkflowRun StopWorkflowRun"),
    json("kinesis", "1.1", "Kinesis_20131202", "PutRecord PutRecords"),
    rest("lambda", "lambda", "lambda", "Invoke POST /2015-03-31/functions/{FunctionName}/invocations"),
    json("logs", "1.1", "Logs_20140328", "GetQueryResults StartQuery"),
    json("redshift-data", "1.1", "RedshiftData", "CancelStatement DescribeStatement ExecuteStatement GetStatementResult"),
    json("rekognition", "1.1", "RekognitionService", "DetectLabels DetectModerationLabels DetectText GetLabelDetection StartLabelDetection"),
    Service { name: "s3", host: "s3", signed_as: "s3", protocol: Protocol::S3, actions: "DeleteObject DELETE /{Bucket}/{Key};GetObject GET /{Bucket}/{Key};HeadObject HEAD /{Bucket}/{Key};PutObject PUT /{Bucket}/{Key}" },
    Service { host: "api.sagemaker", ..json("sagemaker", "1.1", "SageMaker", "CreateProcessingJob CreateTrainingJob CreateTransformJob DescribeProcessingJob DescribeTrainingJob DescribeTransformJob StopProcessingJob StopTrainingJob StopTransformJob") },
    rest("scheduler", "scheduler", "scheduler", "CreateSchedule POST /schedules/{Name};DeleteSchedule DELETE /schedules/{Name};GetSchedule GET /schedules/{Name}"),
    query("ses", "email", "ses", "2010-12-01", "SendEmail SendTemplatedEmail"),
    rest("sesv2", "email", "ses", "SendEmail POST /v2/email/outbound-emails"),
    query("sns", "sns", "sns", "2010-03-31", "Publish"),
    json("sqs", "1.0", "AmazonSQS", "ChangeMessageVisibility DeleteMessage GetQueueAttributes GetQueueUrl ReceiveMessage SendMessage SendMessageBatch"),
    json("ssm", "1.1", "AmazonSSM", "GetAutomationExecution GetCommandInvocation SendCommand StartAutomationExecution StopAutomationExecution"),
    json("states", "1.0", "AWSStepFunctions", "DescribeExecution SendTaskFailure SendTaskSuccess StartExecution StopExecution"),
    json("textract", "1.1", "Textract", "AnalyzeDocument DetectDocumentText GetDocumentAnalysis GetDocumentTextDetection StartDocumentAnalysis StartDocumentTextDetection"),
    json("transcribe", "1.1", "Transcribe", "GetTranscriptionJob StartTranscriptionJob"),
    json("translate", "1.1", "AWSShineFrontendService_20170701", "TranslateText"),
];

/// Batch actions that answer 200 even if parts failed, and the field that says so.
const PARTS: [(&str, &str); 8] = [
    ("dynamodb:BatchGetItem", "UnprocessedKeys"),
    ("dynamodb:BatchWriteItem", "UnprocessedItems"),
    ("ecs:RunTask", "failures"),
    ("events:PutEvents", "FailedEntryCount"),
    ("firehose:PutRecordBatch", "FailedPutCount"),
    ("glue:BatchStopJobRun", "Errors"),
    ("kinesis:PutRecords", "FailedRecordCount"),
    ("sqs:SendMessageBatch", "Failed"),
];

/// Parameters of S3 calls besides bucket, key and body, and their headers. A header that begins with `x-` is S3's own.
pub const S3_HEADERS: [(&str, &str); 10] = [
    ("CacheControl", "cache-control"),
    ("ContentDisposition", "content-disposition"),
    ("ContentEncoding", "content-encoding"),
    ("ContentType", "content-type"),
    ("ExpectedBucketOwner", "x-amz-expected-bucket-owner"),
    ("IfMatch", "if-match"),
    ("IfNoneMatch", "if-none-match"),
    ("SSEKMSKeyId", "x-amz-server-side-encryption-aws-kms-key-id"),
    ("ServerSideEncryption", "x-amz-server-side-encryption"),
    ("StorageClass", "x-amz-storage-class"),
];

/// Errors with a status below 500 that say that the service is overloaded. AWS's own clients call again.
const BUSY: [&str; 18] = [
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "KMSThrottling",
    "KMSThrottlingException",
    "KmsThrottled",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "Throttled",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
];

/// Other errors with a status below 500 after which AWS's own clients call again, and conflicts: of transactions, and the two of
/// S3 after which its reference says to try again ("Error responses", "Conditional writes"). They concern one call.
const AGAIN: [&str; 10] = [
    "ConditionalRequestConflict",
    "ExpiredToken",
    "ExpiredTokenException",
    "OperationAborted",
    "PriorRequestNotComplete",
    "ReplicatedWriteConflictException",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "TransactionConflictException",
    "TransactionInProgressException",
];

impl Service {
    /// The service called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SERVICES.iter().find(|service| service.name == name)
    }

    /// Its known actions.
    pub fn actions(&self) -> impl Iterator<Item = &'static str> {
        let separator = if self.is_rest() { ';' } else { ' ' };
        self.actions.split(separator).map(|entry| entry.split(' ').next().unwrap_or_default())
    }

    /// Method and path of a REST action.
    #[must_use]
    pub fn route(&self, action: &str) -> Option<(&'static str, &'static str)> {
        let entry = self.actions.split(';').filter(|_| self.is_rest());
        let mut entries = entry.filter_map(|entry| entry.strip_prefix(action)?.strip_prefix(' ')?.split_once(' '));
        entries.next()
    }

    fn is_rest(&self) -> bool {
        matches!(self.protocol, Protocol::Rest | Protocol::S3)
    }
}

impl Aws {
    /// Service and action; `None` if this version does not know them.
    #[must_use]
    pub fn service(&self) -> Option<(&'static Service, &str)> {
        let (service, action) = self.action.split_once(':')?;
        let service = Service::named(service)?;
        service.actions().any(|known| known == action).then_some((service, action))
    }

    /// What an answer with a status other than 2xx means. `error` is the error's name, or empty.
    #[must_use]
    pub fn meaning(&self, status: u16, error: &str) -> Meaning {
        match status {
            _ if self.said(error).is_some() => self.said(error).unwrap_or(Meaning::Permanent),
            // As for a URL: nothing is left to delete.
            404 if self.deletes() => Meaning::Done,
            501 => Meaning::Permanent,
            408 | 425 | 429 | 500..=599 => Meaning::Transient,
            // Lambda is just changing the function.
            409 if self.function.is_some() => Meaning::Transient,
            _ if BUSY.contains(&error) || AGAIN.contains(&error) => Meaning::Transient,
            _ => Meaning::Permanent,
        }
    }

    /// Whether such an answer says that the service itself is unwell, so that other calls of it would fail as well.
    #[must_use]
    pub fn is_unwell(&self, status: u16, error: &str) -> bool {
        // While Lambda changes a function, no order can call it.
        http::is_unwell(status) || BUSY.contains(&error) || status == 409 && self.function.is_some()
    }

    fn deletes(&self) -> bool {
        let route = self.service().filter(|(service, _)| service.protocol == Protocol::Rest);
        route.and_then(|(service, action)| service.route(action)).is_some_and(|(method, _)| method == "DELETE")
    }

    /// What this error of a function means: transient, unless the file says otherwise.
    #[must_use]
    pub fn meaning_of_function_error(&self, error: &str) -> Meaning {
        self.said(error).unwrap_or(Meaning::Transient)
    }

    /// What the file says of an error.
    fn said(&self, error: &str) -> Option<Meaning> {
        let named = |list: &[String]| list.iter().any(|name| name == error);
        let permanent = named(&self.permanent).then_some(Meaning::Permanent);
        let done = named(&self.done).then_some(Meaning::Done);
        permanent.or(done).or_else(|| named(&self.transient).then_some(Meaning::Transient))
    }

    /// The field of an answer that says which parts failed.
    #[must_use]
    pub fn field_of_failures(&self) -> Option<&'static str> {
        PARTS.iter().find(|(action, _)| *action == self.action).map(|(_, field)| *field)
    }

    /// The function's own name, without account, version or alias.
    #[must_use]
    pub fn function_name(&self) -> Option<&str> {
        let mut parts = self.function.as_deref()?.split(':').collect::<Vec<_>>().into_iter();
        let whole = parts.len();
        match parts.clone().position(|part| part == "function") {
            Some(at) if whole > at + 1 && at > 0 => parts.nth(at + 1),
            Some(_) | None => parts.next(),
        }
    }

    /// The Region in the function's ARN, if it is one.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        let arn = self.function.as_deref().filter(|name| name.starts_with("arn:"))?;
        arn.split(':').nth(3)
    }
}

/// Whether `text` names a Lambda function: by name, by account and name, or by ARN, each with or without a version or an
/// alias.
#[must_use]
pub fn is_function(text: &str) -> bool {
    let word = |text: &str, longest: usize| {
        let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !text.is_empty() && text.len() <= longest && text.chars().all(is_good)
    };
    let is_account = |text: &str| text.len() == 12 && text.bytes().all(|b| b.is_ascii_digit());
    let named = |parts: &[&str]| match parts {
        [name] => word(name, 64),
        [name, qualifier] => word(name, 64) && (*qualifier == "$LATEST" || word(qualifier, 128)),
        _ => false,
    };
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        ["arn", partition, "lambda", region, account, "function", rest @ ..] => {
            partition.starts_with("aws")
                && word(partition, 20)
                && word(region, 40)
                && is_account(account)
                && named(rest)
        }
        [account, "function", rest @ ..] => is_account(account) && named(rest),
        rest => named(rest),
    }
}
