"""What `cargo xtask e2e` does to a deployment in MiniStack through the AWS SDK: the parts that CloudFormation left out there,
users and their tokens, and attempts to change a commit. Prints what the caller needs as JSON."""

import json
import os
import re
import sys
import urllib.error
import urllib.request

import boto3
from botocore.exceptions import ClientError

from tokens import Shell, block, person, tokens

ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
STACK = os.environ["STACK"]


def client(name, **credentials):
    return boto3.client(name, endpoint_url=ENDPOINT, region_name="us-east-1", **credentials)


cloudformation = client("cloudformation")


def template():
    body = cloudformation.get_template(StackName=STACK, TemplateStage="Processed")["TemplateBody"]
    body = body if isinstance(body, dict) else json.loads(body)
    # The deployment has no database and no OpenSearch domain for views.
    missing = ("HasDatabase", "HasOtherViews", "HasSearch")
    kept = body["Resources"].items()
    body["Resources"] = {name: it for name, it in kept if not it.get("Condition", "").startswith(missing)}
    return body


def physical(logical):
    detail = cloudformation.describe_stack_resource(StackName=STACK, LogicalResourceId=logical)
    return detail["StackResourceDetail"]["PhysicalResourceId"]


def parameter(name):
    stack = cloudformation.describe_stacks(StackName=STACK)["Stacks"][0]
    return next(given["ParameterValue"] for given in stack["Parameters"] if given["ParameterKey"] == name)


def output(name):
    """An output of the stack; None if the stack does not have it."""
    outputs = cloudformation.describe_stacks(StackName=STACK)["Stacks"][0].get("Outputs", [])
    return next((output["OutputValue"] for output in outputs if output["OutputKey"] == name), None)


def resolved(value):
    """What CloudFormation makes of a value, with the parameters at their defaults."""
    match value:
        case str():
            return value
        case {"Fn::If": ["HasOwnUsers", own, _]}:
            return resolved(own)
        case {"Fn::If": ["HasOtherAudiences", _, other]}:
            return resolved(other)
        case {"Fn::If": ["HasOrigins", cors, _]}:
            # The emulator gives no parameters to SAM, which puts their values in here.
            return {name: resolved(value) for name, value in cors.items() if name != "allowOrigins"}
        case list() | int():
            return value
        case {"Ref": "AWS::NoValue"}:
            return None
        case {"Ref": name}:
            return physical(name)
        case {"Fn::Join": [separator, parts]}:
            return separator.join(part for part in map(resolved, parts) if part is not None)
        case {"Fn::Split": [separator, whole]}:
            return resolved(whole).split(separator)
        case {"Fn::Sub": str(text)}:
            known = {"AWS::Region": "us-east-1", "AWS::URLSuffix": "amazonaws.com"}
            return re.sub(r"\$\{([\w:]+)\}", lambda found: known.get(found[1]) or physical(found[1]), text)
    raise SystemExit(f"cannot resolve {value}")


def numbers():
    """The emulator keeps what CloudFormation says of a mapping's concurrency as a text, and then its poller of queues fails at it."""
    functions = client("lambda")
    for mapping in functions.list_event_source_mappings()["EventSourceMappings"]:
        most = mapping.get("ScalingConfig", {}).get("MaximumConcurrency")
        if most is not None:
            functions.update_event_source_mapping(UUID=mapping["UUID"], ScalingConfig={"MaximumConcurrency": int(most)})


