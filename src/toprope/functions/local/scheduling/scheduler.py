"""Scheduler of a local session: grants resources of the machine or of a resource group, in order of the requests.

Instances and pools ask; they are called back with a grant, under the session's lock. The order is the ledger's
(`scheduling.ledger`); here are the choice of nodes by affinity, the cards that other programs hold
(`deployment.reservations`) and the texts about shortages. Tests: tests/functions/test_functions_affinity.py,
tests/functions/test_functions_resource_groups.py, tests/functions/test_functions_claims.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from toprope.functions.deployment.reservations import Reservations
from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.local.scheduling.resource_groups import ResourceGroups
from toprope.functions.options import InvokeOptions
from toprope.functions.scheduling.affinity import Wishes, instance_labels
from toprope.functions.scheduling.bundles import BUNDLE
from toprope.functions.scheduling.holders import held_by
from toprope.functions.scheduling.ledger import Grant, Ledger, Node, Shortage
from toprope.functions.scheduling.requests import Request, check_keys
from toprope.functions.timers import Timer

if TYPE_CHECKING:
    from toprope.functions.local.instance import Instance
    from toprope.functions.local.reactor import Reactor
    from toprope.functions.local.session_state import SessionState

__all__ = ["Scheduler"]

_log = logging.getLogger("toprope")


class Asker(Protocol):
    """A requester of resources: an instance, or a pool that wants one more worker.

    Attributes:
        ledger: name of the ledger; "" for the machine's own.
        asked: the number of the request there.
    """

    ledger: str
    asked: int


LOOK = 0.1
"""Polling interval for resources that other programs hold, in seconds."""


class Scheduler:
    """Grants resources in order. The caller holds the session's lock.

    Args:
        session: the session.
        reactor: has the timers.
        reservations: other programs' reservations of the node's cards; None without `toprope start`.
    """

    def __init__(self, session: SessionState, reactor: Reactor, reservations: Reservations | None) -> None:
        self._session = session
        self._reactor = reactor
        self._reservations = reservations
        self._look: Timer | None = None
        self.ledgers: dict[str, Ledger] = {"": session.ledger}
        self._waiting: dict[tuple[str, int], tuple[Any, Callable[[Any, Grant], None]]] = {}
        self._serving = False
        self.resource_groups = ResourceGroups(session, self.ledgers, self)

    # Resources

    def place(
        self, asker: Any, request: Request, options: InvokeOptions, granted: Callable[[Any, Grant], None]
    ) -> None:
        """Request resources; `granted` is called with the grant."""
        asker.ledger = self.ledger_name(options)
        on, rank = self._choice(options)
        asker.asked = self.ledger_of(asker).ask(request, on, rank)
        self.expect(asker.ledger, asker.asked, asker, granted)

    def expect(self, ledger: str, number: int, asker: Any, granted: Callable[[Any, Grant], None]) -> None:
        """Register `granted`, which is called with the grant of this number."""
        self._waiting[ledger, number] = asker, granted

    def forget(self, ledger: str, number: int) -> None:
        """Remove the callback for the grant of this number."""
        self._waiting.pop((ledger, number), None)

    def ledger_name(self, options: InvokeOptions) -> str:
        """The name of the ledger that options point to.

        Raises:
            YRequestError: there is no such resource group, or no such bundle in it (1001).
        """
        return self.resource_groups.ledger_for(options)

    def check(self, instance: Instance, request: Request) -> None:
        """Refuse a resource group or affinities that cannot be.

        Raises:
            ValueError, YRequestError: the message names what cannot be.
        """
        Wishes(instance.options)
        self.check_keys(request)
        instance.ledger = self.ledger_name(instance.options)

    def check_keys(self, request: Request) -> None:
        """Refuse keys that are spelled as those of another scheduler.

        Raises:
            InvalidRequestError: this machine does not have them.
        """
        check_keys(request, (key for node in self._session.ledger.nodes for key in node.scalars))

    def ledger_of(self, asker: Asker) -> Ledger:
        """Return the ledger that a request is charged to.

        Raises:
            YRRuntimeError: there is no such resource group.
        """
        found = self.ledgers.get(asker.ledger)
        if found is None:
            raise YRRuntimeError(f"there is no resource group {asker.ledger}", CODES["invalid parameter"])
        return found

    def serve(self) -> None:
        """Grant free resources to the queued requests, in order."""
        if self._serving or self._session.ended:
            return  # who serves sees what has just been given back
        self._serving = True
        try:
            again = True
            while again:
                again = False
                self.resource_groups.release_removed()
                for name, ledger in list(self.ledgers.items()):
                    for grant in self._granted(ledger):
                        again = True
                        asker, granted = self._waiting.pop((name, grant.number))
                        granted(asker, grant)
        finally:
            self._serving = False
        if self._reservations is not None and self._session.ledger.is_waited_for and self._look is None:
            self._look = self._reactor.after(LOOK, self._poll_reservations)

    def _granted(self, ledger: Ledger) -> tuple[Grant, ...]:
        if self._reservations is None or ledger is not self._session.ledger:
            return ledger.serve()
        with self._reservations.synchronized(ledger, self._session.node):
            return ledger.serve()

    def _poll_reservations(self) -> None:
        """Poll for cards that other programs have released."""
        with self._session.lock:
            self._look = None
            self.serve()

    def end(self) -> None:
        """Remove the session's reservations: it has ended."""
        if self._reservations is not None:
            self._reservations.forget()

    def withdraw(self, asker: Asker) -> None:
        """Cancel a pending resource request."""
        if self._waiting.pop((asker.ledger, asker.asked), None) is not None:
            self.ledger_of(asker).withdraw(asker.asked)

    def shortage_of(self, asker: Asker, request: Request) -> str:
        """Return the reason of a shortage, with the current holders."""
        found = self.shortage_for(asker, request)
        if not found.ever or found.is_affinity:
            return found.explained
        return found.explained + held_by(self._session.holders(asker.ledger))

    def shortage_for(self, asker: Asker, request: Request) -> Shortage:
        """Return the shortage of a pending request."""
        options: InvokeOptions = asker.options  # type: ignore[attr-defined]
        return self.ledger_of(asker).shortage(request, self.filter(options))

    def warn_if_never(self, what: str, asker: Asker, request: Request) -> None:
        """Warn that this machine can never meet a request. It stays queued: a node's resources may change."""
        shortage = self.shortage_for(asker, request)
        if not shortage.ever:
            _log.warning("%s requests what this machine does not have: %s", what, shortage.explained)

    def code_of_shortage(self, asker: Any, request: Request | None = None) -> int:
        """Return the error code of a shortage: 1006 if affinities exclude every node, else 1002."""
        request = asker.request if request is None else request
        shortage = self.shortage_for(asker, request)
        return CODES["resource config" if shortage.is_affinity else "resource not enough"]

    def filter(self, options: InvokeOptions) -> Callable[[Node], bool] | None:
        """Return the filter of the nodes that the options allow; None for all."""
        return self._choice(options)[0]

    def _choice(
        self, options: InvokeOptions
    ) -> tuple[Callable[[Node], bool] | None, Callable[[Node], tuple[int, ...]] | None]:
        """Return the filter and the ranking of nodes by the options."""
        bundle = options.resource_group_options.bundle_index
        wishes = Wishes(options)
        if bundle < 0 and not wishes:
            return None, None

        def allowed(node: Node) -> bool:
            if bundle >= 0 and node.labels.get(BUNDLE) != str(bundle):
                return False
            return not wishes or wishes.allow(node.labels, self._labels_on(node))

        def rank(node: Node) -> tuple[int, ...]:
            return wishes.rank(node.labels, self._labels_on(node))

        return allowed, rank if wishes else None

    def _labels_on(self, node: Node) -> list[Mapping[str, str]]:
        """The labels of each instance on the host of a node."""
        host = _host(node.id)
        return [
            instance_labels(each.options.labels)
            for each in self._session.living()
            if each.grant is not None and _host(each.grant.node) == host
        ]


def _host(node: str) -> str:
    """The host of a node: bundles are called host/number."""
    return node.partition("/")[0]
