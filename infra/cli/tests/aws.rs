//! Goal: the command line and the console work against a deployment whose callers sign, and every way in which that fails is a
//! sentence that says what to do. Method: the real binary against a server on loopback that stands for CloudFormation and API
//! Gateway and computes each signature again, from the request as it arrived.

mod common;

use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use common::{Running, block, failed, program};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const ABSENT: &str = "<ErrorResponse><Error><Type>Sender</Type><Code>ValidationError</Code><Message>Stack with id shop does not \
                      exist</Message></Error></ErrorResponse>";

/// What API Gateway answers to a caller without a right.
const FORBIDDEN: &str = r#"{"message":"Forbidden"}"#;

struct Heard {
    method: String,
    path: String,
    headers: HeaderMap,
    body: String,
}

impl Heard {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Key and service, if the signature is right. It covers every header that has a meaning.
    fn signed(&self) -> (String, String) {
        let authorization = self.header("authorization").strip_prefix("AWS4-HMAC-SHA256 ").expect("a signature");
        let part = |name: &str| {
            let mut parts = authorization.split(", ").filter_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            parts.next().expect(name).to_owned()
        };
        let credential = part("Credential");
        let [key, day, region, service, "aws4_request"] = *credential.split('/').collect::<Vec<_>>() else {
            panic!("{credential}")
        };
        assert_eq!(region, "eu-west-1");
        let hash = |text: &[u8]| Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect::<String>();
        let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let mut query: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
        query.sort_unstable();
        let signed = part("SignedHeaders");
        let headers: String = signed.split(';').map(|name| format!("{name}:{}\n", self.header(name).trim())).collect();
        for name in self.headers.keys().map(|name| name.as_str()) {
            let is_free = matches!(name, "authorization" | "user-agent" | "accept" | "content-length");
            assert!(is_free || signed.split(';').any(|one| one == name), "{name} is not signed: {signed}");
        }
        let content = hash(self.body.as_bytes());
        let path = path.replace('%', "%25");
        let canonical =
            [&self.method, &path, &query.join("&"), &headers, &signed, &content].map(String::as_str).join("\n");
        let scope = format!("{day}/{region}/{service}/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", self.header("x-amz-date"), hash(canonical.as_bytes()));
        let at = Timestamp::strptime("%Y%m%dT%H%M%S%z", format!("{}+0000", self.header("x-amz-date").replace('Z', "")));
        let signing = generate_signing_key(SECRET, SystemTime::from(at.unwrap()), region, service);
        assert_eq!(part("Signature"), calculate_signature(signing, text.as_bytes()), "{canonical}");
        (key.to_owned(), service.to_owned())
    }
}

/// Status, headers and body of an answer, by path; `/` is CloudFormation's.
type Answers = BTreeMap<&'static str, (u16, Vec<(&'static str, &'static str)>, String)>;

#[derive(Clone, Default)]
struct Server {
    url: String,
    heard: Arc<Mutex<Vec<Heard>>>,
    answers: Arc<Mutex<Answers>>,
}

async fn answer(State(server): State<Server>, asked: Request) -> Response {
    let (head, body) = asked.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    server.heard.lock().unwrap().push(Heard {
        method: head.method.to_string(),
        path: head.uri.path_and_query().unwrap().to_string(),
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    });
    let answers = server.answers.lock().unwrap();
    let (status, headers, body) =
        answers.get(head.uri.path()).cloned().unwrap_or((200, Vec::new(), "{\"a\":1}".into()));
    let mut answer = (StatusCode::from_u16(status).unwrap(), body).into_response();
    for (name, value) in headers {
        answer.headers_mut().insert(name, value.parse().unwrap());
    }
    answer
}

