"""Client against a front socket in the test's hands."""
import os
import pickle
import signal
import socket
import subprocess
import sys
import unittest

from support import SDK, Background, Connection, Server, WorkerCase, answer, refuse

from workerd import Client, WorkerdError


class ClientCase(WorkerCase):
    def setUp(self):
        super().setUp()
        self.server = Server(self, self.socket)
        self.client = Client(self.socket)
        self.addCleanup(self.client.close)

    def start(self, *args, **kwargs):
        return Background(self.client.call, *args, **kwargs)

    def other(self, path):
        client = Client(path)
        self.addCleanup(client.close)
        return client

    def failed(self, call):
        with self.assertRaises(WorkerdError) as caught:
            call.result()
        return caught.exception


class Calls(ClientCase):
    def test_a_call(self):
        call = self.start("recognize", image="/p.png", lang="deu")
        c = self.server.accept()
        request = c.read()
        self.assertEqual({"jsonrpc": "2.0", "id": request["id"], "method": "recognize",
                          "params": {"image": "/p.png", "lang": "deu"}}, request)
        answer(request, {"text": "hello"}, c)
        self.assertEqual({"text": "hello"}, call.result())
        call = self.start("recognize")  # the same connection again
        request = c.read()
        self.assertEqual({}, request["params"])
        answer(request, None, c)
        self.assertIsNone(call.result())

    def test_parameters_as_a_dict(self):
        call = self.start("m", {"timeout": 1, "files": 2, "x": 3}, x=4, method="vina")
        c = self.server.accept()
        request = c.read()
        self.assertEqual({"timeout": 1, "files": 2, "x": 4, "method": "vina"}, request["params"])
        answer(request, 0, c)
        call.result()

    def test_what_json_cannot_carry_is_never_sent(self):
        for value in (float("nan"), {1, 2}, b"x"):
            e = self.failed(self.start("m", x=[value]))
            self.assertEqual("invalid_params", e.kind)
            self.assertIn("params.x[0]", e.message)

    def test_meta(self):
        call = self.start("m", timeout=25, idempotency_key="k", on_progress=print, retry=0)
        c = self.server.accept()
        request = c.read()
        meta = request["params"]["_meta"]
        self.assertEqual({"progressToken": request["id"], "timeoutMs": meta["timeoutMs"], "idempotencyKey": "k"}, meta)
        self.assertTrue(20000 < meta["timeoutMs"] <= 25000, meta)
        answer(request, 1, c)
        call.result()
        for wrong in (0, -1):
            with self.assertRaises(ValueError):
                self.client.call("m", timeout=wrong)

    def test_progress(self):
        seen = []
        call = self.start("m", on_progress=lambda *said: seen.append(said))
        c = self.server.accept()
        request = c.read()
        for params in ({"progress": 0, "message": "queued"}, {"progress": 1, "total": 2}, {"progress": 9, "progressToken": "another"}):
            params.setdefault("progressToken", request["id"])
            c.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        c.send({"jsonrpc": "2.0", "method": "notifications/new", "params": {}})
        answer(request, 1, c)
        self.assertEqual(1, call.result())
        self.assertEqual([(0, None, "queued"), (1, 2, None)], seen)

    def test_several_threads(self):
        calls = [self.start("m", n=n) for n in range(5)]
        pairs = [(c, c.read()) for c in [self.server.accept() for _ in calls]]
        for c, request in pairs:
            answer(request, request["params"]["n"], c)
        self.assertEqual([0, 1, 2, 3, 4], [call.result() for call in calls])

    def test_conveniences(self):
        for function, args, method, params, result, want in (
                (self.client.ping, (), "workerd.ping", {}, {}, None),
                (self.client.status, (), "workerd.status", {}, {"slug": "x"}, {"slug": "x"}),
                (self.client.methods, (True,), "workerd.methods", {"wait": True}, {"methods": [{"name": "m"}]}, [{"name": "m"}])):
            call = Background(function, *args)
            if method == "workerd.ping":
                c = self.server.accept()
            request = c.read()
            self.assertEqual((method, params), (request["method"], request["params"]))
            answer(request, result, c)
            self.assertEqual(want, call.result())

    def test_case_86_large_both_ways(self):
        text = "\u00e9" * (4 << 20)
        call = self.start("m", text=text)
        c = self.server.accept()
        request = c.read()
        answer(request, request["params"]["text"], c)
        self.assertEqual(text, call.result())

    def test_files(self):
        read, write = os.pipe()
        other, more = os.pipe()
        for fd in (read, write, other, more):
            self.addCleanup(os.close, fd)
        call = Background(self.client.call_with_files, "m", files=[read])
        c = self.server.accept()
        request = c.read()
        os.write(write, b"hello")
        self.assertEqual(b"hello", os.read(c.fds[0], 10))
        answer(request, "result", c, [other])
        result, fds = call.result()
        self.assertEqual("result", result)
        os.write(more, b"there")
        self.assertEqual(b"there", os.read(fds[0], 10))
        os.close(fds[0])
        os.close(c.fds[0])
        before = len(os.listdir("/proc/self/fd"))
        call = self.start("m")  # does not ask for them
        answer(c.read(), 1, c, [other])
        self.assertEqual(1, call.result())
        self.assertEqual(before, len(os.listdir("/proc/self/fd")))


