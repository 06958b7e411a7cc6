"""What a method returns and raises, and what it can do with its ctx."""
import importlib.util
import os
import unittest

from support import WorkerCase, eventually, needs

import workerd


class FakeArray:
    """What the SDK knows of numpy: tolist()."""

    def __init__(self, value):
        self.value = value

    def tolist(self):
        return self.value


class Encoding(unittest.TestCase):
    def encode(self, value):
        return workerd._dumps(value, "result").decode()

    def test_plain_and_nearly_plain(self):
        import dataclasses
        import pathlib

        @dataclasses.dataclass
        class Box:
            x: int
            inner: list

        for value, json in (
                (None, "null"), (True, "true"), (1, "1"), (0.5, "0.5"), ("a\u00e9", '"a\u00e9"'), ([1, (2, 3)], "[1,[2,3]]"),
                ({"a": {1: 2, None: 3, False: 4}}, '{"a":{"1":2,"null":3,"false":4}}'),
                (FakeArray([[1, 2.5]]), "[[1,2.5]]"), (FakeArray(3), "3"), ({"x": [FakeArray(True)]}, '{"x":[true]}'),
                (Box(1, [Box(2, [])]), '{"x":1,"inner":[{"x":2,"inner":[]}]}'), (pathlib.PurePosixPath("/a/b"), '"/a/b"'),
                ({"p": pathlib.PurePosixPath("/a"), "n": FakeArray([1])}, '{"p":"/a","n":[1]}'),
                ("caf\udce9", '"caf\\udce9"'), ({FakeArray(3): 1}, '{"3":1}')):
            self.assertEqual(json, self.encode(value))

    def test_the_place_of_what_cannot_be_carried(self):
        nan, inf = float("nan"), float("inf")
        loop = []
        loop.append({"again": loop})
        deep = []
        for _ in range(100000):
            deep = [deep]
        for value, message in (
                (nan, "result is NaN"), ({"scores": [0, 1, 2, nan]}, r"result\.scores\[3\] is NaN"), ([(1, -inf)], r"result\[0\]\[1\] is -Infinity"),
                ({"a": FakeArray([1, [inf]])}, r"result\.a\[1\]\[0\] is Infinity"),
                ({"a": {1, 2}}, r"result\.a is of type set"), ([b"x"], r"result\[0\] is of type bytes"), (unittest, "result is of type module"),
                ([1j], r"result\[0\] is of type complex"), ({"k": {(1, 2): 3}}, r"result\.k has the key .* of type tuple"),
                ({nan: 1}, "result has the key NaN of type float"), (loop, r"result\[0\]\.again contains itself"), (deep, "nested too deep"),
                (unittest.TestCase, "result is of type type")):
            with self.assertRaises(workerd._Unserialisable) as caught:
                self.encode(value)
            self.assertRegex(str(caught.exception), message)

    def test_the_same_object_twice_is_no_loop(self):
        part = [FakeArray(1)]
        self.assertEqual('{"a":[1],"b":[1]}', self.encode({"a": part, "b": part}))

    @needs("numpy", importlib.util.find_spec("numpy") is not None, "it is not installed")
    def test_numpy(self):
        import numpy as np
        self.assertEqual("[1,2.5,true,[[1,2]],[]]", self.encode(
            [np.int64(1), np.float32(2.5), np.bool_(True), np.array([[1, 2]], dtype=np.int8), np.zeros(0)]))
        with self.assertRaisesRegex(workerd._Unserialisable, r"result\.s\[1\] is NaN"):
            self.encode({"s": np.array([1, float("nan")])})
        with self.assertRaisesRegex(workerd._Unserialisable, r"result\[0\] is NaN"):
            self.encode([np.float64("nan")])


