//! The items of a step's list: the state of each, and one page of them with their orders.

use crate::Operator;
use crate::act::unavailable;
use edge::problem::{self, Problem};
use edge::query::number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::items::{Item, MAX_ITEMS};
use shared::order::Id;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Most items on a page, because it reads the order of each failed one.
pub const MAX_PAGE: usize = 100;
/// The parameters of the route.
pub const PARAMETERS: [&str; 3] = ["state", "cursor", "limit"];

/// A page of the items of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ItemsPage")]
pub struct Page {
    /// The order.
    pub order_id: Id,
    /// Its step.
    pub step: String,
    /// The workflow of the items' orders.
    pub workflow: String,
    /// The state of every item, in the order of the list, as the first letter of its name: `t` for `to_do`, `o`, `d`, `f`, `u`, `s`.
    pub states: String,
    /// The items of the page, in the order of the list.
    pub items: Vec<Row>,
    /// For `cursor`; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<usize>,
}

/// An item of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Item")]
pub struct Row {
    /// Its position in the list, from 0.
    pub index: usize,
    /// Its state.
    #[schemars(extend("enum" = Item::NAMES))]
    pub state: Cow<'static, str>,
    /// Its order, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_id: Option<Id>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Operator {
    /// The page of the items of `step` that the query asks for.
    ///
    /// # Errors
    /// The order or the step does not exist, the step has not begun a list, a parameter is invalid, or the store failed.
    pub async fn items(&self, id: &str, step: &str, query: &BTreeMap<String, String>) -> Result<Page, Problem> {
        let state = query.get("state").map(|name| match Item::NAMES.contains(&name.as_str()) {
            true => Ok(name.as_str()),
            false => Err(problem::invalid_field("state", format!("must be one of {}", Item::NAMES.join(", ")))),
        });
        let state = state.transpose()?;
        let from = query.get("cursor").map_or(Ok(0), |text| number("cursor", text, 0, MAX_ITEMS))?;
        let limit = query.get("limit").map_or(Ok(MAX_PAGE), |text| number("limit", text, 1, MAX_PAGE))?;
        let task = self.known(id).await?;
        let workflow = self.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
        let no_list = |why: &str| Err(problem::invalid_field("step", format!("`{step}` {why}")));
        let Some(index) = workflow.position(step) else { return no_list("is not in the workflow of the order") };
        let Some(child) = workflow.steps[index].child.as_ref().filter(|child| child.each.is_some()) else {
            return no_list("has no `each`");
        };
        let Some(items) = task.steps[index].kids.as_ref().and_then(|kids| kids.items.as_ref()) else {
            return no_list("has not begun its list yet");
        };
        let wanted = items.all(|item| state.is_none_or(|state| item.name() == state)).filter(|item| *item >= from);
        let mut wanted: Vec<usize> = wanted.take(limit + 1).collect();
        let next = (wanted.len() > limit).then(|| wanted.pop()).flatten();
        let seen = self.engine.items(&task, index, &wanted).await.map_err(|e| unavailable(&e))?;
        let row = |(index, (order_id, error)): (usize, (Option<Id>, Option<String>))| {
            let state = items.get(index).name().into();
            Row { index, state, order_id, error }
        };
        Ok(Page {
            order_id: task.id.clone(),
            step: step.to_owned(),
            workflow: child.workflow.clone(),
            states: (0..items.total()).filter_map(|item| items.get(item).name().chars().next()).collect(),
            items: wanted.into_iter().zip(seen).map(row).collect(),
            next,
        })
    }
}
