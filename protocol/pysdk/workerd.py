"""Serve a model to workerd, and call the models that workerd serves.

A worker:

    from workerd import Worker
    worker = Worker()

    @worker.load                        # runs once, before the worker is ready
    def load(ctx):
        return Model(ctx.weights)

    @worker.method                      # model and ctx by position, the rest are the request's parameters
    def recognize(model, ctx, image: str, lang: str = "eng"):
        ctx.progress(0.1, "decoding")
        ctx.check_cancelled()
        return {"text": model.read(image)}

    if __name__ == "__main__":
        worker.run()

A caller:

    from workerd import Client
    text = Client("ocr").call("recognize", image="/data/page.png", timeout=60)["text"]

One file, standard library only, Python 3.7 and later. What travels on the socket is described in workerd's
protocol/PROTOCOL.md. The module imports little, since every worker waits for it at its start.
"""
import collections
import itertools
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time

__all__ = ["Worker", "Context", "InvalidParams", "WorkerError", "Cancelled", "Client", "AsyncClient", "WorkerdError"]

PROTOCOL = 1
MAX_FILES = 16  # file descriptors that can travel with one message
MAX_MESSAGE = 64 << 20  # bytes of a line, until workerd says otherwise
SLACK = 64  # that many more are taken: workerd puts numbers of its own in place of a request's id and progress token

# kind: (code, retryable), the same table as in PROTOCOL.md.
KINDS = {
    "parse_error": (-32700, False),
    "invalid_request": (-32600, False),
    "method_not_found": (-32601, False),
    "invalid_params": (-32602, False),
    "worker_error": (-32000, False),
    "invalid_response": (-32001, False),
    "worker_crashed": (-32010, True),
    "worker_start_failed": (-32011, False),
    "provider_failed": (-32012, False),
    "provider_stopped": (-32013, False),
    "shutting_down": (-32014, True),
    "engine_unavailable": (-32015, True),
    "no_gpu": (-32016, True),
    "queue_full": (-32020, True),
    "deadline_exceeded": (-32021, True),
    "cancelled": (-32022, False),
    "too_large": (-32023, False),
    "connection_lost": (-32099, False),  # of clients; never on a socket
}


class WorkerError(Exception):
    """Raise it in a method to answer with an error of your own kind, without a traceback.

    kind is a short name such as "out_of_memory"; retryable says whether the same request may succeed later; data is anything
    JSON can carry and arrives as `data["detail"]`.
    """

    def __init__(self, kind, retryable=False, data=None, message=None):
        if message is None:
            message = data if isinstance(data, str) else kind
        super().__init__(message)
        self.kind, self.retryable, self.data, self.message = kind, retryable, data, message


class InvalidParams(WorkerError):
    """Raise it in a method whose parameters make no sense: the caller gets the message, without a traceback."""

    def __init__(self, message, data=None):
        super().__init__("invalid_params", False, data, message)


class Cancelled(BaseException):
    """The request is no longer wanted. Not an Exception, so that `except Exception` in a method does not swallow it."""


class WorkerdError(Exception):
    """A call that failed.

    kind says why (see KINDS; a worker may have kinds of its own), retryable whether calling again makes sense, code is the
    JSON-RPC error code, data the error's data: provider, worker and detail, where known.
    """

    def __init__(self, kind, message, code=None, retryable=None, data=None):
        super().__init__(kind, message)
        known = KINDS.get(kind, (-32000, False))
        self.kind = kind
        self.message = message
        self.code = known[0] if code is None else code
        self.retryable = known[1] if retryable is None else retryable
        self.data = {} if data is None else data

    def __str__(self):
        return "%s: %s" % (self.kind, self.message)

    def __reduce__(self):
        return WorkerdError, (self.kind, self.message, self.code, self.retryable, self.data)


# --- JSON ------------------------------------------------------------------------------------------------------------


class _Unserialisable(Exception):
    """A value that JSON cannot carry; the message names the place and what stands there."""


def _loads(line):
    """Decode one line. Raises ValueError where it is not JSON."""
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _no_constant(name):
    raise ValueError("%s is not JSON" % name)


def _dumps(value, place):
    """Encode a value as UTF-8 JSON: what json knows, numpy's scalars and arrays, dataclasses, paths.

    Raises _Unserialisable with the place, which starts with the given word: result.scores[3].
    """
    try:
        return _encode(value, _simplify)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the encoder does not say where: walk
    try:
        return _encode(_plain(value, place, set()), None)
    except RecursionError:
        raise _Unserialisable("%s is nested too deep" % place) from None


def _encode(value, default):
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default).encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, as in names of files that are not UTF-8
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=default).encode("ascii")


def _simplify(value):
    """Turn what json does not know into something nearer to what it knows."""
    tolist = getattr(value, "tolist", None)
    if callable(tolist) and not isinstance(value, type):  # numpy, and what follows its ways
        simple = tolist()
        if type(simple) is not type(value):
            return simple
    if hasattr(type(value), "__dataclass_fields__"):
        import dataclasses
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise TypeError(_type_name(type(value)))


