"""MiniStack with what it lacks of AWS, so that the template under test is deployed as it is.

Each point is listed in docs/emulator.md. Nothing here may make anything pass that AWS would refuse.
"""

import contextvars
import json
import re

from ministack import app
from ministack.core import iam_actions, iam_evaluator
from ministack.services import dynamodb
from ministack.services.cloudformation import provisioners

# --- A commit that is inserted by PartiQL is a record of the stream, as one that is put is. In a transaction, only once
# --- all of it is done.

_inserted = contextvars.ContextVar("inserted", default=None)
_insert = dynamodb._partiql_insert


def insert(table, parsed):
    answer = _insert(table, parsed)
    if answer[0] == 200 and _inserted.get() is not None:
        item = parsed["item"]
        _inserted.get().append((table["TableName"], item["M"] if set(item) == {"M"} else item))
    return answer


def with_records(operation):
    def run(data):
        token = _inserted.set([])
        try:
            answer = operation(data)
            if answer[0] == 200:
                for table, item in _inserted.get():
                    dynamodb._emit_stream_event(table, "INSERT", None, item)
            return answer
        finally:
            _inserted.reset(token)

    return run


dynamodb._partiql_insert = insert
dynamodb._execute_statement = with_records(dynamodb._execute_statement)
dynamodb._execute_transaction = with_records(dynamodb._execute_transaction)

# --- A cancelled transaction names its reasons by codes, not by exceptions: DuplicateItem.

_transaction = dynamodb._execute_transaction


def transaction(data):
    status, headers, body = _transaction(data)
    return status, headers, body if status == 200 else body.replace(b"DuplicateItemException", b"DuplicateItem")


dynamodb._execute_transaction = transaction

# --- A policy of one role in a template, AWS::IAM::RolePolicy, is an AWS::IAM::Policy with one role.

_policy = provisioners._RESOURCE_HANDLERS["AWS::IAM::Policy"]


def with_roles(properties):
    return {**properties, "Roles": [properties["RoleName"]]}


provisioners._RESOURCE_HANDLERS["AWS::IAM::RolePolicy"] = {
    **_policy,
    "create": lambda id, properties, stack: _policy["create"](id, with_roles(properties), stack),
    "update": lambda id, old, new, *rest, **named: _policy["update"](id, with_roles(old), with_roles(new), *rest, **named),
    "delete": lambda id, properties: _policy["delete"](id, with_roles(properties)),
}

# --- PartiQL statements are authorized as what they do, on their table (service authorization reference, DynamoDB).

_STATEMENT = re.compile(r'^\s*(INSERT\s+INTO|UPDATE|DELETE\s+FROM|SELECT\b.*?\bFROM)\s+"?([\w.-]+)"?', re.I | re.S)
_VERBS = {"INSERT": "PartiQLInsert", "UPDATE": "PartiQLUpdate", "DELETE": "PartiQLDelete", "SELECT": "PartiQLSelect"}
_checks = iam_actions.dynamodb_transaction_checks


def checks(iam_action, body, region, account_id):
    if iam_action not in ("dynamodb:ExecuteStatement", "dynamodb:ExecuteTransaction", "dynamodb:BatchExecuteStatement"):
        return _checks(iam_action, body, region, account_id)
    data = json.loads(body or b"{}")
    statements = [data] if "Statement" in data else data.get("TransactStatements") or data.get("Statements") or []
    found = []
    for statement in statements:
        match = _STATEMENT.match(statement.get("Statement", ""))
        # What cannot be read is authorized as the operation itself, which nobody is granted.
        verb = _VERBS[match.group(1).split()[0].upper()] if match else iam_action.split(":")[1]
        table = match.group(2) if match else "*"
        found.append((f"dynamodb:{verb}", f"arn:aws:dynamodb:{region}:{account_id}:table/{table}"))
    return found


iam_actions.dynamodb_transaction_checks = checks

# --- An operation on one item, or a query of one partition, carries the partition key as `dynamodb:LeadingKeys` (developer guide, "Using IAM
# --- policy conditions for fine-grained access control").

_context = iam_actions.dynamodb_service_context


