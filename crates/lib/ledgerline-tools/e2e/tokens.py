"""Tokens of users, of a program and of operators, by the commands of the documents, as they stand there. This file plays what a person does: it reads the mail with
the first password, and signs in with a browser."""

import os
import re
import secrets
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

import boto3

ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
STACK = os.environ["STACK"]
# Seconds for the commands of one document.
PATIENCE = 900


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def block(document, heading, command):
    """The shell commands under a heading of a document with this command among them; None if the workspace has no such document or commands."""
    try:
        with open(document) as file:
            text = file.read()
    except FileNotFoundError:
        return None
    section = re.split(r"^## ", text.split(f"\n{heading}\n")[-1], flags=re.M)[0] if f"\n{heading}\n" in text else ""
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, flags=re.M | re.S)
    return next((commands for commands in blocks if command in commands), None)


def physical(logical):
    cloudformation = boto3.client("cloudformation", endpoint_url=ENDPOINT, region_name="us-east-1")
    detail = cloudformation.describe_stack_resource(StackName=STACK, LogicalResourceId=logical)
    return detail["StackResourceDetail"]["PhysicalResourceId"]


def scope_prefix():
    """What the scopes begin with: the name of the workspace."""
    cognito = boto3.client("cognito-idp", endpoint_url=ENDPOINT, region_name="us-east-1")
    client = cognito.describe_user_pool_client(UserPoolId=physical("UserPool"), ClientId=physical("AppClient"))
    return next(scope.split("/")[0] for scope in client["UserPoolClient"]["AllowedOAuthScopes"] if "/" in scope)


def signs_in(address, password):
    """What a browser does with the page of the user pool: returns the address to which it is sent back."""
    asked = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(address).query))
    # First the page, by which the user pool refuses a wrong client, scope or callback; then the form in it.
    urllib.request.urlopen(f"{ENDPOINT}{urllib.parse.urlparse(address).path}?{urllib.parse.urlparse(address).query}").read()
    form = urllib.parse.urlencode(asked | password).encode()
    try:
        page = urllib.request.build_opener(NoRedirect).open(f"{ENDPOINT}/login", form)
        raise SystemExit(f"the sign-in was not taken: {page.read()[:2000]!r}")
    except urllib.error.HTTPError as answer:
        location = answer.headers.get("Location") or ""
        if "code=" not in location:
            raise SystemExit(f"the sign-in was not taken: {answer.code} {location} {answer.read()[:500]!r}")
        return location


# Of the emulator's own making, a first password is shorter than the user pool's policy wants.
PREAMBLE = """\
ledger() { "$LEDGER" --stack "$STACK" "$@"; }
aws() {
  if [ "$2" = admin-create-user ]; then set -- "$@" --temporary-password "aA1!$(openssl rand -hex 16)"; fi
  command aws "$@"
}
set -euo pipefail
"""


