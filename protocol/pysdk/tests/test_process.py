"""The worker as a process: SIGTERM, children, output, imports."""
import os
import signal
import subprocess
import sys
import unittest

from support import PRELUDE, SDK, WorkerCase, eventually, needs

PATIENT = PRELUDE + "import workerd; workerd._Service.LEAVE = 25.0  # a machine may be slow\n"

STOPS = '''
@worker.load
def load(ctx):
    import atexit
    atexit.register(lambda: open("atexit", "w").close())

@worker.method
def hold(model, ctx):
    ctx.progress(0)
    until(ctx, "go")
    return "held"

@worker.method
def deaf(model, ctx):
    ctx.progress(0)
    while True:
        time.sleep(0.002)
'''


class Stop(WorkerCase):
    def test_idle(self):
        self.spawn(STOPS, prelude=PATIENT)
        c = self.ready()
        self.terminate()
        self.assertEqual(0, self.ended())
        self.assertIsNone(c.line())
        self.assertTrue(os.path.exists(self.path("atexit")))
        self.assertFalse(os.path.exists(self.socket))

    def test_case_93_the_running_request_is_finished(self):
        for concurrency in (1, 2):
            with self.subTest(concurrency=concurrency):
                self.spawn(STOPS, WORKERD_STOP_TIMEOUT="60")
                c = self.ready(concurrency)
                c.request(1, "hold", progressToken=1)
                c.notification("notifications/progress")
                late = self.connect()
                self.assertEqual({}, late.call(1, "ping")["result"])
                self.terminate()
                eventually(lambda: not os.path.exists(self.socket), "the stop")
                self.assertEqual({}, c.call(2, "ping")["result"])
                self.assertEqual("shutting_down", self.kind(late.call(2, "hold")))
                self.touch("go")
                self.assertEqual("held", c.answer(1)["result"])
                self.assertEqual(0, self.ended())
                os.remove(self.path("go"))

    def test_no_stop_timeout(self):
        for value in ("0", "", "soon"):
            with self.subTest(value):
                self.spawn(STOPS, WORKERD_STOP_TIMEOUT=value)
                c = self.ready()
                c.request(1, "hold", progressToken=1)
                c.notification("notifications/progress")
                self.terminate()
                eventually(lambda: not os.path.exists(self.socket), "the stop")
                self.assertEqual({}, c.call(2, "ping")["result"])
                self.touch("go")
                self.assertEqual("held", c.answer(1)["result"])
                self.assertEqual(0, self.ended())
                os.remove(self.path("go"))

    def test_what_had_arrived_before_is_finished_too(self):
        self.spawn(STOPS)
        first, second = self.ready(), self.connect()
        first.request(1, "hold", progressToken=1)
        first.notification("notifications/progress")
        second.request(1, "hold")
        self.terminate()
        self.touch("go")
        self.assertEqual(["held", "held"], [first.answer(1)["result"], second.answer(1)["result"]])
        self.assertEqual(0, self.ended())

    def test_a_large_last_answer_is_sent_whole(self):
        self.spawn('''
            @worker.method
            def big(model, ctx):
                os.kill(os.getpid(), 15)
                return "x" * (16 << 20)
            ''')
        c = self.ready()
        c.request(1, "big")
        eventually(lambda: not os.path.exists(self.socket), "the stop")
        self.assertEqual(16 << 20, len(c.answer(1)["result"]))
        self.assertEqual(0, self.ended())

    def test_the_stop_timeout(self):
        self.spawn(STOPS, WORKERD_STOP_TIMEOUT="0.2")
        c = self.ready()
        c.request(1, "deaf", progressToken=1)
        c.notification("notifications/progress")
        self.terminate()
        self.assertEqual(0, self.ended())

    def test_while_loading(self):
        self.spawn('''
            @worker.load
            def load(ctx):
                try:
                    ctx.progress(0)
                    until(ctx, "never")
                finally:
                    open("cleaned", "w").close()
            ''', prelude=PATIENT)
        c = self.connect()
        c.initialize()
        c.notification("notifications/progress")
        self.terminate()
        self.assertEqual(0, self.ended())
        self.assertTrue(os.path.exists(self.path("cleaned")))

    def test_while_loading_in_a_library_that_does_not_return(self):
        self.spawn('''
            import threading

            @worker.load
            def load(ctx):
                while True:
                    try:
                        until(ctx, "never")
                    except BaseException:
                        pass
            ''')
        self.connect().initialize()
        self.terminate()
        self.assertEqual(0, self.ended())

    def test_in_native_code_that_no_signal_interrupts(self):
        source = '''
            import ctypes, signal

            def native(ctx):
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # on this thread: another one gets it
                ctx.progress(0)
                ctypes.CDLL(None).sleep(1000)

            @worker.%s
            def deep(*args):
                native(args[-1])
            '''
        for kind in ("load", "method"):
            with self.subTest(kind):
                self.spawn(source % kind, WORKERD_STOP_TIMEOUT="0.2")
                c = self.connect()
                c.initialize()
                if kind == "method":
                    c.request(1, "deep", progressToken=1)
                c.notification("notifications/progress")
                self.terminate()
                self.assertEqual(0, self.ended())

    def test_a_library_that_takes_the_signal(self):
        self.spawn('''
            import signal

            @worker.load
            def load(ctx):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.set_wakeup_fd(-1)
            ''')
        self.ready()
        self.terminate()
        self.assertEqual(0, self.ended())

    def test_threads_and_exit_handlers_that_hang(self):
        self.spawn('''
            import threading
            threading.Thread(target=threading.Event().wait).start()  # not a daemon
            ''')
        self.ready()
        self.terminate()
        self.assertEqual(0, self.ended())

    def test_workerd_gone(self):
        self.spawn(STOPS)
        self.ready().close()
        self.assertEqual("ready", self.connect().initialize()["state"])  # case 65: it waits to be adopted


