"""`FlowInfo`, the metadata of a message: times, flags, a transaction number, and 64 bytes of the user; pure.

For users, who pass it to `feed` and get it from `fetch`. Inside, it is a `Head` (`stage.spec`): `convert` maps the
two. Names, flags and the 64 bytes are fixed by CANN's dataflow API. Tests: tests/flow/test_flow_info.py.
"""

from __future__ import annotations

from enum import IntEnum

from toprope.flow.exceptions import DfException

__all__ = ["MAX_USER_DATA_SIZE", "FlowFlag", "FlowInfo"]

MAX_USER_DATA_SIZE = 64
"""Size of the user's data in a message's metadata, in bytes."""


class FlowFlag(IntEnum):
    """Flags of a message; they can be combined."""

    DATA_FLOW_FLAG_EOS = 1
    """The end of the sequence."""

    DATA_FLOW_FLAG_SEG = 2
    """The end of a segment."""


class FlowInfo:
    """Metadata of a message.

    Attributes:
        start_time, end_time: milliseconds.
        flow_flags: of `FlowFlag`.
        transaction_id: which input a message belongs to; 0 leaves it to the graph.
    """

    def __init__(self, start_time: int = 0, end_time: int = 0, flow_flags: int = 0, transaction_id: int = 0) -> None:
        self.start_time = start_time
        self.end_time = end_time
        self.flow_flags = int(flow_flags)
        self.transaction_id = transaction_id
        self._user = bytearray(MAX_USER_DATA_SIZE)
        self._size = 0

    @property
    def user_data(self) -> bytearray:
        """The user's 64 bytes."""
        return self._user

    @property
    def data_size(self) -> int:
        """End of the written part of the user's data, in bytes."""
        return self._size

    def set_user_data(self, user_data: bytes | bytearray, offset: int = 0) -> None:
        """Write into the user's data.

        Raises:
            DfException: it does not fit, or there is nothing to write.
        """
        size = self._checked(len(user_data), offset)
        self._user[offset : offset + size] = user_data
        self._size = max(self._size, offset + size)

    def get_user_data(self, size: int, offset: int = 0) -> bytearray:
        """Read from the user's data.

        Raises:
            DfException: the range exceeds the user's data.
        """
        return self._user[offset : offset + self._checked(size, offset)]

    def _checked(self, size: int, offset: int) -> int:
        if size <= 0 or not 0 <= offset < MAX_USER_DATA_SIZE or size + offset > MAX_USER_DATA_SIZE:
            raise DfException(
                f"size {size} at offset {offset} is not within the {MAX_USER_DATA_SIZE} bytes of user data"
            )
        return size

    def __repr__(self) -> str:
        return (
            f"FlowInfo(start_time={self.start_time}, end_time={self.end_time}, flow_flags={self.flow_flags}, "
            f"transaction_id={self.transaction_id})"
        )