def _plain(value, place, around):
    """The slow way of _dumps: copy the value into plain dicts and lists, and name the place where that fails."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise _Unserialisable("%s is %s, which JSON cannot carry" % (place, _float_name(value)))
        return value
    if id(value) in around:
        raise _Unserialisable("%s contains itself" % place)
    around.add(id(value))
    if isinstance(value, dict):
        plain = {}
        for key, item in value.items():
            plain[_plain_key(key, place)] = _plain(item, "%s.%s" % (place, key), around)
    elif isinstance(value, (list, tuple)):
        plain = [_plain(item, "%s[%d]" % (place, i), around) for i, item in enumerate(value)]
    else:
        try:
            simple = _simplify(value)
        except TypeError:
            raise _Unserialisable("%s is of type %s, which JSON cannot carry" % (place, _type_name(type(value)))) from None
        except Exception as e:  # a foreign tolist or __fspath__ may raise anything
            raise _Unserialisable("%s cannot be converted: %s: %s" % (place, _type_name(type(e)), e)) from None
        plain = _plain(simple, place, around)
    around.discard(id(value))
    return plain


def _plain_key(key, place):
    if isinstance(key, str) or key is None or isinstance(key, (bool, int)):
        return key
    if callable(getattr(key, "tolist", None)):
        key = key.tolist()
        if isinstance(key, (str, bool, int)):
            return key
    if isinstance(key, float) and key == key and key not in (float("inf"), float("-inf")):
        return key
    raise _Unserialisable("%s has the key %s of type %s, which JSON cannot carry" % (place, _short(key), _type_name(type(key))))


def _float_name(value):
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _type_name(kind):
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else "%s.%s" % (kind.__module__, kind.__qualname__)


def _short(value, most=60):
    """A value as JSON where it can be, cut to a readable length."""
    if isinstance(value, str):
        value = value[:most]
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= most else text[:most - 3] + "..."


def _error(kind, message, detail=None, retryable=None):
    """The error object of an answer."""
    code, known = KINDS.get(kind, (-32000, False))
    data = {"kind": kind, "retryable": known if retryable is None else bool(retryable)}
    if detail is not None:
        data["detail"] = detail
    return {"code": code, "message": message, "data": data}


# --- Lines and descriptors over a socket -----------------------------------------------------------------------------


class _TooLong(Exception):
    """A line beyond the limit; the rest of it is dropped as it arrives."""


class _Lines:
    """Cuts what a socket receives into lines, and puts file descriptors to the line that they came with.

    Descriptors travel with the sendmsg that carries their line's first byte, which carries nothing of another line; the
    kernel ends a receive with such a sendmsg. So they belong to the line of the last byte received with them.
    """

    CHUNK = 256 << 10
    RIGHTS = socket.CMSG_SPACE(MAX_FILES * struct.calcsize("i"))

    def __init__(self, limit=None):
        self.limit = limit
        self.buffer = bytearray()
        self.scanned = 0  # no newline stands before here
        self.start = 0  # position in the stream of the buffer's first byte
        self.files = []  # (position in the stream, [fd, ...])
        self.lost = -1  # position of the last byte whose descriptors did not all arrive
        self.skipping = False

    def receive(self, sock):
        """Receive once; False at the end of input. Raises BlockingIOError where there is nothing."""
        data, rights, flags, _ = sock.recvmsg(self.CHUNK, self.RIGHTS, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        self.buffer += data
        last = self.start + len(self.buffer) - 1
        fds = []
        for level, kind, packed in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                count = len(packed) // 4
                fds.extend(struct.unpack("%di" % count, packed[:4 * count]))
        if fds:
            self.files.append((last, fds))
        if flags & socket.MSG_CTRUNC:
            self.lost = last
        return bool(data)

    def next(self):
        """The next line as (bytes, [fd, ...]), None where there is no whole one. Raises _TooLong, once for a line.

        None stands for the descriptors where they did not all arrive."""
        while True:
            at = self.buffer.find(b"\n", self.scanned)
            if at < 0:
                self.scanned = len(self.buffer)
                if self.skipping:
                    _close_all(self._take(self.scanned)[1])
                elif self.limit is not None and self.scanned > self.limit + 1:  # one more may be a carriage return
                    self.skipping = True
                    _close_all(self._take(self.scanned)[1])
                    raise _TooLong
                return None
            line, fds = self._take(at, 1)
            if self.skipping:
                self.skipping = False
                _close_all(fds)
                continue
            if line.endswith(b"\r"):
                line = line[:-1]
            if self.limit is not None and len(line) > self.limit:
                _close_all(fds)
                raise _TooLong
            if line.strip(b" \t\r"):
                return line, fds
            _close_all(fds)

    def last(self):
        """What stands behind the last newline when the input has ended, as next does; None where that is nothing."""
        line, fds = self._take(len(self.buffer))
        if line.strip(b" \t\r") and not self.skipping:
            return line, fds
        _close_all(fds)
        return None

    def _take(self, size, newline=0):
        line = bytes(memoryview(self.buffer)[:size])
        del self.buffer[:size + newline]
        self.scanned = 0
        begin = self.start
        self.start += size + newline
        fds = []
        while self.files and self.files[0][0] < self.start:
            fds.extend(self.files.pop(0)[1])
        if begin <= self.lost < self.start or len(fds) > MAX_FILES:
            _close_all(fds)
            fds = None
        return line, fds

    def close(self):
        for _, fds in self.files:
            _close_all(fds)
        self.files = []


class _Output:
    """What is to be sent: whole lines, in order, each with its descriptors on its first byte."""

    def __init__(self):
        self.parts = collections.deque()  # [memoryview, [fd, ...]]
        self.size = 0
        self.sent = 0  # bytes the kernel has taken so far, of all lines

    def add(self, line, fds):
        self.parts.append([memoryview(line), list(fds)])
        self.size += len(line)

    def flush(self, sock):
        """Send what the kernel takes without waiting. Raises OSError where the peer is gone."""
        while self.parts:
            part = self.parts[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("%di" % len(part[1]), *part[1]))] if part[1] else []
            try:
                sent = sock.sendmsg([part[0]], rights, getattr(socket, "MSG_NOSIGNAL", 0) | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            _close_all(part[1])
            part[1] = []
            self.size -= sent
            self.sent += sent
            part[0] = part[0][sent:]
            if not part[0]:
                self.parts.popleft()

    def drop(self):
        for _, fds in self.parts:
            _close_all(fds)
        self.parts.clear()
        self.size = 0


def _close_all(fds):
    for fd in fds or ():
        try:
            os.close(fd)
        except OSError:
            pass


def _duplicate(files):
    """Descriptors of our own for what the caller gave: numbers, or objects with fileno()."""
    if len(files) > MAX_FILES:
        raise ValueError("at most %d files can travel with one message, got %d" % (MAX_FILES, len(files)))
    fds = []
    try:
        for file in files:
            fds.append(os.dup(file if isinstance(file, int) else file.fileno()))
    except BaseException:
        _close_all(fds)
        raise
    return fds


# --- Methods: signatures, parameters, schemas ------------------------------------------------------------------------


class _Method:
    """A function that can be called from the wire: its parameters, their checks and their schema."""

    def __init__(self, name, function):
        import inspect  # not at the module's import: callers do not need it
        self.name = name
        self.original = self.function = function
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("method %s: an async function cannot be a method; call asyncio.run in a plain one" % name)
        try:
            signature = inspect.signature(function)
        except NameError:  # Python 3.14 evaluates annotations late; one names what is not defined (yet)
            import annotationlib
            signature = inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        parameters = list(signature.parameters.values())
        kinds = [p.kind for p in parameters]
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if len([kind for kind in kinds[:2] if kind in positional]) < 2 and inspect.Parameter.VAR_POSITIONAL not in kinds[:2]:
            raise TypeError("method %s: its first two parameters are the model and ctx, by position" % name)
        own = [p for p in parameters[:2] if p.kind in positional]
        rest = [p for p in parameters[len(own):] if p.kind is not inspect.Parameter.VAR_POSITIONAL]
        self.by_position = [p.name for p in rest if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        self.parameters = collections.OrderedDict((p.name, p) for p in rest if p.kind is not inspect.Parameter.VAR_KEYWORD)
        self.others = next((p for p in rest if p.kind is inspect.Parameter.VAR_KEYWORD), None)
        self.empty = inspect.Parameter.empty
        # The names of the model and ctx can be parameters too where Python would not take them for these two.
        self.taken = {p.name for p in own if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}
        if self.others is not None and self.taken and inspect.isfunction(function):
            self.function, self.taken = _positional_only(function, len(own), self.taken)
        self.description = inspect.getdoc(function) if getattr(function, "__doc__", None) else None
        self.schemas = {}  # of each parameter; what is checked is what callers are shown

    def resolve(self):
        """Look at the annotations, now that all names of the module are defined."""
        found = list(self.parameters.values()) + ([self.others] if self.others is not None else [])
        hints = {p.name: p.annotation for p in found if p.annotation is not self.empty}
        if any(isinstance(hint, str) or type(hint).__name__ == "ForwardRef" for hint in hints.values()):
            import typing
            try:
                hints = typing.get_type_hints(self.original)
            except Exception:  # a name that exists only for type checkers: no checks then
                hints = {}
        for p in found:
            self.schemas[p.name] = _schema(hints.get(p.name))
            if p.default is None and _mismatch(self.schemas[p.name], None, "") is not None:
                self.schemas[p.name] = {"anyOf": self.schemas[p.name].get("anyOf", [self.schemas[p.name]]) + [{"type": "null"}]}

    def schema(self):
        properties = {}
        for name, p in self.parameters.items():
            properties[name] = dict(self.schemas[name])
            if p.default is not self.empty:
                try:
                    properties[name]["default"] = json.loads(_dumps(p.default, name).decode("utf-8"))
                except _Unserialisable:
                    pass
        schema = {"type": "object", "properties": properties}
        required = [name for name, p in self.parameters.items() if p.default is self.empty]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = (self.schemas[self.others.name] or True) if self.others else False
        return schema

    def info(self):
        info = {"name": self.name, "inputSchema": self.schema()}
        if self.description:
            info["description"] = self.description
        return info

    def bind(self, params):
        """What to pass after model and ctx, as (args, kwargs). Raises InvalidParams with the parameter's name."""
        missing = [name for name, p in self.parameters.items() if p.default is self.empty and name not in params]
        unknown = [name[:100] for name in params if name not in self.parameters and (self.others is None or name in self.taken)]
        if missing or unknown:
            said = ["missing parameter %s" % name for name in missing] + ["unknown parameter %s" % name for name in unknown]
            takes = ", ".join(self.parameters) or "no parameters"
            raise InvalidParams("%s (%s takes %s)" % ("; ".join(said), self.name, takes), {"missing": missing, "unknown": unknown})
        for name, value in params.items():
            wrong = _mismatch(self.schemas[name if name in self.parameters else self.others.name], value, name)
            if wrong:
                raise InvalidParams(wrong, {"parameter": name})
        kwargs = dict(params)
        args = [kwargs.pop(n) if n in kwargs else self.parameters[n].default for n in self.by_position]
        return args, kwargs


def _positional_only(function, count, taken):
    """A copy of the function whose first parameters are positional only, and the names that still cannot be passed."""
    code = function.__code__
    if not hasattr(code, "replace") or getattr(function, "__wrapped__", None) is not None or code.co_argcount < count:
        return function, taken  # Python 3.7, or a decorator's function, which passes on what it gets
    kind = type(function)
    copy = kind(code.replace(co_posonlyargcount=max(count, code.co_posonlyargcount)), function.__globals__,
                function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy, set()


_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", list: "array", tuple: "array",
           dict: "object"}
_ARRAYS = ("list", "tuple", "set", "frozenset", "Sequence", "MutableSequence", "Iterable", "Collection", "Set")
_OBJECTS = ("dict", "OrderedDict", "defaultdict", "Mapping", "MutableMapping")
_TYPES = {"string": {str}, "integer": {int}, "number": {int, float}, "boolean": {bool}, "null": {type(None)}, "array": {list},
          "object": {dict}}  # what the decoder makes of each
