"""A warm standby: what it preloads, and when it loads."""
import unittest

from support import WorkerCase, eventually


class Standby(WorkerCase):
    def test_preload_runs_before_load(self):
        self.spawn('''
            done = []

            @worker.preload
            def preload(ctx):
                done.append("preload")

            @worker.load
            def load(ctx):
                return done + ["load"]

            @worker.method
            def model(model, ctx):
                return model
            ''')
        self.assertEqual(["preload", "load"], self.ready().call(1, "model")["result"])

    STANDBY = '''
        @worker.preload
        def preload(ctx):
            ctx.progress(0.5, "importing")
            until(ctx, "go")
            ctx.progress(0.9, "imported")

        @worker.load
        def load(ctx):
            ctx.progress(0.1, "loading")
            until(ctx, "went")
            return "model"

        @worker.method
        def model(model, ctx):
            return model
        '''

    def test_a_warm_standby_loads_when_it_is_told_to(self):
        self.spawn(self.STANDBY, WORKERD_STANDBY="warm")
        c = self.connect()
        self.assertEqual("loading", c.initialize()["state"])
        self.touch("go")
        c.notification("notifications/preloaded")
        c.call(1, "ping")
        self.assertEqual("preloaded", self.connect().initialize()["state"])
        c.send({"jsonrpc": "2.0", "method": "notifications/load", "params": {}})
        self.assertEqual("loading", c.notification("notifications/progress")["message"])
        self.assertEqual("loading", self.connect().initialize()["state"])
        self.touch("went")
        c.notification("notifications/ready")
        self.assertEqual("model", c.call(2, "model")["result"])

    def test_a_warm_standby_that_is_wanted_before_it_has_preloaded_does_not_wait(self):
        self.spawn(self.STANDBY, WORKERD_STANDBY="warm")
        c = self.connect()
        c.initialize()
        c.send({"jsonrpc": "2.0", "method": "notifications/load"})
        c.call(1, "ping")  # it has been read
        self.touch("go")
        self.touch("went")
        methods = []
        while "notifications/ready" not in methods:
            methods.append(c.read()["method"])
        self.assertNotIn("notifications/preloaded", methods)
        self.assertEqual("model", c.call(2, "model")["result"])

    def test_a_warm_standby_without_preload_waits_before_it_loads(self):
        self.spawn(self.STANDBY.replace("@worker.preload", ""), WORKERD_STANDBY="warm")
        eventually(lambda: self.connect().initialize()["state"] == "preloaded", "it waits")
        self.touch("went")
        c = self.connect()
        c.initialize()
        c.send({"jsonrpc": "2.0", "method": "notifications/load"})
        c.notification("notifications/ready")

    def test_a_warm_standby_ends_at_once_when_it_is_told_to(self):
        self.spawn(self.STANDBY, WORKERD_STANDBY="warm")
        self.touch("go")
        eventually(lambda: self.connect().initialize()["state"] == "preloaded", "it waits")
        self.terminate()
        self.assertEqual(0, self.ended())
        self.assertEqual("", self.said())

    def test_a_worker_that_serves_does_not_wait(self):
        self.touch("go")
        self.touch("went")
        self.spawn(self.STANDBY, WORKERD_STANDBY="")
        self.assertEqual("model", self.ready().call(1, "model")["result"])


if __name__ == "__main__":
    unittest.main()
