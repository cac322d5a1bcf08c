//! How deep an expression may be. This is checked before the engine reads the expression by recursion: without the
//! check, a condition of 2,048 parentheses overflowed the stack, which aborts the process.
//!
//! DynamoDB has such bounds too. The bound for operators is DynamoDB's. Redundant parentheses, and paths of more than
//! 32 levels, are refused more simply than in DynamoDB.

use dynoxide::DynoxideError;
use dynoxide::actions::{
    batch_get_item::BatchGetItemRequest, batch_write_item::BatchWriteItemRequest, create_table::CreateTableRequest,
    delete_item::DeleteItemRequest, delete_table::DeleteTableRequest, describe_table::DescribeTableRequest,
    describe_time_to_live::DescribeTimeToLiveRequest, get_item::GetItemRequest, list_tables::ListTablesRequest,
    put_item::PutItemRequest, query::QueryRequest, scan::ScanRequest, transact_get_items::TransactGetItemsRequest,
    transact_write_items::TransactWriteItemsRequest, update_item::UpdateItemRequest, update_table::UpdateTableRequest,
    update_time_to_live::UpdateTimeToLiveRequest,
};

/// Parentheses within parentheses.
const MOST_LEVELS: usize = 50;
/// DynamoDB, "Expression parameters": operators and functions in one expression.
const MOST_OPERATORS: usize = 300;
/// DynamoDB, "Attributes": nested levels of a document.
const MOST_PARTS: usize = 32;

/// What must be known about a request before the engine reads it.
pub(crate) trait Request {
    /// Items that it reads or writes by key.
    fn items(&self) -> usize;

    fn expressions(&self) -> Vec<&str>;

    /// # Errors
    /// `ValidationException`, for an expression that is too deep.
    fn check_expressions(&self) -> Result<(), DynoxideError> {
        match self.expressions().into_iter().find_map(too_deep) {
            None => Ok(()),
            Some(why) => Err(DynoxideError::ValidationException(format!("Invalid expression: {why}"))),
        }
    }
}

macro_rules! requests {
    ($($items:literal $request:ty: $($field:ident),*;)*) => {
        $(impl Request for $request {
            fn items(&self) -> usize {
                $items
            }

            fn expressions(&self) -> Vec<&str> {
                let all: [Option<&str>; _] = [$(self.$field.as_deref()),*];
                all.into_iter().flatten().collect()
            }
        })*
    };
}

requests! {
    1 PutItemRequest: condition_expression;
    1 DeleteItemRequest: condition_expression;
    1 UpdateItemRequest: condition_expression, update_expression;
    1 GetItemRequest: projection_expression;
    0 QueryRequest: key_condition_expression, filter_expression, projection_expression;
    0 ScanRequest: filter_expression, projection_expression;
    0 CreateTableRequest:;
    0 UpdateTableRequest:;
    0 DescribeTableRequest:;
    0 DeleteTableRequest:;
    0 ListTablesRequest:;
    0 UpdateTimeToLiveRequest:;
    0 DescribeTimeToLiveRequest:;
}

impl Request for BatchWriteItemRequest {
    fn items(&self) -> usize {
        self.request_items.values().map(Vec::len).sum()
    }

    fn expressions(&self) -> Vec<&str> {
        Vec::new()
    }
}

impl Request for BatchGetItemRequest {
    fn items(&self) -> usize {
        self.request_items.values().map(|table| table.keys.len()).sum()
    }

    fn expressions(&self) -> Vec<&str> {
        self.request_items.values().filter_map(|table| table.projection_expression.as_deref()).collect()
    }
}

impl Request for TransactGetItemsRequest {
    fn items(&self) -> usize {
        self.transact_items.len()
    }

    fn expressions(&self) -> Vec<&str> {
        self.transact_items.iter().filter_map(|item| item.get.projection_expression.as_deref()).collect()
    }
}

impl Request for TransactWriteItemsRequest {
    fn items(&self) -> usize {
        self.transact_items.len()
    }

    fn expressions(&self) -> Vec<&str> {
        self.transact_items
            .iter()
            .flat_map(|item| {
                let put = item.put.as_ref().and_then(|put| put.condition_expression.as_deref());
                let delete = item.delete.as_ref().and_then(|delete| delete.condition_expression.as_deref());
                let update = item.update.as_ref();
                let set = update.map(|update| update.update_expression.as_str());
                let update = update.and_then(|update| update.condition_expression.as_deref());
                let check = item.condition_check.as_ref().map(|check| check.condition_expression.as_str());
                [put, delete, set, update, check].into_iter().flatten()
            })
            .collect()
    }
}

/// Why an expression is too deep, if it is.
fn too_deep(expression: &str) -> Option<String> {
    let (mut levels, mut most) = (0_usize, 0);
    for byte in expression.bytes() {
        match byte {
            b'(' => levels += 1,
            b')' => levels = levels.saturating_sub(1),
            _ => {}
        }
        most = most.max(levels);
    }
    if most > MOST_LEVELS {
        return Some(format!("parentheses within parentheses: at most {MOST_LEVELS}, this one has {most}"));
    }
    let is_word = |c: char| c.is_alphanumeric() || "_#:.[]-".contains(c);
    let words = || expression.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    let is_operator = |word: &&str| ["AND", "OR", "NOT"].iter().any(|name| word.eq_ignore_ascii_case(name));
    let operators = words().filter(is_operator).count();
    if operators > MOST_OPERATORS {
        return Some(format!("operators: at most {MOST_OPERATORS}, this one has {operators}"));
    }
    let parts = words().map(|word| 1 + word.matches(['.', '[']).count()).max().unwrap_or(0);
    (parts > MOST_PARTS + 1).then(|| format!("levels of a path: at most {MOST_PARTS}, this one has {parts}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_not_too_deep() {
        for good in [
            "",
            "attribute_not_exists(id)",
            "(a = :a AND (b < :b OR NOT (size(c.d[3].e) > :c)))",
            "SET #a.b = :x, c = c + :y",
        ] {
            assert_eq!(too_deep(good), None, "{good}");
        }
        let nested = |n: usize| "(".repeat(n) + "a = b" + &")".repeat(n);
        let chain = |n: usize| vec!["a = b"; n + 1].join(" and ");
        let path = |n: usize| format!("a{}", "[0].b".repeat(n / 2));
        assert_eq!(
            (too_deep(&nested(MOST_LEVELS)), too_deep(&chain(MOST_OPERATORS)), too_deep(&path(MOST_PARTS))),
            (None, None, None)
        );
        for bad in [nested(MOST_LEVELS + 1), chain(MOST_OPERATORS + 1), path(MOST_PARTS + 2), "NOT ".repeat(301)] {
            assert!(too_deep(&bad).is_some(), "{bad}");
        }
    }
}
