//! Goal: a signed call is what AWS's protocols have it, signed over what arrives, and answers are interpreted as AWS means
//! them. Method: the real agent against a server on loopback that computes each signature again, from the request as it
//! arrived; the canonical request is written here, only the keyed hashes are the crate's.

use crate::server::{Heard, Server, act, failures, not_called, perform, runtime};
use agent::agents::Means;
use agent::agents::http::Http;
use agent::aws::Aws;
use agent::{Agent, AgentError};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, error::CredentialsError, future};
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use shared::message::{Outcome, Request};
use shared::time::Timestamp;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const JSON: &str = "application/x-amz-json-1.0";

impl Heard {
    /// The service, if the signature is right.
    fn service(&self) -> String {
        let authorization = self.header("authorization").strip_prefix("AWS4-HMAC-SHA256 ").expect("a signature");
        let part = |name: &str| {
            let mut parts = authorization.split(", ").filter_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            parts.next().expect(name).to_owned()
        };
        let credential = part("Credential");
        let [key, day, region, service, "aws4_request"] = *credential.split('/').collect::<Vec<_>>() else {
            panic!("{credential}")
        };
        assert_eq!((key, region), ("AKIDEXAMPLE", "eu-west-1"));
        let hash = |text: &[u8]| Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect::<String>();
        let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        // Everywhere but in S3 the path is encoded once more.
        let path = if service == "s3" { path.to_owned() } else { path.replace('%', "%25") };
        let mut query: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
        query.sort_unstable();
        let signed = part("SignedHeaders");
        let headers: String = signed.split(';').map(|name| format!("{name}:{}\n", self.header(name).trim())).collect();
        for name in ["host", "x-amz-date", "x-amz-security-token"] {
            assert!(signed.split(';').any(|one| one == name), "{name} is not signed: {signed}");
        }
        for (name, _) in &self.headers {
            let is_free = matches!(name.as_str(), "authorization" | "user-agent" | "accept" | "content-length");
            assert!(is_free || signed.split(';').any(|one| one == name), "{name} is not signed: {signed}");
        }
        let content = hash(self.body.as_bytes());
        if service == "s3" {
            assert_eq!(self.header("x-amz-content-sha256"), content);
        }
        let canonical =
            [&self.method, &path, &query.join("&"), &headers, &signed, &content].map(String::as_str).join("\n");
        let scope = format!("{day}/{region}/{service}/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", self.header("x-amz-date"), hash(canonical.as_bytes()));
        let at = Timestamp::strptime("%Y%m%dT%H%M%S%z", format!("{}+0000", self.header("x-amz-date").replace('Z', "")));
        let signing = generate_signing_key(SECRET, SystemTime::from(at.unwrap()), region, service);
        assert_eq!(part("Signature"), calculate_signature(signing, text.as_bytes()), "{canonical}");
        service.to_owned()
    }
}

