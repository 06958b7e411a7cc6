"""A worker without the SDK: it is up within milliseconds, and counts the lines that reach it."""
import json
import os
import socket
import time

listener = socket.socket(socket.AF_UNIX)
listener.bind(os.environ["WORKERD_SOCKET"])
listener.listen()
if "STARTS" in os.environ:
    with open(os.environ["STARTS"], "a") as f:
        f.write(os.environ.get("VERSION", "none") + "\n")
seen = 0
while True:
    conn, _ = listener.accept()
    for line in conn.makefile("rb"):
        message = json.loads(line)
        params = message.get("params", {})
        if message["method"] == "initialize":
            result = {"protocol": 1, "worker": "bare", "methods": [{"name": "echo"}], "state": "ready"}
        elif message["method"] == "ping":
            result = {}
        else:
            seen += 1
            if "id" not in message:
                continue
            time.sleep(params.get("sleep", 0))
            text = params.get("text")
            result = {"text": text * params["times"] if "times" in params else text,
                      "pid": os.getpid(), "seen": seen, "version": os.environ.get("VERSION")}
        conn.sendall(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n")