def routes():
    """Makes the HTTP API's routes from the OpenAPI body that SAM wrote, with its authorizer and scopes."""
    api, gateway = physical("HttpApi"), client("apigatewayv2")
    body = template()["Resources"]["HttpApi"]["Properties"]["Body"]
    for name, scheme in body["components"]["securitySchemes"].items():
        given = scheme["x-amazon-apigateway-authorizer"]
        authorizer = gateway.create_authorizer(
            ApiId=api,
            Name=name,
            AuthorizerType="JWT",
            IdentitySource=[given["identitySource"]],
            JwtConfiguration={
                "Issuer": resolved(given["jwtConfiguration"]["issuer"]),
                "Audience": resolved(given["jwtConfiguration"]["audience"]),
            },
        )["AuthorizerId"]
    numbers()
    tables()
    made = []
    for path, methods in body["paths"].items():
        # The deployment has no such store, so the conditions are false.
        if "Fn::If" in methods:
            continue
        for method, operation in methods.items():
            uri = operation["x-amazon-apigateway-integration"]["uri"]["Fn::Sub"]
            # The alias of the function, whose physical id is its ARN.
            alias = physical(uri.split("${")[-1].split("}")[0])
            integration = gateway.create_integration(
                ApiId=api,
                IntegrationType="AWS_PROXY",
                IntegrationUri=alias,
                PayloadFormatVersion="2.0",
            )["IntegrationId"]
            ((_, scopes),) = operation["security"][0].items()
            assert scopes, f"{method} {path} wants no scope"
            route = f"{method.upper()} {path}"
            gateway.create_route(
                ApiId=api,
                RouteKey=route,
                Target=f"integrations/{integration}",
                AuthorizationType="JWT",
                AuthorizerId=authorizer,
                AuthorizationScopes=scopes,
            )
            made.append(f"{route} {' '.join(scopes)}")
    if "x-amazon-apigateway-cors" in body:
        origins = parameter("AllowedOrigins").split(",")
        if app := output("WebAppUrl"):
            origins.append(app.removesuffix("/"))
        cors = resolved(body["x-amazon-apigateway-cors"]) | {"allowOrigins": origins}
        gateway.update_api(ApiId=api, CorsConfiguration={name[0].upper() + name[1:]: value for name, value in cors.items()})
    protect()
    return {"url": f"{ENDPOINT}/_aws/execute-api/{api}/$default", "routes": made}


def preflight():
    """Answers to the preflight requests of a page of an allowed origin, and of another one: the origin that may read a response."""
    url = f"{ENDPOINT}/_aws/execute-api/{physical('HttpApi')}/$default/accounts"
    answers = {}
    for origin in [parameter("AllowedOrigins"), "https://evil.example.com"]:
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        request = urllib.request.Request(url, method="OPTIONS", headers=headers)
        try:
            answer = urllib.request.urlopen(request).headers
        except urllib.error.HTTPError as refused:
            answer = refused.headers
        answers[origin] = answer.get("Access-Control-Allow-Origin")
    return answers


