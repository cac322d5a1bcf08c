//! Reading the files out of the layer, and answering.

use super::{File, Request};
use crate::Operator;
use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde_json::Value;
use std::time::{Duration, SystemTime};
use stepwarden_aws::{Clients, web};
use tokio::time::timeout;

/// Longest archive, and longest file in it, in bytes.
const MOST: usize = 4 * 1024 * 1024;
/// One call of Lambda or S3.
const WITHIN: Duration = Duration::from_secs(5);
/// Attempts at the answer. Without one CloudFormation waits for as long as the template says.
const ATTEMPTS: usize = 3;

/// Answers a request of CloudFormation. `is_active`: whether this Region is the one that takes orders.
///
/// # Errors
/// The answer could not be delivered. Lambda repeats the request then.
pub async fn handle(operator: &Operator, clients: &Clients, is_active: bool, request: &Request) -> Result<(), String> {
    let result = match request.request_type.as_str() {
        // Orders may need the definitions, and another stack may have brought the same names. A deployment that failed before it
        // brought anything asks for this, too.
        "Delete" => Ok(vec!["the workflows stay; retire those that are no longer in use".into()]),
        _ if !is_active => Ok(vec!["nothing was done, because this Region is a standby (Active=false)".into()]),
        _ => match files(clients, &request.resource_properties.layer).await {
            Ok(files) => operator.deploy(&files, request.stack()).await,
            Err(why) => Err(why),
        },
    };
    let (kind, stack) = (request.request_type.as_str(), request.stack());
    match &result {
        Ok(changes) => tracing::info!(stack, "{kind} of its workflows: {}", changes.join("; ")),
        Err(why) => tracing::error!(stack, "{kind} of its workflows failed: {why}"),
    }
    let body = serde_json::to_vec(&request.answer(result)).expect("an answer has only string keys");
    for attempt in 1.. {
        // Without a media type: the URL's signature covers an empty one.
        let put = http::Request::put(&request.response_url).body(body.clone()).map_err(|e| e.to_string())?;
        let why = match call(clients, put).await {
            Ok(_) => break,
            Err(why) => format!("the answer to CloudFormation could not be delivered: {why}"),
        };
        if attempt == ATTEMPTS {
            return Err(why);
        }
        tracing::warn!("{why}; trying again");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// The body of an answer with a good status.
async fn call(clients: &Clients, request: http::Request<Vec<u8>>) -> Result<Vec<u8>, String> {
    let http = clients.sdk.http_client().ok_or("there is no HTTP client")?;
    let answer = timeout(WITHIN, web::send(&http, request, MOST)).await;
    let answer = answer.map_err(|_| format!("no answer within {} s", WITHIN.as_secs()))??;
    match answer.status() {
        status if status.is_success() => Ok(answer.into_body()),
        status => Err(format!("status {status}")),
    }
}

/// The workflow files in a version of a layer.
async fn files(clients: &Clients, arn: &str) -> Result<Vec<File>, String> {
    let is_plain = |part: &&str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let parts: Vec<&str> = arn.split(':').collect();
    let ["arn", partition, "lambda", region, _, "layer", name, version] = parts.as_slice() else {
        return Err("the property Layer must be the ARN of a layer's version: write !Ref and the layer's name".into());
    };
    if ![region, name, version].into_iter().all(is_plain) {
        return Err("the property Layer is not the ARN of a layer's version".into());
    }
    let domain = match *partition {
        "aws-cn" => "amazonaws.com.cn",
        "aws-eusc" => "amazonaws.eu",
        _ => "amazonaws.com",
    };
    let endpoint = clients.sdk.endpoint_url().map(|url| url.trim_end_matches('/').to_owned());
    let endpoint = endpoint.unwrap_or_else(|| format!("https://lambda.{region}.{domain}"));
    let url = format!("{endpoint}/2018-10-31/layers/{name}/versions/{version}");
    let found = call(clients, signed(clients, region, &url).await?).await;
    let found = found.map_err(|why| {
        format!("layer {name} cannot be read ({why}): its name must begin with STACK-workflows, where STACK is the system's stack")
    })?;
    let found: Value = serde_json::from_slice(&found).map_err(|_| "Lambda's answer is not JSON".to_owned())?;
    let at = found["Content"]["Location"].as_str().ok_or("Lambda does not say where the layer's content is")?;
    let get = http::Request::get(at).body(Vec::new()).map_err(|e| e.to_string())?;
    let archive =
        call(clients, get).await.map_err(|why| format!("the content of layer {name} cannot be read: {why}"))?;
    unpacked(&archive)
}

async fn signed(clients: &Clients, region: &str, url: &str) -> Result<http::Request<Vec<u8>>, String> {
    let provider = clients.sdk.credentials_provider().ok_or("there are no credentials")?;
    let identity = timeout(WITHIN, provider.provide_credentials()).await.map_err(|_| "no credentials in time")?;
    let identity = identity.map_err(|e| format!("no credentials: {e}"))?.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("lambda")
        .time(SystemTime::now())
        .settings(SigningSettings::default())
        .build()
        .expect("everything that a signature needs is set")
        .into();
    let request = SignableRequest::new("GET", url, std::iter::empty(), SignableBody::Bytes(&[]));
    let signed = request.and_then(|request| sign(request, &params)).map_err(|e| format!("cannot be signed: {e}"))?;
    let (instructions, _) = signed.into_parts();
    let request =
        instructions.headers().fold(http::Request::get(url), |request, (name, value)| request.header(name, value));
    request.body(Vec::new()).map_err(|e| e.to_string())
}

/// The `.toml` files at the top of a ZIP archive, by name. PKWARE, "APPNOTE.TXT": the directory at the end says where each begins.
fn unpacked(archive: &[u8]) -> Result<Vec<File>, String> {
    const END: &[u8] = b"PK\x05\x06";
    const ENTRY: &[u8] = b"PK\x01\x02";
    let broken = || "the layer's archive cannot be read".to_owned();
    let bytes = |at: usize, count: usize| archive.get(at..at.saturating_add(count)).ok_or_else(broken);
    let number = |at: usize, count: usize| -> Result<usize, String> {
        Ok(bytes(at, count)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let end = (0..archive.len()).rev().find(|at| archive[*at..].starts_with(END)).ok_or_else(broken)?;
    // The record at the end has 22 bytes. One that is cut may still say what is read here.
    bytes(end, 22)?;
    let count = number(end + 10, 2)?;
    let mut at: usize = number(end + 16, 4)?;
    let mut files = Vec::new();
    let mut all = 0;
    for _ in 0..count {
        if bytes(at, 4)? != ENTRY {
            return Err(broken());
        }
        let (method, packed, header) = (number(at + 10, 2)?, number(at + 20, 4)?, number(at + 42, 4)?);
        let (name, extra, comment) = (number(at + 28, 2)?, number(at + 30, 2)?, number(at + 32, 2)?);
        let named = str::from_utf8(bytes(at + 46, name)?).map_err(|_| broken())?;
        at += 46 + name + extra + comment;
        if !named.ends_with(".toml") || named.contains('/') {
            continue;
        }
        let text = bytes(header + 30 + number(header + 26, 2)? + number(header + 28, 2)?, packed)?;
        let text = match method {
            0 => text.to_vec(),
            8 => miniz_oxide::inflate::decompress_to_vec_with_limit(text, MOST).map_err(|_| broken())?,
            _ => return Err(broken()),
        };
        all += text.len();
        if all > MOST {
            return Err(format!("the layer's workflow files have more than {MOST} bytes together"));
        }
        let toml = String::from_utf8(text).map_err(|_| format!("{named}: is not UTF-8"))?;
        files.push(File { name: named.to_owned(), toml });
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive by Python's `zipfile`: a.toml deflated, sub/b.toml, c.txt, d.toml stored.
    const ARCHIVE: &[u8] = include_bytes!("../../../../tests/data/layer.zip");

    #[test]
    fn the_files_at_the_top_of_an_archive_are_read() {
        let files = unpacked(ARCHIVE).unwrap();
        let names: Vec<_> = files.iter().map(|file| (file.name.as_str(), file.toml.len())).collect();
        assert_eq!(names, [("a.toml", 4000), ("d.toml", 15)]);
        assert_eq!(files[1].toml, "name = \"d\"\n# é");
    }

    #[test]
    fn an_archive_that_is_cut_or_changed_is_refused_and_does_no_harm() {
        for length in 0..ARCHIVE.len() {
            assert!(unpacked(&ARCHIVE[..length]).is_err(), "{length}");
        }
        for at in 0..ARCHIVE.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = ARCHIVE.to_vec();
                changed[at] = value;
                let _ = unpacked(&changed);
            }
        }
    }
}
