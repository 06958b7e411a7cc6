"""What the tests of the SDK share: a worker process, and a raw connection to it."""
import array
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SDK = os.path.dirname(HERE)
TESTDATA = os.path.join(os.path.dirname(SDK), "testdata")
LONG = 30.0  # seconds after which what does not happen is a failure

if SDK not in sys.path:
    sys.path.insert(0, SDK)



def needs(what, there, why):
    """Skip a test that lacks something of its machine; fail where WORKERD_TEST_REQUIRE, a list split at commas, has its name."""
    if not there and what in os.environ.get("WORKERD_TEST_REQUIRE", "").split(","):
        raise AssertionError("%s is required: %s" % (what, why))
    return unittest.skipUnless(there, "%s: %s" % (what, why))


PRELUDE = """
import os, sys, time
from workerd import *
worker = Worker("test")

def until(ctx, path):
    "Wait until a file exists, or the request is cancelled."
    while not os.path.exists(path):
        ctx.check_cancelled()
        time.sleep(0.002)
"""

FINAL = """
if __name__ == "__main__":
    worker.run()
"""


def eventually(condition, what):
    """Poll until the condition holds."""
    end = time.monotonic() + LONG
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("in vain: " + what)
        time.sleep(0.002)


class Connection:
    """A raw connection: lines out, lines in."""

    def __init__(self, path, sock=None):
        self.sock = sock or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LONG)
        try:
            if sock is None:
                self.sock.connect(path)
        except OSError:
            self.sock.close()
            raise
        self.buffer = bytearray()
        self.fds = []

    def raw(self, data, fds=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.sock.sendmsg([data], rights)
        if sent < len(data):
            self.sock.sendall(data[sent:])

    def send(self, message, fds=()):
        self.raw(json.dumps(message).encode("utf-8") + b"\n", fds)

    def request(self, id, method, params=None, fds=(), **meta):
        params = dict(params or {})
        if meta:
            params["_meta"] = meta
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params}, fds)

    def cancel(self, id):
        self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})

    def line(self):
        """The next line without its newline, None at the end of input."""
        scanned = 0
        while True:
            at = self.buffer.find(b"\n", scanned)
            if at >= 0:
                line = bytes(self.buffer[:at])
                del self.buffer[:at + 1]
                return line
            scanned = len(self.buffer)
            data, rights, _, _ = self.sock.recvmsg(1 << 18, socket.CMSG_SPACE(16 * 4))
            for level, kind, packed in rights:
                fds = array.array("i")
                fds.frombytes(packed)
                self.fds.extend(fds)
            if not data:
                if self.buffer:
                    raise AssertionError("half a line: %r" % self.buffer[:1000])
                return None
            self.buffer += data

    def read(self):
        line = self.line()
        return None if line is None else json.loads(line.decode("utf-8"))

    def answer(self, id):
        """Read up to the answer with that id."""
        while True:
            message = self.read()
            if message is None:
                raise AssertionError("the connection ended before the answer")
            if message.get("id", self) == id and "method" not in message:
                return message

    def notification(self, method):
        """Read up to a notification; its params."""
        while True:
            message = self.read()
            if message is None:
                raise AssertionError("the connection ended before " + method)
            if message.get("method") == method:
                return message["params"]

    def call(self, id, method, params=None, **meta):
        self.request(id, method, params, **meta)
        return self.answer(id)

    def initialize(self, concurrency=1, max_message=64 << 20):
        self.request(0, "initialize", {"protocol": 1, "concurrency": concurrency, "maxMessage": max_message})
        return self.answer(0)["result"]

    def close(self):
        self.sock.close()


class Server:
    """A front socket in the hands of a test: it accepts when told to, reads and writes as told."""

    def __init__(self, case, path, backlog=16):
        self.case = case
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.settimeout(LONG)
        self.listener.bind(path)
        self.listener.listen(backlog)
        case.addCleanup(self.listener.close)

    def accept(self):
        sock, _ = self.listener.accept()
        connection = Connection(None, sock)
        self.case.addCleanup(connection.close)
        return connection