def web_app():
    """Uploads the web app by the commands of docs/web.md, and makes a user. Returns the input of web/test/deployed.test.ts: the
    addresses, the files in the bucket, their headers, the headers that the distribution adds, and the user."""
    bucket, folder = output("WebBucketName"), os.path.abspath("target/e2e/web")
    s3 = client("s3")
    old = "assets/old-00000000.js"
    s3.put_object(Bucket=bucket, Key=old, Body=b"")
    upload, delete = (block("docs/web.md", "## Deploy it", command) for command in ["aws s3 sync dist/assets", "--delete"])
    Shell(upload + "echo done\n", WebConfig=output("WebConfig"), WebBucketName=bucket).printed()
    # An asset that an open page may name stays until the deletion.
    s3.head_object(Bucket=bucket, Key=old)
    Shell("cd web\n" + delete + "echo done\n", WebBucketName=bucket).printed()
    cache_control = {}
    for item in s3.list_objects_v2(Bucket=bucket)["Contents"]:
        key = item["Key"]
        path = os.path.join(folder, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        s3.download_file(bucket, key, path)
        answers = s3.get_object(Bucket=bucket, Key=key), s3.get_object(Bucket=bucket, Key=key, Range="bytes=0-0")
        cache_control[key] = [answer.get("CacheControl") for answer in answers]
    cloudfront = client("cloudfront")
    config = cloudfront.get_distribution_config(Id=physical("WebDistribution"))["DistributionConfig"]
    behaviours = config["CacheBehaviors"]["Items"] + [config["DefaultCacheBehavior"] | {"PathPattern": "*"}]
    headers = {behaviour["PathPattern"]: added(cloudfront, behaviour) for behaviour in behaviours}
    return {
        "endpoint": ENDPOINT, "url": output("WebAppUrl"), "files": folder, "cacheControl": cache_control, "headers": headers,
        "api": physical("HttpApi"), **person("grace"),
    }


def added(cloudfront, behaviour):
    """The headers that a behaviour of a distribution adds, and whether each replaces that of the file."""
    policy = cloudfront.get_response_headers_policy(Id=behaviour["ResponseHeadersPolicyId"])
    config = policy["ResponseHeadersPolicy"]["ResponseHeadersPolicyConfig"]
    security = config.get("SecurityHeadersConfig", {})
    headers = {item["Header"].lower(): [item["Value"], item["Override"]] for item in config.get("CustomHeadersConfig", {}).get("Items", [])}
    if "ContentSecurityPolicy" in security:
        headers["content-security-policy"] = [security["ContentSecurityPolicy"]["ContentSecurityPolicy"], True]
    if "ContentTypeOptions" in security:
        headers["x-content-type-options"] = ["nosniff", True]
    return headers


def tables():
    """Turns on what CloudFormation leaves out there of tables: backups and times to live."""
    dynamodb = client("dynamodb")
    for name, resource in template()["Resources"].items():
        if resource["Type"] != "AWS::DynamoDB::Table":
            continue
        table, properties = physical(name), resource["Properties"]
        if "PointInTimeRecoverySpecification" in properties:
            dynamodb.update_continuous_backups(
                TableName=table, PointInTimeRecoverySpecification=properties["PointInTimeRecoverySpecification"])
        if "TimeToLiveSpecification" in properties:
            dynamodb.update_time_to_live(TableName=table, TimeToLiveSpecification=properties["TimeToLiveSpecification"])


def protect():
    """Puts the table's own policy as the template has it."""
    policy = template()["Resources"]["CommitsTable"]["Properties"]["ResourcePolicy"]["PolicyDocument"]
    for statement in policy["Statement"]:
        condition = statement.get("Condition", {}).get("StringNotEquals", {})
        if condition.get("aws:PrincipalArn") == {"Ref": "ArchiveRole"}:
            condition["aws:PrincipalArn"] = parameter("ArchiveRole")
    client("dynamodb").put_resource_policy(ResourceArn=table_arn(), Policy=json.dumps(policy))


def table_arn():
    return client("dynamodb").describe_table(TableName=physical("CommitsTable"))["Table"]["TableArn"]


def attempt(what, operation, **arguments):
    """`denied` with the reason, or what happened instead."""
    try:
        operation(**arguments)
        return what, "ALLOWED"
    except ClientError as error:
        code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
        return what, f"denied: {message}" if code.startswith("AccessDenied") else f"{code}: {message}"


def expect(expected, what, operation, **arguments):
    """An attempt, and how its outcome has to begin."""
    return {"action": what, "expected": expected, "outcome": attempt(what, operation, **arguments)[1]}


def credentials(role):
    given = client("sts").assume_role(RoleArn=role, RoleSessionName="attempt")["Credentials"]
    return {"aws_access_key_id": given["AccessKeyId"], "aws_secret_access_key": given["SecretAccessKey"],
            "aws_session_token": given["SessionToken"]}


def as_role(role):
    """DynamoDB as somebody in this role sees it."""
    return client("dynamodb", **credentials(role))


def attempts(dynamodb):
    """Every way to change a commit that is there, and beside them what a writer may do."""
    table = physical("CommitsTable")
    commit = client("dynamodb").scan(TableName=table, Limit=1)["Items"][0]
    key = {"stream": commit["stream"], "version": commit["version"]}
    where = f"WHERE stream = '{key['stream']['S']}' AND version = {key['version']['N']}"
    update = {"Key": key, "UpdateExpression": "SET #at = :at", "ExpressionAttributeNames": {"#at": "at"},
              "ExpressionAttributeValues": {":at": {"S": "never"}}}
    change, remove = f"UPDATE \"{table}\" SET command = 'x' {where}", f'DELETE FROM "{table}" {where}'
    statement = dynamodb.execute_statement
    put, delete = {"TableName": table, "Item": commit}, {"TableName": table, "Key": key}
    tried = [
        attempt("PutItem", dynamodb.put_item, **put),
        attempt("UpdateItem", dynamodb.update_item, TableName=table, **update),
        attempt("DeleteItem", dynamodb.delete_item, **delete),
        attempt("BatchWriteItem", dynamodb.batch_write_item, RequestItems={table: [{"DeleteRequest": {"Key": key}}]}),
        attempt("PartiQL UPDATE", statement, Statement=change),
        attempt("PartiQL DELETE", statement, Statement=remove),
    ]
    for what, item in {"Put": put, "Update": {"TableName": table, **update}, "Delete": delete}.items():
        transact = dynamodb.transact_write_items
        tried.append(attempt(f"TransactWriteItems {what}", transact, TransactItems=[{what: item}]))
    for what, text in {"UPDATE": change, "DELETE": remove}.items():
        transact, batch = dynamodb.execute_transaction, dynamodb.batch_execute_statement
        tried.append(attempt(f"ExecuteTransaction {what}", transact, TransactStatements=[{"Statement": text}]))
        tried.append(attempt(f"BatchExecuteStatement {what}", batch, Statements=[{"Statement": text}]))
    same = client("dynamodb").get_item(TableName=table, Key=key, ConsistentRead=True)["Item"] == commit
    # Not denied, and still no overwriting: the version is taken.
    item = "{'stream': ?, 'version': ?}"
    again = attempt("PartiQL INSERT again", statement, Statement=f'INSERT INTO "{table}" VALUE {item}',
                    Parameters=[key["stream"], key["version"]])
    read = attempt("GetItem", dynamodb.get_item, TableName=table, Key=key)
    return {"outcomes": dict(tried), "unchanged": same, "insert": again[1], "read": read[1]}


def changes_of_an_answer(dynamodb):
    """Ways to change what a request was answered. The role has PutItem for keys of another form."""
    table = physical("RequestsTable")
    kept = client("dynamodb").scan(TableName=table)["Items"]
    # The keys of clients' requests have a space before the caller.
    answer = next((item for item in kept if " " in item["request"]["S"]), None)
    if answer is None:
        # The scenario of a new workspace sends no Idempotency-Key.
        answer = {"request": {"S": "key caller"}, "answer": {"S": "the first"}}
        client("dynamodb").put_item(TableName=table, Item=answer)
    key = {"request": answer["request"]}
    where = f"WHERE request = '{key['request']['S']}'"
    update = {"Key": key, "UpdateExpression": "SET answer = :answer",
              "ExpressionAttributeValues": {":answer": {"S": "never"}}}
    statement = dynamodb.execute_statement
    tried = [
        attempt("PutItem", dynamodb.put_item, TableName=table, Item=answer),
        attempt("UpdateItem", dynamodb.update_item, TableName=table, **update),
        attempt("DeleteItem", dynamodb.delete_item, TableName=table, Key=key),
        attempt("BatchWriteItem", dynamodb.batch_write_item, RequestItems={table: [{"PutRequest": {"Item": answer}}]}),
        attempt("PartiQL UPDATE", statement, Statement=f"UPDATE \"{table}\" SET answer = 'never' {where}"),
        attempt("PartiQL DELETE", statement, Statement=f'DELETE FROM "{table}" {where}'),
    ]
    return {f"{what} of an answer": outcome for what, outcome in tried}


def writers():
    """Roles that may append to the log, in alphabetical order."""
    def appends(resource):
        # In one statement: the sequencer reads the log, and appends to a table of its own.
        statements = [statement for policy in resource["Properties"].get("Policies", [])
                      for statement in policy["PolicyDocument"]["Statement"]]
        return any("dynamodb:PartiQLInsert" in text and "CommitsTable" in text for text in map(json.dumps, statements))

    resources = template()["Resources"].items()
    return sorted(name for name, resource in resources if resource["Type"] == "AWS::IAM::Role" and appends(resource))


TRUST = json.dumps({"Version": "2012-10-17", "Statement": [{
    "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::000000000000:root"}, "Action": "sts:AssumeRole"}]})