class Errors(WorkerCase):
    def test_each(self):
        self.spawn('''
            class Strange(Exception):
                def __str__(self):
                    raise KeyError

            @worker.method
            def fail(model, ctx, how: str):
                if how == "raise":
                    return {}["weights"]
                if how == "declare":
                    raise WorkerError("out_of_paper", True, {"tray": 2})
                if how == "message":
                    raise WorkerError("out_of_paper", data="no paper in tray 2")
                if how == "odd data":
                    raise WorkerError("odd", data={1, 2})
                if how == "params":
                    raise InvalidParams("page: there are 3", {"pages": 3})
                if how == "exit":
                    sys.exit(3)
                if how == "nan":
                    return {"scores": [1, float("nan")]}
                if how == "strange":
                    raise Strange
                if how == "deep":
                    fail(model, ctx, how)
            ''')
        c = self.ready()

        def fail(how):
            return self.error(c.call(how, "fail", {"how": how}))

        e = fail("raise")
        self.assertEqual((-32000, "KeyError: 'weights'"), (e["code"], e["message"]))
        self.assertEqual({"kind": "worker_error", "retryable": False}, {k: e["data"][k] for k in ("kind", "retryable")})
        self.assertEqual("KeyError", e["data"]["detail"]["type"])
        self.assertRegex(e["data"]["detail"]["traceback"], r'(?s)^Traceback.*\n  File ".*worker_under_test.py".*in fail\n.*KeyError')
        self.assertNotIn("workerd.py", e["data"]["detail"]["traceback"])
        self.assertIn("KeyError: 'weights'", self.said())  # in the log too
        self.assertEqual({"code": -32000, "message": "out_of_paper", "data": {
            "kind": "out_of_paper", "retryable": True, "detail": {"tray": 2}}}, fail("declare"))
        self.assertEqual({"code": -32000, "message": "no paper in tray 2", "data": {
            "kind": "out_of_paper", "retryable": False, "detail": "no paper in tray 2"}}, fail("message"))
        self.assertIn("data is of type set", fail("odd data")["data"]["detail"])
        self.assertEqual({"code": -32602, "message": "page: there are 3", "data": {
            "kind": "invalid_params", "retryable": False, "detail": {"pages": 3}}}, fail("params"))
        self.assertEqual("SystemExit: 3", fail("exit")["message"])
        self.assertEqual(("invalid_response", "result.scores[1] is NaN, which JSON cannot carry"),
                         (lambda e: (e["data"]["kind"], e["message"]))(fail("nan")))
        self.assertIn("Strange", fail("strange")["message"])
        self.assertEqual("RecursionError", fail("deep")["data"]["detail"]["type"])
        self.assertIsNone(self.process.poll())

    def test_case_86_an_answer_beyond_the_limit(self):
        self.spawn('''
            @worker.method
            def big(model, ctx, size: int, fail: bool = False):
                if fail:
                    raise WorkerError("big", data="x" * size)
                return "x" * size
            ''')
        c = self.ready(max_message=10000)
        frame = len('{"jsonrpc":"2.0","id":1,"result":""}')
        self.assertEqual(10000 - frame, len(c.call(1, "big", {"size": 10000 - frame})["result"]))
        for params in ({"size": 10000 - frame + 1}, {"size": 10000, "fail": True}):
            e = self.error(c.call(1, "big", params))
            self.assertEqual(("too_large", 10000), (e["data"]["kind"], e["data"]["detail"]["limit"]))
            self.assertIn("10000", e["message"])
            self.assertGreater(e["data"]["detail"]["size"], 10000)
        self.assertEqual("", c.call(1, "big", {"size": 0})["result"])

    def test_case_86_large_both_ways(self):
        self.spawn('''
            @worker.method
            def echo(model, ctx, **params):
                return params
            ''')
        c = self.ready()
        text = "\u00e9x" * (8 << 20)
        self.assertEqual({"text": text}, c.call(1, "echo", {"text": text})["result"])

    def test_a_peer_that_does_not_read_blocks_nobody(self):
        self.spawn('''
            @worker.method
            def big(model, ctx, size: int):
                return "x" * size
            ''')
        deaf, c = self.ready(), self.connect()
        deaf.request(1, "big", {"size": 32 << 20})
        self.assertEqual("x", c.call(2, "big", {"size": 1})["result"])
        self.assertEqual(32 << 20, len(deaf.answer(1)["result"]))


