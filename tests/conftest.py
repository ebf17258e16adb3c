"""Shared by all tests: one seed each, no network, and the place of real data."""

import os
import signal
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # before anything asks for threads: workers that share cores spin on them
    cores = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(cores))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a script's background job has it, which runs inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", WANDB_MODE="offline", WANDB_SILENT="true")


@pytest.fixture(autouse=True)
def _same_seed_for_every_test() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets named by GMA_DATA_DIR."""
    folder = os.environ.get("GMA_DATA_DIR")
    if not folder:
        pytest.skip("GMA_DATA_DIR is not set: no real data to check against")
    return Path(folder)
