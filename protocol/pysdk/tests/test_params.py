"""Binding of a request's parameters to a method's signature, and the schemas made of it. No worker process: functions."""
import collections
import functools
import sys
import textwrap
import typing
import unittest

from support import needs
import workerd
from workerd import InvalidParams, Worker


def method(function):
    worker = Worker()
    worker.method(function, name="m")
    found = worker._methods["m"]
    found.resolve()
    return found


def defined(source, name="m"):
    """A function from source that not every Python can parse."""
    scope = {"typing": typing}
    exec(compile(textwrap.dedent(source), "<test>", "exec", dont_inherit=True), scope)
    return scope[name]


def call(function, **params):
    found = method(function)
    args, kwargs = found.bind(params)
    return found.function("MODEL", "CTX", *args, **kwargs)


class Binding(unittest.TestCase):
    def refused(self, function, params, *patterns):
        with self.assertRaises(InvalidParams) as caught:
            call(function, **params)
        for pattern in patterns:
            self.assertRegex(str(caught.exception), pattern)
        return caught.exception

    def test_names(self):
        def m(model, ctx, image, lang="eng", *, dpi=300):
            return model, ctx, image, lang, dpi
        self.assertEqual(("MODEL", "CTX", "a", "eng", 300), call(m, image="a"))
        self.assertEqual(("MODEL", "CTX", "a", "deu", 70), call(m, image="a", lang="deu", dpi=70))
        e = self.refused(m, {}, "missing parameter image", "takes image, lang, dpi")
        self.assertEqual({"missing": ["image"], "unknown": []}, e.data)
        e = self.refused(m, {"imgae": 1, "image": 1}, "unknown parameter imgae")
        self.assertEqual({"missing": [], "unknown": ["imgae"]}, e.data)

    def test_model_and_ctx_are_no_parameters(self):
        def m(model, ctx, x=0):
            return x
        for name in ("model", "ctx"):
            self.refused(m, {name: 1}, "unknown parameter " + name)

    @needs("python3.8", sys.version_info >= (3, 8), "positional-only parameters came with it")
    def test_parameters_named_model_and_ctx(self):
        def others(model, ctx, *, lang="eng", **params):
            return model, ctx, lang, params
        self.assertEqual(("MODEL", "CTX", "x", {"model": 1, "ctx": 2}), call(others, model=1, ctx=2, lang="x"))
        self.assertEqual(("M", "C", "eng", {}), others("M", "C"))  # the function itself is left alone
        with self.assertRaises(TypeError):
            others("M", "C", model=1)
        slash = defined("""
            def m(m, c, first=0, /, model=1, ctx=2):
                return m, c, first, model, ctx
            """)
        self.assertEqual(("MODEL", "CTX", 0, 7, 8), call(slash, model=7, ctx=8))
        self.assertEqual(("MODEL", "CTX", 5, 1, 2), call(slash, first=5))

    def test_closures_and_defaults_survive(self):
        outer = 5

        def m(model, ctx, a=1, *, b=2, **rest):
            return [lambda: model][0](), outer, a, b, rest
        self.assertEqual(("MODEL", 5, 1, 3, {"c": 4}), call(m, b=3, c=4))

    def test_other_callables(self):
        class Thing:
            def bound(self, model, ctx, x: int):
                return x

            def __call__(self, model, ctx, x: int = 3):
                return x

        def plain(model, ctx, x: int, **rest):
            return x

        @functools.wraps(plain)
        def wrapped(*args, **kwargs):
            return plain(*args, **kwargs)
        self.assertEqual(1, call(Thing().bound, x=1))
        self.assertEqual(3, call(Thing()))
        self.refused(Thing().bound, {"x": "1"}, "x: want an integer")
        part = functools.partial(lambda model, ctx, x, y: (x, y), y=9)
        self.assertEqual((1, 9), call(part, x=1))
        self.assertEqual(2, call(wrapped, x=2, y=3))
        self.refused(wrapped, {"x": "2"}, "x: want an integer")
        self.refused(wrapped, {"x": 2, "model": 3}, "unknown parameter model")  # the wrapper would pass it on by name

    def test_refused_at_the_decorator(self):
        async def coroutine(model, ctx):
            pass
        worker = Worker()
        for function in (coroutine, lambda model: 0, lambda: 0, lambda *, model, ctx: 0):
            with self.assertRaises(TypeError):
                worker.method(function, name="m")
        for name in ("ping", "initialize", "workerd.status", "notifications/x"):
            with self.assertRaises(ValueError):
                worker.method(lambda model, ctx: 0, name=name)
        worker.method(lambda *args: 0, name="m")
        with self.assertRaises(ValueError):
            worker.method(lambda model, ctx: 0, name="m")
        worker.load(lambda ctx: 0)
        with self.assertRaises(ValueError):
            worker.load(lambda ctx: 0)

    def test_the_decorator_with_a_name(self):
        worker = Worker()

        @worker.method(name="read-page")
        def read_page(model, ctx):
            return 1
        self.assertEqual(["read-page"], list(worker._methods))
        self.assertEqual(1, read_page(None, None))