class Ctx(WorkerCase):
    def test_what_it_says(self):
        self.spawn('''
            @worker.load
            def load(ctx):
                return [ctx.weights, ctx.work_root, ctx.provider_dir, ctx.gpus, ctx.request_id, ctx.deadline]

            @worker.method
            def look(model, ctx):
                ctx.log.info("looking")
                left = ctx.deadline and ctx.deadline - time.monotonic()
                return model, ctx.request_id, left, ctx.cancelled
            ''', WORKERD_WEIGHTS="/w", WORKERD_WORK_ROOT="", WORKERD_PROVIDER_DIR="/p", WORKERD_GPUS="GPU-1,GPU-2")
        c = self.ready()
        self.assertEqual([["/w", None, "/p", ["GPU-1", "GPU-2"], None, None], 7, None, False], c.call(7, "look")["result"])
        left = c.call("a", "look", timeoutMs=60000)["result"][2]
        self.assertTrue(30 < left <= 60, left)
        self.assertRegex(self.said(), "INFO looking")

    def test_tmp(self):
        self.spawn('''
            @worker.load
            def load(ctx):
                return ctx.tmp

            @worker.method
            def use(model, ctx, fail: bool = False):
                assert ctx.tmp == ctx.tmp
                open(os.path.join(ctx.tmp, "f"), "w").close()
                if fail:
                    raise ValueError(ctx.tmp)
                return [model, ctx.tmp]
            ''')
        c = self.ready()
        of_load, first = c.call(1, "use")["result"]
        second = c.call(1, "use")["result"][1]
        third = c.call(1, "use", {"fail": True})["error"]["message"].split(": ")[1]
        for tmp in (of_load, first, second, third):
            self.assertEqual(self.dir, os.path.dirname(tmp))
            eventually(lambda: not os.path.exists(tmp), "removal of " + tmp)
        self.assertEqual(4, len({of_load, first, second, third}))

    def test_progress_is_bounded_and_the_last_arrives(self):
        self.spawn('''
            @worker.method
            def flood(model, ctx, n: int):
                start = time.monotonic()
                for i in range(n):
                    ctx.progress(i, total=n)
                return time.monotonic() - start

            @worker.method
            def late(model, ctx):
                ctx.progress(1, total=2)
                ctx.progress(2, "two", total=2)
                until(ctx, "go")

            @worker.method
            def odd(model, ctx):
                ctx.progress(2)
                ctx.progress(float("nan"))
            ''')
        c = self.ready()
        c.request(1, "flood", {"n": 20000}, progressToken="t")
        seen = []
        while True:
            message = c.read()
            if "id" in message:
                break
            seen.append(message["params"])
        self.assertEqual({"progressToken": "t", "progress": 19999, "total": 20000}, seen[-1])
        self.assertLess(len(seen), 3 + message["result"] * 60)
        self.assertEqual(sorted(p["progress"] for p in seen), [p["progress"] for p in seen])

        c.request(2, "late", progressToken=5)
        self.assertEqual({"progressToken": 5, "progress": 1, "total": 2}, c.notification("notifications/progress"))
        self.assertEqual("two", c.notification("notifications/progress")["message"])  # though the method says no more
        self.touch("go")
        c.answer(2)

        c.request(3, "odd", progressToken=6)
        self.assertEqual({"progressToken": 6, "progress": 2}, c.notification("notifications/progress"))
        self.assertEqual("ValueError", c.answer(3)["error"]["data"]["detail"]["type"])

        c.request(4, "flood", {"n": 100})  # without a token: nothing
        self.assertEqual(4, c.read()["id"])

    def test_no_progress_after_the_answer(self):
        self.spawn('''
            import threading

            @worker.method
            def leave(model, ctx):
                def go_on():
                    until(ctx, "go")
                    ctx.progress(1, "too late")
                    open("done", "w").close()
                threading.Thread(target=go_on, daemon=True).start()
            ''')
        c = self.ready()
        c.request(1, "leave", progressToken=1)
        c.answer(1)
        self.touch("go")
        eventually(lambda: os.path.exists(self.path("done")), "the late thread")
        c.request(2, "ping")
        self.assertEqual(2, c.read()["id"])


