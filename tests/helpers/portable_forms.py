"""The two forms of the runtime of ported programs, as code that binds `portable`: `toprope.device`'s and the copy.

Used by tests/port/test_portable.py and test_portable_compiled.py.
"""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "src" / "toprope" / "device" / "_portable_runtime.py"
FORMS = {
    "toprope": "from toprope.device import portable",
    "vendored": f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("toprope_portable", {str(TEXT)!r})
portable = sys.modules["toprope_portable"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(portable)
""",
}