Named = collections.namedtuple("Named", "hint schema good bad")
CASES = [
    Named(int, {"type": "integer"}, [0, -1, 2 ** 70], [1.0, True, "1", None]),
    Named(float, {"type": "number"}, [0, 1.5], [False, "1", None]),
    Named(str, {"type": "string"}, ["", "x"], [1, None, ["x"]]),
    Named(bool, {"type": "boolean"}, [True, False], [0, 1, "true"]),
    Named(list, {"type": "array"}, [[], [1, "a"]], [{}, "ab", 1]),
    Named(dict, {"type": "object"}, [{}, {"a": 1}], [[], "a"]),
    Named(type(None), {"type": "null"}, [None], [0]),
    Named(typing.Any, {}, [None, 1, [1]], []),
    Named(bytes, {}, ["not checked"], []),
    Named(typing.Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["1", True]),
    Named(typing.Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [1.5, None]),
    Named(typing.Union[int, bytes], {}, [1, None], []),
    Named(typing.List[int], {"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["a"], [1, True], 1]),
    Named(typing.List[typing.List[float]], {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
          [[[1, 2.5], []]], [[1], [["a"]]]),
    Named(typing.List, {"type": "array"}, [[1, "a"]], ["a"]),
    Named(typing.Sequence[str], {"type": "array", "items": {"type": "string"}}, [["a"]], ["a", [1]]),
    Named(typing.Dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "1"}, []]),
    Named(typing.Dict, {"type": "object"}, [{"a": "b"}], [1]),
    Named(typing.Tuple[int, int], {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}},
          [[1, 2]], [[1], [1, 2, 3], [1, "2"]]),
    Named(typing.Tuple[int, str], {"type": "array", "minItems": 2, "maxItems": 2}, [[1, "a"]], [[1]]),
    Named(typing.Tuple[float, ...], {"type": "array", "items": {"type": "number"}}, [[], [1, 2.5]], [["a"]]),
]
if sys.version_info >= (3, 8):
    CASES.append(Named(typing.Literal["a", 1, None], {"enum": ["a", 1, None]}, ["a", 1, None], ["b", True, 1.0]))
if sys.version_info >= (3, 9):
    CASES.append(Named(list[int], {"type": "array", "items": {"type": "integer"}}, [[1]], [["a"]]))
    CASES.append(Named(typing.Annotated[int, "pages"], {"type": "integer"}, [1], ["a"]))
if sys.version_info >= (3, 10):
    CASES.append(Named(int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["a"]))


class Annotations(unittest.TestCase):
    def test_each(self):
        for case in CASES:
            def m(model, ctx, x):
                return x
            m.__annotations__ = {"x": case.hint}
            found = method(m)
            self.assertEqual(case.schema, found.schema()["properties"]["x"], case.hint)
            for value in case.good:
                self.assertEqual(([], {"x": value}), found.bind({"x": value}))
            for value in case.bad:
                with self.assertRaises(InvalidParams, msg="%s %r" % (case.hint, value)) as caught:
                    found.bind({"x": value})
                self.assertRegex(str(caught.exception), r"^x\b")

    def test_the_message_names_the_place_and_what_is_wanted(self):
        def m(model, ctx, pages: typing.List[int] = (), by: typing.Dict[str, typing.List[float]] = None, lang: str = ""):
            pass
        found = method(m)
        for params, message in (({"pages": [1, "two"]}, 'pages[1]: want an integer, got "two"'),
                                ({"by": {"a": [1, None]}}, "by.a[1]: want a number, got null"),
                                ({"by": 3}, "by: want an object or null, got 3"),
                                ({"lang": ["x" * 1000]}, None)):
            with self.assertRaises(InvalidParams) as caught:
                found.bind(params)
            if message:
                self.assertEqual(message, str(caught.exception))
            self.assertLess(len(str(caught.exception)), 200)
        self.assertEqual(([], {"by": None}), found.bind({"by": None}))  # None is its default

    def test_a_large_list_is_checked_fast(self):
        def m(model, ctx, x: typing.List[float]):
            return len(x)
        import time
        numbers = [0.5] * 1000000
        start = time.process_time()
        self.assertEqual(1000000, call(m, x=numbers))
        self.assertLess(time.process_time() - start, 1.0)

    def test_strings(self):
        m = defined("""
            from __future__ import annotations
            def m(model, ctx, a: int, b: typing.Optional[str] = None, **rest: float):
                return a
            """)
        self.assertEqual({"type": "object", "properties": {
            "a": {"type": "integer"}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}},
            "required": ["a"], "additionalProperties": {"type": "number"}}, method(m).schema())
        with self.assertRaises(InvalidParams):
            call(m, a="1")
        with self.assertRaises(InvalidParams):
            call(m, a=1, c="x")

    def test_names_that_do_not_exist_cost_the_checks_only(self):
        def m(model, ctx, a: "Missing", b: int = 0):  # noqa: F821
            return a
        self.assertEqual("x", call(m, a="x"))

    @needs("python3.14", sys.version_info >= (3, 14), "annotations are evaluated late since then")
    def test_late_annotations(self):
        m = defined("def m(model, ctx, a: Missing, b: int = 0):\n    return a\n")
        self.assertEqual("x", call(m, a="x"))


class Schemas(unittest.TestCase):
    def test_defaults_and_description(self):
        class Odd:
            pass

        def m(model, ctx, a, b: int = 3, c=(1, 2), d=Odd(), e=float("inf")):
            """Do it.

            In two paragraphs.
            """
        info = method(m).info()
        self.assertEqual("Do it.\n\nIn two paragraphs.", info["description"])
        self.assertEqual({"type": "object", "required": ["a"], "additionalProperties": False, "properties": {
            "a": {}, "b": {"type": "integer", "default": 3}, "c": {"default": [1, 2]}, "d": {}, "e": {}}}, info["inputSchema"])

    def test_others(self):
        self.assertIs(True, method(lambda model, ctx, **rest: 0).schema()["additionalProperties"])


if __name__ == "__main__":
    unittest.main()
