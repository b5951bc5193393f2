"""Shows that all contestants do the same work: two rounds on a small workload end in the same model.

``python agree.py [with_pfl.py ...]`` runs the reference and the contestants named, or all of them, with the
interpreter that it is started with.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
TOLERANCE = 1e-5
BOUNDS = (0, 700, 731, 1500, 2000)


def write_workload(path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(10, (BOUNDS[-1],), generator=generator)
    centres = torch.rand(10, 784, generator=generator)
    x = (centres[y] + 0.3 * torch.randn(len(y), 784, generator=generator)).clamp_(0, 1)
    tensors = {"x": x, "y": y, "bounds": torch.tensor(BOUNDS)}
    for layer, (rows, columns) in enumerate(((400, 784), (400, 400), (10, 400))):
        bound = columns**-0.5
        tensors[f"w{layer}"] = torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)
        tensors[f"b{layer}"] = torch.empty(rows).uniform_(-bound, bound, generator=generator)
    save_file(tensors, path, metadata={"lr": "0.1", "batch_size": "64"})


def final(script: str, workload: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """A contestant's name and its model after two rounds."""
    result = workload.with_name(f"{script}.safetensors")
    done = subprocess.run(
        [sys.executable, HERE / script, workload, result],
        input="round\nround\nstop\n",
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr}")
    ready, *rounds = map(json.loads, done.stdout.splitlines())
    assert len(rounds) == 2, done.stdout
    return f"{ready['name']} {ready['version']}", load_file(result)


def main() -> None:
    scripts = sys.argv[1:] or sorted(path.name for path in HERE.glob("with_*.py"))
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder) / "workload.safetensors"
        write_workload(workload)
        start = load_file(workload)
        _, expected = final("reference.py", workload)
        moved = max(float((expected[name] - start[name]).abs().max()) for name in expected)
        print(f"{'plain':<16} moved by {moved:.1e}")
        worst = 0.0
        for script in scripts:
            name, params = final(script, workload)
            difference = max(float((params[key] - expected[key]).abs().max()) for key in expected)
            worst = max(worst, difference)
            print(f"{name:<16} differs by {difference:.1e}", flush=True)
    if not worst <= TOLERANCE:
        raise SystemExit(f"no more than {TOLERANCE:.0e} is allowed")


if __name__ == "__main__":
    main()
