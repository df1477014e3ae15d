"""The bank from Python, with nothing but the contract and a client of OpenAPI.

    pip install -r web/python/requirements.txt
    python web/python/example.py http://127.0.0.1:3000

The names of routes, fields and headers are those of docs/schemas/openapi.json.
"""

import json
import sys
import uuid

from aiopenapi3 import OpenAPI
from aiopenapi3.errors import HTTPClientError


def main(url: str) -> None:
    api = OpenAPI.load_sync(f"{url}/openapi.json")
    # On the local stack, a name is a token.
    api.authenticate(token="ada")

    def call(method: str, path: str, body: dict | None = None, **parameters: object):
        request = api.createRequest((path, method))
        return request.request(data=body, parameters=parameters)

    account = str(uuid.uuid4())
    call("post", "/accounts", {"accountId": account, "owner": "Ada", "currency": "EUR"})

    # The same key at each attempt: the API carries the command out once.
    key = {"Idempotency-Key": str(uuid.uuid4())}
    for _ in range(2):
        credited = call(
            "post", "/accounts/{id}/credits", {"amount": 5_000, "reference": "salary"}, id=account, **key
        )
        print("credited:", credited.data.totalBalance, "again:", "Idempotent-Replayed" in credited.headers)

    # Read your own write: the version of the last command.
    shown = call("get", "/accounts/{id}", id=account, minVersion=credited.data.version).data
    print("shown:", shown.owner, shown.totalBalance, shown.currency)

    try:
        call("post", "/accounts/{id}/debits", {"amount": 9_000}, id=account)
    except HTTPClientError as refused:
        print("refused:", refused.status_code, json.loads(refused.data)["type"].rsplit(":", 1)[-1])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:3000")
