//! Reading the files out of the layer, and answering.

use super::{Deployment, File, Request};
use crate::Operator;
use crate::aws::{MOST, call, domain, endpoint, signed};
use serde_json::Value;
use std::time::Duration;
use stepwarden_aws::Clients;

/// Attempts at the answer. Without it, CloudFormation waits as long as the template says.
const ATTEMPTS: usize = 3;

/// Answers a request of CloudFormation. `is_active`: whether this Region is the one that takes orders.
///
/// # Errors
/// The answer could not be delivered. Lambda repeats the request then.
pub async fn handle(operator: &Operator, clients: &Clients, is_active: bool, request: &Request) -> Result<(), String> {
    let endpoint = clients.sdk.endpoint_url();
    if !is_cloudformations(&request.response_url, request, endpoint) {
        return Err(
            "nothing was done: the request's ResponseURL is not an https URL of S3, so CloudFormation did not send it"
                .into(),
        );
    }
    let result = match is_active {
        false => Ok(vec!["nothing was done, because this Region is a standby (Active=false)".into()]),
        true => answered(operator, clients, request).await,
    };
    let (kind, stack) = (request.request_type.as_str(), request.stack());
    match &result {
        Ok(changes) => tracing::info!(stack, "{kind} of its workflows: {}", changes.join("; ")),
        Err(why) => tracing::error!(stack, "{kind} of its workflows failed: {why}"),
    }
    let body = serde_json::to_vec(&request.answer(result)).expect("an answer has only string keys");
    for attempt in 1.. {
        // Without a media type, as the URL's signature requires.
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

async fn answered(operator: &Operator, clients: &Clients, request: &Request) -> Result<Vec<String>, String> {
    let (new, old) = (request.resource_properties.layer.as_str(), request.taken_back());
    let is_deleted = request.request_type == "Delete";
    let deployment = Deployment {
        stack: request.stack(),
        creates: is_deleted || request.request_type == "Create",
        layer: old.unwrap_or(new),
        is_back: is_deleted || old.is_some(),
    };
    if !deployment.is_back {
        return operator.deploy(&files(clients, request, new).await?, deployment).await;
    }
    let mut changes = match files(clients, request, deployment.layer).await {
        Ok(files) => operator.take_back(&files, deployment).await?,
        // Files that cannot be read were not deployed.
        Err(why) => vec![format!("nothing was reverted: {why}")],
    };
    // A Delete means that the stack could not be made, because the template keeps the resource of a deleted stack.
    // Definitions are never removed, because orders may need them.
    if !is_deleted {
        let files = files(clients, request, new).await?;
        changes.extend(operator.deploy(&files, deployment).await?);
    }
    if changes.is_empty() {
        changes.push("there was nothing to revert; the definitions stay".into());
    }
    Ok(changes)
}

/// Whether this can be CloudFormation's URL: a presigned one of S3, or one at the port of the emulator's `endpoint`.
/// Emulators have several names for their host.
fn is_cloudformations(url: &str, request: &Request, endpoint: Option<&str>) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let place = |uri: &http::Uri| (uri.scheme().cloned(), uri.port_u16());
    let is_endpoint = |endpoint: http::Uri| place(&endpoint) == place(&uri);
    let host = authority
        .host()
        .strip_suffix(domain(request.stack_id.split(':').nth(3).unwrap_or_default()))
        .and_then(|host| host.strip_suffix('.'));
    let is_s3 = |host: &str| host.split('.').any(|label| label == "s3" || label.starts_with("s3-"));
    endpoint.and_then(|endpoint| endpoint.parse().ok()).is_some_and(is_endpoint)
        || uri.scheme_str() == Some("https") && authority.as_str() == authority.host() && host.is_some_and(is_s3)
}

/// The workflow files in a version of a layer.
async fn files(clients: &Clients, request: &Request, arn: &str) -> Result<Vec<File>, String> {
    let is_plain = |part: &&str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let parts: Vec<&str> = arn.split(':').collect();
    let ["arn", _, "lambda", region, account, "layer", name, version] = parts.as_slice() else {
        return Err("the property Layer must be the ARN of a layer's version: write !Ref and the layer's name".into());
    };
    if ![region, name, version].into_iter().all(is_plain) {
        return Err("the property Layer is not the ARN of a layer's version".into());
    }
    if request.stack_id.split(':').skip(3).take(2).ne([*region, *account]) {
        return Err("the layer in the property Layer must be in the stack's account and Region".into());
    }
    let url = format!("{}/2018-10-31/layers/{name}/versions/{version}", endpoint(clients, "lambda", region));
    let get = http::Request::get(url).body(Vec::new()).map_err(|e| e.to_string())?;
    let found = call(clients, signed(clients, "lambda", region, get).await?).await;
    let found = found.map_err(|why| {
        format!("layer {name} cannot be read ({why}): its name must begin with STACK-workflows, where STACK is the system's stack")
    })?;
    let found: Value = serde_json::from_slice(&found).map_err(|_| "Lambda's answer is not JSON".to_owned())?;
    let at = found["Content"]["Location"].as_str().ok_or("Lambda's answer has no URL for the layer's content")?;
    let get = http::Request::get(at).body(Vec::new()).map_err(|e| e.to_string())?;
    let archive =
        call(clients, get).await.map_err(|why| format!("the content of layer {name} cannot be read: {why}"))?;
    unpacked(&archive)
}

/// The `.toml` files of a ZIP archive, by name. PKWARE, "APPNOTE.TXT": the directory at the end says where each begins.
fn unpacked(archive: &[u8]) -> Result<Vec<File>, String> {
    const END: &[u8] = b"PK\x05\x06";
    const ENTRY: &[u8] = b"PK\x01\x02";
    let broken = || "the layer's archive cannot be read".to_owned();
    let bytes = |at: usize, count: usize| archive.get(at..at.saturating_add(count)).ok_or_else(broken);
    let number = |at: usize, count: usize| -> Result<usize, String> {
        Ok(bytes(at, count)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let end = (0..archive.len()).rev().find(|at| archive[*at..].starts_with(END)).ok_or_else(broken)?;
    // The record at the end has 22 bytes. If cut, it may still have the fields read here.
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
        // Editors and archivers add hidden files.
        if !named.ends_with(".toml") || named.split('/').any(|part| part.starts_with('.')) {
            continue;
        }
        if named.contains('/') {
            return Err(format!("{named}: is in a subfolder; put all workflow files into the top folder of the layer"));
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

    /// An archive by Python's `zipfile`: a.toml, .b.toml and __MACOSX/._a.toml deflated, notes/c.txt, e-f.toml and d.toml stored.
    const ARCHIVE: &[u8] = include_bytes!("../../../../tests/data/layer.zip");

    #[test]
    fn the_files_at_the_top_of_an_archive_are_read() {
        let files = unpacked(ARCHIVE).unwrap();
        let names: Vec<_> = files.iter().map(|file| (file.name.as_str(), file.toml.len())).collect();
        assert_eq!(names, [("a.toml", 4000), ("d.toml", 15), ("e-f.toml", 10)]);
        assert_eq!(files[1].toml, "name = \"d\"\n# é");
    }

    // If ignored, it would be missing without a word.
    #[test]
    fn a_workflow_file_in_a_folder_below_is_refused() {
        let mut archive = ARCHIVE.to_vec();
        for at in 0..archive.len() - 8 {
            if archive[at..].starts_with(b"e-f.toml") {
                archive[at + 1] = b'/';
            }
        }
        assert!(unpacked(&archive).unwrap_err().starts_with("e/f.toml: is in a subfolder"));
    }

    // Whoever may invoke the function must not make it send to any address.
    #[test]
    fn an_answer_goes_to_s3_or_to_the_endpoint_that_stands_for_it() {
        let good = |url: &str, region: &str, endpoint: Option<&str>| {
            let request = serde_json::json!({
                "RequestType": "Create", "ResponseURL": url, "RequestId": "1", "LogicalResourceId": "A",
                "StackId": format!("arn:aws:cloudformation:{region}:123456789012:stack/shop-agents/1f"),
                "ResourceProperties": {},
            });
            is_cloudformations(url, &serde_json::from_value(request).unwrap(), endpoint)
        };
        const BUCKET: &str = "cloudformation-custom-resource-response";
        for (url, region) in [
            (format!("https://{BUCKET}-useast1.s3.amazonaws.com/arn%3Aaws?X-Amz-Signature=1"), "eu-west-1"),
            (format!("https://{BUCKET}-euwest1.s3-eu-west-1.amazonaws.com/a"), "eu-west-1"),
            (format!("https://{BUCKET}-usgovwest1.s3.us-gov-west-1.amazonaws.com/a"), "us-gov-west-1"),
            (format!("https://s3.eu-west-1.amazonaws.com/{BUCKET}-euwest1/a"), "eu-west-1"),
            (format!("https://{BUCKET}-cnnorth1.s3.cn-north-1.amazonaws.com.cn/a"), "cn-north-1"),
        ] {
            assert!(good(&url, region, None), "{url}");
            assert!(!good(&url.replacen("https", "http", 1), region, None), "{url}");
        }
        for url in [
            "https://example.com/a",
            "https://s3.amazonaws.com.example.com/a",
            "https://s3.example.com/?.amazonaws.com",
            "https://lambda.eu-west-1.amazonaws.com/a",
            "https://s3amazonaws.com/a",
            "https://b.s3.amazonaws.com:444/a",
            "https://a@b.s3.amazonaws.com/a",
            "https://b.s3.cn-north-1.amazonaws.com.cn/a",
            "http://127.0.0.1:4566/answer",
            "not a url",
            "",
        ] {
            assert!(!good(url, "eu-west-1", None), "{url}");
        }
        assert!(good("http://localhost:4566/answer", "eu-west-1", Some("http://127.0.0.1:4566")));
        assert!(!good("http://127.0.0.1:4567/answer", "eu-west-1", Some("http://127.0.0.1:4566")));
        assert!(!good("https://127.0.0.1:4566/answer", "eu-west-1", Some("http://127.0.0.1:4566")));
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