def context(body):
    data = json.loads(body or b"{}")
    # A table may be named by its ARN.
    table = dynamodb._tables.get(data.get("TableName", "").rsplit("/", 1)[-1])
    item = data.get("Key") or data.get("Item") or {}
    key = item.get(table["pk_name"], {}) if table else {}
    names = data.get("ExpressionAttributeNames", {})
    for name, value in re.findall(r"([\w#]+)\s*=\s*(:\w+)", data.get("KeyConditionExpression", "")):
        if table and names.get(name, name) == table["pk_name"]:
            key = data["ExpressionAttributeValues"][value]
    leading = {"dynamodb:LeadingKeys": list(key.values())} if key else {}
    return {**_context(body), **leading, **attributes(data)}


# --- An update carries the names of its key's attributes and of those in its expressions as `dynamodb:Attributes`.

_WORDS = {"SET", "REMOVE", "ADD", "DELETE", "AND", "OR", "NOT", "BETWEEN", "IN", "if_not_exists", "list_append",
          "attribute_exists", "attribute_not_exists", "attribute_type", "begins_with", "contains", "size"}


def attributes(data):
    expressions = [data.get(name, "") for name in ("UpdateExpression", "ConditionExpression")]
    if not expressions[0]:
        return {}
    names = data.get("ExpressionAttributeNames", {})
    found = re.findall(r"(?<![\w.:#])[#A-Za-z_]\w*", " ".join(expressions))
    return {"dynamodb:Attributes": [*data["Key"], *(names.get(name, name) for name in found if name not in _WORDS)]}


iam_actions.dynamodb_service_context = context

# --- A request to put an object carries its header as `s3:if-none-match` (user guide, "Enforce conditional writes").

_s3_context = iam_actions.s3_service_context


def s3_context(iam_action, query, path="", headers=None):
    header = (headers or {}).get("if-none-match") if iam_action == "s3:PutObject" else None
    return {**_s3_context(iam_action, query, path, headers), **({"s3:if-none-match": header} if header else {})}


iam_actions.s3_service_context = s3_context

# --- `aws:PrincipalArn` is the role, not its session (user guide, "AWS global condition context keys").

_resolve = iam_evaluator._resolve_condition_key
_SESSION = re.compile(r":sts::(\d+):assumed-role/([^/]+)/.*")


def condition_key(key, ctx):
    value = _resolve(key, ctx)
    return _SESSION.sub(r":iam::\1:role/\2", value) if key.lower() == "aws:principalarn" else value


iam_evaluator._resolve_condition_key = condition_key

# --- The emulator has no TLS: each request counts as sent over TLS, as SDKs send those to AWS.

app.pin_request_origin = lambda address, _: iam_evaluator.pin_request_origin(address, True)

# --- SQS has no actions for its batch calls: they are authorized as the single call (service authorization reference, SQS).

_action = iam_actions.extract_iam_action


def action(service, *request):
    found = _action(service, *request)
    return found.removesuffix("Batch") if found and found.startswith("sqs:") else found


iam_actions.extract_iam_action = action

# --- The targets of a rule are listed by the right on the rule (service authorization reference, EventBridge).

_resource = iam_actions.extract_resource_arn


def resource(service, method, path, headers, body, query, region, account):
    data = json.loads(body) if service == "events" and body else {}
    if "Rule" in data and "Targets" not in data:
        bus = data.get("EventBusName", "default")
        return f"arn:aws:events:{region}:{account}:rule/" + (data["Rule"] if bus == "default" else f"{bus}/{data['Rule']}")
    return _resource(service, method, path, headers, body, query, region, account)


iam_actions.extract_resource_arn = resource

# --- A table's own policy is evaluated, as a queue's is.


def policy_of(arn):
    table = arn.split("/index/")[0]
    entry = dynamodb._resource_policies.get(table)
    return (entry["Policy"], arn.split(":")[4]) if entry else None


dynamodb.policy_of = policy_of
iam_evaluator._RESOURCE_POLICY_LOOKUPS["dynamodb"] = ("dynamodb", "policy_of")

# --- An alarm on an expression is made on the first metric in it. No alarm goes off here in any case.

_alarm = provisioners._cw_metric_alarm_record


def alarm(name, props):
    measured = [metric["MetricStat"] for metric in props.get("Metrics", []) if "MetricStat" in metric]
    if measured:
        first = measured[0]
        props = {**props, **first["Metric"], "Period": first["Period"], "Statistic": first["Stat"], "Metrics": None}
    return _alarm(name, props)


provisioners._cw_metric_alarm_record = alarm

app.main()