class Children(WorkerCase):
    def test_a_forked_child_holds_nothing_open(self):
        self.spawn('''
            @worker.method
            def fork(model, ctx):
                read, write = os.pipe()
                pid = os.fork()
                if pid == 0:
                    os.close(write)
                    os.read(read, 1)  # until the worker dies
                    os._exit(0)
                os.close(read)
                return pid
            ''')
        c = self.ready()
        pid = c.call(1, "fork")["result"]

        def sockets():
            held = []
            for fd in os.listdir("/proc/%d/fd" % pid):
                try:
                    link = os.readlink("/proc/%d/fd/%s" % (pid, fd))
                except FileNotFoundError:
                    continue  # closed since it was listed
                if link.startswith("socket:"):
                    held.append(link)
            return held
        eventually(lambda: not sockets(), "the child's sockets closed")
        self.process.kill()
        self.assertIsNone(c.line())

    def test_a_child_that_comes_back_ends(self):
        self.spawn('''
            @worker.method
            def fork(model, ctx):
                pid = os.fork()
                if pid == 0:
                    return "from the child"
                return os.waitpid(pid, 0)[1]
            ''')
        c = self.ready()
        self.assertEqual(256, c.call(1, "fork")["result"])
        self.assertEqual(256, c.call(2, "fork")["result"])

    def test_case_63_multiprocessing(self):
        for guard in (True, False):
            for start in ("spawn", "fork", "forkserver"):
                with self.subTest(start=start, guard=guard):
                    self.spawn('''
                        import multiprocessing

                        def double(n):
                            return 2 * n

                        def rest(up):
                            up.set()
                            time.sleep(1000)

                        @worker.method
                        def compute(model, ctx, start: str):
                            context = multiprocessing.get_context(start)
                            with context.Pool(2) as pool:
                                result = pool.map(double, [1, 2, 3])
                            up = context.Event()
                            sleeper = context.Process(target=rest, args=(up,))
                            sleeper.start()
                            if start != "fork":  # Python loses the signal for a child that is not yet executed
                                up.wait()
                            sleeper.terminate()
                            sleeper.join()
                            return [result, sleeper.exitcode]
                        ''', **({} if guard else {"final": "\nworker.run()\n"}))
                    c = self.ready()
                    self.assertEqual([[2, 4, 6], -15], c.call(1, "compute", {"start": start})["result"])
                    self.assertEqual([[2, 4, 6], -15], c.call(2, "compute", {"start": start})["result"])
                    self.terminate()
                    self.assertEqual(0, self.ended())

    def test_a_signal_for_a_child_that_is_not_yet_executed(self):
        self.spawn('''
            import signal
            from multiprocessing import util

            @worker.method
            def kill(model, ctx):
                """End fifty children as early as can be: some are still copies of this process, its handler and all."""
                for _ in range(50):
                    read, write = os.pipe()
                    pid = util.spawnv_passfds(b"/bin/sleep", [b"sleep", b"0.01"], [read, write])
                    os.close(read)
                    os.close(write)
                    os.kill(pid, signal.SIGTERM)
                    os.waitpid(pid, 0)
            ''')
        c = self.ready()
        self.assertIsNone(c.call(1, "kill")["result"])
        self.assertIsNone(c.call(2, "kill")["result"])  # it was not told to stop

    def test_run_is_refused_off_the_main_thread(self):
        self.spawn('''
            import threading
            def run():
                try:
                    worker.run()
                except RuntimeError as e:
                    print(e, file=sys.stderr)
            t = threading.Thread(target=run)
            t.start()
            t.join()
            ''', final="")
        self.ended()
        self.assertIn("main thread", self.said())
        self.assertFalse(os.path.exists(self.socket))