EVERYTHING = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})


def bodies():
    """The body grants of each function, by its id in the template."""
    body = template()
    manifests = body["Metadata"]["Ledgerline"]["Manifests"].items()
    ids = (("".join(map(str.capitalize, name.split("-"))), json.loads(text)) for name, text in manifests)
    found = {id: manifest["bodies"] for id, manifest in ids if "bodies" in manifest}
    return {id: grants for id, grants in found.items() if f"{id}Function" in body["Resources"]}


def set_body_limit(limit):
    """Sets `BODY_OVER` of each function that writes objects; None removes it."""
    functions = client("lambda")
    for id, part in bodies().items():
        if "writes" not in part:
            continue
        name = physical(f"{id}Function")
        variables = functions.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
        others = {name: value for name, value in variables.items() if name != "BODY_OVER"}
        variables = others if limit is None else {**others, "BODY_OVER": str(limit)}
        functions.update_function_configuration(FunctionName=name, Environment={"Variables": variables})
        version = functions.publish_version(FunctionName=name)["Version"]
        functions.update_alias(FunctionName=name, Name="live", FunctionVersion=version)


def put_commits_into_objects():
    set_body_limit(0)


def restore_body_limit():
    set_body_limit(None)


def attempt_objects():
    """Attempts reads and writes of the objects of each category by each role, with the outcomes that its manifest implies."""
    if not bodies():
        return {}
    iam, bucket = client("iam"), physical("BodiesBucket")
    keys = [item["Key"] for item in client("s3").list_objects_v2(Bucket=bucket, Prefix="bodies/").get("Contents", [])]
    one = {key.split("/")[1].split("-")[0]: key for key in keys}
    read = {category for part in bodies().values() for category in part["reads"]}
    if set(one) != read:
        raise SystemExit(f"the scenario made objects of {set(one)}, not of {read}")
    roles = {id: physical(f"{id}Role") for id in bodies()} | {"an administrator": "administrator"}
    found = {}
    for id, role in roles.items():
        iam.update_assume_role_policy(RoleName=role, PolicyDocument=TRUST)
        they = client("s3", **credentials(iam.get_role(RoleName=role)["Role"]["Arn"]))
        tried, may = [], bodies().get(id, {"reads": list(one), "writes": list(one)})
        for category, key in one.items():
            at = {"Bucket": bucket, "Key": key}
            read, put = ("" if category in may.get(right, []) else "denied" for right in ["reads", "writes"])
            tried += [
                expect(read or "ALLOWED", f"GetObject of a {category}", they.get_object, **at),
                # IAM allows the PUT, and S3 refuses it: the key exists.
                expect(put or "PreconditionFailed", f"PutObject of a {category}", they.put_object, **at, Body=b"x", IfNoneMatch="*"),
                expect("denied", f"PutObject over a {category}", they.put_object, **at, Body=b"x"),
                expect("denied", f"DeleteObject of a {category}", they.delete_object, **at),
            ]
        if id != "an administrator":
            tried.append(expect("denied", "ListObjectsV2", they.list_objects_v2, Bucket=bucket))
        found[id] = tried
    return found