class Files(WorkerCase):
    SOURCE = '''
        @worker.method
        def read(model, ctx):
            return [os.read(fd, 100).decode() for fd in ctx.files]

        @worker.method
        def keep(model, ctx):
            worker.kept = ctx.files.pop()

        @worker.method
        def kept(model, ctx):
            return os.read(worker.kept, 100).decode()

        @worker.method
        def give(model, ctx, n: int, fail: bool = False):
            at = []
            for i in range(n):
                with open(os.path.join(ctx.tmp, str(i)), "w+") as f:
                    f.write("file %d" % i)
                    f.seek(0)
                    at.append(ctx.attach(f))
            return {1} if fail else at

        @worker.method
        def open_files(model, ctx):
            return len(os.listdir("/proc/self/fd"))
        '''

    def pipe(self, text):
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        self.addCleanup(os.close, read)
        return read

    def test_with_a_request(self):
        self.spawn(self.SOURCE)
        c = self.ready()
        before = c.call(1, "open_files")["result"]
        a, b = self.pipe("a"), self.pipe("b")
        c.request(1, "read", fds=[a, b])
        self.assertEqual(["a", "b"], c.answer(1)["result"])
        # Two lines in one go, the descriptors with the second; a line of several packets; lines that are refused.
        c.raw(b'{"jsonrpc":"2.0","id":2,"method":"read"}\n')
        c.raw(b'{"jsonrpc":"2.0","id":3,"method":"read"}\n', [self.pipe("c")])
        self.assertEqual([[], ["c"]], [c.answer(2)["result"], c.answer(3)["result"]])
        c.raw(b'{"jsonrpc":"2.0","id":4,"method":"read","params":{"_meta":{"x":"' + b"x" * (1 << 20) + b'"}}}\n', [self.pipe("d")])
        self.assertEqual(["d"], c.answer(4)["result"])
        for line in (b"nonsense\n", b'{"jsonrpc":"2.0","id":4,"method":"none"}\n', b"\n", b'{"jsonrpc":"2.0","method":"none"}\n'):
            c.raw(line, [self.pipe("e")])
        c.request(5, "read", fds=[self.pipe(str(n)) for n in range(16)])
        self.assertEqual([str(n) for n in range(16)], c.answer(5)["result"])
        eventually(lambda: c.call(6, "open_files")["result"] == before, "all descriptors closed")
        c.request(7, "keep", fds=[self.pipe("kept")])
        c.answer(7)
        self.assertEqual("kept", c.call(8, "kept")["result"])

    def test_too_many(self):
        self.spawn(self.SOURCE)
        c = self.ready()
        before = c.call(1, "open_files")["result"]
        c.request(1, "read", fds=[self.pipe("x") for _ in range(17)])
        self.assertEqual("invalid_request", self.kind(c.answer(1)))
        eventually(lambda: c.call(1, "open_files")["result"] == before, "all descriptors closed")

    def test_with_a_result(self):
        self.spawn(self.SOURCE)
        c = self.ready()
        before = c.call(1, "open_files")["result"]
        self.assertEqual([0, 1, 2], c.call(1, "give", {"n": 3})["result"])
        self.assertEqual(["file 0", "file 1", "file 2"], [os.read(fd, 100).decode() for fd in c.fds])
        for fd in c.fds:
            os.close(fd)
        c.fds = []
        self.assertEqual("ValueError", c.call(2, "give", {"n": 17})["error"]["data"]["detail"]["type"])
        self.assertEqual("invalid_response", self.kind(c.call(3, "give", {"n": 2, "fail": True})))
        self.assertEqual([], c.fds)
        eventually(lambda: c.call(4, "open_files")["result"] == before, "all descriptors closed")


if __name__ == "__main__":
    unittest.main()