_WANTED = {"string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false", "null": "null",
           "array": "a list", "object": "an object"}


def _schema(hint):
    """The JSON Schema of an annotation; {} where it says nothing about JSON."""
    if hint is None:
        return {}
    if isinstance(hint, type) and hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if hasattr(hint, "__metadata__"):  # Annotated
        return _schema(hint.__origin__)
    args = getattr(hint, "__args__", None) or ()
    origin = getattr(hint, "__origin__", None)
    name = getattr(origin, "__name__", None) or getattr(origin, "_name", None)
    if name == "Union" or type(hint).__name__ == "UnionType":
        schemas = [_schema(arg) for arg in args]
        return {"anyOf": schemas} if all(schemas) else {}
    if name == "Literal":
        return {"enum": list(args)}
    if name == "tuple" and args and args[-1] is not Ellipsis and not hasattr(args[0], "__bound__"):
        schema = {"type": "array", "minItems": len(args), "maxItems": len(args)}
        items = [_schema(arg) for arg in args]
        if items[0] and items.count(items[0]) == len(items):
            schema["items"] = items[0]
        return schema
    if name in _ARRAYS:
        items = _schema(args[0]) if args else {}
        return {"type": "array", "items": items} if items else {"type": "array"}
    if name in _OBJECTS:
        values = _schema(args[1]) if len(args) == 2 else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    return {}


def _mismatch(schema, value, place):
    """What is wrong with a value, for people; None where it fits. It knows the schemas that _schema makes."""
    if "enum" in schema:
        fits = any(type(value) is type(each) and value == each for each in schema["enum"])
        return None if fits else _wrong(schema, value, place)
    if "anyOf" in schema:
        wrongs = [_mismatch(each, value, place) for each in schema["anyOf"]]
        if None in wrongs:
            return None
        inner = [wrong for wrong in wrongs if not wrong.startswith(place + ":")]  # the type was right, something in it is not
        return inner[0] if len(inner) == 1 else _wrong(schema, value, place)
    kind = schema.get("type")
    if kind is None:
        return None
    if type(value) not in _TYPES[kind]:
        return _wrong(schema, value, place)
    if kind == "array":
        if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value)):
            return "%s: want a list of %d, got %d" % (place, schema["minItems"], len(value))
        inside, key, items = value, "%s[%s]", schema.get("items")
    elif kind == "object":
        inside, key, items = value.values(), "%s.%s", schema.get("additionalProperties")
    else:
        return None
    if not items or set(map(type, inside)) <= _TYPES.get(items.get("type"), set()) and len(items) == 1:
        return None  # the everyday case, without a look at each of a million numbers in Python
    names = value if kind == "object" else range(len(value))
    wrongs = (_mismatch(items, item, key % (place, name)) for name, item in zip(names, inside))
    return next((wrong for wrong in wrongs if wrong), None)


def _wrong(schema, value, place):
    return "%s: want %s, got %s" % (place, _wanted(schema), _short(value))


def _wanted(schema):
    if "enum" in schema:
        return "one of " + ", ".join(_short(each) for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_wanted(each) for each in schema["anyOf"])
    return _WANTED[schema["type"]]


# --- The worker ------------------------------------------------------------------------------------------------------


class Context:
    """What a load function or a method can ask for and say.

    weights, work_root, provider_dir: paths, None where the manifest names none.
    gpus: what was placed for this worker, a list of strings.
    request_id: as workerd numbers the request; None in load.
    deadline: the time.monotonic() at which the caller gives up, None where it does not.
    files: the file descriptors that came with the request. What is left in the list is closed after the request.
    """

    INTERVAL = 0.02  # at most so often is progress sent; of what comes between, the last

    def __init__(self, service, job=None):
        self.weights = os.environ.get("WORKERD_WEIGHTS") or None
        self.work_root = os.environ.get("WORKERD_WORK_ROOT") or None
        self.provider_dir = os.environ.get("WORKERD_PROVIDER_DIR") or None
        self.gpus = [gpu for gpu in os.environ.get("WORKERD_GPUS", "").split(",") if gpu]
        self.request_id = job.id if job else None
        self.deadline = job.deadline if job else None
        self.files = job.files if job else []
        self._service, self._job = service, job
        self._attached = []
        self._tmp = None
        self._lock = threading.Lock()  # guards what follows
        self._latest = None  # progress that is not sent yet
        self._next = 0.0  # when the next may be sent
        self._over = False

    @property
    def log(self):
        """A logging.Logger; what it writes goes to the worker's output, where `workerd logs` finds it."""
        return _logger()

    @property
    def tmp(self):
        """A folder for this request alone, made when first asked for and removed after the request."""
        with self._lock:
            if self._tmp is None:
                import tempfile
                self._tmp = tempfile.mkdtemp(prefix="r")
            return self._tmp

    @property
    def cancelled(self):
        """Whether the request is no longer wanted."""
        return self._job is not None and self._job.cancelled

    def check_cancelled(self):
        """Raise Cancelled where the request is no longer wanted: the caller cancelled or left, or the deadline passed."""
        if self.cancelled:
            raise Cancelled

    def progress(self, value, message=None, total=1):
        """Tell the caller how far the request is: value of total, in words where you like.

        Call it as often as you like: it costs little and at most 50 a second are sent, always the last. Without a known
        end say total=None.
        """
        if self._job is not None and self._job.token is None:
            return
        report = {"progress": _finite(value)}
        if total is not None and (total != 1 or report["progress"] <= 1):
            report["total"] = _finite(total)
        if message is not None:
            report["message"] = str(message)
        with self._lock:
            if self._over:
                return
            waiting, self._latest = self._latest is not None, report
            now = time.monotonic()
            if now >= self._next:
                self._send_latest(now)
            elif not waiting:
                self._service.remind(self, self._next)

    def attach(self, file):
        """Send a file descriptor (a number or an object with fileno()) with the result; returns its index among those sent.

        The descriptor is duplicated: yours stays yours.
        """
        if len(self._attached) == MAX_FILES:
            raise ValueError("at most %d files can travel with one message" % MAX_FILES)
        self._attached += _duplicate([file])
        return len(self._attached) - 1

    def _send_latest(self, now):
        if self._latest is not None:
            self._service.report(self._job, self._latest)
            self._latest = None
            self._next = now + self.INTERVAL

    def _flush(self):
        with self._lock:
            self._send_latest(time.monotonic())

    def _finish(self):
        """No progress after this: the answer comes next."""
        with self._lock:
            self._send_latest(0)
            self._over = True

    def _clean(self):
        _close_all(self.files)
        _close_all(self._attached)
        self.files, self._attached = [], []
        if self._tmp is not None:
            import shutil
            shutil.rmtree(self._tmp, ignore_errors=True)


def _finite(value):
    number = value if type(value) in (int, float) else float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("progress must be a finite number, got %r" % (value,))
    return number


def _logger():
    import logging
    log = logging.getLogger("workerd")
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.propagate = False
        log.setLevel(logging.INFO)
    return log


class _Job:
    """A request from its arrival to its answer."""

    def __init__(self, connection, id, method, args, token, deadline, files):
        self.connection, self.id, self.method, self.args = connection, id, method, args
        self.token, self.deadline, self.files = token, deadline, files
        self.cancelled = False


class _Connection:
    """One connection from workerd. The reader thread receives and closes; any thread sends."""

    def __init__(self, service, sock):
        self.service, self.sock = service, sock
        self.lines = _Lines(service.max_message + SLACK)
        self.jobs = {}  # by id; guarded by the service's lock
        self.waits = False  # was told "loading" or "busy", and is to be told when that is over
        self.ended = False  # the peer has ended its input
        self.events = None  # what the reader polls for
        self.lock = threading.Lock()  # guards what follows
        self.output = _Output()
        self.open = True

    def send(self, line, fds=()):
        """Send one line, or as much as the kernel takes; the reader thread sends the rest. Owns the descriptors."""
        with self.lock:
            if not self.open:
                _close_all(fds)
                return
            self.output.add(line, fds)
            self._flush()
            done = self.open and not self.output.size
        if not done:
            self.service.wake()

    def flush(self):
        with self.lock:
            if self.open:
                self._flush()

    def _flush(self):
        try:
            self.output.flush(self.sock)
        except OSError:  # the peer is gone
            self.output.drop()
            self.open = False

    def notify(self, method, params):
        self.send(_line({"jsonrpc": "2.0", "method": method, "params": params}))

    def answer(self, id, result):
        self.send(_line({"jsonrpc": "2.0", "id": id, "result": result}))

    def refuse(self, id, kind, message, detail=None):
        try:
            self.send(_line({"jsonrpc": "2.0", "id": id, "error": _error(kind, message, detail)}))
        except ValueError:  # an id such as 1e999
            self.send(_line({"jsonrpc": "2.0", "id": id, "error": _error(kind, message)}))


