"""Files of a project that are not Python: lists of requirements, shell scripts, images, CI and documents.

Called by `scan` for files and by `notebook` for commands; tests/port/test_port_files.py.
"""

from toprope.port.files.kinds import FileKind, kind_of
from toprope.port.files.text import port_text, text_rules, twin_of

__all__ = ["FileKind", "kind_of", "port_text", "text_rules", "twin_of"]
