"""Starts LocalStack's core on this machine, without Docker: SQS and EventBridge in host mode, and DynamoDB by the jar that
`fetch` brought in place of the one LocalStack would download. For tests/contract/run; users run infra/localstack.yaml."""

import os
import sys
from pathlib import Path

folder, port, jar = Path(sys.argv[1]), sys.argv[2], Path(__file__).parent / ".dynamodb"
os.environ |= {
    "OVERRIDE_IN_DOCKER": "0",
    "GATEWAY_LISTEN": f"127.0.0.1:{port}",
    "FILESYSTEM_ROOT": str(folder / "localstack"),
    "SERVICES": "dynamodb,sqs,events",
    "STRICT_SERVICE_LOADING": "1",
    "DISABLE_EVENTS": "1",
    "SKIP_SSL_CERT_DOWNLOAD": "1",
    "DNS_ADDRESS": "0",
}

from localstack.runtime.main import main  # noqa: E402
from localstack.services.dynamodb.packages import DynamoDBLocalPackageInstaller  # noqa: E402
from localstack.services.dynamodb.server import DynamodbServer  # noqa: E402

DynamoDBLocalPackageInstaller.install = lambda self, *_, **__: None
DynamoDBLocalPackageInstaller.get_java_env_vars = lambda self: {}
DynamodbServer._create_shell_command = lambda self: [
    "java",
    f"-Djava.library.path={jar.absolute()}/DynamoDBLocal_lib",
    "-jar",
    f"{jar.absolute()}/DynamoDBLocal.jar",
    "-disableTelemetry",
    "-inMemory",
    "-port",
    str(self.port),
]
sys.argv = sys.argv[:1]
main()