def _line(message):
    return _encode(message, None) + b"\n"


class Worker:
    """A worker: a load function, methods, and run() to serve them. See the top of this file."""

    def __init__(self, name=None):
        self.name = name or os.path.basename(sys.argv[0] or "worker")
        self._preload = self._load = None
        self._methods = collections.OrderedDict()
        if "WORKERD_SOCKET" in os.environ:
            _protect_output()

    def preload(self, function):
        """Decorator: what can be done before the worker is needed, such as imports; nothing on the GPU. Runs before load.

        With serve.standby = "warm" a spare worker stops after it, and loads when it is to take over. Its one parameter is a Context.
        """
        if self._preload is not None:
            raise ValueError("there is a preload function already: %s" % self._preload.__name__)
        self._preload = function
        return function

    def load(self, function):
        """Decorator: makes the model. Its one parameter is a Context; what it returns is the first argument of methods."""
        if self._load is not None:
            raise ValueError("there is a load function already: %s" % self._load.__name__)
        self._load = function
        return function

    def method(self, function=None, *, name=None):
        """Decorator, also as @worker.method(name="other-name"): a function that can be called from outside.

        It gets the model and a Context by position; all its other parameters come from the request, checked against their
        annotations. Its docstring is the method's description.
        """
        if function is None:
            return lambda function: self.method(function, name=name)
        name = name or function.__name__
        if name in ("initialize", "ping") or name.startswith(("workerd.", "notifications/")):
            raise ValueError("method %s: the name is reserved" % name)
        if name in self._methods:
            raise ValueError("method %s: there is one of that name already" % name)
        self._methods[name] = _Method(name, function)
        return function

    def run(self):
        """Serve until SIGTERM; does not return. In a child process of multiprocessing, which runs the file again, it does nothing."""
        if _in_child():
            return
        path = os.environ.get("WORKERD_SOCKET")
        if not path:
            sys.stderr.write(_BY_HAND.format(script=sys.argv[0] or "worker.py"))
            sys.exit(2)
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("run() must be called on the main thread: it handles SIGTERM and runs the requests there")
        try:
            service = _Service(self, path)
        except OSError as e:
            sys.stderr.write("workerd: cannot listen on WORKERD_SOCKET=%s: %s\n" % (path, e))
            sys.exit(1)
        _protect_output()
        _fault_handler()
        service.run()


_BY_HAND = """{script}: this is a worker of workerd, which starts it and sets WORKERD_SOCKET. To serve without workerd:
    WORKERD_SOCKET=/tmp/worker.sock python3 {script}
and in another terminal:
    echo '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocol":1}}}}' | socat -t9 - UNIX-CONNECT:/tmp/worker.sock
"""


