"""Runs of several processes under torchrun, for tests that hurt them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"


def environment() -> dict[str, str]:
    """This process's environment, with one thread for every rank and nothing of another launcher's."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    path = os.pathsep.join([str(SOURCE), str(SOURCE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def torchrun(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, "-m", module, *arguments]


def run_module(module: str, *arguments: str) -> None:
    """A module of the tests in two processes; what it asserts must hold in each of them."""
    command, options = torchrun(module, *arguments), {"capture_output": True, "text": True, "timeout": 200}
    done = subprocess.run(command, env=environment(), cwd=SOURCE.parent, check=False, **options)
    assert done.returncode == 0, done.stderr


class Launched:
    """`tiss run` under torchrun (or another module that takes its flags), its output in a file."""

    def __init__(self, flags: list[str], log: Path, module: tuple[str, ...] = ("tiss", "run")) -> None:
        self.log = log
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                torchrun(*module, *flags),
                stdout=output,
                stderr=output,
                env=environment(),
                start_new_session=True,
            )

    def pid_of(self, rank: int) -> int:
        """The process of a rank, found among torchrun's children."""
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (folder / "environ").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue
            if parent == self.process.pid and f"RANK={rank}".encode() in variables:
                return int(folder.name)
        raise AssertionError(f"no process of rank {rank}: {self.output()}")

    def wait_for(self, path: Path, seconds: float = 240) -> None:
        """Until `path` is there."""
        deadline = time.monotonic() + seconds
        while not path.exists():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.01)

    def wait(self, seconds: float = 200) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            self.end()

    def end(self) -> None:
        """Nothing of the run outlives its test."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def output(self) -> str:
        return self.log.read_text()

    def messages(self) -> list[str]:
        """The lines that the program itself wrote for its user about what went wrong."""
        return [line for line in self.output().splitlines() if line.startswith("tiss: ")]
