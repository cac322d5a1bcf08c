//! The table of AWS services, what their errors mean, and how a function is named.

use shared::workflow::aws::*;
use shared::workflow::http::Meaning;

fn call(action: &str) -> Aws {
    let (function, keep, transient, permanent) = Default::default();
    Aws { action: action.into(), function, envelope: false, keep, done: Vec::new(), transient, permanent }
}

#[test]
fn the_table_is_sorted_and_every_action_has_a_name_and_a_route() {
    assert!(SERVICES.is_sorted_by_key(|service| service.name));
    for service in SERVICES {
        let actions: Vec<_> = service.actions().collect();
        assert!(actions.is_sorted() && !actions.is_empty(), "{}", service.name);
        for action in actions {
            assert!(action.starts_with(|c: char| c.is_ascii_uppercase()), "{}:{action}", service.name);
            assert!(action.chars().all(|c| c.is_ascii_alphanumeric()), "{}:{action}", service.name);
            let route = service.route(action);
            assert_eq!(
                route.is_some(),
                matches!(service.protocol, Protocol::Rest | Protocol::S3),
                "{}:{action}",
                service.name
            );
            assert!(route.is_none_or(|(_, path)| path.starts_with('/')), "{}:{action}", service.name);
        }
    }
    assert_eq!(Service::named("s3").unwrap().route("GetObject"), Some(("GET", "/{Bucket}/{Key}")));
    for unknown in ["dynamodb", "dynamodb:Put", "dynamo:PutItem", "s3:GetObject GET", "dynamodb:putItem"] {
        assert_eq!(call(unknown).service(), None, "{unknown}");
    }
}

#[test]
fn an_error_means_what_the_file_says_then_what_aws_says() {
    use Meaning::{Permanent, Transient};
    let put = Aws {
        transient: vec!["LockedException".into()],
        permanent: vec!["ThrottlingException".into()],
        ..call("glue:StartJobRun")
    };
    let invoke = Aws { function: Some("f".into()), ..call(INVOKE) };
    for (status, error, wanted) in [
        (400, "ConditionalCheckFailedException", [Permanent, Permanent]),
        (400, "ProvisionedThroughputExceededException", [Transient, Transient]),
        (400, "ThrottlingException", [Permanent, Transient]),
        (400, "LockedException", [Transient, Permanent]),
        (400, "ExpiredTokenException", [Transient, Transient]),
        (403, "AccessDeniedException", [Permanent, Permanent]),
        (404, "ResourceNotFoundException", [Permanent, Permanent]),
        (409, "ResourceConflictException", [Permanent, Transient]),
        (429, "", [Transient, Transient]),
        (500, "InternalServerError", [Transient, Transient]),
        (501, "NotImplemented", [Permanent, Permanent]),
        (503, "SlowDown", [Transient, Transient]),
    ] {
        assert_eq!([&put, &invoke].map(|call| call.meaning(status, error)), wanted, "{status} {error}");
    }
}

#[test]
fn a_function_is_named_as_lambda_takes_it() {
    let arn = "arn:aws:lambda:eu-west-1:123456789012:function:stock";
    for good in [
        "stock",
        "stock:7",
        "stock:$LATEST",
        "stock:live",
        "123456789012:function:stock",
        "123456789012:function:stock:live",
        arn,
        &format!("{arn}:live"),
        "arn:aws-cn:lambda:cn-north-1:123456789012:function:stock",
    ] {
        assert!(is_function(good), "{good}");
    }
    for wrong in [
        "",
        "a b",
        "stock:",
        "stock:a:b",
        "stock/x",
        "../x",
        "${stock}",
        "arn:aws:lambda:eu-west-1:123456789012:layer:stock",
        "arn:aws:sns:eu-west-1:123456789012:stock",
        "arn:aws:lambda:eu-west-1:12:function:stock",
        "1234:function:stock",
        &"x".repeat(65),
    ] {
        assert!(!is_function(wrong), "{wrong}");
    }
    let of = |name: &str| Aws { function: Some(name.into()), ..call(INVOKE) }.region().map(str::to_owned);
    assert_eq!((of(arn).as_deref(), of("stock")), (Some("eu-west-1"), None));
    for name in ["stock", "stock:live", "123456789012:function:stock:live", arn, &format!("{arn}:7")] {
        let named = Aws { function: Some(name.into()), ..call(INVOKE) };
        assert_eq!(named.function_name(), Some("stock"), "{name}");
    }
}
