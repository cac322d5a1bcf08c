//! The lease on a DynamoDB item, used for nothing else.

use crate::item::{Item, n, number, s, text, time};
use crate::state_store::{DynamoStore, unavailable};
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use shared::lease::{Lease, LeaseStore};
use shared::ports::Error;
use shared::time::{SignedDuration, Timestamp};

fn key(name: &str) -> String {
    format!("lease#{name}")
}

impl DynamoStore {
    async fn write_lease(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        let put = self
            .client
            .put_item()
            .table_name(&self.state_table)
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
        match put.send().await {
            Ok(_) => Ok(true),
            Err(e) if e.as_service_error().is_some_and(PutItemError::is_conditional_check_failed_exception) => {
                Ok(false)
            }
            Err(e) => Err(unavailable(&format!("lease {}", lease.name), e)),
        }
    }

    /// The lease as it stands, for people to look at.
    ///
    /// # Errors
    /// The table's.
    pub async fn read_lease(&self, name: &str) -> Result<Option<Lease>, Error> {
        let what = format!("lease {name}");
        let request =
            self.client.get_item().table_name(&self.state_table).key("pk", s(key(name))).consistent_read(true);
        let answer = request.send().await.map_err(|e| unavailable(&what, e))?;
        let read = |item: Item| {
            Ok(Lease {
                name: name.to_owned(),
                holder: text(&item, "holder", &what)?.to_owned(),
                token: number(&item, "token", &what)?,
                expires: time(&item, "expires", &what)?,
            })
        };
        answer.item.map(read).transpose()
    }
}

impl LeaseStore for DynamoStore {
    async fn acquire(
        &self,
        name: &str,
        holder: &str,
        now: Timestamp,
        life: SignedDuration,
    ) -> Result<Option<Lease>, Error> {
        let current = self.read_lease(name).await?;
        let Some(lease) = Lease::take(current.as_ref(), name, holder, now, life, self.skew) else { return Ok(None) };
        if self.write_lease(&lease, current.as_ref()).await? {
            return Ok(Some(lease));
        }
        // Somebody else was faster, or the answer to this very write was lost and the SDK tried it again.
        Ok(self.read_lease(name).await?.filter(|stored| *stored == lease))
    }

    async fn release(&self, lease: &Lease) -> Result<(), Error> {
        let free = Lease { holder: String::new(), ..lease.clone() };
        self.write_lease(&free, Some(lease)).await.map(drop)
    }
}
