"""A worker on its socket: the handshake, loading, ping, cancel, connections, and lines that are wrong."""
import json
import unittest

from support import WorkerCase, eventually

HOLD = '''
@worker.method
def hold(model, ctx, until_file: str = ""):
    ctx.progress(0, "holding")
    until(ctx, until_file)
    return "held"

@worker.method
def echo(model, ctx, **params):
    return params
'''


class Handshake(WorkerCase):
    def test_loading_then_ready(self):
        self.spawn('''
            @worker.load
            def load(ctx):
                ctx.progress(0.25, "shard 1/4")
                until(ctx, "go")
                ctx.progress(1)
                return 7

            @worker.method
            def model(model, ctx):
                """Say what the model is."""
                return model
            ''')
        c = self.connect()
        result = c.initialize()
        self.assertEqual({"protocol": 1, "worker": "test", "state": "loading", "methods": [
            {"name": "model", "description": "Say what the model is.",
             "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False}}]}, result)
        self.assertEqual({"progress": 0.25, "total": 1, "message": "shard 1/4"}, c.notification("notifications/progress"))
        self.assertEqual({}, c.call(1, "ping")["result"])  # also while it loads
        c.request(2, "model")  # waits for the load
        self.touch("go")
        self.assertEqual({"progress": 1, "total": 1}, c.notification("notifications/progress"))
        self.assertEqual({}, c.notification("notifications/ready"))
        self.assertEqual(7, c.answer(2)["result"])

    def test_progress_before_the_first_connection_is_not_lost(self):
        self.spawn('''
            @worker.load
            def load(ctx):
                ctx.progress(0.1, "first")
                ctx.progress(0.2, "second")
                open("said", "w").close()
                until(ctx, "go")
            ''')
        c = self.connect()
        from support import eventually
        import os
        eventually(lambda: os.path.exists(self.path("said")), "the load's progress")
        c.initialize()
        said = [c.notification("notifications/progress")["message"]]
        if said == ["first"]:
            said.append(c.notification("notifications/progress")["message"])
        self.assertEqual("second", said[-1])
        self.touch("go")
        c.notification("notifications/ready")

    def test_another_version_names_both(self):
        self.spawn(HOLD)
        c = self.connect()
        c.request(0, "initialize", {"protocol": 2, "concurrency": 1, "maxMessage": 1000})
        error = self.error(c.answer(0))
        self.assertRegex(error["message"], "protocol 2.*protocol 1")
        self.assertEqual(1, c.initialize()["protocol"])  # the connection lives on

    def test_initialize_refuses_nonsense(self):
        self.spawn(HOLD)
        c = self.connect()
        for params in ({"concurrency": 0}, {"concurrency": True}, {"maxMessage": "1M"}):
            c.request(0, "initialize", dict(params, protocol=1))
            self.assertEqual("invalid_params", self.kind(c.answer(0)), params)

    def test_a_load_that_raises(self):
        self.spawn('''
            @worker.load
            def load(ctx):
                raise OSError("no such weights")
            ''')
        self.assertEqual(1, self.ended())
        self.assertRegex(self.said(), r"(?s)Traceback.*in load.*OSError: no such weights")

    def test_a_load_that_exits(self):
        self.spawn('''
            @worker.load
            def load(ctx):
                sys.exit("no license")
            ''')
        self.assertEqual(1, self.ended())
        self.assertIn("no license", self.said())

    def test_run_by_hand(self):
        self.spawn(HOLD, WORKERD_SOCKET=None)
        self.assertEqual(2, self.ended())
        self.assertIn("WORKERD_SOCKET", self.said())

    def test_a_socket_that_cannot_be_bound(self):
        self.touch("sock")
        self.spawn(HOLD)
        self.assertEqual(1, self.ended())
        self.assertIn(self.socket, self.said())

    def test_the_socket_is_bound_before_the_load(self):
        self.spawn('''
            @worker.load
            def load(ctx):
                assert os.path.exists(os.environ["WORKERD_SOCKET"])
            ''')
        self.ready()


class Connections(WorkerCase):
    def test_every_connection_carries_requests(self):
        self.spawn(HOLD)
        first = self.ready()
        second = self.connect()
        self.assertEqual("ready", second.initialize()["state"])
        for c in (first, second, first):
            self.assertEqual({"x": 1}, c.call("id", "echo", {"x": 1})["result"])

    def test_ping_and_new_connections_while_a_request_runs(self):
        self.spawn(HOLD)
        c = self.ready()
        c.request(1, "hold", {"until_file": "go"}, progressToken="t")
        c.notification("notifications/progress")
        self.assertEqual({}, c.call(2, "ping")["result"])
        other = self.connect()
        self.assertEqual("busy", other.initialize()["state"])
        self.touch("go")
        self.assertEqual("held", c.answer(1)["result"])
        other.notification("notifications/ready")

    def test_case_87_the_end_of_a_connection_cancels_its_request(self):
        self.spawn(HOLD)
        c = self.ready()
        c.request(1, "hold", {"until_file": "never"}, progressToken=1)
        c.notification("notifications/progress")
        other = self.connect()
        c.close()
        if other.initialize()["state"] == "busy":
            other.notification("notifications/ready")
        self.assertEqual({}, other.call(1, "echo")["result"])

    def test_a_method_that_does_not_look_stays_busy(self):
        self.spawn('''
            @worker.method
            def deaf(model, ctx):
                ctx.progress(0)
                while not os.path.exists("go"):
                    time.sleep(0.002)
            ''')
        c = self.ready()
        c.request(1, "deaf", progressToken=1)
        c.notification("notifications/progress")
        c.close()
        other = self.connect()
        self.assertEqual("busy", other.initialize()["state"])
        self.touch("go")
        other.notification("notifications/ready")
        self.assertIsNone(other.call(1, "deaf")["result"])

    def test_a_half_closed_connection_gets_its_answer(self):
        import socket
        self.spawn(HOLD)
        c = self.ready()
        c.raw(b'{"jsonrpc":"2.0","id":5,"method":"echo","params":{"last":"line"}}')  # without a newline
        c.sock.shutdown(socket.SHUT_WR)
        self.assertEqual({"last": "line"}, c.answer(5)["result"])
        self.assertIsNone(c.line())
        for _ in range(50):  # the end of input sometimes comes just when the answer is ready
            c = self.connect()
            c.request(1, "echo")
            c.sock.shutdown(socket.SHUT_WR)
            self.assertEqual([{}, None], [c.answer(1)["result"], c.line()])

    def test_requests_of_several_connections_run_in_turn(self):
        self.spawn(HOLD)
        c, others = self.ready(), [self.connect() for _ in range(4)]
        c.request(1, "hold", {"until_file": "go"}, progressToken=1)
        c.notification("notifications/progress")
        for n, other in enumerate(others):
            other.request(n, "echo", {"n": n})
        self.touch("go")
        for n, other in enumerate(others):
            self.assertEqual({"n": n}, other.answer(n)["result"])

    def test_concurrency(self):
        self.spawn('''
            import threading
            both = threading.Barrier(2)

            @worker.method
            def meet(model, ctx):
                both.wait(30)
                return threading.current_thread() is threading.main_thread()
            ''')
        c = self.ready(concurrency=2)
        other = self.connect()
        self.assertEqual("ready", other.initialize(2)["state"])
        c.request(1, "meet")
        other.request(1, "meet")
        self.assertEqual([False, False], [c.answer(1)["result"], other.answer(1)["result"]])

    def test_requests_run_on_the_main_thread(self):
        self.spawn('''
            import threading

            @worker.method
            def where(model, ctx):
                return threading.current_thread() is threading.main_thread()
            ''')
        self.assertIs(True, self.ready().call(1, "where")["result"])


class Cancel(WorkerCase):
    def test_a_running_request(self):
        self.spawn(HOLD)
        c = self.ready()
        c.request("a", "hold", {"until_file": "never"}, progressToken=1)
        c.notification("notifications/progress")
        c.cancel("other")
        c.cancel("a")
        self.assertEqual("cancelled", self.kind(c.answer("a")))
        self.assertEqual({}, c.call(2, "echo")["result"])

    def test_a_waiting_request_is_answered_at_once(self):
        self.spawn(HOLD)
        c = self.ready()
        c.request(1, "hold", {"until_file": "go"}, progressToken=1)
        c.notification("notifications/progress")
        other = self.connect()
        other.request(2, "echo")
        self.assertEqual({}, other.call(3, "ping")["result"])
        other.cancel(2)
        self.assertEqual("cancelled", self.kind(other.answer(2)))
        self.touch("go")
        self.assertEqual("held", c.answer(1)["result"])

    def test_cancelled_is_no_exception(self):
        self.spawn('''
            @worker.method
            def broad(model, ctx):
                ctx.progress(0)
                while True:
                    try:
                        until(ctx, "never")
                    except Exception:
                        return "swallowed"
            ''')
        c = self.ready()
        c.request(1, "broad", progressToken=1)
        c.notification("notifications/progress")
        c.cancel(1)
        self.assertEqual("cancelled", self.kind(c.answer(1)))


class BadLines(WorkerCase):
    def test_each_gets_a_typed_error_and_the_connection_lives_on(self):
        self.spawn(HOLD)
        c = self.ready()
        good = {"jsonrpc": "2.0", "id": 9, "method": "echo", "params": {}}

        def but(**changes):
            return json.dumps({k: v for k, v in dict(good, **changes).items() if v is not KeyError}).encode()

        for line, id, kind in (
                (b"hello", None, "parse_error"),
                (b'{"jsonrpc":"2.0","id":9,', None, "parse_error"),
                (b'{"jsonrpc":"2.0","id":9,"method":"echo","params":{"x":NaN}}', None, "parse_error"),
                (b'{"jsonrpc":"2.0","id":9,"method":"\xff","params":{}}', None, "parse_error"),
                (b"[" * 100000, None, "parse_error"),
                (b"[" + but() + b"]", None, "invalid_request"),
                (b"3", None, "invalid_request"),
                (but(id=1.5), None, "invalid_request"),
                (but(id=True), None, "invalid_request"),
                (but(id=None), None, "invalid_request"),
                (but(id=[1]), None, "invalid_request"),
                (b'{"jsonrpc":"2.0","id":1e999,"method":"echo"}', None, "invalid_request"),
                (but(jsonrpc="1.0"), 9, "invalid_request"),
                (but(jsonrpc=KeyError), 9, "invalid_request"),
                (but(method=KeyError), 9, "invalid_request"),
                (but(method=7), 9, "invalid_request"),
                (but(params=[1]), 9, "invalid_request"),
                (but(params=None), 9, "invalid_request"),
                (but(method="nothing"), 9, "method_not_found"),
                (but(params={"_meta": 3}), 9, "invalid_params"),
                (but(params={"_meta": {"progressToken": 1.5}}), 9, "invalid_params"),
                (but(params={"_meta": {"timeoutMs": 0}}), 9, "invalid_params"),
                (but(params={"_meta": {"timeoutMs": "1s"}}), 9, "invalid_params")):
            c.raw(line + b"\n")
            answer = c.read()
            self.assertEqual((id, kind), (answer["id"], self.kind(answer)), line[:80])
        self.assertEqual({}, c.call(9, "echo")["result"])

    def test_a_timeout_of_any_length(self):
        self.spawn("""
            @worker.method
            def left(model, ctx):
                return ctx.deadline - time.monotonic()
            """)
        c = self.ready()
        for digits in ("9007199254740993", "1" + 320 * "0"):
            c.raw(b'{"jsonrpc":"2.0","id":1,"method":"left","params":{"_meta":{"timeoutMs":%s}}}\n' % digits.encode())
            self.assertGreater(c.answer(1)["result"], 8e12)
        for digits in ("0" + 320 * "0" + "1", "-1" + 320 * "0", "1e400", "1" + 320 * "0" + ".0"):
            c.raw(b'{"jsonrpc":"2.0","id":1,"method":"left","params":{"_meta":{"timeoutMs":%s}}}\n' % digits.encode())
            self.assertIn(self.kind(c.read()), ("parse_error", "invalid_params"), digits)

    def test_what_is_never_answered(self):
        self.spawn(HOLD)
        c = self.ready()
        for line in (b"", b"   ", b'{"jsonrpc":"2.0","method":"echo"}', b'{"jsonrpc":"2.0","method":"notifications/else"}',
                     b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":3}',
                     b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}'):
            c.raw(line + b"\n")
        c.raw(b'{"jsonrpc":"2.0","id":2,"method":"echo","params":{}}\r\n')
        self.assertEqual({"jsonrpc": "2.0", "id": 2, "result": {}}, c.read())

    def test_a_running_id_again(self):
        self.spawn(HOLD)
        c = self.ready()
        c.request("a", "hold", {"until_file": "go"}, progressToken=1)
        c.notification("notifications/progress")
        c.request("a", "echo")
        answer = c.read()
        self.assertEqual((None, "invalid_request"), (answer["id"], self.kind(answer)))
        self.assertEqual({"id": "a"}, answer["error"]["data"]["detail"])
        self.touch("go")
        self.assertEqual("held", c.answer("a")["result"])

    def test_ids_and_tokens_come_back_as_they_came(self):
        self.spawn(HOLD)
        c = self.ready()
        for id in ("", "a", "\u00e9\U0001f600", "1", 1, -1, 0, 2 ** 70):
            c.request(id, "hold", {"until_file": "/"}, progressToken=id)
            self.assertEqual([id, id], [c.notification("notifications/progress")["progressToken"], c.read()["id"]])

    def test_case_86_sizes(self):
        self.spawn('''
            @worker.method
            def size(model, ctx, x: str):
                return len(x)
            ''')
        limit = 200000
        c = self.ready(max_message=limit)

        def line(size):
            head, tail = b'{"jsonrpc":"2.0","id":1,"method":"size","params":{"x":"', b'"}}'
            return head + b"x" * (size - len(head) - len(tail)) + tail

        for size in (100, 65535, 65536, 65537, limit - 1, limit, limit + 64):
            c.raw(line(size) + b"\n")
            self.assertEqual(size - len(line(0)), c.answer(1)["result"])
        for size in (limit + 65, limit + 66, 5 * limit):
            c.raw(line(size) + b"\n")
            answer = c.answer(None)
            self.assertEqual("too_large", self.kind(answer), size)
            self.assertEqual({"limit": limit}, answer["error"]["data"]["detail"])
        c.raw(line(limit + 64) + b"\r\n")
        self.assertEqual(limit + 64 - len(line(0)), c.answer(1)["result"])


if __name__ == "__main__":
    unittest.main()
