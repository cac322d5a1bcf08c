//! Leases on DynamoDB items, used for nothing else.

use crate::item::{n, number, s, text, time};
use crate::sdk_error::{CONDITION, is_done, unavailable};
use crate::sent::{Caller, Sent};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::get_item::GetItemInput;
use aws_sdk_dynamodb::operation::put_item::PutItemInput;
use leader::{Error, Lease, LeaseStore};

/// Leases in any table whose partition key is the string `pk`, usable without the rest of Stepwarden.
///
/// Item: `pk` (`lease#` and the name), `holder` (empty when free), `token`, `expires` (UTC, milliseconds). No time to live:
/// the token must outlive its holders.
#[derive(Clone, Debug)]
pub struct DynamoLeases {
    client: Caller<Client>,
    table: String,
}

impl DynamoLeases {
    /// The leases in `table`.
    #[must_use]
    pub fn new(client: impl Into<Caller<Client>>, table: impl Into<String>) -> Self {
        Self { client: client.into(), table: table.into() }
    }
}

fn key(name: &str) -> String {
    format!("lease#{name}")
}

impl LeaseStore for DynamoLeases {
    async fn read(&self, name: &str) -> Result<Option<Lease>, Error> {
        let what = format!("lease {name}");
        let request = GetItemInput::builder().table_name(&self.table).key("pk", s(key(name))).consistent_read(true);
        let Some(item) = request.sent(&self.client).await.map_err(|e| unavailable(&what, e))?.item else {
            return Ok(None);
        };
        Ok(Some(Lease {
            name: name.to_owned(),
            holder: text(&item, "holder", &what)?.to_owned(),
            token: number(&item, "token", &what)?,
            expires: time(&item, "expires", &what)?,
        }))
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        let put = PutItemInput::builder()
            .table_name(&self.table)
            .item("pk", s(key(&lease.name)))
            .item("holder", s(&lease.holder))
            .item("token", n(lease.token))
            .item("expires", n(lease.expires.as_millisecond()));
        let put = match seen {
            None => put.condition_expression("attribute_not_exists(pk)"),
            Some(seen) => put
                .condition_expression("#token = :token AND holder = :holder AND expires = :expires")
                .expression_attribute_names("#token", "token")
                .expression_attribute_values(":token", n(seen.token))
                .expression_attribute_values(":holder", s(&seen.holder))
                .expression_attribute_values(":expires", n(seen.expires.as_millisecond())),
        };
        Ok(is_done(&format!("lease {}", lease.name), put.sent(&self.client).await, &[CONDITION])?)
    }
}
