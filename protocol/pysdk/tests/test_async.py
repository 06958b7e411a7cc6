"""AsyncClient against a front socket in the test's hands. The server's side blocks, so it runs in threads."""
import asyncio
import functools
import os
import unittest

from support import LONG, Server, WorkerCase, answer, refuse

from workerd import AsyncClient, WorkerdError


def run(test):
    """Run an async test in a loop of its own."""
    @functools.wraps(test)
    def wrapper(self):
        async def bounded():
            self.client = AsyncClient(self.socket)
            try:
                await asyncio.wait_for(test(self), 60)
            finally:
                await self.client.close()
        asyncio.run(bounded())
    return wrapper


class AsyncCase(WorkerCase):
    def setUp(self):
        super().setUp()
        self.server = Server(self, self.socket)

    async def there(self, function, *args, **kwargs):
        """Call a function that blocks."""
        return await asyncio.get_running_loop().run_in_executor(None, functools.partial(function, *args, **kwargs))

    def start(self, *args, **kwargs):
        return asyncio.ensure_future(self.client.call(*args, **kwargs))

    async def accepted(self):
        return await self.there(self.server.accept)

    async def failed(self, call):
        with self.assertRaises(WorkerdError) as caught:
            await call
        return caught.exception


class Calls(AsyncCase):
    @run
    async def test_calls_are_pipelined_and_answered_in_any_order(self):
        calls = [self.start("m", n=n) for n in range(3)]
        c = await self.accepted()
        requests = [await self.there(c.read) for _ in calls]
        self.assertEqual([0, 1, 2], [request["params"]["n"] for request in requests])
        for request in reversed(requests):
            answer(request, request["params"]["n"], c)
        self.assertEqual([0, 1, 2], [await call for call in calls])

    @run
    async def test_meta_and_progress(self):
        seen = []

        async def later(*said):
            await asyncio.sleep(0)
            seen.append(said)
        plain = self.start("m", timeout=9, idempotency_key="k", on_progress=lambda *said: seen.append(said))
        c = await self.accepted()
        for call, token in ((plain, None), (None, None)):
            call = call or self.start("m", on_progress=later)
            request = await self.there(c.read)
            token = request["params"]["_meta"]["progressToken"]
            c.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "total": 2}})
            c.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "another", "progress": 5}})
            answer(request, "done", c)
            self.assertEqual("done", await call)
        self.assertEqual([(1, 2, None)] * 2, seen)

    @run
    async def test_large_both_ways(self):
        text = "\u00e9" * (4 << 20)
        call = self.start("m", text=text)
        c = await self.accepted()
        request = await self.there(c.read)
        await self.there(answer, request, request["params"]["text"], c)
        self.assertEqual(text, await call)

    @run
    async def test_files(self):
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        os.write(write, b"hello")
        os.close(write)
        call = asyncio.ensure_future(self.client.call_with_files("m", files=[read]))
        c = await self.accepted()
        request = await self.there(c.read)
        self.assertEqual(b"hello", os.read(c.fds[0], 10))
        answer(request, 1, c, c.fds)
        os.close(c.fds[0])
        result, fds = await call
        self.assertEqual((1, 1), (result, len(fds)))
        os.close(fds[0])

    @run
    async def test_conveniences(self):
        call = asyncio.ensure_future(self.client.methods(wait=True))
        c = await self.accepted()
        request = await self.there(c.read)
        self.assertEqual(("workerd.methods", {"wait": True}), (request["method"], request["params"]))
        answer(request, {"methods": []}, c)
        self.assertEqual([], await call)
        for function, method, result, want in ((self.client.ping, "workerd.ping", {}, None), (self.client.status, "workerd.status", 1, 1)):
            call = asyncio.ensure_future(function())
            request = await self.there(c.read)
            self.assertEqual(method, request["method"])
            answer(request, result, c)
            self.assertEqual(want, await call)