def _in_child():
    """Whether this process is a child of multiprocessing, which ran the worker's file to find its functions."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    current = process.current_process()
    return getattr(current, "_inheriting", False) or type(current).__name__ != "_MainProcess"


def _protect_output():
    """Make print and logging unable to fail: a full disk or a reader that has gone costs output, not the worker."""
    import io

    class Sink(io.FileIO):
        protects = True

        def write(self, data):
            view = memoryview(data).cast("B")
            size = len(view)
            while view:
                try:
                    written = super().write(view)
                except OSError:
                    break
                if not written:
                    break
                view = view[written:]
            return size

    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        try:
            if getattr(old.buffer, "protects", False):
                continue
            sink = Sink(old.fileno(), "w", closefd=False)
        except (AttributeError, ValueError, OSError):  # none, closed, or not a file
            continue
        try:
            old.flush()
        except OSError:
            pass
        setattr(sys, name, io.TextIOWrapper(sink, "utf-8", "backslashreplace", newline="\n", write_through=True))


def _say(text):
    """Write to stderr, whatever a program has put in its place."""
    try:
        sys.stderr.write(text)
    except Exception:
        pass


def _fault_handler():
    """Have a crash in native code say where it was."""
    import faulthandler
    try:
        faulthandler.enable()
    except (AttributeError, ValueError, OSError):
        pass


class _Service:
    """A worker process at work.

    The reader thread accepts, receives, sends what is left over, and answers initialize, ping and what is wrong. Requests run
    on the main thread, or on a pool where workerd asked for a concurrency above one. The lock guards all that both touch;
    a connection's own lock is taken inside it, never the other way round.
    """

    STOP_BYTE = bytes([signal.SIGTERM])
    CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
    DRAIN = 10.0  # seconds for the last answers to be received by a peer that is slow
    LEAVE = 2.0  # seconds from the last answer to the end of the process, whatever its threads and exit handlers do

    def __init__(self, worker, path):
        self.worker = worker
        self.pid = os.getpid()
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.setblocking(False)
        self.listener.bind(path)
        self.listener.listen(128)
        self.max_message = MAX_MESSAGE
        self.methods = worker._methods
        self.model = None

        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.connections = []
        self.queue = collections.deque()  # jobs that no thread has taken
        self.busy = 0  # jobs that are not answered yet, those in the queue included
        self.active = 0  # threads that are at a job
        self.concurrency = 1
        self.pool = 0  # threads of the pool
        self.loading = True
        self.warm = os.environ.get("WORKERD_STANDBY") == "warm"  # the model is not wanted yet
        self.wanted = threading.Lock()  # held until the model is wanted
        self.wanted.acquire()
        self.preloaded = False  # all is done that can be done before it is wanted
        self.load_report = None  # the latest progress of loading
        self.stopping = False
        self.stop_at = None  # when what still runs is given up
        self.leave_at = None  # when the process ends, whatever it is at
        self.exit_code = 0

        self.masks = {}  # signal masks of threads that are forking
        self.term = False  # SIGTERM has come
        self.reminders = {}  # context: when its latest progress may be sent
        self.poll = select.poll()
        # Python's own handler writes the number of a signal to this at once, even when the main thread is deep in a library.
        # A child that is between fork and exec still shares it, so each byte comes with its writer's pid.
        self.wake_read, self.wake_write = socket.socketpair()
        self.wake_read.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.wake_read.setblocking(False)
        self.wake_write.setblocking(False)

    def run(self):
        for method in self.methods.values():
            method.resolve()
        self.take_signal()
        os.register_at_fork(before=self.before_fork, after_in_parent=self.after_fork_here, after_in_child=self.after_fork)
        threading.Thread(target=self.read, name="workerd-reader", daemon=True).start()
        try:
            self.load()
            self.work(None)
            self.drain()
        except KeyboardInterrupt:
            self.exit_code = 130
        finally:
            self.remove_socket()
            self.leave_at = time.monotonic() + self.LEAVE
            self.wake()
        sys.exit(self.exit_code)

    def remove_socket(self):
        with self.lock:
            path, self.path = self.path, None
        if path is not None:
            try:
                os.unlink(path)
            except OSError:
                pass

    def take_signal(self):
        signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self.on_term)

    def on_term(self, signum, frame):
        # The reader knows by the wakeup descriptor. This runs when the main thread comes round to it; it is there so that a
        # load ends in the usual way, and for the case that a library has taken the descriptor.
        self.wake(self.STOP_BYTE)
        if self.loading:
            sys.exit(0)

    def wake(self, byte=b"\0"):
        try:
            self.wake_write.send(byte)
        except OSError:  # full: it will wake
            pass

    # A SIGTERM for a child just forked must end the child, not be told to its parent over the pipe that both still share.

    def before_fork(self):
        self.masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def after_fork_here(self):
        signal.pthread_sigmask(signal.SIG_SETMASK, self.masks.pop(threading.get_ident()))

    def after_fork(self):
        """In a forked child: it never serves, and holds nothing open that would hide the parent's death."""
        if signal.getsignal(signal.SIGTERM) == self.on_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self.after_fork_here()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.listener.close()
        for connection in self.connections:
            connection.lock = threading.Lock()
            connection.open = False
            connection.sock.close()
        self.wake_read.close()
        self.wake_write.close()

    def load(self):
        context = Context(self)
        try:
            if self.worker._preload is not None:
                self.worker._preload(context)
            self.stand_by(context)
            if self.worker._load is not None:
                self.model = self.worker._load(context)
        except SystemExit as e:
            self.exit_code = e.code if isinstance(e.code, int) else int(e.code is not None)
            raise
        except BaseException:
            import traceback
            _say(traceback.format_exc())
            self.exit_code = 1
            sys.exit(1)
        finally:
            context._finish()
            context._clean()
            self.end_if_forked()
        self.take_signal()  # a library may have made it its own
        with self.lock:
            self.loading = False
            self.tell_ready()
            self.changed.notify_all()

    def stand_by(self, context):
        """As a warm standby: wait until the model is wanted."""
        self.end_if_forked()
        self.take_signal()  # a library that was imported may have made it its own
        context._flush()
        with self.lock:
            if not self.warm:
                return
            self.load_report, self.preloaded = None, True
            for connection in self.connections:
                if connection.waits:
                    connection.notify("notifications/preloaded", {})
                    break
        # Not on the condition: on_term raises wherever the main thread is, and in a wait that may be while the lock is not held.
        self.wanted.acquire()

    def end_if_forked(self):
        if os.getpid() != self.pid:  # the method forked, and its child came back here
            os._exit(1)

    def tell_ready(self):
        """Tell those who wait for it that requests can run; with the lock held."""
        for connection in self.connections:
            if connection.waits:
                connection.waits = False
                connection.notify("notifications/ready", {})

    def report(self, job, report):
        """Send progress of a request, or of loading."""
        if job is not None:
            if not job.cancelled and job.connection.output.size < 1 << 20:  # the peer does not keep up: let it go
                job.connection.notify("notifications/progress", dict(report, progressToken=job.token))
            return
        with self.lock:
            self.load_report = report
            for connection in self.connections:
                if connection.waits:
                    connection.notify("notifications/progress", report)
                    break

    def remind(self, context, when):
        """Have the reader thread send a context's latest progress at that time."""
        with self.lock:
            self.reminders[context] = when
        self.wake()

    def work(self, index):
        """Run requests until the worker stops: on the main thread (index None), or as one of the pool."""
        while True:
            with self.lock:
                while not self.may_take(index):
                    if self.stopping and not self.queue and (index is not None or not self.active):
                        return
                    self.changed.wait()
                job = self.queue.popleft()
                self.active += 1
            self.run_job(job)
            with self.lock:
                self.active -= 1
                self.changed.notify_all()

    def may_take(self, index):
        if not self.queue:
            return False
        if self.concurrency == 1:
            return index is None and not self.active
        return index is not None and index < self.concurrency

    def run_job(self, job):
        context = Context(self, job)
        try:
            line, interrupted = self.answer_of(job, context), False
        except KeyboardInterrupt:
            line, interrupted = self.error_line(job, _error("worker_error", "interrupted")), True
        context._finish()
        with self.lock:  # as one: a connection that waits for its last answer is closed when it has no jobs
            self.forget(job)
            job.connection.send(line, context._attached)
        context._attached = []
        context._clean()
        if interrupted:
            raise KeyboardInterrupt

    def forget(self, job):
        """The job is answered, or nobody wants an answer: its slot is free; with the lock held."""
        if job.connection.jobs.get(job.id) is job:
            del job.connection.jobs[job.id]
        self.busy -= 1
        if not self.loading and self.busy < self.concurrency:
            self.tell_ready()
        if job.connection.ended:
            self.wake()  # a connection whose input has ended is closed after its last answer

    def answer_of(self, job, context):
        """Run the method; the line that answers the request."""
        try:
            context.check_cancelled()
            args, kwargs = job.args
            result = job.method.function(self.model, context, *args, **kwargs)
            body = _dumps(result, "result")
        except Cancelled:
            return self.failed(job, context, _error("cancelled", "the request was cancelled"))
        except WorkerError as e:
            return self.failed(job, context, self.declared(e))
        except _Unserialisable as e:
            return self.failed(job, context, _error("invalid_response", str(e)))
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # sys.exit too: a method does not end the worker
            message, detail = _describe(e)
            _say(detail["traceback"])
            return self.failed(job, context, _error("worker_error", message, detail))
        finally:
            self.end_if_forked()
        line = b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (_encode(job.id, None), body)
        if len(line) - 1 > self.max_message:
            return self.failed(job, context, self.too_large(len(line) - 1))
        return line

    def failed(self, job, context, error):
        _close_all(context._attached)
        context._attached = []
        return self.error_line(job, error)

    def error_line(self, job, error):
        line = _line({"jsonrpc": "2.0", "id": job.id, "error": error})
        if len(line) - 1 > self.max_message:
            line = _line({"jsonrpc": "2.0", "id": job.id, "error": self.too_large(len(line) - 1)})
        return line

    def too_large(self, size):
        message = "the answer has %d bytes, more than the limit of %d" % (size, self.max_message)
        return _error("too_large", message, {"size": size, "limit": self.max_message})

    def declared(self, e):
        """The error object of an error that a method declared."""
        detail = None
        if e.data is not None:
            try:
                detail = json.loads(_dumps(e.data, "data").decode("utf-8"))
            except _Unserialisable as bad:
                detail = str(bad)
        return _error(str(e.kind), str(e.message), detail, e.retryable)

    def drain(self):
        """Wait until the last answers are sent."""
        end = time.monotonic() + self.DRAIN
        with self.lock:
            while any(c.open and c.output.size for c in self.connections):
                left = end - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    return

    # The rest runs on the reader thread.

    def read(self):
        try:
            self.poll.register(self.listener, select.POLLIN)
            self.poll.register(self.wake_read, select.POLLIN)
            while True:
                self.turn()
        except BaseException:  # a worker that nobody listens to must not live on
            import traceback
            _say(traceback.format_exc())
            os._exit(1)

    def turn(self):
        self.settle()
        events = self.poll.poll(self.timeout())
        by_fd = {connection.sock.fileno(): connection for connection in self.connections}
        for fd, event in events:
            if fd == self.wake_read.fileno():
                self.drain_wakes()
            elif fd in by_fd:
                self.handle(by_fd[fd], event)
            else:
                self.accept()
        now = time.monotonic()
        with self.lock:
            due = [context for context, when in self.reminders.items() if when <= now]
            for context in due:
                del self.reminders[context]
        for context in due:
            context._flush()
        if self.term and not self.stopping and not events:  # all that had arrived before SIGTERM is read
            self.stop()
        for at, code in ((self.leave_at, self.exit_code), (self.stop_at, 0)):
            if at is not None and now >= at:
                os._exit(code)

    def settle(self):
        """Close what is to be closed, and poll for what is of interest."""
        with self.lock:
            for connection in list(self.connections):
                left = connection.output.size
                if not connection.open or connection.ended and not connection.jobs and not left:
                    self.close(connection)
                    continue
                events = (0 if connection.ended else select.POLLIN) | (select.POLLOUT if left else 0)
                if events != connection.events:
                    self.poll.register(connection.sock, events)
                    connection.events = events
            if self.stopping:
                self.changed.notify_all()  # drain waits for what has been sent

    def timeout(self):
        """Milliseconds to wait at most, None for ever."""
        if self.term and not self.stopping:
            return 0
        with self.lock:
            times = [when for when in list(self.reminders.values()) + [self.leave_at, self.stop_at] if when is not None]
        return max(0, (min(times) - time.monotonic()) * 1000 + 1) if times else None

    def drain_wakes(self):
        try:
            while True:
                data, creds, _, _ = self.wake_read.recvmsg(4096, socket.CMSG_SPACE(self.CREDENTIALS.size))
                mine = any(self.CREDENTIALS.unpack(packed)[0] == self.pid for _, _, packed in creds)
                self.term = self.term or mine and self.STOP_BYTE in data
        except BlockingIOError:
            pass

    def stop(self):
        """Take nothing new, finish what there is."""
        now = time.monotonic()
        self.poll.unregister(self.listener)
        self.listener.close()
        self.remove_socket()
        with self.lock:
            self.stopping = True
            if self.loading:
                self.leave_at = now + self.LEAVE / 2  # a load deep in a library does not end by itself
            try:
                within = float(os.environ.get("WORKERD_STOP_TIMEOUT") or 0)
            except ValueError:
                within = 0
            if within > 0:
                self.stop_at = now + within
            self.changed.notify_all()

    def accept(self):
        try:
            sock, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError as e:  # out of descriptors: the caller waits in the backlog, we do not spin
            _say("workerd: accept: %s\n" % e)
            time.sleep(0.1)
            return
        sock.setblocking(False)
        with self.lock:
            self.connections.append(_Connection(self, sock))

    def close(self, connection):
        """End a connection and cancel its requests; with the lock held."""
        self.connections.remove(connection)
        if connection.events is not None:
            self.poll.unregister(connection.sock)
        with connection.lock:
            connection.open = False
            connection.output.drop()
            connection.sock.close()
        connection.lines.close()
        for job in list(connection.jobs.values()):
            self.cancel(job)

    def cancel(self, job):
        """Cancel a request; with the lock held."""
        job.cancelled = True
        if job in self.queue:
            self.queue.remove(job)
            _close_all(job.files)
            self.forget(job)
            job.connection.refuse(job.id, "cancelled", "the request was cancelled")

    def handle(self, connection, event):
        if event & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            with self.lock:
                self.close(connection)  # the peer is gone: what it still said is wanted by nobody
            return
        if event & select.POLLOUT:
            connection.flush()
        if event & select.POLLIN:
            self.receive(connection)

    def receive(self, connection):
        try:
            connection.ended = not connection.lines.receive(connection.sock)
        except BlockingIOError:
            return
        except OSError:
            connection.open = False
            return
        while True:
            try:
                got = connection.lines.next()
                if got is None and connection.ended:
                    got = connection.lines.last()
            except _TooLong:
                limit = self.max_message
                connection.refuse(None, "too_large", "the message has more than %d bytes" % limit, {"limit": limit})
                continue
            if got is None:
                return
            self.dispatch(connection, *got)

    def dispatch(self, connection, line, files):
        kept = False
        try:
            try:
                message = _loads(line)
            except ValueError as e:
                connection.refuse(None, "parse_error", "not JSON: %s" % e)
                return
            request = self.checked(connection, message)
            if request is None:
                return
            id, method, params = request
            if files is None:
                connection.refuse(id, "invalid_request", "the file descriptors of the message could not be received")
            elif method == "initialize":
                self.initialize(connection, id, params)
            elif method == "ping":
                connection.answer(id, {})
            else:
                kept = self.admit(connection, id, method, params, files)
        finally:
            if not kept:
                _close_all(files)

    def checked(self, connection, message):
        """The request that a message is, as (id, method, params); None where it is another thing, or was refused."""
        def invalid(reason, id=None, detail=None):
            connection.refuse(id, "invalid_request", reason, detail)

        if not isinstance(message, dict):
            return invalid("no batches: one message a line" if isinstance(message, list) else "a message is an object")
        method, id = message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            return None  # an answer, though a worker asks nothing
        if "id" not in message:
            if method == "notifications/cancelled":
                self.cancelled(connection, message.get("params"))
            elif method == "notifications/load":
                with self.lock:
                    if self.warm:
                        self.warm = self.preloaded = False
                        self.wanted.release()
            return None
        if type(id) not in (str, int):
            return invalid("id must be a string or an integer", None, {"id": id})
        if message.get("jsonrpc") != "2.0":
            return invalid('jsonrpc must be "2.0"', id)
        if not isinstance(method, str) or not method:
            return invalid("method must be a string that is not empty", id)
        params = message.get("params", {})
        if not isinstance(params, dict):
            return invalid("params must be an object", id)
        return id, method, params

    def cancelled(self, connection, params):
        id = params.get("requestId") if isinstance(params, dict) else None
        with self.lock:
            job = connection.jobs.get(id) if type(id) in (str, int) else None
            if job is not None:
                self.cancel(job)

    def initialize(self, connection, id, params):
        version = params.get("protocol")
        if version != PROTOCOL or type(version) is not int:
            connection.refuse(id, "invalid_params", "workerd speaks protocol %s, this worker speaks protocol %d (workerd.py in %s)"
                              % (_short(version), PROTOCOL, os.path.dirname(os.path.abspath(__file__))))
            return
        for name in ("concurrency", "maxMessage"):
            if type(params.get(name, 1)) is not int or params.get(name, 1) < 1:
                connection.refuse(id, "invalid_params", "%s: want a positive integer, got %s" % (name, _short(params[name])))
                return
        with self.lock:
            self.concurrency = params.get("concurrency", self.concurrency)
            self.max_message = params.get("maxMessage", self.max_message)
            for each in self.connections:
                each.lines.limit = self.max_message + SLACK
            while self.concurrency > 1 and self.pool < self.concurrency:
                threading.Thread(target=self.work, args=(self.pool,), name="workerd-%d" % self.pool, daemon=True).start()
                self.pool += 1
            self.changed.notify_all()
            state = "preloaded" if self.preloaded else "loading" if self.loading else "busy" if self.busy >= self.concurrency else "ready"
            connection.waits = state != "ready"
            methods = [method.info() for method in self.methods.values()]
            connection.answer(id, {"protocol": PROTOCOL, "worker": self.worker.name, "methods": methods, "state": state})
            first = next((each for each in self.connections if each.waits), None)
            if state == "loading" and self.load_report is not None and connection is first:
                connection.notify("notifications/progress", self.load_report)

    def admit(self, connection, id, name, params, files):
        """Queue a request, or refuse it. Returns whether the descriptors belong to the request now."""
        method = self.methods.get(name)
        if method is None:
            known = ", ".join(self.methods) or "no methods"
            connection.refuse(id, "method_not_found", "no method %s (this worker has %s)" % (_short(name), known))
            return False
        meta = params.pop("_meta", None)
        try:
            token, deadline = _meta(meta)
            args = method.bind(params)
        except InvalidParams as e:
            connection.refuse(id, "invalid_params", e.message, e.data)
            return False
        job = _Job(connection, id, method, args, token, deadline, files)
        with self.lock:
            if id in connection.jobs:
                connection.refuse(None, "invalid_request", "a request with this id is running", {"id": id})
                return False
            if self.stopping:
                connection.refuse(id, "shutting_down", "the worker is stopping")
                return False
            connection.jobs[id] = job
            self.queue.append(job)
            self.busy += 1
            self.changed.notify_all()
        return True