class Background:
    """A function in a thread of its own: result() waits for it, and raises what it raised."""

    def __init__(self, function, *args, **kwargs):
        self.value = self.error = None

        def run():
            try:
                self.value = function(*args, **kwargs)
            except BaseException as e:
                self.error = e
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def result(self):
        self.thread.join(LONG)
        if self.thread.is_alive():
            raise AssertionError("it goes on and on")
        if self.error is not None:
            raise self.error
        return self.value


def answer(message, result, connection, fds=()):
    """Answer a request."""
    connection.send({"jsonrpc": "2.0", "id": message["id"], "result": result}, fds)


def refuse(message, kind, connection, id=True, **data):
    """Answer a request with an error; id=None for the errors that have none."""
    import workerd
    code, retryable = workerd.KINDS.get(kind, (-32000, False))
    data = dict({"kind": kind, "retryable": retryable}, **data)
    connection.send({"jsonrpc": "2.0", "id": message["id"] if id is True else id,
                     "error": {"code": code, "message": "refused: " + kind, "data": data}})


class WorkerCase(unittest.TestCase):
    """A test with a folder of its own, and workers in it."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="wd")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.socket = os.path.join(self.dir, "sock")

    def path(self, name):
        return os.path.join(self.dir, name)

    def touch(self, name):
        open(self.path(name), "w").close()

    def spawn(self, source, args=(), prelude=PRELUDE, final=FINAL, **env):
        """Start a worker from its source; env values of None are removed."""
        script = self.path("worker_under_test.py")
        with open(script, "w") as f:
            f.write(prelude + textwrap.dedent(source) + final)
        return self.start(script, args, **env)

    def start(self, script, args=(), **env):
        environ = {k: v for k, v in os.environ.items() if not k.startswith("WORKERD_")}
        environ.update(PYTHONPATH=SDK, PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1", WORKERD_SOCKET=self.socket, TMPDIR=self.dir)
        environ.update({k: v for k, v in env.items() if v is not None})
        for name in [k for k, v in env.items() if v is None]:
            environ.pop(name, None)
        self.stdout, self.stderr = self.path("stdout"), self.path("stderr")
        with open(self.stdout, "ab") as out, open(self.stderr, "ab") as err:
            process = subprocess.Popen([sys.executable, script] + list(args), env=environ, cwd=self.dir, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=err)
        self.addCleanup(self.reap, process)
        self.addCleanup(self.tell)
        self.process = process
        return process

    def tell(self):
        """Where the test fails, show what the worker said."""
        if any(error for _, error in getattr(getattr(self, "_outcome", None), "errors", ())) or sys.exc_info()[0]:
            print("worker: %r %s" % (self.process.poll(), self.said()))

    def reap(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def connect(self):
        """A connection, as soon as the worker listens."""
        def attempt():
            if self.process.poll() is not None:
                raise AssertionError("the worker ended with %r: %s" % (self.process.returncode, self.said()))
            try:
                return Connection(self.socket)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
        connection = eventually(attempt, "connecting to the worker")
        self.addCleanup(connection.close)
        return connection

    def ready(self, concurrency=1, max_message=64 << 20):
        """A connection to a worker that is ready."""
        connection = self.connect()
        if connection.initialize(concurrency, max_message)["state"] != "ready":
            connection.notification("notifications/ready")
        return connection

    def said(self):
        with open(self.stderr, encoding="utf-8", errors="replace") as f:
            return f.read()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def ended(self):
        """The exit code."""
        return self.process.wait(LONG)

    def error(self, message):
        """The error object of an answer, checked against the table."""
        import workerd
        error = message["error"]
        kind = error["data"]["kind"]
        if kind in workerd.KINDS:
            self.assertEqual(error["code"], workerd.KINDS[kind][0])
        return error

    def kind(self, message):
        return self.error(message)["data"]["kind"]
