"""An order whose steps are signed calls: a Lambda function, a DynamoDB item, an SNS message and an S3 object, with no rights but
those that its deployer granted. The emulator checks every signature and every right."""

import io
import json
import zipfile

import emulator
from world import check, until

TABLE, BUCKET, TOPIC, FUNCTION = "sales", "sales-objects", "sales", "stock"
ACCOUNT = "000000000000"
ARN = f"arn:aws:{{}}:{emulator.REGION}:{ACCOUNT}:{{}}"

CODE = """
def handler(event, context):
    sku = event["input"]["sku"]
    if sku == "none":
        class OutOfStock(Exception):
            pass
        raise OutOfStock("none left")
    return {"sku": sku, "left": 3, "key": event["idempotency_key"]}
"""

# MiniStack calls every error of a handler in Python `Runtime.HandlerError`; Lambda calls it by its class.
WORKFLOW = f"""
name = "sale"
default = {{ timeout = "30s", retry = {{ max = 3, backoff = ["2s"] }} }}
[[step]]
name = "stock"
after = []
lambda = {{ function = "{FUNCTION}", permanent = ["OutOfStock", "Runtime.HandlerError"] }}
[[step]]
name = "save"
after = ["stock"]
aws = "dynamodb:PutItem"
with = {{ TableName = "{TABLE}", Item = {{ id = {{ S = "${{order.id}}" }}, left = {{ N = "${{text(outputs.stock.left)}}" }}, key = {{ S = "${{outputs.stock.key}}" }} }}, ConditionExpression = "attribute_not_exists(id)" }}
undo = {{ aws = "dynamodb:DeleteItem", with = {{ TableName = "{TABLE}", Key = {{ id = {{ S = "${{order.id}}" }} }} }} }}
[[step]]
name = "again"
after = ["save"]
aws = "dynamodb:PutItem"
with = {{ TableName = "{TABLE}", Item = {{ id = {{ S = "${{order.id}}" }} }}, ConditionExpression = "attribute_not_exists(id)" }}
catch = "error.answer.__type == 'ConditionalCheckFailedException' && error.status == 400"
[[step]]
name = "keep"
after = ["save"]
aws = "s3:PutObject"
with = {{ Bucket = "{BUCKET}", Key = "${{order.id}}/ü (1).json", Body = "${{outputs.stock}}" }}
undo = {{ aws = "s3:DeleteObject", with = {{ Bucket = "{BUCKET}", Key = "${{order.id}}/ü (1).json" }} }}
[[step]]
name = "tell"
after = ["keep", "again?"]
aws = "sns:Publish"
with = {{ TopicArn = "{ARN.format('sns', TOPIC)}", Message = "sold ${{order.id}} & more" }}
[[step]]
name = "forbidden"
after = ["tell"]
when = "input.sku == 'forbidden'"
aws = "dynamodb:DeleteItem"
with = {{ TableName = "{TABLE}-closed", Key = {{ id = {{ S = "x" }} }} }}
"""


def prepare():
    """Everything that the steps call; the ARN of the policy for the deployment."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("app.py", CODE)
    trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}]}
    iam = emulator.client("iam")
    role = iam.create_role(RoleName="stock", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", **trust}))
    emulator.client("lambda").create_function(
        FunctionName=FUNCTION,
        Runtime="python3.12",
        Role=role["Role"]["Arn"],
        Handler="app.handler",
        Code={"ZipFile": archive.getvalue()},
        Timeout=10,
    )
    for table in (TABLE, f"{TABLE}-closed"):
        emulator.client("dynamodb").create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )
    emulator.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": emulator.REGION})
    emulator.client("sns").create_topic(Name=TOPIC)
    allowed = [
        ("lambda:InvokeFunction", ARN.format("lambda", f"function:{FUNCTION}")),
        ("dynamodb:PutItem", ARN.format("dynamodb", f"table/{TABLE}")),
        ("dynamodb:DeleteItem", ARN.format("dynamodb", f"table/{TABLE}")),
        ("s3:PutObject", f"arn:aws:s3:::{BUCKET}/*"),
        ("s3:DeleteObject", f"arn:aws:s3:::{BUCKET}/*"),
        ("sns:Publish", ARN.format("sns", TOPIC)),
    ]
    document = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": action, "Resource": resource} for action, resource in allowed],
    }
    return iam.create_policy(PolicyName="steps", PolicyDocument=json.dumps(document))["Policy"]["Arn"]


def register(system):
    why = {"by": "e2e", "reason": "signed calls"}
    code, answer = system.call("POST", "/workflows", {**why, "toml": WORKFLOW, "file": "sale.toml"})
    check(code in (200, 201), f"put: {code} {answer}")
    code, answer = system.call("POST", "/workflows/sale/activate", {**why, "hash": answer["hash"], "if_version": answer["version"]})
    check(code == 200, f"activate: {code} {answer}")


def subscribe(system):
    url = system.sqs.create_queue(QueueName="sales-heard")["QueueUrl"]
    arn = system.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": arn}
        ],
    }
    system.sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy)})
    emulator.client("sns").subscribe(
        TopicArn=ARN.format("sns", TOPIC), Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    return url


def submit(system, key, sku):
    def accepted():
        code, answer = system.call("POST", "/orders", {"workflow": "sale", "input": {"sku": sku}}, idempotency_key=key)
        # An instance follows a registration within 5 s.
        check(code in (202, 400, 404, 422) or code >= 500, f"{key}: {code} {answer}")
        return answer["order_id"] if code == 202 else None

    return until(f"{key} is accepted", accepted, 30)


def item(order_id):
    return emulator.client("dynamodb").get_item(TableName=TABLE, Key={"id": {"S": order_id}}).get("Item")


def signed_calls(system, _sample, _options):
    register(system)
    heard = subscribe(system)
    order_id = submit(system, "sale-good", "a-1")
    system.ends(order_id, "Processed")
    stored = item(order_id)
    check(stored and stored["left"] == {"N": "3"}, f"the item: {stored}")
    s3 = emulator.client("s3")
    stock = {"sku": "a-1", "left": 3, "key": f"{order_id}:stock:do"}
    kept = json.load(s3.get_object(Bucket=BUCKET, Key=f"{order_id}/ü (1).json")["Body"])
    check(kept == stock and stored["key"] == {"S": stock["key"]}, f"the object: {kept}, the item: {stored}")
    told = until("the message", lambda: system.sqs.receive_message(QueueUrl=heard).get("Messages"), 30)
    check(told[0]["Body"] == f"sold {order_id} & more", f"the message: {told}")
    events = system.events(order_id)
    check(("failure_caught", "again") in events, f"the conditional error was not caught: {events}")
    out = submit(system, "sale-out", "none")
    system.ends(out, "Undone")
    check(": none left" in json.dumps(system.status(out)), f"the reason: {system.status(out)}")
    # The role has no right to do this, so what was done is undone, by signed calls too.
    forbidden = submit(system, "sale-forbidden", "forbidden")
    system.ends(forbidden, "Undone")
    check(item(forbidden) is None, f"the item is still there: {item(forbidden)}")
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=forbidden).get("Contents", [])
    check(not listed, f"the object is still there: {listed}")
    return "signed calls: a function, an item, a message and an object, with granted rights only; refused without"
