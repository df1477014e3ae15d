"""Restores the modification time of each file of this clone, for the cached target folder.

Cargo compiles every source again that is newer than its output, and in a clone every file is new.
The time of a file is restored if the previous run had the same content, in a clone in this place.
Every other file gets the present time. No other program may build into the cached folder, because
it would compile other contents without recording them here.
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
# Compiled files may contain the path of the clone.
known = before["files"] if before.get("clone") == os.getcwd() else {}

files, now = {}, time.time_ns()
for name in subprocess.check_output(["git", "ls-files", "-z"], text=True).split("\0"):
    if os.path.isfile(name) and not os.path.islink(name):
        with open(name, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        same = known.get(name, [None])[0] == content
        files[name] = [content, known[name][1] if same else now]
        os.utime(name, ns=(files[name][1], files[name][1]))
# Written before the first compilation. After an interrupted run, an outdated output is then older
# than the recorded time of its source.
with open(record + ".new", "w") as file:
    json.dump({"clone": os.getcwd(), "files": files}, file)
os.replace(record + ".new", record)
