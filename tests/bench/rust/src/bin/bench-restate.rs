//! The services of restate_service.js. The port is the first argument.

use restate_sdk::prelude::*;
use stepwarden_bench_peers::{Order, STEPS, act};
use tokio::net::TcpSocket;

struct Orders;

#[restate_sdk::service(name = "order")]
impl Orders {
    #[handler]
    async fn calls(&self, ctx: Context<'_>, order: Json<Order>) -> Result<(), HandlerError> {
        let Json(order) = order;
        ctx.service_client::<FirstClient>().run(Json(order.clone())).call().await?;
        ctx.service_client::<SecondClient>().run(Json(order.clone())).call().await?;
        ctx.service_client::<ThirdClient>().run(Json(order)).call().await?;
        Ok(())
    }

    #[handler]
    async fn steps(&self, ctx: Context<'_>, order: Json<Order>) -> Result<(), HandlerError> {
        for step in STEPS {
            let order = order.0.clone();
            ctx.run(|| async move {
                act(step, &order).await;
                Ok(())
            })
            .name(step)
            .await?;
        }
        Ok(())
    }
}

macro_rules! step {
    ($service:ident, $name:literal) => {
        struct $service;

        #[restate_sdk::service(name = $name)]
        impl $service {
            #[handler]
            async fn run(&self, _: Context<'_>, order: Json<Order>) -> Result<(), HandlerError> {
                act($name, &order.0).await;
                Ok(())
            }
        }
    };
}
step!(First, "first");
step!(Second, "second");
step!(Third, "third");

#[tokio::main]
async fn main() {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    let services = Endpoint::builder().bind(Orders).bind(First).bind(Second).bind(Third).build();
    // The SDK's own listener leaves TCP_NODELAY off. Then each step that takes a while waits 40 ms for an acknowledgement.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_nodelay(true).expect("connections inherit it");
    socket.set_reuseaddr(true).expect("it is started again at once");
    socket.bind(([127, 0, 0, 1], port).into()).expect("a free port");
    HttpServer::new(services).serve(socket.listen(1024).expect("a listener")).await;
}
