"""The kernels' logic on a CPU, in Triton's interpreter."""

import json
import os
import subprocess
import sys

import pytest

from tests.losses.cases import CASES

pytest.importorskip("triton")

# of triton 3.6's interpreter itself, at the first loop whose bounds are arguments
UNFIT = "InterpreterError: TypeError('only 0-dimensional arrays can be converted to Python scalars')"


@pytest.fixture(scope="module")
def results():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.losses.interpreted"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if UNFIT in done.stderr:
        pytest.skip("this triton's interpreter does not go with numpy 2.4 or later (3.9 does)")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [*CASES, "channels last"])
def test_within_tolerance(results, name):
    found = results["errors"][name]
    assert found["hard"] < 1e-5
    assert found["soft"] < 1e-5
    assert found["gradient"] < 1e-4


def test_half_precision(results):
    found = results["errors"]["half"]
    assert found["hard"] < 1e-5
    assert found["soft"] < 1e-5
    assert found["gradient"] < 1e-2  # a bf16 gradient has 8 bits


def test_each_loss_alone(results):
    single = results["single"]
    assert single["hard"] < 1e-6
    assert single["finite"]
    assert single["untouched"] == 0.0  # plain distillation gives new channels no gradient
    assert single["kd gradient"] > 0.0


def test_argmax(results):
    assert set(results["argmax"].values()) == {0}


def test_contrast(results):
    assert results["contrast"]["value"] < 1e-5
    assert results["contrast"]["gradient"] < 1e-4
