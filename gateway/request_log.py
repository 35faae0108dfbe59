"""One JSON line per request that was placed, when it ends: its receipt, nothing of its prompt or of a key (FC-59)."""

from __future__ import annotations

import os

import orjson

from gateway.choose.types import Receipt
from gateway.control.show import receipt_facts
from gateway.request import Intent, Prompt
from gateway.spool import Spool, open_append
from radix.namespace import Namespace

STDOUT_VARIABLE = "TRUNKLINE_STDOUT"  # a supervisor's to its workers, whose own leads to it
_STDOUT = "-"


class RequestLog:
    """A witness that writes the lines."""

    def __init__(self, file: str) -> None:
        """file: a path, appended to, or '-' for stdout; raises ConfigError."""
        handle = int(os.environ.get(STDOUT_VARIABLE, "1")) if file == _STDOUT else open_append(file, "request_log")
        self.spool = Spool(file, handle)

    def placed(self, request_id: str, intent: Intent, prompt: Prompt, namespace: Namespace) -> None:
        """See `Witness`: there is one line a request, and this is too early for it."""

    def closed(self, receipt: Receipt) -> None:
        """See `Witness`."""
        self.spool.put(lambda: orjson.dumps(receipt_facts(receipt), option=orjson.OPT_APPEND_NEWLINE))
