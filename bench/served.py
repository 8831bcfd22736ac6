"""Programs that stay loaded and take turns: each says "ready", then answers every line that it is sent with a line of JSON."""
import json
import subprocess
import tempfile


class Program:
    """One side of the comparison."""

    def __init__(self, name, command, environment=None):
        self.name = name
        self.seconds = []
        self.peak_bytes = 0
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        env=environment)

    def read(self):
        line = self.process.stdout.readline().strip()
        if not line:
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines()
            raise SystemExit(f"{self.name} ended: {said[-1] if said else 'it said nothing'}")
        return line

    def wait_until_ready(self):
        if (line := self.read()) != "ready":
            raise SystemExit(f"{self.name} did not start: {line!r}")

    def ask(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return json.loads(self.read())

    def turn(self):
        """A few steps of tessera_bench_step, or of bench/step/peer.py, with --serve."""
        answer = self.ask("go")
        self.seconds += answer["steps"]
        self.peak_bytes = max(self.peak_bytes, answer["peak_bytes"])

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()
