"""Whether every public name of minfer_jax, and every member of a public class, has a type that checkers know.

``pyright --verifytypes`` counts all modules as public; here those names count that ``minfer_jax`` itself gives.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import minfer_jax

bin_folder = Path(sys.executable).parent  # in front of PATH, where pyright looks for the Python it is to ask
source = Path(minfer_jax.__file__).parent.parent  # it does not see what is installed in place
report = subprocess.run(
    [bin_folder / "pyright", "--outputjson", "--ignoreexternal", "--verifytypes", "minfer_jax"],
    env={**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(source)},
    capture_output=True,
    text=True,
).stdout
public = [getattr(minfer_jax, name) for name in minfer_jax.__all__]
for module in [value for value in public if isinstance(value, ModuleType)]:
    public.remove(module)
    public += [getattr(module, name) for name in module.__all__]
owners = tuple(f"{value.__module__}.{value.__qualname__}" for value in public)
symbols = json.loads(report)["typeCompleteness"]["symbols"]
found = [s for s in symbols if s["name"] in owners or s["name"].rpartition(".")[0] in owners]
missing = {owner for owner in owners if not any(s["name"] == owner for s in found)}
vague = [s["name"] for s in found if not s["isTypeKnown"] or s["isTypeAmbiguous"]]
if missing or vague:
    sys.exit(f"public names without a complete type: {', '.join([*sorted(missing), *vague])}")
print(f"{len(found)} public names, all with complete types")