def create_archive_role():
    """Creates the role that archives. `attempt_archive_changes` attaches its policy."""
    return client("iam").create_role(RoleName="archivist", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]


def attempt_archive_changes():
    """Attempts to change a commit by the role that archives."""
    if not bodies():
        return {}
    client("iam").attach_role_policy(RoleName="archivist", PolicyArn=physical("ArchivePolicy"))
    they = as_role(client("iam").get_role(RoleName="archivist")["Role"]["Arn"])
    table = physical("CommitsTable")
    commit = client("dynamodb").scan(TableName=table, Limit=1)["Items"][0]
    # The condition fails for every commit, so no attempt changes one.
    update = {"TableName": table, "Key": {name: commit[name] for name in ["stream", "version"]},
              "ConditionExpression": "attribute_not_exists(command)", "ExpressionAttributeNames": {"#state": "state"}}
    text = {"ExpressionAttributeValues": {":text": {"S": "x"}}}
    archives = expect("ConditionalCheckFailedException", "UpdateItem of payloads", they.update_item, **update, **text,
                      UpdateExpression="SET body = :text REMOVE events, meta, #state")
    # The policy of the table also limits the other policies of the role.
    client("iam").put_role_policy(RoleName="archivist", PolicyName="everything", PolicyDocument=EVERYTHING)
    return {"the role that archives": [
        archives,
        expect("denied", "UpdateItem of payloads and time", they.update_item, **update, **text,
               UpdateExpression="SET body = :text, at = :text REMOVE #state"),
        expect("denied", "DeleteItem", they.delete_item, TableName=table, Key=update["Key"]),
    ]}