def _describe(e):
    """The message of an exception, and the detail with its type and traceback, less the frames of this file."""
    import traceback
    trace = e.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == _describe.__code__.co_filename:
        trace = trace.tb_next
    name = _type_name(type(e))
    try:
        said = str(e)
    except Exception:
        said = "(its text cannot be had)"
    lines = "".join(traceback.format_exception(type(e), e, trace))
    if len(lines) > 64 << 10:
        lines = lines[:16 << 10] + "\n...\n" + lines[-(48 << 10):]
    return ("%s: %s" % (name, said) if said else name)[:4096], {"type": name, "traceback": lines}


def _meta(meta):
    """The progress token of a request and its deadline, None where there is none. Raises InvalidParams."""
    if meta is None:
        return None, None
    if not isinstance(meta, dict):
        raise InvalidParams("_meta: want an object, got %s" % _short(meta))
    token, timeout = meta.get("progressToken"), meta.get("timeoutMs")
    if token is not None and type(token) not in (str, int):
        raise InvalidParams("_meta.progressToken: want a string or an integer, got %s" % _short(token))
    if timeout is not None and (type(timeout) is not int or timeout < 1):
        raise InvalidParams("_meta.timeoutMs: want a positive integer, got %s" % _short(timeout))
    return token, None if timeout is None else time.monotonic() + min(timeout, 1 << 53) / 1000  # any number of digits may come


# --- Callers ---------------------------------------------------------------------------------------------------------


def socket_path(provider, runtime_dir=None):
    """The socket of a provider, given by its slug; a path (with a slash in it) stays as it is."""
    provider = os.fspath(provider)
    if "/" in provider:
        return provider
    return os.path.join(runtime_dir or _runtime_dir(), "front", provider, "sock")


_JOB_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"


def _runtime_dir():
    """Where workerd keeps its sockets, by the same rules."""
    if os.environ.get("WORKERD_RUNTIME_DIR"):
        return os.environ["WORKERD_RUNTIME_DIR"]
    job = os.environ.get("SLURM_JOB_ID", "")
    suffix = "-" + job if 0 < len(job) <= 32 and set(job) <= set(_JOB_LETTERS) else ""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    path = os.path.normpath(os.path.join(base, "workerd" + suffix))
    if _is_private(base) and len(os.fsencode(path + "/front/12345678/sock")) <= 107:
        return path
    return "/tmp/workerd-%d%s" % (os.geteuid(), suffix)


