//! Goal: a new definition is what new orders get, within 5 s on every instance, no open order is touched, and no submission that was
//! or could be accepted is lost to a change. Method: several instances over one table, with a clock that the test moves; changes go
//! through the operator's own code.

use crate::support::three_noops;
use crate::support::world::{World, event};
use aws_sdk_dynamodb::types::AttributeValue;
use edge::problem::Problem;
use operator::Operator;
use operator::deployment::{Deployment, File};
use operator::migrate::Migrate;
use operator::workflows::{Activation, Put, Row, Wish};
use serde_json::{Value, json};
use shared::order::{DEFAULT_TENANT, Id};
use shared::ports::StateStore;
use shared::registry::Change;
use shared::task::ProcessState;
use shared::time::SignedDuration;
use shared::workflow::Hash;
use std::sync::Arc;
use stepwarden_embedded::Fault;
use submit::Submit;

const NAME: &str = "noops";

fn named(name: &str, timeout: &str) -> String {
    three_noops(timeout).replace("name = \"noops\"", &format!("name = \"{name}\""))
}

/// The same steps for inputs that pass the check of an order only.
fn strict() -> String {
    three_noops("10s").replace("name = \"noops\"\n", "name = \"noops\"\ninput = \"order\"\n")
}

struct System {
    world: World,
    operator: Operator,
}

impl System {
    /// A system whose deployment has these workflows.
    async fn with(workflows: &[String]) -> Self {
        let world = World::start(workflows, None).await;
        let engine = Arc::new(world.engine("operator", 10, None));
        let operator = Operator {
            deployed: Ok(world.submit.workflows.clone()),
            ..Operator::new(engine, &world.clients, &world.config, Vec::new())
        };
        Self { world, operator }
    }

    async fn new() -> Self {
        Self::with(&[three_noops("10s")]).await
    }

    /// Another instance of submit, of a deployment with the same workflows.
    fn instance(&self, name: &str) -> Submit {
        Submit {
            engine: self.world.engine(name, 10, None).engine,
            workflows: self.world.submit.workflows.clone(),
            reply_queues: self.world.config.reply_queues.clone(),
            shards: 1,
            scopes: Default::default(),
            queue_tenant: DEFAULT_TENANT.into(),
            begins: None,
        }
    }

    async fn put(&self, toml: &str) -> Hash {
        let put: Put = serde_json::from_value(json!({"by": "ada", "reason": "faster", "toml": toml})).unwrap();
        self.operator.put_workflow(&put, None).await.unwrap().hash
    }

    async fn change(&self, name: &str, verb: &str, more: Value) -> Result<Row, Problem> {
        let rows = self.operator.workflows().await?.workflows;
        let version = rows.iter().find(|row| row.name == name).map_or(0, |row| row.version);
        let mut all = json!({"by": "ada", "reason": "ticket 7", "if_version": version});
        all.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        let (change, wish): (Change, Wish) = match verb {
            "activate" => serde_json::from_value::<Activation>(all).unwrap().parts().unwrap(),
            "retire" => (Change::Retire, serde_json::from_value(all).unwrap()),
            _ => (Change::Rollback, serde_json::from_value(all).unwrap()),
        };
        self.operator.change_workflow(name, change, &wish, None).await
    }

    /// Puts and activates a definition.
    async fn activate(&self, name: &str, toml: &str) -> Hash {
        let hash = self.put(toml).await;
        self.change(name, "activate", json!({"hash": hash})).await.unwrap();
        hash
    }

    async fn change_now(&self, name: &str, verb: &str) {
        self.change(name, verb, json!({})).await.unwrap();
    }

    /// Writes one attribute of an item of the state table.
    async fn write(&self, pk: &str, attribute: &str, value: AttributeValue) {
        let update = self.world.clients.dynamodb.update_item().table_name(&self.world.config.state_table);
        let update = update.key("pk", AttributeValue::S(pk.into())).update_expression("SET #a = :v");
        let update = update.expression_attribute_names("#a", attribute).expression_attribute_values(":v", value);
        update.send().await.unwrap();
    }

    async fn damage(&self, hash: &Hash) {
        self.write(&format!("workflow#{hash}"), "workflow", AttributeValue::S("{\"name\":".into())).await;
    }

    fn pass_5_s(&self) {
        self.world.pass(SignedDuration::from_secs(5));
    }

    async fn hash_of(&self, id: &Id) -> Hash {
        self.world.task(id).await.workflow_hash
    }
}

async fn accept(submit: &Submit, key: &str, workflow: Option<&str>) -> Result<Id, Problem> {
    let body = json!({"workflow": workflow, "input": {"n": 1}}).to_string();
    submit.accept(DEFAULT_TENANT, key, submit::submission::parse(body.as_bytes())?).await
}

