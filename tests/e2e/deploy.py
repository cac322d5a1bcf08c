"""Deploys template.yaml as `sam deploy` does: the binaries as archives in a bucket, the template by its URL, a stack."""

import hashlib
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


def with_emulated_rights(template):
    """AWS asks whoever sends or deletes a batch for `sqs:SendMessage` or `sqs:DeleteMessage`, and knows no other action
    for it ("Amazon SQS API permissions: actions and resource reference"). MiniStack asks for `sqs:SendMessageBatch`; and whoever
    reads a version of a layer, which is `lambda:GetLayerVersion`, for `lambda:ListLayers`."""
    template = template.replace("Action: lambda:GetLayerVersion", "Action: [lambda:GetLayerVersion, lambda:ListLayers]")
    template = re.sub(r"Action: (sqs:(?:Send|Delete)Message)(?=$|,)", r"Action: [\1, \1Batch]", template, flags=re.MULTILINE)
    template = re.sub(r"(?<=[\[ ])(sqs:(?:Send|Delete)Message)(?=, (?!\1)|\])", r"\1, \1Batch", template)
    return re.sub(r"^( *- )(sqs:(?:Send|Delete)Message)$", r"\1\2\n\1\2Batch", template, flags=re.MULTILINE)


def deploy(name, parameters, binaries, again=False):
    """The outputs of the stack `name`, which is there already if it is deployed `again`. `binaries` is the folder that CodeUri names by
    `target/lambda`."""
    s3 = emulator.client("s3")
    if not again:
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": emulator.REGION})

    def upload(found):
        function = found[1]
        s3.put_object(Bucket=BUCKET, Key=f"{function}.zip", Body=archive(binaries / function / "bootstrap"))
        return f"CodeUri: s3://{BUCKET}/{function}.zip"

    def nest(found):
        key = Path(found[1]).name
        s3.put_object(Bucket=BUCKET, Key=key, Body=with_emulated_rights((ROOT / found[1]).read_text()).encode())
        return f"Location: {emulator.URL}/{BUCKET}/{key}"

    text, count = re.subn(r"CodeUri: target/lambda/([a-z]+)/", upload, (ROOT / "template.yaml").read_text())
    assert count == 6, f"{count} functions in template.yaml"
    text = re.sub(r"Location: (infra/[a-z]+\.yaml)", nest, with_emulated_rights(text))
    return stack(name, text, parameters, again)


def folder(name, path, parameters, again=False):
    """The outputs of the stack `name` from the template of a folder that `stepwarden new` wrote."""
    s3 = emulator.client("s3")

    def upload(found):
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
            for source in sorted(file for file in (path / found[2]).rglob("*") if file.is_file()):
                file.write(source, source.relative_to(path / found[2]))
        # Other content has another name, or CloudFormation would see no change.
        key = f"{hashlib.sha256(data.getvalue()).hexdigest()}.zip"
        s3.put_object(Bucket=BUCKET, Key=key, Body=data.getvalue())
        return f"{found[1]}: s3://{BUCKET}/{key}"

    def nest(found):
        s3.put_object(Bucket=BUCKET, Key=f"{name}-{found[1]}", Body=with_emulated_rights((path / found[1]).read_text()).encode())
        return f"Location: {emulator.URL}/{BUCKET}/{name}-{found[1]}"

    text = re.sub(r"(CodeUri|ContentUri): (\S+/)", upload, (path / "template.yaml").read_text())
    return stack(name, re.sub(r"Location: (\w+\.yaml)", nest, text), parameters, again)


def remove(name):
    cloudformation = emulator.client("cloudformation")
    cloudformation.delete_stack(StackName=name)
    deadline = time.monotonic() + PATIENCE_S
    while any(s["StackStatus"] != "DELETE_COMPLETE" for s in cloudformation.list_stacks()["StackSummaries"] if s["StackName"] == name):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the stack {name} is not deleted")
        time.sleep(0.5)


def stack(name, text, parameters, again=False):
    """The outputs of a stack, once it is complete."""
    s3, cloudformation = emulator.client("s3"), emulator.client("cloudformation")
    # The template is larger than CloudFormation takes in a request.
    s3.put_object(Bucket=BUCKET, Key=f"{name}.yaml", Body=text.encode())
    (cloudformation.update_stack if again else cloudformation.create_stack)(
        StackName=name,
        TemplateURL=f"{emulator.URL}/{BUCKET}/{name}.yaml",
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
        if found["StackStatus"] == ("UPDATE_COMPLETE" if again else "CREATE_COMPLETE"):
            return {o["OutputKey"]: o["OutputValue"] for o in found.get("Outputs", [])}
        ended = not found["StackStatus"].endswith("IN_PROGRESS") and ("ROLLBACK" in found["StackStatus"] or "FAILED" in found["StackStatus"])
        if ended or time.monotonic() > deadline:
            events = cloudformation.describe_stack_events(StackName=name)["StackEvents"]
            failed = [f"{e['LogicalResourceId']}: {e.get('ResourceStatusReason')}" for e in events if "FAILED" in e["ResourceStatus"]]
            raise RuntimeError(f"the stack is {found['StackStatus']}: {found.get('StackStatusReason')}\n" + "\n".join(failed))
        time.sleep(0.5)
