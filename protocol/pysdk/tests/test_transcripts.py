"""The transcripts of protocol/testdata that workerd plays with a worker. The format stands in its README."""
import base64
import glob
import json
import os
import re
import unittest

from support import TESTDATA, WorkerCase


def differs(want, got, at="line"):
    """Where a value differs from a pattern, None where it matches."""
    if isinstance(want, str) and want.startswith("$"):
        kind, _, expression = want.partition(" ")
        fits = {"$any": lambda: True, "$string": lambda: isinstance(got, str), "$integer": lambda: type(got) is int,
                "$matches": lambda: isinstance(got, str) and re.search(expression, got)}[kind]()
        return None if fits else "%s: want %s, got %r" % (at, want, got)
    if isinstance(want, dict) and isinstance(got, dict):
        for name, value in want.items():
            place = "%s.%s" % (at, name)
            if value == "$absent":
                if name in got:
                    return place + ": should not be there"
            elif name not in got:
                return place + ": is missing"
            elif differs(value, got[name], place):
                return differs(value, got[name], place)
        return None
    if isinstance(want, list) and isinstance(got, list):
        if want and want[-1] == "$more":
            want, got = want[:-1], got[:len(want) - 1]
        if len(want) == len(got):
            wrong = (differs(w, g, "%s[%d]" % (at, i)) for i, (w, g) in enumerate(zip(want, got)))
            return next((each for each in wrong if each), None)
    elif want == got and isinstance(want, bool) == isinstance(got, bool):
        return None
    return "%s: want %s, got %s" % (at, json.dumps(want), json.dumps(got))


class Replay:
    def __init__(self, connection, do):
        self.connection, self.do, self.maybe = connection, do, []

    def play(self, file):
        with open(file, encoding="utf-8") as lines:
            for n, line in enumerate(lines, 1):
                try:
                    self.step(json.loads(line), line)
                except Exception as e:
                    raise AssertionError("%s:%d: %s" % (os.path.basename(file), n, e)) from e

    def step(self, step, line):
        import socket
        c = self.connection
        if "send" in step:
            # An object is sent as it is written: its text is what stands between the step's own braces.
            text = step["send"] if isinstance(step["send"], str) else line.split('"send": ', 1)[1].rstrip()[:-1]
            c.raw(text.encode("utf-8") + (b"\n" if step.get("newline", True) else b""))
        elif "bytes" in step:
            c.raw(base64.b64decode(step["bytes"]))
        elif "fill" in step:
            c.raw(b"x" * step["fill"])
        elif "expect" in step or "anyOrder" in step:
            self.expect(step["anyOrder"] if "anyOrder" in step else [step["expect"]])
        elif "maybe" in step:
            self.maybe.append(step["maybe"])
        elif "do" in step:
            self.do[step["do"]]()
        elif "close" in step:
            c.sock.shutdown(socket.SHUT_WR) if step["close"] == "write" else c.close()
        elif "end" in step:
            rest = c.read()
            while rest is not None and not all(differs(pattern, rest) for pattern in self.maybe):
                rest = c.read()
            if rest is not None:
                raise AssertionError("want the end, got %r" % rest)
        elif "note" not in step:
            raise ValueError("no such step")

    def expect(self, patterns):
        left = list(patterns)
        while left:
            got = self.connection.read()
            if got is None:
                raise AssertionError("the connection ended; want %s" % json.dumps(left[0]))
            wrongs = [differs(pattern, got) for pattern in left]
            if None in wrongs:
                del left[wrongs.index(None)]
            elif all(differs(pattern, got) for pattern in self.maybe):
                raise AssertionError("\n".join(wrongs))


class Transcripts(WorkerCase):
    def test_each(self):
        files = sorted(glob.glob(os.path.join(TESTDATA, "worker-*.jsonl")))
        self.assertGreater(len(files), 3)
        for file in files:
            with self.subTest(os.path.basename(file)):
                self.socket = self.path(os.path.basename(file)[:-len(".jsonl")])
                env, do = self.circumstances(os.path.basename(file))
                self.start(os.path.join(TESTDATA, "worker.py"), **env)
                Replay(self.connect(), do).play(file)

    def circumstances(self, file):
        """The variables of a transcript's worker, and what the test does outside the connection."""
        hold = self.path("hold")
        if "handshake" in file:
            env, do = {"TRANSCRIPT_HOLD_LOAD": hold}, "the load ends"
        elif "standby" in file:
            env, do = {"TRANSCRIPT_HOLD_PRELOAD": hold, "WORKERD_STANDBY": "warm"}, "the preload ends"
        else:
            return {}, {}
        open(hold, "w").close()
        return env, {do: lambda: os.remove(hold)}

    def test_a_pattern_that_does_not_match(self):
        for want, got in (({"a": 1}, {"a": 2}), ({"a": 1}, {}), ({"a": 1}, {"a": True}), ({"a": 0}, {"a": False}), ({"a": "1"}, {"a": 1}),
                          ([1], [1, 2]), ([1, "$more"], [2]), ([1, "$more"], []), ({"a": "$absent"}, {"a": None}), ("$string", 1),
                          ("$integer", 1.0), ("$integer", True), ("$matches ^b", "ab"), (None, False)):
            self.assertIsNotNone(differs(want, got), (want, got))
        for want, got in (({"a": 1}, {"a": 1.0, "b": 2}), ([1, "$more"], [1]), ([1, "$more"], [1, 2, 3]), ({"a": "$absent"}, {}),
                          ("$any", None), ("$matches b", "abc"), ({"a": [{"b": None}]}, {"a": [{"b": None, "c": 1}]})):
            self.assertIsNone(differs(want, got), (want, got))


if __name__ == "__main__":
    unittest.main()