/// What becomes of an order by message: whether it comes again, and what was set aside so far.
async fn by_message(system: &System, submit: &Submit, key: &str, workflow: &str) -> (bool, usize) {
    let body = json!({"idempotency_key": key, "workflow": workflow, "input": {"n": 1}}).to_string();
    let response = submit::queue_handler(submit, event("submissions", &[("m", &body)])).await;
    let mut aside = 0;
    while let more @ 1.. = system.world.receive("set-aside").await.len() {
        aside += more;
    }
    (!response.batch_item_failures.is_empty(), aside)
}

// N1: without touching a running order.
#[tokio::test]
async fn new_orders_get_the_new_definition_within_5_s_and_open_ones_keep_theirs() {
    let system = System::new().await;
    let old = system.world.submit.workflows[NAME].hash();
    let others = [system.instance("a"), system.instance("b")];
    let mut open = Vec::new();
    for n in 0..200 {
        let id = accept(&others[n % 2], &format!("open-{n}"), Some(NAME)).await.unwrap();
        open.push((system.world.task(&id).await, id));
    }
    let new = system.activate(NAME, &three_noops("20s")).await;

    system.pass_5_s();
    for (n, other) in others.iter().enumerate() {
        let id = accept(other, &format!("new-{n}"), Some(NAME)).await.unwrap();
        assert_eq!(system.hash_of(&id).await, new);
    }
    for (before, id) in &open {
        assert_eq!(system.world.task(id).await, *before);
    }
    // Submitted again, an order is the one that it was.
    assert_eq!(accept(&others[0], "open-1", Some(NAME)).await.unwrap(), open[1].1);

    // An instance that starts now reads the definition, and the rollback is as quick.
    let id = accept(&system.instance("late"), "late", Some(NAME)).await.unwrap();
    assert_eq!(system.hash_of(&id).await, new);
    system.change_now(NAME, "rollback").await;
    system.pass_5_s();
    let id = accept(&others[0], "back", Some(NAME)).await.unwrap();
    assert_eq!(system.hash_of(&id).await, old);
}

// What was read once counts for two seconds. After that an instance that cannot read takes no order, rather than one of a definition
// that was replaced.
#[tokio::test]
async fn an_instance_that_cannot_read_the_registry_takes_no_order() {
    let system = System::new().await;
    let other = system.instance("a");
    accept(&other, "1", Some(NAME)).await.unwrap();
    system.activate(NAME, &three_noops("20s")).await;
    system.pass_5_s();
    system.world.faults("GetItem", |_, body| body.contains("control#workflows").then_some(Fault::Throttle));
    let problem = accept(&other, "2", Some(NAME)).await.unwrap_err();
    assert_eq!((problem.code, problem.status), ("unavailable", 503));
}

// A refused message is set aside for good, so what was activated a moment ago counts before anything is refused.
#[tokio::test]
async fn what_was_activated_a_moment_ago_is_not_refused() {
    let system = System::with(&[strict()]).await;
    let other = system.instance("a");
    assert!(accept(&other, "0", Some(NAME)).await.is_err(), "the input of a strict workflow");
    system.activate("other", &named("other", "10s")).await;
    assert_eq!(by_message(&system, &other, "1", "other").await, (false, 0), "a new name");
    system.activate(NAME, &three_noops("10s")).await;
    assert_eq!(by_message(&system, &other, "2", NAME).await, (false, 0), "an input that is valid from now on");
    for key in ["1", "2"] {
        system.world.task(&Id::derive(DEFAULT_TENANT, key)).await;
    }
}

// A caller that lost the answer repeats its submission, whatever has become of the workflow since.
#[tokio::test]
async fn a_repeated_submission_is_answered_as_the_stored_order_whatever_became_of_the_workflow() {
    let system = System::new().await;
    let submit = system.instance("a");
    let mut stored = Vec::new();
    for (key, name) in [("named", Some(NAME)), ("nameless", None)] {
        stored.push((key, name, accept(&submit, key, name).await.unwrap()));
    }
    let again = async |what: &str| {
        system.pass_5_s();
        for (key, name, id) in &stored {
            assert_eq!(accept(&submit, key, *name).await.as_ref(), Ok(id), "{key}: {what}");
            assert_eq!(by_message(&system, &submit, key, NAME).await, (false, 0), "{key}: {what}");
        }
        assert_ne!(accept(&submit, "named", Some("other")).await, Ok(stored[0].2.clone()), "other content: {what}");
    };
    again("unchanged").await;
    let hash = system.activate(NAME, &strict()).await;
    again("its input is invalid now").await;
    system.change_now(NAME, "retire").await;
    again("retired").await;
    system.change(NAME, "activate", json!({"hash": hash})).await.unwrap();
    system.damage(&hash).await;
    again("its definition is damaged").await;
    // Another deployment, whose only workflow is another one.
    let other = World::start(&[named("other", "10s")], None).await;
    let submit = Submit { workflows: other.submit.workflows.clone(), ..system.instance("b") };
    assert_eq!(accept(&submit, "nameless", None).await.as_ref(), Ok(&stored[1].2), "another default");
    assert_eq!(accept(&submit, "named", None).await.as_ref(), Ok(&stored[0].2), "named after the default then");
}

