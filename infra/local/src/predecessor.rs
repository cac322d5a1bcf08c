//! The previous instance on this data. It must be dead, because otherwise the data would be locked, so its lease can be
//! released at once.

use anyhow::{Context, Result};
use leader::LeaseStore;
use std::io::Write as _;
use std::path::Path;

/// File beside the data in which an instance leaves its name.
const FILE: &str = "instance";

/// Releases those of `leases` that the previous instance on the data in `folder` still holds, and leaves the name
/// of this instance, which holds the lock of `folder`. The fencing tokens rise as always.
///
/// # Errors
/// The lease store's, or the file cannot be written.
pub async fn succeed(folder: &Path, instance: &str, leases: &[&str], store: &impl LeaseStore) -> Result<()> {
    let path = folder.join(FILE);
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    for lease in leases {
        let held = store.read(lease).await.map_err(anyhow::Error::from_boxed);
        let held = held.context("reading the previous instance's lease")?;
        // A holder is an instance and the number of its tenure.
        let of_the_dead = held.filter(|held| !held.is_free() && held.holder.split('#').next() == Some(before.as_str()));
        if let Some(held) = of_the_dead {
            let released = store.release(&held).await.map_err(anyhow::Error::from_boxed);
            released.context("releasing the previous instance's lease")?;
        }
    }
    let write = || {
        let mut file = stepwarden_guard::folder::open(&path)?;
        file.set_len(0)?;
        file.write_all(instance.as_bytes())
    };
    write().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leader::memory::MemoryLeases;
    use shared::time::{SignedDuration, Timestamp};

    const LIFE: SignedDuration = SignedDuration::from_secs(10);

    // I1, I8 of the protocol: only a dead instance's lease is released, and the next holder has a higher token.
    #[tokio::test]
    async fn a_lease_of_the_dead_is_free_at_once_and_that_of_the_living_is_not() {
        let (store, folder) = (MemoryLeases::default(), tempfile::tempdir().unwrap());
        let now = Timestamp::now();
        let take = |holder| store.acquire("sweep", holder, now, LIFE, SignedDuration::ZERO);
        let succeed = |instance| succeed(folder.path(), instance, &["other", "sweep"], &store);
        succeed("a").await.unwrap();
        assert_eq!(take("elsewhere#0").await.unwrap().unwrap().token, 1);
        succeed("b").await.unwrap();
        assert_eq!(take("b#0").await.unwrap(), None);
        let held = store.read("sweep").await.unwrap().unwrap();
        store.release(&held).await.unwrap();
        assert_eq!(take("b#0").await.unwrap().unwrap().token, 2);
        succeed("c").await.unwrap();
        assert_eq!(take("c#0").await.unwrap().unwrap().token, 3);
    }
}