class Output(WorkerCase):
    SOURCE = '''
        @worker.method
        def speak(model, ctx, times: int = 1):
            import subprocess
            for _ in range(times):
                print("printed")
                print("to stderr", file=sys.stderr)
                ctx.log.warning("logged")
                os.write(1, b"written\\n") if times == 1 else None
            sys.stdout.buffer.write(b"bytes\\n")
            print("no newline", end="")
            print("lone \\udce9 surrogate")
            return "spoken"
        '''

    def test_case_90_output_is_no_protocol(self):
        self.spawn(self.SOURCE)
        self.assertEqual("spoken", self.ready().call(1, "speak")["result"])
        with open(self.stdout, "rb") as f:
            self.assertEqual(b"printed\nwritten\nbytes\nno newlinelone \\udce9 surrogate\n", f.read())

    @needs("/dev/full", os.path.exists("/dev/full"), "a disk that is full")
    def test_case_73_a_full_disk(self):
        script = self.path("full.py")
        import textwrap
        from support import FINAL, PRELUDE
        with open(script, "w") as f:
            f.write(PRELUDE + "print('at import')\n" + textwrap.dedent(self.SOURCE).replace("os.write(1", "(lambda *a: 0)(1") + FINAL)
        with open("/dev/full", "wb") as full:
            self.process = subprocess.Popen([sys.executable, script], stdout=full, stderr=full, cwd=self.dir,
                                            env=dict(os.environ, PYTHONPATH=SDK, WORKERD_SOCKET=self.socket, PYTHONUNBUFFERED="1"))
        self.stderr = os.devnull
        self.addCleanup(self.reap, self.process)
        c = self.ready()
        self.assertEqual("spoken", c.call(1, "speak", {"times": 100})["result"])
        self.terminate()
        self.assertEqual(0, self.ended())

    def test_case_65_a_reader_that_has_gone(self):
        read, write = os.pipe()
        script = self.path("gone.py")
        import textwrap
        from support import FINAL, PRELUDE
        with open(script, "w") as f:
            f.write(PRELUDE + textwrap.dedent(self.SOURCE).replace("os.write(1", "(lambda *a: 0)(1") + FINAL)
        self.process = subprocess.Popen([sys.executable, script], stdout=write, stderr=write, cwd=self.dir,
                                        env=dict(os.environ, PYTHONPATH=SDK, WORKERD_SOCKET=self.socket))
        os.close(write)
        os.close(read)
        self.stderr = os.devnull
        self.addCleanup(self.reap, self.process)
        self.assertEqual("spoken", self.ready().call(1, "speak", {"times": 100})["result"])

    def test_a_crash_says_where(self):
        self.spawn('''
            @worker.method
            def crash(model, ctx):
                import ctypes
                ctypes.string_at(0)
            ''')
        c = self.ready()
        c.request(1, "crash")
        self.assertIsNone(c.line())
        self.assertEqual(-signal.SIGSEGV, self.ended())
        self.assertRegex(self.said(), r"(?s)Segmentation fault.*in crash")


class Import(unittest.TestCase):
    def test_it_imports_little(self):
        heavy = ["asyncio", "inspect", "typing", "logging", "tempfile", "numpy", "subprocess", "multiprocessing", "ssl"]
        code = "import sys; before = set(sys.modules); import workerd; print(*sorted(set(sys.modules) - before))"
        said = subprocess.check_output([sys.executable, "-S", "-c", code], env={"PYTHONPATH": SDK, "PATH": os.environ["PATH"]})
        self.assertEqual([], sorted(set(said.decode().split()) & set(heavy)))

    @needs("python3.8", sys.version_info >= (3, 8), "ast has feature_version since then")
    def test_the_syntax_is_that_of_python_3_7(self):
        import ast
        with open(os.path.join(SDK, "workerd.py"), encoding="utf-8") as f:
            ast.parse(f.read(), feature_version=(3, 7))

    def test_the_table_of_kinds_is_that_of_workerd(self):
        import re
        import workerd
        with open(os.path.join(os.path.dirname(SDK), "errors.go"), encoding="utf-8") as f:
            text = f.read()
        names = dict(re.findall(r'(\w+) +Kind = "(\w+)"', text))
        table = {names[k]: (int(code), retryable == "true") for k, code, retryable in re.findall(r"(\w+): +{(-\d+), (\w+)}", text)}
        self.assertEqual(table, workerd.KINDS)


if __name__ == "__main__":
    unittest.main()
