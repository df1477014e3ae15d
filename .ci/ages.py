"""Gives each file of this clone the age that its content has had in the kept target folder.

Cargo compiles again what is younger than what came of it, and in a clone every file is young. A file with the content that it
had in the run before, in a clone at this place, gets the time that it had there; every other one is of now. Nothing else may
build into the kept folder: it would compile other contents without noting them here.
"""

import hashlib
import json
import os
import subprocess
import sys
import time

record = sys.argv[1]
try:
    with open(record) as file:
        before = json.load(file)
except FileNotFoundError:
    before = {}
# What is compiled may contain where it was.
known = before["files"] if before.get("clone") == os.getcwd() else {}

files, now = {}, time.time_ns()
for name in subprocess.check_output(["git", "ls-files", "-z"], text=True).split("\0"):
    if os.path.isfile(name) and not os.path.islink(name):
        with open(name, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        same = known.get(name, [None])[0] == content
        files[name] = [content, known[name][1] if same else now]
        os.utime(name, ns=(files[name][1], files[name][1]))
# Before anything is compiled: whatever is interrupted later is older than what is noted here.
with open(record + ".new", "w") as file:
    json.dump({"clone": os.getcwd(), "files": files}, file)
os.replace(record + ".new", record)