def _is_private(path):
    """Whether a session's runtime directory can be trusted: su and sudo hand on that of another user."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return os.path.isabs(path) and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


GRACE = 0.5  # seconds beyond a timeout in which workerd's own answer to it may still come
_ids = itertools.count(1)


class _Call:
    """A call as it is sent: what Client and AsyncClient have in common."""

    def __init__(self, method, params, kwargs, timeout, retry, key, progress, files):
        if timeout is not None and not timeout > 0:
            raise ValueError("timeout must be positive, got %r" % (timeout,))
        if retry < 0:
            raise ValueError("retry must not be negative, got %r" % (retry,))
        self.method, self.key, self.progress = method, key, progress
        self.params = dict(params or {}, **kwargs)
        self.end = None if timeout is None else time.monotonic() + timeout
        self.retries, self.attempt = int(retry), 0
        self.files = list(files or ())

    def line(self):
        """A new id and the line of one attempt."""
        id = next(_ids)
        meta = dict(self.params.get("_meta") or {})
        if self.progress:
            meta["progressToken"] = id
        if self.end is not None:
            meta["timeoutMs"] = max(1, int(self.left() * 1000 + 0.5))
        if self.key is not None:
            meta["idempotencyKey"] = str(self.key)
        params = dict(self.params, _meta=meta) if meta else self.params
        try:
            body = _dumps(params, "params")
            return id, b'{"jsonrpc":"2.0","id":%d,"method":%s,"params":%s}\n' % (id, _encode(self.method, None), body)
        except _Unserialisable as e:
            raise WorkerdError("invalid_params", str(e)) from None

    def left(self):
        """Seconds until the timeout, None without one."""
        return None if self.end is None else self.end - time.monotonic()

    def over(self):
        return self.end is not None and self.left() <= 0

    def overdue(self):
        return WorkerdError("deadline_exceeded", "no answer within the timeout")

    def pause(self, error):
        """How long to wait before the next attempt; raises the error where there is none."""
        import random
        if not error.retryable or self.attempt >= self.retries:
            raise error
        pause = min(5.0, 0.1 * 2 ** self.attempt) * random.uniform(0.5, 1.0)
        if self.end is not None and pause >= self.left():
            raise error
        self.attempt += 1
        return pause


def _failure(error):
    """The exception of an answer's error object."""
    error = error if isinstance(error, dict) else {}
    data = error.get("data") if isinstance(error.get("data"), dict) else {}
    code = error.get("code") if isinstance(error.get("code"), int) else -32000
    kind = data.get("kind") or next((kind for kind, known in KINDS.items() if known[0] == code), "worker_error")
    return WorkerdError(kind, str(error.get("message", "")), code, bool(data.get("retryable", KINDS.get(kind, (0, False))[1])), data)


def _lost(reason, sent):
    message = "the connection was lost: %s%s" % (reason, "; the request may have run" if sent else "")
    return WorkerdError("connection_lost", message, retryable=not sent)


BACKLOG_PAUSE = 0.02  # before another attempt to connect to a socket whose backlog is full, which cannot be waited for


def _connect(path):
    """A connected socket that does not block, None where the backlog is full."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(path)
    except BlockingIOError:
        sock.close()
        return None
    except OSError as e:
        sock.close()
        hint = {FileNotFoundError: "; is workerd running, and is there such a provider?",
                ConnectionRefusedError: "; is workerd running?"}.get(type(e), "")
        raise WorkerdError("connection_lost", "cannot connect to %s: %s%s" % (path, e.strerror or e, hint), retryable=True) from None
    return sock


def _stale(sock):
    """Whether an idle connection has ended, or says what nobody asked for."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _cancel_line(id, reason):
    params = {"requestId": id, "reason": reason}
    return _line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


def _answers(message, id):
    """Whether a message from workerd answers the call: by its id, or by the id in the detail where the answer's own is null."""
    if not isinstance(message, dict) or "method" in message:
        return False
    if message.get("id") is not None:
        return message["id"] == id
    detail = _detail(message)
    return detail is None or detail == id


def _detail(message):
    """The offending id that an error under id null names, None where it names none."""
    error = message.get("error")
    data = error.get("data") if isinstance(error, dict) else None
    detail = data.get("detail") if isinstance(data, dict) else None
    return detail.get("id") if isinstance(detail, dict) else None


class _Link:
    """A connection of Client, used for one call at a time."""

    def __init__(self, sock):
        self.sock = sock
        self.lines, self.output = _Lines(), _Output()

    def close(self):
        self.output.drop()
        self.lines.close()
        self.sock.close()

    def wait(self, event, call):
        """Wait until the socket is readable or writable; raises where the call's time is over."""
        left = call.left()
        if left is not None:
            left = max(0, (left + GRACE) * 1000)
        poll = select.poll()
        poll.register(self.sock, event)
        if not poll.poll(left):
            raise call.overdue()

    def send(self, line, fds, call):
        before = self.output.sent
        self.output.add(line, fds)
        try:
            self.output.flush(self.sock)
            while self.output.size:
                self.wait(select.POLLOUT, call)
                self.output.flush(self.sock)
        except OSError as e:
            raise _lost(e.strerror or e, self.output.sent > before) from None

    def receive(self, call):
        """The next message and the descriptors that came with it."""
        try:
            while True:
                got = self.lines.next()
                if got is not None:
                    return _loads(got[0]), got[1] or []
                self.wait(select.POLLIN, call)
                try:
                    if not self.lines.receive(self.sock):
                        raise _lost("it was closed", True)
                except BlockingIOError:
                    pass
        except OSError as e:
            raise _lost(e.strerror or e, True) from None
        except ValueError as e:
            raise WorkerdError("invalid_response", "not JSON: %s" % e) from None


class Client:
    """Calls the methods of a provider, named by its slug or by the path of its socket.

        client = Client("ocr")
        result = client.call("recognize", image="/data/page.png", timeout=60)

    It connects when needed and again when the connection is lost, and can be used by several threads at a time: each call
    that runs has a connection of its own, and idle ones are kept for the next.
    """

    IDLE = 8  # connections kept

    def __init__(self, provider, runtime_dir=None):
        self.path = socket_path(provider, runtime_dir)
        self._lock = threading.Lock()
        self._idle = []
        self._pid = os.getpid()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        """Close the idle connections. The client can still be used."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def call(self, _method, _params=None, *, timeout=None, on_progress=None, retry=0, idempotency_key=None, files=None, **kwargs):
        """Call a method and return its result; raises WorkerdError.

        Parameters are given by keyword, or as a dict where their names collide with those here.

        timeout: seconds, for all of it, a cold start of the worker and retries included. Default: none.
        on_progress: called with (progress, total, message), the last two None where unknown. workerd also reports waiting.
        retry: how many times more to try after an error that is retryable. Among these is worker_crashed, after which the
            method may run twice.
        idempotency_key: a call with the key of one that still runs joins it.
        files: file descriptors or open files that travel with the request, at most 16.

        A KeyboardInterrupt, or an exception from on_progress, cancels the request.
        """
        result, fds = self.call_with_files(_method, _params, timeout=timeout, on_progress=on_progress, retry=retry,
                                           idempotency_key=idempotency_key, files=files, **kwargs)
        _close_all(fds)
        return result

    def call_with_files(self, _method, _params=None, *, timeout=None, on_progress=None, retry=0, idempotency_key=None, files=None,
                        **kwargs):
        """As call, but returns (result, [descriptor, ...]): what the method attached. They are the caller's to close."""
        call = _Call(_method, _params, kwargs, timeout, retry, idempotency_key, on_progress is not None, files)
        while True:
            try:
                return self._attempt(call, on_progress)
            except WorkerdError as e:
                pause = call.pause(e)
            time.sleep(pause)

    def ping(self, timeout=None):
        """Raise where workerd does not answer. Says nothing about workers."""
        self.call("workerd.ping", timeout=timeout)

    def status(self, timeout=None):
        """The provider's entry of `workerd status --json`."""
        return self.call("workerd.status", timeout=timeout)

    def methods(self, wait=False, timeout=None):
        """The methods with their schemas. wait=True starts a cold provider to learn them."""
        return self.call("workerd.methods", {"wait": True} if wait else {}, timeout=timeout)["methods"]

    def _attempt(self, call, on_progress):
        id, line = call.line()
        link = None
        try:
            for link in self._links(call):
                try:
                    link.send(line, _duplicate(call.files), call)
                    break
                except WorkerdError as e:
                    link.close()
                    if not e.retryable or e.kind != "connection_lost":
                        raise
                    error = e
            else:
                raise error
            message, fds = self._answer(link, call, id, on_progress)
        except BaseException as e:
            if link is not None:
                if not (isinstance(e, WorkerdError) and e.kind == "connection_lost"):
                    _try_send(link, _cancel_line(id, type(e).__name__))
                link.close()
            raise
        self._keep(link)
        if "error" in message:
            _close_all(fds)
            raise _failure(message["error"])
        return message.get("result"), fds

    def _links(self, call):
        """An idle connection where there is one, and a new one for the case that nothing can be sent on that."""
        with self._lock:
            if self._pid != os.getpid():  # after a fork the connections are the parent's
                self._pid = os.getpid()
                while self._idle:
                    self._idle.pop().close()
            link = self._idle.pop() if self._idle else None
        if link is not None:
            if not _stale(link.sock):
                yield link
            else:
                link.close()
        sock = _connect(self.path)
        while sock is None:
            if call.over():
                raise call.overdue()
            time.sleep(BACKLOG_PAUSE)
            sock = _connect(self.path)
        yield _Link(sock)

    def _keep(self, link):
        with self._lock:
            if len(self._idle) < self.IDLE and self._pid == os.getpid():
                self._idle.append(link)
                return
        link.close()

    def _answer(self, link, call, id, on_progress):
        while True:
            message, fds = link.receive(call)
            if _answers(message, id):
                return message, fds
            _close_all(fds)
            params = _progress_of(message, id)
            if params is not None and on_progress is not None:
                on_progress(params.get("progress"), params.get("total"), params.get("message"))