def denials():
    """As a command function, whom its role stops, and as an administrator, whom only the table's own policy stops."""
    iam = client("iam")
    administrator = iam.create_role(RoleName="administrator", AssumeRolePolicyDocument=TRUST)["Role"]
    iam.put_role_policy(RoleName="administrator", PolicyName="everything", PolicyDocument=EVERYTHING)
    writer = physical(writers()[0])
    # Lambda alone may take the role; for the attempt, so may we.
    iam.update_assume_role_policy(RoleName=writer, PolicyDocument=TRUST)
    arn = iam.get_role(RoleName=writer)["Role"]["Arn"]
    # The role by itself first, without what the table's policy would deny it in any case.
    client("dynamodb").delete_resource_policy(ResourceArn=table_arn())
    as_writer = attempts(as_role(arn))
    as_writer["outcomes"] |= changes_of_an_answer(as_role(arn))
    protect()
    return {"a command function": as_writer, "an administrator": attempts(as_role(administrator["Arn"]))}


def attempt_order_changes():
    """What the functions of `$all` may not do: append to the log, and change what has its place in the order."""
    resources = template()["Resources"]
    if "SequenceTable" not in resources:
        return {}
    iam, dynamodb = client("iam"), client("dynamodb")
    log, order = physical("CommitsTable"), physical("SequenceTable")
    segment = dynamodb.scan(TableName=order, Limit=1)["Items"][0]
    key = {"stream": segment["stream"], "version": segment["version"]}
    where = f"WHERE stream = '{key['stream']['S']}' AND version = {key['version']['N']}"
    # By their roles alone: the table's own policy would deny changes to everybody.
    arn = dynamodb.describe_table(TableName=order)["Table"]["TableArn"]
    dynamodb.delete_resource_policy(ResourceArn=arn)
    denied = {}
    for name, resource in sorted(resources.items()):
        if resource["Type"] != "AWS::IAM::Role" or "SequenceTable" not in json.dumps(resource):
            continue
        role = physical(name)
        iam.update_assume_role_policy(RoleName=role, PolicyDocument=TRUST)
        they = as_role(iam.get_role(RoleName=role)["Role"]["Arn"])
        insert = "INSERT INTO \"{}\" VALUE {{'stream': 'account-attempt', 'version': 1}}"
        tried = [
            expect("denied", "PartiQL INSERT into the log", they.execute_statement, Statement=insert.format(log)),
            expect("denied", "PutItem into the log", they.put_item, TableName=log, Item=key),
            expect("denied", "PutItem of a segment", they.put_item, TableName=order, Item=segment),
            expect("denied", "DeleteItem of a segment", they.delete_item, TableName=order, Key=key),
            expect("denied", "PartiQL UPDATE of a segment", they.execute_statement, Statement=f"UPDATE \"{order}\" SET command = 'x' {where}"),
            expect("denied", "PartiQL DELETE of a segment", they.execute_statement, Statement=f'DELETE FROM "{order}" {where}'),
        ]
        if name != "SequencerRole":
            tried.append(expect("denied", "PartiQL INSERT into the order", they.execute_statement,
                                Statement=insert.format(order)))
        denied[name] = tried
    policy = resources["SequenceTable"]["Properties"]["ResourcePolicy"]["PolicyDocument"]
    dynamodb.put_resource_policy(ResourceArn=arn, Policy=json.dumps(policy))
    return denied