type Answer = (u16, Vec<(&'static str, String)>, String);

/// Credentials that are read once, and counted.
#[derive(Clone, Debug, Default)]
struct Source {
    reads: Arc<AtomicUsize>,
    fails: bool,
}

impl ProvideCredentials for Source {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        self.reads.fetch_add(1, Ordering::SeqCst);
        future::ProvideCredentials::ready(match self.fails {
            true => Err(CredentialsError::not_loaded("there are none")),
            false => Ok(Credentials::new("AKIDEXAMPLE", SECRET, Some("token".into()), None, "test")),
        })
    }
}

struct World {
    server: Server,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    agent: Http,
    source: Source,
}

impl World {
    async fn start() -> Self {
        Self::with(Source::default()).await
    }

    async fn with(source: Source) -> Self {
        let answers = Arc::<Mutex<VecDeque<Answer>>>::default();
        let next = Arc::clone(&answers);
        let server = Server::start(move |_| {
            let (status, headers, body) = next.lock().unwrap().pop_front().expect("an answer");
            let mut answer = (StatusCode::from_u16(status).unwrap(), body).into_response();
            for (name, value) in headers {
                answer.headers_mut().insert(name, value.parse().unwrap());
            }
            std::future::ready(answer)
        });
        let server = server.await;
        let sdk = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .endpoint_url(format!("{}/", server.url))
            .credentials_provider(SharedCredentialsProvider::new(source.clone()))
            .build();
        let aws = Aws::new(&sdk).apart_from("https://sqs.eu-west-1.amazonaws.com/1/shop-", "shop-bus");
        Self { server, answers, agent: Http::new(&Means { aws: Arc::new(aws), ..Means::default() }), source }
    }

    /// What a call returns when AWS answers so, and the request that it got.
    async fn ask(&self, aws: Value, input: Value, answer: Answer) -> (Result<Value, AgentError>, Heard) {
        self.answers.lock().unwrap().push_back(answer);
        let result = act(&self.agent, &request(&aws, &input)).await;
        (result, self.server.heard.lock().unwrap().pop().expect("a call"))
    }

    /// The error of a call that was not made.
    async fn uncalled(&self, aws: Value, input: Value) -> String {
        let (error, _) = not_called(act(&self.agent, &request(&aws, &input)).await);
        assert!(self.server.heard().is_empty(), "{error}");
        error
    }
}

fn request(aws: &Value, input: &Value) -> Request {
    crate::server::request(json!({"aws": aws, "input": input}))
}

fn ok(kind: &str, body: &Value) -> Answer {
    (200, vec![("content-type", kind.to_owned())], body.to_string())
}

fn refusal(status: u16, body: &Value) -> Answer {
    (status, vec![("content-type", JSON.to_owned())], body.to_string())
}

/// The answer to the call of a function that failed.
fn failed(how: &str, payload: &Value) -> Answer {
    let (status, mut headers, body) = ok("application/json", payload);
    headers.push(("x-amz-function-error", how.to_owned()));
    (status, headers, body)
}

// K5: the JSON protocol, with a target and a version for each service; the answer is the output.
#[tokio::test]
async fn a_call_of_a_json_api_is_signed_and_answered() {
    let world = World::start().await;
    let item = json!({"TableName": "orders", "Item": {"id": {"S": "ord_1"}, "note": {"S": "ä \"x\""}}});
    let (result, heard) =
        world.ask(json!({"action": "dynamodb:PutItem"}), item.clone(), ok(JSON, &json!({"Attributes": {}}))).await;
    assert_eq!(result, Ok(json!({"Attributes": {}})));
    assert_eq!((heard.service().as_str(), heard.method.as_str(), heard.path.as_str()), ("dynamodb", "POST", "/"));
    assert_eq!(heard.header("x-amz-target"), "DynamoDB_20120810.PutItem");
    assert_eq!(heard.header("content-type"), JSON);
    assert_eq!(heard.header("x-amz-security-token"), "token");
    assert_eq!(serde_json::from_str::<Value>(&heard.body).unwrap(), item);
    let (result, heard) = world
        .ask(
            json!({"action": "states:StartExecution", "keep": {"arn": "${answer.executionArn}", "status": "${status}"}}),
            json!({"name": "ord_1"}),
            ok(JSON, &json!({"executionArn": "arn:x", "startDate": 1.5})),
        )
        .await;
    assert_eq!(result, Ok(json!({"arn": "arn:x", "status": 200})));
    assert_eq!((heard.service().as_str(), heard.header("x-amz-target")), ("states", "AWSStepFunctions.StartExecution"));
    assert_eq!(world.source.reads.load(Ordering::SeqCst), 1, "credentials are kept");
}

// K5: the query protocol is a form; XML is no output.
#[tokio::test]
async fn a_call_of_a_query_api_is_a_form() {
    let world = World::start().await;
    let xml = "<PublishResponse><MessageId>1</MessageId></PublishResponse>";
    let input = json!({
        "TopicArn": "arn:aws:sns:eu-west-1:1:t", "Message": "a b&c", "Dry": true, "Count": 2, "None": null,
        "MessageAttributes.entry.1": {"Name": "kind", "Value": {"DataType": "String", "StringValue": "x"}},
        "PublishBatchRequestEntries": [{"Id": "a"}, {"Id": "b"}],
    });
    let answer =
        (200, vec![("content-type", "text/xml".to_owned()), ("x-amzn-requestid", "r-1".to_owned())], xml.into());
    let call = json!({"action": "sns:Publish", "keep": {"request": "${header['x-amzn-requestid']}"}});
    let (result, heard) = world.ask(call, input, answer).await;
    assert_eq!(result, Ok(json!({"request": "r-1"})));
    assert_eq!(heard.service(), "sns");
    assert_eq!(heard.header("content-type"), "application/x-www-form-urlencoded; charset=utf-8");
    let pairs = url::form_urlencoded::parse(heard.body.as_bytes());
    let mut pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
    pairs.sort();
    let wanted = [
        "Action=Publish",
        "Count=2",
        "Dry=true",
        "Message=a b&c",
        "MessageAttributes.entry.1.Name=kind",
        "MessageAttributes.entry.1.Value.DataType=String",
        "MessageAttributes.entry.1.Value.StringValue=x",
        "PublishBatchRequestEntries.member.1.Id=a",
        "PublishBatchRequestEntries.member.2.Id=b",
        "TopicArn=arn:aws:sns:eu-west-1:1:t",
        "Version=2010-03-31",
    ];
    assert_eq!(pairs, wanted);
}

// K5: S3's object is the body; its key keeps its slashes and nothing else.
#[tokio::test]
async fn an_object_of_s3_is_put_and_read() {
    let world = World::start().await;
    let put = json!({"action": "s3:PutObject"});
    let input = json!({"Bucket": "b-1", "Key": "in/ö a+b(1)*.json", "Body": {"n": 1}, "IfNoneMatch": "*"});
    let (result, heard) = world.ask(put.clone(), input, (200, vec![], String::new())).await;
    assert_eq!(result, Ok(Value::Null));
    assert_eq!((heard.method.as_str(), heard.path.as_str()), ("PUT", "/b-1/in/%C3%B6%20a%2Bb%281%29%2A.json"));
    assert_eq!((heard.service().as_str(), heard.body.as_str()), ("s3", r#"{"n":1}"#));
    assert_eq!((heard.header("content-type"), heard.header("if-none-match")), ("application/json", "*"));
    let text = json!({"Bucket": "b-1", "Key": "a.csv", "Body": "x,y\n", "ContentType": "text/csv"});
    let (_, heard) = world.ask(put.clone(), text, (200, vec![], String::new())).await;
    assert_eq!(
        (heard.body.as_str(), heard.header("content-type"), heard.service().as_str()),
        ("x,y\n", "text/csv", "s3")
    );
    let get = json!({"action": "s3:GetObject"});
    let at = json!({"Bucket": "b-1", "Key": "a.json"});
    let (result, heard) = world.ask(get.clone(), at.clone(), ok("application/json", &json!({"n": 1}))).await;
    assert_eq!((result, heard.method.as_str(), heard.body.as_str()), (Ok(json!({"n": 1})), "GET", ""));
    let gone = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>a &lt; b</Message></Error>";
    let (result, _) = world.ask(get, at, (404, vec![("content-type", "application/xml".into())], gone.into())).await;
    let Err(AgentError::Refused { error, status: 404, answer }) = result else { panic!("{result:?}") };
    assert_eq!(error, "404 NoSuchKey: a < b");
    assert_eq!(answer, Some(json!({"__type": "NoSuchKey", "message": "a < b"})));
    for (bad, word) in [
        (json!({"Bucket": "b-1", "Key": "a/../b", "Body": ""}), "`Key`"),
        (json!({"Bucket": "b-1", "Key": "", "Body": ""}), "`Key`"),
        (json!({"Bucket": "b/../x", "Key": "a", "Body": ""}), "`Bucket`"),
        (json!({"Bucket": "..", "Key": "a", "Body": ""}), "`Bucket`"),
        (json!({"Key": "a", "Body": ""}), "`Bucket` is missing"),
        (json!({"Bucket": "b-1", "Key": "a", "Acl": "public-read"}), "`Acl`"),
        (json!({"Bucket": "b-1", "Key": "a", "ContentType": "a\nx-amz-acl: public-read"}), "`ContentType`"),
        (json!("text"), "a table"),
    ] {
        let error = world.uncalled(put.clone(), bad).await;
        assert!(error.contains(word) && error.contains("s3:PutObject"), "{word}: {error}");
    }
}

// K5: fields of a path leave the body; those of a GET or DELETE are its query.
#[tokio::test]
async fn a_call_of_a_rest_api_has_its_fields_where_they_belong() {
    let world = World::start().await;
    let json = "application/json";
    let create = json!({"Name": "a b", "ScheduleExpression": "at(x)"});
    let (_, heard) = world.ask(json!({"action": "scheduler:CreateSchedule"}), create, ok(json, &json!({}))).await;
    assert_eq!((heard.method.as_str(), heard.path.as_str()), ("POST", "/schedules/a%20b"));
    assert_eq!((heard.service().as_str(), heard.body.as_str()), ("scheduler", r#"{"ScheduleExpression":"at(x)"}"#));
    let delete = json!({"Name": "n", "groupName": "g&h", "clientToken": "t"});
    let (_, heard) = world.ask(json!({"action": "scheduler:DeleteSchedule"}), delete, ok(json, &json!({}))).await;
    assert_eq!((heard.method.as_str(), heard.path.as_str()), ("DELETE", "/schedules/n?clientToken=t&groupName=g%26h"));
    assert_eq!((heard.service().as_str(), heard.body.as_str()), ("scheduler", ""));
    let (_, heard) =
        world.ask(json!({"action": "sesv2:SendEmail"}), json!({"Content": {}}), ok(json, &json!({}))).await;
    assert_eq!((heard.path.as_str(), heard.service().as_str()), ("/v2/email/outbound-emails", "ses"));
}

// K5: a function gets what `with` maps, or the envelope; its context has the key and the deadline.
#[tokio::test]
async fn a_function_is_invoked() {
    let world = World::start().await;
    let call = |more: Value| {
        let mut call = json!({"action": "lambda:Invoke", "function": "stock:live"});
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call
    };
    let result = ok("application/json", &json!({"left": 3}));
    let (answer, heard) = world.ask(call(json!({})), json!({"sku": "a"}), result.clone()).await;
    assert_eq!(answer, Ok(json!({"left": 3})));
    assert_eq!(
        (heard.method.as_str(), heard.path.as_str()),
        ("POST", "/2015-03-31/functions/stock%3Alive/invocations")
    );
    assert_eq!((heard.service().as_str(), heard.body.as_str()), ("lambda", r#"{"sku":"a"}"#));
    let context = aws_smithy_types::base64::decode(heard.header("x-amz-client-context")).unwrap();
    let context: Value = serde_json::from_slice(&context).unwrap();
    assert_eq!(context["custom"]["idempotency_key"], "ord_1:notify:do");
    assert!(context["custom"]["complete_by"].is_string(), "{context}");
    let (_, heard) = world.ask(call(json!({})), json!("a text"), result.clone()).await;
    assert_eq!(heard.body, "\"a text\"", "a payload is always JSON");
    let (_, heard) = world.ask(call(json!({"envelope": true})), json!({"sku": "a"}), result).await;
    let envelope: Value = serde_json::from_str(&heard.body).unwrap();
    assert_eq!((&envelope["input"], &envelope["order_id"]), (&json!({"sku": "a"}), &json!("ord_1")));
    assert_eq!(
        (&envelope["idempotency_key"], &envelope["outputs"]["reserve"]["id"]),
        (&json!("ord_1:notify:do"), &json!(1))
    );
    let (answer, _) = world.ask(call(json!({})), json!({}), ok("application/json", &Value::Null)).await;
    assert_eq!(answer, Ok(Value::Null));
}

// K5: any error of a function may pass, but for those that the file names.
#[tokio::test]
async fn an_error_of_a_function_is_tried_again_unless_the_file_says_what_it_means() {
    let world = World::start().await;
    let call = json!({
        "action": "lambda:Invoke", "function": "stock", "permanent": ["OutOfStock"], "done": ["AlreadyReserved"],
    });
    let thrown = json!({"errorType": "OutOfStock", "errorMessage": "none left", "stackTrace": ["x".repeat(2000)]});
    let (result, _) = world.ask(call.clone(), json!({}), failed("Unhandled", &thrown)).await;
    let Err(AgentError::Refused { error, status: 200, answer }) = result else { panic!("{result:?}") };
    assert_eq!(error, "the function failed: OutOfStock: none left");
    assert_eq!(answer, Some(json!({"errorType": "OutOfStock", "errorMessage": "none left"})));
    let reserved = json!({"errorType": "AlreadyReserved", "errorMessage": "by this order"});
    assert_eq!(world.ask(call.clone(), json!({}), failed("Unhandled", &reserved)).await.0, Ok(Value::Null));
    for (how, payload, error) in [
        ("Unhandled", json!({"errorMessage": "2026-01-01 Task timed out after 3.00 seconds"}), "Unknown"),
        ("Handled", json!({"errorType": "KeyError", "errorMessage": "'sku'"}), "KeyError"),
        ("Unhandled", json!({"errorType": "Runtime.ExitError"}), "Runtime.ExitError"),
    ] {
        let (result, _) = world.ask(call.clone(), json!({}), failed(how, &payload)).await;
        let Err(AgentError::Transient { error: found, .. }) = result else { panic!("{result:?}") };
        assert_eq!(found, format!("the function failed: {error}"));
    }
    let busy = (
        429,
        vec![("x-amzn-errortype", "TooManyRequestsException:http://x/".to_owned()), ("retry-after", "7".into())],
        "{}".into(),
    );
    let (result, _) = world.ask(call.clone(), json!({}), busy).await;
    let Err(AgentError::Transient { error, status: Some(429), retry_after: Some(wait), .. }) = result else {
        panic!("{result:?}")
    };
    assert_eq!((error.as_str(), wait.as_secs()), ("429 TooManyRequestsException", 7));
    let missing = (
        404,
        vec![("x-amzn-errortype", "ResourceNotFoundException".to_owned())],
        json!({"Message": "no stock"}).to_string(),
    );
    let (result, _) = world.ask(call, json!({}), missing).await;
    let Err(AgentError::Refused { status: 404, answer: Some(answer), .. }) = result else { panic!("{result:?}") };
    assert_eq!(answer, json!({"Message": "no stock", "__type": "ResourceNotFoundException"}));
}

// K5: an error is known by its name, whatever namespace the service writes before it.
#[tokio::test]
async fn an_error_has_its_name_for_catch() {
    let world = World::start().await;
    let put = json!({"action": "dynamodb:PutItem"});
    let body = json!({"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", "message": "The conditional request failed"});
    let (result, _) = world.ask(put.clone(), json!({}), refusal(400, &body)).await;
    let Err(AgentError::Refused { error, status: 400, answer: Some(answer) }) = result else { panic!("{result:?}") };
    assert_eq!(error, "400 ConditionalCheckFailedException: The conditional request failed");
    assert_eq!(answer["__type"], "ConditionalCheckFailedException");
    let long = json!({"__type": "x#ValidationException", "message": "m".repeat(3000), "more": 1});
    let (result, _) = world.ask(put.clone(), json!({}), refusal(400, &long)).await;
    let Err(AgentError::Refused { answer: Some(answer), .. }) = result else { panic!("{result:?}") };
    assert_eq!((&answer["__type"], answer.get("more")), (&json!("ValidationException"), None));
    // Some services quote the request as they would sign it, and that has the session token.
    for code in ["x#InvalidSignatureException", "SignatureDoesNotMatch"] {
        let quoted = json!({"__type": code, "message": "should have been\nx-amz-security-token:t0ken"});
        let (result, _) = world.ask(put.clone(), json!({}), refusal(403, &quoted)).await;
        let told = format!("{result:?}");
        assert!(told.contains("credentials, Region and clock") && !told.contains("t0ken"), "{told}");
    }
    let throttled = json!({"__type": "x#ProvisionedThroughputExceededException", "message": "slow down"});
    let (result, _) = world.ask(put.clone(), json!({}), refusal(400, &throttled)).await;
    let Err(AgentError::Transient { error, said, .. }) = result else { panic!("{result:?}") };
    assert_eq!((error.as_str(), said.as_deref()), ("400 ProvisionedThroughputExceededException", Some("slow down")));
    let (result, _) = world.ask(put, json!({}), (503, vec![], "<html>".into())).await;
    let Err(AgentError::Transient { error, status: Some(503), .. }) = result else { panic!("{result:?}") };
    assert_eq!(error, "503 Service Unavailable");
    let cancelled = |codes: [&str; 2]| {
        let reasons = codes.map(|code| json!({"Code": code}));
        let name = "x#TransactionCanceledException";
        refusal(400, &json!({"__type": name, "Message": "no", "CancellationReasons": reasons}))
    };
    let write = json!({"action": "dynamodb:TransactWriteItems"});
    // What the file says comes first.
    let firm = json!({"action": "dynamodb:TransactWriteItems", "permanent": ["TransactionCanceledException"]});
    let object = json!({"Bucket": "b", "Key": "k", "Body": "x", "IfNoneMatch": "*"});
    let conflict = (409, vec![], "<Error><Code>ConditionalRequestConflict</Code></Error>".into());
    for (call, input, answer, is_transient) in [
        (&write, json!({}), cancelled(["None", "TransactionConflict"]), true),
        (&write, json!({}), cancelled(["ConditionalCheckFailed", "TransactionConflict"]), false),
        (&firm, json!({}), cancelled(["None", "TransactionConflict"]), false),
        (&json!({"action": "s3:PutObject"}), object, conflict, true),
    ] {
        let (result, _) = world.ask(call.clone(), input, answer).await;
        let is_refused = matches!(result, Err(AgentError::Refused { .. }));
        assert_eq!((matches!(result, Err(AgentError::Transient { .. })), is_refused), (is_transient, !is_transient));
    }
}

// K5: an error that means done is an answer like any other for `output`, which finds in it what there is.
#[tokio::test]
async fn an_error_that_means_done_can_be_read() {
    let world = World::start().await;
    let keep = json!({"arn": "${first(answer.executionArn, answer.errorType, 'none')}", "status": "${status}"});
    let start = json!({"action": "states:StartExecution", "done": ["ExecutionAlreadyExists"], "keep": keep});
    let exists = json!({"__type": "ExecutionAlreadyExists", "message": "it is there"});
    let (result, _) = world.ask(start.clone(), json!({}), refusal(400, &exists)).await;
    assert_eq!(result, Ok(json!({"arn": "none", "status": 400})));
    let call = json!({"action": "lambda:Invoke", "function": "f", "done": ["There"], "keep": start["keep"]});
    let (result, _) = world.ask(call, json!({}), failed("Unhandled", &json!({"errorType": "There"}))).await;
    assert_eq!(result, Ok(json!({"arn": "There", "status": 200})));
}

// Security: whoever knows the token of a callback may report, and a function may return its event or fail with it.
#[tokio::test]
async fn an_answer_that_repeats_the_callback_is_masked() {
    let world = World::start().await;
    let address = "https://api.example/callbacks/ord_1/stock/t0ken";
    let body = json!({"errorType": "t0ken", "errorMessage": address, "given": {"callback": address}});
    let answers = [
        ok("application/json", &body),
        failed("Unhandled", &body),
        refusal(400, &json!({"__type": "No", "message": address, "callback": address})),
        refusal(503, &json!({"message": address})),
    ];
    for (n, answer) in answers.into_iter().enumerate() {
        world.answers.lock().unwrap().push_back(answer);
        let mut request = request(&json!({"action": "lambda:Invoke", "function": "f"}), &json!({}));
        request.callback = Some(address.into());
        let told = format!("{:?}", act(&world.agent, &request).await);
        assert!(!told.contains("t0ken") && told.contains("***"), "{n}: {told}");
    }
}

// K5: 200 does not mean that every entry of a list was taken.
#[tokio::test]
async fn a_call_that_failed_in_part_is_not_done() {
    let world = World::start().await;
    for (action, answer, is_done) in [
        ("events:PutEvents", json!({"FailedEntryCount": 0, "Entries": []}), true),
        ("events:PutEvents", json!({"FailedEntryCount": 1, "Entries": []}), false),
        ("sqs:SendMessageBatch", json!({"Successful": [{}]}), true),
        ("sqs:SendMessageBatch", json!({"Failed": [{"Id": "a"}]}), false),
        ("dynamodb:BatchWriteItem", json!({"UnprocessedItems": {}}), true),
        ("dynamodb:BatchWriteItem", json!({"UnprocessedItems": {"t": [{}]}}), false),
    ] {
        let (result, _) = world.ask(json!({"action": action}), json!({}), ok(JSON, &answer)).await;
        match result {
            Ok(_) => assert!(is_done, "{action} {answer}"),
            Err(AgentError::Transient { error, .. }) => {
                assert!(!is_done && error.contains("a part of the call failed"), "{error}")
            }
            other => panic!("{other:?}"),
        }
    }
}

// E4: an error of a function, a conflict or a part that failed concerns one order. The breaker counts what all meet.
#[tokio::test]
async fn only_what_says_that_the_service_is_unwell_opens_its_breaker() {
    let failed = failed("Unhandled", &json!({"errorType": "KeyError"}));
    let conflicts = json!({
        "__type": "x#TransactionCanceledException", "CancellationReasons": [{"Code": "TransactionConflict"}],
    });
    let error = |name: &str| refusal(400, &json!({"__type": name}));
    let invoke = json!({"action": "lambda:Invoke", "function": "stock"});
    let write = json!({"action": "dynamodb:TransactWriteItems", "transient": ["LockedException"]});
    for (call, answer, is_open) in [
        (&invoke, failed, false),
        (&write, refusal(400, &conflicts), false),
        (&write, error("TransactionInProgressException"), false),
        (&write, error("ExpiredTokenException"), false),
        (&write, error("LockedException"), false),
        (&json!({"action": "events:PutEvents"}), ok(JSON, &json!({"FailedEntryCount": 1})), false),
        (&write, error("ThrottlingException"), true),
        (&write, error("ProvisionedThroughputExceededException"), true),
        (&write, (503, vec![], String::new()), true),
        (&invoke, (429, vec![], "{}".into()), true),
        // Lambda changes the function, which no order can call meanwhile.
        (&invoke, refusal(409, &json!({"__type": "ResourceConflictException"})), true),
    ] {
        let World { answers, agent, .. } = World::start().await;
        let runtime = runtime(agent, failures(2));
        let request = request(call, &json!({}));
        for _ in 0..2 {
            answers.lock().unwrap().push_back(answer.clone());
            let reply = perform(&runtime, &request).await.expect("a reply");
            assert!(matches!(reply.outcome, Outcome::Unavailable { .. }), "{answer:?}: {reply:?}");
        }
        assert_eq!(!runtime.open_breakers().is_empty(), is_open, "{answer:?}");
    }
}

// K5: without credentials, or without this version knowing the action, nothing is called and nothing is lost.
#[tokio::test]
async fn what_cannot_be_signed_is_not_called() {
    let world = World::with(Source { fails: true, ..Source::default() }).await;
    let put = request(&json!({"action": "dynamodb:PutItem"}), &json!({}));
    let (error, is_permanent) = not_called(act(&world.agent, &put).await);
    assert!(error.contains("no credentials for AWS") && !is_permanent, "{error}");
    let newer = request(&json!({"action": "dynamodb:NewItem"}), &json!({}));
    let (error, is_permanent) = not_called(act(&world.agent, &newer).await);
    assert!(!is_permanent, "{error}");
    let nowhere = Http::new(&Means::default());
    for (aws, word) in [
        (json!({"action": "dynamodb:PutItem"}), "set AWS_ENDPOINT_URL"),
        (
            json!({"action": "lambda:Invoke", "function": "arn:aws:lambda:eu-west-1:123456789012:function:stock:live"}),
            "--lambda stock=URL",
        ),
    ] {
        let (error, is_permanent) = not_called(act(&nowhere, &request(&aws, &json!({}))).await);
        assert!(error.contains(word) && !is_permanent, "{error}");
    }
    assert_eq!(nowhere.remote(&put).as_deref(), Some("aws:dynamodb"), "each service has a breaker");
    let invoke = request(&json!({"action": "lambda:Invoke", "function": "stock"}), &json!({}));
    assert_eq!(nowhere.remote(&invoke).as_deref(), Some("lambda:stock"));
    assert!(world.server.heard().is_empty());
}

// Credentials that AWS no longer takes are read again.
#[tokio::test]
async fn expired_credentials_are_read_again() {
    let world = World::start().await;
    let call = json!({"action": "sqs:SendMessage"});
    let expired = json!({"__type": "com.amazon.coral.service#ExpiredTokenException", "message": "old"});
    let (result, _) = world.ask(call.clone(), json!({}), refusal(403, &expired)).await;
    assert!(matches!(result, Err(AgentError::Transient { .. })), "{result:?}");
    let (result, _) = world.ask(call, json!({}), ok(JSON, &json!({"MessageId": "1"}))).await;
    assert_eq!(result, Ok(json!({"MessageId": "1"})));
    assert_eq!(world.source.reads.load(Ordering::SeqCst), 2);
}

// Security: the agent's role may use these for its own work. A step must not forge replies, requests or alerts with it.
#[tokio::test]
async fn the_systems_own_queues_and_bus_are_not_called() {
    let world = World::start().await;
    for (action, input) in [
        (
            "sqs:SendMessage",
            json!({"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/shop-replies", "MessageBody": "x"}),
        ),
        ("sqs:ReceiveMessage", json!({"QueueUrl": "https://other.example/1/shop-agent-http/"})),
        ("sqs:DeleteMessage", json!({"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/shop%2Dreplies"})),
        ("events:PutEvents", json!({"Entries": [{"EventBusName": "a"}, {"EventBusName": "shop-bus"}]})),
        ("events:PutEvents", json!({"Entries": [{"EventBusName": "arn:aws:events:eu-west-1:1:event-bus/shop-bus"}]})),
    ] {
        let error = world.uncalled(json!({"action": action}), input).await;
        assert!(error.contains("of the system itself") && error.contains("use your own"), "{error}");
    }
    let own = json!({"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/orders", "MessageBody": "x"});
    let (result, _) = world.ask(json!({"action": "sqs:SendMessage"}), own, ok(JSON, &json!({"MessageId": "1"}))).await;
    assert_eq!(result, Ok(json!({"MessageId": "1"})));
}

// K5: an undo finds nothing to delete if what it undoes was never done.
#[tokio::test]
async fn what_is_not_there_is_deleted() {
    let world = World::start().await;
    let gone = refusal(404, &json!({"__type": "ResourceNotFoundException"}));
    let delete = json!({"Name": "remind", "GroupName": "orders", "ClientToken": "t"});
    let (result, heard) = world.ask(json!({"action": "scheduler:DeleteSchedule"}), delete, gone).await;
    assert_eq!(result, Ok(Value::Null));
    assert_eq!(heard.path, "/schedules/remind?clientToken=t&groupName=orders");
    let gone = refusal(400, &json!({"__type": "com.amazonaws.x#ExecutionDoesNotExist"}));
    let stop = json!({"action": "states:StopExecution", "done": ["ExecutionDoesNotExist"]});
    assert_eq!(world.ask(stop, json!({"executionArn": "a"}), gone).await.0, Ok(Value::Null));
}
