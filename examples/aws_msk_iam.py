"""Amazon MSK with IAM: who may do what is said by AWS roles, and tokens are signed by AWS's own library.

    pip install headrace aws-msk-iam-sasl-signer-python
    AWS_REGION=eu-central-1 python examples/aws_msk_iam.py b-1.….kafka.eu-central-1.amazonaws.com:9098

Credentials come from where AWS's tools find them: the environment, a profile, the role of the machine or the pod. A
token holds for minutes; the client asks for the next one before it ends, and logs in again on connections that live on.

Spark: give the function by its dotted name, and have this module where the executors' Python finds it
(`--py-files aws_msk_iam.py`). Each process fetches its own tokens; none travels.

    .option("kafka.security.protocol", "SASL_SSL")
    .option("kafka.sasl.mechanism", "OAUTHBEARER")
    .option("kafka.sasl.oauthbearer.token.callback", "aws_msk_iam.token")
"""

from __future__ import annotations

import os
import sys

from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

from headrace import Admin


def token() -> tuple[str, float]:
    """A token and when it ends, in seconds since 1970 (the library has milliseconds)."""
    value, ends_ms = MSKAuthTokenProvider.generate_auth_token(os.environ["AWS_REGION"])
    return value, ends_ms / 1000


def config(servers: str) -> dict[str, object]:
    """For any client: Producer, Consumer, Admin, `exactly_once(…, config=…)`, parallel consumers."""
    return {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.callback": token,
    }


def main(servers: str) -> None:
    with Admin(config(servers)) as admin:
        for name in sorted(admin.list_topics()):
            print(name)


if __name__ == "__main__":
    main(sys.argv[1])