// The order of a retired name, or of a name that a submission leaves out, never goes to another workflow.
#[tokio::test]
async fn an_order_for_a_retired_name_is_refused_and_says_who_retired_it() {
    let system = System::new().await;
    system.activate("other", &named("other", "10s")).await;
    let id = accept(&system.world.submit, "0", None).await.unwrap();
    assert_eq!(system.world.task(&id).await.workflow, NAME, "registering another name takes no orders away");
    system.change_now(NAME, "retire").await;
    system.pass_5_s();
    for name in [Some(NAME), None] {
        let problem = accept(&system.world.submit, "k", name).await.unwrap_err();
        assert_eq!((problem.code, problem.status), ("unknown_workflow", 422));
        assert!(problem.detail.contains("`noops` was retired by ada at 20"), "{}", problem.detail);
        assert!(problem.detail.contains("active are `other`"), "{}", problem.detail);
    }
    assert_eq!(by_message(&system, &system.world.submit, "k", NAME).await, (false, 1), "set aside, with the reason");
}

// A definition or a pointer that cannot be read is no fault of the submission: it is repeated until somebody mends it, and only its
// own name is closed.
#[tokio::test]
async fn what_cannot_be_read_closes_its_own_name_until_it_is_mended() {
    let system = System::new().await;
    system.activate("other", &named("other", "10s")).await;
    let hash = system.activate(NAME, &three_noops("20s")).await;
    let submit = system.instance("a");
    let closed = async |key: &str| {
        let problem = accept(&submit, key, Some(NAME)).await.unwrap_err();
        assert_eq!((problem.code, problem.status), ("unavailable", 503), "{}", problem.detail);
        assert!(problem.detail.contains("an operator must put and activate"), "{}", problem.detail);
        assert_eq!(by_message(&system, &submit, key, NAME).await, (true, 0), "it comes again");
        accept(&submit, &format!("{key}-other"), Some("other")).await.unwrap();
    };

    system.damage(&hash).await;
    closed("damaged").await;
    assert_eq!(system.put(&three_noops("20s")).await, hash);
    assert_eq!(by_message(&system, &submit, "damaged", NAME).await, (false, 0), "put again, it can be read");

    system.remove(&hash).await;
    let late = system.instance("late");
    assert_eq!(accept(&late, "missing", Some(NAME)).await.unwrap_err().code, "unavailable");
    system.put(&three_noops("20s")).await;
    accept(&late, "missing", Some(NAME)).await.unwrap();

    for (key, poison) in [("text", AttributeValue::S("{".into())), ("number", AttributeValue::N("7".into()))] {
        system.write("control#workflows", "workflow#noops", poison).await;
        system.pass_5_s();
        closed(key).await;
        let nameless = accept(&submit, "nameless", None).await.unwrap_err();
        assert_eq!(nameless.code, "unavailable", "the default name is the closed one");
        system.change(NAME, "activate", json!({"hash": hash})).await.unwrap();
        system.pass_5_s();
        let id = accept(&submit, key, Some(NAME)).await.unwrap();
        assert_eq!(system.hash_of(&id).await, hash);
    }
}

// All levels of an order are of one moment. A parent whose child takes no orders takes none either, and the submission may be repeated.
#[tokio::test]
async fn the_orders_that_an_order_starts_are_of_its_submission() {
    let parent = "name = \"shop\"\n[[step]]\nname = \"a\"\nworkflow = \"noops\"\n";
    let system = System::with(&[three_noops("10s"), parent.to_owned()]).await;
    let pinned = async |id: &Id| system.world.task(id).await.pins[NAME].clone();
    let (submit, old) = (system.instance("a"), system.world.submit.workflows[NAME].hash());
    let first = accept(&submit, "1", Some("shop")).await.unwrap();
    assert_eq!(pinned(&first).await, old);
    let new = system.activate(NAME, &three_noops("20s")).await;
    system.pass_5_s();
    let second = accept(&submit, "2", Some("shop")).await.unwrap();
    assert_eq!((pinned(&first).await, pinned(&second).await), (old, new));

    system.change_now(NAME, "retire").await;
    system.pass_5_s();
    let refused = accept(&submit, "3", Some("shop")).await.unwrap_err();
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.detail.contains("its orders start orders of `noops`"), "{}", refused.detail);
    // What was accepted before is known.
    assert_eq!(accept(&submit, "1", Some("shop")).await.unwrap(), first);
    system.change_now(NAME, "rollback").await;
    system.pass_5_s();
    accept(&submit, "3", Some("shop")).await.unwrap();

    // What would go on for ever is not begun.
    let circle = "name = \"noops\"\n[[step]]\nname = \"a\"\nworkflow = \"shop\"\n";
    system.activate(NAME, circle).await;
    system.pass_5_s();
    let refused = accept(&submit, "4", Some("shop")).await.unwrap_err();
    assert!(refused.detail.contains("(shop -> noops -> shop)"), "{}", refused.detail);
}