class Shell:
    """Runs commands of the documents in bash, with what they take for granted: `ledger`, `aws`, and the outputs of the stack."""

    def __init__(self, commands, **variables):
        program = PREAMBLE + commands
        environment = os.environ | variables | {
            "SignInUrl": ENDPOINT, "LEDGER_SIGN_IN_URL": ENDPOINT, "UserPoolId": physical("UserPool"), "AppClientId": physical("AppClient"),
        }
        self.process = subprocess.Popen(["bash", "-c", program], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.timer = threading.Timer(PATIENCE, self.process.kill)
        self.timer.daemon = True
        self.timer.start()

    def address(self, stream):
        """The address at which the commands ask one to sign in."""
        seen = ""
        for line in stream:
            seen += line
            if "/oauth2/authorize?" in line:
                return line.strip()
        raise SystemExit(f"the commands show no address to sign in at: {seen} {self.process.stderr.read()}")

    def printed(self, given=None):
        """The last line that the commands print."""
        out, err = self.process.communicate(given)
        self.timer.cancel()
        if self.process.returncode != 0 or not out.strip():
            raise SystemExit(f"the commands ended with {self.process.returncode}: {out}{err}")
        return out.strip().splitlines()[-1]


def has_password(name, known):
    """Reads the first password out of the mail, so to speak, and sets one."""
    if name not in known:
        password = secrets.token_urlsafe(16) + "aA1!"
        boto3.client("cognito-idp", endpoint_url=ENDPOINT, region_name="us-east-1").admin_set_user_password(
            UserPoolId=physical("UserPool"), Username=f"{name}@example.com", Password=password, Permanent=True)
        known[name] = {"username": f"{name}@example.com", "password": password}
    return known[name]


def person(name):
    """Makes a user who has a password."""
    commands = (block("docs/http.md", "## Who calls", "admin-create-user") or DOCUMENTED_USER).split("verifier=")[0]
    Shell(commands.replace("ada@example.com", f"{name}@example.com") + "echo done\n").printed()
    return has_password(name, {})


def user(name, known, scopes):
    """Makes a user, and signs the user in: docs/http.md, "Who calls"."""
    commands = block("docs/http.md", "## Who calls", "admin-create-user") or DOCUMENTED_USER
    commands = commands.replace("ada@example.com", f"{name}@example.com")
    commands = re.sub(r"openid\+[\w-]+/read\+[\w-]+/write", scopes, commands)
    shell = Shell(commands)
    location = signs_in(shell.address(shell.process.stdout), has_password(name, known))
    code = urllib.parse.parse_qs(urllib.parse.urlparse(location).query)["code"][0]
    return shell.printed(code + "\n")


def reader_of_events():
    """Gets a token for a program: docs/order.md, "Follow it"."""
    commands = block("docs/order.md", "## Follow it", "client_credentials")
    return commands and Shell(commands + 'echo "$token"\n').printed()


def operator(name, known, is_one):
    """Makes a user an operator, and signs the user in: docs/runbook.md, "Operators"."""
    member = block("docs/runbook.md", "## Operators", "admin-add-user-to-group")
    login = block("docs/runbook.md", "## Operators", "ledger login")
    if not member or not login:
        return None
    if is_one:
        # It prints nothing.
        Shell(member.replace("ada@example.com", f"{name}@example.com") + "echo done\n").printed()
    shell = Shell(login + 'echo "$LEDGER_TOKEN"\n')
    location = signs_in(shell.address(shell.process.stderr), has_password(name, known))
    # To the address at which `ledger login` waits.
    urllib.request.urlopen(location).read()
    return shell.printed()


def tokens():
    known = {}
    prefix = scope_prefix()
    mine = f"openid+{prefix}/read+{prefix}/write"
    given = {
        "TOKEN": user("ada", known, mine),
        "OTHER_TOKEN": user("eve", known, mine),
        "READ_TOKEN": user("reader", known, f"openid+{prefix}/read"),
        "EVENTS_TOKEN": reader_of_events(),
        "OPERATOR_TOKEN": operator("ada", known, True),
        "UNGROUPED_TOKEN": operator("eve", known, False),
    }
    return {name: token for name, token in given.items() if token}


# For a workspace that has no page of its own on how its users sign in.
DOCUMENTED_USER = """\
aws cognito-idp admin-create-user --user-pool-id "$UserPoolId" --username ada@example.com --desired-delivery-mediums EMAIL \\
  --user-attributes Name=email,Value=ada@example.com Name=email_verified,Value=true
verifier=$(openssl rand -hex 32)
challenge=$(printf %s "$verifier" | openssl dgst -sha256 -binary | openssl base64 | tr '+/' '-_' | tr -d '=')
echo "$SignInUrl/oauth2/authorize?response_type=code&client_id=$AppClientId&redirect_uri=http://localhost:3000/callback\\
&scope=openid+app/read+app/write&code_challenge_method=S256&code_challenge=$challenge"
read -r code
curl -s "$SignInUrl/oauth2/token" -d grant_type=authorization_code -d client_id="$AppClientId" -d code="$code" \\
  -d redirect_uri=http://localhost:3000/callback -d code_verifier="$verifier" | jq -r .access_token
"""