def operators():
    """Roles of operators, one who looks and one who writes, with their credentials, and what each of them must be denied."""
    resources = template()["Resources"]
    if "OperatorPolicy" not in resources:
        return {}
    iam = client("iam")
    commit = client("dynamodb").scan(TableName=physical("CommitsTable"), Limit=1)["Items"][0]
    found = {}
    # A long policy continues in another one, such as OperatorPolicy2.
    for who, begins in {"reader": ("OperatorReadPolicy",), "writer": ("OperatorReadPolicy", "OperatorPolicy")}.items():
        policies = [name for name in resources if name.startswith(begins)]
        role = iam.create_role(RoleName=f"operator-{who}", AssumeRolePolicyDocument=TRUST)["Role"]
        for policy in policies:
            iam.attach_role_policy(RoleName=role["RoleName"], PolicyArn=physical(policy))
        # The emulator takes GetAlias and UpdateAlias for ListAliases, and GetFunctionConcurrency for PutFunctionConcurrency.
        taken = ["lambda:ListAliases"] + (["lambda:PutFunctionConcurrency"] if who == "reader" else [])
        iam.put_role_policy(RoleName=role["RoleName"], PolicyName="emulator", PolicyDocument=json.dumps({
            "Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": taken, "Resource": "*"}]}))
        given = credentials(role["Arn"])
        dynamodb, functions = client("dynamodb", **given), client("lambda", **given)
        tried = []
        for table in ["CommitsTable", "RequestsTable", "SequenceTable"]:
            name = physical(table)
            keys = client("dynamodb").describe_table(TableName=name)["Table"]["KeySchema"]
            key = {key["AttributeName"]: {"N": "1"} if key["AttributeName"] == "version" else {"S": "account-attempt"} for key in keys}
            item = ", ".join(f"'{name}': ?" for name in key)
            tried += [
                attempt(f"PutItem into {table}", dynamodb.put_item, TableName=name, Item=key),
                attempt(f"UpdateItem of {table}", dynamodb.update_item, TableName=name, Key=key),
                attempt(f"DeleteItem of {table}", dynamodb.delete_item, TableName=name, Key=key),
                attempt(f"BatchWriteItem into {table}", dynamodb.batch_write_item, RequestItems={name: [{"PutRequest": {"Item": key}}]}),
                attempt(f"PartiQL INSERT into {table}", dynamodb.execute_statement,
                        Statement=f'INSERT INTO "{name}" VALUE {{{item}}}', Parameters=list(key.values())),
            ]
        # What belongs to a stack whose name begins with that of this one.
        other = f"{STACK}-other-BalancesTable-1ABCDEFGHIJKL"
        tried += [
            attempt("Scan of another stack", dynamodb.scan, TableName=other),
            attempt("PutItem into another stack", dynamodb.put_item, TableName=other, Item={"accountId": {"S": "$generations"}}),
            attempt("BatchWriteItem into another stack", dynamodb.batch_write_item,
                    RequestItems={other: [{"DeleteRequest": {"Key": {"accountId": {"S": "a"}}}}]}),
            attempt("Invoke in another stack", functions.invoke,
                    FunctionName=f"{STACK}-other-BalancesProjectorFunction-1ABCDEFGHIJKL:live", Payload=b"{}"),
        ]
        positions = [name for name in sorted(resources) if name.endswith("PositionsTable")] + ["OperationsTable"]
        for name in positions:
            keys = client("dynamodb").describe_table(TableName=physical(name))["Table"]["KeySchema"]
            item = {key["AttributeName"]: {"S": "attempt"} for key in keys}
            tried.append(attempt(f"BatchWriteItem into {name}", dynamodb.batch_write_item,
                                 RequestItems={physical(name): [{"PutRequest": {"Item": item}}]}))
        command = next(name for name in sorted(resources) if name.endswith("CommandsFunction"))
        tried.append(attempt(f"Invoke of {command}", functions.invoke, FunctionName=f"{physical(command)}:live", Payload=b"{}"))
        tried.append(attempt("Invoke of SequencerFunction as the stream", functions.invoke,
                             FunctionName=f"{physical('SequencerFunction')}:live", Payload=b'{"Records": []}'))
        for group in ["AccessLogs", "FunctionLogs"]:
            # The only call of `aws logs tail`.
            read = attempt(f"FilterLogEvents of {group}", client("logs", **given).filter_log_events, logGroupName=physical(group))
            if read[1] != "ALLOWED":
                raise SystemExit(f"an operator cannot read the log group {group}: {read[1]}")
        if "OperatorClient" in resources:
            secret = attempt("DescribeUserPoolClient", client("cognito-idp", **given).describe_user_pool_client,
                             UserPoolId=physical("UserPool"), ClientId=physical("OperatorClient"))
            if who == "reader":
                tried.append(secret)
            elif secret[1] != "ALLOWED":
                raise SystemExit(f"an operator cannot read the secret for `ledger login`: {secret[1]}")
        if who == "reader":
            tried.append(attempt("Invoke of FanoutFunction", functions.invoke,
                                 FunctionName=f"{physical('FanoutFunction')}:live", Payload=b'{"Records": []}'))
            tried.append(attempt("PutItem into OperationsTable", dynamodb.put_item, TableName=physical("OperationsTable"),
                                 Item={"kind": {"S": "attempt"}, "at": {"S": "now"}}))
        found[who] = {"stream": commit["stream"]["S"], "outcomes": dict(tried),
                      "credentials": {name.upper(): value for name, value in given.items()}}
    return found