class Errors(ClientCase):
    def test_fields(self):
        call = self.start("m")
        c = self.server.accept()
        refuse(c.read(), "worker_crashed", c, provider="ocr", worker="ocr/3", detail={"signal": "SIGSEGV"})
        e = self.failed(call)
        self.assertEqual(("worker_crashed", True, -32010, "refused: worker_crashed"), (e.kind, e.retryable, e.code, e.message))
        self.assertEqual({"signal": "SIGSEGV"}, e.data["detail"])
        self.assertEqual("worker_crashed: refused: worker_crashed", str(e))
        copy = pickle.loads(pickle.dumps(e))
        self.assertEqual((e.kind, e.code, e.data, str(e)), (copy.kind, copy.code, copy.data, str(copy)))
        call = self.start("m")  # the connection is used on
        answer(c.read(), 1, c)
        self.assertEqual(1, call.result())

    def test_an_error_of_another_server(self):
        call = self.start("m")
        c = self.server.accept()
        c.send({"jsonrpc": "2.0", "id": c.read()["id"], "error": {"code": -32601, "message": "no"}})
        e = self.failed(call)
        self.assertEqual(("method_not_found", False, {}), (e.kind, e.retryable, e.data))

    def test_an_error_without_id(self):
        call = self.start("m")
        c = self.server.accept()
        request = c.read()
        refuse(request, "parse_error", c, id=None, detail={"id": "another"})
        refuse(request, "too_large", c, id=None, detail={"id": request["id"], "limit": 5})
        self.assertEqual("too_large", self.failed(call).kind)
        call = self.start("m")
        refuse(c.read(), "parse_error", c, id=None)
        self.assertEqual("parse_error", self.failed(call).kind)

    def test_an_answer_that_is_no_json(self):
        call = self.start("m")
        c = self.server.accept()
        c.read()
        c.raw(b"oops\n")
        self.assertEqual("invalid_response", self.failed(call).kind)
        self.start("m")
        self.server.accept()  # not on the same connection

    def test_timeout(self):
        call = self.start("m", timeout=0.05)
        c = self.server.accept()
        request = c.read()
        e = self.failed(call)
        self.assertEqual(("deadline_exceeded", True), (e.kind, e.retryable))
        cancel = c.read()
        self.assertEqual(("notifications/cancelled", request["id"]), (cancel["method"], cancel["params"]["requestId"]))
        self.assertIsNone(c.line())

    def test_an_exception_in_on_progress_cancels(self):
        def stop(*said):
            raise KeyError("enough")
        call = self.start("m", on_progress=stop)
        c = self.server.accept()
        request = c.read()
        c.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": request["id"], "progress": 1}})
        with self.assertRaises(KeyError):
            call.result()
        self.assertEqual("notifications/cancelled", c.read()["method"])

    def test_keyboard_interrupt_cancels(self):
        code = """if True:
            from workerd import Client
            try:
                Client(%r).call("m", on_progress=lambda *said: print("waiting", flush=True))
            except KeyboardInterrupt:
                print("stopped")
            """ % self.socket
        process = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ, PYTHONPATH=SDK), stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(self.reap, process)
        c = self.server.accept()
        request = c.read()
        c.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": request["id"], "progress": 1}})
        self.assertEqual(b"waiting\n", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        cancel = c.read()
        self.assertEqual(("notifications/cancelled", request["id"]), (cancel["method"], cancel["params"]["requestId"]))
        self.assertEqual(b"stopped\n", process.stdout.read())
        self.assertEqual(0, process.wait())


class Connecting(ClientCase):
    def test_nobody_listens(self):
        for path in (self.path("missing"), self.path("dead")):
            if path.endswith("dead"):
                sock = socket.socket(socket.AF_UNIX)
                sock.bind(path)
                sock.close()
            with self.assertRaises(WorkerdError) as caught:
                self.other(path).call("m")
            e = caught.exception
            self.assertEqual(("connection_lost", True, -32099), (e.kind, e.retryable, e.code))
            self.assertIn(path, e.message)

    def test_lost_in_the_middle(self):
        call = self.start("m", retry=5)
        c = self.server.accept()
        c.read()
        c.close()
        e = self.failed(call)  # not tried again: it may have run
        self.assertEqual(("connection_lost", False), (e.kind, e.retryable))
        call = self.start("m")
        c = self.server.accept()
        answer(c.read(), 1, c)
        self.assertEqual(1, call.result())

    def test_lost_in_the_middle_of_the_answer(self):
        call = self.start("m")
        c = self.server.accept()
        c.read()
        c.raw(b'{"jsonrpc":"2.0","id":1,"result":')
        c.close()
        self.assertEqual("connection_lost", self.failed(call).kind)

    def test_case_91_an_idle_connection_that_has_ended(self):
        for _ in range(10):
            call = self.start("m")
            c = self.server.accept()
            answer(c.read(), 1, c)
            self.assertEqual(1, call.result())
            c.close()

    def test_retry(self):
        call = self.start("m", retry=2, idempotency_key="k", timeout=60)
        c = self.server.accept()
        first = c.read()
        refuse(first, "queue_full", c)
        second = c.read()
        self.assertNotEqual(first["id"], second["id"])
        self.assertEqual("k", second["params"]["_meta"]["idempotencyKey"])
        self.assertLess(second["params"]["_meta"]["timeoutMs"], first["params"]["_meta"]["timeoutMs"])
        refuse(second, "worker_crashed", c)
        answer(c.read(), "third", c)
        self.assertEqual("third", call.result())
        call = self.start("m", retry=1)
        refuse(c.read(), "queue_full", c)
        refuse(c.read(), "queue_full", c)
        self.assertEqual("queue_full", self.failed(call).kind)
        call = self.start("m", retry=1)
        refuse(c.read(), "worker_error", c)  # not retryable
        self.assertEqual("worker_error", self.failed(call).kind)

    def test_retry_until_somebody_listens(self):
        path = self.path("late")
        call = Background(self.other(path).call, "m", retry=50)
        server = Server(self, path)
        c = server.accept()
        answer(c.read(), 1, c)
        self.assertEqual(1, call.result())

    def test_a_full_backlog(self):
        path = self.path("full")
        server = Server(self, path, backlog=0)
        waiting = Connection(path)  # one fits
        self.addCleanup(waiting.close)
        with self.assertRaises(WorkerdError) as caught:
            self.other(path).call("m", timeout=0.1)
        self.assertEqual("deadline_exceeded", caught.exception.kind)
        call = Background(self.other(path).call, "m")
        server.accept()
        c = server.accept()
        answer(c.read(), 1, c)
        self.assertEqual(1, call.result())

    def test_after_a_fork_the_connections_are_the_parents(self):
        call = self.start("m")
        c = self.server.accept()
        answer(c.read(), 1, c)
        call.result()
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(self.client.call("m"))
            finally:
                os._exit(1)
        child = self.server.accept()
        answer(child.read(), 7, child)
        self.assertEqual(7 << 8, os.waitpid(pid, 0)[1])
        call = self.start("m")
        answer(c.read(), 2, c)
        self.assertEqual(2, call.result())


class Paths(unittest.TestCase):
    def test_each(self):
        # The rules for the runtime directory are compared with those of workerd itself in pysdk_test.go.
        old = os.environ.pop("WORKERD_RUNTIME_DIR", None)
        self.addCleanup(lambda: os.environ.update({"WORKERD_RUNTIME_DIR": old} if old else {}))
        self.addCleanup(os.environ.pop, "WORKERD_RUNTIME_DIR", None)
        self.assertEqual("./ocr", Client("./ocr").path)
        self.assertEqual("/r/front/ocr/sock", Client("ocr", runtime_dir="/r").path)
        os.environ["WORKERD_RUNTIME_DIR"] = "/w"
        self.assertEqual("/w/front/ocr/sock", Client("ocr").path)


if __name__ == "__main__":
    unittest.main()
