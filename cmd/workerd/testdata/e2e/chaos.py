"""A worker without the SDK that breaks the protocol, and its host, as it is told."""
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time

listener = socket.socket(socket.AF_UNIX)
listener.bind(os.environ["WORKERD_SOCKET"])
listener.listen()


def line(message, **members):
    return json.dumps(dict({"jsonrpc": "2.0", "id": message["id"]}, **members)).encode() + b"\n"


def shout(chunks):
    try:
        os.write(1, b"\xff\xfe not UTF-8 \x80\n")
        os.write(1, b"y" * 10_000_000 + b"\n")
        for _ in range(chunks):
            os.write(2, (b"x" * 99 + b"\n") * 1000)
    except OSError:
        pass  # a full disk


def spawn(count):
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.execvp("sleep", ["sleep", "600"])
            os._exit(0)
        os.wait()


def spin(seconds):
    """Hold the interpreter's lock in one call that never gives it back."""
    libc = ctypes.PyDLL(None)
    libc.usleep(int(seconds * 1e6))


def serve(conn):
    for raw in conn.makefile("rb"):
        message = json.loads(raw)
        params = message.get("params", {})
        if message["method"] == "initialize":
            conn.sendall(line(message, result={"protocol": 1, "worker": "chaos", "methods": [{"name": "echo"}], "state": "ready"}))
            continue
        if message["method"] == "ping":
            conn.sendall(line(message, result={}))
            continue
        if "id" not in message:
            continue
        do = params.get("do", "")
        answer = line(message, result={"text": params.get("text"), "pid": os.getpid()})
        if do == "twice":
            conn.sendall(answer + answer)
            continue
        if do == "wrong id":
            message["id"] += 1_000_000
            conn.sendall(line(message, result={"text": "nobody's"}))
            continue
        if do == "half":
            conn.sendall(answer[:len(answer) // 2])
            os._exit(3)
        if do == "garbage":
            conn.sendall(b"\x00\xff{ this is no JSON\n")
            continue
        if do == "close":
            return
        if do == "hang":
            time.sleep(3600)
        if do == "exit":
            os._exit(7)
        if do == "abort":
            os.abort()
        if do == "shout":
            shout(200)
        if do == "roar":
            shout(3000)
        if do == "spawn":
            spawn(8)
        if do == "storm":
            spawn(60)
        if do == "spin":
            spin(1.5)
        if do == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if do == "leak":
            hoard = []
            while True:
                hoard.append(bytearray(16 << 20))
        if do == "progress":
            token = params["_meta"]["progressToken"]
            for n in range(500):
                conn.sendall(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress",
                                         "params": {"progressToken": token, "progress": n}}).encode() + b"\n")
        if do == "big":
            answer = line(message, result={"text": params.get("text"), "more": "z" * 3_000_000})
        conn.sendall(answer)


if "NEVER_READY" in os.environ:
    time.sleep(3600)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def accept():
    while True:
        conn, _ = listener.accept()
        threading.Thread(target=lambda c: (serve(c), c.close()), args=(conn,), daemon=True).start()


threading.Thread(target=accept, daemon=True).start()
while True:
    time.sleep(3600)