/// A call for each item of a list, after a step with this timeout.
fn calls(timeout: &str) -> String {
    format!(
        r#"
name = "noops"
output = "${{outputs.rows.done}}"
[[step]]
name = "first"
agent = "noop"
timeout = "{timeout}"
[[step]]
name = "rows"
after = ["first"]
each = "${{[1, 2, 3]}}"
agent = "noop"
timeout = "10s"
with = {{ n = "${{item}}" }}
"#
    )
}

impl System {
    /// The definition of the calls of a definition.
    fn call(toml: &str) -> Hash {
        crate::support::workflow(toml).calls().next().unwrap().hash()
    }

    async fn has(&self, hash: &Hash) -> bool {
        self.operator.engine.store.workflow(hash).await.unwrap().is_some()
    }

    /// Removes a definition from the table.
    async fn remove(&self, hash: &Hash) {
        let delete = self.world.clients.dynamodb.delete_item().table_name(&self.world.config.state_table);
        delete.key("pk", AttributeValue::S(format!("workflow#{hash}"))).send().await.unwrap();
    }

    /// An instance with a memory of its own runs the order to its end.
    async fn ends_with_all_items(&self, id: &Id) {
        let scheduler = self.world.engine(&format!("scheduler-{id}"), 10, None);
        for _ in 0..30 {
            self.world.settle(&scheduler).await;
            if self.world.task(id).await.process_state() == ProcessState::Processed {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        let task = self.world.task(id).await;
        assert_eq!((task.process_state(), &task.output), (ProcessState::Processed, &Some(json!(3))), "{task:#?}");
    }
}

// The calls of a list have a definition of their own, which is there wherever that of their order is.
#[tokio::test(start_paused = true)]
async fn a_registered_list_of_calls_runs_on_an_instance_that_has_no_file() {
    let system = System::new().await;
    let call = System::call(&calls("20s"));
    system.activate(NAME, &calls("20s")).await;
    assert!(system.has(&call).await);
    system.pass_5_s();
    let id = accept(&system.instance("late"), "1", Some(NAME)).await.unwrap();
    system.ends_with_all_items(&id).await;

    // Registered by a version that did not store it.
    system.remove(&call).await;
    let id = accept(&system.instance("later"), "2", Some(NAME)).await.unwrap();
    assert!(system.has(&call).await);
    system.ends_with_all_items(&id).await;

    // The deployment's own definition, to which a rollback may go back before any order used it.
    let system = System::with(&[calls("10s")]).await;
    assert!(!system.has(&call).await);
    system.activate(NAME, &three_noops("20s")).await;
    assert!(system.has(&call).await);
    system.change_now(NAME, "rollback").await;
    system.pass_5_s();
    let id = accept(&system.instance("late"), "1", Some(NAME)).await.unwrap();
    system.ends_with_all_items(&id).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_of_calls_that_a_layer_brought_runs() {
    let system = System::new().await;
    let toml = calls("20s");
    let files = [File { name: "noops.toml".into(), toml: toml.clone() }];
    let deployment = Deployment { stack: "shop", creates: true, layer: "shop-workflows:1", is_back: false };
    system.operator.deploy(&files, deployment).await.unwrap();
    assert!(system.has(&System::call(&toml)).await);
    system.pass_5_s();
    let id = accept(&system.instance("late"), "1", Some(NAME)).await.unwrap();
    system.ends_with_all_items(&id).await;
}

// A details page of another order has read the definition, which says nothing about its calls.
#[tokio::test(start_paused = true)]
async fn an_order_moves_to_a_list_of_calls_whose_definition_was_read_before() {
    let system = System::new().await;
    let id = accept(&system.instance("a"), "1", Some(NAME)).await.unwrap();
    let (toml, call) = (calls("20s"), System::call(&calls("20s")));
    let hash = system.activate(NAME, &toml).await;
    system.pass_5_s();
    let other = accept(&system.instance("late"), "2", Some(NAME)).await.unwrap();
    system.remove(&call).await;
    system.operator.details(&other.0).await.unwrap();
    let wish: Migrate = serde_json::from_value(json!({"by": "ada", "reason": "r", "to": hash})).unwrap();
    assert_eq!(system.operator.migrate(&id.0, &wish, None).await.unwrap().outcome, "applied");
    assert!(system.has(&call).await);
    system.ends_with_all_items(&id).await;
}