def wrong_entry():
    """Has the order name a commit that the log does not have, as a faulty program leaves it: as an administrator, who may invoke the sequencer as the stream does."""
    stream = "account-00000000-0000-4000-8000-00000000f00d"
    key = {"stream": {"S": stream}, "version": {"N": "7"}}
    record = {"eventID": "1", "eventName": "INSERT", "dynamodb": {"Keys": key, "NewImage": key, "SequenceNumber": "1"}}
    invoke(f"{physical('SequencerFunction')}:live", json.dumps({"Records": [record]}))
    return {"stream": stream, "version": "7"}


def samples(file):
    """Invokes functions, named by their ids in the template, with the sample events in a file, one after the other."""
    with open(file) as samples:
        return [invoke(physical(sample["function"]), json.dumps(sample["event"])) for sample in json.load(samples)]


def invoke(function, event):
    answer = client("lambda").invoke(FunctionName=function, Payload=event.encode())
    if "FunctionError" in answer:
        raise SystemExit(f"{function} failed: {answer['Payload'].read().decode()}")
    return json.load(answer["Payload"])


if __name__ == "__main__":
    commands = [routes, preflight, tokens, web_app, put_commits_into_objects, restore_body_limit, denials, attempt_order_changes, attempt_objects,
                create_archive_role, attempt_archive_changes, operators, wrong_entry, samples]
    (command,) = (command for command in commands if command.__name__ == sys.argv[1])
    print(json.dumps(command(*sys.argv[2:]), indent=1))
