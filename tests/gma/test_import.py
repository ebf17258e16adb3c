"""The library stays light."""

import subprocess
import sys


def test_import_costs_little_more_than_torch() -> None:
    code = "import torch, time; start = time.perf_counter(); import gma; print(time.perf_counter() - start)"
    seconds = min(float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(2))
    assert seconds < 0.3


def test_nothing_but_torch_and_einops_is_imported() -> None:
    code = (
        "import sys, torch, einops; before = set(sys.modules); import gma;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    packages = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert packages - set(sys.stdlib_module_names) <= {"gma", "torch", "einops"}
