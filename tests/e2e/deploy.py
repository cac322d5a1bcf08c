"""Deploys template.yaml as `sam deploy` does: the binaries as archives in a bucket, the template by its URL, a stack."""

import io
import re
import time
import zipfile
from pathlib import Path

import emulator

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "artifacts"
PATIENCE_S = 120


def archive(binary):
    """The function's archive: the binary alone, executable."""
    entry = zipfile.ZipInfo("bootstrap", (2026, 1, 1, 0, 0, 0))
    entry.external_attr = 0o100755 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr(entry, binary.read_bytes(), compresslevel=1)
    return data.getvalue()


def with_batch_rights(template):
    """AWS asks whoever sends or deletes a batch for `sqs:SendMessage` or `sqs:DeleteMessage`, and knows no other action
    for it ("Amazon SQS API permissions: actions and resource reference"). MiniStack asks for `sqs:SendMessageBatch`."""
    template = re.sub(r"Action: (sqs:(?:Send|Delete)Message)(?=$|,)", r"Action: [\1, \1Batch]", template, flags=re.MULTILINE)
    template = re.sub(r"(?<=[\[ ])(sqs:(?:Send|Delete)Message)(?=, (?!\1)|\])", r"\1, \1Batch", template)
    return re.sub(r"^( *- )(sqs:(?:Send|Delete)Message)$", r"\1\2\n\1\2Batch", template, flags=re.MULTILINE)


def deploy(name, parameters, binaries, again=False):
    """The outputs of the stack `name`, which is there already if it is deployed `again`. `binaries` is the folder that CodeUri names by
    `target/lambda`."""
    s3, cloudformation = emulator.client("s3"), emulator.client("cloudformation")
    if not again:
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": emulator.REGION})

    def upload(found):
        function = found[1]
        s3.put_object(Bucket=BUCKET, Key=f"{function}.zip", Body=archive(binaries / function / "bootstrap"))
        return f"CodeUri: s3://{BUCKET}/{function}.zip"

    def nest(found):
        key = Path(found[1]).name
        s3.put_object(Bucket=BUCKET, Key=key, Body=with_batch_rights((ROOT / found[1]).read_text()).encode())
        return f"Location: {emulator.URL}/{BUCKET}/{key}"

    text, count = re.subn(r"CodeUri: target/lambda/([a-z]+)/", upload, (ROOT / "template.yaml").read_text())
    assert count == 6, f"{count} functions in template.yaml"
    text = re.sub(r"Location: (infra/[a-z]+\.yaml)", nest, with_batch_rights(text))
    # The template is larger than CloudFormation takes in a request.
    s3.put_object(Bucket=BUCKET, Key="template.yaml", Body=text.encode())
    (cloudformation.update_stack if again else cloudformation.create_stack)(
        StackName=name,
        TemplateURL=f"{emulator.URL}/{BUCKET}/template.yaml",
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        stack = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
        if stack["StackStatus"] == ("UPDATE_COMPLETE" if again else "CREATE_COMPLETE"):
            return {o["OutputKey"]: o["OutputValue"] for o in stack.get("Outputs", [])}
        if "ROLLBACK" in stack["StackStatus"] or stack["StackStatus"].endswith("FAILED") or time.monotonic() > deadline:
            events = cloudformation.describe_stack_events(StackName=name)["StackEvents"]
            failed = [f"{e['LogicalResourceId']}: {e.get('ResourceStatusReason')}" for e in events if "FAILED" in e["ResourceStatus"]]
            raise RuntimeError(f"the stack is {stack['StackStatus']}: {stack.get('StackStatusReason')}\n" + "\n".join(failed))
        time.sleep(0.5)