def _progress_of(message, token):
    """The params of a progress notification for a token, None for any other message."""
    if not isinstance(message, dict) or message.get("method") != "notifications/progress":
        return None
    params = message.get("params")
    return params if isinstance(params, dict) and params.get("progressToken") == token else None


def _try_send(link, line):
    """Say something on a connection that is about to be closed, if the kernel takes it."""
    if link.output.size:  # in the middle of a line: the close says enough
        return
    try:
        link.sock.send(line, getattr(socket, "MSG_NOSIGNAL", 0) | socket.MSG_DONTWAIT)
    except OSError:
        pass


class AsyncClient:
    """Client for asyncio: the same calls, to be awaited, all pipelined over one connection.

        async with AsyncClient("ocr") as client:
            result = await client.call("recognize", image="/data/page.png", timeout=60)

    on_progress may be a plain or an async function. Cancelling the task cancels the request.
    """

    def __init__(self, provider, runtime_dir=None):
        self.path = socket_path(provider, runtime_dir)
        self._link = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.close()

    async def close(self):
        """Close the connection; calls that run fail. The client can still be used."""
        link, self._link = self._link, None
        if link is not None:
            link.lose("the client was closed")

    async def call(self, _method, _params=None, *, timeout=None, on_progress=None, retry=0, idempotency_key=None, files=None,
                   **kwargs):
        """As Client.call."""
        result, fds = await self.call_with_files(_method, _params, timeout=timeout, on_progress=on_progress, retry=retry,
                                                 idempotency_key=idempotency_key, files=files, **kwargs)
        _close_all(fds)
        return result

    async def call_with_files(self, _method, _params=None, *, timeout=None, on_progress=None, retry=0, idempotency_key=None,
                              files=None, **kwargs):
        """As Client.call_with_files."""
        import asyncio
        call = _Call(_method, _params, kwargs, timeout, retry, idempotency_key, on_progress is not None, files)
        while True:
            try:
                return await self._attempt(call, on_progress)
            except WorkerdError as e:
                pause = call.pause(e)
            await asyncio.sleep(pause)

    async def ping(self, timeout=None):
        """As Client.ping."""
        await self.call("workerd.ping", timeout=timeout)

    async def status(self, timeout=None):
        """As Client.status."""
        return await self.call("workerd.status", timeout=timeout)

    async def methods(self, wait=False, timeout=None):
        """As Client.methods."""
        return (await self.call("workerd.methods", {"wait": True} if wait else {}, timeout=timeout))["methods"]

    async def _attempt(self, call, on_progress):
        import asyncio
        id, line = call.line()
        fresh, link = await self._connected(call)
        events = asyncio.Queue()
        link.begin(id, line, call, events)
        alarm = None
        try:
            if call.end is not None:  # no wait_for: up to Python 3.11 it may swallow a cancellation
                alarm = link.loop.call_later(max(0, call.left() + GRACE), events.put_nowait, ("overdue", None))
            while True:
                event, value = await events.get()
                if event == "overdue":
                    raise call.overdue()
                if event == "progress":
                    said = on_progress(value.get("progress"), value.get("total"), value.get("message"))
                    if hasattr(said, "__await__"):
                        await said
                elif event == "lost":
                    if not fresh and value.retryable:  # nothing was sent on a connection that had ended while it was idle
                        fresh, link = True, (await self._connected(call))[1]
                        link.begin(id, line, call, events)
                        continue
                    raise value
                else:
                    message, fds = value
                    if "error" in message:
                        _close_all(fds)
                        raise _failure(message["error"])
                    return message.get("result"), fds
        except BaseException as e:
            link.give_up(id, type(e).__name__)
            while not events.empty():  # an answer that had come is nobody's now
                event, value = events.get_nowait()
                if event == "answer":
                    _close_all(value[1])
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    async def _connected(self, call):
        """(whether it is new, the connection)."""
        import asyncio
        loop = asyncio.get_running_loop()
        while True:
            link = self._link
            if link is not None and link.open and link.pid == os.getpid():
                if link.loop is loop and (link.calls or not _stale(link.sock)):
                    return False, link
                link.lose("it was closed")
            sock = _connect(self.path)
            if sock is not None:
                self._link = _AsyncLink(sock, loop)
                return True, self._link
            if call.over():
                raise call.overdue()
            await asyncio.sleep(BACKLOG_PAUSE)


class _AsyncLink:
    """The connection of an AsyncClient, at home in one event loop."""

    def __init__(self, sock, loop):
        self.loop, self.pid = loop, os.getpid()
        self.link = _Link(sock)
        self.sock, self.lines, self.output = self.link.sock, self.link.lines, self.link.output
        self.calls = {}  # id: (the events of the call, where its line begins in the stream)
        self.open, self.writing = True, False
        loop.add_reader(self.sock.fileno(), self.readable)

    def begin(self, id, line, call, events):
        """Send a request. What becomes of it is put into the queue events: ("progress" | "answer" | "lost", value)."""
        fds = _duplicate(call.files)  # before there is a call: it may fail
        self.calls[id] = (events, self.output.sent + self.output.size)
        self.send(line, fds)

    def give_up(self, id, reason):
        """Nobody waits for that call any more; where it is not answered, it is cancelled."""
        if self.calls.pop(id, None) is not None and self.open:
            self.send(_cancel_line(id, reason))

    def send(self, line, fds=()):
        self.output.add(line, fds)
        self.writable()

    def writable(self):
        try:
            self.output.flush(self.sock)
        except OSError as e:
            self.lose(e.strerror or e)
            return
        if bool(self.output.size) != self.writing:
            self.writing = not self.writing
            if self.writing:
                self.loop.add_writer(self.sock.fileno(), self.writable)
            else:
                self.loop.remove_writer(self.sock.fileno())

    def readable(self):
        try:
            more = self.lines.receive(self.sock)
        except BlockingIOError:
            return
        except OSError as e:
            self.lose(e.strerror or e)
            return
        while True:
            got = self.lines.next()
            if got is None:
                break
            try:
                self.received(_loads(got[0]), got[1] or [])
            except ValueError as e:
                self.lose("the answer is not JSON: %s" % e)
                return
        if not more:
            self.lose("it was closed")

    def received(self, message, fds):
        if isinstance(message, dict) and message.get("method") == "notifications/progress":
            params = message.get("params")
            call = self.calls.get(params.get("progressToken")) if isinstance(params, dict) else None
            if call is not None:
                call[0].put_nowait(("progress", params))
        elif isinstance(message, dict) and "method" not in message:
            id = message.get("id")
            if id is None:
                id = _detail(message)
                if id is None and len(self.calls) == 1:
                    id = next(iter(self.calls))
            call = self.calls.pop(id, None) if isinstance(id, (int, str)) else None
            if call is not None:
                call[0].put_nowait(("answer", (message, fds)))
                return
        _close_all(fds)

    def lose(self, reason):
        """The connection is over: close it and fail its calls."""
        if not self.open:
            return
        self.open = False
        if not self.loop.is_closed():
            self.loop.remove_reader(self.sock.fileno())
            if self.writing:
                self.loop.remove_writer(self.sock.fileno())
        calls, self.calls = self.calls, {}
        for events, begin in calls.values():
            if not self.loop.is_closed():
                events.put_nowait(("lost", _lost(reason, self.output.sent > begin)))
        self.link.close()
