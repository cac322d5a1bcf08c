//! A listener on loopback that stands for services of AWS without a client in the product.

use super::World;
use aws_sdk_dynamodb::config::Credentials;
use std::sync::{Arc, Mutex};
use stepwarden_aws::Clients;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Services of AWS: each answers what `found` says of the path, and keeps what was put.
pub async fn aws(
    found: impl Fn(&str) -> Option<Vec<u8>> + Send + 'static,
) -> (String, Arc<Mutex<Vec<(String, Vec<u8>)>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let Some((head, body)) = read(&mut connection).await else { continue };
            let path = head.split(' ').nth(1).unwrap_or_default();
            let answer = found(path);
            let status = if answer.is_some() { "200 OK" } else { "403 Forbidden" };
            kept.lock().unwrap().push((head.clone(), body));
            let answer = answer.unwrap_or_default();
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", answer.len());
            let _ = connection.write_all(&[head.as_bytes(), &answer].concat()).await;
        }
    });
    (url, seen)
}

async fn read(connection: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = connection.read(&mut part).await.ok().filter(|count| *count > 0)?;
        all.extend_from_slice(&part[..count]);
        let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if all.len() >= end + 4 + length.map_or(0, |length| length.trim().parse().unwrap()) {
            return Some((head, all[end + 4..].to_vec()));
        }
    }
}

/// Clients with credentials, which call the store of `world`, and at `url` everything else.
pub fn clients(world: &World, url: &str) -> Clients {
    let mut clients = Clients::unsigned(url);
    let credentials = Credentials::new("AKID", "secret", Some("token".into()), None, "test");
    let provider = aws_sdk_dynamodb::config::SharedCredentialsProvider::new(credentials);
    clients.sdk = clients.sdk.to_builder().credentials_provider(provider).build();
    clients.dynamodb = world.clients.dynamodb.clone();
    clients
}