impl Server {
    fn start() -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            block(async {
                let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                let server = Self { url: format!("http://{}", listener.local_addr().unwrap()), ..Self::default() };
                tell.send(server.clone()).unwrap();
                axum::serve(listener, Router::new().fallback(answer).with_state(server)).await.unwrap();
            });
        });
        let server: Self = told.recv().unwrap();
        let outputs = format!(
            "<Outputs><member><OutputKey>ApiId</OutputKey><OutputValue>x</OutputValue></member><member><Description>d</Description>\
             <OutputKey>ApiUrl</OutputKey><OutputValue>{}</OutputValue></member></Outputs>",
            server.url
        );
        server.answers("/", 200, &[], &outputs);
        server
    }

    fn answers(&self, path: &'static str, status: u16, headers: &[(&'static str, &'static str)], body: &str) {
        self.answers.lock().unwrap().insert(path, (status, headers.to_vec(), body.into()));
    }

    fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

/// A person's machine.
struct Machine {
    server: Server,
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { server: Server::start(), dir: tempfile::tempdir().unwrap() }
    }

    /// The program, with no credentials of this machine and no token.
    fn bare(&self, args: &[&str]) -> Command {
        let mut command = program(self.dir.path(), args);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.env_remove("STEPWARDEN_TOKEN").env("PATH", self.dir.path().join("bin")).env("AWS_REGION", "eu-west-1");
        command
            .env("AWS_CONFIG_FILE", self.file("config"))
            .env("AWS_SHARED_CREDENTIALS_FILE", self.file("credentials"));
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_ENDPOINT_URL_CLOUDFORMATION", &self.server.url);
        command.env("USER", "ann");
        command
    }

    /// The same with credentials in its environment.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bare(args);
        command
            .env("AWS_ACCESS_KEY_ID", "AKIDENV")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AWS_SESSION_TOKEN", "session");
        command
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    /// A stand-in for the AWS CLI.
    fn aws_cli(&self, script: &str) {
        std::fs::create_dir_all(self.file("bin")).unwrap();
        self.write("bin/aws", &format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(self.file("bin/aws"), std::fs::Permissions::from_mode(0o700)).unwrap();
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn refused(mut command: Command, code: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let said = failed(&output, code, words);
    assert!(output.stdout.is_empty() && said.lines().count() == 1, "{}", text(&output));
    assert!(!said.contains(SECRET), "{said}");
}

// N5: the stack's name is enough: its URL is looked up, and each call is signed over what arrives.
#[test]
fn calls_of_a_stack_are_signed() {
    let machine = Machine::new();
    let verbs: [&[&str]; 4] = [
        &["leader", "--json"],
        &["list", "--reference", "a b&c=é/%2F", "--limit", "3", "--json"],
        &["pause-agent", "payment", "--reason", "für heute", "--json"],
        &["submit", "order.json", "--json"],
    ];
    machine.write("order.json", "{\"item\": \"lämp\"}");
    for verb in verbs {
        let output = machine.command(&[verb, &["--stack", "shop"]].concat()).output().unwrap();
        assert!(output.status.success(), "{verb:?}: {}", text(&output));
        assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), json!({"a": 1}));
        let [stack, call] = &machine.server.heard()[..] else { panic!("two calls of {verb:?}") };
        assert_eq!(stack.signed(), ("AKIDENV".into(), "cloudformation".into()));
        assert_eq!(stack.body, "Action=DescribeStacks&Version=2010-05-15&StackName=shop");
        assert_eq!(call.signed(), ("AKIDENV".into(), "execute-api".into()));
        assert_eq!((stack.header("x-amz-security-token"), call.header("x-amz-security-token")), ("session", "session"));
    }
    // A token is sent as it is, and nothing is signed.
    let output = machine.command(&["leader", "--json", "--stack", "shop", "--token", "a-token"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(machine.server.heard()[1].header("authorization"), "Bearer a-token");
}

// N5: credentials of profiles, and of whatever the AWS CLI knows besides.
#[test]
fn profiles_sign_and_the_aws_cli_signs_in() {
    let machine = Machine::new();
    machine.write("credentials", &format!("[own]\naws_access_key_id = AKIDOWN\naws_secret_access_key = {SECRET}\n"));
    machine.write("config", "[profile sso]\nsso_session = x\nsso_account_id = 1\nsso_role_name = r\n[sso-session x]\nsso_region = eu-west-1\nsso_start_url = https://x.example\n");
    let leader = ["leader", "--json", "--stack", "shop"];
    let with = |profile| [&leader[..], &["--profile", profile]].concat();
    let key = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        machine.server.heard()[1].signed().0
    };
    let mut by_variable = machine.bare(&leader);
    by_variable.env("AWS_PROFILE", "own");
    assert_eq!(key(by_variable), "AKIDOWN");
    assert_eq!(key(machine.command(&with("own"))), "AKIDOWN", "a named profile counts before variables");
    refused(machine.bare(&with("sso")), 2, &["no AWS credentials", "aws sso login"]);
    machine.aws_cli(&format!(
        "[ \"$*\" = 'configure export-credentials --format process --profile sso' ] && \
         echo '{{\"Version\": 1, \"AccessKeyId\": \"AKIDSSO\", \"SecretAccessKey\": \"{SECRET}\", \"SessionToken\": \"s\", \
         \"Expiration\": \"2999-01-01T00:00:00+00:00\"}}'"
    ));
    assert_eq!(key(machine.bare(&with("sso"))), "AKIDSSO");
    machine.aws_cli("echo; echo 'Error loading SSO Token: Token for x does not exist' >&2; exit 255");
    refused(machine.bare(&with("sso")), 2, &["Token for x does not exist", "aws sso login"]);
    machine.aws_cli(
        "echo '{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\", \"Expiration\": \"2020-01-01T00:00:00Z\"}'",
    );
    refused(machine.bare(&with("sso")), 2, &["have expired: sign in again"]);
    machine.aws_cli("echo nonsense");
    refused(machine.bare(&with("sso")), 2, &["the AWS CLI's answer cannot be read"]);
}

// Each refusal is one line that says what to do.
#[test]
fn what_goes_wrong_is_a_sentence() {
    let machine = Machine::new();
    let leader = ["leader", "--stack", "shop"];
    let aws = |status, code: &str, said: &str| {
        let body =
            format!("<ErrorResponse><Error><Code>{code}</Code><Message>{said}</Message></Error></ErrorResponse>");
        machine.server.answers("/", status, &[("date", "Sat, 21 Nov 2020 12:00:00 GMT")], &body);
    };
    refused(machine.bare(&leader), 2, &["no AWS credentials", "--profile"]);
    refused(
        machine.bare(&["leader", "--stack", "shop", "--profile", "nowhere"]),
        2,
        &["no AWS credentials", "nowhere"],
    );
    let mut nowhere = machine.command(&leader);
    nowhere.env_remove("AWS_REGION");
    refused(nowhere, 2, &["no AWS Region", "AWS_REGION"]);
    let mut away = machine.command(&leader);
    away.env("AWS_ENDPOINT_URL_CLOUDFORMATION", "http://127.0.0.1:9");
    refused(away, 1, &["no answer from CloudFormation"]);

    machine.server.answers("/", 200, &[], "<Outputs><member><OutputKey>Queue</OutputKey></member></Outputs>");
    refused(machine.command(&leader), 2, &["stack `shop` has no output ApiUrl"]);
    machine.server.answers("/", 400, &[], ABSENT);
    refused(machine.command(&leader), 2, &["there is no stack `shop` in eu-west-1", "does not exist"]);
    aws(403, "ExpiredToken", "The security token included in the request is expired");
    refused(machine.command(&leader), 2, &["have expired: sign in again"]);
    aws(403, "AccessDenied", "User: ann is not authorized to perform: cloudformation:DescribeStacks");
    refused(machine.command(&leader), 2, &["cloudformation:DescribeStacks", "--url"]);
    aws(403, "SignatureDoesNotMatch", "Signature not yet current");
    refused(machine.command(&leader), 2, &["the clock of this machine is", "ahead"]);
    aws(503, "ServiceUnavailable", "slow down");
    refused(machine.command(&leader), 1, &["slow down"]);

    let machine = Machine::new();
    let long_ago = [("date", "Sat, 21 Nov 2020 12:00:00 GMT")];
    let expired = r#"{"message":"The security token included in the request is expired"}"#;
    // What the system itself refuses is told as always, and so is an API that wants a token.
    let own = r#"{"code":"forbidden","detail":"not you","type":"/problems/forbidden"}"#;
    let table: [(u16, &[_], &str, &[&str]); 5] = [
        (403, &[], FORBIDDEN, &["403", "execute-api:Invoke", "get-caller-identity"]),
        (403, &long_ago, FORBIDDEN, &["the clock of this machine is"]),
        (403, &[], expired, &["have expired"]),
        (403, &[], own, &["403 not you"]),
        (401, &[], r#"{"message":"Unauthorized"}"#, &["asks for a token", "--token"]),
    ];
    for (status, headers, body, words) in table {
        machine.server.answers("/leases", status, headers, body);
        refused(machine.command(&leader), 2, words);
    }
}

fn ask(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> (u16, HeaderMap, String) {
    block(async {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(60)).no_proxy().build().unwrap();
        let request = http.request(method.parse().unwrap(), url).body(body.to_owned());
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.headers().clone(), answer.text().await.unwrap())
    })
}

// N5, security: only a browser that opened the link can use the console of a deployment.
#[test]
fn the_console_signs_for_its_link_only() {
    let machine = Machine::new();
    let (_running, lines) = Running::start(
        machine.command(&["console", "--stack", "shop", "--port", "0"]),
        "#token=",
        Duration::from_secs(60),
    );
    let (page, token) = lines[0].split_once("#token=").unwrap();
    let url = page.strip_suffix("/console").unwrap();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    machine.server.heard();

    // The page holds nothing secret; what it asks for needs the token of the link.
    machine.server.answers("/console/app.js", 200, &[("content-type", "text/javascript")], "let a = 1;");
    let (status, headers, body) = ask("GET", &format!("{url}/console/app.js"), &[], "");
    assert_eq!((status, headers["content-type"].to_str().unwrap(), &*body), (200, "text/javascript", "let a = 1;"));
    machine.server.heard();
    for headers in [
        &[][..],
        &[("authorization", "Bearer 0123456789abcdef0123456789abcdef")],
        &[("origin", "https://evil.example")],
    ] {
        assert_eq!(ask("GET", &format!("{url}/overview"), headers, "").0, 401);
        assert_eq!(ask("POST", &format!("{url}/agents/payment/pause"), headers, "{}").0, 401);
    }
    let bearer = format!("Bearer {token}");
    assert_eq!(
        ask("GET", &format!("{url}/overview"), &[("authorization", &bearer), ("host", "evil.example")], "").0,
        421
    );
    assert!(machine.server.heard().is_empty(), "nothing of this was passed on");

    let own =
        [("authorization", &*bearer), ("cookie", "a=b"), ("content-type", "application/json"), ("x-amz-date", "x")];
    let (status, _, body) = ask("POST", &format!("{url}/agents/payment/pause?a=b%20c"), &own, "{\"reason\":\"ü\"}");
    assert_eq!((status, &*body), (200, "{\"a\":1}"));
    let [heard] = &machine.server.heard()[..] else { panic!("one call") };
    assert_eq!(heard.signed(), ("AKIDENV".into(), "execute-api".into()));
    assert_eq!(
        (&*heard.method, &*heard.path, &*heard.body),
        ("POST", "/agents/payment/pause?a=b%20c", "{\"reason\":\"ü\"}")
    );
    assert_eq!(heard.header("cookie"), "");

    machine.server.answers("/overview", 304, &[("etag", "\"7\"")], "");
    assert_eq!(
        ask("GET", &format!("{url}/overview"), &[("authorization", &bearer), ("if-none-match", "\"7\"")], "").0,
        304
    );
    machine.server.answers("/overview", 403, &[], FORBIDDEN);
    let (status, _, body) = ask("GET", &format!("{url}/overview"), &[("authorization", &bearer)], "");
    let problem: Value = serde_json::from_str(&body).unwrap();
    assert!(status == 403 && problem["detail"].as_str().unwrap().contains("execute-api:Invoke"), "{body}");
}

// A system on this machine is asked as ever, whatever credentials there are.
#[test]
fn a_system_on_this_machine_gets_no_signature() {
    let machine = Machine::new();
    let output = machine.command(&["leader", "--json", "--url", &machine.server.url]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(machine.server.heard()[0].header("authorization"), "");
    assert!(!Path::new(&machine.file(".stepwarden")).exists());
}