class Errors(AsyncCase):
    @run
    async def test_cancelling_the_task_cancels_the_request_alone(self):
        first, second = self.start("m"), self.start("m")
        c = await self.accepted()
        requests = [await self.there(c.read) for _ in range(2)]
        first.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await first
        cancel = await self.there(c.read)
        self.assertEqual(("notifications/cancelled", requests[0]["id"]), (cancel["method"], cancel["params"]["requestId"]))
        refuse(requests[0], "cancelled", c)
        answer(requests[1], "second", c)
        self.assertEqual("second", await second)

    @run
    async def test_cancelling_the_task_beside_a_progress_report(self):
        for turns in range(6):
            call = self.start("m", timeout=3600, on_progress=lambda *said: None)
            c = c if turns else await self.accepted()
            id = (await self.there(c.read))["id"]
            progress = {"method": "notifications/progress", "params": {"progressToken": id, "progress": 1}}
            self.client._link.received(progress, [])
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call], timeout=LONG)
            self.assertTrue(call.cancelled(), "cancelled %d turns of the loop after the progress" % turns)
            self.assertEqual(id, (await self.there(c.read))["params"]["requestId"])

    @run
    async def test_files_of_an_answer_that_nobody_takes_are_closed(self):
        def fails(*said):
            raise KeyError("mine")
        for how, error in (("cancelled", asyncio.CancelledError), ("on_progress raises", KeyError)):
            call = self.start("m", on_progress=fails)
            c = c if how != "cancelled" else await self.accepted()
            id = (await self.there(c.read))["id"]
            read, write = os.pipe()
            self.addCleanup(os.close, read)
            os.set_blocking(read, False)
            if error is KeyError:
                self.client._link.received({"method": "notifications/progress", "params": {"progressToken": id, "progress": 1}}, [])
            self.client._link.received({"id": id, "result": 1}, [write])
            if error is asyncio.CancelledError:
                call.cancel()
            with self.assertRaises(error):
                await call
            self.assertEqual(b"", os.read(read, 1), how)  # EAGAIN while somebody has the other end

    @run
    async def test_files_that_cannot_be_sent_leave_no_call(self):
        read, write = os.pipe()
        self.addCleanup(os.close, write)
        os.close(read)
        for files in ([write] * 17, [write, -1]):
            with self.assertRaises((ValueError, OSError)):
                await self.client.call("m", files=files)
            self.assertEqual({}, self.client._link.calls)

    @run
    async def test_timeout_cancels(self):
        call = self.start("m", timeout=0.05)
        c = await self.accepted()
        request = await self.there(c.read)
        e = await self.failed(call)
        self.assertEqual(("deadline_exceeded", True), (e.kind, e.retryable))
        self.assertEqual(request["id"], (await self.there(c.read))["params"]["requestId"])

    @run
    async def test_an_exception_in_on_progress(self):
        def stop(*said):
            raise KeyError("enough")
        call = self.start("m", on_progress=stop)
        c = await self.accepted()
        request = await self.there(c.read)
        c.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": request["id"], "progress": 1}})
        with self.assertRaises(KeyError):
            await call
        self.assertEqual("notifications/cancelled", (await self.there(c.read))["method"])

    @run
    async def test_an_error_without_id(self):
        calls = [self.start("m"), self.start("m")]
        c = await self.accepted()
        requests = [await self.there(c.read) for _ in calls]
        refuse(requests[0], "parse_error", c, id=None)  # whose it is cannot be told: of two that wait
        refuse(requests[1], "too_large", c, id=None, detail={"id": requests[1]["id"]})
        self.assertEqual("too_large", (await self.failed(calls[1])).kind)
        refuse(requests[0], "parse_error", c, id=None)  # now it can
        self.assertEqual("parse_error", (await self.failed(calls[0])).kind)

    @run
    async def test_lost_in_the_middle(self):
        calls = [self.start("m", retry=3), self.start("m")]
        c = await self.accepted()
        for _ in calls:
            await self.there(c.read)
        c.close()
        for call in calls:
            e = await self.failed(call)
            self.assertEqual(("connection_lost", False), (e.kind, e.retryable))
        call = self.start("m")
        c = await self.accepted()
        answer(await self.there(c.read), 1, c)
        self.assertEqual(1, await call)

    @run
    async def test_what_was_not_sent_may_be_sent_again(self):
        large = self.start("m", x="x" * (8 << 20))
        c = await self.accepted()
        waiting = self.start("m")  # behind the large one, in our own memory
        await asyncio.sleep(0)
        c.close()
        self.assertFalse((await self.failed(large)).retryable)
        c = await self.accepted()  # by itself, without retry=
        answer(await self.there(c.read), 1, c)
        self.assertEqual(1, await waiting)

    @run
    async def test_case_91_an_idle_connection_that_has_ended(self):
        for _ in range(5):
            call = self.start("m")
            c = await self.accepted()
            answer(await self.there(c.read), 1, c)
            self.assertEqual(1, await call)
            c.close()

    @run
    async def test_retry(self):
        call = self.start("m", retry=1)
        c = await self.accepted()
        refuse(await self.there(c.read), "queue_full", c)
        answer(await self.there(c.read), 1, c)
        self.assertEqual(1, await call)

    @run
    async def test_an_answer_that_is_no_json(self):
        call = self.start("m")
        c = await self.accepted()
        await self.there(c.read)
        c.raw(b"oops\n")
        self.assertEqual("connection_lost", (await self.failed(call)).kind)

    @run
    async def test_nobody_listens(self):
        client = AsyncClient(self.path("missing"))
        e = await self.failed(client.call("m"))
        self.assertEqual(("connection_lost", True), (e.kind, e.retryable))

    @run
    async def test_a_full_backlog(self):
        server = Server(self, self.path("full"), backlog=0)
        from support import Connection
        self.addCleanup(Connection(self.path("full")).close)
        client = AsyncClient(self.path("full"))
        e = await self.failed(client.call("m", timeout=0.1))
        self.assertEqual("deadline_exceeded", e.kind)
        call = asyncio.ensure_future(client.call("m"))
        await self.there(server.accept)
        c = await self.there(server.accept)
        answer(await self.there(c.read), 1, c)
        self.assertEqual(1, await call)
        await client.close()


class Loops(AsyncCase):
    def test_one_client_in_two_loops_after_each_other(self):
        client = AsyncClient(self.socket)

        async def once(n):
            call = asyncio.ensure_future(client.call("m", n=n))
            c = await self.accepted()
            request = await self.there(c.read)
            answer(request, request["params"]["n"], c)
            return await call
        self.assertEqual([1, 2], [asyncio.run(once(1)), asyncio.run(once(2))])
        asyncio.run(client.close())

    def test_close_fails_what_runs(self):
        async def main():
            client = AsyncClient(self.socket)
            async with client:
                call = asyncio.ensure_future(client.call("m"))
                c = await self.accepted()
                await self.there(c.read)
            self.assertEqual("connection_lost", (await self.failed(call)).kind)
            self.assertIsNone(await self.there(c.line))
        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
