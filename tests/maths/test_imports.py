import subprocess
import sys

import fedunlearn.maths

SCRIPT = """
import re, sys
from importlib.metadata import requires

def required(package, seen):
    for line in requires(package) or []:
        name = re.match(r"[A-Za-z0-9_.-]+", line).group().lower().replace("-", "_")
        if "extra ==" not in line and name not in seen:
            seen.add(name)
            try:
                required(name, seen)
            except ImportError:
                pass
    return seen

allowed = required("torch", {"torch", "torchgen", "functorch", "fedunlearn"}) | set(sys.stdlib_module_names)

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            refused.add(name)
            raise ModuleNotFoundError(f"{name} is neither torch nor the standard library", name=name)

refused = set()
sys.meta_path.insert(0, Refuse())
import torch
refused.clear()  # torch looks for optional packages and does without them
import fedunlearn.maths
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(refused), "numpy" in loaded, "fedunlearn" in loaded)
"""


def test_maths_imports_nothing_beyond_torch_and_the_standard_library() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[] False True"


def test_public_names_are_all_there() -> None:
    assert sorted(fedunlearn.maths.__all__) == fedunlearn.maths.__all__
    for name in fedunlearn.maths.__all__:
        assert getattr(fedunlearn.maths, name).__doc__
