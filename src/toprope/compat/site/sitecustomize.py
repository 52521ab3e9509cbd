"""Run by every Python process of a `toprope run` as it starts: facades and simulated card, then the user's own file.

`toprope run` puts this folder in front of PYTHONPATH. The file's name is Python's. It must work in a Python that has no
toprope (the package is loaded from where this file lies), in one that is too old for toprope (so nothing here may need
a new Python before the check), and must never break the process. Tests: tests/compat/test_finder.py.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def _install() -> None:
    """Install the finders that the variables of the run ask for."""
    if sys.version_info < (3, 11):  # noqa: UP036  every Python that the program starts runs this file
        raise RuntimeError(f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old, 3.11 is needed")
    from importlib.util import module_from_spec, spec_from_file_location

    if "toprope" not in sys.modules:
        package = os.path.dirname(os.path.dirname(FOLDER))
        spec = spec_from_file_location(
            "toprope", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["toprope"] = module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules["toprope"]
            raise
    from toprope.compat.finder import install_for_run

    install_for_run()


def _run_next() -> None:
    """Run the sitecustomize that Python would have found without this one. Its errors are not caught here."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    others = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    _install()
except Exception as error:
    why = " ".join(str(error).split()) or type(error).__name__
    sys.stderr.write(f"toprope: process {os.getpid()} has neither facades nor simulated card: {why}\n")
_run_next()
